//! `ComfyUI`'s descriptions of the layers of a file: in its metadata, in one tensor per layer, or in one tensor for all.

use super::base::{BASE, EXPONENTS, NIBBLES, bytes, encoding};
use super::undecoded::undecoded;
use crate::dtype::Dtype::{self, Float8E4M3FN, Float8E5M2, Float32, Int4, Int8, Uint8};
use crate::error::{Error, Result};
use crate::quant::config::{
    ConfigObject, Library, MetadataChanges, Modules, WeightDescription, named, with_new, without_members,
};
use crate::quant::layout::{
    CodeStorage, CodeValues, Combination, Exponents, Group, Layout, Names, Packing, Precision, Role, RotationUse,
    ScaleOrder, Zeros,
};
use crate::quant::recognize::CheckpointInfo;
use crate::quant::rules::{Apply, GlobalScale, Integers, Least, ScaleRule, ScaleShape};
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

/// The names of `asym_w4a8_int8`. `ComfyUI` ignores the correction, with which other programs write asymmetric groups.
const LEVELS: Names = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_s_rel"),
    (Role::RowScale, ".weight_s_channel"),
    (Role::CodeMap, ".weight_codebook"),
    (Role::Offset, ".weight_correction"),
    (Role::Description, ".comfy_quant"),
    (Role::Activation, ".input_scale"),
];

/// The names of `awq_w4a16`; Forge has another one for the offsets.
const AWQ: Names = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_scale"),
    (Role::Offset, ".weight_zeros"),
    (Role::Offset, ".weight_zero"),
    (Role::Description, ".comfy_quant"),
];

const OF_COMFY: Layout = Layout { is_diffusion: true, names: &[COMFY], ..BASE };

const FP8: Layout = Layout {
    codes: bytes(&[Float8E4M3FN, Float8E5M2]),
    groups: &[Group::Tensor],
    scale_precision: Precision::Target,
    product_precision: Precision::Target,
    encoding: Some(encoding(ScaleRule { apply: Apply::MultiplyInType, ..ScaleRule::PLAIN }, ScaleShape::Mixed)),
    ..OF_COMFY
};

/// amax / largest code, at least `least`.
const fn integers(integers: Integers, least: f32) -> ScaleRule {
    ScaleRule { integers, least: Least::Number(least.to_bits()), ..ScaleRule::PLAIN }
}

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
        rotation: RotationUse::Optional,
        encoding: Some(encoding(integers(Integers::Highest, 1e-30), ScaleShape::Mixed)),
        ..OF_COMFY
    },
    // `tensor/convrot_w4a4.py`
    Layout {
        name: "comfy-int4",
        library: "ComfyUI, format convrot_w4a4",
        formats: &["convrot_w4a4", "int4_tensorwise"],
        codes: CodeStorage { values: CodeValues::Signed(Int4), ..bytes(&[Int8]) },
        groups: &[Group::Channel],
        rotation: RotationUse::Always,
        column_multiple: 64,
        encoding: Some(encoding(integers(Integers::Symmetric, 1e-10 / 7.0), ScaleShape::Squeezed)),
        ..OF_COMFY
    },
    // `tensor/asym_w4a8.py`: integers of 8 bits, which 16 levels of each group, or 63, stand for.
    Layout {
        name: "comfy-w4a8",
        library: "ComfyUI, format asym_w4a8_int8",
        formats: &["asym_w4a8_int8", "w4a8_int8", "w4a8"],
        names: &[LEVELS],
        codes: CodeStorage { values: CodeValues::Levels, packing: Packing::Planes, ..bytes(&[Int8]) },
        groups: &[Group::ANY_NEIGHBOURS],
        scale_dtypes: &[Float8E4M3FN, Uint8, Float32],
        global: Combination::Levels,
        zeros: Zeros::Added,
        rotation: RotationUse::Always,
        // The encoder of levels has its own scales.
        encoding: Some(encoding(ScaleRule::PLAIN, ScaleShape::Matrix)),
        ..OF_COMFY
    },
    // `tensor/awq_w4a16.py`
    Layout {
        name: "comfy-awq",
        library: "ComfyUI, format awq_w4a16",
        formats: &["awq_w4a16"],
        names: &[AWQ],
        codes: CodeStorage { values: CodeValues::Unsigned, ..bytes(&[Int8]) },
        groups: &[Group::ANY_NEIGHBOURS],
        scale_order: ScaleOrder::Transposed,
        zeros: Zeros::Added,
        needs: Some(Role::Offset),
        product_precision: Precision::Promoted,
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
        encoding: Some(encoding(ScaleRule::global(GlobalScale::Padded), ScaleShape::Mixed)),
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
        encoding: Some(encoding(ScaleRule { least: Least::Zero, ..ScaleRule::POWER }, ScaleShape::Mixed)),
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
            let parameters = &description.parameters;
            (description.layouts[0].name, description.codes.clone(), parameters.rotation, parameters.group)
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
    let of_flag = place(&layer, "convrot").and_then(|place| place.is_true("convrot")).map_err(in_source)?;
    let format = match layer.text(&["format"]).map_err(in_source)? {
        Some(format) => format,
        // The marker of INT8-Fast.
        None if of_flag => ROTATED,
        None => return Err(Error::new(format!("{whose} names no format"))),
    };
    if format == SVDQUANT.0 {
        return Err(in_source(undecoded(&format!("the format {format}"), SVDQUANT.1)));
    }
    let layouts = named(LAYOUTS, Some(format));
    let Some(layout) = layouts.first().copied() else {
        let message = format!("{whose} says format '{}', which tcast does not decode", shorten(format));
        return Err(Error::new(message));
    };
    let number = |key: &str| place(&layer, key).and_then(|place| place.number(&[key])).map_err(in_source);
    if let Some(other) = number("quant_group_size")?.filter(|size| *size != TILE) {
        return Err(Error::new(format!("{whose} says quant_group_size {other}, and the only one is {TILE}")));
    }
    let rotation = match layout.rotation {
        RotationUse::Never if of_flag => {
            return Err(Error::new(format!("{whose} says convrot in a way that tcast does not decode")));
        }
        RotationUse::Always => number("convrot_groupsize")?.or(Some(ROTATION)),
        RotationUse::Optional if of_flag => number("convrot_groupsize")?.or(Some(ROTATION)),
        RotationUse::Never | RotationUse::Optional => None,
    };
    let rotated = match rotation {
        Some(size) => format!(", convrot_groupsize {size}"),
        None if layout.rotation == RotationUse::Optional => ", no convrot".to_owned(),
        None => String::new(),
    };
    let mut description = WeightDescription::new(layouts, format!("{whose} says format '{format}'{rotated}"));
    if layout.formats.len() == layout.codes.dtypes.len() {
        let dtypes = layout.formats.iter().zip(layout.codes.dtypes);
        description.codes = dtypes.filter(|(name, _)| **name == format).map(|(_, dtype)| *dtype).collect();
    }
    if let Some((_, size, bits)) = DEFAULTS.iter().find(|(name, ..)| *name == layout.name) {
        description.parameters.group = Some(Group::Neighbours(number("group_size")?.unwrap_or(*size)));
        description.parameters.bits = *bits;
    }
    description.parameters.rotation = rotation;
    description.parameters.has_full_precision = layer.is_true("full_precision_matrix_mult").map_err(in_source)?;
    Ok(description)
}

/// The format of int8, which a description without a format means if the weight is rotated.
const ROTATED: &str = "int8_tensorwise";

/// A format that `ComfyUI` does not load, and its codes.
const SVDQUANT: (&str, &str) = ("svdquant_w4a4", "4 bits, factors of columns and a matrix of low rank");

/// The columns that are rotated together if the description does not say how many.
const ROTATION: u64 = 256;

/// `quant_group_size`, the tile of a kernel, on which no value depends.
const TILE: u64 = 64;

/// The sizes of groups if the description does not say them, and the width of codes unless the shapes show it.
const DEFAULTS: &[(&str, u64, Option<u32>)] = &[("comfy-w4a8", 16, None), ("comfy-awq", 64, Some(4))];

/// Returns the object that has a key: the description itself, or its `params`.
fn place<'a>(layer: &ConfigObject<'a>, key: &str) -> Result<ConfigObject<'a>> {
    match layer.inner("params")?.filter(|inner| inner.has(key)) {
        Some(inner) if layer.has(key) && layer.get(key) != inner.get(key) => {
            Err(Error::new(format!("it says two values of {key}")))
        }
        inner => Ok(inner.unwrap_or(*layer)),
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
