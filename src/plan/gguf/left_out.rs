//! Contents of the input that a new file lacks.

use crate::container::GgufKey;
use crate::progress::GgufNote;
use crate::quant::{CheckpointInfo, Role};
use crate::read::Model;
use std::collections::HashSet;

/// Describes the stored tensors that are left out: those that are not `used`, and whose values are not part of a weight.
/// Adds scales of activations to `scales`.
pub(super) fn tensors(input: &Model, unused: &[usize], scales: &mut Vec<String>) -> Option<GgufNote> {
    let found = &input.found;
    let parts = found.weights.iter().flat_map(|weight| weight.parts.iter().copied());
    let (activations, values): (Vec<_>, Vec<_>) = parts.partition(|(role, _)| *role == Role::Activation);
    let of_activations: HashSet<usize> =
        activations.into_iter().map(|(_, at)| at).chain(found.activation_scales.iter().copied()).collect();
    let expected: HashSet<usize> = values.into_iter().map(|(_, at)| at).chain(found.markers.iter().copied()).collect();
    let name = |at: &usize| input.tensors[*at].name;
    scales.extend(unused.iter().filter(|at| of_activations.contains(at)).map(|at| name(at).to_owned()));
    let is_lost = |at: &&usize| !of_activations.contains(at) && !expected.contains(at);
    let lost: Vec<String> = unused.iter().filter(is_lost).map(|at| name(at).to_owned()).collect();
    (!lost.is_empty()).then_some(GgufNote::TensorsLeftOut(lost))
}

/// Describes the metadata of the input that has no key in the new file; `None` if nothing is lost. The mark of a format and
/// the description of decoded weights mean nothing in a GGUF file.
pub(super) fn metadata(input: &Model, keys: &[GgufKey]) -> Option<GgufNote> {
    let mut lost: Vec<&str> = Vec::new();
    for shard in input.source.shards.iter().filter(|shard| !shard.is_gguf()) {
        let mark = shard.container.format_info().metadata.mark();
        let names = shard.contents.metadata.iter().flatten().map(|(name, _)| name.as_str());
        let is_kept = |name: &str| {
            Some(name) == mark
                || name == CheckpointInfo::METADATA
                || keys.iter().any(|key| key.name == name)
                || lost.contains(&name)
        };
        let more: Vec<&str> = names.filter(|name| !is_kept(name)).collect();
        lost.extend(more);
    }
    (!lost.is_empty()).then(|| GgufNote::KeysLeftOut(lost.into_iter().map(str::to_owned).collect()))
}
