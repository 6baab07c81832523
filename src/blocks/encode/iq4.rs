//! Blocks whose codes are entries of a table.

use super::super::decode::{Iq4Nl, Iq4Xs};
use super::lanes::{EPSILON, GroupLane, WIDTH, inverse, is_finite, largest, largest_of_lanes, nearest_int, stored};
use super::pack::nibbles;
use super::recover::GridBlock;
use super::weights::{GroupBatch, Weighing, squares_of_blocks};
use super::{BlockEncode, BlockPiece, Importance};
use crate::kernel::half::float16_bits;
use crate::kernel::{Isa, Loop};
use zerocopy::little_endian::U16;

/// The lowest entry of the table.
const LOWEST: f32 = -127.0;

/// The means of adjacent entries, from which on the next one is nearer or as near, and the steps to the next entry.
const STEPS: [(f32, f32); 15] = [
    (-115.5, 23.0),
    (-93.5, 21.0),
    (-74.0, 18.0),
    (-57.0, 16.0),
    (-42.0, 14.0),
    (-28.5, 13.0),
    (-16.0, 12.0),
    (-4.5, 11.0),
    (7.0, 12.0),
    (19.0, 12.0),
    (31.5, 13.0),
    (45.5, 15.0),
    (61.0, 16.0),
    (79.0, 20.0),
    (101.0, 24.0),
];

/// Returns the nearest entry. The entry for NaN is the highest.
#[inline(always)]
fn entry(number: f32) -> f32 {
    let mut entry = LOWEST;
    for (mean, step) in STEPS {
        entry += if number < mean { 0.0 } else { step };
    }
    entry
}

/// Returns the index of the nearest entry. The index for NaN is the highest.
#[inline(always)]
fn code(number: f32) -> u8 {
    let mut code = STEPS.len() as u32;
    for (mean, _) in STEPS {
        code -= u32::from(number < mean);
    }
    code as u8
}

/// The search for the scale of each group: tries 16 factors near -127 / the largest value.
struct SearchEntries<'a>(&'a GroupBatch<32>);

impl Loop for SearchEntries<'_> {
    type Result = GroupLane;

    #[inline(always)]
    fn run(self) -> GroupLane {
        let batch = self.0;
        let (magnitudes, largest) = largest_of_lanes(&batch.values);
        let mut factors = [0.0; WIDTH];
        for at in 0..WIDTH {
            factors[at] = 1.0 / (-largest[at] / LOWEST);
        }
        let [sums, squares] = sums_of_entries(batch, &factors);
        let (mut scales, mut best) = ([0.0; WIDTH], [0.0; WIDTH]);
        for at in 0..WIDTH {
            scales[at] = if squares[at] > 0.0 { sums[at] / squares[at] } else { 0.0 };
            best[at] = scales[at] * sums[at];
        }
        for step in -7_i8..=7 {
            let numerator = f32::from(step) + LOWEST;
            for at in 0..WIDTH {
                factors[at] = numerator / largest[at];
            }
            let [sums, squares] = sums_of_entries(batch, &factors);
            for at in 0..WIDTH {
                let is_better = (squares[at] > 0.0) & (sums[at] * sums[at] > best[at] * squares[at]);
                let scale = sums[at] / squares[at];
                scales[at] = if is_better { scale } else { scales[at] };
                best[at] = if is_better { scale * sums[at] } else { best[at] };
            }
        }
        for at in 0..WIDTH {
            scales[at] = if magnitudes[at] < EPSILON { 0.0 } else { scales[at] };
        }
        scales
    }
}

/// Returns the sums of weight * entry * value and of weight * entry * entry.
#[inline(always)]
fn sums_of_entries(batch: &GroupBatch<32>, factors: &GroupLane) -> [GroupLane; 2] {
    let [mut sums, mut squares] = [[0.0; WIDTH]; 2];
    for (values, weights) in batch.values.iter().zip(&batch.weights) {
        for at in 0..WIDTH {
            let entry = entry(factors[at] * values[at]);
            let product = weights[at] * entry;
            sums[at] += product * values[at];
            squares[at] += product * entry;
        }
    }
    [sums, squares]
}

/// The loop that writes the codes of groups, with a factor for each.
struct EncodeEntries<'a> {
    values: &'a [[f32; 32]],
    factors: &'a [f32],
    codes: &'a mut [[u8; 32]],
}

impl Loop for EncodeEntries<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        for ((values, factor), codes) in self.values.iter().zip(self.factors).zip(self.codes) {
            for at in 0..32 {
                codes[at] = code(factor * values[at]);
            }
        }
    }
}

/// Returns the scales of groups from index `first` on.
fn search<const E: usize>(isa: Isa, piece: &BlockPiece<'_, E>, first: usize, weighing: Weighing) -> GroupLane {
    isa.run(SearchEntries(&GroupBatch::collect(isa, piece, first, weighing)))
}

/// Returns the weights of a search: with importance, they depend on twice the mean squares of blocks.
fn weighing<const E: usize>(isa: Isa, piece: &BlockPiece<'_, E>) -> Weighing {
    if piece.importance.is_none() {
        return Weighing::Square;
    }
    Weighing::Importance(squares_of_blocks(isa, piece).map(|sum| sum * (2.0 / E as f32)))
}

impl GridBlock<32, 1> for Iq4Nl {
    #[inline(always)]
    fn nearest(number: f32) -> u8 {
        code(number)
    }

    #[inline(always)]
    fn assemble([d]: [u16; 1], codes: &[u8; 32]) -> Self {
        Self { d: U16::new(d), qs: nibbles(codes) }
    }
}

impl BlockEncode<32, 1> for Iq4Nl {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 32>, blocks: &mut [Self]) {
        let scales = search(isa, piece, 0, weighing(isa, piece));
        let mut codes = [[0; 32]; WIDTH];
        isa.run(EncodeEntries { values: piece.values, factors: &scales.map(inverse), codes: &mut codes });
        for ((block, codes), scale) in blocks.iter_mut().zip(&codes).zip(scales) {
            *block = Self::assemble([float16_bits(scale)], codes);
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}

impl BlockEncode<256, 8> for Iq4Xs {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let weighing = weighing(isa, piece);
        let mut scales = [[0.0; 8]; WIDTH];
        let groups = 8 * piece.values.len();
        for (lane, first) in scales.as_flattened_mut().chunks_mut(WIDTH).zip((0..groups).step_by(WIDTH)) {
            lane.copy_from_slice(&search(isa, piece, first, weighing));
        }
        let mut factors = [[0.0; 8]; WIDTH];
        for ((block, scales), factors) in blocks.iter_mut().zip(&scales).zip(&mut factors) {
            let (_, largest) = largest(scales);
            let unit = -largest / 32.0;
            let factor = inverse(unit);
            let integers = scales.map(|scale| nearest_int(factor * scale).clamp(-32, 31));
            // The scale before it is rounded to float16.
            *factors = integers.map(|integer| inverse(unit * integer as f32));
            let integers = integers.map(|integer| (integer + 32) as u8);
            block.d = stored(unit);
            for (byte, pair) in block.scales_l.iter_mut().zip(integers.as_chunks::<2>().0) {
                *byte = pair[0] & 15 | pair[1] << 4;
            }
            let high = (0..8).fold(0, |bits, at| bits | u16::from(integers[at] >> 4) << (2 * at));
            block.scales_h = U16::new(high);
        }
        let mut codes = [[0; 32]; 8 * WIDTH];
        let values = piece.values.as_flattened().as_chunks().0;
        isa.run(EncodeEntries { values, factors: factors.as_flattened(), codes: &mut codes });
        for (block, codes) in blocks.iter_mut().zip(codes.as_chunks::<8>().0) {
            for (bytes, codes) in block.qs.iter_mut().zip(codes) {
                *bytes = nibbles(codes);
            }
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}
