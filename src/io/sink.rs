//! Targets of results: an output, or an existing file that is compared.

use super::map::MappedFile;
use crate::error::{Error, OTHER_FOLDER, Result};
use std::io::{self, Write};
use std::path::Path;

/// Receiver of bytes at given offsets.
pub trait Sink: Sync {
    /// Returns the path for messages.
    fn path(&self) -> &Path;

    /// True if writes may come in any order; a pipe needs them in the order of their offsets.
    fn is_seekable(&self) -> bool {
        true
    }

    /// Reserves `len` bytes.
    ///
    /// # Errors
    /// When there is not enough space.
    fn reserve(&self, _len: u64) -> Result<()> {
        Ok(())
    }

    /// Does the work that threads can do in parallel before one of them writes `bytes` at `offset`.
    ///
    /// # Errors
    /// When they cannot be written.
    fn prepare(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Writes all of `bytes`, which are prepared, at `offset`.
    ///
    /// # Errors
    /// When it cannot write them.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Prepares and writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// When one of the two steps fails.
    fn put(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.prepare(offset, bytes)?;
        self.write_at(offset, bytes)
    }
}

/// A sink that is written from front to back.
pub(crate) struct Appended<'a> {
    pub output: &'a dyn Sink,
    pub end: u64,
}

impl Write for Appended<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.put(self.end, bytes).map_err(io::Error::other)?;
        self.end += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that must already contain what is written to it.
pub(crate) struct ExistingFile<'a>(pub(crate) &'a MappedFile);

impl Sink for ExistingFile<'_> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn prepare(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let range = usize::try_from(offset).ok().map(|start| start..start.saturating_add(bytes.len()));
        if let Some(range) = range.filter(|range| range.end <= self.0.len()) {
            self.0.prefetch(range.clone())?;
            if self.0[range] == *bytes {
                return Ok(());
            }
        }
        Err(Error::new("holds other bytes than this command writes").existing(OTHER_FOLDER).in_file(self.path()))
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}
