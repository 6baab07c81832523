//! Encodes the rows of a weight as blocks of ggml (GGUF), and measures the result.

use super::super::layout::Role;
use super::geometry::{EncodedPart, Unfit, check_count};
use super::tally::EncodeTally;
use crate::blocks::{BlockFormat, EncodeRefusal};
use crate::dtype::Dtype;
use crate::kernel::{Isa, Kernel, Loop, Rules, Storage};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Number of values that are encoded at a time, unless a row is longer: they stay in the second-level cache.
const PIECE: usize = 1 << 14;

/// Turns the values of a weight into blocks. For plain numbers, which are blocks of one element, it only determines the
/// places: a conversion casts them.
pub struct BlockWeightEncoder {
    format: &'static BlockFormat,
    shape: Vec<u64>,
    columns: u64,
    /// Rows of a matrix.
    matrix_rows: u64,
    pub(super) source: Dtype,
    /// Conversion of the values to float32, which holds them exactly.
    widen: Kernel,
    /// The stored tensor.
    part: [EncodedPart; 1],
    /// A weight for each column of each matrix, from an importance matrix.
    importance: Option<Arc<[f32]>>,
    /// True if blocks that hold all values take precedence over the blocks of ggml.
    keeps_values: bool,
}

impl BlockWeightEncoder {
    /// Creates an encoder for weights of this shape, whose values are floats of 8 to 32 bits. A weight of one dimension
    /// has one row.
    pub fn new(format: &'static BlockFormat, shape: &[u64], source: Dtype) -> Result<Self, Unfit> {
        if !format.can_encode() && format.dtype.is_none() {
            return Err(Unfit::Grid);
        }
        if !source.is_floating() || !(8..=32).contains(&source.bits()) {
            return Err(Unfit::Source(source));
        }
        Self::with_source(format, shape, source)
    }

    fn with_source(format: &'static BlockFormat, shape: &[u64], source: Dtype) -> Result<Self, Unfit> {
        let (columns, matrix_rows) = match *shape {
            [.., rows, columns] => (columns, rows),
            [columns] => (columns, 1),
            [] => (1, 1),
        };
        check_count(shape)?;
        if !columns.is_multiple_of(format.elements) {
            return Err(Unfit::Columns { columns, multiple: format.elements });
        }
        let [from, to] = [source, Dtype::Float32].map(Storage::packed);
        let widen = Kernel::cast(from, to, &Rules::default()).ok_or(Unfit::Source(source))?;
        let dtype = format.dtype.unwrap_or(Dtype::Uint8);
        let part = EncodedPart { format: Some(format), ..EncodedPart::new(Role::Codes, "", dtype, shape.to_vec()) };
        Ok(Self {
            format,
            shape: shape.to_vec(),
            columns,
            matrix_rows,
            source,
            widen,
            part: [part],
            importance: None,
            keeps_values: false,
        })
    }

    /// Describes blocks that are copied: nothing is encoded.
    pub fn copying(format: &'static BlockFormat, shape: &[u64]) -> Result<Self, Unfit> {
        Self::with_source(format, shape, Dtype::Float32)
    }

    /// Returns the same encoder, which gives each column of each matrix a weight.
    #[must_use]
    pub fn with_importance(self, importance: Option<Arc<[f32]>>) -> Self {
        Self { importance: importance.filter(|_| self.format.uses_importance()), ..self }
    }

    /// Returns the same encoder, which prefers blocks that hold all values if requested. The bytes of other values then
    /// depend on the rows that are encoded together.
    #[must_use]
    pub fn keeping_values(self, keeps_values: bool) -> Self {
        Self { keeps_values, ..self }
    }

    /// The format of the blocks.
    #[must_use]
    pub fn format(&self) -> &'static BlockFormat {
        self.format
    }

    pub(super) fn parts(&self) -> &[EncodedPart] {
        &self.part
    }

    pub(super) fn shape(&self) -> &[u64] {
        &self.shape
    }

    pub(super) fn part_ranges(&self, rows: &Range<u64>) -> Vec<Range<u64>> {
        let row = self.columns / self.format.elements * self.format.bytes;
        let range = rows.start * row..rows.end * row;
        Vec::from([range])
    }

    /// Encodes a range of rows, whose values are in `source`. The element of an error counts from the first of these rows.
    ///
    /// # Errors
    /// When a scale is too large for its type, or a value for the type of plain numbers. Values that are infinite or NaN are
    /// counted in the tally.
    pub(crate) fn encode(
        &self,
        rows: Range<u64>,
        source: &[u8],
        out: &mut [u8],
        tally: &mut EncodeTally,
    ) -> Result<(), EncodeRefusal> {
        let (isa, columns, width) = (Isa::chosen(), self.columns as usize, self.source.bits() as usize / 8);
        let out_row = columns / self.format.elements as usize * self.format.bytes as usize;
        let step = (PIECE / columns).max(1) as u64;
        let (mut values, mut decoded) = (Vec::new(), Vec::new());
        let mut start = rows.start;
        while start < rows.end {
            // All rows of a piece belong to one matrix, which has its own importance.
            let (matrix, within) = (start / self.matrix_rows, start % self.matrix_rows);
            let end = rows.end.min(start + step).min(start - within + self.matrix_rows);
            let [first, last] = [start, end].map(|row| (row - rows.start) as usize);
            let count = (last - first) * columns;
            values.resize(count, 0.0);
            let source = &source[first * columns * width..last * columns * width];
            self.widened(isa, source, &mut values);
            let importance = self.importance.as_ref().map(|weights| &weights[matrix as usize * columns..][..columns]);
            let blocks = &mut out[first * out_row..last * out_row];
            let is_found = self.keeps_values && self.can_recover() && self.find_blocks(isa, &values, source, blocks);
            let encoded = if is_found { Ok(()) } else { self.format.encode(isa, &values, columns, importance, blocks) };
            match encoded {
                Ok(()) => {}
                Err(EncodeRefusal::Value { .. }) => {
                    let at = (0..count).find(|at| !values[*at].is_finite()).expect("a value was refused");
                    tally.take_special(Some(start * self.columns + at as u64));
                }
                Err(refusal) => return Err(refusal.after(first * columns)),
            }
            tally.values += count as u64;
            if !tally.skips_errors {
                decoded.resize(4 * count, 0);
                self.format.decode(isa, blocks, None, Dtype::Float32, &mut decoded);
                tally.underflowed_groups += self.lost_blocks(&values, decoded.as_chunks().0);
                for (at, (values, decoded)) in
                    values.chunks_exact(columns).zip(decoded.as_chunks().0.chunks_exact(columns)).enumerate()
                {
                    let place = (start + at as u64) * self.columns;
                    isa.run(RowErrors { values, decoded }).add_to(tally, place, values, decoded);
                }
            }
            start = end;
        }
        Ok(())
    }

    /// Finds blocks that hold values, and writes them; `source` holds the values in their type. If there are none, finds
    /// blocks that hold 0 instead of -0, which MXFP4 and NVFP4 do not have.
    fn find_blocks(&self, isa: Isa, values: &[f32], source: &[u8], out: &mut [u8]) -> bool {
        if self.format.recover(isa, values, (self.source, source), out).is_ok() {
            return true;
        }
        if !values.iter().any(|value| *value == 0.0 && value.is_sign_negative()) {
            return false;
        }
        let unsigned: Vec<f32> = values.iter().map(|value| value + 0.0).collect(); // -0 + 0 is 0
        let source: Vec<u8> = unsigned.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.format.recover(isa, &unsigned, (Dtype::Float32, &source), out).is_ok()
    }

    /// Counts the blocks whose values are lost, because their scale became 0.
    fn lost_blocks(&self, values: &[f32], decoded: &[[u8; 4]]) -> u64 {
        let elements = self.format.elements as usize;
        let blocks = values.chunks_exact(elements).zip(decoded.chunks_exact(elements));
        let is_zero = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes) == 0.0;
        let is_lost = |(values, decoded): &(&[f32], &[[u8; 4]])| {
            decoded.iter().all(is_zero) && values.iter().any(|value| *value != 0.0)
        };
        blocks.filter(is_lost).count() as u64
    }

    /// Returns the values of blocks, as float32.
    pub(crate) fn decoded(&self, blocks: &[u8]) -> Vec<u8> {
        let count = blocks.len() / self.format.bytes as usize * self.format.elements as usize;
        let mut values = vec![0; 4 * count];
        self.format.decode(Isa::chosen(), blocks, None, Dtype::Float32, &mut values);
        values
    }

    /// True if [`BlockWeightEncoder::recover`] can find blocks.
    #[must_use]
    pub fn can_recover(&self) -> bool {
        self.format.dtype.is_none() && self.source.is_weight()
    }

    /// Finds the blocks that some rows were decoded from, and writes them. The error is the index of the first value without
    /// such a block, in row-major order in the whole weight.
    pub fn recover(&self, rows: &Range<u64>, source: &[u8], out: &mut [u8]) -> Result<(), u64> {
        let isa = Isa::chosen();
        let width = self.source.bits() as usize / 8;
        let [elements, bytes] = [self.format.elements, self.format.bytes].map(|number| number as usize);
        let mut values = Vec::new();
        let pieces = source.chunks(PIECE * width).zip(out.chunks_mut(PIECE / elements * bytes));
        for (piece, (source, out)) in pieces.enumerate() {
            values.resize(source.len() / width, 0.0);
            self.widened(isa, source, &mut values);
            let first = rows.start * self.columns + (piece * PIECE) as u64;
            let found = self.format.recover(isa, &values, (self.source, source), out);
            found.map_err(|element| first + element as u64)?;
        }
        Ok(())
    }

    fn widened(&self, isa: Isa, source: &[u8], values: &mut [f32]) {
        let count = values.len();
        let counts = self.widen.run_on(isa, source, values.as_mut_bytes(), count);
        counts.expect("floats are never malformed");
        if cfg!(target_endian = "big") {
            for value in &mut *values {
                *value = f32::from_bits(value.to_bits().swap_bytes());
            }
        }
    }
}

/// Compares the values of a row with its blocks.
struct RowErrors<'a> {
    values: &'a [f32],
    decoded: &'a [[u8; 4]],
}

/// Sums over a row, whose terms have a fixed order.
struct RowSums {
    signal: f64,
    noise: f64,
    largest: f32,
    changed: u64,
}

/// Number of partial sums.
const SUMS: usize = 8;

impl Loop for RowErrors<'_> {
    type Result = RowSums;

    #[inline(always)]
    fn run(self) -> RowSums {
        let (mut signal, mut noise, mut largest, mut changed) =
            ([0.0; SUMS], [0.0; SUMS], [0_u32; SUMS], [0_u32; SUMS]);
        let mut add = |at: usize, value: f32, bytes: [u8; 4]| {
            let decoded = f32::from_le_bytes(bytes);
            let (value_wide, error) = (f64::from(value), f64::from(decoded) - f64::from(value));
            signal[at] += value_wide * value_wide;
            noise[at] += error * error;
            // Magnitudes compare like their bits.
            largest[at] = largest[at].max((error as f32).abs().to_bits());
            // -0 equals 0, and a NaN that stays the same is not a change.
            changed[at] += u32::from(decoded != value && decoded.to_bits() != value.to_bits());
        };
        let (values, rest) = self.values.as_chunks::<SUMS>();
        let (decoded, decoded_rest) = self.decoded.as_chunks::<SUMS>();
        for (values, decoded) in values.iter().zip(decoded) {
            for at in 0..SUMS {
                add(at, values[at], decoded[at]);
            }
        }
        for (at, (value, decoded)) in rest.iter().zip(decoded_rest).enumerate() {
            add(at, *value, *decoded);
        }
        RowSums {
            signal: signal.iter().sum(),
            noise: noise.iter().sum(),
            largest: f32::from_bits(largest.into_iter().max().unwrap_or_default()),
            changed: changed.iter().map(|count| u64::from(*count)).sum(),
        }
    }
}

impl RowSums {
    /// Adds the sums of a row that begins at this element.
    fn add_to(&self, tally: &mut EncodeTally, first: u64, values: &[f32], decoded: &[[u8; 4]]) {
        tally.take_errors(self.signal, self.noise);
        tally.changed += self.changed;
        let largest = f64::from(self.largest);
        if tally.needs_place(largest, first) {
            let error = |at: &usize| (f64::from(f32::from_le_bytes(decoded[*at])) - f64::from(values[*at])) as f32;
            let place = (0..values.len()).find(|at| error(at).abs() == self.largest).map(|at| first + at as u64);
            tally.take_error(largest, place);
        }
    }
}
