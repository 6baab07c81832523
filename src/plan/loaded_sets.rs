//! Notes about weights that engines load as one module, and that an output stores in different ways.

use crate::error::Result;
use crate::progress::{Note, UseNote};
use crate::quant::Role;
use crate::read::Model;
use crate::select::policy::{Policy, expert_sets, fused_sets, module_of};
use std::collections::HashSet;

/// Returns a note about sets that engines load as one module and that have plain and quantized weights. Each weight has its
/// name, and is plain or not.
pub(super) fn divided_sets(weights: &[(&str, bool)], is_diffusion: bool) -> Option<UseNote> {
    let policy = Policy { is_diffusion, ..Policy::default() };
    let fused = fused_sets(&policy, weights.iter().map(|(name, _)| module_of(name).unwrap_or(name)));
    let sets = fused.into_iter().chain(expert_sets(&policy, weights.iter().map(|(name, _)| *name)));
    let one = |set: &[usize], is_plain: bool| {
        let mut members = set.iter().map(|at| weights[*at]);
        members.find(|member| member.1 == is_plain).map(|(name, _)| name.to_owned())
    };
    let mut divided = sets.filter_map(|set| Some([one(&set, true)?, one(&set, false)?]));
    let first = divided.next()?;
    Some(UseNote::DividedSets(1 + divided.count() as u64, first))
}

/// Returns notes about sets of a model to which weights of another one were added.
///
/// # Errors
/// When a global scale cannot be read.
pub(super) fn of_additions(model: &Model) -> Result<Vec<Note<'static>>> {
    let found = &model.found.weights;
    if found.is_empty() {
        return Ok(Vec::new()); // there may be a million plain tensors
    }
    let parts: HashSet<usize> = found.iter().flat_map(|weight| &weight.parts).map(|part| part.1).collect();
    let plain = model
        .tensors
        .iter()
        .enumerate()
        .filter(|(at, tensor)| tensor.shape.len() == 2 && module_of(tensor.name).is_some() && !parts.contains(at));
    let weights: Vec<(&str, bool)> = plain.map(|(_, tensor)| (tensor.name, true)).collect();
    let weights = [weights, found.iter().map(|weight| (&*weight.name, false)).collect()].concat();
    let is_diffusion = found.iter().any(|weight| weight.layout.is_diffusion);
    let mut notes: Vec<UseNote> = divided_sets(&weights, is_diffusion).into_iter().collect();
    // vLLM takes the largest of the global scales for all.
    let policy = Policy { is_diffusion, ..Policy::default() };
    let global = |at: &usize| found[*at].part(Role::GlobalScale).map(|part| model.part(Role::GlobalScale, part));
    for set in fused_sets(&policy, found.iter().map(|weight| &*weight.module)) {
        let scales = set.iter().filter_map(global).collect::<Result<Vec<_>>>()?;
        if let Some(other) = scales.iter().position(|scale| scale != &scales[0]) {
            notes.push(UseNote::UnequalGlobals([0, other].map(|at| found[set[at]].name.clone())));
            break;
        }
    }
    Ok(notes.into_iter().map(Note::Use).collect())
}
