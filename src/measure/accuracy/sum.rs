//! Sums beyond the range of float64.

use crate::measure::number::power_of_two;

/// A sum that is `value` times 2 to the power of `exponent`; `value` is 0, or its magnitude is from 1 to below 2.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct UnboundedSum {
    pub(super) value: f64,
    pub(super) exponent: i32,
}

impl UnboundedSum {
    /// Creates a sum from a finite value, times 2 to the power of `exponent`.
    pub(super) fn new(value: f64, exponent: i32) -> Self {
        if value == 0.0 {
            return Self::default();
        }
        let binade = exponent_of(value);
        Self { value: times_power_of_two(value, -binade), exponent: exponent + binade }
    }

    /// Adds as float64 would if its exponents had no bounds: the bits that the smaller number loses when it is aligned
    /// are far below the last bit of the sum.
    pub(super) fn add(&mut self, other: Self) {
        let (large, small) = match () {
            () if self.value == 0.0 => (other, *self),
            () if other.value == 0.0 || self.exponent >= other.exponent => (*self, other),
            () => (other, *self),
        };
        let distance = if small.value == 0.0 { 0 } else { small.exponent - large.exponent };
        *self = Self::new(large.value + times_power_of_two(small.value, distance), large.exponent);
    }

    /// Computes the square root of a non-negative sum.
    pub(super) fn sqrt(self) -> Self {
        let odd = self.exponent.rem_euclid(2);
        Self::new((self.value * f64::from(1 << odd)).sqrt(), (self.exponent - odd) / 2)
    }

    pub(super) fn over(self, divisor: Self) -> f64 {
        times_power_of_two(self.value / divisor.value, self.exponent - divisor.exponent)
    }

    pub(super) fn log10(self) -> f64 {
        // Within the range of float64, the logarithm of the number itself is rounded less.
        let number = times_power_of_two(self.value, self.exponent);
        let is_normal = number.is_normal();
        if is_normal { number.log10() } else { self.value.log10() + f64::from(self.exponent) * 2_f64.log10() }
    }
}

/// Computes floor(log2|value|) of a finite nonzero number.
pub(super) fn exponent_of(value: f64) -> i32 {
    const MANTISSA: i32 = f64::MANTISSA_DIGITS as i32 - 1;
    let magnitude = value.abs().to_bits();
    match (magnitude >> MANTISSA) as i32 {
        0 => magnitude.ilog2() as i32 - MANTISSA + f64::MIN_EXP - 1,
        field => field - (f64::MAX_EXP - 1),
    }
}

/// Computes `value` times 2 to the power of `exponent`, in steps: no float64 is a power of two beyond its own range.
pub(super) fn times_power_of_two(value: f64, exponent: i32) -> f64 {
    const STEP: i32 = 1000;
    let whole = (exponent / STEP).clamp(-3, 3);
    let rest = (exponent - whole * STEP).clamp(-STEP, STEP);
    (0..whole.abs()).fold(value * power_of_two(rest), |value, _| value * power_of_two(STEP * whole.signum()))
}
