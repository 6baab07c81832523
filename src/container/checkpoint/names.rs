//! The files of a folder by their names: shards and the index.

use super::index::INDEX;
use super::models::conflict;
use super::side_files::CONFIG;
use crate::container::{CONTAINERS, GGUF, SHARDS, ShardNames, has_extension};
use crate::error::{Error, Result};
use crate::io::listing::entries;
use crate::io::open::unreadable;
use crate::text::{path_text, quoted, shorten};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Formats of shards, with their names. A folder can hold a model in several formats: the first one counts.
fn shard_formats() -> impl Iterator<Item = ShardNames> {
    let others = CONTAINERS.iter().filter(|container| !container.is(SHARDS));
    [&SHARDS].into_iter().chain(others).filter_map(|container| container.format_info().shards)
}

/// Describes the names of shards: `.safetensors or pytorch_model*.bin`.
pub(super) fn described_shards() -> String {
    let names = shard_formats().map(|ShardNames { extension, part_of_stem }| match part_of_stem {
        "" => format!(".{extension}"),
        part => format!("{part}*.{extension}"),
    });
    names.collect::<Vec<_>>().join(" or ")
}

/// True if a name is the name of an index.
pub fn is_index(name: &str) -> bool {
    shard_formats().any(|format| format.is_index(name))
}

/// True if a name is the name of a shard, in upper or lower case.
pub fn is_shard_name(name: &str) -> bool {
    shard_formats().any(|format| format.is_shard(name))
}

/// True if a name is the name of a shard that tcast writes: a part of a GGUF model has no index that names it.
pub fn is_written_shard(name: &str) -> bool {
    [SHARDS, GGUF].iter().any(|container| has_extension(container.format_info().extension, name))
}

/// True if a name is the name of a shard in the folder; a folder is not a shard.
pub(super) fn is_shard(folder: &Path, format: ShardNames, name: &str) -> bool {
    format.is_shard(name) && !folder.join(name).is_dir()
}

/// True if a folder has a shard.
pub(crate) fn has_shards(folder: &Path) -> bool {
    has_file(folder, is_shard_name)
}

/// True if a folder has a shard that tcast writes.
pub(crate) fn has_written_shards(folder: &Path) -> bool {
    has_file(folder, is_written_shard)
}

/// True if a folder has a file with such a name.
fn has_file(folder: &Path, is_meant: fn(&str) -> bool) -> bool {
    let is_one = |name: &str| is_meant(name) && !folder.join(name).is_dir();
    file_names(folder).is_ok_and(|names| names.iter().filter_map(|name| name.to_str()).any(is_one))
}

/// The shards of a folder, and the index that names them.
pub(super) struct ShardFolder<'a> {
    pub(super) folder: &'a Path,
    /// The names of the shards.
    pub(super) format: ShardNames,
    pub(super) index: Option<String>,
    /// The names of all shards, sorted.
    pub(super) shards: Vec<String>,
}

impl<'a> ShardFolder<'a> {
    /// Reads the names in a folder. `index` is the name of the index if the user gives it.
    pub(super) fn read(folder: &'a Path, index: Option<&str>) -> Result<Self> {
        let in_folder = |error: Error| error.in_file(folder);
        let files = texts(file_names(folder)?).map_err(in_folder)?;
        let mut candidates = shard_formats().filter(|format| match index {
            Some(index) => format.is_index(index),
            None => files.iter().any(|name| format.is_index(name) || is_shard(folder, *format, name)),
        });
        let format = candidates.next().or_else(|| shard_formats().next()).expect("there are formats of shards");
        let index = match index {
            Some(index) => Some(index.to_owned()),
            None => find_index(folder, format, &files).map_err(in_folder)?,
        };
        let shards = files.into_iter().filter(|name| is_shard(folder, format, name)).collect();
        Ok(Self { folder, format, index, shards })
    }
}

/// True if a folder holds one complete model without this index.
pub(super) fn is_complete_without(index: &str, folder: &Path) -> bool {
    let files = file_names(folder).and_then(texts).unwrap_or_default();
    let has_other = files.iter().any(|name| name != index && is_index(name));
    let shards = |format| files.iter().filter(move |name| is_shard(folder, format, name)).cloned().collect::<Vec<_>>();
    let used = shard_formats().map(shards).find(|shards| !shards.is_empty());
    !has_other && used.is_some_and(|shards| conflict(&shards).is_none())
}

/// Returns the names of the files and folders in a folder, sorted.
pub(super) fn file_names(folder: &Path) -> Result<Vec<OsString>> {
    let entries = entries(folder).map_err(unreadable(folder))?;
    let mut names: Vec<OsString> = entries.into_iter().map(|entry| entry.name).collect();
    names.sort();
    Ok(names)
}

/// Returns the nearest folders below a folder that have shards, as in a pipeline of diffusers or in the cache
/// of Hugging Face; at most eight.
pub(super) fn folders_of_shards(folder: &Path) -> Vec<PathBuf> {
    /// Maximum depth, and maximum number of folders that are searched.
    const MOST: (usize, usize) = (4, 2_000);
    let mut level = vec![folder.to_owned()];
    let mut left = MOST.1;
    for _ in 0..MOST.0 {
        let is_hidden = |name: &OsString| name.as_encoded_bytes().starts_with(b".");
        let names = |folder: &PathBuf| file_names(folder).unwrap_or_default().into_iter();
        let inner = level.iter().flat_map(|folder| {
            names(folder).filter(|name| !is_hidden(name)).map(|name| folder.join(name)).filter(|path| path.is_dir())
        });
        let inner: Vec<PathBuf> = inner.take(left).collect();
        left -= inner.len();
        let found: Vec<PathBuf> = inner.iter().filter(|path| has_shards(path)).take(8).cloned().collect();
        if !found.is_empty() {
            return found;
        }
        level = inner;
    }
    Vec::new()
}

/// Converts names to text. Drops names that are not text, which cannot be in an index; refuses such a name of a shard,
/// which would be left out.
fn texts(names: Vec<OsString>) -> Result<Vec<String>> {
    let text = |name: OsString| match name.into_string() {
        Ok(name) => Some(Ok(name)),
        Err(name) if is_shard_name(&name.to_string_lossy()) => {
            let error =
                Error::new(format!("has a shard whose name is not UTF-8 text: '{}'", shorten(&path_text(name))));
            Some(Err(error.remedy("rename it, or move it out of the folder")))
        }
        Err(_) => None,
    };
    names.into_iter().filter_map(text).collect()
}

fn find_index(folder: &Path, format: ShardNames, files: &[String]) -> Result<Option<String>> {
    let found: Vec<&String> = files.iter().filter(|name| format.is_index(name)).collect();
    let usual = found.iter().find(|name| **name == INDEX);
    if found.len() > 1 && usual.is_none() {
        let error = Error::new(format!("has {} indexes, and none is named {INDEX}", found.len()));
        return Err(error.remedy("give one of the indexes, or give the .safetensors files one by one"));
    }
    let Some(index) = usual.or(found.first()) else { return Ok(None) };
    // Without the name of the variant, loaders read the file.
    let whole = index.split_once(".index.").filter(|(_, rest)| *rest != "json").map(|(whole, _)| whole);
    if let Some(whole) = files.iter().find(|file| Some(file.as_str()) == whole) {
        let error =
            Error::new(format!("has {}, and {} names the shards of another model", shorten(whole), shorten(index)));
        let paths = [whole, *index].map(|name| quoted(&folder.join(name)));
        return Err(error.remedy(format!("give one of them: {}", paths.join(" or "))));
    }
    Ok(Some((*index).clone()))
}

/// True if a name denotes a file directly in the folder.
pub fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_one = matches!((parts.next(), parts.next()), (Some(Component::Normal(only)), None) if only == name);
    // On Windows, a colon denotes a drive or a stream of another file.
    is_one && !name.contains('\0') && !(cfg!(windows) && name.contains(':'))
}

/// Returns the name of a file that makes the `.safetensors` files of a folder a checkpoint: an index or a config.
pub fn description(folder: &Path) -> Option<String> {
    let names = file_names(folder).unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
    names.into_iter().find(|name| is_index(name) || name == CONFIG)
}
