//! Checks of the folder that a conversion will be written into.

use super::files::{check_folders, exists, stray_above};
use super::{Manifest, Start, replaced, sum_at};
use crate::error::{Error, Kind, OTHER_FOLDER, Opt, Result};
use crate::io::listing::entries;
use crate::io::open::Links;
use crate::io::output::{WORK, check_folder, is_own};
use crate::io::temporaries::{END, MANIFEST, is_unfinished};
use crate::text::{make_folder, shorten};
use std::fs;
use std::io;
use std::path::Path;

/// State of a folder that will be written into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FolderState {
    Nothing,
    Unfinished,
    Other,
}

fn find(folder: &Path) -> Result<FolderState> {
    let failed = |error: io::Error| Error::cannot("write into", &error).in_file(folder);
    let found = match fs::metadata(folder) {
        Ok(found) => found,
        Err(error) if exists(folder)? => {
            let target = fs::read_link(folder).ok().filter(|_| error.kind() == io::ErrorKind::NotFound);
            let Some(target) = target else { return Err(failed(error)) };
            let target = folder.parent().unwrap_or(folder).join(target);
            let error = Error::new("is a link to a folder that does not exist").in_file(folder);
            return Err(error.remedy(make_folder(&target)).with(Opt::OUTPUT, OTHER_FOLDER));
        }
        Err(_) => {
            check_folder(folder)?;
            return Ok(FolderState::Nothing);
        }
    };
    if !found.is_dir() {
        let error = Error::new("is a file, and the output is a folder of shards").in_file(folder);
        return Err(error.with(Opt::OUTPUT, "name another output with {}"));
    }
    let work = folder.join(WORK);
    if is_unfinished(folder)? {
        check_folders(&work)?;
    }
    if exists(&work.join(MANIFEST))? || exists(&work.join(END))? {
        return Ok(FolderState::Unfinished);
    }
    let entries = entries(folder).map_err(failed)?;
    let is_empty = entries.iter().all(|entry| is_own(&entry.text()));
    Ok(if is_empty { FolderState::Nothing } else { FolderState::Other })
}

/// Refuses a folder that a run may not write into: a file, and a folder that is not empty or holds unfinished work,
/// unless `start` allows it. Returns true if the folder holds something else that the run does not replace. That may be
/// what the run would write, so the caller compares it.
pub(crate) fn check(folder: &Path, start: Start, manifest: &Manifest) -> Result<bool> {
    let found = find(folder)?;
    let error = match (found, start) {
        (FolderState::Unfinished, Start::Anew) => {
            let error = Error::new("an unfinished conversion is in it");
            if manifest.can_resume() {
                error.with(Opt::RESUME, "add {} to continue it").with(Opt::FORCE, "add {} to start again")
            } else {
                error.existing(OTHER_FOLDER)
            }
            .of(Kind::Unfinished)
        }
        (FolderState::Other, Start::Anew) if replaced(folder, manifest).is_err() => {
            let error = Error::new("the output exists already, and is not a checkpoint that can be replaced");
            error.of(Kind::Exists).with(Opt::OUTPUT, OTHER_FOLDER)
        }
        (FolderState::Other, Start::Anew) => Error::new("the output exists already").existing(OTHER_FOLDER),
        _ => {
            check_places(folder, manifest)?;
            return Ok(found == FolderState::Other && start != Start::Replace);
        }
    };
    Err(error.in_file(folder))
}

/// Refuses a folder in which a folder has the name of a file to be written, or a link or file is in place of its parent
/// folder.
pub(super) fn check_places(folder: &Path, manifest: &Manifest) -> Result<()> {
    for file in manifest.files() {
        let path = folder.join(file);
        let is_taken = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if let Some(stray) = stray_above(folder, &path).or(is_taken.then_some(&path)) {
            let error = Error::new(format!("is in the way of the output's '{}'", shorten(file))).in_file(stray);
            return Err(error.remedy("remove it").with(Opt::OUTPUT, OTHER_FOLDER));
        }
    }
    Ok(())
}

/// Describes the first difference between a folder and its manifest, if any; the content of shards is not compared.
pub(crate) fn difference(folder: &Path, manifest: &Manifest) -> Result<Option<String>> {
    for (file, bytes, sum) in manifest.side_sums() {
        let path = folder.join(file);
        if !fs::metadata(&path).is_ok_and(|found| found.len() == bytes)
            || Some(sum_at(&path, bytes, Links::Follow, 1)?) != sum
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
