//! Configs of compressed-tensors and `ModelOpt`, which can differ between modules.

use super::block::{Claim, ConfigObject};
use super::modules::pattern;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::{CodeValues, Group, Groups, LAYOUTS, Layout, Owner, Parameters, Role, find};
use crate::text::shorten;
use regex::Regex;
use serde_json::Value;

/// A claim about some modules.
#[derive(Debug, Default)]
pub(super) struct ClaimRule {
    pub(super) names: Vec<String>,
    pub(super) patterns: Vec<Regex>,
    /// True if the rule also applies to all modules that no other rule names.
    pub(super) is_for_others: bool,
    /// `None` if the modules are not quantized.
    pub(super) claim: Option<Claim>,
}

/// True if a layout stores numbers of this type and width.
fn stores(layout: &Layout, kind: &str, bits: u64) -> bool {
    let dtype = match layout.codes.values {
        CodeValues::Unsigned => return kind == "int",
        CodeValues::Float(dtype) | CodeValues::FloatWithoutNegativeZero(dtype) => dtype,
        _ => layout.codes.dtypes[0],
    };
    (kind, bits) == (if dtype == Dtype::Int8 { "int" } else { "float" }, dtype.bits().into())
}

pub(super) fn compressed_tensors(block: &ConfigObject) -> Result<Vec<ClaimRule>> {
    if let Some(sparsity) =
        block.inner("sparsity_config")?.map(|config| config.text(&["format"])).transpose()?.flatten()
        && sparsity != "dense"
    {
        let message = format!("its weights are sparse ({}), which tcast does not decode", shorten(sparsity));
        return Err(Error::new(message));
    }
    let transforms =
        block.inner("transform_config")?.map(|config| config.inner("config_groups")).transpose()?.flatten();
    if transforms.is_some_and(|groups| !groups.0.is_empty()) {
        return Err(Error::new("its transform_config rotates weights, which tcast does not undo"));
    }
    check_format(block)?;
    let mut rules = Vec::new();
    let mut patterns = 0;
    for (name, group) in block.objects("config_groups")? {
        // Only activations are quantized.
        let Some(weights) = group.inner("weights")? else { continue };
        let format =
            group.text(&["format"])?.or(block.text(&["format"])?.filter(|format| *format != "mixed-precision"));
        if format == Some("dense") {
            continue;
        }
        let mut rule = ClaimRule { claim: Some(group_claim(name, format, &weights)?), ..ClaimRule::default() };
        for target in group.texts(&["targets"])? {
            match target.strip_prefix("re:") {
                Some(text) => {
                    patterns += 1;
                    rule.patterns
                        .push(pattern(text, (&format!("config group '{}'", shorten(name)), target, patterns))?);
                }
                None => rule.names.push(target.to_owned()),
            }
            // A class of modules: tensors do not show the class of their module.
            rule.is_for_others |= target.starts_with(char::is_uppercase);
        }
        rules.push(rule);
    }
    Ok(rules)
}

/// Refuses a format that no group has if each group names its own, because engines then use the formats of the groups.
fn check_format(block: &ConfigObject) -> Result<()> {
    let Some(format) = block.text(&["format"])?.filter(|format| *format != "mixed-precision") else { return Ok(()) };
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

fn group_claim(name: &str, format: Option<&str>, weights: &ConfigObject) -> Result<Claim> {
    let name = shorten(name);
    let (kind, bits) = (weights.text(&["type"])?.unwrap_or("int"), weights.number(&["num_bits"])?.unwrap_or(8));
    let mut known = LAYOUTS.iter().filter(|layout| layout.owner == Owner::CompressedTensors);
    let of_format = |layout: &&Layout| format.is_none_or(|format| layout.formats.contains(&format));
    let said = match format {
        Some(format) => format!("the config group '{name}' says format '{}'", shorten(format)),
        None => format!("the config group '{name}' says num_bits {bits}, type '{}'", shorten(kind)),
    };
    let fitting = known.clone().filter(|layout| stores(layout, kind, bits));
    let layouts: Vec<&str> = fitting.filter(of_format).map(|layout| layout.name).collect();
    if layouts.is_empty() {
        let message = match format {
            Some(format) if known.any(|layout| layout.formats.contains(&format)) => {
                format!("{said}, and weights of num_bits {bits}, type '{}'", shorten(kind))
            }
            _ => format!("{said}, which tcast does not decode"),
        };
        return Err(Error::new(message));
    }
    let sized = weights.integer(&["group_size"])?.map(Group::of_size);
    let group = match weights.text(&["strategy"])? {
        Some("tensor") => Some(Group::Tensor),
        Some("channel") => Some(Group::Channel),
        Some("group" | "tensor_group") => Some(sized.ok_or_else(|| Error::new(format!("{said}, and no group_size")))?),
        Some("block") => Some(
            structure(weights.get("block_structure"))
                .ok_or_else(|| Error::new(format!("{said}, and a block_structure that is not two numbers")))?,
        ),
        Some(other) => return Err(Error::new(format!("{said}, and the strategy '{}' of no weights", shorten(other)))),
        None => sized,
    };
    let mut claim = Claim::new(&layouts, &said);
    let is_symmetric = weights.flag("symmetric")?.unwrap_or(true); // as in the library
    claim.parameters = Parameters { group, bits: u32::try_from(bits).ok(), is_symmetric, ..Parameters::default() };
    if !is_symmetric {
        claim.needs.push(Role::ZeroPoint);
    }
    let is_ordered = match weights.get("actorder") {
        Some(Value::Bool(is_ordered)) => *is_ordered, // in older versions
        _ => weights.text(&["actorder"])?.is_some_and(|order| order.eq_ignore_ascii_case("group")),
    };
    if is_ordered {
        claim.needs.push(Role::GroupIndex);
    }
    Ok(claim)
}

/// Parses a block structure: `[128, 128]` or `"128x128"`.
fn structure(value: Option<&Value>) -> Option<Group> {
    let numbers: Vec<u64> = match value? {
        Value::Array(numbers) => numbers.iter().map(Value::as_u64).collect::<Option<_>>()?,
        Value::String(text) => text.split('x').map(|number| number.trim().parse().ok()).collect::<Option<_>>()?,
        _ => return None,
    };
    match numbers[..] {
        [rows, columns] => Some(Group::Block([rows, columns])),
        _ => None,
    }
}

pub(super) fn modelopt(block: &ConfigObject) -> Result<Vec<ClaimRule>> {
    let layers = block.objects("quantized_layers")?.into_iter().map(|(name, layer)| {
        let claim = algorithm(layer.text(&["quant_algo"])?, layer.number(&["group_size"])?)?;
        Ok(ClaimRule { names: vec![name.clone()], claim, ..ClaimRule::default() })
    });
    let mut rules = layers.collect::<Result<Vec<ClaimRule>>>()?;
    let algo = block.text(&["quant_algo"])?;
    if rules.is_empty() || algo != Some("MIXED_PRECISION") {
        let claim = match algo {
            None if block.has("config_groups") => {
                return Err(Error::new("its quantization_config does not name a quant_algo"));
            }
            algo => algorithm(algo, block.number(&["group_size"])?)?,
        };
        rules.push(ClaimRule { is_for_others: true, claim, ..ClaimRule::default() });
    }
    check_groups(block, &rules)?;
    Ok(rules)
}

/// Refuses config groups of `ModelOpt` that contradict the algorithm of their modules.
fn check_groups(block: &ConfigObject, rules: &[ClaimRule]) -> Result<()> {
    for (name, group) in block.objects("config_groups")? {
        let (Some(weights), targets) = (group.inner("weights")?, group.texts(&["targets"])?) else { continue };
        let is_meant = |rule: &&ClaimRule| {
            let is_class = |target: &&str| target.starts_with(char::is_uppercase);
            targets.iter().any(|target| rule.names.iter().any(|name| name == target))
                || rule.is_for_others && (targets.is_empty() || targets.iter().any(is_class))
        };
        for claim in rules.iter().filter(is_meant).filter_map(|rule| rule.claim.as_ref()) {
            let Some(layout) = claim.layouts.first().and_then(|name| find(name)) else { continue };
            let kind = weights.text(&["type"])?.unwrap_or("float");
            let bits = weights.get("num_bits").and_then(Value::as_u64).filter(|bits| !stores(layout, kind, *bits));
            let size = weights.get("group_size").and_then(Value::as_i64);
            let size =
                size.filter(|size| matches!(layout.groups, Groups::Fixed(fixed) if fixed != Group::of_size(*size)));
            let other = match (bits, size) {
                (Some(bits), _) => format!("num_bits {bits}, type '{}'", shorten(kind)),
                (None, Some(size)) => format!("group_size {size}"),
                (None, None) => continue,
            };
            let error = Error::new(format!("{}, and its config group '{}' says {other}", claim.said, shorten(name)));
            return Err(error.remedy("correct the one that is wrong"));
        }
    }
    Ok(())
}

/// Returns the claim of an algorithm of `ModelOpt`; `None` without an algorithm, which keeps weights as they are.
fn algorithm(algo: Option<&str>, group_size: Option<u64>) -> Result<Option<Claim>> {
    let Some(algo) = algo else { return Ok(None) };
    let (layout, group) = match algo.to_ascii_uppercase().as_str() {
        "FP8" => ("modelopt-fp8", Some(Group::Tensor)),
        "FP8_PER_CHANNEL_PER_TOKEN" => ("modelopt-fp8", Some(Group::Channel)),
        "FP8_PB_WO" => {
            let side = group_size.unwrap_or(128);
            ("modelopt-fp8", Some(Group::Block([side, side])))
        }
        "NVFP4" | "W4A16_NVFP4" | "W4A8_NVFP4_FP8" => ("modelopt-nvfp4", group_size.map(Group::Neighbours)),
        "MXFP4" | "W4A8_MXFP4_FP8" | "W4A16_MXFP4" => ("modelopt-mxfp4", group_size.map(Group::Neighbours)),
        "MXFP8" => ("modelopt-mxfp8", group_size.map(Group::Neighbours)),
        _ => {
            let message = format!("its quant_algo is '{}', which tcast does not decode", shorten(algo));
            return Err(Error::new(message));
        }
    };
    let said = format!("the config says quant_algo '{}'", shorten(algo));
    if let (Some(given), Some(Groups::Fixed(fixed))) = (group, find(layout).map(|layout| layout.groups))
        && given != fixed
    {
        let error = Error::new(format!("{said}, which has a scale for {fixed}, and a group_size for {given}"));
        return Err(error.remedy("correct the one that is wrong"));
    }
    let parameters = Parameters { group, ..Parameters::default() };
    Ok(Some(Claim { parameters, ..Claim::new(&[layout], &said) }))
}
