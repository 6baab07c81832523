//! Patterns that match some names and no others.

use super::Pattern;
use crate::text::{as_glob, is_number};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A part of a pattern, between dots.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamePart {
    Text(String),
    /// One of several texts.
    OneOf(Vec<String>),
    AnyNumber,
}

impl NamePart {
    fn texts(&self) -> Option<&[String]> {
        match self {
            Self::Text(text) => Some(std::slice::from_ref(text)),
            Self::OneOf(texts) => Some(texts),
            Self::AnyNumber => None,
        }
    }
}

impl std::fmt::Display for NamePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&as_glob(text)),
            Self::OneOf(texts) => {
                write!(f, "{{{}}}", texts.iter().map(|text| as_glob(text)).collect::<Vec<_>>().join(","))
            }
            Self::AnyNumber => f.write_str("*"),
        }
    }
}

/// A pattern, and the names that it is for.
struct Cover<'n> {
    parts: Vec<NamePart>,
    names: Vec<&'n str>,
}

impl<'n> Cover<'n> {
    fn text(&self) -> String {
        self.parts.iter().map(NamePart::to_string).collect::<Vec<_>>().join(".")
    }

    /// Adds the names of another cover that differs in one part, which both list as texts.
    fn join(&mut self, other: &Cover<'n>) -> bool {
        let differing: Vec<usize> =
            (0..self.parts.len()).filter(|at| self.parts.get(*at) != other.parts.get(*at)).collect();
        let (&[at], true) = (&differing[..], self.parts.len() == other.parts.len()) else { return false };
        let (Some(own), Some(others)) = (self.parts[at].texts(), other.parts[at].texts()) else { return false };
        if own.iter().chain(others).any(|text| text.contains(',')) {
            return false; // a comma separates the texts
        }
        self.parts[at] = NamePart::OneOf(own.iter().chain(others).cloned().collect());
        self.names.extend(&other.names);
        true
    }
}

/// Returns a few patterns that match these names and no others of `all`. A layer or an expert becomes `*` where all of
/// them are meant, and a list of numbers such as `{0,3}` otherwise.
pub(crate) fn patterns_for(chosen: &[&str], all: &[&str]) -> Vec<String> {
    let is_chosen: HashSet<&str> = chosen.iter().copied().collect();
    let mut kinds: BTreeMap<Vec<&str>, Vec<&str>> = BTreeMap::new();
    for name in &is_chosen {
        kinds.entry(kind_of(name)).or_default().push(name);
    }
    let others = all.iter().filter(|name| !is_chosen.contains(*name));
    let left: BTreeSet<(Vec<&str>, &str)> = others.map(|name| (kind_of(name), number_of(name))).collect();
    let mut covers: Vec<Cover> = Vec::new();
    for (kind, mut names) in kinds {
        names.sort_unstable();
        let is_left = |number: &str| left.contains(&(kind.clone(), number));
        let numbers: BTreeSet<(usize, &str)> =
            names.iter().map(|name| number_of(name)).map(|number| (number.len(), number)).collect();
        let (whole, divided): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| !is_left(number_of(name)));
        let is_all = left.range((kind.clone(), "")..).next().is_none_or(|(other, _)| *other != kind);
        let listed = numbers.iter().map(|(_, number)| *number).filter(|number| !is_left(number)).map(str::to_owned);
        let listed: Vec<String> = listed.collect();
        if !whole.is_empty() {
            let mut is_first = true;
            let part = |part: &&str| match *part {
                NUMBER if std::mem::take(&mut is_first) && !is_all => match &listed[..] {
                    [one] => NamePart::Text(one.clone()),
                    _ => NamePart::OneOf(listed.clone()),
                },
                NUMBER => NamePart::AnyNumber,
                text => NamePart::Text(text.to_owned()),
            };
            covers.push(Cover { parts: kind.iter().map(part).collect(), names: whole });
        }
        covers.extend(divided.into_iter().map(exactly));
    }
    let mut joined: Vec<Cover> = Vec::new();
    for cover in covers {
        if !joined.iter_mut().any(|other| other.join(&cover)) {
            joined.push(cover);
        }
    }
    let is_exact = |cover: &Cover| {
        let Ok(pattern) = cover.text().parse::<Pattern>() else { return false };
        cover.names.iter().all(|name| pattern.matches(name))
            && !all.iter().any(|name| !is_chosen.contains(name) && pattern.matches(name))
    };
    // `*` also matches dots, so it may match other names too.
    let patterns = joined
        .into_iter()
        .flat_map(|cover| if is_exact(&cover) { vec![cover] } else { cover.names.into_iter().map(exactly).collect() });
    patterns.map(|cover| cover.text()).collect()
}

/// Stands for a number in the kind of a name.
const NUMBER: &str = "";

/// Returns the parts of a name without its numbers.
fn kind_of(name: &str) -> Vec<&str> {
    name.split('.').map(|part| if is_number(part) { NUMBER } else { part }).collect()
}

/// Returns the first number of a name, which is that of its layer.
fn number_of(name: &str) -> &str {
    name.split('.').find(|part| is_number(part)).unwrap_or_default()
}

fn exactly(name: &str) -> Cover<'_> {
    Cover { parts: name.split('.').map(|part| NamePart::Text(part.to_owned())).collect(), names: vec![name] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(modules: &[&str], layers: std::ops::Range<u32>) -> Vec<String> {
        layers
            .flat_map(|layer| modules.iter().map(move |module| format!("model.layers.{layer}.{module}.weight")))
            .collect()
    }

    const MODULES: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.down_proj"];

    #[track_caller]
    fn expect(all: &[String], is_chosen: impl Fn(&str) -> bool, expected: &[&str]) {
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let chosen: Vec<&str> = all.iter().copied().filter(|name| is_chosen(name)).collect();
        let patterns = patterns_for(&chosen, &all);
        assert_eq!(patterns, expected);
        let patterns: Vec<Pattern> = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        for name in all {
            assert_eq!(patterns.iter().any(|pattern| pattern.matches(name)), chosen.contains(&name), "{name}");
        }
    }

    #[test]
    fn all_layers_are_a_star_and_some_are_listed_in_order() {
        let all = layers(MODULES, 0..12);
        expect(&all, |name| name.contains("down_proj"), &["model.layers.*.mlp.down_proj.weight"]);
        let of_layers = |name: &str| name.contains("down") && [".10.", ".2."].iter().any(|layer| name.contains(layer));
        expect(&all, of_layers, &["model.layers.{2,10}.mlp.down_proj.weight"]);
        expect(&all, |name| name.contains(".3.self_attn.o"), &["model.layers.3.self_attn.o_proj.weight"]);
    }

    #[test]
    fn modules_of_the_same_layers_share_a_pattern() {
        let all = layers(MODULES, 0..3);
        let expected = &["model.layers.{0,2}.self_attn.{k_proj,q_proj}.weight"];
        expect(&all, |name| !name.contains(".1.") && ["q_proj", "k_proj"].iter().any(|it| name.contains(it)), expected);
    }

    #[test]
    fn experts_of_a_layer_are_a_star_if_all_are_meant() {
        let names = (0..2).flat_map(|layer| (0..3).map(move |expert| format!("l.{layer}.experts.{expert}.up.weight")));
        let all: Vec<String> = names.collect();
        expect(&all, |name| name.starts_with("l.1."), &["l.1.experts.*.up.weight"]);
        expect(&all, |name| name.contains(".1.experts.2."), &["l.1.experts.2.up.weight"]);
    }

    #[test]
    fn a_pattern_that_would_match_other_names_becomes_a_list() {
        let all = ["a.0.w", "a.1.w", "a.x.0.w", "b[0],{c}"].map(str::to_owned);
        expect(&all, |name| ["a.0.w", "a.1.w"].contains(&name), &["a.0.w", "a.1.w"]);
        expect(&all, |name| name.starts_with('b'), &["b[[]0[]],[{]c[}]"]);
    }
}
