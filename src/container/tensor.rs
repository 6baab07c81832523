//! A stored tensor: its name, shape and elements, and the location of its bytes.

use super::reader::Streamed;
use super::text::TextForm;
use crate::blocks::BlockFormat;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::Storage;
use crate::text::shorten;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A tensor in a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name; empty if the file gives none.
    pub name: Box<str>,
    /// Lengths of the dimensions, outermost first. Tensors can share it, because there may be a million of one shape.
    pub shape: Arc<[u64]>,
    /// The number of elements, the product of the shape; for [`Elements::Opaque`], the number of bytes.
    pub count: u64,
    /// Type and storage of the elements.
    pub elements: Elements,
    /// True for column-major order, if it differs from row-major.
    pub fortran_order: bool,
    /// Location of the bytes.
    pub data: Data,
    /// The type as the file names it.
    pub stored: Arc<str>,
}

impl Tensor {
    /// True if the bytes are in another file than the name.
    pub(super) fn is_beside(&self) -> bool {
        self.mapped_range().is_some_and(|(file, _)| file > 0)
    }

    /// The file of the bytes and their range, if they are stored unchanged.
    pub(crate) fn mapped_range(&self) -> Option<(usize, Range<usize>)> {
        if let Data::Mapped { file, range, .. } = &self.data { Some((*file as usize, range.clone())) } else { None }
    }

    /// Returns one of `count` equal parts of a tensor whose bytes are stored unchanged, with the name and the shape of the
    /// whole.
    pub(crate) fn part(&self, number: u64, count: u64) -> Self {
        let mut part = self.clone();
        if let Data::Mapped { range, .. } = &mut part.data {
            let len = range.len() / count as usize;
            let start = range.start + len * number as usize;
            *range = start..start + len;
            part.count /= count;
        }
        part
    }

    pub(crate) fn type_name(&self) -> Cow<'static, str> {
        match self.elements {
            Elements::Typed(form) => Cow::Borrowed(form.dtype().name()),
            Elements::Blocks(format) => Cow::Borrowed(format.name),
            Elements::Untyped(bytes) => Cow::Owned(format!("{bytes}-byte opaque")),
            Elements::Opaque => Cow::Borrowed("unsupported"),
        }
    }

    pub(crate) fn refusal(&self) -> Error {
        if let Elements::Blocks(format) = self.elements {
            let what = format!("holds codes and scales in blocks of {}, and no values", format.name);
            return Error::new(what).in_blocks();
        }
        let code = self.stored.trim_start_matches(['<', '>', '|', '=']);
        let meaning = match code.strip_suffix(|c: char| c.is_ascii_digit()).unwrap_or(code) {
            "O" => " (Python objects in a pickle, which can run code and is never opened)",
            _ if code.starts_with("M8") || code.starts_with("m8") => " (dates)",
            _ => "",
        };
        Error::new(format!("unsupported dtype '{}'{meaning}", shorten(&self.stored)))
    }
}

/// Elements of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Elements of a known type.
    Typed(Form),
    /// Elements in blocks, each with codes and scales: a quantized weight in one tensor.
    Blocks(&'static BlockFormat),
    /// Elements of this many opaque bytes each; the file does not give their meaning.
    Untyped(u32),
    /// Elements of a type that tcast does not know: the bytes can only be copied within the format.
    Opaque,
}

impl Elements {
    /// The type, if the file gives it and tcast knows it.
    pub(crate) fn dtype(self) -> Option<Dtype> {
        if let Self::Typed(form) = self { Some(form.dtype()) } else { None }
    }

    /// The type as which the elements are copied: plain bytes if their own type is unknown.
    pub(crate) fn stored_dtype(self) -> Dtype {
        self.dtype().unwrap_or(Dtype::Uint8)
    }

    /// Numbers in a storage.
    pub(crate) fn numbers(storage: Storage) -> Self {
        Self::Typed(Form::Numbers(storage))
    }

    /// Size of `count` elements in bytes. `None` if the number does not fit in 64 bits, or depends on the texts.
    #[must_use]
    pub fn bytes(self, count: u64) -> Option<u64> {
        match self {
            Self::Typed(form) => form.bytes(count),
            Self::Blocks(format) => format.size(count),
            Self::Untyped(bytes) => count.checked_mul(bytes.into()),
            Self::Opaque => Some(count),
        }
    }
}

/// Type of the elements of a tensor, and their storage in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Numbers, all of the same width.
    Numbers(Storage),
    /// Texts.
    Texts(TextForm),
}

impl Form {
    /// Numbers without gaps between them.
    pub(crate) fn packed(dtype: Dtype) -> Self {
        Self::Numbers(Storage::packed(dtype))
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(self) -> Dtype {
        match self {
            Self::Numbers(storage) => storage.dtype,
            Self::Texts(_) => Dtype::String,
        }
    }

    /// Size of `count` elements in bytes. `None` if the number does not fit in 64 bits, or depends on the texts.
    #[must_use]
    pub fn bytes(self, count: u64) -> Option<u64> {
        match self {
            Self::Numbers(storage) => storage.bytes(count),
            Self::Texts(form) => form.bytes(count),
        }
    }
}

/// Location of the bytes of a stored tensor.
#[derive(Clone, Debug)]
pub enum Data {
    /// Unchanged in a file.
    Mapped {
        /// Index in [`Input::files`](super::Input::files).
        file: u32,
        range: Range<usize>,
        checksum: Option<Box<Checksum>>,
    },
    /// Compressed or encoded bytes, which can only be read in sequence.
    Streamed(Arc<dyn Streamed>),
}

impl Data {
    /// Bytes of the file itself, without a checksum.
    pub(super) fn plain(range: Range<usize>) -> Self {
        Self::Mapped { file: 0, range, checksum: None }
    }

    /// Size in the file, in bytes.
    #[must_use]
    pub fn stored_len(&self) -> u64 {
        match self {
            Self::Mapped { range, .. } => range.len() as u64,
            Self::Streamed(streamed) => streamed.stored_len(),
        }
    }
}

/// Reason why a tensor of a file cannot be read.
pub(super) enum TensorError {
    /// Only this tensor cannot be read.
    Unreadable(Error),
    /// The file contradicts itself.
    Malformed(Error),
}

impl TensorError {
    /// Returns the error of an unreadable tensor. Fails if the file contradicts itself.
    pub(super) fn if_unreadable(self, name: &str) -> Result<Error> {
        match self {
            Self::Unreadable(error) => Ok(error.in_tensor(name)),
            Self::Malformed(error) => Err(error.in_tensor(name)),
        }
    }
}

/// A CRC-32 of a tensor's bytes and some before them.
#[derive(Clone, Debug)]
pub struct Checksum {
    /// Sum of the bytes before the tensor.
    pub before: crc32fast::Hasher,
    /// Sum of all bytes.
    pub expected: u32,
}

impl Checksum {
    /// Compares the expected sum with the sum of all bytes; `bytes` is the sum of the tensor's own bytes.
    ///
    /// # Errors
    /// When the sums differ: the file was damaged.
    pub fn check(&self, bytes: &crc32fast::Hasher) -> Result<()> {
        let mut sum = self.before.clone();
        sum.combine(bytes);
        if sum.finalize() == self.expected { Ok(()) } else { Err(Error::new("is damaged: its checksum is wrong")) }
    }
}

/// Returns the CRC-32 of some bytes, which can be combined with the CRC-32 of others.
pub(crate) fn sum_of(bytes: &[u8]) -> crc32fast::Hasher {
    let mut sum = crc32fast::Hasher::new();
    sum.update(bytes);
    sum
}
