//! Weights of the errors of a search.

use super::BlockPiece;
use super::lanes::{GroupLane, WIDTH, sums_of_lanes, transpose};
use crate::kernel::{Isa, Loop};
use std::array::from_fn;

/// Values and weights of groups with `K` elements.
pub(super) struct GroupBatch<const K: usize> {
    pub(super) values: [GroupLane; K],
    pub(super) weights: [GroupLane; K],
}

/// The rule for the weight of an element x.
#[derive(Clone, Copy, Debug)]
pub(super) enum Weighing {
    /// x * x.
    Square,
    /// |x|.
    Magnitude,
    /// The root of the mean square of the group, plus |x|.
    RootMeanSquare,
    /// The importance of the column times the root of (the number of the block + x * x). The number is the mean square of
    /// the block's row, or one or two times the mean square of the block.
    Importance(GroupLane),
    /// The importance of the column.
    Column,
}

impl<const K: usize> GroupBatch<K> {
    /// Collects groups of a piece, from index `first` on. Lanes without a group have zeros.
    pub(super) fn collect<const E: usize>(
        isa: Isa,
        piece: &BlockPiece<'_, E>,
        first: usize,
        weighing: Weighing,
    ) -> Self {
        let zeros = &[0.0; K];
        let (mut values, mut importance) = ([zeros; WIDTH], [zeros; WIDTH]);
        let per_block = E / K;
        let weighing = match weighing {
            Weighing::Importance(numbers) => Weighing::Importance(from_fn(|at| numbers[(first + at) / per_block])),
            other => other,
        };
        for (at, group) in piece.values.as_flattened().as_chunks().0[first..].iter().take(WIDTH).enumerate() {
            let (block, within) = ((first + at) / per_block, (first + at) % per_block);
            values[at] = group;
            if let Some(blocks) = piece.importance {
                importance[at] = &blocks[block].as_chunks().0[within];
            }
        }
        isa.run(Weigh { values, importance, weighing })
    }
}

/// The loop that collects a batch.
struct Weigh<'a, const K: usize> {
    values: [&'a [f32; K]; WIDTH],
    importance: [&'a [f32; K]; WIDTH],
    /// Numbers of [`Weighing::Importance`] belong to groups.
    weighing: Weighing,
}

impl<const K: usize> Loop for Weigh<'_, K> {
    type Result = GroupBatch<K>;

    #[inline(always)]
    fn run(self) -> GroupBatch<K> {
        let mut batch = GroupBatch { values: [[0.0; WIDTH]; K], weights: [[0.0; WIDTH]; K] };
        let GroupBatch { values, weights } = &mut batch;
        transpose(&self.values, values);
        match self.weighing {
            Weighing::Square => squares(values, weights),
            Weighing::Magnitude => magnitudes(values, &[0.0; WIDTH], weights),
            Weighing::RootMeanSquare => {
                squares(values, weights);
                let mut means = sums_of_lanes(weights);
                for mean in &mut means {
                    *mean = (*mean / K as f32).sqrt();
                }
                magnitudes(values, &means, weights);
            }
            Weighing::Importance(numbers) => {
                transpose(&self.importance, weights);
                for (weights, values) in weights.iter_mut().zip(&*values) {
                    for at in 0..WIDTH {
                        weights[at] *= (numbers[at] + values[at] * values[at]).sqrt();
                    }
                }
            }
            Weighing::Column => transpose(&self.importance, weights),
        }
        batch
    }
}

#[inline(always)]
fn squares<const K: usize>(values: &[GroupLane; K], squares: &mut [GroupLane; K]) {
    for (squares, values) in squares.iter_mut().zip(values) {
        for at in 0..WIDTH {
            squares[at] = values[at] * values[at];
        }
    }
}

#[inline(always)]
fn magnitudes<const K: usize>(values: &[GroupLane; K], plus: &GroupLane, magnitudes: &mut [GroupLane; K]) {
    for (magnitudes, values) in magnitudes.iter_mut().zip(values) {
        for at in 0..WIDTH {
            magnitudes[at] = plus[at] + values[at].abs();
        }
    }
}

/// Adds up the squares of each block, from the first to the last.
pub(super) fn squares_of_blocks<const E: usize>(isa: Isa, piece: &BlockPiece<'_, E>) -> GroupLane {
    let mut sums = [0.0; WIDTH];
    sums[..piece.values.len()].copy_from_slice(&squares_of_rows(isa, piece.values.as_flattened(), E));
    sums
}

/// Adds up the squares of each row, from the first to the last. Rows are a multiple of `WIDTH` long.
pub(super) fn squares_of_rows(isa: Isa, values: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = Vec::with_capacity(values.len() / columns);
    for rows in values.chunks(WIDTH * columns) {
        let mut all = [&[][..]; WIDTH];
        for (slot, row) in all.iter_mut().zip(rows.chunks(columns)) {
            *slot = row;
        }
        let first = all[0];
        for slot in &mut all {
            // Lanes without a row repeat the first.
            *slot = if slot.is_empty() { first } else { slot };
        }
        sums.extend(&isa.run(SquaresOfRows(all))[..rows.len() / columns]);
    }
    sums
}

/// The loop that adds up the squares of rows of the same length.
struct SquaresOfRows<'a>([&'a [f32]; WIDTH]);

impl Loop for SquaresOfRows<'_> {
    type Result = GroupLane;

    #[inline(always)]
    fn run(self) -> GroupLane {
        let tiles = self.0.map(|row| row.as_chunks::<WIDTH>().0);
        let mut sums = [0.0; WIDTH];
        for at in 0..tiles[0].len() {
            let mut tile = [[0.0; WIDTH]; WIDTH];
            transpose(&tiles.map(|tiles| &tiles[at]), &mut tile);
            for lane in &tile {
                for at in 0..WIDTH {
                    sums[at] += lane[at] * lane[at];
                }
            }
        }
        sums
    }
}
