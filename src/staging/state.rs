//! Unfinished work in a folder, for the command that continues it. The records are as untrusted as any file.

use super::Staging;
use crate::container::checkpoint::has_written_shards;
use crate::io::open::is_missing;
use crate::io::output::WORK;
use crate::io::temporaries::{END, OLD};
use crate::options::RecordedOptions;
use std::path::{Path, PathBuf};

/// An unfinished conversion.
pub(crate) struct InterruptedWork {
    /// Folder of the output.
    pub(crate) folder: PathBuf,
    /// Folder in it that holds the work.
    pub(crate) work: PathBuf,
    /// True if files of an older checkpoint may be in the work folder.
    pub(crate) has_older: bool,
    /// True if an older checkpoint is in the folder, and no file of it was touched: it is complete again without
    /// `work`.
    pub(crate) keeps_older: bool,
    pub(crate) state: WorkState,
}

/// State of an unfinished conversion.
pub(crate) enum WorkState {
    /// All shards are done, by this operator.
    Done(String),
    /// Some shards are done.
    Begun { operator: String, input: PathBuf, options: RecordedOptions },
    /// Its records cannot be read.
    Unreadable,
    /// All files are in their places, and the record of that cannot be read.
    Placed,
}

impl InterruptedWork {
    pub(crate) fn of(folder: &Path) -> Self {
        let work = folder.join(WORK);
        let [is_ended, has_older] = [END, OLD].map(|name| !is_missing(&work.join(name)));
        let state = match Staging::stored(folder, false) {
            Ok(stored) if stored.finished() == stored.manifest.shards.len() => {
                WorkState::Done(stored.manifest.operator)
            }
            Ok(Staging { manifest, .. }) => {
                let (operator, input, options) = (manifest.operator, manifest.input_at.path(), manifest.options);
                WorkState::Begun { operator, input, options }
            }
            Err(_) if is_ended => WorkState::Placed,
            Err(_) => WorkState::Unreadable,
        };
        // Until `old` exists, an older checkpoint is in its place, and no file of the new one is next to it.
        let keeps_older = !has_older && !is_ended && has_written_shards(folder);
        Self { folder: folder.to_owned(), work, has_older, keeps_older, state }
    }
}
