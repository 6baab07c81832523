//! How compressed-tensors lists modules: by their names in the file, or by patterns where engines have other names.
//!
//! A model with parts of its own for images or audio is stored as `language_model.model.layers.0` or as
//! `model.language_model.layers.0`, and transformers and vLLM each call it as one or the other. vLLM translates names, but
//! transformers does not.

use crate::container::{as_json, members};
use regex::escape;
use std::collections::HashSet;

/// Names begin with any of these, in any order.
const CONTAINERS: [&str; 3] = ["model", "language_model", "thinker"];

/// Whether `config.json` describes a model that consists of several, such as a language model and a vision tower.
pub fn is_composite(config: &str) -> bool {
    const PARTS: [&str; 6] =
        ["text_config", "language_config", "llm_config", "thinker_config", "vision_config", "audio_config"];
    members(&as_json(config)).is_some_and(|members| PARTS.iter().any(|part| members.contains_key(*part)))
}

/// The bank of an expert that is stored by itself, and the name of its weight: `x.experts` and `w1` of `x.experts.0.w1`.
pub(super) fn expert_of(module: &str) -> Option<(&str, &str)> {
    let (expert, own) = module.rsplit_once('.')?;
    let (bank, number) = expert.rsplit_once('.')?;
    let is_bank = bank == "experts" || bank.ends_with(".experts");
    (is_bank && number.parse::<u64>().is_ok()).then_some((bank, own))
}

/// How compressed-tensors lists a module. vLLM and `SGLang` look up `x.experts.0.gate_proj` where the file has
/// `x.experts.0.w1`, so a pattern for all experts replaces it; engines load them as one module.
pub(super) fn entry_of_compressed_tensors(module: &str) -> String {
    match expert_of(module) {
        Some((bank, "w1" | "w2" | "w3")) => all_experts(bank),
        _ => module.to_owned(),
    }
}

/// The pattern of compressed-tensors for all experts of a bank.
pub(super) fn all_experts(bank: &str) -> String {
    format!("re:^{}\\..*", escape(bank))
}

/// Patterns of modules that are not quantized.
pub(super) struct ModulePatterns {
    /// Those that match quantized modules.
    quantized: HashSet<String>,
    /// Whether all quantized modules are layers of the language model.
    has_plain_towers: bool,
}

impl ModulePatterns {
    pub(super) fn new<'a>(quantized: impl Iterator<Item = &'a str>) -> Self {
        let mut found = Self { quantized: HashSet::new(), has_plain_towers: true };
        for module in quantized {
            found.quantized.extend([around(module), pattern_of(module)]);
            found.has_plain_towers &= inner(module).starts_with("layers.");
        }
        found
    }

    /// The pattern of a module that is not quantized: of the whole part of the model, such as the vision tower, if nothing
    /// in it is quantized. `None` if every pattern would match a quantized module.
    pub(super) fn ignored(&self, module: &str) -> Option<String> {
        self.first([around(module), pattern_of(module)])
    }

    /// The same for a bank of experts.
    pub(super) fn ignored_bank(&self, bank: &str) -> Option<String> {
        self.first([around(bank), of_experts(bank)])
    }

    /// The names that transformers gives to some towers and projectors, whatever they are in the file.
    pub(super) fn towers(&self) -> impl Iterator<Item = String> {
        let names = ["vision_tower", "projector"].into_iter().filter(|_| self.has_plain_towers);
        names.map(|name| format!(r"re:.*{name}(\..*)?$"))
    }

    fn first(&self, patterns: [String; 2]) -> Option<String> {
        patterns.into_iter().find(|pattern| !self.quantized.contains(pattern))
    }
}

/// The pattern of a module; experts of a bank have one.
pub(super) fn pattern_of(module: &str) -> String {
    match expert_of(module) {
        Some((bank, _)) => of_experts(bank),
        None => matching(inner(module), "$"),
    }
}

fn of_experts(bank: &str) -> String {
    matching(inner(bank), r"\..*")
}

/// The pattern of the part of the model that a module belongs to.
fn around(module: &str) -> String {
    matching(inner(module).split('.').next().unwrap_or_default(), r"(\..*)?$")
}

fn matching(name: &str, rest: &str) -> String {
    format!(r"re:({}\.)*{}{rest}", CONTAINERS.join(r"\.|"), escape(name))
}

/// The name without the containers before it.
fn inner(mut module: &str) -> &str {
    while let Some((_, rest)) = module.split_once('.').filter(|(first, _)| CONTAINERS.contains(first)) {
        module = rest;
    }
    module
}
