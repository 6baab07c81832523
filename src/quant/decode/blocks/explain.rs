//! Counts special values of a weight in blocks, and explains single values.

use super::rows::LineDecoder;
use super::{BlockDecoder, SourceLine};
use crate::blocks::{BlockValue, ValueChange};
use crate::dtype::Dtype;
use crate::quant::decode::Explanation;
use crate::quant::decode::rows::DecodeRange;
use crate::quant::decode::tally::{DecodeTally, infinity, magnitude};

impl BlockDecoder {
    /// True if a value is not finite, or is 0 although its number in the lane is not.
    pub(super) fn has_special(&self, lane: &[u8], out: &[u8]) -> bool {
        let Some((width, infinity)) = infinity(self.target) else { return false };
        let is_zero =
            |number: &[u8]| number.iter().rev().enumerate().all(|(at, byte)| byte & !(u8::from(at == 0) << 7) == 0);
        let numbers = lane.chunks_exact(self.lane.bits() as usize / 8);
        out.chunks_exact(width).zip(numbers).any(|(value, number)| {
            let magnitude = magnitude(value);
            magnitude >= infinity || magnitude == 0 && !is_zero(number)
        })
    }

    /// Counts special and flushed values.
    pub(super) fn count(&self, range: &DecodeRange, out: &[u8]) -> DecodeTally {
        let mut tally = DecodeTally::default();
        let Some((width, infinity)) = infinity(self.target) else { return tally };
        let mut lines = LineDecoder::new(self, range, Dtype::Float64);
        for (row, out) in range.rows.clone().zip(out.chunks_exact(range.width() * width)) {
            lines.each(row..row + 1, |_, now, lane| {
                let start = (now.start - range.columns.start) as usize * width;
                let values = out[start..].chunks_exact(width).zip(lane.as_chunks::<8>().0);
                for (column, (value, exact)) in now.clone().zip(values) {
                    let (magnitude, at) = (magnitude(value), row * self.columns + column);
                    if magnitude == 0 {
                        tally.flushed += u64::from(f64::from_le_bytes(*exact) != 0.0);
                    } else if magnitude >= infinity {
                        tally.add_special(at, magnitude > infinity, &self.factors(row, column, range.parts));
                    }
                }
            });
        }
        tally
    }

    /// Returns the numbers that a value is computed from.
    fn factors(&self, row: u64, column: u64, parts: &[&[u8]]) -> [f64; 4] {
        let Explanation { number, scale, offset, global_scale, .. } = self.explain(row, column, parts);
        [number.into(), scale, offset.unwrap_or(0.0), global_scale.map_or(1.0, |(scale, _)| scale.into())]
    }

    /// Explains a value, without its bits.
    pub(in crate::quant::decode) fn explain(&self, row: u64, column: u64, parts: &[&[u8]]) -> Explanation {
        let (row, column) = if self.assembly.orders_columns() {
            (row, self.in_order(column, self.columns).1)
        } else if self.assembly.is_transposed {
            (row / self.rows * self.columns + column, row % self.rows)
        } else {
            (row, column)
        };
        let stored = self.line(row);
        let (line, column) = if stored.is_column { (column, stored.line) } else { (stored.line, column) };
        let (format, block, factor) = self.blocks(SourceLine { line, ..stored }, column..column + 1, parts);
        let BlockValue { code, code_bits, number, scale, offset } =
            format.explain(block, (column % format.elements) as usize);
        let one = (self.assembly.change == ValueChange::LessOne).then_some(1.0);
        // 0 stays 0, so that an infinite factor gives no NaN.
        let times_factor = |offset: f64| if offset == 0.0 { offset } else { offset * factor.map_or(1.0, f64::from) };
        Explanation {
            code,
            code_bits,
            number,
            zero_point: None,
            scale,
            offset: offset.map(|offset| times_factor(offset) + one.unwrap_or(0.0)).or(one),
            global_scale: factor.map(|factor| (factor, false)),
            value: 0,
        }
    }
}
