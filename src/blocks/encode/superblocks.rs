//! Searches in all groups and the final rounding, for blocks of 256 elements.

use super::super::decode::BlockLayout;
use super::asymmetric::{AsymmetricFit, SearchAsymmetric, SearchRule};
use super::lanes::{GroupLane, WIDTH, column, limit, low_byte, nearest, nearest_int, stored, sums_of_lanes, transpose};
use super::scales::SearchScales;
use super::weights::{GroupBatch, Weighing, squares_of_blocks};
use super::{BlockPiece, GroupFit};
use crate::kernel::{Isa, Loop};
use std::array::from_fn;
use zerocopy::little_endian::U16;

/// A number of each group of each block.
pub(super) type PerGroup<const G: usize> = [[f32; G]; WIDTH];

/// The codes of the blocks of a piece.
pub(super) type BlockCodes = [[u8; 256]; WIDTH];

/// Returns the mean squares of blocks, times a number.
pub(super) fn mean_squares(isa: Isa, piece: &BlockPiece<'_, 256>, times: f32) -> GroupLane {
    squares_of_blocks(isa, piece).map(|sum| times * sum / 256.0)
}

/// Calls a function with each batch of groups and the index of its first group.
pub(super) fn each_batch<const K: usize>(
    isa: Isa,
    piece: &BlockPiece<'_, 256>,
    weighing: Weighing,
    mut each: impl FnMut(usize, &GroupBatch<K>),
) {
    for first in (0..piece.values.len() * 256 / K).step_by(WIDTH) {
        each(first, &GroupBatch::collect(isa, piece, first, weighing));
    }
}

/// Stores the numbers of a batch.
pub(super) fn store<const G: usize>(numbers: &GroupLane, first: usize, per_group: &mut PerGroup<G>) {
    for (number, slot) in numbers.iter().zip(&mut per_group.as_flattened_mut()[first..]) {
        *slot = *number;
    }
}

/// Puts the numbers of blocks side by side.
pub(super) fn side_by_side<const G: usize>(per_group: &PerGroup<G>) -> [GroupLane; G] {
    let mut lanes = [[0.0; WIDTH]; G];
    transpose(&per_group.each_ref(), &mut lanes);
    lanes
}

/// The loop that adds up the weights of each group.
pub(super) struct SumWeights<'a, const K: usize>(pub(super) &'a GroupBatch<K>);

impl<const K: usize> Loop for SumWeights<'_, K> {
    type Result = GroupLane;

    #[inline(always)]
    fn run(self) -> GroupLane {
        sums_of_lanes(&self.0.weights)
    }
}

/// The loop that rounds (value + offset) / scale to codes from `low` to `high`, and subtracts `low`.
pub(super) struct Requantize<'a, const G: usize> {
    values: &'a [[f32; 256]],
    scales: &'a PerGroup<G>,
    offsets: &'a PerGroup<G>,
    bounds: [f32; 2],
    codes: &'a mut BlockCodes,
}

impl<const G: usize> Loop for Requantize<'_, G> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let [low, high] = self.bounds;
        let groups = self.scales.as_flattened().iter().zip(self.offsets.as_flattened());
        let pieces = self.values.as_flattened().chunks(256 / G).zip(self.codes.as_flattened_mut().chunks_mut(256 / G));
        for ((scale, offset), (values, codes)) in groups.zip(pieces) {
            for (values, codes) in values.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0) {
                for at in 0..16 {
                    codes[at] = low_byte(limit(nearest((values[at] + offset) / scale), low, high) - low);
                }
            }
        }
    }
}

/// Rounds all values with the final scales. Groups whose scale is 0 keep the codes of the search: `fits` has its result
/// for each batch.
pub(super) fn requantize<const G: usize>(
    isa: Isa,
    piece: &BlockPiece<'_, 256>,
    scales: &PerGroup<G>,
    offsets: &PerGroup<G>,
    bounds: [f32; 2],
    fits: &[Box<dyn GroupFit>],
) -> BlockCodes {
    let mut codes = [[0; 256]; WIDTH];
    isa.run(Requantize { values: piece.values, scales, offsets, bounds, codes: &mut codes });
    let groups = piece.values.as_flattened().chunks(256 / G).zip(codes.as_flattened_mut().chunks_mut(256 / G));
    for (group, (values, codes)) in groups.enumerate() {
        if scales.as_flattened()[group] == 0.0 {
            fits[group / WIDTH].codes(group % WIDTH, values, codes);
        }
    }
    codes
}

/// The scales or the offsets of a block: integers times a unit.
pub(super) struct IntegerScales<const G: usize> {
    pub(super) unit: U16,
    /// The low bytes of integers.
    pub(super) integers: [u8; G],
}

impl<const G: usize> IntegerScales<G> {
    /// Rounds numbers in the unit in which the largest is `most`.
    fn round(numbers: &[f32; G], most: f32) -> Self {
        let highest = numbers.iter().fold(0.0, |highest, number| if *number > highest { *number } else { highest });
        let factor = if highest > 0.0 { most / highest } else { 0.0 };
        let integers = numbers.map(|number| nearest_int(factor * number) as u8);
        Self { unit: stored(highest / most), integers }
    }
}

/// Returns the scales and offsets that blocks store.
pub(super) fn final_scales<B: BlockLayout<256, G>, const G: usize>(blocks: &[B]) -> (PerGroup<G>, PerGroup<G>) {
    let [mut scales, mut offsets] = [[[0.0; G]; WIDTH]; 2];
    for (at, block) in blocks.iter().enumerate() {
        scales[at] = block.scales();
        offsets[at] = block.offsets().unwrap_or([0.0; G]);
    }
    (scales, offsets)
}

/// Results of the searches for the scales and offsets of all groups.
pub(super) struct AsymmetricSearch<const G: usize> {
    /// The result for each batch.
    pub(super) fits: Vec<Box<dyn GroupFit>>,
    pub(super) scales: PerGroup<G>,
    /// At least 0, or slightly below.
    pub(super) offsets: PerGroup<G>,
    /// Sums of weights, with an importance matrix.
    weights: Option<PerGroup<G>>,
}

impl<const G: usize> AsymmetricSearch<G> {
    /// Searches in groups of `K` elements. `times` belongs to the mean square of a block in the weights of an importance
    /// matrix; the other arguments to searches without one.
    pub(super) fn run<const K: usize, const ABSOLUTE: bool>(
        isa: Isa,
        piece: &BlockPiece<'_, 256>,
        times: f32,
        weighing: Weighing,
        rule: SearchRule,
    ) -> Self {
        let zeros = [[0.0; G]; WIDTH];
        let mut search = Self { fits: Vec::with_capacity(G), scales: zeros, offsets: zeros, weights: None };
        if piece.importance.is_some() {
            let weighing = Weighing::Importance(mean_squares(isa, piece, times));
            let mut weights = zeros;
            each_batch::<K>(isa, piece, weighing, |first, batch| {
                let rule = SearchRule::with_importance(rule.most);
                search.add(first, isa.run(SearchAsymmetric::<K, false, true> { batch, rule }));
                store(&isa.run(SumWeights(batch)), first, &mut weights);
            });
            search.weights = Some(weights);
        } else {
            each_batch::<K>(isa, piece, weighing, |first, batch| {
                search.add(first, isa.run(SearchAsymmetric::<K, ABSOLUTE, false> { batch, rule }));
            });
        }
        search
    }

    fn add(&mut self, first: usize, fit: AsymmetricFit) {
        store(&fit.scales, first, &mut self.scales);
        store(&fit.lowest.map(|lowest| -lowest), first, &mut self.offsets);
        self.fits.push(Box::new(fit));
    }

    /// Turns the scales or the offsets of each block into integers up to `most`, with an importance matrix by a search.
    pub(super) fn integers(&self, isa: Isa, numbers: &PerGroup<G>, most: u8) -> [IntegerScales<G>; WIDTH] {
        let Some(weights) = &self.weights else {
            return numbers.each_ref().map(|numbers| IntegerScales::round(numbers, most.into()));
        };
        let (numbers, weights) = (&side_by_side(numbers), &side_by_side(weights));
        let fit = isa.run(SearchScales { numbers, weights, most });
        from_fn(|at| IntegerScales { unit: stored(fit.scales[at]), integers: column(&fit.integers, at) })
    }
}
