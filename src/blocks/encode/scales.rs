//! The search for the scale of a block's scales.

use super::lanes::{EPSILON, GroupLane, WIDTH, nearest_int};
use crate::kernel::Loop;

/// Result of [`SearchScales`]: the scale of each block, and the integers of its groups.
pub(super) struct ScaleFit<const G: usize> {
    pub(super) scales: GroupLane,
    /// The low bytes of integers. Those of slightly negative numbers wrap.
    pub(super) integers: [[u8; WIDTH]; G],
}

/// ggml's `make_qp_quants`: the numbers of `G` groups of several blocks become integers from 0 to `most`. Tries nine
/// factors, then changes one integer after the other while this lowers the weighted square error, in at most five passes.
pub(super) struct SearchScales<'a, const G: usize> {
    pub(super) numbers: &'a [GroupLane; G],
    pub(super) weights: &'a [GroupLane; G],
    pub(super) most: u8,
}

impl<const G: usize> Loop for SearchScales<'_, G> {
    type Result = ScaleFit<G>;

    #[inline(always)]
    fn run(self) -> ScaleFit<G> {
        let Self { numbers, weights, most } = self;
        let (most_int, most) = (i32::from(most), f32::from(most));
        let mut highest = [0.0; WIDTH];
        for numbers in numbers {
            for at in 0..WIDTH {
                highest[at] = if numbers[at] > highest[at] { numbers[at] } else { highest[at] };
            }
        }
        let mut factors = highest.map(|highest| most / highest);
        let wrapped = |number: f32| f32::from(nearest_int(number) as u8);
        let mut best = errors(numbers, weights, &factors, wrapped);
        for step in (-4..=4).filter(|step| *step != 0) {
            let numerator = 0.1 * step as f32 + most;
            let tried = highest.map(|highest| numerator / highest);
            let limited = |number: f32| nearest_int(number).min(most_int) as f32;
            let errors = errors(numbers, weights, &tried, limited);
            for at in 0..WIDTH {
                let is_better = errors[at] < best[at];
                best[at] = if is_better { errors[at] } else { best[at] };
                factors[at] = if is_better { tried[at] } else { factors[at] };
            }
        }
        let (mut integers, mut sums, mut squares) = ([[0; WIDTH]; G], [0.0; WIDTH], [0.0; WIDTH]);
        for ((numbers, weights), integers) in numbers.iter().zip(weights).zip(&mut integers) {
            for at in 0..WIDTH {
                let integer = nearest_int(factors[at] * numbers[at]).min(most_int);
                sums[at] += weights[at] * numbers[at] * integer as f32;
                squares[at] += weights[at] * integer as f32 * integer as f32;
                integers[at] = integer & 0xff;
            }
        }
        for _ in 0..5 {
            let mut changed = [0_u32; WIDTH];
            for ((numbers, weights), integers) in numbers.iter().zip(weights).zip(&mut integers) {
                for at in 0..WIDTH {
                    let (number, weight, old) = (numbers[at], weights[at], integers[at] as f32);
                    let sum = sums[at] - weight * number * old;
                    let square = squares[at] - weight * old * old;
                    let integer = nearest_int(number * square / sum).min(most_int);
                    let is_tried = (sum > 0.0) & (square > 0.0) & (integer != integers[at]) & (highest[at] >= EPSILON);
                    let new = integer as f32;
                    let (sum, square) = (sum + weight * number * new, square + weight * new * new);
                    let is_better = is_tried & (sum * sum * squares[at] > sums[at] * sums[at] * square);
                    integers[at] = if is_better { integer & 0xff } else { integers[at] };
                    sums[at] = if is_better { sum } else { sums[at] };
                    squares[at] = if is_better { square } else { squares[at] };
                    changed[at] |= u32::from(is_better);
                }
            }
            // Blocks without a change would not change in another pass either.
            if changed == [0; WIDTH] {
                break;
            }
        }
        let mut fit = ScaleFit { scales: [0.0; WIDTH], integers: [[0; WIDTH]; G] };
        for at in 0..WIDTH {
            let scale = if squares[at] > 0.0 { sums[at] / squares[at] } else { 0.0 };
            fit.scales[at] = if highest[at] < EPSILON { 0.0 } else { scale };
        }
        for (out, integers) in fit.integers.iter_mut().zip(&integers) {
            for at in 0..WIDTH {
                out[at] = if highest[at] < EPSILON { 0 } else { integers[at] as u8 };
            }
        }
        fit
    }
}

/// Returns the weighted square errors of numbers that are rounded in units of 1 / factor.
#[inline(always)]
fn errors<const G: usize>(
    numbers: &[GroupLane; G],
    weights: &[GroupLane; G],
    factors: &GroupLane,
    round: impl Fn(f32) -> f32,
) -> GroupLane {
    let units = factors.map(|factor| 1.0 / factor);
    let mut sums = [0.0; WIDTH];
    for (numbers, weights) in numbers.iter().zip(weights) {
        for at in 0..WIDTH {
            let error = numbers[at] - units[at] * round(factors[at] * numbers[at]);
            sums[at] += weights[at] * error * error;
        }
    }
    sums
}
