//! The configs of methods of transformers: float8, gpt-oss, quanto and bitsandbytes.

use super::engine::{EngineConfig, KeptModules, QuantizedGroup, only};
use super::json::listed;
use super::modules::MatchStyle;
use super::object::{ConfigObject, lengths, sides};
use super::patterns::expert_of;
use super::{CheckpointConfig, ConfigFormat, ConfigReader, ConfigWriter, Modules, WeightDescription, layouts_of};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::layout::Group;
use crate::quant::method::{QuantMethod, undecoded};
use crate::quant::parts::Parameters;
use crate::text::shorten;
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashSet};

/// `DeepSeek` has the same config.
pub(super) static FP8: ConfigFormat = format(QuantMethod::FineGrained, &["fp8", "mxfp8"], read_fp8, Some(write_fp8));
pub(super) static GPT_OSS: ConfigFormat = format(QuantMethod::GptOss, &["mxfp4"], read_gpt_oss, Some(write_gpt_oss));
/// quanto of transformers (`int8`) or of optimum (`qint8`).
pub(super) static QUANTO: ConfigFormat = format(QuantMethod::Quanto, &["quanto"], read_quanto, None);
pub(super) static BITSANDBYTES: ConfigFormat = ConfigFormat {
    ignored: &["llm_int8_skip_modules"],
    exclude: |text, modules, _| Ok(listed(text, BITSANDBYTES.ignored, &modules.sorted())),
    ..format(QuantMethod::BitsAndBytes, &["bitsandbytes"], read_bitsandbytes, None)
};

/// The keys of the lists of modules that are not quantized.
const IGNORED: &[&str] = &["modules_to_not_convert", "ignored_layers"];

/// Returns the format of a method whose modules transformers matches.
pub(super) const fn format(
    method: QuantMethod,
    names: &'static [&'static str],
    read: ConfigReader,
    write: Option<ConfigWriter>,
) -> ConfigFormat {
    ConfigFormat { method, names, ignored: IGNORED, style: MatchStyle::Transformers, read, exclude, write }
}

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

fn read_fp8(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
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
    let description = WeightDescription::new(layouts_of(QuantMethod::FineGrained, Some(method)), wording);
    config.add_others(WeightDescription { parameters, codes, no_exponents, ..description });
    if block.text(&["expert_dtype"])? == Some("fp4") {
        let wording = "the config says expert_dtype 'fp4'";
        let description = WeightDescription::new(layouts_of(QuantMethod::FineGrained, Some("fp4")), wording);
        config.add_others(WeightDescription { no_exponents, ..description });
    }
    Ok(())
}

/// Describes blocks of float8, or groups of 32 with exponents.
fn write_fp8(groups: &[QuantizedGroup], kept: &KeptModules) -> Result<EngineConfig> {
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

fn read_gpt_oss(_: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let wording = "the config says quant_method 'mxfp4'";
    config.add_others(WeightDescription::new(layouts_of(QuantMethod::GptOss, None), wording));
    Ok(())
}

/// Describes quantized experts; nothing else is quantized. Entries have a `*` for the layer number.
fn write_gpt_oss(groups: &[QuantizedGroup], kept: &KeptModules) -> Result<EngineConfig> {
    only(groups)?;
    let names = kept.modules.iter().map(|name| {
        let parts = name.split('.').map(|part| if part.bytes().all(|byte| byte.is_ascii_digit()) { "*" } else { part });
        let name = parts.collect::<Vec<_>>().join(".");
        name.split_once(".self_attn.").map_or(name.clone(), |(layer, _)| format!("{layer}.self_attn"))
    });
    let block = json!({ "modules_to_not_convert": names.collect::<BTreeSet<_>>(), "quant_method": "mxfp4" });
    Ok(EngineConfig::of(block))
}

fn read_quanto(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let mut wording = "the config says quant_method 'quanto'".to_owned();
    let mut codes = Vec::new();
    if let Some(weights) = block.text(&["weights"])? {
        wording = format!("{wording}, weights '{}'", shorten(weights));
        match weights.strip_prefix('q').unwrap_or(weights) {
            "float8" => codes.extend([Dtype::Float8E4M3FN, Dtype::Float8E4M3FNUZ, Dtype::Float8E5M2]),
            "int2" | "int4" => {
                return Err(undecoded("quanto", &format!("weights '{}'", shorten(weights))));
            }
            name => match name.parse() {
                Ok(dtype) => codes.push(dtype),
                Err(_) => return Err(Error::new(format!("{wording}, which tcast does not know"))),
            },
        }
    }
    config.add_others(WeightDescription {
        codes,
        ..WeightDescription::new(layouts_of(QuantMethod::Quanto, None), wording)
    });
    Ok(())
}

fn read_bitsandbytes(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let width = if block.is_true("load_in_8bit")? { "load_in_8bit" } else { "load_in_4bit" };
    let wording = format!("the config says quant_method 'bitsandbytes', {width}");
    let description = WeightDescription::new(layouts_of(QuantMethod::BitsAndBytes, Some(width)), wording);
    let quant_type = block.text(&["bnb_4bit_quant_type"])?.map(str::to_lowercase);
    config.add_others(WeightDescription { quant_type, ..description });
    Ok(())
}

/// Reads the `quant_state` in a tensor of this name; `is_nested` if the scales are quantized too.
pub(in crate::quant) fn quant_state(state: &Map<String, Value>, name: &str, is_nested: bool) -> Result<Parameters> {
    let state = ConfigObject::new(state);
    let missing = |key: &str| Error::new(format!("it does not say its {key}"));
    let kind = state.text(&["quant_type"])?.ok_or_else(|| missing("quant_type"))?;
    if kind.is_empty() || !name.ends_with(&format!("__{kind}")) {
        let message = format!("its quant_type '{}' does not match the suffix of its name", shorten(kind));
        return Err(Error::new(message));
    }
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
