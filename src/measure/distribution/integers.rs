//! Loop for integers, widened to 64 bits, into counts and exact sums.

use super::histogram::Distribution;
use super::tally::{Repeat, Tally};
use crate::measure::number::Number;

pub(super) struct IntegerTally<const SIGNED: bool> {
    /// Counts of zeros, then of the numbers with each exponent.
    counts: [u64; 65],
    sum: i128,
    min: i128,
    max: i128,
}

impl<const SIGNED: bool> Default for IntegerTally<SIGNED> {
    fn default() -> Self {
        Self { counts: [0; 65], sum: 0, min: i128::MAX, max: i128::MIN }
    }
}

impl<const SIGNED: bool> Tally for IntegerTally<SIGNED> {
    fn add(&mut self, lane: &[u8]) {
        for number in lane.as_chunks().0 {
            self.add_times(*number, 1);
        }
    }

    fn merge(&mut self, other: Self) {
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            *count += other;
        }
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn distribution(self) -> Distribution {
        let count = self.counts.iter().sum();
        let some = |number: i128| (count > 0).then_some(Number::Integer(number));
        let (min, max) = (some(self.min), some(self.max));
        let [least, largest] = [min, max].map(|number| number.map(Number::abs));
        let abs_max = if self.min.unsigned_abs() > self.max.unsigned_abs() { least } else { largest };
        Distribution {
            count,
            min,
            max,
            abs_max,
            mean: (count > 0).then(|| self.sum as f64 / count as f64),
            zeros: self.counts[0],
            exponents: (0..).zip(self.counts[1..].iter().copied()).collect(),
            ..Distribution::default()
        }
    }
}

impl<const SIGNED: bool> Repeat<8> for IntegerTally<SIGNED> {
    fn add_times(&mut self, number: [u8; 8], times: u64) {
        let number = if SIGNED { i64::from_le_bytes(number).into() } else { i128::from(u64::from_le_bytes(number)) };
        let magnitude = number.unsigned_abs() as u64;
        self.counts[64 - magnitude.leading_zeros() as usize] += times;
        self.sum += number * i128::from(times);
        self.min = self.min.min(number);
        self.max = self.max.max(number);
    }
}
