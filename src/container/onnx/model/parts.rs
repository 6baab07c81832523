//! The parts of a model: the fields of its messages, and the items that a walk over them finds.

use crate::dtype::Dtype;
use crate::error::Result;
use std::ops::Range;

/// Maximum length of one part of a path that names a graph.
const MAX_LABEL: usize = 48;

/// Fields of `ModelProto`.
pub(super) mod model {
    pub(in super::super) const IR_VERSION: u64 = 1;
    pub(in super::super) const GRAPH: u64 = 7;
    pub(in super::super) const OPSET_IMPORT: u64 = 8;
    pub(in super::super) const METADATA_PROPS: u64 = 14;
    pub(in super::super) const TRAINING_INFO: u64 = 20;
    pub(in super::super) const FUNCTIONS: u64 = 25;
}
/// Fields of `GraphProto`.
pub(super) mod graph {
    pub(in super::super) const NODE: u64 = 1;
    pub(in super::super) const INITIALIZER: u64 = 5;
    pub(in super::super) const INPUT: u64 = 11;
    pub(in super::super) const OUTPUT: u64 = 12;
    pub(in super::super) const VALUE_INFO: u64 = 13;
    pub(in super::super) const QUANTIZATION_ANNOTATION: u64 = 14;
    pub(in super::super) const SPARSE_INITIALIZER: u64 = 15;
}
/// Fields of `FunctionProto`.
pub(super) mod function {
    pub(in super::super) const NAME: u64 = 1;
    pub(in super::super) const INPUT: u64 = 4;
    pub(in super::super) const OUTPUT: u64 = 5;
    pub(in super::super) const NODE: u64 = 7;
    pub(in super::super) const OPSET_IMPORT: u64 = 9;
    pub(in super::super) const DOMAIN: u64 = 10;
    pub(in super::super) const ATTRIBUTE_DEFAULT: u64 = 11;
}
/// Fields of `NodeProto`.
pub(super) mod node {
    pub(in super::super) const INPUT: u64 = 1;
    pub(in super::super) const OUTPUT: u64 = 2;
    pub(in super::super) const NAME: u64 = 3;
    pub(in super::super) const OP_TYPE: u64 = 4;
    pub(in super::super) const ATTRIBUTE: u64 = 5;
    pub(in super::super) const DOMAIN: u64 = 7;
}
/// Fields of `AttributeProto`.
pub(super) mod attribute {
    pub(in super::super) const NAME: u64 = 1;
    pub(in super::super) const FLOAT: u64 = 2;
    pub(in super::super) const INT: u64 = 3;
    pub(in super::super) const STRING: u64 = 4;
    pub(in super::super) const TENSOR: u64 = 5;
    pub(in super::super) const GRAPH: u64 = 6;
    pub(in super::super) const FLOATS: u64 = 7;
    pub(in super::super) const INTS: u64 = 8;
    pub(in super::super) const TENSORS: u64 = 10;
    pub(in super::super) const GRAPHS: u64 = 11;
    pub(in super::super) const TYPE: u64 = 20;
    pub(in super::super) const SPARSE_TENSOR: u64 = 22;
    pub(in super::super) const SPARSE_TENSORS: u64 = 23;
}

/// A message: `start` is the position of its tag and length, `body` the range of its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub start: usize,
    pub body: Range<usize>,
}

/// A graph, or the nodes of a function.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    /// The graph with the node that has this graph as an attribute.
    pub parent: Option<usize>,
    pub part: ModelPart,
    /// Its name in paths; empty for the main graph.
    pub label: Box<str>,
}

impl Graph {
    /// True if it is the graph of the model. Functions and training can come before it in the file.
    pub(super) fn is_main(&self) -> bool {
        self.part == ModelPart::Main && self.parent.is_none()
    }
}

/// A part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelPart {
    Main,
    Function,
    Training,
}

/// A node, without its attributes.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub frame_start: usize,
    pub body: Range<usize>,
    pub inputs: Vec<Range<usize>>,
    pub outputs: Vec<Range<usize>>,
    pub name: Range<usize>,
    pub op_type: Range<usize>,
    pub domain: Range<usize>,
    /// Its number in its graph; nodes that tcast inserted do not count.
    pub number: u64,
}

/// Kind of place that holds a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Initializer,
    /// The attribute `value` of a Constant node.
    Constant,
    /// The numbers in another attribute of a Constant node: field and name of the attribute.
    ConstantNumbers(u64, &'static str),
    /// An attribute of any other node.
    Attribute,
    SparseInitializer,
    SparseAttribute,
}

/// A tensor of a model.
#[derive(Debug)]
pub(super) struct Found {
    pub graph: usize,
    pub holder: Holder,
    /// The message of the tensor, or of the attribute.
    pub message: Frame,
    /// The value that a Constant node defines.
    pub output: Option<Range<usize>>,
    /// Label for a tensor without a name: its node and attribute.
    pub label: Option<String>,
}

/// The use of a name outside of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameUse {
    /// An input of a graph; the innermost enclosing message describes it.
    Input,
    /// A scale or zero point of an annotation.
    QuantizationParameter,
    /// A variable that training writes.
    Trained,
    /// An output of a graph.
    Output,
    Other,
}

/// Receives the items that a walk finds.
pub(super) trait Visitor {
    fn node(&mut self, _context: &Context, _graph: usize, _node: &Node) {}

    fn name(&mut self, _context: &Context, _graph: usize, _usage: NameUse, _name: Range<usize>) {}

    /// The number of the dtype of an input, an output or another value.
    fn value_type(&mut self, _number: u64) {}

    /// The end of a graph; the innermost enclosing message is the graph.
    fn graph_end(&mut self, _context: &Context, _graph: usize) {}

    /// A tensor; the innermost enclosing message is the one that contains it.
    fn tensor(&mut self, context: &Context, found: Found) -> Result<()>;
}

/// Surroundings of the current message.
pub(super) struct Context<'a> {
    pub file: &'a [u8],
    /// Enclosing messages, outermost first; empty for a field of the model.
    pub enclosing: Vec<Frame>,
    /// All graphs so far, in the order of their starts.
    pub graphs: Vec<Graph>,
}

/// The model's own fields.
#[derive(Clone, Debug, Default)]
pub(super) struct Header {
    /// The range of the version in the file, and the version; the last one if there are several.
    pub ir_version: Option<(Range<usize>, u64)>,
    /// Imports of operator sets: the message, the domain and the version.
    pub imports: Vec<(Frame, Range<usize>, u64)>,
    /// True if a function imports operators of the default domain.
    pub has_functions: bool,
    /// All graphs, in the order of their starts.
    pub graphs: Vec<Graph>,
}

/// True if this is the name of the default domain of operators.
pub(super) fn is_default_domain(domain: &[u8]) -> bool {
    domain.is_empty() || domain == b"ai.onnx"
}

/// True if tcast inserted a node to restore the type of a stored tensor. Such a node has the name of the tensor;
/// further nodes for the same tensor add `_copy_` and a number.
pub(super) fn is_inserted(file: &[u8], node: &Node) -> bool {
    let op = &file[node.op_type.clone()];
    let is_one = matches!(op, b"Cast" | b"DequantizeLinear") && is_default_domain(&file[node.domain.clone()]);
    let Some(stored) = node.inputs.first().filter(|_| is_one).map(|name| &file[name.clone()]) else { return false };
    let is_number = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    match file[node.name.clone()].strip_prefix(stored) {
        Some(end) if end.is_empty() || end.strip_prefix(b"_copy_").is_some_and(is_number) => {
            stored_number(stored).is_some()
        }
        _ => false,
    }
}

/// Returns the number at the end of a name of the form that tcast gives to stored tensors: 3 for `w_float16_3`, and 0
/// for `w_float16`.
pub(super) fn stored_number(name: &[u8]) -> Option<u32> {
    let mut parts = name.rsplitn(3, |&byte| byte == b'_');
    let last = parts.next().unwrap_or_default();
    let is_dtype = |part: &[u8]| Dtype::all().any(|dtype| dtype.name().as_bytes() == part);
    if is_dtype(last) {
        return Some(0);
    }
    let number = std::str::from_utf8(last).ok().and_then(|number| number.parse().ok());
    number.filter(|_| parts.next().is_some_and(is_dtype))
}

impl Context<'_> {
    /// Returns the label of a node in messages and paths: its name, or its type and its number in the graph.
    pub(super) fn node_label(&self, node: &Node) -> String {
        match self.label(&node.name) {
            name if name.is_empty() => format!("{}_{}", self.label(&node.op_type), node.number),
            name => name,
        }
    }

    /// Returns a name in the file, truncated to the length of a label.
    pub(super) fn label(&self, name: &Range<usize>) -> String {
        let text = String::from_utf8_lossy(&self.file[name.start..name.end.min(name.start + 4 * MAX_LABEL)]);
        text.chars().take(MAX_LABEL).collect()
    }
}

/// Returns the path to a graph, such as `If_0.then_branch`; empty for the main graph. `None` if it is too long.
fn path(graphs: &[Graph], graph: usize) -> Option<String> {
    const MAX_PATH: usize = 256;
    let mut labels: Vec<&str> = Vec::new();
    let mut length = 0;
    for label in ancestors(graphs, graph).map(|graph| &*graphs[graph].label).filter(|label| !label.is_empty()) {
        length += label.len() + 1;
        if length > MAX_PATH {
            return None;
        }
        labels.push(label);
    }
    labels.reverse();
    Some(labels.join("/"))
}

/// Returns the path to a graph with a slash, as the prefix of a value's name.
pub(super) fn prefix(graphs: &[Graph], graph: usize) -> String {
    match path(graphs, graph) {
        Some(path) if path.is_empty() => path,
        Some(path) => format!("{path}/"),
        None => format!("graph_{graph}/"),
    }
}

/// Returns a graph and the graphs that enclose it.
pub(super) fn ancestors(graphs: &[Graph], graph: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(graph), |&graph| graphs[graph].parent)
}
