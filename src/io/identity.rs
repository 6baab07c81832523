//! Identity of the file that a path leads to, however it is spelled: no link hides that an output would replace an
//! input.

use super::path::{directory_of, follow_links};
use super::temporaries::{NewFolder, is_one_name};
use crate::error::{Error, Result};
use crate::text::{path_text, shorten};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

/// Identity of the target of a path. Nothing is opened for this, so it does not wait for pipes or touch devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Identity {
    /// An existing file: its device and inode.
    #[cfg(unix)]
    There(u64, u64),
    /// An existing file: its canonical path without links. Hard links are not detected, and need not be: a new file
    /// replaces only one name.
    #[cfg(not(unix))]
    There(PathBuf),
    /// An unused name in a folder, which may itself be an unused name.
    Free(Option<Box<Identity>>, OsString),
}

impl Identity {
    fn of(path: &Path) -> Self {
        let file = follow_links(path);
        if let Some(there) = Self::existing(&file) {
            return there;
        }
        match file.file_name() {
            Some(name) => Self::Free(Some(Box::new(Self::of(directory_of(&file)))), name.to_owned()),
            None => Self::Free(None, file.into_os_string()), // `..` in a missing folder
        }
    }

    #[cfg(unix)]
    fn existing(file: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(file).ok().map(|found| Self::There(found.dev(), found.ino()))
    }

    /// Returns the identity of an open file, which may have no name; `None` if its contents cannot be lost, or it is
    /// unknown.
    fn of_open(file: &File) -> Option<Self> {
        #[cfg(unix)]
        if let Some(found) = file.metadata().ok().filter(fs::Metadata::is_file) {
            use std::os::unix::fs::MetadataExt;
            return Some(Self::There(found.dev(), found.ino()));
        }
        let _ = file;
        None
    }

    #[cfg(not(unix))]
    fn existing(file: &Path) -> Option<Self> {
        fs::canonicalize(file).ok().map(Self::There)
    }
}

/// True if a path is a folder, or leads into it; neither has to exist.
pub(crate) fn is_within(path: &Path, folder: &Path) -> bool {
    let folder = Identity::of(folder);
    resolved(&follow_links(path)).ancestors().any(|above| Identity::of(above) == folder)
}

/// Resolves links and `..` in a path. A part that does not exist yet will be created in the nearest existing folder.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let canonical = |above: &Path| Some((fs::canonicalize(above).ok()?, path.strip_prefix(above).ok()?));
    let Some((mut file, rest)) = path.ancestors().find_map(canonical) else { return path };
    for part in rest.components() {
        match part {
            Component::ParentDir => _ = file.pop(),
            part => file.push(part),
        }
    }
    file
}

/// Files that a run reads, and files that it will write. No file may be both, and none may be written twice.
#[derive(Debug, Default)]
pub(crate) struct Files {
    read: HashMap<Identity, PathBuf>,
    written: HashMap<Identity, PathBuf>,
    /// Written paths that do not exist yet, by their folder and their name in lower case.
    new: HashMap<(Option<Box<Identity>>, String), Vec<PathBuf>>,
    /// The folder that was made for the outputs. It is removed again if nothing is written into it.
    folder: Option<NewFolder>,
}

impl Files {
    /// Registers files that are read, and nothing else.
    pub(super) fn of_inputs(paths: &[&Path]) -> Self {
        let mut files = Self::default();
        files.read(paths);
        files
    }

    /// Registers files that are read.
    pub(crate) fn read(&mut self, paths: impl IntoIterator<Item = impl AsRef<Path>>) {
        for path in paths {
            self.read.entry(Identity::of(path.as_ref())).or_insert_with(|| path.as_ref().to_owned());
        }
    }

    /// Makes the folder of the outputs.
    pub(crate) fn make_folder(&mut self, folder: &Path) -> Result<()> {
        self.folder = Some(NewFolder::create(folder)?);
        Ok(())
    }

    /// Registers a file or folder that will be written. Refuses one that is read, or written under another name.
    pub(crate) fn write(&mut self, path: &Path) -> Result<()> {
        // Devices and pipes keep nothing that could be lost.
        if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Ok(());
        }
        self.add(path, Identity::of(path))
    }

    fn add(&mut self, path: &Path, identity: Identity) -> Result<()> {
        self.check(path, &identity)?;
        if let Identity::Free(folder, name) = &identity {
            let alike = self.new.entry((folder.clone(), name.to_string_lossy().to_lowercase())).or_default();
            let file_name = |path: &Path| follow_links(path).file_name().unwrap_or_default().to_owned();
            let is_same_name = |before: &&PathBuf| {
                let before = file_name(before);
                before != *name && is_one_name(directory_of(&follow_links(path)), name, &before)
            };
            if let Some(before) = alike.iter().find(is_same_name) {
                return Err(twice(path, before));
            }
            alike.push(path.to_owned());
        }
        let before = self.written.insert(identity, path.to_owned());
        before.map_or(Ok(()), |before| Err(twice(path, &before)))
    }

    /// Refuses a path that will already be written.
    pub(crate) fn check_unwritten(&self, path: &Path) -> Result<()> {
        self.written.get(&Identity::of(path)).map_or(Ok(()), |before| Err(twice(path, before)))
    }

    /// Registers an open file that will be written to.
    pub(crate) fn write_open(&mut self, path: &Path, file: &File) -> Result<()> {
        match Identity::of_open(file) {
            Some(identity) => self.add(path, identity),
            None => Ok(()),
        }
    }

    /// Refuses to print on `standard_output` if it is redirected to a file that is read.
    #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program prints results"))]
    pub(crate) fn check_printing(&self, standard_output: &File) -> Result<()> {
        let input = Identity::of_open(standard_output).and_then(|identity| self.read.get(&identity));
        input.map_or(Ok(()), |input| {
            let error = Error::new("is an input, and standard output is redirected to it").in_file(input);
            Err(error.remedy("redirect standard output to another file"))
        })
    }

    /// True if a path leads to a file that is read.
    pub(crate) fn is_read(&self, path: &Path) -> bool {
        self.read.contains_key(&Identity::of(path))
    }

    /// Refuses to replace or remove an input.
    pub(crate) fn check_unread(&self, path: &Path) -> Result<()> {
        self.check(path, &Identity::of(path))
    }

    fn check(&self, path: &Path, identity: &Identity) -> Result<()> {
        let Some(input) = self.read.get(identity) else { return Ok(()) };
        let name = if input == path { String::new() } else { format!(" ({})", show(input)) };
        Err(Error::new(format!("is a file of the input{name}, and would be replaced")).in_file(path))
    }
}

/// Refuses two new files of a folder whose names are the same to the file system.
pub(crate) fn check_apart<'a>(folder: &Path, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut known: HashMap<String, &String> = HashMap::new();
    let flat = |name: &str| OsString::from(name.replace(['/', '\\'], "-")); // the names of files in inner folders
    for name in names {
        match known.insert(name.to_lowercase(), name) {
            Some(before) if is_one_name(folder, &flat(name), &flat(before)) => {
                return Err(twice(&folder.join(name), &folder.join(before)));
            }
            _ => {}
        }
    }
    Ok(())
}

fn twice(path: &Path, before: &Path) -> Error {
    let what = if before == path { String::new() } else { format!(": {} is the same file", show(before)) };
    Error::new(format!("would be written twice{what}")).in_file(path)
}

fn show(path: &Path) -> String {
    shorten(&path_text(path))
}
