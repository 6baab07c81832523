//! Blocks of one or two bits per element with one scale.

use super::BlockLayout;
use super::unpack::{add_planes, half, spread};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The numbers -1 and 1.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q1_0 {
    d: U16,
    qs: [u8; 16],
}

impl BlockLayout<128, 1> for Q1_0 {
    const CODE_BITS: u32 = 1;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 128]) {
        for (codes, bits) in codes.as_chunks_mut().0.iter_mut().zip(self.qs) {
            *codes = spread(bits).to_le_bytes();
        }
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        code as i8 * 2 - 1
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }
}

/// Integers from -1 to 2, four adjacent ones in a byte.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q2_0 {
    d: U16,
    qs: [u8; 16],
}

impl BlockLayout<64, 1> for Q2_0 {
    const CODE_BITS: u32 = 2;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 64]) {
        for (codes, byte) in codes.as_chunks_mut().0.iter_mut().zip(self.qs) {
            let byte = u32::from(byte);
            *codes = ((byte | byte << 6 | byte << 12 | byte << 18) & 0x0303_0303).to_le_bytes();
        }
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        code as i8 - 1
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }
}

/// Integers from -1 to 1. A byte is the fraction 0.abcde of five ternary digits, rounded up.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Tq1_0 {
    pub(in crate::blocks) qs: [u8; 32],
    pub(in crate::blocks) more: [u8; 16],
    /// Four digits in a byte.
    pub(in crate::blocks) qh: [u8; 4],
    pub(in crate::blocks) d: U16,
}

impl BlockLayout<256, 1> for Tq1_0 {
    const CODE_BITS: u32 = 2;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        let (first, rest) = codes.split_at_mut(5 * 32);
        let (second, third) = rest.split_at_mut(5 * 16);
        digits(self.qs, first);
        digits(self.more, second);
        digits(self.qh, third);
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        code as i8 - 1
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }
}

/// Writes the first digit of each byte, then the second of each, and so on.
#[inline(always)]
fn digits<const N: usize>(mut bytes: [u8; N], codes: &mut [u8]) {
    for codes in codes.as_chunks_mut::<N>().0 {
        let mut digits = [0; N];
        for at in 0..N {
            digits[at] = ((u16::from(bytes[at]) * 3) >> 8) as u8;
            bytes[at] = bytes[at].wrapping_mul(3);
        }
        *codes = digits;
    }
}

/// Integers from -1 to 2.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Tq2_0 {
    pub(in crate::blocks) qs: [[u8; 32]; 2],
    pub(in crate::blocks) d: U16,
}

impl BlockLayout<256, 1> for Tq2_0 {
    const CODE_BITS: u32 = 2;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        *codes = [0; 256];
        for (bytes, codes) in self.qs.iter().zip(codes.as_chunks_mut::<128>().0) {
            add_planes::<2>(*bytes, 0, codes);
        }
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        code as i8 - 1
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }
}
