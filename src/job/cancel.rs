//! Cancellation of work by the caller.

use crate::error::{Error, Result};
use crate::io::sink::Sink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Source of cancellation. Threads check it before each piece that they write.
pub trait Cancel: Sync {
    /// True if the work should end early.
    fn is_cancelled(&self) -> bool;
}

impl Cancel for AtomicBool {
    fn is_cancelled(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

/// Never cancels.
pub(crate) struct Never;

impl Cancel for Never {
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Sink that refuses to write when the work is cancelled, which ends the work.
pub(super) struct Cancellable<'a> {
    pub(super) sink: &'a dyn Sink,
    pub(super) cancel: &'a dyn Cancel,
}

impl Cancellable<'_> {
    pub(super) fn check(&self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(Error::new("cancelled").in_file(self.sink.path())) } else { Ok(()) }
    }
}

impl Sink for Cancellable<'_> {
    fn path(&self) -> &Path {
        self.sink.path()
    }

    fn is_seekable(&self) -> bool {
        self.sink.is_seekable()
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.sink.reserve(len)
    }

    fn prepare(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check()?;
        self.sink.prepare(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.sink.write_at(offset, bytes)
    }
}
