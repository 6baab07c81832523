//! The last step: a new folder replaces the existing one.
//!
//! If the system can exchange two folders (Linux and macOS, on most file systems), `files/` becomes a folder next to
//! the output, under a reserved name, and the two folders exchange their names. At every moment the output is either
//! the old or the new folder, complete. The new one has a [`WORK`] with [`END`] in it until everything in the old
//! folder that is not part of the old checkpoint was moved over, and the old folder is removed.
//!
//! If it cannot, or the output must remain the same folder (a mount point, the current folder, or a folder with a
//! different owner or attributes), the old files are moved to `old/` and the new ones to their places, the index last.
//! Meanwhile, [`WORK`] shows that this is not a checkpoint.
//!
//! This table has every state that a crash can leave, and the next step:
//!
//! | in the output | next to it | next step |
//! |---|---|---|
//! | `files/` whole, `old/` missing | - | exchange, or move |
//! | no `files/` | new | back to `files/` |
//! | `end.json` | old | move other files over, remove the old folder |
//! | `old/`, some of `files/` | - | move the rest |
//! | `end.json` | - | remove the work folder |

use super::check::check_places;
use super::files::{exists, read};
use super::lock::{Sharing, lock, remove_work};
use super::manifest::{Manifest, sha256};
use super::{Staging, older, sync_name};
use crate::container::checkpoint::is_index;
use crate::error::{Error, Result};
use crate::io::identity::check_apart;
use crate::io::in_use::{check_not_in_use, retried};
use crate::io::listing::{Entry, entries, remove_folder, unless_gone};
use crate::io::open::unwritable;
use crate::io::output::{WORK, create_folders, directory_of};
use crate::io::temporaries::{DONE, END, FILES, Kept, LOCK, MANIFEST, OLD, keep_after};
use crate::text;
use crate::text::{path_text, shorten};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

impl Staging {
    /// Moves everything to its place, records this in [`END`] of the work folder, and cleans up. Once the folders are
    /// exchanged, an interrupt waits until all of this is done.
    pub(super) fn put_in_place(&mut self, kept: Kept) -> Result<()> {
        check_places(&self.folder, &self.manifest)?;
        self.check_older()?;
        if let Some((aside, real)) = self.prepare_exchange()? {
            let exchanged = keep_after(Some(kept.clone()), || {
                self.exchange(&aside, &real)?;
                self.remove_old().map_err(Some)
            });
            match exchanged {
                Err(None) => {}
                Err(Some(error)) => return Err(error),
                Ok(()) => return Ok(()),
            }
        }
        self.move_up()?;
        self.clean_up(Some(kept))
    }

    /// Prepares to exchange the whole folder. Returns the path next to the output and the real path of the output, or
    /// `None` if this is impossible.
    fn prepare_exchange(&mut self) -> Result<Option<(PathBuf, PathBuf)>> {
        let new = self.work.join(FILES);
        let mut is_begun = exists(&self.work.join(OLD))?;
        for file in self.manifest.files() {
            is_begun |= !exists(&self.staged(file))?;
        }
        let (Some(aside), Ok(real)) = (aside(&self.folder), fs::canonicalize(&self.folder)) else { return Ok(None) };
        // A process with this current folder would end up in the old one, which is removed.
        let is_in_it = std::env::current_dir().is_ok_and(|here| here.starts_with(&real));
        // Files that another run has left, or another program has put there, must not become a part of the checkpoint.
        let files = self.manifest.files().map(|file| self.staged(file)).collect();
        let has_more = !holds_only(&files, &new).unwrap_or(false);
        if is_begun || is_in_it || has_more || !is_alike(&real, &new).unwrap_or(false) {
            return Ok(None);
        }
        let inner = new.join(WORK);
        create_folders(&inner)?;
        self.hold.locks.extend(lock(&inner, Sharing::Alone)?);
        self.write_end(&inner)?;
        self.sync_folders(&new)?;
        remove_aside(&aside)?;
        Ok(Some((aside, real)))
    }

    /// Exchanges the whole folder; the error is `None` if the system does not support it.
    fn exchange(&self, aside: &Path, real: &Path) -> Result<(), Option<Error>> {
        let new = self.work.join(FILES);
        let failed = |error: io::Error| Error::io("cannot put in place", &error).in_file(&self.folder);
        let unless_refused = |error: io::Error| if is_refusal(&error) { None } else { Some(failed(error)) };
        fs::rename(&new, aside).map_err(unless_refused)?;
        if let Err(error) = exchange(aside, real) {
            fs::rename(aside, &new).map_err(failed)?;
            return Err(unless_refused(error));
        }
        if self.sync {
            aside.parent().map_or(Ok(()), sync_name)?;
        }
        Ok(())
    }

    /// Returns the files that the new ones replace, wherever they are now.
    fn older(&self) -> Result<BTreeMap<String, PathBuf>> {
        let mut moved = BTreeSet::new();
        if self.is_moving()? {
            for file in self.manifest.files() {
                if !exists(&self.staged(file))? {
                    moved.insert(self.folder.join(file));
                }
            }
        }
        older::known(&[self.work.join(OLD), self.folder.clone()], &self.manifest, |path| moved.contains(path))
    }

    /// Refuses to replace a file that was not in the folder when the work began, or that another program holds.
    pub(super) fn check_older(&self) -> Result<()> {
        let failed = |path: &Path, error: io::Error| Error::cannot("replace", &error).in_file(path);
        self.older()?.values().try_for_each(|path| check_not_in_use(path).map_err(|error| failed(path, error)))
    }

    /// Refuses two files with names that are the same for the file system of the folder.
    pub(super) fn check_apart(&self) -> Result<()> {
        check_apart(&self.work.join(FILES), self.manifest.files())
    }

    /// Moves the files one by one.
    fn move_up(&self) -> Result<()> {
        let rename = |from: &Path, to: &Path| -> Result<()> {
            if let Some(folder) = to.parent() {
                create_folders(folder)?;
            }
            retried(|| fs::rename(from, to)).map_err(|error| Error::io("cannot put in place", &error).in_file(to))
        };
        let old = self.work.join(OLD);
        create_folders(&old)?;
        let mut before: Vec<(String, PathBuf)> = self.older()?.into_iter().collect();
        before.sort_by_key(|(file, _)| !is_index(file));
        for (file, path) in before.iter().filter(|(_, path)| !path.starts_with(&old)) {
            rename(path, &old.join(file))?;
        }
        for file in self.manifest.files() {
            if exists(&self.staged(file))? {
                if self.manifest.index.as_ref() == Some(file) {
                    self.sync_folders(&self.folder)?; // the index makes all the rest count
                }
                rename(&self.staged(file), &self.folder.join(file))?;
            }
        }
        self.sync_folders(&self.folder)?;
        self.write_end(&self.work)
    }

    /// True if a folder is the one that this output replaced: it has the same manifest.
    fn is_replaced(&self, aside: &Path) -> Result<bool> {
        let path = aside.join(WORK).join(MANIFEST);
        Ok(exists(&path)? && !is_staged(aside)? && read::<Manifest>(&path)?.hash()? == self.manifest.hash()?)
    }

    /// Removes the rest of the old folder, and then the work folder. An interrupt waits until then, and reports `kept`.
    pub(super) fn clean_up(&mut self, kept: Option<Kept>) -> Result<()> {
        keep_after(kept, || self.remove_old())
    }

    fn remove_old(&mut self) -> Result<()> {
        let failed = unwritable(&self.folder);
        if let Some(aside) = aside(&self.folder).filter(|aside| exists(aside).unwrap_or(true)) {
            if self.is_replaced(&aside)? {
                let older = older::known(std::slice::from_ref(&aside), &self.manifest, |_| false)?;
                // Indexes, which name the other files, are removed last.
                for is_last in [false, true] {
                    for (_, path) in older.iter().filter(|(name, _)| is_index(name) == is_last) {
                        fs::remove_file(path).map_err(failed)?;
                    }
                }
                let real = fs::canonicalize(&self.folder).map_err(failed)?;
                move_over(&aside, &real, Path::new(""))?;
                if self.sync {
                    sync_name(&aside)?; // its work folder describes it correctly until it is empty
                }
                remove_folder(&aside.join(WORK)).map_err(failed)?;
                fs::remove_dir(&aside).map_err(failed)?;
            } else {
                remove_aside(&aside)?;
            }
            if self.sync {
                aside.parent().map_or(Ok(()), sync_name)?; // only the work folder identifies it
            }
        }
        self.hold.let_go();
        remove_work(&self.work, self.sync).map_err(failed)
    }
}

/// True if a folder and its subfolders hold only these files, and the work folder.
fn holds_only(files: &BTreeSet<PathBuf>, folder: &Path) -> io::Result<bool> {
    for Entry { path, name, is_folder } in entries(folder)? {
        let is_known = name == WORK || files.contains(&path);
        if !(is_known || is_folder && holds_only(files, &path)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Recovers the folder that a run that was killed here has left next to the output. Refuses an old checkpoint whose new
/// one is gone.
pub(super) fn recover(folder: &Path, work: &Path) -> Result<()> {
    let Some(aside) = aside(folder) else { return Ok(()) };
    let files = work.join(FILES);
    match (is_staged(&aside)?, exists(&work.join(END))?) {
        (false, true) => Ok(()), // the old checkpoint
        // Without a manifest, the folder belongs to different work.
        (true, false) if !exists(&files)? && exists(&work.join(MANIFEST))? => {
            unless_gone(fs::rename(&aside, &files)).map_err(unwritable(&aside))
        }
        _ => remove_aside(&aside),
    }
}

/// Returns the path next to a folder at which it exchanges places with the new one: always the same, to be found again.
fn aside(folder: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(folder).ok()?;
    let name = sha256(real.file_name()?.as_encoded_bytes());
    Some(real.with_file_name(format!(".tcast-{}.tmp", &name[..16])))
}

/// True if tcast made the folder to become an output.
fn is_staged(aside: &Path) -> Result<bool> {
    exists(&aside.join(WORK).join(END))
}

/// Removes the remains of a run next to the folder: an output that never reached its place, or an empty folder.
fn remove_aside(aside: &Path) -> Result<()> {
    // A folder that is absent is not removed, because a read-only parent refuses that too.
    let removed = match is_staged(aside)? {
        true => remove_folder(aside),
        false if exists(aside)? => {
            remove_old_work(aside);
            fs::remove_dir(aside)
        }
        false => Ok(()),
    };
    unless_gone(removed).map_err(|error| {
        let error = Error::io("is in the way, and cannot be removed", &error).in_file(aside);
        error.remedy(format!("look into it, and then {}", text::remove_folder(aside)))
    })
}

/// Removes the rest of the work folder in an old folder, after a run was killed while it removed that folder. Before
/// that, the run removed or moved over everything else.
fn remove_old_work(aside: &Path) {
    if entries(aside).is_ok_and(|entries| entries.iter().all(|entry| entry.name == WORK)) {
        let work = aside.join(WORK);
        let _ = remove_folder(&work.join(DONE));
        for file in [MANIFEST, LOCK] {
            let _ = fs::remove_file(work.join(file));
        }
        let _ = fs::remove_dir(work);
    }
}

/// Moves over the rest of an old folder, except the work folder: files of other programs, and files of runs with
/// outputs in this folder. They may have no copy, so they are flushed even if outputs are not.
fn move_over(old: &Path, new: &Path, inner: &Path) -> Result<()> {
    let failed = |error: io::Error| Error::io("cannot move", &error).in_file(old);
    let mut is_moved = false;
    for Entry { path: from, name, is_folder } in entries(old).map_err(failed)? {
        let to = new.join(&name);
        if inner == Path::new("") && name == WORK {
            // It is removed when nothing else is left.
        } else if !exists(&to)? {
            if !is_moved {
                // The new parent folder must exist afterwards, too.
                for folder in new.ancestors().take(inner.components().count() + 1) {
                    sync_name(directory_of(folder))?;
                }
            }
            is_moved = true;
            fs::rename(&from, &to).map_err(failed)?;
        } else if is_folder && fs::symlink_metadata(&to).is_ok_and(|found| found.is_dir()) {
            move_over(&from, &to, &inner.join(&name))?;
            fs::remove_dir(&from).map_err(failed)?;
        } else {
            let error = Error::new(format!("was in the old folder, and {} is there now", shorten(&path_text(to))));
            return Err(error.in_file(&from).remedy("move one of them elsewhere, and run the same command again"));
        }
    }
    if is_moved { sync_name(new).and_then(|()| sync_name(old)) } else { Ok(()) }
}

/// True if the system does not support the operation here, false if the operation failed.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{
        CrossesDevices, InvalidInput, PermissionDenied, ReadOnlyFilesystem, ResourceBusy, Unsupported,
    };
    matches!(
        error.kind(),
        CrossesDevices | InvalidInput | PermissionDenied | ReadOnlyFilesystem | ResourceBusy | Unsupported
    )
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Gives a new folder the permissions of the old one. Returns false if it would have another owner or other attributes.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn is_alike(old: &Path, new: &Path) -> io::Result<bool> {
    use std::collections::BTreeMap;
    use std::os::unix::fs::MetadataExt;
    let attributes = |folder: &Path| -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut names = vec![0; 1 << 16];
        let len = match rustix::fs::listxattr(folder, &mut names) {
            Err(rustix::io::Errno::NOTSUP) => 0,
            listed => listed?,
        };
        let mut found = BTreeMap::new();
        for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; 1 << 16];
            let len = rustix::fs::getxattr(folder, name, &mut value)?;
            value.truncate(len);
            found.insert(name.to_owned(), value);
        }
        Ok(found)
    };
    let [before, now] = [fs::metadata(old)?, fs::metadata(new)?];
    if (before.uid(), before.gid()) != (now.uid(), now.gid()) || attributes(old)? != attributes(new)? {
        return Ok(false);
    }
    fs::set_permissions(new, before.permissions())?;
    Ok(true)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
#[allow(clippy::unnecessary_wraps, reason = "it can fail on Unix")]
fn is_alike(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}
