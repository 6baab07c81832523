//! Factors of rotary embeddings, which llama.cpp's converter computes from `config.json` and stores as tensors.
//!
//! llama.cpp divides the frequency of each pair of dimensions by its factor. Without the tensors it loads the model, and
//! rotates by other angles.

use crate::container::ComputedTensor;
use crate::error::{Error, Result};
use crate::text::shorten;
use serde_json::{Map, Value};
use std::f64::consts::PI;

/// The factors of the scaling of Llama 3.1.
const FACTORS: &str = "rope_freqs.weight";
/// The factors of LongRoPE for long and short texts.
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";
/// All names of such tensors.
pub(super) const NAMES: [&str; 3] = [FACTORS, LONG, SHORT];

/// Architectures for which llama.cpp's converter stores the factors of Llama 3.1, and the default of `factor`.
const LLAMA3: &[(&str, f64)] =
    &[("llama", 8.0), ("granite", 8.0), ("granitemoe", 8.0), ("smollm3", 8.0), ("exaone4", 16.0)];
/// The architecture for which it stores the factors of LongRoPE.
const PHI3: &str = "phi3";
/// The architecture that rotates some of the dimensions of layers with full attention, and leaves the others as they are.
const GEMMA4: &str = "gemma4";
/// The factor of a frequency that is to be zero.
const STILL: f32 = 1e30;
/// Maximum number of dimensions of a head, of which models have a few hundred.
const MAX_DIMENSIONS: u64 = 1 << 16;

/// Returns the tensors that the rotary embeddings of a model need.
///
/// # Errors
/// When the config lacks a number, or llama.cpp has no form for its scaling.
pub(super) fn computed(config: &Value, architecture: &str) -> Result<Vec<ComputedTensor>> {
    let Some(rope) = Rope::of(config) else { return Ok(Vec::new()) };
    let kind = rope.kind();
    if architecture == PHI3 && rope.value("long_factor").is_some() {
        return rope.of_phi3();
    }
    if architecture == GEMMA4 {
        return Ok(vec![rope.of_gemma4()?]);
    }
    match &*kind {
        "llama3" => match LLAMA3.iter().find(|(name, _)| *name == architecture) {
            Some((_, factor)) => Ok(vec![rope.of_llama3(*factor)?]),
            None => Err(no_form(&kind, architecture)),
        },
        "longrope" | "su" => Err(match architecture {
            PHI3 => lacks("long_factor"),
            _ => no_form(&kind, architecture),
        }),
        _ => Ok(Vec::new()),
    }
}

fn no_form(kind: &str, architecture: &str) -> Error {
    Error::new(format!(
        "scales rotary embeddings by the rule '{kind}', for which llama.cpp's {architecture} has no form"
    ))
}

fn lacks(key: &str) -> Error {
    Error::new(format!("has a config.json whose scaling of rotary embeddings has no '{key}' that fits"))
}

/// The parameters of rotary embeddings in a config.
struct Rope<'c> {
    config: &'c Value,
    parameters: &'c Map<String, Value>,
}

impl<'c> Rope<'c> {
    /// Finds the parameters of the layers with full attention; `None` if there are none.
    fn of(config: &'c Value) -> Option<Self> {
        let given = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| config.get(key)?.as_object())?;
        let parameters = given.get("full_attention").and_then(Value::as_object).unwrap_or(given);
        Some(Self { config, parameters })
    }

    /// Returns a parameter. Older configs have some of them at the top.
    fn value(&self, key: &str) -> Option<&'c Value> {
        let found = self.parameters.get(key).or_else(|| self.config.get(key));
        found.filter(|value| !value.is_null())
    }

    fn kind(&self) -> String {
        let named = ["rope_type", "type"].into_iter().find_map(|key| self.parameters.get(key)?.as_str());
        shorten(named.unwrap_or_default()).to_lowercase()
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        let Some(value) = self.value(key) else { return Ok(default) };
        value.as_f64().filter(|number| *number > 0.0).ok_or_else(|| lacks(key))
    }

    fn count(&self, key: &str) -> Option<u64> {
        self.config.get(key)?.as_u64()
    }

    /// Returns the number of dimensions of a head from a key of the config, or from another source.
    fn dimensions(&self, key: &str, or: Option<u64>) -> Result<u64> {
        let dimensions = self.count(key).or(or);
        dimensions.filter(|count| (1..=MAX_DIMENSIONS).contains(count)).ok_or_else(|| lacks(key))
    }

    /// Returns the number of dimensions of a head if the config has no key for it.
    fn share_of_head(&self) -> Option<u64> {
        self.count("hidden_size")?.checked_div(self.count("num_attention_heads")?)
    }

    /// Returns the factors of Llama 3.1, with the roundings of PyTorch, which computes in float32.
    fn of_llama3(&self, default: f64) -> Result<ComputedTensor> {
        let dimensions = self.dimensions("head_dim", self.share_of_head())?;
        let theta = self.number("rope_theta", 10_000.0)?;
        let factor = self.number("factor", default)?;
        let (low, high) = (self.number("low_freq_factor", 1.0)?, self.number("high_freq_factor", 4.0)?);
        let length = self.number("original_max_position_embeddings", 8192.0)?;
        let value = |at: u64| {
            let power = f64::from(theta as f32).powf(f64::from(at as f32 / dimensions as f32)) as f32;
            let wave = (1.0 / (1.0 / power)) * (2.0 * PI) as f32;
            if f64::from(wave) < length / high {
                1.0
            } else if f64::from(wave) > length / low {
                factor as f32
            } else {
                let smooth = ((1.0 / wave) * length as f32 - low as f32) / (high - low) as f32;
                1.0 / ((1.0 - smooth) / factor as f32 + smooth)
            }
        };
        let values: Vec<f32> = (0..dimensions).step_by(2).map(value).collect();
        if values.iter().any(|value| !value.is_finite() || *value <= 0.0) {
            return Err(lacks("factor"));
        }
        Ok(ComputedTensor { name: FACTORS, values })
    }

    /// Returns the factors of layers with full attention.
    fn of_gemma4(&self) -> Result<ComputedTensor> {
        let pairs = self.dimensions("global_head_dim", None)? as usize / 2;
        let share = self.number("partial_rotary_factor", 0.0)?;
        let rotated = (2.0 * pairs as f64 * share / 2.0) as usize;
        let mut values = vec![1.0; rotated.min(pairs)];
        values.resize(pairs, STILL);
        Ok(ComputedTensor { name: FACTORS, values })
    }

    /// Returns the factors of LongRoPE, which the config lists.
    fn of_phi3(&self) -> Result<Vec<ComputedTensor>> {
        let partial = self.number("partial_rotary_factor", 1.0)?;
        let dimensions = self.share_of_head().ok_or_else(|| lacks("long_factor"))?;
        let rotated = (dimensions as f64 * partial) as u64 / 2;
        let list = |name: &'static str, key: &str| {
            let listed = self.value(key).and_then(Value::as_array).filter(|list| list.len() as u64 == rotated);
            let number = |value: &Value| value.as_f64().filter(|value| *value > 0.0).map(|value| value as f32);
            let values = listed.and_then(|list| list.iter().map(number).collect::<Option<Vec<f32>>>());
            Ok(ComputedTensor { name, values: values.ok_or_else(|| lacks(key))? })
        };
        Ok(vec![list(LONG, "long_factor")?, list(SHORT, "short_factor")?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn values(config: &Value, architecture: &str) -> Vec<Vec<f32>> {
        computed(config, architecture).unwrap().into_iter().map(|tensor| tensor.values).collect()
    }

    #[test]
    fn the_factors_of_llama_3_are_those_of_its_rule() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64});
        let config = json!({"head_dim": 16, "rope_theta": 500_000.0, "rope_scaling": scaling});
        let found = values(&config, "llama");
        assert_eq!(found[0].len(), 8);
        assert_eq!((found[0][0], found[0][7]), (1.0, 8.0));
        assert!((1.0..8.0).contains(&found[0][1]), "{found:?}");
        // Both spellings of the config mean the same.
        let mut newer = scaling;
        newer["rope_theta"] = json!(500_000.0);
        let newer = json!({"hidden_size": 64, "num_attention_heads": 4, "rope_parameters": newer});
        assert_eq!(values(&newer, "exaone4"), found);
    }

    #[test]
    fn gemma_4_rotates_a_part_of_the_dimensions() {
        let full = json!({"rope_type": "proportional", "partial_rotary_factor": 0.25});
        let config =
            json!({"global_head_dim": 16, "rope_parameters": {"full_attention": full, "sliding_attention": {}}});
        assert_eq!(values(&config, "gemma4"), [[1.0, 1.0, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30]]);
        assert!(computed(&json!({"rope_parameters": {"full_attention": {}}}), "gemma4").is_err());
    }

    #[test]
    fn long_rope_has_two_lists_of_factors() {
        let sizes = |factors: Value| json!({"hidden_size": 16, "num_attention_heads": 4, "rope_scaling": factors});
        let config = sizes(json!({"type": "su", "long_factor": [2, 3.5], "short_factor": [1, 1.5]}));
        assert_eq!(values(&config, "phi3"), [[2.0, 3.5], [1.0, 1.5]]);
        for wrong in [
            json!({"type": "longrope"}),
            json!({"type": "longrope", "long_factor": [2, 3.5]}),
            json!({"type": "longrope", "long_factor": [2, 3.5, 4], "short_factor": [1, 1, 1]}),
            json!({"type": "longrope", "long_factor": [2, "a"], "short_factor": [1, 1]}),
        ] {
            assert!(computed(&sizes(wrong.clone()), "phi3").is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_without_a_form_are_refused_and_others_need_no_tensors() {
        for (kind, architecture, is_refused) in [
            ("llama3", "qwen2", true),
            ("longrope", "llama", true),
            ("yarn", "qwen2", false),
            ("linear", "llama", false),
            ("default", "phi3", false),
        ] {
            let config = json!({"head_dim": 16, "rope_scaling": {"rope_type": kind}});
            let found = computed(&config, architecture);
            assert_eq!(found.is_err(), is_refused, "{kind} {architecture}");
            assert!(found.is_err() || found.is_ok_and(|tensors| tensors.is_empty()), "{kind}");
        }
        assert!(values(&json!({"rope_scaling": null}), "llama").is_empty());
        let huge = json!({"head_dim": 1_u64 << 60, "rope_scaling": {"rope_type": "llama3"}});
        assert!(computed(&huge, "llama").is_err());
    }
}
