//! Floats of 16 bits and fewer: the constants of a format, and its numbers to and from float32.
//!
//! Casts, decoders and encoders of quantized weights, and blocks all use [`Minifloat`]. Its functions do not branch on
//! values, and every shift distance is the same for all values, so the compiler turns a loop around them into vector
//! code for any instruction set that it is compiled for. Loops copy the constants: if a constant is behind a reference
//! and only some elements need it, the compiler emits a gather, at a fifth of the speed.
//!
//! float32 is the only lane, because it holds every such number. Numbers from wider lanes are first rounded to float32,
//! to odd: see [`super::lane`].

use super::tally::LossTally;
use crate::dtype::{FloatFormat, Specials};

/// float32: the width of the mantissa, the bias of the exponent, and the bits below the sign.
const MANTISSA_BITS: u32 = 23;
const BIAS: i32 = 127;
pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITY: u32 = 0x7f80_0000;

/// A format of 16 bits or fewer, as the constants that conversions from and to float32 need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Minifloat {
    /// Mantissa bits of float32 that the format lacks.
    shift: u32,
    /// Difference of the exponent biases, at float32's exponent field.
    rebias: u32,
    /// The smallest normal number, as float32 bits.
    min_normal: u32,
    /// Added to an exponent field: see [`Minifloat::round_in_range`].
    raise: u32,
    /// The sign bit.
    pub sign: u32,
    /// Distance between the sign bits of the format and of float32.
    sign_shift: u32,
    /// The largest magnitude that [`Minifloat::round_in_range`] accepts, as float32 bits.
    pub limit: u32,
    /// The largest magnitude that rounds to zero, as float32 bits: half of the smallest number.
    pub zero: u32,
    /// The largest number.
    pub largest: f32,
    /// Above this, values lie beyond the largest number by more than half a step.
    pub clipped: f32,
    /// The code of -0, in formats that have none.
    pub(super) lacks: Option<u8>,
    /// A code that is infinite or NaN is at least `special` after xor with `flip` and masking with `mask`.
    mask: u16,
    flip: u16,
    special: u16,
}

impl Minifloat {
    /// Computes the constants of a format.
    pub const fn new(format: &FloatFormat) -> Self {
        let shift = MANTISSA_BITS - format.mantissa_bits;
        let (sign, max_finite) = (format.sign() as u32, format.max_finite() as u32);
        let rebias = ((BIAS - format.bias) as u32) << MANTISSA_BITS;
        let min_normal = ((format.min_normal_exponent() + BIAS) as u32) << MANTISSA_BITS;
        // The numbers with the largest code and with the one before it, which are normal.
        let [largest, before] =
            [f32::from_bits((max_finite << shift) + rebias), f32::from_bits(((max_finite - 1) << shift) + rebias)];
        // The largest magnitude that rounds to the largest number: a tie does if that number is even.
        let last = largest.to_bits() + (1 << (shift - 1)) - (max_finite & 1);
        let addable = INFINITY - (shift << MANTISSA_BITS) - 1;
        let magnitude = sign as u16 - 1;
        let (mask, flip, special) = match format.specials {
            Specials::Ieee => (magnitude, 0, format.infinity() as u16),
            Specials::Fn => (magnitude, 0, format.nan() as u16),
            Specials::Fnuz => (magnitude << 1 | 1, magnitude, magnitude << 1 | 1), // the sign alone
            Specials::Finite => (0, 0, u16::MAX),
        };
        Self {
            shift,
            rebias,
            min_normal,
            raise: (shift << MANTISSA_BITS) + ((min_normal >> shift).wrapping_neg() & 0xffff),
            sign,
            sign_shift: 31 - sign.trailing_zeros(),
            limit: if last < addable { last } else { addable },
            zero: (f32::from_bits(min_normal) / (2 << format.mantissa_bits) as f32).to_bits(),
            largest,
            clipped: largest + (largest - before) / 2.0,
            lacks: if matches!(format.specials, Specials::Fnuz) { Some(sign as u8) } else { None },
            mask,
            flip,
            special,
        }
    }

    /// Converts a finite code to the bits of a float32.
    #[inline(always)]
    pub fn widen(self, code: u32) -> u32 {
        let digits = (code & (self.sign - 1)) << self.shift;
        // A subnormal is the smallest normal number with the mantissa in its low bits, minus the smallest normal
        // number.
        let subnormal = (f32::from_bits(self.min_normal + digits) - f32::from_bits(self.min_normal)).to_bits();
        let is_subnormal = (digits as i32) < 1 << MANTISSA_BITS;
        let value = if is_subnormal { subnormal } else { digits + self.rebias };
        value | (code & self.sign) << self.sign_shift
    }

    /// Returns the number of any code. NaN keeps its sign, but not its payload.
    pub fn number(self, code: u32) -> f32 {
        let value = f32::from_bits(self.widen(code));
        let magnitude = code & (self.sign - 1);
        if !self.is_special(code as u16) {
            value
        } else if magnitude != 0 && value.to_bits() << (32 - MANTISSA_BITS) == 0 {
            // Only Inf has an exponent and no mantissa.
            f32::INFINITY.copysign(value)
        } else {
            f32::NAN.copysign(value)
        }
    }

    #[inline(always)]
    fn is_special(self, code: u16) -> bool {
        (code ^ self.flip) & self.mask >= self.special
    }

    /// True if any of the codes is infinite or NaN.
    #[inline(always)]
    pub(super) fn has_special<const N: usize>(self, bytes: &[u8], code: impl Fn([u8; N]) -> u16) -> bool {
        bytes.as_chunks().0.iter().fold(false, |any, bytes| any | self.is_special(code(*bytes)))
    }

    /// Converts a finite code with at most three mantissa bits to bfloat16, in a lane of 16 bits.
    #[inline(always)]
    pub(super) fn widen_to_bfloat16(self, code: u16) -> u16 {
        let magnitude = code & (self.sign as u16 - 1);
        // 1. With the exponent field in place, read as a fixed-point number: for normal numbers, this is the result.
        let once = (magnitude << (self.shift - 16)) as i16;
        // 2. The mantissa of a subnormal number of up to three bits reaches the hidden bit after some doublings; its
        //    exponent is smaller by their number. Lines through the powers of two have these values. They are pieces of
        //    a concave function, like the logarithm, so the least of them is right.
        let (twice, four_times, eight_times) = (once * 2, once * 4, once * 8);
        let least = once.min(twice - 0x80).min(four_times - 0x100).min(eight_times - 0x180);
        // 3. There is no line through zero.
        let value = if magnitude == 0 { 0 } else { (least + (self.rebias >> 16) as i16) as u16 };
        value | (code & self.sign as u16) << (self.sign_shift - 16)
    }

    /// True if no code has more than three mantissa bits, as [`Minifloat::widen_to_bfloat16`] requires.
    #[inline(always)]
    pub(super) fn has_three_digits(self) -> bool {
        self.shift >= MANTISSA_BITS - 3
    }

    /// Returns the number of digits behind the leading one.
    pub fn mantissa_bits(self) -> i32 {
        (MANTISSA_BITS - self.shift) as i32
    }

    /// Returns the exponent of the smallest positive number.
    pub fn lowest_exponent(self) -> i32 {
        (self.min_normal >> MANTISSA_BITS) as i32 - BIAS - self.mantissa_bits()
    }

    /// Rounds a magnitude to the nearest code, ties to even, saturating. Returns the code without sign, and the number
    /// that it stands for.
    #[inline(always)]
    pub fn round(self, magnitude: f32) -> (u32, f32) {
        self.round_in_range(self.bounded(magnitude))
    }

    /// Bounds a magnitude by the largest number, which NaN becomes too: `min` would take further steps for NaN.
    #[inline(always)]
    fn bounded(self, magnitude: f32) -> f32 {
        if magnitude < self.largest { magnitude } else { self.largest }
    }

    /// Like [`Minifloat::round`], for a magnitude of at most `limit`.
    #[inline(always)]
    pub fn round_in_range(self, magnitude: f32) -> (u32, f32) {
        // 1. The power of two whose last mantissa bit, in float32, is worth the format's last bit at this magnitude;
        //    below the smallest normal number, the bit of the subnormals. Adding it makes the adder round to nearest
        //    even, and the low bits of the sum are the mantissa with its hidden bit.
        let exponent = self.exponent(magnitude);
        let raised = f32::from_bits(exponent + self.raise);
        let sum = magnitude + raised;
        // 2. The exponent goes above the mantissa: 0 for the smallest normal numbers, because their hidden bit stands
        //    for 1. The low bits of `raised` already contain the number to subtract for that. It is even, as the
        //    mantissa has at least one bit, so ties stay ties.
        let code = sum.to_bits().wrapping_add(exponent >> self.shift) & 0xffff;
        // 3. The subtraction is exact: both are multiples of the same bit.
        (code, sum - raised)
    }

    /// Returns the exponent field of a magnitude, at least the field of the smallest normal number. Both are below
    /// 2^31, and only signed integers have a maximum in all instruction sets.
    #[inline(always)]
    fn exponent(self, magnitude: f32) -> u32 {
        let (exponent, least) = ((magnitude.to_bits() & INFINITY) as i32, self.min_normal as i32);
        (if exponent > least { exponent } else { least }) as u32
    }

    /// Like [`Minifloat::round`], with ties toward zero.
    #[inline(always)]
    pub fn round_down(self, magnitude: f32) -> (u32, f32) {
        let magnitude = self.bounded(magnitude);
        let (code, value) = self.round_in_range(magnitude);
        let exponent = self.exponent(magnitude);
        let half = f32::from_bits(exponent - ((MANTISSA_BITS + 1 - self.shift) << MANTISSA_BITS));
        let is_up = value - magnitude == half;
        (code - u32::from(is_up), if is_up { value - half - half } else { value })
    }

    /// Rounds one float32 whose magnitude is at most `limit`, given as its bits, as [`Minifloat::round_in_range`]. A
    /// zero keeps the sign of the source. The second result is true if the code is exact.
    #[inline(always)]
    pub fn round_bits(self, bits: u32) -> (u32, bool) {
        let magnitude = bits & MAGNITUDE;
        let (code, value) = self.round_in_range(f32::from_bits(magnitude));
        (code | (bits >> self.sign_shift) & self.sign, value.to_bits() == magnitude)
    }
}

/// Result for a value beyond the range of a cast's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overflow {
    Saturate,
    Infinity,
    Nan,
}

impl Overflow {
    fn code(self, format: &FloatFormat) -> u32 {
        (match self {
            Self::Saturate => format.max_finite(),
            Self::Infinity => format.infinity(),
            Self::Nan => format.nan(),
        }) as u32
    }
}

/// A target of casts: its format, and the rules for numbers that it lacks.
#[derive(Clone, Copy)]
pub(super) struct FloatTarget {
    pub(super) float: Minifloat,
    /// A power of two whose last mantissa bit, in float32, is worth the target's smallest subnormal.
    aligner: f32,
    max_finite: u32,
    overflow_code: u32,
    infinity_code: u32,
    nan_code: u32,
    /// Mask of the bits of a source NaN's payload, once shifted, that the target keeps.
    payload: u32,
    /// One less than the largest code that takes a sign; zero takes none. `u32::MAX` if all codes, including zero, do.
    signed_codes: u32,
    pub(super) overflow: Overflow,
    pub(super) on_infinity: Overflow,
    pub(super) has_nan: bool,
    /// True if every number of the source is a number of the target.
    pub(super) is_exact: bool,
}

impl FloatTarget {
    /// Computes the constants. `overflow` is the result for finite values beyond the range, `on_infinity` the result
    /// for Inf.
    pub(super) fn new(format: &FloatFormat, overflow: Overflow, on_infinity: Overflow, is_exact: bool) -> Self {
        let float = Minifloat::new(format);
        let sign = float.sign;
        Self {
            float,
            aligner: f32::from_bits(float.min_normal + (float.shift << MANTISSA_BITS)),
            max_finite: format.max_finite() as u32,
            overflow_code: overflow.code(format),
            infinity_code: on_infinity.code(format),
            nan_code: format.nan() as u32,
            payload: if sign > 0x80 { (1 << format.mantissa_bits) - 1 } else { 0 },
            signed_codes: if format.specials == Specials::Fnuz { sign - 2 } else { u32::MAX },
            overflow,
            on_infinity,
            has_nan: format.specials != Specials::Finite,
            is_exact,
        }
    }

    /// Rounds one float32, given as its bits, and counts a finite number that is beyond the range as `over`, one that
    /// becomes zero as `flushed`, and one that becomes another number as `inexact`.
    #[inline(always)]
    pub(super) fn round(&self, bits: u32, tally: &mut LossTally) -> u32 {
        let Minifloat { shift, rebias, min_normal, sign, sign_shift, .. } = self.float;
        let magnitude = bits & MAGNITUDE;
        // 1. A normal result: add just under half of the last kept bit, one more if that bit is odd, and truncate. A
        //    carry out of the mantissa runs into the exponent, as the next binade needs.
        let odd = (magnitude >> shift) & 1;
        let half_less_one = (1 << (shift - 1)) - 1;
        let normal = ((magnitude + half_less_one + odd) >> shift).wrapping_sub(rebias >> shift);
        // 2. A subnormal result: adding the aligner leaves no mantissa bit below the target's last one, so the adder
        //    itself rounds to nearest even, and the low bits of the sum are the code. The smallest normal number, which
        //    rounding can reach, directly follows the largest subnormal.
        let value = f32::from_bits(magnitude);
        let aligned = value + self.aligner;
        let subnormal = aligned.to_bits().wrapping_sub(self.aligner.to_bits());
        let is_subnormal = magnitude < min_normal;
        let code = if is_subnormal { subnormal } else { normal };
        let dropped = (1 << shift) - 1;
        let is_rounded = if is_subnormal { aligned - self.aligner != value } else { magnitude & dropped != 0 };
        // 3. The range is tested after rounding (ONNX Cast: `[x] > FLT_MAX`).
        let is_nan = magnitude > INFINITY;
        let is_infinite = magnitude == INFINITY;
        let is_finite = magnitude < INFINITY;
        let is_over = is_finite & (code > self.max_finite);
        let is_zero = code == 0;
        let code = if is_over { self.overflow_code } else { code };
        let code = if is_infinite { self.infinity_code } else { code };
        let code = if is_nan { self.nan_code | ((magnitude >> shift) & self.payload) } else { code };
        // 4. The sign. FNUZ formats have none on zero and NaN. In formats without NaN, `nan_code` is the sign bit, so
        //    that xor gives the results of ONNX's node tests: NaN -> -0, -NaN -> +0.
        let sign = (bits >> sign_shift) & sign;
        let takes_sign = code.wrapping_sub(1) <= self.signed_codes;
        tally.over += u32::from(is_over);
        tally.was_infinite += u32::from(is_infinite);
        tally.was_nan += u32::from(is_nan);
        tally.flushed += u32::from(is_zero & (magnitude != 0));
        tally.inexact += u32::from(is_finite & (is_rounded | is_over));
        if takes_sign { code ^ sign } else { code }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{Class, Dtype};
    use crate::random::floats;

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
            assert_eq!(f64::from(float.clipped), numbers[last] + (numbers[last] - numbers[last - 1]) / 2.0);
            let ties = numbers.windows(2).map(|pair| f64::midpoint(pair[0], pair[1]) as f32);
            let near = ties.flat_map(|tie| [tie.next_down(), tie, tie.next_up()]);
            for value in near.chain(floats().map(f32::abs)).chain(numbers.iter().map(|value| *value as f32)) {
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
}
