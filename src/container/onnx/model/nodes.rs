//! The nodes that use tensors, including nodes that decode codes and nodes that have a tensor as their weight.

use super::super::protobuf::{MessageFields, Value};
use super::frames::Frames;
use super::parts::{
    Context, Found, Frame, ModelPart, NameUse, Node, Visitor, ancestors, attribute, is_default_domain, node,
};
use crate::error::Result;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// A node with an input that is a tensor, or a value that another node decodes.
pub(super) struct ModelNode {
    /// Index of its message in [`Study::frames`](super::study::Study::frames).
    pub frame: usize,
    pub kind: NodeKind,
    /// Its inputs: the ranges of their names in the file, and their values.
    pub inputs: Vec<(Range<usize>, Option<NamedValue>)>,
}

/// Operation of a node on its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    /// `DequantizeLinear`, by its index in [`Uses::decoding`].
    Decodes(usize),
    /// An operator whose second input can be a weight.
    Multiplies(WeightUse),
    Casts,
    Other,
}

/// Use of the second input of an operator, a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WeightUse {
    /// As [inputs, outputs]: `MatMul` and Gemm.
    OutputsLast,
    /// As [outputs, inputs]: Gemm with `transB`.
    OutputsFirst,
    /// As [outputs, inputs, ..]: Conv.
    Kernel,
}

/// A value that nodes use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NamedValue {
    Tensor(usize),
    /// The output of a `DequantizeLinear` node, by its index in [`Uses::decoding`].
    Decoded(usize),
}

/// An input of a node: the index of the node in [`Uses::nodes`], and the index of the input.
pub(super) type NodeInput = (usize, usize);

/// A `DequantizeLinear` node.
pub(super) struct DecodingNode {
    pub graph: usize,
    /// The name of its output.
    pub output: Range<usize>,
    /// Its index in [`Uses::nodes`], if it uses a tensor.
    pub node: Option<usize>,
    /// The nodes that use its output.
    pub users: Vec<NodeInput>,
    /// Its axis, its block size and the type of its output.
    pub attributes: [i64; 3],
    /// Its name in messages.
    pub label: String,
}

/// The output of a Cast node whose input is a tensor, or the output of another such node.
pub(super) struct CastValue {
    pub tensor: usize,
    pub graph: usize,
    pub name: Range<usize>,
}

/// The uses of tensors by nodes.
#[derive(Default)]
pub(super) struct Uses {
    pub nodes: Vec<ModelNode>,
    pub of_tensors: Vec<Vec<NodeInput>>,
    pub decoding: Vec<DecodingNode>,
    /// In the order of the nodes.
    pub casts: Vec<CastValue>,
    /// Outputs of graphs.
    pub outputs: HashSet<NamedValue>,
    /// Number of nodes that compute with codes, by operator.
    pub quantized: BTreeMap<String, u64>,
}

/// The value that `DequantizeLinear` nodes with the same scales compute from a tensor of codes.
#[derive(Debug)]
pub(crate) struct Dequantization {
    /// The indices of the tensors.
    pub codes: usize,
    pub scale: usize,
    pub zero_point: Option<usize>,
    /// The axis of the scales, and the number of elements of a block along it, or 0. A nonexistent axis is beyond all
    /// axes.
    pub axis: Option<(usize, u64)>,
    /// The name of the value.
    pub name: String,
    /// The nodes, by their indices in [`Uses::decoding`].
    pub(super) nodes: Vec<usize>,
}

/// A `DequantizeLinear` node that is not computed although its codes are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undecoded {
    /// The index of the tensor.
    pub codes: usize,
    /// Its index in [`Uses::decoding`].
    pub(super) node: usize,
    pub reason: &'static str,
}

/// Finds the nodes that use tensors.
pub(super) struct UseFinder<'a> {
    file: &'a [u8],
    values: HashMap<(usize, &'a [u8]), NamedValue>,
    /// The source tensors of the outputs of Cast nodes.
    casts: HashMap<(usize, &'a [u8]), usize>,
    frames: Frames,
    uses: Uses,
}

impl<'a> UseFinder<'a> {
    /// Creates the finder for a model with these values; `decoding` holds the outputs of its `DequantizeLinear` nodes
    /// and their graphs.
    pub(super) fn new(
        file: &'a [u8],
        tensors: impl Iterator<Item = (usize, (usize, Range<usize>))>,
        decoding: &[(usize, Range<usize>)],
        frames: Frames,
    ) -> Self {
        let mut values = HashMap::new();
        let mut uses = Uses::default();
        for (at, (graph, name)) in tensors {
            values.insert((graph, &file[name]), NamedValue::Tensor(at));
            uses.of_tensors.resize(at + 1, Vec::new());
        }
        for (at, (graph, output)) in decoding.iter().enumerate() {
            values.insert((*graph, &file[output.clone()]), NamedValue::Decoded(at));
            let (output, attributes) = (output.clone(), [1, 0, 0]);
            let node =
                DecodingNode { graph: *graph, output, node: None, users: Vec::new(), attributes, label: String::new() };
            uses.decoding.push(node);
        }
        Self { file, values, casts: HashMap::new(), frames, uses }
    }

    pub(super) fn into_found(self) -> (Frames, Uses) {
        (self.frames, self.uses)
    }

    /// Returns the value that a name denotes in a graph.
    fn value(&self, context: &Context, graph: usize, name: &Range<usize>) -> Option<NamedValue> {
        let name = &self.file[name.clone()];
        ancestors(&context.graphs, graph).find_map(|graph| self.values.get(&(graph, name)).copied())
    }

    /// Records the output of a Cast node if its input comes from a tensor.
    fn cast(&mut self, context: &Context, graph: usize, node: &Node) {
        let ([input, ..], [output, ..]) = (&*node.inputs, &*node.outputs) else { return };
        let name = &self.file[input.clone()];
        let tensor = match self.value(context, graph, input) {
            Some(NamedValue::Tensor(tensor)) => Some(tensor),
            Some(NamedValue::Decoded(_)) => None,
            None => ancestors(&context.graphs, graph).find_map(|graph| self.casts.get(&(graph, name)).copied()),
        };
        if let Some(tensor) = tensor {
            self.casts.insert((graph, &self.file[output.clone()]), tensor);
            self.uses.casts.push(CastValue { tensor, graph, name: output.clone() });
        }
    }
}

impl Visitor for UseFinder<'_> {
    fn node(&mut self, context: &Context, graph: usize, node: &Node) {
        if context.graphs[graph].part != ModelPart::Main {
            return;
        }
        let (op, domain) = (&self.file[node.op_type.clone()], &self.file[node.domain.clone()]);
        if computes_with_codes(op, domain) {
            *self.uses.quantized.entry(context.label(&node.op_type)).or_default() += 1;
        }
        let is_cast = op == b"Cast" && is_default_domain(domain);
        if is_cast {
            self.cast(context, graph, node);
        }
        let values: Vec<_> = node.inputs.iter().map(|name| self.value(context, graph, name)).collect();
        if values.iter().all(Option::is_none) {
            return;
        }
        let kind = match (op, is_default_domain(domain)) {
            (b"DequantizeLinear", true) => {
                let output = node.outputs.first().and_then(|name| self.value(context, graph, name));
                match output {
                    Some(NamedValue::Decoded(at)) => NodeKind::Decodes(at),
                    _ => NodeKind::Other,
                }
            }
            (b"MatMul", true) => NodeKind::Multiplies(WeightUse::OutputsLast),
            (b"Conv", true) => NodeKind::Multiplies(WeightUse::Kernel),
            (b"Gemm", true) => match integers(self.file, &node.body, [("transB", 0)]) {
                [0] => NodeKind::Multiplies(WeightUse::OutputsLast),
                _ => NodeKind::Multiplies(WeightUse::OutputsFirst),
            },
            _ if is_cast => NodeKind::Casts,
            _ => NodeKind::Other,
        };
        let at = self.uses.nodes.len();
        if let NodeKind::Decodes(decoding) = kind {
            let attributes = [("axis", 1), ("block_size", 0), ("output_dtype", 0)];
            let attributes = integers(self.file, &node.body, attributes);
            let found = &mut self.uses.decoding[decoding];
            (found.node, found.attributes, found.label) = (Some(at), attributes, context.node_label(node));
        }
        let mut enclosing = context.enclosing.clone();
        enclosing.push(Frame { start: node.frame_start, body: node.body.clone() });
        let frame = self.frames.enclose(&enclosing);
        for (slot, value) in values.iter().enumerate() {
            match value {
                Some(NamedValue::Tensor(tensor)) => self.uses.of_tensors[*tensor].push((at, slot)),
                Some(NamedValue::Decoded(decoding)) => self.uses.decoding[*decoding].users.push((at, slot)),
                None => {}
            }
        }
        let inputs = node.inputs.iter().cloned().zip(values).collect();
        self.uses.nodes.push(ModelNode { frame, kind, inputs });
    }

    fn name(&mut self, context: &Context, graph: usize, usage: NameUse, name: Range<usize>) {
        if usage == NameUse::Output {
            let value = self.value(context, graph, &name);
            self.uses.outputs.extend(value);
        }
    }

    fn tensor(&mut self, _: &Context, _: Found) -> Result<()> {
        Ok(())
    }
}

/// True if an operator itself computes with codes.
fn computes_with_codes(op: &[u8], domain: &[u8]) -> bool {
    let Ok(op) = std::str::from_utf8(op) else { return false };
    match domain {
        b"com.microsoft" => {
            op.starts_with("QLinear")
                || op.starts_with("DynamicQuantize")
                || matches!(
                    op,
                    "MatMulNBits" | "GatherBlockQuantized" | "MatMulIntegerToFloat" | "QAttention" | "QGemm" | "QMoE"
                )
        }
        _ => {
            is_default_domain(domain) && matches!(op, "QLinearConv" | "QLinearMatMul" | "MatMulInteger" | "ConvInteger")
        }
    }
}

/// Returns integer attributes of a node, or their defaults.
pub(super) fn integers<const N: usize>(file: &[u8], body: &Range<usize>, wanted: [(&str, i64); N]) -> [i64; N] {
    let mut found = wanted.map(|(_, default)| default);
    for field in MessageFields::new(file, body.clone()).map_while(Result::ok) {
        let (node::ATTRIBUTE, Value::Bytes(body)) = field else { continue };
        let (mut name, mut number) = (0..0, None);
        for field in MessageFields::new(file, body).map_while(Result::ok) {
            match field {
                (attribute::NAME, Value::Bytes(range)) => name = range,
                (attribute::INT, Value::Varint(value)) => number = Some(value as i64),
                _ => {}
            }
        }
        if let Some(at) = wanted.iter().position(|(wanted, _)| wanted.as_bytes() == &file[name.clone()]) {
            found[at] = number.unwrap_or_default();
        }
    }
    found
}
