//! Patterns that match some tensors of a checkpoint and no others.

use super::kept::glob_set;
use crate::text::{as_glob, as_numbered_glob};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Returns patterns that match all names for which `is_wanted` holds and no others. A few patterns suffice where names
/// repeat their last parts in every layer.
pub(crate) fn patterns_of(names: &[&str], is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let (mut wanted, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_wanted(name));
    let mut found = BTreeSet::new();
    // Takes the shortest patterns that match no other names. A pattern made of a whole name matches no other name.
    let levels: [fn(&str) -> String; 2] = [|name| Ending::of(name).glob(), as_numbered_glob];
    for (level, glob) in levels.into_iter().enumerate() {
        let globs: BTreeSet<String> = wanted.iter().map(|name| glob(name)).collect();
        let globs: Vec<String> = globs.into_iter().collect();
        let set = glob_set(globs.iter());
        let wrong: BTreeSet<usize> = others.iter().flat_map(|name| set.matches(name)).collect();
        let right: BTreeSet<&String> =
            globs.iter().enumerate().filter(|(at, _)| !wrong.contains(at)).map(|(_, glob)| glob).collect();
        let (now, later): (Vec<&str>, Vec<&str>) = wanted.iter().partition(|name| right.contains(&glob(name)));
        if level == 0 {
            found.extend(merged(now.into_iter().map(Ending::of).collect()));
        } else {
            found.extend(now.into_iter().map(glob));
        }
        wanted = later;
    }
    found.extend(wanted.into_iter().map(as_glob));
    found.into_iter().collect()
}

fn is_number(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Converts a part of a name to a part of a pattern.
fn starred(part: &str) -> String {
    if is_number(part) { "*".to_owned() } else { as_glob(part) }
}

/// The last parts of a name: `q` and `weight` of `l.3.q.weight`, `l.*` and `weight` of `l.3.weight`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ending {
    /// True if the name has more parts.
    has_more: bool,
    module: String,
    last: String,
}

impl Ending {
    fn of(name: &str) -> Self {
        let parts: Vec<&str> = name.split('.').collect();
        let (last, before) = parts.split_last().expect("a name has a part");
        let start = before.iter().rposition(|part| !is_number(part)).unwrap_or(0);
        let module = before[start..].iter().map(|part| starred(part)).collect::<Vec<_>>().join(".");
        Self { has_more: start > 0, module, last: starred(last) }
    }

    fn glob(&self) -> String {
        let module = if self.module.is_empty() { String::new() } else { format!("{}.", self.module) };
        format!("{}{module}{}", if self.has_more { "*." } else { "" }, self.last)
    }
}

/// Returns the patterns of these endings. Modules that have the same parts share a pattern.
fn merged(endings: BTreeSet<Ending>) -> impl Iterator<Item = String> {
    let is_plain = |text: &str| !text.is_empty() && !text.contains(['*', ',', '[', '{']);
    let (plain, odd): (Vec<Ending>, Vec<Ending>) =
        endings.into_iter().partition(|ending| ending.has_more && is_plain(&ending.module) && is_plain(&ending.last));
    let mut parts = BTreeMap::<String, Vec<String>>::new();
    for Ending { module, last, .. } in plain {
        parts.entry(module).or_default().push(last);
    }
    let mut modules = HashMap::<Vec<String>, Vec<String>>::new();
    for (module, parts) in parts {
        modules.entry(parts).or_default().push(module);
    }
    let one = |names: &[String]| if let [only] = names { only.clone() } else { format!("{{{}}}", names.join(",")) };
    let merged = modules.into_iter().map(move |(parts, modules)| format!("*.{}.{}", one(&modules), one(&parts)));
    merged.chain(odd.into_iter().map(|ending| ending.glob()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the patterns for the first names, which may match none of the others.
    fn patterns(wanted: &[&str], others: &[&str]) -> Vec<String> {
        let found = patterns_of(&[wanted, others].concat(), |name| wanted.contains(&name));
        let set = glob_set(found.iter());
        assert!(wanted.iter().all(|name| set.is_match(name)), "{found:?}");
        assert!(!others.iter().any(|name| set.is_match(name)), "{found:?}");
        found
    }

    #[test]
    fn a_pattern_takes_every_character_of_a_name_as_it_is() {
        assert_eq!(patterns(&["it's; ls.w", "l.0.x*y.w"], &["l.0.xzy.w"]), ["*.x[*]y.w", "it's; ls.w"]);
        assert_eq!(patterns(&["l.0.a,b.weight", "l.0.c.weight"], &[]), ["*.a,b.weight", "*.c.weight"]);
    }

    #[test]
    fn modules_with_the_same_parts_share_a_pattern() {
        let names = ["l.0.q.weight", "l.1.q.weight", "l.0.k.weight", "m.3.weight", "head.weight"];
        assert_eq!(patterns(&names, &["l.0.n.weight"]), ["*.{k,q}.weight", "head.weight", "m.*.weight"]);
        let names = ["l.0.q.weight", "l.0.q.weight_scale", "l.0.k.weight", "l.0.k.weight_scale", "l.0.q.in"];
        assert_eq!(patterns(&names, &["l.0.q.bias"]), ["*.k.{weight,weight_scale}", "*.q.{in,weight,weight_scale}"]);
        assert_eq!(patterns(&["scaled_fp8"], &["x.scaled_fp8"]), ["scaled_fp8"]);
        assert_eq!(patterns(&[], &["x"]), [""; 0]);
    }

    #[test]
    fn other_tensors_that_end_alike_are_not_matched() {
        let others = ["vision.0.q.weight"];
        assert_eq!(
            patterns(&["l.0.q.weight", "l.1.q.weight", "l.0.k.weight"], &others),
            ["*.k.weight", "l.*.q.weight"]
        );
        assert_eq!(patterns(&["l.0.q.weight", "l.2.q.weight"], &["l.1.q.weight"]), ["l.0.q.weight", "l.2.q.weight"]);
    }
}
