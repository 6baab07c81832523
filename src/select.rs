//! Choice of the tensors to convert, and of their new types: globs, rules and defaults.

mod among;
#[cfg(feature = "cli")]
pub(crate) mod budget;
#[cfg(feature = "cli")]
mod cover;
pub(crate) mod experts;
pub(crate) mod heads;
mod kept;
pub(crate) mod policy;
pub(crate) mod tried;

pub(crate) use among::patterns_of;
#[cfg(feature = "cli")]
pub(crate) use cover::patterns_for;
#[cfg(feature = "cli")]
pub(crate) use kept::protected;
pub(crate) use kept::{GROUPS, KeptReason};

use crate::dtype::Dtype;
use crate::error::{Error, Opt};
use crate::text::as_glob;
use globset::Glob;
use kept::PROTECTED_SET;
use regex::Regex;
use std::collections::HashMap;

/// A pattern for tensor names: `*` matches any characters, `?` one, `[a-z]` one of a set, `{a,b}` either.
#[derive(Clone, Debug)]
pub struct Pattern {
    glob: Glob,
    regex: Regex,
}

impl std::str::FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let glob = Glob::new(text).map_err(|error| Error::new(error.kind().to_string()).with_source(error))?;
        let regex = Regex::new(&in_characters(glob.regex()))
            .map_err(|error| Error::new(error.to_string()).with_source(error))?;
        Ok(Self { glob, regex })
    }
}

/// Translates the expression of a glob, which `globset` makes for bytes (`(?-u)`, `\xc3\xa9`), to one for characters.
fn in_characters(regex: &str) -> String {
    let (mut text, mut rest) = (b"(?s)".to_vec(), regex.strip_prefix("(?-u)").unwrap_or(regex));
    while let Some((before, escape)) = rest.split_once('\\') {
        text.extend_from_slice(before.as_bytes());
        let byte = escape.strip_prefix('x').and_then(|digits| digits.split_at_checked(2));
        rest = if let Some((digits, rest)) = byte {
            text.extend(u8::from_str_radix(digits, 16));
            rest
        } else {
            let (escaped, rest) = escape.split_at(1);
            text.push(b'\\');
            text.extend_from_slice(escaped.as_bytes());
            rest
        };
    }
    text.extend_from_slice(rest.as_bytes());
    String::from_utf8(text).expect("a glob is UTF-8")
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl Pattern {
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.regex.is_match(name)
    }

    /// True if it matches one of these names.
    pub(crate) fn matches_one(&self, names: &[impl AsRef<str>]) -> bool {
        names.iter().any(|name| self.matches(name.as_ref()))
    }

    pub(crate) fn text(&self) -> &str {
        self.glob.glob()
    }
}

/// Another target for some tensors: `"*norm*=float32".parse()`, or `"*norm*=keep".parse()` for none.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) pattern: Pattern,
    target: Option<Dtype>,
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.pattern, self.target_name())
    }
}

impl Rule {
    /// Returns the type of the tensors that match; `None` to keep them.
    pub(crate) fn target(&self) -> Option<Dtype> {
        self.target
    }

    pub(crate) fn target_name(&self) -> &'static str {
        self.target.map_or("keep", Dtype::name)
    }
}

impl std::str::FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (pattern, target) = text.rsplit_once('=').ok_or_else(|| Error::new("a rule is GLOB=DTYPE or GLOB=keep"))?;
        let target = match target {
            "keep" => None,
            dtype => Some(dtype.parse::<Dtype>().map_err(|error| Error::new(error.to_string()).with_source(error))?),
        };
        Ok(Self { pattern: pattern.parse()?, target })
    }
}

/// Returns the rule that keeps one tensor.
#[must_use]
#[doc(hidden)] // for tests
pub fn rule_to_keep(name: &str) -> String {
    format!("{}=keep", as_glob(name))
}

/// `OLD=NEW`: another name for a tensor, or for each tensor whose name matches if `OLD` has stars.
#[derive(Clone, Debug)]
pub struct Rename {
    /// The name in the input. A `*` matches any characters, as few as possible.
    pub old: String,
    /// The name in the output. If `old` has stars, each `*` stands for the text of the same star there.
    pub new: String,
}

impl Rename {
    /// True if it can rename several tensors.
    pub(crate) fn is_pattern(&self) -> bool {
        self.old.contains('*')
    }

    /// Returns the new name of a tensor, if this renames it.
    pub(crate) fn new_name(&self, name: &str) -> Option<String> {
        let (start, pieces) = self.old.split_once('*').map_or((&*self.old, None), |(start, rest)| (start, Some(rest)));
        let mut rest = name.strip_prefix(start)?;
        let Some(pieces) = pieces else { return rest.is_empty().then(|| self.new.clone()) };
        let (last, mut texts) = (pieces.matches('*').count(), Vec::new());
        for (number, piece) in pieces.split('*').enumerate() {
            let at = if number == last { rest.strip_suffix(piece)?.len() } else { rest.find(piece)? };
            texts.push(&rest[..at]);
            rest = &rest[at + piece.len()..];
        }
        let mut texts = texts.into_iter();
        let pieces = self.new.split('*').map(|piece| [piece, texts.next().unwrap_or_default()]);
        Some(pieces.flatten().collect::<Vec<_>>().concat()) // without room to grow, for a million names
    }
}

/// Several new names, of which the first that fits a tensor counts.
pub(crate) struct Renames<'r> {
    all: &'r [Rename],
    /// The first place of each old name that is no pattern.
    exact: HashMap<&'r str, usize>,
    patterns: Vec<usize>,
}

impl<'r> Renames<'r> {
    pub(crate) fn new(all: &'r [Rename]) -> Self {
        let (patterns, exact): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(|at| all[*at].is_pattern());
        let exact = exact.into_iter().rev().map(|at| (&*all[at].old, at)).collect();
        Self { all, exact, patterns }
    }

    /// Returns the places of all that fit a tensor, in no order.
    pub(crate) fn fitting(&self, name: &str) -> impl Iterator<Item = usize> {
        let patterns = self.patterns.iter().copied().filter(|at| self.all[*at].new_name(name).is_some());
        self.exact.get(name).copied().into_iter().chain(patterns)
    }

    /// Returns the place of the first that fits a tensor, and the new name.
    pub(crate) fn first(&self, name: &str) -> Option<(usize, String)> {
        let at = self.fitting(name).min()?;
        Some((at, self.all[at].new_name(name)?))
    }

    /// Returns the new name of a tensor, if it has one.
    pub(crate) fn new_name(&self, name: &str) -> Option<String> {
        self.first(name).map(|(_, new)| new)
    }

    /// Returns an old name that is given twice and is no pattern.
    pub(crate) fn repeated(&self) -> Option<&'r str> {
        let is_exact = |rename: &&Rename| !rename.is_pattern();
        let mut again = self.all.iter().enumerate().filter(|(_, rename)| is_exact(rename));
        again.find(|(at, rename)| self.exact[&*rename.old] != *at).map(|(_, rename)| &*rename.old)
    }
}

impl std::fmt::Display for Rename {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.old, self.new)
    }
}

impl std::str::FromStr for Rename {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (old, new) = text.split_once('=').ok_or_else(|| Error::new("a new name is given as OLD=NEW"))?;
        if new.is_empty() {
            return Err(Error::new("the new name is empty"));
        }
        let stars = [old, new].map(|name| name.matches('*').count());
        if stars[0] > 0 && stars[0] != stars[1] {
            let [of_old, of_new] = stars.map(|count| if count == 0 { "no *".to_owned() } else { format!("{count} *") });
            return Err(Error::new(format!(
                "OLD has {of_old}, and NEW has {of_new}: each * of NEW stands for the text of the same * of OLD"
            )));
        }
        Ok(Self { old: old.to_owned(), new: new.to_owned() })
    }
}

/// The arguments that choose tensors and their new types.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The target of tensors that no rule names.
    pub to: Option<Dtype>,
    /// Only tensors that match one of these are converted; all tensors if empty.
    pub include: Vec<Pattern>,
    /// Tensors that match one of these are not converted.
    pub exclude: Vec<Pattern>,
    /// The first rule that matches decides, before `to`.
    pub rules: Vec<Rule>,
    /// Convert integers and bools to a floating `to` as well.
    pub all: bool,
    /// Keep norms, embeddings and the like, and tensors of fewer than two dimensions, except those that a rule names.
    pub protect: bool,
    /// New names of tensors.
    pub renames: Vec<Rename>,
    /// Only tensors with these names are converted; all tensors if empty.
    pub only: Vec<String>,
}

/// The properties of a tensor that decide what happens to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub name: &'a str,
    /// Its type, if known.
    pub dtype: Option<Dtype>,
    /// The number of its dimensions.
    pub rank: usize,
    /// True if its file can hold only one tensor.
    pub is_alone: bool,
}

impl Selection {
    /// Returns the patterns with their options, and with the rule that has one.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = (Opt, &Pattern, Option<&Rule>)> {
        let include = self.include.iter().map(|pattern| (Opt::INCLUDE, pattern, None));
        let exclude = self.exclude.iter().map(|pattern| (Opt::EXCLUDE, pattern, None));
        include.chain(exclude).chain(self.rules.iter().map(|rule| (Opt::RULE, &rule.pattern, Some(rule))))
    }

    /// True if names decide about some tensors.
    pub(crate) fn has_patterns(&self) -> bool {
        self.patterns().next().is_some()
    }

    /// Returns the new type of a tensor, or the reason for keeping it.
    pub(crate) fn target(&self, tensor: &Candidate) -> Result<Dtype, KeptReason> {
        if !self.selects(tensor.name) {
            return Err(KeptReason::LeftOut);
        }
        if let Some(rule) = self.rule(tensor.name) {
            return rule.target.ok_or(KeptReason::LeftOut);
        }
        if self.protect && (tensor.rank < 2 || PROTECTED_SET.is_match(tensor.name)) {
            return Err(KeptReason::LeftOut);
        }
        let to = self.to.ok_or(KeptReason::LeftOut)?;
        // Like torch's `.to(dtype)` of a module: position ids and masks do not become floats, regardless of other
        // tensors.
        let stays = to.is_floating() && tensor.dtype.is_some_and(|source| !source.is_floating());
        if stays && !self.all && !tensor.is_alone { Err(KeptReason::NotFloating) } else { Ok(to) }
    }

    /// Returns the rule for a tensor.
    #[must_use]
    #[doc(hidden)] // for tests
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.pattern.matches(name))
    }

    /// True if globs and names choose a tensor.
    #[must_use]
    #[doc(hidden)] // for tests
    pub fn selects(&self, name: &str) -> bool {
        if !self.only.is_empty() && !self.only.iter().any(|only| only == name) {
            return false;
        }
        let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.include.is_empty() || matches(&self.include)) && !matches(&self.exclude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(to: Dtype) -> Selection {
        Selection { to: Some(to), ..Selection::default() }
    }

    fn target(selection: &Selection, name: &str, dtype: Dtype) -> Option<Dtype> {
        selection.target(&Candidate { name, dtype: Some(dtype), rank: 2, is_alone: false }).ok()
    }

    #[test]
    fn patterns_match_characters() {
        for (pattern, wanted, others) in [
            ("?", &["é", "重", "a", "\n"][..], &["", "éa", "e\u{301}"][..]),
            ("[é-ü]x", &["éx", "üx", "ìx"], &["ex", "ýx", "x"]),
            ("[!é]", &["è", "a"], &["é", "éé"]),
            ("層.*.重?", &["層.0.重み", "層..重a"], &["層.0.重", "層.0.重みみ"]),
            ("{é,[*]}", &["é", "*"], &["è"]),
            (r"[\]x?é", &[r"\xcé"], &[r"\xé"]),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            assert!(wanted.iter().all(|name| pattern.matches(name)), "{pattern}");
            assert!(!others.iter().any(|name| pattern.matches(name)), "{pattern}");
        }
    }

    #[test]
    fn integers_stay_unless_asked_for() {
        let floats = selection(Dtype::Float16);
        assert_eq!(target(&floats, "w", Dtype::Float32), Some(Dtype::Float16));
        assert_eq!(target(&floats, "ids", Dtype::Int64), None);
        let alone = Candidate { name: "ids", dtype: Some(Dtype::Int64), rank: 2, is_alone: true };
        assert_eq!(floats.target(&alone), Ok(Dtype::Float16));
        let all = Selection { all: true, ..floats };
        assert_eq!(target(&all, "ids", Dtype::Int64), Some(Dtype::Float16));
        assert_eq!(target(&selection(Dtype::Int8), "ids", Dtype::Int64), Some(Dtype::Int8));
    }

    #[test]
    fn the_first_rule_decides_and_reaches_integers() {
        let rules = ["*norm*=keep", "ids=float32", "*=bf16"].map(|rule| rule.parse().unwrap()).to_vec();
        let selection = Selection { rules, ..selection(Dtype::Float8E4M3FN) };
        assert_eq!(target(&selection, "a.norm.weight", Dtype::Float32), None);
        assert_eq!(target(&selection, "ids", Dtype::Int64), Some(Dtype::Float32));
        assert_eq!(target(&selection, "w", Dtype::Float32), Some(Dtype::Bfloat16));
    }

    #[test]
    fn what_is_protected_stays_unless_a_rule_names_it() {
        let rules = vec!["lm_head.weight=bf16".parse().unwrap()];
        let selection = Selection { protect: true, rules, ..selection(Dtype::Float8E4M3FN) };
        let kept = |name: &str, rank| {
            selection.target(&Candidate { name, dtype: Some(Dtype::Float32), rank, is_alone: false }).is_err()
        };
        for name in [
            "model.embed_tokens.weight",
            "model.norm.weight",
            "transformer.h.0.ln_1.weight",
            "blocks.0.ln1.weight",
            "transformer.wte.weight",
            "encoder.pos_embed",
            "text_model.embeddings.position_embedding.weight",
            "model.layers.3.mlp.gate.weight",
            "model.layers.3.block_sparse_moe.gate.weight",
            "model.layers.3.mlp.shared_expert_gate.weight",
            "shared.weight",
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "model.layers.61.shared_head.head.weight",
            "head.weight",
            "emb.weight",
            "language_model.output.weight",
            "model.diffusion_model.label_emb.0.0.weight",
            "proj_out.weight",
            "cls.predictions.decoder.weight",
            "model.layers.0.mlp.router.weight",
            "model.layers.0.mlp.experts.down_proj_bias",
            "model.lm_head.weight",
        ] {
            assert!(kept(name, 2), "{name}");
        }
        for name in [
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "blocks.0.att.gate.weight",
            "model.diffusion_model.input_blocks.4.1.proj_out.weight",
            "embedders.0.w",
        ] {
            assert!(!kept(name, 2) && kept(name, 1), "{name}");
        }
        assert_eq!(target(&selection, "lm_head.weight", Dtype::Float32), Some(Dtype::Bfloat16));
    }

    #[test]
    fn the_rule_to_keep_a_tensor_names_it_whatever_it_is_called() {
        for name in ["a.weight", "a*", "[!b-c]{d,e}?", r"back\slash\", r"\[\]", "a=b"] {
            let rule = rule_to_keep(name);
            let rule: Rule = rule.parse().unwrap();
            let selection = Selection { rules: vec![rule], ..Selection::default() };
            assert!(selection.rule(name).is_some(), "{name}");
            assert!(selection.rule("another").is_none(), "{name}");
        }
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
        assert_eq!(target(&selection, "model.w", Dtype::Float32), Some(Dtype::Float16));
        assert_eq!(target(&selection, "model.bias", Dtype::Float32), None);
        assert_eq!(target(&selection, "head.w", Dtype::Float32), None);
    }

    #[test]
    fn a_rule_that_is_refused_keeps_the_cause() {
        let error = "*=float9".parse::<Rule>().unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), error.to_string());
        assert!(source.is::<crate::dtype::UnknownDtype>());
    }
}
