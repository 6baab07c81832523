//! Steps: what a plan consists of.

use crate::container::{Elements, Form, PendingCrc, Tensor};
use crate::conversion::Conversion;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::kernel::{Kernel, Storage};
use crate::quant::Decoder;
use crate::read::{MappedBytes, SourceTensor};
use crate::select::KeptReason;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// One output file: the steps that make its tensors, and the bytes around them.
pub struct Plan<'a> {
    /// Headers and the like, with their offsets in the file, in order.
    #[doc(hidden)] // for tests
    pub literals: Vec<(u64, Vec<u8>)>,
    /// In the order of the input.
    pub steps: Vec<Step<'a>>,
    /// Length of the file in bytes.
    pub len: u64,
    /// Whether the caller deflates the file when it is written.
    pub(crate) is_deflated: bool,
}

/// What becomes of one logical tensor: the stored tensors that are its parts, the tensors of the output that are made of
/// them, and how. A plain tensor is stored as one.
pub struct Step<'a> {
    /// Its parts. There is at least one.
    pub(crate) sources: Vec<SourceTensor<'a>>,
    /// What is written. There is at least one.
    pub(crate) results: Vec<NewStored<'a>>,
    /// What makes the results' elements of the sources'.
    pub(crate) how: Operation,
    /// Whether the operator is applied; otherwise the tensor is copied.
    pub is_converted: bool,
    /// Why it is copied, if it is.
    pub(crate) kept: Option<KeptReason>,
}

/// What makes results of sources.
pub(crate) enum Operation {
    /// Element by element.
    Convert(Conversion),
    /// A quantized weight is decoded, row by row; the sources are its parts, in the order of the decoder.
    Decode(Arc<Decoder>),
}

/// A tensor of the output, and where it goes.
pub(crate) struct NewStored<'a> {
    /// Its name; empty in a format without names.
    pub name: Cow<'a, str>,
    /// Whether the elements will lie in column-major order.
    pub fortran_order: bool,
    /// Its bytes in the output file.
    pub range: Range<u64>,
    /// A checksum of them that is to be written as well.
    pub seal: Option<Box<PendingCrc>>,
}

impl Plan<'_> {
    /// Bytes that the file takes on the disk while it is written: what is deflated is there twice.
    #[must_use]
    pub(crate) fn room(&self) -> u64 {
        if self.is_deflated { self.len.saturating_mul(2) } else { self.len }
    }

    /// Bytes of all tensors, without what is around them.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.steps.iter().map(Step::bytes_out).sum()
    }

    /// Bytes that the tensors take in their files.
    #[must_use]
    pub fn source_bytes(&self) -> u64 {
        self.steps.iter().map(Step::bytes_in).sum()
    }

    /// Names of the tensors of the output.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(|step| &step.results).map(|result| &*result.name)
    }

    /// Refuses what was read of files that somebody has written to meanwhile.
    ///
    /// # Errors
    /// When one that a tensor comes from is not what it was.
    pub fn check_unchanged(&self) -> Result<()> {
        let mut used: Vec<&[MappedFile]> = Vec::new();
        for source in self.steps.iter().flat_map(|step| &step.sources) {
            // Neighbours come from the same file most often.
            if !used.last().is_some_and(|last| std::ptr::eq(*last, source.files)) {
                used.push(source.files);
            }
        }
        let mut seen = HashSet::new(); // in the order of the steps, so that the error is always about the same file
        used.retain(|files| seen.insert(files.as_ptr()));
        used.into_iter().flatten().try_for_each(MappedFile::check_unchanged)
    }
}

impl<'a> Step<'a> {
    /// Its name in the output; empty in a format without names.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.results[0].name
    }

    /// The stored tensor that holds its elements.
    #[must_use]
    pub fn source(&self) -> &'a Tensor {
        self.sources[0].tensor
    }

    /// What it is called in the input; where that says nothing, as in the output.
    #[must_use]
    pub(crate) fn source_name(&self) -> &str {
        if self.source().name.is_empty() { self.name() } else { &self.source().name }
    }

    /// The type of the elements, and the one that they get.
    #[must_use]
    pub fn dtypes(&self) -> (Dtype, Dtype) {
        match &self.how {
            Operation::Convert(conversion) => (conversion.from.dtype(), conversion.to.dtype()),
            Operation::Decode(decoder) => (stored_dtype(self.source()), decoder.target()),
        }
    }

    /// How the results are stored.
    #[must_use]
    #[doc(hidden)] // for tests
    pub fn form(&self) -> Form {
        match &self.how {
            Operation::Convert(conversion) => conversion.to,
            Operation::Decode(decoder) => Form::Numbers(Storage::packed(decoder.target())),
        }
    }

    /// Lengths of the dimensions of the result.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        match &self.how {
            Operation::Convert(_) => &self.source().shape,
            Operation::Decode(decoder) => decoder.shape(),
        }
    }

    /// Elements of the result.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shape().iter().product()
    }

    /// The conversion, where elements are converted one by one.
    pub(crate) fn conversion(&self) -> Option<&Conversion> {
        if let Operation::Convert(conversion) = &self.how { Some(conversion) } else { None }
    }

    /// Where the first result lies in the output file.
    #[must_use]
    #[doc(hidden)] // for tests
    pub fn target(&self) -> Range<u64> {
        self.results[0].range.clone()
    }

    /// Bytes that its parts take in their files.
    #[must_use]
    pub fn bytes_in(&self) -> u64 {
        self.sources.iter().map(SourceTensor::stored_len).sum()
    }

    /// Bytes that its results take.
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        self.results.iter().map(|result| result.range.end - result.range.start).sum()
    }

    /// An error of its elements, with the file that they are in.
    pub(crate) fn error(&self, error: Error) -> Error {
        self.sources[0].error(error.in_tensor(self.name()))
    }

    /// How any part of the tensor can be made alone; `None` where elements come one after the other.
    #[must_use]
    pub(crate) fn direct(&self) -> Option<Direct<'_, 'a>> {
        match &self.how {
            Operation::Convert(conversion) => {
                Some(Direct::Convert(conversion, conversion.kernel()?, self.sources[0].mapped()?))
            }
            Operation::Decode(decoder) => Some(Direct::Decode(decoder)),
        }
    }
}

/// How any part of a tensor is made alone.
pub(crate) enum Direct<'s, 'a> {
    /// Some elements, of these bytes.
    Convert(&'s Conversion, &'s Kernel, MappedBytes<'a>),
    /// Some rows, of bytes of all sources.
    Decode(&'s Decoder),
}

impl Direct<'_, '_> {
    /// What the tensor is divided into, elements or rows: how many bits one takes on the wider side, and a number of them
    /// that starts on a whole byte, or wastes least.
    pub(crate) fn unit(&self) -> (u64, u64) {
        /// Packed types start on whole bytes and kernel blocks.
        const ELEMENTS: u64 = 1024;
        match self {
            Self::Convert(conversion, ..) => {
                let bits = conversion.from.dtype().bits().max(conversion.to.dtype().bits());
                (bits.max(8).into(), ELEMENTS) // an element of fewer than 8 bits may take a whole byte
            }
            Self::Decode(decoder) => (decoder.row_bytes().saturating_mul(8).max(1), decoder.row_alignment()),
        }
    }
}

/// The type that a part is stored as.
fn stored_dtype(tensor: &Tensor) -> Dtype {
    match tensor.elements {
        Elements::Typed(form) => form.dtype(),
        Elements::Untyped(_) | Elements::Opaque => Dtype::Uint8,
    }
}
