//! Division of a weight into pieces that can be decoded separately, and the stored bytes that each of them needs.

use super::buffers::SEGMENT;
use super::{Decoder, Method};
use crate::quant::layout::codes_in_bytes;
use crate::quant::{Packing, ScaleOrder};
use std::ops::Range;

/// Maximum size of an undivided row, in bytes of values.
const LONGEST: u64 = 4 << 20;

/// Number of columns at whose multiples longer rows are divided.
const SPAN: u64 = 64 * SEGMENT as u64;

impl Decoder {
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
        let unit = columns.saturating_mul(self.undivided_rows().max(packed));
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
        let [before, after] = if self.row_bytes() > LONGEST {
            let row = start - start % columns;
            let after = (start + SPAN - (start - row) % SPAN).min(row + columns);
            [wanted - wanted % columns + within_row(wanted), after]
        } else {
            let unit = columns * self.undivided_rows();
            [wanted / unit * unit, (start / unit + 1) * unit]
        };
        if before > start { before } else { after.min(all) }
    }

    /// Returns the number of rows that are best read together, if they take at most [`LONGEST`] bytes.
    fn undivided_rows(&self) -> u64 {
        let aligned = self.row_alignment();
        if self.row_bytes().saturating_mul(aligned) > LONGEST { 1 } else { aligned }
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

    /// Returns the byte range of each part that these values need, in the order of the parts, for reading ahead.
    #[must_use]
    pub fn value_ranges(&self, values: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<_> = self.part_bytes.iter().map(|bytes| 0..*bytes).collect();
        let columns = self.columns().max(1);
        let rows = values.start / columns..values.end.div_ceil(columns);
        if rows.is_empty() || rows.end > self.rows() {
            return ranges;
        }
        let geometry = match &self.method {
            Method::Steps(steps) => &steps.geometry,
            Method::Blocks(blocks) => {
                blocks.set_ranges(values, &mut ranges);
                return ranges;
            }
        };
        let last = rows.end - 1;
        let matrices = rows.start / geometry.rows..last / geometry.rows + 1;
        let [first_row, last_row] = [rows.start, last].map(|row| row % geometry.rows);
        let within = |matrix_bytes: u64, first: u64, end: u64| {
            matrices.start * matrix_bytes + first..(matrices.end - 1) * matrix_bytes + end
        };
        let bits = u64::from(geometry.bits);
        ranges[geometry.codes.index] = match self.layout.codes.packing {
            Packing::Rows(_) | Packing::Blocks | Packing::RowsHighFirst => {
                let [first, end] = [values.start, values.end].map(|value| value - rows.start * columns);
                let [before, after] = if end <= columns {
                    [first * bits / 8, geometry.stride.min((end * bits).div_ceil(8))]
                } else {
                    [0, geometry.stride]
                };
                within(geometry.matrix_bytes, first_row * geometry.stride + before, last_row * geometry.stride + after)
            }
            Packing::Flat => rows.start * columns / 2..(rows.end * columns).div_ceil(2),
            Packing::Stream => values.start * bits / 8..(values.end * bits).div_ceil(8),
            Packing::Units => {
                let size = if bits == 8 { columns } else { codes_in_bytes(geometry.bits) };
                rows.start * columns / size * geometry.stride..(rows.end * columns).div_ceil(size) * geometry.stride
            }
            _ => within(geometry.matrix_bytes, 0, geometry.matrix_bytes),
        };
        if geometry.matrix_scales != 0 && self.layout.scale_order == ScaleOrder::Rows {
            let width = u64::from(geometry.scale.dtype.bits() / 8);
            let [below, beside] = [geometry.block[0], geometry.grid[1] * width];
            let (first, end) = (first_row / below * beside, (last_row / below + 1) * beside);
            ranges[geometry.scale.index] = within(geometry.matrix_scales * width, first, end);
        }
        ranges
    }
}
