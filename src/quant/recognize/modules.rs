//! Lists of modules in configs, each matched as its engine does.

use crate::error::{Error, Result};
use crate::text::shorten;
use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use std::collections::HashSet;

/// Way in which the entries of a list match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchStyle {
    /// compressed-tensors: the whole name, or `re:` and a regular expression anchored at the start.
    Prefixed,
    /// transformers: a name, the name of an enclosing module, the end of a name, or a regular expression anchored at
    /// the start.
    Transformers,
    /// `ModelOpt`: Python's fnmatch.
    Globs,
}

/// Match of an entry with a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// The entry is the module's name, a pattern for it or, with [`MatchStyle::Transformers`], the name of an enclosing
    /// module.
    Firmly(String),
    /// The entry is the end of the name or, with [`MatchStyle::Globs`], the name of an enclosing module. Not all
    /// engines consider this a match.
    Loosely(String),
}

/// A list of modules.
#[derive(Debug, Default)]
pub(super) struct ModuleList {
    names: HashSet<String>,
    patterns: RegexSet,
    texts: Vec<String>,
    style: Option<MatchStyle>,
}

/// Size limit of compiled patterns. In a list, larger patterns and patterns with unsupported features (such as
/// look-around) match nothing.
const MOST: usize = 1 << 20;

/// Compiles an entry of a part of a config to a regular expression anchored at the start. The patterns of a part are
/// numbered from 1.
pub(super) fn pattern(text: &str, (part, entry, number): (&str, &str, usize)) -> Result<Regex> {
    /// Maximum number of patterns in a part.
    const MOST_PATTERNS: usize = 1000;
    if number > MOST_PATTERNS {
        return Err(Error::new(format!(
            "has more than {MOST_PATTERNS} patterns of modules, the most that tcast reads"
        )));
    }
    RegexBuilder::new(&anchored(text))
        .size_limit(MOST)
        .build()
        .map_err(|_| Error::new(format!("its {part} has a pattern that tcast cannot read: '{}'", shorten(entry))))
}

fn anchored(text: &str) -> String {
    format!("^(?:{text})")
}

impl ModuleList {
    pub(super) fn new(entries: &[&str], style: MatchStyle) -> Self {
        let is_plain = |text: &str| text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'));
        let mut list = Self { style: Some(style), ..Self::default() };
        let mut patterns = Vec::new();
        for entry in entries {
            let text = match (style, entry.strip_prefix("re:")) {
                (MatchStyle::Prefixed, Some(text)) => anchored(text),
                (MatchStyle::Transformers, _) if !is_plain(entry) => anchored(entry),
                (MatchStyle::Globs, _) if !is_plain(entry) => glob(entry),
                _ => {
                    list.names.insert((*entry).to_owned());
                    continue;
                }
            };
            patterns.push(text);
            list.texts.push((*entry).to_owned());
        }
        let set = |patterns: &[String]| RegexSetBuilder::new(patterns).size_limit(MOST).build();
        list.patterns = set(&patterns).unwrap_or_else(|_| {
            // An unsupported pattern must not hide the others.
            let is_known = |text: &String| RegexBuilder::new(text).size_limit(MOST).build().is_ok();
            let known: Vec<bool> = patterns.iter().map(is_known).collect();
            let mut at = known.iter();
            patterns.retain(|_| at.next() == Some(&true));
            let mut at = known.iter();
            list.texts.retain(|_| at.next() == Some(&true));
            set(&patterns).unwrap_or_default()
        });
        list
    }

    pub(super) fn find(&self, module: &str) -> Option<Listed> {
        if let Some(name) = self.names.get(module) {
            return Some(Listed::Firmly(name.clone()));
        }
        if let Some(at) = self.patterns.matches(module).iter().next() {
            return Some(Listed::Firmly(self.texts.get(at)?.clone()));
        }
        if self.style? == MatchStyle::Prefixed || self.names.is_empty() {
            return None;
        }
        let dots = || module.match_indices('.').map(|(at, _)| at);
        let around = dots().find_map(|at| self.names.get(&module[..at]));
        let end = || dots().find_map(|at| self.names.get(&module[at + 1..]));
        match (self.style?, around) {
            (MatchStyle::Transformers, Some(around)) => Some(Listed::Firmly(around.clone())),
            (_, around) => around.or_else(end).cloned().map(Listed::Loosely),
        }
    }
}

/// Translates an fnmatch pattern to a regular expression.
fn glob(text: &str) -> String {
    let mut expression = "^(?s:".to_owned();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        // A bracket right after the opening one belongs to the set.
        let close = |rest: &str| rest.get(1..).and_then(|rest| rest.find(']')).map(|at| at + 1);
        match (next, close(rest)) {
            ('*', _) => expression += ".*",
            ('?', _) => expression += ".",
            ('[', Some(close)) => {
                let set = rest[..close].replace('\\', r"\\").replace('[', r"\[").replace("&&", r"&\&");
                let (start, set) = set.strip_prefix('!').map_or(("[", &*set), |set| ("[^", set));
                expression.extend([start, set, "]"]);
                rest = &rest[close + 1..];
            }
            _ => expression += &regex::escape(next.encode_utf8(&mut [0; 4])),
        }
    }
    expression + ")$"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_match_as_their_engines_do() {
        let found = |style, entries: &[&str], module: &str| ModuleList::new(entries, style).find(module);
        let firmly = |entry: &str| Some(Listed::Firmly(entry.to_owned()));
        let loosely = |entry: &str| Some(Listed::Loosely(entry.to_owned()));
        let prefixed = ["lm_head", "re:.*mlp.gate$", "re:(?!x).*", "re:model"];
        for (module, wanted) in [
            ("lm_head", firmly("lm_head")),
            ("x.lm_head", None),
            ("lm_head.x", None),
            ("a.mlp.gate", firmly("re:.*mlp.gate$")),
            ("a.mlp.gate_proj", None),
            ("model.x", firmly("re:model")), // re.match
            ("a.model.x", None),
        ] {
            assert_eq!(found(MatchStyle::Prefixed, &prefixed, module), wanted, "{module}");
        }
        let transformers = ["lm_head", "model.layers.1", "model.layers.*.self_attn", "mlp.gate"];
        for (module, wanted) in [
            ("lm_head", firmly("lm_head")),
            ("model.layers.1.q", firmly("model.layers.1")),
            ("model.layers.10.q", None),
            ("model.layers.10.self_attn.q", firmly("model.layers.*.self_attn")),
            ("x.0.mlp.gate", loosely("mlp.gate")),
        ] {
            assert_eq!(found(MatchStyle::Transformers, &transformers, module), wanted, "{module}");
        }
        let globs = ["lm_head", "*vision*", "model.layers.[0-3].x", "a.?", "[!ab]b"];
        for (module, wanted) in [
            ("lm_head", firmly("lm_head")),
            ("a.vision.b", firmly("*vision*")),
            ("model.layers.2.x", firmly("model.layers.[0-3].x")),
            ("model.layers.4.x", None),
            ("a.b", firmly("a.?")),
            ("cb", firmly("[!ab]b")),
            ("lm_head.x", loosely("lm_head")),
        ] {
            assert_eq!(found(MatchStyle::Globs, &globs, module), wanted, "{module}");
        }
    }
}
