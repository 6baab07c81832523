//! Folders: their entries, and their removal.
//!
//! The standard library panics if a folder cannot be closed, and on Linux takes a listing that fails with `ENOENT` for a
//! complete one. Every listing and every removal of a folder goes through this file.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// An entry of a folder.
pub(crate) struct Entry {
    pub path: PathBuf,
    pub name: OsString,
    /// True if it is a folder, rather than a link to one.
    pub is_folder: bool,
}

impl Entry {
    /// Returns its name; characters that are not Unicode are replaced.
    pub(crate) fn text(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }
}

/// Returns the entries of a folder, in no particular order.
///
/// # Errors
/// When the system refuses any part of the listing.
pub(crate) fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let entry = |(name, is_folder): (OsString, Option<bool>)| {
        let path = folder.join(&name);
        let is_folder = is_folder.map_or_else(|| Ok(fs::symlink_metadata(&path)?.is_dir()), Ok::<_, io::Error>)?;
        Ok(Entry { path, name, is_folder })
    };
    names(folder)?.into_iter().map(entry).collect()
}

/// Returns the name of each entry, and whether it is a folder if the listing says so.
#[cfg(target_os = "linux")]
fn names(folder: &Path) -> io::Result<Vec<(OsString, Option<bool>)>> {
    linux::names(&linux::open(rustix::fs::CWD, folder, false)?)
}

#[cfg(not(target_os = "linux"))]
fn names(folder: &Path) -> io::Result<Vec<(OsString, Option<bool>)>> {
    fs::read_dir(folder)?.map(|entry| entry.map(|entry| (entry.file_name(), None))).collect()
}

/// Ignores that something to remove or to move is gone already: another run can be faster.
pub(crate) fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes a folder with everything in it. Links are removed, and not followed.
///
/// # Errors
/// When the system refuses; the folder may be incomplete then.
#[cfg(target_os = "linux")]
pub(crate) fn remove_folder(folder: &Path) -> io::Result<()> {
    linux::remove(rustix::fs::CWD, folder)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn remove_folder(folder: &Path) -> io::Result<()> {
    fs::remove_dir_all(folder)
}

#[cfg(target_os = "linux")]
mod linux {
    use super::unless_gone;
    use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, openat, unlinkat};
    use std::ffi::{OsStr, OsString};
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    pub(super) fn open(place: impl AsFd, folder: &Path, is_own: bool) -> io::Result<OwnedFd> {
        let links = if is_own { OFlags::NOFOLLOW } else { OFlags::empty() };
        Ok(openat(place, folder, OFlags::DIRECTORY | OFlags::CLOEXEC | links, Mode::empty())?)
    }

    pub(super) fn names(folder: &OwnedFd) -> io::Result<Vec<(OsString, Option<bool>)>> {
        let mut buffer = Vec::with_capacity(1 << 15);
        let mut listing = RawDir::new(folder, buffer.spare_capacity_mut());
        let mut names = Vec::new();
        while let Some(entry) = listing.next() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_folder = (entry.file_type() != FileType::Unknown).then(|| entry.file_type() == FileType::Directory);
            if name != "." && name != ".." {
                names.push((name.to_owned(), is_folder));
            }
        }
        Ok(names)
    }

    /// Removes a folder relative to another that is open, so that nobody can replace a part of the path by a link meanwhile.
    pub(super) fn remove(place: impl AsFd, name: &Path) -> io::Result<()> {
        let folder = open(&place, name, true)?;
        // Another run may remove the same folder, so that it has no entries to list. If it is still there, the last call
        // fails because it is not empty.
        let mut listed = Vec::new();
        unless_gone(names(&folder).map(|names| listed = names))?;
        for (entry, is_folder) in listed {
            let entry = Path::new(&entry);
            unless_gone(match unlinkat(&folder, entry, AtFlags::empty()) {
                Err(_) if is_folder != Some(false) => remove(&folder, entry),
                removed => removed.map_err(io::Error::from),
            })?;
        }
        Ok(unlinkat(&place, name, AtFlags::REMOVEDIR)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_has_every_entry_once_and_tells_folders_from_links() {
        let folder = tempfile::tempdir().unwrap();
        let mut expected: Vec<(String, bool)> = (0..2000).map(|at| (format!("{at:0100}"), false)).collect();
        for (name, _) in &expected {
            fs::write(folder.path().join(name), name).unwrap();
        }
        fs::create_dir(folder.path().join("inner")).unwrap();
        expected.push(("inner".into(), true));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("inner", folder.path().join("link")).unwrap();
            expected.push(("link".into(), false));
        }
        let listed = entries(folder.path()).unwrap();
        let mut found: Vec<_> = listed.iter().map(|entry| (entry.text(), entry.is_folder)).collect();
        found.sort();
        assert!(found == expected);
        assert!(listed.iter().all(|entry| entry.path == folder.path().join(&entry.name)));
        assert!(entries(&folder.path().join("none")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_is_removed_with_its_links_and_without_what_they_lead_to() {
        let folder = tempfile::tempdir().unwrap();
        let [kept, removed] = ["kept", "removed"].map(|name| folder.path().join(name));
        fs::create_dir_all(removed.join("a/b")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "mine").unwrap();
        fs::write(removed.join("a/b/file"), "theirs").unwrap();
        std::os::unix::fs::symlink(&kept, removed.join("a/link")).unwrap();
        remove_folder(&removed).unwrap();
        assert!(!removed.exists());
        assert_eq!(fs::read(kept.join("file")).unwrap(), b"mine");
        std::os::unix::fs::symlink(&kept, &removed).unwrap();
        assert!(remove_folder(&removed).is_err());
        assert_eq!(fs::read(kept.join("file")).unwrap(), b"mine");
    }
}
