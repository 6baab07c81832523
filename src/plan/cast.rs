//! Plans the tensors that are not weights to decode or quantize: the operator is applied to them, or they are copied.

use super::decisions::NewForm;
use super::model;
use super::quantization::TensorIndex;
use super::step::Step;
use super::{Codes, Conversions, Request};
use crate::blocks::BlockFormat;
use crate::container::onnx::model::ModelGraph;
use crate::container::{Container, Elements, Form, FormatInfo, Input, Tensor};
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Kind, Result};
use crate::kernel::Storage;
use crate::kernel::SubByteLayout::{PerByte, PerByteStrict};
use crate::operator::Operator;
use crate::read::SourceTensor;
use crate::select::{Candidate, KeptReason};
use std::borrow::Cow;

/// Planner of plain tensors.
pub(super) struct Cast<'p, 'r, 'a> {
    request: &'p Request<'r>,
    inputs: &'a [Input],
    /// The ONNX model that is changed, if the output is one.
    model: Option<&'p ModelGraph<'a>>,
    conversions: &'p mut Conversions<'r>,
    /// Types that the output is known to store.
    storable: Vec<Dtype>,
}

impl<'p, 'r, 'a> Cast<'p, 'r, 'a> {
    pub(super) fn new(
        request: &'p Request<'r>,
        inputs: &'a [Input],
        model: Option<&'p ModelGraph<'a>>,
        conversions: &'p mut Conversions<'r>,
    ) -> Self {
        Self { request, inputs, model, conversions, storable: Vec::new() }
    }

    /// Makes the step for a tensor with another name or shape.
    pub(super) fn stored(
        &mut self,
        place: TensorIndex,
        NewForm { name, shape, to, kept }: NewForm,
    ) -> Result<Step<'a>> {
        let input = &self.inputs[place.0];
        let tensor = &input.contents.tensors[place.1];
        let in_place = |error: Error| error.in_tensor(input.name_of(tensor)).in_file(input.path());
        let form = source_form(tensor, None).map_err(in_place)?;
        let source = SourceTensor {
            files: &input.files,
            tensor,
            elements: tensor.elements,
            is_transposed: tensor.fortran_order,
        };
        let target = to.unwrap_or(form.dtype());
        if self.request.container.stores(target).is_none() {
            return Err(in_place(self.request.container.refusal(target, true)));
        }
        let conversion = self.conversions.get(form, self.request.container.form(target), to.is_some());
        let mut step = Step::convert(source, name.into(), conversion.map_err(in_place)?, kept);
        if shape[..] != *tensor.shape {
            step.results[0].extra.get_or_insert_default().shape = Some(shape.into());
        }
        Ok(step)
    }

    /// Makes the step for a tensor. If it is copied, `reason` takes precedence over the planner's own reason.
    pub(super) fn step(&mut self, place: TensorIndex, reason: Option<KeptReason>) -> Result<Step<'a>> {
        let input = &self.inputs[place.0];
        let tensor = &input.contents.tensors[place.1];
        let in_place = |error: Error| error.in_tensor(&tensor.name).in_file(input.path());
        let (source, form, target) = self.target(place).map_err(in_place)?;
        if let Some(error) = self.request.codes.filter(|_| target.is_ok()).and_then(Codes::undecoded) {
            return Err(error.in_file(input.path()));
        }
        // A nameless tensor stays nameless if it is the only one in the output too.
        let is_nameless = input.container.format_info().has_names && self.request.container.format_info().holds_one;
        let name = if is_nameless { &*tensor.name } else { input.name_of(tensor) };
        let to = self.request.container.form(target.unwrap_or(form.dtype()));
        let conversion = self.conversions.get(form, to, target.is_ok()).map_err(|error| error.in_tensor(name))?;
        let kept = target.err().map(|own| reason.unwrap_or(own));
        let mut step = Step::convert(source, Cow::Borrowed(name), conversion, kept);
        step.fortran_order = tensor.fortran_order && !source.is_transposed;
        Ok(step)
    }

    /// Decides about a tensor: how it is read, and its new type or the reason for copying it.
    fn target(&mut self, place: TensorIndex) -> Result<(SourceTensor<'a>, Form, Result<Dtype, KeptReason>)> {
        let Request { operator, selection, from, container, codes, .. } = *self.request;
        let input = &self.inputs[place.0];
        let tensor = &input.contents.tensors[place.1];
        let (name, dtype) = (input.name_of(tensor), known_dtype(tensor, from));
        let is_alone = input.container.format_info().holds_one;
        let target = selection.target(&Candidate { name, dtype, rank: tensor.shape.len(), is_alone });
        let files = &input.files[..];
        if tensor.elements == Elements::Opaque {
            let formats = [&input.container.format_info(), &container.format_info()];
            let form = opaque_form(tensor, target.is_ok(), formats)?;
            let source = SourceTensor { files, tensor, elements: tensor.elements, is_transposed: false };
            return Ok((source, form, Err(KeptReason::LeftOut)));
        }
        if let Elements::Blocks(format) = tensor.elements {
            let refusal = codes.and_then(|codes| codes.refusal(name, selection));
            return Err(refusal.unwrap_or_else(|| cannot_hold_blocks(container, format)));
        }
        // A tensor that is copied keeps its stored type, if it has one.
        let is_untyped = matches!(tensor.elements, Elements::Untyped(_));
        let form = source_form(tensor, from.filter(|_| target.is_ok() || is_untyped))?;
        if let Ok(target) = target
            && (target != form.dtype() || !matches!(operator, Operator::Promote(_)))
        {
            operator.check(form.dtype(), target)?;
        }
        let mut target = target.and_then(|target| {
            let is_there = target == form.dtype() && operator.keeps(target);
            if is_there { Err(KeptReason::Already) } else { Ok(target) }
        });
        if target.is_ok() {
            // A rule names its tensors explicitly, so it may cast codes.
            let codes = codes.filter(|_| selection.rule(name).is_none());
            if let Some(refusal) = codes.and_then(|codes| codes.refusal(name, selection)) {
                return Err(refusal);
            }
        }
        let dtype = target.unwrap_or(form.dtype());
        if !self.storable.contains(&dtype) {
            if container.stores(dtype).is_none() {
                let are_several = self.inputs.iter().map(|input| input.contents.tensors.len()).sum::<usize>() > 1;
                return Err(container.refusal(dtype, are_several));
            }
            self.storable.push(dtype);
        }
        if let (Some(graph), Ok(to)) = (self.model, target) {
            let role = graph.role_for(place.1, to);
            if let Some(reason) = model::kept(self.request, role, (tensor, name), form.dtype(), to)? {
                target = Err(reason);
            }
        }
        let is_transposed = tensor.fortran_order && !container.format_info().has_fortran_order;
        Ok((SourceTensor { files, tensor, elements: Elements::Typed(form), is_transposed }, form, target))
    }
}

/// Returns the error for a quantized weight in blocks that would be copied to another format.
fn cannot_hold_blocks(container: &dyn Container, format: &BlockFormat) -> Error {
    let (extension, name) = (container.format_info().extension, format.name);
    Error::new(format!(".{extension} cannot hold blocks of {name}")).of(Kind::InBlocks)
}

/// Returns the type that decides whether a tensor is cast by default.
pub(super) fn known_dtype(tensor: &Tensor, from: Option<Dtype>) -> Option<Dtype> {
    let reinterpreted = from.and_then(|from| reinterpreted(tensor, from));
    reinterpreted.map_or(tensor.elements.dtype(), |storage| Some(storage.dtype))
}

/// Refuses a `--from` that fits none of these tensors.
pub(crate) fn check_from<'a>(tensors: impl IntoIterator<Item = &'a Tensor>, from: Option<Dtype>) -> Result<()> {
    let Some(from) = from else { return Ok(()) };
    let tensors: Vec<&Tensor> = tensors.into_iter().collect();
    if tensors.iter().any(|tensor| reinterpreted(tensor, from).is_some()) {
        return Ok(());
    }
    if let Some(untyped) = tensors.iter().find(|tensor| matches!(tensor.elements, Elements::Untyped(_))) {
        return source_form(untyped, Some(from)).map(drop);
    }
    let error = Error::new(format!("no tensor holds untyped elements of the width of {from}"));
    let opaque = if from.bits() < 8 { "V1 and u1, an element in each byte" } else { "V1, u1, safetensors' U8" };
    Err(error.remedy(format!("only opaque bytes (numpy's {opaque}) take a type")).without("from"))
}

/// Returns the form in which to read a tensor's bytes; `from` is the type of untyped elements.
///
/// # Errors
/// When the elements are untyped and `from` is missing or does not fit.
pub fn source_form(tensor: &Tensor, from: Option<Dtype>) -> Result<Form> {
    let reinterpreted = from.and_then(|from| reinterpreted(tensor, from));
    match (reinterpreted, tensor.elements, from) {
        (Some(storage), ..) => Ok(Form::Numbers(storage)),
        (None, Elements::Typed(form), _) => Ok(form),
        (None, Elements::Opaque | Elements::Blocks(_), _) => Err(tensor.refusal()),
        (None, Elements::Untyped(bytes), from) => {
            let candidates: Vec<&str> = Dtype::all().filter(|dtype| fits(*dtype, bytes)).map(Dtype::name).collect();
            let error = Error::new(match from {
                Some(from) => {
                    format!("{from} does not fit its elements of {bytes} {}", if bytes == 1 { "byte" } else { "bytes" })
                }
                None => format!("the file does not say what its {bytes}-byte elements are"),
            });
            if candidates.is_empty() {
                return Err(error.remedy("tcast has no type of that width"));
            }
            Err(error.of(Kind::Untyped(candidates.into())))
        }
    }
}

/// Returns the form in which a tensor of an unsupported type is copied: bytes. Refuses to convert it, or to copy it to
/// another format.
fn opaque_form(tensor: &Tensor, is_selected: bool, formats: [&FormatInfo; 2]) -> Result<Form> {
    let [from, to] = formats.map(|format| format.extension);
    if is_selected {
        return Err(tensor.refusal().of(Kind::Unconvertible));
    }
    if from != to {
        let what = format!("{}, which can be copied into a .{from} file only", tensor.refusal());
        return Err(Error::new(what).remedy(format!("name an output that ends in .{from}")));
    }
    Ok(Form::Numbers(Storage::per_byte(Dtype::Uint8)))
}

/// Returns the storage of a tensor whose elements are opaque bytes or unsigned integers of `from`'s width.
fn reinterpreted(tensor: &Tensor, from: Dtype) -> Option<Storage> {
    match tensor.elements {
        Elements::Untyped(bytes) => fits(from, bytes).then(|| strict(Storage::per_byte(from))),
        Elements::Typed(Form::Numbers(storage)) => {
            let is_opaque = storage.dtype.class() == Class::Int { signed: false };
            let reinterpreted = strict(Storage { dtype: from, ..storage });
            // Eight elements, because fewer packed ones can end within a byte.
            (is_opaque && from.bits() != 0 && reinterpreted.bytes(8) == storage.bytes(8)).then_some(reinterpreted)
        }
        Elements::Typed(Form::Texts(_)) | Elements::Blocks(_) | Elements::Opaque => None,
    }
}

/// Makes the storage of one small integer per byte strict, because the bytes may hold something else, such as two
/// integers.
fn strict(storage: Storage) -> Storage {
    let is_per_byte = storage.layout == PerByte && storage.dtype.bits() < 8;
    Storage { layout: if is_per_byte { PerByteStrict } else { storage.layout }, ..storage }
}

/// True if an element of `dtype` takes `bytes` bytes, given at least one whole byte per element.
fn fits(dtype: Dtype, bytes: u32) -> bool {
    dtype.bits() != 0 && Storage::per_byte(dtype).bytes(1) == Some(bytes.into())
}
