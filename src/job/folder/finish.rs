//! Completes a folder into which several runs have written their parts.

use crate::container::{ReadOptions, checkpoint};
use crate::error::{Error, Kind, Opt, Result};
use crate::job::outcome::FileReport;
use crate::options::RecordedOptions;
use crate::staging::{self, Manifest, Staging};
use serde::de::IgnoredAny;
use std::path::{Path, PathBuf};

/// The result of completing a folder.
pub(crate) enum Finished {
    /// The folder is a complete checkpoint without an unfinished conversion.
    Already { bytes: u64, shards: usize },
    Now {
        operator: String,
        options: RecordedOptions,
        /// The input, as the first run named it.
        input: PathBuf,
        bytes_in: u64,
        /// The shards.
        files: Vec<FileReport>,
    },
}

/// Moves the shards to their places if all of them exist and are intact.
pub(crate) fn finish(path: &Path, sync: bool, threads: usize) -> Result<Finished> {
    if !staging::is_unfinished(path)?
        && let Ok(there) = checkpoint::open(path, &ReadOptions::on(threads))
        && there.folder.is_some()
    {
        staging::remove_rest(path);
        return Ok(Finished::Already { bytes: there.bytes(), shards: there.shards.len() });
    }
    let staging = Staging::reopen(path, sync)?;
    for shard in &staging.manifest().shards {
        if staging.done::<IgnoredAny>(shard).is_some() {
            let remedy = "run the command of this part again to convert the shard again, and then {}";
            let failed = |error: Error| error.unadvised().of(Kind::Unfinished).with(Opt::FINISH, remedy);
            staging.verify(shard, threads).map_err(failed)?;
        }
    }
    let Manifest { operator, options, input, inputs, shards, .. } = staging.manifest();
    let (operator, options, input) = (operator.clone(), options.clone(), PathBuf::from(input));
    let bytes_in = inputs.iter().map(|source| source.bytes).sum();
    let files = shards.iter().filter_map(|shard| staging.done(shard)).collect();
    staging.finish()?;
    Ok(Finished::Now { operator, options, input, bytes_in, files })
}
