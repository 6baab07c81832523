//! Blocks of float4e2m1 with scales that are floats of 8 bits.

use super::super::decode::{BlockLayout, Mxfp4, Nvfp4};
use super::lanes::largest_magnitude;
use super::pack::nibbles;
use super::recover::GridBlock;
use super::{BlockEncode, BlockPiece, EncodeEach, SetValues};
use crate::kernel::Isa;

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
    /// ggml takes the exponent 255 for NaN.
    const LARGEST_SCALE: u16 = 254;
    const SCALE_SIGN: Option<u16> = None;

    #[inline(always)]
    fn scale(stored: u16) -> f32 {
        Self { e: stored as u8, qs: [0; 16] }.scales()[0]
    }

    #[inline(always)]
    fn nearest(number: f32) -> u8 {
        codes(&[number], 1.0)[0]
    }

    #[inline(always)]
    fn assemble([e]: [u16; 1], codes: &[u8; 32]) -> Self {
        Self { e: e as u8, qs: nibbles(codes) }
    }
}

impl BlockEncode<32, 1> for Mxfp4 {
    fn encode(isa: Isa, piece: &BlockPiece<'_, 32>, blocks: &mut [Self]) {
        isa.run(EncodeEach { values: piece.values, blocks });
    }

    /// ggml takes the exponent 255 for NaN.
    fn is_finite(&self) -> bool {
        self.e != 255
    }
}

impl SetValues<32> for Mxfp4 {
    #[inline(always)]
    fn set_values(&mut self, values: &[f32; 32]) {
        self.e = exponent(largest_magnitude(values));
        self.qs = nibbles(&codes(values, self.scales()[0]));
    }
}

/// The largest finite unsigned float8e4m3: 448.
const LARGEST_UE4M3: u8 = 0x7e;

/// Rounds to an unsigned float8e4m3 of at most 448, halves up.
#[inline(always)]
fn to_ue4m3(value: f32) -> u8 {
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
    if exponent >= 15 || code >= 15 << 3 { LARGEST_UE4M3 } else { code as u8 }
}

impl GridBlock<64, 4> for Nvfp4 {
    const LARGEST_SCALE: u16 = LARGEST_UE4M3 as u16;
    const SCALE_SIGN: Option<u16> = None;

    #[inline(always)]
    fn scale(stored: u16) -> f32 {
        Self { d: [stored as u8; 4], qs: [[0; 8]; 4] }.scales()[0]
    }

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

impl BlockEncode<64, 4> for Nvfp4 {
    fn encode(isa: Isa, piece: &BlockPiece<'_, 64>, blocks: &mut [Self]) {
        isa.run(EncodeEach { values: piece.values, blocks });
    }

    /// Scales are limited.
    fn is_finite(&self) -> bool {
        true
    }
}

impl SetValues<64> for Nvfp4 {
    #[inline(always)]
    fn set_values(&mut self, values: &[f32; 64]) {
        let groups = values.as_chunks::<16>().0;
        for (scale, values) in self.d.iter_mut().zip(groups) {
            *scale = to_ue4m3(largest_magnitude(values) / 6.0);
        }
        let scales = self.scales();
        for ((bytes, values), scale) in self.qs.iter_mut().zip(groups).zip(scales) {
            *bytes = nibbles(&codes(values, scale));
        }
    }
}
