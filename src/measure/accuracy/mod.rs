//! Accuracy of results, compared with their sources: errors, signal to noise, direction.
//!
//! Values are processed as float64, block by block. The sums of a block are added in a fixed order of lanes, and blocks
//! in the order of the elements, so that all results are identical to the bit for any number of threads.
//!
//! Squares can be too large or too small for float64. A block of such values is divided by powers of two before it is
//! squared, and sums have a separate exponent, so that nothing overflows between a block and the result.

mod json;
mod sum;

use serde::{Deserialize, Serialize};
use std::array::from_fn;
use sum::{UnboundedSum, exponent_of, times_power_of_two};

/// Number of elements in a block: few enough for the first-level cache as float64.
pub(crate) const BLOCK: usize = 1 << 10;
/// Number of sums that are computed in parallel, as in vectors.
const LANES: usize = 8;

/// Accuracy of the results of one tensor, compared with their sources. Elements whose source or result is infinite or
/// NaN count only in the first field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// True if every value stayed the same, including infinities and NaN. 0 equals -0, and NaN equals NaN.
    pub is_exact: bool,
    pub compared: u64,
    /// The largest |y - x|, where x is the source and y the result.
    #[serde(with = "json")]
    pub max_abs_error: f64,
    /// The first element with this error, counted in row-major order; `None` if no element was compared.
    pub max_abs_error_at: Option<u64>,
    /// The largest |y - x| / |x| of all nonzero x; infinite if float64 has no such number.
    #[serde(with = "json")]
    pub max_rel_error: f64,
    pub max_rel_error_at: Option<u64>,
    /// The mean of y - x.
    pub mean_error: Option<f64>,
    /// The ratio of signal to noise in decibels, 10 log10(sum of x^2 / sum of (y - x)^2): infinite without noise,
    /// `None` if there is noise but no signal, or nothing was compared.
    #[serde(with = "json")]
    pub sqnr_db: Option<f64>,
    /// The cosine of the angle between all x and all y; `None` if one of these vectors has no length.
    pub cosine: Option<f64>,
}

/// The largest of some numbers, and the first element that has it.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    value: f64,
    at: Option<u64>,
}

impl Largest {
    /// Adds a number; elements must come in order.
    fn add(&mut self, other: Self) {
        if other.at.is_some() && (self.at.is_none() || other.value > self.value) {
            *self = other;
        }
    }
}

/// Sources x, results y and errors y - x of some elements.
type Block<'a> = [&'a [f64]; 3];

/// Sums of errors, of squared errors, sources and results, and of products of source and result.
type Sums<T> = [T; 5];

/// Figures of some elements of a block.
#[derive(Clone, Copy, Default)]
struct LaneSums {
    compared: f64,
    changed: f64,
    sums: Sums<f64>,
    max_abs: f64,
    max_rel: f64,
}

impl LaneSums {
    /// Computes the figures of a block. Values are divided by powers of two before they are summed.
    fn of_block(block: Block, exponents: [i32; 3]) -> Self {
        let mut lanes = [Self::default(); LANES];
        let [sources, results, errors] = block.map(|values| values.chunks(LANES));
        for ((sources, results), errors) in sources.zip(results).zip(errors) {
            let elements = lanes.iter_mut().zip(sources).zip(results).zip(errors);
            if exponents == [0; 3] {
                elements.for_each(|(((lane, x), y), error)| lane.add([*x, *y, *error], |values| values));
            } else {
                let divide = |values: [f64; 3]| from_fn(|at| times_power_of_two(values[at], -exponents[at]));
                elements.for_each(|(((lane, x), y), error)| lane.add([*x, *y, *error], divide));
            }
        }
        let sum = |of: &dyn Fn(&Self) -> f64| {
            let lanes = lanes.each_ref().map(of);
            let pair = |at: usize| lanes[2 * at] + lanes[2 * at + 1];
            (pair(0) + pair(1)) + (pair(2) + pair(3))
        };
        let max = |of: fn(&Self) -> f64| lanes.iter().map(of).fold(0.0, f64::max);
        Self {
            compared: sum(&|lane| lane.compared),
            changed: sum(&|lane| lane.changed),
            sums: from_fn(|at| sum(&|lane| lane.sums[at])),
            max_abs: max(|lane| lane.max_abs),
            max_rel: max(|lane| lane.max_rel),
        }
    }

    #[inline]
    fn add(&mut self, [x, y, error]: [f64; 3], divide: impl Fn([f64; 3]) -> [f64; 3]) {
        let is_counted = are_finite(x, y);
        self.compared += if is_counted { 1.0 } else { 0.0 };
        self.changed += if error == 0.0 { 0.0 } else { 1.0 };
        let [x, y, error] = if is_counted { [x, y, error] } else { [0.0; 3] };
        self.max_abs = self.max_abs.max(error.abs());
        self.max_rel = self.max_rel.max(relative(x, error));
        // A difference beyond float64 is clamped to the largest one.
        let [x, y, error] = divide([x, y, error.clamp(f64::MIN, f64::MAX)]);
        let terms = [error, error * error, x * x, y * y, x * y];
        self.sums = from_fn(|at| self.sums[at] + terms[at]);
    }
}

fn are_finite(x: f64, y: f64) -> bool {
    x.is_finite() & y.is_finite()
}

fn relative(x: f64, error: f64) -> f64 {
    if x == 0.0 { 0.0 } else { (error / x).abs() }
}

/// Returns the exponents of the largest finite source, result and error.
fn exponents(block: Block) -> [i32; 3] {
    let [sources, results, _] = block;
    block.map(|values| {
        let finite = values.iter().zip(sources.iter().zip(results)).filter(|(_, (x, y))| are_finite(**x, **y));
        let largest = finite.fold(0.0, |largest: f64, (value, _)| largest.max(value.abs().min(f64::MAX)));
        if largest == 0.0 { 0 } else { exponent_of(largest) }
    })
}

/// The sums and extremes of some elements of a tensor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccuracyTally {
    compared: u64,
    /// Number of elements whose values differ.
    changed: u64,
    sums: Sums<UnboundedSum>,
    max_abs: Largest,
    max_rel: Largest,
}

impl AccuracyTally {
    /// Adds the next elements: sources, results and errors, which are 0 exactly where both are equal. `start` is the
    /// index of the first.
    pub(crate) fn add(&mut self, start: u64, elements: [&[f64]; 3]) {
        let [sources, results, errors] = elements.map(|values| values.chunks(BLOCK));
        for (start, ((sources, results), errors)) in (start..).step_by(BLOCK).zip(sources.zip(results).zip(errors)) {
            self.append(&self.of_block(start, [sources, results, errors]));
        }
    }

    /// Tallies a block that follows the elements of this tally.
    fn of_block(&self, start: u64, block: Block) -> Self {
        let lane = LaneSums::of_block(block, [0; 3]);
        // The index of the block's largest matters only if it is the largest so far.
        let largest = |so_far: Largest, value: f64, of: fn(f64, f64) -> f64| {
            if so_far.at.is_some() && value <= so_far.value {
                return Largest::default();
            }
            let [sources, results, errors] = block;
            let mut elements = sources.iter().zip(results).zip(errors);
            let at = elements.position(|((x, y), error)| are_finite(*x, *y) && of(*x, *error) >= value);
            Largest { value, at: at.map(|at| start + at as u64) }
        };
        // Squares that underflow show in the sum, unless the sum is far above them.
        let is_sound = |sum: f64| sum.is_finite() && sum >= SOUND;
        let [_, noise, signal, result, _] = lane.sums;
        let is_plain = is_sound(signal) && is_sound(result) && (is_sound(noise) || lane.max_abs == 0.0);
        let exponents = if is_plain { [0; 3] } else { exponents(block) };
        let sums = if is_plain { lane.sums } else { LaneSums::of_block(block, exponents).sums };
        let [x, y, error] = exponents;
        let exponents = [error, 2 * error, 2 * x, 2 * y, x + y];
        Self {
            compared: lane.compared as u64,
            changed: lane.changed as u64,
            sums: from_fn(|at| UnboundedSum::new(sums[at], exponents[at])),
            max_abs: largest(self.max_abs, lane.max_abs, |_, error| error.abs()),
            max_rel: largest(self.max_rel, lane.max_rel, relative),
        }
    }

    /// Adds the tally of the elements that follow.
    pub(crate) fn append(&mut self, next: &Self) {
        self.compared += next.compared;
        self.changed += next.changed;
        self.sums.iter_mut().zip(next.sums).for_each(|(sum, next)| sum.add(next));
        self.max_abs.add(next.max_abs);
        self.max_rel.add(next.max_rel);
    }

    /// Returns the result for everything that was added.
    pub(crate) fn accuracy(&self) -> Accuracy {
        let [error, noise, signal, result, product] = self.sums;
        let lengths = [signal, result].map(UnboundedSum::sqrt);
        let has_length = lengths.iter().all(|length| length.value > 0.0);
        let lengths = UnboundedSum::new(lengths[0].value * lengths[1].value, lengths[0].exponent + lengths[1].exponent);
        let sqnr_db = match (self.compared > 0, signal.value > 0.0, noise.value > 0.0) {
            (true, _, false) => Some(f64::INFINITY),
            (true, true, true) => {
                let ratio = UnboundedSum::new(signal.value / noise.value, signal.exponent - noise.exponent);
                Some(10.0 * ratio.log10())
            }
            _ => None,
        };
        let compared = UnboundedSum::new(self.compared as f64, 0);
        Accuracy {
            is_exact: self.changed == 0,
            compared: self.compared,
            max_abs_error: self.max_abs.value,
            max_abs_error_at: self.max_abs.at,
            max_rel_error: self.max_rel.value,
            max_rel_error_at: self.max_rel.at,
            mean_error: (self.compared > 0).then(|| error.over(compared)).filter(|mean| mean.is_finite()),
            sqnr_db,
            cosine: has_length.then(|| product.over(lengths).clamp(-1.0, 1.0)),
        }
    }
}

/// Sums of squares above this have lost nothing relevant: the square of a number is right to the last bit from 2^-970
/// on, and smaller ones are below the last bit of such a sum.
const SOUND: f64 = f64::from_bits((1023 - 900) << 52);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::number::difference;

    /// Adds elements to a tally, of which the first has an index.
    fn add(tally: &mut AccuracyTally, start: u64, sources: &[f64], results: &[f64]) {
        let errors: Vec<f64> = sources.iter().zip(results).map(|(x, y)| difference(*x, *y)).collect();
        tally.add(start, [sources, results, &errors]);
    }

    #[test]
    fn figures_are_those_of_their_definitions() {
        let sources = [1.0, -2.0, 0.0, f64::NAN, 4.0, 1.0];
        let results = [1.5, -2.0, 0.25, 1.0, 3.0, f64::INFINITY];
        let mut tally = AccuracyTally::default();
        add(&mut tally, 10, &sources, &results);
        let accuracy = tally.accuracy();
        assert_eq!((accuracy.compared, accuracy.max_abs_error, accuracy.max_abs_error_at), (4, 1.0, Some(14)));
        assert_eq!((accuracy.max_rel_error, accuracy.max_rel_error_at), (0.5, Some(10)));
        assert_eq!(accuracy.mean_error, Some(-0.0625));
        let (signal, noise) = (1.0 + 4.0 + 16.0, 0.25 + 0.0625 + 1.0);
        assert_eq!(accuracy.sqnr_db, Some(10.0 * f64::log10(signal / noise)));
        let (product, length) = (1.5 + 4.0 + 12.0, signal * (2.25 + 4.0 + 0.0625 + 9.0));
        assert!((accuracy.cosine.unwrap() - product / f64::sqrt(length)).abs() < 1e-15);
    }

    #[test]
    fn nothing_lost_has_no_noise() {
        let mut tally = AccuracyTally::default();
        add(&mut tally, 0, &[0.0, 3.0], &[0.0, 3.0]);
        let accuracy = tally.accuracy();
        assert_eq!((accuracy.max_abs_error, accuracy.max_abs_error_at), (0.0, Some(0)));
        assert_eq!((accuracy.sqnr_db, accuracy.is_exact), (Some(f64::INFINITY), true));
        assert_eq!(accuracy.cosine, Some(1.0));
        assert_eq!(AccuracyTally::default().accuracy().max_abs_error_at, None);
    }

    #[test]
    fn the_first_of_equal_errors_is_named_across_blocks() {
        let sources: Vec<f64> = (0..5000).map(f64::from).collect();
        let results: Vec<f64> = (0..5000).map(|x| f64::from(x + i32::from(x % 1500 == 700))).collect();
        let mut whole = AccuracyTally::default();
        add(&mut whole, 0, &sources, &results);
        let mut parts = AccuracyTally::default();
        for start in (0..5000).step_by(2 * BLOCK) {
            let end = (start + 2 * BLOCK).min(5000);
            let mut part = AccuracyTally::default();
            add(&mut part, start as u64, &sources[start..end], &results[start..end]);
            parts.append(&part);
        }
        assert_eq!((whole.accuracy().max_abs_error_at, parts.accuracy().max_abs_error_at), (Some(700), Some(700)));
        assert_eq!(whole.accuracy().compared, 5000);
    }

    fn accuracy_of(sources: &[f64], results: &[f64]) -> Accuracy {
        let mut tally = AccuracyTally::default();
        add(&mut tally, 0, sources, results);
        tally.accuracy()
    }

    fn assert_near(found: Option<f64>, wanted: f64) {
        let found = found.unwrap();
        assert!((found - wanted).abs() <= 1e-12 * wanted.abs(), "{found}, not {wanted}");
    }

    #[test]
    fn squares_beyond_float64_leave_the_figures_right() {
        let accuracy = accuracy_of(&[1e160, 1e160], &[1.0, 1.0]);
        assert_near(accuracy.cosine, 1.0);
        assert_near(Some(accuracy.sqnr_db.unwrap() + 1.0), 1.0);
        assert_near(accuracy_of(&[1e-200, 3e-200], &[1.0, 1.0]).cosine, 4.0 / 20_f64.sqrt());
        // Results are the same whatever the power of two, down to subnormal numbers, which are exact here.
        let (sources, results) = ([3.0, -5.0, 7.0, 1.0], [3.5, -5.0, 6.0, 1.0]);
        let plain = accuracy_of(&sources, &results);
        for exponent in (-1070..=1020).step_by(10) {
            let scaled = [sources, results].map(|values| values.map(|value| times_power_of_two(value, exponent)));
            let accuracy = accuracy_of(&scaled[0], &scaled[1]);
            assert_eq!(accuracy.cosine, plain.cosine, "2^{exponent}");
            assert_near(accuracy.sqnr_db, plain.sqnr_db.unwrap());
            assert_eq!(accuracy.mean_error, plain.mean_error.map(|mean| times_power_of_two(mean, exponent)));
        }
        // Blocks of any magnitude can be added: the small one does not matter, and does no harm.
        let mut sources = vec![1e-300; BLOCK];
        sources.extend(vec![1e300; BLOCK]);
        let results = vec![1e300; 2 * BLOCK];
        assert_near(accuracy_of(&sources, &results).cosine, 0.5_f64.sqrt());
        assert_near(accuracy_of(&[-1e308, 1e308], &[-1.5e308, 1e308]).mean_error, -0.25e308);
    }

    #[test]
    fn errors_beyond_float64_are_infinite_and_read_back() {
        let accuracy = accuracy_of(&[1e-320, 1.0], &[1.0, 1.0]);
        assert_eq!((accuracy.max_rel_error, accuracy.max_rel_error_at), (f64::INFINITY, Some(0)));
        let text = serde_json::to_string(&accuracy).unwrap();
        assert!(text.contains(r#""max_rel_error":"Infinity""#), "{text}");
        assert_eq!(serde_json::from_str::<Accuracy>(&text).unwrap(), accuracy);
        let exact = serde_json::to_string(&accuracy_of(&[1.0], &[1.0])).unwrap();
        assert!(exact.contains(r#""is_exact":true"#) && exact.contains(r#""sqnr_db":"Infinity""#), "{exact}");
        let without_signal = accuracy_of(&[0.0], &[1.0]);
        assert_eq!((without_signal.sqnr_db, without_signal.is_exact), (None, false));
        assert_eq!(accuracy_of(&[f64::NAN], &[f64::NAN]).sqnr_db, None);
    }

    #[test]
    fn only_what_did_not_change_is_exact() {
        let infinity = f64::INFINITY;
        assert!(accuracy_of(&[1.0, infinity, f64::NAN, 0.0], &[1.0, infinity, -f64::NAN, -0.0]).is_exact);
        for changed in [[1.0, 448.0], [f64::NAN, infinity]] {
            let accuracy = accuracy_of(&[1.0, infinity], &changed);
            assert!(!accuracy.is_exact && accuracy.max_abs_error == 0.0, "{changed:?}");
        }
    }
}
