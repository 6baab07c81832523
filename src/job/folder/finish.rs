//! Puts a folder together that several runs have written their shares into.

use crate::container::checkpoint;
use crate::error::{Kind, Result};
use crate::job::outcome::FileReport;
use crate::staging::{self, Manifest, Staging};
use serde::de::IgnoredAny;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a folder is that was to be put together.
pub(crate) enum Finished {
    /// A whole checkpoint, in which no unfinished conversion is.
    Already {
        /// Bytes of its shards.
        bytes: u64,
        /// How many these are.
        shards: usize,
    },
    /// It is whole now.
    Now {
        /// The operator's name.
        operator: String,
        /// The options that the runs had.
        options: Value,
        /// What was read, as the first run called it.
        input: PathBuf,
        /// Bytes of that.
        bytes_in: u64,
        /// The shards.
        files: Vec<FileReport<'static>>,
    },
}

/// Puts the shards in their places, when all are there and as they were written.
///
/// # Errors
/// When one is missing or damaged, or the system refuses.
pub(crate) fn finish(path: &Path, sync: bool, threads: usize) -> Result<Finished> {
    if !staging::is_unfinished(path)?
        && let Ok(there) = checkpoint::open(path)
        && there.folder.is_some()
    {
        staging::remove_rest(path);
        return Ok(Finished::Already { bytes: there.bytes(), shards: there.shards.len() });
    }
    let staging = Staging::reopen(path, sync)?;
    for shard in &staging.manifest().shards {
        if staging.done::<IgnoredAny>(shard).is_some() {
            let remedy = "run the command of its part, or of all, again: it does this shard once more";
            staging.verify(shard, threads).map_err(|error| error.remedy(remedy).of(Kind::Incomplete))?;
        }
    }
    let Manifest { operator, options, input, inputs, shards, .. } = staging.manifest();
    let (operator, options, input) = (operator.clone(), options.clone(), PathBuf::from(input));
    let bytes_in = inputs.iter().map(|source| source.bytes).sum();
    let files = shards.iter().filter_map(|shard| staging.done(shard)).collect();
    staging.finish()?;
    Ok(Finished::Now { operator, options, input, bytes_in, files })
}
