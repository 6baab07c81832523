//! The uses of the tensors of a model, and the tensors that nodes decode.

use super::super::super::Input;
use super::contrib::BlockOperator;
use super::graph::{
    CodesForm, Dequantization, Holder, ModelGraph, TensorRole, Undecoded, Use, copy_of, label, range_of,
};
use super::messages::{MessageKind, NodeFields, is_default_domain};
use std::collections::{BTreeMap, HashSet};
use std::str::from_utf8;

/// Use of an input of an operator, a weight: of Gather the first, of others the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WeightUse {
    /// As [inputs, outputs]: `MatMul`.
    Product,
    /// The same: `MatMul` and Gemm.
    OutputsLast,
    /// As [outputs, inputs]: Gemm with `transB`.
    OutputsFirst,
    /// As [outputs, inputs, ..]: Conv.
    Kernel,
    /// As rows that are taken: Gather.
    Table,
}

impl WeightUse {
    /// True for a weight as [inputs, outputs].
    pub(crate) fn is_product(self) -> bool {
        matches!(self, Self::Product | Self::OutputsLast)
    }
}

impl ModelGraph<'_> {
    /// Returns the uses of a value.
    fn uses_of(&self, value: Option<usize>) -> &[Use] {
        let Some(value) = value else { return &[] };
        &self.uses[range_of(&self.uses, &value, |one| one.value)]
    }

    pub(super) fn tensor_uses(&self, tensor: usize) -> &[Use] {
        self.uses_of(self.value_of(tensor))
    }

    fn output_value(&self, node: usize) -> Option<usize> {
        self.value(self.messages[node].parent, self.node(node).output())
    }

    /// Returns the uses of the first output of a node.
    pub(super) fn output_uses(&self, node: usize) -> &[Use] {
        self.uses_of(self.output_value(node))
    }

    /// True if a tensor is an output of a graph.
    fn is_output(&self, tensor: usize) -> bool {
        self.value_of(tensor).is_some_and(|value| self.output_values.contains(&value))
    }

    /// True if a tensor is an initializer that no node, graph or caller uses.
    pub(crate) fn is_unused(&self, tensor: usize) -> bool {
        self.tensors[tensor].holder == Holder::Initializer
            && self.role(tensor).is_none()
            && !self.is_input(tensor)
            && !self.is_output(tensor)
            && self.tensor_uses(tensor).is_empty()
    }

    /// True if the first output of a node is an output of a graph.
    fn makes_output(&self, node: usize) -> bool {
        self.output_value(node).is_some_and(|value| self.output_values.contains(&value))
    }

    fn is_constant(&self, tensor: usize) -> bool {
        matches!(self.tensors[tensor].holder, Holder::Initializer | Holder::Constant)
            && !self.is_input(tensor)
            && matches!(self.role(tensor), None | Some(TensorRole::Scale))
    }

    /// Returns the tensor of an input of a node, if it is a constant.
    fn constant(&self, node: usize, name: &[u8]) -> Option<usize> {
        self.tensor_of(self.value(self.messages[node].parent, name)?).filter(|tensor| self.is_constant(*tensor))
    }

    /// True if a use is that of the codes of a node that decodes them, or computes with their values.
    fn is_decoding(&self, one: &Use) -> bool {
        let node = self.node(one.node);
        let slot = match BlockOperator::of(&node) {
            Some(operator) => Some(operator.codes_slot()),
            None => (node.operator() == b"DequantizeLinear").then_some(0),
        };
        slot == Some(one.slot) && !node.output().is_empty()
    }

    /// Finds the values that nodes compute from codes, or with. An unreadable tensor has a place but is not in the list
    /// of tensors, so that the places cannot be matched to the list: in this case, no tensor is decoded.
    pub(super) fn find_dequantizations(&mut self, input: &Input) {
        if !input.contents.unreadable.is_empty() {
            return;
        }
        let mut names = HashSet::new();
        for codes in 0..self.tensors.len() {
            let uses = self.tensor_uses(codes);
            let nodes: Vec<usize> = uses.iter().filter(|one| self.is_decoding(one)).map(|one| one.node).collect();
            if nodes.is_empty() {
                continue;
            }
            let grouped = self.check_codes(codes, nodes.len() == uses.len()).map_err(|reason| (None, reason));
            let grouped = grouped.and_then(|()| self.group(input, codes, &nodes).map_err(|(at, why)| (Some(at), why)));
            match grouped {
                Ok(mut found) => {
                    self.name_weights(&input.contents.tensors, &mut found, &mut names);
                    self.dequantizations.extend(found);
                }
                // If one of the nodes stays, all of them do.
                Err((first, reason)) => self.undecoded.extend(nodes.into_iter().map(|node| {
                    let is_first = first.is_none_or(|first| first == node);
                    let reason = if is_first { reason } else { "a node with the same codes stays" };
                    Undecoded { codes, node, reason }
                })),
            }
        }
    }

    /// Checks that values can replace a tensor of codes; otherwise returns the reason.
    fn check_codes(&self, codes: usize, is_decoded_only: bool) -> Result<(), &'static str> {
        match self.role(codes) {
            _ if self.is_input(codes) => Err("its codes are an input of the graph"),
            Some(TensorRole::GraphInput) => Err("its codes are an input of the graph"),
            Some(TensorRole::Shadowing) => Err("a value of an outer graph has the name of its codes"),
            _ if self.is_output(codes) => Err("its codes are an output of a graph"),
            None | Some(TensorRole::Scale) if is_decoded_only && self.is_constant(codes) => Ok(()),
            _ => Err("its codes have other uses"),
        }
    }

    /// Returns the values of a tensor of codes, one for each combination of scales, or the first node that cannot be
    /// computed.
    fn group(
        &self,
        input: &Input,
        codes: usize,
        nodes: &[usize],
    ) -> Result<Vec<Dequantization>, (usize, &'static str)> {
        let mut found: Vec<Dequantization> = Vec::new();
        for &node in nodes {
            let one = self.dequantization(input, codes, node).map_err(|reason| (node, reason))?;
            let parts = |one: &Dequantization| (one.scale, one.zero_point, one.group_index, one.form);
            match found.iter_mut().find(|known| parts(known) == parts(&one)) {
                Some(known) => known.nodes.extend(one.nodes),
                None => found.push(one),
            }
        }
        // One of the values can have the name of the codes.
        let mut is_name_free = true;
        let scope = self.tensors[codes].scope;
        let is_linear = |one: &&mut Dequantization| matches!(one.form, CodesForm::Linear(_));
        for (number, one) in found.iter_mut().filter(is_linear).enumerate() {
            // The output of a graph keeps its name, so it comes first, and there can be only one.
            one.nodes.sort_by_key(|node| !self.makes_output(*node));
            if let Some(second) = one.nodes.iter().skip(1).find(|node| self.makes_output(**node)) {
                return Err((*second, "another node makes the same output of a graph"));
            }
            let first = one.nodes[0];
            let text = |name| from_utf8(name).map_err(|_| (first, "a name is not UTF-8"));
            one.name = if one.nodes.iter().all(|node| self.messages[*node].parent == scope) {
                text(self.node(first).output())?.to_owned()
            } else if self.makes_output(first) {
                return Err((first, "its codes are in an outer graph, and its output is one of the graph"));
            } else if std::mem::take(&mut is_name_free) {
                text(self.value_name(codes))?.to_owned()
            } else {
                let scales = input.contents.tensors[one.scale].elements.stored_dtype();
                copy_of(&self.stored_name(text(self.value_name(codes))?, scales), number + 1)
            };
        }
        Ok(found)
    }

    /// Returns the tensor of an input of a node, if the node has it, or the reason why it cannot be used.
    pub(super) fn optional(
        &self,
        node: usize,
        slot: usize,
        reason: &'static str,
    ) -> Result<Option<usize>, &'static str> {
        let inputs = self.node(node).inputs;
        let name = inputs.get(slot).filter(|name| !name.is_empty());
        name.map(|name| self.constant(node, name).ok_or(reason)).transpose()
    }

    /// Returns the value that a node computes from a tensor of codes, or with, or the reason why it cannot be computed.
    fn dequantization(&self, input: &Input, codes: usize, node: usize) -> Result<Dequantization, &'static str> {
        const SCALE: &str = "its scale is not a constant";
        const ZERO_POINT: &str = "its zero point is not a constant";
        let tensors = &input.contents.tensors;
        if let Some(operator) = BlockOperator::of(&self.node(node)) {
            let scale = self.optional(node, 2, SCALE)?.ok_or(SCALE)?;
            let zero_point = self.optional(node, 3, ZERO_POINT)?;
            return self.blocks(tensors, operator, (codes, scale, zero_point), node);
        }
        let scale = self.optional(node, 1, SCALE)?.ok_or(SCALE)?;
        let zero_point = self.optional(node, 2, ZERO_POINT)?;
        let [axis, block_size, output_type] =
            self.integers(node, [("axis", 1), ("block_size", 0), ("output_dtype", 0)]);
        if output_type != 0 && tensors[scale].elements.stored_dtype().onnx_number().map(i64::from) != Some(output_type)
        {
            return Err("its output_dtype is not the type of its scale");
        }
        let block_size = u64::try_from(block_size).map_err(|_| "its block_size is negative")?;
        let axis = if axis < 0 { axis + tensors[codes].shape.len() as i64 } else { axis };
        let axis = usize::try_from(axis).unwrap_or(usize::MAX);
        let is_scalar = tensors[scale].count == 1 && tensors[scale].shape.len() <= 1;
        let axis = (block_size > 0 || !is_scalar).then_some((axis, block_size));
        let form = CodesForm::Linear(axis);
        Ok(Dequantization { codes, scale, zero_point, group_index: None, form, name: String::new(), nodes: vec![node] })
    }

    /// Returns the values of a tensor of codes.
    pub(crate) fn dequantizations_of(&self, codes: usize) -> &[Dequantization] {
        &self.dequantizations[range_of(&self.dequantizations, &codes, |one| one.codes)]
    }

    /// Describes the nodes that stay although their codes are stored: for each operator and reason, the number of nodes and
    /// the label of one of them.
    pub(crate) fn nodes_that_stay(&self) -> Vec<String> {
        let mut found: Vec<(&[u8], &'static str, u64, String)> = Vec::new();
        for Undecoded { node, reason, .. } in &self.undecoded {
            let operator = self.node(*node).op_type;
            match found.iter_mut().find(|(own, known, ..)| (*own, known) == (operator, reason)) {
                Some((_, _, count, _)) => *count += 1,
                None => found.push((operator, reason, 1, self.node_label(*node))),
            }
        }
        let describe = |(operator, reason, count, node): (&[u8], _, _, _)| match (label(operator), count) {
            (operator, 1) => format!("node '{node}' ({operator}) stays: {reason}"),
            (operator, count) => format!("{count} {operator} nodes stay, '{node}' is one: {reason}"),
        };
        found.into_iter().map(describe).collect()
    }

    /// Returns the names of the values that Cast nodes compute from a tensor that no other node uses.
    pub(crate) fn cast_names(&self, tensor: usize) -> Vec<String> {
        let uses = self.tensor_uses(tensor);
        if uses.len() != 1 || self.is_output(tensor) {
            return Vec::new();
        }
        let is_cast = |one: &&Use| one.slot == 0 && self.node(one.node).operator() == b"Cast";
        let casts = |uses: &[Use]| -> Vec<usize> { uses.iter().filter(is_cast).map(|one| one.node).collect() };
        let mut nodes = casts(uses);
        let mut at = 0;
        while let Some(&node) = nodes.get(at) {
            nodes.extend(casts(self.output_uses(node)));
            at += 1;
        }
        nodes.sort_unstable();
        let name = |node: usize| {
            let name = from_utf8(self.node(node).output()).ok()?;
            Some(self.unique_name(self.messages[node].parent, name))
        };
        nodes.into_iter().filter_map(name).collect()
    }

    /// Returns the name of a decoded value, which no other value has.
    pub(crate) fn decoded_name(&self, decoded: &Dequantization) -> String {
        self.unique_name(self.tensors[decoded.codes].scope, &decoded.name)
    }

    /// Returns the name of the weight that a tensor holds, or whose codes it holds.
    pub(super) fn weight_name(&self, tensor: usize, stored: &str) -> String {
        let decoded = self.dequantizations_of(tensor).first();
        decoded.map_or_else(|| stored.to_owned(), |decoded| self.decoded_name(decoded))
    }

    /// Returns the scales and zero points of decoded tensors that other nodes use too.
    pub(crate) fn parts_of_others(&self, decoded: &[&Dequantization]) -> HashSet<usize> {
        let nodes: HashSet<usize> = decoded.iter().flat_map(|found| &found.nodes).copied().collect();
        let parts = decoded.iter().flat_map(|found| [Some(found.scale), found.zero_point, found.group_index]).flatten();
        let is_needed =
            |part: usize| self.is_output(part) || self.tensor_uses(part).iter().any(|one| !nodes.contains(&one.node));
        parts.filter(|part| is_needed(*part)).collect()
    }

    /// Returns the operators that compute with codes that are not stored, or that tcast does not decode, and the number of
    /// their nodes.
    pub(crate) fn quantized_operators(&self) -> BTreeMap<String, u64> {
        let mut operators = BTreeMap::new();
        let decoded = self.dequantizations.iter().flat_map(|one| one.nodes.iter().copied());
        let known: HashSet<usize> = decoded.chain(self.undecoded.iter().map(|one| one.node)).collect();
        for at in self.nodes().filter(|at| self.part(*at) == MessageKind::Graph && !known.contains(at)) {
            let node = self.node(at);
            if computes_with_codes(&node) {
                *operators.entry(label(node.op_type)).or_default() += 1;
            }
        }
        operators
    }

    /// Returns the use of a tensor as the weight of nodes; `None` if other nodes use it too, or if the uses differ.
    pub(crate) fn weight_use(&self, tensor: usize) -> Option<WeightUse> {
        if !self.is_constant(tensor) || self.is_output(tensor) {
            return None;
        }
        self.weight_of(self.tensor_uses(tensor))
    }

    /// Returns the same for the values that `DequantizeLinear` nodes compute.
    pub(crate) fn decoded_use(&self, decoded: &Dequantization) -> Option<WeightUse> {
        if decoded.nodes.iter().any(|node| self.makes_output(*node)) {
            return None;
        }
        self.weight_of(decoded.nodes.iter().flat_map(|node| self.output_uses(*node)))
    }

    fn weight_of<'u>(&self, uses: impl IntoIterator<Item = &'u Use>) -> Option<WeightUse> {
        let mut usage = None;
        for &Use { node, slot, .. } in uses {
            let own = match self.node(node).operator() {
                b"MatMul" => WeightUse::Product,
                b"Conv" => WeightUse::Kernel,
                b"Gemm" if self.integers(node, [("transB", 0)]) == [0] => WeightUse::OutputsLast,
                b"Gemm" => WeightUse::OutputsFirst,
                b"Gather" => WeightUse::Table,
                _ => return None,
            };
            let known = usage.unwrap_or(own);
            let is_same = known == own || [known, own].iter().all(|one| one.is_product());
            if slot != usize::from(own != WeightUse::Table) || !is_same {
                return None;
            }
            usage = Some(if known == own { own } else { WeightUse::OutputsLast });
        }
        usage
    }
}

/// True if the operator of a node itself computes with codes.
fn computes_with_codes(node: &NodeFields) -> bool {
    let Ok(op) = from_utf8(node.op_type) else { return false };
    match node.domain {
        b"com.microsoft" => {
            op.starts_with("QLinear")
                || op.starts_with("DynamicQuantize")
                || matches!(
                    op,
                    "MatMulNBits" | "GatherBlockQuantized" | "MatMulIntegerToFloat" | "QAttention" | "QGemm" | "QMoE"
                )
        }
        domain => {
            is_default_domain(domain) && matches!(op, "QLinearConv" | "QLinearMatMul" | "MatMulInteger" | "ConvInteger")
        }
    }
}
