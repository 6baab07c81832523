//! Progress and cancellation of a conversion, and its reports before the results.

mod cancel;
mod note;
mod observer;
#[cfg(feature = "cli")]
mod terminal;

pub use cancel::{Cancel, Never};
pub(crate) use note::{GgufNote, Misfit, Note, OnnxNote, QuantizedForms, UseNote};
pub(crate) use observer::{Observer, PartOf, ShardProgress};
#[cfg(feature = "cli")]
pub(crate) use terminal::{Shards, shown};

/// Receiver of a conversion's progress. The engine calls it for every finished piece of work, from any thread.
pub trait Progress: Sync {
    /// Receives the total number of input bytes to convert. `tcast::convert` calls this before it starts; a caller that
    /// makes a plan knows the number from the plan.
    fn begin(&self, _bytes: u64) {}

    /// Receives the number of input bytes that were converted since the last call.
    fn advance(&self, bytes: u64);
}

/// Progress receiver that shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: u64) {}
}
