//! Lists of modules in configs, each matched as its engine does.

use crate::error::{Error, Result};
use crate::text::shorten;
use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use std::collections::HashSet;

/// Way in which the entries of a list match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MatchStyle {
    /// compressed-tensors: the whole name, or `re:` and a regular expression anchored at the start.
    #[default]
    Prefixed,
    /// transformers: a name, the name of an enclosing module, the end of a name, or a regular expression anchored at
    /// the start.
    Transformers,
    /// `ModelOpt`: Python's fnmatch.
    Globs,
}

/// A list of modules.
#[derive(Debug, Default)]
pub(super) struct ModuleList {
    style: MatchStyle,
    names: HashSet<String>,
    patterns: RegexSet,
    /// The entries with these patterns.
    entries: Vec<String>,
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
        let mut list = Self { style, ..Self::default() };
        let mut patterns = Vec::new();
        for entry in entries {
            let pattern = match (style, entry.strip_prefix("re:")) {
                (MatchStyle::Prefixed, Some(text)) => anchored(text),
                (MatchStyle::Transformers, _) if !is_plain(entry) => anchored(entry),
                (MatchStyle::Globs, _) if !is_plain(entry) => glob(entry),
                _ => {
                    list.names.insert((*entry).to_owned());
                    continue;
                }
            };
            patterns.push((pattern, (*entry).to_owned()));
        }
        let set = |patterns: &[(String, String)]| {
            RegexSetBuilder::new(patterns.iter().map(|(pattern, _)| pattern)).size_limit(MOST).build()
        };
        let compiled = set(&patterns).or_else(|_| {
            // An unsupported pattern must not hide the others.
            patterns.retain(|(pattern, _)| RegexBuilder::new(pattern).size_limit(MOST).build().is_ok());
            set(&patterns)
        });
        list.patterns = compiled.unwrap_or_default();
        list.entries = patterns.into_iter().map(|(_, entry)| entry).collect();
        list
    }

    /// Returns the entry that matches a module in all engines: its name, a pattern for it or, with
    /// [`MatchStyle::Transformers`], the name of an enclosing module.
    pub(super) fn find(&self, module: &str) -> Option<&str> {
        let pattern = || Some(&self.entries[self.patterns.matches(module).iter().next()?]);
        let outer = || self.outer(module).filter(|_| self.style == MatchStyle::Transformers);
        self.names.get(module).or_else(pattern).or_else(outer).map(String::as_str)
    }

    /// True if an entry matches a module in some engines. The entry may also be the end of the name or, with
    /// [`MatchStyle::Globs`], the name of an enclosing module.
    pub(super) fn may_contain(&self, module: &str) -> bool {
        let is_end = |(at, _): (usize, _)| self.names.contains(&module[at + 1..]);
        let is_loose = self.style != MatchStyle::Prefixed && !self.names.is_empty();
        self.find(module).is_some()
            || is_loose && (self.outer(module).is_some() || module.match_indices('.').any(is_end))
    }

    /// Returns the name of an enclosing module in the list.
    fn outer(&self, module: &str) -> Option<&String> {
        module.match_indices('.').find_map(|(at, _)| self.names.get(&module[..at]))
    }
}

/// Translates an fnmatch pattern to a regular expression.
pub(super) fn glob(text: &str) -> String {
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
