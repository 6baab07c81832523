//! Patterns that match no tensor, most likely by mistake, and proposals for them.

use crate::error::{Error, Opt};
use crate::select::{Pattern, Rule, Selection};
use crate::text::{first_few, flag_with, is, shorten};

/// Number of names that a message proposes.
const FEW: usize = 3;
/// Maximum number of names that are compared with a pattern.
const MOST: usize = 100_000;

/// Returns an error for each `--include`, `--exclude` and `--rule` that has no effect on tensors with these names.
pub(super) fn unmatched(selection: &Selection, names: &[&str]) -> Vec<Error> {
    if names.is_empty() {
        return Vec::new(); // no pattern could match
    }
    let describe = |(option, pattern, rule): (Opt, &Pattern, Option<&Rule>)| {
        let (flag, target) =
            (format!("--{option}"), rule.map_or_else(String::new, |rule| format!("={}", rule.target_name())));
        let text = shorten(pattern.text());
        let mut matched = names.iter().filter(|name| pattern.matches(name)).peekable();
        if matched.peek().is_none() {
            let error = Error::usage(format!("{flag} '{text}' matches no tensor"));
            Some(error.remedy(propose(&flag, pattern, &target, names)))
        } else if rule.is_some() && !matched.any(|name| selection.selects(name)) {
            Some(hidden_rule(&text))
        } else {
            None
        }
    };
    selection.patterns().filter_map(describe).collect()
}

/// Returns the error for a rule without an effect.
pub(super) fn hidden_rule(rule: &str) -> Error {
    let what = format!("--rule '{rule}' matches only tensors that --include and --exclude leave out");
    Error::usage(what).remedy("leave the rule out, or choose its tensors too")
}

/// Proposes a remedy for a pattern that matches nothing.
pub(super) fn propose(flag: &str, pattern: &Pattern, target: &str, names: &[&str]) -> String {
    const ALLOW: &str = "; --allow-unmatched accepts it";
    let (is_rename, allow) = (flag == "--rename", if flag == "--rename" { "" } else { ALLOW });
    let text = pattern.text();
    let count = |text: &str| {
        let pattern = text.parse::<Pattern>().ok();
        pattern.map_or(0, |pattern| names.iter().filter(|name| pattern.matches(name)).count())
    };
    if let Some(glob) = glob_of_regex(text).filter(|glob| count(glob) > 0 && !is_rename) {
        let argument = flag_with(flag, &format!("{glob}{target}"));
        return format!("a pattern is a glob, not a regular expression: {argument} matches {}", count(&glob));
    }
    if text.is_empty() {
        return format!("an empty pattern matches only a tensor without a name: leave {flag} out");
    }
    let names_in_text: Vec<&str> = listed(text).into_iter().map(|name| name.trim_matches('*')).collect();
    let (wider, why) = match &names_in_text[..] {
        [] => (text.to_owned(), ""), // matches nothing
        [name] => (format!("*{name}*"), "a pattern matches the whole name"),
        several => (format!("*{{{}}}*", several.join(",")), "a list of names has braces"),
    };
    let found = count(&wider);
    if found > 0 && !is_rename && names_in_text.iter().all(|name| count(&format!("*{name}*")) > 0) {
        let argument = flag_with(flag, &format!("{wider}{target}"));
        return format!("{why}: {argument} matches {found}");
    }
    let near = near(text, names);
    match &near[..] {
        [] => format!("there {} {}{allow}", is(names.len() as u64), first_few(names, FEW)),
        near => format!("similar: {}{allow}", first_few(near, FEW)),
    }
}

/// Converts a simple regular expression to a glob; `None` if the text does not look like one.
pub(super) fn glob_of_regex(text: &str) -> Option<String> {
    const SIGNS: [&str; 7] = ["\\", ".+", "|", "[0-9]+", "(?", "\\d", ")*"];
    let body = text.strip_prefix("re:").unwrap_or(text);
    let is_regex = body.len() < text.len()
        || body.starts_with(['^', '('])
        || body.starts_with(".*")
        || body.ends_with('$')
        || SIGNS.iter().any(|sign| body.contains(sign));
    let (start, end) = (body.starts_with('^'), body.ends_with('$'));
    let mut glob = body.trim_start_matches('^').trim_end_matches('$').to_owned();
    for (regex, glob_part) in [
        ("[0-9]+", "*"),
        (r"\d+", "*"),
        (r"\d", "?"),
        (r"\w+", "*"),
        (r"[^.]+", "*"),
        (r"[^.]*", "*"),
        (".*?", "*"),
        (".*", "*"),
        (".+", "*"),
        (r"\.", "."),
        (r"\_", "_"),
        ("(?:", "{"),
        ("(", "{"),
        (")", "}"),
        ("|", ","),
    ] {
        glob = glob.replace(regex, glob_part);
    }
    if !start && !glob.starts_with('*') {
        glob.insert(0, '*');
    }
    if !end && !glob.ends_with('*') {
        glob.push('*');
    }
    is_regex.then_some(glob)
}

/// Returns the names most similar to a pattern, as a whole or in a run of the same number of parts.
pub(super) fn near<'a>(pattern: &str, names: &[&'a str]) -> Vec<&'a str> {
    let wanted = pattern.trim_matches('*').trim_matches('.').to_lowercase();
    let length = wanted.split('.').count();
    let score = |name: &str| {
        let name = name.to_lowercase();
        let parts: Vec<&str> = name.split('.').collect();
        let windows = parts.windows(length).map(|window| strsim::jaro_winkler(&wanted, &window.join(".")));
        windows.fold(strsim::jaro_winkler(&wanted, &name), f64::max)
    };
    let scored = names.iter().take(MOST).map(|name| (score(name), *name));
    let mut scored: Vec<(f64, &str)> = scored.filter(|(score, _)| *score > 0.85).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| (a.1.len(), a.1).cmp(&(b.1.len(), b.1))));
    scored.dedup_by_key(|(_, name)| *name);
    scored.truncate(FEW);
    scored.into_iter().map(|(_, name)| name).collect()
}

/// Returns the names in a list of another tool, such as `['lm_head', 'embed']` or `lm_head,embed`.
pub(super) fn listed(text: &str) -> Vec<&str> {
    // These commas divide parts of a pattern.
    if text.contains('{') || text.starts_with("re:") {
        return vec![text];
    }
    let enclosed = |start: char, end: char| text.strip_prefix(start)?.strip_suffix(end);
    let inner = enclosed('[', ']').or_else(|| enclosed('(', ')')).unwrap_or(text);
    let names = inner.split(',').map(|name| name.trim_matches([' ', '\'', '"']));
    names.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::remedies::remedy;
    use super::*;

    const NAMES: &[&str] = &["model.norm.weight", "model.layers.0.mlp.up_proj.weight", "lm_head.weight"];

    #[track_caller]
    fn expect(selection: &Selection, expected: &[(&str, &str)]) {
        let found: Vec<(String, String)> = unmatched(selection, NAMES)
            .iter()
            .map(|error| (error.to_string(), remedy(error).unwrap_or_default()))
            .collect();
        let found: Vec<(&str, &str)> = found.iter().map(|(what, remedy)| (&**what, &**remedy)).collect();
        assert_eq!(found, expected);
    }

    fn excluding(pattern: &str) -> Selection {
        Selection { exclude: vec![pattern.parse().unwrap()], ..Selection::default() }
    }

    #[test]
    #[cfg(unix)] // in its quotes
    fn part_of_a_name_is_answered_with_the_pattern_that_matches() {
        let remedy = "a pattern matches the whole name: --exclude '*norm*' matches 1";
        expect(&excluding("norm"), &[("--exclude 'norm' matches no tensor", remedy)]);
        let rules = vec!["weight=keep".parse().unwrap()];
        let remedy = "a pattern matches the whole name: --rule '*weight*=keep' matches 3";
        expect(&Selection { rules, ..Selection::default() }, &[("--rule 'weight' matches no tensor", remedy)]);
    }

    #[test]
    #[cfg(unix)] // in its quotes
    fn a_list_of_names_is_answered_with_the_pattern_that_matches_all_of_them() {
        let remedy = "a list of names has braces: --exclude '*{norm,lm_head}*' matches 2";
        expect(&excluding("norm,*lm_head*"), &[("--exclude 'norm,*lm_head*' matches no tensor", remedy)]);
        let remedy = "a pattern matches the whole name: --exclude '*lm_head*' matches 1";
        expect(&excluding("['lm_head']"), &[("--exclude '['lm_head']' matches no tensor", remedy)]);
        let remedy = "similar: model.norm.weight; --allow-unmatched accepts it".to_owned();
        expect(&excluding("norm,*vision*"), &[("--exclude 'norm,*vision*' matches no tensor", &remedy)]);
    }

    #[test]
    fn an_empty_pattern_is_not_answered_with_one_that_matches_everything() {
        let remedy = "an empty pattern matches only a tensor without a name: leave --exclude out";
        expect(&excluding(""), &[("--exclude '' matches no tensor", remedy)]);
        let rules = vec!["=keep".parse().unwrap()];
        let remedy = "an empty pattern matches only a tensor without a name: leave --rule out";
        expect(&Selection { rules, ..Selection::default() }, &[("--rule '' matches no tensor", remedy)]);
    }

    #[test]
    fn a_misspelt_name_is_answered_with_the_near_ones() {
        let allow = "--allow-unmatched accepts it";
        for (pattern, near) in [
            ("*lm_haed*", "similar: lm_head.weight"),
            ("*Up_Proj*", "similar: model.layers.0.mlp.up_proj.weight"),
            ("model.nrom.weight", "similar: model.norm.weight"),
            ("*vision*", "there are model.norm.weight, model.layers.0.mlp.up_proj.weight, lm_head.weight"),
        ] {
            let what = format!("--exclude '{pattern}' matches no tensor");
            expect(&excluding(pattern), &[(&what, &format!("{near}; {allow}"))]);
        }
    }

    #[test]
    fn a_rule_for_what_is_left_out_anyway_has_no_effect() {
        let selection = Selection { rules: vec!["lm_head*=keep".parse().unwrap()], ..excluding("lm_head.weight") };
        let what = "--rule 'lm_head*' matches only tensors that --include and --exclude leave out";
        expect(&selection, &[(what, "leave the rule out, or choose its tensors too")]);
        expect(&excluding("*.weight"), &[]);
    }
}
