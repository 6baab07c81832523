//! Numbers of a model that names depend on.

use crate::error::{Error, Result};
use serde_json::Value;

/// Returns an error whose remedy is to keep the names of the file.
pub(super) fn unmapped(message: String) -> Error {
    Error::new(message).keeping_names()
}

/// A value of the metadata of a GGUF, or of a `config.json`, as far as names depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataValue {
    Integer(u64),
    /// An array, which may have a number for each layer.
    List,
    /// A text, or a number that is no such integer.
    Other,
}

impl MetadataValue {
    /// Returns a member of a `config.json`; `None` if it is absent or null.
    pub(crate) fn of_config(config: &Value, name: &str) -> Option<Self> {
        Self::of_value(config.get(name)?)
    }

    /// Returns a value of a `config.json`; `None` for null.
    pub(crate) fn of_value(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Null => return None,
            Value::Array(_) => Self::List,
            _ => value.as_u64().map_or(Self::Other, Self::Integer),
        })
    }
}

/// The numbers that a file has for a model.
pub(super) struct ModelNumbers<'a> {
    /// The file or a part of it, for messages.
    pub place: &'static str,
    /// Returns the value of a key.
    pub value: &'a dyn Fn(&str) -> Option<MetadataValue>,
}

impl ModelNumbers<'_> {
    pub(super) fn has(&self, key: &str) -> bool {
        (self.value)(key).is_some()
    }

    /// Returns the integer of a key; `None` if the key is absent.
    pub(super) fn find(&self, key: &str) -> Result<Option<u64>> {
        match (self.value)(key) {
            Some(MetadataValue::Integer(value)) => Ok(Some(value)),
            Some(MetadataValue::List | MetadataValue::Other) => {
                Err(unmapped(format!("'{key}' of {} is not a single integer", self.place)))
            }
            None => Ok(None),
        }
    }

    /// Returns the integer of a key that has to be there.
    pub(super) fn need(&self, key: &str) -> Result<u64> {
        self.find(key)?.ok_or_else(|| unmapped(format!("{} has no '{key}'", self.place)))
    }
}

/// The heads of layers with linear attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearHeads {
    pub keys: u64,
    /// Value heads of each key head.
    pub each: u64,
    pub key_size: u64,
    pub value_size: u64,
}

/// The fields of a config for [`LinearHeads::find`].
pub(super) const LINEAR_HEADS: [&str; 4] =
    ["linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"];

impl LinearHeads {
    /// Most rows of all heads. It bounds products of the numbers.
    const MOST: u64 = 1 << 40;

    /// Returns the heads that these keys describe: the numbers of heads for keys and for values, and the rows of a head of
    /// either kind.
    pub(super) fn find(numbers: &ModelNumbers, names: [&str; 4]) -> Result<Self> {
        let [keys, values, key_size, value_size] = names.map(|name| numbers.need(name));
        Self::of([keys?, values?, key_size?, value_size?], numbers.place)
    }

    /// The same, of the numbers.
    pub(super) fn of([keys, values, key_size, value_size]: [u64; 4], place: &str) -> Result<Self> {
        let each = values.checked_div(keys).unwrap_or_default();
        let rows = [(keys, key_size), (values, value_size)].map(|(heads, size)| heads.checked_mul(size));
        if each == 0
            || each * keys != values
            || !rows.iter().all(|rows| rows.is_some_and(|rows| (1..Self::MOST).contains(&rows)))
        {
            let heads = format!("{keys} key heads of {key_size} and {values} value heads of {value_size}");
            return Err(unmapped(format!("{place} has {heads} for linear attention, which do not fit")));
        }
        Ok(Self { keys, each, key_size, value_size })
    }
}

/// Maximum number of experts in a layer. It bounds the number of names, and is eight times llama.cpp's maximum.
const MAX_EXPERTS: u64 = 4096;

/// The number of experts as soon as it is known, and in words where it comes from.
#[derive(Debug, Default)]
pub(super) struct ExpertCount(Option<(u64, String)>);

impl ExpertCount {
    /// Returns the number that one of some keys has. A model without experts may have 0 there.
    pub(super) fn find(numbers: &ModelNumbers, keys: &[&str]) -> Result<Self> {
        for key in keys {
            if let Some(count) = numbers.find(key)?.filter(|count| *count != 0) {
                return Ok(Self(Some((count, format!("'{key}' is {count}")))));
            }
        }
        Ok(Self::default())
    }

    /// Checks that all layers have the same number of experts.
    pub(super) fn check(&mut self, count: u64, name: &str) -> Result<()> {
        let (expected, origin) = self.0.get_or_insert_with(|| (count, format!("'{name}' has {count}")));
        if count != *expected {
            return Err(unmapped(format!("has {count} experts, but {origin}")));
        }
        if count == 0 || count > MAX_EXPERTS {
            return Err(unmapped(format!("has {count} experts; the supported number is 1 to {MAX_EXPERTS}")));
        }
        Ok(())
    }
}
