//! Stored tensors as values: the form in which their bytes are read.

use crate::blocks::BlockFormat;
use crate::container::{Container, Elements, Form, FormatInfo, Tensor};
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Opt, Result};
use crate::kernel::Storage;
use crate::kernel::SubByteLayout::{PerByte, PerByteStrict};

/// Returns the error for a quantized weight in blocks that would be copied to another format.
pub(super) fn cannot_hold_blocks(container: &dyn Container, format: &BlockFormat) -> Error {
    let (extension, name) = (container.format_info().extension, format.name);
    Error::new(format!(".{extension} cannot hold blocks of {name}")).in_blocks()
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
    Err(error.remedy(format!("only opaque bytes (numpy's {opaque}) take a type")).without(Opt::FROM))
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
            Err(error.with_value(Opt::FROM, "DTYPE", format!("say it with {{}}: {}", candidates.join(", "))))
        }
    }
}

/// Returns the form in which a tensor of an unsupported type is copied: bytes. Refuses to convert it, or to copy it to
/// another format.
pub(super) fn opaque_form(tensor: &Tensor, is_selected: bool, formats: [&FormatInfo; 2]) -> Result<Form> {
    let [from, to] = formats.map(|format| format.extension);
    if is_selected {
        return Err(tensor.refusal().unconvertible());
    }
    if from != to {
        let what = format!("{}, which can be copied into a .{from} file only", tensor.refusal());
        return Err(Error::new(what).with(Opt::OUTPUT, format!("name an output that ends in .{from}")));
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
