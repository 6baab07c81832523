//! One trial: a folder for its files, a limit for its memory, and checks of every error.

use peak_alloc::PeakAlloc;
use std::fs;
use std::path::Path;
use tcast::container::{self, Input};
use tcast::error::{Error, ErrorKind};
use tempfile::TempDir;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

pub(crate) const MIB: usize = 1 << 20;

thread_local! {
    static FOLDER: TempDir = tempfile::tempdir().expect("a temporary folder");
}

/// Runs `work` with a folder that is kept from trial to trial.
pub(crate) fn in_folder<T>(work: impl FnOnce(&Path) -> T) -> T {
    FOLDER.with(|folder| work(folder.path()))
}

/// Runs `work`, and checks that it holds at most `limit` bytes of memory at a time.
pub(crate) fn within<T>(limit: usize, work: impl FnOnce() -> T) -> T {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let result = work();
    let held = ALLOCATOR.peak_usage().saturating_sub(before);
    assert!(held <= limit, "{held} bytes of memory; {limit} should be enough");
    result
}

/// Opens bytes as a file with this extension; `None` if it is refused.
pub(crate) fn probe(extension: &str, bytes: &[u8], limit: usize) -> Option<Input> {
    in_folder(|folder| {
        let path = folder.join(format!("in.{extension}"));
        fs::write(&path, bytes).expect("the folder can be written to");
        within(limit, || container::probe(&path)).inspect_err(check_error).ok()
    })
}

/// Checks that the message is one line that can be shown, whatever the file contains.
pub(crate) fn check_error(error: &Error) {
    const LONGEST: usize = 16 << 10;
    let text = error.to_string();
    assert!(!text.contains(char::is_control), "{text:?}");
    assert!(text.len() < LONGEST, "a message of {} bytes", text.len());
    assert!(error.advice().iter().all(|advice| advice.to_string().len() < LONGEST), "long advice");
    assert_ne!(error.kind(), ErrorKind::Exists, "{text}");
}
