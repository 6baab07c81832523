//! Bytes as the source or the target of a conversion.

use super::sealed::{RunKernel, SealedSource, SealedTarget};
use crate::kernel::{Counts, Malformed, Storage};
use std::ops::Range;

/// Elements in bytes, of a type and byte order that are known only at run time, and without gaps if the storage says so: the
/// source of a conversion.
///
/// ```
/// use tcast_slice::{StoredBytes, dtype::Dtype, kernel::Storage};
///
/// let bytes = [0x3f, 0x80, 0xc0, 0x00]; // 1 and -2 in bfloat16, big endian
/// let storage = Storage { big_endian: true, ..Storage::packed(Dtype::Bfloat16) };
/// let mut values = [0.0_f32; 2];
/// tcast_slice::cast(&StoredBytes::new(&bytes, storage, 2).expect("two elements"), &mut values)?;
/// assert_eq!(values, [1.0, -2.0]);
/// # Ok::<(), tcast_slice::CastError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StoredBytes<'a> {
    bytes: &'a [u8],
    storage: Storage,
    len: usize,
}

impl<'a> StoredBytes<'a> {
    /// Takes the first `len` elements in `bytes`; `None` if there are fewer.
    #[must_use]
    pub fn new(bytes: &'a [u8], storage: Storage, len: usize) -> Option<Self> {
        Some(Self { bytes: bytes.get(..end_of(storage, len)?)?, storage, len })
    }
}

/// [`StoredBytes`] to be written: the target of a conversion. Bits beyond the last element become zero.
#[derive(Debug)]
pub struct StoredBytesMut<'a> {
    bytes: &'a mut [u8],
    storage: Storage,
    len: usize,
}

impl<'a> StoredBytesMut<'a> {
    /// Takes the first `len` elements in `bytes`; `None` if there is not enough space.
    #[must_use]
    pub fn new(bytes: &'a mut [u8], storage: Storage, len: usize) -> Option<Self> {
        Some(Self { bytes: bytes.get_mut(..end_of(storage, len)?)?, storage, len })
    }
}

/// Returns the number of bytes of some elements, if a slice can have as many.
fn end_of(storage: Storage, len: usize) -> Option<usize> {
    usize::try_from(storage.bytes(len as u64)?).ok()
}

/// Returns the bytes of elements that were counted; the first one starts at a byte.
fn stored_range(storage: Storage, range: &Range<usize>) -> Range<usize> {
    let at = |element| end_of(storage, element).unwrap_or(usize::MAX);
    at(range.start)..at(range.end)
}

impl SealedSource for StoredBytes<'_> {
    fn storage(&self) -> Storage {
        self.storage
    }
    fn len(&self) -> usize {
        self.len
    }
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[stored_range(self.storage, &range)]
    }
}

impl SealedTarget for StoredBytesMut<'_> {
    fn storage(&self) -> Storage {
        self.storage
    }
    fn len(&self) -> usize {
        self.len
    }
    fn fill(&mut self, range: Range<usize>, run: RunKernel) -> Result<Counts, Malformed> {
        let bytes = &mut self.bytes[stored_range(self.storage, &range)];
        let counts = run(bytes)?;
        if let Some(width) = self.storage.swapped_bytes() {
            bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
        Ok(counts)
    }
}
