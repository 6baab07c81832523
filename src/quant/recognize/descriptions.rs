//! Small tensors that describe other tensors.

use super::block::{Claim, ConfigObject};
use super::found::CheckpointInfo;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::{Group, LAYOUTS, Layout, Owner, Parameters};
use crate::text::shorten;
use serde_json::Value;

/// Maximum length of a description in bytes; real ones have a few hundred.
const MOST: u64 = 64 << 10;

fn bytes(source: &CheckpointInfo, index: usize) -> Result<Vec<u8>> {
    let tensor = &source.tensors[index];
    let count = tensor.shape.iter().try_fold(1_u64, |product, length| product.checked_mul(*length));
    let length = count.zip(tensor.dtype).and_then(|(count, dtype)| dtype.packed_bytes(count));
    match length {
        Some(length) if length <= MOST => (source.read)(index),
        _ => Err(Error::new(format!("'{}' is too large to describe another", shorten(tensor.name)))),
    }
}

/// Reads a JSON object from the bytes of a tensor.
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

/// Reads `weight_shape` of compressed-tensors.
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

/// Reads bitsandbytes' `quant_state`; `is_nested` if the scales are quantized too.
pub(super) fn quant_state(source: &CheckpointInfo, index: usize, is_nested: bool) -> Result<Parameters> {
    let name = source.tensors[index].name;
    let object = object(source, index)?;
    state(&ConfigObject(&object), name, is_nested).map_err(|error| Error::new(format!("'{}': {error}", shorten(name))))
}

fn state(state: &ConfigObject, name: &str, is_nested: bool) -> Result<Parameters> {
    let missing = |key: &str| Error::new(format!("it does not say its {key}"));
    let kind = state.text(&["quant_type"])?.ok_or_else(|| missing("quant_type"))?;
    if kind.is_empty() || !name.ends_with(&format!("__{kind}")) {
        let message = format!("it says quant_type '{}', which is not what it is called", shorten(kind));
        return Err(Error::new(message));
    }
    let lengths = |value: &Value| value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
    let shape = state.get("shape").and_then(lengths).ok_or_else(|| missing("shape"))?;
    let size = state.number(&["blocksize"])?.ok_or_else(|| missing("blocksize"))?;
    let dtype = state.text(&["dtype"])?.ok_or_else(|| missing("dtype"))?;
    let weight_dtype: Option<Dtype> = dtype.parse().ok();
    let weight_dtype = weight_dtype.filter(|dtype| matches!(dtype, Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16));
    if weight_dtype.is_none() {
        let message = format!("it says dtype '{}', which is not float32, bfloat16 or float16", shorten(dtype));
        return Err(Error::new(message));
    }
    let plain =
        Parameters { shape: Some(shape), group: Some(Group::Neighbours(size)), weight_dtype, ..Parameters::default() };
    if !is_nested {
        return Ok(plain);
    }
    if state.text(&["nested_dtype"])?.ok_or_else(|| missing("nested_dtype"))? != "float32" {
        return Err(Error::new("it says a nested_dtype other than float32"));
    }
    let nested_group = state.number(&["nested_blocksize"])?.ok_or_else(|| missing("nested_blocksize"))?;
    let nested_offset = state.float("nested_offset")?.ok_or_else(|| missing("nested_offset"))? as f32;
    Ok(Parameters { nested_group: Some(nested_group), nested_offset, ..plain })
}

/// Checks bitsandbytes' `weight_format`: 0 means plain rows. Other numbers mean the orders of old GPU kernels, and are
/// refused.
pub(super) fn check_rows(source: &CheckpointInfo, index: usize) -> Result<()> {
    if bytes(source, index)?.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let message = "says that its codes are in the order of a GPU, which tcast does not decode";
    Err(Error::new(format!("'{}' {message}", shorten(source.tensors[index].name))))
}

/// Reads the claim of a `comfy_quant` tensor of `ComfyUI`.
pub(super) fn comfy_tensor(source: &CheckpointInfo, index: usize) -> Result<Claim> {
    comfy(&object(source, index)?, &format!("'{}'", shorten(source.tensors[index].name)))
}

/// Returns the claim of `ComfyUI`'s description of a layer.
pub(super) fn comfy(object: &serde_json::Map<String, Value>, who: &str) -> Result<Claim> {
    let layer = ConfigObject(object);
    let of_who = |error: Error| Error::new(format!("{who}: {error}"));
    let Some(format) = layer.text(&["format"]).map_err(of_who)? else {
        return Err(Error::new(format!("{who} names no format")));
    };
    let place = |layout: &'static Layout| Some((layout, layout.formats.iter().position(|known| *known == format)?));
    let Some((layout, at)) = LAYOUTS.iter().filter(|layout| layout.owner == Owner::ComfyUi).find_map(place) else {
        let message = format!("{who} says format '{}', which tcast does not decode", shorten(format));
        return Err(Error::new(message));
    };
    let rotation = rotation(&layer).map_err(of_who)?;
    let rotated = match rotation {
        Some(_) if layout.name != "comfy-int8" => {
            return Err(Error::new(format!("{who} says convrot in a way that tcast does not decode")));
        }
        Some(size) => format!(", convrot_groupsize {size}"),
        None if layout.name == "comfy-int8" => ", no convrot".to_owned(),
        None => String::new(),
    };
    let mut claim = Claim::new(&[layout.name], &format!("{who} says format '{format}'{rotated}"));
    claim.codes = layout.codes.dtypes.get(at).copied().filter(|_| layout.formats.len() > 1).into_iter().collect();
    claim.parameters.rotation = rotation;
    claim.parameters.has_full_precision = layer.is_true("full_precision_matrix_mult").map_err(of_who)?;
    Ok(claim)
}

/// Returns the number of columns that `ComfyUI` rotates together, if it does. The description gives it directly or
/// under `params`.
fn rotation(layer: &ConfigObject) -> Result<Option<u64>> {
    let inner = layer.inner("params")?;
    let places = [Some(layer), inner.as_ref()];
    let [one, other] = places.map(|place| place.map(|place| place.flag("convrot")).transpose());
    let is_rotated = same("convrot", one?.flatten(), other?.flatten())?;
    let [one, other] = places.map(|place| place.map(|place| place.number(&["convrot_groupsize"])).transpose());
    let size = same("convrot_groupsize", one?.flatten(), other?.flatten())?;
    match (is_rotated, size) {
        (Some(true), None) => Err(Error::new("it says convrot, and no convrot_groupsize")),
        (Some(true), size) => Ok(size),
        _ => Ok(None),
    }
}

/// Returns the value given in one or both places; an error if they differ.
fn same<T: PartialEq>(key: &str, one: Option<T>, other: Option<T>) -> Result<Option<T>> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => Err(Error::new(format!("it says two values of {key}"))),
        (one, other) => Ok(one.or(other)),
    }
}
