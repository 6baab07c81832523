//! The reader that every command shares: tensors in pieces, by several threads, in order.
//!
//! A [`SourceTensor`] is a stored tensor with the file that holds it. A [`Model`] knows which stored
//! tensors of a checkpoint form quantized weights. A [`LogicalTensor`] is either: elements as they are stored, or the
//! values of a weight, which are decoded row by row. [`Zip`] reads several of them side by side for statistics and
//! comparisons. The engine, which reads many tensors and writes, takes its bytes from [`MappedBytes`] and
//! [`read_values`], and hashes come from [`SourceTensor::open`]. [`in_order`] determines the order of results, and
//! the first of several errors.
//!
//! [`in_order`]: crate::threads::in_order

mod additions;
mod blocks;
mod checkpoint;
mod choice;
mod decoders;
mod experts;
mod logical;
mod model;
mod zip;

pub(crate) use additions::add_tensors;
pub(crate) use checkpoint::{Model, ModelTensor};
pub(crate) use choice::ContentChoice;
pub(crate) use decoders::{DecodedValues, Decoders};
pub(crate) use logical::{LogicalTensor, WeightSource, read_values};
pub(crate) use zip::{Piece, Zip};

use crate::container::{Checksum, Data, Elements, Form, Reader, Tensor, indices, unpack};
use crate::conversion;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use std::ops::Range;

/// A stored tensor, with its file.
#[derive(Clone, Copy)]
pub(crate) struct SourceTensor<'a> {
    /// The file, then the files with its external tensors: [`Input::files`](crate::container::Input).
    pub files: &'a [MappedFile],
    pub tensor: &'a Tensor,
    /// Type of its elements, with `--from` applied.
    pub elements: Elements,
    /// True if it is column-major and read in row-major order.
    pub is_transposed: bool,
}

impl<'a> SourceTensor<'a> {
    pub(crate) fn error(&self, error: Error) -> Error {
        error.in_tensor(&self.tensor.name).in_file(self.files[0].path())
    }

    pub(crate) fn bytes(&self, count: u64) -> usize {
        self.elements.bytes(count).expect("the headers were checked against the file") as usize
    }

    /// Returns the bytes that the tensor takes in its file.
    pub(crate) fn stored_len(&self) -> u64 {
        self.tensor.data.stored_len()
    }

    /// True if its elements are read in column-major order.
    pub(crate) fn fortran_order(&self) -> bool {
        self.tensor.fortran_order && !self.is_transposed
    }

    /// Returns the indices of an element, counted in the order of reading.
    pub(crate) fn indices(&self, element: u64) -> Vec<u64> {
        indices(element, &self.tensor.shape, self.fortran_order())
    }

    /// Returns the elements as messages name them.
    pub(crate) fn named(&self) -> conversion::NamedElements<'a> {
        let Tensor { count, ref shape, .. } = *self.tensor;
        conversion::NamedElements { count, shape, fortran_order: self.fortran_order() }
    }

    /// Returns its bytes, if they can be read in any order.
    pub(crate) fn mapped(&self) -> Option<MappedBytes<'a>> {
        let (file, range, checksum) = match &self.tensor.data {
            Data::Mapped { file, range, checksum } => (&self.files[*file as usize], range.clone(), checksum.as_deref()),
            Data::Streamed(streamed) => {
                let file = streamed.unpacked()?.get()?;
                (file, 0..file.len(), None)
            }
        };
        (!self.is_transposed).then_some(MappedBytes { file, range, checksum })
    }

    /// True if any part of it can be read alone.
    pub(crate) fn is_divisible(&self) -> bool {
        let is_divisible = |data: &Data| matches!(data, Data::Streamed(streamed) if streamed.is_divisible());
        self.mapped().is_some() || (is_divisible(&self.tensor.data) && !self.is_transposed)
    }

    /// Reads some bytes of a tensor that is divisible; `buffer` holds them if they are in several places. Checksums are left
    /// to the caller.
    pub(crate) fn read<'b>(&self, range: Range<usize>, buffer: &'b mut Vec<u8>) -> Result<&'b [u8]>
    where
        'a: 'b,
    {
        if let Some(mapped) = self.mapped() {
            return mapped.read(range);
        }
        buffer.resize(range.len(), 0);
        let mut reader = Reader::open(self.tensor, self.files)?;
        reader.skip(range.start as u64)?;
        reader.fill(buffer)?;
        Ok(buffer)
    }

    /// Makes [`SourceTensor::mapped`] possible for elements in a typed field of an ONNX tensor.
    pub(crate) fn unpack(&self) -> Result<()> {
        unpack(self.tensor, self.files, self.bytes(self.tensor.count) as u64).map_err(|error| self.error(error))
    }

    /// True if its bytes can be read in any order, are little endian and in row-major order, and have no checksum, as parts
    /// of weights must.
    pub(crate) fn is_plain(&self) -> bool {
        let is_little = match self.elements {
            Elements::Typed(Form::Numbers(storage)) => !storage.big_endian || storage.dtype.bits() <= 8,
            _ => true,
        };
        is_little && !self.tensor.fortran_order && self.mapped().is_some_and(|mapped| mapped.checksum.is_none())
    }

    /// Reads all bytes of a tensor that describes others.
    pub(crate) fn small(&self) -> Result<Vec<u8>> {
        /// Maximum bytes of a description, which is JSON of a few hundred bytes, or two numbers.
        const MOST: u64 = 1 << 20;
        self.all(MOST, "is too large to be the description of a weight")
    }

    /// Reads all bytes of a tensor, one element after the other. `refusal` is the error for more than `most` bytes.
    pub(crate) fn all(&self, most: u64, refusal: &'static str) -> Result<Vec<u8>> {
        let bytes = self.elements.bytes(self.tensor.count).filter(|bytes| *bytes <= most);
        let bytes = bytes.ok_or_else(|| self.error(Error::new(refusal)))?;
        let mut read = vec![0; bytes as usize];
        self.open()?.fill(&mut read).map_err(|error| self.error(error))?;
        Ok(read)
    }

    pub(crate) fn open(&self) -> Result<Reader<'a>> {
        let open = if self.is_transposed { Reader::open_row_major } else { Reader::open };
        open(self.tensor, self.files).map_err(|error| self.error(error))
    }
}

/// The bytes of a tensor that can be read in any order.
#[derive(Clone)]
pub(crate) struct MappedBytes<'a> {
    pub file: &'a MappedFile,
    pub range: Range<usize>,
    pub checksum: Option<&'a Checksum>,
}

impl<'a> MappedBytes<'a> {
    /// True if these are the bytes of another tensor.
    pub(crate) fn is_equal(&self, other: &Self) -> Result<bool> {
        const PIECE: usize = 1 << 24;
        if self.range.len() != other.range.len() {
            return Ok(false);
        }
        for start in (0..self.range.len()).step_by(PIECE) {
            let range = start..(start + PIECE).min(self.range.len());
            if self.read(range.clone())? != other.read(range)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads some of the bytes from the disk.
    pub(crate) fn read(&self, part: Range<usize>) -> Result<&'a [u8]> {
        let place = self.range.start + part.start..self.range.start + part.end;
        self.file.prefetch(place.clone())?;
        Ok(&self.file[place])
    }
}

/// Progress of reading a tensor, in bytes of its file, even if it is compressed.
pub(crate) struct Share {
    bytes: u64,
    elements: u64,
    reported: u64,
}

impl Share {
    /// Creates the progress of a tensor of which nothing has been read.
    pub(crate) fn new(bytes: u64, elements: u64) -> Self {
        Self { bytes, elements: elements.max(1), reported: 0 }
    }

    /// Returns the bytes that were read since the last call, if `elements` are done now.
    pub(crate) fn up_to(&mut self, elements: u64) -> u64 {
        let read = (u128::from(self.bytes) * u128::from(elements) / u128::from(self.elements)) as u64;
        let new = read.saturating_sub(self.reported);
        self.reported += new;
        new
    }
}
