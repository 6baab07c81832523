//! `model.safetensors.index.json`: the shard of each tensor, as `transformers` reads and writes it.

use super::{read_text, without_byte_order_mark};
use crate::container::json::{MapOnly, SharedValues, without_python_literals};
use crate::error::{Error, Result};
use crate::text::shorten;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// The part of an index's name between the model and the variant.
const INFIX: &str = ".safetensors.index.";
/// The usual name of an index; a variant's name is part of it (`model.safetensors.index.fp16.json`).
pub const INDEX: &str = "model.safetensors.index.json";

pub struct Index {
    pub name: String,
    pub metadata: Map<String, Value>,
    /// The shard of every tensor.
    pub(super) weight_map: WeightMap,
}

/// The shard of every tensor.
pub(super) type WeightMap = BTreeMap<Box<str>, Arc<str>>;

/// Marks a string that replaces a Python literal while the text is JSON.
const LITERAL: char = '\u{f8ff}';

/// Maximum length of the metadata, which are totals: as parsed values, they take 50 times the memory of their text.
const MOST_METADATA: usize = 1 << 20;

/// The parts of an index that matter; everything else is ignored.
#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    metadata: Option<Box<RawValue>>,
    weight_map: SharedValues,
}

impl Index {
    pub(super) fn read(path: &Path) -> Result<Self> {
        Self::parse(path).map_err(|error| error.in_file(path))
    }

    fn parse(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let json = without_python_literals(without_byte_order_mark(&text), |literal| format!("\"{LITERAL}{literal}\""));
        let MapOnly(content) = serde_json::from_str::<MapOnly<Content>>(&json)
            .map_err(|error| Error::new(format!("malformed index: {}", shorten(&error.to_string()))))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = content.metadata.as_ref().map_or("null", |metadata| metadata.get());
        if text.len() > MOST_METADATA {
            let what = format!("the index has metadata of {} bytes; at most {MOST_METADATA} are read", text.len());
            return Err(Error::new(what));
        }
        let metadata = if let Ok(Value::Object(metadata)) = serde_json::from_str(text) { metadata } else { Map::new() };
        Ok(Self { name, metadata, weight_map: content.weight_map.0 })
    }
}

/// Reads the shard of each tensor from an index file.
pub fn weight_map(path: &Path) -> Result<WeightMap> {
    Index::read(path).map(|index| index.weight_map)
}

/// Returns the text of an index in the style of `transformers` 5: sorted keys, two spaces, non-ASCII characters
/// escaped. `bytes` and `elements` are totals of all tensors; other metadata are kept.
pub fn index_text(
    metadata: &Map<String, Value>,
    weight_map: &BTreeMap<&str, &str>,
    bytes: u64,
    elements: u64,
) -> String {
    let mut metadata = metadata.clone();
    metadata.insert("total_size".to_owned(), json!(bytes));
    metadata.insert("total_parameters".to_owned(), json!(elements));
    let index = json!({ "metadata": metadata, "weight_map": weight_map });
    let text = serde_json::to_string_pretty(&index).expect("a JSON value is always text");
    let mut ascii = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if c.is_ascii() {
            ascii.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(ascii, "\\u{unit:04x}");
            }
        }
    }
    for literal in ["NaN", "Infinity", "-Infinity"] {
        ascii = ascii.replace(&format!("\"\\u{:04x}{literal}\"", u32::from(LITERAL)), literal);
    }
    ascii + "\n"
}

/// Returns the name of a shard, or of an index, of a checkpoint of PyTorch as a name for safetensors:
/// `pytorch_model-00001-of-00002.bin` becomes `model-00001-of-00002.safetensors`. Other names stay.
pub fn as_safetensors(name: &str) -> String {
    let renamed = match name.split_once(".bin") {
        Some((stem, "")) => format!("{stem}.safetensors"),
        Some((stem, rest)) if rest.starts_with(".index.") => format!("{stem}.safetensors{rest}"),
        _ => return name.to_owned(),
    };
    // diffusers keeps the name of its models: diffusion_pytorch_model.safetensors.
    renamed.strip_prefix("pytorch_").map_or_else(|| renamed.clone(), str::to_owned)
}

/// Returns the name of the index of shards that replace a single shard. Loaders put a variant after `index`:
/// `model.safetensors.index.fp16.json` for `model.fp16.safetensors`.
pub fn index_in_place_of(shard: &str) -> String {
    let stem = shard.strip_suffix(".safetensors").unwrap_or(shard);
    match stem.split_once('.') {
        Some((model @ ("model" | "diffusion_pytorch_model"), variant)) => format!("{model}{INFIX}{variant}.json"),
        _ => format!("{stem}{INFIX}json"),
    }
}

/// Returns names for `count` shards in the style of `transformers`, from the name of their index: `model.safetensors`
/// for one shard, `model-00001-of-00002.safetensors` for several, `model.fp16-00001-of-00002.safetensors` for the index
/// of a variant.
pub fn shard_names(index: &str, count: usize) -> Vec<String> {
    let (model, variant) = index.split_once(INFIX).unwrap_or(("model", "json"));
    let variant = variant.strip_suffix("json").unwrap_or_default().trim_end_matches('.');
    let model = if variant.is_empty() { model.to_owned() } else { format!("{model}.{variant}") };
    if count == 1 {
        return vec![format!("{model}.safetensors")];
    }
    (1..=count).map(|number| format!("{model}-{number:05}-of-{count:05}.safetensors")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_named_as_transformers_names_them() {
        assert_eq!(shard_names(INDEX, 1), ["model.safetensors"]);
        assert_eq!(shard_names(INDEX, 2)[1], "model-00002-of-00002.safetensors");
        let variant = "diffusion_pytorch_model.safetensors.index.fp16.json";
        assert_eq!(shard_names(variant, 2)[0], "diffusion_pytorch_model.fp16-00001-of-00002.safetensors");
        assert_eq!(index_in_place_of("diffusion_pytorch_model.fp16.safetensors"), variant);
        assert_eq!(index_in_place_of("model.safetensors"), INDEX);
        assert_eq!(index_in_place_of("Llama-3.2-1B.safetensors"), "Llama-3.2-1B.safetensors.index.json");
    }

    #[test]
    fn names_of_pytorch_become_names_of_safetensors() {
        for (name, renamed) in [
            ("pytorch_model.bin", "model.safetensors"),
            ("pytorch_model-00001-of-00002.bin", "model-00001-of-00002.safetensors"),
            ("pytorch_model.fp16.bin", "model.fp16.safetensors"),
            ("pytorch_model.bin.index.json", INDEX),
            ("pytorch_model.bin.index.fp16.json", "model.safetensors.index.fp16.json"),
            ("diffusion_pytorch_model.bin", "diffusion_pytorch_model.safetensors"),
            ("model.safetensors", "model.safetensors"),
        ] {
            assert_eq!(as_safetensors(name), renamed);
        }
    }

    #[test]
    fn an_index_is_text_as_pythons_json_writes_it() {
        let weight_map = BTreeMap::from([("w\u{e9}\u{1f600}", "b"), ("a\"\u{7f}", "a")]);
        let metadata = Map::from_iter([("total_size".to_owned(), json!(1)), ("note".to_owned(), json!([1.5]))]);
        assert_eq!(
            index_text(&metadata, &weight_map, 8, 2),
            "{\n  \"metadata\": {\n    \"note\": [\n      1.5\n    ],\n    \"total_parameters\": 2,\n    \
             \"total_size\": 8\n  },\n  \"weight_map\": {\n    \"a\\\"\u{7f}\": \"a\",\n    \
             \"w\\u00e9\\ud83d\\ude00\": \"b\"\n  }\n}\n"
        );
    }
}
