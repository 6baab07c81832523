//! Layout of a new file.

use super::gguf::{ComputedTensor, GgufKey};
use super::{Form, TextExtent};
use crate::blocks::BlockFormat;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use std::borrow::Cow;
use std::ops::Range;

/// The tensors of a new file. This is not a slice, because a million items would take more memory than their sources.
pub trait NewTensors: Sync {
    /// Number of tensors.
    fn count(&self) -> usize;

    fn get(&self, at: usize) -> NewTensor<'_>;

    /// True if the caller writes [`FileLayout::entries`].
    fn are_kept(&self) -> bool {
        false
    }
}

impl dyn NewTensors + '_ {
    pub(super) fn iter(&self) -> impl Iterator<Item = NewTensor<'_>> {
        (0..self.count()).map(|at| self.get(at))
    }
}

impl NewTensors for Vec<NewTensor<'_>> {
    fn count(&self) -> usize {
        self.len()
    }

    fn get(&self, at: usize) -> NewTensor<'_> {
        self[at].clone()
    }
}

/// Metadata of a new file.
#[derive(Clone, Debug, Default)]
pub struct NewMetadata {
    /// Names and values; `None` for a file without such a section.
    pub texts: Option<Vec<(String, String)>>,
    /// The typed keys of a GGUF file, which other formats cannot hold.
    pub keys: Vec<GgufKey>,
    /// Tensors of a GGUF file that no input has. They come first.
    pub computed: Vec<ComputedTensor>,
}

/// A tensor of a new file.
#[derive(Clone, Debug)]
pub struct NewTensor<'a> {
    /// Name of the tensor; a format without names drops it.
    pub name: Cow<'a, str>,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Lengths of the dimensions, outermost first.
    pub shape: &'a [u64],
    /// The number of elements, the product of the shape.
    pub count: u64,
    /// True if the elements will be in column-major order.
    pub fortran_order: bool,
    /// Measures of the texts, for elements of text.
    pub text: Option<Box<TextExtent>>,
    /// The format's name for a type that is not supported; the elements are then bytes.
    pub opaque: Option<&'a str>,
    /// The format of the blocks that hold the elements, in a GGUF file.
    pub blocks: Option<&'static BlockFormat>,
}

/// A tensor of a finished file, and the range of its bytes there.
pub struct WrittenTensor<'a> {
    pub tensor: NewTensor<'a>,
    pub range: Range<u64>,
}

/// The tensors of a finished file.
pub type Rereading<'i, 'a> = &'i mut dyn Iterator<Item = WrittenTensor<'a>>;

/// Layout of a new file: literal bytes and tensors without gaps.
#[derive(Debug)]
pub struct FileLayout {
    /// Headers and other literal bytes with their offsets, in order.
    pub literals: Vec<(u64, Vec<u8>)>,
    /// Other parts of a long header, in order.
    pub entries: Vec<HeaderEntries>,
    /// Place of each tensor. Without places, the tensors lie one behind the other in their packed form, after the header:
    /// there may be a million.
    pub places: Vec<Placement>,
    /// Length of the file.
    pub len: u64,
}

/// The entries of some tensors in a header, which are written when their place in the file is: a header of a million tensors
/// would take as much memory as everything that is known about them.
#[derive(Clone, Debug)]
pub struct HeaderEntries {
    /// Range of their bytes in the file.
    pub range: Range<u64>,
    /// The tensors, by their numbers in the file.
    pub tensors: Range<usize>,
    /// Offset in the file from which the entries count.
    pub data_start: u64,
    /// Appends the entry of a tensor with this range, relative to `data_start`.
    pub write: fn(&mut Vec<u8>, &NewTensor, Range<u64>) -> Result<()>,
}

/// Place and form of a tensor in a new file.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Type and storage of the elements.
    pub form: Form,
    /// Range of the tensor's bytes.
    pub range: Range<u64>,
    /// Checksum of the bytes that must also be written.
    pub crc: Option<Box<PendingCrc>>,
}

/// A CRC-32 that is part of the file, and that is computed while the tensor is written.
#[derive(Clone, Debug)]
pub struct PendingCrc {
    /// Sum of the bytes before the tensor.
    pub before: crc32fast::Hasher,
    /// Offsets at which the sum of all bytes must be written, as 4 bytes, little endian.
    pub offsets: [u64; 2],
}

pub(super) fn too_long() -> Error {
    Error::new("the output would be longer than a file can be")
}
