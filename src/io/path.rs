//! Resolution of paths.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns a path, and the paths that its links lead to; only the first few in a cycle of links.
pub(super) fn steps(path: &Path) -> impl Iterator<Item = PathBuf> {
    let next = |file: &PathBuf| fs::read_link(file).ok().map(|target| directory_of(file).join(target));
    std::iter::successors(Some(path.to_owned()), next).take(41)
}

/// Returns the file that a path names, which does not have to exist. Devices and pipes keep their path: the target of
/// their link is not always a name that can be opened.
pub(super) fn follow_links(path: &Path) -> PathBuf {
    if fs::metadata(path).is_ok_and(|existing| !existing.is_file()) {
        return path.to_owned();
    }
    steps(path).last().unwrap_or_default()
}

/// True if a path names a folder by a separator at its end.
pub(crate) fn ends_in_separator(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().last().is_some_and(|last| std::path::is_separator(char::from(*last)))
}
