//! Begins work on a folder, or continues where other runs have ended.

use super::files::{check_folders, exists, json, read};
use super::lock::{Sharing, lock};
use super::manifest::Manifest;
use super::place::recover;
use super::records::check_records;
use super::{End, Hold, Records, Staging, Start, check, clear, sync_name};
use crate::container::checkpoint;
use crate::error::{Error, Kind, Result, Wanted};
use crate::io::output::{Destination, NewFolder, WORK, create_folders, remove_leftovers};
use crate::io::temporaries::{DONE, END, FILES, MANIFEST};

use std::path::Path;

impl Staging {
    /// Begins or continues work on a folder. With `sync`, everything is flushed before it counts. `source` has the side
    /// files.
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
        let mut hold = Hold::default();
        if start == Start::Part {
            create_folders(&work)?;
        }
        for path in [folder, &work] {
            // Another run may create it at the same moment: then it belongs to that run.
            match if path.exists() { Ok(None) } else { NewFolder::create(path).map(Some) } {
                Ok(new) => hold.made.extend(new),
                Err(_) if path.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        hold.made.reverse();
        match lock(&work, if start == Start::Part { Sharing::Shared } else { Sharing::Alone }) {
            Ok(lock) => hold.locks.extend(lock),
            Err(error) => {
                hold.made.drain(..).for_each(NewFolder::keep);
                return Err(error);
            }
        }
        // Between the check and the lock, another run may have finished its work.
        check(folder, start, &manifest).and_then(free)?;
        recover(folder, &work)?;
        if exists(&work.join(END))? {
            let mut staging = Self::at_end(folder, sync)?;
            staging.hold.locks.append(&mut hold.locks);
            if start == Start::Replace {
                staging.clean_up(None)?;
                drop(staging);
                hold.made.drain(..).for_each(NewFolder::keep);
                return Self::open(folder, manifest, start, sync, source);
            }
            staging.manifest.check_same(&manifest, start).map_err(|error| error.in_file(folder))?;
            return Ok(staging);
        }
        if start == Start::Replace {
            clear(&work);
        }
        create_folders(&work.join(FILES))?;
        create_folders(&work.join(DONE))?;
        if sync {
            folder.parent().into_iter().chain([folder]).try_for_each(sync_name)?;
        }
        let path = work.join(MANIFEST);
        let begun = Self { start, is_new, hold, ..Self::begun(folder, manifest, None, sync) };
        begun.decide(&path)?;
        let manifest = read_manifest(folder)?;
        manifest.check_same(&begun.manifest, start).map_err(|error| error.in_file(folder))?;
        let mut staging = Self { hash: manifest.hash()?, manifest, ..begun };
        if start == Start::Resume {
            // No other run is working.
            for folder in [FILES, DONE, ""] {
                remove_leftovers(&staging.work.join(folder));
            }
        }
        staging.check_older()?;
        staging.check_apart()?;
        staging.before = staging.finished();
        if start == Start::Part || staging.before > 0 {
            staging.keep();
        }
        staging.add_side_files(source)?;
        Ok(staging)
    }

    /// Writes this run's manifest, unless there is one.
    fn decide(&self, path: &Path) -> Result<()> {
        if exists(path)? {
            return Ok(());
        }
        self.manifest.check_names().map_err(|error| error.in_file(&self.folder))?;
        let text = json(&self.manifest)?;
        let outcome = Destination::new(path, false, &[]).and_then(|destination| self.write(destination, &text));
        // Another part may have written it first.
        outcome.or_else(|error| if exists(path)? { Ok(()) } else { Err(error) })
    }

    /// Opens the work of runs that have ended. Fails if there is no such work, or a run is still working.
    pub(crate) fn reopen(folder: &Path, sync: bool) -> Result<Self> {
        let work = folder.join(WORK);
        let path = work.join(MANIFEST);
        check_folders(&work)?;
        if !exists(&path)? && !exists(&work.join(END))? {
            let error = Error::new("holds no unfinished conversion").in_file(folder);
            return Err(error.remedy("give the folder that the parts were written into"));
        }
        let hold = Hold { made: Vec::new(), locks: lock(&work, Sharing::Alone)?.into_iter().collect() };
        recover(folder, &work)?;
        Ok(Self { hold, ..Self::stored(folder, sync)? })
    }

    pub(super) fn stored(folder: &Path, sync: bool) -> Result<Self> {
        if exists(&folder.join(WORK).join(END))? {
            return Self::at_end(folder, sync);
        }
        let manifest = read_manifest(folder)?;
        Ok(Self { hash: manifest.hash()?, ..Self::begun(folder, manifest, None, sync) })
    }

    fn begun(folder: &Path, manifest: Manifest, ended: Option<Records>, sync: bool) -> Self {
        let work = folder.join(WORK);
        let (start, is_new, before) = (Start::Part, false, 0);
        let (folder, hash) = (folder.to_owned(), String::new());
        Self { folder, work, manifest, hash, ended, start, sync, is_new, before, hold: Hold::default() }
    }

    /// Opens a checkpoint that is already in its place.
    fn at_end(folder: &Path, sync: bool) -> Result<Self> {
        let path = folder.join(WORK).join(END);
        let checked = |end: End<Manifest, Records>| {
            end.manifest.check_names()?;
            check_records(&end)?;
            Ok(end)
        };
        let end = read(&path).and_then(checked);
        let End { manifest, done } = end.map_err(|error| error.in_file(&path).of(checkpoint::without_end(folder)))?;
        Ok(Self::begun(folder, manifest, Some(done), sync))
    }
}

/// Reads the manifest of earlier work; if that fails, the error says how to begin again.
fn read_manifest(folder: &Path) -> Result<Manifest> {
    let path = folder.join(WORK).join(MANIFEST);
    let checked = |manifest: Manifest| manifest.check_names().map(|()| manifest);
    read(&path).and_then(checked).map_err(|error| error.in_file(&path).of(checkpoint::without_manifest(folder)))
}
