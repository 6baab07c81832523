//! A folder that a checkpoint is written into, shard by shard, by one run or by several on several machines.
//!
//! Until all of it is there, nothing lies in the folder but one of our own, [`WORK`], and no loader takes it for a
//! checkpoint. In that one are
//!
//! * `manifest.json`: what the checkpoint is made of, and how; what is to be continued must agree with it,
//! * `files/`: side files and index, and the shards, each under its name as soon as it is whole and on the disk,
//! * `done/`: for each shard that is, what was done, so that it counts in the report of a later run,
//! * `lock`: held by whoever is at work.
//!
//! The last step moves `files/` up, the index at the end. Then all that was done is written into `.tcast.json`, the work
//! folder goes, and that file last: at no moment could a resume not tell how far it was.

mod manifest;

pub use manifest::{Manifest, Shard, Source};

use crate::error::{Error, Result, shorten};
use crate::io::map::MappedFile;
use crate::io::output::{Destination, NewFolder, WORK, create_folders, keep_at_interrupt, remove_leftovers};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;
/// The file that lies in the folder while the work folder is taken away.
const END: &str = ".tcast.json";

/// How a run relates to what others have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It begins; there must be nothing.
    Anew,
    /// It begins, whatever is there.
    Replace,
    /// It goes on where another one ended.
    Resume,
    /// It does its part beside others, which may be at work now, and goes on where it ended itself.
    Part,
}

/// What was done, when everything is in its place.
#[derive(Debug, Serialize, Deserialize)]
struct End {
    manifest: Manifest,
    /// The records of the shards, by their names.
    done: BTreeMap<String, Value>,
}

/// Work on a folder of shards.
#[derive(Debug)]
pub struct Staging {
    folder: PathBuf,
    work: PathBuf,
    manifest: Manifest,
    /// The records of all shards, where everything is in its place.
    ended: Option<BTreeMap<String, Value>>,
    start: Start,
    /// Whether everything is on the disk before it counts.
    sync: bool,
    /// Whether the folder was made by this run.
    is_new: bool,
    /// Nobody else works here as long as it is open. Closed before it is removed, as Windows wants it.
    _lock: Option<File>,
    /// What goes again if not one shard was finished; the inner folder before the outer one.
    made: Vec<NewFolder>,
}

/// What is in a folder that is to be written into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Unfinished,
    Other,
}

fn find(folder: &Path) -> Result<Found> {
    let failed = |error: io::Error| Error::io("cannot write into", &error).in_file(folder);
    if !folder.exists() {
        return Ok(Found::Nothing);
    }
    if !folder.is_dir() {
        let error = Error::new("is a file, and the output is a folder of shards").in_file(folder);
        return Err(error.remedy("name another output with -o"));
    }
    if folder.join(WORK).join("manifest.json").exists() || folder.join(END).exists() {
        return Ok(Found::Unfinished);
    }
    for entry in fs::read_dir(folder).map_err(failed)? {
        if entry.map_err(failed)?.file_name() != WORK {
            return Ok(Found::Other);
        }
    }
    Ok(Found::Nothing)
}

/// Refuses a folder that a run may not write into.
///
/// # Errors
/// When it is a file, holds something, or holds unfinished work, unless `start` allows it.
pub fn check(folder: &Path, start: Start) -> Result<()> {
    let (message, remedy) = match (find(folder)?, start) {
        (Found::Nothing, _) | (_, Start::Replace) | (Found::Unfinished, Start::Resume | Start::Part) => return Ok(()),
        (Found::Unfinished, Start::Anew) => {
            ("an unfinished conversion is in it", "add --resume to go on with it, or --force to start anew")
        }
        (Found::Other, Start::Part) => (
            "the output exists already",
            "remove it, or name another folder with -o; it must be the same for all parts",
        ),
        (Found::Other, Start::Anew | Start::Resume) => {
            ("the output exists already", "add --force to replace it, or name another folder with -o")
        }
    };
    Err(Error::new(message).in_file(folder).remedy(remedy))
}

impl Staging {
    /// Begins to work on a folder. With `sync`, everything is on the disk before it counts. `prepare` writes side files and index, unless another run has done so.
    ///
    /// # Errors
    /// As [`check`]; when another run is at work, what it has begun differs from `manifest`, or the system refuses.
    pub fn open(
        folder: &Path,
        manifest: Manifest,
        start: Start,
        sync: bool,
        prepare: &dyn Fn(&Self) -> Result<()>,
    ) -> Result<Self> {
        check(folder, start)?;
        if start == Start::Replace {
            let _ = fs::remove_file(folder.join(END));
        } else if folder.join(END).exists() {
            let staging = Self::at_end(folder, sync)?;
            staging.manifest.check_same(&manifest, start).map_err(|error| error.in_file(folder))?;
            return Ok(staging);
        }
        let work = folder.join(WORK);
        let is_new = !folder.exists();
        let mut made = Vec::new();
        if start != Start::Part {
            if is_new {
                made.push(NewFolder::create(folder)?);
            }
            if !work.exists() {
                made.insert(0, NewFolder::create(&work)?);
            }
        }
        create_folders(&work)?;
        let lock = lock(&work, start == Start::Part)?;
        if start == Start::Replace {
            for old in ["manifest.json", "done", "files"] {
                let old = work.join(old);
                let _ = fs::remove_file(&old).or_else(|_| fs::remove_dir_all(&old));
            }
        }
        create_folders(&work.join("files"))?;
        create_folders(&work.join("done"))?;
        let folder = folder.to_owned();
        let mut staging = Self { folder, work, manifest, ended: None, start, sync, is_new, _lock: lock, made };
        let path = staging.work.join("manifest.json");
        if !path.exists() {
            staging.manifest.check_names().map_err(|error| error.in_file(&staging.folder))?;
            prepare(&staging)?;
            let text = json(&staging.manifest)?;
            let outcome = Destination::new(&path, false, &[]).and_then(|destination| staging.write(destination, &text));
            // Another part may have been faster.
            outcome.or_else(|error| if path.exists() { Ok(()) } else { Err(error) })?;
        }
        let begun: Manifest = read(&path)?;
        begun.check_names().map_err(|error| error.in_file(&path))?;
        begun.check_same(&staging.manifest, start).map_err(|error| error.in_file(&staging.folder))?;
        staging.manifest = begun;
        if start == Start::Resume {
            // Nobody else is at work.
            for folder in ["files", "done", ""] {
                remove_leftovers(&staging.work.join(folder));
            }
        }
        if start == Start::Part || staging.finished() > 0 {
            staging.keep();
        }
        Ok(staging)
    }

    /// Opens the work of runs that are over.
    ///
    /// # Errors
    /// When there is none, or one of them is not over.
    pub fn reopen(folder: &Path, sync: bool) -> Result<Self> {
        if folder.join(END).exists() {
            return Self::at_end(folder, sync);
        }
        let work = folder.join(WORK);
        let path = work.join("manifest.json");
        if !path.exists() {
            let error = Error::new("holds no unfinished conversion").in_file(folder);
            return Err(error.remedy("give the folder that the parts were written into"));
        }
        let lock = lock(&work, false)?;
        let manifest: Manifest = read(&path)?;
        manifest.check_names().map_err(|error| error.in_file(&path))?;
        Ok(Self { _lock: lock, ..Self::begun(folder, manifest, None, sync) })
    }

    /// What others have begun.
    fn begun(folder: &Path, manifest: Manifest, ended: Option<BTreeMap<String, Value>>, sync: bool) -> Self {
        let work = folder.join(WORK);
        let (start, is_new, made) = (Start::Resume, false, Vec::new());
        Self { folder: folder.to_owned(), work, manifest, ended, start, sync, is_new, _lock: None, made }
    }

    /// What is in its place already.
    fn at_end(folder: &Path, sync: bool) -> Result<Self> {
        let End { manifest, done } = read(&folder.join(END))?;
        Ok(Self::begun(folder, manifest, Some(done), sync))
    }

    /// What is being done.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The folder that is written into.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a shard, a side file or the index is to be written.
    #[must_use]
    pub fn place(&self, file: &str) -> Destination {
        Destination::within(&self.work.join("files").join(file))
    }

    /// Writes a side file or the index.
    ///
    /// # Errors
    /// When the system cannot.
    pub fn add(&self, file: &str, content: &[u8]) -> Result<()> {
        let path = self.work.join("files").join(file);
        if let Some(folder) = path.parent() {
            create_folders(folder)?;
        }
        self.write(self.place(file), content)
    }

    /// Copies a side file.
    ///
    /// # Errors
    /// When one of the files cannot be read or written.
    pub fn copy(&self, file: &str, source: &Path) -> Result<()> {
        self.add(file, &MappedFile::open(source)?)
    }

    /// What was recorded of a shard, if it is whole.
    #[must_use]
    pub fn done<T: DeserializeOwned>(&self, shard: &Shard) -> Option<T> {
        if let Some(done) = &self.ended {
            return done.get(&shard.file).and_then(|record| T::deserialize(record).ok());
        }
        let record = fs::read(self.record_of(&shard.file)).ok()?;
        let is_there = |path: PathBuf| fs::metadata(path).is_ok_and(|found| found.len() == shard.bytes);
        let is_whole = is_there(self.work.join("files").join(&shard.file)) || is_there(self.folder.join(&shard.file));
        serde_json::from_slice(&record).ok().filter(|_| is_whole)
    }

    /// Records that a shard is whole: it stays whatever happens.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn record<T: Serialize>(&mut self, shard: &str, record: &T) -> Result<()> {
        self.write(Destination::within(&self.record_of(shard)), &json(record)?)?;
        self.keep();
        Ok(())
    }

    /// How many shards are whole.
    #[must_use]
    pub fn finished(&self) -> usize {
        self.manifest.shards.iter().filter(|shard| self.done::<Value>(shard).is_some()).count()
    }

    /// Moves everything to its place and takes the work folder away.
    ///
    /// # Errors
    /// When a shard is missing, or the system cannot; another run can do it then.
    pub fn finish(mut self) -> Result<()> {
        if self.ended.is_none() {
            self.keep();
            self.move_up()?;
        }
        let failed = |error: io::Error| Error::io("cannot write", &error).in_file(&self.folder);
        if self.work.exists() {
            fs::remove_dir_all(&self.work).map_err(failed)?;
        }
        fs::remove_file(self.folder.join(END)).map_err(failed)?;
        keep_at_interrupt("the output was complete".to_owned());
        Ok(())
    }

    /// Moves everything to its place.
    fn move_up(&mut self) -> Result<()> {
        let shards = &self.manifest.shards;
        let records = shards.iter().map(|shard| (shard.file.clone(), self.done::<Value>(shard)));
        let records: BTreeMap<String, Option<Value>> = records.collect();
        let missing: Vec<&String> = records.iter().filter(|(_, done)| done.is_none()).map(|(file, _)| file).collect();
        if let Some(first) = missing.first() {
            let (missing, all) = (missing.len(), shards.len());
            let message = format!("{missing} of {all} shards are not there yet, {} is the first", shorten(first));
            let error = Error::new(message).in_file(&self.folder);
            return Err(error.remedy("run the parts that are missing again, and then --finish"));
        }
        let files = self.work.join("files");
        for old in &self.manifest.replaced {
            // One that was moved here already is no old one.
            let is_new = shards.iter().any(|shard| shard.file == *old) || self.manifest.index.as_ref() == Some(old);
            if !is_new || files.join(old).exists() {
                let _ = fs::remove_file(self.folder.join(old));
            }
        }
        let order = self.manifest.side_files.iter().chain(shards.iter().map(|shard| &shard.file));
        for file in order.chain(&self.manifest.index) {
            let (from, to) = (files.join(file), self.folder.join(file));
            let failed = |error: io::Error| Error::io("cannot put in place", &error).in_file(&to);
            if !from.exists() {
                continue; // by an earlier run
            }
            if let Some(folder) = to.parent() {
                create_folders(folder)?;
            }
            fs::rename(&from, &to).map_err(failed)?;
        }
        let failed = |error: io::Error| Error::io("cannot write", &error).in_file(&self.folder);
        #[cfg(unix)]
        if self.sync {
            File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        }
        let end = serde_json::json!({ "manifest": self.manifest, "done": records });
        let path = self.work.join("end.json");
        self.write(Destination::within(&path), &json(&end)?)?;
        fs::rename(path, self.folder.join(END)).map_err(failed)
    }

    fn write(&self, destination: Destination, content: &[u8]) -> Result<()> {
        let output = destination.create()?;
        for (place, piece) in (0..).zip(content.chunks(PIECE)) {
            output.write_at(place * PIECE as u64, piece)?;
        }
        output.publish(self.sync)
    }

    fn record_of(&self, shard: &str) -> PathBuf {
        self.work.join("done").join(format!("{shard}.json"))
    }

    /// From now on the work stays when the run fails or is interrupted.
    fn keep(&mut self) {
        self.made.drain(..).for_each(NewFolder::keep);
        let how = if self.start == Start::Part { "the same command goes on" } else { "add --resume to go on" };
        keep_at_interrupt(format!("finished shards are kept in {}: {how}", self.work.display()));
    }

    /// What is to be done after a failure, in a sentence: where the system failed, what is whole stays for a resume, and
    /// that of other parts stays in any case. Where the input or the options are at fault, no resume could end otherwise:
    /// all of it goes, and `None` is given.
    #[must_use]
    pub fn fail(self, error: &Error) -> Option<String> {
        let (finished, all) = (self.finished(), self.manifest.shards.len());
        if self.start == Start::Part || error.is_io() && finished > 0 {
            let how = if self.start == Start::Part { "the same command" } else { "--resume" };
            let folder = self.work.display();
            return Some(format!(
                "{finished} of {all} shards are done and kept in {folder}: {how} goes on with the others"
            ));
        }
        let _ = fs::remove_dir_all(&self.work);
        if self.is_new {
            let _ = fs::remove_dir(&self.folder);
        }
        None
    }
}

/// Keeps others out, or those who work alone. A file system without locks lets everybody in.
fn lock(work: &Path, is_shared: bool) -> Result<Option<File>> {
    let path = work.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| Error::io("cannot write", &error).in_file(&path))?;
    match if is_shared { file.try_lock_shared() } else { file.try_lock() } {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            let folder = work.parent().unwrap_or(work);
            let error = Error::new("another tcast is at work in it").in_file(folder);
            Err(error.remedy("wait until it is done, or name another folder with -o"))
        }
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).map_err(|error| Error::io("cannot read", &error).in_file(path))?;
    serde_json::from_slice(&text).map_err(|error| {
        let error = Error::new(format!("is no manifest of this tcast: {}", shorten(&error.to_string())));
        error.in_file(path).remedy("start anew with --force")
    })
}

fn json<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(|error| Error::new(error.to_string()))
}
