//! Reads the work folder, which any program may have made: never waits, follows no link and trusts no length.

use crate::container::sum_of;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::io::open::{self, Links, open_regular, read_regular, unreadable};
use crate::io::temporaries::{DONE, FILES, OLD};
use crate::text::{remove_files, shorten};
use crate::threads::each;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::Path;

/// True if something has this name, including a link that leads nowhere.
pub(super) fn exists(path: &Path) -> Result<bool> {
    open::exists(path).map_err(unreadable(path))
}

/// True if the path is a regular file of this length.
pub(super) fn is_there(path: &Path, bytes: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == bytes)
}

/// Returns the nearest parent of a path, below `root`, that is not a folder, such as a link.
pub(super) fn stray_above<'a>(root: &Path, path: &'a Path) -> Option<&'a Path> {
    let is_stray = |above: &&Path| fs::symlink_metadata(above).is_ok_and(|found| !found.is_dir());
    path.ancestors().skip(1).take_while(|above| *above != root).find(is_stray)
}

/// Refuses a work folder in which something other than a folder, such as a link, is where a folder must be.
pub(super) fn check_folders(work: &Path) -> Result<()> {
    let inner = [FILES, DONE, OLD].map(|name| work.join(name));
    for path in std::iter::once(work.to_owned()).chain(inner) {
        if exists(&path)? && !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            let error =
                Error::new("is a link or a file where tcast keeps a folder, and is not followed").in_file(&path);
            return Err(error.remedy(remove_files(&[path])));
        }
    }
    Ok(())
}

/// Reads a text that a run of this program has written.
pub(super) fn text(path: &Path) -> Result<Vec<u8>> {
    /// Maximum length in bytes; a million tensors in one shard take less.
    const MOST: u64 = 1 << 30;
    read_regular(path, MOST, Links::Refuse).map_err(unreadable(path))
}

/// Reads JSON that a run of this program has written.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_slice(&text(path)?).map_err(|error| {
        Error::new(format!("was not written by this version of tcast: {}", shorten(&error.to_string()))).in_file(path)
    })
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::new(error.to_string()))
}

/// Computes the CRC-32 of a file, which must be a regular file of this many bytes.
pub(crate) fn sum_at(path: &Path, bytes: u64, links: Links, threads: usize) -> Result<u32> {
    const PIECE: usize = 4 << 20;
    let file = open_regular(path, links).map_err(unreadable(path))?;
    let file = MappedFile::opened(file, path)?;
    if file.len() as u64 != bytes {
        return Err(Error::new(format!("has {} bytes in place of {bytes}", file.len())).in_file(path));
    }
    let sum = |at: usize| {
        let range = at * PIECE..file.len().min((at + 1) * PIECE);
        file.prefetch(range.clone()).map(|()| sum_of(&file[range]))
    };
    let mut whole = crc32fast::Hasher::new();
    for piece in each(threads, file.len().div_ceil(PIECE), sum) {
        whole.combine(&piece?);
    }
    Ok(whole.finalize())
}
