//! Progress of a conversion.

#[cfg(feature = "cli")]
mod terminal;

#[cfg(feature = "cli")]
#[doc(hidden)] // for the program
pub use terminal::Bar;
#[cfg(feature = "cli")]
pub(crate) use terminal::{Shards, shown};

/// The engine calls this for every finished piece of work, from any thread.
pub trait Progress: Sync {
    /// So many bytes of input will be converted in total. `tcast::convert` calls this before it starts; a caller that
    /// makes a plan knows the number from the plan.
    fn begin(&self, _bytes: u64) {}

    /// So many more bytes of input have been converted.
    fn advance(&self, bytes: u64);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: u64) {}
}
