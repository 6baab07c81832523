//! Lists of modules in configs of compressed-tensors: names in the file, or patterns where engines use other names.
//!
//! A model with separate parts for images or audio names its layers `language_model.model.layers.0` or
//! `model.language_model.layers.0`. transformers and vLLM each use one of these names. vLLM translates names, but
//! transformers does not.

use crate::container::{as_json, members};
use regex::escape;
use std::collections::HashSet;

/// Containers at the beginning of names, any number of them in any order.
const CONTAINERS: [&str; 3] = ["model", "language_model", "thinker"];

/// True if `config.json` describes a model made of several models, such as a language model and a vision tower.
pub fn is_composite(config: &str) -> bool {
    const PARTS: [&str; 6] =
        ["text_config", "language_config", "llm_config", "thinker_config", "vision_config", "audio_config"];
    members(&as_json(config)).is_some_and(|members| PARTS.iter().any(|part| members.contains_key(*part)))
}

/// Splits the module of a separately stored expert into its bank and its own name: `x.experts` and `w1` of
/// `x.experts.0.w1`.
pub(in crate::quant) fn expert_of(module: &str) -> Option<(&str, &str)> {
    let (expert, own) = module.rsplit_once('.')?;
    let (bank, number) = expert.rsplit_once('.')?;
    let is_bank = bank == "experts" || bank.ends_with(".experts");
    (is_bank && number.parse::<u64>().is_ok()).then_some((bank, own))
}

/// Returns the entry for a module in configs of compressed-tensors. vLLM and `SGLang` look up `x.experts.0.gate_proj`
/// where the file has `x.experts.0.w1`, so a pattern for all experts replaces it; engines load them as one module.
pub(in crate::quant) fn entry_of_compressed_tensors(module: &str) -> String {
    match expert_of(module) {
        Some((bank, "w1" | "w2" | "w3")) => all_experts(bank),
        _ => module.to_owned(),
    }
}

/// Returns the key in `dynamic` of GPTQ for a module that is not quantized.
pub(in crate::quant) fn excluded_by_pattern(module: &str) -> String {
    format!("-:^{}$", escape(module))
}

/// Returns the module that a key of `dynamic` names; `None` for a pattern.
pub(super) fn named_by_pattern(key: &str) -> Option<String> {
    let module = key.strip_prefix("-:^")?.strip_suffix('$')?.replace('\\', "");
    (excluded_by_pattern(&module) == key).then_some(module)
}

/// Returns the pattern of compressed-tensors for all experts of a bank.
pub(in crate::quant) fn all_experts(bank: &str) -> String {
    format!("re:^{}\\..*", escape(bank))
}

/// Patterns of modules that are not quantized.
pub(in crate::quant) struct ModulePatterns {
    /// Patterns that match quantized modules.
    quantized: HashSet<String>,
    /// True if all quantized modules are layers of the language model.
    has_plain_towers: bool,
}

impl ModulePatterns {
    pub(in crate::quant) fn new<'a>(quantized: impl Iterator<Item = &'a str>) -> Self {
        let mut found = Self { quantized: HashSet::new(), has_plain_towers: true };
        for module in quantized {
            found.quantized.extend([around(module), pattern_of(module)]);
            found.has_plain_towers &= inner(module).starts_with("layers.");
        }
        found
    }

    /// Returns the pattern of a module that is not quantized. It covers the whole part of the model, such as the vision
    /// tower, if nothing in that part is quantized. `None` if every pattern would match a quantized module.
    pub(in crate::quant) fn ignored(&self, module: &str) -> Option<String> {
        self.first([around(module), pattern_of(module)])
    }

    /// Like [`Self::ignored`], for a bank of experts.
    pub(in crate::quant) fn ignored_bank(&self, bank: &str) -> Option<String> {
        self.first([around(bank), pattern_of_experts(bank)])
    }

    /// Returns patterns of the names that transformers gives to some towers and projectors, regardless of the file.
    pub(in crate::quant) fn towers(&self) -> impl Iterator<Item = String> {
        let names = ["vision_tower", "projector"].into_iter().filter(|_| self.has_plain_towers);
        names.map(|name| format!(r"re:.*{name}(\..*)?$"))
    }

    fn first(&self, patterns: [String; 2]) -> Option<String> {
        patterns.into_iter().find(|pattern| !self.quantized.contains(pattern))
    }
}

/// Returns the pattern of a module; the experts of a bank share one.
pub(in crate::quant) fn pattern_of(module: &str) -> String {
    match expert_of(module) {
        Some((bank, _)) => pattern_of_experts(bank),
        None => matching(inner(module), "$"),
    }
}

fn pattern_of_experts(bank: &str) -> String {
    matching(inner(bank), r"\..*")
}

/// Returns the pattern of the part of the model that a module belongs to.
fn around(module: &str) -> String {
    matching(inner(module).split('.').next().unwrap_or_default(), r"(\..*)?$")
}

fn matching(name: &str, rest: &str) -> String {
    format!(r"re:({}\.)*{}{rest}", CONTAINERS.join(r"\.|"), escape(name))
}

/// Returns the name without the containers before it.
fn inner(mut module: &str) -> &str {
    while let Some((_, rest)) = module.split_once('.').filter(|(first, _)| CONTAINERS.contains(first)) {
        module = rest;
    }
    module
}
