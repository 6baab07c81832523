//! Records of finished shards, one file for each, so that finished shards count in a later run.

use super::files::{is_there, read, sum_at, text};
use super::manifest::{Manifest, ManifestShard};
use super::{End, Records, Staging};
use crate::error::{Error, Kind, Result};
use crate::io::open::Links;
use crate::io::output::Destination;
use crate::io::temporaries::DONE;
use crate::text::{counted, shorten};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use std::path::PathBuf;

/// Record of a finished shard.
#[derive(Serialize, Deserialize)]
struct Record<T> {
    /// Hash of the manifest; records with another hash do not count.
    of: String,
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
        self.write_json(Destination::within(&self.record_path(shard)), &record)?;
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
        let is_missing = |shard: &&ManifestShard| self.record_of::<IgnoredAny>(shard).is_none();
        let missing: Vec<&String> = shards.iter().filter(is_missing).map(|shard| &shard.file).collect();
        if let Some(first) = missing.first() {
            let (missing, all) = (missing.len(), shards.len());
            let message = format!(
                "{missing} of {} are not there yet, {} is the first",
                counted(all as u64, "shard"),
                shorten(first)
            );
            let error = Error::new(message).in_file(&self.folder);
            return Err(error.remedy("run the parts that are missing again").of(Kind::Incomplete));
        }
        self.add_side_files(None)?;
        for side in self.manifest.copied() {
            let again = |error: Error| error.remedy("run one of the parts again").of(Kind::Incomplete);
            self.check_side_file(side).map_err(again)?;
        }
        Ok(())
    }

    /// Returns the content of `end.json`, which is written once everything is in its place.
    pub(super) fn end(&self) -> End<&Manifest, RecordFiles<'_>> {
        End { manifest: &self.manifest, done: RecordFiles(self) }
    }
}

/// Refuses a manifest that does not belong to the records stored with it.
pub(super) fn check_records(End { manifest, done }: &End<Manifest, Records>) -> Result<()> {
    let hash = manifest.hash()?;
    let is_of_it = |record: &RawValue| {
        serde_json::from_str::<Record<IgnoredAny>>(record.get()).is_ok_and(|record| record.of == hash)
    };
    if manifest.shards.iter().all(|shard| done.get(&shard.file).is_some_and(|record| is_of_it(record))) {
        return Ok(());
    }
    Err(Error::new("its manifest is not the one of its records"))
}

/// Records of all shards by name. Serializing reads them one at a time, because a record can be large.
pub(super) struct RecordFiles<'a>(&'a Staging);

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
