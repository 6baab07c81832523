//! Begins work on a folder, or continues where other runs have ended.

use super::files::{exists, json, read};
use super::lock::{Sharing, lock};
use super::manifest::Manifest;
use super::place::recover;
use super::records::Record;
use super::{End, Hold, Records, Staging, Start, check, clear, sync_name};
use crate::error::{Error, Kind, OTHER_FOLDER, Result};
use crate::io::output::{Destination, NewFolder, WORK, create_folders, remove_leftovers};
use crate::io::temporaries::{DONE, END, FILES, MANIFEST};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
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
        check_free(folder, start, &manifest)?;
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
        check_free(folder, start, &manifest)?;
        recover(folder, &work)?;
        let is_ended = exists(&work.join(END))?;
        if is_ended && start == Start::Replace {
            let mut staging = Self::stored(folder, sync)?;
            staging.hold.locks.append(&mut hold.locks);
            staging.clean_up(None)?;
            drop(staging);
            hold.made.drain(..).for_each(NewFolder::keep);
            return Self::open(folder, manifest, start, sync, source);
        }
        if !is_ended {
            if start == Start::Replace {
                clear(&work);
            }
            create_folders(&work.join(FILES))?;
            create_folders(&work.join(DONE))?;
            if sync {
                folder.parent().into_iter().chain([folder]).try_for_each(sync_name)?;
            }
            write_manifest(folder, &manifest, sync)?;
        }
        let staging = Self { hold, ..Self::stored(folder, sync)? };
        staging.manifest.check_same(&manifest, start).map_err(|error| error.in_file(folder))?;
        if is_ended {
            return Ok(staging);
        }
        let mut staging = Self { start, is_new, ..staging };
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

    /// Reads the state of the work in a folder, for a run that has no lock yet.
    pub(super) fn stored(folder: &Path, sync: bool) -> Result<Self> {
        let work = folder.join(WORK);
        let end = work.join(END);
        let is_ended = exists(&end)?;
        let path = if is_ended { end } else { work.join(MANIFEST) };
        let stored = || {
            let (manifest, ended): (Manifest, _) = if is_ended {
                let End { manifest, done } = read::<End<_, Records>>(&path)?;
                (manifest, Some(done))
            } else {
                (read(&path)?, None)
            };
            manifest.check_names()?;
            let hash = manifest.hash()?;
            let is_of_it = |record: &RawValue| {
                serde_json::from_str::<Record<IgnoredAny>>(record.get()).is_ok_and(|record| record.of == hash)
            };
            if let Some(done) = &ended
                && !manifest.shards.iter().all(|shard| done.get(&shard.file).is_some_and(|record| is_of_it(record)))
            {
                return Err(Error::new("its manifest is not the one of its records"));
            }
            Ok((manifest, hash, ended))
        };
        let (manifest, hash, ended) =
            stored().map_err(|error| error.in_file(&path).of(Kind::Interrupted(folder.to_owned())))?;
        let (folder, start, hold) = (folder.to_owned(), Start::Part, Hold::default());
        Ok(Self { folder, work, manifest, hash, ended, start, sync, is_new: false, before: 0, hold })
    }
}

/// Refuses a folder with something else than the work of this run.
fn check_free(folder: &Path, start: Start, manifest: &Manifest) -> Result<()> {
    if check(folder, start, manifest)? {
        let error = Error::new("another tcast has finished its work in it").in_file(folder);
        return Err(error.existing(OTHER_FOLDER));
    }
    Ok(())
}

/// Writes a manifest, unless there is one.
fn write_manifest(folder: &Path, manifest: &Manifest, sync: bool) -> Result<()> {
    let path = folder.join(WORK).join(MANIFEST);
    if exists(&path)? {
        return Ok(());
    }
    manifest.check_names().map_err(|error| error.in_file(folder))?;
    let text = json(manifest)?;
    let written =
        Destination::new(&path, &[]).and_then(|destination| destination.write(sync, |file| file.write_all(&text)));
    // Another part may have written it first.
    written.or_else(|error| if exists(&path)? { Ok(()) } else { Err(error) })
}
