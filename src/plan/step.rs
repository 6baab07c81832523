//! Plans and their steps.

use super::quantization::{CodesSource, Quantization};
use super::stored::Few;
pub(crate) use super::stored::NewStored;
use super::weight_rows::WeightRows;
use crate::container::{Container, Elements, Form, HeaderEntries, NewTensor, NewTensors, Tensor, WrittenTensor};
use crate::conversion::Conversion;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::io::output::Output;
use crate::io::sink::Sink;
use crate::kernel::Storage;
use crate::lora::Merge;
use crate::quant::{Decoder, EncodedPart};
use crate::read::{MappedBytes, SourceTensor};
use crate::select::KeptReason;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

/// One output file: the steps that make its tensors, and the other bytes.
pub struct Plan<'a> {
    /// Headers and other literal bytes with their offsets in the file, in order.
    pub literals: Vec<(u64, Vec<u8>)>,
    /// Parts of a long header, in order.
    pub entries: Vec<HeaderEntries>,
    /// Steps, in the order of the tensors.
    pub steps: Vec<Step<'a>>,
    /// The step and the number of each result that is or begins a tensor; empty if every step makes one tensor.
    pub(super) tensors: Vec<(usize, usize)>,
    /// Bytes to copy from an input, with their offsets in the file.
    pub(crate) copies: Vec<(u64, MappedBytes<'a>)>,
    /// Length of the file in bytes.
    pub len: u64,
    /// Offset at which a second file begins, with the elements of an ONNX model.
    pub(crate) data_start: Option<u64>,
    /// True if the caller deflates the file after it is written.
    pub(crate) is_deflated: bool,
}

/// Work for one tensor of the model: the stored tensors that are its parts, the output tensors made from them, and the
/// operation. A plain tensor has one part.
///
/// A planner makes a step once. The layout of the output then gives the results their places.
pub struct Step<'a> {
    /// The stored tensor that it takes the place of, in the order of the tensors.
    pub(super) place: TensorIndex,
    /// True if [`Plan::copies`] contains its bytes.
    pub(crate) stays: bool,
    /// Its parts, at least one.
    pub(crate) sources: Few<SourceTensor<'a>>,
    /// The tensors to write, at least one.
    pub(crate) results: Few<NewStored<'a>>,
    /// The operation that makes the results from the sources.
    pub(crate) how: Operation<'a>,
    /// The reason for copying it; `None` if the operator is applied.
    pub(crate) kept: Option<KeptReason>,
    /// True if the elements of the result will be in column-major order.
    pub(crate) fortran_order: bool,
}

/// A tensor of the inputs: the index of the input, and the tensor's index in it.
pub(crate) type TensorIndex = (usize, usize);

/// Operation that makes results from sources.
pub(crate) enum Operation<'a> {
    /// Element by element.
    Convert(Arc<Conversion>),
    /// A quantized weight is decoded, row by row; the sources are its parts, in the order of the decoder.
    Decode(Arc<Decoder>),
    /// A weight is quantized, row by row; the results are its parts, in the order of the encoder.
    Encode(Box<Quantization<'a>>),
}

/// The unit of a component of the output, such as an element or a row, in which it is divided into pieces.
pub(crate) struct PieceUnit<'s> {
    /// Bits of a unit in the source or the target, whichever is wider.
    pub bits: u64,
    /// A piece starts at a multiple of this number of units.
    pub alignment: u64,
    /// The decoder, if only it knows where to divide.
    pub decoder: Option<&'s Decoder>,
}

impl<'a> Plan<'a> {
    /// Returns the plan of a file with the results of these steps, before it is laid out.
    pub(super) fn of(steps: Vec<Step<'a>>) -> Self {
        let has_one = |step: &Step| step.results.len() == 1 && step.results[0].stack().is_none();
        let begun = |(at, step): (usize, &Step<'a>)| {
            let results = if step.continues_stack() { 0 } else { step.results.len() };
            (0..results).map(move |result| (at, result))
        };
        let is_simple = steps.iter().all(has_one);
        let tensors = if is_simple { Vec::new() } else { steps.iter().enumerate().flat_map(begun).collect() };
        Self {
            steps,
            tensors,
            literals: Vec::new(),
            entries: Vec::new(),
            copies: Vec::new(),
            len: 0,
            data_start: None,
            is_deflated: false,
        }
    }

    /// Returns the step that makes a tensor of the file, and the number of the result.
    fn tensor(&self, at: usize) -> (&Step<'a>, usize) {
        let (step, result) = if self.tensors.is_empty() { (at, 0) } else { self.tensors[at] };
        (&self.steps[step], result)
    }

    /// Returns the bytes that the file takes on the disk while it is written: if it is deflated later, there are two
    /// copies.
    pub(crate) fn space(&self) -> u64 {
        if self.is_deflated { self.len.saturating_mul(2) } else { self.len }
    }

    /// Returns the bytes of all tensors, without headers.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.steps.iter().map(Step::bytes_out).sum()
    }

    /// Returns the bytes that the tensors take in their files.
    #[must_use]
    pub fn source_bytes(&self) -> u64 {
        self.steps.iter().map(Step::bytes_in).sum()
    }

    /// Appends the bytes of a part of a long header.
    pub(crate) fn write_entries(&self, part: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let HeaderEntries { range, tensors, data_start, write } = &self.entries[part];
        let start = bytes.len();
        for (step, result) in tensors.clone().map(|at| self.tensor(at)) {
            let Range { start, end } = step.results[result].stored_range().expect("it begins the tensor");
            write(bytes, &step.new_tensor(result), start - data_start..end - data_start)?;
        }
        bytes.truncate(start + (range.end - range.start) as usize); // no comma follows the last entry
        Ok(())
    }

    /// Checks a finished file of a format with a library that other programs use. A difference is never the user's fault,
    /// so such a file must not appear.
    pub(crate) fn check_written(&self, container: &dyn Container, output: &Output) -> Result<()> {
        let file = output.read_again()?;
        let mut tensors = self.steps.iter().flat_map(|step| {
            let written = |at: usize| {
                let range = step.results[at].stored_range()?;
                Some(WrittenTensor { tensor: step.new_tensor(at), range })
            };
            (0..step.results.len()).filter_map(written)
        });
        container.reread(&file, &mut tensors).map_err(|error| {
            let what = format!("internal error: another reader finds other tensors than planned: {}", error.message());
            let wrong = Error::new(what).in_file(output.path()).remedy("please report this defect, with the command");
            if let Some(name) = error.tensor() { wrong.in_tensor(name) } else { wrong }
        })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let results = self.steps.iter().flat_map(|step| step.results.iter());
        results.filter(|result| result.begins_tensor()).map(NewStored::stored_name)
    }

    /// Checks that no source was changed since it was read.
    ///
    /// # Errors
    /// When a source was changed.
    pub fn check_unchanged(&self) -> Result<()> {
        let mut used: Vec<&[MappedFile]> = Vec::new();
        for source in self.steps.iter().flat_map(|step| step.sources.iter()) {
            // Adjacent tensors usually come from the same file.
            if !used.last().is_some_and(|last| std::ptr::eq(*last, source.files)) {
                used.push(source.files);
            }
        }
        let merges = self.steps.iter().filter_map(|step| match &step.how {
            Operation::Encode(weight) => Some(weight.rows.merges()),
            Operation::Convert(_) | Operation::Decode(_) => None,
        });
        used.extend(
            merges.flatten().flat_map(Merge::files).flat_map(|adapter| &adapter.shards).map(|shard| &shard.files[..]),
        );
        used.extend(self.copies.iter().map(|(_, copied)| slice::from_ref(copied.file)));
        let mut seen = HashSet::new(); // in the order of the steps, so that the error is always about the same file
        used.retain(|files| seen.insert(files.as_ptr()));
        used.into_iter().flatten().try_for_each(MappedFile::check_unchanged)
    }
}

impl NewTensors for Plan<'_> {
    fn count(&self) -> usize {
        if self.tensors.is_empty() { self.steps.len() } else { self.tensors.len() }
    }

    fn are_kept(&self) -> bool {
        true
    }

    fn get(&self, at: usize) -> NewTensor<'_> {
        let (step, result) = self.tensor(at);
        step.new_tensor(result)
    }
}

impl<'a> Step<'a> {
    /// Creates the step for a tensor that is converted, or copied for the given reason.
    pub(super) fn convert(
        place: TensorIndex,
        source: SourceTensor<'a>,
        name: Cow<'a, str>,
        conversion: Arc<Conversion>,
        kept: Option<KeptReason>,
    ) -> Self {
        let results = Few::One(NewStored::unplaced(name));
        Self::new(place, Few::One(source), results, Operation::Convert(conversion), kept)
    }

    /// Creates the step that makes codes and scales of a weight, or plain numbers for the given reason.
    pub(super) fn encode(
        place: TensorIndex,
        (name, scheme): (String, &'static str),
        rows: WeightRows<'a>,
        codes: CodesSource<'a>,
        kept: Option<KeptReason>,
    ) -> Self {
        let weight = Quantization { name, rows, scheme, codes, dither: None };
        let results = weight.part_names().map(|name| NewStored::unplaced(name.into())).collect();
        Self::new(place, weight.rows.sources.clone(), results, Operation::Encode(Box::new(weight)), kept)
    }

    pub(super) fn new(
        place: TensorIndex,
        sources: Few<SourceTensor<'a>>,
        results: Few<NewStored<'a>>,
        how: Operation<'a>,
        kept: Option<KeptReason>,
    ) -> Self {
        Self { place, stays: false, sources, results, how, kept, fortran_order: false }
    }

    /// Changes its name in the output, and the names of its parts.
    pub(super) fn rename(&mut self, name: String) {
        match &mut self.how {
            Operation::Encode(weight) => {
                weight.name = name;
                self.results = weight.part_names().map(|name| NewStored::unplaced(name.into())).collect();
            }
            Operation::Convert(_) | Operation::Decode(_) => self.results[0].name = name.into(),
        }
    }

    /// Returns the type of the results, or the reason for copying the tensor.
    pub(super) fn new_dtype(&self) -> Result<Dtype, KeptReason> {
        self.kept.map_or(Ok(self.dtypes().1), Err)
    }

    /// Returns its name in the output; empty in a format without names. A quantized weight has a name in addition to
    /// the names of its parts.
    #[must_use]
    pub fn name(&self) -> &str {
        if let Operation::Encode(weight) = &self.how { &weight.name } else { &self.results[0].name }
    }

    /// Returns the parts of the weight that it quantizes; none if it does not.
    fn parts(&self) -> &[EncodedPart] {
        if let Operation::Encode(weight) = &self.how { weight.rows.encoder.parts() } else { &[] }
    }

    /// Returns the tensors of the output: name, dtype and shape.
    pub(crate) fn new_tensors(&self) -> impl Iterator<Item = (&str, Dtype, &[u64])> {
        self.results.iter().enumerate().map(|(at, result)| match self.parts().get(at) {
            Some(part) => (&*result.name, part.dtype, &part.shape[..]),
            None => (&*result.name, self.dtypes().1, self.shape()),
        })
    }

    /// Returns the stored tensor that one of its results is or belongs to, for the format of the output.
    pub(super) fn new_tensor(&self, result: usize) -> NewTensor<'_> {
        let (dtype, shape, count, blocks) = match self.parts().get(result) {
            Some(part) => (part.dtype, &part.shape[..], part.shape.iter().product(), part.format),
            None => (self.dtypes().1, self.shape(), self.source_count(), None),
        };
        let (source, result) = (self.source(), &self.results[result]);
        let is_opaque = source.elements == Elements::Opaque && matches!(self.how, Operation::Convert(_));
        NewTensor {
            name: Cow::Borrowed(result.stored_name()),
            dtype,
            shape: result.stored_shape(shape),
            count: count * result.stack().map_or(1, |part| part.count),
            fortran_order: self.fortran_order,
            text: result.extra.as_ref().and_then(|extra| extra.text.clone()),
            opaque: is_opaque.then_some(&*source.stored),
            blocks,
        }
    }

    /// Returns the stored tensors of the output that its results are or begin.
    pub(crate) fn stored_tensors(&self) -> impl Iterator<Item = NewTensor<'_>> {
        let begins_tensor = |at: &usize| self.results[*at].begins_tensor();
        (0..self.results.len()).filter(begins_tensor).map(|at| self.new_tensor(at))
    }

    /// True if an earlier step begins the stack of experts that it belongs to.
    pub(super) fn continues_stack(&self) -> bool {
        !self.results[0].begins_tensor()
    }

    /// Returns the bytes that its results will take. The first step of a stack counts for all.
    pub(super) fn planned_bytes(&self) -> u64 {
        if self.continues_stack() {
            return 0;
        }
        let own = match self.parts() {
            [] => self.dtypes().1.packed_bytes(self.source_count()).unwrap_or(u64::MAX),
            parts => parts.iter().map(EncodedPart::byte_len).sum(),
        };
        own.saturating_mul(self.results[0].stack().map_or(1, |part| part.count))
    }

    /// True if the operator is applied; otherwise the tensor is copied.
    #[must_use]
    pub fn is_converted(&self) -> bool {
        self.kept.is_none()
    }

    /// Returns the stored tensor that holds its elements.
    #[must_use]
    pub fn source(&self) -> &'a Tensor {
        self.sources[0].tensor
    }

    /// Returns its name in the input; if it has none there, its name in the output.
    pub(crate) fn source_name(&self) -> &str {
        if self.source().name.is_empty() { self.name() } else { &self.source().name }
    }

    /// Returns the types of the elements before and after.
    #[must_use]
    pub fn dtypes(&self) -> (Dtype, Dtype) {
        match &self.how {
            Operation::Convert(conversion) => (conversion.from.dtype(), conversion.to.dtype()),
            Operation::Decode(decoder) => (self.source().elements.stored_dtype(), decoder.target()),
            Operation::Encode(weight) => (self.source().elements.stored_dtype(), weight.rows.encoder.parts()[0].dtype),
        }
    }

    /// Returns the form in which the results are stored.
    #[must_use]
    pub fn form(&self) -> Form {
        match &self.how {
            Operation::Convert(conversion) => conversion.to,
            Operation::Decode(_) | Operation::Encode(_) => Form::Numbers(Storage::packed(self.dtypes().1)),
        }
    }

    /// Returns the lengths of the dimensions of the result.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        match &self.how {
            Operation::Convert(_) => {
                let new = self.results[0].extra.as_ref().and_then(|extra| extra.shape.as_deref());
                new.unwrap_or(&self.source().shape)
            }
            Operation::Decode(decoder) => decoder.shape(),
            // In a model the tensor keeps its shape, and the encoder takes a matrix, as which codes are moved.
            Operation::Encode(weight) if weight.rows.encoder.axis().is_some() && weight.rows.decoder().is_none() => {
                &self.source().shape
            }
            Operation::Encode(weight) => weight.rows.encoder.shape(),
        }
    }

    /// Returns the number of elements of the result.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shape().iter().product()
    }

    /// Returns the number of elements before an operation that keeps their number; of opaque elements, of their bytes.
    pub(super) fn source_count(&self) -> u64 {
        if let Operation::Convert(_) = self.how { self.source().count } else { self.count() }
    }

    /// Returns the conversion of a step that makes plain elements of plain elements.
    pub(crate) fn conversion(&self) -> Option<&Conversion> {
        match &self.how {
            Operation::Convert(conversion) => Some(conversion),
            Operation::Encode(weight) => weight.cast(),
            Operation::Decode(_) => None,
        }
    }

    /// Returns the quantization of a step that makes codes and scales.
    pub(crate) fn quantization(&self) -> Option<&Quantization<'a>> {
        match &self.how {
            Operation::Encode(weight) if weight.cast().is_none() => Some(weight),
            Operation::Encode(_) | Operation::Convert(_) | Operation::Decode(_) => None,
        }
    }

    /// Returns the range of the first result in the output file.
    #[must_use]
    pub fn target(&self) -> Range<u64> {
        self.results[0].range.clone()
    }

    /// Returns the bytes that its parts take in their files.
    #[must_use]
    pub fn bytes_in(&self) -> u64 {
        match &self.how {
            // Its tensor may hold other weights too.
            Operation::Encode(weight) => weight.rows.bytes(&(0..weight.rows.encoder.rows())),
            Operation::Convert(_) | Operation::Decode(_) => self.sources.iter().map(SourceTensor::stored_len).sum(),
        }
    }

    /// Returns the bytes that its results take.
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        self.results.iter().map(|result| result.range.end - result.range.start).sum()
    }

    /// Adds the file of its elements to an error.
    pub(crate) fn error(&self, error: Error) -> Error {
        self.sources[0].error(error.in_tensor(self.name()))
    }

    /// True if any part of the tensor can be made independently; otherwise elements can only be read in sequence.
    pub(crate) fn is_divisible(&self) -> bool {
        self.conversion().is_none_or(|conversion| conversion.kernel().is_some() && self.sources[0].is_divisible())
    }

    /// Returns the unit in which it is divided into pieces.
    pub(crate) fn unit(&self) -> PieceUnit<'_> {
        /// Packed types start on whole bytes and kernel blocks.
        const ELEMENTS: u64 = 1024;
        match &self.how {
            Operation::Convert(conversion) => {
                let bits = conversion.from.dtype().bits().max(conversion.to.dtype().bits());
                // An element of fewer than 8 bits may take a whole byte.
                PieceUnit { bits: bits.max(8).into(), alignment: ELEMENTS, decoder: None }
            }
            Operation::Decode(decoder) => {
                PieceUnit { bits: decoder.target().bits().into(), alignment: 1, decoder: Some(decoder) }
            }
            Operation::Encode(weight) => {
                let bits = weight.row_bytes().saturating_mul(8).max(1);
                PieceUnit { bits, alignment: weight.rows.encoder.row_alignment(), decoder: None }
            }
        }
    }
}
