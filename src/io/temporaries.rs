//! Temporary files and new folders, which a run creates for itself and removes again, even at an interrupt.

#[cfg(feature = "cli")]
mod abandoned;
#[cfg(feature = "cli")]
mod interrupt;

#[cfg(feature = "cli")]
pub(crate) use abandoned::abandoned;
#[cfg(all(feature = "cli", unix))]
pub(crate) use interrupt::before_listing;
#[cfg(feature = "cli")]
pub(crate) use interrupt::{Run, end_interrupts, remove_temporaries};

use super::listing;
use super::naming::{self, close};
use super::open::{exists, unreadable};
use crate::error::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempPath;

/// Files and folders that exist now and are removed at an interrupt. The list is locked while a file is created or
/// takes its final name, so that an interrupt sees each file either whole or not at all.
static TEMPORARIES: Mutex<Temporaries> =
    Mutex::new(Temporaries { paths: Vec::new(), kept: None, runs: 0, is_over: false, before_first: None });

/// Sentence about what remains of a run that ends early.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum Kept {
    /// Outputs that are complete.
    Outputs(String),
    /// Finished shards of a folder, after which a later run continues.
    Shards {
        /// The sentence.
        what: String,
        /// Start of the run, which decides the options that continue it.
        start: Start,
    },
}

/// Relation of a run that writes a folder to earlier and concurrent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Begins the work; the folder must be empty.
    Anew,
    /// Begins the work, whatever is in the folder.
    Replace,
    /// Continues where another run ended.
    Resume,
    /// Converts one part, while other runs may convert other parts, and continues its own part.
    Part,
}

#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program counts its runs, and handles interrupts"))]
pub(super) struct Temporaries {
    /// Files and new folders, each before its contents.
    paths: Vec<PathBuf>,
    kept: Option<Kept>,
    runs: usize,
    /// True if the process ends by itself; signals are then ignored.
    is_over: bool,
    /// Called once, before something is created that an interrupt has to remove.
    before_first: Option<Box<dyn FnOnce() + Send>>,
}

impl Temporaries {
    /// Lets a folder stay, and forgets it.
    fn forget(&mut self, folder: NewFolder) {
        self.unlist(&folder.0);
        std::mem::forget(folder);
    }

    /// Changes the sentence that an interrupt reports.
    pub(super) fn keep(&mut self, what: Option<&str>) {
        if let Some(what) = what {
            self.kept = Some(Kept::Outputs(what.to_owned()));
        }
    }

    fn unlist(&mut self, path: &Path) {
        self.paths.retain(|listed| *listed != path);
    }
}

/// Sets the sentence that an interrupt reports, initially none. The folders are kept from the same moment.
pub(crate) fn keep_at_interrupt(what: Kept, folders: impl IntoIterator<Item = NewFolder>) {
    let mut temporaries = lock();
    for folder in folders {
        temporaries.forget(folder);
    }
    temporaries.kept = Some(what);
}

/// Calls `make`, and if that succeeds, sets the sentence that an interrupt reports: it comes before both or after both.
pub(crate) fn keep_after<T, E>(what: Option<Kept>, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let mut temporaries = lock_to_create();
    let value = make()?;
    temporaries.kept = what.or(temporaries.kept.take());
    Ok(value)
}

/// Calls `make` before an interrupt removes things, or never.
pub(crate) fn uninterrupted<T>(make: impl FnOnce() -> T) -> T {
    let _temporaries = lock_to_create();
    make()
}

pub(super) fn lock() -> MutexGuard<'static, Temporaries> {
    TEMPORARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the list to create or move files or folders; calls `before_first` before the first ones.
fn lock_to_create() -> MutexGuard<'static, Temporaries> {
    let mut temporaries = lock();
    if let Some(call) = temporaries.before_first.take() {
        call();
    }
    temporaries
}

/// Removes a file, an empty folder, or the work folder with its contents.
fn remove(path: &Path) {
    let is_work = path.file_name().is_some_and(|name| name == WORK);
    if fs::remove_file(path).is_ok() || is_work && listing::remove_folder(path).is_ok() {
        return;
    }
    if is_work {
        // If the process cannot open more files, it cannot list the folder: this is its initial content.
        for name in [LOCK, MANIFEST] {
            let _ = fs::remove_file(path.join(name));
        }
        for name in [FILES, DONE] {
            let _ = fs::remove_dir(path.join(name));
        }
    }
    let _ = fs::remove_dir(path);
}

/// Creates a folder and its parents, unless they exist; not while [`remove_temporaries`] removes them.
pub(crate) fn create_folders(path: &Path) -> Result<()> {
    uninterrupted(|| fs::create_dir_all(path)).map_err(|error| Error::cannot("make the folder", &error).in_file(path))
}

/// Prefix and suffix of the names of temporary files.
const PREFIX: &str = ".tcast-";
const SUFFIX: &str = ".tmp";

/// Removes temporary files that killed runs have left in a folder.
pub(crate) fn remove_leftovers(folder: &Path) {
    for entry in listing::entries(folder).into_iter().flatten() {
        if is_temporary(&entry.text()) {
            let _ = fs::remove_file(entry.path);
        }
    }
}

/// Name of the work folder in an output folder; it is removed with everything in it.
pub(crate) const WORK: &str = ".tcast";

/// True if an unfinished conversion is in a folder.
pub(crate) fn is_unfinished(folder: &Path) -> Result<bool> {
    // The error names the folder, which the process may not be allowed to search.
    exists(&folder.join(WORK)).map_err(unreadable(folder))
}

/// Names of files and folders in a work folder, which the module `staging` describes.
pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const FILES: &str = "files";
pub(crate) const DONE: &str = "done";
pub(crate) const OLD: &str = "old";
/// File that the working run locks.
pub(crate) const LOCK: &str = "lock";
/// Manifest and records of all shards, once everything is in its place.
pub(crate) const END: &str = "end.json";

/// True if the name is the work folder's, or a temporary file's.
pub(crate) fn is_own(name: &str) -> bool {
    name == WORK || is_temporary(name)
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// A folder created for outputs. When dropped, or at an interrupt, it is removed, unless it is kept or not empty; a
/// folder named [`WORK`] is removed with its contents.
#[derive(Debug)]
pub(crate) struct NewFolder(PathBuf);

impl NewFolder {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let mut temporaries = lock_to_create();
        let path = &*path.components().collect::<PathBuf>(); // `new/.` has no meaning before there is a `new`
        fs::create_dir(path).map_err(|error| Error::cannot("make the folder", &error).in_file(path))?;
        temporaries.paths.push(path.to_owned());
        Ok(Self(path.to_owned()))
    }

    pub(crate) fn keep(self) {
        lock().forget(self);
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        let mut temporaries = lock();
        remove(&self.0);
        temporaries.unlist(&self.0);
    }
}

/// A named temporary file; dropping it removes it from the disk and the list. It is locked until it is closed, so that
/// other runs know that it is in use.
#[derive(Debug)]
pub(super) struct Named(Option<TempPath>);

impl Named {
    pub(super) fn create(folder: &Path) -> io::Result<(File, Self)> {
        Self::with_suffix(folder, SUFFIX.as_ref())
    }

    fn with_suffix(folder: &Path, suffix: &OsStr) -> io::Result<(File, Self)> {
        let mut temporaries = lock_to_create();
        let folder = naming::of_any_length(folder)?;
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        let create = |path: &Path| options.open(path);
        let made = tempfile::Builder::new().prefix(PREFIX).suffix(suffix).make_in(folder, create)?;
        let (file, path) = made.into_parts();
        if cfg!(unix) {
            let _ = file.try_lock(); // a file system without locks does without
        }
        temporaries.paths.push(path.to_path_buf());
        Ok((file, Self(Some(path))))
    }

    /// Gives an unnamed file in a folder a temporary name. If the system refuses that after all, the bytes are copied.
    pub(super) fn of(mut file: File, folder: &Path, sync: bool) -> io::Result<Self> {
        let linked = {
            let mut temporaries = lock_to_create();
            let linked = tempfile::Builder::new()
                .prefix(PREFIX)
                .suffix(SUFFIX)
                .make_in(folder, |path| naming::link(&file, path))
                .map(tempfile::NamedTempFile::into_temp_path);
            linked.inspect(|path| temporaries.paths.push(path.to_path_buf()))
        };
        match linked {
            Ok(path) => {
                let named = Self(Some(path));
                close(file).map(|()| named)
            }
            Err(error) if naming::has_no_links(&error) => {
                let (mut copy, named) = Self::create(folder)?;
                io::Seek::rewind(&mut file)?;
                io::copy(&mut file, &mut copy)?;
                if sync {
                    copy.sync_all()?;
                }
                close(copy).map(|()| named)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the path, for a caller that gives the file its final name while holding `temporaries`.
    pub(super) fn take(mut self, temporaries: &mut Temporaries) -> TempPath {
        let path = self.0.take().expect("only this takes it");
        temporaries.unlist(&path);
        path
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let mut temporaries = lock();
            temporaries.unlist(&path);
            drop(path); // before an interrupt can see the list
        }
    }
}

/// Gives a file a temporary name in a folder. Later runs report it as abandoned if it stays.
pub(crate) fn move_to_temporary(file: &Path, folder: &Path) -> io::Result<PathBuf> {
    let folder = naming::of_any_length(folder)?;
    let rename =
        |path: &Path| if path.exists() { Err(io::ErrorKind::AlreadyExists.into()) } else { fs::rename(file, path) };
    let made = tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).make_in(folder, rename)?;
    made.into_temp_path().keep().map_err(|refused| refused.error)
}

/// True if two names are the same to a folder, as names that differ in case are to most folders of Windows and macOS,
/// or if the folder does not answer. A folder that does not exist yet is like its nearest existing parent.
pub(super) fn is_one_name(folder: &Path, one: &OsStr, other: &OsStr) -> bool {
    let suffix = |name: &OsStr| [OsStr::new("-"), name, OsStr::new(SUFFIX)].iter().copied().collect::<OsString>();
    let folder = folder.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("."));
    let Ok((_file, named)) = Named::with_suffix(folder, &suffix(one)) else { return true };
    let path = named.0.as_deref().unwrap_or(folder);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let begin = name.len().saturating_sub(suffix(one).to_string_lossy().len());
    let mut alike = OsString::from(&name[..begin]);
    alike.push(suffix(other));
    fs::symlink_metadata(path.with_file_name(alike)).is_ok()
}
