//! Progress and cancellation of a conversion, and its reports before the results.

mod note;
mod observer;
#[cfg(feature = "cli")]
mod terminal;

pub(crate) use note::{GgufNote, LoraNote, Misfit, Note, OnnxNote, QuantizedForms, UseNote};
pub(crate) use observer::{Observer, PartOf, ShardProgress};
#[cfg(feature = "cli")]
pub(crate) use terminal::{Shards, shown};

use crate::error::{Error, Kind, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Receiver of a conversion's progress. The engine calls it for every finished piece of work, from any thread.
pub trait Progress: Sync {
    /// Receives the total number of input bytes to convert, before the work starts.
    fn begin(&self, _bytes: u64) {}

    /// Receives the number of input bytes that were converted since the last call.
    fn advance(&self, bytes: u64);
}

/// Progress receiver that shows nothing.
#[doc(hidden)] // for tests
pub struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: u64) {}
}

/// Source of cancellation. Threads check it before each piece of work.
pub trait Cancel: Sync {
    /// True if the work should end early.
    fn is_cancelled(&self) -> bool;
}

impl Cancel for AtomicBool {
    fn is_cancelled(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

/// Cancelled by any of several sources.
#[doc(hidden)]
impl<const N: usize> Cancel for [&dyn Cancel; N] {
    fn is_cancelled(&self) -> bool {
        self.iter().any(|source| source.is_cancelled())
    }
}

/// Never cancels.
pub(crate) struct Never;

impl Cancel for Never {
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Threads, progress and cancellation of a reader of values.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub(crate) threads: usize,
    /// Receives the stored bytes.
    pub(crate) progress: &'a dyn Progress,
    pub(crate) cancel: &'a dyn Cancel,
}

impl Reading<'_> {
    pub(crate) fn check_cancelled(self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(cancelled()) } else { Ok(()) }
    }
}

/// Returns the error for work that the caller ended.
pub(crate) fn cancelled() -> Error {
    Error::new("cancelled").of(Kind::Cancelled)
}
