//! A model whose tensors are stored in other types.
//!
//! An initializer `w` becomes `w_float16`, and a Cast node before the graph's other nodes restores `w` in its old type.
//! A Constant node gets the new name for its output, and the Cast node follows it. Therefore all references to the
//! value, in this graph or in a nested one, stay as they are. No other value or node of the model has the new name.
//! `DequantizeLinear` nodes decode a weight that is stored as codes, one node for each of its users; such nodes are
//! removed if values replace their codes. Nodes that compute with codes then get the operator that computes with values.

use super::super::super::{FileLayout, Form, Input, MetadataChange, Placement, Tensor, too_long};
use super::super::protobuf::{MessageFields, Value, bytes, head, number, pair};
use super::super::{
    DATA_LOCATION, DATA_TYPE, DIMS, DOUBLE_DATA, EXTERNAL_DATA, FLOAT_DATA, INT32_DATA, INT64_DATA, NAME, RAW_DATA,
    STRING_DATA, UINT64_DATA,
};
use super::contrib::{BlockOperator, DOMAIN, without_suffix};
use super::edit::{Edits, New};
use super::fields::{attribute, graph, model, node};
use super::graph::{CodesForm, Dequantization, Holder, ModelGraph, Place, TensorRole, Use, copy_of};
use super::messages::{FILE, MessageKind, is_default_domain};
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
    /// Pairs of `metadata_props`: the key, and the new value or `None` to remove it.
    pub metadata: &'a [MetadataChange],
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
    /// The tensor is stored as codes that nodes decode, or compute with. A tensor of codes gets the other kind of nodes.
    Quantized(QuantizedTensor<'a>),
    /// The tensor is removed, because no node uses it any more.
    Goes,
}

/// Storage of a tensor as codes.
pub(crate) struct QuantizedTensor<'a> {
    /// The type and the shape of the codes, of the scales, and of the zero points if there are any.
    pub parts: Vec<(Dtype, &'a [u64])>,
    pub form: CodesForm,
    /// The attribute of `MatMulNBits` nodes.
    pub accuracy_level: Option<u8>,
}

impl QuantizedTensor<'_> {
    fn codes(&self) -> Dtype {
        self.parts[0].0
    }
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
    /// The operator set that the changed model imports.
    opset: Option<u64>,
    /// The position before all nodes of a scope.
    first_nodes: HashMap<usize, usize>,
    /// True if there are new nodes of ONNX Runtime.
    needs_runtime: bool,
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
            opset: change.opset.or(self.opset),
            first_nodes: HashMap::new(),
            needs_runtime: false,
        };
        let places = (0..change.tensors.len()).map(|at| new.change_tensor(at)).collect::<Result<_>>()?;
        new.change_versions();
        new.change_metadata()?;
        let NewModel { edits, places: mut new_places, beside, data_len, .. } = new;
        let parts = edits.lay_out(&mut new_places)?;
        for place in &beside {
            let range = &mut new_places[*place].range;
            *range = range.start + parts.len..range.end + parts.len;
        }
        let data_start = (!beside.is_empty()).then_some(parts.len);
        let len = parts.len.checked_add(data_len).ok_or_else(too_long)?;
        let layout = FileLayout { literals: parts.literals, entries: Vec::new(), places: new_places, len };
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
                self.edits.remove(graph.holder(at));
                return Ok(None);
            }
            TensorChange::Stays => (None, None),
            TensorChange::Cast(to) => (Some(*to), Some(graph.stored_name(&tensor.name, *to))),
            TensorChange::Quantized(new) => {
                let [name, ..] = graph.part_names(&graph.weight_name(at, &tensor.name), new.codes(), new.form);
                (Some(new.codes()), Some(name))
            }
            TensorChange::Decoded => (Some(scale_dtype(&decoded[0])), Some(decoded[0].name.clone())),
        };
        let target = Storage::packed(to.unwrap_or(from));
        let shape = match change {
            TensorChange::Decoded => decoded[0].form.shape(tensor),
            TensorChange::Quantized(new) => new.parts[0].1.to_vec(),
            _ => tensor.shape.to_vec(),
        };
        let new_dims = (shape[..] != *tensor.shape).then(|| dims(&shape));
        let len = target.bytes(shape.iter().product()).ok_or_else(too_long)?;
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
        self.edits.replace_fields(place.message, |field, _| match (field, to, &name) {
            (DIMS, ..) => new_dims.as_ref().map(|_| Vec::new()),
            (DATA_TYPE, Some(to), _) => Some(number(DATA_TYPE, onnx_number(to))),
            (NAME, _, Some(name)) if place.holder == Holder::Initializer => Some(bytes(NAME, name)),
            (
                FLOAT_DATA | INT32_DATA | STRING_DATA | INT64_DATA | RAW_DATA | DOUBLE_DATA | UINT64_DATA
                | EXTERNAL_DATA | DATA_LOCATION,
                ..,
            ) => Some(Vec::new()),
            _ => None,
        })?;
        let elements = new_dims.into_iter().map(New::Bytes).chain(elements);
        self.edits.insert(graph.body(place.message).end, place.message, elements);
        let Some(name) = name else { return Ok(Some(first)) };
        if place.holder == Holder::Constant {
            self.rename(graph.holder(at), (node::OUTPUT, 0), &name)?;
        }
        match change {
            TensorChange::Cast(to) => self.insert_cast(at, &name, from, *to)?,
            TensorChange::Quantized(new) => self.insert_decoding(at, new)?,
            TensorChange::Decoded => {
                for (number, one) in decoded.iter().enumerate() {
                    if number > 0 {
                        self.insert_initializer(at, &one.name, (scale_dtype(one), &one.form.shape(tensor)));
                    }
                    self.fold(one)?;
                }
            }
            TensorChange::Stays | TensorChange::Goes => {}
        }
        Ok(Some(first))
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
        let (mut range, mut new) = (0..len, Vec::new());
        if let Some(data_file) = self.change.data_file.filter(|_| moves) {
            let start = self.data_len.next_multiple_of(ALIGNMENT);
            let offset = stored.map_or(start, |stored| *self.shared.entry(stored).or_insert(start));
            range = offset..offset + len;
            self.data_len = self.data_len.max(range.end);
            self.beside.push(place);
            let pairs = [("location", data_file), ("offset", &offset.to_string()), ("length", &len.to_string())];
            let fields = pairs.into_iter().flat_map(|(key, value)| pair(EXTERNAL_DATA, key, value));
            new.push(New::Bytes(fields.chain(number(DATA_LOCATION, 1)).collect()));
        } else {
            new.extend([New::Bytes(head(RAW_DATA, len)), New::Elements { place, len }]);
        }
        self.places.push(Placement { form: Form::Numbers(storage), range, crc: None });
        (place, new)
    }

    /// Inserts an initializer after a tensor.
    fn insert_initializer(&mut self, at: usize, name: &str, (dtype, shape): (Dtype, &[u64])) {
        let storage = Storage::packed(dtype);
        let len = storage.bytes(shape.iter().product()).unwrap_or(u64::MAX);
        let (_, elements) = self.elements(storage, len, self.goes_beside(len), None);
        let start = [dims(shape), number(DATA_TYPE, onnx_number(dtype)), bytes(NAME, name)].concat();
        let len = start.len() as u64 + elements.iter().map(New::len).sum::<u64>();
        let start = New::Bytes([head(graph::INITIALIZER, len), start].concat());
        let (position, scope) = (self.graph.body(self.graph.holder(at)).end, self.graph.tensors[at].scope);
        self.edits.insert(position, scope, std::iter::once(start).chain(elements));
    }

    /// Inserts nodes that restore the value of a tensor: before all nodes of the graph, or behind the Constant node that
    /// holds the tensor.
    fn insert_nodes(&mut self, at: usize, nodes: Vec<u8>) {
        let (graph, Place { holder, scope, .. }) = (self.graph, &self.graph.tensors[at]);
        let position = if *holder == Holder::Constant {
            graph.body(graph.holder(at)).end
        } else {
            *self.first_nodes.entry(*scope).or_insert_with(|| {
                let mut nodes = graph.nodes().skip_while(|node| node < scope);
                let first = nodes.find(|node| graph.messages[*node].parent == *scope);
                first.map_or(graph.body(*scope).end, |first| graph.messages[first].start)
            })
        };
        self.edits.insert(position, *scope, [New::Bytes(nodes)]);
    }

    /// Inserts the node that restores a tensor from its stored form. An input with its name gets the stored type.
    fn insert_cast(&mut self, at: usize, name: &str, from: Dtype, to: Dtype) -> Result<()> {
        let value = if self.opset.is_some_and(|opset| opset < 6) {
            let value = bytes(attribute::STRING, from.onnx_name().unwrap_or_default()); // Cast-1
            [value, number(attribute::TYPE, 3)].concat()
        } else {
            integer(onnx_number(from))
        };
        self.insert_nodes(at, new_node("Cast", &[name], self.graph.value_name(at), name, &[("to", value)]));
        let Some(input) = self.graph.constant_input(at) else { return Ok(()) };
        let (file, of_elements) = (self.graph.file, number(1, onnx_number(to)));
        self.edits.replace_fields(input, |field, value| match (field, value) {
            (1, _) => Some(bytes(1, name)),
            // The path to `elem_type`: `TypeProto`, `tensor_type`.
            (2, Value::Bytes(body)) => Some(bytes(2, replaced(file, body, &[1, 1], &of_elements))),
            _ => None,
        })
    }

    /// Inserts the scales of a tensor, and a decoding node for each of its users, or gives the users the codes.
    fn insert_decoding(&mut self, at: usize, new: &QuantizedTensor) -> Result<()> {
        let graph = self.graph;
        let names = graph.part_names(&graph.weight_name(at, &self.tensors[at].name), new.codes(), new.form);
        let inputs: Vec<&str> = names.iter().map(String::as_str).take(new.parts.len()).collect();
        if let CodesForm::Linear(Some(axis)) = new.form {
            self.insert_dequantizations(at, &inputs, axis)?;
        } else if let [decoded] = graph.dequantizations_of(at) {
            for &node in &decoded.nodes {
                self.edits.remove(node);
                let users = graph.output_uses(node).iter();
                users.into_iter().try_for_each(|user| self.compute_with_codes(user.node, &inputs, new))?;
            }
        } else {
            graph.tensor_uses(at).iter().try_for_each(|user| self.compute_with_codes(user.node, &inputs, new))?;
        }
        for (part, name) in new.parts.iter().zip(inputs).skip(1) {
            self.insert_initializer(at, name, *part);
        }
        Ok(())
    }

    /// Inserts a decoding node for each user of a tensor. `inputs` are the names of its parts.
    fn insert_dequantizations(&mut self, at: usize, inputs: &[&str], (axis, block_size): (usize, u64)) -> Result<()> {
        let (graph, name) = (self.graph, inputs[0]);
        let mut attributes = vec![("axis", integer(axis as u64))];
        attributes.extend((block_size > 0).then(|| ("block_size", integer(block_size))));
        let (mut nodes, users) = (Vec::new(), graph.tensor_uses(at));
        let decoded = graph.dequantizations_of(at).first();
        let first = decoded.map_or(graph.value_name(at), |decoded| decoded.name.as_bytes());
        for number in 1..=users.len().max(1) {
            let copy = copy_of(name, number);
            let (output, label) = if number == 1 { (first, name) } else { (copy.as_bytes(), &*copy) };
            nodes.extend(new_node("DequantizeLinear", inputs, output, label, &attributes));
            let Some(user) = users.get(number - 1) else { continue };
            if let (Some(decoded), Some(operator)) = (decoded, BlockOperator::of(&graph.node(user.node))) {
                let value = if number == 1 { &decoded.name } else { &copy };
                self.compute_with_values(user.node, operator, decoded, value)?;
            } else if number > 1 {
                self.rename_input(user, &copy)?;
            }
        }
        self.insert_nodes(at, nodes);
        Ok(())
    }

    /// Replaces a product, or a Gather, by the operator of ONNX Runtime with codes. `parts` are their names.
    fn compute_with_codes(&mut self, at: usize, parts: &[&str], new: &QuantizedTensor) -> Result<()> {
        let (operator, bits, attributes) = match new.form {
            CodesForm::Linear(_) => return Ok(()),
            CodesForm::Product { shape: [k, n], bits, block_size } => {
                let own = [("K", k), ("N", n), ("bits", bits.into()), ("block_size", block_size)];
                let level = new.accuracy_level.map(|level| ("accuracy_level", level.into()));
                (BlockOperator::Product, bits, own.into_iter().chain(level).collect::<Vec<_>>())
            }
            CodesForm::Gather { axis, block_size, .. } => {
                let [gathered] = self.graph.integers(at, [("axis", 0)]);
                let own =
                    [("gather_axis", gathered as u64), ("quantize_axis", axis as u64), ("block_size", block_size)];
                (BlockOperator::Gather, new.codes().bits(), own.to_vec())
            }
        };
        self.needs_runtime = true;
        let name = String::from_utf8_lossy(self.graph.node(at).name);
        let mut slots = 0..;
        self.edits.replace_fields(at, |field, _| match field {
            node::INPUT => (slots.next() == Some(operator.codes_slot())).then(|| bytes(node::INPUT, parts[0])),
            // As ONNX Runtime's quantizer names it.
            node::NAME if !name.is_empty() => Some(bytes(node::NAME, format!("{name}_Q{bits}"))),
            node::OP_TYPE => Some(bytes(node::OP_TYPE, operator.name())),
            node::ATTRIBUTE | node::DOMAIN => Some(Vec::new()),
            _ => None,
        })?;
        let mut added: Vec<u8> = parts[1..].iter().flat_map(|name| bytes(node::INPUT, name)).collect();
        added.extend(bytes(node::DOMAIN, DOMAIN));
        added.extend(attributes.into_iter().flat_map(|(name, value)| new_attribute(name, &integer(value))));
        self.edits.insert(self.graph.body(at).end, at, [New::Bytes(added)]);
        Ok(())
    }

    /// Removes the nodes that decode a tensor. The users of their outputs use the values instead. Nodes that compute with
    /// the codes get another operator.
    fn fold(&mut self, decoded: &Dequantization) -> Result<()> {
        let graph = self.graph;
        for &node in &decoded.nodes {
            if let Some(operator) = BlockOperator::of(&graph.node(node)) {
                self.compute_with_values(node, operator, decoded, &decoded.name)?;
                continue;
            }
            self.edits.remove(node);
            if graph.node(node).output() != decoded.name.as_bytes() {
                graph.output_uses(node).iter().try_for_each(|user| self.rename_input(user, &decoded.name))?;
            }
        }
        Ok(())
    }

    /// Replaces the operator of a node by ONNX's operator with the values of this name. A bias is added to the product.
    fn compute_with_values(
        &mut self,
        at: usize,
        operator: BlockOperator,
        decoded: &Dequantization,
        values: &str,
    ) -> Result<()> {
        let (graph, fields) = (self.graph, self.graph.node(at));
        let is_product = operator == BlockOperator::Product;
        let bias = fields.inputs.get(5).filter(|name| is_product && !name.is_empty());
        let [output, name] = [fields.output(), fields.name].map(String::from_utf8_lossy);
        let product = graph.stored_name(&output, self.tensors[decoded.scale].elements.stored_dtype());
        let mut slots = 0..;
        self.edits.replace_fields(at, |field, _| match field {
            node::INPUT => match slots.next() {
                Some(slot) if slot == operator.codes_slot() => Some(bytes(node::INPUT, values)),
                Some(slot) if slot > 1 => Some(Vec::new()),
                _ => None,
            },
            node::OUTPUT if bias.is_some() => Some(bytes(node::OUTPUT, &product)),
            node::NAME => without_suffix(&name).map(|name| bytes(node::NAME, name)),
            node::OP_TYPE => Some(bytes(node::OP_TYPE, operator.plain())),
            node::ATTRIBUTE | node::DOMAIN => Some(Vec::new()),
            _ => None,
        })?;
        let end = graph.body(at).end;
        if !is_product {
            let [axis] = graph.integers(at, [("gather_axis", 0)]);
            self.edits.insert(end, at, [New::Bytes(new_attribute("axis", &integer(axis as u64)))]);
        }
        if let Some(bias) = bias {
            let bias = String::from_utf8_lossy(bias);
            let add = new_node("Add", &[&product, &bias], fields.output(), &product, &[]);
            self.edits.insert(end, graph.messages[at].parent, [New::Bytes(add)]);
        }
        Ok(())
    }

    fn rename_input(&mut self, user: &Use, name: &str) -> Result<()> {
        self.rename(user.node, (node::INPUT, user.slot), name)
    }

    /// Renames one of the inputs or outputs of a node.
    fn rename(&mut self, node: usize, (which, slot): (u64, usize), name: &str) -> Result<()> {
        let mut slots = 0..;
        self.edits.replace_fields(node, |field, _| {
            let is_slot = field == which && slots.next() == Some(slot);
            is_slot.then(|| bytes(which, name))
        })
    }

    fn change_versions(&mut self) {
        if let (Some(wanted), Some((range, _))) = (self.change.ir_version, &self.graph.ir_version) {
            self.edits.replace(range.clone(), FILE, number(model::IR_VERSION, wanted));
        }
        let mut imports = self.graph.imports(MessageKind::Model);
        if self.needs_runtime && !imports.any(|import| import.domain == DOMAIN.as_bytes()) {
            let import = bytes(model::OPSET_IMPORT, [bytes(1, DOMAIN), number(2, 1)].concat());
            self.edits.insert(self.graph.file.len(), FILE, [New::Bytes(import)]);
        }
        let Some(wanted) = self.change.opset else { return };
        for import in self.graph.imports(MessageKind::Model).filter(|import| is_default_domain(import.domain)) {
            self.edits.replace(import.range, import.message, number(2, wanted));
        }
    }
}

impl NewModel<'_, '_> {
    /// Replaces the pairs of the metadata at their places, and adds new ones at the end.
    fn change_metadata(&mut self) -> Result<()> {
        let (file, changes) = (self.graph.file, self.change.metadata);
        if changes.is_empty() {
            return Ok(()); // the model may be large
        }
        let new = |(key, value): &MetadataChange| {
            value.as_ref().map(|value| pair(model::METADATA_PROPS, key, value)).unwrap_or_default()
        };
        let mut is_done = vec![false; changes.len()];
        self.edits.replace_fields(FILE, |field, value| {
            let Value::Bytes(body) = value else { return None };
            let [own] = MessageFields::new(file, body).last([1]).ok().filter(|_| field == model::METADATA_PROPS)?;
            let at = changes.iter().position(|(key, _)| key.as_bytes() == &file[own.clone()])?;
            // A name may have several values; one is left.
            Some(if std::mem::replace(&mut is_done[at], true) { Vec::new() } else { new(&changes[at]) })
        })?;
        let added =
            changes.iter().zip(is_done).filter(|(_, is_done)| !is_done).map(|(change, _)| New::Bytes(new(change)));
        self.edits.insert(file.len(), FILE, added);
        Ok(())
    }
}

/// Serializes a node as a field of a graph.
fn new_node(op_type: &str, inputs: &[&str], output: &[u8], name: &str, attributes: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut new: Vec<u8> = inputs.iter().flat_map(|input| bytes(node::INPUT, input)).collect();
    new.extend([bytes(node::OUTPUT, output), bytes(node::NAME, name), bytes(node::OP_TYPE, op_type)].concat());
    for (name, value) in attributes {
        new.extend(new_attribute(name, value));
    }
    bytes(graph::NODE, new)
}

/// Serializes an attribute as a field of a node.
fn new_attribute(name: &str, value: &[u8]) -> Vec<u8> {
    bytes(node::ATTRIBUTE, [&*bytes(attribute::NAME, name), value].concat())
}

/// Serializes the lengths of a tensor.
fn dims(shape: &[u64]) -> Vec<u8> {
    shape.iter().flat_map(|length| number(DIMS, *length)).collect()
}

/// Serializes the value and the type of an attribute that is an integer.
fn integer(value: u64) -> Vec<u8> {
    [number(attribute::INT, value), number(attribute::TYPE, 2)].concat()
}

fn onnx_number(dtype: Dtype) -> u64 {
    dtype.onnx_number().unwrap_or_default().into()
}

/// Returns the body of a small message in which `new` replaces the field at the end of a path of nested messages.
fn replaced(file: &[u8], body: Range<usize>, path: &[u64], new: &[u8]) -> Vec<u8> {
    let mut copy = Vec::new();
    for (range, field, value) in MessageFields::new(file, body).with_ranges().map_while(Result::ok) {
        match (path, value) {
            ([last], _) if *last == field => copy.extend_from_slice(new),
            ([first, rest @ ..], Value::Bytes(body)) if *first == field => {
                copy.extend(bytes(field, replaced(file, body, rest, new)));
            }
            _ => copy.extend_from_slice(&file[range]),
        }
    }
    copy
}
