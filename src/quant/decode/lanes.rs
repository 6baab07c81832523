//! Loops over one row of values, in float32, and in float64 for `--arithmetic exact`; the compiler vectorises each.

use super::super::layout::Combination;
use crate::dtype::FloatFormat;
use crate::kernel::Minifloat;

/// A lane of float32: little endian bytes, as for [`crate::kernel::Kernel`].
pub(super) type Float32Lane = [[u8; 4]];

/// The largest NVFP4 value without a global scale: 6 * 448.
pub(super) const LARGEST_NVFP4: f32 = 2688.0;

/// The bits of the only NaN that is written.
const NAN: u32 = 0x7fc0_0000;

/// Codes of floats of 8 bits and fewer. Infinities and NaNs are not handled.
#[derive(Clone, Copy)]
pub(super) struct FloatCodes {
    float: Minifloat,
    /// Added to turn a negative zero into a positive one, if required.
    nothing: f32,
}

impl FloatCodes {
    pub(super) fn new(format: FloatFormat, negative_zero: bool) -> Self {
        Self { float: Minifloat::new(&format), nothing: if negative_zero { -0.0 } else { 0.0 } }
    }

    #[inline(always)]
    pub(super) fn number(self, code: u8) -> f32 {
        f32::from_bits(self.float.widen(code.into())) + self.nothing
    }
}

/// Widens codes of a float of fewer than 8 bits without Inf and NaN.
#[inline(always)]
pub(super) fn widen_floats(codes: &[u8], lane: &mut Float32Lane, floats: FloatCodes) {
    for (value, code) in lane.iter_mut().zip(codes) {
        *value = floats.number(*code).to_le_bytes();
    }
}

/// Widens unsigned codes, minus a number.
#[inline(always)]
pub(super) fn widen_integers(codes: &[u8], lane: &mut Float32Lane, zero: i32) {
    for (value, code) in lane.iter_mut().zip(codes) {
        *value = ((i32::from(*code) - zero) as f32).to_le_bytes();
    }
}

/// Looks up codes in a table.
#[inline(always)]
pub(super) fn look_up(codes: &[u8], lane: &mut Float32Lane, table: &[[u8; 4]; 16]) {
    for (value, code) in lane.iter_mut().zip(codes) {
        *value = table[usize::from(code & 15)];
    }
}

#[inline(always)]
pub(super) fn subtract(lane: &mut Float32Lane, zeros: &Float32Lane) {
    for (value, zero) in lane.iter_mut().zip(zeros) {
        *value = (f32::from_le_bytes(*value) - f32::from_le_bytes(*zero)).to_le_bytes();
    }
}

/// Gives each element the value of its group; the first group has only `size - skip` elements left.
#[inline(always)]
pub(super) fn expand(groups: &Float32Lane, size: usize, skip: usize, lane: &mut Float32Lane) {
    match (size, skip) {
        (1, _) => lane.copy_from_slice(&groups[..lane.len()]),
        (16, 0) => expand_by::<16>(groups, lane),
        (32, 0) => expand_by::<32>(groups, lane),
        _ => {
            let (first, rest) = lane.split_at_mut((size - skip).min(lane.len()));
            first.fill(groups.first().copied().unwrap_or_default());
            for (lane, group) in rest.chunks_mut(size).zip(groups.iter().skip(1)) {
                lane.fill(*group);
            }
        }
    }
}

#[inline(always)]
fn expand_by<const N: usize>(groups: &Float32Lane, lane: &mut Float32Lane) {
    let (whole, rest) = lane.as_chunks_mut::<N>();
    for (lane, group) in whole.iter_mut().zip(groups) {
        *lane = [*group; N];
    }
    if let Some(last) = groups.get(whole.len()) {
        rest.fill(*last);
    }
}

/// Gives each element the value of the group named by its column.
#[inline(always)]
pub(super) fn expand_indexed(groups: &Float32Lane, index: &[u32], lane: &mut Float32Lane) {
    for (value, group) in lane.iter_mut().zip(index) {
        *value = groups[*group as usize];
    }
}

/// Adds the offset of its group to each value.
#[inline(always)]
pub(super) fn add(lane: &mut Float32Lane, offsets: &Float32Lane) {
    for (value, offset) in lane.iter_mut().zip(offsets) {
        let sum = f32::from_le_bytes(*value) + f32::from_le_bytes(*offset);
        *value = (if sum.is_nan() { NAN } else { sum.to_bits() }).to_le_bytes();
    }
}

/// Adds offsets to exact products. Sums are rounded to odd, so that rounding them again to at most 51 bits gives the
/// correctly rounded result.
#[inline(always)]
pub(super) fn add_exactly(lane: &mut [[u8; 8]], offsets: &Float32Lane) {
    for (value, offset) in lane.iter_mut().zip(offsets) {
        let (product, offset) = (f64::from_le_bytes(*value), f64::from(f32::from_le_bytes(*offset)));
        let sum = product + offset;
        // The error of a sum is a float64 (Knuth, TAOCP 4.2.2, theorem B).
        let part = sum - product;
        let error = (product - (sum - part)) + (offset - part);
        let is_toward_zero = (error < 0.0) == (sum > 0.0);
        let bits = sum.to_bits();
        let is_even = error != 0.0 && error.is_finite() && bits & 1 == 0;
        let odd = if is_toward_zero { bits.wrapping_sub(1) } else { bits + 1 };
        let sum = if is_even { f64::from_bits(odd) } else { sum };
        *value = (if sum.is_nan() { f64::NAN } else { sum }).to_le_bytes();
    }
}

/// Rounds to float32.
#[inline(always)]
pub(super) fn narrow(wide: &[[u8; 8]], lane: &mut Float32Lane) {
    for (value, wide) in lane.iter_mut().zip(wide) {
        let narrow = f64::from_le_bytes(*wide) as f32;
        *value = (if narrow.is_nan() { NAN } else { narrow.to_bits() }).to_le_bytes();
    }
}

/// Writes 0 for each sum that is 0, and 1 for all others, because float32 lacks some tiny sums.
#[inline(always)]
pub(super) fn mark_nonzero(sums: &[[u8; 8]], out: &mut Float32Lane) {
    for (out, sum) in out.iter_mut().zip(sums) {
        let is_zero = f64::from_le_bytes(*sum) == 0.0;
        *out = (if is_zero { 0.0_f32 } else { 1.0 }).to_le_bytes();
    }
}

/// Writes one product per element, times `factor`, in float32.
#[inline(always)]
pub(super) fn multiply(codes: &Float32Lane, scales: &Float32Lane, factor: f32, out: &mut Float32Lane) {
    for ((out, code), scale) in out.iter_mut().zip(codes).zip(scales) {
        let value = f32::from_le_bytes(*code) * factor * f32::from_le_bytes(*scale);
        *out = (if value.is_nan() { NAN } else { value.to_bits() }).to_le_bytes();
    }
}

/// Rounds products to integers of at most 127: see [`Combination::Levels`].
#[inline(always)]
pub(super) fn round_to_levels(products: &Float32Lane, lane: &mut Float32Lane) {
    for (level, product) in lane.iter_mut().zip(products) {
        let product = f32::from_le_bytes(*product).round_ties_even();
        let most = if product > 127.0 { 127.0 } else { product };
        *level = (if most < -127.0 { -127.0 } else { most }).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn multiply_all(lane: &mut Float32Lane, factor: f32) {
    for value in lane {
        let product = f32::from_le_bytes(*value) * factor;
        *value = (if product.is_nan() { NAN } else { product.to_bits() }).to_le_bytes();
    }
}

/// Like [`multiply`], with the global scale, in float64: products of these types are exact, and a quotient has enough
/// digits that rounding it again gives the correctly rounded result.
#[inline(always)]
pub(super) fn multiply_exactly(
    codes: &Float32Lane,
    scales: &Float32Lane,
    factor: f32,
    combination: Combination,
    global: f32,
    out: &mut [[u8; 8]],
) {
    let factor = f64::from(factor);
    let (times, by) = match combination {
        Combination::Nothing | Combination::Levels => (1.0, 1.0),
        Combination::Multiplier => (f64::from(global), 1.0),
        Combination::Divisor => (1.0, f64::from(global)),
        Combination::OverLargest => (f64::from(global), LARGEST_NVFP4.into()),
        Combination::Over127 => (1.0, 127.0),
    };
    for ((out, code), scale) in out.iter_mut().zip(codes).zip(scales) {
        let value = f64::from(f32::from_le_bytes(*code)) * f64::from(f32::from_le_bytes(*scale)) * times / by * factor;
        *out = (if value.is_nan() { f64::NAN } else { value }).to_le_bytes();
    }
}

/// Counts the values that are 0 although code and scale are not. `values` holds the bytes of each value.
#[inline(always)]
pub(super) fn count_flushed<const N: usize>(codes: &Float32Lane, scales: &Float32Lane, values: &[[u8; N]]) -> u64 {
    let is_zero = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes) == 0.0;
    let factors = codes.iter().zip(scales);
    let flushed = factors.zip(values).map(|((code, scale), value)| {
        let bits = value.iter().rev().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let magnitude = bits << (33 - 8 * N);
        u32::from((magnitude == 0) & !is_zero(code) & !is_zero(scale))
    });
    flushed.sum::<u32>().into()
}
