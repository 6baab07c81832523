//! Floats to integers: truncated, or rounded to nearest even for integers of 4 bits and fewer.

use super::counts::{Counts, Loss};
use super::tally::{LossTally, count_float32_specials, count_float64_specials, store};

/// An integer target type, and the treatment of floats beyond its range.
#[derive(Clone, Copy)]
pub(super) struct IntTarget {
    pub(super) bits: u32,
    pub(super) signed: bool,
    pub(super) saturate: bool,
    /// 4 and 2 bits: round to nearest even (ONNX's notes on int4 and int2); otherwise truncate.
    pub(super) to_nearest: bool,
    /// Mask of all bits of an element.
    pub(super) mask: u64,
    /// The largest magnitudes of a negative and of a non-negative number.
    pub(super) negative_limit: u64,
    pub(super) positive_limit: u64,
}

impl IntTarget {
    pub(super) fn new(bits: u32, signed: bool, saturate: bool) -> Self {
        let mask = u64::MAX >> (64 - bits);
        let (negative_limit, positive_limit) = if signed { (1 << (bits - 1), mask >> 1) } else { (0, mask) };
        Self { bits, signed, saturate, to_nearest: bits < 8, mask, negative_limit, positive_limit }
    }

    /// Encodes targets of up to 32 bits. Nearly all blocks are entirely in range, and take a fraction of the time.
    #[inline(always)]
    pub(super) fn encode_float32(&self, lane: &[[u8; 4]], bytes: &mut [u8]) -> Counts {
        let in_range = match self.bits {
            32 => self.in_range(lane, bytes, false, i32::to_le_bytes),
            16 => self.in_range(lane, bytes, false, |whole| (whole as u16).to_le_bytes()),
            8 => self.in_range(lane, bytes, false, |whole| [whole as u8]),
            _ => self.in_range(lane, bytes, true, |whole| [whole as u8 & self.mask as u8]),
        };
        if let Some(counts) = in_range {
            return counts;
        }
        let tally = match self.bits {
            32 => {
                store(lane, bytes, u32::from_le_bytes, |bits, tally| int_from_float32(bits, self, tally).to_le_bytes())
            }
            16 => store(lane, bytes, u32::from_le_bytes, |bits, tally| {
                (int_from_float32(bits, self, tally) as u16).to_le_bytes()
            }),
            _ => store(lane, bytes, u32::from_le_bytes, |bits, tally| [int_from_float32(bits, self, tally) as u8]),
        };
        let mut specials = Counts::default();
        count_float32_specials(lane, &mut specials);
        self.counts(&tally, specials)
    }

    /// Encodes all numbers, and returns the counts if all of them fit in the target and in 23 bits.
    #[inline(always)]
    fn in_range<const N: usize>(
        &self,
        lane: &[[u8; 4]],
        bytes: &mut [u8],
        to_nearest: bool,
        code: impl Fn(i32) -> [u8; N],
    ) -> Option<Counts> {
        /// The number from which the last bit of a float32 is worth 1, so that adding it rounds to the nearest integer,
        /// ties to even.
        const ONES: f32 = 8_388_608.0;
        // Values below 1, or not nearer to 1 than to 0, become 0.
        let zero = if to_nearest { 0.5_f32.to_bits() } else { 1.0_f32.to_bits() - 1 };
        // A number is in range if it has at most `width` bits after subtraction of `lowest`.
        let width = self.bits.min(23);
        let lowest = if self.signed { -1 << (width - 1) } else { 0 };
        let tally = store(lane, bytes, u32::from_le_bytes, |bits, tally| {
            let value = f32::from_bits(bits).abs();
            let sum = value + ONES;
            let nearest = sum - ONES; // exact, as both are integers
            tally.inexact += u32::from(nearest != value);
            tally.flushed += u32::from(value.to_bits().wrapping_sub(1) < zero);
            let is_up = !to_nearest & (nearest > value);
            // From 2^23 on, and for Inf and NaN, this may be wrong, but it is at least 2^23.
            let magnitude = sum.to_bits().wrapping_sub(ONES.to_bits()) as i32 - i32::from(is_up);
            let whole = if bits >> 31 == 0 { magnitude } else { magnitude.wrapping_neg() };
            tally.seen = whole.wrapping_sub(lowest) as u32;
            code(whole)
        });
        (tally.seen >> width == 0).then(|| tally.counts())
    }

    #[inline(always)]
    pub(super) fn encode_float64(&self, lane: &[[u8; 8]], bytes: &mut [u8]) -> Counts {
        let tally = match self.bits {
            64 => {
                store(lane, bytes, u64::from_le_bytes, |bits, tally| int_from_float64(bits, self, tally).to_le_bytes())
            }
            32 => store(lane, bytes, u64::from_le_bytes, |bits, tally| {
                (int_from_float64(bits, self, tally) as u32).to_le_bytes()
            }),
            16 => store(lane, bytes, u64::from_le_bytes, |bits, tally| {
                (int_from_float64(bits, self, tally) as u16).to_le_bytes()
            }),
            _ => store(lane, bytes, u64::from_le_bytes, |bits, tally| [int_from_float64(bits, self, tally) as u8]),
        };
        let mut specials = Counts::default();
        count_float64_specials(lane, &mut specials);
        self.counts(&tally, specials)
    }

    /// Classifies the counts of the loop, which counts NaN as out of range.
    fn counts(&self, tally: &LossTally, specials: Counts) -> Counts {
        let mut counts = tally.counts();
        counts += specials;
        let over = u64::from(tally.over);
        if self.saturate {
            counts[Loss::NanLost] = specials.input_nan;
            counts[Loss::Saturated] = over - specials.input_nan;
        } else {
            counts[Loss::Wrapped] = over;
        }
        counts
    }
}

/// Float of one lane -> integer, with arithmetic of the lane's width.
macro_rules! int_from_float {
    ($name:ident, $bits:ty, $width:literal, $mantissa_bits:literal, $bias:literal) => {
        #[inline(always)]
        fn $name(bits: $bits, target: &IntTarget, tally: &mut LossTally) -> $bits {
            const HIDDEN: $bits = 1 << $mantissa_bits;
            const INFINITY: $bits = (2 * $bias + 1) << $mantissa_bits;
            const UNIT: u32 = $bias + $mantissa_bits; // the exponent field at which the mantissa counts ones
            let negative = bits >> ($width - 1) != 0;
            let magnitude = bits & (<$bits>::MAX >> 1);
            let exponent = (magnitude >> $mantissa_bits) as u32;
            let fraction = magnitude & (HIDDEN - 1);
            let mantissa = if exponent == 0 { 0 } else { fraction | HIDDEN }; // a subnormal is next to 0
            // The value is mantissa * 2^left or mantissa * 2^-right; one of the two shifts is 0. Limiting `right` has
            // no effect on the result: at smaller distances, mantissa and half of the last place are already shifted
            // out.
            let left = exponent.saturating_sub(UNIT);
            let right = UNIT.saturating_sub(exponent).min($width - 1);
            let whole = mantissa >> right;
            let rest = mantissa - (whole << right);
            let half = ((1 as $bits) << right) >> 1;
            let is_up = target.to_nearest & ((rest > half) | ((rest == half) & (right != 0) & (whole & 1 == 1)));
            let whole = whole + <$bits>::from(is_up);
            let is_finite = magnitude < INFINITY;
            let is_lost = left >= $width; // no bit of it remains in the lane: 0 modulo the lane's width
            let low = if is_lost | !is_finite { 0 } else { whole << (left & ($width - 1)) };
            let is_wide = left > $width - 1 - $mantissa_bits; // the shift may have cut bits off
            let limit = if negative { target.negative_limit } else { target.positive_limit } as $bits;
            let is_over = !is_finite | is_wide | (low > limit);
            tally.over += u32::from(is_over);
            tally.flushed += u32::from(!is_over & (low == 0) & (magnitude != 0));
            tally.inexact += u32::from(is_over | (rest != 0) | ((exponent == 0) & (fraction != 0)));
            let wrapped = if negative { low.wrapping_neg() } else { low };
            let end = if negative { limit.wrapping_neg() } else { limit };
            let end = if magnitude > INFINITY { 0 } else { end };
            (if target.saturate & is_over { end } else { wrapped }) & target.mask as $bits
        }
    };
}

int_from_float!(int_from_float32, u32, 32, 23, 127);
int_from_float!(int_from_float64, u64, 64, 52, 1023);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_near_the_ends_of_a_range_become_what_the_complete_rules_say() {
        let near = |power: i32| [-1.0, -0.5, 0.0, 0.5, 1.0].map(|step| 2_f32.powi(power) + step);
        let numbers = (-1..=33).flat_map(near).chain([0.0, 0.25, 8_388_607.5, f32::MAX, f32::INFINITY, f32::NAN]);
        for number in numbers.flat_map(|number| [number, -number]) {
            for (bits, signed, saturate) in [2, 4, 8, 16, 32].into_iter().flat_map(|bits| {
                [true, false].into_iter().flat_map(move |signed| [true, false].map(|saturate| (bits, signed, saturate)))
            }) {
                let (target, lane) = (IntTarget::new(bits, signed, saturate), [number.to_le_bytes()]);
                let mut bytes = vec![0; (bits as usize).div_ceil(8)];
                let counts = target.encode_float32(&lane, &mut bytes);
                let mut specials = Counts::default();
                count_float32_specials(&lane, &mut specials);
                let mut tally = LossTally::EMPTY;
                let expected = int_from_float32(number.to_bits(), &target, &mut tally).to_le_bytes();
                assert_eq!(bytes, expected[..bytes.len()], "{number} to {bits} bits, signed: {signed}");
                assert_eq!(counts, target.counts(&tally, specials), "{number} to {bits} bits, signed: {signed}");
            }
        }
    }
}
