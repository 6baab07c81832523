//! Blocks of 32 elements with one scale.

use super::super::decode::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::asymmetric::{SearchAsymmetric, SearchRule};
use super::lanes::{
    WIDTH, floor_of_small, inverse, is_finite, largest, largest_magnitude, limit, low_byte, nearest_of_small, stored,
};
use super::pack::{high_bits, nibbles};
use super::recover::GridBlock;
use super::symmetric::SearchSymmetric;
use super::weights::{GroupBatch, Weighing};
use super::{BlockEncode, BlockPiece, EncodeEach, GroupFit, Importance, SetValues};
use crate::kernel::half::float16_bits;
use crate::kernel::{Isa, Loop};
use zerocopy::little_endian::U16;

/// Returns the first of the numbers with the largest magnitude of a block; +0 if all numbers are 0.
#[inline(always)]
fn largest_of_block(values: &[f32; 32]) -> f32 {
    let magnitude = largest_magnitude(values).to_bits();
    let (positive, negative) = (magnitude, magnitude | 1 << 31);
    let [mut has_positive, mut has_negative] = [0; 2];
    for value in values {
        has_positive |= u32::from(value.to_bits() == positive);
    }
    for value in values {
        has_negative |= u32::from(value.to_bits() == negative);
    }
    if magnitude == 0 {
        return 0.0;
    }
    if has_positive & has_negative != 0 {
        return first_largest(values);
    }
    f32::from_bits(positive | has_negative << 31)
}

/// Returns the same one by one, for the rare blocks where two numbers of that magnitude have different signs.
#[cold]
#[inline(never)]
fn first_largest(values: &[f32; 32]) -> f32 {
    largest(values).1
}

/// Returns the least and the greatest number of a block. The sign of a zero is that of any zero.
#[inline(always)]
fn bounds_of_block(values: &[f32; 32]) -> (f32, f32) {
    let [mut low, mut high] = [[0.0; 16]; 2];
    for at in 0..16 {
        let (first, second) = (values[at], values[at + 16]);
        low[at] = if second < first { second } else { first };
        high[at] = if second > first { second } else { first };
    }
    let mut half = 8;
    while half > 0 {
        for at in 0..half {
            low[at] = if low[at + half] < low[at] { low[at + half] } else { low[at] };
            high[at] = if high[at + half] > high[at] { high[at + half] } else { high[at] };
        }
        half /= 2;
    }
    (low[0], high[0])
}

/// The loop that encodes with a scale, without a search: codes of `most` / 2 and more stand for values from 0.
struct Symmetric<'a, B> {
    values: &'a [[f32; 32]],
    blocks: &'a mut [B],
    /// 8 or 16.
    bound: f32,
}

impl<B: GridBlock<32, 1>> Loop for Symmetric<'_, B> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let mut scales = [0.0; WIDTH];
        for (values, scale) in self.values.iter().zip(&mut scales) {
            *scale = largest_of_block(values);
        }
        let (mut factors, mut half_steps, mut halves) = ([0.0; WIDTH], [0.0; WIDTH], [0; WIDTH]);
        for at in 0..WIDTH {
            let scale = scales[at] / -self.bound;
            let factor = inverse(scale);
            // ggml converts Inf and NaN to the code 0.
            let is_finite = factor.abs() < f32::INFINITY;
            factors[at] = if is_finite { factor } else { 0.0 };
            half_steps[at] = if is_finite { self.bound + 0.5 } else { 0.0 };
            halves[at] = float16_bits(scale);
        }
        let most = 2.0 * self.bound - 1.0;
        for (at, (values, block)) in self.values.iter().zip(self.blocks).enumerate() {
            let (factor, half_step) = (factors[at], half_steps[at]);
            let mut codes = [0; 32];
            for at in 0..32 {
                let code = floor_of_small(values[at] * factor + half_step);
                codes[at] = low_byte(if code > most { most } else { code });
            }
            *block = B::assemble([halves[at]], &codes);
        }
    }
}

/// The loop that encodes with a scale and an offset, without a search.
struct Asymmetric<'a, B, S> {
    values: &'a [[f32; 32]],
    blocks: &'a mut [B],
    /// The largest code.
    most: f32,
    store: S,
}

impl<B, S: Fn(U16, U16, &[u8; 32]) -> B> Loop for Asymmetric<'_, B, S> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        for (values, block) in self.values.iter().zip(self.blocks) {
            let (mut low, high) = bounds_of_block(values);
            if low == 0.0 {
                // The first zero, whose sign is stored.
                low = values.iter().copied().find(|value| *value == 0.0).unwrap_or(low);
            }
            let scale = (high - low) / self.most;
            let factor = inverse(scale);
            // As above.
            let factor = if factor.is_finite() { factor } else { 0.0 };
            let mut codes = [0; 32];
            for at in 0..32 {
                let code = floor_of_small((values[at] - low) * factor + 0.5);
                codes[at] = low_byte(if code > self.most { self.most } else { code });
            }
            *block = (self.store)(stored(scale), stored(low), &codes);
        }
    }
}

/// The loop that writes the codes of a search.
struct CodesOfSearch<'a, F> {
    fit: &'a F,
    values: &'a [[f32; 32]],
    codes: &'a mut [[u8; 32]],
}

impl<F: GroupFit> Loop for CodesOfSearch<'_, F> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        for (at, (values, codes)) in self.values.iter().zip(self.codes).enumerate() {
            self.fit.codes(at, values, codes);
        }
    }
}

/// Encodes blocks with a scale.
#[inline(always)]
fn symmetric<B: GridBlock<32, 1>>(isa: Isa, piece: &BlockPiece<'_, 32>, bound: f32, blocks: &mut [B]) {
    if piece.importance.is_none() {
        isa.run(Symmetric { values: piece.values, blocks, bound });
        return;
    }
    let batch = GroupBatch::<32>::collect(isa, piece, 0, Weighing::Importance(piece.row_means));
    let fit = isa.run(SearchSymmetric::<32, true> { batch: &batch, bound });
    let mut codes = [[0; 32]; WIDTH];
    isa.run(CodesOfSearch { fit: &fit, values: piece.values, codes: &mut codes });
    for (at, block) in blocks.iter_mut().enumerate() {
        *block = B::assemble([float16_bits(fit.scales[at])], &codes[at]);
    }
}

/// Encodes blocks with a scale and an offset.
#[inline(always)]
fn asymmetric<B>(
    isa: Isa,
    piece: &BlockPiece<'_, 32>,
    most: f32,
    blocks: &mut [B],
    store: impl Fn(U16, U16, &[u8; 32]) -> B,
) {
    if piece.importance.is_none() {
        isa.run(Asymmetric { values: piece.values, blocks, most, store });
        return;
    }
    let batch = GroupBatch::<32>::collect(isa, piece, 0, Weighing::Importance(piece.row_means));
    let rule = SearchRule::with_importance(most);
    let fit = isa.run(SearchAsymmetric::<32, false, true> { batch: &batch, rule });
    let mut codes = [[0; 32]; WIDTH];
    isa.run(CodesOfSearch { fit: &fit, values: piece.values, codes: &mut codes });
    for (at, block) in blocks.iter_mut().enumerate() {
        // Two negations, as in ggml, change nothing.
        *block = store(stored(fit.scales[at]), stored(fit.lowest[at]), &codes[at]);
    }
}

impl GridBlock<32, 1> for Q4_0 {
    #[inline(always)]
    fn nearest(number: f32) -> u8 {
        low_byte(nearest_of_small(limit(number, -8.0, 7.0)) + 8.0)
    }

    #[inline(always)]
    fn assemble([d]: [u16; 1], codes: &[u8; 32]) -> Self {
        Self { d: U16::new(d), qs: nibbles(codes) }
    }
}

impl BlockEncode<32, 1> for Q4_0 {
    const IMPORTANCE: Importance = Importance::WithRowMeans;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 32>, blocks: &mut [Self]) {
        symmetric(isa, piece, 8.0, blocks);
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}

impl GridBlock<32, 1> for Q5_0 {
    #[inline(always)]
    fn nearest(number: f32) -> u8 {
        low_byte(nearest_of_small(limit(number, -16.0, 15.0)) + 16.0)
    }

    #[inline(always)]
    fn assemble([d]: [u16; 1], codes: &[u8; 32]) -> Self {
        Self { d: U16::new(d), qh: high_bits(codes), qs: nibbles(codes) }
    }
}

impl BlockEncode<32, 1> for Q5_0 {
    const IMPORTANCE: Importance = Importance::WithRowMeans;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 32>, blocks: &mut [Self]) {
        symmetric(isa, piece, 16.0, blocks);
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}

impl BlockEncode<32, 1> for Q4_1 {
    const IMPORTANCE: Importance = Importance::WithRowMeans;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 32>, blocks: &mut [Self]) {
        asymmetric(isa, piece, 15.0, blocks, |d, m, codes| Self { d, m, qs: nibbles(codes) });
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d) && is_finite(self.m)
    }
}

impl BlockEncode<32, 1> for Q5_1 {
    const IMPORTANCE: Importance = Importance::WithRowMeans;

    fn encode(isa: Isa, piece: &BlockPiece<'_, 32>, blocks: &mut [Self]) {
        asymmetric(isa, piece, 31.0, blocks, |d, m, codes| Self { d, m, qh: high_bits(codes), qs: nibbles(codes) });
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d) && is_finite(self.m)
    }
}

impl GridBlock<32, 1> for Q8_0 {
    #[inline(always)]
    fn nearest(number: f32) -> u8 {
        low_byte(nearest_of_small(limit(number, -128.0, 127.0)))
    }

    #[inline(always)]
    fn assemble([d]: [u16; 1], codes: &[u8; 32]) -> Self {
        Self { d: U16::new(d), qs: *codes }
    }
}

impl BlockEncode<32, 1> for Q8_0 {
    fn encode(isa: Isa, piece: &BlockPiece<'_, 32>, blocks: &mut [Self]) {
        isa.run(EncodeEach { values: piece.values, blocks });
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}

impl SetValues<32> for Q8_0 {
    #[inline(always)]
    fn set_values(&mut self, values: &[f32; 32]) {
        let scale = largest_magnitude(values) / 127.0;
        let factor = inverse(scale);
        // ggml converts Inf and NaN to the code 0.
        let factor = if factor.is_finite() { factor } else { 0.0 };
        let mut codes = [0; 32];
        for at in 0..32 {
            // Halves are rounded away from zero.
            let number = values[at] * factor;
            let magnitude = number.abs();
            let nearest = nearest_of_small(magnitude);
            let rounded = nearest + if magnitude - nearest >= 0.5 { 1.0 } else { 0.0 };
            codes[at] = low_byte(rounded.copysign(number));
        }
        *self = Self::assemble([float16_bits(scale)], &codes);
    }
}
