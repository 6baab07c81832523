//! Work that earlier runs have done.

use super::files::{check_folders, exists};
use super::lock::{Sharing, lock};
use super::place::recover;
use super::{Hold, ManifestShard, Staging};
use crate::error::{Error, Result};
use crate::io::output::WORK;
use crate::io::temporaries::{END, MANIFEST};
use serde::de::IgnoredAny;
use std::path::Path;

impl Staging {
    /// Opens the work of runs that have ended. Fails if there is no such work, or a run is still working.
    pub(crate) fn reopen(folder: &Path, sync: bool) -> Result<Self> {
        folder.metadata().map_err(|error| Error::io("cannot read", &error).in_file(folder))?;
        let work = folder.join(WORK);
        check_folders(&work)?;
        if !exists(&work.join(MANIFEST))? && !exists(&work.join(END))? {
            let error = Error::new("holds no unfinished conversion").in_file(folder);
            return Err(error.remedy("give the folder that the parts were written into"));
        }
        let hold = Hold { made: Vec::new(), locks: lock(&work, Sharing::Alone)?.into_iter().collect() };
        recover(folder, &work)?;
        Ok(Self { hold, ..Self::stored(folder, sync)? })
    }
}

/// True if earlier runs have finished all these shards, according to their records.
pub(crate) fn are_done<'a>(folder: &Path, mut shards: impl Iterator<Item = &'a ManifestShard>) -> bool {
    Staging::stored(folder, false).is_ok_and(|stored| shards.all(|shard| stored.done::<IgnoredAny>(shard).is_some()))
}
