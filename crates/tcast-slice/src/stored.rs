//! Bytes of a file or a buffer as the source of a conversion.

use super::sealed::SealedSource;
use crate::kernel::Storage;
use std::ops::Range;

/// Elements in bytes, of a type and byte order that are known only at run time: the source of a conversion to elements in
/// memory.
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
        let taken = usize::try_from(storage.bytes(len as u64)?).ok()?;
        Some(Self { bytes: bytes.get(..taken)?, storage, len })
    }
}

impl SealedSource for StoredBytes<'_> {
    fn storage(&self) -> Storage {
        self.storage
    }
    fn len(&self) -> usize {
        self.len
    }
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        let at = |element| self.storage.bytes(element as u64).expect("the elements were counted") as usize;
        &self.bytes[at(range.start)..at(range.end)]
    }
}
