//! The roles of the tensors of a model, which follow from the nodes that use them.

use super::super::super::Input;
use super::graph::{Definition, Holder, ModelGraph, TensorRole, Use};
use super::messages::{MessageKind, NodeFields, is_default_domain};
use super::opsets::is_fnuz;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::text::shorten;

impl<'a> ModelGraph<'a> {
    /// Reads the graph of the model in an input, with the roles and the uses of its tensors.
    pub(crate) fn of(input: &'a Input) -> Result<Self> {
        let mut graph = Self::read(&input.files[0])?;
        let same = |pair: &&[Definition]| (pair[0].name, pair[0].scope) == (pair[1].name, pair[1].scope);
        if let Some(pair) = graph.values.windows(2).find(|pair| same(pair) && pair[0].is_made) {
            let name = shorten(&String::from_utf8_lossy(pair[0].name));
            let error = Error::new(format!("two nodes or initializers of a graph define the value '{name}'"));
            return Err(error.remedy("onnx.checker.check_model describes what is wrong with the model"));
        }
        let numbers = input.contents.tensors.iter().filter_map(|tensor| tensor.elements.dtype()?.onnx_number());
        graph.has_fnuz |= numbers.map(i64::from).any(is_fnuz);
        graph.find_roles_of_names();
        graph.find_uses();
        graph.find_dequantizations(input);
        Ok(graph)
    }

    /// Returns the role of a tensor, if it is not a plain weight.
    pub(crate) fn role(&self, tensor: usize) -> Option<TensorRole> {
        self.tensors[tensor].role
    }

    /// Returns the role of a tensor for a target type, if it is not a plain weight.
    pub(crate) fn role_for(&self, tensor: usize, to: Dtype) -> Option<TensorRole> {
        let is_constant = self.tensors[tensor].holder == Holder::Constant && to.bits() == 6;
        if is_constant { Some(TensorRole::Constant) } else { self.role(tensor) }
    }

    /// Returns the input of the graph with the name of an initializer, which gets the new name and type too. Up to IR
    /// version 3, every initializer is an input and nevertheless a constant.
    pub(super) fn constant_input(&self, tensor: usize) -> Option<usize> {
        let is_main = self.tensors[tensor].scope == self.main;
        self.input(tensor).filter(|_| is_main && (1..=3).contains(&self.ir_number()))
    }

    /// True if a tensor is also an input of the graph, as all initializers are up to IR version 3.
    pub(crate) fn is_input(&self, tensor: usize) -> bool {
        self.constant_input(tensor).is_some()
    }

    /// Returns the message of the input with the name of a tensor.
    fn input(&self, tensor: usize) -> Option<usize> {
        let values = self.definitions(self.tensors[tensor].scope, self.value_name(tensor));
        let input = self.values[values].first().filter(|value| !value.is_made)?;
        Some(input.message)
    }

    /// Finds the defaults of inputs, and the values with the name of a value of an enclosing graph.
    fn find_roles_of_names(&mut self) {
        for at in 0..self.tensors.len() {
            if self.tensors[at].role.is_some() {
                continue;
            }
            let outer = || self.value(self.scope_around(self.tensors[at].scope)?, self.value_name(at));
            self.tensors[at].role = if self.input(at).is_some() && !self.is_input(at) {
                Some(TensorRole::GraphInput)
            } else {
                outer().map(|_| TensorRole::Shadowing)
            };
        }
    }

    /// Finds the uses of all values in the main graph and its inner graphs, and the roles that uses give to tensors.
    fn find_uses(&mut self) {
        for at in 0..self.messages.len() {
            if self.messages[at].kind != MessageKind::Node {
                continue;
            }
            let (node, scope) = (self.node(at), self.messages[at].parent);
            let is_main = self.part(at) == MessageKind::Graph;
            for (slot, name) in node.inputs.iter().enumerate() {
                let Some(value) = self.value(scope, name) else { continue };
                self.protect(value, role_of_input(&node, slot));
                self.uses.extend(is_main.then_some(Use { value, node: at, slot }));
            }
        }
        self.uses.sort_unstable();
        for (scope, name, role) in std::mem::take(&mut self.roles) {
            if let Some(value) = self.value(scope, name) {
                self.protect(value, Some(role));
            }
        }
        let outputs = std::mem::take(&mut self.outputs);
        self.output_values = outputs.iter().filter_map(|(scope, name)| self.value(*scope, name)).collect();
    }

    /// Gives a role to the tensor of a value. Another role can only replace [`TensorRole::Parameter`].
    fn protect(&mut self, value: usize, role: Option<TensorRole>) {
        let Some(tensor) = self.tensor_of(value) else { return };
        let known = &mut self.tensors[tensor].role;
        if matches!(known, None | Some(TensorRole::Parameter)) {
            *known = role.or(*known);
        }
    }
}

/// Returns the role of an operator's input, if it is not a plain weight.
fn role_of_input(node: &NodeFields, input: usize) -> Option<TensorRole> {
    let op = std::str::from_utf8(node.op_type).ok()?;
    if node.domain == b"com.microsoft" {
        let is_quantized = op.starts_with('Q')
            || op.starts_with("DynamicQuantize")
            || matches!(op, "MatMulNBits" | "GatherBlockQuantized" | "MatMulIntegerToFloat" | "DequantizeLinear");
        return (is_quantized && input > 0).then_some(TensorRole::Scale);
    }
    if !is_default_domain(node.domain) {
        return None;
    }
    let is_scale = match op {
        "QuantizeLinear" | "DequantizeLinear" => (1..=2).contains(&input),
        "QLinearConv" | "QLinearMatMul" => matches!(input, 1 | 2 | 4..=7),
        "MatMulInteger" | "ConvInteger" => (2..=3).contains(&input),
        _ => false,
    };
    if is_scale {
        return Some(TensorRole::Scale);
    }
    let is_parameter = match op {
        "Reshape" | "Expand" | "Tile" | "Gather" | "GatherElements" | "GatherND" | "Scatter" | "ScatterElements"
        | "ScatterND" | "Squeeze" | "Unsqueeze" | "Split" | "SplitToSequence" | "TopK" | "Compress" | "Upsample"
        | "CumSum" | "Trilu" | "AffineGrid" | "CenterCropPad" => input == 1,
        "ConstantOfShape" | "Loop" | "HannWindow" | "HammingWindow" | "BlackmanWindow" => input == 0,
        "Col2Im" | "Dropout" | "DFT" | "Clip" => (1..=2).contains(&input),
        "MaxUnpool" | "RoiAlign" => input == 2,
        "Slice" | "BatchNormalization" => (1..=4).contains(&input),
        "Pad" | "Resize" => (1..=3).contains(&input),
        "STFT" => matches!(input, 1 | 3),
        "OneHot" | "Range" => input <= 2,
        "NonMaxSuppression" => (2..=4).contains(&input),
        "MelWeightMatrix" => true,
        _ => op.starts_with("Reduce") && input == 1,
    };
    is_parameter.then_some(TensorRole::Parameter)
}
