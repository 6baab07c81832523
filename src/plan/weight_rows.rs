//! The rows of a weight that is quantized, in the tensors that hold its values.

use super::gathered::GatheredRows;
use super::stored::Few;
use crate::blocks::{EncodeRefusal, ValueChange};
use crate::container::Tensor;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, Rules, Storage};
use crate::lora::{Merge, narrow, widen, widen_to};
use crate::progress::Observer;
use crate::quant::{Decoder, Explanation, Extremes, RowMap, WeightEncoder, count_special, decoded_name};
use crate::read::{SourceTensor, read_values};
use crate::text::{is, shorten};
use crate::threads::in_order;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use zerocopy::FromBytes;

/// Source of the values of a weight.
#[derive(Clone)]
pub(crate) enum WeightValues {
    /// The rows of a stored tensor, from this one on.
    Rows(u64),
    /// Rows of a quantized weight, which the decoder turns into float64, or into float32 for blocks.
    Coded(Arc<Decoder>, RowMap),
    /// Rows that come from several tensors, or in another order, or are stored as columns. If one is added to their values,
    /// they become float32.
    Gathered { rows: Arc<GatheredRows>, change: ValueChange },
}

/// The changes that adapters make to each tensor that holds values, or to the quantized weight.
pub(crate) type Changes = Arc<[Option<Arc<Merge>>]>;

/// Records that a step makes these changes, and returns them.
pub(super) fn changes<'m>(merges: impl IntoIterator<Item = Option<&'m Arc<Merge>>>) -> Changes {
    merges.into_iter().map(|merge| merge.inspect(|merge| merge.set_used()).cloned()).collect()
}

/// The rows of a weight, in the tensors that hold its values.
#[derive(Clone)]
pub(crate) struct WeightRows<'a> {
    /// The tensor with the values, or the parts of the quantized weight.
    pub sources: Few<SourceTensor<'a>>,
    /// The values before adapters change them.
    pub values: WeightValues,
    /// `None` if adapters change neither this weight nor one that shares its scale.
    pub changes: Option<Changes>,
    pub encoder: WeightEncoder,
}

impl WeightValues {
    /// The columns of all matrices of a stored tensor, as the rows of matrices of this shape and type.
    pub(crate) fn transposed(shape: &[u64], dtype: Dtype) -> Self {
        let rows = GatheredRows::transposed(shape, dtype.bits() as usize / 8);
        Self::Gathered { rows: Arc::new(rows), change: ValueChange::None }
    }
}

impl<'a> WeightRows<'a> {
    /// Divides all rows into pieces of about this many bytes of values, which can be encoded one by one.
    pub(crate) fn row_pieces(&self, bytes: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        self.aligned_pieces(bytes, self.encoder.row_alignment())
    }

    /// Like [`WeightRows::row_pieces`], with pieces that start at multiples of `alignment` rows.
    pub(crate) fn aligned_pieces(&self, bytes: u64, alignment: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let all = self.encoder.rows();
        let step = (bytes / self.encoder.row_bytes().max(1) / alignment).max(1) * alignment;
        (0..all).step_by(step as usize).map(move |start| start..all.min(start + step))
    }

    /// Reads some rows of the weight from the disk, and returns their bytes; `buffer` holds them if they are computed.
    pub(crate) fn read<'r>(&self, rows: Range<u64>, buffer: &'r mut Vec<u8>) -> Result<&'r [u8]>
    where
        'a: 'r,
    {
        let Some(changes) = &self.changes else { return self.read_base(&self.values, rows, buffer) };
        self.merge(changes, &rows, buffer)?;
        Ok(buffer)
    }

    /// Reads values of the same tensors without the changes of adapters.
    pub(super) fn read_base<'r>(
        &self,
        values: &WeightValues,
        rows: Range<u64>,
        buffer: &'r mut Vec<u8>,
    ) -> Result<&'r [u8]>
    where
        'a: 'r,
    {
        let row_bytes = self.encoder.columns() * u64::from(self.base_dtype().bits()) / 8;
        match values {
            WeightValues::Rows(first) => {
                let [start, end] = [rows.start, rows.end].map(|row| ((first + row) * row_bytes) as usize);
                self.stored(start..end)
            }
            WeightValues::Gathered { rows: gathered, change } => {
                let stored = self.stored_dtype();
                let count = ((rows.end - rows.start) * self.encoder.columns()) as usize;
                buffer.resize(count * stored.bits() as usize / 8, 0);
                gathered.read(rows, &|source, range| self.stored_in(source, range), buffer)?;
                if *change != ValueChange::None {
                    *buffer = unchanged(*change, stored, buffer, count);
                }
                Ok(buffer)
            }
            WeightValues::Coded(decoder, map) => {
                buffer.resize(((rows.end - rows.start) * row_bytes) as usize, 0);
                let columns = self.encoder.columns();
                let parts = self.parts_of(decoder, *map, &rows)?;
                if columns != decoder.columns() {
                    // Rows that are not whole blocks: the decoder has others.
                    let values = map.row(rows.start) * columns..map.row(rows.end) * columns;
                    let whole = decoder.around(values.clone());
                    let width = (row_bytes / columns) as usize;
                    let mut around = vec![0; (whole.end - whole.start) as usize * width];
                    decoder.decode_values(whole.clone(), &parts, &mut around)?;
                    let before = (values.start - whole.start) as usize * width;
                    buffer.copy_from_slice(&around[before..before + (values.end - values.start) as usize * width]);
                } else if map.step == 1 {
                    decoder.decode(map.row(rows.start)..map.row(rows.end), &parts, buffer)?;
                } else {
                    for (row, out) in rows.zip(buffer.chunks_exact_mut(row_bytes as usize)) {
                        let row = map.row(row);
                        decoder.decode(row..row + 1, &parts, out)?;
                    }
                }
                Ok(buffer)
            }
        }
    }

    /// Reads some bytes of the tensor that holds the values.
    pub(super) fn stored(&self, range: Range<usize>) -> Result<&'a [u8]> {
        self.stored_in(0, range)
    }

    fn stored_in(&self, source: usize, range: Range<usize>) -> Result<&'a [u8]> {
        let source = &self.sources[source];
        let mapped = source.mapped().expect("the plan takes tensors that are mapped");
        mapped.read(range).map_err(|error| source.error(error))
    }

    /// Returns the mapped bytes of all parts of a quantized weight; none of a weight that is not quantized. Reads from
    /// the disk only the bytes that the requested rows need.
    pub(crate) fn parts(&self, rows: &Range<u64>) -> Result<Vec<&[u8]>> {
        match &self.values {
            WeightValues::Coded(decoder, map) => self.parts_of(decoder, *map, rows),
            _ => Ok(Vec::new()),
        }
    }

    fn parts_of<'d>(&self, decoder: &'d Decoder, map: RowMap, rows: &Range<u64>) -> Result<Vec<&'d [u8]>>
    where
        'a: 'd,
    {
        let [start, end] = [map.row(rows.start), map.row(rows.end.saturating_sub(1)) + 1];
        let columns = self.encoder.columns();
        read_values(decoder, &self.sources, start * columns..end * columns)
    }

    /// Returns the decoder of the quantized weight that it is made from.
    pub(crate) fn decoder(&self) -> Option<&Decoder> {
        if let WeightValues::Coded(decoder, _) = &self.values { Some(decoder) } else { None }
    }

    /// Returns the changes of adapters.
    pub(crate) fn merges(&self) -> impl Iterator<Item = &Merge> {
        self.changes.iter().flat_map(|changes| changes.iter().flatten()).map(|merge| &**merge)
    }

    /// Returns the first element of some rows in their tensor; `None` if the rows do not follow each other there.
    pub(super) fn first_element(&self, rows: &Range<u64>) -> Option<u64> {
        if matches!(self.values, WeightValues::Gathered { .. }) {
            return None;
        }
        let (_, first, count) = self.run_of_rows(rows.start, rows.end);
        (count == rows.end - rows.start).then_some(first)
    }

    /// Returns the tensor with a row, the first element of the row there, and the number of rows that follow it there.
    fn run_of_rows(&self, row: u64, end: u64) -> (usize, u64, u64) {
        let columns = self.encoder.columns();
        match &self.values {
            WeightValues::Rows(first) => (0, (first + row) * columns, end - row),
            WeightValues::Coded(_, map) => (0, map.row(row) * columns, if map.step == 1 { end - row } else { 1 }),
            WeightValues::Gathered { rows, .. } => {
                let (source, first) = rows.stored_row(row);
                (source, first, 1)
            }
        }
    }

    /// Computes some rows with the changes of adapters.
    fn merge(&self, changes: &Changes, rows: &Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let (columns, target) = (self.encoder.columns(), self.dtype());
        let count = ((rows.end - rows.start) * columns) as usize;
        out.resize(count * target.bits() as usize / 8, 0);
        let (mut bytes, mut own) = (Vec::new(), Vec::new());
        // The memory of the results, if it can be read as float64, which saves a copy.
        let is_float64 = target == Dtype::Float64 && cfg!(target_endian = "little");
        let shared = if is_float64 { <[f64]>::mut_from_bytes(out).ok() } else { None };
        let values = shared.unwrap_or_else(|| {
            own.resize(count, 0.0);
            &mut own
        });
        widen_to(self.base_dtype(), self.read_base(&self.values, rows.clone(), &mut bytes)?, values);
        let read = |elements: Range<u64>, values: &mut Vec<f64>| {
            // Other rows of the same tensor may be needed too.
            let whole = match &self.values {
                WeightValues::Coded(decoder, _) => WeightValues::Coded(Arc::clone(decoder), RowMap::ALL),
                WeightValues::Rows(_) => WeightValues::Rows(0),
                WeightValues::Gathered { .. } => {
                    return Err(
                        self.sources[0].error(Error::new("has rows in another order, which are not decomposed"))
                    );
                }
            };
            let mut bytes = Vec::new();
            let stored =
                self.read_base(&whole, elements.start / columns..elements.end.div_ceil(columns), &mut bytes)?;
            widen(self.base_dtype(), stored, values);
            Ok(())
        };
        // Each run of rows that follow each other in a tensor is changed together.
        let mut start = rows.start;
        while start < rows.end {
            let (source, first, count) = self.run_of_rows(start, rows.end);
            if let Some(merge) = &changes[source] {
                let range =
                    ((start - rows.start) * columns) as usize..((start - rows.start + count) * columns) as usize;
                merge.apply(first, &mut values[range], &read)?;
            }
            start += count;
        }
        if !own.is_empty() {
            narrow(&own, target, out).expect("merged values are floats");
        }
        Ok(())
    }

    /// Returns the number of bytes that some rows take in the files.
    pub(crate) fn bytes(&self, rows: &Range<u64>) -> u64 {
        let count = rows.end - rows.start;
        let Some(decoder) = self.decoder() else {
            return count * self.encoder.columns() * u64::from(self.stored_dtype().bits()) / 8;
        };
        let stored: u64 = self.sources.iter().map(SourceTensor::stored_len).sum();
        let [count, all] = [count * self.encoder.columns(), (decoder.rows() * decoder.columns()).max(1)];
        (u128::from(stored) * u128::from(count) / u128::from(all)) as u64
    }

    /// True if these are the values of another weight, row by row, in the same type.
    pub(crate) fn has_values_of(&self, other: &Self) -> bool {
        let tensors = |rows: &Self| rows.sources.iter().map(|source| std::ptr::from_ref(source.tensor)).collect();
        let [own, others]: [Vec<*const Tensor>; 2] = [tensors(self), tensors(other)];
        let is_same_order = are_same(&self.values, &other.values);
        let has_same_changes = self.merges().map(std::ptr::from_ref).eq(other.merges().map(std::ptr::from_ref));
        own == others
            && is_same_order
            && has_same_changes
            && self.dtype() == other.dtype()
            && self.encoder.shape() == other.encoder.shape()
    }

    /// The type of the values.
    pub(crate) fn dtype(&self) -> Dtype {
        if self.changes.is_some() { self.encoder.source() } else { self.base_dtype() }
    }

    /// The type of the values without the changes of adapters.
    pub(super) fn base_dtype(&self) -> Dtype {
        match &self.values {
            WeightValues::Coded(decoder, _) => decoder.target(),
            WeightValues::Rows(_) | WeightValues::Gathered { change: ValueChange::None, .. } => self.stored_dtype(),
            WeightValues::Gathered { .. } => Dtype::Float32,
        }
    }

    fn stored_dtype(&self) -> Dtype {
        self.sources[0].tensor.elements.stored_dtype()
    }

    /// Returns the error for the first infinite or NaN element, given by its index in the weight. It contains the
    /// number of such elements, and the cause.
    pub(crate) fn special(&self, element: u64) -> Error {
        let columns = self.encoder.columns();
        let (row, column) = (element / columns, element % columns);
        let indices = match &self.values {
            WeightValues::Rows(first) => self.sources[0].indices((first + row) * columns + column),
            WeightValues::Gathered { .. } => {
                let mut indices = crate::container::indices(element, self.encoder.shape(), false);
                // Only transposed matrices become codes and scales.
                if let ([.., row, column], Some(_)) = (&mut indices[..], self.encoder.grid()) {
                    std::mem::swap(row, column);
                }
                indices
            }
            WeightValues::Coded(decoder, map) => {
                crate::container::indices(map.row(row) * columns + column, decoder.shape(), false)
            }
        };
        if !self.dtype().is_weight() && self.dtype() != Dtype::Float64 {
            let what = format!("element {indices:?} is infinite or NaN, which blocks cannot represent");
            return self.sources[0].error(Error::new(what).unconvertible());
        }
        let found = self.count_special().and_then(|count| Ok((count, self.cause(row, column)?)));
        let (count, cause) = match found {
            Ok(found) => found,
            Err(error) => return error,
        };
        let (is, all) = (is(count), self.encoder.rows() * columns);
        let error = Error::new(format!(
            "{count} of {all} elements {is} infinite or NaN, which codes and scales cannot represent: the first is {indices:?}{cause}"
        ));
        let error = error.unconvertible();
        // Options take the name of the weight, rather than the name of its codes.
        self.sources[0].error(match self.decoder() {
            Some(decoder) => error.in_tensor(&decoded_name(decoder.layout(), &self.sources[0].tensor.name)),
            None => error,
        })
    }

    /// Returns the error for values in which codes were found before, and are not found again.
    pub(super) fn changed(&self) -> Error {
        self.sources[0].error(Error::new("changed while it was read"))
    }

    /// Returns the error for values that have no blocks; `first` is the index of the first of them in the weight.
    pub(super) fn refusal(&self, refusal: EncodeRefusal, first: u64) -> Error {
        let (what, element) = match refusal {
            EncodeRefusal::Value { element, value } => (format!("is {value}"), element),
            EncodeRefusal::Scale { element } => {
                ("begins a block whose scale would be infinite or NaN".to_owned(), element)
            }
            EncodeRefusal::Importance { column, weight } => {
                let what = format!("column {column} of the importance matrix is {weight}");
                return self.sources[0].error(Error::new(what).unconvertible());
            }
        };
        let at = crate::container::indices(first + element as u64, self.encoder.shape(), false);
        self.sources[0].error(Error::new(format!("element {at:?} {what}")).unconvertible())
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
        let (WeightValues::Coded(decoder, map), None) = (&self.values, &self.changes) else { return Ok(String::new()) };
        let parts = self.parts(&(row..row + 1))?;
        let element = map.row(row) * self.encoder.columns() + column;
        let (row, column) = (element / decoder.columns(), element % decoder.columns());
        let explained = decoder.explain(row, column..column + 1, &parts)?;
        let Some(Explanation { number, scale, global_scale, .. }) = explained.first() else { return Ok(String::new()) };
        if !number.is_finite() {
            return Ok(format!(", whose code is {}", if number.is_nan() { "NaN" } else { "infinite" }));
        }
        let named = |part: usize| format!("'{}'", shorten(&self.sources[part].tensor.name));
        let scales = match &decoder.scale_parts().map(named).collect::<Vec<_>>()[..] {
            [] => "its block".to_owned(),
            parts => parts.join(" or "),
        };
        let is_nan = scale.is_nan() || global_scale.is_some_and(|(scale, _)| scale.is_nan());
        Ok(format!(", whose scale in {scales} is {}", if is_nan { "NaN" } else { "infinite or too large" }))
    }
}

/// Passes the rows of weights to `check`, with a buffer for its use, and the results to `found`, in order. Each weight has the
/// number of its set, and its own number there. After the first error, the rest of a set is skipped.
pub(super) fn in_pieces<T: Send>(
    threads: usize,
    (what, observer): (&'static str, &dyn Observer),
    weights: &[((usize, usize), &WeightRows)],
    check: impl Fn((usize, usize), Range<u64>, &[u8], &mut Vec<u8>) -> Result<T, u64> + Sync,
    mut found: impl FnMut((usize, usize), Result<T, u64>) + Send,
) -> Result<()> {
    /// Bytes of values that a thread takes at a time.
    const PIECE: u64 = 1 << 20;
    let sets = weights.iter().map(|((set, _), _)| set + 1).max().unwrap_or_default();
    let failed: Vec<AtomicBool> = (0..sets).map(|_| AtomicBool::new(false)).collect();
    let bytes = |rows: u64, weight: &WeightRows| rows * weight.encoder.row_bytes();
    let progress = observer.progress(what, weights.iter().map(|(_, it)| bytes(it.encoder.rows(), it)).sum());
    let pieces = weights.iter().flat_map(|(at, weight)| weight.row_pieces(PIECE).map(move |rows| (*at, *weight, rows)));
    // Pieces are handed out in order, so all before the first that fails are checked.
    let pieces = pieces.filter(|((set, _), weight, rows)| {
        let is_over = failed[*set].load(Ordering::Relaxed);
        if is_over {
            progress.advance(bytes(rows.end - rows.start, weight));
        }
        !is_over
    });
    let work = |(values, buffer): &mut (Vec<u8>, Vec<u8>),
                (at, weight, rows): ((usize, usize), &WeightRows, Range<u64>)| {
        let source = weight.read(rows.clone(), values)?;
        progress.advance(source.len() as u64);
        let result = check(at, rows, source, buffer);
        failed[at.0].fetch_or(result.is_err(), Ordering::Relaxed);
        Ok::<_, Error>((at, result))
    };
    in_order(threads as u64, pieces, Default::default, work, |(at, result)| {
        found(at, result);
        ControlFlow::Continue(())
    })?;
    Ok(())
}

/// True if two weights take their values from the same places of their tensors.
fn are_same(one: &WeightValues, other: &WeightValues) -> bool {
    match (one, other) {
        (WeightValues::Rows(own), WeightValues::Rows(other)) => own == other,
        (WeightValues::Coded(_, own), WeightValues::Coded(_, other)) => own == other,
        (
            WeightValues::Gathered { rows: own, change },
            WeightValues::Gathered { rows: other, change: other_change },
        ) => own == other && change == other_change,
        _ => false,
    }
}

/// Widens numbers to float32, and undoes a change. Exponentials are computed in float64 and rounded once.
fn unchanged(change: ValueChange, dtype: Dtype, numbers: &[u8], count: usize) -> Vec<u8> {
    let [from, to] = [dtype, Dtype::Float32].map(Storage::packed);
    let widen = Kernel::cast(from, to, &Rules::LOSSLESS).expect("weights are floats of 32 bits and fewer");
    let mut sums = vec![0; 4 * count];
    widen.run(numbers, &mut sums, count).expect("floats are never malformed");
    for bytes in sums.as_chunks_mut().0 {
        let number = f32::from_le_bytes(*bytes);
        let number = match change {
            ValueChange::None => number,
            _ if number.is_nan() => number,
            ValueChange::LessOne => number + 1.0,
            ValueChange::LogOfNegative => -f64::from(number).exp() as f32,
        };
        *bytes = number.to_le_bytes();
    }
    sums
}

/// The largest magnitude of all weights that share a scale. One pass finds it before the first of them is encoded.
pub(crate) struct SharedExtremes<'a> {
    pub members: Box<[WeightRows<'a>]>,
    found: OnceLock<Extremes>,
}

impl<'a> SharedExtremes<'a> {
    pub(super) fn new(members: Box<[WeightRows<'a>]>) -> Self {
        Self { members, found: OnceLock::new() }
    }

    /// Returns the address of the first tensor that is read: equal for sets with the same values.
    pub(crate) fn first_source(&self) -> Option<*const Tensor> {
        self.members.first().map(|rows| std::ptr::from_ref(rows.sources[0].tensor))
    }

    /// True if another set has the same values, and the same kind of extremes.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&WeightRows, &WeightRows)| {
            one.has_values_of(other) && one.encoder.has_column_scales() == other.encoder.has_column_scales()
        };
        self.members.len() == other.members.len() && self.members.iter().zip(&other.members).all(is_same)
    }

    pub(crate) fn get(&self) -> Option<&Extremes> {
        self.found.get()
    }

    /// Stores the result of the first pass.
    pub(crate) fn set(&self, extremes: Extremes) {
        let _ = self.found.set(extremes); // every pass finds the same
    }
}
