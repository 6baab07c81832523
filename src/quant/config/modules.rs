//! Lists of modules in configs, each matched as its engine does.

use crate::error::{Error, Result};
use crate::text::shorten;
use regex::{RegexBuilder, RegexSet, RegexSetBuilder};
use std::collections::{HashMap, HashSet};

/// Way in which the entries of a list match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::quant) enum MatchStyle {
    /// compressed-tensors: the whole name, or `re:` and a regular expression anchored at the start.
    #[default]
    Prefixed,
    /// transformers: a name, the name of an enclosing module, the end of a name, or a regular expression anchored at
    /// the start.
    Transformers,
    /// `ModelOpt`: Python's fnmatch.
    Globs,
    /// SDNQ: see [`PartEntry`].
    Parts,
}

/// An entry of SDNQ, which it compares with the names of weights: `x.y.weight`.
pub(in crate::quant) enum PartEntry<'e> {
    /// The whole name.
    Module(&'e str),
    /// A regular expression, anchored at the start, for one part of the name between dots, a beginning (after a dot), or
    /// a pattern with `*`.
    Pattern(String),
    /// A name of something else.
    Nothing,
}

impl<'e> PartEntry<'e> {
    pub(in crate::quant) fn of(entry: &'e str) -> Self {
        const WEIGHT: &str = ".weight";
        // Patterns are compared with the names of modules.
        let (name, end) = entry.strip_suffix(WEIGHT).map_or((entry, ""), |name| (name, "$"));
        match (entry.strip_prefix('.'), entry.contains('*')) {
            (Some(_), _) => {
                let start = name.get(1..).unwrap_or_default();
                let (start, end) = start.strip_suffix('.').map_or((start, end), |start| (start, r"(\.|$)"));
                Self::Pattern(regex::escape(start) + end)
            }
            (None, true) => {
                let (start, end) = name.strip_suffix(".*").map_or((name, end), |start| (start, r"(\.|$)"));
                Self::Pattern(start.replace(".*", r"\.*").replace('*', ".*") + end)
            }
            (None, false) if !end.is_empty() => Self::Module(name),
            (None, false) if entry.contains('.') => Self::Nothing,
            (None, false) => Self::Pattern(format!(r"(.*\.)?{}(\.|$)", regex::escape(entry))),
        }
    }
}

/// Values by the names of modules. Prefixes of a long name are looked up in time linear in its length.
#[derive(Debug)]
pub(in crate::quant) struct ModuleMap<V> {
    values: HashMap<String, V>,
    /// Lengths of the names. A name of another length is not hashed.
    lengths: HashSet<usize>,
}

impl<V> Default for ModuleMap<V> {
    fn default() -> Self {
        Self { values: HashMap::new(), lengths: HashSet::new() }
    }
}

impl<V> ModuleMap<V> {
    pub(in crate::quant) fn insert(&mut self, name: String, value: V) {
        self.lengths.insert(name.len());
        self.values.insert(name, value);
    }

    pub(in crate::quant) fn get(&self, name: &str) -> Option<(&str, &V)> {
        let known = || self.values.get_key_value(name);
        let (name, value) = self.lengths.contains(&name.len()).then(known)??;
        Some((name, value))
    }

    pub(in crate::quant) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// Values by patterns of modules. The first pattern that matches decides.
#[derive(Debug)]
pub(in crate::quant) struct PatternMap<V> {
    values: Vec<V>,
    /// Patterns that are not compiled yet.
    texts: Vec<String>,
    patterns: RegexSet,
}

impl<V> Default for PatternMap<V> {
    fn default() -> Self {
        Self { values: Vec::new(), texts: Vec::new(), patterns: RegexSet::default() }
    }
}

impl<V> PatternMap<V> {
    /// Adds an entry of a part of a config, which is a regular expression anchored at the start.
    pub(in crate::quant) fn push(&mut self, text: &str, part: &str, entry: &str, value: V) -> Result<()> {
        check_number(self.values.len() + 1)?;
        let pattern = anchored(text);
        if !is_supported(&pattern) {
            let message = format!("its {part} has a pattern that tcast cannot read: '{}'", shorten(entry));
            return Err(Error::new(message));
        }
        self.texts.push(pattern);
        self.values.push(value);
        Ok(())
    }

    /// Compiles all patterns, after the last was added: only together do they have a bound.
    pub(in crate::quant) fn compile(&mut self) -> Result<()> {
        self.patterns = compile(std::mem::take(&mut self.texts).iter())?;
        Ok(())
    }

    pub(in crate::quant) fn get(&self, module: &str) -> Option<(&str, &V)> {
        let at = self.patterns.matches(module).iter().next()?;
        Some((&self.patterns.patterns()[at], &self.values[at]))
    }
}

/// A list of modules.
#[derive(Debug, Default)]
pub(in crate::quant) struct ModuleList {
    style: MatchStyle,
    names: ModuleMap<()>,
    patterns: RegexSet,
    /// The entries with these patterns.
    entries: Vec<String>,
}

/// Maximum number of patterns in a part of a config, or in a list.
const MOST_PATTERNS: usize = 1000;
/// Size limit of all compiled patterns of a config or a list. A pattern with `\w` takes about 100 KiB, and most others a
/// few.
const MOST_OF_LIST: usize = 32 << 20;

/// Refuses a number of patterns that would take long to compile and match.
fn check_number(number: usize) -> Result<()> {
    if number <= MOST_PATTERNS {
        return Ok(());
    }
    Err(Error::new(format!("has more than {MOST_PATTERNS} patterns of modules, the most that tcast reads")))
}

fn anchored(text: &str) -> String {
    format!("^(?:{text})")
}

/// Compiles the patterns of a list.
fn compile(patterns: impl Iterator<Item = impl AsRef<str>>) -> Result<RegexSet> {
    RegexSetBuilder::new(patterns).size_limit(MOST_OF_LIST).build().map_err(|_| {
        let most = MOST_OF_LIST >> 20;
        Error::new(format!("has patterns of modules that compile to more than {most} MiB, the most that tcast reads"))
    })
}

/// True if a pattern has no unsupported feature, such as look-around.
fn is_supported(pattern: &str) -> bool {
    // A pattern is parsed before its size counts, so the limit saves the time to compile it.
    !matches!(RegexBuilder::new(pattern).size_limit(0).build(), Err(regex::Error::Syntax(_)))
}

impl ModuleList {
    /// Reads a list. Entries with unsupported patterns match nothing. Refuses patterns that are too many or too large.
    pub(in crate::quant) fn new(entries: &[&str], style: MatchStyle) -> Result<Self> {
        let is_plain = |text: &str| text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'));
        let mut list = Self { style, ..Self::default() };
        let mut patterns = Vec::new();
        for entry in entries {
            let pattern = match (style, entry.strip_prefix("re:")) {
                (MatchStyle::Prefixed, Some(text)) => anchored(text),
                (MatchStyle::Transformers, _) if !is_plain(entry) => anchored(entry),
                (MatchStyle::Globs, _) if !is_plain(entry) => glob(entry),
                (MatchStyle::Parts, _) => match PartEntry::of(entry) {
                    PartEntry::Pattern(text) => anchored(&text),
                    PartEntry::Module(module) => {
                        list.names.insert(module.to_owned(), ());
                        continue;
                    }
                    PartEntry::Nothing => continue,
                },
                _ => {
                    list.names.insert((*entry).to_owned(), ());
                    continue;
                }
            };
            check_number(patterns.len() + 1)?;
            patterns.push((pattern, (*entry).to_owned()));
        }
        patterns.retain(|(pattern, _)| is_supported(pattern));
        list.patterns = compile(patterns.iter().map(|(pattern, _)| pattern))?;
        list.entries = patterns.into_iter().map(|(_, entry)| entry).collect();
        Ok(list)
    }

    /// Returns the entry that matches a module in all engines: its name, a pattern for it or, with
    /// [`MatchStyle::Transformers`], the name of an enclosing module.
    pub(in crate::quant) fn find(&self, module: &str) -> Option<&str> {
        let name = self.names.get(module).map(|(name, ())| name);
        let pattern = || Some(self.entries[self.patterns.matches(module).iter().next()?].as_str());
        let outer = || self.outer(module).filter(|_| self.style == MatchStyle::Transformers);
        name.or_else(pattern).or_else(outer)
    }

    /// True if an entry matches a module in some engines. The entry may also be the end of the name or, with
    /// [`MatchStyle::Globs`], the name of an enclosing module.
    pub(in crate::quant) fn may_contain(&self, module: &str) -> bool {
        let is_end = |(at, _): (usize, _)| self.names.get(&module[at + 1..]).is_some();
        let is_loose = self.style != MatchStyle::Prefixed && !self.names.is_empty();
        self.find(module).is_some()
            || is_loose && (self.outer(module).is_some() || module.match_indices('.').any(is_end))
    }

    /// Returns the name of an enclosing module in the list.
    fn outer(&self, module: &str) -> Option<&str> {
        module.match_indices('.').find_map(|(at, _)| Some(self.names.get(&module[..at])?.0))
    }
}

/// Translates an fnmatch pattern to a regular expression.
pub(in crate::quant) fn glob(text: &str) -> String {
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

    fn list(entries: &[String]) -> Result<ModuleList> {
        ModuleList::new(&entries.iter().map(String::as_str).collect::<Vec<_>>(), MatchStyle::Prefixed)
    }

    #[test]
    fn patterns_that_are_large_together_all_match() {
        let entries: Vec<String> = (0..100).map(|at| format!(r"re:.*layers\.{at}\.\w+\.\w+")).collect();
        let modules = list(&entries).unwrap();
        for at in [0, 50, 99] {
            assert_eq!(modules.find(&format!("model.layers.{at}.mlp.up")), Some(&*entries[at]));
        }
        assert_eq!(modules.find("model.layers.100.mlp.up"), None);
    }

    #[test]
    fn an_unsupported_pattern_hides_no_other() {
        let modules = list(&["re:(?!a).*".to_owned(), "re:b.*".to_owned(), "re:(".to_owned()]).unwrap();
        assert_eq!((modules.find("bc"), modules.find("c")), (Some("re:b.*"), None));
    }

    #[test]
    fn patterns_that_are_too_many_or_too_large_are_refused_and_names_are_not() {
        let many = |entry: fn(usize) -> String, count| list(&(0..count).map(entry).collect::<Vec<_>>());
        let error = |found: Result<ModuleList>| found.unwrap_err().to_string();
        assert!(many(|at| format!("re:.*x{at}.*y(a|b)+$"), 1000).is_ok());
        let most = "has more than 1000 patterns of modules, the most that tcast reads";
        assert_eq!(error(many(|at| format!("re:.*x{at}.*y(a|b)+$"), 1001)), most);
        let most = "has patterns of modules that compile to more than 32 MiB, the most that tcast reads";
        assert_eq!(error(many(|at| format!("re:.*a{{1,200}}{{1,20}}.*{at}$"), 1000)), most);
        assert_eq!(error(many(|at| format!(r"re:\w{{1000}}{{1000}}{at}"), 1)), most);
        assert!(many(|at| format!("model.layers.{at}"), 100_000).is_ok());
    }

    #[test]
    fn patterns_with_values_have_a_bound_together_and_the_first_decides() {
        let map = |entries: &mut dyn Iterator<Item = String>| {
            let mut map = PatternMap::default();
            entries.enumerate().try_for_each(|(at, text)| map.push(&text, "dynamic", &text, at))?;
            map.compile().map(|()| map)
        };
        let error = |found: Result<PatternMap<usize>>| found.unwrap_err().to_string();
        let found = map(&mut (0..1000).map(|at| format!("a.*{}$", at % 500))).unwrap();
        assert_eq!(found.get("ab77"), Some(("^(?:a.*7$)", &7)));
        assert_eq!(found.get("b"), None);
        let most = "has patterns of modules that compile to more than 32 MiB, the most that tcast reads";
        assert_eq!(error(map(&mut (0..1000).map(|at| format!(r"\w{{30}}{at}")))), most);
        let unread = "its dynamic has a pattern that tcast cannot read: '(?!a)'";
        assert_eq!(error(map(&mut ["b".to_owned(), "(?!a)".to_owned()].into_iter())), unread);
    }

    #[test]
    fn a_long_name_takes_time_in_proportion_to_its_length() {
        let module = "a.".repeat(1 << 20);
        for style in [MatchStyle::Prefixed, MatchStyle::Transformers, MatchStyle::Globs] {
            let modules = ModuleList::new(&["lm_head", "a.b"], style).unwrap();
            assert!(!modules.may_contain(&module));
        }
        let modules = ModuleList::new(&["a.a", "b"], MatchStyle::Transformers).unwrap();
        assert_eq!((modules.find(&module), modules.find("c.b")), (Some("a.a"), None));
        assert!(modules.may_contain("c.b"));
    }
}
