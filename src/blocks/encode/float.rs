//! Blocks of float4e2m1 with scales that are floats of 8 bits.

use super::super::decode::{BlockLayout, Mxfp4, Nvfp4};
use super::lanes::largest_magnitude;
use super::pack::nibbles;
use super::recover::{ExponentScale, GridBlock, Ue4m3Scale};
use super::{BlockEncode, BlockPiece};
use crate::kernel::{Isa, Loop};

/// Writes the codes whose numbers times the scale are nearest to values: of several, the one with the least magnitude. The
/// scale belongs to doubled numbers. No code is the negative zero.
#[inline(always)]
fn codes<const N: usize>(values: &[f32; N], scale: f32) -> [u8; N] {
    let products = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0].map(|number: f32| number * scale);
    let mut codes = [0; N];
    for at in 0..N {
        let magnitude = values[at].abs();
        let (mut code, mut least) = (0_u32, magnitude);
        for (index, product) in (1..).zip(products) {
            let error = (product - magnitude).abs();
            code = if error < least { index } else { code };
            least = if error < least { error } else { least };
        }
        let sign = if code == 0 { 0 } else { values[at].to_bits() >> 31 << 3 };
        codes[at] = (code | sign) as u8;
    }
    codes
}

/// Returns the exponent of `MXFP4` for the largest magnitude of a block: the low byte of the integer part of the logarithm,
/// plus 125. ggml takes the logarithm in float32, which reaches an integer slightly below the power of two. Exponents
/// below 0 wrap.
fn exponent(magnitude: f32) -> u8 {
    // The number of mantissas below a power of two whose logarithm is rounded up, by the number of binary digits of the
    // logarithm.
    const ROUNDED_UP: [u32; 8] = [0, 1, 2, 5, 11, 22, 44, 88];
    if magnitude == 0.0 {
        return 0;
    }
    let bits = magnitude.to_bits();
    let (mantissa, next) = if bits < 0x0080_0000 {
        // A subnormal number.
        let shift = bits.leading_zeros() - 8;
        (bits << shift, -125 - shift as i32)
    } else {
        (bits & 0x007f_ffff | 0x0080_0000, (bits >> 23) as i32 - 126)
    };
    let digits = match next {
        ..0 => next.unsigned_abs().ilog2(),
        0 | 1 => 0,
        _ => (next - 1).ilog2(),
    };
    let is_rounded_up = 0x0100_0000 - mantissa <= ROUNDED_UP[digits as usize];
    (next - 1 + i32::from(is_rounded_up) - 2 + 127) as u8
}

impl GridBlock<32, 1> for Mxfp4 {
    type Scale = ExponentScale;

    #[inline(always)]
    fn nearest(number: f32) -> u8 {
        codes(&[number], 1.0)[0]
    }

    #[inline(always)]
    fn assemble([e]: [u16; 1], codes: &[u8; 32]) -> Self {
        Self { e: e as u8, qs: nibbles(codes) }
    }
}

impl BlockEncode<32> for Mxfp4 {
    fn encode(isa: Isa, piece: &BlockPiece<'_, 32>, blocks: &mut [Self]) {
        isa.run(EncodeMxfp4 { values: piece.values, blocks });
    }

    /// ggml takes the exponent 255 for NaN.
    fn is_finite(&self) -> bool {
        self.e != 255
    }
}

/// The loop that encodes `MXFP4`.
struct EncodeMxfp4<'a> {
    values: &'a [[f32; 32]],
    blocks: &'a mut [Mxfp4],
}

impl Loop for EncodeMxfp4<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        for (values, block) in self.values.iter().zip(self.blocks) {
            block.e = exponent(largest_magnitude(values));
            block.qs = nibbles(&codes(values, block.scales()[0]));
        }
    }
}

/// Rounds to an unsigned float8e4m3 of at most 448, halves up.
#[inline(always)]
fn to_ue4m3(value: f32) -> u8 {
    const LARGEST: u8 = 0x7e;
    if value <= 0.0 {
        return 0;
    }
    let bits = if value > 448.0 { 448.0_f32 } else { value }.to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        // Integers in units of 1/512, at most 7.
        return ((value * 512.0 + 0.5) as u8).min(7);
    }
    // A carry out of the mantissa increases the exponent.
    let code = ((exponent as u32) << 3 | bits >> 20 & 7) + (bits >> 19 & 1);
    if exponent >= 15 || code >= 15 << 3 { LARGEST } else { code as u8 }
}

impl GridBlock<64, 4> for Nvfp4 {
    type Scale = Ue4m3Scale;

    #[inline(always)]
    fn nearest(number: f32) -> u8 {
        codes(&[number], 1.0)[0]
    }

    #[inline(always)]
    fn assemble(scales: [u16; 4], codes: &[u8; 64]) -> Self {
        let mut qs = [[0; 8]; 4];
        for (bytes, codes) in qs.iter_mut().zip(codes.as_chunks::<16>().0) {
            *bytes = nibbles(codes);
        }
        Self { d: scales.map(|scale| scale as u8), qs }
    }
}

impl BlockEncode<64> for Nvfp4 {
    fn encode(isa: Isa, piece: &BlockPiece<'_, 64>, blocks: &mut [Self]) {
        isa.run(EncodeNvfp4 { values: piece.values, blocks });
    }

    /// Scales are limited.
    fn is_finite(&self) -> bool {
        true
    }
}

/// The loop that encodes `NVFP4`.
struct EncodeNvfp4<'a> {
    values: &'a [[f32; 64]],
    blocks: &'a mut [Nvfp4],
}

impl Loop for EncodeNvfp4<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        for (values, block) in self.values.iter().zip(self.blocks) {
            let groups = values.as_chunks::<16>().0;
            for (scale, values) in block.d.iter_mut().zip(groups) {
                *scale = to_ue4m3(largest_magnitude(values) / 6.0);
            }
            let scales = block.scales();
            for ((bytes, values), scale) in block.qs.iter_mut().zip(groups).zip(scales) {
                *bytes = nibbles(&codes(values, scale));
            }
        }
    }
}
