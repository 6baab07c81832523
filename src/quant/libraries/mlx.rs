//! The config of MLX, which can differ between modules. It is the same object under `quantization` and, in newer
//! versions, `quantization_config`.

use super::base::{BASE, FLOATS, NIBBLES, encoding, nearest_float4};
use crate::dtype::Dtype::{Float8E4M3FN, Uint8, Uint32};
use crate::error::{Error, Result};
use crate::quant::config::{
    CheckpointConfig, ConfigObject, EngineConfig, KeptModules, Library, Modules, QuantizedGroup, WeightDescription,
    edited, named,
};
use crate::quant::layout::{CodeStorage, CodeValues, Combination, Group, Layout, Packing, Precision, Role, Zeros};
use crate::quant::rules::{Apply, Divide, Extreme, Least, Power, ScaleRule, ScaleShape};
use crate::text::shorten;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::rc::Rc;

pub(super) static LIBRARY: Library = Library {
    layouts: LAYOUTS,
    names: &["mlx"], // not in configs of MLX, which name no method
    read,
    exclude,
    write: Some(write),
    ..Library::BASE
};

const MLX: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".scales"),
    (Role::Offset, ".biases"), // not the bias of the layer, which is `.bias`
    (Role::GlobalScale, ".global_scale"),
];

/// A layout of MLX for floats, whose rows are streams of bits in words.
const MLX_FLOATS: Layout = Layout {
    names: &[MLX],
    codes: CodeStorage { packing: Packing::Rows(4), dtypes: &[Uint32], ..NIBBLES },
    groups: &[Group::Neighbours(32)],
    scale_dtypes: &[Uint8],
    stacks_experts: true,
    renames_parts: true,
    mark: "mlx",
    ..BASE
};

/// The smallest power of two that is not below amax / largest code in T, and 1 where that is 0.
const POWER: ScaleRule =
    ScaleRule { divide: Divide::InType, power: Some(Power::ExactCeiling), least: Least::One, ..ScaleRule::POWER };

static LAYOUTS: &[Layout] = &[
    // MLX `mlx/ops.cpp`, `affine_dequantize` and `fp_dequantize`, as computed on CPUs.
    Layout {
        name: "mlx-affine",
        library: "MLX, mode affine",
        formats: &["affine"],
        needs_config: true,
        codes: CodeStorage { values: CodeValues::Unsigned, ..MLX_FLOATS.codes },
        groups: &[Group::Neighbours(32), Group::Neighbours(64), Group::Neighbours(128)],
        scale_dtypes: FLOATS,
        zeros: Zeros::Offset,
        product_precision: Precision::Scale,
        encoding: Some(encoding(ScaleRule { extreme: Extreme::Edges, ..ScaleRule::PLAIN }, ScaleShape::Matrix)),
        ..MLX_FLOATS
    },
    Layout {
        name: "mlx-mxfp4",
        library: "MLX, mode mxfp4",
        formats: &["mxfp4"],
        encoding: Some(nearest_float4(POWER)),
        ..MLX_FLOATS
    },
    Layout {
        name: "mlx-mxfp8",
        library: "MLX, mode mxfp8",
        formats: &["mxfp8"],
        codes: CodeStorage { values: CodeValues::Float(Float8E4M3FN), ..MLX_FLOATS.codes },
        encoding: Some(encoding(POWER, ScaleShape::Matrix)),
        ..MLX_FLOATS
    },
    Layout {
        name: "mlx-nvfp4",
        library: "MLX, mode nvfp4",
        formats: &["nvfp4"],
        groups: &[Group::Neighbours(16)],
        scale_dtypes: &[Uint8, Float8E4M3FN], // bytes of E4M3
        global: Combination::OverLargest,
        encoding: Some(nearest_float4(ScaleRule {
            divide: Divide::InType,
            least: Least::Zero,
            apply: Apply::DivideInType,
            ..ScaleRule::PLAIN
        })),
        ..MLX_FLOATS
    },
];

/// Reads the descriptions of all modules and of single modules: an object, `true` for a module like the others,
/// or `false`. Shapes show the width of a module without a description, and tensors show its mode.
fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let all = Rc::new(describe(block, "the config says")?);
    // Most of many entries are equal, and share a description.
    let mut known: HashMap<[Option<&Value>; 3], Rc<WeightDescription>> = HashMap::new();
    for (name, value) in block.members() {
        match value {
            Value::Object(own) => {
                let key = ["mode", "bits", "group_size"].map(|key| own.get(key));
                let description = if let Some(description) = known.get(&key) {
                    Rc::clone(description)
                } else {
                    let own = describe(&ConfigObject::new(own), &format!("the config says of '{}'", shorten(name)))?;
                    Rc::clone(known.entry(key).or_insert(Rc::new(own)))
                };
                config.named.insert(name.clone(), Some(description));
            }
            Value::Bool(true) => {
                config.named.insert(name.clone(), Some(Rc::clone(&all)));
            }
            Value::Bool(false) => {
                config.named.insert(name.clone(), None);
            }
            _ => {}
        }
    }
    let layout = all.layouts[0];
    let has_offsets = layout.zeros == Zeros::Offset;
    let in_mode = if has_offsets { String::new() } else { format!(" in mode '{}'", layout.formats[0]) };
    let wording = format!("the config says that MLX quantized the model{in_mode}");
    // Only groups with offsets have several sizes.
    let mut affine = WeightDescription::new(named(LAYOUTS, Some("affine")), &*wording);
    affine.parameters.group = all.parameters.group.filter(|_| has_offsets);
    config.add_others(affine);
    config.add_others(WeightDescription::new(named(LAYOUTS, None), wording));
    Ok(())
}

/// Reads mode, width and size of groups of one or all modules.
fn describe(block: &ConfigObject, wording: &str) -> Result<WeightDescription> {
    let mode = block.text(&["mode"])?.unwrap_or("affine");
    let (bits, group) = (block.number(&["bits"])?, block.integer(&["group_size"])?);
    let layouts = named(LAYOUTS, Some(mode));
    let Some(layout) = layouts.first() else {
        return Err(Error::new(format!("{wording} mode '{}', which tcast does not decode", shorten(mode))));
    };
    check_numbers(layout, bits, group).map_err(|what| Error::new(format!("{wording} {what}")))?;
    let numbers = [bits.map(|bits| format!(", bits {bits}")), group.map(|size| format!(", group_size {size}"))];
    let numbers: String = numbers.into_iter().flatten().collect();
    let mut description = WeightDescription::new(layouts, format!("{wording} mode '{mode}'{numbers}"));
    description.parameters.bits = bits.map(|bits| u32::try_from(bits).unwrap_or(u32::MAX));
    description.parameters.group = group.map(Group::of_size);
    Ok(description)
}

/// Refuses widths of codes and sizes of groups that a mode of MLX lacks.
fn check_numbers(layout: &Layout, bits: Option<u64>, group: Option<i64>) -> Result<(), String> {
    let group = group.filter(|size| !layout.groups.contains(&Group::of_size(*size)));
    let (CodeValues::Float(dtype), Some(Group::Neighbours(size))) = (layout.codes.values, layout.fixed_group()) else {
        if let Some(size) = group {
            return Err(format!("group_size {size}, and MLX has groups of 32, 64 and 128 values"));
        }
        return match bits.filter(|bits| ![2, 3, 4, 5, 6, 8].contains(bits)) {
            Some(bits) => Err(format!("bits {bits}, and MLX has codes of 2, 3, 4, 5, 6 and 8 bits")),
            None => Ok(()),
        };
    };
    let (mode, width) = (layout.formats[0], dtype.bits());
    if let Some(bits) = bits.filter(|bits| *bits != u64::from(width)) {
        return Err(format!("mode '{mode}', bits {bits}, and codes of this mode have {width} bits"));
    }
    match group {
        Some(group) => Err(format!("mode '{mode}', group_size {group}, and groups of this mode have {size} values")),
        None => Ok(()),
    }
}

/// Describes the modules of the largest group for all modules, and names the others.
fn write(groups: &[QuantizedGroup], kept: &KeptModules) -> Result<EngineConfig> {
    let main = groups.iter().rev().max_by_key(|group| group.modules.len()).expect("something is quantized");
    let mut block = parameters_of(main);
    for group in groups.iter().filter(|group| group.grid != main.grid) {
        let entry = Value::Object(parameters_of(group));
        let stored =
            |module: &str| kept.stacks.and_then(|form| form.module_of(module)).unwrap_or_else(|| module.to_owned());
        block.extend(group.modules.iter().map(|module| (stored(module), entry.clone())));
    }
    Ok(EngineConfig { second_key: Some("quantization"), ..EngineConfig::of(Value::Object(block)) })
}

fn parameters_of(group: &QuantizedGroup) -> Map<String, Value> {
    let size = if let Group::Neighbours(size) = group.grid.group { size } else { 0 };
    let members = [
        ("group_size", json!(size)),
        ("bits", json!(group.grid.codes.bits())),
        ("mode", json!(group.layout.formats[0])),
    ];
    members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Says of decoded modules that they are not quantized.
fn exclude(text: &str, modules: &Modules, _: bool) -> Result<Option<String>> {
    let added: Vec<(&str, String)> = modules.sorted().into_iter().map(|name| (name, "false".to_owned())).collect();
    Ok(edited(text, &added, &mut |key, value| (!modules.decoded.contains(key)).then(|| value.into())))
}
