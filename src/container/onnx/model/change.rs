//! A model whose tensors are stored in other types.
//!
//! An initializer `w` becomes `w_float16`, and a Cast node before the graph's other nodes restores `w` in its old type.
//! A Constant node gets the new name for its output, and the Cast node follows it. Therefore all references to the
//! value, in this graph or in a nested one, stay as they are. No other value or node of the model has the new name.
//! `DequantizeLinear` nodes decode a weight that is stored as codes, one node for each of its users; such nodes are
//! removed if values replace their codes.

use super::super::super::{FileLayout, Form, Input, Placement, Tensor, too_long};
use super::super::protobuf::{MessageFields, NewMessage, Value};
use super::super::{
    DATA_LOCATION, DATA_TYPE, DIMS, DOUBLE_DATA, EXTERNAL_DATA, FLOAT_DATA, INT32_DATA, INT64_DATA, NAME, RAW_DATA,
    STRING_DATA, UINT64_DATA,
};
use super::edit::{Edits, New};
use super::fields::{attribute, graph, model, node};
use super::graph::{Holder, ModelGraph, TensorRole, copy_of, is_default_domain};
use super::uses::{Dequantization, Use};
use super::walk::FILE;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::Storage;
use std::collections::HashMap;
use std::ops::Range;

/// Alignment of external data, which ONNX Runtime maps in pages.
const ALIGNMENT: u64 = 4096;
/// Size in bytes below which a tensor stays in the model, as with `onnx.save`.
const SMALL: u64 = 1024;

/// The planned change of a model.
pub(crate) struct Change<'a> {
    /// In the order of the tensors.
    pub tensors: Vec<TensorChange<'a>>,
    /// The operator set of the default domain that the model must import, if it needs another one.
    pub opset: Option<u64>,
    pub ir_version: Option<u64>,
    /// The name of the file for the elements of large tensors, if they go into one.
    pub data_file: Option<&'a str>,
}

/// The planned change of a tensor.
pub(crate) enum TensorChange<'a> {
    Stays,
    /// The tensor is stored in another type, and a Cast node restores its old type.
    Cast(Dtype),
    /// Values replace the codes and the nodes that decode them. The first of several values of the same codes takes
    /// their place, and the others become new initializers.
    Decoded,
    /// The tensor is stored as codes that nodes decode.
    Quantized(QuantizedTensor<'a>),
    /// The tensor is removed, because no node uses it any more.
    Goes,
}

/// Storage of a tensor as codes.
pub(crate) struct QuantizedTensor<'a> {
    /// The type and the shape of the codes, of the scales, and of the zero points if there are any.
    pub parts: Vec<(Dtype, &'a [u64])>,
    pub axis: usize,
    /// Number of elements in a block; 0 if there are no blocks.
    pub block_size: u64,
}

/// Layout of the changed model.
pub(crate) struct ModelLayout {
    /// Literals and the length. The file with the elements follows the model.
    pub layout: FileLayout,
    /// Index of the first place of each tensor in `layout.places`; `None` if it stays in its place.
    pub places: Vec<Option<usize>>,
    /// Ranges of the old file with their offsets.
    pub copies: Vec<(u64, Range<usize>)>,
    /// Start of the file with the elements.
    pub data_start: Option<u64>,
}

/// Elements that tensors with the same target type can share: their file and offset, the source type, the length of the
/// target, and its type.
type SharedElements = (usize, usize, Dtype, u64, Dtype);

/// A changed model in the making.
struct NewModel<'g, 'a> {
    graph: &'g ModelGraph<'a>,
    tensors: &'g [Tensor],
    change: &'g Change<'g>,
    edits: Edits<'g, 'a>,
    places: Vec<Placement>,
    /// The places in the file next to the model, whose ranges count from its start.
    beside: Vec<usize>,
    /// Length of this file.
    data_len: u64,
    /// Offsets in this file: tensors that share elements share them in the output too.
    shared: HashMap<SharedElements, u64>,
}

impl ModelGraph<'_> {
    pub(crate) fn lay_out(&self, input: &Input, change: &Change) -> Result<ModelLayout> {
        let mut new = NewModel {
            graph: self,
            tensors: &input.contents.tensors,
            change,
            edits: Edits::new(self),
            places: Vec::new(),
            beside: Vec::new(),
            data_len: 0,
            shared: HashMap::new(),
        };
        let places = (0..change.tensors.len()).map(|at| new.change_tensor(at)).collect::<Result<_>>()?;
        new.change_versions();
        let NewModel { edits, places: mut new_places, beside, data_len, .. } = new;
        let parts = edits.lay_out(&mut new_places)?;
        for place in &beside {
            let range = &mut new_places[*place].range;
            *range = range.start + parts.len..range.end + parts.len;
        }
        let data_start = (!beside.is_empty()).then_some(parts.len);
        let len = parts.len.checked_add(data_len).ok_or_else(too_long)?;
        let layout = FileLayout { literals: parts.literals, places: new_places, len };
        Ok(ModelLayout { layout, places, copies: parts.copies, data_start })
    }
}

impl NewModel<'_, '_> {
    /// Changes a tensor and the nodes around it, and returns its first place.
    fn change_tensor(&mut self, at: usize) -> Result<Option<usize>> {
        let (graph, tensor, change) = (self.graph, &self.tensors[at], &self.change.tensors[at]);
        let (place, from) = (&graph.tensors[at], tensor.elements.stored_dtype());
        let decoded = graph.dequantizations_of(at);
        let scale_dtype = |decoded: &Dequantization| self.tensors[decoded.scale].elements.stored_dtype();
        let (to, name) = match change {
            TensorChange::Goes => {
                self.edits.remove(self.holder(at));
                return Ok(None);
            }
            TensorChange::Stays => (None, None),
            TensorChange::Cast(to) => (Some(*to), Some(graph.stored_name(&tensor.name, *to))),
            TensorChange::Quantized(new) => {
                (Some(new.parts[0].0), Some(graph.stored_name(&tensor.name, new.parts[0].0)))
            }
            TensorChange::Decoded => (Some(scale_dtype(&decoded[0])), Some(decoded[0].name.clone())),
        };
        let target = Storage::packed(to.unwrap_or(from));
        let len = target.bytes(tensor.count).ok_or_else(too_long)?;
        let may_move = place.holder == Holder::Initializer && target.dtype != Dtype::String;
        let moves = may_move && self.goes_beside(len);
        if to.is_none() && !tensor.is_beside() && !moves {
            return Ok(None);
        }
        if place.role == Some(TensorRole::Sparse) {
            let error = Error::new("is a sparse tensor with external data, which tcast does not write");
            return Err(error.in_tensor(&tensor.name));
        }
        // Codes of the same elements depend on the axis of the scales, and values of the same codes on the scales.
        let is_shared = matches!(change, TensorChange::Stays | TensorChange::Cast(_));
        let stored = tensor.mapped_range().filter(|_| is_shared);
        let stored = stored.map(|(file, range)| (file, range.start, from, len, target.dtype));
        let (first, elements) = self.elements(target, len, moves, stored);
        self.edits.replace_fields(place.frame, |field, _| match (field, to, &name) {
            (DATA_TYPE, Some(to), _) => Some(NewMessage::default().number(DATA_TYPE, onnx_number(to)).0),
            (NAME, _, Some(name)) if place.holder == Holder::Initializer => {
                Some(NewMessage::default().text(NAME, name).0)
            }
            (
                FLOAT_DATA | INT32_DATA | STRING_DATA | INT64_DATA | RAW_DATA | DOUBLE_DATA | UINT64_DATA
                | EXTERNAL_DATA | DATA_LOCATION,
                ..,
            ) => Some(Vec::new()),
            _ => None,
        })?;
        self.edits.insert(graph.body(place.frame).end, place.frame, elements);
        let Some(name) = name else { return Ok(Some(first)) };
        if let Holder::Constant(node) = place.holder {
            self.rename(node, (node::OUTPUT, 0), &name)?;
        }
        match change {
            TensorChange::Cast(to) => self.insert_cast(at, &name, from, *to)?,
            TensorChange::Quantized(new) => self.insert_decoding(at, &name, new)?,
            TensorChange::Decoded => {
                for (number, one) in decoded.iter().enumerate() {
                    if number > 0 {
                        self.insert_initializer(at, &one.name, (scale_dtype(one), &tensor.shape));
                    }
                    self.fold(one)?;
                }
            }
            TensorChange::Stays | TensorChange::Goes => {}
        }
        Ok(Some(first))
    }

    /// Returns the message of an initializer, or of the Constant node that holds a tensor.
    fn holder(&self, at: usize) -> usize {
        let place = &self.graph.tensors[at];
        if let Holder::Constant(node) = place.holder { self.graph.nodes[node].frame } else { place.frame }
    }

    /// True if elements of this length go into the file next to the model.
    fn goes_beside(&self, len: u64) -> bool {
        self.change.data_file.is_some() && len >= SMALL
    }

    /// Adds a place, in the file next to the model if the elements move there. Returns it, and the fields of a tensor
    /// that hold or describe its elements. Tensors with the same `stored` elements share their place in this file.
    fn elements(
        &mut self,
        storage: Storage,
        len: u64,
        moves: bool,
        stored: Option<SharedElements>,
    ) -> (usize, Vec<New>) {
        let place = self.places.len();
        let mut range = 0..len;
        let mut fields = NewMessage::default();
        let mut elements = None;
        if let Some(data_file) = self.change.data_file.filter(|_| moves) {
            let start = self.data_len.next_multiple_of(ALIGNMENT);
            let offset = stored.map_or(start, |stored| *self.shared.entry(stored).or_insert(start));
            range = offset..offset + len;
            self.data_len = self.data_len.max(range.end);
            self.beside.push(place);
            for (key, value) in [("location", data_file), ("offset", &offset.to_string()), ("length", &len.to_string())]
            {
                fields = fields.pair(EXTERNAL_DATA, key, value);
            }
            fields = fields.number(DATA_LOCATION, 1);
        } else {
            fields = fields.head(RAW_DATA, len);
            elements = Some(New::Elements { place, len });
        }
        self.places.push(Placement { form: Form::Numbers(storage), range, crc: None });
        (place, std::iter::once(New::Bytes(fields.0)).chain(elements).collect())
    }

    /// Inserts an initializer after a tensor.
    fn insert_initializer(&mut self, at: usize, name: &str, (dtype, shape): (Dtype, &[u64])) {
        let storage = Storage::packed(dtype);
        let len = storage.bytes(shape.iter().product()).unwrap_or(u64::MAX);
        let (_, elements) = self.elements(storage, len, self.goes_beside(len), None);
        let dims = shape.iter().fold(NewMessage::default(), |head, length| head.number(DIMS, *length));
        let head = dims.number(DATA_TYPE, onnx_number(dtype)).text(NAME, name).0;
        let len = head.len() as u64 + elements.iter().map(New::len).sum::<u64>();
        let start = [NewMessage::default().head(graph::INITIALIZER, len).0, head].concat();
        let end = self.graph.body(self.holder(at)).end;
        let scope = self.graph.scopes[self.graph.tensors[at].scope].frame;
        self.edits.insert(end, scope, std::iter::once(New::Bytes(start)).chain(elements));
    }

    /// Inserts nodes that restore the value of a tensor: before all nodes of the graph, or behind the Constant node that
    /// holds the tensor.
    fn insert_nodes(&mut self, at: usize, nodes: Vec<u8>) {
        let place = &self.graph.tensors[at];
        let scope = &self.graph.scopes[place.scope];
        let position = match place.holder {
            Holder::Constant(_) => self.graph.body(self.holder(at)).end,
            _ => scope.first_node,
        };
        self.edits.insert(position, scope.frame, [New::Bytes(nodes)]);
    }

    /// Inserts the node that restores a tensor from its stored form. An input with its name gets the stored type.
    fn insert_cast(&mut self, at: usize, name: &str, from: Dtype, to: Dtype) -> Result<()> {
        let attribute = NewMessage::default().text(attribute::NAME, "to");
        let opset = self.change.opset.or(self.graph.opset());
        let attribute = if opset.is_some_and(|opset| opset < 6) {
            // Cast-1
            attribute.text(attribute::STRING, from.onnx_name().unwrap_or_default()).number(attribute::TYPE, 3)
        } else {
            attribute.number(attribute::INT, onnx_number(from)).number(attribute::TYPE, 2)
        };
        let cast = NewNode {
            op_type: "Cast",
            inputs: &[name],
            output: self.graph.value_name(at),
            name,
            attributes: &[attribute],
        };
        self.insert_nodes(at, cast.field());
        let Some(input) = self.graph.constant_input(at) else { return Ok(()) };
        let number = NewMessage::default().number(1, onnx_number(to)).0;
        let file = self.graph.file;
        self.edits.replace_fields(input, |field, value| match (field, value) {
            (1, _) => Some(NewMessage::default().text(1, name).0),
            // The path to `elem_type`: `TypeProto`, `tensor_type`.
            (2, Value::Bytes(body)) => Some(NewMessage::default().bytes(2, &replaced(file, body, &[1, 1], &number)).0),
            _ => None,
        })
    }

    /// Inserts the scales of a tensor, and a decoding node for each of its users.
    fn insert_decoding(&mut self, at: usize, name: &str, new: &QuantizedTensor) -> Result<()> {
        let suffixes = &["", "_scale", "_zero_point"][..new.parts.len()];
        let inputs: Vec<String> = suffixes.iter().map(|suffix| format!("{name}{suffix}")).collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let integer = |name, value| {
            let attribute = NewMessage::default().text(attribute::NAME, name);
            attribute.number(attribute::INT, value).number(attribute::TYPE, 2)
        };
        let mut attributes = vec![integer("axis", new.axis as u64)];
        attributes.extend((new.block_size > 0).then(|| integer("block_size", new.block_size)));
        let graph = self.graph;
        let (mut nodes, users) = (Vec::new(), graph.tensor_uses(at));
        for number in 1..=users.len().max(1) {
            let copy = copy_of(name, number);
            let (output, label) = if number == 1 { (graph.value_name(at), name) } else { (copy.as_bytes(), &*copy) };
            let node =
                NewNode { op_type: "DequantizeLinear", inputs: &inputs, output, name: label, attributes: &attributes };
            nodes.extend(node.field());
            if let Some(user) = users.get(number - 1).filter(|_| number > 1) {
                self.rename_input(user, &copy)?;
            }
        }
        self.insert_nodes(at, nodes);
        for (part, name) in new.parts.iter().zip(inputs).skip(1) {
            self.insert_initializer(at, name, *part);
        }
        Ok(())
    }

    /// Removes the nodes that decode a tensor. The users of their outputs use the values instead.
    fn fold(&mut self, decoded: &Dequantization) -> Result<()> {
        let graph = self.graph;
        for &node in &decoded.nodes {
            self.edits.remove(graph.nodes[node].frame);
            if graph.node(node).output() != decoded.name.as_bytes() {
                graph.output_uses(node).iter().try_for_each(|user| self.rename_input(user, &decoded.name))?;
            }
        }
        Ok(())
    }

    fn rename_input(&mut self, user: &Use, name: &str) -> Result<()> {
        self.rename(user.node, (node::INPUT, user.slot), name)
    }

    /// Renames one of the inputs or outputs of a node.
    fn rename(&mut self, node: usize, (which, slot): (u64, usize), name: &str) -> Result<()> {
        let mut slots = 0..;
        self.edits.replace_fields(self.graph.nodes[node].frame, |field, _| {
            let is_slot = field == which && slots.next() == Some(slot);
            is_slot.then(|| NewMessage::default().text(which, name).0)
        })
    }

    fn change_versions(&mut self) {
        if let (Some(wanted), Some((range, _))) = (self.change.ir_version, &self.graph.ir_version) {
            let new = NewMessage::default().number(model::IR_VERSION, wanted).0;
            self.edits.replace(range.clone(), FILE, new);
        }
        let Some(wanted) = self.change.opset else { return };
        for import in self.graph.imports.iter().filter(|import| is_default_domain(import.domain)) {
            let new = NewMessage::default().number(2, wanted).0;
            self.edits.replace(import.range.clone(), import.frame, new);
        }
    }
}

/// A node to insert.
struct NewNode<'n> {
    op_type: &'static str,
    inputs: &'n [&'n str],
    output: &'n [u8],
    name: &'n str,
    attributes: &'n [NewMessage],
}

impl NewNode<'_> {
    /// Serializes the node as a field of a graph.
    fn field(&self) -> Vec<u8> {
        let inputs = self.inputs.iter().fold(NewMessage::default(), |new, input| new.text(node::INPUT, input));
        let new = inputs.bytes(node::OUTPUT, self.output).text(node::NAME, self.name);
        let new = new.text(node::OP_TYPE, self.op_type);
        let new = self.attributes.iter().fold(new, |new, attribute| new.bytes(node::ATTRIBUTE, &attribute.0));
        NewMessage::default().bytes(graph::NODE, &new.0).0
    }
}

fn onnx_number(dtype: Dtype) -> u64 {
    dtype.onnx_number().unwrap_or_default().into()
}

/// Returns the body of a small message in which `new` replaces the field at the end of a path of nested messages.
fn replaced(file: &[u8], body: Range<usize>, path: &[u64], new: &[u8]) -> Vec<u8> {
    let mut copy = NewMessage::default();
    for (range, field, value) in MessageFields::new(file, body).with_ranges().map_while(Result::ok) {
        match (path, value) {
            ([last], _) if *last == field => copy.0.extend_from_slice(new),
            ([first, rest @ ..], Value::Bytes(body)) if *first == field => {
                copy = copy.bytes(field, &replaced(file, body, rest, new));
            }
            _ => copy.0.extend_from_slice(&file[range]),
        }
    }
    copy.0
}
