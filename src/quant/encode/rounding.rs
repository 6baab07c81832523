//! Rounds single numbers without branching on values, so that loops over these functions vectorize.

use crate::dtype::Dtype;
use crate::kernel::half::{to_bfloat16, to_float16};

/// The dtype of a weight, which the library computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightType {
    Float32,
    Bfloat16,
    Float16,
}

impl WeightType {
    /// Converts a dtype; `None` if the encoder does not read it.
    pub(super) fn new(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::Float32 => Some(Self::Float32),
            Dtype::Bfloat16 => Some(Self::Bfloat16),
            Dtype::Float16 => Some(Self::Float16),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn round(self, value: f32) -> f32 {
        match self {
            Self::Float32 => value,
            Self::Bfloat16 => to_bfloat16(value),
            Self::Float16 => to_float16(value),
        }
    }

    #[inline(always)]
    pub(super) fn bytes(self) -> usize {
        if self == Self::Float32 { 4 } else { 2 }
    }

    /// Returns the distance from 1 to the next number: `finfo(T).eps`.
    pub(super) fn epsilon(self) -> f32 {
        power_of_two(match self {
            Self::Float32 => -23,
            Self::Bfloat16 => -7,
            Self::Float16 => -10,
        })
    }

    /// Returns the smallest normal number: `finfo(T).tiny`.
    pub(super) fn tiny(self) -> f32 {
        power_of_two(if self == Self::Float16 { -14 } else { -126 })
    }
}

/// Returns 2^exponent, from 2^-126 to 2^127.
#[inline(always)]
pub(super) fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Returns floor(log2(magnitude)) of the bits of a positive number.
#[inline(always)]
pub(super) fn exponent(magnitude: u32) -> i32 {
    let is_subnormal = magnitude < 1 << 23;
    let number = if is_subnormal { (magnitude as i32 as f32).to_bits() } else { magnitude };
    (number >> 23) as i32 - if is_subnormal { 127 + 149 } else { 127 }
}

/// Returns the number with these bits times 2^exponent, for exponents from 0 to 126 and products that float32 holds. No
/// operand is subnormal, because processors take long for such numbers: they are read as the mantissas of numbers from
/// 2^-126 on.
#[inline(always)]
pub(super) fn raised(bits: u32, exponent: i32) -> f32 {
    let magnitude = bits & 0x7fff_ffff;
    let field = (exponent as u32) << 23;
    let (field, above) = if magnitude < 1 << 23 {
        let field = field.wrapping_add(1 << 23);
        (field, f32::from_bits(field))
    } else {
        (field, 0.0)
    };
    let number = f32::from_bits(magnitude.wrapping_add(field)) - above;
    f32::from_bits(number.to_bits() | bits & 0x8000_0000)
}

/// Below this, [`quotient_of_small`] divides.
pub(super) const SMALL: f32 = f32::from_bits(3 << 23); // 2^-124

/// Returns the quotient of a number from 0 to [`SMALL`] and an integer from 3 on, as a division does, but without
/// subnormal operands: both numbers are multiples of the smallest number.
#[inline(always)]
pub(super) fn quotient_of_small(number: f32, over: f32) -> f32 {
    let multiple = f64::from(raised(number.to_bits(), 100)) * f64::from(power_of_two(49));
    // The bits of a number up to 2^-125 are its multiple. A quotient that is not a tie is far from one.
    f32::from_bits((multiple / f64::from(over)).round_ties_even() as u32)
}

/// Rounds to the nearest integer, halves away from zero, as [`f32::round`] does. That one calls the C library where the
/// processor has no instruction for it, and the library of mingw-w64 rounds 0.49999997 to 1.
#[inline(always)]
pub(super) fn round_half_away(number: f32) -> f32 {
    const BELOW_HALF: f32 = 0.5_f32.next_down();
    (number.abs() + BELOW_HALF).trunc().copysign(number)
}

/// Computes `ceil(log2(value))` of a positive number as the libraries do. They round the logarithm to float32, so
/// numbers a few units in the last place above 2^k still give k.
#[inline(always)]
pub(super) fn ceil_log2(value: f32) -> i32 {
    // Number of units above 2^k that still give k, by floor(log2|k|): ln 2 times half of the last bit of k as a
    // float32.
    const UNITS: [u32; 8] = [0, 0, 1, 2, 5, 11, 22, 44];
    // No float32 is subnormal as a float64.
    let bits = f64::from(value).to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let units = (bits >> 29) as u32 & 0x7f_ffff;
    let magnitude = exponent.unsigned_abs();
    let log = (magnitude | 1).ilog2();
    // Just above k = -2^m, the magnitude of the logarithm is below 2^m, where floats lie closer together.
    let is_closer = exponent < 0 && magnitude.is_power_of_two();
    let near = if is_closer && log == 0 { 0 } else { UNITS[(log - u32::from(is_closer)) as usize & 7] };
    exponent + i32::from(units > near)
}

/// Computes `ceil(log2(value))` of a positive number exactly.
#[inline(always)]
pub(super) fn exact_ceil_log2(value: f64) -> i32 {
    let bits = value.to_bits();
    (bits >> 52) as i32 - 1023 + i32::from(bits << 12 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::floats;

    #[test]
    fn halves_are_rounded_away_from_zero() {
        let halves = (0..1 << 12).map(|number: u32| number as f32 + 0.5);
        let near = halves.flat_map(|half| [half.next_down(), half, half.next_up()]);
        let numbers = (0..=u32::MAX >> 8).map(|high| f32::from_bits(high << 8 | high & 0xff));
        for number in near.chain(numbers).flat_map(|number| [number, -number]) {
            let below = f64::from(number.abs()).floor();
            let exact = (below + f64::from(f64::from(number.abs()) - below >= 0.5)).copysign(number.into());
            let rounded = round_half_away(number);
            assert!(f64::from(rounded) == exact || rounded.is_nan() && number.is_nan(), "{number:e}");
        }
    }

    #[test]
    fn tiny_numbers_are_raised_and_divided_exactly() {
        let small = (0..1 << 16).map(|high: u32| high << 10 | high & 0x3ff).chain(0..1 << 12);
        for number in small.map(f32::from_bits).filter(|number| *number < SMALL) {
            for exponent in [0, 1, 26, 100, 126] {
                let wide = f64::from(number) * 2_f64.powi(exponent);
                assert_eq!(f64::from(raised(number.to_bits(), exponent)), wide, "{number:e} {exponent}");
                assert_eq!(f64::from(raised((-number).to_bits(), exponent)), -wide, "{number:e} {exponent}");
            }
            for over in [3.0, 15.0, 255.0] {
                assert_eq!(quotient_of_small(number, over), number / over, "{number:e} / {over}");
            }
        }
    }

    #[test]
    fn logarithms_are_those_of_the_libraries() {
        let near = (-149..128).flat_map(|power| {
            let bits = (2_f64.powi(power) as f32).to_bits();
            (bits.saturating_sub(60).max(1)..bits + 60).map(f32::from_bits)
        });
        for value in near.chain(floats().filter(|value| *value > 0.0 && value.is_finite())) {
            assert_eq!(ceil_log2(value), (f64::from(value).log2() as f32).ceil() as i32, "{value:e}");
            let exact = exact_ceil_log2(value.into());
            assert!(2_f64.powi(exact) >= value.into() && 2_f64.powi(exact - 1) < value.into(), "{value:e}");
        }
    }
}
