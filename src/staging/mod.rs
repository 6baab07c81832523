//! A folder into which a checkpoint is written, shard by shard, by one run or by several on several machines.
//!
//! Until the checkpoint is complete, the folder contains only the work folder, `WORK`, and no loader mistakes it for a
//! checkpoint. The work folder contains
//!
//! * `manifest.json`: content of the checkpoint, and options that it is made with; the first run writes it, and other runs
//!   must agree with it,
//! * `files/`: side files, index and shards, each under its name as soon as it is complete and on the disk,
//! * `done/`: for each such shard, a record with a checksum of its bytes, so that it counts in a later run,
//! * `old/`: files of the checkpoint that is replaced, while the new ones take their places,
//! * `end.json`: the manifest, and the records of all shards, once everything is in its place,
//! * `lock`: held by the working run.
//!
//! The last step moves `files/` to its place: see [`place`]. No command accepts a folder with a `WORK` in it as a
//! checkpoint, and at any moment a resumed run can determine the state of the work.

mod check;
mod files;
mod lock;
mod manifest;
mod older;
mod open;
mod place;
mod records;
#[cfg(feature = "cli")]
mod reopen;
#[cfg(feature = "cli")]
mod state;

pub(crate) use crate::io::temporaries::Start;
#[cfg(feature = "cli")]
pub(crate) use crate::io::temporaries::is_unfinished;
pub(crate) use check::{check, difference};
pub(crate) use files::sum_at;
pub(crate) use manifest::{Manifest, ManifestShard, ManifestSource, StoredPath};
pub(crate) use older::{replaced, staying};
#[cfg(feature = "cli")]
pub(crate) use reopen::are_done;
#[cfg(feature = "cli")]
pub(crate) use state::{InterruptedWork, WorkState};

use crate::error::{Error, ErrorKind, Result};
use crate::io::listing::remove_folder;
use crate::io::open::unwritable;
use crate::io::output::{Destination, NewFolder, create_folders, keep_at_interrupt, sync_folder};
use crate::io::temporaries::{DONE, FILES, Kept, MANIFEST, OLD};
use crate::text::{counted, path_text};
use files::{exists, stray_above};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Content of `end.json`, which is written once everything is in its place.
#[derive(Debug, Serialize, Deserialize)]
struct End<M, R> {
    manifest: M,
    done: R,
}

type Records = BTreeMap<String, Box<RawValue>>;

/// Work on a folder of shards.
#[derive(Debug)]
pub(crate) struct Staging {
    folder: PathBuf,
    work: PathBuf,
    manifest: Manifest,
    /// Hash of the manifest, which every record contains.
    hash: String,
    /// Records of all shards, if everything is in its place.
    ended: Option<Records>,
    start: Start,
    /// True if everything is on the disk before it counts.
    sync: bool,
    /// True if this run created the folder.
    is_new: bool,
    /// Number of shards that were complete when this run began.
    before: usize,
    hold: Hold,
}

/// Folders and locks of a run while it works in a folder.
#[derive(Debug, Default)]
struct Hold {
    /// Folders to remove if no shard is finished, inner ones first.
    made: Vec<NewFolder>,
    /// Lock files; the locks last while these files are open.
    locks: Vec<File>,
}

impl Hold {
    /// Releases the locks before their folder is renamed or removed, where the system requires that.
    fn let_go(&mut self) {
        if cfg!(windows) {
            self.locks.clear();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.let_go();
        self.made.clear(); // before the locks, because another run may then work in these folders
    }
}

impl Staging {
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the folder to be written.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the destination of a file, and makes its folder.
    pub(crate) fn place(&self, file: &str) -> Result<Destination> {
        let path = self.staged(file);
        if let Some(stray) = stray_above(&self.work, &path) {
            return Err(Error::new("is a link or a file where tcast keeps a folder").in_file(stray));
        }
        path.parent().map_or(Ok(()), create_folders)?;
        Ok(Destination::within(&path))
    }

    fn staged(&self, file: &str) -> PathBuf {
        self.work.join(FILES).join(file)
    }

    /// Returns the current path of a file: in the work folder, or already moved to its place.
    fn place_of(&self, file: &str) -> Result<PathBuf> {
        let (staged, moved) = (self.staged(file), self.folder.join(file));
        Ok(if self.ended.is_some() || !exists(&staged)? && self.is_moving()? { moved } else { staged })
    }

    /// True if files were being moved to their places one by one.
    fn is_moving(&self) -> Result<bool> {
        exists(&self.work.join(OLD))
    }

    /// True if everything is in its place, and only the work folder has to be removed.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Moves everything to its place and removes the work folder. If this fails, another run can do it.
    pub(crate) fn finish(mut self) -> Result<()> {
        let kept = Kept::Outputs("the output was complete".to_owned());
        if self.ended.is_some() {
            return self.clean_up(Some(kept));
        }
        self.keep();
        self.check_complete()?;
        self.put_in_place(kept)
    }

    /// Flushes the folders of all files below `root`, inner ones first.
    fn sync_folders(&self, root: &Path) -> Result<()> {
        let inner = self.manifest.files().flat_map(|file| Path::new(file).ancestors().skip(1));
        let folders: BTreeSet<PathBuf> = inner.map(|inner| root.join(inner)).collect();
        folders.iter().rev().filter(|_| self.sync).try_for_each(|folder| sync_name(folder))
    }

    /// Keeps the work from now on if the run is interrupted or fails, unless [`Self::fail`] removes it.
    fn keep(&mut self) {
        let what = format!("finished shards are kept in {}", path_text(&self.work));
        keep_at_interrupt(Kept::Shards { what, start: self.start }, self.hold.made.drain(..));
    }

    /// Returns the work that is kept after a failure: the work of earlier runs and other parts, and the work of this
    /// run if the system failed. If the input or the options are at fault, a resumed run would fail in the same way, so
    /// everything that this run made is removed: `None`.
    pub(crate) fn fail(mut self, error: &Error) -> Option<Kept> {
        let (finished, all) = (self.finished(), self.manifest.shards.len());
        let is_worth = error.kind() == ErrorKind::Io && finished > 0 && self.manifest.can_resume();
        let is_worth = is_worth || self.is_moving().unwrap_or(true);
        if self.start == Start::Part || self.before > 0 || is_worth {
            let (all, folder) = (counted(all as u64, "shard"), path_text(&self.work));
            let what = format!("{finished} of {all} are done and kept in {folder}");
            return Some(Kept::Shards { what, start: self.start });
        }
        self.hold.let_go();
        clear(&self.work);
        let _ = remove_folder(&self.work);
        if self.is_new {
            let _ = fs::remove_dir(&self.folder);
        }
        None
    }
}

fn sync_name(folder: &Path) -> Result<()> {
    sync_folder(folder).map_err(unwritable(folder))
}

/// Removes records, finished files, and last the manifest, which describes them. Files of an older checkpoint stay.
fn clear(work: &Path) {
    let _ = remove_folder(&work.join(DONE));
    let _ = remove_folder(&work.join(FILES));
    let _ = fs::remove_file(work.join(MANIFEST));
}

/// Removes the remains of a run that was killed at the very end from a finished folder.
pub(crate) fn remove_rest(folder: &Path) {
    let _ = remove_folder(&folder.join(lock::REMOVED));
}
