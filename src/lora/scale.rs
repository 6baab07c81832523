//! The scale of a module, from the config, the metadata, or a tensor.

use super::adapter::{Adapter, Dialect};
use crate::container::{Members, members};
use crate::error::{Error, Result};
use crate::text::shorten;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

/// A number for each module: a default, and patterns that take precedence.
pub(super) struct ByModule {
    default: Option<f64>,
    /// In the order of the file; the first match decides.
    patterns: Vec<(ModulePattern, f64)>,
}

impl ByModule {
    /// Reads a default and its patterns. `prefix` begins the keys of the metadata.
    fn read(text: &str, default: &[&str], patterns_key: &str) -> Result<Self> {
        /// Maximum number of patterns, each of which is tried for each module, and of regular expressions, which are compiled.
        const MOST: [usize; 2] = [1 << 12, 256];
        let members = members(text).unwrap_or_default();
        let number = |key: &&str| serde_json::from_str::<Value>(members.get(*key)?.get()).ok()?.as_f64();
        let pairs: Option<Members<Value>> = match members.get(patterns_key) {
            Some(raw) => serde_json::from_str(raw.get())
                .map_err(|error| Error::new(format!("{patterns_key} cannot be read: {error}")))?,
            None => None,
        };
        let pattern = |(key, value): (String, Value)| {
            let number = value.as_f64().ok_or_else(|| {
                Error::new(format!("{patterns_key} has a value for '{}' that is not a number", shorten(&key)))
            })?;
            Ok((ModulePattern::new(&key)?, number))
        };
        let pairs = pairs.map(|pairs| pairs.0).unwrap_or_default();
        if pairs.len() > MOST[0] {
            return Err(Error::new(format!("{patterns_key} has more than {} patterns", MOST[0])));
        }
        let patterns = pairs.into_iter().map(pattern).collect::<Result<Vec<_>>>()?;
        if patterns.iter().filter(|(pattern, _)| matches!(pattern, ModulePattern::Regex(_))).count() > MOST[1] {
            return Err(Error::new(format!("{patterns_key} has more than {} regular expressions", MOST[1])));
        }
        Ok(Self { default: default.iter().find_map(number), patterns })
    }

    fn of(&self, module: &str) -> Option<f64> {
        self.of_first(&[module])
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
    /// Returns what the file of an adapter gives, as its dialect defines. `None` if it gives nothing.
    pub(super) fn of(adapter: &Adapter) -> Result<Option<Self>> {
        match adapter.dialect {
            Dialect::Peft => Self::of_config(adapter).map(Some),
            Dialect::Kohya | Dialect::Dotted => {
                let component = adapter.modules.first().and_then(|module| module.name.split('.').next());
                Self::of_metadata(adapter, component.unwrap_or_default())
            }
            Dialect::Mlx | Dialect::Gguf => Ok(None),
        }
    }

    /// Reads the config of PEFT.
    fn of_config(adapter: &Adapter) -> Result<Self> {
        let text = &adapter.config_text;
        Ok(Self {
            rank: ByModule::read(text, &["r"], "rank_pattern")?,
            alpha: ByModule::read(text, &["lora_alpha", "alpha"], "alpha_pattern")?,
            is_rslora: adapter.config["use_rslora"] == true && adapter.config["peft_type"] == "LORA",
        })
    }

    /// Reads the metadata that diffusers writes, for the component of the model that these modules belong to. `None` if
    /// there is none.
    fn of_metadata(adapter: &Adapter, component: &str) -> Result<Option<Self>> {
        let Some(text) = adapter.metadata("lora_adapter_metadata") else { return Ok(None) };
        let all: Value = serde_json::from_str(text)
            .map_err(|error| Error::new(format!("lora_adapter_metadata is not JSON: {error}")))?;
        let Some(all) = all.as_object().filter(|all| !all.is_empty()) else { return Ok(None) };
        let own = format!("{component}.");
        let has_own = all.keys().any(|key| key.starts_with(&own));
        let key = |name: &str| if has_own { format!("{own}{name}") } else { name.to_owned() };
        let (rank, alpha) = (key("r"), key("lora_alpha"));
        Ok(Some(Self {
            rank: ByModule::read(text, &[&rank], &key("rank_pattern"))?,
            alpha: ByModule::read(text, &[&alpha], &key("alpha_pattern"))?,
            is_rslora: all.get(&key("use_rslora")).is_some_and(|value| *value == true),
        }))
    }

    /// Returns the scale of a module, and its rank.
    pub(super) fn get(&self, module: &str) -> Result<(f64, f64)> {
        let rank = self.rank.of(module).filter(|rank| *rank > 0.0);
        let rank = rank.ok_or_else(|| Error::new("the rank r in its config is not a positive number"))?;
        let alpha = self.alpha.of(module).filter(|alpha| alpha.is_finite());
        let alpha = alpha.ok_or_else(|| Error::new("its config has no lora_alpha: the scale is not known"))?;
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
