//! JSON objects of configs.

use crate::container::members;
use crate::error::{Error, Result};
use crate::text::shorten;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// An object of a config.
#[derive(Clone, Copy)]
pub(in crate::quant) struct ConfigObject<'a> {
    members: &'a Map<String, Value>,
    /// Names of its members whose order matters, as ordered in the file.
    order: &'a [String],
}

impl<'a> ConfigObject<'a> {
    pub(in crate::quant) fn new(members: &'a Map<String, Value>) -> Self {
        Self { members, order: &[] }
    }

    pub(in crate::quant) fn in_order(members: &'a Map<String, Value>, order: &'a [String]) -> Self {
        Self { members, order }
    }

    pub(in crate::quant) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(in crate::quant) fn members(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.members.iter()
    }

    pub(in crate::quant) fn get(&self, key: &str) -> Option<&'a Value> {
        self.members.get(key)
    }

    pub(in crate::quant) fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !value.is_null())
    }

    /// Returns the first of these keys whose value is not null.
    pub(in crate::quant) fn first<'k>(&self, keys: &[&'k str]) -> Option<&'k str> {
        keys.iter().copied().find(|key| self.has(key))
    }

    /// Reads the value of the first of these keys that is not null. A value of another type is an error: a default in
    /// its place would be a guess.
    fn typed<T>(&self, keys: &[&str], what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(key) = self.first(keys) else { return Ok(None) };
        let value = self.get(key).and_then(read);
        value.map(Some).ok_or_else(|| Error::new(format!("its {key} is not {what}")))
    }

    pub(in crate::quant) fn text(&self, keys: &[&str]) -> Result<Option<&'a str>> {
        self.typed(keys, "text", Value::as_str)
    }

    pub(in crate::quant) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(&[key], "true or false", Value::as_bool)
    }

    pub(in crate::quant) fn is_true(&self, key: &str) -> Result<bool> {
        Ok(self.flag(key)? == Some(true))
    }

    pub(in crate::quant) fn number(&self, keys: &[&str]) -> Result<Option<u64>> {
        self.typed(keys, "a whole number from 0", Value::as_u64)
    }

    pub(in crate::quant) fn integer(&self, keys: &[&str]) -> Result<Option<i64>> {
        self.typed(keys, "a whole number", Value::as_i64)
    }

    pub(in crate::quant) fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(&[key], "a number", Value::as_f64)
    }

    /// Returns the texts of the lists under these keys.
    pub(in crate::quant) fn texts(&self, keys: &[&str]) -> Result<Vec<&'a str>> {
        let list = |value: &'a Value| value.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<&str>>>();
        let lists = keys.iter().map(|key| self.typed(&[key], "a list of names", list));
        Ok(lists.collect::<Result<Vec<_>>>()?.into_iter().flatten().flatten().collect())
    }

    pub(in crate::quant) fn inner(&self, key: &str) -> Result<Option<ConfigObject<'a>>> {
        Ok(self.typed(&[key], "an object", Value::as_object)?.map(ConfigObject::new))
    }

    /// Returns the members of the object under this key, in the order of the file if it matters.
    pub(in crate::quant) fn in_order_of_file(&self, key: &str) -> Result<Vec<(&'a String, &'a Value)>> {
        let members = match self.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => return Ok(Vec::new()),
            Some(value) => value.as_object().ok_or_else(|| Error::new(format!("its {key} is not an object")))?,
        };
        let positions: HashMap<&String, usize> = self.order.iter().zip(0..).collect();
        let mut members: Vec<_> = members.iter().collect();
        members.sort_by_key(|(name, _)| positions.get(name));
        Ok(members)
    }

    /// Returns the objects in the object under this key, by name.
    pub(in crate::quant) fn objects(&self, key: &str) -> Result<Vec<(&'a String, ConfigObject<'a>)>> {
        let object = |(name, value): (&'a String, &'a Value)| {
            let inner = value.as_object().map(|inner| (name, ConfigObject::new(inner)));
            inner.ok_or_else(|| Error::new(format!("its {key} says of '{}' what is not an object", shorten(name))))
        };
        self.in_order_of_file(key)?.into_iter().map(object).collect()
    }
}

/// Returns the whole numbers of a list.
pub(in crate::quant) fn lengths(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

/// Returns the rows and columns of a block, given as a list.
pub(in crate::quant) fn sides(value: &Value) -> Option<[u64; 2]> {
    lengths(value)?.try_into().ok()
}

/// Parses an object called `name`. Fails if the parser cannot represent a value, such as a number out of range.
pub(in crate::quant) fn parse(text: &str, name: &str) -> Result<Map<String, Value>> {
    let not_object = || Error::new(format!("its {name} is not an object"));
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => return Ok(object),
        Ok(_) => return Err(not_object()),
        Err(_) => {}
    }
    let all = members(text).unwrap_or_default();
    let mut errors =
        all.iter().filter_map(|(key, value)| Some((key, serde_json::from_str::<Value>(value.get()).err()?)));
    let (key, error) = errors.next().ok_or_else(not_object)?;
    let why = error.to_string();
    let why = why.split(" at line ").next().unwrap_or_default();
    Err(Error::new(format!("its {} cannot be read: {why}", shorten(key))))
}
