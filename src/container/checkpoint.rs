//! A folder of `.safetensors` shards, with or without an index that names them.
//!
//! The index is the truth, as `transformers` writes it: `{"metadata": {...}, "weight_map": {tensor: shard}}`. Names of
//! shards are never computed from it, and none leads out of the folder; a shard may be a link, as in the caches of
//! Hugging Face. Without an index, every `.safetensors` file of the folder is a shard.

use super::{Input, survey};
use crate::error::{Error, Result, shorten};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path};

/// The longest index that is read; those of the largest models have a few MiB.
const MAX_INDEX: u64 = 100 << 20;
/// The usual name of an index; variants have a word in it (`model.safetensors.index.fp16.json`).
const INDEX: &str = "model.safetensors.index.json";
/// Disagreements that are told one by one.
const TOLD: usize = 10;
/// What to do where an index is of no use.
const WITHOUT_INDEX: &str = "give the .safetensors files one by one";

/// A folder of shards.
pub struct Checkpoint {
    /// The file name of the index.
    pub index: Option<String>,
    /// The shards by file name, in the order of their names.
    pub shards: Vec<(String, Input)>,
    /// Where the index and the shards disagree, or the shards among themselves, in sentences; the last counts those
    /// that are too many.
    pub disagreements: Vec<String>,
}

/// The index as the file has it; what else it holds is of no concern.
#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// The shard of every tensor.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor;
        impl<'de> Visitor<'de> for MapVisitor {
            type Value = WeightMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object that names the shard of each tensor")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut shards = BTreeMap::new();
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    let name = shorten(&tensor);
                    if shards.insert(tensor, shard).is_some() {
                        return Err(de::Error::custom(format!("'{name}' stands twice in weight_map")));
                    }
                }
                Ok(WeightMap(shards))
            }
        }
        deserializer.deserialize_map(MapVisitor)
    }
}

/// Whether a path is that of a folder, or of an index.
#[must_use]
pub fn is_checkpoint(path: &Path) -> bool {
    path.is_dir() || path.file_name().is_some_and(|name| is_index(&name.to_string_lossy()))
}

/// Opens every shard of a folder, which is given by its own path or that of an index in it.
///
/// # Errors
/// When there is none, the index is broken or names a file that is missing or outside, or a shard cannot be read.
pub fn open(path: &Path) -> Result<Checkpoint> {
    if path.is_dir() {
        let in_folder = |error: Error| error.in_file(path);
        let files = file_names(path).map_err(in_folder)?;
        return match find_index(&files).map_err(in_folder)? {
            Some(index) => open_indexed(path, index),
            None => open_all_of(path, files),
        };
    }
    let index = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    open_indexed(path.parent().unwrap_or(Path::new("")), index)
}

fn open_all_of(folder: &Path, files: Vec<String>) -> Result<Checkpoint> {
    let names: Vec<String> = files.into_iter().filter(|name| is_shard(folder, name)).collect();
    if names.is_empty() {
        let error = Error::new("is a folder without .safetensors files").in_file(folder);
        return Err(error.remedy("give a .npy, .npz, .safetensors or .pb file, or a folder of shards"));
    }
    let shards = open_shards(folder, names)?;
    let disagreements = first_of(repetitions(&shards));
    Ok(Checkpoint { index: None, shards, disagreements })
}

fn open_indexed(folder: &Path, index: String) -> Result<Checkpoint> {
    let path = folder.join(&index);
    let map = read_index(&path).map_err(|error| error.in_file(&path))?;
    let names: BTreeSet<&String> = map.values().collect();
    if let Some(outside) = names.iter().find(|name| !is_plain(name)) {
        let message = format!("names the shard '{}', which is not in the folder", shorten(outside));
        return Err(Error::new(message).in_file(&path).remedy("shards must be in the folder of their index"));
    }
    if let Some(missing) = names.iter().find(|name| !folder.join(name).exists()) {
        let error = Error::new(format!("names the shard '{}', which is missing", shorten(missing))).in_file(&path);
        return Err(error.remedy("download the whole folder"));
    }
    // A path without a folder is one of the current folder.
    let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let files = file_names(listed).map_err(|error| error.in_file(listed))?;
    let unnamed = files.iter().filter(|file| is_shard(folder, file) && !names.contains(file));
    let empty = map.is_empty().then(|| "the index names no tensor".to_owned());
    let unnamed: Vec<String> = unnamed.map(|file| format!("{} is not in the index", shorten(file))).collect();
    let shards = open_shards(folder, names.into_iter().cloned().collect())?;
    let disagreements = empty.into_iter().chain(compare(&map, &shards)).chain(unnamed);
    let disagreements = first_of(disagreements.collect());
    Ok(Checkpoint { index: Some(index), shards, disagreements })
}

fn is_index(name: &str) -> bool {
    name.contains(".safetensors.index.")
}

/// Whether a name in the folder is that of a shard; what is a folder itself is none.
fn is_shard(folder: &Path, name: &str) -> bool {
    name.ends_with(".safetensors") && !folder.join(name).is_dir()
}

fn file_names(folder: &Path) -> Result<Vec<String>> {
    let failed = |error: std::io::Error| Error::io("cannot read", &error);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        names.extend(name.into_string().ok()); // a name that is no text is none that an index has
    }
    names.sort();
    Ok(names)
}

fn find_index(files: &[String]) -> Result<Option<String>> {
    let found: Vec<&String> = files.iter().filter(|name| is_index(name)).collect();
    match found[..] {
        [] => Ok(None),
        [only] => Ok(Some(only.clone())),
        _ if found.iter().any(|name| *name == INDEX) => Ok(Some(INDEX.to_owned())),
        _ => {
            let error = Error::new(format!("has {} indexes, and none is named {INDEX}", found.len()));
            Err(error.remedy(format!("give one of the indexes, or {WITHOUT_INDEX}")))
        }
    }
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let failed = |error: std::io::Error| Error::io("cannot read", &error);
    // A pipe would be waited for, and has no length.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::new("is not a file").remedy(WITHOUT_INDEX));
    }
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_INDEX + 1).read_to_end(&mut text)).map_err(failed)?;
    if text.len() as u64 > MAX_INDEX {
        return Err(Error::new("is longer than any index").remedy(WITHOUT_INDEX));
    }
    let index: Index = serde_json::from_slice(&text).map_err(|error| {
        let error = Error::new(format!("malformed index: {}", shorten(&error.to_string())));
        error.remedy("download the folder again")
    })?;
    Ok(index.weight_map.0)
}

/// Whether a name is that of a file in the folder, on every system.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.contains(['\\', ':', '\0'])
}

fn open_shards(folder: &Path, names: Vec<String>) -> Result<Vec<(String, Input)>> {
    names.into_iter().map(|name| survey(&folder.join(&name)).map(|input| (name, input))).collect()
}

/// What the index says and the shards do not hold, and the other way round.
fn compare(map: &BTreeMap<String, String>, shards: &[(String, Input)]) -> Vec<String> {
    let held: BTreeSet<(&str, &str)> = shards
        .iter()
        .flat_map(|(shard, input)| input.contents.tensors.iter().map(|tensor| (tensor.name.as_str(), shard.as_str())))
        .collect();
    let named: BTreeSet<(&str, &str)> = map.iter().map(|(tensor, shard)| (tensor.as_str(), shard.as_str())).collect();
    let missing = named.difference(&held).map(|(tensor, shard)| {
        format!("the index has '{}' in {}, which does not hold it", shorten(tensor), shorten(shard))
    });
    let extra = held.difference(&named).map(|(tensor, shard)| {
        format!("{} holds '{}', which the index does not have there", shorten(shard), shorten(tensor))
    });
    missing.chain(extra).collect()
}

/// Tensors that are in more than one shard.
fn repetitions(shards: &[(String, Input)]) -> Vec<String> {
    let mut homes: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for (shard, input) in shards {
        for tensor in &input.contents.tensors {
            if let Some(before) = homes.insert(&tensor.name, shard) {
                let tensor = shorten(&tensor.name);
                found.push(format!("'{tensor}' is in {} and in {}", shorten(before), shorten(shard)));
            }
        }
    }
    found
}

/// As many as are read, and how many more there are.
fn first_of(mut sentences: Vec<String>) -> Vec<String> {
    let more = sentences.len().saturating_sub(TOLD);
    if more > 0 {
        sentences.truncate(TOLD);
        sentences.push(format!("... and {more} more"));
    }
    sentences
}
