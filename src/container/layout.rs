//! Where everything goes in a file that is to be written.

use super::{Form, TextExtent};
use crate::dtype::Dtype;
use crate::error::Error;
use std::borrow::Cow;
use std::ops::Range;

/// A tensor of a file that is to be written.
#[derive(Debug)]
#[doc(hidden)]
pub struct NewTensor<'a> {
    /// Its name; a format without names drops it.
    pub name: Cow<'a, str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Lengths of the dimensions, the outermost first.
    pub shape: &'a [u64],
    /// Elements, which is the product of the shape.
    pub count: u64,
    /// Whether its elements will come in column-major order.
    pub fortran_order: bool,
    /// Of text, how long the texts are.
    pub text: Option<Box<TextExtent>>,
    /// How the format names a type that is not supported; the elements are its bytes then.
    pub opaque: Option<&'a str>,
}

/// Where everything goes in a new file: literal bytes and tensors without gaps.
#[derive(Debug)]
#[doc(hidden)]
pub struct FileLayout {
    /// Headers and the like with their offsets, in order.
    pub literals: Vec<(u64, Vec<u8>)>,
    /// For each tensor, where it goes.
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
    /// Where its bytes lie.
    pub range: Range<u64>,
    /// A checksum of them that is to be written as well.
    pub crc: Option<Box<PendingCrc>>,
}

/// A CRC-32 that is known when a tensor is written, and belongs into the file.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct PendingCrc {
    /// The sum of the bytes before the tensor's.
    pub before: crc32fast::Hasher,
    /// Where the sum of all is to be written, as 4 bytes, the lowest first.
    pub offsets: [u64; 2],
}

pub(super) fn too_long() -> Error {
    Error::new("the output would be longer than a file can be")
}
