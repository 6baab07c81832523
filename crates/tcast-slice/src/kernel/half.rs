//! bfloat16 and float16: to and from float32, and to each other. Where loops know more about their numbers, a shorter
//! function has the domain in its name.
//!
//! | from | to | function | domain |
//! |---|---|---|---|
//! | bfloat16 | float32 | [`bfloat16`] | all |
//! | | | `quiet_bfloat16` | all; NaN becomes quiet |
//! | float32 | bfloat16 | [`to_bfloat16`] | numbers and Inf; NaN may become a number |
//! | | | [`untied_to_bfloat16`] | numbers that are not ties |
//! | | | [`bfloat16_bits`] | numbers of bfloat16: only the bits change |
//! | float64 | bfloat16 | [`nearest_bfloat16`] | numbers and Inf |
//! | float16 | float32 | [`float16`] | all |
//! | | | `quiet_float16` | all; NaN becomes quiet |
//! | | | `FLOAT16.widen` | finite numbers |
//! | float32 | float16 | [`to_float16`] | all |
//! | | | [`float16_bits`] | all; NaN becomes Inf |
//! | | | [`normal_float16_bits`] | 0 and normal numbers of float16: only the bits change |
//! | product | float16 | [`normal_float16_product`] | an integer times a float16 that gives 0 or a normal number |
//! | each other | | `Half` | blocks of numbers in the range of both |
//!
//! Casts of float32 to both types, with all rules and counts, use `float.rs`.

use super::counts::{Counts, Loss};
use super::float::Minifloat;
use super::lane::to_odd;
use super::tally::COUNTED;
use crate::dtype::{Dtype, FloatFormat};

/// The constants of float16, which the compiler makes part of the code.
pub const FLOAT16: Minifloat = Minifloat::new(&FloatFormat::FLOAT16);

/// Exponent of float32 minus exponent of the same normal number in float16, at the exponent field of float32.
const REBIAS: u32 = (127 - 15) << 23;

/// Widens a bfloat16.
#[inline(always)]
pub fn bfloat16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Widens a bfloat16 to float32 bits; NaN becomes quiet.
#[inline(always)]
pub(super) fn quiet_bfloat16(bits: u16) -> u32 {
    let bits = u32::from(bits) << 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { bits | 0x0040_0000 } else { bits }
}

/// Rounds a number to bfloat16, ties to even: adds half of the last kept bit, one unit less if that bit is even, and
/// truncates. NaN may become a number.
#[inline(always)]
pub fn to_bfloat16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// Like [`to_bfloat16`], for numbers that are not ties.
#[inline(always)]
pub fn untied_to_bfloat16(value: f32) -> f32 {
    f32::from_bits(value.to_bits().wrapping_add(0x8000) & 0xffff_0000)
}

/// Returns the bits of a number of bfloat16; cuts off the lower half of other numbers.
#[inline(always)]
pub fn bfloat16_bits(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// Rounds a float64 to bfloat16, ties to even.
pub fn nearest_bfloat16(value: f64) -> f32 {
    to_bfloat16(to_odd(value))
}

/// Widens a float16. NaN keeps its payload.
#[inline(always)]
pub fn float16(bits: u16) -> f32 {
    let special = if bits & 0x7fff >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(FLOAT16.widen(bits.into()) | special)
}

/// Widens a float16 to float32 bits; NaN becomes quiet.
#[inline(always)]
pub(super) fn quiet_float16(bits: u16) -> u32 {
    let quiet = if bits & 0x7fff > 0x7c00 { 0x0040_0000 } else { 0 };
    float16(bits).to_bits() | quiet
}

/// Rounds to float16, ties to even. NaN stays NaN.
#[inline(always)]
pub fn to_float16(value: f32) -> f32 {
    let magnitude = value.abs();
    // The comparison is false for NaN.
    let bounded = if magnitude > 65536.0 { 65536.0 } else { magnitude };
    let rounded = FLOAT16.round_in_range(bounded).1;
    (if rounded > FLOAT16.largest { f32::INFINITY } else { rounded }).copysign(value)
}

/// Rounds to the bits of a float16, ties to even. NaN becomes Inf.
#[inline(always)]
pub fn float16_bits(value: f32) -> u16 {
    let magnitude = value.abs();
    // The code of Inf follows the code of the largest number, as if it were 65536. The comparison is false for NaN.
    let bounded = if magnitude < 65536.0 { magnitude } else { 65536.0 };
    FLOAT16.round_in_range(bounded).0 as u16 | (value.to_bits() >> 16) as u16 & 0x8000
}

/// Returns the bits of a float32 that is a normal float16 or 0.
#[inline(always)]
pub fn normal_float16_bits(value: f32) -> u16 {
    let (bits, magnitude) = (value.to_bits(), value.abs().to_bits());
    (bits >> 16 & 0x8000 | (magnitude.max(REBIAS) - REBIAS) >> 13) as u16
}

/// Returns the product of an integer of up to 9 bits and a positive float16, rounded to the nearest float16, ties to
/// even, if that is normal.
///
/// 1. The product p has at most 20 significant bits. Both factors, 2^13 and 2^13 + 1 times the scale, are exact.
/// 2. The sum of p and p * 2^13 is rounded to 24 bits, so p loses all but 11 bits. If the sum reaches the next power of
///    two, p is so near to a power of two that rounding it to 11 bits gives that power too.
/// 3. In a tie, the last bit of the sum is the bit of p at this position, because p * 2^13 has zeros there.
/// 4. The difference is exact.
#[inline(always)]
pub fn normal_float16_product(number: f32, scale: f32) -> f32 {
    number * (scale * 8193.0) - number * (scale * 8192.0)
}

/// A cast between the two types of 16 bits, in lanes of 16 bits: twice as many elements in a vector as in the float32
/// lane.
///
/// In both directions, the code is a piecewise linear function of the other code's magnitude, with pieces from one
/// power of two to the next. Numbers that are normal in both types lie on one line, and each power of two among the
/// subnormal numbers of float16 has one more. The function is convex or concave, so the largest or the least of the
/// lines is right.
///
/// The float32 lane converts blocks with other numbers, Inf or NaN.
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
            Self::ToFloat16 => run(bytes, codes, (110 << 7)..=0x477f, bfloat16_to_float16),
            Self::ToBfloat16 => run(bytes, codes, 0x40..=0x7bff, float16_to_bfloat16),
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
fn bfloat16_to_float16(magnitude: i16) -> (u16, bool) {
    let line = |doublings: u16| ((magnitude as u16).saturating_sub((109 + doublings) << 7) << doublings) as i16;
    (line(3).max(line(2)).max(line(1)).max(line(0)) as u16, true)
}

#[inline(always)]
fn float16_to_bfloat16(magnitude: i16) -> (u16, bool) {
    // 1. The lines below the smallest normal number, with three bits below the last bit of the result.
    let low = magnitude.min(0x400);
    let least = low.min(low * 2 - 0x400).min(low * 4 - 0x800).min(low * 8 - 0xc00).min(low * 16 - 0x1000);
    // 2. Above it, the line through normal numbers. Adding eight exponents keeps all numbers non-negative.
    let code = (magnitude - low + least).wrapping_add(8 << 10) as u16;
    // 3. To nearest, ties to even; a carry runs into the exponent.
    let rounded = (code.wrapping_add(3 + (code >> 3 & 1)) >> 3) + ((127 - 15 - 8) << 7);
    (if magnitude == 0 { 0 } else { rounded }, code & 7 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::floats;
    use half::{bf16, f16};

    /// Numbers with one bit more than a float16, and their neighbours, of both signs.
    fn near_float16() -> impl Iterator<Item = f32> {
        (0..0x7c00_u16).flat_map(|bits| {
            let [number, next] = [bits, bits + 1].map(|bits| f16::from_bits(bits).to_f32().min(65536.0));
            let tie = f32::midpoint(number, next);
            [number, tie, tie.next_down(), tie.next_up()].into_iter().flat_map(|number| [number, -number])
        })
    }

    #[test]
    fn numbers_are_rounded_and_widened_as_by_the_half_crate() {
        for value in floats().chain(near_float16()) {
            assert_eq!(to_bfloat16(value).to_bits(), bf16::from_f32(value).to_f32().to_bits(), "{value}");
            assert_eq!(to_float16(value).to_bits(), f16::from_f32(value).to_f32().to_bits(), "{value}");
            assert_eq!(float16_bits(value), f16::from_f32(value).to_bits(), "{value}");
            if value.to_bits() & 0xffff != 0x8000 {
                assert_eq!(untied_to_bfloat16(value), to_bfloat16(value), "{value}");
            }
        }
        for bits in 0..=u16::MAX {
            let widened = [float16(bits), f32::from_bits(quiet_float16(bits))];
            let expected = f16::from_bits(bits).to_f32();
            if expected.is_nan() {
                assert!(widened.iter().all(|value| value.is_nan()), "{bits:#x}");
                assert_eq!(quiet_float16(bits), float16(bits).to_bits() | 0x0040_0000, "{bits:#x}");
                assert!(to_float16(widened[0]).is_nan() && float16_bits(widened[0]) & 0x7fff == 0x7c00, "{bits:#x}");
            } else {
                assert_eq!(widened.map(f32::to_bits), [expected.to_bits(); 2], "{bits:#x}");
            }
            if expected == 0.0 || expected.is_normal() && f16::from_bits(bits).is_normal() {
                assert_eq!(normal_float16_bits(expected), bits, "{bits:#x}");
            }
        }
    }

    #[test]
    fn products_are_rounded_to_float16() {
        // All significands, with the least exponent, a usual one and the largest.
        for scale in [0x0401..0x0800, 0x1c00..0x2000, 0x5000..0x5240].into_iter().flatten() {
            let scale = float16(scale);
            for number in (-255..=255_i16).map(f32::from) {
                let product = normal_float16_product(number, scale);
                assert_eq!(normal_float16_bits(product), f16::from_f32(number * scale).to_bits(), "{number} * {scale}");
            }
        }
    }
}
