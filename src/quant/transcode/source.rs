//! The codes and scales of a quantized weight as exact numbers.

use super::super::decode::buffers::global_scale;
use super::super::decode::geometry::DecodeGeometry;
use super::super::decode::linear::extend_signs;
use super::super::decode::rows::widen;
use super::super::decode::scales::{GroupRange, stored_scales};
use super::super::decode::{BlockDecoder, Decoder, Method};
use super::super::layout::{CodeValues, Combination, Packing, ScaleOrder, Zeros};
use super::RowMap;
use crate::blocks::CodeNumbers;
use crate::dtype::Class;
use crate::error::Result;
use std::ops::Range;
use std::sync::Arc;

/// The grid of a quantized weight, some of whose rows become another weight.
pub(super) struct SourceGrid {
    decoder: Arc<Decoder>,
    /// The bits of a code.
    bits: u32,
    rows: RowMap,
    /// True if scales are block scales without the global scale, because the new layout stores the same block scales.
    pub(super) keeps_blocks: bool,
    /// Rows and columns of a group.
    block: [usize; 2],
    /// The number that each code represents. If integers have a sign, the middle of their range is 0.
    pub(super) numbers: Arc<[f32]>,
    pub(super) is_integer: bool,
    /// The number subtracted from codes and stored zero points.
    centre: f32,
}

/// The factor of the numbers of a group, and the number that is added to their products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SourceGroup {
    /// NaN if scales are divided by the global scale and the quotient is not a float64.
    pub(super) scale: f64,
    /// NaN if it is not a float64.
    pub(super) offset: f64,
}

/// Rows that share their groups.
pub(super) struct Line {
    pub(super) rows: Range<usize>,
    pub(super) groups: Vec<SourceGroup>,
}

impl SourceGrid {
    /// Reads the grid; `None` if values are not products of a code and the scale of a contiguous group. If `has_sign` is
    /// false, codes that start at 0 keep their numbers.
    pub(super) fn new(
        decoder: Arc<Decoder>,
        rows: RowMap,
        keeps_blocks: bool,
        has_sign: bool,
        parts: &[&[u8]],
    ) -> Result<Option<Self>> {
        let steps = match &decoder.method {
            Method::Steps(steps) => steps,
            Method::Blocks(blocks) => {
                let Some(grid) = blocks.only_source().and_then(|(_, format)| format.grid()) else { return Ok(None) };
                if decoder.shape().last() != Some(&decoder.columns()) {
                    return Ok(None); // rows are not whole blocks
                }
                let CodeNumbers { group, code_bits: bits, mut numbers, is_integer, has_offsets } = grid;
                // Codes with offsets start at 0.
                let centre = if has_offsets && has_sign { (1_u32 << (bits - 1)) as f32 } else { 0.0 };
                for number in &mut numbers {
                    *number -= centre;
                }
                let (block, numbers) = ([1, group], numbers.into());
                return Ok(Some(Self { decoder, bits, rows, keeps_blocks, block, numbers, is_integer, centre }));
            }
        };
        let (layout, geometry) = (steps.layout, &steps.geometry);
        let is_other = geometry.nested.is_some()
            || matches!(layout.codes.values, CodeValues::Map | CodeValues::Levels)
            || matches!(layout.zeros, Zeros::Added | Zeros::Fused | Zeros::Scaled)
            || matches!(layout.codes.packing, Packing::Flat | Packing::Stream)
            || layout.scale_order == ScaleOrder::Flat
            || layout.global == Combination::Over127;
        if is_other {
            return Ok(None);
        }
        let mut block = geometry.block.map(|length| length as usize);
        if geometry.group_index.is_some() {
            let index = steps.group_index(parts, 0..geometry.columns as usize)?;
            let size = geometry.columns.div_ceil(geometry.grid[1]).max(1) as usize;
            let mut groups = index.iter().flatten().enumerate();
            if groups.any(|(column, group)| *group as usize != column / size) {
                return Ok(None); // activation order
            }
            block[1] = size;
        }
        let half = 1_u32 << (geometry.bits - 1);
        let mut codes: Vec<u8> = (0..=255_u8).take(1 << geometry.bits).collect();
        extend_signs(&mut codes, steps.code_dtype);
        let mut numbers = vec![[0; 4]; codes.len()];
        widen(steps, &codes, &[[0; 4]; 16], &mut numbers);
        // Centered codes are shifted by widening, other codes only by their zero point.
        let is_shifted = has_sign && layout.codes.values == CodeValues::Unsigned && geometry.zero.is_some();
        let less = if is_shifted { half as f32 } else { 0.0 };
        let mut numbers: Vec<f32> = numbers.into_iter().map(|number| f32::from_le_bytes(number) - less).collect();
        if let CodeValues::FloatWithoutNegativeZero(_) = layout.codes.values {
            numbers[half as usize] = -0.0; // so that the code stays the same
        }
        let is_integer = match layout.codes.values {
            CodeValues::Unsigned | CodeValues::Signed(_) => true,
            CodeValues::Stored => matches!(geometry.codes.dtype.class(), Class::Int { .. }),
            _ => false,
        };
        let (numbers, bits) = (numbers.into(), geometry.bits);
        Ok(Some(Self { rows, keeps_blocks, block, numbers, is_integer, centre: less, bits, decoder }))
    }

    pub(super) fn columns(&self) -> usize {
        self.decoder.columns() as usize
    }

    pub(super) fn width(&self) -> usize {
        self.block[1]
    }

    /// Returns the matrix of a row, and the row in it.
    fn place(&self, row: usize) -> (usize, usize) {
        let (row, rows) = (self.rows.row(row as u64), self.decoder.matrix_rows());
        ((row / rows) as usize, (row % rows) as usize)
    }

    /// Returns the global scale of the first `rows` rows, and true if scales are divided by it; `None` if the rows have
    /// several, or one that is not positive and finite.
    pub(super) fn global(&self, rows: u64, parts: &[&[u8]]) -> Option<(f32, bool)> {
        let of = |row: u64| self.global_of(self.place(row as usize).0, parts);
        let first = of(0);
        let is_one = (0..rows)
            .step_by(self.decoder.matrix_rows() as usize)
            .chain(rows.checked_sub(1))
            .all(|row| of(row) == first);
        let is_usable = first.is_finite() && first > 0.0;
        (is_one && is_usable).then_some((first, self.decoder.layout().global == Combination::Divisor))
    }

    /// Returns the global scale of a matrix; 1 if it has none.
    fn global_of(&self, matrix: usize, parts: &[&[u8]]) -> f32 {
        match &self.decoder.method {
            Method::Steps(steps) => global_scale(steps, parts, [matrix, 0], &mut [0; 4]),
            Method::Blocks(blocks) => blocks.factor(matrix as u64, parts).unwrap_or(1.0),
        }
    }

    /// Returns the lines of some rows, with the groups of each.
    pub(super) fn lines(&self, rows: Range<usize>, parts: &[&[u8]]) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        let mut last = None;
        for row in rows {
            let (matrix, within) = self.place(row);
            let below = within / self.block[0];
            if let Some(line) = lines.last_mut().filter(|_| last == Some((matrix, below))) {
                line.rows.end = row + 1;
            } else {
                let groups = self.groups(matrix, below, self.keeps_blocks, parts);
                lines.push(Line { rows: row..row + 1, groups });
            }
            last = Some((matrix, below));
        }
        lines
    }

    /// True if a scale of a row, or its global scale, is NaN or infinite.
    pub(super) fn has_special_scale(&self, row: usize, parts: &[&[u8]]) -> bool {
        let (matrix, within) = self.place(row);
        let groups = self.groups(matrix, within / self.block[0], true, parts);
        !self.global_of(matrix, parts).is_finite() || groups.iter().any(|group| !group.scale.is_finite())
    }

    /// Returns the groups of a row of groups, without the global scale if `keeps_blocks`.
    fn groups(&self, matrix: usize, below: usize, keeps_blocks: bool, parts: &[&[u8]]) -> Vec<SourceGroup> {
        let steps = match &self.decoder.method {
            Method::Steps(steps) => steps,
            Method::Blocks(blocks) => return self.groups_of_blocks(blocks, [matrix, below], keeps_blocks, parts),
        };
        let has_offsets = steps.zeros.order == Zeros::Offset;
        let global = if keeps_blocks { 1.0 } else { f64::from(self.global_of(matrix, parts)) };
        let is_divisor = steps.layout.global == Combination::Divisor;
        let group = |(scale, zero): (f64, f32)| {
            let combined = if keeps_blocks {
                scale
            } else if is_divisor {
                if divides(global, scale) { scale / global } else { f64::NAN }
            } else {
                scale * global // of 4 or 8 and 24 bits, so the product is exact
            };
            let zero = f64::from(zero);
            let offset =
                if has_offsets { self.moved(combined, zero) } else { -(zero - f64::from(self.centre)) * combined };
            SourceGroup { scale: combined, offset }
        };
        let place = GroupRange { matrix, below, groups: 0..steps.geometry.grid[1] as usize };
        steps.groups(&place, parts, self.centre).map(group).collect()
    }

    fn groups_of_blocks(
        &self,
        blocks: &BlockDecoder,
        [matrix, row]: [usize; 2],
        keeps_blocks: bool,
        parts: &[&[u8]],
    ) -> Vec<SourceGroup> {
        let (format, row, factor) =
            blocks.stored_row((matrix as u64 * blocks.rows) + row as u64, 0..blocks.columns, parts);
        let mut scales = Vec::new();
        format.scales(row, &mut scales);
        let global = factor.filter(|_| !keeps_blocks).map_or(1.0, f64::from);
        let mut subtracted = Vec::new();
        format.offsets(row, &mut subtracted);
        if subtracted.is_empty() {
            return scales.into_iter().map(|scale| SourceGroup { scale: scale * global, offset: 0.0 }).collect();
        }
        let group = |(scale, less): (f64, f64)| SourceGroup { scale, offset: self.moved(scale, -less) };
        scales.into_iter().zip(subtracted).map(group).collect()
    }

    /// Returns the offset for codes whose middle is 0, from the offset for codes that start at 0.
    fn moved(&self, scale: f64, offset: f64) -> f64 {
        let product = scale * f64::from(self.centre);
        let sum = product + offset;
        // Adding a much smaller number could round.
        if sum - product == offset && sum - offset == product { sum } else { f64::NAN }
    }

    /// Returns the scale that each byte stands for, if groups are parts of a row and their scales are bytes.
    pub(super) fn numbers_of_bytes(&self, parts: &[&[u8]]) -> Option<[f64; 256]> {
        let Method::Steps(steps) = &self.decoder.method else { return None };
        let geometry = &steps.geometry;
        let has_others = geometry.zero.is_some() || geometry.global.is_some() && !self.keeps_blocks;
        if self.block[0] != 1 || geometry.scale.dtype.bits() != 8 || has_others {
            return None;
        }
        let all: [u8; 256] = std::array::from_fn(|byte| byte as u8);
        let mut parts = parts.to_vec();
        parts[geometry.scale.index] = &all;
        let place = GroupRange { matrix: 0, below: 0, groups: 0..256 };
        let mut scales = [[0; 4]; 256];
        let flat = DecodeGeometry { scale_order: ScaleOrder::Flat, ..geometry.clone() };
        steps.scales.fetch(&flat, &place, &parts, &mut [0; 4 * 256], &mut scales);
        let factor = f64::from(steps.scales.factor());
        Some(scales.map(|scale| f64::from(f32::from_le_bytes(scale)) * factor))
    }

    /// Returns the scales of a row, which are bytes; `raw` is a buffer for them.
    pub(super) fn scale_bytes<'a>(&self, row: usize, parts: &[&'a [u8]], raw: &'a mut Vec<u8>) -> &'a [u8] {
        let Method::Steps(steps) = &self.decoder.method else { return &[] };
        let geometry = &steps.geometry;
        let ((matrix, below), groups) = (self.place(row), 0..geometry.grid[1] as usize);
        raw.resize(groups.len(), 0);
        stored_scales(geometry, &GroupRange { matrix, below, groups }, parts, raw)
    }

    /// Returns the packing of codes, and their bits; `None` if rows hold more than codes.
    pub(super) fn packing(&self) -> Option<(Packing, u32)> {
        let Method::Steps(steps) = &self.decoder.method else { return None };
        Some((steps.layout.codes.packing, self.bits))
    }

    /// Returns the stored codes of a row, whose columns take whole bytes.
    pub(super) fn stored_codes<'a>(&self, row: usize, parts: &[&'a [u8]]) -> &'a [u8] {
        let Method::Steps(steps) = &self.decoder.method else { return &[] };
        let geometry = &steps.geometry;
        let (matrix, within) = self.place(row);
        let start = matrix * geometry.matrix_bytes as usize + within * geometry.stride as usize;
        &parts[geometry.codes.index][start..start + self.columns() * geometry.bits as usize / 8]
    }

    /// Unpacks the codes of some columns of a row; the first is a multiple of 32.
    pub(super) fn codes(&self, row: usize, columns: Range<usize>, parts: &[&[u8]], out: &mut [u8]) {
        let (matrix, within) = self.place(row);
        let (steps, geometry) = match &self.decoder.method {
            Method::Steps(steps) => (steps, &steps.geometry),
            Method::Blocks(blocks) => {
                let row = matrix as u64 * blocks.rows + within as u64;
                return codes_of_blocks(blocks, row, columns, parts, out);
            }
        };
        let packing = steps.layout.codes.packing;
        packing.unpack(&geometry.window(packing, parts, [matrix, within], columns), out);
    }

    /// Marks the codes that occur in some columns of a row.
    pub(super) fn mark(&self, row: usize, columns: Range<usize>, parts: &[&[u8]], seen: &mut [bool; 256]) {
        let mut buffer = [0; super::SEGMENT];
        let mut start = columns.start / 32 * 32;
        while start < columns.end {
            let end = (start + super::SEGMENT).min(columns.end);
            let codes = &mut buffer[..end - start];
            self.codes(row, start..end, parts, codes);
            for code in &codes[columns.start.saturating_sub(start)..] {
                seen[usize::from(*code)] = true;
            }
            start = end;
        }
    }

    /// Returns the maximum of `so_far` and the exponents of the scales of a row whose codes are not all 0.
    pub(super) fn largest_exponent(&self, row: usize, parts: &[&[u8]], so_far: Option<i32>) -> Option<i32> {
        let mut largest = so_far;
        for (group, at) in self.lines(row..row + 1, parts).pop()?.groups.iter().zip(0..) {
            let exponent = exponent_of(group.scale);
            if exponent <= largest {
                continue; // for any codes
            }
            let columns = at * self.width()..((at + 1) * self.width()).min(self.columns());
            let mut seen = [false; 256];
            self.mark(row, columns, parts, &mut seen);
            if self.numbers.iter().zip(seen).any(|(number, seen)| seen && *number != 0.0) {
                largest = exponent;
            }
        }
        largest
    }
}

/// Unpacks codes of a row, whose columns may begin and end within blocks.
fn codes_of_blocks(blocks: &BlockDecoder, row: u64, columns: Range<usize>, parts: &[&[u8]], out: &mut [u8]) {
    let mut codes = [0; 2 * super::SEGMENT];
    let [start, end] = [columns.start, columns.end].map(|column| column as u64);
    let (format, stored, _) = blocks.stored_row(row, start..end, parts);
    let count = stored.len() / format.bytes as usize * format.elements as usize;
    format.codes(stored, &mut codes[..count]);
    out.copy_from_slice(&codes[columns.start % format.elements as usize..][..columns.len()]);
}

/// Returns the exponent of a positive finite number, which is normal as float64; `None` for other numbers.
pub(super) fn exponent_of(number: f64) -> Option<i32> {
    (number > 0.0 && number < f64::INFINITY).then(|| (number.to_bits() >> 52) as i32 - 1023)
}

/// Returns the number divided by the power of two at or below it.
pub(super) fn mantissa_of(number: f64) -> f64 {
    f64::from_bits(number.to_bits() & ((1 << 52) - 1) | 1023 << 52)
}

/// True if the quotient of two finite numbers has no more bits than the dividend, so that a division does not round it.
fn divides(divisor: f64, dividend: f64) -> bool {
    /// Returns the significand without its trailing zeros.
    fn odd_part(number: f64) -> u64 {
        const FRACTION: u64 = (1 << 52) - 1;
        let bits = number.to_bits();
        let significand = bits & FRACTION | u64::from(number.is_normal()) << 52;
        significand >> significand.trailing_zeros().min(63)
    }
    let are_finite = divisor.is_finite() && dividend.is_finite();
    are_finite && divisor != 0.0 && odd_part(dividend).is_multiple_of(odd_part(divisor))
}

#[cfg(test)]
mod tests {
    use super::divides;
    use crate::random::random;

    #[test]
    fn an_exact_quotient_gives_the_dividend_back() {
        for (divisor, dividend, exact) in [
            (3.0, 6.0, true),
            (3.0, 1.0, false),
            (0.5, 7.0, true),
            (-448.0, 7.0, true),
            (5.0, 0.0, true),
            (0.0, 1.0, false),
            (f64::INFINITY, 1.0, false),
            (1.0, f64::NAN, false),
        ] {
            assert_eq!(divides(divisor, dividend), exact, "{dividend} / {divisor}");
        }
        // Products of numbers of 24 bits are exact, so their factors divide them.
        let mut next = random(7);
        for _ in 0..100_000 {
            let [one, other] = [next(), next()].map(|bits| f64::from((bits >> 41) as u32 | 1));
            assert!(divides(one, one * other));
            assert!(!divides(3.0 * one, 3.0 * one * other + 1.0));
        }
    }
}
