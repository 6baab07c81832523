//! Disagreements between an index and the shards of a checkpoint, or among the shards, and how to proceed.

use super::index::WeightMap;
use super::models::{NameConflict, NumberedName, conflict};
use super::names::is_complete_without;
#[cfg(feature = "cli")]
use super::names::{file_names, is_shard};
use super::{Checkpoint, short_index};
use crate::container::{Input, SHARDS, probe};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::advice::{move_out, take_out};
use crate::text::{path_text, quoted, shorten};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A contradiction between the files of a folder.
#[derive(Debug)]
pub struct Disagreement {
    /// A sentence that describes it; the last of many counts the others.
    pub text: String,
    /// True if the set of tensors is ambiguous. Such a checkpoint can be shown but not converted.
    pub is_fatal: bool,
    pub(super) remedy: Remedy,
}

/// The way out of a disagreement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Remedy {
    /// It depends on the files.
    #[default]
    Unknown,
    /// The index leaves out one of its own shards, whose tensors would be lost: another index, or none.
    OtherIndex,
    /// The missing files.
    Download,
    /// To move these files of other models out of the folder, or to give the model, if it is one file.
    Move { model: Option<String>, others: Vec<String> },
}

impl Disagreement {
    /// An index that is not used, because it belongs to the model before its quantization.
    pub(super) fn stale_index(index: &str) -> Self {
        let index = shorten(index);
        let text = format!("{index} names only missing shards, those of the original model: it is not used");
        Self::harmless(text)
    }

    /// Returns the contradiction among the names of shards without an index, if there is one.
    pub(super) fn among_names(shards: &[String]) -> Option<Self> {
        let (text, remedy) = match conflict(shards)? {
            NameConflict::Missing(shard) => (format!("{} is missing", shorten(&shard)), Remedy::Download),
            NameConflict::Several { model, others } => {
                let other = others.first().map(|other| shorten(other)).unwrap_or_default();
                let text = format!("{} is a model without {other}, and no index names its shards", shorten(model));
                let is_one = NumberedName::parse(model).is_none();
                let model = is_one.then(|| model.to_owned());
                (text, Remedy::Move { model, others: others.into_iter().map(str::to_owned).collect() })
            }
        };
        Some(Self { text, is_fatal: true, remedy })
    }

    /// A disagreement that loses nothing.
    fn harmless(text: String) -> Self {
        Self { text, is_fatal: false, remedy: Remedy::Unknown }
    }
}

/// The first disagreements, the fatal ones before the others, and the number of all: an index can list a million
/// tensors.
#[derive(Default)]
pub(super) struct Disagreements {
    first: Vec<Disagreement>,
    pub(super) all: usize,
}

impl Disagreements {
    /// Adds a disagreement that makes the set of tensors ambiguous.
    pub(super) fn fatal(&mut self, text: String) {
        self.add(Disagreement { text, is_fatal: true, remedy: Remedy::Unknown });
    }

    fn add(&mut self, disagreement: Disagreement) {
        /// Maximum number of disagreements that are listed.
        const MOST: usize = 10;
        let fatal = self.first.partition_point(|before| before.is_fatal);
        self.first.insert(if disagreement.is_fatal { fatal } else { self.first.len() }, disagreement);
        self.first.truncate(MOST);
        self.all += 1;
    }

    pub(super) fn into_list(mut self) -> Vec<Disagreement> {
        let more = self.all - self.first.len();
        if more > 0 {
            self.first.push(Disagreement::harmless(format!("... and {more} more")));
        }
        self.first
    }

    /// Adds a shard in the folder that the index does not name. Loaders leave such a file out, and so does tcast: it
    /// can be the rest of an older checkpoint, or the same model in another format. If the file is numbered like the
    /// shards that the index names, the index is incomplete, unless the shard has no tensors: no index can name such a
    /// shard.
    pub(super) fn unnamed(&mut self, folder: &Path, file: &str, named: &BTreeSet<&str>) {
        let set = |file| NumberedName::parse(file).map(|name| name.set());
        let is_of_set = set(file).is_some_and(|own| named.iter().any(|other| set(other) == Some(own)));
        let name = shorten(file);
        let has_tensors = || probe(&folder.join(file)).map_or(true, |shard| !shard.contents.tensors.is_empty());
        if is_of_set && has_tensors() {
            let text = format!("the index leaves out {name}, which is numbered as one of its shards");
            self.add(Disagreement { text, is_fatal: true, remedy: Remedy::OtherIndex });
        } else {
            self.add(Disagreement::harmless(format!("{name} is not in the index, and is left out")));
        }
    }

    /// Adds the tensors that the index lists and the shards do not hold, and the reverse, for shards that could be
    /// opened.
    pub(super) fn compare(&mut self, map: &WeightMap, shards: &[Input]) {
        for IndexDifference { tensor, shard, kind } in differences(map, shards) {
            let (tensor, shard) = (shorten(tensor), shorten(&shard));
            match kind {
                DifferenceKind::NotHeld => {
                    self.fatal(format!("the index has '{tensor}' in {shard}, which does not hold it"));
                }
                // A tensor that the index lists elsewhere is a duplicate; one that it does not list is simply kept.
                kind => {
                    let text = format!("{shard} holds '{tensor}', which the index does not have there");
                    let is_elsewhere = kind == DifferenceKind::Elsewhere;
                    if is_elsewhere { self.fatal(text) } else { self.add(Disagreement::harmless(text)) }
                }
            }
        }
    }

    /// Finds tensors that are in more than one shard.
    pub(super) fn among<'a>(shards: impl Iterator<Item = &'a Input>) -> Self {
        let mut homes: BTreeMap<&str, &Path> = BTreeMap::new();
        let mut found = Self::default();
        let name = |path: &Path| shorten(&path_text(path.file_name().unwrap_or_default()));
        for shard in shards {
            for tensor in &shard.contents.tensors {
                if let Some(before) = homes.insert(&tensor.name, shard.path()) {
                    let (tensor, before, now) = (shorten(&tensor.name), name(before), name(shard.path()));
                    found.fatal(format!("'{tensor}' is in {before} and in {now}"));
                }
            }
        }
        found
    }
}

/// A tensor that the index and a shard that could be opened do not have in the same place.
struct IndexDifference<'a> {
    tensor: &'a str,
    shard: Cow<'a, str>,
    kind: DifferenceKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DifferenceKind {
    /// The index lists it, and the shard does not hold it.
    NotHeld,
    /// The shard holds it, and the index does not list it.
    Unlisted,
    /// The shard holds it, and the index lists it in another shard.
    Elsewhere,
}

/// Returns the tensors that the index lists and the shards do not hold, and then the reverse.
fn differences<'a>(map: &'a WeightMap, shards: &'a [Input]) -> Vec<IndexDifference<'a>> {
    let file = |shard: &'a Input| shard.path().file_name().unwrap_or_default().to_string_lossy();
    let files: Vec<Cow<str>> = shards.iter().map(file).collect();
    let held = shards.iter().zip(&files);
    let held = held.flat_map(|(shard, file)| shard.contents.tensors.iter().map(move |tensor| (&*tensor.name, &**file)));
    let held: BTreeSet<(&str, &str)> = held.collect();
    let is_opened = |shard: &str| files.iter().any(|file| *file == *shard);
    let listed = map.iter().map(|(tensor, shard)| (&**tensor, &**shard));
    let not_held = listed.filter(|at| is_opened(at.1) && !held.contains(at)).map(|(tensor, shard)| IndexDifference {
        tensor,
        shard: shard.into(),
        kind: DifferenceKind::NotHeld,
    });
    let others = held.iter().filter_map(|&(tensor, shard)| {
        let kind = match map.get(tensor) {
            Some(home) if **home == *shard => return None,
            Some(_) => DifferenceKind::Elsewhere,
            None => DifferenceKind::Unlisted,
        };
        Some(IndexDifference { tensor, shard: shard.to_owned().into(), kind })
    });
    not_held.chain(others).collect()
}

#[cfg(feature = "cli")]
impl Checkpoint {
    /// Returns what does not fit between the index and the shards: a tensor or a file, and a description of each.
    pub(crate) fn index_differences(&self) -> Vec<(String, String)> {
        let Some(index) = &self.index else {
            let texts = self.disagreements.iter().map(|disagreement| disagreement.text.clone());
            return texts.map(|text| (path_text(&self.path), text)).collect();
        };
        let named: BTreeSet<&str> = index.weight_map.values().map(|shard| &**shard).collect();
        let opened: BTreeSet<String> = self.shards.iter().map(|shard| self.shard_name(shard)).collect();
        let missing = named.iter().filter(|name| !opened.contains(**name));
        let mut found: Vec<(String, String)> =
            missing.map(|name| ((*name).to_owned(), "is in the index, and cannot be read".to_owned())).collect();
        let mut unlisted = Vec::new();
        for IndexDifference { tensor, shard, kind } in differences(&index.weight_map, &self.shards) {
            match kind {
                DifferenceKind::NotHeld => {
                    found.push((tensor.to_owned(), format!("is in the index, and not in {shard}")));
                }
                DifferenceKind::Unlisted => unlisted.push((shard, tensor)),
                DifferenceKind::Elsewhere => {} // a duplicate
            }
        }
        unlisted.sort_unstable();
        let what = |(shard, tensor): (_, &str)| (tensor.to_owned(), format!("is in {shard}, and not in the index"));
        found.extend(unlisted.into_iter().map(what));
        let folder = self.folder.as_deref().unwrap_or(&self.path);
        let files = file_names(folder).unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
        let stray = files.filter(|name| is_shard(folder, self.shard_names(), name) && !named.contains(&**name));
        found.extend(stray.map(|name| (name, "is a shard that is not in the index".to_owned())));
        found
    }
}

/// Requires that every tensor of a checkpoint can be read, and that the set of tensors is unambiguous.
pub fn check(mut checkpoint: Checkpoint) -> Result<Checkpoint> {
    let path = &*checkpoint.path.clone();
    if !checkpoint.broken.is_empty() {
        return Err(checkpoint.broken.swap_remove(0));
    }
    checkpoint.shards.iter_mut().try_for_each(Input::require_readable)?;
    if let Some(fatal) = checkpoint.disagreements.iter().find(|disagreement| disagreement.is_fatal) {
        let folder = checkpoint.folder.as_deref().unwrap_or(path);
        let error = Error::new(&fatal.text).in_file(path);
        if let Some(output) = output_among(&checkpoint) {
            return Err(error.remedy(format!("tcast wrote one of them; move it: {}", move_out(output))));
        }
        return Err(match (&fatal.remedy, &checkpoint.index) {
            (Remedy::OtherIndex, Some(index)) if is_complete_without(&index.name, folder) => {
                error.remedy(short_index(&folder.join(&index.name)))
            }
            (Remedy::Move { model, others }, _) => {
                let what = if others.len() == 1 { "the other model" } else { "the files of other models" };
                let others: Vec<PathBuf> = others.iter().map(|other| folder.join(other)).collect();
                let error = error.remedy(take_out(what, &others));
                let given = model.iter().map(|model| format!("give the file in it: {}", quoted(&folder.join(model))));
                given.fold(error, Error::remedy)
            }
            (Remedy::OtherIndex | Remedy::Download, _) => error.remedy("download the whole folder"),
            _ if checkpoint.is_gguf() => error.remedy("download all parts again"),
            _ => match newest_to_repeat(&checkpoint) {
                Some(newest) => {
                    let command = move_out(newest);
                    error.remedy(format!(
                        "if the newest one is an output, move it: {command}; if not, download the folder again"
                    ))
                }
                None => error.run("inspect", None, &[], "download the folder again; {} shows all that does not fit"),
            },
        });
    }
    Ok(checkpoint)
}

/// Returns a shard with the name that tcast gives to the cast of another one, `model.TYPE.safetensors`.
fn output_among(checkpoint: &Checkpoint) -> Option<&Path> {
    let is_output = |path: &Path| {
        let (stem, dtype) = path.file_stem()?.to_str()?.rsplit_once('.')?;
        let is_name = dtype.parse().is_ok_and(|known: Dtype| known.name() == dtype);
        let source = path.with_file_name(format!("{stem}.{}", SHARDS.format_info().extension));
        (is_name && checkpoint.shards.iter().any(|shard| shard.path() == source)).then_some(())
    };
    checkpoint.shards.iter().map(Input::path).find(|path| is_output(path).is_some())
}

/// Returns the most recent shard of a folder without an index, most likely an output, if the others have no duplicate
/// tensors.
fn newest_to_repeat(checkpoint: &Checkpoint) -> Option<&Path> {
    let modified = |shard: &&Input| fs::metadata(shard.path()).and_then(|found| found.modified()).ok();
    let newest = checkpoint.shards.iter().max_by_key(modified).filter(|_| checkpoint.index.is_none())?;
    let others = || checkpoint.shards.iter().filter(|shard| shard.path() != newest.path());
    let is_newer = others().all(|other| modified(&other) < modified(&newest));
    (is_newer && Disagreements::among(others()).all == 0).then_some(newest.path())
}
