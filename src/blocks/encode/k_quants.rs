//! Blocks of 256 elements in groups, whose scales are integers times a scale of the block.
//!
//! ggml searches for the scale and the codes of each group, turns the scales of a block into integers, and rounds the
//! values again with the scales that result. It keeps the codes of the search where the resulting scale is 0.

use super::super::decode::{Q2K, Q3K, Q4K, Q5K, Q6K, SixBitScales};
use super::asymmetric::SearchRule;
use super::lanes::{EPSILON, WIDTH, is_finite, largest, nearest_int, stored};
use super::pack::{nibbles, planes, scales_of_6_bits};
use super::superblocks::{
    AsymmetricSearch, BlockCodes, IntegerScales, SumWeights, each_batch, final_scales, mean_squares, requantize,
    side_by_side, store,
};
use super::symmetric::{Descend, SearchSymmetric};
use super::weights::{GroupBatch, Weighing};
use super::{BlockEncode, BlockPiece, GroupFit, Importance};
use crate::kernel::Isa;
use std::array::from_fn;
use zerocopy::little_endian::U16;

impl BlockEncode<256, 16> for Q2K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let rule = SearchRule { most: 3.0, first: -0.5, step: 0.1, steps: 15 };
        let search = AsymmetricSearch::<16>::run::<16, true>(isa, piece, 1.0, Weighing::Magnitude, rule);
        let [scales, offsets] = [&search.scales, &search.offsets].map(|numbers| search.integers(isa, numbers, 15));
        for ((block, scales), offsets) in blocks.iter_mut().zip(&scales).zip(&offsets) {
            (block.d, block.dmin) = (scales.unit, offsets.unit);
            for (byte, (scale, offset)) in block.scales.iter_mut().zip(scales.integers.iter().zip(offsets.integers)) {
                *byte = scale | offset << 4;
            }
        }
        let (scales, offsets) = final_scales(blocks);
        let codes = requantize(isa, piece, &scales, &offsets, [0.0, 3.0], &search.fits);
        for (block, codes) in blocks.iter_mut().zip(&codes) {
            block.qs = [planes::<2>(&codes[..128], 0), planes::<2>(&codes[128..], 0)];
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d) && is_finite(self.dmin)
    }
}

/// Returns the scales and the codes of blocks. `is_limited` if integers of scales above 63 become 63 with an importance
/// matrix too; otherwise, as in ggml, their high bits add to other scales.
fn encode_six_bits(
    isa: Isa,
    piece: &BlockPiece<'_, 256>,
    rule: SearchRule,
    is_limited: bool,
) -> ([SixBitScales; WIDTH], BlockCodes) {
    let search = AsymmetricSearch::<8>::run::<32, false>(isa, piece, 2.0, Weighing::RootMeanSquare, rule);
    let [scales, offsets] = [&search.scales, &search.offsets].map(|numbers| search.integers(isa, numbers, 63));
    let most = if is_limited || piece.importance.is_none() { 63 } else { u8::MAX };
    let limited = |numbers: &IntegerScales<8>| numbers.integers.map(|integer| integer.min(most));
    let stored: [SixBitScales; WIDTH] = from_fn(|at| SixBitScales {
        d: scales[at].unit,
        dmin: offsets[at].unit,
        packed: scales_of_6_bits(&limited(&scales[at]), &limited(&offsets[at])),
    });
    let (scales, offsets) = (stored.map(|stored| stored.scales()), stored.map(|stored| stored.offsets()));
    let codes = requantize(isa, piece, &scales, &offsets, [0.0, rule.most], &search.fits);
    (stored, codes)
}

impl BlockEncode<256, 8> for Q4K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let rule = SearchRule { most: 15.0, first: -1.0, step: 0.1, steps: 20 };
        let (scales, codes) = encode_six_bits(isa, piece, rule, false);
        for ((block, scales), codes) in blocks.iter_mut().zip(scales).zip(&codes) {
            block.scales = scales;
            for (bytes, codes) in block.qs.iter_mut().zip(codes.as_chunks::<64>().0) {
                *bytes = nibbles(codes);
            }
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.scales.d) && is_finite(self.scales.dmin)
    }
}

impl BlockEncode<256, 8> for Q5K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let rule = SearchRule { most: 31.0, first: -0.5, step: 0.1, steps: 15 };
        let (scales, codes) = encode_six_bits(isa, piece, rule, true);
        for ((block, scales), codes) in blocks.iter_mut().zip(scales).zip(&codes) {
            block.scales = scales;
            block.qh = planes::<1>(codes, 4);
            for (bytes, codes) in block.qs.iter_mut().zip(codes.as_chunks::<64>().0) {
                *bytes = nibbles(codes);
            }
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.scales.d) && is_finite(self.scales.dmin)
    }
}

impl BlockEncode<256, 16> for Q3K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let [mut scales, mut weights] = [[[0.0; 16]; WIDTH]; 2];
        let mut integers = [[0; 16]; WIDTH];
        let mut fits: Vec<Box<dyn GroupFit>> = Vec::with_capacity(WIDTH);
        if piece.importance.is_some() {
            let weighing = Weighing::Importance(mean_squares(isa, piece, 2.0));
            each_batch(isa, piece, weighing, |first, batch| {
                let fit = isa.run(SearchSymmetric::<16, true> { batch, bound: 4.0 });
                store(&fit.scales, first, &mut scales);
                store(&isa.run(SumWeights(batch)), first, &mut weights);
                fits.push(Box::new(fit));
            });
            let batch = GroupBatch { values: side_by_side(&scales), weights: side_by_side(&weights) };
            let fit = isa.run(SearchSymmetric::<16, false> { batch: &batch, bound: 32.0 });
            for (at, block) in blocks.iter_mut().enumerate() {
                block.d = stored(fit.scales[at]);
                fit.codes(at, &scales[at], &mut integers[at]);
            }
        } else {
            each_batch(isa, piece, Weighing::Square, |first, batch| {
                let fit = isa.run(Descend(batch));
                store(&fit.scales, first, &mut scales);
                fits.push(Box::new(fit));
            });
            for (at, block) in blocks.iter_mut().enumerate() {
                let (_, largest) = largest(&scales[at]);
                let factor = -32.0 / largest;
                block.d = U16::ZERO;
                if largest != 0.0 {
                    block.d = stored(1.0 / factor);
                    integers[at] =
                        scales[at].map(|scale| ((nearest_int(factor * scale) as i8).clamp(-32, 31) + 32) as u8);
                }
            }
        }
        for (block, integers) in blocks.iter_mut().zip(&integers) {
            block.scales_low = nibbles(integers);
            let mut high = [0; 4];
            for (plane, integers) in integers.as_chunks::<4>().0.iter().enumerate() {
                for (byte, integer) in high.iter_mut().zip(integers) {
                    *byte |= integer >> 4 << (2 * plane);
                }
            }
            block.scales_high = high;
        }
        let (scales, offsets) = final_scales(blocks);
        let codes = requantize(isa, piece, &scales, &offsets, [-4.0, 3.0], &fits);
        for (block, codes) in blocks.iter_mut().zip(&codes) {
            block.qs = [planes::<2>(&codes[..128], 0), planes::<2>(&codes[128..], 0)];
            block.hmask = planes::<1>(codes, 2);
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}

impl BlockEncode<256, 16> for Q6K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let mut scales = [[0.0; 16]; WIDTH];
        let mut fits: Vec<Box<dyn GroupFit>> = Vec::with_capacity(WIDTH);
        let weighing = if piece.importance.is_some() { Weighing::Column } else { Weighing::Square };
        each_batch(isa, piece, weighing, |first, batch| {
            let fit = isa.run(SearchSymmetric::<16, true> { batch, bound: 32.0 });
            store(&fit.scales, first, &mut scales);
            fits.push(Box::new(fit));
        });
        let mut is_zero = [false; WIDTH];
        for (at, block) in blocks.iter_mut().enumerate() {
            let (magnitude, largest) = largest(&scales[at]);
            let factor = -128.0 / largest;
            is_zero[at] = magnitude < EPSILON;
            block.d = stored(1.0 / factor);
            block.scales = scales[at].map(|scale| nearest_int(factor * scale).min(127) as i8);
        }
        let (scales, offsets) = final_scales(blocks);
        let codes = requantize(isa, piece, &scales, &offsets, [-32.0, 31.0], &fits);
        for ((block, codes), is_zero) in blocks.iter_mut().zip(&codes).zip(is_zero) {
            if is_zero {
                *block = Self { ql: [[0; 64]; 2], qh: [[0; 32]; 2], scales: [0; 16], d: U16::ZERO };
                continue;
            }
            for (half, codes) in codes.as_chunks::<128>().0.iter().enumerate() {
                block.ql[half] = nibbles(codes);
                block.qh[half] = planes::<2>(codes, 4);
            }
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}
