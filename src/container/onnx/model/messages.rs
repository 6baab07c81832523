//! The messages of a model, found in one walk over the file.
//!
//! The walk takes time linear in the number of fields, and skips the contents of tensors.

use super::super::protobuf::{MessageFields, Value};
use super::fields::{attribute, node};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use std::ops::Range;

/// Maximum nesting of messages: protobuf reads no deeper messages, and neither does any ONNX library.
const MAX_DEPTH: u8 = 100;
/// Maximum number of tensors, more than any model has; a file full of empty ones is refused before it takes memory.
const MAX_TENSORS: usize = 1 << 20;
/// Maximum number of messages, as [`MAX_TENSORS`].
const MAX_MESSAGES: usize = 1 << 22;

/// The file itself, as a message.
pub(super) const FILE: usize = 0;

/// A message in the file.
pub(super) struct Message {
    pub kind: MessageKind,
    /// Its field in the enclosing message.
    pub field: u8,
    /// Number of enclosing messages.
    depth: u8,
    /// Its number among the messages of its kind in the enclosing message. Nodes that tcast inserted do not count, so
    /// that the labels of other nodes stay the same.
    pub number: u32,
    /// The enclosing message.
    pub parent: usize,
    /// Position of its tag and length.
    pub start: usize,
    pub body: Range<usize>,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Model,
    OperatorSet,
    Function,
    Training,
    /// The name of a variable that training writes.
    Binding,
    Graph,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    Input,
    Output,
    /// The type of another value.
    Value,
    /// The scale and the zero point of a value.
    Annotation,
}

impl MessageKind {
    /// Returns the kind of the messages in a field; `None` if the field holds no message that matters.
    fn of_field(self, field: u64) -> Option<Self> {
        Some(match (self, field) {
            (Self::Model, 8) | (Self::Function, 9) => Self::OperatorSet,
            (Self::Model, 25) => Self::Function,
            (Self::Model, 20) => Self::Training,
            (Self::Training, 3 | 4) => Self::Binding,
            (Self::Model, 7) | (Self::Training, 1 | 2) | (Self::Attribute, 6 | 11) => Self::Graph,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::SparseTensor, 1 | 2) => Self::Tensor,
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Self::SparseTensor,
            (Self::Graph, 11) => Self::Input,
            (Self::Graph, 12) => Self::Output,
            (Self::Graph, 13) => Self::Value,
            (Self::Graph, 14) => Self::Annotation,
            _ => return None,
        })
    }

    /// True if its messages contain others.
    fn is_nested(self) -> bool {
        use MessageKind::{Attribute, Function, Graph, Model, Node, SparseTensor, Training};
        matches!(self, Model | Function | Training | Graph | Node | Attribute | SparseTensor)
    }
}

/// The fields of a node, without its attributes.
#[derive(Default)]
pub(super) struct NodeFields<'a> {
    pub inputs: Vec<&'a [u8]>,
    pub outputs: Vec<&'a [u8]>,
    pub name: &'a [u8],
    pub op_type: &'a [u8],
    pub domain: &'a [u8],
}

impl<'a> NodeFields<'a> {
    pub(super) fn read(file: &'a [u8], body: Range<usize>) -> Result<Self> {
        let mut fields = Self::default();
        for field in MessageFields::new(file, body) {
            let (field, Value::Bytes(text)) = field? else { continue };
            let text = &file[text];
            match field {
                node::INPUT => fields.inputs.push(text),
                node::OUTPUT => fields.outputs.push(text),
                node::NAME => fields.name = text,
                node::OP_TYPE => fields.op_type = text,
                node::DOMAIN => fields.domain = text,
                _ => {}
            }
        }
        Ok(fields)
    }

    /// Returns the operator if it belongs to the default domain; otherwise an empty name.
    pub(super) fn operator(&self) -> &'a [u8] {
        if is_default_domain(self.domain) { self.op_type } else { b"" }
    }

    /// Returns the first output; an empty name if there is none.
    pub(super) fn output(&self) -> &'a [u8] {
        self.outputs.first().copied().unwrap_or_default()
    }

    /// True if tcast inserted the node to restore the type of a stored tensor. Such a node has the name of the tensor;
    /// further nodes for the same tensor add `_copy_` and a number.
    pub(super) fn is_inserted(&self) -> bool {
        let stored = self.inputs.first().filter(|_| matches!(self.operator(), b"Cast" | b"DequantizeLinear"));
        let is_number = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
        stored.is_some_and(|stored| match self.name.strip_prefix(*stored) {
            Some(end) if end.is_empty() || end.strip_prefix(b"_copy_").is_some_and(is_number) => {
                stored_number(stored).is_some()
            }
            _ => false,
        })
    }
}

impl Message {
    /// True for a field of an attribute that holds one value; protobuf would merge two.
    pub(super) fn is_single_value(&self) -> bool {
        matches!(self.field, 5 | 6 | 22)
    }
}

/// Returns the messages of a model, each after the message that encloses it. The first one is the file itself.
pub(super) fn messages(file: &[u8]) -> Result<Vec<Message>> {
    let body = 0..file.len();
    let model = Message { kind: MessageKind::Model, field: 0, depth: 0, number: 0, parent: FILE, start: 0, body };
    let mut walk = Walk { file, messages: vec![model], tensors: 0 };
    walk.enter(FILE)?;
    Ok(walk.messages)
}

struct Walk<'a> {
    file: &'a [u8],
    messages: Vec<Message>,
    tensors: usize,
}

impl Walk<'_> {
    /// Adds the messages in a message.
    fn enter(&mut self, parent: usize) -> Result<()> {
        let Message { kind: outer, depth, ref body, .. } = self.messages[parent];
        let mut numbers = [0; MessageKind::Annotation as usize + 1];
        for field in MessageFields::new(self.file, body.clone()).with_ranges() {
            let (range, field, Value::Bytes(body)) = field? else { continue };
            let Some(kind) = outer.of_field(field) else { continue };
            if depth == MAX_DEPTH {
                let what = format!("is not an ONNX model: its messages are nested more than {MAX_DEPTH} deep");
                return Err(Error::new(what).remedy("no ONNX library reads such a file"));
            }
            self.tensors += usize::from(kind == MessageKind::Tensor);
            let (tensors, messages) = (self.tensors, self.messages.len());
            for (count, limit, what) in [(tensors, MAX_TENSORS, "tensors"), (messages, MAX_MESSAGES, "messages")] {
                if count > limit {
                    return Err(Error::new(format!("more than {limit} {what}")));
                }
            }
            let number = numbers[kind as usize];
            let counts = kind != MessageKind::Node || !NodeFields::read(self.file, body.clone())?.is_inserted();
            numbers[kind as usize] += u32::from(counts);
            let (depth, field, start) = (depth + 1, field as u8, range.start);
            let has_numbers = kind == MessageKind::Attribute && numbers_attribute(self.file, body.clone())?.is_some();
            self.messages.push(Message { kind, field, depth, number, parent, start, body });
            if kind.is_nested() {
                self.enter(messages)?;
            }
            // Most attributes are numbers and texts.
            if kind == MessageKind::Attribute && self.messages.len() == messages + 1 && !has_numbers {
                self.messages.pop();
            }
        }
        Ok(())
    }
}

/// Returns the field and the name of an attribute that holds numbers, if it is an attribute of Constant nodes.
pub(super) fn numbers_attribute(file: &[u8], body: Range<usize>) -> Result<Option<(u64, &'static str)>> {
    let [name] = MessageFields::new(file, body).last([attribute::NAME])?;
    Ok(attribute::NUMBERS.into_iter().find(|(_, number)| number.as_bytes() == &file[name.clone()]))
}

/// True if this is the name of the default domain of operators.
pub(super) fn is_default_domain(domain: &[u8]) -> bool {
    domain.is_empty() || domain == b"ai.onnx"
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
