//! The errors of encoding, counted while values are encoded.

use super::super::decode::Occurrences;
use super::dither::Dither;

/// Errors of codes against the values that they stand for. Adding tallies gives the same bits in any order, so threads
/// and pieces can count separately.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EncodeTally {
    pub values: u64,
    /// Values that lie beyond the codes of their group by more than half a step.
    pub clipped: u64,
    /// Groups with nonzero values that lack the right scale, because it is too small for its dtype or for the
    /// arithmetic of the library.
    pub underflowed_groups: u64,
    /// The first infinite or NaN value, by its index in row-major order in the whole weight. The codes of its group are
    /// meaningless.
    pub first_special: Option<u64>,
    /// Values of a float16 weight that a library decodes to infinity in float16.
    pub infinite: Occurrences,
    /// The largest |y - x|, where x is the value and y its code times its scale.
    pub max_error: f64,
    /// The index of the first value with that error.
    pub max_error_at: Option<u64>,
    /// Values that differ from the source values: counted only if these are float64, or codes are moved.
    pub changed: u64,
    /// Changed values whose nearest bfloat16 differs: counted only where a global scale or offsets are rounded.
    pub changed_bfloat16: u64,
    /// The sum of x^2.
    pub(super) signal: ExactSum,
    /// The sum of (y - x)^2.
    pub(super) noise: ExactSum,
    /// True if errors and clipped values need not be counted, because they are not reported.
    pub skips_errors: bool,
    /// The random numbers with which values are rounded to codes; `None` rounds them to the nearest.
    pub(crate) dither: Option<Dither>,
}

impl EncodeTally {
    /// Returns the signal-to-noise ratio in decibels, 10 log10(sum of x^2 / sum of (y - x)^2). Infinite if there is no
    /// noise, negative infinity if a value or an error is infinite or NaN, `None` if nothing was encoded.
    #[must_use]
    pub fn sqnr_db(&self) -> Option<f64> {
        let [signal, noise] = [&self.signal, &self.noise].map(ExactSum::log10);
        match (self.values, noise) {
            (0, _) => None,
            (_, None) => Some(f64::INFINITY),
            (_, Some(f64::INFINITY)) => Some(f64::NEG_INFINITY),
            (_, Some(noise)) => Some(10.0 * (signal.unwrap_or(f64::NEG_INFINITY) - noise)),
        }
    }

    /// Returns the sum of (y - x)^2 divided by the sum of x^2: 0 if there is no noise. It is computed from exact sums by
    /// exact steps and one division, so that it has the same bits on every machine.
    #[must_use]
    pub fn relative_squared_error(&self) -> f64 {
        if self.noise.is_infinite || self.signal.is_infinite {
            return f64::INFINITY;
        }
        match (self.noise.leading(), self.signal.leading()) {
            (None, _) => 0.0,
            (Some(_), None) => f64::INFINITY,
            (Some((noise, above)), Some((signal, below))) => noise / signal * 2_f64.powi(above - below),
        }
    }

    /// True if every value equals its code times its scale, within the precision of float32.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.noise == ExactSum::default()
    }

    /// Records an infinite or NaN value, if there is one.
    pub(in crate::quant) fn take_special(&mut self, at: Option<u64>) {
        self.first_special = self.first_special.into_iter().chain(at).min();
    }

    /// Records sums of the squares of values and of their errors.
    pub(in crate::quant) fn take_errors(&mut self, signal: f64, noise: f64) {
        self.signal.add(signal);
        self.noise.add(noise);
    }

    /// True if the largest error of some values is the largest so far, so that its index is needed; `first` is the
    /// index of the first of these values.
    pub(in crate::quant) fn needs_place(&self, error: f64, first: u64) -> bool {
        let is_first = || self.max_error_at.is_none_or(|at| first < at);
        error.is_finite() && error > 0.0 && (error > self.max_error || error == self.max_error && is_first())
    }

    /// Records an error if it is the largest so far.
    pub(in crate::quant) fn take_error(&mut self, error: f64, at: Option<u64>) {
        let is_first =
            error == self.max_error && at.is_some_and(|at| self.max_error_at.is_none_or(|so_far| at < so_far));
        if error > self.max_error || is_first {
            (self.max_error, self.max_error_at) = (error, at);
        }
    }
}

impl std::ops::AddAssign<&Self> for EncodeTally {
    fn add_assign(&mut self, other: &Self) {
        self.values += other.values;
        self.clipped += other.clipped;
        self.changed += other.changed;
        self.changed_bfloat16 += other.changed_bfloat16;
        self.underflowed_groups += other.underflowed_groups;
        self.infinite += other.infinite;
        self.take_special(other.first_special);
        self.take_error(other.max_error, other.max_error_at);
        self.signal.merge(&other.signal);
        self.noise.merge(&other.noise);
    }
}

/// Number of fraction bits of a sum, and number of its 64-bit words.
const FRACTION: i32 = 384;
const WORDS: usize = 11;

/// A sum of squares in fixed point, with 320 integer bits and 384 fraction bits. It is exact, so the order of its terms
/// does not matter; lower bits of a term are cut off.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ExactSum {
    /// The least significant word first.
    words: [u64; WORDS],
    /// True if a term was infinite or NaN.
    is_infinite: bool,
}

impl ExactSum {
    /// Adds a number. An infinite or NaN number makes the sum infinite; a negative number adds nothing.
    pub(super) fn add(&mut self, value: f64) {
        let bits = value.to_bits();
        let field = (bits >> 52) as i32;
        self.is_infinite |= !value.is_finite();
        if !value.is_finite() || value <= 0.0 {
            return;
        }
        let mantissa = bits & ((1 << 52) - 1) | u64::from(field != 0) << 52;
        // The number is mantissa * 2^(place - FRACTION).
        let place = field.max(1) - 1075 + FRACTION;
        let (mantissa, place) = if place < 0 { (mantissa >> (-place).min(63), 0) } else { (mantissa, place as usize) };
        let wide = u128::from(mantissa) << (place % 64);
        let mut carry = false;
        for (at, word) in self.words.iter_mut().enumerate().skip(place / 64) {
            let term = match at - place / 64 {
                0 => wide as u64,
                1 => (wide >> 64) as u64,
                _ if carry => 0,
                _ => break,
            };
            (*word, carry) = carrying_add(*word, term, carry);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.is_infinite |= other.is_infinite;
        let mut carry = false;
        for (word, term) in self.words.iter_mut().zip(other.words) {
            (*word, carry) = carrying_add(*word, term, carry);
        }
    }

    /// Returns the decimal logarithm; `None` for a sum of 0.
    fn log10(&self) -> Option<f64> {
        if self.is_infinite {
            return Some(f64::INFINITY);
        }
        let (value, exponent) = self.leading()?;
        Some(value.log10() + f64::from(exponent) * std::f64::consts::LOG10_2)
    }

    /// Returns the leading bits of the sum and the power of two that they are multiplied by; `None` for a sum of 0.
    fn leading(&self) -> Option<(f64, i32)> {
        let top = self.words.iter().rposition(|word| *word != 0)?;
        let low = if top == 0 { 0 } else { self.words[top - 1] };
        let value = self.words[top] as f64 + low as f64 / 2_f64.powi(64);
        Some((value, 64 * top as i32 - FRACTION))
    }
}

fn carrying_add(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let (sum, first) = a.overflowing_add(b);
    let (sum, second) = sum.overflowing_add(carry.into());
    (sum, first | second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random;

    #[test]
    fn sums_are_equal_in_any_order() {
        let mut next = random(1);
        let values: Vec<f64> =
            (0..2000).map(|_| (next() >> 11) as f64 * 2_f64.powi((next() >> 33) as i32 % 200 - 150)).collect();
        let sum = |values: &mut dyn Iterator<Item = &f64>| {
            let mut sum = ExactSum::default();
            values.for_each(|value| sum.add(*value));
            sum
        };
        let forward = sum(&mut values.iter());
        assert_eq!(sum(&mut values.iter().rev()), forward);
        let (mut first, second) = (sum(&mut values[..777].iter()), sum(&mut values[777..].iter()));
        first.merge(&second);
        assert_eq!(first, forward);
        let expected = values.iter().sum::<f64>().log10();
        assert!((forward.log10().unwrap() - expected).abs() < 1e-12);
    }

    #[test]
    fn sums_hold_small_and_large_squares() {
        for power in [-320, -64, 0, 63, 64, 255] {
            let mut sum = ExactSum::default();
            (0..3).for_each(|_| sum.add(2_f64.powi(power)));
            let expected = 3_f64.log10() + f64::from(power) * std::f64::consts::LOG10_2;
            assert!((sum.log10().unwrap() - expected).abs() < 1e-12, "{power}");
        }
        let mut sum = ExactSum::default();
        for value in [0.0, -1.0] {
            sum.add(value);
        }
        assert_eq!(sum.log10(), None);
    }

    #[test]
    fn the_relative_error_is_the_ratio_of_the_sums() {
        for (signal, noise) in [(3.0, 1.5), (2_f64.powi(200), 2_f64.powi(-100)), (7.0, 0.0), (1e-30, 3e-31)] {
            let mut tally = EncodeTally::default();
            tally.take_errors(signal, noise);
            let (found, expected) = (tally.relative_squared_error(), noise / signal);
            assert!((found - expected).abs() <= 1e-12 * expected, "{found}, not {expected}");
        }
        let mut tally = EncodeTally::default();
        assert_eq!(tally.relative_squared_error(), 0.0);
        tally.take_errors(0.0, 1.0);
        assert_eq!(tally.relative_squared_error(), f64::INFINITY);
    }

    #[test]
    fn an_error_that_is_no_number_is_not_lost() {
        for value in [f64::NAN, f64::INFINITY] {
            let (mut tally, mut other) = (EncodeTally { values: 2, ..EncodeTally::default() }, EncodeTally::default());
            tally.signal.add(1.0);
            other.noise.add(value);
            tally += &other;
            assert_eq!((tally.sqnr_db(), tally.is_exact()), (Some(f64::NEG_INFINITY), false));
        }
    }
}
