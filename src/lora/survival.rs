//! Measures how much of a delta survives rounding or quantizing.
//!
//! With `W` the weight, `D` the delta and `Q` the rounding: **kept** is `<Q(W + D) - Q(W), D> / |D|^2`, 1 if on average the
//! whole delta arrives, 0 if it is gone. **Delta SNR** compares `|D|^2` with the noise `Q(W + D) - (W + D)` in the space of
//! the delta: the columns of `B` and the rows of `A`. The projection is computed from Gram matrices: with `M = B^T E A^T`,
//! the energy of the projected noise is `tr(G_B^+ M G_A^+ M^T)`.

use super::matrix::{Delta, Matrix};
use super::merge::{How, Merge};
use crate::kernel::{Isa, Loop};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Maximum rank of a delta whose space is computed.
const MOST_RANK: u64 = 256;

/// Values of some consecutive elements of a weight, all of the same number.
pub(crate) struct Survivors<'s> {
    pub base: &'s [f64],
    pub merged: &'s [f64],
    /// The values that are written for `base`, and for `merged`.
    pub stored_base: &'s [f64],
    pub stored_merged: &'s [f64],
}

/// Sums over the elements of a weight.
#[derive(Clone, Debug, Default)]
pub(crate) struct SurvivalTally {
    base: f64,
    delta: f64,
    arrived: f64,
    moved: f64,
    noise: f64,
    /// The sum of noise times delta.
    along: f64,
    changed: u64,
    values: u64,
    spaces: Vec<SpaceTally>,
}

/// Sums for the space of the deltas of one part of a weight: `B^T B` of the rows so far, and `M`.
#[derive(Clone, Debug, Default)]
struct SpaceTally {
    gram: Vec<f64>,
    core: Vec<f64>,
}

/// The deltas of the same part of a weight, side by side.
struct Space<'m> {
    start: u64,
    rows: u64,
    columns: u64,
    factors: Vec<(&'m Matrix, &'m Matrix)>,
    rank: usize,
}

impl Merge {
    /// Returns the spaces of its deltas; `None` if one is no product of two matrices, or too large.
    fn spaces(&self) -> Option<Vec<Space<'_>>> {
        let mut spaces: Vec<Space> = Vec::new();
        for change in &*self.changes {
            let How::Add { delta: Delta::Product(left, right), swaps_halves: false, .. } = &change.how else {
                return None;
            };
            let same = spaces.last().is_some_and(|space| {
                (space.start, space.rows, space.columns) == (change.start, change.rows, change.columns)
            });
            if !same {
                let (start, rows, columns) = (change.start, change.rows, change.columns);
                spaces.push(Space { start, rows, columns, factors: Vec::new(), rank: 0 });
            }
            let space = spaces.last_mut()?;
            space.factors.push((left, right));
            space.rank += right.rows as usize;
            if space.rank as u64 > MOST_RANK {
                return None;
            }
        }
        Some(spaces)
    }
}

impl SurvivalTally {
    /// Counts some elements of a weight, and adds their errors to those of the elements before.
    pub(crate) fn count(&mut self, values: &Survivors, errors: &mut Vec<f64>) {
        let start = errors.len();
        errors.resize(start + values.merged.len(), 0.0);
        Isa::chosen().run(Count { tally: self, values, errors: &mut errors[start..] });
        self.values += values.merged.len() as u64;
    }

    /// Projects the errors of some elements of a weight, from the first one on, to the spaces of its changes.
    pub(crate) fn project(&mut self, merge: &Merge, first: u64, errors: &[f64]) {
        let Some(spaces) = merge.spaces() else { return };
        self.spaces.resize_with(spaces.len(), SpaceTally::default);
        for (space, tally) in spaces.iter().zip(&mut self.spaces) {
            let all = space.start..space.start + space.rows * space.columns;
            let met = all.start.max(first)..all.end.min(first + errors.len() as u64);
            if !met.is_empty() {
                let errors = &errors[(met.start - first) as usize..(met.end - first) as usize];
                space.add(tally, met.start - all.start, errors);
            }
        }
    }

    /// Adds the sums of the elements that follow.
    pub(crate) fn append(&mut self, next: &Self) {
        self.base += next.base;
        self.delta += next.delta;
        self.arrived += next.arrived;
        self.moved += next.moved;
        self.noise += next.noise;
        self.along += next.along;
        self.changed += next.changed;
        self.values += next.values;
        self.spaces.resize_with(self.spaces.len().max(next.spaces.len()), SpaceTally::default);
        for (sum, next) in self.spaces.iter_mut().zip(&next.spaces) {
            for (sums, next) in [(&mut sum.gram, &next.gram), (&mut sum.core, &next.core)] {
                sums.resize(sums.len().max(next.len()), 0.0);
                sums.iter_mut().zip(next).for_each(|(sum, next)| *sum += next);
            }
        }
    }

    /// Returns the figures of a weight of this number of elements; `None` without a delta.
    pub(crate) fn figures(&self, merge: &Merge, elements: u64) -> Option<DeltaFigures> {
        if self.delta <= 0.0 || !self.delta.is_finite() || !self.moved.is_finite() || self.values == 0 {
            return None;
        }
        let spaces = merge.spaces().filter(|spaces| spaces.len() == self.spaces.len());
        let projected: Option<f64> =
            spaces.map(|spaces| spaces.iter().zip(&self.spaces).map(|(space, it)| space.energy(it)).sum());
        // The energy of the delta, and of noise along it, grows with the number of values. The energy of other noise in
        // the space does not: the space has as many dimensions for some rows as for all.
        let share = elements as f64 / self.values as f64;
        let along = self.along * self.along / self.delta;
        let projected = projected.map(|noise| along * share + (noise - along).max(0.0));
        let decibels = |delta: f64, noise: f64| (noise > 0.0).then(|| 10.0 * (delta / noise).log10());
        Some(DeltaFigures {
            delta_norm: (self.delta / self.base).sqrt(),
            kept: self.arrived / self.delta,
            delta_snr: projected.and_then(|noise| decibels(self.delta * share, noise)),
            full_snr: decibels(self.delta, self.noise),
            cosine: if self.moved > 0.0 { self.arrived / (self.delta * self.moved).sqrt() } else { 0.0 },
            changed: self.changed as f64 / self.values as f64,
            delta_energy: self.delta * share,
            noise_energy: projected,
            measured: self.values,
        })
    }
}

impl Space<'_> {
    /// Adds the errors of some elements, which may begin and end within rows.
    fn add(&self, tally: &mut SpaceTally, first: u64, errors: &[f64]) {
        let (rank, columns) = (self.rank, self.columns);
        tally.gram.resize(rank * rank, 0.0);
        tally.core.resize(rank * rank, 0.0);
        let (mut right, mut left, mut products) = (Vec::new(), vec![0.0; rank], vec![0.0; rank]);
        let (mut at, mut errors) = (first, errors);
        let mut filled: Range<u64> = 0..0;
        while !errors.is_empty() {
            let (row, column) = (at / columns, at % columns);
            let count = (columns - column).min(errors.len() as u64);
            let (now, rest) = errors.split_at(count as usize);
            if filled != (column..column + count) {
                filled = column..column + count;
                right.resize(rank * count as usize, 0.0);
                let mut lines = right.chunks_exact_mut(count as usize);
                for (_, matrix) in &self.factors {
                    for (line, out) in (0..matrix.rows).zip(&mut lines) {
                        matrix.read(line, filled.clone(), out);
                    }
                }
            }
            let mut start = 0;
            for (matrix, _) in &self.factors {
                let width = matrix.columns as usize;
                matrix.read(row, 0..matrix.columns, &mut left[start..start + width]);
                start += width;
            }
            for (product, line) in products.iter_mut().zip(right.chunks_exact(count as usize)) {
                *product = Isa::chosen().run(Dot { one: now, other: line });
            }
            for (at, factor) in left.iter().enumerate() {
                let sums = &mut tally.core[at * rank..(at + 1) * rank];
                sums.iter_mut().zip(&products).for_each(|(sum, product)| *sum += factor * product);
                if column == 0 {
                    let sums = &mut tally.gram[at * rank..(at + 1) * rank];
                    sums.iter_mut().zip(&left).for_each(|(sum, other)| *sum += factor * other);
                }
            }
            (at, errors) = (at + count, rest);
        }
    }

    /// Returns the energy of the projected errors.
    fn energy(&self, tally: &SpaceTally) -> f64 {
        let rank = self.rank;
        if tally.core.len() != rank * rank {
            return 0.0; // no element of it was measured
        }
        let mut right = vec![0.0; rank * self.columns as usize];
        let mut lines = right.chunks_exact_mut(self.columns as usize);
        for (_, matrix) in &self.factors {
            for (line, out) in (0..matrix.rows).zip(&mut lines) {
                matrix.read(line, 0..self.columns, out);
            }
        }
        let mut gram = vec![0.0; rank * rank];
        for (at, one) in right.chunks_exact(self.columns as usize).enumerate() {
            for (to, other) in right.chunks_exact(self.columns as usize).enumerate().take(at + 1) {
                let product = Isa::chosen().run(Dot { one, other });
                (gram[at * rank + to], gram[to * rank + at]) = (product, product);
            }
        }
        let (left, right) = (inverse_roots(&tally.gram, rank), inverse_roots(&gram, rank));
        let whitened = multiplied(&multiplied(&left, &tally.core, rank), &transposed(&right, rank), rank);
        whitened.iter().map(|value| value * value).sum()
    }
}

/// Number of partial sums that are kept side by side, so that loops vectorize.
const LANES: usize = 8;

/// Adds sums of elements to a tally, without spaces, and computes the errors.
struct Count<'c> {
    tally: &'c mut SurvivalTally,
    values: &'c Survivors<'c>,
    errors: &'c mut [f64],
}

impl Loop for Count<'_> {
    type Result = ();

    #[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
    #[inline(always)]
    fn run(self) {
        let Self { tally, values, errors } = self;
        let mut sums = [[0.0; LANES]; 6];
        let mut changed = [0; LANES];
        let each = values.base.chunks(LANES).zip(values.merged.chunks(LANES));
        let stored = values.stored_base.chunks(LANES).zip(values.stored_merged.chunks(LANES));
        for (((base, merged), (stored_base, stored_merged)), errors) in each.zip(stored).zip(errors.chunks_mut(LANES)) {
            let [base, merged, stored_base, stored_merged] = [base, merged, stored_base, stored_merged].map(in_lanes);
            let mut own = [0.0; LANES];
            for lane in 0..LANES {
                let delta = merged[lane] - base[lane];
                let moved = stored_merged[lane] - stored_base[lane];
                let error = stored_merged[lane] - merged[lane];
                sums[0][lane] += base[lane] * base[lane];
                sums[1][lane] += delta * delta;
                sums[2][lane] += moved * delta;
                sums[3][lane] += moved * moved;
                sums[4][lane] += error * error;
                sums[5][lane] += error * delta;
                changed[lane] += u64::from(moved != 0.0);
                own[lane] = error;
            }
            errors.copy_from_slice(&own[..errors.len()]);
        }
        let [base, delta, arrived, moved, noise, along] = sums.map(|lanes| lanes.into_iter().sum::<f64>());
        tally.base += base;
        tally.delta += delta;
        tally.arrived += arrived;
        tally.moved += moved;
        tally.noise += noise;
        tally.along += along;
        tally.changed += changed.iter().sum::<u64>();
    }
}

/// Returns up to as many values as there are lanes; the others are 0, and add nothing.
#[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
#[inline(always)]
fn in_lanes(values: &[f64]) -> [f64; LANES] {
    values.first_chunk().copied().unwrap_or_else(|| {
        let mut lanes = [0.0; LANES];
        lanes[..values.len()].copy_from_slice(values);
        lanes
    })
}

/// A sum of products, in partial sums.
struct Dot<'d> {
    one: &'d [f64],
    other: &'d [f64],
}

impl Loop for Dot<'_> {
    type Result = f64;

    #[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
    #[inline(always)]
    fn run(self) -> f64 {
        let mut sums = [0.0; LANES];
        let ((ones, one), (others, other)) = (self.one.as_chunks::<LANES>(), self.other.as_chunks::<LANES>());
        for (one, other) in ones.iter().zip(others) {
            for (sum, (one, other)) in sums.iter_mut().zip(one.iter().zip(other)) {
                *sum += one * other;
            }
        }
        let rest: f64 = one.iter().zip(other).map(|(one, other)| one * other).sum();
        sums.iter().sum::<f64>() + rest
    }
}

fn multiplied(one: &[f64], other: &[f64], size: usize) -> Vec<f64> {
    let mut product = vec![0.0; size * size];
    for (row, out) in one.chunks_exact(size).zip(product.chunks_exact_mut(size)) {
        for (factor, line) in row.iter().zip(other.chunks_exact(size)) {
            out.iter_mut().zip(line).for_each(|(sum, value)| *sum += factor * value);
        }
    }
    product
}

fn transposed(matrix: &[f64], size: usize) -> Vec<f64> {
    (0..size * size).map(|at| matrix[at % size * size + at / size]).collect()
}

/// Returns `X` with `X^T X` the pseudo-inverse of a symmetric matrix, by Jacobi's rotations: rows are eigenvectors divided by
/// the roots of their eigenvalues, or zero for eigenvalues near 0.
fn inverse_roots(matrix: &[f64], size: usize) -> Vec<f64> {
    /// Maximum number of passes; a few are enough.
    const PASSES: usize = 30;
    /// Share of the largest eigenvalue below which one counts as 0.
    const LEAST: f64 = 1e-12;
    let mut work = matrix.to_vec();
    let mut vectors: Vec<f64> = (0..size * size).map(|at| f64::from(u8::from(at / size == at % size))).collect();
    for _ in 0..PASSES {
        let diagonal: f64 = (0..size).map(|at| work[at * size + at].powi(2)).sum();
        let all: f64 = work.iter().map(|value| value * value).sum();
        if all - diagonal <= 1e-24 * all {
            break;
        }
        for one in 0..size {
            for two in one + 1..size {
                let off = work[one * size + two];
                if off == 0.0 {
                    continue;
                }
                let angle = (work[two * size + two] - work[one * size + one]) / (2.0 * off);
                let tangent = angle.signum() / (angle.abs() + angle.hypot(1.0));
                let tangent = if angle == 0.0 { 1.0 } else { tangent };
                let turn = 1.0 / tangent.hypot(1.0);
                let lift = tangent * turn;
                for at in 0..size {
                    let (x, y) = (work[at * size + one], work[at * size + two]);
                    (work[at * size + one], work[at * size + two]) = (turn * x - lift * y, lift * x + turn * y);
                }
                for values in [&mut work, &mut vectors] {
                    for at in 0..size {
                        let (x, y) = (values[one * size + at], values[two * size + at]);
                        (values[one * size + at], values[two * size + at]) = (turn * x - lift * y, lift * x + turn * y);
                    }
                }
            }
        }
    }
    let largest = (0..size).map(|at| work[at * size + at]).fold(0.0, f64::max);
    for (at, vector) in vectors.chunks_exact_mut(size.max(1)).enumerate() {
        let value = work[at * size + at];
        let factor = if value > LEAST * largest { 1.0 / value.sqrt() } else { 0.0 };
        for element in vector {
            *element *= factor;
        }
    }
    vectors
}

/// Figures about the rest of the delta of a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaFigures {
    /// The length of the delta, as a share of the length of the weight.
    pub delta_norm: f64,
    /// The share of the delta that arrives: 1 is all of it.
    pub kept: f64,
    /// The ratio of the delta to the noise in its space, in decibels; `None` without noise, or for a delta that is no product.
    pub delta_snr: Option<f64>,
    /// The ratio of the delta to all noise, in decibels.
    pub full_snr: Option<f64>,
    /// The cosine between the delta and what arrives.
    pub cosine: f64,
    /// The share of stored values that differ because of the delta.
    pub changed: f64,
    /// The energy of the delta, and of the noise in its space, for sums over weights.
    pub delta_energy: f64,
    pub noise_energy: Option<f64>,
    /// The number of values that were measured.
    pub measured: u64,
}

#[cfg(test)]
mod tests {
    use super::super::merge::WeightChange;
    use super::*;

    #[test]
    fn the_inverse_of_a_gram_matrix_is_found_with_and_without_full_rank() {
        // [[4, 2], [2, 3]] has the inverse [[3, -2], [-2, 4]] / 8.
        let roots = inverse_roots(&[4.0, 2.0, 2.0, 3.0], 2);
        let inverse = multiplied(&transposed(&roots, 2), &roots, 2);
        for (found, wanted) in inverse.iter().zip([0.375, -0.25, -0.25, 0.5]) {
            assert!((found - wanted).abs() < 1e-14, "{inverse:?}");
        }
        // The pseudo-inverse of [[1, 1], [1, 1]] is a quarter of it.
        let roots = inverse_roots(&[1.0; 4], 2);
        let inverse = multiplied(&transposed(&roots, 2), &roots, 2);
        assert!(inverse.iter().all(|value| (value - 0.25).abs() < 1e-14), "{inverse:?}");
    }

    #[test]
    fn some_rows_of_a_weight_tell_the_signal_to_noise_ratio_of_all() {
        let [rows, columns, rank] = [512_u64, 64, 8];
        let mut state = 1_u64;
        let mut random = |count: u64| -> Vec<f64> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
            };
            (0..count).map(|_| next()).collect()
        };
        let left = Matrix::computed(random(rows * rank), [rows, rank]);
        let right = Matrix::computed(random(rank * columns), [rank, columns]);
        let how = How::Add { delta: Delta::Product(left, right), factor: 1.0, swaps_halves: false };
        let merge = Merge::new(vec![WeightChange { start: 0, rows, columns, how }]);
        let (base, noise) = (random(rows * columns), random(rows * columns));
        let mut merged = base.clone();
        merge.apply(0, &mut merged, &|_, _| Ok(())).unwrap();
        let stored = |values: &[f64]| -> Vec<f64> { values.iter().zip(&noise).map(|(value, it)| value + it).collect() };
        let (stored_base, stored_merged) = (stored(&base), stored(&merged));
        let figures = |rows: u64| {
            let count = (rows * columns) as usize;
            let [base, merged] = [&base[..count], &merged[..count]];
            let [stored_base, stored_merged] = [&stored_base[..count], &stored_merged[..count]];
            let mut tally = SurvivalTally::default();
            let mut errors = Vec::new();
            tally.count(&Survivors { base, merged, stored_base, stored_merged }, &mut errors);
            tally.project(&merge, 0, &errors);
            tally.figures(&merge, noise.len() as u64).unwrap()
        };
        let (all, some) = (figures(rows), figures(rows / 8));
        assert!((all.kept - 1.0).abs() < 1e-12 && (some.kept - 1.0).abs() < 1e-12, "{all:?} {some:?}");
        // The noise of an eighth of the rows fills the space as the noise of all rows does.
        assert!((all.delta_snr.unwrap() - some.delta_snr.unwrap()).abs() < 3.0, "{all:?} {some:?}");
    }
}
