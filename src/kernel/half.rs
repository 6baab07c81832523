//! bfloat16 to float16 and back in lanes of 16 bits: twice as many elements in a vector as in the float32 lane.
//!
//! In both directions, the code is a piecewise linear function of the other code's magnitude, with pieces from one
//! power of two to the next. Numbers that are normal in both types lie on one line, and each power of two among the
//! subnormal numbers of float16 has one more. The function is convex or concave, so the largest or the least of the
//! lines is right.
//!
//! The float32 lane converts blocks with other numbers, Inf or NaN.

use super::counts::{Counts, Loss};
use super::tally::COUNTED;
use crate::dtype::Dtype;

/// A cast between the two types of 16 bits.
#[derive(Clone, Copy)]
pub(super) enum Half {
    ToFloat16,
    ToBfloat16,
}

/// Number whose addition to a magnitude makes 0 the largest signed number and keeps the order of the others.
const ZERO_LAST: i16 = i16::MAX;

impl Half {
    pub(super) fn new(source: Dtype, target: Dtype) -> Option<Self> {
        match (source, target) {
            (Dtype::Bfloat16, Dtype::Float16) => Some(Self::ToFloat16),
            (Dtype::Float16, Dtype::Bfloat16) => Some(Self::ToBfloat16),
            _ => None,
        }
    }

    /// Writes all codes. `None` if the block needs the complete rules; `codes` may then hold anything.
    #[inline(always)]
    pub(super) fn encode(self, bytes: &[u8], codes: &mut [u8]) -> Option<Counts> {
        // The accepted magnitudes other than 0: from 2^-17 to the largest below 2^16, and from 2^-18 to the largest
        // number.
        match self {
            Self::ToFloat16 => run(bytes, codes, (110 << 7)..=0x477f, to_float16),
            Self::ToBfloat16 => run(bytes, codes, 0x40..=0x7bff, to_bfloat16),
        }
    }
}

#[inline(always)]
fn run(
    bytes: &[u8],
    codes: &mut [u8],
    range: std::ops::RangeInclusive<i16>,
    encode: impl Fn(i16) -> (u16, bool),
) -> Option<Counts> {
    // A u16 can count all elements of a block.
    let (mut largest, mut smallest, mut inexact) = (0_i16, i16::MAX, 0_u16);
    for (bytes, result) in bytes.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
        let bits = u16::from_le_bytes(*bytes);
        let magnitude = (bits & 0x7fff) as i16;
        largest = largest.max(magnitude);
        smallest = smallest.min(magnitude.wrapping_add(ZERO_LAST));
        let (code, is_exact) = encode(magnitude);
        inexact = inexact.wrapping_add(u16::from(!is_exact));
        *result = (code | bits & 0x8000).to_le_bytes();
    }
    if largest > *range.end() || smallest < range.start().wrapping_add(ZERO_LAST) {
        return None;
    }
    let mut counts = Counts::default();
    if COUNTED {
        counts[Loss::Inexact] = inexact.into();
    }
    Some(counts)
}

/// Always exact: a mantissa of eight bits fits in full.
#[inline(always)]
fn to_float16(magnitude: i16) -> (u16, bool) {
    let line = |doublings: u16| ((magnitude as u16).saturating_sub((109 + doublings) << 7) << doublings) as i16;
    (line(3).max(line(2)).max(line(1)).max(line(0)) as u16, true)
}

#[inline(always)]
fn to_bfloat16(magnitude: i16) -> (u16, bool) {
    // 1. The lines below the smallest normal number, with three bits below the last bit of the result.
    let low = magnitude.min(0x400);
    let least = low.min(low * 2 - 0x400).min(low * 4 - 0x800).min(low * 8 - 0xc00).min(low * 16 - 0x1000);
    // 2. Above it, the line through normal numbers. Adding eight exponents keeps all numbers non-negative.
    let code = (magnitude - low + least).wrapping_add(8 << 10) as u16;
    // 3. To nearest, ties to even; a carry runs into the exponent.
    let rounded = (code.wrapping_add(3 + (code >> 3 & 1)) >> 3) + ((127 - 15 - 8) << 7);
    (if magnitude == 0 { 0 } else { rounded }, code & 7 == 0)
}
