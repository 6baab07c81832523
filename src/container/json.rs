//! Readers of JSON that are stricter than the derived ones of serde, because they refuse duplicate keys and values that
//! are not objects, and a more lenient reader for the output of Python.

use crate::text::shorten;
use regex::{Captures, Regex};
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// A JSON object of strings, in its original order.
pub(super) struct StringPairs(pub(super) Vec<(String, String)>);

impl<'de> Deserialize<'de> for StringPairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = StringPairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<StringPairs, A::Error> {
                let pairs: Vec<(String, String)> = collect_members(map)?;
                let mut seen = HashSet::with_capacity(pairs.len());
                match pairs.iter().find(|(key, _)| !seen.insert(&**key)) {
                    Some((key, _)) => Err(twice(key)),
                    None => Ok(StringPairs(pairs)),
                }
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

/// A JSON object of strings in the order of its keys; equal values are shared.
pub(super) struct SharedValues(pub(super) BTreeMap<Box<str>, Arc<str>>);

impl<'de> Deserialize<'de> for SharedValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SharedVisitor;
        impl<'de> Visitor<'de> for SharedVisitor {
            type Value = SharedValues;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SharedValues, A::Error> {
                let (mut pairs, mut values) = (BTreeMap::new(), HashSet::<Arc<str>>::new());
                while let Some((key, value)) = map.next_entry::<Box<str>, Cow<str>>()? {
                    let value = values.get(&*value).cloned().unwrap_or_else(|| Arc::from(&*value));
                    values.insert(Arc::clone(&value));
                    match pairs.entry(key) {
                        Entry::Vacant(place) => drop(place.insert(value)),
                        Entry::Occupied(place) => return Err(twice(place.key())),
                    }
                }
                Ok(SharedValues(pairs))
            }
        }
        deserializer.deserialize_map(SharedVisitor)
    }
}

fn twice<E: de::Error>(key: &str) -> E {
    E::custom(format!("'{}' appears twice", shorten(key)))
}

/// The members of an object, in their order.
#[derive(Debug)]
pub(crate) struct Members<T>(pub Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for MembersVisitor<T> {
            type Value = Members<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Members<T>, A::Error> {
                collect_members(map).map(Members)
            }
        }
        deserializer.deserialize_map(MembersVisitor(PhantomData))
    }
}

/// Reads the members of an object in their order.
pub(super) fn collect_members<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    mut map: A,
) -> Result<Vec<(String, T)>, A::Error> {
    let mut members = Vec::new();
    while let Some(member) = map.next_entry()? {
        members.push(member);
    }
    Ok(members)
}

/// A struct read only from a JSON object: a derived reader would also accept an array.
pub(super) struct MapOnly<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for MapOnly<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for MapVisitor<T> {
            type Value = MapOnly<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MapOnly<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(MapOnly)
            }
        }
        deserializer.deserialize_map(MapVisitor(PhantomData))
    }
}

/// Replaces `NaN`, `Infinity` and `-Infinity`, which JSON lacks, and which Python's `json` writes and reads.
pub(super) fn without_python_literals(json: &str, replacement: impl Fn(&str) -> String) -> Cow<'_, str> {
    /// Strings and words, each as a whole: `-NaN` is not a literal.
    const TOKENS: &str = r#"(?s)"(?:[^"\\]|\\.)*"?|[\w-]+"#;
    if !json.contains("NaN") && !json.contains("Infinity") {
        return Cow::Borrowed(json);
    }
    let tokens = Regex::new(TOKENS).expect("a valid pattern");
    tokens.replace_all(json, |token: &Captures| match &token[0] {
        literal @ ("NaN" | "Infinity" | "-Infinity") => replacement(literal),
        other => other.to_owned(),
    })
}

/// Returns the members of a JSON object as text; the last of several duplicates counts, as in Python. `None` if the
/// text is not an object.
pub(crate) fn members(json: &str) -> Option<BTreeMap<Cow<'_, str>, &RawValue>> {
    serde_json::from_str(json).ok()
}

/// Converts a config to JSON. Python's NaN and infinities become numbers of the same length, so that offsets stay
/// valid.
pub(crate) fn as_json(config: &str) -> Cow<'_, str> {
    without_python_literals(config, |literal| format!("{:0<1$}", "0.", literal.len()))
}

#[cfg(test)]
mod tests {
    use super::without_python_literals;

    #[test]
    fn only_literals_outside_of_strings_are_replaced() {
        let changed = |json| without_python_literals(json, |literal| "0".repeat(literal.len())).into_owned();
        let json = r#"{"NaN": NaN, "a\"NaN": [-Infinity,Infinity], "b\\": NaN, "x": NaNs, "y": -NaN, "z": xNaN}"#;
        let wanted = r#"{"NaN": 000, "a\"NaN": [000000000,00000000], "b\\": 000, "x": NaNs, "y": -NaN, "z": xNaN}"#;
        assert_eq!(changed(json), wanted);
        assert_eq!(changed("\"NaN\\"), "\"NaN\\");
    }
}
