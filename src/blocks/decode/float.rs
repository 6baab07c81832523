//! Blocks of float4e2m1 with scales that are floats of 8 bits.

use super::BlockLayout;
use super::unpack::nibbles;
use crate::dtype::Dtype;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// float4e2m1 with a power of two as the scale.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Mxfp4 {
    pub(in crate::blocks) e: u8,
    pub(in crate::blocks) qs: [u8; 16],
}

impl BlockLayout<32, 1> for Mxfp4 {
    const CODE_BITS: u32 = 4;
    const SCALE: Dtype = Dtype::Float8E8M0;
    const CODES: Option<Dtype> = Some(Dtype::Float4E2M1);
    const UNIT: f32 = 0.5;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 32]) {
        nibbles(self.qs, codes);
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        doubled_e2m1(code)
    }

    /// The scale is 2^(e - 127). There is no NaN.
    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        let exponent = u32::from(self.e);
        // Half of the two smallest scales is subnormal.
        [f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })]
    }
}

/// float4e2m1 with a scale for each 16 elements.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Nvfp4 {
    pub(in crate::blocks) d: [u8; 4],
    pub(in crate::blocks) qs: [[u8; 8]; 4],
}

impl BlockLayout<64, 4> for Nvfp4 {
    const CODE_BITS: u32 = 4;
    const SCALE: Dtype = Dtype::Float8E4M3FN;
    const CODES: Option<Dtype> = Some(Dtype::Float4E2M1);
    const HAS_GLOBAL_SCALE: bool = true;
    const UNIT: f32 = 0.5;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 64]) {
        for (bytes, codes) in self.qs.iter().zip(codes.as_chunks_mut::<16>().0) {
            nibbles(*bytes, codes);
        }
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        doubled_e2m1(code)
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 4] {
        let mut scales = [0.0; 4];
        for (scale, byte) in scales.iter_mut().zip(self.d) {
            *scale = ue4m3(byte) / 2.0;
        }
        scales
    }
}

/// Returns twice the number of a float4e2m1. There is no negative zero.
#[inline(always)]
fn doubled_e2m1(code: u8) -> i8 {
    // Doubled magnitudes are 0, 1, 2, 3, 4, 6, 8, 12, a convex function: the largest of three lines.
    let magnitude = code & 7;
    let doubled = magnitude.max((2 * magnitude).saturating_sub(4)).max((4 * magnitude).saturating_sub(16));
    if code & 8 == 0 { doubled as i8 } else { -(doubled as i8) }
}

/// Returns the number of an unsigned float8e4m3. ggml ignores the highest bit, and takes the code 0x7f for 0.
#[inline(always)]
fn ue4m3(code: u8) -> f32 {
    let digits = u32::from(code & 0x7f) << 20;
    let subnormal = f32::from(code & 7) / 512.0;
    let number = if code & 0x78 == 0 { subnormal } else { f32::from_bits(digits + ((127 - 7) << 23)) };
    if code == 0x7f { 0.0 } else { number }
}
