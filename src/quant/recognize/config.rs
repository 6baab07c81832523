//! Reads the blocks of configs that describe a quantization: in `config.json`, and in files next to it.
//!
//! Engines differ in which block they read, so tcast refuses blocks that contradict each other.

use super::checkpoint::CheckpointInfo;
use crate::container::checkpoint::{CONFIG, HF_QUANT_CONFIG, QUANTIZE_CONFIG, descriptions};
use crate::container::{as_json, members};
use crate::error::{Error, Result};
use crate::quant::config::{CheckpointConfig, ConfigObject, ModuleList, Modules, parse};
use crate::quant::libraries::{implied_library, library_of, undecoded_method};
use crate::text::shorten;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

impl CheckpointConfig {
    pub(super) fn read(source: &CheckpointInfo) -> Result<Self> {
        let blocks = ConfigBlock::read_all(source)?;
        let Some((first, others)) = blocks.split_first() else { return Ok(Self::default()) };
        let mut config = Self::of(first).map_err(|error| first.in_file(error))?;
        others.iter().try_for_each(|other| config.add(other).map_err(|error| other.in_file(error)))?;
        Ok(config)
    }

    fn of(block: &ConfigBlock) -> Result<Self> {
        let method = block.method()?;
        let library = library_of(&method).ok_or_else(|| undecoded_method(&method))?;
        let ignored = library.ignored(&block.object())?;
        let mut config = Self { method: Some(method), ignored, ..Self::default() };
        (library.read)(&block.object(), &mut config)?;
        config.patterned.compile()?;
        Ok(config)
    }

    /// Adds the ignored modules of another block.
    fn add(&mut self, block: &ConfigBlock) -> Result<()> {
        let method = block.method().unwrap_or_default();
        let ignored = match library_of(&method) {
            Some(library) => library.ignored(&block.object())?,
            None if method.is_empty() => ModuleList::default(),
            None => return Err(undecoded_method(&method)),
        };
        let has_two_blocks = |name: &str| library_of(name).is_some_and(|library| library.has_two_blocks);
        if has_two_blocks(&method) && self.method.as_deref().is_some_and(has_two_blocks) {
            Self::of(block)?; // for its errors
        }
        self.also_ignored.push((block.name(), ignored));
        Ok(())
    }
}

/// Refuses new names of modules for which patterns in the configs say something else than for the old ones.
pub fn check_renamed<'n>(
    before: &[(&'static str, &str)],
    after: &[(&'static str, &str)],
    renamed: impl Iterator<Item = (&'n str, &'n str)>,
    modules: &Modules,
) -> Result<()> {
    let read = |configs| {
        CheckpointConfig::read(&CheckpointInfo {
            tensors: &[],
            folder: Path::new(""),
            configs,
            metadata: &[],
            read: &|_| Err(Error::new("is not read")),
        })
    };
    let (before, after) = (read(before)?, read(after)?);
    let mut renamed: Vec<_> = renamed.filter(|(_, new)| !modules.decoded.contains(new)).collect();
    renamed.sort_unstable();
    for (old, new) in renamed {
        let (of_old, of_new) = (before.entry(old), after.entry(new));
        let what = match (of_old, of_new) {
            (Some((_, entry)), None) => {
                format!("has the pattern '{}', which matches {old} and not {new}", shorten(entry))
            }
            (None, Some((_, entry))) => {
                format!("has the pattern '{}', which matches {new} and not {old}", shorten(entry))
            }
            (Some((is_out, entry)), Some((is_out_now, other))) if is_out != is_out_now => {
                format!("has the pattern '{}' for {old}, and '{}' for {new}", shorten(entry), shorten(other))
            }
            _ => continue,
        };
        return Err(Error::new(what).remedy("correct the pattern first, or choose other names"));
    }
    Ok(())
}

/// A block that describes a quantization.
pub(super) struct ConfigBlock {
    file: &'static str,
    path: PathBuf,
    /// Its key in `config.json`; empty in other files.
    key: &'static str,
    members: Map<String, Value>,
    /// The names in the objects of [`IN_ORDER`], in the order of the file: the first that matches decides.
    patterns: Vec<String>,
}

/// Maximum length of a block in bytes. Blocks that list every module of a large model have a few MiB.
const MOST: usize = 16 << 20;

/// Keys of objects whose members are in the order in which they decide.
const IN_ORDER: [&str; 6] = [
    "dynamic",
    "extra_config",
    "layer_quant_config",
    "module_quant_configs",
    "modules_dtype_dict",
    "modules_quant_config",
];

/// Keys with values that affect decoded bytes; synonymous keys are separated by spaces.
const FACTS: &str = "quant_method, quant_algo, bits w_bit, group_size q_group_size, weight_block_size, \
    checkpoint_format format, packing_format, mode, scale_fmt, expert_dtype, sym, desc_act, zero_point, load_in_4bit, \
    load_in_8bit, config_groups, quantized_layers, dynamic, extra_config, quant_type, global_quant_config, \
    layer_quant_config, weights_dtype";

impl ConfigBlock {
    /// Reads the blocks of a checkpoint, the decisive one first.
    pub(super) fn read_all(source: &CheckpointInfo) -> Result<Vec<Self>> {
        let mut blocks = Vec::new();
        let mut add = |file: &'static str, key: &'static str, text: &str| {
            if text != "null" {
                let path = source.folder.join(file);
                blocks.push(Self::read(file, &path, key, text).map_err(|error| error.in_file(&path))?);
            }
            Ok(())
        };
        let not_object = |file: &str| Error::new("is not a JSON object").in_file(&source.folder.join(file));
        let mut expert_dtype = None;
        for &(file, text) in source.configs {
            let json = as_json(text);
            let outer = || members(&json).ok_or_else(|| not_object(file));
            match file {
                CONFIG => {
                    let expert = outer()?.get("expert_dtype").and_then(|value| serde_json::from_str(value.get()).ok());
                    expert_dtype = expert;
                    let mut texts = Vec::new();
                    for (key, text) in descriptions(&json) {
                        // MLX writes the same block under two keys, and it can be long.
                        if !texts.contains(&text) {
                            add(CONFIG, key, text)?;
                            texts.push(text);
                        }
                    }
                }
                HF_QUANT_CONFIG => {
                    outer()?.get("quantization").map_or(Ok(()), |text| add(file, "", text.get()))?;
                }
                _ => add(file, "", &json)?,
            }
        }
        let first = blocks.first_mut().filter(|first| first.file == CONFIG);
        if let (Some(first), Some(outer)) = (first, expert_dtype.filter(|value: &Value| !value.is_null())) {
            first.add_expert_dtype(&outer).map_err(|error| first.in_file(error))?;
        }
        if let [first, others @ ..] = &blocks[..] {
            others.iter().try_for_each(|other| first.check_agrees(other)).map_err(|error| first.in_file(error))?;
        }
        Ok(blocks)
    }

    fn read(file: &'static str, path: &std::path::Path, key: &'static str, text: &str) -> Result<Self> {
        if text.len() > MOST {
            return Err(Error::new("says more of the quantization than 16 MiB"));
        }
        let all = members(text).unwrap_or_default();
        let inner = IN_ORDER.iter().filter_map(|key| members(all.get(*key)?.get()));
        let mut inner: Vec<_> = inner.flatten().collect();
        inner.sort_by_key(|(_, value)| value.get().as_ptr()); // position in the text
        let patterns = inner.into_iter().map(|(name, _)| name.into_owned()).collect();
        let members = parse(text, if key.is_empty() { "quantization" } else { key })?;
        Ok(Self { file, path: path.to_owned(), key, members, patterns })
    }

    /// Adds the type of experts that `config.json` names outside its `quantization_config`, where vLLM reads it.
    fn add_expert_dtype(&mut self, outer: &Value) -> Result<()> {
        let own = self.members.entry("expert_dtype").or_insert_with(|| outer.clone());
        if own == outer {
            return Ok(());
        }
        let [own, outer] = [&*own, outer].map(|dtype| shorten(&dtype.to_string()));
        Err(Error::new(format!("its expert_dtype is {outer}, and that of its quantization_config is {own}")))
    }

    pub(super) fn object(&self) -> ConfigObject<'_> {
        ConfigObject::in_order(&self.members, &self.patterns)
    }

    pub(super) fn in_file(&self, error: Error) -> Error {
        error.in_file(&self.path)
    }

    /// Returns its name for messages about the file of another block.
    pub(super) fn name(&self) -> String {
        if self.key.is_empty() { self.file.to_owned() } else { format!("its {}", self.key) }
    }

    /// Returns the quantization method that it names or implies, in lower case.
    pub(super) fn method(&self) -> Result<String> {
        let block = self.object();
        if let Some(method) = block.text(&["quant_method"])? {
            return Ok(method.to_lowercase());
        }
        match implied_library(&block, self.file == QUANTIZE_CONFIG)? {
            Some(library) => Ok(library.names[0].to_owned()),
            None => Err(Error::new("its quantization_config does not name a quant_method")),
        }
    }

    /// Refuses another block that contradicts this one.
    fn check_agrees(&self, other: &Self) -> Result<()> {
        let contradicted = |[own, others]: [&str; 2]| {
            let [own, others] = [(self, own), (other, others)].map(|(block, key)| {
                format!("{} says {key} {}", block.name(), shorten(&block.members[key].to_string()))
            });
            let error = Error::new(format!("{own}, and {others}"));
            Err(error.remedy("correct the one that is wrong, or remove it"))
        };
        for keys in FACTS.split(", ") {
            let keys: Vec<&str> = keys.split(' ').collect();
            if let (Some(own), Some(others)) = (self.object().first(&keys), other.object().first(&keys))
                && plain(&self.members[own]) != plain(&other.members[others])
            {
                return contradicted([own, others]);
            }
        }
        // Some files show their method only by the algorithm.
        let keys = ["quant_method", "quant_algo"];
        let is_other = |method: &str| !library_of(method).is_some_and(|library| library.has_algorithms);
        if let (Some(Value::String(method)), Some(Value::String(algorithm))) =
            (self.members.get(keys[0]), other.members.get(keys[1]))
            && !self.members.contains_key(keys[1])
            && is_other(&method.to_lowercase())
            && !algorithm.to_lowercase().contains(&method.to_lowercase())
        {
            return contradicted(keys);
        }
        Ok(())
    }
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
