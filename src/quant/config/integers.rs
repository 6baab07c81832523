//! The configs of GPTQ, AWQ and auto-round, whose codes are integers in words.

use super::json::with_members;
use super::object::ConfigObject;
use super::{CheckpointConfig, ConfigFormat, WeightDescription, layouts_of, transformers};
use crate::error::{Error, Result};
use crate::quant::layout::{Group, Role};
use crate::quant::method::QuantMethod;
use crate::text::shorten;
use std::rc::Rc;

pub(super) static GPTQ: ConfigFormat = ConfigFormat {
    ignored: &[], // `dynamic` holds more than a list
    exclude: |text, modules, _| {
        let entries = modules.sorted().into_iter().map(|module| (excluded_by_gptq(module), "{}"));
        Ok(with_members(text, "dynamic", entries))
    },
    ..transformers::format(QuantMethod::Gptq, &["gptq"], read_gptq, None)
};

pub(super) static AWQ: ConfigFormat = transformers::format(QuantMethod::Awq, &["awq"], read_awq, None);

pub(super) static AUTO_ROUND: ConfigFormat = ConfigFormat {
    ignored: &[], // `extra_config` holds more than a list
    exclude: |text, modules, _| {
        let entries = modules.sorted().into_iter().map(|module| (module.to_owned(), "{\"bits\": 16}"));
        Ok(with_members(text, "extra_config", entries))
    },
    ..transformers::format(QuantMethod::AutoRound, &["auto-round", "intel/auto-round"], read_auto_round, None)
};

/// Returns the key in `dynamic` for a module that is not quantized.
pub(super) fn excluded_by_gptq(module: &str) -> String {
    format!("-:^{}$", regex::escape(module))
}

/// Returns the module that a key of `dynamic` names; `None` for a pattern.
pub(super) fn named_by_gptq(key: &str) -> Option<String> {
    let module = key.strip_prefix("-:^")?.strip_suffix('$')?.replace('\\', "");
    (excluded_by_gptq(&module) == key).then_some(module)
}

/// Reads the width and the groups of codes in int32 words.
fn description(block: &ConfigObject, method: QuantMethod, wording: &str) -> Result<WeightDescription> {
    let Some(bits) = block.number(&["bits", "w_bit"])? else {
        return Err(Error::new(format!("{wording}, and not how many bits")));
    };
    let mut description = WeightDescription::new(layouts_of(method, None), format!("{wording}, bits {bits}"));
    description.parameters.bits = u32::try_from(bits).ok();
    description.parameters.group = block.integer(&["group_size", "q_group_size"])?.map(Group::of_size);
    Ok(description)
}

fn read_gptq(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let form = block.text(&["checkpoint_format", "format"])?.unwrap_or("gptq");
    let form = if block.is_true("is_marlin_format")? { "marlin" } else { form };
    if !matches!(form, "gptq" | "gptq_v2") {
        let message = format!("its checkpoint_format is '{}', and tcast knows 'gptq' and 'gptq_v2'", shorten(form));
        return Err(Error::new(message));
    }
    let wording = format!("the config says quant_method 'gptq', checkpoint_format '{form}'");
    let mut all = description(block, QuantMethod::Gptq, &wording)?;
    all.parameters.zeros_are_one_less = form == "gptq";
    all.parameters.is_symmetric = block.is_true("sym")?;
    set_order(&mut all, block.flag("desc_act")?);
    read_dynamic(block, config, all)
}

/// Sets the order of the columns: by default in the order of their activations, as in `AutoGPTQ`, which requires a
/// group index; as stored if `desc_act` is false.
fn set_order(description: &mut WeightDescription, desc_act: Option<bool>) {
    description.parameters.is_in_order = desc_act == Some(false);
    description.needs = if desc_act == Some(false) { Vec::new() } else { vec![Role::GroupIndex] };
}

fn read_awq(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let version = block.text(&["version", "checkpoint_format", "format"])?.unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        let message = format!(
            "its AWQ version is '{}', whose codes lie in another order than those of 'gemm', which tcast does not decode",
            shorten(version)
        );
        return Err(Error::new(message));
    }
    let mut all = description(block, QuantMethod::Awq, "the config says quant_method 'awq', version 'gemm'")?;
    all.parameters.is_symmetric = block.flag("zero_point")? == Some(false);
    read_dynamic(block, config, all)
}

/// Reads `GPTQModel`'s `dynamic`, which overrides the description of some modules.
fn read_dynamic(block: &ConfigObject, config: &mut CheckpointConfig, all: WeightDescription) -> Result<()> {
    for (entry, own) in block.objects("dynamic")? {
        let (is_out, text) = match (entry.strip_prefix("-:"), entry.strip_prefix("+:")) {
            (Some(text), _) => (true, text),
            (None, text) => (false, text.unwrap_or(entry)),
        };
        let own = if is_out { None } else { Some(overridden(&all, &own, entry)?) };
        config.patterned.push(text, ("dynamic", entry), own)?;
    }
    config.add_others(all);
    Ok(())
}

/// Copies a description, with the values that an entry overrides.
fn overridden(all: &WeightDescription, own: &ConfigObject, entry: &str) -> Result<Rc<WeightDescription>> {
    let mut changed = all.clone();
    if let Some(bits) = own.number(&["bits"])? {
        changed.parameters.bits = u32::try_from(bits).ok();
    }
    if let Some(size) = own.integer(&["group_size"])? {
        changed.parameters.group = Some(Group::of_size(size));
    }
    if let Some(is_symmetric) = own.flag("sym")? {
        changed.parameters.is_symmetric = is_symmetric;
    }
    if let Some(desc_act) = own.flag("desc_act")? {
        set_order(&mut changed, Some(desc_act));
    }
    changed.wording = format!("the config says of '{}' that it is {}", shorten(entry), all.layouts[0].name);
    Ok(Rc::new(changed))
}

/// Reads the config of auto-round. The keys of its `extra_config` are names or, with one of the characters of
/// `SPECIAL`, regular expressions that engines search for (vLLM `inc.py`).
fn read_auto_round(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    const SPECIAL: &[char] = &['*', '+', '?', '^', '$', '(', ')', '[', ']', '{', '}', '|', '\\'];
    let packing = block.text(&["packing_format"])?.unwrap_or("auto_round:auto_gptq");
    let method = match packing.rsplit(':').next() {
        Some("auto_gptq") => QuantMethod::Gptq,
        Some("auto_awq") => QuantMethod::Awq,
        _ => {
            let message = format!("its packing_format is '{}', which tcast does not know", shorten(packing));
            return Err(Error::new(message));
        }
    };
    let mut all = description(block, method, &format!("the config says packing_format '{packing}'"))?;
    all.parameters.zeros_are_one_less = method == QuantMethod::Gptq;
    all.parameters.is_symmetric = block.is_true("sym")?;
    for (module, own) in block.objects("extra_config")? {
        let is_out = own.number(&["bits"])?.is_some_and(|bits| bits >= 16);
        let own = if is_out { None } else { Some(overridden(&all, &own, module)?) };
        if module.contains(SPECIAL) {
            config.patterned.push(&format!(".*(?:{module})"), ("extra_config", module), own)?;
        } else {
            config.named.insert(module.clone(), own);
        }
    }
    config.add_others(all);
    Ok(())
}
