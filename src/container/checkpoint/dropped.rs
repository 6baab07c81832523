//! Tensors of a checkpoint that its outputs do not have, and tensors that they take from another one.

use super::Checkpoint;
use crate::container::Input;
use crate::container::gguf::stem_of_part;
use std::collections::{HashMap, HashSet};

impl Checkpoint {
    /// Keeps the stored tensors that `is_kept` names, which is called for each in order. Shards without tensors vanish; a
    /// GGUF has its metadata in the first. The graph of an ONNX model refers to its tensors by their places, so these stay
    /// in the list.
    pub(crate) fn keep(&mut self, mut is_kept: impl FnMut() -> bool, was_quantized: bool) {
        let (is_model, has_keys) = (self.is_onnx_model(), self.is_gguf());
        let mut places = HashMap::new();
        let before = self.shards.len();
        self.dropped.was_quantized |= was_quantized;
        for (at, mut shard) in std::mem::take(&mut self.shards).into_iter().enumerate() {
            let verdicts: Vec<bool> = shard.contents.tensors.iter().map(|_| is_kept()).collect();
            let is_emptied = !verdicts.is_empty() && !verdicts.contains(&true);
            let out = |number: &usize| !verdicts[*number];
            let names =
                (0..verdicts.len()).filter(out).map(|number| shard.name_of(&shard.contents.tensors[number]).into());
            self.dropped.names.extend(names);
            if is_model {
                shard.contents.dropped = (0..verdicts.len()).filter(out).collect();
            } else {
                if !self.assembled.is_empty() {
                    let kept = (0..verdicts.len()).filter(|number| verdicts[*number]);
                    places.extend(kept.enumerate().map(|(new, old)| ((at, old), (at, new))));
                }
                let mut verdicts = verdicts.into_iter();
                shard.contents.tensors.retain(|_| verdicts.next() == Some(true));
            }
            if !is_emptied || is_model || has_keys {
                self.shards.push(shard);
            }
        }
        self.dropped.has_emptied_shards |= self.shards.len() < before;
        self.assembled.retain(|tensor| tensor.parts.iter().all(|place| places.contains_key(place)));
        for place in self.assembled.iter_mut().flat_map(|tensor| &mut tensor.parts) {
            *place = places[place];
        }
    }

    /// Adds the stored tensors of another checkpoint that `is_taken` names, as shards of this one. Of their metadata, only the
    /// mark of the format stays.
    pub(crate) fn append(&mut self, mut other: Self, is_taken: impl FnMut() -> bool) {
        other.keep(is_taken, false);
        for mut shard in other.shards {
            let mark = shard.container.format_info().metadata.mark();
            shard.contents.metadata.iter_mut().for_each(|pairs| pairs.retain(|(key, _)| Some(&**key) == mark));
            self.added.extend(shard.contents.tensors.iter().map(|tensor| shard.name_of(tensor).into()));
            self.shards.push(shard);
        }
        let added: HashSet<&str> = self.added.iter().map(|name| &**name).collect();
        self.dropped.names.retain(|name| !added.contains(&**name));
    }

    /// Returns the names of the shards. If some are gone, the others have new numbers.
    pub(crate) fn new_shard_names(&self) -> Vec<String> {
        let names: Vec<String> = self.shards.iter().map(|shard: &Input| self.shard_name(shard)).collect();
        let parts = |name: &str| {
            let (stem, extension) = name.rsplit_once('.')?;
            let model = stem_of_part(stem);
            (model != stem).then(|| (model.to_owned(), extension.to_owned()))
        };
        if !self.dropped.has_emptied_shards || names.iter().any(|name| parts(name).is_none()) {
            return names;
        }
        let all = names.len();
        let renumbered = names.iter().zip(1..).filter_map(|(name, number)| {
            let (model, extension) = parts(name)?;
            let number = if all == 1 { String::new() } else { format!("-{number:05}-of-{all:05}") };
            Some(format!("{model}{number}.{extension}"))
        });
        renumbered.collect()
    }
}
