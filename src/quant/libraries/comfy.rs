//! `ComfyUI`'s descriptions of the layers of a file: in its metadata, in one tensor per layer, or in one tensor for all.

use super::base::{BASE, EXPONENTS, NIBBLES, bytes, encoding};
use crate::dtype::Dtype::{self, Float8E4M3FN, Float8E5M2, Int8, Uint8};
use crate::error::{Error, Result};
use crate::quant::config::{
    ConfigObject, Library, MetadataChanges, Modules, WeightDescription, named, with_new, without_members,
};
use crate::quant::layout::{CodeStorage, Combination, Exponents, Group, Layout, Packing, Precision, Role, ScaleOrder};
use crate::quant::recognize::CheckpointInfo;
use crate::quant::rules::{ScaleRule, ScaleShape};
use crate::text::shorten;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Its models have no config.
pub(super) static LIBRARY: Library = Library { layouts: LAYOUTS, metadata: metadata_of, ..Library::BASE };

const COMFY: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_scale"),
    (Role::GlobalScale, ".weight_scale_2"),
    (Role::Description, ".comfy_quant"),
    (Role::Activation, ".input_scale"),
];

const OF_COMFY: Layout = Layout { is_diffusion: true, names: &[COMFY], ..BASE };

const FP8: Layout = Layout {
    codes: bytes(&[Float8E4M3FN, Float8E5M2]),
    groups: &[Group::Tensor],
    scale_precision: Precision::Target,
    product_precision: Precision::Target,
    encoding: Some(encoding(ScaleRule::Inverse, ScaleShape::Mixed)),
    ..OF_COMFY
};

static LAYOUTS: &[Layout] = &[
    // comfy-kitchen `backends/eager/quantization.py`
    Layout {
        name: "comfy-fp8",
        library: "ComfyUI, format float8_e4m3fn or float8_e5m2",
        formats: &["float8_e4m3fn", "float8_e5m2"],
        ..FP8
    },
    Layout {
        name: "comfy-scaled-fp8",
        library: "ComfyUI, files with a tensor scaled_fp8",
        names: &[&[(Role::Codes, ".weight"), (Role::Scale, ".scale_weight"), (Role::Activation, ".scale_input")]],
        ..FP8
    },
    // `dequantize_int8_simple` and, with a rotation, `dequantize_int8_convrot_weight`.
    Layout {
        name: "comfy-int8",
        library: "ComfyUI, format int8_tensorwise",
        formats: &["int8_tensorwise"],
        codes: bytes(&[Int8]),
        groups: &[Group::Tensor, Group::Channel],
        encoding: Some(encoding(ScaleRule::Plain, ScaleShape::Mixed)),
        ..OF_COMFY
    },
    Layout {
        name: "comfy-nvfp4",
        library: "ComfyUI, format nvfp4",
        formats: &["nvfp4"],
        codes: CodeStorage { packing: Packing::RowsHighFirst, dtypes: &[Uint8], padding: 16, ..NIBBLES },
        groups: &[Group::Neighbours(16)],
        scale_dtypes: &[Float8E4M3FN, Uint8],
        scale_order: ScaleOrder::Swizzled,
        global: Combination::Multiplier,
        scale_precision: Precision::Target,
        product_precision: Precision::Target,
        encoding: Some(encoding(ScaleRule::GlobalPadded, ScaleShape::Mixed)),
        ..OF_COMFY
    },
    Layout {
        name: "comfy-mxfp8",
        library: "ComfyUI, format mxfp8",
        formats: &["mxfp8"],
        codes: CodeStorage { padding: 32, ..bytes(&[Float8E4M3FN]) },
        groups: &[Group::Neighbours(32)],
        scale_dtypes: EXPONENTS,
        exponents: Exponents::Zero,
        scale_order: ScaleOrder::Swizzled,
        encoding: Some(encoding(ScaleRule::CeilingOrZero, ScaleShape::Mixed)),
        ..OF_COMFY
    },
];

/// The only version of the metadata so far.
const FORMAT_VERSION: &str = "1.0";

/// The descriptions of all layers.
#[derive(Debug, Default)]
pub(in crate::quant) struct LayerDescriptions {
    layers: HashMap<String, Layer>,
    /// The `scaled_fp8` tensors of older files.
    pub(in crate::quant) markers: Vec<usize>,
}

/// The descriptions of a layer in the metadata, and in a tensor.
#[derive(Debug, Default)]
struct Layer {
    object: Option<Map<String, Value>>,
    tensor: Option<usize>,
}

impl LayerDescriptions {
    /// The end of the name of a tensor that describes its layer.
    pub(in crate::quant) const SUFFIX: &str = ".comfy_quant";

    pub(in crate::quant) fn read(source: &CheckpointInfo) -> Result<Self> {
        let mut all = Self::default();
        for (_, text) in source.metadata.iter().filter(|(key, _)| *key == CheckpointInfo::METADATA) {
            let wrong = |what: &str| Error::new(format!("the metadata '{}' {what}", CheckpointInfo::METADATA));
            let mut metadata = serde_json::from_str::<Value>(text).unwrap_or_default();
            if let Some(version) = metadata.get("format_version").filter(|version| *version != FORMAT_VERSION) {
                let version = shorten(&version.to_string());
                return Err(wrong(&format!("says format_version {version}, and tcast knows \"{FORMAT_VERSION}\"")));
            }
            let Some(Value::Object(layers)) = metadata.get_mut("layers").map(Value::take) else {
                return Err(wrong("does not hold a JSON object of layers"));
            };
            for (name, layer) in layers {
                let Value::Object(object) = layer else {
                    return Err(wrong(&format!("does not describe '{}' with a JSON object", shorten(&name))));
                };
                all.layers.insert(name, Layer { object: Some(object), tensor: None });
            }
        }
        for (index, tensor) in source.tensors.iter().enumerate() {
            if let Some(layer) = tensor.name.strip_suffix(Self::SUFFIX) {
                all.layers.entry(layer.to_owned()).or_default().tensor = Some(index);
            } else if tensor.name == "scaled_fp8" || tensor.name.ends_with(".scaled_fp8") {
                all.markers.push(index);
            }
        }
        Ok(all)
    }

    /// Returns the error for a description of a layer that has no codes with scales.
    pub(in crate::quant) fn without_codes(layer: &str) -> Error {
        Error::new(format!("ComfyUI's description is of '{}', and there are no codes with scales", shorten(layer)))
    }

    /// Returns the error for a layer with a scale of this name and without a description.
    pub(in crate::quant) fn without_description(scale: &str) -> Error {
        Error::new(format!("it has a scale, '{scale}', and no comfy_quant as other layers"))
    }

    pub(in crate::quant) fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.markers.is_empty()
    }

    pub(in crate::quant) fn names(&self) -> impl Iterator<Item = &String> {
        self.layers.keys()
    }

    /// Returns the description of a layer. Fails if metadata and tensor contradict each other.
    pub(in crate::quant) fn describe(&self, source: &CheckpointInfo, layer: &str) -> Result<Option<WeightDescription>> {
        let Some(layer) = self.layers.get(layer) else { return Ok(None) };
        let of_tensor =
            |index: usize| describe(&source.read_object(index)?, &format!("'{}'", shorten(source.tensors[index].name)));
        let of_tensor = layer.tensor.map(of_tensor).transpose()?;
        let whose = format!("the metadata '{}'", CheckpointInfo::METADATA);
        let of_file = layer.object.as_ref().map(|object| describe(object, &whose)).transpose()?;
        let essence = |description: &WeightDescription| {
            (description.layouts[0].name, description.codes.clone(), description.parameters.rotation)
        };
        if let (Some(one), Some(other)) = (&of_tensor, &of_file)
            && essence(one) != essence(other)
        {
            return Err(Error::new(format!("{}, and {}", one.wording, other.wording)));
        }
        Ok(of_tensor.or(of_file))
    }

    /// Returns the description by the `scaled_fp8` tensor whose prefix matches the name of codes.
    pub(in crate::quant) fn describe_marked(&self, source: &CheckpointInfo, codes: &str) -> Option<WeightDescription> {
        let mut markers = self.markers.iter().map(|index| source.tensors[*index]);
        let prefix = |name: &str| name.strip_suffix("scaled_fp8").is_some_and(|prefix| codes.starts_with(prefix));
        let marker = markers.find(|marker| prefix(marker.name))?;
        let mut layouts = named(LAYOUTS, None);
        layouts.retain(|layout| layout.has_marker());
        let dtype = marker.dtype.map(|dtype| if dtype == Dtype::Float32 { Dtype::Float8E4M3FN } else { dtype });
        let mut description = WeightDescription::new(layouts, "the tensor scaled_fp8 says so");
        description.codes.extend(dtype);
        description.parameters.has_full_precision = *marker.shape == [2];
        Some(description)
    }
}

/// Reads the description of a layer. `whose` names its source.
fn describe(object: &Map<String, Value>, whose: &str) -> Result<WeightDescription> {
    let layer = ConfigObject::new(object);
    let in_source = |error: Error| Error::new(format!("{whose}: {error}"));
    let Some(format) = layer.text(&["format"]).map_err(in_source)? else {
        return Err(Error::new(format!("{whose} names no format")));
    };
    let layouts = named(LAYOUTS, Some(format));
    let Some(layout) = layouts.first().copied() else {
        let message = format!("{whose} says format '{}', which tcast does not decode", shorten(format));
        return Err(Error::new(message));
    };
    let can_rotate = *layout.codes.dtypes == [Dtype::Int8];
    let rotation = rotation(&layer).map_err(in_source)?;
    let rotated = match rotation {
        Some(_) if !can_rotate => {
            return Err(Error::new(format!("{whose} says convrot in a way that tcast does not decode")));
        }
        Some(size) => format!(", convrot_groupsize {size}"),
        None if can_rotate => ", no convrot".to_owned(),
        None => String::new(),
    };
    let mut description = WeightDescription::new(layouts, format!("{whose} says format '{format}'{rotated}"));
    if layout.formats.len() > 1 {
        let dtypes = layout.formats.iter().zip(layout.codes.dtypes);
        description.codes = dtypes.filter(|(name, _)| **name == format).map(|(_, dtype)| *dtype).collect();
    }
    description.parameters.rotation = rotation;
    description.parameters.has_full_precision = layer.is_true("full_precision_matrix_mult").map_err(in_source)?;
    Ok(description)
}

/// Returns the number of columns that `ComfyUI` rotates together, if it does. The description gives it directly or
/// under `params`.
fn rotation(layer: &ConfigObject) -> Result<Option<u64>> {
    let place = |key: &str| match layer.inner("params")?.filter(|inner| inner.has(key)) {
        Some(inner) if layer.has(key) && layer.get(key) != inner.get(key) => {
            Err(Error::new(format!("it says two values of {key}")))
        }
        inner => Ok(inner.unwrap_or(*layer)),
    };
    let is_rotated = place("convrot")?.is_true("convrot")?;
    match place("convrot_groupsize")?.number(&["convrot_groupsize"])? {
        None if is_rotated => Err(Error::new("it says convrot, and no convrot_groupsize")),
        size => Ok(size.filter(|_| is_rotated)),
    }
}

/// Returns the changes to the metadata of files after weights were decoded.
fn metadata_of(metadata: &[&(String, String)], modules: &Modules) -> MetadataChanges {
    let descriptions = metadata.iter().filter(|(key, _)| key == CheckpointInfo::METADATA);
    descriptions.map(|(key, text)| (key.clone(), comfy_metadata_of(text, modules))).collect()
}

/// Removes the decoded layers from the description in a file's metadata; `None` if no layer stays quantized.
pub fn comfy_metadata_of(text: &str, modules: &Modules) -> Option<String> {
    if modules.left.is_empty() {
        return None;
    }
    with_new(&modules.update(text), "layers", &|text| without_members(text, &modules.decoded))
}
