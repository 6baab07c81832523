//! Rounds single numbers without branching on values, so that loops over these functions vectorize.

pub(super) use super::super::decode::to_bfloat16;

use crate::dtype::{Dtype, FloatFormat};

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

/// Like [`to_bfloat16`], for numbers that are not ties.
#[inline(always)]
pub(super) fn untied_to_bfloat16(value: f32) -> f32 {
    f32::from_bits(value.to_bits().wrapping_add(0x8000) & 0xffff_0000)
}

/// Rounds to float16, ties to even. Adding a power of two shifts out the bits below the last one of float16.
#[inline(always)]
pub(super) fn to_float16(value: f32) -> f32 {
    let magnitude = value.abs();
    let exponent = (magnitude.to_bits() & 0x7f80_0000).clamp(0x3880_0000, 0x4780_0000);
    let raised = f32::from_bits(exponent + (13 << 23));
    // The comparison is false for NaN, which stays NaN.
    let bounded = if magnitude > 65536.0 { 65536.0 } else { magnitude };
    let rounded = bounded + raised - raised;
    (if rounded > 65504.0 { f32::INFINITY } else { rounded }).copysign(value)
}

/// Widens a float16 to float32.
#[inline(always)]
pub(super) fn from_float16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    // Numbers that are subnormal in float16 are read as the mantissas of numbers from 2^-14 on.
    let (field, above) = if magnitude < 0x400 { (113 << 23, power_of_two(-14)) } else { (112 << 23, 0.0) };
    let value = f32::from_bits((magnitude << 13) + field) - above;
    let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(value.to_bits() | special | u32::from(bits & 0x8000) << 16)
}

/// Rounds a float64 to float32, to odd: rounding the result again to at most 22 bits then has the effect of a single
/// rounding. A nonzero number below the smallest float32 becomes the smallest float32, not 0.
#[inline(always)]
pub(super) fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    let cut = nearest.to_bits().wrapping_sub(u32::from(back.abs() > value.abs()));
    f32::from_bits(cut | u32::from(back != value))
}

/// Returns the bfloat16 nearest to a float64, ties to even.
pub(in crate::quant) fn nearest_bfloat16(value: f64) -> f32 {
    to_bfloat16(to_odd(value))
}

/// The constants for rounding to a float of 16 bits or fewer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Minifloat {
    /// Mantissa bits of float32 minus mantissa bits of this type.
    shift: u32,
    /// Added to an exponent field: see [`Minifloat::round`].
    raise: u32,
    /// The smallest normal number, as the bits of a float32.
    min_normal: u32,
    pub(super) largest: f32,
    pub(super) sign: u8,
    /// Above this, values lie beyond the largest number by more than half a step.
    pub(super) limit: f32,
    /// Up to this, values are 0 if ties go toward zero: half of the smallest number.
    pub(super) zeroed: f32,
}

impl Minifloat {
    pub(super) fn new(format: &FloatFormat) -> Self {
        let (mantissa_bits, max) = (format.mantissa_bits, format.max_finite() as u32);
        let (shift, min_normal) = (23 - mantissa_bits, ((1 - format.bias + 127) as u32) << 23);
        let raise = (shift << 23) | (min_normal >> shift).wrapping_neg() & 0xffff;
        let (sign, unknown) = (format.sign() as u8, f32::NAN);
        let float = Self { shift, raise, min_normal, largest: unknown, sign, limit: unknown, zeroed: unknown };
        let [largest, below] = [max, max - 1].map(|code| float.number(code));
        Self { largest, limit: largest + (largest - below) / 2.0, zeroed: float.number(1) / 2.0, ..float }
    }

    /// Returns the number that a code without sign stands for.
    #[inline(always)]
    pub(super) fn number(self, code: u32) -> f32 {
        // The multiplication corrects the exponent, and normalizes numbers that are subnormal in the small type.
        f32::from_bits(code << self.shift) * f32::from_bits(self.min_normal + (126 << 23))
    }

    /// Rounds a magnitude to the nearest code, ties to even, saturating. Returns the code without sign, and the number
    /// that it stands for.
    #[inline(always)]
    pub(super) fn round(self, magnitude: f32) -> (u32, f32) {
        self.round_in_range(self.bounded(magnitude))
    }

    /// Bounds a magnitude by the largest number, which NaN becomes too: `min` would take further steps for NaN.
    #[inline(always)]
    fn bounded(self, magnitude: f32) -> f32 {
        if magnitude < self.largest { magnitude } else { self.largest }
    }

    /// Like [`Minifloat::round`], for a magnitude below `limit`.
    #[inline(always)]
    pub(super) fn round_in_range(self, magnitude: f32) -> (u32, f32) {
        // A power of two whose last bit is worth as much as the last bit of the result: the same for all subnormals. Some
        // of these bits are added, an even number, to make the low bits of the sum below the code of the result.
        let exponent = self.exponent(magnitude);
        let raised = f32::from_bits(exponent + self.raise);
        let sum = magnitude + raised;
        // The low bits of the sum are the mantissa with its hidden bit, and that bit counts as an exponent of 1.
        let code = sum.to_bits().wrapping_add(exponent >> self.shift) & 0xffff;
        (code, sum - raised)
    }

    /// Returns the exponent of the smallest positive number.
    pub(super) fn lowest_exponent(self) -> i32 {
        (self.min_normal >> 23) as i32 - 127 - (23 - self.shift as i32)
    }

    /// Returns the exponent field of a magnitude, at least the field of the smallest normal number. Both are below
    /// 2^31, and only signed integers have a maximum in all instruction sets.
    #[inline(always)]
    fn exponent(self, magnitude: f32) -> u32 {
        let (exponent, least) = ((magnitude.to_bits() & 0x7f80_0000) as i32, self.min_normal as i32);
        (if exponent > least { exponent } else { least }) as u32
    }

    /// Like [`Minifloat::round`], with ties toward zero.
    #[inline(always)]
    pub(super) fn round_down(self, magnitude: f32) -> (u32, f32) {
        let magnitude = self.bounded(magnitude);
        let (code, value) = self.round_in_range(magnitude);
        let exponent = self.exponent(magnitude);
        let half = f32::from_bits(exponent - ((24 - self.shift) << 23));
        let is_up = value - magnitude == half;
        (code - u32::from(is_up), if is_up { value - half - half } else { value })
    }
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
    use crate::dtype::Class;
    use crate::random::random;
    use half::{bf16, f16};

    fn samples() -> impl Iterator<Item = f32> {
        let mut next = random(1);
        let specials = (0..1 << 16).map(|high: u32| f32::from_bits(high << 16 | (high & 3) << 14));
        let random = std::iter::repeat_with(move || f32::from_bits(next() as u32));
        specials.chain(random.take(1 << 20)).filter(|value| !value.is_nan())
    }

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
    fn numbers_round_to_the_types_of_weights() {
        for value in samples() {
            assert_eq!(to_bfloat16(value).to_bits(), bf16::from_f32(value).to_f32().to_bits(), "{value}");
            assert_eq!(to_float16(value).to_bits(), f16::from_f32(value).to_f32().to_bits(), "{value}");
        }
        for bits in (0..=u16::MAX).filter(|bits| bits & 0x7fff <= 0x7c00) {
            assert_eq!(from_float16(bits).to_bits(), f16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
        }
    }

    #[test]
    fn magnitudes_round_to_the_nearest_code() {
        for dtype in [Dtype::Float8E4M3FN, Dtype::Float8E5M2, Dtype::Float4E2M1, Dtype::Float6E2M3] {
            let Class::Float(format) = dtype.class() else { panic!("{dtype}") };
            let float = Minifloat::new(&format);
            let number = |code: u32| {
                let mantissa =
                    f64::from(code & ((1 << format.mantissa_bits) - 1)) / f64::from(1 << format.mantissa_bits);
                let exponent = (code >> format.mantissa_bits) as i32;
                let hidden = f64::from(u8::from(exponent > 0));
                (hidden + mantissa) * 2_f64.powi(exponent.max(1) - format.bias)
            };
            let numbers: Vec<f64> = (0..=format.max_finite() as u32).map(number).collect();
            assert_eq!(f64::from(float.largest), *numbers.last().unwrap());
            let last = numbers.len() - 1;
            assert_eq!(f64::from(float.limit), numbers[last] + (numbers[last] - numbers[last - 1]) / 2.0);
            let ties = numbers.windows(2).map(|pair| f64::midpoint(pair[0], pair[1]) as f32);
            let near = ties.flat_map(|tie| [tie.next_down(), tie, tie.next_up()]);
            for value in near.chain(samples().map(f32::abs)).chain(numbers.iter().map(|value| *value as f32)) {
                let wide = f64::from(value);
                let above = numbers.partition_point(|number| *number < wide).min(last);
                let below = above.saturating_sub(1);
                let [low, high] = [wide - numbers[below], numbers[above] - wide];
                let is_tie = low == high && above != below;
                let is_up = if is_tie { above % 2 == 0 } else { high < low };
                let even = if is_up { above } else { below };
                let down = if is_tie { below } else { even };
                assert_eq!(float.round(value), (even as u32, numbers[even] as f32), "{dtype} {value}");
                assert_eq!(float.round_down(value), (down as u32, numbers[down] as f32), "{dtype} {value}");
            }
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
        for value in near.chain(samples().filter(|value| *value > 0.0 && value.is_finite())) {
            assert_eq!(ceil_log2(value), (f64::from(value).log2() as f32).ceil() as i32, "{value:e}");
            let exact = exact_ceil_log2(value.into());
            assert!(2_f64.powi(exact) >= value.into() && 2_f64.powi(exact - 1) < value.into(), "{value:e}");
        }
    }
}
