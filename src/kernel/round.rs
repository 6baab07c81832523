//! Rounding of float32 bits to any float format of 16 bits or fewer: to nearest, ties to even.
//!
//! The format is data ([`Rounding`]), the code has no branch on the value, and every shift distance is the same for all
//! values, so the compiler turns the loop around [`Rounding::round`] into vector code for any instruction set that it
//! is compiled for.
//!
//! Sources wider than float32 arrive *rounded to odd* ([`narrow_to_odd`]): truncated, with the last bit set when
//! anything was cut off. Rounding such a value to at most 22 significant bits gives the same result as rounding the
//! original once (Boldo & Melquiond, "When double rounding is odd", 2005), and a truncated value can no longer look
//! exact.

use super::tally::LossTally;
use crate::dtype::{FloatFormat, Specials};

/// float32: the position of the exponent, its bias, and the bits below the sign.
const MANTISSA_BITS: u32 = 23;
const BIAS: i32 = 127;
pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITY: u32 = 0x7f80_0000;

/// Result for a value beyond the target's range.
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

/// A target format of 16 bits or fewer, as the constants that [`Rounding::round`] needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounding {
    /// Mantissa bits of float32 that the target lacks.
    shift: u32,
    /// The bits that `shift` drops.
    dropped: u32,
    /// One less than half of the last kept bit.
    half_less_one: u32,
    /// Difference of the exponent biases, at the target's exponent field.
    rebias: u32,
    /// float32 bits of the target's smallest normal number.
    min_normal: u32,
    /// A power of two whose last mantissa bit, in float32, is worth the target's smallest subnormal.
    aligner: f32,
    /// The same exponent field as an addend: see [`Rounding::round_in_range`].
    raise: u32,
    /// The largest magnitude that [`Rounding::round_in_range`] accepts.
    pub(crate) limit: u32,
    /// The largest magnitude that rounds to zero: half of the smallest subnormal.
    pub(crate) zero: u32,
    /// The code of -0, in formats that have none.
    pub(super) lacks: Option<u8>,
    max_finite: u32,
    overflow_code: u32,
    infinity_code: u32,
    nan_code: u32,
    /// Mask of the bits of a source NaN's payload, once shifted, that the target keeps.
    payload: u32,
    /// Right shift that moves the sign bit to its place in the target.
    sign_shift: u32,
    sign: u32,
    /// One less than the largest code that takes a sign; zero takes none. `u32::MAX` if all codes, including zero, do.
    signed_codes: u32,
    pub(super) overflow: Overflow,
    pub(super) on_infinity: Overflow,
    pub(super) has_nan: bool,
    /// True if every number of the source is a number of the target.
    pub(super) is_exact: bool,
}

impl Rounding {
    /// Computes the constants. `overflow` is the result for finite values beyond the range, `on_infinity` the result
    /// for Inf.
    pub(super) fn new(format: &FloatFormat, overflow: Overflow, on_infinity: Overflow, is_exact: bool) -> Self {
        let shift = MANTISSA_BITS - format.mantissa_bits;
        let sign = format.sign() as u32;
        let rebias = ((BIAS - format.bias) as u32) << format.mantissa_bits;
        let half_less_one = (1 << (shift - 1)) - 1;
        let min_normal = ((1 - format.bias + BIAS) as u32) << MANTISSA_BITS;
        let aligner =
            f32::from_bits(((format.min_subnormal_exponent() + MANTISSA_BITS as i32 + BIAS) as u32) << MANTISSA_BITS);
        let max_finite = format.max_finite() as u32;
        // The largest magnitude that rounds to the largest number: a tie does if that number is even.
        let last = ((max_finite + rebias) << shift) + half_less_one + (1 - (max_finite & 1));
        Self {
            shift,
            dropped: (1 << shift) - 1,
            half_less_one,
            rebias,
            min_normal,
            aligner,
            raise: (shift << MANTISSA_BITS) + ((min_normal >> shift).wrapping_neg() & 0xffff),
            limit: last.min(INFINITY - (shift << MANTISSA_BITS) - 1),
            zero: (aligner / (1_u32 << (MANTISSA_BITS + 1)) as f32).to_bits(),
            lacks: (format.specials == Specials::Fnuz).then_some(sign as u8),
            max_finite,
            overflow_code: overflow.code(format),
            infinity_code: on_infinity.code(format),
            nan_code: format.nan() as u32,
            payload: if sign > 0x80 { (1 << format.mantissa_bits) - 1 } else { 0 },
            sign_shift: 31 - sign.trailing_zeros(),
            sign,
            signed_codes: if format.specials == Specials::Fnuz { sign - 2 } else { u32::MAX },
            overflow,
            on_infinity,
            has_nan: format.specials != Specials::Finite,
            is_exact,
        }
    }

    /// Rounds one float32 whose magnitude is at most `limit`, given as its bits, in half the steps of
    /// [`Rounding::round`] and with the same result. Only the lower 16 bits of the code matter. A zero keeps the sign
    /// of the source. The second result is true if the code is exact. The range of a whole block is checked afterwards:
    /// see `LossTally`.
    #[inline(always)]
    pub(crate) fn round_in_range(&self, bits: u32) -> (u32, bool) {
        let magnitude = bits & MAGNITUDE;
        // 1. The power of two whose last mantissa bit, in float32, is worth the target's last bit at this magnitude;
        //    below the smallest normal number, the bit of the subnormals. Adding it makes the adder round to nearest
        //    even, and the low bits of the sum are the mantissa with its hidden bit.
        let exponent = (bits & INFINITY).max(self.min_normal);
        let raised = f32::from_bits(exponent + self.raise);
        let sum = f32::from_bits(magnitude) + raised;
        // 2. The exponent goes above the mantissa: 0 for the smallest normal numbers, because their hidden bit stands
        //    for 1. The low bits of `raise` already contain the number to subtract for that. It is even, as the
        //    mantissa has at least one bit, so ties stay ties.
        let code = sum.to_bits().wrapping_add(exponent >> self.shift);
        // 3. The subtraction is exact: both are multiples of the same bit.
        let is_exact = (sum - raised).to_bits() == magnitude;
        (code | (bits >> self.sign_shift) & self.sign, is_exact)
    }

    /// Rounds one float32, given as its bits, and counts a finite number that is beyond the range as `over`, one that
    /// becomes zero as `flushed`, and one that becomes another number as `inexact`.
    #[inline(always)]
    pub(super) fn round(&self, bits: u32, tally: &mut LossTally) -> u32 {
        let magnitude = bits & MAGNITUDE;
        // 1. A normal result: add just under half of the last kept bit, one more if that bit is odd, and truncate. A
        //    carry out of the mantissa runs into the exponent, as the next binade needs.
        let odd = (magnitude >> self.shift) & 1;
        let normal = ((magnitude + self.half_less_one + odd) >> self.shift).wrapping_sub(self.rebias);
        // 2. A subnormal result: adding the aligner leaves no mantissa bit below the target's last one, so the adder
        //    itself rounds to nearest even, and the low bits of the sum are the code. The smallest normal number, which
        //    rounding can reach, directly follows the largest subnormal.
        let value = f32::from_bits(magnitude);
        let aligned = value + self.aligner;
        let subnormal = aligned.to_bits().wrapping_sub(self.aligner.to_bits());
        let is_subnormal = magnitude < self.min_normal;
        let code = if is_subnormal { subnormal } else { normal };
        let is_rounded = if is_subnormal { aligned - self.aligner != value } else { magnitude & self.dropped != 0 };
        // 3. The range is tested after rounding (ONNX Cast: `[x] > FLT_MAX`).
        let is_nan = magnitude > INFINITY;
        let is_infinite = magnitude == INFINITY;
        let is_finite = magnitude < INFINITY;
        let is_over = is_finite & (code > self.max_finite);
        let is_zero = code == 0;
        let code = if is_over { self.overflow_code } else { code };
        let code = if is_infinite { self.infinity_code } else { code };
        let code = if is_nan { self.nan_code | ((magnitude >> self.shift) & self.payload) } else { code };
        // 4. The sign. FNUZ formats have none on zero and NaN. In formats without NaN, `nan_code` is the sign bit, so
        //    that xor gives the results of ONNX's node tests: NaN -> -0, -NaN -> +0.
        let sign = (bits >> self.sign_shift) & self.sign;
        let takes_sign = code.wrapping_sub(1) <= self.signed_codes;
        tally.over += u32::from(is_over);
        tally.was_infinite += u32::from(is_infinite);
        tally.was_nan += u32::from(is_nan);
        tally.flushed += u32::from(is_zero & (magnitude != 0));
        tally.inexact += u32::from(is_finite & (is_rounded | is_over));
        if takes_sign { code ^ sign } else { code }
    }
}

/// Rounds a number to bfloat16, to nearest even. NaN may become a number.
#[inline(always)]
pub(crate) fn to_bfloat16(value: f32) -> u16 {
    // Adds half of the last bit, less one unless that bit is set.
    let bits = value.to_bits();
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// float64 bits -> float32 bits, rounded to odd. Inf stays, NaN keeps its sign and leading payload.
#[inline(always)]
pub(super) fn narrow_to_odd(bits: u64) -> u32 {
    let value = f64::from_bits(bits);
    let nearest = value as f32;
    let back = f64::from(nearest);
    // If the nearest float32 is beyond the value, the one before it is the truncated value.
    let cut = nearest.to_bits() - u32::from(back.abs() > value.abs());
    let odd = cut | u32::from(back != value);
    if value.is_nan() { narrow_nan(bits) } else { odd }
}

/// Narrows a float64 NaN to a quiet float32 NaN; keeps the sign and the leading payload bits.
#[inline(always)]
pub(super) fn narrow_nan(bits: u64) -> u32 {
    ((bits >> 32) as u32 & 0x8000_0000) | 0x7fc0_0000 | ((bits >> 29) as u32 & 0x003f_ffff)
}

/// float32 bits -> float64 bits, exact. NaN keeps its sign and payload and becomes quiet.
#[inline(always)]
pub(super) fn widen(bits: u32) -> u64 {
    let value = f32::from_bits(bits);
    let nan = (u64::from(bits & 0x8000_0000) << 32) | 0x7ff8_0000_0000_0000 | (u64::from(bits & 0x003f_ffff) << 29);
    if value.is_nan() { nan } else { f64::from(value).to_bits() }
}

/// An integer of up to 64 bits -> float64 bits: exact below 2^53, from there on rounded to odd at 2^11, which leaves at
/// least 42 significant bits. That is more than enough for float32 and everything narrower; float64 targets do not use
/// this.
#[inline(always)]
pub(super) fn unsigned_to_odd(magnitude: u64) -> u64 {
    // The upper 53 bits always fit; the other 11 are folded into the last of them.
    let cut = magnitude & 0x7ff;
    let wide = ((magnitude >> 11) | u64::from(cut != 0)) as f64 * 2048.0;
    let is_wide = magnitude >> 53 != 0;
    (if is_wide { wide } else { magnitude as f64 }).to_bits()
}

/// [`unsigned_to_odd`] of a two's complement integer.
#[inline(always)]
pub(super) fn signed_to_odd(value: i64) -> u64 {
    unsigned_to_odd(value.unsigned_abs()) | (value as u64 & (1 << 63))
}
