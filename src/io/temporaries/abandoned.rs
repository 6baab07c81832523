//! Temporary files that killed runs have left.

use super::super::listing;
#[cfg(not(windows))]
use super::super::open::{Links, open_regular};
use super::is_temporary;
#[cfg(windows)]
use std::fs::File;
use std::path::{Path, PathBuf};

/// Finds temporary files in a folder that no run holds any more, left by killed runs, and their lengths.
pub(crate) fn abandoned(folder: &Path) -> Vec<(PathBuf, u64)> {
    let entries = listing::entries(folder).into_iter().flatten().filter(|entry| is_temporary(&entry.text()));
    let mut found: Vec<_> = entries.filter_map(|entry| Some((is_abandoned(&entry.path)?, entry.path))).collect();
    found.sort_unstable_by(|left, right| left.1.cmp(&right.1));
    found.into_iter().map(|(len, path)| (path, len)).collect()
}

/// Returns the length of a file that no program has locked; `None` if it is locked, or that is unknown.
#[cfg(not(windows))]
fn is_abandoned(path: &Path) -> Option<u64> {
    let file = open_regular(path, Links::Refuse).ok()?;
    file.try_lock_shared().ok()?;
    Some(file.metadata().ok()?.len())
}

/// Returns the length of a file that no program has open; `None` if it is open, or that is unknown.
#[cfg(windows)]
fn is_abandoned(path: &Path) -> Option<u64> {
    use std::os::windows::fs::OpenOptionsExt;
    let is_file = std::fs::symlink_metadata(path).ok()?.is_file();
    let alone = File::options().read(true).share_mode(0).open(path).ok()?;
    is_file.then_some(alone.metadata().ok()?.len())
}
