//! A number of a tensor, and the difference of two numbers.

use crate::dtype::{Class, Dtype};
use serde::Serialize;

/// A number of a tensor, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Number {
    /// Number of an integer type or bool.
    Integer(i128),
    /// Number of a float type, all of which float64 holds.
    Float(f64),
}

impl Number {
    pub(super) fn abs(self) -> Self {
        match self {
            Self::Integer(number) => Self::Integer(number.abs()),
            Self::Float(number) => Self::Float(number.abs()),
        }
    }

    /// Subtracts this number from `other`, rounded once, or not at all if float64 holds the difference: 0 exactly if
    /// they are equal. NaN equals NaN, and the difference of NaN and any number is NaN.
    pub(crate) fn to(self, other: Self) -> f64 {
        /// Far beyond all integers, but small enough for the difference to fit in 128 bits.
        const BEYOND: f64 = 1e30;
        let as_float = |number: Self| match number {
            Self::Integer(integer) => integer as f64,
            Self::Float(float) => float,
        };
        let as_integer = |number: Self| match number {
            Self::Integer(integer) => Some(integer),
            Self::Float(float) => (float.fract() == 0.0 && float.abs() < BEYOND).then_some(float as i128),
        };
        match (self, other) {
            (Self::Float(from), Self::Float(to)) => difference(from, to),
            _ => match (as_integer(self), as_integer(other)) {
                (Some(from), Some(to)) => (to - from) as f64,
                // A number with a fraction is below 2^52: an integer near it is exact as float64.
                _ => difference(as_float(self), as_float(other)),
            },
        }
    }
}

/// Returns 2^exponent, for an exponent of at most 1023; 0 below the normal numbers.
pub(super) fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + f64::MAX_EXP - 1).max(0) as u64) << (f64::MANTISSA_DIGITS - 1))
}

/// True if float64 rounds some numbers of a type: integers of 64 bits.
pub(super) fn is_wide_integer(dtype: Dtype) -> bool {
    matches!(dtype.class(), Class::Int { .. }) && dtype.bits() == 64
}

/// Returns the numbers of such a type from their little endian bytes.
pub(super) fn integers(dtype: Dtype, bytes: &[u8]) -> Vec<Number> {
    let integer: fn([u8; 8]) -> i128 = match dtype.class() {
        Class::Int { signed: true } => |bytes| i64::from_le_bytes(bytes).into(),
        _ => |bytes| u64::from_le_bytes(bytes).into(),
    };
    bytes.as_chunks().0.iter().map(|bytes| Number::Integer(integer(*bytes))).collect()
}

/// Subtracts `from` from `to`, like [`Number::to`].
pub(crate) fn difference(from: f64, to: f64) -> f64 {
    #[allow(clippy::float_cmp, reason = "equality is meant exactly")]
    let are_equal = (from == to) | (from.is_nan() & to.is_nan());
    if are_equal { 0.0 } else { to - from }
}

#[cfg(test)]
mod tests {
    use super::{Number, difference};

    #[test]
    fn only_equal_values_have_no_difference() {
        assert_eq!((difference(0.0, -0.0), difference(f64::NAN, -f64::NAN)), (0.0, 0.0));
        assert!(difference(f64::NAN, 1.0).is_nan() && difference(f64::INFINITY, f64::NEG_INFINITY).is_infinite());
        assert_eq!((difference(f64::INFINITY, f64::INFINITY), difference(1.0, -0.5)), (0.0, -1.5));
        assert!(difference(f64::MIN_POSITIVE, f64::from_bits(f64::MIN_POSITIVE.to_bits() - 1)) < 0.0);
    }

    #[test]
    fn integers_are_not_rounded_before_they_are_compared() {
        let (integer, float) = (Number::Integer, Number::Float);
        let two_to_53 = 1_i128 << 53;
        let cases = [
            (integer(two_to_53), float(two_to_53 as f64), 0.0),
            (integer(two_to_53 + 1), float(two_to_53 as f64), -1.0),
            (integer(i64::MAX.into()), float(9_223_372_036_854_775_808.0), 1.0),
            (integer(u64::MAX.into()), float(18_446_744_073_709_551_616.0), 1.0),
            (integer(u64::MAX.into()), integer(i64::MIN.into()), -27_670_116_110_564_327_424.0),
            (integer(-1), integer(u64::MAX.into()), 18_446_744_073_709_551_616.0),
            (integer(3), float(2.5), -0.5),
            (integer(3), float(f64::NEG_INFINITY), f64::NEG_INFINITY),
            (integer(0), float(1e300), 1e300),
        ];
        for (a, b, wanted) in cases {
            assert_eq!((a.to(b), b.to(a)), (wanted, 0.0 - wanted));
        }
        assert!(integer(3).to(float(f64::NAN)).is_nan());
    }
}
