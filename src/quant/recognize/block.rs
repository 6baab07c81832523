//! JSON of a model's `quantization_config`, and the claim of one of its entries about a weight.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::{Parameters, Role};
use crate::text::shorten;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Claim of a config or description about a weight.
#[derive(Clone, Debug, Default)]
pub(super) struct Claim {
    pub(super) layouts: Vec<&'static str>,
    pub(super) parameters: Parameters,
    /// Parts that the layout can omit but this weight needs.
    pub(super) needs: Vec<Role>,
    /// Possible dtypes of the codes, if the config names one.
    pub(super) codes: Vec<Dtype>,
    /// bitsandbytes' type of codes, if the config names it.
    pub(super) quant_type: Option<String>,
    pub(super) no_exponents: bool,
    /// Source and wording of the claim: "the config says ...".
    pub(super) said: String,
}

impl Claim {
    pub(super) fn new(layouts: &[&'static str], said: &str) -> Self {
        Self { layouts: layouts.to_vec(), said: said.to_owned(), ..Self::default() }
    }
}

/// An object of a config.
pub(super) struct ConfigObject<'a>(pub(super) &'a Map<String, Value>);

impl<'a> ConfigObject<'a> {
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !value.is_null())
    }

    /// Reads the value of the first of these keys that is not null. A value of another type is an error: a default in
    /// its place would be a guess.
    fn typed<T>(&self, keys: &[&str], what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(key) = keys.iter().find(|key| self.has(key)) else { return Ok(None) };
        let found = self.get(key).and_then(read);
        found.map(Some).ok_or_else(|| Error::new(format!("its {key} is not {what}")))
    }

    pub(super) fn text(&self, keys: &[&str]) -> Result<Option<&'a str>> {
        self.typed(keys, "text", Value::as_str)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(&[key], "true or false", Value::as_bool)
    }

    pub(super) fn is_true(&self, key: &str) -> Result<bool> {
        Ok(self.flag(key)? == Some(true))
    }

    pub(super) fn number(&self, keys: &[&str]) -> Result<Option<u64>> {
        self.typed(keys, "a whole number from 0", Value::as_u64)
    }

    pub(super) fn integer(&self, keys: &[&str]) -> Result<Option<i64>> {
        self.typed(keys, "a whole number", Value::as_i64)
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(&[key], "a number", Value::as_f64)
    }

    pub(super) fn texts(&self, keys: &[&str]) -> Result<Vec<&'a str>> {
        let mut texts = Vec::new();
        for key in keys.iter().filter(|key| self.has(key)) {
            let list = self.get(key).and_then(Value::as_array);
            let list = list.and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<&str>>>());
            texts.extend(list.ok_or_else(|| Error::new(format!("its {key} is not a list of names")))?);
        }
        Ok(texts)
    }

    pub(super) fn objects(&self, key: &str) -> Result<Vec<(&'a String, ConfigObject<'a>)>> {
        let objects = match self.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => return Ok(Vec::new()),
            Some(value) => value.as_object().ok_or_else(|| Error::new(format!("its {key} is not an object")))?,
        };
        let object = |(name, value): (&'a String, &'a Value)| {
            let inner = value.as_object().map(|inner| (name, ConfigObject(inner)));
            inner.ok_or_else(|| Error::new(format!("its {key} says of '{}' what is not an object", shorten(name))))
        };
        objects.iter().map(object).collect()
    }

    /// Returns [`Self::objects`] in the order of `names`.
    pub(super) fn ordered(&self, key: &str, names: &[String]) -> Result<Vec<(&'a String, ConfigObject<'a>)>> {
        let places: HashMap<_, _> = names.iter().zip(0..).collect();
        let mut objects = self.objects(key)?;
        objects.sort_by_key(|(name, _)| places.get(name).copied().unwrap_or(usize::MAX));
        Ok(objects)
    }

    pub(super) fn inner(&self, key: &str) -> Result<Option<ConfigObject<'a>>> {
        Ok(self.typed(&[key], "an object", Value::as_object)?.map(ConfigObject))
    }
}
