//! A model whose tensors are stored in other types.
//!
//! An initializer `w` becomes `w_float16`, and a Cast node before the graph's other nodes restores `w` in its old type.
//! A Constant node gets the new name for its output, and the Cast node follows it. Therefore all references to the
//! value, in this graph or in a nested one, stay as they are. No other value or node of the model has the new name.

use super::super::super::{Form, Input, Tensor, too_long};
use super::super::protobuf::{MessageFields, Value, write_head};
use super::super::{
    DATA_LOCATION, DATA_TYPE, DOUBLE_DATA, EXTERNAL_DATA, FLOAT_DATA, INT32_DATA, INT64_DATA, NAME, RAW_DATA,
    STRING_DATA, UINT64_DATA,
};
use super::decoding::{NodeValue, QuantizedTensor, copy_of, external, new_initializer, new_parts, node_field};
use super::edit::{Edits, New, bytes_field, number_field, rebuilt};
use super::opsets::{self, Break};
use super::parts::{Holder, is_default_domain, model};
use super::placed::{ModelLayout, Placed, SMALL};
use super::study::{Place, Study, TensorRole};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::Storage;
use crate::text::shorten;
use std::ops::Range;

/// The planned change of a model.
#[derive(Debug, Default)]
pub(crate) struct Change<'a> {
    pub tensors: Vec<TensorChange>,
    pub quantized: Vec<QuantizedTensor<'a>>,
    /// The operator set of the default domain that the model must import, if it needs another one.
    pub opset: Option<u64>,
    pub ir_version: Option<u64>,
    /// The name of the file for the elements of large tensors, if they go into one.
    pub data_file: Option<&'a str>,
}

/// The planned change of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TensorChange {
    #[default]
    Stays,
    /// The tensor is stored in another type, and a Cast node restores its old type.
    Cast(Dtype),
    /// Values in this type replace the codes and the nodes that decode them. The index is in
    /// [`Study::dequantizations`], where more values of the same codes can follow; these become new initializers.
    Decoded(usize, Dtype),
    /// The tensor is stored as codes that nodes decode: the index in [`Change::quantized`].
    Quantized(usize),
    /// The tensor is removed, because no node uses it any more.
    Goes,
}

/// Reason why a model cannot have the operator set or the IR version that a type needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The model imports too old a set. Without `broken`, the set could be raised; `broken` holds the name of a node,
    /// its type, and the change that prevents this.
    Opset { imported: u64, broken: Option<(String, String, Break)> },
    /// The model imports no operators of the default domain.
    NoOpset,
    /// The model imports too old a set, and its functions import separate sets, which would have to be raised with it.
    Functions { imported: u64 },
    /// In IR versions up to 3, initializers are constants although they are inputs of the graph.
    OldIr { version: u64 },
}

impl Study {
    /// The version of the default operator set that the model imports.
    pub(crate) fn opset(&self, file: &[u8]) -> Option<u64> {
        let is_default = |domain: &Range<usize>| is_default_domain(&file[domain.clone()]);
        self.header.imports.iter().rev().find(|(_, domain, _)| is_default(domain)).map(|(.., version)| *version)
    }

    /// Returns the reason why the model does not import the operator set `wanted` or a later one; `None` if it does.
    pub(crate) fn obstacle(&self, file: &[u8], wanted: u64) -> Option<Obstacle> {
        let Some(imported) = self.opset(file) else { return Some(Obstacle::NoOpset) };
        if imported >= wanted {
            return None;
        }
        if self.header.has_functions {
            return Some(Obstacle::Functions { imported });
        }
        let breaks = |(operator, name): (&Vec<u8>, &String)| {
            let why = opsets::breaks(operator, imported, wanted)?;
            Some((name.clone(), shorten(&String::from_utf8_lossy(operator)), why))
        };
        // With saturation, infinity becomes NaN in these types up to Cast-23, and the largest number from Cast-24 on.
        let fnuz = self.fnuz_cast.iter().filter(|_| (imported + 1..=wanted).contains(&24));
        let fnuz = fnuz.map(|(name, operator)| (name.clone(), (*operator).into(), Break::From(24)));
        let broken = self.operators.iter().filter_map(breaks).chain(fnuz).min_by(|a, b| (a.2, &a.0).cmp(&(b.2, &b.0)));
        Some(Obstacle::Opset { imported, broken })
    }

    /// Returns an obstacle if the IR version is so old that all initializers have to be inputs, so that there can be no
    /// new ones.
    pub(crate) fn old_ir(&self) -> Option<Obstacle> {
        let version = self.header.ir_version.as_ref().map_or(0, |(_, version)| *version);
        (version <= 3).then_some(Obstacle::OldIr { version })
    }

    /// Returns the IR version for a type, if the model has an older one. Fails if raising it would change the meaning
    /// of the model.
    pub(crate) fn ir_version_for(&self, dtype: Dtype) -> Result<Option<u64>, Obstacle> {
        let version = self.header.ir_version.as_ref().map_or(0, |(_, version)| *version);
        let wanted = opsets::ir_version(dtype);
        match version {
            version if version >= wanted => Ok(None),
            0..=3 => Err(Obstacle::OldIr { version }),
            _ => Ok(Some(wanted)),
        }
    }

    pub(crate) fn lay_out(&self, input: &Input, change: &Change) -> Result<ModelLayout> {
        let mut edits = Edits::new(&input.files[0], &self.frames);
        let mut placed = Placed::default();
        for (at, (tensor, place)) in input.contents.tensors.iter().zip(&self.places).enumerate() {
            let fate = change.tensors[at];
            let to = match fate {
                TensorChange::Goes => {
                    placed.index.push(None);
                    self.remove(&mut edits, place);
                    continue;
                }
                TensorChange::Stays => None,
                TensorChange::Cast(to) | TensorChange::Decoded(_, to) => Some(to),
                TensorChange::Quantized(number) => Some(change.quantized[number].parts[0].0),
            };
            let target = Storage::packed(to.unwrap_or(tensor.elements.stored_dtype()));
            let len = target.bytes(tensor.count).ok_or_else(too_long)?;
            let is_beside = tensor.is_beside();
            let moves = change.data_file.is_some()
                && place.holder == Holder::Initializer
                && len >= SMALL
                && target.dtype != Dtype::String;
            if to.is_none() && !is_beside && !moves {
                placed.index.push(None);
                continue;
            }
            if place.role == Some(TensorRole::Sparse) {
                let error = Error::new("is a sparse tensor with external data, which tcast does not write");
                return Err(error.in_tensor(&tensor.name));
            }
            placed.index.push(Some(placed.forms.len()));
            placed.forms.push((Form::Numbers(target), 0..len));
            let data = match (moves, fate) {
                (false, _) => Stored::Within,
                // These are not shared: codes of the same elements depend on the axis of the scales, and values of the
                // same codes depend on the scales.
                (true, TensorChange::Quantized(_) | TensorChange::Decoded(..)) => {
                    Stored::Beside(placed.beside(None, len))
                }
                (true, _) => Stored::Beside(placed.beside(Some((tensor, target.dtype)), len)),
            };
            let name = match fate {
                TensorChange::Cast(to) => Some(self.stored_name(&tensor.name, to)),
                TensorChange::Quantized(_) => Some(self.stored_name(&tensor.name, target.dtype)),
                TensorChange::Decoded(number, _) => Some(self.dequantizations[number].name.clone()),
                TensorChange::Stays | TensorChange::Goes => None,
            };
            self.rewrite(
                &mut edits,
                place,
                (placed.forms.len() - 1, len),
                to,
                name.as_deref(),
                (data, change.data_file),
            )?;
            if let Some(name) = &name {
                self.change_graph(&mut edits, &mut placed, (at, &input.contents.tensors), name, change)?;
            }
        }
        self.rewrite_versions(&mut edits, change)?;
        placed.lay_out(edits.pieces()?)
    }

    /// Changes the nodes around a tensor that has a new type and name.
    fn change_graph(
        &self,
        edits: &mut Edits,
        placed: &mut Placed,
        (at, tensors): (usize, &[Tensor]),
        name: &str,
        change: &Change,
    ) -> Result<()> {
        let place = &self.places[at];
        match change.tensors[at] {
            TensorChange::Cast(to) => {
                let opset = change.opset.or(self.opset(edits.file));
                self.insert_cast(edits, place, name, (tensors[at].elements.stored_dtype(), opset))?;
                if let Some(input) = place.input {
                    self.rewrite_input(edits, input, (name, to))?;
                }
            }
            TensorChange::Quantized(number) => {
                let quantized = &change.quantized[number];
                let new = new_parts(placed, quantized, name, change.data_file);
                self.insert_decoding(edits, (at, place), name, quantized, new);
                if place.holder == Holder::Constant {
                    self.rename_output(edits, place, name)?;
                }
                for (number, user) in (2..).zip(self.uses.of_tensors[at].iter().skip(1)) {
                    self.rename_input(edits, *user, &copy_of(name, number))?;
                }
            }
            TensorChange::Decoded(number, _) => {
                if place.holder == Holder::Constant {
                    self.rename_output(edits, place, name)?;
                }
                self.fold(edits, &self.dequantizations[number])?;
                for more in self.dequantizations[number + 1..].iter().take_while(|more| more.codes == at) {
                    let part = (tensors[more.scale].elements.stored_dtype(), &*tensors[at].shape);
                    let new = new_initializer(placed, &more.name, part, change.data_file);
                    let (end, parent) = self.end(place);
                    edits.replace(end..end, parent, new);
                    self.fold(edits, more)?;
                }
            }
            TensorChange::Stays | TensorChange::Goes => {}
        }
        Ok(())
    }

    /// Stores a tensor's elements elsewhere, in another type or with another name.
    fn rewrite(
        &self,
        edits: &mut Edits,
        place: &Place,
        (tensor, len): (usize, u64),
        to: Option<Dtype>,
        name: Option<&str>,
        (data, data_file): (Stored, Option<&str>),
    ) -> Result<()> {
        let within = Some(place.message);
        let body = self.frames[place.message].frame.body.clone();
        for field in MessageFields::new(edits.file, body.clone()).with_ranges() {
            let (range, field, _) = field?;
            let new = match (field, to, name) {
                (DATA_TYPE, Some(to), _) => {
                    vec![New::Bytes(number_field(DATA_TYPE, to.onnx_number().unwrap_or_default().into()))]
                }
                (NAME, _, Some(name)) if place.holder == Holder::Initializer => {
                    vec![New::Bytes(bytes_field(NAME, name.as_bytes()))]
                }
                (
                    FLOAT_DATA | INT32_DATA | STRING_DATA | INT64_DATA | RAW_DATA | DOUBLE_DATA | UINT64_DATA
                    | EXTERNAL_DATA | DATA_LOCATION,
                    ..,
                ) => Vec::new(),
                _ => continue,
            };
            edits.replace(range, within, new);
        }
        let mut end = Vec::new();
        let new = if let (Stored::Beside(offset), Some(data_file)) = (data, data_file) {
            vec![New::Bytes(external(data_file, offset, len))]
        } else {
            write_head(&mut end, RAW_DATA, len);
            vec![New::Bytes(end), New::Elements(tensor, len)]
        };
        edits.replace(body.end..body.end, within, new);
        Ok(())
    }

    /// Inserts the node that restores the old value of a tensor, and renames the output of a Constant node.
    fn insert_cast(
        &self,
        edits: &mut Edits,
        place: &Place,
        name: &str,
        (to, opset): (Dtype, Option<u64>),
    ) -> Result<()> {
        let is_text = opset.is_some_and(|opset| opset < 6); // Cast-1
        let to = if is_text {
            NodeValue::Text(to.onnx_name().unwrap_or_default())
        } else {
            NodeValue::Int(to.onnx_number().unwrap_or_default().into())
        };
        let output = edits.bytes(place.name.clone());
        let cast = vec![New::Bytes(node_field("Cast", &[name], output, name, &[("to", to)]))];
        if place.holder == Holder::Initializer {
            let first = self.first_nodes[place.graph];
            edits.replace(first.position..first.position, Some(first.parent), cast);
            return Ok(());
        }
        self.rename_output(edits, place, name)?;
        let constant = self.constant(place);
        let end = self.frames[constant].frame.body.end;
        edits.replace(end..end, self.frames[constant].parent, cast);
        Ok(())
    }

    /// Gives an input of the graph the new name and type.
    fn rewrite_input(&self, edits: &mut Edits, input: usize, (name, to): (&str, Dtype)) -> Result<()> {
        let body = self.frames[input].frame.body.clone();
        let number = u64::from(to.onnx_number().unwrap_or_default());
        let of_tensor = |field, _: &Value| Ok((field == 1).then(|| number_field(1, number)));
        let of_type = |field, value: &Value| match (field, value) {
            (1, Value::Bytes(tensor)) => Ok(Some(bytes_field(1, &rebuilt(edits.file, tensor, &of_tensor)?))),
            _ => Ok(None),
        };
        let of_input = |field, value: &Value| match (field, value) {
            (1, _) => Ok(Some(bytes_field(1, name.as_bytes()))),
            (2, Value::Bytes(kind)) => Ok(Some(bytes_field(2, &rebuilt(edits.file, kind, &of_type)?))),
            _ => Ok(None),
        };
        let new = rebuilt(edits.file, &body, &of_input)?;
        edits.replace(body, Some(input), vec![New::Bytes(new)]);
        Ok(())
    }

    fn rewrite_versions(&self, edits: &mut Edits, change: &Change) -> Result<()> {
        if let (Some(wanted), Some((range, _))) = (change.ir_version, &self.header.ir_version) {
            let new = number_field(model::IR_VERSION, wanted);
            edits.replace(range.clone(), None, vec![New::Bytes(new)]);
        }
        let Some(wanted) = change.opset else { return Ok(()) };
        for (frame, domain, _) in &self.header.imports {
            if !is_default_domain(edits.bytes(domain.clone())) {
                continue;
            }
            let of_import = |field, _: &Value| Ok((field == 2).then(|| number_field(2, wanted)));
            let new = bytes_field(model::OPSET_IMPORT, &rebuilt(edits.file, &frame.body, &of_import)?);
            edits.replace(frame.start..frame.body.end, None, vec![New::Bytes(new)]);
        }
        Ok(())
    }
}

/// Location of stored elements.
#[derive(Clone, Copy)]
enum Stored {
    /// In the message.
    Within,
    /// In the file next to the model, at this offset.
    Beside(u64),
}
