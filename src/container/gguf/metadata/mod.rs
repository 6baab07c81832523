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
use crate::error::{Error, Kind, Result};
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
        return Err(Error::new(what).of(Kind::NoKeys { is_language: true }));
    };
    check_class(config)?;
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
            Err(Error::new(what).of(Kind::NotInGguf))
        }
        None => Ok(()),
    }
}
