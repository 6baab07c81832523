//! The options in effect, by their names.

use crate::text::shorten;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The options in effect that influence the bytes of an output, by their names. The manifest of a folder and the report
/// contain them, and a run continues another one only if these are the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedOptions(pub(crate) Map<String, Value>);

impl RecordedOptions {
    /// Records the options of an operation.
    pub(crate) fn of(options: &impl Serialize) -> Self {
        let Ok(Value::Object(mut recorded)) = serde_json::to_value(options) else {
            unreachable!("options are a struct whose fields have names");
        };
        // Every operation records these.
        recorded.entry("to").or_insert(Value::Null);
        recorded.entry("rules").or_insert_with(|| Value::Array(Vec::new()));
        Self(recorded)
    }

    /// Returns the options that differ from the defaults of an operator.
    #[cfg(feature = "cli")]
    pub(crate) fn given(&self, operator: &str) -> impl Iterator<Item = (&str, &Value)> {
        let defaults = match operator {
            "cast" => Self::of(&super::CastOptions::default()),
            "dequantize" => Self::of(&super::DequantizeOptions::default()),
            "quantize" => Self::of(&super::QuantizeOptions::default()),
            "bitcast" => Self::of(&super::BitcastOptions::default()),
            "promote" => Self::of(&super::PromoteOptions::default()),
            _ => Self::default(),
        };
        let options = self.0.iter().map(|(name, value)| (&**name, value));
        options.filter(move |(name, value)| defaults.0.get(*name) != Some(value))
    }

    /// Describes the first difference from the options of another run.
    pub(crate) fn difference(&self, now: &Self) -> Option<String> {
        let get = |options: &Self, name: &str| match options.0.get(name) {
            None | Some(Value::Null) => "not given".to_owned(),
            Some(value) => value.to_string(),
        };
        let mut names = self.0.keys().chain(now.0.keys());
        let name = names.find(|name| get(self, name) != get(now, name))?;
        Some(format!("option '{name}' was {}, and is {} now", shorten(&get(self, name)), shorten(&get(now, name))))
    }
}
