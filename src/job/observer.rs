//! What a job reports on its way: notices and progress.

use crate::container::checkpoint::Disagreement;
use crate::error::Error;
use crate::io::temporaries::Kept;
use crate::progress::Progress;
use std::path::{Path, PathBuf};

/// Receives what a job reports before its results.
pub(crate) trait Observer {
    fn notice(&self, notice: Notice);

    /// Shows how many of `bytes` bytes are done; `what` names the activity.
    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_>;

    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_>;
}

/// The progress of a checkpoint, shard by shard.
pub(crate) trait ShardProgress {
    /// Starts the next shard, whose bytes are included in those of the checkpoint.
    fn shard(&self, what: String, bytes: u64) -> Box<dyn Progress + '_>;
}

/// Something that a user needs to know, but not an error.
pub(crate) enum Notice<'a> {
    /// The files of a checkpoint contradict each other.
    Disagreement(&'a Disagreement),
    /// A member of an archive is not an array, so it is left out.
    NoArray(&'a str),
    /// The output format, given by its extension, cannot hold the metadata of the input.
    NoMetadata(&'static str),
    /// What is special about an output.
    Note(&'a str),
    /// Scales that lose precision while their codes stay the same, and that no rule names.
    ScalesCast(&'a [&'a str]),
    /// Files of an input that are not in the output.
    LeftOut(&'a [PathBuf]),
    /// An output is about to be written into a folder.
    Begins(&'a Path),
    /// A finished shard is damaged, and is done again.
    DoneAgain(&'a Error),
    /// One of several inputs is refused or fails.
    Refused(&'a Error),
    /// What an unfinished conversion leaves behind, and how to continue.
    Kept(&'a Kept),
}
