//! What a run makes for itself and takes away again: temporary files and new folders, removed on an error and at an
//! interrupt.

use super::open::{Links, open_regular};
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempPath;

/// What exists now and is to go at an interrupt. Held while a file is made or takes its final name, so that
/// [`remove_temporaries`] sees each of them either whole or not at all.
static TEMPORARIES: Mutex<Temporaries> =
    Mutex::new(Temporaries { paths: Vec::new(), kept: None, runs: 0, is_over: false });

/// What stays of a run that ends early, in a sentence.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    /// Outputs that are complete.
    Outputs(String),
    /// Finished shards of a folder, with which a later run goes on.
    Shards {
        /// The sentence.
        what: String,
        /// Whether they are a part: the same command goes on then, while the whole has to be resumed.
        is_part: bool,
    },
}

pub(super) struct Temporaries {
    /// Files and new folders, each before what is in it.
    paths: Vec<PathBuf>,
    /// What stays.
    kept: Option<Kept>,
    /// How many runs are under way.
    runs: usize,
    /// The process ends by itself, and no signal is heeded any more.
    is_over: bool,
}

impl Temporaries {
    /// Leaves a folder where it is.
    fn forget(&mut self, folder: NewFolder) {
        self.unlist(&folder.0);
        std::mem::forget(folder);
    }

    /// Says what an interrupt leaves from now on, if that is something else.
    pub(super) fn keep(&mut self, what: Option<&str>) {
        if let Some(what) = what {
            self.kept = Some(Kept::Outputs(what.to_owned()));
        }
    }

    fn unlist(&mut self, path: &Path) {
        self.paths.retain(|listed| *listed != path);
    }
}

/// A run of a command. What an earlier one has kept is no matter of it.
#[derive(Debug)]
pub(crate) struct Run(());

impl Run {
    /// Begins a run.
    pub(crate) fn begin() -> Self {
        let mut temporaries = lock();
        if temporaries.runs == 0 {
            temporaries.kept = None;
        }
        temporaries.runs += 1;
        Self(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        lock().runs -= 1;
    }
}

/// An interrupt that is being carried out. As long as it lives nothing is made and nothing takes its name.
#[cfg_attr(not(unix), allow(dead_code, reason = "only signals ask for it"))]
pub(crate) struct Interrupt {
    /// What stays.
    pub(crate) kept: Option<Kept>,
    _temporaries: MutexGuard<'static, Temporaries>,
}

/// Removes every temporary file, unless the process ends by itself.
#[must_use]
#[cfg_attr(not(unix), allow(dead_code, reason = "only signals ask for it"))]
pub(crate) fn remove_temporaries() -> Option<Interrupt> {
    let temporaries = lock();
    if temporaries.is_over {
        return None;
    }
    for path in temporaries.paths.iter().rev() {
        remove(path);
    }
    Some(Interrupt { kept: temporaries.kept.clone(), _temporaries: temporaries })
}

/// Says what an interrupt leaves; before the first call that is nothing. The folders are left with it, in the same moment.
pub(crate) fn keep_at_interrupt(what: Kept, folders: impl IntoIterator<Item = NewFolder>) {
    let mut temporaries = lock();
    for folder in folders {
        temporaries.forget(folder);
    }
    temporaries.kept = Some(what);
}

/// The process ends by itself: from here on interrupts are ignored.
pub(crate) fn end_interrupts() {
    lock().is_over = true;
}

/// Makes something where an interrupt may be taking things away: before that, or never.
pub(crate) fn uninterrupted<T>(make: impl FnOnce() -> T) -> T {
    let _temporaries = lock();
    make()
}

pub(super) fn lock() -> MutexGuard<'static, Temporaries> {
    TEMPORARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a file, or a folder with nothing in it or with what was made in it.
fn remove(path: &Path) {
    let is_work = path.file_name().is_some_and(|name| name == WORK);
    let _ = fs::remove_file(path).or_else(|_| if is_work { fs::remove_dir_all(path) } else { fs::remove_dir(path) });
}

/// Makes a folder and those above it, unless they are there; not while [`remove_temporaries`] takes them away.
///
/// # Errors
/// When the system cannot.
pub(crate) fn create_folders(path: &Path) -> Result<()> {
    uninterrupted(|| fs::create_dir_all(path))
        .map_err(|error| Error::io("cannot make the folder", &error).in_file(path))
}

/// What the names of temporary files begin and end with.
const PREFIX: &str = ".tcast-";
const SUFFIX: &str = ".tmp";

/// Removes the temporary files in a folder that runs which were killed have left there.
pub(crate) fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_temporary(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The name of the folder in an output folder that work is done in; it goes with all that is in it.
pub(crate) const WORK: &str = ".tcast";

/// Whether a name is that of something that this program makes for itself.
#[must_use]
pub(crate) fn is_own(name: &str) -> bool {
    name == WORK || is_temporary(name)
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// A folder that is made for outputs. Dropped or at an interrupt it goes again, unless it is kept or has something in
/// it; one named [`WORK`] goes with its contents.
#[derive(Debug)]
pub(crate) struct NewFolder(PathBuf);

impl NewFolder {
    /// Makes the folder.
    ///
    /// # Errors
    /// When the system cannot.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let mut temporaries = lock();
        fs::create_dir(path).map_err(|error| Error::io("cannot make the folder", &error).in_file(path))?;
        temporaries.paths.push(path.to_owned());
        Ok(Self(path.to_owned()))
    }

    /// Leaves the folder where it is.
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

/// A temporary file that has a name; dropped, it is removed from the disk and the list. It is locked until it is closed,
/// so that other runs know whose it is.
#[derive(Debug)]
pub(super) struct Named(Option<TempPath>);

impl Named {
    /// Makes an empty one.
    pub(super) fn create(folder: &Path) -> io::Result<(File, Self)> {
        let mut temporaries = lock();
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).suffix(SUFFIX);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask
        let (file, path) = builder.tempfile_in(folder)?.into_parts();
        if cfg!(unix) {
            let _ = file.try_lock(); // a file system without locks does without
        }
        temporaries.paths.push(path.to_path_buf());
        Ok((file, Self(Some(path))))
    }

    /// The path, for whom gives the file its own name while he holds `temporaries`.
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

/// Gives an unnamed file a temporary name in a folder.
pub(super) fn name(folder: &Path, name: impl FnMut(&Path) -> io::Result<()>) -> io::Result<TempPath> {
    let named = tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).make_in(folder, name)?;
    Ok(named.into_temp_path())
}

/// The temporary files in a folder that no run holds any more, and their lengths: of runs that were killed.
pub(crate) fn abandoned(folder: &Path) -> Vec<(PathBuf, u64)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter(|entry| is_temporary(&entry.file_name().to_string_lossy()));
    let mut found: Vec<_> =
        names.map(|entry| entry.path()).filter_map(|path| Some((is_abandoned(&path)?, path))).collect();
    found.sort_unstable_by(|left, right| left.1.cmp(&right.1));
    found.into_iter().map(|(len, path)| (path, len)).collect()
}

/// The length of a file that nobody has locked; `None` where that is not known.
fn is_abandoned(path: &Path) -> Option<u64> {
    let file = open_regular(path, Links::Refuse).ok()?;
    file.try_lock_shared().ok()?;
    Some(file.metadata().ok()?.len())
}
