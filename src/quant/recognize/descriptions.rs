//! Tensors of a few bytes that describe others.

use super::block::{Claim, ConfigObject};
use super::found::CheckpointInfo;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::{Group, LAYOUTS, Layout, Owner, Parameters};
use crate::text::shorten;
use serde_json::Value;

/// How much of a tensor that describes another is read; real ones have a few hundred bytes.
const MOST: u64 = 64 << 10;

/// The content of a small tensor.
fn bytes(source: &CheckpointInfo, index: usize) -> Result<Vec<u8>> {
    let tensor = &source.tensors[index];
    let count = tensor.shape.iter().try_fold(1_u64, |product, length| product.checked_mul(*length));
    let length = count.zip(tensor.dtype).and_then(|(count, dtype)| dtype.packed_bytes(count));
    match length {
        Some(length) if length <= MOST => (source.read)(index),
        _ => Err(Error::new(format!("'{}' is too large to describe another", shorten(tensor.name)))),
    }
}

/// JSON in the bytes of a tensor.
fn object(source: &CheckpointInfo, index: usize) -> Result<serde_json::Map<String, Value>> {
    let name = shorten(source.tensors[index].name);
    if source.tensors[index].dtype != Some(Dtype::Uint8) {
        return Err(Error::new(format!("'{name}' is not of uint8, and so no JSON text")));
    }
    match serde_json::from_slice(&bytes(source, index)?) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(Error::new(format!("'{name}' does not hold a JSON object"))),
    }
}

/// `weight_shape` of compressed-tensors.
pub(super) fn shape(source: &CheckpointInfo, index: usize) -> Result<Vec<u64>> {
    let tensor = &source.tensors[index];
    let numbers = match tensor.dtype {
        Some(Dtype::Int64) => {
            bytes(source, index)?.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
        }
        Some(Dtype::Int32) => {
            bytes(source, index)?.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect()
        }
        _ => Vec::new(),
    };
    let lengths: Option<Vec<u64>> = numbers.iter().map(|number| u64::try_from(*number).ok()).collect();
    lengths
        .filter(|lengths| lengths.len() >= 2)
        .ok_or_else(|| Error::new(format!("'{}' does not hold a shape", shorten(tensor.name))))
}

/// bitsandbytes' `quant_state`.
pub(super) fn quant_state(source: &CheckpointInfo, index: usize) -> Result<Parameters> {
    let name = shorten(source.tensors[index].name);
    let object = object(source, index)?;
    let state = ConfigObject(&object);
    let wrong = |what: &str| Error::new(format!("'{name}' {what}"));
    let kind = state.text("quant_type").unwrap_or_default();
    if !source.tensors[index].name.ends_with(&format!("__{kind}")) || kind.is_empty() {
        return Err(wrong(&format!("says quant_type '{}', which is not what it is called", shorten(kind))));
    }
    let lengths = |value: &Value| value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
    let shape = state.get("shape").and_then(lengths).ok_or_else(|| wrong("does not say the shape of the weight"))?;
    let size = state.number(&["blocksize"]).ok_or_else(|| wrong("does not say its blocksize"))?;
    let dtype: Option<Dtype> = state.text("dtype").and_then(|dtype| dtype.parse().ok());
    let dtype = dtype.ok_or_else(|| wrong("does not say the dtype of the weight"))?;
    if state.text("nested_dtype").is_some_and(|dtype| dtype != "float32") {
        return Err(wrong("says a nested_dtype other than float32"));
    }
    Ok(Parameters {
        shape: Some(shape),
        group: Some(Group::Neighbours(size)),
        nested_group: state.number(&["nested_blocksize"]),
        nested_offset: state.get("nested_offset").and_then(Value::as_f64).unwrap_or_default() as f32,
        weight_dtype: Some(dtype),
        ..Parameters::default()
    })
}

/// bitsandbytes' `weight_format`: 0 for plain rows, other numbers for the orders of old GPU kernels.
pub(super) fn check_rows(source: &CheckpointInfo, index: usize) -> Result<()> {
    if bytes(source, index)?.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let message = "says that its codes are in the order of a GPU, which tcast does not decode";
    Err(Error::new(format!("'{}' {message}", shorten(source.tensors[index].name))))
}

/// `ComfyUI`'s `comfy_quant` tensor.
pub(super) fn comfy_tensor(source: &CheckpointInfo, index: usize) -> Result<Claim> {
    comfy(&object(source, index)?, &format!("'{}'", shorten(source.tensors[index].name)))
}

/// What `ComfyUI` says about a layer.
pub(super) fn comfy(object: &serde_json::Map<String, Value>, who: &str) -> Result<Claim> {
    let layer = ConfigObject(object);
    let Some(format) = layer.text("format") else { return Err(Error::new(format!("{who} names no format"))) };
    let place = |layout: &'static Layout| Some((layout, layout.formats.iter().position(|known| *known == format)?));
    let Some((layout, at)) = LAYOUTS.iter().filter(|layout| layout.owner == Owner::ComfyUi).find_map(place) else {
        let message = format!("{who} says format '{}', which tcast does not decode", shorten(format));
        return Err(Error::new(message));
    };
    let mut claim = Claim::new(&[layout.name], &format!("{who} says format '{format}'"));
    claim.codes = (layout.formats.len() > 1).then(|| layout.codes.dtypes[at]);
    let parameters = layer.inner("params");
    let get = |key: &str| layer.get(key).or_else(|| parameters.as_ref()?.get(key));
    if get("convrot") == Some(&Value::Bool(true)) {
        let size = get("convrot_groupsize").and_then(Value::as_u64);
        let (Some(size), true) = (size, layout.name == "comfy-int8") else {
            return Err(Error::new(format!("{who} says convrot in a way that tcast does not decode")));
        };
        claim.parameters.rotation = Some(size);
    }
    Ok(claim)
}
