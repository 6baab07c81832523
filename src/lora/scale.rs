//! The scales that a config or the metadata of a file gives to modules.

use crate::container::{Members, members};
use crate::error::{Error, Result};
use crate::text::shorten;
use regex::{Regex, RegexBuilder};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeSet;

/// A number for each module: a default, and patterns that take precedence.
pub(super) struct ByModule {
    default: Option<f64>,
    /// In the order of the file; the first match decides.
    patterns: Vec<(ModulePattern, f64)>,
}

impl ByModule {
    /// Reads the patterns of a key.
    fn read(default: Option<f64>, patterns: Option<&&RawValue>, key: &str) -> Result<Self> {
        /// Maximum number of patterns, each of which is tried for each module, and of regular expressions, which are compiled.
        const MOST: [usize; 2] = [1 << 12, 256];
        let pairs: Option<Members<Value>> = serde_json::from_str(patterns.map_or("null", |raw| raw.get()))
            .map_err(|error| Error::new(format!("{key} cannot be read: {error}")))?;
        let pattern = |(name, value): (String, Value)| {
            let number = value.as_f64().ok_or_else(|| {
                Error::new(format!("{key} has a value for '{}' that is not a number", shorten(&name)))
            })?;
            Ok((ModulePattern::new(&name)?, number))
        };
        let pairs = pairs.map(|pairs| pairs.0).unwrap_or_default();
        if pairs.len() > MOST[0] {
            return Err(Error::new(format!("{key} has more than {} patterns", MOST[0])));
        }
        let patterns = pairs.into_iter().map(pattern).collect::<Result<Vec<_>>>()?;
        if patterns.iter().filter(|(pattern, _)| matches!(pattern, ModulePattern::Regex(_))).count() > MOST[1] {
            return Err(Error::new(format!("{key} has more than {} regular expressions", MOST[1])));
        }
        Ok(Self { default, patterns })
    }

    /// Returns the number of the first name that a pattern matches, or the default.
    pub(super) fn of_first(&self, names: &[&str]) -> Option<f64> {
        let of_name = |name: &&str| self.patterns.iter().find(|(pattern, _)| pattern.matches(name));
        names.iter().find_map(of_name).map(|(_, number)| *number).or(self.default)
    }
}

/// A pattern as PEFT uses it: it matches a whole name, or the end of one after a dot.
enum ModulePattern {
    /// Letters, and dots that match any character. With a `^`, it matches whole names only.
    Name {
        name: String,
        is_whole: bool,
    },
    Regex(Regex),
}

impl ModulePattern {
    fn new(key: &str) -> Result<Self> {
        /// Maximum size of a compiled pattern, in bytes.
        const MOST: usize = 1 << 18;
        let name = key.strip_prefix('^').unwrap_or(key);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
        if name.bytes().all(is_plain) {
            return Ok(Self::Name { name: name.to_owned(), is_whole: name.len() < key.len() });
        }
        let whole = RegexBuilder::new(&format!(r"^(?:.*\.)?(?:{key})$")).size_limit(MOST).build();
        // The key alone shows unbalanced brackets.
        let alone = RegexBuilder::new(key).size_limit(MOST).build();
        if let (Ok(pattern), Ok(_)) = (whole, alone) {
            return Ok(Self::Regex(pattern));
        }
        let error = Error::new(format!("the pattern '{}' in its config cannot be used", shorten(key)));
        Err(error.remedy("write it without look-around and back references, as a regular expression"))
    }

    fn matches(&self, module: &str) -> bool {
        match self {
            Self::Regex(pattern) => pattern.is_match(module),
            Self::Name { name, is_whole } => {
                let (name, module) = (name.as_bytes(), module.as_bytes());
                let Some(before) = module.len().checked_sub(name.len()) else { return false };
                let ends = name.iter().rev().zip(module.iter().rev()).all(|(own, byte)| own == byte || *own == b'.');
                ends && (before == 0 || !is_whole && module[before - 1] == b'.')
            }
        }
    }
}

/// The rank and alpha that a config, or the metadata of diffusers, gives to modules.
pub(super) struct Scales {
    pub rank: ByModule,
    alpha: ByModule,
    is_rslora: bool,
}

impl Scales {
    /// Reads a config of PEFT, or the metadata of a component of a model, with which keys begin.
    pub(super) fn read(text: &str, component: &str) -> Result<Self> {
        let members = members(text).unwrap_or_default();
        let key = |name: &str| format!("{component}{name}");
        let value = |name: &str| serde_json::from_str::<Value>(members.get(&*key(name))?.get()).ok();
        let by_module = |name: &str, patterns: &str| {
            let key = key(patterns);
            ByModule::read(value(name).and_then(|value| value.as_f64()), members.get(&*key), &key)
        };
        let is_lora = value("peft_type").is_none_or(|method| method == "LORA");
        let is_rslora = match value("use_rslora").filter(|_| is_lora).unwrap_or_default() {
            Value::Null => false,
            Value::Bool(is_set) => is_set,
            other => {
                let what = format!("use_rslora is {}, neither true nor false", shorten(&other.to_string()));
                return Err(Error::new(what).remedy("set it to true or false in the config of the adapter"));
            }
        };
        let alpha = if is_lora { "lora_alpha" } else { "alpha" };
        Ok(Self { rank: by_module("r", "rank_pattern")?, alpha: by_module(alpha, "alpha_pattern")?, is_rslora })
    }

    /// Reads the metadata that diffusers writes: the components of a model, as their names begin, and the scales of each.
    pub(super) fn of_metadata(text: &str) -> Result<Vec<(String, Self)>> {
        /// Maximum number of components, for each of which the metadata is read; pipelines have up to four.
        const MOST: usize = 16;
        let all: Value = serde_json::from_str(text)
            .map_err(|error| Error::new(format!("lora_adapter_metadata is not JSON: {error}")))?;
        let keys = all.as_object().into_iter().flat_map(|all| all.keys());
        let component = |key: &String| key.find('.').map_or_else(String::new, |at| key[..=at].to_owned());
        let components: BTreeSet<String> = keys.map(component).collect();
        if components.len() > MOST {
            return Err(Error::new(format!("lora_adapter_metadata is for more than {MOST} components")));
        }
        let scales = |component: String| Self::read(text, &component).map(|scales| (component, scales));
        components.into_iter().map(scales).collect()
    }

    /// Returns the scale of a module, and its rank.
    pub(super) fn get(&self, module: &str) -> Result<(f64, f64)> {
        let rank = self.rank.of_first(&[module]).filter(|rank| *rank > 0.0);
        let rank = rank.ok_or_else(|| Error::new("the rank r in its config is not a positive number"))?;
        let alpha = self.alpha.of_first(&[module]).filter(|alpha| alpha.is_finite());
        let alpha = alpha
            .ok_or_else(|| Error::new("its config has no lora_alpha (LoHa, LoKr: alpha): the scale is not known"))?;
        Ok((if self.is_rslora { alpha / rank.sqrt() } else { alpha / rank }, rank))
    }
}

#[cfg(test)]
mod tests {
    use super::ModulePattern;

    #[test]
    fn patterns_match_whole_names_or_ends_after_a_dot() {
        for (key, module, wanted) in [
            ("q_proj", "layers.0.q_proj", true),
            ("q_proj", "q_proj", true),
            ("q_proj", "layers.0.mq_proj", false),
            ("^q_proj", "layers.0.q_proj", false),
            ("^a.b", "a.b", true),
            ("0.q_proj", "layers.0xq_proj", true),
            (r".*\.[01]\..*q_proj", "layers.1.self_attn.q_proj", true),
            (r".*\.[01]\..*q_proj", "layers.2.self_attn.q_proj", false),
            ("q_proj|k_proj", "layers.2.self_attn.k_proj", true),
            ("q_proj|k_proj", "layers.2.self_attn.mk_proj", false),
        ] {
            assert_eq!(ModulePattern::new(key).unwrap().matches(module), wanted, "{key} {module}");
        }
        for key in ["(q_proj", "a)(b", r"(a)\1", "(?=a)b", "((a{999}){999})"] {
            assert!(ModulePattern::new(key).is_err(), "{key}");
        }
    }
}
