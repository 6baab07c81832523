//! Readers of a tensor's bytes from front to back, for mapped, compressed and transposed tensors.

use super::gather::{Bytes, Gathered};
use super::{Checksum, Data, Tensor};
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::io::output::available;
use crate::text::{TEMPORARY_FOLDER, shorten};
use flate2::bufread::DeflateDecoder;
use std::fmt::Debug;
use std::io::{self, BufRead, Read, Write};
use std::ops::Range;
use std::sync::OnceLock;

/// Number of bytes of a mapped file that are prefetched at a time.
const WINDOW: usize = 1 << 20;

/// Compressed or encoded bytes.
pub trait Streamed: Debug + Send + Sync {
    /// Starts reading the bytes. The first file is the one that describes the tensor.
    ///
    /// # Errors
    /// When the bytes are damaged at the start.
    fn open<'a>(&self, files: &'a [MappedFile]) -> Result<Box<dyn Stream + 'a>>;

    /// Size in the file, in bytes.
    fn stored_len(&self) -> u64;

    /// True if any part can be read alone: opening reads nothing, and [`Stream::skip`] takes no time.
    fn is_divisible(&self) -> bool {
        false
    }

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
        each_window(self, bytes, |_| Ok(()))
    }

    /// Checks after the last byte that nothing follows, and the checksum if there is one.
    ///
    /// # Errors
    /// When something follows, or the bytes are damaged.
    fn finish(&mut self) -> Result<()>;
}

/// Reads the next bytes window by window.
fn each_window<S: Stream + ?Sized>(
    stream: &mut S,
    bytes: u64,
    mut done: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut window = vec![0; bytes.min(WINDOW as u64) as usize];
    let mut left = bytes;
    while left > 0 {
        let taken = &mut window[..left.min(WINDOW as u64) as usize];
        stream.fill(taken)?;
        done(taken)?;
        left -= taken.len() as u64;
    }
    Ok(())
}

/// Reads a tensor's elements in order.
pub struct Reader<'a>(Box<dyn Stream + 'a>);

impl<'a> Reader<'a> {
    /// Opens a reader at the first element; elements follow in the order of the file.
    ///
    /// # Errors
    /// When the bytes are damaged.
    pub fn open(tensor: &Tensor, files: &'a [MappedFile]) -> Result<Self> {
        Self::new(tensor, files, false)
    }

    /// Opens a reader at the first element; elements follow in row-major order, also for a column-major tensor.
    ///
    /// # Errors
    /// When the bytes are damaged, or the temporary file for transposing a compressed tensor cannot be written.
    pub fn open_row_major(tensor: &Tensor, files: &'a [MappedFile]) -> Result<Self> {
        if let (Data::Mapped { file, range, .. }, true) = (&tensor.data, tensor.fortran_order) {
            read_ahead(&files[*file as usize], range)?;
        }
        Self::open_at_once(tensor, files)
    }

    /// [`Reader::open_row_major`] for callers that may need only a few elements: nothing is read ahead.
    pub(crate) fn open_at_once(tensor: &Tensor, files: &'a [MappedFile]) -> Result<Self> {
        Self::new(tensor, files, tensor.fortran_order)
    }

    fn new(tensor: &Tensor, files: &'a [MappedFile], is_transposed: bool) -> Result<Self> {
        let stream: Box<dyn Stream + 'a> = match (&tensor.data, is_transposed) {
            (Data::Mapped { file, range, checksum }, false) => {
                Box::new(RangeStream::new(&files[*file as usize], range.clone(), false, checksum.clone()))
            }
            (Data::Mapped { file, range, checksum }, true) => {
                let bytes = Bytes::Borrowed(&files[*file as usize][range.clone()]);
                Box::new(Gathered::column_major(tensor, bytes, checksum.clone()))
            }
            (Data::Streamed(streamed), false) => streamed.open(files)?,
            (Data::Streamed(streamed), true) => {
                let bytes = tensor.elements.bytes(tensor.count).expect("elements of column-major tensors have a width");
                let spooled = spool(&mut *streamed.open(files)?, bytes, "to bring it into row-major order")?;
                Box::new(Gathered::column_major(tensor, Bytes::Spooled(spooled), None))
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

/// Reads a part of a file whose bytes are then gathered. Reading in order first is fast on disks, and detects a file that
/// was cut short.
pub(super) fn read_ahead(file: &MappedFile, range: &Range<usize>) -> Result<()> {
    range.clone().step_by(WINDOW).try_for_each(|start| file.prefetch(start..range.end.min(start + WINDOW)))
}

/// A range of a mapped file, prefetched window by window: a file cut short is an error, not a SIGBUS.
struct FileWindow<'a> {
    file: &'a MappedFile,
    /// Unread range; the first `ready` bytes have been prefetched.
    range: Range<usize>,
    ready: usize,
}

impl<'a> FileWindow<'a> {
    fn new(file: &'a MappedFile, range: Range<usize>) -> Self {
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

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<()> {
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

/// The bytes in a range of a file, unpacked if they are deflated, with their checksum.
pub(super) struct RangeStream<'a> {
    source: RangeSource<'a>,
    /// The expected checksum, and the sum of the bytes read so far.
    pub(super) sum: Option<(Box<Checksum>, crc32fast::Hasher)>,
}

enum RangeSource<'a> {
    Stored(FileWindow<'a>),
    Deflated(DeflateDecoder<FileWindow<'a>>),
}

impl<'a> RangeStream<'a> {
    pub(super) fn new(
        file: &'a MappedFile,
        range: Range<usize>,
        is_deflated: bool,
        checksum: Option<Box<Checksum>>,
    ) -> Self {
        let window = FileWindow::new(file, range);
        let source =
            if is_deflated { RangeSource::Deflated(DeflateDecoder::new(window)) } else { RangeSource::Stored(window) };
        Self { source, sum: checksum.map(|checksum| (checksum, crc32fast::Hasher::new())) }
    }
}

impl Stream for RangeStream<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        match &mut self.source {
            RangeSource::Stored(window) => window.fill(buffer)?,
            RangeSource::Deflated(decoder) => decoder.read_exact(buffer).map_err(damaged)?,
        }
        if let Some((_, sum)) = &mut self.sum {
            sum.update(buffer);
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        let RangeSource::Stored(window) = &mut self.source else {
            return each_window(self, bytes, |_| Ok(()));
        };
        if bytes > window.range.len() as u64 {
            return Err(Error::new("the data ends too early"));
        }
        if bytes > 0 {
            window.range.start += bytes as usize;
            window.ready = 0;
            self.sum = None;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if let RangeSource::Deflated(decoder) = &mut self.source
            && decoder.read(&mut [0]).map_err(damaged)? > 0
        {
            return Err(Error::new("is damaged: it unpacks to more bytes than the archive says"));
        }
        self.sum.as_ref().map_or(Ok(()), |(checksum, sum)| checksum.check(sum))
    }
}

/// An error of the decompressor, or of the file that it reads.
fn damaged(error: io::Error) -> Error {
    let text = shorten(&error.to_string());
    error.downcast().unwrap_or_else(|_| Error::new(format!("is damaged: it cannot be unpacked: {text}")))
}

/// Decodes the `bytes` bytes of a tensor into a temporary file, if their storage allows this.
pub(crate) fn unpack(tensor: &Tensor, files: &[MappedFile], bytes: u64) -> Result<()> {
    if let Data::Streamed(streamed) = &tensor.data
        && let Some(unpacked) = streamed.unpacked().filter(|unpacked| unpacked.get().is_none())
    {
        let _ = unpacked.set(spool(&mut *streamed.open(files)?, bytes, "to quantize it")?);
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
    each_window(stream, bytes, |window| file.write_all(window).map_err(failed))?;
    stream.finish()?;
    MappedFile::of(&file).map_err(failed)
}
