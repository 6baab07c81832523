//! Weights to quantize: the sources of their values, and the weights with which they share a scale.

use super::few::Few;
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::quant::{
    Decoder, EncodeTally, Encoder, Explanation, Extremes, Recoverer, RowMap, ScaleMatch, Scheme, SharedScale,
    Transcoder, count_special,
};
use crate::read::{SourceTensor, read_values};
use crate::text::{is, shorten};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A tensor of the inputs: the index of the input, and the tensor's index in it.
pub type TensorIndex = (usize, usize);

/// A weight to write as codes and scales.
#[derive(Clone)]
pub struct TargetWeight {
    /// Its name, `x.weight`.
    pub name: String,
    /// Its values.
    pub values: WeightValues,
    /// Its encoder.
    pub encoder: Arc<Encoder>,
    /// The scheme that the user asked for.
    pub scheme: &'static Scheme,
    /// The set of weights whose largest magnitude determines its scale, by the number that
    /// `Weights::share` returned.
    pub shared: Option<usize>,
    /// The result of the search for the codes and scales from which its values were decoded; `None` without a search.
    pub recovery: Option<Recovery>,
}

/// The result of a search for the codes and scales from which the values of a weight were decoded.
#[derive(Clone)]
pub enum Recovery {
    /// Codes and scales were found, and decode to the same values.
    Found(Arc<Recoverer>, SharedScale, ScaleMatch),
    /// No codes and scales exist for this element, counted in row-major order; `None` if the first values have more
    /// distinct magnitudes than there are codes.
    NotFound(Option<u64>),
    /// Codes and scales exist, but not for all weights that share its scale.
    NotShared,
}

/// Source of the values of a weight.
#[derive(Clone)]
pub enum WeightValues {
    /// The rows of a stored tensor, from this one on.
    Rows(u64),
    /// The columns of all matrices of a stored tensor: each matrix is transposed.
    Columns,
    /// A quantized weight.
    Coded(Arc<CodedRows>),
}

/// Rows of a quantized weight.
pub struct CodedRows {
    /// Its parts, in the order of the decoder.
    pub parts: Vec<TensorIndex>,
    /// Its decoder, to float64.
    pub decoder: Arc<Decoder>,
    /// The rows.
    pub rows: RowMap,
    /// The transcoder that moves its codes and scales, if they can be moved.
    pub transcoder: Result<Transcoder, Unmoved>,
}

/// Reason why codes and scales of a weight are not moved.
#[derive(Clone, Copy, Debug)]
pub enum Unmoved {
    /// The new layout has no codes and scales for all values of the weight, or of a weight that shares its scale.
    /// Quantizing it again may still keep its values, which only the result shows.
    NoGrid,
    /// A scale of the weight, or of a weight that shares its scale, is NaN or infinite, and nothing may be quantized
    /// again.
    NotFinite,
    /// Weights that engines fuse have different global scales.
    UnequalGlobals,
}

impl TargetWeight {
    pub(super) fn rows<'a>(&self, sources: Few<SourceTensor<'a>>) -> WeightRows<'a> {
        WeightRows {
            sources,
            values: self.values.clone(),
            encoder: Arc::clone(&self.encoder),
            recovery: self.recovery.clone(),
        }
    }

    /// True if its codes and scales are moved or recovered, not computed.
    #[must_use]
    pub fn has_scales(&self) -> bool {
        let is_moved = matches!(&self.values, WeightValues::Coded(coded) if coded.transcoder.is_ok());
        is_moved || matches!(self.recovery, Some(Recovery::Found(..)))
    }

    /// Returns the stored tensors that its values depend on; `place` is the tensor that it replaces.
    pub(super) fn sources(&self, place: TensorIndex) -> Vec<TensorIndex> {
        if let WeightValues::Coded(coded) = &self.values { coded.parts.clone() } else { vec![place] }
    }
}

/// Quantization of a weight in a step.
pub(crate) struct Quantization<'a> {
    /// The name of the weight in the output: `x.weight`.
    pub name: String,
    pub rows: WeightRows<'a>,
    /// The scheme that the user asked for.
    pub scheme: &'static Scheme,
    /// The largest magnitude of whole tensors, if the scale depends on it.
    pub extremes: Option<Arc<SharedExtremes<'a>>>,
}

impl Quantization<'_> {
    /// Returns the names of the parts, in the order of [`Encoder::parts`].
    pub(crate) fn part_names(&self) -> impl Iterator<Item = String> {
        let stem = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        self.rows.encoder.parts().iter().map(move |part| format!("{stem}{}", part.suffix))
    }

    /// Encodes some rows into the buffers of [`Encoder::part_ranges`]. `buffer` is for values.
    pub(crate) fn encode(
        &self,
        rows: Range<u64>,
        buffer: &mut Vec<u8>,
        outputs: &mut [&mut [u8]],
        tally: &mut EncodeTally,
    ) -> Result<()> {
        if let Some((transcoder, coded)) = self.rows.transcoder() {
            let parts = self.rows.parts(coded, &rows)?;
            transcoder.transcode(rows, &parts, outputs, tally);
            return Ok(());
        }
        let source = self.rows.read(rows.clone(), buffer)?;
        if let Some(Recovery::Found(recoverer, shared, _)) = &self.rows.recovery {
            let found = recoverer.encode(rows, source, shared, outputs, tally);
            return found.map_err(|_| self.rows.sources[0].error(Error::new("changed while it was read")));
        }
        let unneeded = Extremes::default();
        let extremes = self.extremes.as_ref().map_or(&unneeded, |set| set.get().expect("the first pass is over"));
        self.rows.encoder.encode(rows, source, extremes, outputs, tally);
        tally.first_special.map_or(Ok(()), |element| Err(self.rows.special(element)))
    }
}

/// The rows of a weight, in the tensors that hold its values.
#[derive(Clone)]
pub(crate) struct WeightRows<'a> {
    /// The tensor with the values, or the parts of the quantized weight.
    pub sources: Few<SourceTensor<'a>>,
    pub values: WeightValues,
    pub encoder: Arc<Encoder>,
    /// As in [`TargetWeight::recovery`].
    pub recovery: Option<Recovery>,
}

impl<'a> WeightRows<'a> {
    pub(crate) fn of_stored(source: SourceTensor<'a>, values: WeightValues, encoder: Arc<Encoder>) -> Self {
        Self { sources: Few::One(source), values, encoder, recovery: None }
    }

    /// Divides all rows into pieces of about this many bytes of values, which can be encoded one by one.
    pub(crate) fn row_pieces(&self, bytes: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let (all, alignment) = (self.encoder.rows(), self.encoder.row_alignment());
        let step = (bytes / self.encoder.row_bytes().max(1) / alignment).max(1) * alignment;
        (0..all).step_by(step as usize).map(move |start| start..all.min(start + step))
    }

    /// Reads some rows of the weight from the disk, and returns their bytes; `buffer` holds them if they are computed.
    pub(crate) fn read<'r>(&self, rows: Range<u64>, buffer: &'r mut Vec<u8>) -> Result<&'r [u8]>
    where
        'a: 'r,
    {
        let row_bytes = self.encoder.row_bytes();
        match &self.values {
            WeightValues::Rows(first) => {
                let [start, end] = [rows.start, rows.end].map(|row| ((first + row) * row_bytes) as usize);
                self.stored(start..end)
            }
            WeightValues::Columns => {
                buffer.resize(((rows.end - rows.start) * row_bytes) as usize, 0);
                self.transpose(rows, buffer)?;
                Ok(buffer)
            }
            WeightValues::Coded(coded) => {
                buffer.resize(((rows.end - rows.start) * row_bytes) as usize, 0);
                let parts = self.parts(coded, &rows)?;
                if coded.rows.step == 1 {
                    coded.decoder.decode(coded.rows.row(rows.start)..coded.rows.row(rows.end), &parts, buffer)?;
                } else {
                    for (row, out) in rows.zip(buffer.chunks_exact_mut(row_bytes as usize)) {
                        let row = coded.rows.row(row);
                        coded.decoder.decode(row..row + 1, &parts, out)?;
                    }
                }
                Ok(buffer)
            }
        }
    }

    /// Reads some bytes of the tensor that holds the values.
    fn stored(&self, range: Range<usize>) -> Result<&'a [u8]> {
        let source = &self.sources[0];
        let mapped = source.mapped().expect("the plan takes tensors that are mapped");
        mapped.read(range).map_err(|error| source.error(error))
    }

    /// Transposes columns of the stored matrices to rows.
    fn transpose(&self, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        let [.., height, columns] = self.encoder.shape()[..] else { return Ok(()) };
        let width = (self.encoder.row_bytes() / columns) as usize;
        let (mut start, mut out) = (rows.start, out);
        while start < rows.end {
            let (matrix, first) = (start / height, start % height);
            let count = (height - first).min(rows.end - start) as usize;
            let (now, rest) = out.split_at_mut(count * columns as usize * width);
            for column in 0..columns {
                let at = ((matrix * columns + column) * height + first) as usize * width;
                let line = self.stored(at..at + count * width)?;
                for (element, row) in line.chunks_exact(width).zip(now.chunks_exact_mut(columns as usize * width)) {
                    row[column as usize * width..][..width].copy_from_slice(element);
                }
            }
            (start, out) = (start + count as u64, rest);
        }
        Ok(())
    }

    /// Returns the mapped bytes of all parts of a quantized weight. Reads from the disk only the bytes that the
    /// requested rows need.
    pub(crate) fn parts<'s>(&'s self, coded: &'s CodedRows, rows: &Range<u64>) -> Result<Vec<&'s [u8]>> {
        let last = rows.end.saturating_sub(1);
        let [start, end] = [coded.rows.row(rows.start), coded.rows.row(last) + 1];
        let columns = coded.decoder.columns();
        read_values(&coded.decoder, &self.sources, start * columns..end * columns)
    }

    /// Returns the transcoder with its rows, if codes and scales are moved.
    pub(crate) fn transcoder(&self) -> Option<(&Transcoder, &CodedRows)> {
        let WeightValues::Coded(coded) = &self.values else { return None };
        Some((coded.transcoder.as_ref().ok()?, coded))
    }

    /// Returns the layout of the quantized weight that it is made from.
    pub(crate) fn source_layout(&self) -> Option<&'static str> {
        if let WeightValues::Coded(coded) = &self.values { Some(coded.decoder.layout().name) } else { None }
    }

    /// Returns the number of bytes that some rows take in the files.
    pub(crate) fn bytes(&self, rows: &Range<u64>) -> u64 {
        let count = rows.end - rows.start;
        match &self.values {
            WeightValues::Rows(_) | WeightValues::Columns => count * self.encoder.row_bytes(),
            WeightValues::Coded(coded) => {
                let all: u64 = self.sources.iter().map(SourceTensor::stored_len).sum();
                (u128::from(all) * u128::from(count) / u128::from(coded.decoder.rows().max(1))) as u64
            }
        }
    }

    pub(crate) fn dtype(&self) -> Dtype {
        match &self.values {
            WeightValues::Rows(_) | WeightValues::Columns => self.sources[0].tensor.elements.stored_dtype(),
            WeightValues::Coded(coded) => coded.decoder.target(),
        }
    }

    /// Returns the error for the first infinite or NaN element, given by its index in the weight. It contains the
    /// number of such elements, and the cause.
    pub(crate) fn special(&self, element: u64) -> Error {
        let columns = self.encoder.columns();
        let (row, column) = (element / columns, element % columns);
        let rows = self.encoder.shape().iter().rev().nth(1).copied().unwrap_or(1);
        let indices = match &self.values {
            WeightValues::Rows(first) => self.sources[0].indices((first + row) * columns + column),
            WeightValues::Columns => vec![row / rows, column, row % rows],
            WeightValues::Coded(coded) => {
                let source = coded.rows.row(row) * columns + column;
                crate::container::indices(source, coded.decoder.shape(), false)
            }
        };
        let found = self.count_special().and_then(|count| Ok((count, self.cause(row, column)?)));
        let (count, cause) = match found {
            Ok(found) => found,
            Err(error) => return error,
        };
        let (is, all) = (is(count), self.encoder.rows() * columns);
        let error = Error::new(format!(
            "{count} of {all} elements {is} infinite or NaN, which codes and scales cannot represent: the first is {indices:?}{cause}"
        ));
        self.sources[0].error(error.of(Kind::Unconvertible))
    }

    /// Counts the elements that are infinite or NaN.
    fn count_special(&self) -> Result<u64> {
        /// Bytes that are read at a time.
        const STEP: u64 = 1 << 20;
        let mut buffer = Vec::new();
        self.row_pieces(STEP)
            .try_fold(0, |count, rows| Ok(count + count_special(self.dtype(), self.read(rows, &mut buffer)?)))
    }

    /// Explains why an element is infinite or NaN, if the input weight is quantized.
    fn cause(&self, row: u64, column: u64) -> Result<String> {
        let WeightValues::Coded(coded) = &self.values else { return Ok(String::new()) };
        let parts = self.parts(coded, &(row..row + 1))?;
        let explained = coded.decoder.explain(coded.rows.row(row), column..column + 1, &parts)?;
        let Some(Explanation { number, scale, global_scale, .. }) = explained.first() else { return Ok(String::new()) };
        if !number.is_finite() {
            return Ok(format!(", whose code is {}", if number.is_nan() { "NaN" } else { "infinite" }));
        }
        let named = |part: usize| format!("'{}'", shorten(&self.sources[part].tensor.name));
        let scales = coded.decoder.scale_parts().map(named).collect::<Vec<_>>().join(" or ");
        let is_nan = scale.is_nan() || global_scale.is_some_and(|(scale, _)| scale.is_nan());
        Ok(format!(", whose scale in {scales} is {}", if is_nan { "NaN" } else { "infinite or too large" }))
    }
}

/// The largest magnitude of all weights that share a scale. One pass finds it before the first of them is encoded.
pub(crate) struct SharedExtremes<'a> {
    pub members: Vec<WeightRows<'a>>,
    found: OnceLock<Extremes>,
}

impl<'a> SharedExtremes<'a> {
    pub(super) fn new(members: Vec<WeightRows<'a>>) -> Self {
        Self { members, found: OnceLock::new() }
    }

    pub(crate) fn get(&self) -> Option<&Extremes> {
        self.found.get()
    }

    /// Stores the result of the first pass.
    pub(crate) fn set(&self, extremes: Extremes) {
        let _ = self.found.set(extremes); // every pass finds the same
    }
}
