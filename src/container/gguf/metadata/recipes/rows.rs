//! Defines recipes: keys, and the rules for their values and for the tokenizer.

use super::super::config::{Config, lacks};
use super::super::keys::KeyValue;
use crate::error::Result;

/// The metadata of some types of models, besides the common keys.
pub(in super::super) struct Recipe {
    pub model_types: &'static [&'static str],
    pub base: Base,
    /// Keys behind the common ones, with the name of the architecture in front.
    pub keys: &'static [KeyRow],
    pub tokenizer: TokenizerRule,
}

/// The common keys that a model has.
pub(in super::super) enum Base {
    All,
    /// Before the common keys, those of another type of model count.
    With(&'static [KeyRow]),
    Without(&'static [&'static str]),
    None,
}

/// A key and the rule for its value. The name is that after the architecture, or after `tokenizer.ggml`.
#[derive(Clone, Copy)]
pub(in super::super) struct KeyRow {
    pub key: &'static str,
    pub value: ValueRule,
}

/// The source of the value of a key.
#[derive(Clone, Copy)]
pub(in super::super) enum ValueRule {
    /// A whole number: the first of these fields that is present.
    Count(&'static [&'static str], Absent),
    /// A number.
    Number(&'static [&'static str], Absent),
    /// A number that is left out if it is zero.
    Factor(&'static str),
    Flag(&'static str, Absent),
    FixedCount(u32),
    FixedNumber(f32),
    FixedFlag(bool),
    FixedText(&'static str),
    Computed(fn(&Config) -> Result<Option<KeyValue>>),
}

/// The treatment of a key without a field.
#[derive(Clone, Copy)]
pub(in super::super) enum Absent {
    Refused,
    LeftOut,
    Is(u32),
}

/// The kinds and the keys of the tokenizer of some types of models.
pub(in super::super) struct TokenizerRule {
    /// The kinds that the files of the folder may have. The first for which there are files counts.
    pub kinds: &'static [TokenizerKind],
    /// Special tokens by their texts, if no file names others.
    pub texts: &'static [(&'static str, &'static str)],
    /// Keys that are set first, and that the files of the tokenizer may set again.
    pub defaults: &'static [KeyRow],
    /// Keys that are set last.
    pub keys: &'static [KeyRow],
    /// The number of tokens is a multiple of this.
    pub padding: u32,
    /// The first of several ends of texts in `generation_config.json` is the end of a turn.
    pub has_ends_of_turns: bool,
    /// `tokenizer_config.json` says whether texts get a space in front.
    pub has_space_setting: bool,
}

/// A kind of tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum TokenizerKind {
    /// `tokenizer.model`.
    SentencePiece,
    /// `tokenizer.model` of Phi 3, which keeps the texts of added tokens.
    SentencePieceOfPhi,
    /// A `tokenizer.json` whose tokens stand for characters, and for single bytes.
    ByteFallback,
    /// The same of Gemma 4.
    Gemma4,
    /// A `tokenizer.json` whose tokens stand for bytes.
    Bpe,
}

pub(super) const fn fixed(key: &'static str, value: ValueRule) -> KeyRow {
    KeyRow { key, value }
}

pub(super) const fn computed(key: &'static str, value: fn(&Config) -> Result<Option<KeyValue>>) -> KeyRow {
    KeyRow { key, value: ValueRule::Computed(value) }
}

pub(super) const fn count(key: &'static str, fields: &'static [&'static str]) -> KeyRow {
    KeyRow { key, value: ValueRule::Count(fields, Absent::Refused) }
}

pub(super) const fn count_if(key: &'static str, fields: &'static [&'static str]) -> KeyRow {
    KeyRow { key, value: ValueRule::Count(fields, Absent::LeftOut) }
}

pub(super) const fn count_or(key: &'static str, fields: &'static [&'static str], other: u32) -> KeyRow {
    KeyRow { key, value: ValueRule::Count(fields, Absent::Is(other)) }
}

pub(super) const fn number(key: &'static str, fields: &'static [&'static str]) -> KeyRow {
    KeyRow { key, value: ValueRule::Number(fields, Absent::Refused) }
}

pub(super) const fn number_if(key: &'static str, fields: &'static [&'static str]) -> KeyRow {
    KeyRow { key, value: ValueRule::Number(fields, Absent::LeftOut) }
}

pub(super) const fn factor(key: &'static str, field: &'static str) -> KeyRow {
    KeyRow { key, value: ValueRule::Factor(field) }
}

#[allow(clippy::unnecessary_wraps, reason = "it is the result of rules, which can fail")]
pub(super) fn counted(count: u32) -> Result<Option<KeyValue>> {
    Ok(Some(KeyValue::Count(count)))
}

impl KeyRow {
    /// Returns the value of the key; `None` if it is left out.
    pub(in super::super) fn value(&self, config: &Config) -> Result<Option<KeyValue>> {
        let absent = |rule: Absent, field: &str| match rule {
            Absent::Refused => Err(lacks(field)),
            Absent::LeftOut => Ok(None),
            Absent::Is(count) => counted(count),
        };
        match self.value {
            ValueRule::Count(fields, rule) => match config.count(fields)? {
                Some(value) => counted(value),
                None => absent(rule, fields[0]),
            },
            ValueRule::Number(fields, rule) => match config.number(fields)? {
                Some(value) => Ok(Some(KeyValue::Number(value as f32))),
                None => absent(rule, fields[0]),
            },
            ValueRule::Factor(field) => {
                Ok(config.number(&[field])?.filter(|value| *value != 0.0).map(|value| KeyValue::Number(value as f32)))
            }
            ValueRule::Flag(field, rule) => match config.flag(field) {
                Some(value) => Ok(Some(KeyValue::Flag(value))),
                None => absent(rule, field),
            },
            ValueRule::FixedCount(value) => counted(value),
            ValueRule::FixedNumber(value) => Ok(Some(KeyValue::Number(value))),
            ValueRule::FixedFlag(value) => Ok(Some(KeyValue::Flag(value))),
            ValueRule::FixedText(value) => Ok(Some(KeyValue::Text(value.to_owned()))),
            ValueRule::Computed(rule) => rule(config),
        }
    }
}
