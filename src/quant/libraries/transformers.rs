//! float8 and float4 of transformers and `DeepSeek`, which have the same config; and lists of modules as transformers
//! matches them, which other libraries share.

use super::base::{BASE, EXPONENTS, NIBBLES, encoding};
use crate::dtype::Dtype::{self, Bfloat16, Float8E8M0, Float16, Float32, Uint8};
use crate::error::{Error, Result};
use crate::quant::config::{
    CheckpointConfig, ConfigObject, EngineConfig, KeptModules, Library, MatchStyle, Modules, QuantizedGroup,
    WeightDescription, expert_of, listed, named, only, sides,
};
use crate::quant::layout::{Exponents, Group, Layout, Role};
use crate::quant::parts::Parameters;
use crate::quant::rules::{Apply, Divide, Power, ScaleRule, ScaleShape};
use crate::text::shorten;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashSet};

/// The base of libraries whose modules transformers matches.
pub(super) const TRANSFORMERS: Library =
    Library { ignored: IGNORED, style: MatchStyle::Transformers, exclude, ..Library::BASE };

pub(super) static LIBRARY: Library =
    Library { layouts: LAYOUTS, names: &["fp8", "mxfp8"], read, write: Some(write), ..TRANSFORMERS };

/// The keys of the lists of modules that are not quantized.
const IGNORED: &[&str] = &["modules_to_not_convert", "ignored_layers"];

/// A layout of transformers and `DeepSeek`, which have partial blocks at the edges. Both read scales of two types.
const FINE_GRAINED: Layout = Layout { shares_names: true, partial_groups: true, kept_scales: Some(Bfloat16), ..BASE };

static LAYOUTS: &[Layout] = &[
    // transformers `integrations/finegrained_fp8.py`; DeepSeek-V3 `inference/fp8_cast_bf16.py`, which has partial blocks.
    Layout {
        name: "hf-fp8",
        library: "transformers and DeepSeek, quant_method fp8 or mxfp8",
        formats: &["fp8", "mxfp8"],
        names: &[
            &[(Role::Codes, ".weight"), (Role::Scale, ".weight_scale_inv"), (Role::Activation, ".activation_scale")],
            &[(Role::Codes, ""), (Role::Scale, "_scale_inv"), (Role::Activation, "_activation_scale")], // 3-D experts
            &[(Role::Codes, ""), (Role::Scale, "_scales_inv")],
            &[(Role::Codes, ".weight"), (Role::Scale, ".scale")], // DeepSeek-V4
            &[(Role::Codes, ".weight"), (Role::Scale, ".qscale_weight"), (Role::Activation, ".qscale_act")], // Mistral
            &[(Role::Codes, ".weight"), (Role::Scale, ".weight_scale"), (Role::Activation, ".input_scale")], // vLLM
        ],
        groups: &[Group::Tensor, Group::ANY_BLOCK],
        scale_dtypes: &[Float32, Bfloat16, Float16, Float8E8M0, Uint8],
        exponents: Exponents::ByDtype,
        encoding: Some(encoding(
            ScaleRule {
                divide: Divide::Reciprocal,
                power: Some(Power::Ceiling),
                apply: Apply::Multiply,
                ..ScaleRule::PLAIN
            },
            ScaleShape::Matrix,
        )),
        ..FINE_GRAINED
    },
    Layout {
        name: "hf-fp4",
        library: "DeepSeek-V4, expert_dtype fp4",
        formats: &["fp4"],
        names: &[
            &[(Role::Codes, ".weight"), (Role::Scale, ".scale")],
            &[(Role::Codes, ".weight"), (Role::Scale, ".weight_scale_inv")],
        ],
        codes: NIBBLES,
        // transformers derives the size of a group from the shape of the scales.
        groups: &[Group::ANY_NEIGHBOURS],
        scale_dtypes: EXPONENTS,
        exponents: Exponents::ByDtype,
        ..FINE_GRAINED
    },
];

/// Adds the decoded modules by the names that transformers uses: a bank of experts is one module,
/// however many tensors it has.
fn exclude(text: &str, modules: &Modules, _: bool) -> Result<Option<String>> {
    fn bank(name: &str) -> Option<&str> {
        name.rsplit_once('.').map(|(bank, _)| bank).filter(|bank| bank.ends_with(".experts"))
    }
    let left: HashSet<&str> = modules.left.iter().filter_map(|name| bank(name)).collect();
    let mut entries: BTreeSet<&str> = modules.decoded.iter().map(|name| bank(name).unwrap_or(name)).collect();
    if let Some(bank) = entries.iter().find(|entry| left.contains(*entry)) {
        let message = format!("a config cannot say that a part of '{}' is quantized; decode all of it", shorten(bank));
        return Err(Error::new(message));
    }
    // Experts that are stored one by one also form one module per bank.
    let left: HashSet<&str> = modules.left.iter().filter_map(|name| Some(expert_of(name)?.0)).collect();
    let banks = modules.decoded.iter().filter_map(|name| Some(expert_of(name)?.0));
    entries.extend(banks.filter(|bank| !left.contains(bank)));
    Ok(listed(text, IGNORED, &entries.into_iter().collect::<Vec<_>>()))
}

fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let method = config.method.as_deref().unwrap_or_default();
    let (group, size) = match block.get("weight_block_size") {
        None => (None, String::new()),
        Some(Value::Null) => (Some(Group::Tensor), String::new()),
        Some(size) => {
            let size = sides(size).ok_or_else(|| Error::new("its weight_block_size is not two numbers"))?;
            (Some(Group::Block(size)), format!(", weight_block_size {size:?}"))
        }
    };
    // 'e4m3', or 'float8_e4m3fn'; no library depends on other values.
    let fmt = block.text(&["fmt"])?.unwrap_or_default();
    let codes: Vec<Dtype> = fmt.parse().into_iter().collect();
    let is_other = codes.iter().any(|dtype| *dtype != Dtype::Float8E4M3FN);
    let fmt = if is_other { format!(", fmt '{}'", shorten(fmt)) } else { String::new() };
    let wording = format!("the config says quant_method '{method}'{size}{fmt}");
    let parameters = Parameters { group, ..Parameters::default() };
    let no_exponents = block.text(&["scale_fmt"])? == Some("float");
    let description = WeightDescription::new(named(LAYOUTS, Some(method)), wording);
    config.add_others(WeightDescription { parameters, codes, no_exponents, ..description });
    if block.text(&["expert_dtype"])? == Some("fp4") {
        let wording = "the config says expert_dtype 'fp4'";
        let description = WeightDescription::new(named(LAYOUTS, Some("fp4")), wording);
        config.add_others(WeightDescription { no_exponents, ..description });
    }
    Ok(())
}

/// Describes blocks of float8, or groups of 32 with exponents.
fn write(groups: &[QuantizedGroup], kept: &KeptModules) -> Result<EngineConfig> {
    let group = only(groups)?;
    // transformers loads the experts of a bank as one module, regardless of their storage.
    let banks = kept.modules.iter().filter_map(|module| Some(expert_of(module)?.0.to_owned()));
    let mut entries: BTreeSet<String> = banks.collect();
    entries.extend(kept.entries(str::to_owned, str::to_owned, |name| format!(r".*\.{name}")));
    let (method, ignored, size) = match group.grid.group {
        Group::Neighbours(size) | Group::Block([1, size]) => ("mxfp8", "ignored_layers", json!([1, size])),
        Group::Block(size) => ("fp8", "modules_to_not_convert", json!(size)),
        Group::Tensor | Group::Channel => ("fp8", "modules_to_not_convert", Value::Null),
    };
    let mut block = json!({
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": method,
        "weight_block_size": size,
        ignored: entries,
    });
    if method == "mxfp8" || group.has_exponents() {
        block["scale_fmt"] = json!("ue8m0");
    }
    Ok(EngineConfig::of(block))
}
