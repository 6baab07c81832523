//! Locks of the work folder, and its removal at the end.

use crate::error::{Error, OTHER_FOLDER, Opt, Result};
use crate::io::in_use::retried;
use crate::io::listing::{Entry, entries, remove_folder, unless_gone};
use crate::io::open::unreadable;
use crate::io::output::{directory_of, sync_folder, uninterrupted};
use crate::io::temporaries::{LOCK, OLD, move_to_temporary};
use crate::text;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

/// Name of the work folder during its removal.
pub(super) const REMOVED: &str = ".tcast-done.tmp";

/// Removes the work folder. A single step makes the folder a checkpoint: if a run is killed after it, the rest of the
/// work folder does no harm. With `sync`, that step is on the disk before anything in the work folder is removed: half
/// of a work folder would show neither that the checkpoint is complete nor how to complete it.
pub(super) fn remove_work(work: &Path, sync: bool) -> io::Result<()> {
    let removed = work.with_file_name(REMOVED);
    unless_gone(retried(|| remove_folder(&removed)))?;
    if cfg!(windows) {
        set_aside(&work.join(OLD), directory_of(work));
    }
    unless_gone(retried(|| fs::rename(work, &removed)))?;
    if sync {
        sync_folder(directory_of(work))?;
    }
    unless_gone(retried(|| remove_folder(&removed)))
}

/// Removes the files in a folder, by way of temporary names in `place`: Windows renames files that another program holds,
/// if that program allows it, but keeps them until they are closed, and does not rename their folder.
fn set_aside(folder: &Path, place: &Path) {
    for Entry { path, is_folder, .. } in entries(folder).into_iter().flatten() {
        if is_folder {
            set_aside(&path, place);
        } else {
            let _ = move_to_temporary(&path, place).and_then(fs::remove_file);
        }
    }
}

/// Kind of lock on a work folder.
#[derive(Clone, Copy)]
pub(super) enum Sharing {
    /// No other run may work in the folder.
    Alone,
    /// Other runs that share the folder may work in it too.
    Shared,
}

/// Locks out all other runs, or only runs that work alone. `None` on a file system without locks, where every run may
/// work.
pub(super) fn lock(work: &Path, sharing: Sharing) -> Result<Option<File>> {
    let path = work.join(LOCK);
    // Reading is required too: on NFS, a shared lock is a read lock.
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true);
    #[cfg(unix)] // does not write through a link, or wait for a pipe
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = uninterrupted(|| options.open(&path)).map_err(|error| {
        let is_file = fs::symlink_metadata(&path).map_or(true, |found| found.is_file());
        let error = Error::cannot("write", &error).in_file(&path);
        if is_file { error } else { error.remedy(text::remove_folder(&path)) }
    })?;
    let locked = match sharing {
        Sharing::Alone => file.try_lock(),
        Sharing::Shared => file.try_lock_shared(),
    };
    // The previous holder may have removed the file, and a third run may hold a new file of the same name.
    let is_mine = match locked {
        Ok(()) => is_at(&file, &path).map_err(unreadable(&path))?,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => return Ok(None),
    };
    if is_mine {
        return Ok(Some(file));
    }
    let error = Error::new("another tcast is at work in it").in_file(work.parent().unwrap_or(work));
    Err(error.remedy("wait until it is done").with(Opt::OUTPUT, OTHER_FOLDER))
}

/// True if a path still leads to an open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        there => Ok(identity(there?) == identity(file.metadata()?)),
    }
}

#[cfg(not(unix))]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = same_file::Handle::from_file(file.try_clone()?)?;
    match same_file::Handle::from_path(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        there => Ok(there? == open),
    }
}
