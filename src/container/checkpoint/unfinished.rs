//! A folder with an unfinished conversion in it is not a checkpoint, regardless of its other contents.

use super::{file_names, is_shard_name};
use crate::error::{Error, InterruptedWork, Kind, RecordedOptions, Result, WorkState};
use crate::io::open::{Links, is_absent, read_regular};
use crate::io::temporaries::{DONE, END, MANIFEST, OLD, WORK};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
#[cfg(unix)]
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The members of a manifest that this module reads; the module `staging` writes it.
#[derive(Deserialize)]
struct Begun {
    operator: String,
    input_at: StoredPath,
    options: RecordedOptions,
    shards: Vec<IgnoredAny>,
}

/// The members of the record of a conversion whose files are all in place.
#[derive(Deserialize)]
struct EndRecord {
    manifest: EndManifest,
}

#[derive(Deserialize)]
struct EndManifest {
    operator: String,
}

/// A path in JSON: text, or bytes if it is not text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum StoredPath {
    Text(String),
    Bytes(Vec<u8>),
}

impl StoredPath {
    /// Stores a path in a form that is valid in any folder.
    pub(crate) fn absolute(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match path.into_os_string().into_string() {
            Ok(text) => Self::Text(text),
            Err(other) => Self::Bytes(other.as_encoded_bytes().to_owned()),
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Text(text) => text.into(),
            #[cfg(unix)]
            Self::Bytes(bytes) => PathBuf::from(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes)),
            #[cfg(not(unix))]
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
        }
    }
}

pub(super) fn refuse(folder: &Path) -> Result<()> {
    let work = folder.join(WORK);
    match fs::symlink_metadata(&work) {
        Err(error) if is_absent(&error) => Ok(()),
        Err(error) => Err(Error::io("cannot read", &error).in_file(folder)),
        Ok(_) => {
            let error = Error::new(format!("an unfinished conversion is in it, in {WORK}")).in_file(folder);
            Err(error.of(interrupted(folder, state(&work))))
        }
    }
}

/// Returns the progress of the work according to its records, which are not trusted.
fn state(work: &Path) -> WorkState {
    let end = work.join(END);
    if fs::symlink_metadata(&end).is_ok() {
        return read::<EndRecord>(&end).map_or(WorkState::Placed, |end| WorkState::Done(end.manifest.operator));
    }
    let Some(begun) = read::<Begun>(&work.join(MANIFEST)) else { return WorkState::Unreadable };
    let done = fs::read_dir(work.join(DONE)).into_iter().flatten().flatten();
    if done.filter(|entry| entry.file_name().to_string_lossy().ends_with(".json")).count() >= begun.shards.len() {
        return WorkState::Done(begun.operator);
    }
    WorkState::Begun { operator: begun.operator, input: begun.input_at.path(), options: begun.options }
}

fn interrupted(folder: &Path, state: WorkState) -> Kind {
    let work = folder.join(WORK);
    let is_missing =
        |path: &Path| matches!(fs::symlink_metadata(path), Err(error) if error.kind() == ErrorKind::NotFound);
    let has_older = !is_missing(&work.join(OLD));
    // Until `old` exists, an older checkpoint is in its place, and no file of the new one is next to it.
    let is_untouched = !has_older && !matches!(state, WorkState::Placed) && is_missing(&work.join(END));
    let names = if is_untouched { file_names(folder).unwrap_or_default() } else { Vec::new() };
    let keeps_older = names.iter().any(|name| is_shard_name(&name.to_string_lossy()));
    Kind::Interrupted(Box::new(InterruptedWork { folder: folder.to_owned(), work, has_older, keeps_older, state }))
}

/// Reads a file of the work folder; `None` if it cannot be read.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    /// Maximum length of a record.
    const MOST: u64 = 1 << 30;
    serde_json::from_slice(&read_regular(path, MOST, Links::Refuse).ok()?).ok()
}

/// Describes unfinished work that cannot continue, because its records cannot be read.
pub(crate) fn without_manifest(folder: &Path) -> Kind {
    interrupted(folder, WorkState::Unreadable)
}

/// Describes unfinished work whose files are all in place, but whose final record cannot be read.
pub(crate) fn without_end(folder: &Path) -> Kind {
    interrupted(folder, WorkState::Placed)
}
