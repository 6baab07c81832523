//! What was done with each shard: one file each, so that finished shards count in a later run.

use super::Staging;
use super::files::{is_there, json, read, sum_at};
use super::manifest::ManifestShard;
use crate::error::{Error, Kind, Result};
use crate::io::open::Links;
use crate::io::output::Destination;
use crate::text::{counted, shorten};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What was done with a shard.
#[derive(Serialize, Deserialize)]
struct Record<T> {
    /// The hash of the manifest: records of another one do not count.
    of: String,
    /// The CRC-32 of the shard.
    sum: u32,
    done: T,
}

impl Staging {
    /// The record of a shard, if the shard is there. [`Self::verify`] checks its bytes.
    #[must_use]
    pub(crate) fn done<T: DeserializeOwned>(&self, shard: &ManifestShard) -> Option<T> {
        self.record_of(shard).map(|record| record.done)
    }

    fn record_of<T: DeserializeOwned>(&self, shard: &ManifestShard) -> Option<Record<T>> {
        if let Some(done) = &self.ended {
            return Record::deserialize(done.get(&shard.file)?).ok();
        }
        // An unreadable record does not count: the work is done again.
        let record: Record<T> = read(&self.record_path(&shard.file)).ok()?;
        let is_there = self.place_of(&shard.file).is_ok_and(|path| is_there(&path, shard.bytes));
        (is_there && record.of == self.hash).then_some(record)
    }

    /// Reads a finished shard, and compares it with its record.
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

    /// Records that a shard is complete, with the checksum of what was written: it is kept whatever happens.
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

    /// Named by the shard's number, since the shard's name may have the maximum length.
    fn record_path(&self, shard: &str) -> PathBuf {
        let number = self.manifest.shards.iter().position(|known| known.file == shard).unwrap_or_default();
        self.work.join("done").join(format!("{number}.json"))
    }

    /// How many shards are complete.
    #[must_use]
    pub(crate) fn finished(&self) -> usize {
        self.manifest.shards.iter().filter(|shard| self.done::<Value>(shard).is_some()).count()
    }

    /// All records, if all shards are done.
    pub(super) fn complete(&self) -> Result<BTreeMap<String, Value>> {
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
            return Err(error.remedy("run the parts that are missing again").of(Kind::Incomplete));
        }
        self.add_side_files(None)?;
        for side in self.manifest.side_files.iter().filter(|side| !self.manifest.texts.contains_key(&side.file)) {
            let again = |error: Error| error.remedy("run one of the parts again").of(Kind::Incomplete);
            self.check_side_file(side).map_err(again)?;
        }
        Ok(records)
    }
}
