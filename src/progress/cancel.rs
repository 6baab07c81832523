//! Cancellation of work by the caller.

use std::sync::atomic::{AtomicBool, Ordering};

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
impl<const N: usize> Cancel for [&dyn Cancel; N] {
    fn is_cancelled(&self) -> bool {
        self.iter().any(|source| source.is_cancelled())
    }
}

/// Never cancels.
pub struct Never;

impl Cancel for Never {
    fn is_cancelled(&self) -> bool {
        false
    }
}
