//! The config of compressed-tensors, which can differ between modules.
//!
//! Inside a group, compressed-tensors refuses any unknown key.

use super::base::{BASE, EXPONENTS, NIBBLES, bytes, encoding, unsigned_zero, words};
use super::undecoded::undecoded;
use crate::dtype::Dtype::{Float6E2M3, Float8E4M3FN, Int8, Uint8};
use crate::error::{Error, Result};
use crate::quant::config::{
    CheckpointConfig, ConfigObject, EngineConfig, KeptModules, Library, ModulePatterns, Modules, QuantizedGroup,
    WeightDescription, all_experts, entry_of_compressed_tensors, listed, named, pattern_of, sides, stores,
};
use crate::quant::layout::{CodeStorage, CodeValues, Combination, Group, Layout, Packing, Precision, Role, Zeros};
use crate::quant::parts::Parameters;
use crate::quant::rules::{Apply, Divide, Encoding, GlobalScale, Least, Power, ScaleRule, ScaleShape};
use crate::quant::scheme::CodeType;
use crate::text::shorten;
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

/// The version of compressed-tensors that writes the same blocks. Engines ignore it.
const VERSION: &str = "0.20.0";

pub(super) static LIBRARY: Library = Library {
    layouts: LAYOUTS,
    names: &["compressed-tensors", "compressed_tensors"],
    ignored: &["ignore"],
    has_algorithms: true,
    read,
    exclude,
    write: Some(write),
    ..Library::BASE
};

const COMPRESSED_TENSORS: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_scale"),
    (Role::ZeroPoint, ".weight_zero_point"),
    (Role::Activation, ".input_scale"),
    (Role::Activation, ".input_zero_point"),
];

const COMPRESSED_TENSORS_PACKED: &[(Role, &str)] = &[
    (Role::Codes, ".weight_packed"),
    (Role::Scale, ".weight_scale"),
    (Role::ZeroPoint, ".weight_zero_point"),
    (Role::GroupIndex, ".weight_g_idx"),
    (Role::Shape, ".weight_shape"),
    (Role::GlobalScale, ".weight_global_scale"),
    (Role::Activation, ".input_global_scale"),
];

/// The base of layouts whose codes are packed.
const PACKED: Layout = Layout { names: &[COMPRESSED_TENSORS_PACKED], product_precision: Precision::Bfloat16, ..BASE };

/// amax / largest code in T; a scale that is or rounds to 0 becomes epsilon. Quotients are rounded to T.
const NUMBER: ScaleRule = ScaleRule {
    divide: Divide::InType,
    least: Least::Epsilon,
    apply: Apply::DivideInType,
    searched_bits: 7,
    ..ScaleRule::PLAIN
};

const POWER: ScaleRule = ScaleRule { power: Some(Power::HalfStep), searched_bits: 4, ..ScaleRule::POWER };

/// The same; quotients are rounded to T. This only affects the sign of quotients that are much too small for a code.
const POWER_IN_TYPE: ScaleRule = ScaleRule { apply: Apply::MultiplyInType, ..POWER };

/// The base of layouts whose scales are powers of two.
const POWERS: Layout = Layout {
    groups: &[Group::Neighbours(32)],
    scale_dtypes: EXPONENTS,
    encoding: Some(unsigned_zero(POWER_IN_TYPE, ScaleShape::Matrix)),
    ..PACKED
};

/// The base of layouts whose codes are numbers.
const PLAIN: Layout =
    Layout { names: &[COMPRESSED_TENSORS], zeros: Zeros::Plain, product_precision: Precision::Scale, ..BASE };

static LAYOUTS: &[Layout] = &[
    // compressed-tensors `quantization/lifecycle/forward_helpers.py`: (codes - zero point) * scale, in the scale's dtype.
    // `oneshot` of llm-compressor adds a zero point of 0 to all quotients, so that -0 becomes 0; `model_free_ptq` does not.
    Layout {
        name: "ct-fp8",
        library: "compressed-tensors, format float-quantized or naive-quantized",
        formats: &["float-quantized", "naive-quantized"],
        encoding: Some(Encoding { partial_blocks: true, ..unsigned_zero(NUMBER, ScaleShape::Matrix) }),
        ..PLAIN
    },
    Layout {
        name: "ct-int8",
        library: "compressed-tensors, format int-quantized or naive-quantized",
        formats: &["int-quantized", "naive-quantized"],
        needs_config: true,
        codes: bytes(&[Int8]),
        encoding: Some(Encoding { partial_blocks: true, ..encoding(NUMBER, ScaleShape::Matrix) }),
        ..PLAIN
    },
    // `compressors/pack_quantized/`
    Layout {
        name: "ct-pack",
        library: "compressed-tensors, format pack-quantized",
        formats: &["pack-quantized"],
        needs_config: true,
        codes: words(Packing::Rows(4)),
        zeros: Zeros::PackedDown,
        product_precision: Precision::Scale,
        encoding: Some(Encoding { partial_blocks: true, ..encoding(NUMBER, ScaleShape::Matrix) }),
        needs: Some(Role::Shape),
        ..PACKED
    },
    // `compressors/nvfp4/`: the product is bfloat16 for every target.
    Layout {
        name: "ct-nvfp4",
        library: "compressed-tensors, format nvfp4-pack-quantized",
        formats: &["nvfp4-pack-quantized"],
        codes: NIBBLES,
        groups: &[Group::Neighbours(16)],
        scale_dtypes: &[Float8E4M3FN],
        global: Combination::Divisor,
        encoding: Some(unsigned_zero(
            ScaleRule { divide: Divide::InType, ..ScaleRule::global(GlobalScale::Divisor) },
            ScaleShape::Matrix,
        )),
        ..PACKED
    },
    Layout {
        name: "ct-mxfp4",
        library: "compressed-tensors, format mxfp4-pack-quantized",
        formats: &["mxfp4-pack-quantized"],
        codes: NIBBLES,
        ..POWERS
    },
    Layout {
        name: "ct-mxfp6",
        library: "compressed-tensors, format mxfp6-pack-quantized",
        formats: &["mxfp6-pack-quantized"],
        codes: CodeStorage { values: CodeValues::Float(Float6E2M3), ..bytes(&[Uint8]) },
        encoding: Some(encoding(POWER, ScaleShape::Matrix)),
        ..POWERS
    },
    Layout {
        name: "ct-mxfp8",
        library: "compressed-tensors, format mxfp8-quantized",
        formats: &["mxfp8-quantized"],
        names: &[COMPRESSED_TENSORS],
        ..POWERS
    },
];

fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let sparsity = block.inner("sparsity_config")?.map(|config| config.text(&["format"])).transpose()?.flatten();
    if let Some(format) = sparsity.filter(|format| *format != "dense") {
        return Err(undecoded(&shorten(format), "sparse weights"));
    }
    if let Some(transforms) = block.inner("transform_config")?
        && transforms.inner("config_groups")?.is_some_and(|groups| !groups.is_empty())
    {
        return Err(Error::new("its transform_config rotates weights, which tcast does not undo"));
    }
    check_format(block)?;
    for (name, group) in block.objects("config_groups")? {
        // Only activations are quantized.
        let Some(weights) = group.inner("weights")? else { continue };
        let format = group.text(&["format"])?.or(common_format(block)?);
        if format == Some("dense") {
            continue;
        }
        let description = Rc::new(describe(&shorten(name), format, &weights)?);
        let mut is_for_others = false;
        for target in group.texts(&["targets"])? {
            // A class of modules: tensors do not show the class of their module.
            is_for_others |= target.starts_with(char::is_uppercase);
            let Some(text) = target.strip_prefix("re:") else {
                config.named.insert(target.to_owned(), Some(Rc::clone(&description)));
                continue;
            };
            let part = format!("config group '{}'", shorten(name));
            config.patterned.push(text, &part, target, Some(Rc::clone(&description)))?;
        }
        config.others.extend(is_for_others.then_some(description));
    }
    Ok(())
}

/// Returns the format of the groups that name none.
fn common_format<'a>(block: &ConfigObject<'a>) -> Result<Option<&'a str>> {
    Ok(block.text(&["format"])?.filter(|format| *format != "mixed-precision"))
}

/// Refuses a format that no group has if each group names its own, because engines then use the formats of the groups.
fn check_format(block: &ConfigObject) -> Result<()> {
    let Some(format) = common_format(block)? else { return Ok(()) };
    let mut first = None;
    for (name, group) in block.objects("config_groups")? {
        match group.text(&["format"])? {
            _ if !group.has("weights") => {}
            Some(own) if own != format => first = first.or(Some((name, own))),
            _ => return Ok(()),
        }
    }
    first.map_or(Ok(()), |(name, own)| {
        let [name, own, format] = [name, own, format].map(shorten);
        let message = format!("its format is '{format}', and that of its config group '{name}' is '{own}'");
        Err(Error::new(message).remedy("correct the one that is wrong, or remove the first"))
    })
}

/// Reads the description of the weights of a group.
fn describe(name: &str, format: Option<&str>, weights: &ConfigObject) -> Result<WeightDescription> {
    let (kind, bits) = (weights.text(&["type"])?.unwrap_or("int"), weights.number(&["num_bits"])?.unwrap_or(8));
    let numbers = format!("num_bits {bits}, type '{}'", shorten(kind));
    let wording = match format {
        Some(format) => format!("the config group '{name}' says format '{}'", shorten(format)),
        None => format!("the config group '{name}' says {numbers}"),
    };
    let refused = |why: &str| Error::new(format!("{wording}, {why}"));
    let mut layouts = named(LAYOUTS, format);
    let has_format = format.is_some() && !layouts.is_empty();
    layouts.retain(|layout| stores(layout, kind, bits));
    if layouts.is_empty() {
        return Err(if has_format {
            refused(&format!("and weights of {numbers}"))
        } else {
            refused("which tcast does not decode")
        });
    }
    let sized = weights.integer(&["group_size"])?.map(Group::of_size);
    let group = match weights.text(&["strategy"])? {
        Some("tensor") => Some(Group::Tensor),
        Some("channel") => Some(Group::Channel),
        Some("group" | "tensor_group") => Some(sized.ok_or_else(|| refused("and no group_size"))?),
        Some("block") => {
            let structure = weights.get("block_structure").and_then(structure);
            Some(structure.ok_or_else(|| refused("and a block_structure that is not two numbers"))?)
        }
        Some(other) => return Err(refused(&format!("and the strategy '{}' of no weights", shorten(other)))),
        None => sized,
    };
    let is_symmetric = weights.flag("symmetric")?.unwrap_or(true); // as in the library
    let is_ordered = match weights.get("actorder") {
        Some(Value::Bool(is_ordered)) => *is_ordered, // in older versions
        _ => weights.text(&["actorder"])?.is_some_and(|order| order.eq_ignore_ascii_case("group")),
    };
    let needs = [(!is_symmetric, Role::ZeroPoint), (is_ordered, Role::GroupIndex)];
    let needs = needs.into_iter().filter_map(|(is_needed, role)| is_needed.then_some(role)).collect();
    let parameters = Parameters { group, bits: u32::try_from(bits).ok(), is_symmetric, ..Parameters::default() };
    Ok(WeightDescription { parameters, needs, ..WeightDescription::new(layouts, wording) })
}

/// Parses a block structure: `[128, 128]` or `"128x128"`.
fn structure(value: &Value) -> Option<Group> {
    let Value::String(text) = value else { return sides(value).map(Group::Block) };
    let numbers: Option<Vec<u64>> = text.split('x').map(|number| number.trim().parse().ok()).collect();
    numbers?.try_into().ok().map(Group::Block)
}

fn exclude(text: &str, modules: &Modules, is_composite: bool) -> Result<Option<String>> {
    let left: HashSet<String> = modules.left.iter().map(|name| entry_of_compressed_tensors(name)).collect();
    let decoded = modules.sorted();
    let entry = |name: &str| {
        let entry = entry_of_compressed_tensors(name);
        if left.contains(&entry) { name.to_owned() } else { entry }
    };
    let mut entries: Vec<String> = decoded.iter().map(|name| entry(name)).collect();
    if is_composite {
        let patterns = ModulePatterns::new(modules.left.iter().copied());
        entries.extend(decoded.iter().filter_map(|module| patterns.ignored(module)).collect::<BTreeSet<_>>());
    }
    entries.dedup();
    Ok(listed(text, LIBRARY.ignored, &entries))
}

/// Describes groups. A single group targets all linear layers that are not ignored, and is called as `model_free_ptq` of
/// llm-compressor calls it. Several groups list their modules, because `TensorRT-LLM` refuses class names if there are
/// several groups; `oneshot` numbers them.
fn write(groups: &[QuantizedGroup], kept: &KeptModules) -> Result<EngineConfig> {
    let format = |group: &QuantizedGroup| group.layout.formats[0];
    let mut config_groups = Map::new();
    for (at, group) in groups.iter().enumerate() {
        let (first, modules) =
            if groups.len() == 1 { (Some("Linear"), &group.unlike_linear) } else { (None, &group.modules) };
        let entry = if kept.is_composite { pattern_of } else { entry_of_compressed_tensors };
        let mut seen = HashSet::new();
        let targets = first.map(str::to_owned).into_iter().chain(modules.iter().map(|module| entry(module)));
        let targets: Vec<String> = targets.filter(|entry| seen.insert(entry.clone())).collect();
        let block = json!({
            "format": format(group),
            "input_activations": activations_of(group),
            "output_activations": null,
            "targets": targets,
            "weights": weights_of(group),
        });
        let name = match &group.preset {
            _ if groups.len() > 1 => format!("group_{at}"),
            Some(preset) => preset.clone(),
            None => "config_group_0".to_owned(),
        };
        config_groups.insert(name, block);
    }
    let format = if let [only] = groups { format(only) } else { "mixed-precision" };
    let mut ignore = kept.entries(entry_of_compressed_tensors, all_experts, |name| format!(r"re:.*\.{name}\..*"));
    if kept.is_composite {
        let patterns = ModulePatterns::new(groups.iter().flat_map(|group| group.modules.iter().copied()));
        ignore.extend(kept.modules.iter().filter_map(|module| patterns.ignored(module)));
        ignore.extend(kept.banks.iter().filter_map(|bank| patterns.ignored_bank(bank)));
        ignore.extend(patterns.towers());
    }
    let block = json!({
        "config_groups": config_groups,
        "format": format,
        "global_compression_ratio": null,
        "ignore": ignore,
        "kv_cache_scheme": null,
        "moe_sparsity_config": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "transform_config": {},
        "version": VERSION,
    });
    Ok(EngineConfig::of(block))
}

/// `QuantizationArgs` of codes that the library stores or the engine makes (`dynamic`).
fn arguments(group: &QuantizedGroup, is_dynamic: bool, strategy: &str, group_size: Option<u64>) -> Value {
    let mut arguments = json!({
        "dynamic": is_dynamic,
        "group_size": group_size,
        "num_bits": group.grid.codes.bits(),
        "strategy": strategy,
        "symmetric": true,
        "type": if matches!(group.grid.codes, CodeType::Int { .. }) { "int" } else { "float" },
    });
    if group.layout.global.is_global() {
        arguments["scale_dtype"] = json!("torch.float8_e4m3fn");
    } else if group.has_exponents() {
        arguments["scale_dtype"] = json!("torch.uint8"); // vLLM does not recognize mxfp8 without it
    }
    arguments
}

fn weights_of(group: &QuantizedGroup) -> Value {
    let (strategy, size) = match group.grid.group {
        Group::Tensor => ("tensor", None),
        Group::Channel => ("channel", None),
        Group::Block(_) => ("block", None),
        Group::Neighbours(size) if group.layout.global.is_global() => ("tensor_group", Some(size)),
        Group::Neighbours(size) => ("group", Some(size)),
    };
    let mut weights = arguments(group, false, strategy, size);
    if let Group::Block(block) = group.grid.group {
        weights["block_structure"] = json!(block);
    }
    if let CodeType::Int { symmetric: false, .. } = group.grid.codes {
        weights["symmetric"] = json!(false);
    }
    weights
}

/// `QuantizationArgs` of the activations, which the engine quantizes at run time; null if it leaves them unquantized.
fn activations_of(group: &QuantizedGroup) -> Value {
    if group.has_input_scale {
        let mut activations = weights_of(group);
        (activations["dynamic"], activations["observer"]) = (json!("local"), json!("static_minmax"));
        return activations;
    }
    if group.layout.codes.values != CodeValues::Stored {
        return Value::Null; // packed: engines decode the weights
    }
    let (strategy, size) = match group.grid.group {
        Group::Channel => ("token", None),
        Group::Tensor => ("tensor", None),
        Group::Block([_, size]) | Group::Neighbours(size) => ("group", Some(size)),
    };
    arguments(group, true, strategy, size)
}
