//! The graph of a model: its messages, tensors and values, and the uses of the values.
//!
//! A scope of names is the message of a graph or a function, a node its message. Names are slices of the file, and other
//! fields are read where a query needs them, so that a model of many nodes takes little memory.

use super::super::protobuf::{MessageFields, Value};
use super::fields::{attribute, node};
use super::messages::{FILE, Message, MessageKind, NodeFields};
use crate::dtype::Dtype;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ops::Range;

/// Maximum length of one part of a path that names a scope.
const MAX_LABEL: usize = 48;

/// The graphs of a model, and everything in them that refers to tensors.
#[derive(Default)]
pub(crate) struct ModelGraph<'a> {
    pub(super) file: &'a [u8],
    /// The messages that matter, each after the message that encloses it. The first one is the file itself.
    pub(super) messages: Vec<Message>,
    /// The scopes and their labels in paths, in the order of the file.
    pub(super) scopes: Vec<(usize, Box<str>)>,
    /// The scope of the main graph.
    pub(super) main: usize,
    /// The range of the version in the file, and the version; the last one if there are several.
    pub(super) ir_version: Option<(Range<usize>, u64)>,
    /// The version of the default operator set that the model imports.
    pub(super) opset: Option<u64>,
    /// In the order of the file and of `Contents::tensors`.
    pub(super) tensors: Vec<Place<'a>>,
    /// In order, so that a name and a scope find a value.
    pub(super) values: Vec<Definition<'a>>,
    /// The scopes and the names of the outputs of graphs.
    pub(super) outputs: Vec<(usize, &'a [u8])>,
    /// The scopes and the names of values with a role that no node gives them.
    pub(super) roles: Vec<(usize, &'a [u8], TensorRole)>,
    /// A number that makes the names of [`ModelGraph::stored_name`] unique.
    pub(super) fresh: u32,
    /// True if a value has one of the types [`FNUZ`](super::opsets::FNUZ).
    pub(super) has_fnuz: bool,
    /// In order; filled by [`ModelGraph::of`], as are the following fields.
    pub(super) uses: Vec<Use>,
    /// The values that are outputs of graphs.
    pub(super) output_values: HashSet<usize>,
    /// The values of tensors of codes that only `DequantizeLinear`, `MatMulNBits` or `GatherBlockQuantized` nodes use, with
    /// constants as scale and zero point, in the order of the tensors.
    pub(crate) dequantizations: Vec<Dequantization>,
    /// The other nodes whose codes are stored.
    pub(crate) undecoded: Vec<Undecoded>,
}

/// An input of a node, and the value that it uses, by its index in [`ModelGraph::values`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub value: usize,
    pub node: usize,
    /// The index of the input.
    pub slot: usize,
}

/// The value that nodes with the same scales compute from a tensor of codes, or with.
#[derive(Debug)]
pub(crate) struct Dequantization {
    /// The indices of the tensors.
    pub codes: usize,
    pub scale: usize,
    pub zero_point: Option<usize>,
    pub group_index: Option<usize>,
    pub form: CodesForm,
    /// The name of the value.
    pub name: String,
    pub(super) nodes: Vec<usize>,
}

/// Arrangement of codes and scales, by the operator of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodesForm {
    /// `DequantizeLinear`: the axis of the scales, and the number of elements of a block along it, or 0. A nonexistent
    /// axis is beyond all axes.
    Linear(Option<(usize, u64)>),
    /// `GatherBlockQuantized`: the same for blocks of unsigned codes of this width, or of signed codes.
    Gather { axis: usize, block_size: u64, unsigned_bits: Option<u32> },
    /// `MatMulNBits`: the shape of the weight, [K, N], and blocks along K.
    Product { shape: [u64; 2], bits: u32, block_size: u64 },
}

/// A node that is not computed although its codes are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undecoded {
    /// The index of the tensor.
    pub codes: usize,
    pub(super) node: usize,
    pub reason: &'static str,
}

/// The place of a tensor.
pub(super) struct Place<'a> {
    pub holder: Holder,
    /// Its message, or the attribute that holds its numbers.
    pub message: usize,
    pub scope: usize,
    pub name: PlaceName<'a>,
    pub role: Option<TensorRole>,
}

/// The kind of place that holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Initializer,
    /// The attribute `value` of a Constant node.
    Constant,
    /// Another attribute of a Constant node: the field of its numbers, and its name.
    Numbers(u64, &'static str),
    /// An attribute of any other node.
    Attribute,
    /// A sparse tensor, of which this is a part with this suffix.
    Sparse(&'static str),
}

/// The name of a tensor.
pub(super) enum PlaceName<'a> {
    /// The name of its value.
    Value(&'a [u8]),
    /// The label of its node and attribute, if it is not a value.
    Label(Box<str>),
}

/// The definition of a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Definition<'a> {
    pub name: &'a [u8],
    pub scope: usize,
    /// False for an input of a graph. An initializer follows the input whose default it is.
    pub is_made: bool,
    /// The input, the initializer, or the node.
    pub message: usize,
}

/// Role of a tensor of a model that is not a plain weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TensorRole {
    /// The default of a graph's input, whose type callers rely on.
    GraphInput,
    /// A scale or zero point.
    Scale,
    /// A shape, an index, a bound or a statistic, which engines need as a constant.
    Parameter,
    /// In the body of a function.
    Function,
    /// Training writes it, or it belongs to a graph of training.
    Trained,
    /// A list of numbers in a Constant node, which has one type.
    List,
    /// In a Constant node, and the target is a type that Constant lacks up to opset 28: float6.
    Constant,
    /// An attribute of another node, whose type is part of the meaning.
    Attribute,
    /// Part of a sparse tensor.
    Sparse,
    /// A value of an enclosing graph has this name too.
    Shadowing,
}

impl<'a> ModelGraph<'a> {
    pub(super) fn body(&self, message: usize) -> Range<usize> {
        self.messages[message].body.clone()
    }

    pub(super) fn fields(&self, message: usize) -> MessageFields<'a> {
        MessageFields::new(self.file, self.body(message))
    }

    /// Returns the values of fields of bytes in a message that the walk has checked.
    pub(super) fn bytes<const N: usize>(&self, message: usize, fields: [u64; N]) -> [&'a [u8]; N] {
        let ranges = self.fields(message).last(fields);
        ranges.map_or([b""; N], |ranges| ranges.map(|range| &self.file[range]))
    }

    /// Reads the fields of a node. The walk has checked them.
    pub(super) fn node(&self, node: usize) -> NodeFields<'a> {
        NodeFields::read(self.file, self.body(node)).unwrap_or_default()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = usize> {
        (0..self.messages.len()).filter(|at| self.messages[*at].kind == MessageKind::Node)
    }

    /// Returns the label of a node in messages and paths: its name, or its type and its number in the graph.
    pub(super) fn node_label(&self, node: usize) -> String {
        let fields = self.node(node);
        match label(fields.name) {
            name if name.is_empty() => format!("{}_{}", label(fields.op_type), self.messages[node].number),
            name => name,
        }
    }

    /// Returns integer attributes of a node, or their defaults.
    pub(super) fn integers<const N: usize>(&self, node: usize, wanted: [(&str, i64); N]) -> [i64; N] {
        let mut numbers = wanted.map(|(_, default)| default);
        for field in self.fields(node).map_while(Result::ok) {
            let (node::ATTRIBUTE, Value::Bytes(body)) = field else { continue };
            let (mut name, mut number): (&[u8], _) = (b"", None);
            for field in MessageFields::new(self.file, body).map_while(Result::ok) {
                match field {
                    (attribute::NAME, Value::Bytes(range)) => name = &self.file[range],
                    (attribute::INT, Value::Varint(value)) => number = Some(value as i64),
                    _ => {}
                }
            }
            if let Some(at) = wanted.iter().position(|(wanted, _)| wanted.as_bytes() == name) {
                numbers[at] = number.unwrap_or_default();
            }
        }
        numbers
    }

    /// Returns the innermost scope around a message. Graphs of training see the values of the main graph.
    pub(super) fn scope_around(&self, mut message: usize) -> Option<usize> {
        while message != FILE {
            message = self.messages[message].parent;
            match self.messages[message].kind {
                MessageKind::Graph | MessageKind::Function => return Some(message),
                MessageKind::Training => return Some(self.main),
                _ => {}
            }
        }
        None
    }

    /// Returns a scope and the scopes that enclose it.
    pub(super) fn ancestors(&self, scope: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(scope), |&scope| self.scope_around(scope))
    }

    /// Returns the part of the model that contains a message: a graph for the main graph, a function, or training.
    pub(super) fn part(&self, mut message: usize) -> MessageKind {
        while self.messages[message].parent != FILE {
            message = self.messages[message].parent;
        }
        self.messages[message].kind
    }

    /// Returns the path to a scope with a slash, as the prefix of a value's name; empty for the main graph.
    pub(super) fn prefix(&self, scope: usize) -> String {
        const MAX_PATH: usize = 256;
        let mut path = String::new();
        for scope in self.ancestors(scope) {
            let at = self.scopes.partition_point(|(known, _)| *known < scope);
            let label = &self.scopes[at].1;
            if !label.is_empty() {
                path = format!("{label}/{path}");
            }
        }
        if path.len() <= MAX_PATH {
            path
        } else {
            format!("graph_{}/", self.scopes.partition_point(|(known, _)| *known < scope))
        }
    }

    /// Returns the value that a name denotes in a scope.
    pub(super) fn value(&self, scope: usize, name: &[u8]) -> Option<usize> {
        self.ancestors(scope).find_map(|scope| self.definitions(scope, name).next_back())
    }

    /// Returns the indices of the values that a scope defines under a name: an input, and the initializer that is its
    /// default.
    pub(super) fn definitions(&self, scope: usize, name: &[u8]) -> Range<usize> {
        range_of(&self.values, &(name, scope), |value| (value.name, value.scope))
    }

    /// Returns the message of an initializer, or of the Constant node that holds a tensor.
    pub(super) fn holder(&self, tensor: usize) -> usize {
        let Place { holder, message, .. } = self.tensors[tensor];
        let parent = |message: usize| self.messages[message].parent;
        match holder {
            Holder::Constant => parent(parent(message)),
            Holder::Numbers(..) => parent(message),
            _ => message,
        }
    }

    /// Returns the tensor that a value is, if it is one.
    pub(super) fn tensor_of(&self, value: usize) -> Option<usize> {
        let message = self.values[value].message;
        let tensor = self.tensors.partition_point(|place| place.message < message);
        (tensor < self.tensors.len() && self.holder(tensor) == message).then_some(tensor)
    }

    /// Returns the value of a tensor; `None` for an attribute or a part of a sparse tensor.
    pub(super) fn value_of(&self, tensor: usize) -> Option<usize> {
        let value = self.value(self.tensors[tensor].scope, self.value_name(tensor));
        value.filter(|value| self.values[*value].message == self.holder(tensor))
    }

    /// Returns the name of the value of a tensor; an empty name if it has no value.
    pub(super) fn value_name(&self, tensor: usize) -> &'a [u8] {
        if let PlaceName::Value(name) = self.tensors[tensor].name { name } else { b"" }
    }

    /// True if a scope defines a value of this name.
    pub(super) fn has_value(&self, name: &[u8]) -> bool {
        !range_of(&self.values, &name, |value| value.name).is_empty()
    }

    /// True if no other scope defines a value of this name.
    pub(super) fn is_only_in(&self, scope: usize, name: &[u8]) -> bool {
        let values = range_of(&self.values, &name, |value| value.name);
        self.values[values].iter().all(|value| value.scope == scope)
    }

    /// Returns the name of a value, with the path to its scope if other scopes have a value of this name.
    pub(crate) fn unique_name(&self, scope: usize, name: &str) -> String {
        let path = if self.is_only_in(scope, name.as_bytes()) { String::new() } else { self.prefix(scope) };
        path + name
    }

    /// Returns the names of the parts of a quantized tensor: of the codes, which have this type, of the scales and of the zero
    /// points. ONNX Runtime's quantizer has names of its own for products and tables, which they get if these are free.
    pub(crate) fn part_names(&self, name: &str, codes: Dtype, form: CodesForm) -> [String; 3] {
        let bits = match form {
            CodesForm::Product { bits, .. } => Some(bits),
            CodesForm::Gather { .. } => Some(codes.bits()),
            CodesForm::Linear(_) => None,
        };
        let theirs =
            bits.map(|bits| [format!("{name}_Q{bits}"), format!("{name}_scales"), format!("{name}_zero_points")]);
        theirs.filter(|names| !names.iter().any(|name| self.has_value(name.as_bytes()))).unwrap_or_else(|| {
            let stored = self.stored_name(name, codes);
            ["", "_scale", "_zero_point"].map(|suffix| format!("{stored}{suffix}"))
        })
    }

    /// Returns the name under which a tensor is stored in another type: `w_float16`. No name of a value or node of the
    /// model ends in this way.
    pub(crate) fn stored_name(&self, name: &str, dtype: Dtype) -> String {
        if self.fresh == 0 { format!("{name}_{dtype}") } else { format!("{name}_{dtype}_{}", self.fresh) }
    }
}

/// Returns the indices of the items with a key, in a list that is sorted by this key.
pub(super) fn range_of<T, K: PartialOrd>(items: &[T], wanted: &K, key: impl Fn(&T) -> K) -> Range<usize> {
    let start = items.partition_point(|item| key(item) < *wanted);
    start..items.partition_point(|item| key(item) <= *wanted)
}

/// Returns a name, truncated to the length of a label.
pub(super) fn label(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(4 * MAX_LABEL)]).chars().take(MAX_LABEL).collect()
}

/// Returns the name of the value that a further node decodes from the codes `name`; `number` counts from 1.
pub(super) fn copy_of(name: &str, number: usize) -> String {
    format!("{name}_copy_{number}")
}
