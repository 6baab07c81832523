//! A folder that a checkpoint is written into, shard by shard, by one run or by several on several machines.
//!
//! Until all of it is there, nothing lies in the folder but one of our own, [`WORK`], and no loader takes it for a
//! checkpoint. In that one are
//!
//! * `manifest.json`: what the checkpoint is made of, and how; whoever writes it first decides, and what is to be
//!   continued must agree with it,
//! * `files/`: side files and index, and the shards, each under its name as soon as it is whole and on the disk,
//! * `done/`: for each shard that is, what was done, so that it counts in the report of a later run,
//! * `lock`: held by whoever is at work.
//!
//! The last step moves `files/` up, the index at the end. Then all that was done is written into [`END`], the work
//! folder goes, and that file last: at no moment could a resume not tell how far it was.

mod lock;
mod manifest;

pub(crate) use manifest::{Manifest, Shard, Source};

use crate::error::{Error, Result, quoted, shorten, visible};
use crate::io::map::MappedFile;
use crate::io::output::{
    Destination, END, NewFolder, WORK, check_folder, create_folders, keep_at_interrupt, remove_leftovers, sync_folder,
};
use lock::{lock, remove_work};
use manifest::sha256;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;
/// The manifest's place in the work folder.
const MANIFEST: &str = "manifest.json";

/// How a run relates to what others have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
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
    /// Of the shards, by their names.
    done: BTreeMap<String, Value>,
}

/// What was done with a shard.
#[derive(Serialize, Deserialize)]
struct Record<T> {
    /// The hash of the manifest: what was done by another one does not count.
    of: String,
    done: T,
}

/// Work on a folder of shards.
#[derive(Debug)]
pub(crate) struct Staging {
    folder: PathBuf,
    work: PathBuf,
    manifest: Manifest,
    /// The hash of the manifest, which stands in every record.
    hash: String,
    /// What was done with all shards, where everything is in its place.
    ended: Option<BTreeMap<String, Value>>,
    start: Start,
    /// Whether everything is on the disk before it counts.
    sync: bool,
    /// Whether the folder was made by this run.
    is_new: bool,
    /// How many shards were whole when this run began.
    before: usize,
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
        check_folder(folder)?;
        return Ok(Found::Nothing);
    }
    if !folder.is_dir() {
        let error = Error::new("is a file, and the output is a folder of shards").in_file(folder);
        return Err(error.remedy("name another output with -o"));
    }
    if folder.join(WORK).is_symlink() {
        let error = Error::new(format!("{WORK} in it is a link, which is not followed")).in_file(folder);
        return Err(error.remedy(format!("rm {}", quoted(&folder.join(WORK)))));
    }
    if folder.join(WORK).join(MANIFEST).exists() || folder.join(END).exists() {
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
/// When it is a file, holds something or holds unfinished work, unless `start` allows it, or cannot be made.
pub(crate) fn check(folder: &Path, start: Start, manifest: &Manifest) -> Result<()> {
    let found = find(folder)?;
    let (message, remedy) = match (found, start) {
        (Found::Unfinished, Start::Anew) if manifest.can_resume() => {
            ("an unfinished conversion is in it", "add --resume to go on with it, or --force to start anew")
        }
        (Found::Unfinished, Start::Anew) => {
            ("an unfinished conversion is in it", "add --force to replace it, or name another folder with -o")
        }
        (Found::Other, Start::Part) => (
            "the output exists already",
            "remove it, or name another folder with -o; it must be the same for all parts",
        ),
        (Found::Other, Start::Anew | Start::Resume) => {
            ("the output exists already", "add --force to replace it, or name another folder with -o")
        }
        (Found::Nothing, _) | (_, Start::Replace) | (Found::Unfinished, Start::Resume | Start::Part) => {
            return check_places(folder, manifest);
        }
    };
    let error = Error::new(message).in_file(folder).remedy(remedy);
    Err(if found == Found::Other { error.into_existing() } else { error })
}

/// Refuses a folder in which something is where a file must go, or a link to a folder elsewhere.
fn check_places(folder: &Path, manifest: &Manifest) -> Result<()> {
    for file in manifest.files() {
        let path = folder.join(file);
        let above = path.ancestors().skip(1).take_while(|above| *above != folder);
        let stray = above.filter(|above| above.is_symlink() || above.exists() && !above.is_dir());
        let is_taken = path.is_dir() && !path.is_symlink();
        if let Some(stray) = stray.chain(is_taken.then_some(&*path)).next() {
            let error = Error::new(format!("is in the way of the output's '{}'", shorten(file))).in_file(stray);
            return Err(error.remedy("remove it, or name another folder with -o"));
        }
    }
    Ok(())
}

impl Staging {
    /// Begins to work on a folder. With `sync`, everything is on the disk before it counts. Side files are copied from
    /// `source`.
    ///
    /// # Errors
    /// As [`check`]; when another run is at work, what it has begun differs from `manifest`, or the system refuses.
    pub(crate) fn open(
        folder: &Path,
        manifest: Manifest,
        start: Start,
        sync: bool,
        source: Option<&Path>,
    ) -> Result<Self> {
        check(folder, start, &manifest)?;
        if start != Start::Replace && folder.join(END).exists() {
            let staging = Self::at_end(folder, sync)?;
            staging.manifest.check_same(&manifest, start).map_err(|error| error.in_file(folder))?;
            return Ok(staging);
        }
        let work = folder.join(WORK);
        let is_new = !folder.exists();
        let mut made = Vec::new();
        if start == Start::Part {
            create_folders(&work)?;
        }
        for path in [folder, &work] {
            // Another run may make it at the same moment: then it is that one's.
            match if path.exists() { Ok(None) } else { NewFolder::create(path).map(Some) } {
                Ok(new) => made.extend(new),
                Err(_) if path.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        made.reverse();
        let lock = match lock(&work, start == Start::Part) {
            Ok(lock) => lock,
            Err(error) => {
                made.into_iter().for_each(NewFolder::keep);
                return Err(error);
            }
        };
        // Between the look at the folder and the lock, another run may have done all its work.
        check(folder, start, &manifest)?;
        if start == Start::Replace {
            let _ = fs::remove_file(folder.join(END));
            clear(&work);
        }
        create_folders(&work.join("files"))?;
        create_folders(&work.join("done"))?;
        if sync {
            folder.parent().into_iter().chain([folder]).try_for_each(sync_name)?;
        }
        let path = work.join(MANIFEST);
        let begun = Self { is_new, start, _lock: lock, made, ..Self::begun(folder, manifest, None, sync) };
        begun.decide(&path)?;
        let manifest: Manifest = read(&path)?;
        manifest.check_names().map_err(|error| error.in_file(&path))?;
        manifest.check_same(&begun.manifest, start).map_err(|error| error.in_file(folder))?;
        let mut staging = Self { hash: hash(&manifest)?, manifest, ..begun };
        if start == Start::Resume {
            // Nobody else is at work.
            for folder in ["files", "done", ""] {
                remove_leftovers(&staging.work.join(folder));
            }
        }
        staging.before = staging.finished();
        if start == Start::Part || staging.before > 0 {
            staging.keep();
        }
        staging.add_side_files(source)?;
        Ok(staging)
    }

    /// Makes one's own manifest that of all, unless there is one.
    fn decide(&self, path: &Path) -> Result<()> {
        if path.exists() {
            return Ok(());
        }
        self.manifest.check_names().map_err(|error| error.in_file(&self.folder))?;
        let text = json(&self.manifest)?;
        let outcome = Destination::new(path, false, &[]).and_then(|destination| self.write(destination, &text));
        // Another part may have been faster.
        outcome.or_else(|error| if path.exists() { Ok(()) } else { Err(error) })
    }

    /// Opens the work of runs that are over.
    ///
    /// # Errors
    /// When there is none, or one of them is not over.
    pub(crate) fn reopen(folder: &Path, sync: bool) -> Result<Self> {
        if folder.join(END).exists() {
            return Self::at_end(folder, sync);
        }
        let work = folder.join(WORK);
        let path = work.join(MANIFEST);
        if !path.exists() || work.is_symlink() {
            let error = Error::new("holds no unfinished conversion").in_file(folder);
            return Err(error.remedy("give the folder that the parts were written into"));
        }
        let lock = lock(&work, false)?;
        let manifest: Manifest = read(&path)?;
        manifest.check_names().map_err(|error| error.in_file(&path))?;
        let hash = hash(&manifest)?;
        Ok(Self { hash, _lock: lock, ..Self::begun(folder, manifest, None, sync) })
    }

    /// What others have begun.
    fn begun(folder: &Path, manifest: Manifest, ended: Option<BTreeMap<String, Value>>, sync: bool) -> Self {
        let work = folder.join(WORK);
        let (start, is_new, before, made) = (Start::Part, false, 0, Vec::new());
        let (folder, hash) = (folder.to_owned(), String::new());
        Self { folder, work, manifest, hash, ended, start, sync, is_new, before, _lock: None, made }
    }

    /// What is in its place already.
    fn at_end(folder: &Path, sync: bool) -> Result<Self> {
        let End { manifest, done } = read(&folder.join(END))?;
        Ok(Self::begun(folder, manifest, Some(done), sync))
    }

    /// What is being done.
    #[must_use]
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The folder that is written into.
    #[must_use]
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a shard is to be written.
    #[must_use]
    pub(crate) fn place(&self, file: &str) -> Destination {
        Destination::within(&self.staged(file))
    }

    fn staged(&self, file: &str) -> PathBuf {
        self.work.join("files").join(file)
    }

    /// Copies what is not there yet of the side files, and writes those that are made anew.
    fn add_side_files(&self, source: Option<&Path>) -> Result<()> {
        for (file, text) in &self.manifest.texts {
            self.add(file, text.as_bytes())?;
        }
        let missing = |side: &&Source| {
            let is_there = |path: PathBuf| fs::metadata(path).is_ok_and(|found| found.len() == side.bytes);
            !is_there(self.staged(&side.file)) && !self.manifest.texts.contains_key(&side.file)
        };
        for Source { file, .. } in self.manifest.side_files.iter().filter(missing) {
            if let Some(source) = source {
                let content = MappedFile::open(&source.join(file))?;
                self.add(file, &content).map_err(|error| error.in_file(content.path()))?;
                content.check_unchanged()?;
            }
        }
        Ok(())
    }

    fn add(&self, file: &str, content: &[u8]) -> Result<()> {
        let path = self.staged(file);
        if let Some(folder) = path.parent() {
            create_folders(folder)?;
        }
        self.write(self.place(file), content)
    }

    fn write(&self, destination: Destination, content: &[u8]) -> Result<()> {
        let output = destination.create()?;
        for (place, piece) in (0..).zip(content.chunks(PIECE)) {
            output.write_at(place * PIECE as u64, piece)?;
        }
        output.publish(self.sync, None)
    }

    /// What was recorded of a shard, if it is whole.
    #[must_use]
    pub(crate) fn done<T: DeserializeOwned>(&self, shard: &Shard) -> Option<T> {
        if let Some(done) = &self.ended {
            return done.get(&shard.file).and_then(|record| T::deserialize(record).ok());
        }
        let text = fs::read(self.record_of(&shard.file)).ok()?;
        let record: Record<T> = serde_json::from_slice(&text).ok()?;
        let is_there = |path: PathBuf| fs::metadata(path).is_ok_and(|found| found.len() == shard.bytes);
        let is_whole = is_there(self.staged(&shard.file)) || is_there(self.folder.join(&shard.file));
        (is_whole && record.of == self.hash).then_some(record.done)
    }

    /// Records that a shard is whole: it stays whatever happens.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub(crate) fn record<T: Serialize>(&mut self, shard: &str, done: &T) -> Result<()> {
        let record = Record { of: self.hash.clone(), done };
        self.write(Destination::within(&self.record_of(shard)), &json(&record)?)?;
        if self.manifest.can_resume() {
            self.keep();
        }
        Ok(())
    }

    /// By the shard's number: its name may be as long as a name can be.
    fn record_of(&self, shard: &str) -> PathBuf {
        let number = self.manifest.shards.iter().position(|known| known.file == shard).unwrap_or_default();
        self.work.join("done").join(format!("{number}.json"))
    }

    /// How many shards are whole.
    #[must_use]
    pub(crate) fn finished(&self) -> usize {
        self.manifest.shards.iter().filter(|shard| self.done::<Value>(shard).is_some()).count()
    }

    /// Moves everything to its place and takes the work folder away.
    ///
    /// # Errors
    /// When a shard is missing, or the system cannot; another run can do it then.
    pub(crate) fn finish(mut self) -> Result<()> {
        if self.ended.is_none() {
            self.keep();
            self.move_up()?;
        }
        let failed = |error: io::Error| Error::io("cannot write", &error).in_file(&self.folder);
        remove_work(&self.work).map_err(failed)?;
        match fs::remove_file(self.folder.join(END)) {
            // A run that is to replace all this has begun.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(failed)?,
        }
        keep_at_interrupt("the output was complete".to_owned(), []);
        Ok(())
    }

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
        let is_moved = |file: &str| !self.staged(file).exists() && self.folder.join(file).exists();
        if let Some(lost) = self.manifest.files().find(|file| !self.staged(file).exists() && !is_moved(file)) {
            let error = Error::new(format!("'{}' is not there yet", shorten(lost))).in_file(&self.folder);
            return Err(error.remedy("run one of the parts again, and then --finish"));
        }
        check_places(&self.folder, &self.manifest)?;
        // What was moved here already is no old file.
        for old in self
            .manifest
            .replaced
            .iter()
            .filter(|old| !self.manifest.files().any(|file| file == *old) || !is_moved(old))
        {
            let _ = fs::remove_file(self.folder.join(old));
        }
        for file in self.manifest.files().filter(|file| !is_moved(file)) {
            let to = self.folder.join(file);
            let failed = |error: io::Error| Error::io("cannot put in place", &error).in_file(&to);
            if let Some(folder) = to.parent() {
                create_folders(folder)?;
            }
            if self.manifest.index.as_ref() == Some(file) {
                self.sync_names()?; // with the index all the rest counts
            }
            fs::rename(self.staged(file), &to).map_err(failed)?;
        }
        self.sync_names()?;
        let failed = |error: io::Error| Error::io("cannot write", &error).in_file(&self.folder);
        let end = serde_json::json!({ "manifest": self.manifest, "done": records });
        let path = self.work.join("end.json");
        self.write(Destination::within(&path), &json(&end)?)?;
        fs::rename(path, self.folder.join(END)).map_err(failed)?;
        // Before that is on the disk, the work folder is what tells how far this was.
        if self.sync { sync_folder(&self.folder).map_err(failed) } else { Ok(()) }
    }

    /// Flushes the folders that files have got their places in, and those that these are in.
    fn sync_names(&self) -> Result<()> {
        if !self.sync {
            return Ok(());
        }
        let mut folders: Vec<PathBuf> = vec![self.folder.clone()];
        folders.extend(self.folder.parent().map(Path::to_owned));
        for file in self.manifest.files() {
            let above = Path::new(file).ancestors().skip(1).filter(|above| *above != Path::new(""));
            folders.extend(above.map(|above| self.folder.join(above)));
        }
        folders.sort_unstable();
        folders.dedup();
        folders.iter().try_for_each(|path| sync_name(path))
    }

    /// From now on the work stays when the run fails or is interrupted.
    fn keep(&mut self) {
        let (folder, how) = (visible(&self.work.to_string_lossy()), self.how_to_go_on());
        let what = format!("finished shards are kept in {folder}: {how} goes on");
        keep_at_interrupt(what, self.made.drain(..));
    }

    fn how_to_go_on(&self) -> &'static str {
        if self.start == Start::Part { "the same command" } else { "the same command with --resume" }
    }

    /// What is to be done after a failure, in a sentence. What earlier runs and other parts have done stays, and what
    /// this one has, where the system failed. Where the input or the options are at fault, no resume could end otherwise,
    /// and all that this run has made goes: `None`.
    #[must_use]
    pub(crate) fn fail(self, error: &Error) -> Option<String> {
        let (finished, all) = (self.finished(), self.manifest.shards.len());
        let is_worth = error.is_io() && finished > 0 && self.manifest.can_resume();
        if self.start == Start::Part || self.before > 0 || is_worth {
            let (folder, how) = (visible(&self.work.to_string_lossy()), self.how_to_go_on());
            return Some(format!("{finished} of {all} shards are done and kept in {folder}: {how} goes on"));
        }
        clear(&self.work);
        let _ = fs::remove_dir_all(&self.work);
        if self.is_new {
            let _ = fs::remove_dir(&self.folder);
        }
        None
    }
}

fn sync_name(folder: &Path) -> Result<()> {
    sync_folder(folder).map_err(|error| Error::io("cannot write", &error).in_file(folder))
}

/// Of a manifest that is longer than all else: taken once.
fn hash(manifest: &Manifest) -> Result<String> {
    json(manifest).map(|text| sha256(&text))
}

/// Removes what was done, the manifest last: without it nobody knows what the rest is.
fn clear(work: &Path) {
    let _ = fs::remove_dir_all(work.join("done"));
    let _ = fs::remove_dir_all(work.join("files"));
    let _ = fs::remove_file(work.join(MANIFEST));
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
