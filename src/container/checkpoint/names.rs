//! The files of a folder by their names: shards and the index.

use super::index::{INDEX, WITHOUT_INDEX, is_index};
use super::side_files::CONFIG;
use crate::error::{Error, Result};
use crate::text::{path_text, quoted, shorten};
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// True if a name is the name of a shard, in upper or lower case.
pub fn is_shard_name(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".safetensors")
}

/// True if a name is the name of a shard in the folder; a folder is not a shard.
pub(super) fn is_shard(folder: &Path, name: &str) -> bool {
    is_shard_name(name) && !folder.join(name).is_dir()
}

/// True if a folder has a shard.
pub(crate) fn has_shards(folder: &Path) -> bool {
    let is_one = |name: &OsString| name.to_str().is_some_and(|name| is_shard(folder, name));
    file_names(folder).is_ok_and(|names| names.iter().any(is_one))
}

/// Returns the names of the files and folders in a folder, sorted.
pub(super) fn file_names(folder: &Path) -> Result<Vec<OsString>> {
    let failed = |error: std::io::Error| Error::io("cannot read", &error);
    let entries = fs::read_dir(folder).map_err(failed)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>();
    let mut names = names.map_err(failed)?;
    names.sort();
    Ok(names)
}

/// Returns the nearest folders below a folder that have shards, quoted, as in a pipeline of diffusers or in the cache
/// of Hugging Face; at most eight.
pub(super) fn folders_of_shards(folder: &Path) -> Vec<String> {
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
        let found: Vec<String> =
            inner.iter().filter(|path| has_shards(path)).map(|path| quoted(path)).take(8).collect();
        if !found.is_empty() {
            return found;
        }
        level = inner;
    }
    Vec::new()
}

/// Converts names to text. Drops names that are not text, which cannot be in an index; refuses such a name of a shard,
/// which would be left out.
pub(super) fn texts(names: Vec<OsString>) -> Result<Vec<String>> {
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

pub(super) fn find_index(files: &[String]) -> Result<Option<String>> {
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
