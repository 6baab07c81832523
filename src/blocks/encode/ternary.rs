//! Blocks of the numbers -1, 0 and 1 with one scale.

use super::super::decode::{Tq1_0, Tq2_0};
use super::lanes::{inverse, is_finite, largest_magnitude, limit, low_byte, nearest_of_small};
use super::pack::planes;
use super::recover::GridBlock;
use super::{BlockEncode, BlockPiece, EncodeEach, SetValues};
use crate::kernel::Isa;
use crate::kernel::half::float16_bits;
use zerocopy::little_endian::U16;

/// Blocks of 256 elements with one scale are the two ternary formats.
impl<B: GridBlock<256, 1>> SetValues<256> for B {
    /// Codes are numbers plus 1.
    #[inline(always)]
    fn set_values(&mut self, values: &[f32; 256]) {
        let scale = largest_magnitude(values);
        let factor = inverse(scale);
        // ggml converts Inf and NaN to the number 0.
        let factor = if factor.is_finite() { factor } else { 0.0 };
        let mut codes = [0; 256];
        for at in 0..256 {
            // Halves are rounded away from zero.
            let number = values[at] * factor;
            codes[at] = 1 + u8::from(number >= 0.5) - u8::from(number <= -0.5);
        }
        *self = B::assemble([float16_bits(scale)], &codes);
    }
}

/// Packs the first digits of all bytes, then their second digits, and so on. A byte is a fraction of `DIGITS` ternary
/// digits in units of 1/256, rounded up.
#[inline(always)]
fn digits<const N: usize, const DIGITS: usize>(codes: &[u8]) -> [u8; N] {
    let mut sums = [0_u32; N];
    for digit in 0..5 {
        for at in 0..N {
            sums[at] = sums[at] * 3 + if digit < DIGITS { u32::from(codes[digit * N + at]) } else { 0 };
        }
    }
    sums.map(|sum| (sum * 256).div_ceil(243) as u8)
}

impl GridBlock<256, 1> for Tq1_0 {
    #[inline(always)]
    fn nearest(number: f32) -> u8 {
        low_byte(nearest_of_small(limit(number, -1.0, 1.0)) + 1.0)
    }

    #[inline(always)]
    fn assemble([d]: [u16; 1], codes: &[u8; 256]) -> Self {
        Self {
            qs: digits::<32, 5>(&codes[..160]),
            more: digits::<16, 5>(&codes[160..240]),
            qh: digits::<4, 4>(&codes[240..]),
            d: U16::new(d),
        }
    }
}

impl BlockEncode<256, 1> for Tq1_0 {
    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        isa.run(EncodeEach { values: piece.values, blocks });
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}

impl GridBlock<256, 1> for Tq2_0 {
    #[inline(always)]
    fn nearest(number: f32) -> u8 {
        low_byte(nearest_of_small(limit(number, -1.0, 2.0)) + 1.0)
    }

    #[inline(always)]
    fn assemble([d]: [u16; 1], codes: &[u8; 256]) -> Self {
        Self { qs: [planes::<2>(&codes[..128], 0), planes::<2>(&codes[128..], 0)], d: U16::new(d) }
    }
}

impl BlockEncode<256, 1> for Tq2_0 {
    fn encode(isa: Isa, piece: &BlockPiece<'_, 256>, blocks: &mut [Self]) {
        isa.run(EncodeEach { values: piece.values, blocks });
    }

    fn is_finite(&self) -> bool {
        is_finite(self.d)
    }
}
