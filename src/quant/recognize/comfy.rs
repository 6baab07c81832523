//! `ComfyUI`'s descriptions of the layers of a file: in its metadata, and in one tensor per layer.

use super::block::Claim;
use super::descriptions;
use super::found::{CheckpointInfo, StoredTensor};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::text::shorten;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The only version of the metadata so far.
const FORMAT_VERSION: &str = "1.0";

/// The descriptions of all layers.
#[derive(Debug, Default)]
pub(super) struct Layers {
    described: HashMap<String, Description>,
    /// The `scaled_fp8` tensors of older files.
    pub(super) markers: Vec<usize>,
}

#[derive(Debug)]
struct Description {
    object: Option<Map<String, Value>>,
    tensor: Option<usize>,
}

impl Layers {
    pub(super) fn read(source: &CheckpointInfo) -> Result<Self> {
        let mut found = Self::default();
        for text in source.metadata {
            let wrong = |what: &str| Error::new(format!("the metadata '{}' {what}", CheckpointInfo::METADATA));
            let mut all = serde_json::from_str::<Value>(text).unwrap_or_default();
            if let Some(version) = all.get("format_version").filter(|version| *version != FORMAT_VERSION) {
                return Err(wrong(&format!(
                    "says format_version {}, and tcast knows \"{FORMAT_VERSION}\"",
                    shorten(&version.to_string())
                )));
            }
            let Some(Value::Object(layers)) = all.get_mut("layers").map(Value::take) else {
                return Err(wrong("does not hold a JSON object of layers"));
            };
            for (name, layer) in layers {
                let Value::Object(object) = layer else {
                    return Err(wrong(&format!("does not describe '{}' with a JSON object", shorten(&name))));
                };
                found.described.insert(name, Description { object: Some(object), tensor: None });
            }
        }
        for (index, tensor) in source.tensors.iter().enumerate() {
            if let Some(layer) = tensor.name.strip_suffix(".comfy_quant") {
                let empty = Description { object: None, tensor: None };
                found.described.entry(layer.to_owned()).or_insert(empty).tensor = Some(index);
            } else if tensor.name == "scaled_fp8" || tensor.name.ends_with(".scaled_fp8") {
                found.markers.push(index);
            }
        }
        Ok(found)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.described.is_empty() && self.markers.is_empty()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.described.keys()
    }

    /// Returns the claim about a layer. Fails if metadata and tensor contradict each other.
    pub(super) fn on(&self, source: &CheckpointInfo, layer: &str) -> Result<Option<Claim>> {
        let Some(description) = self.described.get(layer) else { return Ok(None) };
        let of_tensor = description.tensor.map(|index| descriptions::comfy_tensor(source, index)).transpose()?;
        let who = format!("the metadata '{}'", CheckpointInfo::METADATA);
        let of_file = description.object.as_ref().map(|object| descriptions::comfy(object, &who)).transpose()?;
        if let (Some(one), Some(other)) = (&of_tensor, &of_file)
            && (&one.layouts, &one.codes, one.parameters.rotation)
                != (&other.layouts, &other.codes, other.parameters.rotation)
        {
            return Err(Error::new(format!("{}, and {}", one.said, other.said)));
        }
        Ok(of_tensor.or(of_file))
    }

    /// Returns the claim of a `comfy_quant` tensor, if it can be read.
    pub(super) fn claim(&self, source: &CheckpointInfo, name: &str) -> Option<Claim> {
        self.on(source, name.strip_suffix(".comfy_quant")?).ok()?
    }

    /// Returns the marker of a file whose prefix matches the name of a layer.
    fn marker<'a>(&self, source: &CheckpointInfo<'a>, name: &str) -> Option<StoredTensor<'a>> {
        let mut markers = self.markers.iter().map(|index| source.tensors[*index]);
        markers.find(|marker| {
            let prefix = marker.name.strip_suffix("scaled_fp8");
            prefix.is_some_and(|prefix| name.starts_with(prefix))
        })
    }

    /// True if the marker of a file says that this layer is multiplied in full precision.
    pub(super) fn has_full_precision(&self, source: &CheckpointInfo, name: &str) -> bool {
        self.marker(source, name).is_some_and(|marker| *marker.shape == [2])
    }

    /// Returns the dtype of codes according to the marker of a file.
    pub(super) fn marked(&self, source: &CheckpointInfo, name: &str) -> Option<Dtype> {
        self.marker(source, name)?.dtype.map(|dtype| if dtype == Dtype::Float32 { Dtype::Float8E4M3FN } else { dtype })
    }
}
