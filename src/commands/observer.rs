//! Reports of a running job on standard error: warnings and progress bars.

use super::notes;
use crate::progress::{self, Note, Observer, PartOf, Progress, ShardProgress, Shards};
use std::cell::OnceCell;

/// Observer that shows everything, or only errors.
pub(super) struct Console {
    pub(super) is_quiet: bool,
}

impl Observer for Console {
    fn notice(&self, note: Note) {
        if !self.is_quiet || matches!(note, Note::Refused(_) | Note::Kept(_)) {
            notes::show(&note);
        }
    }

    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        progress::shown(what, bytes, self.is_quiet)
    }

    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_> {
        Box::new(Shards::new(bytes, self.is_quiet))
    }
}

/// Observer that shows two passes over an input as one bar.
pub(super) struct OneBar<'o> {
    observer: &'o dyn Observer,
    /// The bytes of the second pass.
    rest: u64,
    bar: OnceCell<Box<dyn Progress + 'o>>,
}

impl<'o> OneBar<'o> {
    pub(super) fn new(observer: &'o dyn Observer, rest: u64) -> Self {
        Self { observer, rest, bar: OnceCell::new() }
    }

    /// Returns the bar, which begins with a pass over this many bytes.
    fn bar(&self, bytes: u64) -> &(dyn Progress + 'o) {
        &**self.bar.get_or_init(|| self.observer.progress("", bytes + self.rest))
    }
}

impl Observer for OneBar<'_> {
    fn notice(&self, note: Note) {
        self.observer.notice(note);
    }

    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        // Other activities are not passes over the input.
        match what {
            "" | "measuring" => Box::new(PartOf(self.bar(bytes))),
            other => self.observer.progress(other, bytes),
        }
    }
}
