//! Where an index and the shards of a checkpoint disagree, or the shards among themselves.

use super::index::WeightMap;
use crate::container::Input;
use crate::text::{path_text, shorten};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// How many disagreements are listed.
const TOLD: usize = 10;

/// A contradiction between the files of a folder.
#[derive(Debug)]
pub struct Disagreement {
    /// A sentence that describes it; the last of many counts the others.
    pub text: String,
    /// Whether it leaves open which tensors the checkpoint has. Such a checkpoint can be shown but not converted.
    pub is_fatal: bool,
}

impl Disagreement {
    pub(super) fn fatal(text: String) -> Self {
        Self { text, is_fatal: true }
    }

    pub(super) fn mild(text: String) -> Self {
        Self { text, is_fatal: false }
    }
}

/// What the index lists and the shards do not hold, and the reverse, for shards that could be opened.
pub(super) fn compare(map: &WeightMap, shards: &[Input], found: &mut Disagreements) {
    let files: Vec<Cow<str>> =
        shards.iter().map(|shard| shard.path().file_name().unwrap_or_default().to_string_lossy()).collect();
    let tensors = shards
        .iter()
        .zip(&files)
        .flat_map(|(shard, file)| shard.contents.tensors.iter().map(move |tensor| (tensor.name.as_str(), &**file)));
    let held: BTreeSet<(&str, &str)> = tensors.collect();
    for (tensor, shard) in map {
        if files.iter().any(|file| *file == **shard) && !held.contains(&(&**tensor, &**shard)) {
            let (tensor, shard) = (shorten(tensor), shorten(shard));
            found.add(Disagreement::fatal(format!("the index has '{tensor}' in {shard}, which does not hold it")));
        }
    }
    for (tensor, shard) in held {
        let home = map.get(tensor);
        if home.is_none_or(|home| **home != *shard) {
            let text = format!("{} holds '{}', which the index does not have there", shorten(shard), shorten(tensor));
            // A tensor that the index lists elsewhere is a duplicate; one that it does not list is simply kept.
            found.add(Disagreement { text, is_fatal: home.is_some() });
        }
    }
}

/// Tensors that are in more than one shard.
pub(super) fn repetitions<'a>(shards: impl Iterator<Item = &'a Input>) -> Disagreements {
    let mut homes: BTreeMap<&str, &Path> = BTreeMap::new();
    let mut found = Disagreements::default();
    let name = |path: &Path| shorten(&path_text(path.file_name().unwrap_or_default()));
    for shard in shards {
        for tensor in &shard.contents.tensors {
            if let Some(before) = homes.insert(&tensor.name, shard.path()) {
                let (tensor, before, now) = (shorten(&tensor.name), name(before), name(shard.path()));
                found.add(Disagreement::fatal(format!("'{tensor}' is in {before} and in {now}")));
            }
        }
    }
    found
}

/// Only as many as people read, the fatal ones first, and how many more there are: an index can list a million tensors.
#[derive(Default)]
pub(super) struct Disagreements {
    fatal: Vec<Disagreement>,
    mild: Vec<Disagreement>,
    pub(super) all: usize,
}

impl Disagreements {
    pub(super) fn add(&mut self, disagreement: Disagreement) {
        self.all += 1;
        let alike = if disagreement.is_fatal { &mut self.fatal } else { &mut self.mild };
        if alike.len() < TOLD {
            alike.push(disagreement);
        }
    }

    pub(super) fn told(self) -> Vec<Disagreement> {
        let mut told = self.fatal;
        told.extend(self.mild);
        told.truncate(TOLD);
        let more = self.all - told.len();
        if more > 0 {
            told.push(Disagreement::mild(format!("... and {more} more")));
        }
        told
    }
}
