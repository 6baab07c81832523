//! The nodes that decode codes: they are inserted with scales before the users of a weight, or folded into values.

use super::super::super::Form;
use super::super::protobuf::{MessageFields, Value, write_bytes, write_head, write_number};
use super::super::{DATA_LOCATION, DATA_TYPE, DIMS, EXTERNAL_DATA, NAME, RAW_DATA, write_pair};
use super::edit::{Edits, New, bytes_field};
use super::frames::Enclosed;
use super::nodes::{Dequantization, NodeInput};
use super::parts::{Holder, attribute, graph, node};
use super::placed::{Placed, SMALL};
use super::study::{Place, Study};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::kernel::Storage;

/// Storage of a tensor as codes.
#[derive(Debug)]
pub(crate) struct QuantizedTensor<'a> {
    /// The type and the shape of the codes, of the scales, and of the zero points if there are any.
    pub parts: Vec<(Dtype, &'a [u64])>,
    pub axis: usize,
    /// Number of elements in a block; 0 if there are no blocks.
    pub block_size: u64,
}

impl Study {
    /// Inserts the scales of a tensor, and a decoding node for each of its users.
    pub(super) fn insert_decoding(
        &self,
        edits: &mut Edits,
        (at, place): (usize, &Place),
        name: &str,
        quantized: &QuantizedTensor,
        parts: Vec<New>,
    ) {
        let value = place.name.clone();
        let inputs: Vec<String> =
            ["", "_scale", "_zero_point"][..quantized.parts.len()].iter().map(|end| format!("{name}{end}")).collect();
        let mut attributes = vec![("axis", NodeValue::Int(quantized.axis as u64))];
        attributes.extend((quantized.block_size > 0).then_some(("block_size", NodeValue::Int(quantized.block_size))));
        let mut nodes = Vec::new();
        for number in 1..=self.uses.of_tensors[at].len().max(1) {
            let copy = copy_of(name, number);
            let (output, label) =
                if number == 1 { (edits.bytes(value.clone()), name) } else { (copy.as_bytes(), &*copy) };
            nodes.extend(node_field("DequantizeLinear", &inputs, output, label, &attributes));
        }
        let (end, parent) = self.end(place);
        if place.holder == Holder::Initializer {
            let first = self.first_nodes[place.graph];
            edits.replace(first.position..first.position, Some(first.parent), vec![New::Bytes(nodes)]);
            edits.replace(end..end, parent, parts);
        } else {
            let nodes = std::iter::once(New::Bytes(nodes));
            edits.replace(end..end, parent, nodes.chain(parts).collect());
        }
    }

    /// Returns the end of an initializer, or of the Constant node that holds a tensor, and the enclosing message.
    pub(super) fn end(&self, place: &Place) -> (usize, Option<usize>) {
        let holder = if place.holder == Holder::Constant { self.constant(place) } else { place.message };
        let Enclosed { frame, parent } = &self.frames[holder];
        (frame.body.end, *parent)
    }

    /// Returns the message of the Constant node that holds a tensor.
    pub(super) fn constant(&self, place: &Place) -> usize {
        // The tensor is in an attribute, which is in the node.
        let parent = |message: usize| self.frames[message].parent.expect("a node is in a graph");
        parent(parent(place.message))
    }

    /// Renames the output of a Constant node.
    pub(super) fn rename_output(&self, edits: &mut Edits, place: &Place, name: &str) -> Result<()> {
        self.rename(edits, self.constant(place), (node::OUTPUT, 0), name)
    }

    /// Removes an initializer, or the Constant node that holds a tensor.
    pub(super) fn remove(&self, edits: &mut Edits, place: &Place) {
        self.remove_message(edits, if place.holder == Holder::Constant { self.constant(place) } else { place.message });
    }

    fn remove_message(&self, edits: &mut Edits, message: usize) {
        let Enclosed { frame, parent } = &self.frames[message];
        edits.replace(frame.start..frame.body.end, *parent, Vec::new());
    }

    /// Removes the nodes that decode a tensor. The users of their outputs use the tensor instead.
    pub(super) fn fold(&self, edits: &mut Edits, folded: &Dequantization) -> Result<()> {
        for decoding in folded.nodes.iter().map(|at| &self.uses.decoding[*at]) {
            if let Some(node) = decoding.node {
                self.remove_message(edits, self.uses.nodes[node].frame);
            }
            if edits.bytes(decoding.output.clone()) == folded.name.as_bytes() {
                continue;
            }
            for &user in &decoding.users {
                self.rename_input(edits, user, &folded.name)?;
            }
        }
        Ok(())
    }

    /// Replaces an input of a node by another value.
    pub(super) fn rename_input(&self, edits: &mut Edits, (node, slot): NodeInput, name: &str) -> Result<()> {
        self.rename(edits, self.uses.nodes[node].frame, (node::INPUT, slot), name)
    }

    /// Renames one of the inputs or outputs of a node.
    fn rename(&self, edits: &mut Edits, message: usize, (which, mut slot): (u64, usize), name: &str) -> Result<()> {
        for field in MessageFields::new(edits.file, self.frames[message].frame.body.clone()).with_ranges() {
            match field? {
                (range, field, Value::Bytes(_)) if field == which => {
                    if slot == 0 {
                        edits.replace(range, Some(message), vec![New::Bytes(bytes_field(which, name.as_bytes()))]);
                        return Ok(());
                    }
                    slot -= 1;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The value of an attribute of a new node.
pub(super) enum NodeValue {
    Int(u64),
    Text(&'static str),
}

/// Serializes a node as a field of a graph.
pub(super) fn node_field(
    op_type: &str,
    inputs: &[impl AsRef<str>],
    output: &[u8],
    name: &str,
    attributes: &[(&str, NodeValue)],
) -> Vec<u8> {
    let mut new = Vec::new();
    for input in inputs {
        write_bytes(&mut new, node::INPUT, input.as_ref().as_bytes());
    }
    write_bytes(&mut new, node::OUTPUT, output);
    write_bytes(&mut new, node::NAME, name.as_bytes());
    write_bytes(&mut new, node::OP_TYPE, op_type.as_bytes());
    for (name, value) in attributes {
        let mut attribute = bytes_field(attribute::NAME, name.as_bytes());
        let kind = match value {
            NodeValue::Int(number) => {
                write_number(&mut attribute, attribute::INT, *number);
                2
            }
            NodeValue::Text(text) => {
                write_bytes(&mut attribute, attribute::STRING, text.as_bytes());
                3
            }
        };
        write_number(&mut attribute, attribute::TYPE, kind);
        write_bytes(&mut new, node::ATTRIBUTE, &attribute);
    }
    bytes_field(graph::NODE, &new)
}

/// Returns the name of the value that a further node decodes from the codes `name`; `number` counts from 1.
pub(super) fn copy_of(name: &str, number: usize) -> String {
    format!("{name}_copy_{number}")
}

/// Adds places for the scales and zero points of a tensor, and returns their initializers.
pub(super) fn new_parts(
    placed: &mut Placed,
    quantized: &QuantizedTensor,
    name: &str,
    data_file: Option<&str>,
) -> Vec<New> {
    let parts = quantized.parts.iter().zip(["", "_scale", "_zero_point"]).skip(1);
    parts.flat_map(|(part, end)| new_initializer(placed, &format!("{name}{end}"), *part, data_file)).collect()
}

pub(super) fn new_initializer(
    placed: &mut Placed,
    name: &str,
    (dtype, shape): (Dtype, &[u64]),
    data_file: Option<&str>,
) -> Vec<New> {
    let storage = Storage::packed(dtype);
    let len = storage.bytes(shape.iter().product()).unwrap_or(u64::MAX);
    let at = placed.forms.len();
    placed.forms.push((Form::Numbers(storage), 0..len));
    let mut head = Vec::new();
    for length in shape {
        write_number(&mut head, DIMS, *length);
    }
    write_number(&mut head, DATA_TYPE, dtype.onnx_number().unwrap_or_default().into());
    write_bytes(&mut head, NAME, name.as_bytes());
    let mut start = Vec::new();
    if let Some(data_file) = data_file.filter(|_| len >= SMALL) {
        let offset = placed.beside(None, len);
        head.extend(external(data_file, offset, len));
        write_bytes(&mut start, graph::INITIALIZER, &head);
        return vec![New::Bytes(start)];
    }
    write_head(&mut head, RAW_DATA, len);
    write_head(&mut start, graph::INITIALIZER, head.len() as u64 + len);
    start.extend(head);
    vec![New::Bytes(start), New::Elements(at, len)]
}

/// Serializes the fields of a tensor whose elements are in another file.
pub(super) fn external(data_file: &str, offset: u64, len: u64) -> Vec<u8> {
    let mut fields = Vec::new();
    write_pair(&mut fields, EXTERNAL_DATA, "location", data_file);
    write_pair(&mut fields, EXTERNAL_DATA, "offset", &offset.to_string());
    write_pair(&mut fields, EXTERNAL_DATA, "length", &len.to_string());
    write_number(&mut fields, DATA_LOCATION, 1);
    fields
}
