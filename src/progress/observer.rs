//! Reports of a running job: notices and progress.

use super::note::Note;
use super::{Progress, Silent};

/// Receiver of the reports of a job before its results; ignores what it does not implement.
pub(crate) trait Observer {
    fn notice(&self, _note: Note) {}

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
