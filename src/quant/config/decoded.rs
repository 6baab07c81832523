//! Changes to `config.json`, and to other files that describe how weights are quantized, after weights were decoded.

use super::integers::{excluded_by_gptq, named_by_gptq};
use super::json::{ValueEdit, edited, with_new, without_names};
use super::patterns::is_composite;
use super::{CheckpointConfig, comfy_metadata_of, find, modelopt, torchao};
use crate::container::checkpoint::with_dtype;
use crate::container::{as_json, members};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::recognize::CheckpointInfo;
use crate::text::shorten;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// The modules of a checkpoint whose weights were quantized.
#[derive(Default)]
pub struct Modules<'a> {
    pub decoded: HashSet<&'a str>,
    /// Modules that stay quantized.
    pub left: HashSet<&'a str>,
    /// New names of modules by old name; the other fields contain new names.
    pub renamed: HashMap<&'a str, &'a str>,
    /// Names of modules, and of tensors, that no longer exist.
    pub gone: HashSet<&'a str>,
}

impl Modules<'_> {
    /// Returns the names of the decoded modules in order.
    pub(super) fn sorted(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.decoded.iter().copied().collect();
        names.sort_unstable();
        names
    }

    /// Removes modules that no longer exist from a description, and replaces the old names of modules by the new ones.
    pub(super) fn update<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.gone.is_empty() {
            return self.rename_in(text);
        }
        let is_gone =
            |name: &str| self.gone.contains(name) || named_by_gptq(name).is_some_and(|it| self.gone.contains(&*it));
        let text = without_names(text, &is_gone);
        Cow::Owned(self.rename_in(&text).into_owned())
    }

    fn rename_in<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.renamed.is_empty() {
            return Cow::Borrowed(text);
        }
        let new_name = |name: &str| {
            let own = named_by_gptq(name).and_then(|own| self.renamed.get(&*own));
            own.map(|new| excluded_by_gptq(new)).or_else(|| self.renamed.get(name).map(|new| (*new).to_owned()))
        };
        let (mut changed, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(start) = rest.find('"') {
            let mut strings = serde_json::Deserializer::from_str(&rest[start..]).into_iter::<String>();
            let Some(Ok(name)) = strings.next() else { break };
            let (string, after) = rest[start..].split_at(strings.byte_offset());
            changed += &rest[..start];
            changed += &new_name(&name).map_or_else(|| string.to_owned(), |name| serde_json::json!(name).to_string());
            rest = after;
        }
        Cow::Owned(changed + rest)
    }
}

/// Returns the dtype that a model computes in, according to its `config.json`: bfloat16 unless it names float32,
/// bfloat16 or float16. Weights are decoded to it by default.
pub fn default_target(config: Option<&str>) -> Dtype {
    named_dtype(config).unwrap_or(Dtype::Bfloat16)
}

/// Returns the dtype that `config.json` names, or `None` if it names none of these types.
pub fn named_dtype(config: Option<&str>) -> Option<Dtype> {
    let json = config.map(as_json).unwrap_or_default();
    let of = |json: &str| {
        let members = members(json)?;
        let named = DTYPE_KEYS.iter().find_map(|key| {
            let name: String = serde_json::from_str(members.get(*key)?.get()).ok()?;
            name.strip_prefix("torch.").unwrap_or(&name).parse::<Dtype>().ok()
        });
        named.filter(|dtype| dtype.is_weight())
    };
    let inner = || of(members(&json)?.get("text_config")?.get());
    of(&json).or_else(inner)
}

const DTYPE_KEYS: [&str; 2] = ["dtype", "torch_dtype"];

/// Changes the `config.json` of a model whose weights were decoded to `target` (`None` if none were). The result
/// describes no quantization or, if some weights stay quantized, lists the decoded modules as not quantized. `method`
/// is the result of recognition. Fails if the method cannot express which modules were decoded.
pub fn config_of(config: &str, method: Option<&str>, modules: &Modules, target: Option<Dtype>) -> Result<String> {
    let json = as_json(config);
    let names = members(&json).ok_or_else(not_object)?;
    let has_dtype = |names: &BTreeMap<_, _>| DTYPE_KEYS.iter().any(|key| names.contains_key(*key));
    let inner = names.get("text_config").and_then(|inner| members(inner.get()));
    let is_added = !has_dtype(&names) && !inner.is_some_and(|inner| has_dtype(&inner));
    let added = target.filter(|_| is_added).map(|target| ("torch_dtype", format!("\"{target}\"")));
    let mut failed = None;
    let changed = edit_part(config, added.as_slice(), &mut |key, text| {
        let is_of_mlx = key == "quantization" && text.starts_with('{');
        if !is_block(key) && !is_of_mlx && key != "expert_dtype" {
            return Some(text.into());
        }
        let method = method.filter(|_| !modules.left.is_empty())?;
        if key == "expert_dtype" || text == "null" {
            return Some(text.into());
        }
        let changed = excluding(text, method, modules, is_composite(config)).map_err(|error| failed = Some(error));
        changed.ok().map(Cow::Owned)
    });
    failed.map_or(Ok(()), Err)?;
    let changed = changed.ok_or_else(not_object)?;
    let computed_in: BTreeMap<&'static str, u64> = target.iter().map(|target| (target.name(), 1)).collect();
    let changed = with_new(&changed, "text_config", &|text| with_dtype(text, &computed_in)).unwrap_or(changed);
    Ok(with_dtype(&changed, &computed_in).unwrap_or(changed))
}

fn not_object() -> Error {
    Error::new("is not a JSON object")
}

fn is_block(key: &str) -> bool {
    matches!(key, "quantization_config" | "compression_config")
}

/// True if a member describes a part of the model, such as `text_config`.
fn is_part(key: &str) -> bool {
    key.ends_with("_config") && !is_block(key)
}

/// Edits the members of a part's description, and of the parts in it. `None` if it is not an object.
fn edit_part(text: &str, added: &[(&str, String)], edit: &mut ValueEdit) -> Option<String> {
    edited(text, added, &mut |key, text| {
        if is_part(key) { Some(edit_part(text, &[], edit).map_or(text.into(), Cow::Owned)) } else { edit(key, text) }
    })
}

/// Changes `hf_quant_config.json` after weights were decoded; `None`, to drop the file, if no weight stays quantized.
pub fn hf_quant_config_of(text: &str, modules: &Modules) -> Result<Option<String>> {
    if modules.left.is_empty() {
        return Ok(None);
    }
    let text = modules.update(text);
    let changed = with_new(&text, "quantization", &|text| modelopt::excluding(text, "exclude_modules", modules));
    changed.map(Some).ok_or_else(not_object)
}

/// Changes `quantize_config.json` after weights were decoded, like [`hf_quant_config_of`].
pub fn quantize_config_of(text: &str, method: Option<&str>, modules: &Modules) -> Result<Option<String>> {
    let method = method.filter(|_| !modules.left.is_empty());
    method.map(|method| excluding(text, method, modules, false)).transpose()
}

/// Returns the changes to the metadata of files after weights were decoded: each key, and its new value or `None` if it
/// is removed.
pub fn metadata_of<'m>(
    metadata: impl Iterator<Item = &'m (String, String)>,
    modules: &Modules,
) -> Vec<(String, Option<String>)> {
    let metadata: Vec<&(String, String)> = metadata.collect();
    let of_comfy = metadata.iter().filter(|(key, _)| key == CheckpointInfo::METADATA);
    let of_comfy = of_comfy.map(|(key, text)| (key.clone(), comfy_metadata_of(text, modules)));
    of_comfy.chain(torchao::metadata_of(&metadata, modules)).collect()
}

/// Refuses new names of modules for which patterns in the config say something else than for the old ones. The texts are
/// those of `config.json`, `hf_quant_config.json` and `quantize_config.json`.
pub fn check_renamed<'n>(
    before: [Option<&str>; 3],
    after: [Option<&str>; 3],
    renamed: impl Iterator<Item = (&'n str, &'n str)>,
    modules: &Modules,
) -> Result<()> {
    let read = |[config, hf_quant_config, quantize_config]: [Option<&str>; 3]| {
        CheckpointConfig::read(&CheckpointInfo {
            tensors: &[],
            folder: Path::new(""),
            config,
            hf_quant_config,
            quantize_config,
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

/// Adds the decoded modules to the modules that a block of the named method lists as not quantized.
fn excluding(text: &str, name: &str, modules: &Modules, is_composite: bool) -> Result<String> {
    let Some(format) = find(name) else {
        return Err(Error::new(format!(
            "the quant_method '{}' cannot say which modules are not quantized; decode all weights",
            shorten(name)
        )));
    };
    let changed = (format.exclude)(&modules.update(text), modules, is_composite)?;
    changed.ok_or_else(|| Error::new("its quantization_config is not an object"))
}
