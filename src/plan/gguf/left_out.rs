//! Contents of the input that a new file lacks.

use crate::container::GgufKey;
use crate::container::gguf::metadata::Config;
use crate::container::gguf::names::{OtherPart, other_part};
use crate::progress::GgufNote;
use crate::quant::{CheckpointInfo, Role};
use crate::read::Model;
use std::collections::{BTreeMap, HashSet};

/// Returns the names of the scales of activations among the `unused` stored tensors, and describes those of the others whose
/// values are not part of a weight.
pub(super) fn tensors(input: &Model, unused: &[usize]) -> (Vec<String>, Vec<GgufNote>) {
    let found = &input.found;
    let parts = found.weights.iter().flat_map(|weight| weight.parts.iter().copied());
    let (activations, values): (Vec<_>, Vec<_>) = parts.partition(|(role, _)| *role == Role::Activation);
    let of_activations: HashSet<usize> =
        activations.into_iter().map(|(_, at)| at).chain(found.activation_scales.iter().copied()).collect();
    let expected: HashSet<usize> = values.into_iter().map(|(_, at)| at).chain(found.markers.iter().copied()).collect();
    let name = |at: &usize| input.tensors[*at].name;
    let scales = unused.iter().filter(|at| of_activations.contains(at)).map(|at| name(at).to_owned()).collect();
    let is_lost = |at: &&usize| !of_activations.contains(at) && !expected.contains(at);
    let config = input.config().ok().flatten().and_then(Config::of);
    let number = |key: &str| config.as_ref()?.known_number(key);
    let mut lost: BTreeMap<Option<OtherPart>, Vec<String>> = BTreeMap::new();
    for name in unused.iter().filter(is_lost).map(name) {
        let part = config.as_ref().and_then(|_| other_part(name, &number));
        lost.entry(part).or_default().push(name.to_owned());
    }
    (scales, lost.into_iter().map(|(part, names)| GgufNote::TensorsLeftOut { part, names }).collect())
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
