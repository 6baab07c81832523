//! Manifest of the work in a folder, so that only the same work can continue there.

use super::Start;
use super::files::{json, sum_at};
use crate::container::checkpoint::{is_index, is_inside, is_plain, is_shard_name, is_written_shard};
use crate::container::sum_of;
use crate::error::{Error, Kind, Opt, Result};
use crate::io::open::{Links, unreadable};
use crate::io::output::is_own;
use crate::options::RecordedOptions;
use crate::text::{hex_digits, shorten};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
#[cfg(all(unix, feature = "cli"))]
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
#[cfg(feature = "cli")]
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// Content of a checkpoint, and the options that it is made with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Version of tcast that began the work, since other versions may round differently.
    pub tcast: String,
    pub operator: String,
    /// Every option that influences the bytes.
    pub options: RecordedOptions,
    /// Input folder or file, as named by the run that began the work; another machine may name it differently.
    pub input: String,
    /// Path of the input on the machine that began the work.
    pub input_at: StoredPath,
    pub inputs: Vec<ManifestSource>,
    pub shards: Vec<ManifestShard>,
    pub index: Option<String>,
    /// Side files, by their paths in the folder.
    pub side_files: Vec<ManifestSource>,
    /// Texts of the index, and of side files that are not copied unchanged.
    pub texts: BTreeMap<String, String>,
    /// Files of the folder that may be replaced, because they were there when the work began. A file is replaced only
    /// if [`super::older`] finds it again.
    pub replaced: Vec<String>,
}

/// An input file, as it was when the work began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestSource {
    pub file: String,
    pub bytes: u64,
    /// Time of the last modification: seconds since 1970, with nine decimals.
    pub modified: String,
    /// SHA-256 of the bytes before the tensors, as hexadecimal digits; `None` for a side file.
    pub header: Option<String>,
    /// CRC-32 of a whole side file; `None` for a file with tensors, which is too long to be read twice.
    pub sum: Option<u32>,
}

impl ManifestSource {
    pub(crate) fn shard(path: &Path, name: String, header: &[u8]) -> Result<Self> {
        Self::of(path, name).map(|found| Self { header: Some(sha256(header)), ..found })
    }

    /// Describes a side file. If its `text` was read already, the copy must contain this text.
    pub(crate) fn side_file(path: &Path, text: Option<&str>, name: String) -> Result<Self> {
        let found = Self::of(path, name)?;
        let bytes = text.map_or(found.bytes, |text| text.len() as u64);
        let sum = match text {
            Some(text) => sum_of(text.as_bytes()).finalize(),
            None => sum_at(path, bytes, Links::Follow, 1)?,
        };
        Ok(Self { bytes, sum: Some(sum), ..found })
    }

    fn of(path: &Path, name: String) -> Result<Self> {
        let failed = unreadable(path);
        let metadata = fs::metadata(path).map_err(failed)?;
        let (sign, modified) = match metadata.modified().map_err(failed)?.duration_since(UNIX_EPOCH) {
            Ok(since) => ("", since),
            Err(before) => ("-", before.duration()),
        };
        let modified = format!("{sign}{}.{:09}", modified.as_secs(), modified.subsec_nanos());
        Ok(Self { file: name, bytes: metadata.len(), modified, header: None, sum: None })
    }
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

    #[cfg(feature = "cli")] // for the command that continues the work
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Text(text) => text.into(),
            #[cfg(unix)]
            Self::Bytes(bytes) => PathBuf::from(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes)),
            #[cfg(not(unix))]
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
        }
    }
}

/// Computes the SHA-256 of some bytes, as hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex_digits(&Sha256::digest(bytes))
}

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestShard {
    pub file: String,
    pub bytes: u64,
}

impl Manifest {
    /// Computes the hash of the manifest. This is seldom done, because a manifest is longer than everything else.
    pub(super) fn hash(&self) -> Result<String> {
        json(self).map(|text| sha256(&text))
    }

    /// Returns the names of all files in the order in which they are moved to their places: loaders read the last one
    /// first.
    pub(crate) fn files(&self) -> impl Iterator<Item = &String> {
        let side_files = self.side_files.iter().map(|side| &side.file);
        // Files that the input does not have.
        let is_new = |name: &&String| {
            !self.side_files.iter().any(|side| side.file == **name) && self.index.as_ref() != Some(*name)
        };
        let side_files = side_files.chain(self.texts.keys().filter(is_new));
        side_files.chain(self.shards.iter().map(|shard| &shard.file)).chain(&self.index)
    }

    /// Returns the side files that are copied unchanged.
    pub(super) fn copied(&self) -> impl Iterator<Item = &ManifestSource> {
        self.side_files.iter().filter(|side| !self.texts.contains_key(&side.file))
    }

    /// Returns all files except shards, with their lengths and checksums.
    pub(super) fn side_sums(&self) -> impl Iterator<Item = (&String, u64, Option<u32>)> {
        let copied = self.copied().map(|side| (&side.file, side.bytes, side.sum));
        let text = |(file, text): (_, &String)| (file, text.len() as u64, Some(sum_of(text.as_bytes()).finalize()));
        copied.chain(self.texts.iter().map(text))
    }

    /// True if another run can continue the work; false for `bitcast` and `promote`.
    pub(super) fn can_resume(&self) -> bool {
        !["bitcast", "promote"].contains(&&*self.operator)
    }

    /// Describes the first difference between the earlier work and this work.
    fn difference(&self, now: &Self) -> Option<String> {
        let differ = |what: &str, before: &str, now: &str| {
            (before != now).then(|| format!("{what} was {}, and is {} now", shorten(before), shorten(now)))
        };
        differ("tcast", &self.tcast, &now.tcast)
            .or_else(|| differ("the subcommand", &self.operator, &now.operator))
            .or_else(|| self.options.difference(&now.options))
            .or_else(|| other_input(&self.inputs, &now.inputs))
            .or_else(|| other_input(&self.side_files, &now.side_files))
            .or_else(|| (self.shards != now.shards).then(|| "the shards to write are others".to_owned()))
            .or_else(|| (self.index != now.index).then(|| "the index has another name".to_owned()))
            .or_else(|| self.other_text(now))
    }

    fn other_text(&self, now: &Self) -> Option<String> {
        let mut names = self.texts.keys().chain(now.texts.keys());
        let name = names.find(|name| self.texts.get(*name) != now.texts.get(*name))?;
        Some(format!("its {} is not the one that is written now", shorten(name)))
    }

    /// Refuses to continue different work.
    pub(super) fn check_same(&self, now: &Self, start: Start) -> Result<()> {
        let Some(difference) = self.difference(now) else { return Ok(()) };
        let error = Error::new(format!("the conversion in it has other options or inputs: {difference}"));
        Err(if start == Start::Part {
            error.remedy("give all parts the same input and options, or begin anew in another folder")
        } else {
            error.remedy("give the same input and options").of(Kind::Unfinished).with(Opt::FORCE, "start again with {}")
        })
    }

    /// Refuses names that lead out of the folder: the manifest is as untrusted as any file.
    pub(super) fn check_names(&self) -> Result<()> {
        let is_plain = |name: &&String| is_plain(name) && !is_own(name);
        let (side_files, shards) = (self.side_files.iter().map(|side| &side.file), self.shards.iter());
        let mut stray = (self.index.iter().filter(|name| !is_plain(name) || !is_index(name)))
            .chain(shards.map(|shard| &shard.file).filter(|name| !is_inside(name) || !is_written_shard(name)))
            .chain(self.replaced.iter().filter(|name| {
                (!is_plain(name) || !is_index(name) && !is_written_shard(name) && !is_shard_name(name))
                    && self.files().all(|file| file != *name)
            }))
            .chain(side_files.filter(|path| !is_inside(path)))
            .chain(self.texts.keys().filter(|path| !is_inside(path)));
        if self.shards.is_empty() {
            return Err(Error::new("names no shard"));
        }
        let refuse = |name: &String| Err(Error::new(format!("names '{}', which is not in the folder", shorten(name))));
        stray.next().map_or(Ok(()), refuse)?;
        let mut seen = HashSet::new();
        match self.files().find(|file| !seen.insert(*file)) {
            Some(twice) => Err(Error::new(format!("names '{}' twice", shorten(twice)))),
            None => Ok(()),
        }
    }
}

/// Describes the first file that has changed.
fn other_input(before: &[ManifestSource], now: &[ManifestSource]) -> Option<String> {
    if let Some((before, now)) = before.iter().zip(now).find(|(before, now)| before != now) {
        let file = shorten(&before.file);
        return Some(if before.file != now.file {
            format!("the input had {file}, and has {} there now", shorten(&now.file))
        } else if before.bytes != now.bytes {
            format!("{file} had {} bytes, and has {} now", before.bytes, now.bytes)
        } else if before.header != now.header {
            format!("{file} has another header now")
        } else if before.sum != now.sum {
            format!("{file} has other content now")
        } else {
            format!("{file} was changed since: its time of modification is another one")
        });
    }
    let longer = if before.len() > now.len() { before } else { now };
    let odd = longer.get(before.len().min(now.len()))?;
    let what = if before.len() > now.len() { "is not in the input any more" } else { "was not in the input" };
    Some(format!("{} {what}", shorten(&odd.file)))
}
