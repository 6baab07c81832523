//! The keys of a GGUF of a language model, from its folder of Hugging Face alone.
//!
//! `config` is the config with the defaults of its class. `base` has the keys that most models share, `recipes` a row for
//! each type of model, `general` the keys about the model as a whole, and `tokenizer` the tokens. The keys are those of
//! llama.cpp's converter (`convert_hf_to_gguf.py` of llama-cpp-python 0.3.36).

mod base;
mod card;
mod config;
mod general;
mod keys;
mod recipes;
mod tokenizer;

use super::{ARCHITECTURE, GgufKey};
use crate::error::{Error, Result};
use crate::text::shorten;
pub(crate) use config::Config;
use keys::{KeyValue, Keys};
use recipes::{Base, Recipe};
use serde_json::Value;
use std::path::Path;
#[cfg(feature = "cli")]
pub(crate) use tokenizer::TOKENIZERS;
pub(crate) use tokenizer::TokenizerFacts;

/// Ends of the names of classes that generate text. Other classes have other outputs, or none.
const GENERATORS: [&str; 2] = ["ForCausalLM", "ForConditionalGeneration"];

/// Describes the metadata of a language model in reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetadataFacts {
    pub architecture: &'static str,
    pub layers: u64,
    pub tokenizer: TokenizerFacts,
}

/// The metadata of a language model, as its folder gives it.
#[derive(Debug)]
pub(crate) struct FolderMetadata {
    /// The keys, without those about the types of tensors.
    pub keys: Vec<GgufKey>,
    pub tokenizer: TokenizerFacts,
}

/// Makes the keys of a model of an architecture. `tensors` has the names and shapes of the new file, and `pre_tokenizer` is a name of llama.cpp
/// that the user gives.
///
/// # Errors
/// When the config lacks a number, the tokenizer has no form in llama.cpp, or its files contradict the tensors.
pub(crate) fn of_folder(
    folder: &Path,
    config: &Config,
    architecture: &str,
    tensors: &[(&str, &[u64])],
    pre_tokenizer: Option<&str>,
) -> Result<FolderMetadata> {
    let in_config = |error: Error| if error.path().is_none() { error.in_file(folder) } else { error };
    let Some(recipe) = Recipe::find(config.model_type()) else {
        let what = format!("tcast has no keys for the model type '{}'", shorten(config.model_type()));
        return Err(Error::new(what).with_metadata());
    };
    check_class(config)?;
    check_is_no_reranker(folder, config)?;
    check_experts(config)?;
    let mut keys = Keys::default();
    keys.set(ARCHITECTURE, KeyValue::Text(architecture.to_owned()));
    general::add(folder, config, tensors, &mut keys)?;
    let common = match recipe.base {
        Base::None => Vec::new(),
        _ => base::keys(config).map_err(in_config)?,
    };
    let lacking = if let Base::Without(keys) = recipe.base { keys } else { &[] };
    for (key, value) in common.into_iter().filter(|(key, _)| !lacking.contains(key)) {
        keys.set(&format!("{architecture}.{key}"), value);
    }
    let before = if let Base::With(keys) = recipe.base { keys } else { &[] };
    for row in before.iter().chain(recipe.keys) {
        if let Some(value) = row.value(config).map_err(in_config)? {
            keys.set(&format!("{architecture}.{}", row.key), value);
        }
    }
    let rows = tensors.iter().find(|(name, _)| *name == "token_embd.weight").and_then(|(_, shape)| shape.first());
    let rows = u32::try_from(rows.copied().unwrap_or_default()).unwrap_or(u32::MAX);
    let tokenizer = tokenizer::add(folder, config, &recipe.tokenizer, (rows, pre_tokenizer), &mut keys)?;
    Ok(FolderMetadata { keys: keys.0, tokenizer })
}

/// Refuses a model whose class does not generate text, such as one that ranks or embeds.
fn check_class(config: &Config) -> Result<()> {
    let class = config.raw_field("architectures").and_then(Value::as_array).and_then(|list| list.first()?.as_str());
    match class.filter(|class| !GENERATORS.iter().any(|end| class.ends_with(end))) {
        Some(class) => {
            let what =
                format!("the class {} does not generate text, as tcast expects of a language model", shorten(class));
            Err(Error::new(what).not_in_gguf())
        }
        None => Ok(()),
    }
}

/// Refuses a model that ranks texts, which has the class of one that generates them: llama.cpp's converter knows it by its
/// names, and adds an output that the folder does not have.
fn check_is_no_reranker(folder: &Path, config: &Config) -> Result<()> {
    const NAMES: [&str; 2] = ["qwen3-reranker", "qwen3-vl-reranker"];
    if !config.model_type().starts_with("qwen3") {
        return Ok(());
    }
    let own = folder.canonicalize().unwrap_or_default();
    let named =
        [own.file_name().and_then(|name| name.to_str()), config.raw().get("_name_or_path").and_then(Value::as_str)];
    let card = tokenizer::text_file(folder, "README.md").ok().flatten().unwrap_or_default().to_lowercase();
    let is_named = |name: &&str| named.iter().flatten().any(|own| own.to_lowercase().contains(*name));
    let has_title = |name: &&str| card.contains(&format!("# {name}"));
    if NAMES.iter().any(|name| is_named(name) || has_title(name)) {
        let what = "ranks texts, and its GGUF file needs an output that the folder does not have";
        return Err(Error::new(what).in_file(folder).not_in_gguf());
    }
    Ok(())
}

/// Refuses a model with layers without experts, where every layer of llama.cpp's has them.
fn check_experts(config: &Config) -> Result<()> {
    const FIELD: &str = "mlp_only_layers";
    let has_experts = ["qwen3_next", "qwen3_5_moe_text"].contains(&config.model_type());
    if has_experts && config.list(FIELD).is_some_and(|layers| !layers.is_empty()) {
        let what = format!("config.json has {FIELD}, and llama.cpp's models of this type have experts in all layers");
        return Err(Error::new(what).not_in_gguf());
    }
    Ok(())
}
