//! The decoder of all layouts: the stored bytes of the parts become values.
//!
//! [`Decoder::new`] determines the geometry (`geometry`; `linear` for ONNX) and the arithmetic (`steps`) of a weight
//! once. [`Decoder::decode`] then walks over the rows (`rows`): `codes` unpacks codes, `scales` and `zeros` fetch the
//! scales and zero points of their groups, and `fused` with `tables`, or `lanes`, multiply.

pub(super) mod buffers;
mod casts;
pub(super) mod codes;
mod explain;
mod fused;
pub(super) mod geometry;
mod group_index;
mod lanes;
mod linear;
mod rotate;
pub(super) mod rows;
pub(super) mod scales;
mod segment;
mod steps;
mod tables;
mod tally;
mod weight;
pub(super) mod zeros;

pub use explain::{CodeKind, Explanation, Grid};
pub(super) use fused::to_bfloat16;
pub use steps::Arithmetic;
pub use tally::{DecodeTally, Occurrences};

use super::layout::{Layout, Packing, ScaleOrder};
use super::parts::{Parameters, Part};
use super::table::GPT_OSS_ROWS;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::kernel::Isa;
use buffers::{DecodeBuffers, SEGMENT};
use casts::cast;
use rows::{RowDecoder, RowOutput};
use std::ops::Range;
use std::sync::Arc;
use steps::Steps;
use tables::Results;

/// Maximum size of an undivided row, in bytes of values.
const LONGEST: u64 = 4 << 20;

/// Number of columns at whose multiples longer rows are divided.
const SPAN: u64 = 64 * SEGMENT as u64;

/// Turns the stored bytes of a weight into its values.
pub struct Decoder {
    pub(super) steps: Steps,
    part_bytes: Vec<u64>,
    /// The bytes of parts that the file stores in another form.
    held: Vec<Option<Arc<[u8]>>>,
    /// The decoder of exact products, if values are compared with them.
    exact: Option<Box<Self>>,
}

impl Decoder {
    /// Creates a decoder for the weight with these `parts`, to `target`: float32, bfloat16 or float16.
    ///
    /// Parts whose roles the layout lacks are ignored if no value depends on them (shape, description, activation
    /// scale), and are errors otherwise. Fails if a part is missing, duplicated, or of a dtype or shape that
    /// contradicts the others or the parameters, or if a parameter is missing or impossible. Errors name the codes, the
    /// part, and the shapes found and expected.
    pub fn new(
        layout: &'static Layout,
        parameters: &Parameters,
        parts: &[Part],
        target: Dtype,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        let steps = Steps::new(layout, parameters, parts, target, arithmetic)?;
        let bytes = |part: &Part| part.dtype.packed_bytes(part.shape.iter().product()).unwrap_or(u64::MAX);
        let held = |part: &Part| {
            let known = parameters.held.iter().find(|(role, _)| *role == part.role);
            known.map(|(_, bytes)| Arc::clone(bytes))
        };
        let held = parts.iter().map(held).collect();
        Ok(Self { steps, part_bytes: parts.iter().map(bytes).collect(), held, exact: None })
    }

    /// Returns the same decoder, which also counts the values that differ from the exact product: `exact` is the
    /// decoder of the same weight with [`Arithmetic::Exact`].
    #[must_use]
    pub fn watch(self, exact: Self) -> Self {
        Self { exact: Some(Box::new(exact)), ..self }
    }

    /// Creates a decoder of the exact values as float64, with [out, in] as the last dimensions. It differs from others
    /// for gpt-oss, whose library transposes the stored matrices. Its counts are all 0.
    pub fn of_rows(layout: &'static Layout, parameters: &Parameters, parts: &[Part]) -> Result<Self> {
        let (target, arithmetic) = (Dtype::Float64, Arithmetic::Exact);
        if layout.codes.packing != Packing::TransposedBlocks {
            return Self::new(layout, parameters, parts, target, arithmetic);
        }
        let parameters = Parameters { shape: None, group: None, ..parameters.clone() };
        Self::new(&GPT_OSS_ROWS, &parameters, parts, target, arithmetic)
    }

    /// The bytes of a part that the file stores in another form.
    pub(crate) fn held(&self, part: usize) -> Option<&[u8]> {
        self.held.get(part)?.as_deref()
    }

    /// The layout in which the weight is stored.
    #[must_use]
    pub fn layout(&self) -> &'static Layout {
        self.steps.layout
    }

    /// The shape of the weight.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.steps.geometry.shape
    }

    /// The number of rows of the weight: the product of all its lengths except the last.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.steps.geometry.all_rows()
    }

    /// The number of values in a row.
    #[must_use]
    pub fn columns(&self) -> u64 {
        self.steps.geometry.columns
    }

    /// The type of the values.
    #[must_use]
    pub fn target(&self) -> Dtype {
        self.steps.target
    }

    /// Bytes of a decoded row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.steps.geometry.columns * u64::from(self.steps.target.bits() / 8)
    }

    /// The alignment of rows for efficient reading: ranges that start at its multiples read the parts most efficiently.
    /// Any range gives the same bytes.
    #[must_use]
    pub fn row_alignment(&self) -> u64 {
        self.steps.layout.codes.packing.line_rows() as u64
    }

    /// Returns a number of values near `wanted` at whose multiples the weight can be divided: whole rows, unless a row
    /// takes more than [`LONGEST`] bytes. It is a multiple of 8.
    #[must_use]
    pub fn piece(&self, wanted: u64) -> u64 {
        let (columns, row) = (self.columns().max(1), self.row_bytes());
        if row > LONGEST {
            return wanted.next_multiple_of(SEGMENT as u64);
        }
        // Packed elements of another tensor start on whole bytes.
        let packed = if columns.is_multiple_of(8) { 1 } else { 8 };
        let aligned = if row.saturating_mul(self.row_alignment()) > LONGEST { 1 } else { self.row_alignment() };
        let unit = columns.saturating_mul(aligned.max(packed));
        (wanted / unit).max(1).saturating_mul(unit)
    }

    /// Returns the position at which to divide the values, counted in row-major order: the last possible position
    /// between `start` and `wanted`, or the first after `wanted` if there is none. Rows of more than [`LONGEST`] bytes
    /// are divided.
    #[must_use]
    pub fn cut(&self, start: u64, wanted: u64) -> u64 {
        let (columns, all) = (self.columns(), self.rows() * self.columns());
        if wanted >= all {
            return all;
        }
        let within_row = |at: u64| at % columns / SPAN * SPAN;
        let aligned = self.row_alignment();
        let (before, after) = match self.row_bytes() {
            long if long > LONGEST => {
                let row = start - start % columns;
                (
                    wanted - wanted % columns + within_row(wanted),
                    (start + SPAN - (start - row) % SPAN).min(row + columns),
                )
            }
            short => {
                let unit = columns * if short.saturating_mul(aligned) > LONGEST { 1 } else { aligned };
                (wanted / unit * unit, (start / unit + 1) * unit)
            }
        };
        if before > start { before } else { after.min(all) }
    }

    /// Returns the smallest range around these values that can be decoded separately: whole rows, unless they are long.
    #[must_use]
    pub fn around(&self, values: Range<u64>) -> Range<u64> {
        let columns = self.columns();
        let unit = if self.row_bytes() > LONGEST { SEGMENT as u64 } else { columns };
        let before = |at: u64| at - at % columns % unit;
        let after = |at: u64| (at - at % columns) + (at % columns).next_multiple_of(unit).min(columns);
        before(values.start)..after(values.end)
    }

    /// Like [`Decoder::decode`], for values that are counted in row-major order and divided by [`Decoder::cut`].
    pub fn decode_values(&self, values: Range<u64>, parts: &[&[u8]], out: &mut [u8]) -> Result<DecodeTally> {
        let (columns, width) = (self.columns().max(1), u64::from(self.target().bits() / 8));
        let mut tally = DecodeTally::default();
        let (mut start, mut out) = (values.start, out);
        while start < values.end {
            let column = start % columns;
            let end = if column == 0 && values.end - start >= columns {
                values.end - values.end % columns
            } else {
                values.end.min(start - column + columns)
            };
            let (now, rest) = out.split_at_mut(((end - start) * width) as usize);
            let (rows, count) = (start / columns..end.div_ceil(columns), end - start);
            tally += if count % columns == 0 && column == 0 {
                self.decode(rows, parts, now)?
            } else {
                self.decode_columns(Isa::chosen(), rows, column..column + count, parts, now)?
            };
            (start, out) = (end, rest);
        }
        Ok(tally)
    }

    /// Returns the byte range of each part that these values need: [`Decoder::part_ranges`] for values.
    #[must_use]
    pub fn value_ranges(&self, values: Range<u64>) -> Vec<Range<u64>> {
        let (geometry, columns) = (&self.steps.geometry, self.columns().max(1));
        let row = values.start / columns;
        let mut ranges = self.part_ranges(row..values.end.div_ceil(columns));
        let [first, end] = [values.start, values.end].map(|value| value - row * columns);
        let (codes, bits) = (&mut ranges[geometry.codes.index], u64::from(geometry.bits));
        match self.steps.layout.codes.packing {
            Packing::Rows(_) | Packing::RowsHighFirst if end <= columns => {
                *codes = codes.start + first * bits / 8..codes.end.min(codes.start + (end * bits).div_ceil(8));
            }
            Packing::Stream => *codes = values.start * bits / 8..(values.end * bits).div_ceil(8),
            _ => {}
        }
        ranges
    }

    /// Returns the byte range of each part that these rows need, in the order of the parts, for reading ahead.
    #[must_use]
    pub fn part_ranges(&self, rows: Range<u64>) -> Vec<Range<u64>> {
        let geometry = &self.steps.geometry;
        let mut ranges: Vec<_> = self.part_bytes.iter().map(|bytes| 0..*bytes).collect();
        if rows.is_empty() || rows.end > self.rows() {
            return ranges;
        }
        let last = rows.end - 1;
        let matrices = rows.start / geometry.rows..last / geometry.rows + 1;
        let [first_row, last_row] = [rows.start, last].map(|row| row % geometry.rows);
        let within = |matrix_bytes: u64, first: u64, end: u64| {
            matrices.start * matrix_bytes + first..(matrices.end - 1) * matrix_bytes + end
        };
        ranges[geometry.codes.index] = match self.steps.layout.codes.packing {
            Packing::Rows(_) | Packing::RowsHighFirst => {
                within(geometry.matrix_bytes, first_row * geometry.stride, (last_row + 1) * geometry.stride)
            }
            Packing::Flat => rows.start * geometry.columns / 2..(rows.end * geometry.columns).div_ceil(2),
            Packing::Stream => {
                let [start, end] = [rows.start, rows.end].map(|row| row * geometry.columns * u64::from(geometry.bits));
                start / 8..end.div_ceil(8)
            }
            _ => within(geometry.matrix_bytes, 0, geometry.matrix_bytes),
        };
        if geometry.matrix_scales != 0 && self.steps.layout.scale_order == ScaleOrder::Rows {
            let width = u64::from(geometry.scale.dtype.bits() / 8);
            let [below, beside] = [geometry.block[0], geometry.grid[1] * width];
            let (first, end) = (first_row / below * beside, (last_row / below + 1) * beside);
            ranges[geometry.scale.index] = within(geometry.matrix_scales * width, first, end);
        }
        ranges
    }

    /// Decodes a range of rows to `out`. `parts` holds all stored bytes of each part, in the order of the parts. Both
    /// are little endian. Fails if the group index names a group that does not exist. Panics if the number of parts is
    /// wrong, the bytes of a part do not match its shape, the rows are out of range, or the length of `out` is wrong.
    pub fn decode(&self, rows: Range<u64>, parts: &[&[u8]], out: &mut [u8]) -> Result<DecodeTally> {
        self.decode_on(Isa::chosen(), rows, parts, out)
    }

    /// Like [`Decoder::decode`], with one of the instruction sets of [`Isa::available`], for tests.
    pub fn decode_on(&self, isa: Isa, rows: Range<u64>, parts: &[&[u8]], out: &mut [u8]) -> Result<DecodeTally> {
        let lengths = parts.iter().map(|bytes| bytes.len() as u64);
        assert!(lengths.eq(self.part_bytes.iter().copied()), "each part has the bytes of its shape");
        assert!(rows.start <= rows.end && rows.end <= self.rows(), "the rows are those of the weight");
        assert_eq!(out.len() as u64, (rows.end - rows.start) * self.row_bytes(), "the output is as long as the rows");
        if out.is_empty() {
            return Ok(DecodeTally::default());
        }
        self.decode_columns(isa, rows, 0..self.columns(), parts, out)
    }

    /// Decodes some columns of some rows; the first column is a multiple of [`SEGMENT`].
    fn decode_columns(
        &self,
        isa: Isa,
        rows: Range<u64>,
        columns: Range<u64>,
        parts: &[&[u8]],
        out: &mut [u8],
    ) -> Result<DecodeTally> {
        let mut tally = self.run(isa, rows.clone(), columns.clone(), parts, RowOutput::Values(&mut *out))?;
        if let (Some(exact), Some(widen)) = (&self.exact, cast(self.target(), Dtype::Float32)) {
            tally += exact.run(isa, rows, columns, parts, RowOutput::Inexact(out, &widen))?;
        }
        Ok(tally)
    }

    fn run(
        &self,
        isa: Isa,
        rows: Range<u64>,
        columns: Range<u64>,
        parts: &[&[u8]],
        out: RowOutput,
    ) -> Result<DecodeTally> {
        let [range, columns] = [rows, columns].map(|range| range.start as usize..range.end as usize);
        let index = self.group_index(parts, columns.clone())?;
        let map = self.steps.geometry.map.and_then(|slot| parts[slot.index].as_chunks().0.first_chunk().copied());
        let buffers = DecodeBuffers::new(&self.steps, index.is_some());
        let map = map.unwrap_or_default();
        let Steps { fused, scales, geometry, .. } = &self.steps;
        let results =
            fused.map_or(Results::None, |fused| fused.results(isa, geometry, scales.factor(), buffers.columns, &map));
        Ok(isa.run(RowDecoder { steps: &self.steps, parts, index, map, buffers, results, range, columns, out }))
    }

    /// The indices of the parts that hold scales and the global scale.
    pub(crate) fn scale_parts(&self) -> impl Iterator<Item = usize> {
        let geometry = &self.steps.geometry;
        std::iter::once(geometry.scale.index).chain(geometry.global.map(|slot| slot.index))
    }
}
