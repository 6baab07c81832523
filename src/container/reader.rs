//! Readers of a tensor's bytes from front to back, for mapped, compressed and transposed tensors.

use super::{Checksum, Data, Tensor, sum_of};
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::io::output::available;
use crate::text::TEMPORARY_FOLDER;
use std::fmt::Debug;
use std::io::{self, BufRead, Read, Write};
use std::ops::Range;
use std::sync::OnceLock;

/// Number of bytes of a mapped file that are prefetched at a time.
const WINDOW: usize = 1 << 20;

/// Compressed or encoded bytes.
pub trait Streamed: Debug + Send + Sync {
    /// Starts reading the bytes.
    ///
    /// # Errors
    /// When the bytes are damaged at the start.
    fn open<'a>(&self, file: &'a MappedFile) -> Result<Box<dyn Stream + 'a>>;

    /// Size in the file, in bytes.
    fn stored_len(&self) -> u64;

    /// Place for the decoded bytes, if they can be read in any order from there.
    fn unpacked(&self) -> Option<&OnceLock<MappedFile>> {
        None
    }
}

/// Bytes in sequence.
pub trait Stream {
    /// Fills all of `buffer` with the next bytes.
    ///
    /// # Errors
    /// When there are not enough bytes, or they are damaged.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()>;

    /// Skips the next bytes; [`Stream::finish`] is useless afterwards.
    ///
    /// # Errors
    /// As [`Stream::fill`].
    fn skip(&mut self, bytes: u64) -> Result<()> {
        let mut passed = vec![0; bytes.min(WINDOW as u64) as usize];
        let mut left = bytes;
        while left > 0 {
            let now = left.min(WINDOW as u64) as usize;
            self.fill(&mut passed[..now])?;
            left -= now as u64;
        }
        Ok(())
    }

    /// Checks after the last byte that nothing follows, and the checksum if there is one.
    ///
    /// # Errors
    /// When something follows, or the bytes are damaged.
    fn finish(&mut self) -> Result<()>;
}

/// Reads a tensor's elements in order.
pub struct Reader<'a>(Box<dyn Stream + 'a>);

impl<'a> Reader<'a> {
    /// Opens a reader at the first element. With `transposed`, a column-major tensor is read in row-major order.
    ///
    /// # Errors
    /// When the bytes are damaged, or the temporary file for transposing a compressed tensor cannot be written.
    pub fn open(tensor: &Tensor, files: &'a [MappedFile], transposed: bool) -> Result<Self> {
        // Reading in order first is fast on disks, and detects a file that was cut short.
        if let (Data::Mapped { file, range, .. }, true) = (&tensor.data, transposed) {
            let mut window = FileWindow::new(&files[*file], range.clone());
            while !window.range.is_empty() {
                let bytes = window.next()?.len();
                window.skip(bytes);
            }
        }
        Self::open_at_once(tensor, files, transposed)
    }

    /// [`Reader::open`] for callers that may need only a few elements: nothing is read ahead.
    pub(crate) fn open_at_once(tensor: &Tensor, files: &'a [MappedFile], transposed: bool) -> Result<Self> {
        let stream: Box<dyn Stream + 'a> = match (&tensor.data, transposed) {
            (Data::Mapped { file, range, checksum }, false) => {
                let sum = checksum.clone().map(|checksum| (checksum, crc32fast::Hasher::new()));
                Box::new(MappedStream { window: FileWindow::new(&files[*file], range.clone()), sum })
            }
            (Data::Mapped { file, range, checksum }, true) => {
                let bytes = Bytes::Borrowed(&files[*file][range.clone()]);
                Box::new(Gathered { bytes, gather: Gather::new(tensor), next: 0, checksum: checksum.clone() })
            }
            (Data::Streamed(streamed), false) => streamed.open(&files[0])?,
            (Data::Streamed(streamed), true) => {
                let gather = Gather::new(tensor);
                let (bytes, why) = (tensor.count * gather.width as u64, "to bring it into row-major order");
                let spooled = spool(&mut *streamed.open(&files[0])?, bytes, why)?;
                Box::new(Gathered { bytes: Bytes::Spooled(spooled), gather, next: 0, checksum: None })
            }
        };
        Ok(Self(stream))
    }

    /// Fills all of `buffer` with the next bytes.
    ///
    /// # Errors
    /// When the bytes cannot be read, or are damaged.
    pub fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.0.fill(buffer)
    }

    /// Skips the next bytes, at once if they are mapped.
    ///
    /// # Errors
    /// When the bytes cannot be read.
    pub fn skip(&mut self, bytes: u64) -> Result<()> {
        self.0.skip(bytes)
    }

    /// Checks after the last element that the bytes were sound.
    ///
    /// # Errors
    /// When something follows, or the bytes are damaged.
    pub fn finish(mut self) -> Result<()> {
        self.0.finish()
    }
}

/// A range of a mapped file, prefetched window by window: a file cut short is an error, not a SIGBUS.
pub(super) struct FileWindow<'a> {
    file: &'a MappedFile,
    /// Unread range; the first `ready` bytes have been prefetched.
    range: Range<usize>,
    ready: usize,
}

impl<'a> FileWindow<'a> {
    pub(super) fn new(file: &'a MappedFile, range: Range<usize>) -> Self {
        Self { file, range, ready: 0 }
    }

    /// Returns the next bytes, at least one unless all are read.
    fn next(&mut self) -> Result<&'a [u8]> {
        if self.ready == 0 {
            self.ready = self.range.len().min(WINDOW);
            self.file.prefetch(self.range.start..self.range.start + self.ready)?;
        }
        Ok(&self.file[self.range.start..self.range.start + self.ready])
    }

    fn skip(&mut self, bytes: usize) {
        self.range.start += bytes;
        self.ready -= bytes;
    }

    pub(super) fn fill(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let next = self.next()?;
            let taken = next.len().min(buffer.len());
            if taken == 0 {
                return Err(Error::new("the data ends too early"));
            }
            buffer[..taken].copy_from_slice(&next[..taken]);
            buffer = &mut buffer[taken..];
            self.skip(taken);
        }
        Ok(())
    }
}

/// For decompressors.
impl Read for FileWindow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let taken = self.fill_buf()?.read(buffer)?;
        self.consume(taken);
        Ok(taken)
    }
}

impl BufRead for FileWindow<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.next().map_err(io::Error::other)
    }

    fn consume(&mut self, amount: usize) {
        self.skip(amount);
    }
}

struct MappedStream<'a> {
    window: FileWindow<'a>,
    sum: Option<(Box<Checksum>, crc32fast::Hasher)>,
}

impl Stream for MappedStream<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.window.fill(buffer)?;
        if let Some((_, sum)) = &mut self.sum {
            sum.update(buffer);
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.window.range.len() as u64 {
            return Err(Error::new("the data ends too early"));
        }
        if bytes > 0 {
            self.window.range.start += bytes as usize;
            self.window.ready = 0;
            self.sum = None;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.sum.as_ref().map_or(Ok(()), |(checksum, sum)| checksum.check(sum))
    }
}

/// A column-major tensor in row-major order.
struct Gathered<'a> {
    bytes: Bytes<'a>,
    gather: Gather,
    /// Number of bytes read so far.
    next: u64,
    checksum: Option<Box<Checksum>>,
}

enum Bytes<'a> {
    Borrowed(&'a [u8]),
    Spooled(MappedFile),
}

impl Stream for Gathered<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let bytes = match &self.bytes {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Spooled(file) => &**file,
        };
        let width = self.gather.width;
        let mut buffer = buffer;
        while !buffer.is_empty() {
            let (element, inside) = (self.next / width as u64, (self.next % width as u64) as usize);
            let whole = if inside == 0 { buffer.len() / width * width } else { 0 };
            let taken = if whole > 0 { whole } else { buffer.len().min(width - inside) };
            let (now, later) = std::mem::take(&mut buffer).split_at_mut(taken);
            if whole > 0 {
                self.gather.copy(bytes, element, now);
            } else {
                // A part of one wide text.
                let at = self.gather.place(element) * width + inside;
                now.copy_from_slice(&bytes[at..at + taken]);
            }
            buffer = later;
            self.next += taken as u64;
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.next += bytes;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Bytes::Borrowed(bytes) = self.bytes else { return Ok(()) };
        self.checksum.as_ref().map_or(Ok(()), |checksum| checksum.check(&sum_of(bytes)))
    }
}

/// Decodes the `bytes` bytes of a tensor into a temporary file, if their storage allows this.
pub(crate) fn unpack(tensor: &Tensor, files: &[MappedFile], bytes: u64) -> Result<()> {
    if let Data::Streamed(streamed) = &tensor.data
        && let Some(unpacked) = streamed.unpacked().filter(|unpacked| unpacked.get().is_none())
    {
        let _ = unpacked.set(spool(&mut *streamed.open(&files[0])?, bytes, "to quantize it")?);
    }
    Ok(())
}

/// Writes a stream to an unnamed temporary file, so that it can be read in another order.
fn spool(stream: &mut dyn Stream, bytes: u64, why: &str) -> Result<MappedFile> {
    let failed = |error: io::Error| {
        Error::io(&format!("cannot unpack into a temporary file, {why}"), &error)
            .remedy(format!("set {TEMPORARY_FOLDER} to a folder with enough space"))
    };
    if available(&std::env::temp_dir()).is_some_and(|available| available < bytes) {
        return Err(failed(io::ErrorKind::StorageFull.into()));
    }
    let mut file = tempfile::tempfile().map_err(failed)?;
    let mut buffer = vec![0; WINDOW];
    let mut left = bytes;
    while left > 0 {
        let taken = left.min(WINDOW as u64) as usize;
        stream.fill(&mut buffer[..taken])?;
        file.write_all(&buffer[..taken]).map_err(failed)?;
        left -= taken as u64;
    }
    stream.finish()?;
    MappedFile::of(&file).map_err(failed)
}

/// Copies elements of a column-major tensor in row-major order.
struct Gather {
    /// Size of an element in bytes.
    width: usize,
    /// Lengths of all dimensions except the last, and the number of elements between consecutive indices.
    rows: Vec<(u64, u64)>,
    /// The same for the last dimension.
    columns: u64,
    column_stride: u64,
}

impl Gather {
    /// Prepares the copy of a tensor whose elements all have the same number of whole bytes.
    fn new(tensor: &Tensor) -> Self {
        let width = tensor.elements.bytes(1).expect("formats with column-major order have elements of fixed width");
        let strides = tensor.shape.iter().scan(1, |stride, &length| {
            let this = *stride;
            *stride *= length;
            Some((length, this))
        });
        let mut rows: Vec<(u64, u64)> = strides.collect();
        let (columns, column_stride) = rows.pop().expect("one number alone is in either order");
        Self { width: width as usize, rows, columns, column_stride }
    }

    /// Copies elements starting at `first`, counted in row-major order, until `output` is full.
    fn copy(&self, bytes: &[u8], first: u64, output: &mut [u8]) {
        match self.width {
            1 => self.copy_wide::<1>(bytes, first, output),
            2 => self.copy_wide::<2>(bytes, first, output),
            4 => self.copy_wide::<4>(bytes, first, output),
            8 => self.copy_wide::<8>(bytes, first, output),
            16 => self.copy_wide::<16>(bytes, first, output),
            width => {
                let count = (output.len() / width) as u64;
                self.pairs(first, count, |from, to| {
                    output[to * width..][..width].copy_from_slice(&bytes[from * width..][..width]);
                });
            }
        }
    }

    fn copy_wide<const N: usize>(&self, bytes: &[u8], first: u64, output: &mut [u8]) {
        let (from_all, to_all) = (bytes.as_chunks::<N>().0, output.as_chunks_mut::<N>().0);
        self.pairs(first, to_all.len() as u64, |from, to| to_all[to] = from_all[from]);
    }

    /// Calls `copy` with the offsets in source and result of `count` elements.
    ///
    /// The rows are visited in tiles, column by column: in a matrix, a tile's part of a column is contiguous, so each
    /// page and cache line of the source is visited once per tile instead of once per row.
    fn pairs(&self, first: u64, count: u64, mut copy: impl FnMut(usize, usize)) {
        const TILE: u64 = 64;
        let end = first + count;
        let mut next = first;
        while next < end {
            let (row, column) = (next / self.columns, next % self.columns);
            let whole = (end - next) / self.columns;
            // A partial row at either end, whole rows in between.
            let (rows, to) = if column > 0 || whole == 0 {
                (1, self.columns.min(column + end - next))
            } else {
                (whole.min(TILE), self.columns)
            };
            let mut starts = [0; TILE as usize];
            let starts = &mut starts[..rows as usize];
            for (row, start) in (row..).zip(&mut *starts) {
                *start = self.row_start(row);
            }
            for column_now in column..to {
                let shift = column_now * self.column_stride;
                let mut place = next - first + column_now - column;
                for start in &*starts {
                    copy((start + shift) as usize, place as usize);
                    place += self.columns;
                }
            }
            next += rows * (to - column);
        }
    }

    /// Returns the offset in the source of an element, counted in row-major order.
    fn place(&self, element: u64) -> usize {
        (self.row_start(element / self.columns) + element % self.columns * self.column_stride) as usize
    }

    /// Returns the offset in the source of a row's first element.
    fn row_start(&self, mut row: u64) -> u64 {
        let mut start = 0;
        for &(length, stride) in self.rows.iter().rev() {
            start += row % length * stride;
            row /= length;
        }
        start
    }
}
