//! Runs of the program, and interrupts, which remove its temporary files.

use super::{Kept, Temporaries, lock, remove};
use std::sync::MutexGuard;

/// A run of a command. Results that an earlier run kept do not concern it.
#[derive(Debug)]
pub(crate) struct Run(());

impl Run {
    pub(crate) fn begin() -> Self {
        let mut temporaries = lock();
        if temporaries.runs == 0 {
            temporaries.kept = None;
        }
        temporaries.runs += 1;
        Self(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        lock().runs -= 1;
    }
}

/// An interrupt in progress. While it lives, nothing is created and nothing takes its name.
pub(crate) struct Interrupt {
    pub(crate) kept: Option<Kept>,
    _temporaries: MutexGuard<'static, Temporaries>,
}

/// Removes every temporary file, unless the process ends by itself.
pub(crate) fn remove_temporaries() -> Option<Interrupt> {
    let temporaries = lock();
    if temporaries.is_over {
        return None;
    }
    for path in temporaries.paths.iter().rev() {
        remove(path);
    }
    Some(Interrupt { kept: temporaries.kept.clone(), _temporaries: temporaries })
}

/// Makes `call` run before the first file or folder is created that an interrupt has to remove.
#[cfg(unix)]
pub(crate) fn before_listing(call: impl FnOnce() + Send + 'static) {
    lock().before_first = Some(Box::new(call));
}

/// Ignores interrupts from here on, because the process ends by itself.
pub(crate) fn end_interrupts() {
    lock().is_over = true;
}
