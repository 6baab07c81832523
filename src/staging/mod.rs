//! A folder that a checkpoint is written into, shard by shard, by one run or by several on several machines.
//!
//! Until all of it is there, nothing lies in the folder but one of our own, [`WORK`], and no loader takes it for a
//! checkpoint. In that one are
//!
//! * `manifest.json`: what the checkpoint is made of, and how; whoever writes it first decides, and what is to be
//!   continued must agree with it,
//! * `files/`: side files and index, and the shards, each under its name as soon as it is whole and on the disk,
//! * `done/`: for each shard that is, what was done and the checksum of what was written, so that it counts in a later
//!   run,
//! * `lock`: held by whoever is at work.
//!
//! The last step puts `files/` in its place: see [`place`]. A folder with a [`WORK`] in it is no checkpoint to any
//! command, and at no moment could a resume not tell how far the work was.

mod files;
mod lock;
mod manifest;
mod place;

pub(crate) use files::sum_at;
pub(crate) use manifest::{Manifest, ManifestShard, ManifestSource};

use crate::container::{checkpoint, sum_of};
use crate::error::{Error, Kind, Result, Wanted};
use crate::io::map::MappedFile;
use crate::io::open::Links;
use crate::io::output::{
    Destination, NewFolder, WORK, check_folder, create_folders, is_own, keep_at_interrupt, remove_leftovers,
    sync_folder,
};
use crate::text::{counted, path_text, shorten};
use files::{check_folders, exists, is_there, json, read, stray_above};
use lock::lock;
use manifest::sha256;
use place::recover;
use serde::de::{DeserializeOwned, IgnoredAny};
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
/// The place of what was done, when everything is in its place.
const END: &str = "end.json";

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
    /// The CRC-32 of the shard.
    sum: u32,
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
    /// Nobody else works here as long as they are open.
    locks: Vec<File>,
    /// What goes again if not one shard was finished; the inner folder before the outer one.
    made: Vec<NewFolder>,
}

/// What is in a folder that is to be written into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FolderState {
    Nothing,
    Unfinished,
    Other,
}

fn find(folder: &Path) -> Result<FolderState> {
    let failed = |error: io::Error| Error::io("cannot write into", &error).in_file(folder);
    let Ok(found) = fs::metadata(folder) else {
        if exists(folder)? {
            fs::metadata(folder).map_err(failed)?; // a link that leads nowhere
        }
        check_folder(folder)?;
        return Ok(FolderState::Nothing);
    };
    if !found.is_dir() {
        let error = Error::new("is a file, and the output is a folder of shards").in_file(folder);
        return Err(error.of(Kind::Taken(Wanted::Any)));
    }
    let work = folder.join(WORK);
    check_folders(&work)?;
    if exists(&work.join(MANIFEST))? || exists(&work.join(END))? {
        return Ok(FolderState::Unfinished);
    }
    for entry in fs::read_dir(folder).map_err(failed)? {
        if !is_own(&entry.map_err(failed)?.file_name().to_string_lossy()) {
            return Ok(FolderState::Other);
        }
    }
    Ok(FolderState::Nothing)
}

/// Refuses a folder that a run may not write into. Gives whether something else is there, which may be what the run would
/// write: then it is compared.
///
/// # Errors
/// When it is a file, holds something or holds unfinished work, unless `start` allows it, or cannot be made.
pub(crate) fn check(folder: &Path, start: Start, manifest: &Manifest) -> Result<bool> {
    let found = find(folder)?;
    let (message, kind) = match (found, start) {
        (FolderState::Unfinished, Start::Anew) => {
            ("an unfinished conversion is in it", Kind::Unfinished { can_resume: manifest.can_resume() })
        }
        (FolderState::Other, Start::Anew) => ("the output exists already", Kind::Exists(Wanted::Folder)),
        _ => {
            check_places(folder, manifest)?;
            return Ok(found == FolderState::Other && start != Start::Replace);
        }
    };
    Err(Error::new(message).of(kind).in_file(folder))
}

/// Refuses a folder in which something is where a file must go, or a link to a folder elsewhere.
fn check_places(folder: &Path, manifest: &Manifest) -> Result<()> {
    for file in manifest.files() {
        let path = folder.join(file);
        let is_taken = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if let Some(stray) = stray_above(folder, &path).or(is_taken.then_some(&path)) {
            let error = Error::new(format!("is in the way of the output's '{}'", shorten(file))).in_file(stray);
            return Err(error.remedy("remove it").of(Kind::Taken(Wanted::Folder)));
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
        let free = |is_other: bool| {
            let error = Error::new("another tcast has finished its work in it")
                .in_file(folder)
                .of(Kind::Exists(Wanted::Folder));
            if is_other { Err(error) } else { Ok(()) }
        };
        check(folder, start, &manifest).and_then(free)?;
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
        check(folder, start, &manifest).and_then(free)?;
        recover(folder, &work)?;
        if exists(&work.join(END))? {
            let mut staging = Self::at_end(folder, sync)?;
            staging.locks.extend(lock);
            if start == Start::Replace {
                staging.clean_up()?;
                drop(staging);
                made.into_iter().for_each(NewFolder::keep);
                return Self::open(folder, manifest, start, sync, source);
            }
            staging.manifest.check_same(&manifest, start).map_err(|error| error.in_file(folder))?;
            return Ok(staging);
        }
        if start == Start::Replace {
            clear(&work);
        }
        create_folders(&work.join("files"))?;
        create_folders(&work.join("done"))?;
        if sync {
            folder.parent().into_iter().chain([folder]).try_for_each(sync_name)?;
        }
        let path = work.join(MANIFEST);
        let locks = lock.into_iter().collect();
        let begun = Self { start, is_new, locks, made, ..Self::begun(folder, manifest, None, sync) };
        begun.decide(&path)?;
        let manifest = read_manifest(folder)?;
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
        if exists(path)? {
            return Ok(());
        }
        self.manifest.check_names().map_err(|error| error.in_file(&self.folder))?;
        let text = json(&self.manifest)?;
        let outcome = Destination::new(path, false, &[]).and_then(|destination| self.write(destination, &text));
        // Another part may have been faster.
        outcome.or_else(|error| if exists(path)? { Ok(()) } else { Err(error) })
    }

    /// Opens the work of runs that are over.
    ///
    /// # Errors
    /// When there is none, or one of them is not over.
    pub(crate) fn reopen(folder: &Path, sync: bool) -> Result<Self> {
        let work = folder.join(WORK);
        let path = work.join(MANIFEST);
        check_folders(&work)?;
        if !exists(&path)? && !exists(&work.join(END))? {
            let error = Error::new("holds no unfinished conversion").in_file(folder);
            return Err(error.remedy("give the folder that the parts were written into"));
        }
        let locks = lock(&work, false)?.into_iter().collect();
        recover(folder, &work)?;
        Ok(Self { locks, ..Self::stored(folder, sync)? })
    }

    /// What is in the work folder.
    fn stored(folder: &Path, sync: bool) -> Result<Self> {
        if exists(&folder.join(WORK).join(END))? {
            return Self::at_end(folder, sync);
        }
        let manifest = read_manifest(folder)?;
        Ok(Self { hash: hash(&manifest)?, ..Self::begun(folder, manifest, None, sync) })
    }

    /// What others have begun.
    fn begun(folder: &Path, manifest: Manifest, ended: Option<BTreeMap<String, Value>>, sync: bool) -> Self {
        let work = folder.join(WORK);
        let (start, is_new, before, made) = (Start::Part, false, 0, Vec::new());
        let (folder, hash) = (folder.to_owned(), String::new());
        Self { folder, work, manifest, hash, ended, start, sync, is_new, before, locks: Vec::new(), made }
    }

    /// What is in its place already.
    fn at_end(folder: &Path, sync: bool) -> Result<Self> {
        let path = folder.join(WORK).join(END);
        let checked = |end: End| end.manifest.check_names().map(|()| end);
        let end = read(&path).and_then(checked);
        let End { manifest, done } =
            end.map_err(|error| error.in_file(&path).remedy(checkpoint::without_end(folder)))?;
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
            let is_same = |sum| sum == sum_of(text.as_bytes()).finalize();
            if !sum_at(&self.place_of(file)?, text.len() as u64, Links::Refuse, 1).is_ok_and(is_same) {
                self.add(file, text.as_bytes())?;
            }
        }
        let Some(source) = source else { return Ok(()) };
        for side in self.manifest.side_files.iter().filter(|side| !self.manifest.texts.contains_key(&side.file)) {
            if self.check_side_file(side).is_ok() {
                continue;
            }
            let content = MappedFile::open(&source.join(&side.file))?;
            self.add(&side.file, &content).map_err(|error| error.in_file(content.path()))?;
            content.check_unchanged()?;
            if side.sum.is_some_and(|sum| sum != sum_of(&content).finalize()) {
                let error = Error::new("the file was changed during the work").in_file(content.path());
                return Err(error.remedy("start again when nothing writes to it"));
            }
        }
        Ok(())
    }

    /// Refuses a side file that is not there, or not what it was.
    fn check_side_file(&self, side: &ManifestSource) -> Result<()> {
        let path = self.place_of(&side.file)?;
        let sum = sum_at(&path, side.bytes, Links::Refuse, 1)?;
        if side.sum.is_some_and(|wanted| wanted != sum) {
            return Err(Error::new("is damaged: its checksum is wrong").in_file(&path));
        }
        Ok(())
    }

    /// Where a file is now: in the work folder, or moved to its place already.
    fn place_of(&self, file: &str) -> Result<PathBuf> {
        let (staged, moved) = (self.staged(file), self.folder.join(file));
        Ok(if self.ended.is_some() || !exists(&staged)? && self.is_moving()? { moved } else { staged })
    }

    /// Whether files were being moved to their places, one after the other.
    fn is_moving(&self) -> Result<bool> {
        exists(&self.work.join("old"))
    }

    fn add(&self, file: &str, content: &[u8]) -> Result<()> {
        let path = self.staged(file);
        if let Some(stray) = stray_above(&self.work, &path) {
            return Err(Error::new("is a link or a file where tcast keeps a folder").in_file(stray));
        }
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

    /// What was recorded of a shard, if it is there. Whether its bytes are what was written, [`Self::verify`] says.
    #[must_use]
    pub(crate) fn done<T: DeserializeOwned>(&self, shard: &ManifestShard) -> Option<T> {
        self.record_of(shard).map(|record| record.done)
    }

    fn record_of<T: DeserializeOwned>(&self, shard: &ManifestShard) -> Option<Record<T>> {
        if let Some(done) = &self.ended {
            return Record::deserialize(done.get(&shard.file)?).ok();
        }
        // One that cannot be read does not count: what it stands for is done again.
        let record: Record<T> = read(&self.record_path(&shard.file)).ok()?;
        let is_there = self.place_of(&shard.file).is_ok_and(|path| is_there(&path, shard.bytes));
        (is_there && record.of == self.hash).then_some(record)
    }

    /// Reads a shard that was done before, and compares it with its record.
    ///
    /// # Errors
    /// When it cannot be read, or is not what was written.
    pub(crate) fn verify(&self, shard: &ManifestShard, threads: usize) -> Result<()> {
        let path = self.place_of(&shard.file)?;
        let wanted = self.record_of::<IgnoredAny>(shard).map(|record| record.sum);
        if wanted != Some(sum_at(&path, shard.bytes, Links::Refuse, threads)?) {
            return Err(Error::new("is damaged: its checksum is wrong").in_file(&path));
        }
        Ok(())
    }

    /// Whether everything is in its place, and only the work folder is left to be removed.
    #[must_use]
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Records that a shard is whole, with the checksum of what was written: it stays whatever happens.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub(crate) fn record<T: Serialize>(&mut self, shard: &str, sum: u32, done: &T) -> Result<()> {
        let record = Record { of: self.hash.clone(), sum, done };
        self.write(Destination::within(&self.record_path(shard)), &json(&record)?)?;
        if self.manifest.can_resume() {
            self.keep();
        }
        Ok(())
    }

    /// By the shard's number: its name may be as long as a name can be.
    fn record_path(&self, shard: &str) -> PathBuf {
        let number = self.manifest.shards.iter().position(|known| known.file == shard).unwrap_or_default();
        self.work.join("done").join(format!("{number}.json"))
    }

    /// How many shards are whole.
    #[must_use]
    pub(crate) fn finished(&self) -> usize {
        self.manifest.shards.iter().filter(|shard| self.done::<Value>(shard).is_some()).count()
    }

    /// Puts everything in its place and takes the work folder away.
    ///
    /// # Errors
    /// When a shard is missing, or the system cannot; another run can do it then.
    pub(crate) fn finish(mut self) -> Result<()> {
        if self.ended.is_none() {
            self.keep();
            let records = self.complete()?;
            self.put_in_place(&records)?;
        }
        self.clean_up()?;
        keep_at_interrupt("the output was complete".to_owned(), []);
        Ok(())
    }

    /// What was done, when all of it is there.
    fn complete(&self) -> Result<BTreeMap<String, Value>> {
        let shards = &self.manifest.shards;
        let mut records = BTreeMap::new();
        let mut missing = Vec::new();
        for shard in shards {
            match self.record_of::<Value>(shard) {
                Some(record) => drop(records.insert(shard.file.clone(), serde_json::json!(record))),
                None => missing.push(&shard.file),
            }
        }
        if let Some(first) = missing.first() {
            let (missing, all) = (missing.len(), shards.len());
            let message = format!(
                "{missing} of {} are not there yet, {} is the first",
                counted(all as u64, "shard"),
                shorten(first)
            );
            let error = Error::new(message).in_file(&self.folder);
            return Err(error.remedy("run the parts that are missing again, and then --finish"));
        }
        self.add_side_files(None)?;
        for side in self.manifest.side_files.iter().filter(|side| !self.manifest.texts.contains_key(&side.file)) {
            let remedy = "run one of the parts again, and then --finish";
            self.check_side_file(side).map_err(|error| error.remedy(remedy))?;
        }
        Ok(records)
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
        let (folder, how) = (path_text(&self.work), self.how_to_go_on());
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
        let is_worth = is_worth || self.is_moving().unwrap_or(true);
        if self.start == Start::Part || self.before > 0 || is_worth {
            let (folder, how) = (path_text(&self.work), self.how_to_go_on());
            return Some(format!(
                "{finished} of {} are done and kept in {folder}: {how} goes on",
                counted(all as u64, "shard")
            ));
        }
        clear(&self.work);
        let _ = fs::remove_dir_all(&self.work);
        if self.is_new {
            let _ = fs::remove_dir(&self.folder);
        }
        None
    }
}

/// What others have begun, and how it is begun anew where that cannot be read.
fn read_manifest(folder: &Path) -> Result<Manifest> {
    let path = folder.join(WORK).join(MANIFEST);
    let checked = |manifest: Manifest| manifest.check_names().map(|()| manifest);
    read(&path).and_then(checked).map_err(|error| error.in_file(&path).remedy(checkpoint::begin_anew(folder)))
}

/// Whether earlier runs have done some shards, by their records.
pub(crate) fn are_done<'a>(folder: &Path, mut shards: impl Iterator<Item = &'a ManifestShard>) -> bool {
    Staging::stored(folder, false).is_ok_and(|stored| shards.all(|shard| stored.done::<IgnoredAny>(shard).is_some()))
}

fn sync_name(folder: &Path) -> Result<()> {
    sync_folder(folder).map_err(|error| Error::io("cannot write", &error).in_file(folder))
}

/// Of a manifest that is longer than all else: taken once.
fn hash(manifest: &Manifest) -> Result<String> {
    json(manifest).map(|text| sha256(&text))
}

/// Removes what was done, the manifest last: without it nobody knows what the rest is. Files of an older checkpoint stay.
fn clear(work: &Path) {
    let _ = fs::remove_dir_all(work.join("done"));
    let _ = fs::remove_dir_all(work.join("files"));
    let _ = fs::remove_file(work.join(MANIFEST));
}

/// Whether an unfinished conversion is in a folder.
///
/// # Errors
/// When the system does not say.
pub(crate) fn is_unfinished(folder: &Path) -> Result<bool> {
    exists(&folder.join(WORK))
}

/// Where a folder differs from what a manifest says will be in it, in words: all but the content of shards.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn difference(folder: &Path, manifest: &Manifest) -> Result<Option<String>> {
    let texts = manifest.texts.iter().map(|(file, text)| (file, text.len() as u64, sum_of(text.as_bytes()).finalize()));
    let side_files = manifest.side_files.iter().filter(|side| !manifest.texts.contains_key(&side.file));
    let side_files = side_files.filter_map(|side| Some((&side.file, side.bytes, side.sum?)));
    for (file, bytes, sum) in side_files.chain(texts) {
        let path = folder.join(file);
        if !fs::metadata(&path).is_ok_and(|found| found.len() == bytes)
            || sum_at(&path, bytes, Links::Follow, 1)? != sum
        {
            let what = if exists(&path)? { "holds something else" } else { "is missing" };
            return Ok(Some(format!("{} {what}", shorten(file))));
        }
    }
    let other = manifest.shards.iter().find(|shard| {
        !fs::metadata(folder.join(&shard.file)).is_ok_and(|found| found.is_file() && found.len() == shard.bytes)
    });
    Ok(other.map(|shard| format!("{} is missing, or has another length", shorten(&shard.file))))
}

/// Removes what a run that was killed at its very end has left in a finished folder.
pub(crate) fn remove_rest(folder: &Path) {
    let _ = fs::remove_dir_all(folder.join(lock::REMOVED));
}
