//! The config of `ModelOpt`, which can differ between modules: a block of config.json, and the older
//! `hf_quant_config.json`.

use super::base::{BASE, EXPONENTS, NIBBLES, encoding, unsigned_zero};
use crate::dtype::Dtype::{Float4E2M1, Float8E4M3FN};
use crate::error::{Error, Result};
use crate::quant::config::{
    CheckpointConfig, ConfigObject, EngineConfig, KeptModules, Library, MatchStyle, Modules, QuantizedGroup,
    WeightDescription, listed, named, stores, with_new, without_members,
};
use crate::quant::layout::{CodeStorage, CodeValues, Combination, Group, Layout, Precision, Role};
use crate::quant::parts::Parameters;
use crate::quant::rules::{Encoding, GlobalScale, Least, ScaleRule, ScaleShape, SignRule, Ties};
use crate::text::shorten;
use serde_json::{Map, Value, json};
use std::rc::Rc;

pub(super) static LIBRARY: Library = Library {
    layouts: LAYOUTS,
    names: &["modelopt"],
    ignored: &["ignore", "exclude_modules"],
    style: MatchStyle::Globs,
    has_algorithms: true,
    has_two_blocks: true,
    read,
    exclude: |text, modules, _| Ok(excluding(text, "ignore", modules)),
    write: Some(write),
    ..Library::BASE
};

const MODELOPT: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_scale"),
    (Role::GlobalScale, ".weight_scale_2"),
    (Role::Activation, ".input_scale"),
];

const OF_MODELOPT: Layout = Layout { names: &[MODELOPT], ..BASE };

/// The base of layouts whose scales are powers of two.
const POWERS: Layout = Layout { groups: &[Group::Neighbours(32)], scale_dtypes: EXPONENTS, ..OF_MODELOPT };

/// The smallest power of two that is not below amax / largest code.
const POWER: ScaleRule = ScaleRule { searched_bits: 4, ..ScaleRule::POWER };

static LAYOUTS: &[Layout] = &[
    // modelopt `torch/quantization/qtensor/fp8_tensor.py`: codes and scales become the target's type first.
    Layout {
        name: "modelopt-fp8",
        library: "ModelOpt, quant_algo FP8, FP8_PER_CHANNEL_PER_TOKEN or FP8_PB_WO",
        formats: &["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"],
        scale_precision: Precision::Target,
        product_precision: Precision::Target,
        encoding: Some(encoding(ScaleRule { least: Least::Normal, ..ScaleRule::PLAIN }, ScaleShape::Squeezed)),
        ..OF_MODELOPT
    },
    // `nvfp4_tensor.py`
    Layout {
        name: "modelopt-nvfp4",
        library: "ModelOpt, quant_algo NVFP4 or W4A16_NVFP4",
        formats: &["W4A16_NVFP4", "NVFP4", "W4A8_NVFP4_FP8"],
        codes: CodeStorage { values: CodeValues::FloatWithoutNegativeZero(Float4E2M1), ..NIBBLES },
        groups: &[Group::Neighbours(16)],
        scale_dtypes: &[Float8E4M3FN],
        global: Combination::Multiplier,
        encoding: Some(unsigned_zero(ScaleRule::global(GlobalScale::Multiplier), ScaleShape::Squeezed)),
        ..OF_MODELOPT
    },
    // `mxfp4_tensor.py`, `mxfp8_tensor.py`
    Layout {
        name: "modelopt-mxfp4",
        library: "ModelOpt, quant_algo mxfp4",
        formats: &["mxfp4", "W4A8_MXFP4_FP8", "W4A16_MXFP4"],
        codes: NIBBLES,
        encoding: Some(Encoding {
            sign: SignRule::NotPositive,
            ties: Ties::TowardZero,
            ..encoding(POWER, ScaleShape::Squeezed)
        }),
        ..POWERS
    },
    Layout {
        name: "modelopt-mxfp8",
        library: "ModelOpt, quant_algo MXFP8",
        formats: &["MXFP8"],
        encoding: Some(encoding(POWER, ScaleShape::Squeezed)),
        ..POWERS
    },
];

/// The algorithms with codes of float8, by their groups.
const FP8_OF_TENSORS: &str = "FP8";
const FP8_OF_ROWS: &str = "FP8_PER_CHANNEL_PER_TOKEN";
const FP8_OF_BLOCKS: &str = "FP8_PB_WO";

fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    for (name, layer) in block.objects("quantized_layers")? {
        let description = describe(layer.text(&["quant_algo"])?, layer.number(&["group_size"])?)?;
        config.named.insert(name.clone(), description.map(Rc::new));
    }
    let algorithm = block.text(&["quant_algo"])?;
    if config.named.is_empty() || algorithm != Some("MIXED_PRECISION") {
        if algorithm.is_none() && block.has("config_groups") {
            return Err(Error::new("its quantization_config does not name a quant_algo"));
        }
        config.others.extend(describe(algorithm, block.number(&["group_size"])?)?.map(Rc::new));
    }
    check_groups(block, config)
}

/// Refuses config groups that contradict the algorithm of their modules.
fn check_groups(block: &ConfigObject, config: &CheckpointConfig) -> Result<()> {
    for (name, group) in block.objects("config_groups")? {
        let (Some(weights), targets) = (group.inner("weights")?, group.texts(&["targets"])?) else { continue };
        let is_class = |target: &&str| target.starts_with(char::is_uppercase);
        let is_for_others = targets.is_empty() || targets.iter().any(is_class);
        let named = targets.iter().filter_map(|target| config.named.get(target)?.1.as_ref());
        for description in named.chain(config.others.iter().filter(|_| is_for_others)) {
            let Some(layout) = description.layouts.first() else { continue };
            let kind = weights.text(&["type"])?.unwrap_or("float");
            let bits = weights.get("num_bits").and_then(Value::as_u64).filter(|bits| !stores(layout, kind, *bits));
            let is_other = |size: &i64| layout.fixed_group().is_some_and(|fixed| fixed != Group::of_size(*size));
            let size = weights.get("group_size").and_then(Value::as_i64).filter(is_other);
            let other = match (bits, size) {
                (Some(bits), _) => format!("num_bits {bits}, type '{}'", shorten(kind)),
                (None, Some(size)) => format!("group_size {size}"),
                (None, None) => continue,
            };
            let message = format!("{}, and its config group '{}' says {other}", description.wording, shorten(name));
            return Err(Error::new(message).remedy("correct the one that is wrong"));
        }
    }
    Ok(())
}

/// Returns the description by an algorithm; `None` without an algorithm, which keeps weights as they are.
fn describe(algorithm: Option<&str>, group_size: Option<u64>) -> Result<Option<WeightDescription>> {
    let Some(algorithm) = algorithm else { return Ok(None) };
    let mut layouts = named(LAYOUTS, None);
    layouts.retain(|layout| layout.formats.iter().any(|format| format.eq_ignore_ascii_case(algorithm)));
    let Some(layout) = layouts.first() else {
        let message = format!("its quant_algo is '{}', which tcast does not decode", shorten(algorithm));
        return Err(Error::new(message));
    };
    let group = match algorithm.to_ascii_uppercase().as_str() {
        FP8_OF_TENSORS => Some(Group::Tensor),
        FP8_OF_ROWS => Some(Group::Channel),
        FP8_OF_BLOCKS => Some(Group::Block([group_size.unwrap_or(128); 2])),
        _ => group_size.map(Group::Neighbours),
    };
    let wording = format!("the config says quant_algo '{}'", shorten(algorithm));
    if let (Some(given), Some(fixed)) = (group, layout.fixed_group())
        && given != fixed
    {
        let error = Error::new(format!("{wording}, which has a scale for {fixed}, and a group_size for {given}"));
        return Err(error.remedy("correct the one that is wrong"));
    }
    let parameters = Parameters { group, ..Parameters::default() };
    Ok(Some(WeightDescription { parameters, ..WeightDescription::new(layouts, wording) }))
}

/// Adds the decoded modules to the list `key` and removes their layers. `None` if the text is not an object.
fn excluding(text: &str, key: &str, modules: &Modules) -> Option<String> {
    let text = with_new(text, "quantized_layers", &|text| without_members(text, &modules.decoded))?;
    listed(&text, &[key], &modules.sorted())
}

/// Changes `hf_quant_config.json` after weights were decoded; `None`, to drop the file, if no weight stays quantized.
pub fn hf_quant_config_of(text: &str, modules: &Modules) -> Result<Option<String>> {
    if modules.left.is_empty() {
        return Ok(None);
    }
    let text = modules.update(text);
    let changed = with_new(&text, "quantization", &|text| excluding(text, "exclude_modules", modules));
    changed.map(Some).ok_or_else(|| Error::new("is not a JSON object"))
}

fn write(groups: &[QuantizedGroup], kept: &KeptModules) -> Result<EngineConfig> {
    let producer = json!({ "name": "modelopt", "version": "0.47.0" });
    let ignore = kept.entries(str::to_owned, |bank| format!("{bank}.*"), |name| format!("*.{name}.*"));
    let mut block = json!({ "ignore": ignore, "producer": producer, "quant_method": "modelopt" });
    let mut older = json!({ "exclude_modules": ignore, "kv_cache_quant_algo": null });
    if let [group] = groups {
        let layer = layer_of(group);
        if group.layout.global.is_global() {
            let weights = json!({ "dynamic": false, "group_size": 16, "num_bits": 4, "type": "float" });
            let mut target = json!({ "targets": ["Linear"], "weights": weights });
            if group.has_input_scale {
                target["input_activations"] = weights;
            }
            block["config_groups"] = json!({ "group_0": target });
        }
        block["quant_algo"] = layer["quant_algo"].clone();
        layer.into_iter().for_each(|(key, value)| older[key] = value);
    } else {
        let layers = groups.iter().flat_map(|group| {
            let layer = Value::Object(layer_of(group));
            group.modules.iter().map(move |module| ((*module).to_owned(), layer.clone()))
        });
        let layers = Value::Object(layers.collect());
        for form in [&mut block, &mut older] {
            form["quant_algo"] = json!("MIXED_PRECISION");
            form["quantized_layers"] = layers.clone();
        }
    }
    let hf_quant_config = Some(json!({ "producer": producer, "quantization": older }));
    Ok(EngineConfig { hf_quant_config, ..EngineConfig::of(block) })
}

/// Describes the modules of a group: the algorithm, and the size of groups along a row.
fn layer_of(group: &QuantizedGroup) -> Map<String, Value> {
    let (algorithm, size) = match group.grid.group {
        Group::Neighbours(size) if group.has_input_scale => ("NVFP4", Some(size)),
        Group::Neighbours(size) => (group.layout.formats[0], Some(size)),
        Group::Channel => (FP8_OF_ROWS, None),
        Group::Block([_, columns]) => (FP8_OF_BLOCKS, Some(columns)),
        Group::Tensor => (FP8_OF_TENSORS, None),
    };
    let size = size.map(|size| ("group_size".to_owned(), json!(size)));
    [("quant_algo".to_owned(), json!(algorithm))].into_iter().chain(size).collect()
}
