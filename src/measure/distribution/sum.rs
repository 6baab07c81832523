//! The exact sum of float32s.

#![allow(clippy::inline_always, reason = "only what is inlined is compiled for an instruction set")]

use crate::measure::number::power_of_two;

/// Number of lanes of a block's sum: 128 numbers each.
pub(super) const LANES: usize = 8;

/// Bits of a float32's mantissa.
pub(super) const MANTISSA: u32 = 23;
/// The exponent of the smallest float32.
pub(super) const LOWEST: i32 = -149;

/// An exact sum of float32s: digits of 32 bits, the first in units of the smallest float32, each with headroom for more
/// numbers than there can be.
#[derive(Default)]
pub(super) struct Sum([i128; 8]);

/// Bits of a digit.
const DIGIT: u32 = 32;

impl Sum {
    /// Adds a multiple of the last digit of numbers with an exponent field.
    pub(super) fn add(&mut self, field: u8, units: i128) {
        let place = u32::from(field.max(1)) - 1;
        self.0[(place / DIGIT) as usize] += units << (place % DIGIT);
    }

    /// Adds the sums of a block, as multiples of the last digit of numbers with this exponent field.
    #[inline(always)]
    pub(super) fn add_lanes(&mut self, field: u8, lanes: [f64; LANES]) {
        let scale = power_of_two(127 + MANTISSA as i32 - i32::from(field.max(1)));
        self.add(field, lanes.map(|lane| (lane * scale) as i64).into_iter().sum::<i64>().into());
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (digit, other) in self.0.iter_mut().zip(other.0) {
            *digit += other;
        }
    }

    /// Returns the sum as exponents and factors: the same for equal sums, however they were computed.
    pub(super) fn terms(mut self) -> Vec<(i32, i128)> {
        self.carry();
        // All digits get the sign of the sum, so that they do not cancel each other.
        let sign = self.0[7].signum() | 1;
        self.0 = self.0.map(|digit| digit * sign);
        self.carry();
        (LOWEST..).step_by(DIGIT as usize).zip(self.0.map(|digit| digit * sign)).collect()
    }

    /// Normalizes all digits except the last to 0 to 2^32.
    fn carry(&mut self) {
        for at in 1..self.0.len() {
            self.0[at] += self.0[at - 1] >> DIGIT;
            self.0[at - 1] &= (1 << DIGIT) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_sum_has_the_same_terms_whatever_it_was_made_of() {
        let sum = |parts: &[(u8, i128)]| {
            let mut sum = Sum::default();
            for (field, units) in parts {
                sum.add(*field, *units);
            }
            sum.terms()
        };
        assert_eq!(sum(&[(1, 1 << 40), (33, 1)]), sum(&[(1, 1), (2, (1 << 39) - 1), (2, (1 << 31) + 1), (1, -1)]));
        assert_eq!(sum(&[(254, 1), (254, -1), (1, -1)]), sum(&[(1, -1)]));
        assert_eq!(sum(&[(254, -1), (1, 1)]), sum(&[(253, -2), (1, 3), (2, -1)]));
        let terms = sum(&[(254, -1), (1, 1)]);
        assert!(terms.iter().all(|(_, digit)| *digit <= 0), "{terms:?}");
    }
}
