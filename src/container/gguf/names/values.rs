//! Numbers of a model that names depend on.

use super::complete::unmapped;
use crate::error::Result;
use serde_json::Value;

/// A value of the metadata of a GGUF, or of a `config.json`, as far as names depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataValue {
    Integer(u64),
    /// An array, a text, or a number that is no such integer.
    Other,
}

impl MetadataValue {
    /// Returns a member of a `config.json`; `None` if it is absent or null.
    pub(crate) fn of_config(config: &Value, name: &str) -> Option<Self> {
        let value = config.get(name).filter(|value| !value.is_null())?;
        Some(value.as_u64().map_or(Self::Other, Self::Integer))
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
            Some(MetadataValue::Other) => Err(unmapped(format!("'{key}' of {} is not a single integer", self.place))),
            None => Ok(None),
        }
    }

    /// Returns the integer of a key that has to be there.
    pub(super) fn need(&self, key: &str) -> Result<u64> {
        self.find(key)?.ok_or_else(|| unmapped(format!("{} has no '{key}'", self.place)))
    }
}
