//! The sums of a block of elements, in a fixed order of lanes.

use super::LANES;
use super::sum::{exponent_of, times_power_of_two};

#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub(super) compared: f64,
    pub(super) changed: f64,
    pub(super) error: f64,
    pub(super) squared_error: f64,
    pub(super) squared_source: f64,
    pub(super) squared_result: f64,
    pub(super) product: f64,
    pub(super) max_abs: f64,
    pub(super) max_rel: f64,
}

/// Sources, results and errors of elements of a tensor.
#[derive(Clone, Copy)]
pub(super) struct ComparedBlock<'a> {
    pub(super) sources: &'a [f64],
    pub(super) results: &'a [f64],
    pub(super) errors: &'a [f64],
}

impl ComparedBlock<'_> {
    pub(super) fn iter(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let pairs = self.sources.iter().zip(self.results).zip(self.errors);
        pairs.map(|((x, y), error)| (*x, *y, *error))
    }

    /// Computes the sums of all elements, divided by powers of two; the largest errors are never divided.
    pub(super) fn sums(&self, exponents: [i32; 3]) -> Sums {
        let mut lanes = [Sums::default(); LANES];
        let parts = self.sources.chunks(LANES).zip(self.results.chunks(LANES)).zip(self.errors.chunks(LANES));
        for ((sources, results), errors) in parts {
            let elements = lanes.iter_mut().zip(sources).zip(results).zip(errors);
            if exponents == [0; 3] {
                elements.for_each(|(((lane, x), y), error)| lane.add(*x, *y, *error, |values| values));
            } else {
                let divide = |values: [f64; 3]| {
                    let mut pairs = values.into_iter().zip(exponents);
                    [(); 3].map(|()| pairs.next().map_or(0.0, |(value, exponent)| times_power_of_two(value, -exponent)))
                };
                elements.for_each(|(((lane, x), y), error)| lane.add(*x, *y, *error, divide));
            }
        }
        let sum = |of: fn(&Sums) -> f64| {
            let lanes = lanes.each_ref().map(of);
            let pair = |at: usize| lanes[2 * at] + lanes[2 * at + 1];
            (pair(0) + pair(1)) + (pair(2) + pair(3))
        };
        let max = |of: fn(&Sums) -> f64| lanes.iter().map(of).fold(0.0, f64::max);
        Sums {
            compared: sum(|sums| sums.compared),
            changed: sum(|sums| sums.changed),
            error: sum(|sums| sums.error),
            squared_error: sum(|sums| sums.squared_error),
            squared_source: sum(|sums| sums.squared_source),
            squared_result: sum(|sums| sums.squared_result),
            product: sum(|sums| sums.product),
            max_abs: max(|sums| sums.max_abs),
            max_rel: max(|sums| sums.max_rel),
        }
    }

    /// Returns the exponents of the largest source, result and error.
    pub(super) fn exponents(&self) -> [i32; 3] {
        let finite = || self.iter().filter(|(x, y, _)| are_finite(*x, *y));
        let exponent = |of: fn((f64, f64, f64)) -> f64| {
            let largest = finite().map(of).fold(0.0, |largest: f64, value| largest.max(value.abs().min(f64::MAX)));
            if largest == 0.0 { 0 } else { exponent_of(largest) }
        };
        [exponent(|(x, ..)| x), exponent(|(_, y, _)| y), exponent(|(.., error)| error)]
    }
}

impl Sums {
    #[inline]
    fn add(&mut self, x: f64, y: f64, error: f64, divide: impl Fn([f64; 3]) -> [f64; 3]) {
        let is_counted = are_finite(x, y);
        self.compared += if is_counted { 1.0 } else { 0.0 };
        self.changed += if error == 0.0 { 0.0 } else { 1.0 };
        let (x, y, error) = if is_counted { (x, y, error) } else { (0.0, 0.0, 0.0) };
        self.max_abs = self.max_abs.max(error.abs());
        self.max_rel = self.max_rel.max(relative(x, error));
        // A difference beyond float64 is clamped to the largest one.
        let [x, y, error] = divide([x, y, error.clamp(f64::MIN, f64::MAX)]);
        self.error += error;
        self.squared_error += error * error;
        self.squared_source += x * x;
        self.squared_result += y * y;
        self.product += x * y;
    }
}

pub(super) fn are_finite(x: f64, y: f64) -> bool {
    x.is_finite() & y.is_finite()
}

pub(super) fn relative(x: f64, error: f64) -> f64 {
    if x == 0.0 { 0.0 } else { (error / x).abs() }
}
