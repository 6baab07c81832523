//! Finished files: the records of shards, one file for each, so that finished shards count in a later run; and the side
//! files, which are copied from the source or newly made.

use super::files::{is_there, read, sum_at, text};
use super::manifest::ManifestShard;
use super::{End, Staging};
use crate::container::sum_of;
use crate::error::{Error, Kind, Opt, Result};
use crate::io::map::MappedFile;
use crate::io::open::Links;
use crate::io::output::Destination;
use crate::io::temporaries::{DONE, END};
use crate::text::{counted, shorten, write_json};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};

/// Record of a finished shard.
#[derive(Serialize, Deserialize)]
pub(super) struct Record<T> {
    /// Hash of the manifest; records with another hash do not count.
    pub(super) of: String,
    /// CRC-32 of the shard.
    sum: u32,
    done: T,
}

impl Staging {
    /// Returns the record of a shard, if the shard is there. [`Self::verify`] checks its bytes.
    pub(crate) fn done<T: DeserializeOwned>(&self, shard: &ManifestShard) -> Option<T> {
        self.record_of(shard).map(|record| record.done)
    }

    fn record_of<T: DeserializeOwned>(&self, shard: &ManifestShard) -> Option<Record<T>> {
        if let Some(done) = &self.ended {
            return serde_json::from_str(done.get(&shard.file)?.get()).ok();
        }
        // An unreadable record does not count: the shard is converted again.
        let record: Record<T> = read(&self.record_path(&shard.file)).ok()?;
        let is_there = self.place_of(&shard.file).is_ok_and(|path| is_there(&path, shard.bytes));
        (is_there && record.of == self.hash).then_some(record)
    }

    /// Reads a finished shard, and compares its checksum with its record.
    pub(crate) fn verify(&self, shard: &ManifestShard, threads: usize) -> Result<()> {
        let path = self.place_of(&shard.file)?;
        let wanted = self.record_of::<IgnoredAny>(shard).map(|record| record.sum);
        if wanted != Some(sum_at(&path, shard.bytes, Links::Refuse, threads)?) {
            return Err(Error::new("is damaged: its checksum is wrong").in_file(&path));
        }
        Ok(())
    }

    /// Records that a shard is complete, with the checksum of its bytes. From then on, an interrupt keeps work that can
    /// be resumed.
    pub(crate) fn record<T: Serialize>(&mut self, shard: &str, sum: u32, done: &T) -> Result<()> {
        let record = Record { of: self.hash.clone(), sum, done };
        let destination = Destination::within(&self.record_path(shard));
        destination.write(self.sync, |file| write_json(file, &record))?;
        if self.manifest.can_resume() {
            self.keep();
        }
        Ok(())
    }

    /// Returns the path of a shard's record. It contains the shard's number, since the shard's name may have the
    /// maximum length.
    fn record_path(&self, shard: &str) -> PathBuf {
        let number = self.manifest.shards.iter().position(|known| known.file == shard).unwrap_or_default();
        self.work.join(DONE).join(format!("{number}.json"))
    }

    /// Counts the complete shards.
    pub(crate) fn finished(&self) -> usize {
        self.manifest.shards.iter().filter(|shard| self.done::<IgnoredAny>(shard).is_some()).count()
    }

    pub(super) fn check_complete(&self) -> Result<()> {
        let shards = &self.manifest.shards;
        let missing =
            |error: Error| error.of(Kind::Unfinished).with(Opt::FINISH, "run one of the parts again, and then {}");
        let is_missing = |shard: &&ManifestShard| self.record_of::<IgnoredAny>(shard).is_none();
        let absent: Vec<&String> = shards.iter().filter(is_missing).map(|shard| &shard.file).collect();
        if let Some(first) = absent.first() {
            let (count, all) = (absent.len(), shards.len());
            let (all, first) = (counted(all as u64, "shard"), shorten(first));
            let message = match count {
                1 => format!("1 of {all} is missing: {first}"),
                _ => format!("{count} of {all} are missing; the first is {first}"),
            };
            let error = Error::new(message).in_file(&self.folder);
            return Err(error
                .of(Kind::Unfinished)
                .with(Opt::FINISH, "run the parts that are missing again, and then {}"));
        }
        self.add_side_files(None)?;
        for side in self.manifest.copied() {
            if !self.has_file(&side.file, side.bytes, side.sum).map_err(missing)? {
                let error = Error::new("is damaged: its checksum is wrong").in_file(&self.place_of(&side.file)?);
                return Err(missing(error));
            }
        }
        Ok(())
    }

    /// Copies side files that are missing or damaged, and writes the newly made ones.
    pub(super) fn add_side_files(&self, source: Option<&Path>) -> Result<()> {
        for (file, bytes, sum) in self.manifest.side_sums() {
            if self.has_file(file, bytes, sum).unwrap_or(false) {
                continue;
            }
            match (self.manifest.texts.get(file), source) {
                (Some(text), _) => self.add(file, text.as_bytes())?,
                (None, Some(source)) => {
                    let content = MappedFile::open(&source.join(file))?;
                    self.add(file, &content).map_err(|error| error.in_file(content.path()))?;
                    content.check_unchanged()?;
                    if sum.is_some_and(|sum| sum != sum_of(&content).finalize()) {
                        let error = Error::new("the file was changed during the work").in_file(content.path());
                        return Err(error.remedy("start again when nothing writes to it"));
                    }
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// True if a finished file of this length has this checksum.
    fn has_file(&self, file: &str, bytes: u64, sum: Option<u32>) -> Result<bool> {
        let found = sum_at(&self.place_of(file)?, bytes, Links::Refuse, 1)?;
        Ok(sum.is_none_or(|sum| sum == found))
    }

    fn add(&self, file: &str, content: &[u8]) -> Result<()> {
        self.place(file)?.write(self.sync, |file| file.write_all(content))
    }

    /// Writes [`END`] into a work folder, once everything is in its place.
    pub(super) fn write_end(&self, work: &Path) -> Result<()> {
        let end = End { manifest: &self.manifest, done: RecordFiles(self) };
        Destination::within(&work.join(END)).write(self.sync, |file| write_json(file, &end))
    }
}

/// Records of all shards by name. Serializing reads them one at a time, because a record can be large.
struct RecordFiles<'a>(&'a Staging);

impl Serialize for RecordFiles<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for shard in &self.0.manifest.shards {
            let record = text(&self.0.record_path(&shard.file)).map_err(S::Error::custom)?;
            let record: &RawValue = serde_json::from_slice(&record).map_err(S::Error::custom)?;
            map.serialize_entry(&shard.file, record)?;
        }
        map.end()
    }
}
