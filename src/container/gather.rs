//! Reads a tensor in row-major order that is stored in another one: in column-major order, or with any strides.

use super::{Checksum, Stream, Tensor, sum_of};
use crate::error::Result;
use crate::io::map::MappedFile;

/// A tensor in row-major order.
pub(super) struct Gathered<'a> {
    bytes: Bytes<'a>,
    gather: Gather,
    /// Number of bytes read so far.
    next: u64,
    checksum: Option<Box<Checksum>>,
}

impl<'a> Gathered<'a> {
    /// Starts with the first element of a column-major tensor whose elements all have the same number of whole bytes.
    pub(super) fn column_major(tensor: &Tensor, bytes: Bytes<'a>, checksum: Option<Box<Checksum>>) -> Self {
        let width = tensor.elements.bytes(1).expect("formats with column-major order have elements of fixed width");
        let dimensions = tensor.shape.iter().scan(1, |stride, &length| {
            let this = *stride;
            *stride *= length;
            Some((length, this))
        });
        Self { bytes, gather: Gather::new(width as usize, dimensions.collect()), next: 0, checksum }
    }

    /// Starts with the first element of a tensor with elements of `width` bytes, and these lengths and strides of its
    /// dimensions, in elements. The bytes begin with the first element.
    pub(super) fn strided(bytes: &'a [u8], width: usize, dimensions: &[(u64, u64)]) -> Self {
        let gather = Gather::new(width, dimensions.to_vec());
        Self { bytes: Bytes::Borrowed(bytes), gather, next: 0, checksum: None }
    }
}

/// The bytes of a tensor in the order of the file.
pub(super) enum Bytes<'a> {
    Borrowed(&'a [u8]),
    Spooled(MappedFile),
}

impl Bytes<'_> {
    fn all(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Spooled(file) => file,
        }
    }
}

impl Stream for Gathered<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.all();
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
        self.checksum.as_ref().map_or(Ok(()), |checksum| checksum.check(&sum_of(self.bytes.all())))
    }
}

/// Copies elements in row-major order.
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
    /// Prepares the copy of a tensor with these lengths and strides of its dimensions, in elements.
    fn new(width: usize, mut rows: Vec<(u64, u64)>) -> Self {
        let (columns, column_stride) = rows.pop().unwrap_or((1, 1));
        Self { width, rows, columns, column_stride }
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
