//! Where everything goes in a new file.

use super::{Form, TextExtent};
use crate::dtype::Dtype;
use crate::error::Error;
use std::borrow::Cow;
use std::ops::Range;

/// The tensors of a new file. No slice, because a million items would take more memory than what they are made from.
#[doc(hidden)]
pub trait NewTensors: Sync {
    /// How many there are.
    fn count(&self) -> usize;

    fn get(&self, at: usize) -> NewTensor<'_>;
}

impl NewTensors for Vec<NewTensor<'_>> {
    fn count(&self) -> usize {
        self.len()
    }

    fn get(&self, at: usize) -> NewTensor<'_> {
        self[at].clone()
    }
}

/// A tensor of a new file.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct NewTensor<'a> {
    /// Its name; a format without names drops it.
    pub name: Cow<'a, str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Lengths of the dimensions, outermost first.
    pub shape: &'a [u64],
    /// The number of elements, the product of the shape.
    pub count: u64,
    /// Whether its elements will be in column-major order.
    pub fortran_order: bool,
    /// For text, how long the texts are.
    pub text: Option<Box<TextExtent>>,
    /// The format's name for a type that is not supported; the elements are then bytes.
    pub opaque: Option<&'a str>,
}

/// Where everything goes in a new file: literal bytes and tensors without gaps.
#[derive(Debug)]
#[doc(hidden)]
pub struct FileLayout {
    /// Headers and other literal bytes with their offsets, in order.
    pub literals: Vec<(u64, Vec<u8>)>,
    /// Where each tensor goes.
    pub places: Vec<Placement>,
    /// Length of the file.
    pub len: u64,
}

/// Where a tensor goes in a new file, and how.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Placement {
    /// How its elements are stored.
    pub form: Form,
    /// The range of its bytes.
    pub range: Range<u64>,
    /// A checksum of them that has to be written as well.
    pub crc: Option<Box<PendingCrc>>,
}

/// A CRC-32 that is known once a tensor is written, and is part of the file.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct PendingCrc {
    /// The sum of the bytes before the tensor's.
    pub before: crc32fast::Hasher,
    /// Where the sum of all bytes is to be written, as 4 bytes, little endian.
    pub offsets: [u64; 2],
}

pub(super) fn too_long() -> Error {
    Error::new("the output would be longer than a file can be")
}
