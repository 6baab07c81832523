//! Blocks of 32 elements with one scale.

use super::BlockLayout;
use super::unpack::{half, nibbles, spread};
use crate::dtype::Dtype;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Integers from -8 to 7.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q4_0 {
    pub(in crate::blocks) d: U16,
    pub(in crate::blocks) qs: [u8; 16],
}

impl BlockLayout<32, 1> for Q4_0 {
    const CODE_BITS: u32 = 4;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 32]) {
        nibbles(self.qs, codes);
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        code as i8 - 8
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }
}

/// Integers from 0 to 15, and an offset.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q4_1 {
    pub(in crate::blocks) d: U16,
    pub(in crate::blocks) m: U16,
    pub(in crate::blocks) qs: [u8; 16],
}

impl BlockLayout<32, 1> for Q4_1 {
    const CODE_BITS: u32 = 4;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 32]) {
        nibbles(self.qs, codes);
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }

    #[inline(always)]
    fn offsets(&self) -> Option<[f32; 1]> {
        Some([-half(self.m)])
    }
}

/// Integers from -16 to 15, whose highest bits are in `qh`.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q5_0 {
    pub(in crate::blocks) d: U16,
    pub(in crate::blocks) qh: [u8; 4],
    pub(in crate::blocks) qs: [u8; 16],
}

impl BlockLayout<32, 1> for Q5_0 {
    const CODE_BITS: u32 = 5;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 32]) {
        codes_of_5_bits(self.qh, self.qs, codes);
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        code as i8 - 16
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }
}

/// Integers from 0 to 31, and an offset.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q5_1 {
    pub(in crate::blocks) d: U16,
    pub(in crate::blocks) m: U16,
    pub(in crate::blocks) qh: [u8; 4],
    pub(in crate::blocks) qs: [u8; 16],
}

impl BlockLayout<32, 1> for Q5_1 {
    const CODE_BITS: u32 = 5;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 32]) {
        codes_of_5_bits(self.qh, self.qs, codes);
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }

    #[inline(always)]
    fn offsets(&self) -> Option<[f32; 1]> {
        Some([-half(self.m)])
    }
}

/// Integers of 8 bits.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q8_0 {
    pub(in crate::blocks) d: U16,
    pub(in crate::blocks) qs: [u8; 32],
}

impl BlockLayout<32, 1> for Q8_0 {
    const CODE_BITS: u32 = 8;
    const CODES: Option<Dtype> = Some(Dtype::Int8);
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 32]) {
        *codes = self.qs;
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }
}

/// Writes codes of four low bits, as in [`nibbles`], and a high bit.
#[inline(always)]
fn codes_of_5_bits(high: [u8; 4], low: [u8; 16], codes: &mut [u8; 32]) {
    nibbles(low, codes);
    for (codes, bits) in codes.as_chunks_mut::<8>().0.iter_mut().zip(high) {
        *codes = (u64::from_le_bytes(*codes) | spread(bits) << 4).to_le_bytes();
    }
}
