//! Blocks of 256 elements in groups, whose scales are integers times a scale of the block.

use super::BlockLayout;
use super::unpack::{add_planes, half, nibbles};
use crate::dtype::Dtype;
use zerocopy::little_endian::{F32, U16};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Integers from 0 to 3.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q2K {
    /// Scales in the low halves, offsets in the high halves.
    pub(in crate::blocks) scales: [u8; 16],
    pub(in crate::blocks) qs: [[u8; 32]; 2],
    pub(in crate::blocks) d: U16,
    pub(in crate::blocks) dmin: U16,
}

impl BlockLayout<256, 16> for Q2K {
    const CODE_BITS: u32 = 2;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        *codes = [0; 256];
        for (bytes, codes) in self.qs.iter().zip(codes.as_chunks_mut::<128>().0) {
            add_planes::<2>(*bytes, 0, codes);
        }
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 16] {
        let mut scales = self.scales;
        for scale in &mut scales {
            *scale &= 15;
        }
        times(scales, half(self.d))
    }

    #[inline(always)]
    fn offsets(&self) -> Option<[f32; 16]> {
        let mut offsets = self.scales;
        for offset in &mut offsets {
            *offset >>= 4;
        }
        Some(times(offsets, half(self.dmin)))
    }
}

/// Integers from -4 to 3, whose highest bits are in `hmask`.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q3K {
    pub(in crate::blocks) hmask: [u8; 32],
    pub(in crate::blocks) qs: [[u8; 32]; 2],
    /// The four low bits of 16 scales, as in [`nibbles`].
    pub(in crate::blocks) scales_low: [u8; 8],
    /// Their two high bits.
    pub(in crate::blocks) scales_high: [u8; 4],
    pub(in crate::blocks) d: U16,
}

impl BlockLayout<256, 16> for Q3K {
    const CODE_BITS: u32 = 3;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        *codes = [0; 256];
        for (bytes, codes) in self.qs.iter().zip(codes.as_chunks_mut::<128>().0) {
            add_planes::<2>(*bytes, 0, codes);
        }
        add_planes::<1>(self.hmask, 2, codes);
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        code as i8 - 4
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 16] {
        let mut scales = [0; 16];
        nibbles(self.scales_low, &mut scales);
        for (plane, scales) in scales.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            for (scale, byte) in scales.iter_mut().zip(self.scales_high) {
                *scale |= (byte >> (2 * plane) & 3) << 4;
            }
        }
        times(scales.map(|scale| scale as i8 - 32), half(self.d))
    }
}

/// The scales and offsets of eight groups, which have 6 bits each.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct SixBitScales {
    pub(in crate::blocks) d: U16,
    pub(in crate::blocks) dmin: U16,
    /// The first four of each are the low bits of a byte. The last four have their low bits in the last bytes, and their
    /// high bits above the first four.
    pub(in crate::blocks) packed: [u8; 12],
}

impl SixBitScales {
    #[inline(always)]
    pub(in crate::blocks) fn scales(&self) -> [f32; 8] {
        times(self.unpacked()[0], half(self.d))
    }

    #[inline(always)]
    pub(in crate::blocks) fn offsets(&self) -> [f32; 8] {
        times(self.unpacked()[1], half(self.dmin))
    }

    #[inline(always)]
    fn unpacked(&self) -> [[u8; 8]; 2] {
        let [mut scales, mut offsets] = [[0; 8]; 2];
        for at in 0..4 {
            let [first, second, low] = [self.packed[at], self.packed[at + 4], self.packed[at + 8]];
            (scales[at], offsets[at]) = (first & 63, second & 63);
            (scales[at + 4], offsets[at + 4]) = (low & 15 | first >> 6 << 4, low >> 4 | second >> 6 << 4);
        }
        [scales, offsets]
    }
}

/// Integers from 0 to 15.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q4K {
    pub(in crate::blocks) scales: SixBitScales,
    pub(in crate::blocks) qs: [[u8; 32]; 4],
}

impl BlockLayout<256, 8> for Q4K {
    const CODE_BITS: u32 = 4;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for (bytes, codes) in self.qs.iter().zip(codes.as_chunks_mut::<64>().0) {
            nibbles(*bytes, codes);
        }
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 8] {
        self.scales.scales()
    }

    #[inline(always)]
    fn offsets(&self) -> Option<[f32; 8]> {
        Some(self.scales.offsets())
    }
}

/// Integers from 0 to 31, whose highest bits are in `qh`.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q5K {
    pub(in crate::blocks) scales: SixBitScales,
    pub(in crate::blocks) qh: [u8; 32],
    pub(in crate::blocks) qs: [[u8; 32]; 4],
}

impl BlockLayout<256, 8> for Q5K {
    const CODE_BITS: u32 = 5;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for (bytes, codes) in self.qs.iter().zip(codes.as_chunks_mut::<64>().0) {
            nibbles(*bytes, codes);
        }
        add_planes::<1>(self.qh, 4, codes);
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 8] {
        self.scales.scales()
    }

    #[inline(always)]
    fn offsets(&self) -> Option<[f32; 8]> {
        Some(self.scales.offsets())
    }
}

/// Integers from -32 to 31: four low bits, and two high bits.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q6K {
    pub(in crate::blocks) ql: [[u8; 64]; 2],
    pub(in crate::blocks) qh: [[u8; 32]; 2],
    pub(in crate::blocks) scales: [i8; 16],
    pub(in crate::blocks) d: U16,
}

impl BlockLayout<256, 16> for Q6K {
    const CODE_BITS: u32 = 6;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for ((low, high), codes) in self.ql.iter().zip(&self.qh).zip(codes.as_chunks_mut::<128>().0) {
            nibbles(*low, codes);
            add_planes::<2>(*high, 4, codes);
        }
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        code as i8 - 32
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 16] {
        times(self.scales, half(self.d))
    }
}

/// Integers of 8 bits with one scale. ggml uses it for activations only.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Q8K {
    d: F32,
    qs: [u8; 256],
    /// Sums of 16 codes each.
    _bsums: [U16; 16],
}

impl BlockLayout<256, 1> for Q8K {
    const CODE_BITS: u32 = 8;
    const SCALE: Dtype = Dtype::Float32;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        *codes = self.qs;
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [self.d.get()]
    }
}

/// Returns integers times a number.
#[inline(always)]
fn times<const G: usize, I: Copy>(integers: [I; G], scale: f32) -> [f32; G]
where
    f32: From<I>,
{
    let mut products = [0.0; G];
    for (product, integer) in products.iter_mut().zip(integers) {
        *product = f32::from(integer) * scale;
    }
    products
}
