//! Rewrites `config.json`, and other descriptions of how weights are quantized, after weights were decoded.
//!
//! Unchanged parts keep their bytes and their order.

use super::method::QuantMethod;
use super::patterns::{ModulePatterns, entry_of_compressed_tensors, expert_of, is_composite};
use crate::container::checkpoint::with_dtype;
use crate::container::{as_json, members};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::text::shorten;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// The modules of a checkpoint whose weights were quantized.
pub struct Modules<'a> {
    pub decoded: &'a HashSet<&'a str>,
    /// Modules that stay quantized.
    pub left: &'a HashSet<&'a str>,
    /// New names of modules by old name; the other fields contain new names.
    pub renamed: &'a HashMap<String, String>,
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
        let named = ["dtype", "torch_dtype"].iter().find_map(|key| {
            let name: String = serde_json::from_str(members.get(*key)?.get()).ok()?;
            name.strip_prefix("torch.").unwrap_or(&name).parse::<Dtype>().ok()
        });
        named.filter(|dtype| dtype.is_weight())
    };
    let inner = || of(members(&json)?.get("text_config")?.get());
    of(&json).or_else(inner)
}

/// Rewrites the `config.json` of a model whose weights were decoded to `target` (`None` if none were). The result
/// describes no quantization or, if some weights stay quantized, lists the decoded modules as not quantized. `method`
/// is the result of recognition. Fails if the method cannot express which modules were decoded.
pub fn config_of(config: &str, method: Option<&str>, modules: &Modules, target: Option<Dtype>) -> Result<String> {
    let json = as_json(config);
    let names = members(&json).ok_or_else(|| Error::new("is not a JSON object"))?;
    let keys = ["dtype", "torch_dtype"];
    let inner = names.get("text_config").and_then(|inner| members(inner.get()));
    let has_dtype = [Some(&names), inner.as_ref()]
        .into_iter()
        .flatten()
        .any(|names| keys.iter().any(|key| names.contains_key(*key)));
    let computed_in: BTreeMap<&'static str, u64> = target.iter().map(|target| (target.name(), 1)).collect();
    let added = target.filter(|_| !has_dtype).map(|target| ("torch_dtype", format!("\"{target}\"")));
    let mut failed = None;
    let mut blocks = |key: &str, text: &str, _: &str| {
        let is_of_mlx = key == "quantization" && text.starts_with('{');
        let is_block = is_block(key);
        if !is_block && !is_of_mlx && key != "expert_dtype" {
            return Edit::Keep;
        }
        let Some(method) = method.filter(|_| !modules.left.is_empty()) else { return Edit::Remove };
        if !is_block || text == "null" {
            return Edit::Keep;
        }
        match without(text, method, modules, is_composite(config)) {
            Ok(text) => Edit::Replace(text),
            Err(error) => {
                failed = Some(error);
                Edit::Keep
            }
        }
    };
    let changed = rewrite(config, &json, added.as_slice(), &mut |key, text, json| match key {
        "text_config" => edit_part(text, json, &mut blocks)
            .map_or(Edit::Keep, |text| Edit::Replace(with_dtype(&text, &computed_in).unwrap_or(text))),
        _ if is_part(key) => edit_part(text, json, &mut blocks).map_or(Edit::Keep, Edit::Replace),
        _ => blocks(key, text, json),
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let changed = changed.ok_or_else(|| Error::new("is not a JSON object"))?;
    Ok(with_dtype(&changed, &computed_in).unwrap_or(changed))
}

fn is_block(key: &str) -> bool {
    matches!(key, "quantization_config" | "compression_config")
}

/// True if a member describes a part of the model, such as `text_config`.
fn is_part(key: &str) -> bool {
    key.ends_with("_config") && !is_block(key)
}

/// Edits the members of a part's description, and of the parts in it. `None` if it is not an object.
fn edit_part(text: &str, json: &str, edit: &mut dyn FnMut(&str, &str, &str) -> Edit) -> Option<String> {
    rewrite(text, json, &[], &mut |key, text, json| match key {
        _ if is_part(key) => edit_part(text, json, edit).map_or(Edit::Keep, Edit::Replace),
        _ => edit(key, text, json),
    })
}

/// Rewrites `hf_quant_config.json` after weights were decoded; `None`, to drop the file, if no weight stays quantized.
pub fn hf_quant_config_of(text: &str, modules: &Modules) -> Result<Option<String>> {
    if modules.left.is_empty() {
        return Ok(None);
    }
    let text = renamed(text, modules);
    let changed = with_new(&text, &as_json(&text), "quantization", &|text, json| {
        modelopt(text, json, "exclude_modules", modules)
    });
    changed.map(Some).ok_or_else(|| Error::new("is not a JSON object"))
}

/// Rewrites `quantize_config.json` after weights were decoded, like [`hf_quant_config_of`].
pub fn quantize_config_of(text: &str, method: Option<&str>, modules: &Modules) -> Result<Option<String>> {
    let method = method.filter(|_| !modules.left.is_empty());
    method.map(|method| without(text, method, modules, false)).transpose()
}

/// Removes the decoded layers from `ComfyUI`'s description in a file's metadata; `None` if no layer stays quantized.
pub fn comfy_metadata_of(text: &str, modules: &Modules) -> Option<String> {
    if modules.left.is_empty() {
        return None;
    }
    let text = renamed(text, modules);
    with_new(&text, &as_json(&text), "layers", &|text, json| without_members(text, json, modules))
}

/// Adds the decoded modules to the modules that a `quantization_config` of the named method lists as not quantized.
fn without(text: &str, name: &str, modules: &Modules, is_composite: bool) -> Result<String> {
    let text = &*renamed(text, modules);
    let json = &*as_json(text);
    let broken = || Error::new("its quantization_config is not an object");
    let decoded = sorted(modules);
    let changed = match QuantMethod::find(name) {
        Some(method @ (QuantMethod::FineGrained | QuantMethod::Mxfp4 | QuantMethod::Awq | QuantMethod::Quanto)) => {
            let entries = around_banks(&decoded, modules)?;
            let names = members(json).ok_or_else(broken)?;
            let lists = method.ignored_keys();
            let keys: Vec<&str> = lists.iter().copied().filter(|key| names.contains_key(*key)).collect();
            listed(text, json, if keys.is_empty() { &lists[..1] } else { &keys }, &entries)
        }
        Some(method @ QuantMethod::CompressedTensors) => {
            let left: HashSet<String> = modules.left.iter().map(|name| entry_of_compressed_tensors(name)).collect();
            let entry = |name: &&str| {
                let entry = entry_of_compressed_tensors(name);
                if left.contains(&entry) { (*name).to_owned() } else { entry }
            };
            let mut entries: Vec<String> = decoded.iter().map(entry).collect();
            if is_composite {
                let patterns = ModulePatterns::new(modules.left.iter().copied());
                let patterns: BTreeSet<_> = decoded.iter().filter_map(|module| patterns.ignored(module)).collect();
                entries.extend(patterns);
            }
            entries.dedup();
            let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
            listed(text, json, method.ignored_keys(), &entries)
        }
        Some(method @ QuantMethod::BitsAndBytes) => listed(text, json, method.ignored_keys(), &decoded),
        Some(QuantMethod::ModelOpt) => modelopt(text, json, "ignore", modules),
        Some(QuantMethod::Gptq) => {
            let entry = |name: &&str| (excluded_by_gptq(name), "{}".to_owned());
            keyed(text, json, "dynamic", &decoded.iter().map(entry).collect::<Vec<_>>())
        }
        Some(QuantMethod::AutoRound) => {
            let entry = |name: &&str| ((*name).to_owned(), "{\"bits\": 16}".to_owned());
            keyed(text, json, "extra_config", &decoded.iter().map(entry).collect::<Vec<_>>())
        }
        None => {
            return Err(Error::new(format!(
                "the quant_method '{}' cannot say which modules are not quantized; decode all weights",
                shorten(name)
            )));
        }
    };
    changed.ok_or_else(broken)
}

/// Replaces the old names of modules in a description by the new ones.
fn renamed<'a>(text: &'a str, modules: &Modules) -> Cow<'a, str> {
    if modules.renamed.is_empty() {
        return Cow::Borrowed(text);
    }
    let new_name = |name: &str| {
        let of_gptq = name.strip_prefix("-:^").and_then(|name| name.strip_suffix('$'));
        let own = of_gptq.and_then(|own| modules.renamed.iter().find(|(old, _)| regex::escape(old) == own));
        own.map(|(_, new)| excluded_by_gptq(new)).or_else(|| modules.renamed.get(name).cloned())
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

/// Returns the key in `dynamic` for a module that is not quantized.
fn excluded_by_gptq(module: &str) -> String {
    format!("-:^{}$", regex::escape(module))
}

fn sorted<'a>(modules: &Modules<'a>) -> Vec<&'a str> {
    let mut names: Vec<&str> = modules.decoded.iter().copied().collect();
    names.sort_unstable();
    names
}

/// Returns the names that transformers uses for modules: a bank of experts is one module, however many tensors it has.
fn around_banks<'a>(decoded: &[&'a str], modules: &Modules) -> Result<Vec<&'a str>> {
    let bank =
        |name: &str| name.rsplit_once('.').map(|(bank, _)| bank.len()).filter(|len| name[..*len].ends_with(".experts"));
    let left: HashSet<&str> = modules.left.iter().filter_map(|name| Some(&name[..bank(name)?])).collect();
    let mut entries = Vec::with_capacity(decoded.len());
    for name in decoded {
        let entry = bank(name).map_or(*name, |len| &name[..len]);
        if left.contains(entry) {
            let message =
                format!("a config cannot say that a part of '{}' is quantized; decode all of it", shorten(entry));
            return Err(Error::new(message));
        }
        entries.push(entry);
    }
    // Experts that are stored one by one also form one module per bank.
    let left: HashSet<&str> = modules.left.iter().filter_map(|name| Some(expert_of(name)?.0)).collect();
    let banks = decoded.iter().filter_map(|name| Some(expert_of(name)?.0));
    entries.extend(banks.filter(|bank| !left.contains(bank)));
    entries.sort_unstable();
    entries.dedup();
    Ok(entries)
}

/// Adds the decoded modules to the list `key` and removes their layers.
fn modelopt(text: &str, json: &str, key: &str, modules: &Modules) -> Option<String> {
    let text = with_new(text, json, "quantized_layers", &|text, json| without_members(text, json, modules))?;
    listed(&text, &as_json(&text), &[key], &sorted(modules))
}

/// Replaces the value of this key in an object, unless `new` returns `None`.
fn with_new(text: &str, json: &str, key: &str, new: &dyn Fn(&str, &str) -> Option<String>) -> Option<String> {
    rewrite(text, json, &[], &mut |name, text, json| {
        if name == key { new(text, json).map_or(Edit::Keep, Edit::Replace) } else { Edit::Keep }
    })
}

/// Removes the members of an object that are named like decoded modules.
fn without_members(text: &str, json: &str, modules: &Modules) -> Option<String> {
    rewrite(text, json, &[], &mut |key, _, _| if modules.decoded.contains(key) { Edit::Remove } else { Edit::Keep })
}

/// Adds entries to the lists under these keys of an object.
fn listed(text: &str, json: &str, keys: &[&str], entries: &[&str]) -> Option<String> {
    let names = members(json)?;
    let without_known = |list: Option<&&RawValue>| {
        let known: HashSet<String> = list.and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default();
        let new = entries.iter().filter(move |entry| !known.contains(**entry));
        new.map(|entry| serde_json::json!(entry).to_string()).collect::<Vec<_>>()
    };
    let all = without_known(None);
    let added = keys.iter().filter(|key| !all.is_empty() && !names.contains_key(**key));
    let added: Vec<(&str, String)> = added.map(|key| (*key, format!("[{}]", all.join(", ")))).collect();
    rewrite(text, json, &added, &mut |key, text, _| {
        let items = without_known(names.get(key));
        if !keys.contains(&key) || items.is_empty() {
            return Edit::Keep;
        }
        let inner = text.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let Some(inner) = inner else { return Edit::Replace(format!("[{}]", items.join(", "))) };
        let body = inner.trim_end();
        let before = &body[..body.len() - body.trim_start().len()];
        let joint = format!(",{}", if before.is_empty() { " " } else { before });
        Edit::Replace(match body {
            "" => format!("[{}]", items.join(", ")),
            body => format!("[{body}{joint}{}{}]", items.join(&joint), &inner[body.len()..]),
        })
    })
}

/// Adds members to the inner object under this key.
fn keyed(text: &str, json: &str, key: &str, entries: &[(String, String)]) -> Option<String> {
    let names = members(json)?;
    // GPTQModel takes the first pattern that matches, so new ones come before the others.
    let old = names.get(key).and_then(|value| members(value.get())).unwrap_or_default();
    let new = entries.iter().filter(|(key, _)| !old.contains_key(&**key));
    let new: Vec<String> = new.map(|(key, value)| format!("{}: {value}", serde_json::json!(key))).collect();
    let new = new.join(", ");
    if new.is_empty() {
        return Some(text.to_owned());
    }
    if !names.contains_key(key) {
        return rewrite(text, json, &[(key, format!("{{{new}}}"))], &mut |_, _, _| Edit::Keep);
    }
    with_new(text, json, key, &|text, _| match text.trim().strip_prefix('{') {
        Some(inner) if !old.is_empty() => Some(format!("{{{new}, {}", inner.trim_start())),
        _ => Some(format!("{{{new}}}")),
    })
}

/// Adds a member at the end of an object, in place of a member with the same key. `None` if it is not an object.
pub(super) fn add_member(text: &str, key: &str, value: &str) -> Option<String> {
    rewrite(text, &as_json(text), &[(key, value.to_owned())], &mut |found, _, _| {
        if found == key { Edit::Remove } else { Edit::Keep }
    })
}

/// Edit of a member.
enum Edit {
    Keep,
    Remove,
    Replace(String),
}

/// A member of an object: its key, and the positions of key and value.
struct JsonMember<'a> {
    key: Cow<'a, str>,
    start: usize,
    value: Range<usize>,
}

/// Changes members of an object and adds others. `json` is the text with Python's literals replaced, of the same
/// length. `None` if it is not an object.
fn rewrite(
    text: &str,
    json: &str,
    added: &[(&str, String)],
    edit: &mut dyn FnMut(&str, &str, &str) -> Edit,
) -> Option<String> {
    let members = scan(json)?;
    let Some(first) = members.first() else {
        let body: Vec<String> = added.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        return Some(if body.is_empty() { text.to_owned() } else { format!("{{{}}}", body.join(", ")) });
    };
    let mut changed = text[..first.start].to_owned();
    let (mut end, mut is_first) = (first.start, true);
    for member in &members {
        let value = member.value.clone();
        let replaced = match edit(&member.key, &text[value.clone()], &json[value.clone()]) {
            Edit::Remove => {
                end = value.end;
                continue;
            }
            Edit::Keep => None,
            Edit::Replace(value) => Some(value),
        };
        let start = if is_first { member.start } else { end };
        changed += &text[start..value.start];
        changed += replaced.as_deref().unwrap_or(&text[value.clone()]);
        (end, is_first) = (value.end, false);
    }
    // Uses the whitespace between the brace and the first member.
    let before = text[..first.start].rsplit('{').next().unwrap_or_default();
    for (key, value) in added {
        let joint = if is_first { String::new() } else { format!(",{}", if before.is_empty() { " " } else { before }) };
        changed.extend([&joint, "\"", key, "\": ", value]);
        is_first = false;
    }
    let last = members.last().map_or(0, |member| member.value.end);
    Some(changed + &text[last..])
}

/// Returns the members of an object, in order.
fn scan(json: &str) -> Option<Vec<JsonMember<'_>>> {
    let skip = |at: usize| at + json[at..].len() - json[at..].trim_start().len();
    let mut at = skip(0);
    if !json[at..].starts_with('{') {
        return None;
    }
    at = skip(at + 1);
    let mut found = Vec::new();
    while !json[at..].starts_with('}') {
        let value = |at: usize| {
            let mut stream = serde_json::Deserializer::from_str(&json[at..]).into_iter::<&RawValue>();
            let value = stream.next()?.ok()?.get();
            Some((value, at + stream.byte_offset()))
        };
        let start = at;
        let (key, end) = value(at)?;
        at = skip(end);
        at = skip(at + json[at..].strip_prefix(':').map(|_| 1)?);
        let (_, end) = value(at)?;
        found.push(JsonMember { key: serde_json::from_str(key).ok()?, start, value: at..end });
        at = skip(end);
        if json[at..].starts_with(',') {
            at = skip(at + 1);
        }
        json.get(at..).filter(|rest| !rest.is_empty())?;
    }
    Some(found)
}
