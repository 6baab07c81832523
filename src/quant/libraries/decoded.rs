//! Changes to `config.json`, and to other files that describe how weights are quantized, after weights were decoded.

use super::{LIBRARIES, library_of};
use crate::container::checkpoint::with_dtype;
use crate::container::{MetadataChange, as_json, members};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::config::{Modules, ValueEdit, edited, is_composite, with_new};
use crate::text::shorten;
use std::borrow::Cow;
use std::collections::BTreeMap;

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
        let is_second = key == "quantization" && text.starts_with('{'); // of MLX
        if !is_block(key) && !is_second && key != "expert_dtype" {
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

/// Changes `quantize_config.json` or `quantization_config.json` after weights were decoded, like `config.json`.
pub fn quantize_config_of(text: &str, method: Option<&str>, modules: &Modules) -> Result<Option<String>> {
    let method = method.filter(|_| !modules.left.is_empty());
    method.map(|method| excluding(text, method, modules, false)).transpose()
}

/// Returns the changes to the metadata of files after weights were decoded: each key, and its new value or `None` if it
/// is removed.
pub fn metadata_of<'m>(metadata: impl Iterator<Item = &'m (String, String)>, modules: &Modules) -> Vec<MetadataChange> {
    let metadata: Vec<&(String, String)> = metadata.collect();
    LIBRARIES.iter().flat_map(|library| (library.metadata)(&metadata, modules)).collect()
}

/// Adds the decoded modules to the modules that a block of the named method lists as not quantized.
fn excluding(text: &str, name: &str, modules: &Modules, is_composite: bool) -> Result<String> {
    let Some(library) = library_of(name) else {
        return Err(Error::new(format!(
            "the quant_method '{}' cannot say which modules are not quantized; decode all weights",
            shorten(name)
        )));
    };
    let changed = (library.exclude)(&modules.update(text), modules, is_composite)?;
    changed.ok_or_else(|| Error::new("its quantization_config is not an object"))
}
