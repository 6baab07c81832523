//! The keys about a model as a whole: its name, its size, its origin, and how answers are sampled.

use super::card::Card;
use super::config::Config;
use super::keys::{KeyValue, Keys};
use super::tokenizer::json_file;
use crate::container::gguf::GgufKey;
use crate::container::gguf::write::KeyList;
use crate::error::Result;
use crate::text::is_number;
use serde_json::{Map, Value};
use std::path::Path;

/// Settings of `generation_config.json` that are whole numbers, and their keys.
const SAMPLING_COUNTS: &[(&str, &str)] =
    &[("top_k", "top_k"), ("penalty_last_n", "penalty_last_n"), ("mirostat", "mirostat")];
/// Settings that are numbers.
const SAMPLING_NUMBERS: &[(&str, &[&str])] = &[
    ("top_p", &["top_p"]),
    ("min_p", &["min_p"]),
    ("xtc_probability", &["xtc_probability"]),
    ("xtc_threshold", &["xtc_threshold"]),
    ("temp", &["temperature"]),
    ("penalty_repeat", &["penalty_repeat", "repetition_penalty"]),
    ("mirostat_tau", &["mirostat_tau"]),
    ("mirostat_eta", &["mirostat_eta"]),
];
/// The address in front of the names of repositories.
const HUB: &str = "https://huggingface.co/";
/// Suffixes of a number of weights.
const SUFFIXES: [(f64, &str); 4] = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")];

/// Adds the keys. `tensors` has the names and shapes of the new file.
pub(super) fn add(folder: &Path, config: &Config, tensors: &[(&str, &[u64])], keys: &mut Keys) -> Result<()> {
    let text = |value: &str| KeyValue::Text(value.to_owned());
    keys.set("general.type", text("model"));
    sampling(folder, keys)?;
    let card = Card::read(folder);
    let own = config.raw().get("_name_or_path").and_then(Value::as_str);
    let own = own.filter(|name| !name.is_empty() && name.matches('/').count() <= 1);
    let folder_name = folder.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let name = card.text(&["name", "model_name"]).map(str::to_owned);
    let name = name.or_else(|| own.map(model_name)).or_else(|| folder_name.as_deref().map(model_name));
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        keys.set("general.name", KeyValue::Text(name));
    }
    for (key, names) in [
        ("author", &["author", "model_author", "model_creator"][..]),
        ("version", &["version", "model_version"]),
        ("organization", &["organization", "model_organization"]),
        ("description", &["description", "model_description"]),
    ] {
        if let Some(value) = card.text(names) {
            keys.set(&format!("general.{key}"), text(value));
        }
    }
    match card.text(&["size_label", "model_size_label"]) {
        Some(label) => keys.set("general.size_label", text(label)),
        None => keys.set("general.size_label", KeyValue::Text(size_label(tensors))),
    }
    if let Some(license) = card.joined("license") {
        keys.set("general.license", KeyValue::Text(license));
    }
    for (key, name) in [("license.name", "license_name"), ("license.link", "license_link")] {
        if let Some(value) = card.text(&[name]) {
            keys.set(&format!("general.{key}"), text(value));
        }
    }
    sources(&card, "base_model", &["base_model", "base_models", "base_model_sources"], keys);
    sources(&card, "dataset", &["datasets", "dataset", "dataset_sources"], keys);
    for (key, names) in [("tags", ["tags", "pipeline_tag"]), ("languages", ["languages", "language"])] {
        let list: Vec<Vec<u8>> =
            names.iter().flat_map(|name| card.list(name)).map(|text| text.clone().into_bytes()).collect();
        if !list.is_empty() {
            keys.put(GgufKey::list(&format!("general.{key}"), KeyList::Texts(&list)));
        }
    }
    Ok(())
}

/// The settings with which answers are sampled, unless a user says otherwise.
fn sampling(folder: &Path, keys: &mut Keys) -> Result<()> {
    let settings: Map<String, Value> = json_file(folder, "generation_config.json")?.unwrap_or_default();
    if let Some(order) = settings.get("sequence").and_then(Value::as_str) {
        keys.set("general.sampling.sequence", KeyValue::Text(order.to_owned()));
    }
    for (key, name) in SAMPLING_COUNTS {
        let count = settings.get(*name).and_then(Value::as_i64).and_then(|count| i32::try_from(count).ok());
        if let Some(count) = count {
            keys.set(&format!("general.sampling.{key}"), KeyValue::Integer(count));
        }
    }
    for (key, names) in SAMPLING_NUMBERS {
        let number = names.iter().find_map(|name| settings.get(*name)).and_then(Value::as_f64);
        if let Some(number) = number {
            keys.set(&format!("general.sampling.{key}"), KeyValue::Number(number as f32));
        }
    }
    Ok(())
}

/// Adds the repositories of the models or of the data that this model was made from.
fn sources(card: &Card, key: &str, names: &[&str], keys: &mut Keys) {
    /// Maximum number of repositories.
    const MOST: usize = 100;
    let Some(found) = names.iter().map(|name| card.list(name)).find(|list| !list.is_empty()) else { return };
    keys.set(&format!("general.{key}.count"), KeyValue::Count(found.len().min(MOST) as u32));
    for (number, name) in found.iter().take(MOST).enumerate() {
        let mut set = |field: &str, value: String| {
            keys.set(&format!("general.{key}.{number}.{field}"), KeyValue::Text(value));
        };
        let is_url = ["http://", "https://", "ssh://"].iter().any(|start| name.starts_with(start));
        let parts = if is_url { name.strip_prefix(HUB) } else { Some(name.as_str()) };
        let parts = parts.filter(|parts| !is_url || parts.matches('/').count() == 1);
        if let Some(parts) = parts {
            set("name", model_name(parts));
            if let Some((organization, _)) = parts.split_once('/') {
                set("organization", title(organization));
            }
        }
        if is_url {
            set("repo_url", name.clone());
        } else if name.contains('/') {
            set("repo_url", format!("{HUB}{name}"));
        }
    }
}

/// Returns the name of a model, from that of its repository.
fn model_name(name: &str) -> String {
    title(name.split_once('/').map_or(name, |(_, name)| name))
}

/// Returns words in place of hyphens, which begin with capitals unless they are versions or numbers.
fn title(name: &str) -> String {
    let is_version = |word: &str| {
        let rest = word.strip_prefix('v').unwrap_or(word);
        word.starts_with(|first: char| first.is_ascii_digit()) || rest != word && rest.split('.').all(is_number)
    };
    let word = |word: &str| {
        let is_lower = word.chars().any(char::is_lowercase) && !word.chars().any(char::is_uppercase);
        if !is_lower || is_version(word) {
            return word.to_owned();
        }
        let (mut text, mut is_inside) = (String::with_capacity(word.len()), false);
        for character in word.chars() {
            if is_inside {
                text.push(character);
            } else {
                text.extend(character.to_uppercase());
            }
            is_inside = character.is_alphabetic();
        }
        text
    };
    name.replace('-', " ").split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// Returns the number of weights in two digits; with experts, their number and the weights that a token uses with one.
fn size_label(tensors: &[(&str, &[u64])]) -> String {
    let (mut shared, mut expert, mut experts, mut stacks) = (0, 0, 0, 0);
    for (name, shape) in tensors {
        let count = shape.iter().fold(1_u64, |product, length| product.saturating_mul(*length));
        let place = if name.contains(".bias") { 2 } else { 3 };
        match shape.len().checked_sub(place).filter(|_| name.contains("_exps.") && shape.len() >= 3) {
            Some(at) if shape[at] > 0 => {
                expert += count / shape[at];
                experts += shape[at];
                stacks += 1;
            }
            _ => shared += count,
        }
    }
    match experts.checked_div(stacks).filter(|experts| *experts > 0) {
        Some(experts) => format!("{experts}x{}", rounded(shared + expert)),
        None => rounded(shared + expert),
    }
}

fn rounded(count: u64) -> String {
    let count = count as f64;
    let (unit, suffix) = SUFFIXES.into_iter().find(|(unit, _)| count > *unit).unwrap_or(SUFFIXES[3]);
    let scaled = count * (1.0 / unit);
    let digits = match scaled.round_ties_even() {
        0.0 => 0,
        whole => format!("{whole}").len(),
    };
    format!("{scaled:.0$}{suffix}", 2_usize.saturating_sub(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_converter() {
        for (name, wanted) in [
            ("Qwen/qwen3-8b-instruct", "Qwen3 8b Instruct"),
            ("llama-3.1-v1.5-v2x", "Llama 3.1 v1.5 V2X"),
            ("Tiny-Llama", "Tiny Llama"),
            ("my.model", "My.Model"),
        ] {
            assert_eq!(model_name(name), wanted);
        }
    }

    #[test]
    fn sizes_have_two_digits() {
        for (count, wanted) in
            [(127_360, "127K"), (9_400, "9.4K"), (400, "0.40K"), (8_030_261_248, "8.0B"), (70_553_706_496, "71B")]
        {
            assert_eq!(rounded(count), wanted);
        }
        let shapes: [(&str, &[u64]); 2] = [("blk.0.ffn_up_exps.weight", &[4, 10, 1000]), ("output.weight", &[5, 1000])];
        assert_eq!(size_label(&shapes), "4x15K");
    }
}
