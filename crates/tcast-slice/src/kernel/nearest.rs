//! The float64 nearest to a decimal, and the side of it on which the decimal lies.
//!
//! The side distinguishes an exact result from a rounded one, and rounding to odd depends on it. Short decimals, which
//! are nearly all decimals in practice, take one division of 128 bits. For the others the standard library finds the
//! nearest float64, and the two are compared exactly, as integers of any size.

use super::decimal::Decimal;
use std::cmp::Ordering;
use std::fmt::Write;

/// Number of digits of a decimal that are significant.
///
/// Float64s, and the numbers halfway between two of them, have at most 768 significant digits. Such a number that is
/// not less than a decimal's first 800 digits is therefore a multiple of the unit of the 800th digit, and none lies
/// strictly between the first 800 digits and the same plus one unit. A decimal with more digits does lie there, so any
/// other number in that interval can replace it: its first 800 digits followed by a 1.
const KEPT: usize = 800;

/// Buffers of a comparison, reused by the next one.
#[derive(Default)]
pub(super) struct NearestScratch {
    spelled: String,
    left: Natural,
    right: Natural,
}

/// A non-negative float64 (Inf if the decimal is too large), and the order of the exact number relative to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Nearest {
    pub(super) value: f64,
    pub(super) side: Ordering,
}

impl Nearest {
    pub(super) fn new(decimal: &Decimal, scratch: &mut NearestScratch) -> Self {
        if decimal.is_zero() {
            return Self { value: 0.0, side: Ordering::Equal };
        }
        // A decimal is at least 10^(point - 1) and less than 10^point: here 1e309, beyond the largest float64, or
        // 1e-324, below half of the smallest. The remaining ones need no more than a few thousand bits to compare.
        if decimal.point > 309 {
            return Self { value: f64::INFINITY, side: Ordering::Less };
        }
        if decimal.point < -323 {
            return Self { value: 0.0, side: Ordering::Greater };
        }
        let power = decimal.point - decimal.len() as i64;
        if decimal.len() <= 19 && power.abs() <= 27 {
            let digits = decimal.digits().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
            return Self::of_short(digits, power as i32);
        }
        Self::of_long(decimal, scratch)
    }

    /// Converts `digits * 10^power`, with `digits` not 0 and `power` between -27 and 27: 5^27 is the largest that fits
    /// in 64 bits. No such number is subnormal or too large.
    fn of_short(digits: u64, power: i32) -> Self {
        let fives = u128::from(5_u64.pow(power.unsigned_abs()));
        let digits = u128::from(digits);
        // As number * 2^exponent. A number of 128 bits divided by one of at most 63 has at least 65 bits, of which 53
        // are kept.
        let (number, exponent, is_cut) = if power >= 0 {
            (digits * fives, power, false)
        } else {
            let shift = digits.leading_zeros();
            let quotient = (digits << shift) / fives;
            (quotient, power - shift as i32, quotient * fives != digits << shift)
        };
        let shift = number.leading_zeros();
        let aligned = number << shift;
        let mantissa = (aligned >> (128 - 53)) as u64;
        let rest = aligned << 53 | u128::from(is_cut);
        let half = 1 << 127;
        let is_up = rest > half || (rest == half && mantissa % 2 == 1);
        let side = if is_up { Ordering::Less } else { rest.cmp(&0) };
        // The hidden bit adds the last 1 to the exponent field; a carry out of the mantissa does the same.
        let field = (exponent - shift as i32 + 127 + 1022) as u64;
        Self { value: f64::from_bits((field << 52) + mantissa + u64::from(is_up)), side }
    }

    /// Converts any decimal that is not zero and not far beyond either end of the range of float64.
    fn of_long(decimal: &Decimal, scratch: &mut NearestScratch) -> Self {
        let NearestScratch { spelled, left, right } = scratch;
        spelled.clear();
        spelled.extend(decimal.digits().take(KEPT).map(char::from));
        if decimal.len() > KEPT {
            spelled.push('1');
        }
        let count = spelled.len();
        let power = decimal.point as i32 - count as i32;
        write!(spelled, "e{power}").expect("a String takes all that is written");
        let value: f64 = spelled.parse().expect("digits and an exponent are a float");
        let side = if value == 0.0 {
            Ordering::Greater
        } else if value == f64::INFINITY {
            Ordering::Less
        } else {
            // Compares digits * 10^power with mantissa * 2^exponent: powers of five multiply the side that they belong
            // to, then powers of two do.
            let (mantissa, exponent) = parts(value);
            left.set_digits(&spelled.as_bytes()[..count]);
            right.set(mantissa);
            left.multiply_by_fives(power.max(0) as u32);
            right.multiply_by_fives((-power).max(0) as u32);
            left.shift_left((power - exponent).max(0) as u32);
            right.shift_left((exponent - power).max(0) as u32);
            left.compare(right)
        };
        Self { value, side }
    }

    /// Returns the exact number rounded to odd: truncated to a float64 whose last bit is set if anything was cut off. A
    /// number beyond the largest float64 becomes the largest, which is odd; only zero becomes zero.
    pub(super) fn to_odd(self) -> f64 {
        let bits = self.value.to_bits();
        f64::from_bits(match self.side {
            Ordering::Less => (bits - 1) | 1,
            Ordering::Equal => bits,
            Ordering::Greater => bits | 1,
        })
    }
}

/// Splits a positive finite float64 into `mantissa * 2^exponent`.
fn parts(value: f64) -> (u64, i32) {
    let fraction = value.to_bits() & ((1 << 52) - 1);
    match (value.to_bits() >> 52) as i32 {
        0 => (fraction, -1074),
        field => (fraction | 1 << 52, field - 1075),
    }
}

/// A non-negative integer of any size.
#[derive(Default)]
struct Natural {
    /// Groups of 64 bits, the lowest first; the last is not 0.
    limbs: Vec<u64>,
}

impl Natural {
    fn set(&mut self, value: u64) {
        self.limbs.clear();
        self.multiply_add(0, value);
    }

    fn set_digits(&mut self, digits: &[u8]) {
        self.limbs.clear();
        for digits in digits.chunks(19) {
            let value = digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
            self.multiply_add(10_u64.pow(digits.len() as u32), value);
        }
    }

    fn multiply_add(&mut self, factor: u64, summand: u64) {
        let mut carry = summand;
        for limb in &mut self.limbs {
            let product = u128::from(*limb) * u128::from(factor) + u128::from(carry);
            *limb = product as u64;
            carry = (product >> 64) as u64;
        }
        if carry != 0 {
            self.limbs.push(carry);
        }
    }

    fn multiply_by_fives(&mut self, mut power: u32) {
        while power > 0 {
            let step = power.min(27); // 5^27 is the largest power of 5 in 64 bits
            self.multiply_add(5_u64.pow(step), 0);
            power -= step;
        }
    }

    fn shift_left(&mut self, bits: u32) {
        self.multiply_add(1 << (bits % 64), 0);
        self.limbs.splice(..0, std::iter::repeat_n(0, bits as usize / 64));
    }

    fn compare(&self, other: &Self) -> Ordering {
        let order = self.limbs.len().cmp(&other.limbs.len());
        order.then_with(|| self.limbs.iter().rev().cmp(other.limbs.iter().rev()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::decimal::{Magnitude, NumericLiteral};
    use super::*;

    fn decimal(text: &str) -> Decimal<'_> {
        match NumericLiteral::read(text.as_bytes()).map(|literal| literal.magnitude) {
            Some(Magnitude::Finite(decimal)) => decimal,
            _ => panic!("{text}"),
        }
    }

    #[test]
    fn short_and_long_decimals_are_judged_alike() {
        let mut scratch = NearestScratch::default();
        let mut seen = [0; 3];
        for power in -27..=27 {
            for step in 0..2000_u64 {
                // Multiples of a power of 5 give exact results, and multiplied by powers of 2 they give ties.
                let random = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let ties = (random >> 10 | 1).wrapping_mul(5_u64.pow(step as u32 % 28));
                let digits = [random >> (step % 60), ties][step as usize % 2] % 10_u64.pow(19);
                let text = format!("{}e{power}", digits.max(1));
                let long = Nearest::of_long(&decimal(&text), &mut scratch);
                assert_eq!(Nearest::of_short(digits.max(1), power), long, "{text}");
                seen[(long.side as i8 + 1) as usize] += 1;
            }
        }
        assert!(seen.into_iter().all(|count| count > 5000), "{seen:?}");
    }

    #[test]
    fn odd_is_the_number_cut_with_a_mark() {
        let mut scratch = NearestScratch::default();
        let table = [
            ("1", 1.0_f64.to_bits()),
            ("1.0000000000000000000001", 1.0_f64.to_bits() + 1),
            ("0.9999999999999999999999", 1.0_f64.to_bits() - 1),
            ("1e400", f64::MAX.to_bits()),
            ("1.7976931348623157e308", f64::MAX.to_bits()),
            ("1e-400", 1),
            ("3e-324", 1),
            ("0e400", 0),
        ];
        for (text, bits) in table {
            assert_eq!(Nearest::new(&decimal(text), &mut scratch).to_odd().to_bits(), bits, "{text}");
        }
    }
}
