//! The bytes of a file that are in the page cache (Linux).

use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, preadv2};
use std::fs::File;

/// State of a byte of a file in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheState {
    Cached,
    Absent,
    /// The file has no such byte.
    BeyondEnd,
    /// The file system does not say.
    Unknown,
}

impl CacheState {
    pub(super) fn of(file: &File, at: usize) -> Self {
        let mut byte = [0];
        match preadv2(file, &mut [IoSliceMut::new(&mut byte)], at as u64, ReadWriteFlags::NOWAIT) {
            Ok(0) => Self::BeyondEnd,
            Ok(_) => Self::Cached,
            Err(Errno::AGAIN) => Self::Absent,
            Err(_) => Self::Unknown,
        }
    }
}
