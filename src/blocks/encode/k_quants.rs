//! Blocks of 256 elements in groups, whose scales are integers times a scale of the block.
//!
//! ggml searches for the scale and the codes of each group, turns the scales of a block into integers, and rounds the
//! values again with the scales that result. It keeps the codes of the search where the resulting scale is 0.

use super::super::decode::{BlockLayout, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::asymmetric::SearchRule;
use super::lanes::{EPSILON, WIDTH, is_finite, largest, nearest_int, stored};
use super::pack::{nibbles, planes, scales_of_6_bits};
use super::superblocks::{
    AsymmetricSearch, BlockCodes, SumWeights, column, each_batch, final_scales, highest, mean_squares, requantize,
    side_by_side, store,
};
use super::symmetric::{Descend, DescentFit, SearchSymmetric, SymmetricFit};
use super::weights::{GroupBatch, Weighing};
use super::{BlockEncode, BlockPiece, Importance};
use crate::kernel::Isa;
use zerocopy::little_endian::U16;

impl BlockEncode<256> for Q2K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let rule = SearchRule { most: 3.0, first: -0.5, step: 0.1, steps: 15 };
        let search = AsymmetricSearch::<16>::run::<16, true>(isa, piece, 1.0, Weighing::Magnitude, rule);
        let has_importance = piece.importance.is_some();
        if has_importance {
            let scales = search.fit_scales(isa, &search.scales, 15);
            let offsets = search.fit_scales(isa, &search.offsets, 15);
            for (at, block) in blocks.iter_mut().enumerate() {
                (block.d, block.dmin) = (stored(scales.scales[at]), stored(offsets.scales[at]));
                let pairs = column(&scales.integers, at).into_iter().zip(column(&offsets.integers, at));
                for (byte, (scale, offset)) in block.scales.iter_mut().zip(pairs) {
                    *byte = scale | offset << 4;
                }
            }
        } else {
            for (at, block) in blocks.iter_mut().enumerate() {
                let of = |numbers: &[f32; 16]| {
                    let highest = highest(numbers);
                    let (factor, unit) = (15.0 / highest, stored(highest / 15.0));
                    if highest > 0.0 {
                        (numbers.map(|number| nearest_int(factor * number) as u8), unit)
                    } else {
                        ([0; 16], U16::ZERO)
                    }
                };
                let (scales, offsets);
                (scales, block.d) = of(&search.scales[at]);
                (offsets, block.dmin) = of(&search.offsets[at]);
                for (byte, (scale, offset)) in block.scales.iter_mut().zip(scales.iter().zip(offsets)) {
                    *byte = scale | offset << 4;
                }
            }
        }
        let (scales, offsets) = final_scales(blocks);
        let codes = requantize(isa, piece, (&scales, &offsets), [0.0, 3.0], |group, values, codes| {
            search.codes(has_importance, group, 3.0, values, codes);
        });
        for (block, codes) in blocks.iter_mut().zip(&codes) {
            block.qs = [planes::<2>(&codes[..128], 0), planes::<2>(&codes[128..], 0)];
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d) && is_finite(self.dmin)
    }
}

/// Blocks with scales and offsets of 6 bits.
trait SixBits: BlockLayout<256, 8> {
    fn set_scales(&mut self, d: U16, dmin: U16, scales: [u8; 12]);
}

impl SixBits for Q4K {
    fn set_scales(&mut self, d: U16, dmin: U16, scales: [u8; 12]) {
        (self.d, self.dmin, self.scales) = (d, dmin, scales);
    }
}

impl SixBits for Q5K {
    fn set_scales(&mut self, d: U16, dmin: U16, scales: [u8; 12]) {
        (self.d, self.dmin, self.scales) = (d, dmin, scales);
    }
}

/// Sets the scales of blocks, and returns their codes. `is_limited` if integers of scales above 63 become 63 with an
/// importance matrix too; otherwise, as in ggml, their high bits add to other scales.
fn encode_six_bits<B: SixBits>(
    isa: Isa,
    piece: &BlockPiece<'_, 256>,
    rule: SearchRule,
    is_limited: bool,
    blocks: &mut [B],
) -> BlockCodes {
    let search = AsymmetricSearch::<8>::run::<32, false>(isa, piece, 2.0, Weighing::RootMeanSquare, rule);
    let has_importance = piece.importance.is_some();
    if has_importance {
        let scales = search.fit_scales(isa, &search.scales, 63);
        let offsets = search.fit_scales(isa, &search.offsets, 63);
        for (at, block) in blocks.iter_mut().enumerate() {
            let [mut integers, mut offset_integers] = [column(&scales.integers, at), column(&offsets.integers, at)];
            if is_limited {
                integers = integers.map(|integer| integer.min(63));
                offset_integers = offset_integers.map(|integer| integer.min(63));
            }
            block.set_scales(
                stored(scales.scales[at]),
                stored(offsets.scales[at]),
                scales_of_6_bits(&integers, &offset_integers),
            );
        }
    } else {
        for (at, block) in blocks.iter_mut().enumerate() {
            let of = |numbers: &[f32; 8]| {
                let highest = highest(numbers);
                let factor = if highest > 0.0 { 63.0 / highest } else { 0.0 };
                (numbers.map(|number| (nearest_int(factor * number) as u8).min(63)), stored(highest / 63.0))
            };
            let ((scales, d), (offsets, dmin)) = (of(&search.scales[at]), of(&search.offsets[at]));
            block.set_scales(d, dmin, scales_of_6_bits(&scales, &offsets));
        }
    }
    let (scales, offsets) = final_scales(blocks);
    requantize(isa, piece, (&scales, &offsets), [0.0, rule.most], |group, values, codes| {
        search.codes(has_importance, group, rule.most, values, codes);
    })
}

impl BlockEncode<256> for Q4K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let rule = SearchRule { most: 15.0, first: -1.0, step: 0.1, steps: 20 };
        let codes = encode_six_bits(isa, piece, rule, false, blocks);
        for (block, codes) in blocks.iter_mut().zip(&codes) {
            for (bytes, codes) in block.qs.iter_mut().zip(codes.as_chunks::<64>().0) {
                *bytes = nibbles(codes);
            }
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d) && is_finite(self.dmin)
    }
}

impl BlockEncode<256> for Q5K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let rule = SearchRule { most: 31.0, first: -0.5, step: 0.1, steps: 15 };
        let codes = encode_six_bits(isa, piece, rule, true, blocks);
        for (block, codes) in blocks.iter_mut().zip(&codes) {
            block.qh = planes::<1>(codes, 4);
            for (bytes, codes) in block.qs.iter_mut().zip(codes.as_chunks::<64>().0) {
                *bytes = nibbles(codes);
            }
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d) && is_finite(self.dmin)
    }
}

/// The codes of the search for `Q3_K`.
enum FitsOfQ3K {
    Descent(Vec<DescentFit>),
    Symmetric(Vec<SymmetricFit>),
}

impl BlockEncode<256> for Q3K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let [mut scales, mut weights] = [[[0.0; 16]; WIDTH]; 2];
        let mut integers = [[0; 16]; WIDTH];
        let fits = if piece.importance.is_some() {
            let spread = mean_squares(isa, piece, 2.0);
            let mut fits = Vec::with_capacity(WIDTH);
            each_batch(isa, piece, Weighing::Importance, &spread, |first, batch| {
                let fit = isa.run(SearchSymmetric::<16, true> { batch, bound: 4.0 });
                store(&fit.scales, first, &mut scales);
                store(&isa.run(SumWeights(batch)), first, &mut weights);
                fits.push(fit);
            });
            let batch = GroupBatch { values: side_by_side(&scales), weights: side_by_side(&weights) };
            let fit = isa.run(SearchSymmetric::<16, false> { batch: &batch, bound: 32.0 });
            for (at, block) in blocks.iter_mut().enumerate() {
                block.d = stored(fit.scales[at]);
                fit.codes(at, 32.0, &scales[at], &mut integers[at]);
            }
            FitsOfQ3K::Symmetric(fits)
        } else {
            let mut fits = Vec::with_capacity(WIDTH);
            each_batch(isa, piece, Weighing::Square, &[0.0; WIDTH], |first, batch| {
                let fit = isa.run(Descend(batch));
                store(&fit.scales, first, &mut scales);
                fits.push(fit);
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
            FitsOfQ3K::Descent(fits)
        };
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
        let codes = requantize(isa, piece, (&scales, &offsets), [-4.0, 3.0], |group, values, codes| {
            let (batch, group) = (group / WIDTH, group % WIDTH);
            match &fits {
                FitsOfQ3K::Descent(fits) => codes.copy_from_slice(&column(&fits[batch].codes, group)),
                FitsOfQ3K::Symmetric(fits) => fits[batch].codes(group, 4.0, values, codes),
            }
        });
        for (block, codes) in blocks.iter_mut().zip(&codes) {
            block.qs = [planes::<2>(&codes[..128], 0), planes::<2>(&codes[128..], 0)];
            block.hmask = planes::<1>(codes, 2);
        }
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}

impl BlockEncode<256> for Q6K {
    const IMPORTANCE: Importance = Importance::Columns;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        let mut scales = [[0.0; 16]; WIDTH];
        let mut fits = Vec::with_capacity(WIDTH);
        let weighing = if piece.importance.is_some() { Weighing::Column } else { Weighing::Square };
        each_batch(isa, piece, weighing, &[0.0; WIDTH], |first, batch| {
            let fit = isa.run(SearchSymmetric::<16, true> { batch, bound: 32.0 });
            store(&fit.scales, first, &mut scales);
            fits.push(fit);
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
        let codes = requantize(isa, piece, (&scales, &offsets), [-32.0, 31.0], |group, values, codes| {
            fits[group / WIDTH].codes(group % WIDTH, 32.0, values, codes);
        });
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
