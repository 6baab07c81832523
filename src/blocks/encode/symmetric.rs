//! Searches for scales of groups with codes of both signs.

use super::GroupFit;
use super::lanes::{
    EPSILON, GroupLane, STRIDE, WIDTH, column, largest_of_lanes, limit, low_byte, nearest, nearest_of_small, strides,
};
use super::weights::GroupBatch;
use crate::kernel::Loop;

/// Result of [`SearchSymmetric`]: the scale of each group, and the factor that gives its codes.
pub(super) struct SymmetricFit {
    pub(super) scales: GroupLane,
    factors: GroupLane,
    bound: f32,
    /// True if all values of the group are 0, or nearly so. All codes are then 0.
    is_zero: [bool; WIDTH],
}

impl GroupFit for SymmetricFit {
    /// Codes are integers from -`bound` to `bound` - 1, plus `bound`.
    #[inline(always)]
    fn codes(&self, group: usize, values: &[f32], codes: &mut [u8]) {
        let (factor, bound) = (self.factors[group], self.bound);
        for (value, code) in values.iter().zip(codes) {
            let number = limit(nearest(factor * *value), -bound, bound - 1.0) + bound;
            *code = if self.is_zero[group] { 0 } else { low_byte(number) };
        }
    }
}

/// ggml's `make_qx_quants`: tries 19 factors near -`bound` / the largest value, and keeps the one with the least weighted
/// square error. Codes are integers from -`bound` to `bound` - 1.
///
/// `FINITE` if no value is infinite: products of values and factors are then below 2^22, where [`nearest_of_small`] and
/// [`nearest`] are the same.
pub(super) struct SearchSymmetric<'a, const K: usize, const FINITE: bool> {
    pub(super) batch: &'a GroupBatch<K>,
    pub(super) bound: f32,
}

impl<const K: usize, const FINITE: bool> Loop for SearchSymmetric<'_, K, FINITE> {
    type Result = SymmetricFit;

    #[inline(always)]
    fn run(self) -> SymmetricFit {
        let Self { batch, bound } = self;
        let (magnitudes, largest) = largest_of_lanes(&batch.values);
        let products = products(batch);
        let mut factors = [0.0; WIDTH];
        for at in 0..WIDTH {
            factors[at] = -bound / largest[at];
        }
        let [sums, squares] = sums_of_codes::<K, FINITE>(batch, &products, &factors, bound);
        let (mut scales, mut best) = ([0.0; WIDTH], [0.0; WIDTH]);
        for at in 0..WIDTH {
            scales[at] = if squares[at] == 0.0 { 0.0 } else { sums[at] / squares[at] };
            best[at] = scales[at] * sums[at];
        }
        for step in (-9..=9).filter(|step| *step != 0) {
            let numerator = -(bound + 0.1 * step as f32);
            let mut tried = [0.0; WIDTH];
            for at in 0..WIDTH {
                tried[at] = numerator / largest[at];
            }
            let [sums, squares] = sums_of_codes::<K, FINITE>(batch, &products, &tried, bound);
            for at in 0..WIDTH {
                let is_better = (squares[at] > 0.0) & (sums[at] * sums[at] > best[at] * squares[at]);
                let scale = sums[at] / squares[at];
                scales[at] = if is_better { scale } else { scales[at] };
                best[at] = if is_better { scale * sums[at] } else { best[at] };
                factors[at] = if is_better { tried[at] } else { factors[at] };
            }
        }
        let mut is_zero = [false; WIDTH];
        for at in 0..WIDTH {
            is_zero[at] = magnitudes[at] < EPSILON;
            scales[at] = if is_zero[at] { 0.0 } else { scales[at] };
        }
        SymmetricFit { scales, factors, bound, is_zero }
    }
}

/// Returns weights times values.
#[inline(always)]
fn products<const K: usize>(batch: &GroupBatch<K>) -> [GroupLane; K] {
    let mut products = [[0.0; WIDTH]; K];
    for ((products, weights), values) in products.iter_mut().zip(&batch.weights).zip(&batch.values) {
        for at in 0..WIDTH {
            products[at] = weights[at] * values[at];
        }
    }
    products
}

/// Returns the sums of weight * value * code and of weight * code * code.
#[inline(always)]
fn sums_of_codes<const K: usize, const FINITE: bool>(
    batch: &GroupBatch<K>,
    products: &[GroupLane; K],
    factors: &GroupLane,
    bound: f32,
) -> [GroupLane; 2] {
    let [mut sums, mut squares] = [[0.0; WIDTH]; 2];
    let elements = strides(&batch.values).iter().zip(strides(&batch.weights)).zip(strides(products));
    for ((values, weights), products) in elements {
        for at in 0..WIDTH {
            let (mut sum, mut square) = (sums[at], squares[at]);
            for element in 0..STRIDE {
                let number = factors[at] * values[element][at];
                let nearest = if FINITE { nearest_of_small(number) } else { nearest(number) };
                let code = limit(nearest, -bound, bound - 1.0);
                sum += products[element][at] * code;
                square += weights[element][at] * code * code;
            }
            (sums[at], squares[at]) = (sum, square);
        }
    }
    [sums, squares]
}

/// Result of [`Descend`]: the scale of each group, and the codes of its elements.
pub(super) struct DescentFit {
    pub(super) scales: GroupLane,
    /// Integers from -4 to 3, plus 4. All are 0 in a group whose values are all 0, or nearly so.
    codes: [[u8; WIDTH]; 16],
}

impl GroupFit for DescentFit {
    fn codes(&self, group: usize, _values: &[f32], codes: &mut [u8]) {
        codes.copy_from_slice(&column(&self.codes, group));
    }
}

/// ggml's `make_q3_quants`: changes one code after the other while this lowers the square error, in at most five passes.
/// Codes are integers from -4 to 3, and weights are squares.
pub(super) struct Descend<'a>(pub(super) &'a GroupBatch<16>);

impl Loop for Descend<'_> {
    type Result = DescentFit;

    #[inline(always)]
    fn run(self) -> DescentFit {
        let batch = self.0;
        let (magnitudes, largest) = largest_of_lanes(&batch.values);
        let products = products(batch);
        let mut factors = [0.0; WIDTH];
        for at in 0..WIDTH {
            factors[at] = -4.0 / largest[at];
        }
        let mut codes = [[0.0; WIDTH]; 16];
        for (codes, values) in codes.iter_mut().zip(&batch.values) {
            for at in 0..WIDTH {
                codes[at] = limit(nearest(factors[at] * values[at]), -4.0, 3.0);
            }
        }
        let [mut sums, mut squares] = sums_of_codes::<16, true>(batch, &products, &factors, 4.0);
        for _ in 0..5 {
            let mut changed = [0_u32; WIDTH];
            for (((values, weights), products), codes) in
                batch.values.iter().zip(&batch.weights).zip(&products).zip(&mut codes)
            {
                for at in 0..WIDTH {
                    let (code, weight) = (codes[at], weights[at]);
                    let sum = sums[at] - products[at] * code;
                    let square = squares[at] - weight * code * code;
                    let new = limit(nearest(values[at] * square / sum), -4.0, 3.0);
                    let is_tried = (sum > 0.0) & (new != code) & (magnitudes[at] >= EPSILON);
                    let (sum, square) = (sum + products[at] * new, square + weight * new * new);
                    let is_better =
                        (square > 0.0) & (sum * sum * squares[at] > sums[at] * sums[at] * square) & is_tried;
                    codes[at] = if is_better { new } else { code };
                    sums[at] = if is_better { sum } else { sums[at] };
                    squares[at] = if is_better { square } else { squares[at] };
                    changed[at] |= u32::from(is_better);
                }
            }
            // Groups without a change would not change in another pass either.
            if changed == [0; WIDTH] {
                break;
            }
        }
        let mut fit = DescentFit { scales: [0.0; WIDTH], codes: [[0; WIDTH]; 16] };
        for at in 0..WIDTH {
            let scale = if squares[at] > 0.0 { sums[at] / squares[at] } else { 0.0 };
            fit.scales[at] = if magnitudes[at] < EPSILON { 0.0 } else { scale };
        }
        for (out, codes) in fit.codes.iter_mut().zip(&codes) {
            for at in 0..WIDTH {
                out[at] = if magnitudes[at] < EPSILON { 0 } else { low_byte(codes[at] + 4.0) };
            }
        }
        fit
    }
}
