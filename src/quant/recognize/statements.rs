//! Descriptions of the quantization of a checkpoint: in `config.json`, and in files next to it.
//!
//! Engines differ in which description they read, so tcast refuses descriptions that contradict each other.

use super::found::CheckpointInfo;
use crate::container::checkpoint::{CONFIG, HF_QUANT_CONFIG, QUANTIZE_CONFIG, descriptions};
use crate::container::{as_json, members};
use crate::error::{Error, Result};
use crate::quant::method::QuantMethod;
use crate::text::shorten;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// A description of the quantization.
pub(super) struct Statement {
    pub(super) file: &'static str,
    /// Its key in `config.json`; empty in other files.
    key: &'static str,
    pub(super) block: Map<String, Value>,
    /// The patterns of modules in `dynamic` or `extra_config`, as ordered in the file: the first that matches decides.
    pub(super) patterns: Vec<String>,
}

/// A key and its value.
type Fact<'a> = (&'static str, &'a Value);

/// Maximum length of a block in bytes. Blocks that list every module of a large model have a few MiB.
const MOST: usize = 16 << 20;

/// Sets of synonymous keys with values that affect decoded bytes.
const FACTS: &[&[&str]] = &[
    &["quant_method"],
    &["quant_algo"],
    &["bits", "w_bit"],
    &["group_size", "q_group_size"],
    &["weight_block_size"],
    &["checkpoint_format", "format"],
    &["packing_format"],
    &["scale_fmt"],
    &["expert_dtype"],
    &["sym"],
    &["desc_act"],
    &["zero_point"],
    &["load_in_4bit"],
    &["load_in_8bit"],
    &["config_groups"],
    &["quantized_layers"],
    &["dynamic"],
    &["extra_config"],
];

impl Statement {
    /// Reads the descriptions of a checkpoint, the decisive one first.
    pub(super) fn read(source: &CheckpointInfo) -> Result<Vec<Self>> {
        let mut found = Vec::new();
        let mut add = |file: &'static str, key: &'static str, text: &str| {
            if text == "null" {
                return Ok(());
            }
            let in_file = |error: Error| error.in_file(&source.folder.join(file));
            if text.len() > MOST {
                return Err(in_file(Error::new("says more of the quantization than 16 MiB")));
            }
            let block = object_of(text, if key.is_empty() { "quantization" } else { key }).map_err(in_file)?;
            found.push(Self { file, key, block, patterns: patterns(text) });
            Ok(())
        };
        let object = |file: &'static str, text: &str| {
            let json = as_json(text);
            let found = members(&json).map(|members| {
                let pairs = members.into_iter().map(|(key, value)| (key.into_owned(), value.get().to_owned()));
                pairs.collect::<HashMap<_, _>>()
            });
            found.ok_or_else(|| Error::new("is not a JSON object").in_file(&source.folder.join(file)))
        };
        if let Some(text) = source.config {
            object(CONFIG, text)?;
            descriptions(&as_json(text)).into_iter().try_for_each(|(name, text)| add(CONFIG, name, text))?;
        }
        if let Some(text) = source.hf_quant_config {
            let block = object(HF_QUANT_CONFIG, text)?.remove("quantization");
            block.map_or(Ok(()), |text| add(HF_QUANT_CONFIG, "", &text))?;
        }
        if let Some(text) = source.quantize_config {
            add(QUANTIZE_CONFIG, "", &as_json(text))?;
        }
        Ok(found)
    }

    /// Refuses another description that contradicts this one.
    pub(super) fn check_agrees(&self, other: &Self) -> Result<()> {
        for keys in FACTS {
            if let (Some(own), Some(others)) = (self.fact(keys), other.fact(keys))
                && plain(own.1) != plain(others.1)
            {
                return Err(self.contradicted(&own, other, &others));
            }
        }
        // ModelOpt's own file shows its method only by the algorithm.
        if let (Some(method), Some(algorithm)) = (self.fact(&["quant_method"]), other.fact(&["quant_algo"]))
            && !self.block.contains_key("quant_algo")
            && let (Value::String(known), Value::String(named)) = (plain(method.1), plain(algorithm.1))
            && !matches!(QuantMethod::find(&known), Some(QuantMethod::CompressedTensors | QuantMethod::ModelOpt))
            && !named.contains(&known)
        {
            return Err(self.contradicted(&method, other, &algorithm));
        }
        Ok(())
    }

    /// Returns the first of these keys that is not null, with its value.
    fn fact(&self, keys: &[&'static str]) -> Option<Fact<'_>> {
        let key = keys.iter().find(|key| self.block.get(**key).is_some_and(|value| !value.is_null()))?;
        Some((key, &self.block[*key]))
    }

    fn contradicted(&self, own: &Fact, other: &Self, others: &Fact) -> Error {
        let [own, others] = [own, others].map(|(key, value)| format!("{key} {}", shorten(&value.to_string())));
        let message = format!("{} says {own}, and {} says {others}", self.name(), other.name());
        Error::new(message).remedy("correct the one that is wrong, or remove it")
    }

    /// Returns its name for messages about the file of another description.
    pub(super) fn name(&self) -> String {
        if self.key.is_empty() { self.file.to_owned() } else { format!("its {}", self.key) }
    }
}

/// Parses the members of a description. Fails if it is not an object, or if the parser cannot represent a value, such
/// as a number out of range.
fn object_of(text: &str, key: &str) -> Result<Map<String, Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Object(block)) => return Ok(block),
        Ok(_) => return Err(Error::new(format!("its {key} is not an object"))),
        Err(_) => {}
    }
    let all = members(text).unwrap_or_default();
    let unread = all.iter().find_map(|(name, value)| Some((name, serde_json::from_str::<Value>(value.get()).err()?)));
    let Some((name, error)) = unread else { return Err(Error::new(format!("its {key} is not an object"))) };
    let why = error.to_string();
    let why = why.split(" at line ").next().unwrap_or_default();
    Err(Error::new(format!("its {} cannot be read: {why}", shorten(name))))
}

/// Returns [`Statement::patterns`] of a description.
fn patterns(text: &str) -> Vec<String> {
    let all = members(text).unwrap_or_default();
    let inner = ["dynamic", "extra_config"].iter().filter_map(|key| members(all.get(*key)?.get()));
    let mut inner: Vec<_> = inner.flatten().collect();
    inner.sort_by_key(|(_, value)| value.get().as_ptr()); // position in the text
    inner.into_iter().map(|(name, _)| name.into_owned()).collect()
}

/// Normalizes a value for comparison: removes nulls of objects, and converts text to lowercase.
fn plain(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.to_lowercase()),
        Value::Array(items) => Value::Array(items.iter().map(plain).collect()),
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            Value::Object(members.map(|(key, value)| (key.clone(), plain(value))).collect())
        }
        other => other.clone(),
    }
}
