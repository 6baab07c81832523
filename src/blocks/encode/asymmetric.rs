//! Searches for scales and offsets of groups with codes from 0.

use super::GroupFit;
use super::lanes::{
    GroupLane, STRIDE, WIDTH, bounds_of_lanes, limit, low_byte, nearest, nearest_of_small, strides, strides_mut,
};
use super::weights::GroupBatch;
use crate::kernel::Loop;

/// The factors that a search tries, and the errors that it compares.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchRule {
    /// The largest code.
    pub(super) most: f32,
    /// The first factor is (`first` + `most`) / the range of the values, and `step` more for each that follows.
    pub(super) first: f32,
    pub(super) step: f32,
    /// Number of steps. The number of factors is one more.
    pub(super) steps: u8,
}

impl SearchRule {
    /// The rule of all searches with an importance matrix.
    pub(super) fn with_importance(most: f32) -> Self {
        Self { most, first: -0.9, step: 0.05, steps: 36 }
    }
}

/// Result of [`SearchAsymmetric`]: the scale and the lowest value of each group, and what gives its codes.
pub(super) struct AsymmetricFit {
    pub(super) scales: GroupLane,
    /// At most 0.
    pub(super) lowest: GroupLane,
    factors: GroupLane,
    /// The numbers that are subtracted from values before they are multiplied by the factor.
    bases: GroupLane,
    /// The largest code.
    most: f32,
    /// True if numbers are limited before they are rounded: see [`code`].
    is_bounded: [bool; WIDTH],
    /// True if all values of the group are equal. All codes are then 0.
    is_flat: [bool; WIDTH],
}

impl GroupFit for AsymmetricFit {
    #[inline(always)]
    fn codes(&self, group: usize, values: &[f32], codes: &mut [u8]) {
        let (factor, base, most) = (self.factors[group], self.bases[group], self.most);
        for (value, out) in values.iter().zip(codes) {
            let number = factor * (*value - base);
            let code = if self.is_bounded[group] { code::<true>(number, most) } else { code::<false>(number, most) };
            *out = if self.is_flat[group] { 0 } else { low_byte(code) };
        }
    }
}

/// Rounds a number to a code. If `BOUNDED`, numbers are limited before they are rounded. This differs for numbers from
/// 2^22, where [`nearest`] is not the nearest integer.
#[inline(always)]
fn code<const BOUNDED: bool>(number: f32, most: f32) -> f32 {
    if BOUNDED {
        let above = if number > 0.0 { number } else { 0.0 };
        nearest_of_small(if above < most { above } else { most })
    } else {
        limit(nearest(number), 0.0, most)
    }
}

/// ggml's `make_qkx2_quants`, and with `BOUNDED` its `make_qkx3_quants`: tries factors, fits a line to the codes of each,
/// and keeps the line with the least weighted error. With `ABSOLUTE`, errors are magnitudes, otherwise squares.
pub(super) struct SearchAsymmetric<'a, const K: usize, const ABSOLUTE: bool, const BOUNDED: bool> {
    pub(super) batch: &'a GroupBatch<K>,
    pub(super) rule: SearchRule,
}

impl<const K: usize, const ABSOLUTE: bool, const BOUNDED: bool> Loop for SearchAsymmetric<'_, K, ABSOLUTE, BOUNDED> {
    type Result = AsymmetricFit;

    #[inline(always)]
    fn run(self) -> AsymmetricFit {
        let Self { batch, rule } = self;
        let (mut lowest, high) = bounds_of_lanes(&batch.values);
        let (weight_sums, value_sums) = plain_sums(batch);
        let mut is_flat = [false; WIDTH];
        let (mut scales, mut factors) = ([0.0; WIDTH], [0.0; WIDTH]);
        for at in 0..WIDTH {
            lowest[at] = if lowest[at] > 0.0 { 0.0 } else { lowest[at] };
            is_flat[at] = if BOUNDED { high[at] <= lowest[at] } else { high[at] == lowest[at] };
            factors[at] = rule.most / (high[at] - lowest[at]);
            scales[at] = 1.0 / factors[at];
        }
        let (low_at_start, mut bases, mut is_bounded) = (lowest, lowest, [false; WIDTH]);
        let mut codes = [[0.0; WIDTH]; K];
        for (codes, values) in codes.iter_mut().zip(&batch.values) {
            for at in 0..WIDTH {
                codes[at] = code::<false>(factors[at] * (values[at] - lowest[at]), rule.most);
            }
        }
        let mut best = errors::<K, ABSOLUTE>(batch, &codes, &scales, &lowest);
        for step in 0..=rule.steps {
            let numerator = rule.first + rule.step * f32::from(step) + rule.most;
            let mut tried = [0.0; WIDTH];
            for at in 0..WIDTH {
                tried[at] = numerator / (high[at] - lowest[at]);
            }
            let [mut code_sums, mut square_sums, mut mixed_sums] = [[0.0; WIDTH]; 3];
            let elements = strides(&batch.values).iter().zip(strides(&batch.weights));
            for ((values, weights), codes) in elements.zip(strides_mut(&mut codes)) {
                for at in 0..WIDTH {
                    let (mut l, mut ll, mut lx) = (code_sums[at], square_sums[at], mixed_sums[at]);
                    for element in 0..STRIDE {
                        let value = values[element][at];
                        let code = code::<BOUNDED>(tried[at] * (value - lowest[at]), rule.most);
                        codes[element][at] = code;
                        let product = weights[element][at] * code;
                        l += product;
                        ll += product * code;
                        lx += product * value;
                    }
                    (code_sums[at], square_sums[at], mixed_sums[at]) = (l, ll, lx);
                }
            }
            let [mut determinants, mut new_scales, mut new_lowest] = [[0.0; WIDTH]; 3];
            for at in 0..WIDTH {
                let determinant = weight_sums[at] * square_sums[at] - code_sums[at] * code_sums[at];
                let scale = (weight_sums[at] * mixed_sums[at] - value_sums[at] * code_sums[at]) / determinant;
                let low = (square_sums[at] * value_sums[at] - code_sums[at] * mixed_sums[at]) / determinant;
                new_scales[at] = if low > 0.0 { mixed_sums[at] / square_sums[at] } else { scale };
                new_lowest[at] = if low > 0.0 { 0.0 } else { low };
                determinants[at] = determinant;
            }
            let new_errors = errors::<K, ABSOLUTE>(batch, &codes, &new_scales, &new_lowest);
            for at in 0..WIDTH {
                let is_better = (determinants[at] > 0.0) & (new_errors[at] < best[at]);
                best[at] = if is_better { new_errors[at] } else { best[at] };
                scales[at] = if is_better { new_scales[at] } else { scales[at] };
                factors[at] = if is_better { tried[at] } else { factors[at] };
                bases[at] = if is_better { lowest[at] } else { bases[at] };
                lowest[at] = if is_better { new_lowest[at] } else { lowest[at] };
                // The codes before the search are not bounded.
                is_bounded[at] |= BOUNDED & is_better;
            }
        }
        for at in 0..WIDTH {
            scales[at] = if is_flat[at] { 0.0 } else { scales[at] };
            lowest[at] = if is_flat[at] { low_at_start[at] } else { lowest[at] };
        }
        AsymmetricFit { scales, lowest, factors, bases, most: rule.most, is_bounded, is_flat }
    }
}

/// Returns the sums of weights and of weight * value. They start with the first element, so that -0 is kept.
#[inline(always)]
fn plain_sums<const K: usize>(batch: &GroupBatch<K>) -> (GroupLane, GroupLane) {
    let (mut weight_sums, mut value_sums) = ([0.0; WIDTH], [0.0; WIDTH]);
    for (index, (values, weights)) in batch.values.iter().zip(&batch.weights).enumerate() {
        for at in 0..WIDTH {
            let product = weights[at] * values[at];
            weight_sums[at] = if index == 0 { weights[at] } else { weight_sums[at] + weights[at] };
            value_sums[at] = if index == 0 { product } else { value_sums[at] + product };
        }
    }
    (weight_sums, value_sums)
}

/// Returns the sum of weight * error of each group.
#[inline(always)]
fn errors<const K: usize, const ABSOLUTE: bool>(
    batch: &GroupBatch<K>,
    codes: &[GroupLane; K],
    scales: &GroupLane,
    lowest: &GroupLane,
) -> GroupLane {
    let mut sums = [0.0; WIDTH];
    let elements = strides(&batch.values).iter().zip(strides(&batch.weights)).zip(strides(codes));
    for ((values, weights), codes) in elements {
        for at in 0..WIDTH {
            let mut sum = sums[at];
            for element in 0..STRIDE {
                let error = scales[at] * codes[element][at] + lowest[at] - values[element][at];
                sum += weights[element][at] * if ABSOLUTE { error.abs() } else { error * error };
            }
            sums[at] = sum;
        }
    }
    sums
}
