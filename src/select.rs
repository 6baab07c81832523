//! Which tensors are converted, and to what: globs, rules and what is left alone by default.

use crate::dtype::Dtype;
use globset::{Glob, GlobMatcher};

/// A pattern over tensor names: `*` any characters, `?` one, `[a-z]` a set, `{a,b}` either.
#[derive(Clone, Debug)]
pub struct Pattern(GlobMatcher);

impl std::str::FromStr for Pattern {
    type Err = String;

    /// # Errors
    /// What is wrong with the pattern.
    fn from_str(text: &str) -> Result<Self, String> {
        Glob::new(text).map(|glob| Self(glob.compile_matcher())).map_err(|error| error.kind().to_string())
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    fn text(&self) -> &str {
        self.0.glob().glob()
    }
}

/// `GLOB=DTYPE`, or `GLOB=keep` with no dtype: another target for some tensors.
#[derive(Clone, Debug)]
pub struct Rule {
    pattern: Pattern,
    target: Option<Dtype>,
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.pattern, self.target.map_or("keep", Dtype::name))
    }
}

impl std::str::FromStr for Rule {
    type Err = String;

    /// # Errors
    /// What is wrong with the rule.
    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, target) = text.rsplit_once('=').ok_or("a rule is GLOB=DTYPE or GLOB=keep")?;
        let target = match target {
            "keep" => None,
            dtype => Some(dtype.parse::<Dtype>().map_err(|error| error.to_string())?),
        };
        Ok(Self { pattern: pattern.parse()?, target })
    }
}

/// `OLD=NEW`: another name for a tensor.
#[derive(Clone, Debug)]
pub struct Rename {
    /// The name in the input.
    pub old: String,
    /// The name in the output.
    pub new: String,
}

impl std::fmt::Display for Rename {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.old, self.new)
    }
}

impl std::str::FromStr for Rename {
    type Err = String;

    /// # Errors
    /// When there is no `=`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (old, new) = text.split_once('=').ok_or("a new name is given as OLD=NEW")?;
        Ok(Self { old: old.to_owned(), new: new.to_owned() })
    }
}

/// What the arguments say of which tensors become what.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The target of tensors that no rule names.
    pub to: Option<Dtype>,
    /// Only tensors that match one of these are converted; all, where there is none.
    pub include: Vec<Pattern>,
    /// Tensors that match one of these are not converted.
    pub exclude: Vec<Pattern>,
    /// The first that matches decides, before `to`.
    pub rules: Vec<Rule>,
    /// Convert integers and bools to a floating `to` as well.
    pub all: bool,
    /// New names.
    pub renames: Vec<Rename>,
    /// Only tensors of these names are converted; all, where there is none.
    pub only: Vec<String>,
}

impl Selection {
    /// The type that a tensor is to get; `None` leaves it as it is. `alone` tells the only tensor of a file.
    #[must_use]
    pub fn target(&self, name: &str, source: Option<Dtype>, alone: bool) -> Option<Dtype> {
        if !self.selects(name) {
            return None;
        }
        if let Some(rule) = self.rules.iter().find(|rule| rule.pattern.matches(name)) {
            return rule.target;
        }
        let to = self.to?;
        // As torch's `.to(dtype)` of a module: position ids and masks do not become floats.
        let stays = to.is_floating() && source.is_some_and(|source| !source.is_floating());
        (self.all || alone || !stays).then_some(to)
    }

    /// Whether the globs choose a tensor.
    #[must_use]
    pub fn selects(&self, name: &str) -> bool {
        if !self.only.is_empty() && !self.only.iter().any(|only| only == name) {
            return false;
        }
        let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.include.is_empty() || matches(&self.include)) && !matches(&self.exclude)
    }

    /// The flags whose pattern matches none of `names`: most likely a slip of the pen.
    #[must_use]
    pub fn unmatched(&self, names: &[&str]) -> Vec<String> {
        let include = self.include.iter().map(|pattern| ("--include", pattern));
        let exclude = self.exclude.iter().map(|pattern| ("--exclude", pattern));
        let rules = self.rules.iter().map(|rule| ("--rule", &rule.pattern));
        let describe = |(flag, pattern): (&str, &Pattern)| {
            let mut matched = names.iter().filter(|name| pattern.matches(name)).peekable();
            let text = pattern.text();
            if matched.peek().is_none() {
                Some(format!("{flag} '{text}' matches no tensor"))
            } else if flag == "--rule" && !matched.any(|name| self.selects(name)) {
                Some(format!("{flag} '{text}' matches only tensors that --include and --exclude leave out"))
            } else {
                None
            }
        };
        include.chain(exclude).chain(rules).filter_map(describe).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(to: Dtype) -> Selection {
        Selection { to: Some(to), ..Selection::default() }
    }

    #[test]
    fn integers_stay_unless_asked_for() {
        let floats = selection(Dtype::Float16);
        assert_eq!(floats.target("w", Some(Dtype::Float32), false), Some(Dtype::Float16));
        assert_eq!(floats.target("ids", Some(Dtype::Int64), false), None);
        assert_eq!(floats.target("ids", Some(Dtype::Int64), true), Some(Dtype::Float16));
        let all = Selection { all: true, ..floats };
        assert_eq!(all.target("ids", Some(Dtype::Int64), false), Some(Dtype::Float16));
        assert_eq!(selection(Dtype::Int8).target("ids", Some(Dtype::Int64), false), Some(Dtype::Int8));
    }

    #[test]
    fn the_first_rule_decides_and_reaches_integers() {
        let rules = ["*norm*=keep", "ids=float32", "*=bf16"].map(|rule| rule.parse().unwrap()).to_vec();
        let selection = Selection { rules, ..selection(Dtype::Float8E4M3FN) };
        assert_eq!(selection.target("a.norm.weight", Some(Dtype::Float32), false), None);
        assert_eq!(selection.target("ids", Some(Dtype::Int64), false), Some(Dtype::Float32));
        assert_eq!(selection.target("w", Some(Dtype::Float32), false), Some(Dtype::Bfloat16));
    }

    #[test]
    fn exclude_wins_over_include_and_rules() {
        let pattern = |text: &str| text.parse::<Pattern>().unwrap();
        let selection = Selection {
            include: vec![pattern("model.*")],
            exclude: vec![pattern("*.bias")],
            rules: vec!["*=float16".parse().unwrap()],
            ..selection(Dtype::Bfloat16)
        };
        assert_eq!(selection.target("model.w", Some(Dtype::Float32), false), Some(Dtype::Float16));
        assert_eq!(selection.target("model.bias", Some(Dtype::Float32), false), None);
        assert_eq!(selection.target("head.w", Some(Dtype::Float32), false), None);
        assert_eq!(selection.unmatched(&["model.w"]), ["--exclude '*.bias' matches no tensor"]);
    }
}
