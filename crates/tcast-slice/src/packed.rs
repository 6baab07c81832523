//! Elements in bytes, without gaps.

use super::Element;
use super::sealed::{RunKernel, SealedSource, SealedTarget};
use crate::kernel::{Counts, Malformed, Storage};
use std::marker::PhantomData;
use std::ops::Range;

/// Elements in bytes without gaps, as ONNX and safetensors store them: several in a byte if they have fewer than 8 bits, the
/// first in the lowest bits; wider ones little endian.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a, E> {
    bytes: &'a [u8],
    len: usize,
    element: PhantomData<E>,
}

impl<'a, E: Element> Packed<'a, E> {
    /// Takes the first `len` elements in `bytes`; `None` if there are fewer.
    #[must_use]
    pub fn new(bytes: &'a [u8], len: usize) -> Option<Self> {
        Some(Self { bytes: bytes.get(..packed_bytes::<E>(len)?)?, len, element: PhantomData })
    }
}

/// [`Packed`] elements to be written. Bits beyond the last element become zero.
#[derive(Debug)]
pub struct PackedMut<'a, E> {
    bytes: &'a mut [u8],
    len: usize,
    element: PhantomData<E>,
}

impl<'a, E: Element> PackedMut<'a, E> {
    /// Takes the first `len` elements in `bytes`; `None` if there is not enough space.
    #[must_use]
    pub fn new(bytes: &'a mut [u8], len: usize) -> Option<Self> {
        Some(Self { bytes: bytes.get_mut(..packed_bytes::<E>(len)?)?, len, element: PhantomData })
    }
}

fn packed_bytes<E: Element>(len: usize) -> Option<usize> {
    usize::try_from(E::DTYPE.packed_bytes(len as u64)?).ok()
}

/// Returns the bytes of some elements; the first one starts at a byte.
fn packed_range<E: Element>(range: &Range<usize>) -> Range<usize> {
    let at = |element| packed_bytes::<E>(element).unwrap_or(usize::MAX);
    at(range.start)..at(range.end)
}

impl<E: Element> SealedSource for Packed<'_, E> {
    fn storage(&self) -> Storage {
        Storage::packed(E::DTYPE)
    }
    fn len(&self) -> usize {
        self.len
    }
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[packed_range::<E>(&range)]
    }
}

impl<E: Element> SealedTarget for PackedMut<'_, E> {
    fn storage(&self) -> Storage {
        Storage::packed(E::DTYPE)
    }
    fn len(&self) -> usize {
        self.len
    }
    fn fill(&mut self, range: Range<usize>, run: RunKernel) -> Result<Counts, Malformed> {
        run(&mut self.bytes[packed_range::<E>(&range)])
    }
}
