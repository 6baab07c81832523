//! The choice of the tensors that outputs have. A quantized weight moves as a whole.

use super::Model;
use crate::container::checkpoint::Checkpoint;
use crate::error::{Error, Kind, Opt, Result};
use crate::options::ContentOptions;
use crate::select::Pattern;
use crate::text::first_few;

/// The patterns of the tensors that outputs have.
pub(crate) struct ContentChoice<'o> {
    patterns: Vec<ContentPattern<'o>>,
    /// True if a pattern may match nothing.
    allows_unmatched: bool,
}

struct ContentPattern<'o> {
    option: Opt,
    pattern: &'o Pattern,
    /// True if a tensor matched.
    is_matched: bool,
}

impl<'o> ContentChoice<'o> {
    pub(crate) fn new(options: &'o ContentOptions, allows_unmatched: bool) -> Self {
        let only = options.only.iter().map(|pattern| (Opt::ONLY, pattern));
        let all = only.chain(options.drop.iter().map(|pattern| (Opt::DROP, pattern)));
        let patterns = all.map(|(option, pattern)| ContentPattern { option, pattern, is_matched: false }).collect();
        Self { patterns, allows_unmatched }
    }

    /// Leaves out the tensors of an input that are not chosen. Fails if none is left, or if only some parts of a weight are.
    pub(crate) fn apply(&mut self, mut source: Checkpoint) -> Result<Checkpoint> {
        if self.patterns.is_empty() {
            return Ok(source);
        }
        let model = Model::probe(&source);
        let (only, dropped) = (self.taken(Opt::ONLY, &model), self.taken(Opt::DROP, &model));
        let has_only = self.patterns.iter().any(|pattern| pattern.option == Opt::ONLY);
        let is_kept: Vec<bool> = only.iter().zip(dropped).map(|(only, drop)| (*only || !has_only) && !drop).collect();
        check_whole(&model, &is_kept).map_err(|error| error.in_file(&source.path))?;
        if !is_kept.contains(&true) {
            let option = if has_only && !only.contains(&true) { Opt::ONLY } else { Opt::DROP };
            let unmatched = match option {
                Opt::ONLY if !self.allows_unmatched => self.unmatched(std::slice::from_ref(&source)).into_iter().next(),
                _ => None,
            };
            let nothing = || Error::usage("no tensor would be left").without(option);
            return Err(unmatched.map_or_else(nothing, |(_, error)| error).in_file(&source.path));
        }
        let was_quantized = !model.found.weights.is_empty();
        let mut kept = is_kept.into_iter();
        source.keep(|| kept.next().unwrap_or(true), was_quantized);
        Ok(source)
    }

    /// Returns the patterns that have matched no tensor of these inputs so far, each with the error for it.
    pub(crate) fn unmatched(&self, sources: &[Checkpoint]) -> Vec<(&'o Pattern, Error)> {
        let unmatched = self.patterns.iter().filter(|pattern| !pattern.is_matched);
        let error = |&ContentPattern { option, pattern, .. }: &ContentPattern<'o>| {
            let names = sources.iter().flat_map(|source| source.names().chain(source.dropped.names()));
            let names = names.map(str::to_owned).collect();
            let kind = Kind::Unmatched { option, pattern: pattern.text().into(), names };
            (pattern, Error::new(format!("the pattern '{pattern}' matches no tensor")).of(kind))
        };
        unmatched.map(error).collect()
    }

    /// Returns for each stored tensor whether a pattern of an option matches it, or the weight that it is a part of.
    fn taken(&mut self, wanted: Opt, model: &Model) -> Vec<bool> {
        let mut taken = vec![false; model.tensors.len()];
        for ContentPattern { pattern, is_matched, .. } in self.patterns.iter_mut().filter(|it| it.option == wanted) {
            for at in match_pattern(pattern, model) {
                (taken[at], *is_matched) = (true, true);
            }
            *is_matched |= pattern.matches_one(&model.source.left_out);
        }
        taken
    }
}

/// Returns the stored tensors that a pattern matches, or that are parts of weights that it matches.
pub(super) fn match_pattern<'m>(pattern: &'m Pattern, model: &'m Model) -> impl Iterator<Item = usize> {
    let stored = (0..model.tensors.len()).filter(|at| pattern.matches(model.tensors[*at].name));
    let weights = model.found.weights.iter().filter(|weight| pattern.matches(&weight.name));
    stored.chain(weights.flat_map(|weight| weight.parts.iter().map(|(_, at)| *at)))
}

/// Refuses to keep only some parts of a weight.
pub(super) fn check_whole(model: &Model, is_kept: &[bool]) -> Result<()> {
    for weight in &model.found.weights {
        let (kept, dropped): (Vec<usize>, Vec<usize>) =
            weight.parts.iter().map(|(_, at)| *at).partition(|at| is_kept[*at]);
        if !kept.is_empty() && !dropped.is_empty() {
            let names = |parts: Vec<usize>| first_few(parts.into_iter().map(|at| model.tensors[at].name), 5);
            let (kept, dropped) = (names(kept), names(dropped));
            let what =
                format!("a quantized weight moves as a whole: the patterns keep {kept}, and leave out {dropped}");
            return Err(Error::usage(what).in_tensor(&weight.name).remedy("choose the weight by its own name"));
        }
    }
    Ok(())
}
