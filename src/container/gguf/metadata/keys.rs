//! Keys in the order in which they are first set.

use super::super::GgufKey;
use super::super::write::KeyList;

/// The keys of a file.
#[derive(Debug, Default)]
pub(super) struct Keys(pub Vec<GgufKey>);

impl Keys {
    /// Sets a key. One that was set before keeps its place.
    pub(super) fn put(&mut self, key: GgufKey) {
        match self.0.iter_mut().find(|known| known.name == key.name) {
            Some(known) => *known = key,
            None => self.0.push(key),
        }
    }

    /// Sets a key to a value.
    pub(super) fn set(&mut self, name: &str, value: KeyValue) {
        self.put(value.key(name));
    }
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyValue {
    Count(u32),
    Integer(i32),
    Number(f32),
    Flag(bool),
    Text(String),
    Counts(Vec<i32>),
    Flags(Vec<bool>),
}

impl KeyValue {
    fn key(self, name: &str) -> GgufKey {
        match self {
            Self::Count(value) => GgufKey::uint32(name, value),
            Self::Integer(value) => GgufKey::int32(name, value),
            Self::Number(value) => GgufKey::float32(name, value),
            Self::Flag(value) => GgufKey::boolean(name, value),
            Self::Text(value) => GgufKey::text(name, &value),
            Self::Counts(values) => GgufKey::int32s(name, &values),
            Self::Flags(values) => GgufKey::list(name, KeyList::Flags(&values)),
        }
    }
}
