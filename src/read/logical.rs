//! Tensors as a model sees them: stored as elements, or as the parts of a quantized weight.

use super::SourceTensor;
use crate::container::{Checksum, Elements, indices};
use crate::conversion::NamedElements;
use crate::error::{Error, Result};
use crate::kernel::Storage;
use crate::quant::Decoder;
use std::ops::Range;

/// A quantized weight, and its decoder.
pub(crate) struct WeightSource<'a> {
    /// The name of the decoded tensor.
    pub name: String,
    /// The parts in the order of the decoder, the codes first. They are mapped.
    pub parts: Vec<SourceTensor<'a>>,
    pub decoder: Decoder,
}

impl WeightSource<'_> {
    pub(crate) fn error(&self, error: Error) -> Error {
        self.parts[0].error(error.in_tensor(&self.name))
    }

    /// Decodes some elements into `buffer`, together with the elements around them; returns the bytes of the requested
    /// ones.
    pub(super) fn decode<'b>(&self, elements: Range<u64>, buffer: &'b mut Vec<u8>) -> Result<&'b [u8]> {
        let (values, width) = (self.decoder.around(elements.clone()), u64::from(self.decoder.target().bits() / 8));
        buffer.resize(((values.end - values.start) * width) as usize, 0);
        let place = |element: u64| ((element - values.start) * width) as usize;
        let place = place(elements.start)..place(elements.end);
        let parts = read_values(&self.decoder, &self.parts, values.clone());
        let decoded = parts.and_then(|parts| self.decoder.decode_values(values, &parts, buffer));
        decoded.map_err(|error| self.error(error))?;
        Ok(&buffer[place])
    }
}

/// Returns the mapped bytes of all parts of a quantized weight. Reads from the disk only the bytes that the requested
/// values need, which must be divided by [`Decoder::cut`].
pub(crate) fn read_values<'d>(
    decoder: &'d Decoder,
    parts: &[SourceTensor<'d>],
    values: Range<u64>,
) -> Result<Vec<&'d [u8]>> {
    // All values of transposed layouts need the whole parts, which were read with the first values.
    let before = values.start.checked_sub(1).map(|last| decoder.value_ranges(last..values.start));
    let is_read = |at: usize, range: &Range<u64>| {
        before.as_ref().is_some_and(|before| before[at].start <= range.start && range.end <= before[at].end)
    };
    let bytes = |(at, (part, range)): (usize, (&SourceTensor<'d>, Range<u64>))| {
        if let Some(bytes) = decoder.held(at) {
            return Ok(bytes);
        }
        let mapped = part.mapped().expect("parts of weights are mapped");
        if !is_read(at, &range) {
            mapped.read(range.start as usize..range.end as usize).map_err(|error| part.error(error))?;
        }
        Ok(&mapped.file[mapped.range])
    };
    parts.iter().zip(decoder.value_ranges(values)).enumerate().map(bytes).collect()
}

/// A tensor that can be read element by element.
#[derive(Clone, Copy)]
pub(crate) enum LogicalTensor<'a> {
    Stored(SourceTensor<'a>),
    /// The values of a quantized weight, in row-major order.
    Weight(&'a WeightSource<'a>),
}

impl<'a> LogicalTensor<'a> {
    pub(crate) fn error(&self, error: Error) -> Error {
        match self {
            Self::Stored(stored) => stored.error(error),
            Self::Weight(weight) => weight.error(error),
        }
    }

    pub(crate) fn elements(&self) -> Elements {
        match self {
            Self::Stored(stored) => stored.elements,
            Self::Weight(weight) => Elements::numbers(Storage::packed(weight.decoder.target())),
        }
    }

    pub(crate) fn bytes(&self, count: u64) -> usize {
        self.elements().bytes(count).expect("the headers were checked against the file") as usize
    }

    pub(crate) fn stored_len(&self) -> u64 {
        match self {
            Self::Stored(stored) => stored.stored_len(),
            Self::Weight(weight) => weight.parts.iter().map(SourceTensor::stored_len).sum(),
        }
    }

    /// Reads some elements, at least one, into `buffer`, perhaps after a few before them, so that the first one starts a
    /// byte. Returns the index of the first one.
    pub(crate) fn read(&self, elements: Range<u64>, buffer: &mut Vec<u8>) -> Result<u64> {
        let stored = match self {
            Self::Weight(weight) => {
                let mut around = Vec::new();
                buffer.extend_from_slice(weight.decode(elements.clone(), &mut around)?);
                return Ok(elements.start);
            }
            Self::Stored(stored) => stored,
        };
        let first = elements.start - elements.start % 8;
        let place = self.bytes(first)..self.bytes(elements.end);
        if let Some(mapped) = stored.mapped().filter(|mapped| mapped.checksum.is_none()) {
            buffer.extend_from_slice(mapped.read(place).map_err(|error| self.error(error))?);
            return Ok(first);
        }
        let mut reader = stored.open()?;
        buffer.resize(place.len(), 0);
        let is_end = elements.end == self.named().count;
        let read = reader.skip(place.start as u64).and_then(|()| reader.fill(buffer));
        let read = read.and_then(|()| if is_end { reader.finish() } else { Ok(()) });
        read.map_err(|error| self.error(error))?;
        Ok(first)
    }

    /// Returns the indices of an element, counted in the order of reading.
    pub(crate) fn indices(&self, element: u64) -> Vec<u64> {
        let NamedElements { shape, fortran_order, .. } = self.named();
        indices(element, shape, fortran_order)
    }

    /// Returns the elements as messages name them.
    pub(crate) fn named(&self) -> NamedElements<'a> {
        match self {
            Self::Stored(stored) => stored.named(),
            Self::Weight(WeightSource { decoder, .. }) => NamedElements {
                count: decoder.rows() * decoder.columns(),
                shape: decoder.shape(),
                fortran_order: false,
            },
        }
    }

    pub(super) fn weight(&self) -> Option<&'a WeightSource<'a>> {
        if let Self::Weight(weight) = self { Some(weight) } else { None }
    }

    /// True if any part of it can be read alone.
    pub(super) fn is_divisible(&self) -> bool {
        if let Self::Stored(stored) = self { stored.is_divisible() } else { true }
    }

    /// Returns the checksum of its stored bytes.
    pub(super) fn checksum(&self) -> Option<&'a Checksum> {
        if let Self::Stored(stored) = self { stored.mapped()?.checksum } else { None }
    }
}
