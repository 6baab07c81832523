//! A stored tensor: its name, shape and elements, and where its bytes are.

use super::Form;
use super::reader::Streamed;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::text::shorten;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A tensor in a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Empty if the file gives none.
    pub name: String,
    /// Lengths of the dimensions, outermost first.
    pub shape: Vec<u64>,
    /// The number of elements, the product of the shape; for [`Elements::Opaque`], the number of bytes.
    pub count: u64,
    /// What the elements are.
    pub elements: Elements,
    /// Column-major order; only if that differs from row-major.
    pub fortran_order: bool,
    /// Where its bytes are.
    #[doc(hidden)]
    pub data: Data,
    /// The type as the file names it.
    pub stored: Cow<'static, str>,
}

impl Tensor {
    /// Whether its bytes are in another file than its name.
    pub(super) fn is_beside(&self) -> bool {
        self.mapped_range().is_some_and(|(file, _)| file > 0)
    }

    /// The file of its bytes and their range, if they are stored unchanged.
    pub(super) fn mapped_range(&self) -> Option<(usize, Range<usize>)> {
        if let Data::Mapped { file, range, .. } = &self.data { Some((*file, range.clone())) } else { None }
    }

    pub(crate) fn type_name(&self) -> Cow<'static, str> {
        match self.elements {
            Elements::Typed(form) => Cow::Borrowed(form.dtype().name()),
            Elements::Untyped(bytes) => Cow::Owned(format!("{bytes}-byte opaque")),
            Elements::Opaque => Cow::Borrowed("unsupported"),
        }
    }

    pub(crate) fn refusal(&self) -> Error {
        let code = self.stored.trim_start_matches(['<', '>', '|', '=']);
        let meaning = match code.strip_suffix(|c: char| c.is_ascii_digit()).unwrap_or(code) {
            "O" => " (Python objects in a pickle, which can run code and is never opened)",
            _ if code.starts_with("M8") || code.starts_with("m8") => " (dates)",
            _ => "",
        };
        Error::new(format!("unsupported dtype '{}'{meaning}", shorten(&self.stored)))
    }
}

/// What the elements of a stored tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Of a known type.
    Typed(Form),
    /// This many opaque bytes each: the file does not say what they mean.
    Untyped(u32),
    /// Of a type that tcast does not know: the bytes can only be copied within the format.
    Opaque,
}

impl Elements {
    /// The type, if the file says it and tcast knows it.
    pub(crate) fn dtype(self) -> Option<Dtype> {
        if let Self::Typed(form) = self { Some(form.dtype()) } else { None }
    }

    /// The type that the elements are copied as: plain bytes if their own is not known.
    pub(crate) fn stored_dtype(self) -> Dtype {
        self.dtype().unwrap_or(Dtype::Uint8)
    }

    /// Bytes that `count` elements take. `None` when the number does not fit in 64 bits, or depends on the texts.
    #[must_use]
    pub fn bytes(self, count: u64) -> Option<u64> {
        match self {
            Self::Typed(form) => form.bytes(count),
            Self::Untyped(bytes) => count.checked_mul(bytes.into()),
            Self::Opaque => Some(count),
        }
    }
}

/// Where the bytes of a stored tensor are.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub enum Data {
    /// Unchanged in a file.
    Mapped {
        /// Which of [`Input::files`].
        file: usize,
        range: Range<usize>,
        checksum: Option<Box<Checksum>>,
    },
    /// Compressed or encoded: they can only be read in sequence.
    Streamed(Arc<dyn Streamed>),
}

impl Data {
    /// Bytes that it takes in its file.
    #[must_use]
    pub fn stored_len(&self) -> u64 {
        match self {
            Self::Mapped { range, .. } => range.len() as u64,
            Self::Streamed(streamed) => streamed.stored_len(),
        }
    }
}

/// A CRC-32 of a tensor's bytes and some before them.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Checksum {
    /// The sum of the bytes before the tensor's.
    pub before: crc32fast::Hasher,
    /// The sum of all bytes.
    pub expected: u32,
}

impl Checksum {
    /// Compares it with the sum of the tensor's own bytes.
    ///
    /// # Errors
    /// When they differ: the file was damaged.
    pub fn check(&self, bytes: &crc32fast::Hasher) -> Result<()> {
        let mut sum = self.before.clone();
        sum.combine(bytes);
        if sum.finalize() == self.expected { Ok(()) } else { Err(Error::new("is damaged: its checksum is wrong")) }
    }
}

/// The CRC-32 of some bytes, which can be combined with that of others.
pub(crate) fn sum_of(bytes: &[u8]) -> crc32fast::Hasher {
    let mut sum = crc32fast::Hasher::new();
    sum.update(bytes);
    sum
}
