//! The messages of a model, found in one walk over the file.
//!
//! The walk takes time linear in the number of fields, and skips the contents of tensors.

use super::super::protobuf::{MessageFields, Value};
use super::graph::NodeFields;
use super::values::numbers_attribute;
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
    pub kind: Kind,
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

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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

impl Kind {
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
        use Kind::{Attribute, Function, Graph, Model, Node, SparseTensor, Training};
        matches!(self, Model | Function | Training | Graph | Node | Attribute | SparseTensor)
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
    let model = Message { kind: Kind::Model, field: 0, depth: 0, number: 0, parent: FILE, start: 0, body };
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
        let mut numbers = [0; Kind::Annotation as usize + 1];
        for field in MessageFields::new(self.file, body.clone()).with_ranges() {
            let (range, field, Value::Bytes(body)) = field? else { continue };
            let Some(kind) = outer.of_field(field) else { continue };
            if depth == MAX_DEPTH {
                let what = format!("is not an ONNX model: its messages are nested more than {MAX_DEPTH} deep");
                return Err(Error::new(what).remedy("no ONNX library reads such a file"));
            }
            self.tensors += usize::from(kind == Kind::Tensor);
            let (tensors, messages) = (self.tensors, self.messages.len());
            for (count, limit, what) in [(tensors, MAX_TENSORS, "tensors"), (messages, MAX_MESSAGES, "messages")] {
                if count > limit {
                    return Err(Error::new(format!("more than {limit} {what}")));
                }
            }
            let number = numbers[kind as usize];
            let counts = kind != Kind::Node || !NodeFields::read(self.file, body.clone())?.is_inserted();
            numbers[kind as usize] += u32::from(counts);
            let (depth, field, start) = (depth + 1, field as u8, range.start);
            let has_numbers = kind == Kind::Attribute && numbers_attribute(self.file, body.clone())?.is_some();
            self.messages.push(Message { kind, field, depth, number, parent, start, body });
            if kind.is_nested() {
                self.enter(messages)?;
            }
            // Most attributes are numbers and texts.
            if kind == Kind::Attribute && self.messages.len() == messages + 1 && !has_numbers {
                self.messages.pop();
            }
        }
        Ok(())
    }
}
