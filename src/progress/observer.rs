//! Reports of a running job: notices and progress.

use super::{Progress, Silent};
use crate::container::PickleFacts;
use crate::container::checkpoint::Disagreement;
use crate::error::Error;
use crate::io::temporaries::Kept;
use crate::operator::Operator;
use std::path::{Path, PathBuf};

/// Receiver of the reports of a job before its results; ignores what it does not implement.
pub(crate) trait Observer {
    fn notice(&self, _notice: Notice) {}

    /// Starts a display of progress over `bytes` bytes; `what` names the activity, and is empty for the conversion.
    fn progress(&self, _what: &'static str, _bytes: u64) -> Box<dyn Progress + '_> {
        Box::new(Silent)
    }

    /// Starts the progress of the conversion of a checkpoint.
    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_> {
        Box::new(self.progress("", bytes))
    }
}

impl Observer for Silent {}

/// The progress of a checkpoint, shard by shard.
pub(crate) trait ShardProgress {
    /// Starts the next shard. Its bytes are included in the bytes of the checkpoint.
    fn shard(&self, what: String, bytes: u64) -> Box<dyn Progress + '_>;
}

/// Some of the work whose progress a receiver shows as a whole: a shard of a checkpoint, or one of several passes.
pub(crate) struct PartOf<'a>(pub(crate) &'a dyn Progress);

impl Progress for PartOf<'_> {
    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }
}

impl ShardProgress for Box<dyn Progress + '_> {
    fn shard(&self, _what: String, _bytes: u64) -> Box<dyn Progress + '_> {
        Box::new(PartOf(&**self))
    }
}

/// Something that a user needs to know, but not an error.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum Notice<'a> {
    /// The files of a checkpoint contradict each other.
    Disagreement(&'a Disagreement),
    /// A member of an archive is not an array, so it is left out.
    NoArray(&'a str),
    /// An input, given by its path, is a checkpoint of PyTorch with these properties.
    Pickle(&'a Path, &'a PickleFacts),
    /// A tensor that cannot be read is excluded, so it is left out.
    Unreadable(&'a str),
    /// The output format, given by its extension, cannot hold the metadata of the input.
    NoMetadata(&'static str),
    /// Lists in the metadata, with their first elements, are left out: metadata of other formats are texts.
    NoLists(&'a [(String, String)]),
    /// Scales of activations that the operator leaves out.
    ScalesLeftOut(&'a [String], Operator),
    /// A remark about an output.
    Note(&'a str),
    /// Information about an output that needs no action.
    Fact(&'a str),
    /// Scales that lose precision while their codes stay the same, and that no rule names.
    ScalesCast(&'a [&'a str]),
    /// Files of an input that are not in the output.
    LeftOut(&'a [PathBuf]),
    /// An output is about to be written into a folder.
    Begins(&'a Path),
    /// A finished shard is damaged, and is converted again.
    DoneAgain(&'a Error),
    /// One of several inputs is refused or fails.
    Refused(&'a Error),
    /// The remains of an unfinished conversion, and how to continue it.
    Kept(&'a Kept),
}
