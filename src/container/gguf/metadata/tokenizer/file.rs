//! `tokenizer.json`, as the library tokenizers writes it.

use crate::container::json::collect_members;
use crate::error::{Error, Result};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt;

/// The file, as far as the keys of a GGUF depend on it.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizerFile {
    #[serde(default)]
    added_tokens: Option<Vec<AddedToken>>,
    #[serde(default)]
    pub normalizer: Value,
    #[serde(default)]
    pub pre_tokenizer: Value,
    #[serde(default)]
    pub post_processor: Value,
    #[serde(default)]
    pub decoder: Value,
    pub model: TokenizerModel,
}

/// A token besides those of the model.
#[derive(Debug, Deserialize)]
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub special: bool,
    #[serde(default)]
    normalized: Option<bool>,
}

/// The model, which divides texts into tokens.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizerModel {
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    #[serde(default)]
    pub vocab: Vocabulary,
    #[serde(default)]
    pub merges: Option<Vec<PairMerge>>,
    #[serde(default)]
    pub byte_fallback: Option<bool>,
    #[serde(default)]
    pub ignore_merges: Option<bool>,
}

/// The texts and numbers of tokens; empty for a list, which models of other kinds have.
#[derive(Debug, Default)]
pub(super) struct Vocabulary(pub Vec<(String, u32)>);

/// Two tokens that become one.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum PairMerge {
    Text(String),
    Pair([String; 2]),
}

impl TokenizerFile {
    pub(super) fn of(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| Error::new(format!("cannot be read: {error}")))
    }

    pub(super) fn added_tokens(&self) -> &[AddedToken] {
        self.added_tokens.as_deref().unwrap_or_default()
    }

    /// Returns the kind of a part of the file.
    pub(super) fn kind(part: &Value) -> &str {
        part.get("type").and_then(Value::as_str).unwrap_or_default()
    }
}

impl AddedToken {
    /// True if the token is found in texts after they are normalized.
    pub(super) fn is_normalized(&self) -> bool {
        self.normalized.unwrap_or(!self.special)
    }
}

impl PairMerge {
    /// Returns both tokens; `None` if the text is not two words.
    pub(super) fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Self::Text(text) => text.split_once(' '),
            Self::Pair([one, other]) => Some((one, other)),
        }
    }

    /// Returns the text for a GGUF, in which a space divides the tokens: one inside of them becomes its byte character.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Pair(parts) => parts.each_ref().map(|part| part.replace(' ', "\u{120}")).join(" "),
        }
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct VocabularyVisitor;
        impl<'de> Visitor<'de> for VocabularyVisitor {
            type Value = Vocabulary;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Vocabulary, A::Error> {
                collect_members(map).map(Vocabulary)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Vocabulary, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Vocabulary::default())
            }
        }
        deserializer.deserialize_any(VocabularyVisitor)
    }
}
