//! What a job says on its way: notices, and how far it is.

use crate::container::checkpoint::Disagreement;
use crate::error::Error;
use crate::io::temporaries::Kept;
use crate::progress::Progress;
use std::path::{Path, PathBuf};

/// Is told what a job has to say before its results.
pub(crate) trait Observer {
    /// Takes a notice.
    fn notice(&self, notice: Notice);

    /// Shows how much of some bytes is done, with a word for the work.
    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_>;

    /// Shows how much of a checkpoint is done.
    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_>;
}

/// Shows how much of a checkpoint is done, shard by shard.
pub(crate) trait ShardProgress {
    /// Begins the next shard, whose bytes are among those of the checkpoint.
    fn shard(&self, what: String, bytes: u64) -> Box<dyn Progress + '_>;
}

/// Something that a user needs to know and that is not an error.
pub(crate) enum Notice<'a> {
    /// The files of a checkpoint disagree.
    Disagreement(&'a Disagreement),
    /// A member of an archive is no array, and not in the output.
    NoArray(&'a str),
    /// A format, by its extension, has no place for the metadata of the input.
    NoMetadata(&'static str),
    /// Some scales lose precision while their codes stay what they are.
    ScalesCast {
        /// How many.
        count: usize,
        /// The first of them that no rule names.
        first: &'a str,
    },
    /// Files of an input that are not in the output.
    LeftOut(&'a [PathBuf]),
    /// An output is about to be written into a folder.
    Begins(&'a Path),
    /// A shard that was done before is damaged, and is done again.
    DoneAgain(&'a Error),
    /// One of several inputs is refused, or fails.
    Refused(&'a Error),
    /// What an unfinished conversion leaves behind, and how to continue.
    Kept(&'a Kept),
}
