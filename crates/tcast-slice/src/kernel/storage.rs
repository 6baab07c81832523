//! Storage of elements in bytes.

use crate::dtype::{Class, Dtype};

/// Storage of the elements of a tensor in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The type of the elements.
    pub dtype: Dtype,
    /// Layout of types of fewer than 8 bits; irrelevant for types of whole bytes.
    pub layout: SubByteLayout,
    /// Most significant byte first (numpy's `>f4`); complex numbers swap each part. Only sources can be big-endian:
    /// results are little endian.
    pub big_endian: bool,
}

/// Layout of elements of fewer than 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubByteLayout {
    /// Without gaps, least significant bits first, as in ONNX and safetensors.
    Packed,
    /// One element per byte, as in numpy; signed integers extend their sign. The bits above an integer are ignored when
    /// it is read, as `ml_dtypes` does.
    PerByte,
    /// As `PerByte`, but the bits above an integer must be zeros or its sign. For bytes that may hold other data.
    PerByteStrict,
}

impl Storage {
    /// Little endian, without gaps.
    #[must_use]
    pub fn packed(dtype: Dtype) -> Self {
        Self { dtype, layout: SubByteLayout::Packed, big_endian: false }
    }

    /// Little endian, at least one byte per element.
    #[must_use]
    pub fn per_byte(dtype: Dtype) -> Self {
        Self { dtype, layout: SubByteLayout::PerByte, big_endian: false }
    }

    /// Size of `count` elements in bytes. `None` if the number does not fit in 64 bits.
    #[must_use]
    pub fn bytes(self, count: u64) -> Option<u64> {
        if self.is_per_byte() { Some(count) } else { self.dtype.packed_bytes(count) }
    }

    pub(super) fn is_per_byte(self) -> bool {
        self.layout != SubByteLayout::Packed && self.dtype.bits() < 8
    }

    /// Number of bytes to reverse per number, if byte order must change.
    pub(crate) fn swapped_bytes(self) -> Option<usize> {
        let parts = if self.dtype.class() == Class::Complex { 2 } else { 1 };
        let bytes = self.dtype.bits() as usize / 8 / parts;
        (self.big_endian && bytes > 1).then_some(bytes)
    }

    /// Byte offset of element `index`, which is a multiple of 8 for packed elements. `usize::MAX`, beyond every slice,
    /// if the offset does not fit.
    pub(super) fn offset(self, index: usize) -> usize {
        // Computed in 64 bits, because the number of bits in a large slice does not fit in 32.
        let bytes = self.bytes(index as u64).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::{Dtype, Storage};

    #[test]
    fn the_bits_of_a_large_slice_are_counted_where_addresses_have_32_bits() {
        assert_eq!(Storage::packed(Dtype::Float64).offset(1 << 26), 1 << 29);
        assert_eq!(Storage::packed(Dtype::Uint4).offset(1 << 31), 1 << 30);
    }
}
