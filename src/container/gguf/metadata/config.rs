//! The config of a language model: `config.json` with the defaults of its class in transformers.

use super::super::names::MetadataValue;
use crate::container::json::as_json;
use crate::error::{Error, Result};
use crate::text::shorten;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// Defaults of the config classes of transformers 5.24 by `model_type`, as far as keys depend on them. A default
/// `{"of": [A, B]}` is field A divided by field B, and `{"of": [A]}` is field A.
static DEFAULTS: LazyLock<Map<String, Value>> =
    LazyLock::new(|| serde_json::from_str(include_str!("data/config_defaults.json")).expect("valid JSON"));

/// The fields of a parameter of rotary embeddings outside of `rope_parameters`, and their names there.
const ROPE_FIELDS: [(&str, &[&str]); 3] = [
    ("rope_theta", &["global_rope_theta", "rope_global_theta", "rope_theta_global", "rope_theta", "rotary_emb_base"]),
    ("partial_rotary_factor", &["partial_rotary_factor", "rope_pct", "rope_percent"]),
    ("original_max_position_embeddings", &["original_max_position_embeddings"]),
];
const LOCAL_THETAS: &[&str] =
    &["local_rope_theta", "rope_local_theta", "rope_theta_local", "swa_rope_theta", "rope_local_base_freq"];
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const PARAMETERS: &str = "rope_parameters";

/// The config of a language model.
#[derive(Debug)]
pub(crate) struct Config {
    model_type: String,
    /// `config.json`, with the number of layers.
    raw: Map<String, Value>,
    /// Its fields, those of `text_config`, and defaults.
    fields: Map<String, Value>,
    /// Parameters of rotary embeddings, of all layers or by kinds of layers.
    rope: Map<String, Value>,
}

impl Config {
    /// Reads the text of a `config.json`; `None` if it does not name a type of model.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let Ok(Value::Object(mut raw)) = serde_json::from_str(&as_json(text)) else { return None };
        count_blocks(&mut raw);
        let inner = raw.get("text_config").and_then(Value::as_object);
        let named = |fields: &Map<String, Value>| Some(fields.get("model_type")?.as_str()?.to_owned());
        let model_type = inner.and_then(named).or_else(|| named(&raw))?;
        let defaults = DEFAULTS.get(&model_type).and_then(Value::as_object);
        let mut fields = with_defaults(inner.unwrap_or(&raw), defaults);
        if inner.is_some() {
            for (name, value) in &raw {
                fields.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        of_full_layers(&mut fields);
        let rope = rope_of(&fields);
        fields.insert(PARAMETERS.to_owned(), Value::Object(rope.clone()));
        Some(Self { model_type, raw, fields, rope })
    }

    pub(crate) fn model_type(&self) -> &str {
        &self.model_type
    }

    /// Returns a number of the file, on which names depend.
    pub(crate) fn stored_number(&self, name: &str) -> Option<MetadataValue> {
        self.raw_field(name).and_then(MetadataValue::of_value)
    }

    /// Returns a number of the file, or the default of its class.
    pub(crate) fn known_number(&self, name: &str) -> Option<MetadataValue> {
        self.find(&[name]).and_then(MetadataValue::of_value)
    }

    /// All fields as an object, with `rope_parameters` in their newest form.
    pub(crate) fn to_value(&self) -> Value {
        Value::Object(self.fields.clone())
    }

    /// The fields of the file itself.
    pub(super) fn raw(&self) -> &Map<String, Value> {
        &self.raw
    }

    /// Returns a field of the file itself; of the whole model, or else of the language model.
    pub(super) fn raw_field(&self, name: &str) -> Option<&Value> {
        let outer = self.raw.get(name).filter(|value| !value.is_null());
        outer.or_else(|| self.raw.get("text_config")?.get(name))
    }

    /// Returns the first of these fields that is present; `None` if it is null.
    pub(super) fn find(&self, names: &[&str]) -> Option<&Value> {
        names.iter().find_map(|name| self.fields.get(*name)).filter(|value| !value.is_null())
    }

    /// Returns a whole number.
    pub(super) fn count(&self, names: &[&str]) -> Result<Option<u32>> {
        self.find(names).map(|value| as_count(value).ok_or_else(|| wrong(names[0]))).transpose()
    }

    /// Returns a whole number that has to be there.
    pub(super) fn need(&self, name: &str) -> Result<u32> {
        self.count(&[name])?.ok_or_else(|| lacks(name))
    }

    /// Returns a number.
    pub(super) fn number(&self, names: &[&str]) -> Result<Option<f64>> {
        self.find(names).map(|value| value.as_f64().ok_or_else(|| wrong(names[0]))).transpose()
    }

    /// Returns a flag of the file, or the default of its class.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.find(&[name])?.as_bool()
    }

    pub(super) fn text(&self, names: &[&str]) -> Option<&str> {
        self.find(names)?.as_str()
    }

    /// Returns a list.
    pub(super) fn list(&self, name: &str) -> Option<&[Value]> {
        self.find(&[name])?.as_array().map(Vec::as_slice)
    }

    /// Returns a list with an element for each layer.
    pub(super) fn layers(&self, name: &str) -> Result<Option<&[Value]>> {
        let Some(list) = self.list(name) else { return Ok(None) };
        let (count, layers) = (list.len(), self.need("num_hidden_layers")?);
        if count as u64 != u64::from(layers) {
            return Err(Error::new(format!("config.json has {count} {name} for {layers} layers")));
        }
        Ok(Some(list))
    }

    /// Number of dimensions of a head.
    pub(super) fn head_dim(&self) -> Result<u32> {
        if let Some(count) = self.count(&["head_dim"])? {
            return Ok(count);
        }
        self.need("hidden_size")?.checked_div(self.need("num_attention_heads")?).ok_or_else(|| lacks("head_dim"))
    }

    /// Returns a parameter of the rotary embeddings of layers with full attention.
    pub(super) fn rope(&self, name: &str) -> Option<&Value> {
        let parameters = self.rope.get(FULL).and_then(Value::as_object).unwrap_or(&self.rope);
        parameters.get(name).filter(|value| !value.is_null())
    }

    /// Returns a parameter of all layers.
    pub(super) fn shared_rope(&self, name: &str) -> Option<&Value> {
        self.rope.get(name).filter(|value| !value.is_null())
    }

    /// Returns a parameter of the layers with a sliding window.
    pub(super) fn sliding_rope(&self, name: &str) -> Option<&Value> {
        self.rope.get(SLIDING)?.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn rope_number(&self, name: &str) -> Result<Option<f64>> {
        self.rope(name).map(|value| value.as_f64().ok_or_else(|| wrong(name))).transpose()
    }

    /// Returns the rule by which rotary embeddings are scaled.
    pub(super) fn rope_type(&self) -> &str {
        self.rope("rope_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the number of dimensions of a head that are rotated, of all of them.
    pub(super) fn rotated(&self, dimensions: u32, default: Option<f64>) -> Result<f64> {
        let share = self.shared_rope("partial_rotary_factor").and_then(Value::as_f64).or(default);
        Ok(f64::from(dimensions) * share.ok_or_else(|| lacks("partial_rotary_factor"))?)
    }
}

/// Adds the number of layers if the config lists their kinds instead.
fn count_blocks(raw: &mut Map<String, Value>) {
    let blocks = ["layers_block_type", "hybrid_override_pattern"].iter().find_map(|name| match raw.get(*name)? {
        Value::Array(kinds) => Some(kinds.len()),
        Value::String(kinds) => Some(kinds.len()),
        _ => None,
    });
    if let Some(count) = blocks {
        raw.entry("num_hidden_layers").or_insert_with(|| count.into());
    }
}

/// Adds the sizes of layers with full attention that the config gives layer by layer.
fn of_full_layers(fields: &mut Map<String, Value>) {
    for (name, of_layer) in [("global_head_dim", "head_dim"), ("num_global_key_value_heads", "num_key_value_heads")] {
        let layers = fields.get("per_layer_config").and_then(Value::as_object);
        let types = fields.get("layer_types").and_then(Value::as_array);
        let (Some(layers), Some(types), true) = (layers, types, fields.get(name).is_none_or(Value::is_null)) else {
            continue;
        };
        let size = layers.iter().find_map(|(layer, sizes)| {
            let kind = types.get(layer.parse::<usize>().ok()?)?.as_str()?;
            sizes.get(of_layer).filter(|_| kind == FULL)
        });
        if let Some(size) = size.cloned() {
            fields.insert(name.to_owned(), size);
        }
    }
}

/// Returns the error for a field that the config lacks.
pub(super) fn lacks(name: &str) -> Error {
    Error::new(format!("config.json has no {name}, which llama.cpp needs"))
}

fn wrong(name: &str) -> Error {
    Error::new(format!("config.json has a {} that is not such a number", shorten(name)))
}

/// Returns a whole number, which may be written as a float.
pub(super) fn as_count(value: &Value) -> Option<u32> {
    let whole = |number: &f64| number.fract() == 0.0 && (0.0..4_294_967_296.0).contains(number);
    match value.as_u64() {
        Some(number) => u32::try_from(number).ok(),
        None => value.as_f64().filter(whole).map(|number| number as u32),
    }
}

/// Returns the fields with the defaults of their class. Older configs have parameters of rotary embeddings outside of
/// `rope_parameters`, and these replace defaults in there.
fn with_defaults(own: &Map<String, Value>, defaults: Option<&Map<String, Value>>) -> Map<String, Value> {
    let mut fields = own.clone();
    let Some(defaults) = defaults else { return fields };
    for (name, value) in defaults {
        match value.get("of").and_then(Value::as_array) {
            // A class that computes a field does so if it is null, too.
            Some(parts) if fields.get(name).is_none_or(Value::is_null) => {
                let parts: Option<Vec<u32>> =
                    parts.iter().map(|part| as_count(own.get(part.as_str()?)?)).collect::<Option<_>>();
                let count = match parts.as_deref() {
                    Some([count]) => Some(*count),
                    Some([whole, part]) => whole.checked_div(*part),
                    _ => None,
                };
                fields.extend(count.map(|count| (name.clone(), count.into())));
            }
            Some(_) => {}
            None => drop(fields.entry(name.clone()).or_insert_with(|| value.clone())),
        }
    }
    if own.contains_key(PARAMETERS) {
        return fields;
    }
    let object = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
    let (default, mut scaling) = (object(defaults.get(PARAMETERS)), object(own.get("rope_scaling")));
    let parameters = if default.contains_key(FULL) || default.contains_key(SLIDING) {
        let (mut full, mut sliding) = (object(default.get(FULL)), object(default.get(SLIDING)));
        let has_rule = scaling.contains_key("rope_type");
        full.append(&mut scaling);
        full.extend(own.get("rope_theta").map(|theta| ("rope_theta".to_owned(), theta.clone())));
        let rule = full.get("type").cloned().filter(|_| !has_rule);
        full.extend(rule.map(|rule| ("rope_type".to_owned(), rule)));
        sliding.extend(own.get("rope_local_base_freq").map(|theta| ("rope_theta".to_owned(), theta.clone())));
        Map::from_iter([(FULL.to_owned(), Value::Object(full)), (SLIDING.to_owned(), Value::Object(sliding))])
    } else {
        if let Some(rule) = scaling.get("type").cloned() {
            scaling.entry("rope_type").or_insert(rule);
        }
        for name in ["rope_theta", "partial_rotary_factor"] {
            if let Some(value) = own.get(name).or_else(|| default.get(name)) {
                scaling.entry(name).or_insert_with(|| value.clone());
            }
        }
        scaling
    };
    if !parameters.is_empty() {
        fields.insert(PARAMETERS.to_owned(), Value::Object(parameters));
    }
    fields
}

/// Returns the parameters of rotary embeddings, with those that are fields of the config.
fn rope_of(fields: &Map<String, Value>) -> Map<String, Value> {
    let find = |names: &[&str]| names.iter().find_map(|name| fields.get(*name)).filter(|value| !value.is_null());
    let mut rope = [PARAMETERS, "rope_scaling"]
        .into_iter()
        .find_map(|name| fields.get(name)?.as_object().filter(|object| !object.is_empty()))
        .cloned()
        .unwrap_or_default();
    if rope.contains_key(FULL) || rope.contains_key(SLIDING) {
        return rope;
    }
    if let Some(theta) = find(LOCAL_THETAS) {
        rope.insert(SLIDING.to_owned(), Value::Object(Map::from_iter([("rope_theta".to_owned(), theta.clone())])));
    }
    if let Some(rule) = rope.get("type").filter(|rule| !rule.is_null()).cloned() {
        rope.entry("rope_type").or_insert(rule);
    }
    for (name, sources) in ROPE_FIELDS {
        if let Some(value) = find(sources) {
            rope.entry(name).or_insert_with(|| value.clone());
        }
    }
    rope
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::of(text).unwrap()
    }

    #[test]
    fn a_default_that_a_class_computes_follows_the_config() {
        let small = config(r#"{"model_type": "llama", "hidden_size": 2048, "num_attention_heads": 8}"#);
        assert_eq!((small.head_dim().unwrap(), small.need("num_key_value_heads").unwrap()), (256, 8));
        let null = config(r#"{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "head_dim": null}"#);
        assert_eq!(null.head_dim().unwrap(), 8);
        assert_eq!(config(r#"{"model_type": "qwen3", "hidden_size": 64}"#).head_dim().unwrap(), 128);
    }

    #[test]
    fn both_spellings_of_rotary_embeddings_are_read() {
        for text in [
            r#"{"model_type": "gemma3_text", "rope_theta": 5, "rope_local_base_freq": 6, "rope_scaling": {"type": "linear", "factor": 8}}"#,
            r#"{"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_theta": 5, "rope_type": "linear",
                "factor": 8}, "sliding_attention": {"rope_theta": 6}}}"#,
        ] {
            let config = config(text);
            assert_eq!((config.rope_type(), config.rope_number("rope_theta").unwrap()), ("linear", Some(5.0)));
            assert_eq!(config.sliding_rope("rope_theta").and_then(Value::as_f64), Some(6.0));
        }
        let old = config(r#"{"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4}, "rope_theta": 7}"#);
        assert_eq!((old.rope_type(), old.rope_number("rope_theta").unwrap()), ("yarn", Some(7.0)));
    }

    #[test]
    fn the_language_model_of_several_comes_first() {
        let text =
            r#"{"model_type": "a", "vocab_size": 1, "x": 2, "text_config": {"model_type": "qwen3", "vocab_size": 3}}"#;
        let config = config(text);
        assert_eq!(
            (config.model_type(), config.need("vocab_size").unwrap(), config.need("x").unwrap()),
            ("qwen3", 3, 2)
        );
        assert!(Config::of("[1]").is_none() && Config::of("{}").is_none());
        let wrong = Config::of(r#"{"model_type": "a", "n": -1, "m": 2.5, "l": 1e99}"#).unwrap();
        assert!(["n", "m", "l", "absent"].iter().all(|name| wrong.need(name).is_err()));
    }
}
