//! Reports of a running job: notices and progress.

use super::Progress;
use super::note::Note;

/// Receiver of the reports of a job before its results.
pub(crate) trait Observer {
    fn notice(&self, note: Note);

    /// Starts a display of progress over `bytes` bytes; `what` names the activity.
    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_>;

    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_>;
}

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

impl ShardProgress for PartOf<'_> {
    fn shard(&self, _what: String, _bytes: u64) -> Box<dyn Progress + '_> {
        Box::new(PartOf(self.0))
    }
}
