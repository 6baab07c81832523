//! How far the work is.

#[cfg(feature = "cli")]
mod terminal;

#[cfg(feature = "cli")]
#[doc(hidden)] // for the program
pub use terminal::Bar;
#[cfg(feature = "cli")]
pub(crate) use terminal::{Shards, shown};

/// Told by the engine of every piece of work that is done, from any thread.
pub trait Progress: Sync {
    /// So many bytes of input are to be converted in all: `tcast::convert` says so before it starts; what makes a plan
    /// itself knows it from there.
    fn begin(&self, _bytes: u64) {}

    /// So many more bytes of input are converted.
    fn advance(&self, bytes: u64);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: u64) {}
}
