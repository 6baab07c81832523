//! Measures how much of a delta survives rounding or quantizing.
//!
//! With `W` the weight, `D` the delta and `Q` the rounding: **kept** is `<Q(W + D) - Q(W), D> / |D|^2`, 1 if on average the
//! whole delta arrives, 0 if it is gone. **Delta SNR** compares `|D|^2` with the noise `Q(W + D) - (W + D)` in the space of
//! the delta: the columns of `B` and the rows of `A`. The projection is computed from Gram matrices: with `M = B^T E A^T`,
//! the energy of the projected noise is `tr(G_B^+ M G_A^+ M^T)`.

use super::matrix::{Delta, LANES, Matrix};
use super::merge::{How, Merge};
use super::names::MergePlace;
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
    /// The squares of the base, the delta, what moved, and the noise; moved times delta, and noise times delta.
    sums: [f64; 6],
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
    place: MergePlace,
    factors: Vec<(&'m Matrix, &'m Matrix)>,
    rank: usize,
}

impl Merge {
    /// Returns the spaces of its deltas; `None` if one is no product of two matrices, or too large.
    fn spaces(&self) -> Option<Vec<Space<'_>>> {
        let mut spaces: Vec<Space> = Vec::new();
        for change in &*self.changes {
            let How::Add { delta: Delta::Product(left, right), .. } = &change.how else { return None };
            if change.place.swaps_halves {
                return None;
            }
            if spaces.last().is_none_or(|space| space.place != change.place) {
                spaces.push(Space { place: change.place, factors: Vec::new(), rank: 0 });
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
            if let Some(met) = space.place.met(first, errors.len()) {
                space.add(tally, first.saturating_sub(space.place.start), &errors[met]);
            }
        }
    }

    /// Adds the sums of the elements that follow.
    pub(crate) fn append(&mut self, next: &Self) {
        add_to(&mut self.sums, &next.sums);
        self.changed += next.changed;
        self.values += next.values;
        self.spaces.resize_with(self.spaces.len().max(next.spaces.len()), SpaceTally::default);
        for (sum, next) in self.spaces.iter_mut().zip(&next.spaces) {
            for (sums, next) in [(&mut sum.gram, &next.gram), (&mut sum.core, &next.core)] {
                sums.resize(sums.len().max(next.len()), 0.0);
                add_to(sums, next);
            }
        }
    }

    /// Returns the figures of a weight of this number of elements; `None` without a delta. Without the changes of a tensor,
    /// noise is not projected.
    pub(crate) fn figures(&self, merge: Option<&Merge>, elements: u64) -> Option<DeltaFigures> {
        let [base, delta, moved, noise, arrived, along] = self.sums;
        if delta <= 0.0 || !delta.is_finite() || !moved.is_finite() || self.values == 0 {
            return None;
        }
        let spaces = merge.and_then(Merge::spaces).filter(|spaces| spaces.len() == self.spaces.len());
        let projected: Option<f64> =
            spaces.map(|spaces| spaces.iter().zip(&self.spaces).map(|(space, it)| space.energy(it)).sum());
        // The energy of the delta, and of noise along it, grows with the number of values. The energy of other noise in
        // the space does not: the space has as many dimensions for some rows as for all.
        let share = elements as f64 / self.values as f64;
        let along = along * along / delta;
        let projected = projected.map(|noise| along * share + (noise - along).max(0.0));
        let decibels = |delta: f64, noise: f64| (noise > 0.0).then(|| 10.0 * (delta / noise).log10());
        Some(DeltaFigures {
            delta_norm: (delta / base).sqrt(),
            kept: arrived / delta,
            delta_snr: projected.and_then(|noise| decibels(delta * share, noise)),
            full_snr: decibels(delta, noise),
            cosine: if moved > 0.0 { arrived / (delta * moved).sqrt() } else { 0.0 },
            changed: self.changed as f64 / self.values as f64,
            delta_energy: delta * share,
            noise_energy: projected,
            measured: self.values,
        })
    }
}

fn add_to(sums: &mut [f64], next: &[f64]) {
    sums.iter_mut().zip(next).for_each(|(sum, next)| *sum += next);
}

impl Space<'_> {
    /// Adds the errors of some elements, which may begin and end within rows.
    fn add(&self, tally: &mut SpaceTally, first: u64, errors: &[f64]) {
        let (rank, columns) = (self.rank, self.place.columns);
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
                self.read_right(filled.clone(), &mut right);
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

    /// Reads some columns of the right matrices.
    fn read_right(&self, columns: Range<u64>, out: &mut Vec<f64>) {
        let width = (columns.end - columns.start) as usize;
        out.resize(self.rank * width, 0.0);
        let mut lines = out.chunks_exact_mut(width);
        for (_, matrix) in &self.factors {
            for (line, out) in (0..matrix.rows).zip(&mut lines) {
                matrix.read(line, columns.clone(), out);
            }
        }
    }

    /// Returns the energy of the projected errors.
    fn energy(&self, tally: &SpaceTally) -> f64 {
        let rank = self.rank;
        if tally.core.len() != rank * rank {
            return 0.0; // no element of it was measured
        }
        let mut right = Vec::new();
        self.read_right(0..self.place.columns, &mut right);
        let lines = right.chunks_exact(self.place.columns as usize);
        let mut gram = vec![0.0; rank * rank];
        for (at, one) in lines.clone().enumerate() {
            for (to, other) in lines.clone().enumerate().take(at + 1) {
                let product = Isa::chosen().run(Dot { one, other });
                (gram[at * rank + to], gram[to * rank + at]) = (product, product);
            }
        }
        let [left, right] = [&tally.gram, &gram].map(|gram| inverse_roots(gram, rank));
        let core = Matrix::computed(tally.core.clone(), [rank as u64; 2]);
        left.times(&core).times(&right.transposed()).all().iter().map(|value| value * value).sum()
    }
}

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
                sums[2][lane] += moved * moved;
                sums[3][lane] += error * error;
                sums[4][lane] += moved * delta;
                sums[5][lane] += error * delta;
                changed[lane] += u64::from(moved != 0.0);
                own[lane] = error;
            }
            errors.copy_from_slice(&own[..errors.len()]);
        }
        add_to(&mut tally.sums, &sums.map(|lanes| lanes.into_iter().sum()));
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

/// Returns `X` with `X^T X` the pseudo-inverse of a symmetric matrix, by Jacobi's rotations: rows are eigenvectors divided by
/// the roots of their eigenvalues, or zero for eigenvalues near 0.
fn inverse_roots(matrix: &[f64], size: usize) -> Matrix {
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
                let rotate = |values: &mut [f64], one: usize, two: usize| {
                    let (x, y) = (values[one], values[two]);
                    (values[one], values[two]) = (turn * x - lift * y, lift * x + turn * y);
                };
                (0..size).for_each(|at| rotate(&mut work, at * size + one, at * size + two));
                for values in [&mut work, &mut vectors] {
                    (0..size).for_each(|at| rotate(values, one * size + at, two * size + at));
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
    Matrix::computed(vectors, [size as u64; 2])
}

/// Figures about the rest of the delta of a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeltaFigures {
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
    use crate::random::random;

    #[test]
    fn the_inverse_of_a_gram_matrix_is_found_with_and_without_full_rank() {
        // [[4, 2], [2, 3]] has the inverse [[3, -2], [-2, 4]] / 8.
        let inverse = |gram| {
            let roots = inverse_roots(gram, 2);
            roots.transposed().times(&roots).all()
        };
        let found = inverse(&[4.0, 2.0, 2.0, 3.0]);
        let is_near = |(found, wanted): (&f64, f64)| (found - wanted).abs() < 1e-14;
        assert!(found.iter().zip([0.375, -0.25, -0.25, 0.5]).all(is_near), "{found:?}");
        // The pseudo-inverse of [[1, 1], [1, 1]] is a quarter of it.
        let found = inverse(&[1.0; 4]);
        assert!(found.iter().zip([0.25; 4]).all(is_near), "{found:?}");
    }

    #[test]
    fn some_rows_of_a_weight_tell_the_signal_to_noise_ratio_of_all() {
        let [rows, columns, rank] = [512_u64, 64, 8];
        let mut next = random(1);
        let mut random = |count: u64| -> Vec<f64> {
            (0..count).map(|_| (next() >> 11) as f64 / (1_u64 << 53) as f64 - 0.5).collect()
        };
        let left = Matrix::computed(random(rows * rank), [rows, rank]);
        let right = Matrix::computed(random(rank * columns), [rank, columns]);
        let how = How::Add { delta: Delta::Product(left, right), factor: 1.0 };
        let place = MergePlace { tensor: 0, start: 0, rows, columns, swaps_halves: false };
        let merge = Merge::new(vec![WeightChange { place, how }]);
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
            tally.figures(Some(&merge), noise.len() as u64).unwrap()
        };
        let (all, some) = (figures(rows), figures(rows / 8));
        assert!((all.kept - 1.0).abs() < 1e-12 && (some.kept - 1.0).abs() < 1e-12, "{all:?} {some:?}");
        // The noise of an eighth of the rows fills the space as the noise of all rows does.
        assert!((all.delta_snr.unwrap() - some.delta_snr.unwrap()).abs() < 3.0, "{all:?} {some:?}");
    }
}
