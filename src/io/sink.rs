//! Targets of results: an output, an output with a checksum, or an existing file that is compared.

use super::map::MappedFile;
use super::output::Output;
use crate::error::{Error, Kind, Result, Wanted};
use crc32fast::Hasher;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Receiver of bytes at given offsets.
pub trait Sink: Sync {
    /// Returns the path for messages.
    fn path(&self) -> &Path;

    /// True if writes may come in any order.
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

/// An output that is written from front to back.
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

impl Output {
    /// Writes the output from front to back.
    pub(crate) fn fill(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let mut buffered = BufWriter::with_capacity(1 << 20, Appended { output: self, end: 0 });
        let written = write(&mut buffered).and_then(|()| buffered.flush());
        written.map_err(|error| error.downcast().unwrap_or_else(|error| Error::cannot("write", &error)))
    }
}

impl Sink for Output {
    fn path(&self) -> &Path {
        self.path()
    }

    fn is_seekable(&self) -> bool {
        self.is_seekable()
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.reserve(len)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_at(offset, bytes)
    }
}

/// Two outputs, one after the other: offsets from `start` on are in the second.
pub(crate) struct Divided<'a> {
    pub first: &'a Output,
    pub second: &'a Output,
    pub start: u64,
}

impl Sink for Divided<'_> {
    fn path(&self) -> &Path {
        self.first.path()
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.first.reserve(self.start)?;
        self.second.reserve(len - self.start)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let before = self.start.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let (first, second) = bytes.split_at(before);
        if !first.is_empty() {
            self.first.write_at(offset, first)?;
        }
        if second.is_empty() { Ok(()) } else { self.second.write_at(offset + before as u64 - self.start, second) }
    }
}

/// An output, with a checksum of everything that is written to it. Every byte is written once.
pub(crate) struct Summed<'a> {
    output: &'a Output,
    pieces: Mutex<Vec<(u64, Hasher)>>,
}

impl<'a> Summed<'a> {
    pub(crate) fn new(output: &'a Output) -> Self {
        Self { output, pieces: Mutex::default() }
    }

    /// Computes the CRC-32 of everything written.
    pub(crate) fn sum(self) -> u32 {
        let mut pieces = self.pieces.into_inner().unwrap_or_else(PoisonError::into_inner);
        pieces.sort_unstable_by_key(|(offset, _)| *offset);
        let mut sum = Hasher::new();
        for (_, piece) in &pieces {
            sum.combine(piece);
        }
        sum.finalize()
    }
}

impl Sink for Summed<'_> {
    fn path(&self) -> &Path {
        self.output.path()
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.output.reserve(len)
    }

    fn prepare(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut sum = Hasher::new();
        sum.update(bytes);
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).push((offset, sum));
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.output.write_at(offset, bytes)
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
        Err(Error::new("holds other bytes than this command writes")
            .of(Kind::Exists(Wanted::Folder))
            .in_file(self.path()))
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}
