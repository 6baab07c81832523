//! A global scale that has no exact reciprocal: it is rounded once, and every value changes by the same factor.
//!
//! NVFP4 stores the global scale as a divisor in compressed-tensors and as a multiplier in other layouts. The float32
//! nearest to the reciprocal differs from it by less than 2^-24 of itself, and codes and block scales stay the same.

use super::super::encode::{EncodeTally, nearest_bfloat16};
use super::fit::FoundScale;
use std::ops::Range;

/// The magnitude of a code of E2M1 without its sign, times 2: 0, 1, 2, 3, 4, 6, 8 or 12.
#[inline(always)]
fn doubled(code: u8) -> u8 {
    code + u8::from(code > 4) + u8::from(code > 5) + 3 * u8::from(code > 6)
}

/// What the rounding of a global scale does to values.
pub(super) struct Rescaling {
    /// By which products of codes and block scales were multiplied.
    before: f64,
    /// The change of each value, relative to the value.
    change: f64,
    /// For each block scale, a bit for each magnitude whose nearest bfloat16 changes.
    visible: [u8; 128],
}

impl Rescaling {
    /// For products that were multiplied by the first number, and are multiplied by the second one now.
    pub(super) fn new(before: f64, after: f64) -> Self {
        let mut visible = [0; 128];
        for (mask, block) in visible.iter_mut().zip(0_u8..) {
            // E4M3 is an excerpt of float32 with another bias.
            let block = f64::from(f32::from_bits(u32::from(block) << 20)) * 2_f64.powi(120);
            for at in 0..8 {
                let number = f64::from(doubled(at)) / 2.0 * block;
                let is_visible =
                    nearest_bfloat16(number * before).to_bits() != nearest_bfloat16(number * after).to_bits();
                *mask |= u8::from(is_visible) << at;
            }
        }
        Self { before, change: after / before - 1.0, visible }
    }

    /// Records the codes of some columns of a row that starts at an element of the weight. A group has so many columns.
    pub(super) fn count(
        &self,
        codes: &[u8],
        columns: Range<usize>,
        (found, width): (&[FoundScale], usize),
        row_start: u64,
        tally: &mut EncodeTally,
    ) {
        let (mut squares, mut largest) = (0.0, (0.0, 0));
        for (at, codes) in codes.chunks(width).enumerate() {
            let group = found[columns.start / width + at];
            let (mut sum, mut top, mut nonzero) = (0_u32, 0, 0_u32);
            for code in codes {
                let magnitude = code & 7;
                let doubled = doubled(magnitude);
                sum += u32::from(doubled * doubled);
                top = if magnitude > top { magnitude } else { top };
                nonzero += u32::from(magnitude > 0);
            }
            tally.changed += u64::from(nonzero);
            let visible = self.visible[group.code()];
            if visible != 0 {
                tally.changed_bfloat16 += codes.iter().filter(|code| visible >> (*code & 7) & 1 != 0).count() as u64;
            }
            let scale = group.scale / 2.0 * self.before;
            squares += f64::from(sum) * scale * scale;
            let magnitude = f64::from(doubled(top)) * scale;
            if magnitude > largest.0 {
                let first = codes.iter().position(|code| code & 7 == top).unwrap_or_default();
                largest = (magnitude, columns.start + at * width + first);
            }
        }
        tally.take_errors(squares, squares * self.change * self.change);
        if largest.0 > 0.0 && self.change != 0.0 {
            tally.take_error(largest.0 * self.change.abs(), Some(row_start + largest.1 as u64));
        }
    }
}
