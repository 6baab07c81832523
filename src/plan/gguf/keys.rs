//! The keys of a new GGUF file: the keys of another one, and keys that describe its types.

use super::importance::ImportanceFile;
use crate::container::gguf::names::MetadataValue;
use crate::container::gguf::sizes::{SizeDifference, has_latent_attention, size_difference};
use crate::container::gguf::{ALIGNMENT, NUMBER, ORIGINAL_SHAPE, SPLIT, first_number, first_part, list_length};
use crate::container::{self, ARCHITECTURE, GgufKey, Input};
use crate::error::{Error, Opt, Result};
use crate::quant::gguf::language::LanguageModel;
use crate::text::{quoted, shorten};
use std::collections::HashSet;
use std::path::Path;

/// The key for the version of ggml's block formats.
const VERSION: &str = "general.quantization_version";
/// The key for llama.cpp's number of a type or mix.
const FILE_TYPE: &str = "general.file_type";
/// The start of the keys about an importance matrix.
const IMATRIX: &str = "quantize.imatrix.";
/// The version of the formats that tcast writes.
const CURRENT: u32 = 2;
/// The remedy for a file that does not describe the model.
const SAME_MODEL: &str = "name a .gguf file of the same model, in any of its types";
/// Maximum length of the texts about an importance matrix, as in llama.cpp.
const MAX_TEXT: usize = 127;

/// Opens a file with the keys of a language model: a GGUF, and the first of its parts if it is split.
pub(super) fn open(path: &Path) -> Result<Input> {
    let other = |what: &str| Error::new(what).in_file(path).with(Opt::METADATA_FROM, SAME_MODEL);
    if path.is_dir() {
        return Err(other("is a folder, and metadata is taken from a GGUF file"));
    }
    let input = container::probe(path)?;
    if !input.is_gguf() {
        return Err(other("is not a GGUF file, from which metadata can be taken"));
    }
    if input.contents.value(NUMBER).is_some_and(|number| number != "0") {
        let error = Error::new("is not the first part of its model, which has the metadata").in_file(path);
        let first = first_part(path).filter(|first| first.is_file());
        return Err(match first {
            Some(first) => error.with(Opt::METADATA_FROM, format!("name the first part: {}", quoted(&first))),
            None => error,
        });
    }
    Ok(input)
}

/// A GGUF that has the keys of a new file: the input, or another one.
pub(super) struct KeySource<'a>(pub &'a Input);

impl<'a> KeySource<'a> {
    fn error(&self, what: impl Into<String>) -> Error {
        Error::new(what).in_file(self.0.path())
    }

    /// Returns the error for a file that describes another model.
    pub(super) fn other_model(&self, what: &str) -> Error {
        let error = self.error(format!("describes another model: it {what}"));
        error.with(Opt::METADATA_FROM, SAME_MODEL)
    }

    pub(super) fn architecture(&self) -> Result<&'a str> {
        let named = self.0.contents.value(ARCHITECTURE);
        named.ok_or_else(|| {
            let error = self.error(format!("has no {ARCHITECTURE}, which readers of GGUF files need"));
            error.with_keys()
        })
    }

    /// Refuses a file that describes another model than one of this architecture.
    pub(super) fn check_architecture(&self, architecture: &str) -> Result<()> {
        let own = self.architecture()?;
        if own == architecture {
            return Ok(());
        }
        Err(self.other_model(&format!("is of the architecture {}, not {architecture}", shorten(own))))
    }

    /// Refuses a file whose numbers differ from the numbers in `config.json`.
    pub(super) fn check_sizes(&self, architecture: &str, config: &dyn Fn(&str) -> Option<MetadataValue>) -> Result<()> {
        // Files from before April 2025 lack a key, and describe tensors that tcast does not write.
        if has_latent_attention(config) && self.number(&format!("{architecture}.attention.key_length_mla")).is_none() {
            let error = self.error("describes the model as llama.cpp stored it before April 2025");
            return Err(
                error.with(Opt::METADATA_FROM, "name a newer .gguf file of the same model, in any of its types")
            );
        }
        let own = |key: &str| self.number(key).map(MetadataValue::Integer);
        match size_difference(architecture, config, &own) {
            Some(SizeDifference { config: (name, wanted), gguf: (key, own) }) => {
                Err(self.other_model(&format!("has {key} {own}, and config.json has {name} {wanted}")))
            }
            None => Ok(()),
        }
    }

    /// Returns a key that is a number.
    fn number(&self, key: &str) -> Option<u64> {
        self.0.contents.value(key)?.parse().ok()
    }

    /// Returns the bytes of the value of a key, with its type.
    fn bytes(&self, key: &str) -> Option<&'a [u8]> {
        let (_, range) = self.0.contents.keys.iter().find(|(name, _)| name == key)?;
        Some(&self.0.files[0][range.clone()])
    }

    /// Returns the number of tokens of the tokenizer.
    pub(super) fn tokens(&self) -> Option<u64> {
        list_length(self.bytes("tokenizer.ggml.tokens")?)
    }

    /// Returns the facts about a language model that its types depend on.
    pub(super) fn facts<'m>(&self, architecture: &'m str) -> LanguageModel<'m> {
        // A list has a number for each layer, and the first number counts.
        facts_of(architecture, &|key| self.number(key).or_else(|| first_number(self.bytes(key)?)))
    }

    /// Returns the names of the tensors whose shapes differ from the shapes in the table.
    pub(super) fn reshaped(&self) -> HashSet<&'a str> {
        self.0.contents.keys.iter().filter_map(|(key, _)| key.strip_prefix(ORIGINAL_SHAPE)).collect()
    }

    /// Returns all keys but those about its own types and parts.
    pub(super) fn keys(&self) -> Result<Vec<GgufKey>> {
        let input = self.0;
        // Files that tcast makes have the default alignment.
        let is_own = |key: &str| {
            [SPLIT, IMATRIX].iter().any(|start| key.starts_with(start))
                || [VERSION, FILE_TYPE, ALIGNMENT].contains(&key)
        };
        let keys = input.contents.keys.iter().filter(|(key, _)| !is_own(key));
        let key = |(name, range): &(String, std::ops::Range<usize>)| {
            let file = &input.files[0];
            file.prefetch(range.clone()).map_err(|error| error.in_file(input.path()))?;
            Ok(GgufKey { name: name.clone(), value: file[range.clone()].to_vec() })
        };
        keys.map(key).collect()
    }
}

/// Returns the facts about a language model that its types depend on, from the numbers of its keys.
pub(super) fn facts_of<'m>(architecture: &'m str, number: &dyn Fn(&str) -> Option<u64>) -> LanguageModel<'m> {
    let number = |key: &str| number(&format!("{architecture}.{key}"));
    let heads = number("attention.head_count").unwrap_or_default();
    LanguageModel {
        architecture,
        layers: number("block_count").unwrap_or_default(),
        experts: number("expert_count").unwrap_or_default(),
        heads,
        key_heads: number("attention.head_count_kv").unwrap_or(heads),
    }
}

/// Returns the key for the shape of a tensor whose table has another.
pub(super) fn original_shape(name: &str, shape: &[u64]) -> GgufKey {
    let lengths: Vec<i32> = shape.iter().map(|length| i32::try_from(*length).unwrap_or(i32::MAX)).collect();
    GgufKey::int32s(&format!("{ORIGINAL_SHAPE}{name}"), &lengths)
}

/// Adds the keys about types to the keys of a model, as llama-quantize writes them.
pub(super) fn finished(
    mut keys: Vec<GgufKey>,
    file_type: Option<u32>,
    importance: Option<&ImportanceFile>,
) -> Vec<GgufKey> {
    keys.push(GgufKey::uint32(VERSION, CURRENT));
    keys.extend(file_type.map(|number| GgufKey::uint32(FILE_TYPE, number)));
    if let Some(importance) = importance {
        let text = |name: &str, text: &str| {
            let end = (0..=MAX_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            GgufKey::text(&format!("{IMATRIX}{name}"), &text[..end])
        };
        keys.push(text("file", &importance.path.to_string_lossy()));
        keys.extend(importance.dataset.as_deref().map(|dataset| text("dataset", dataset)));
        let count = u32::try_from(importance.names().count()).unwrap_or(u32::MAX);
        keys.push(GgufKey::uint32(&format!("{IMATRIX}entries_count"), count));
        let chunks = importance.chunks.filter(|chunks| *chunks > 0);
        keys.extend(chunks.map(|chunks| GgufKey::uint32(&format!("{IMATRIX}chunks_count"), chunks)));
    }
    keys
}
