//! Blocks whose numbers are not evenly spaced: codes are entries of a table, or points of a grid with 4 or 8 elements.

use super::BlockLayout;
use super::grid_tables::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::unpack::{ONES, half, negate, nibbles, pairs, signs};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Entries of a table, with one scale.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Iq4Nl {
    pub(in crate::blocks) d: U16,
    pub(in crate::blocks) qs: [u8; 16],
}

impl BlockLayout<32, 1> for Iq4Nl {
    const CODE_BITS: u32 = 4;
    const HAS_GRID: bool = true;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 32]) {
        nibbles(self.qs, codes);
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        entry(code)
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 1] {
        [half(self.d)]
    }
}

/// Entries of the same table, with scales of 6 bits.
#[derive(Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Iq4Xs {
    pub(in crate::blocks) d: U16,
    pub(in crate::blocks) scales_h: U16,
    pub(in crate::blocks) scales_l: [u8; 4],
    pub(in crate::blocks) qs: [[u8; 16]; 8],
}

impl BlockLayout<256, 8> for Iq4Xs {
    const CODE_BITS: u32 = 4;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for (bytes, codes) in self.qs.iter().zip(codes.as_chunks_mut::<32>().0) {
            nibbles(*bytes, codes);
        }
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        entry(code)
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 8] {
        let (d, low, high) = (half(self.d), pairs::<4, 8>(&self.scales_l), self.scales_h.get());
        let mut scales = [0.0; 8];
        for (at, scale) in scales.iter_mut().enumerate() {
            let bits = low[at] | ((high >> (2 * at) & 3) as u8) << 4;
            *scale = d * f32::from(bits as i8 - 32);
        }
        scales
    }
}

/// Points of eight elements, and their signs.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Iq2Xxs {
    d: U16,
    qs: [PointsAndSigns; 8],
}

/// 32 elements: 28 bits of `signs` are signs, and the 4 highest are the scale.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct PointsAndSigns {
    points: [u8; 4],
    signs: U32,
}

impl BlockLayout<256, 8> for Iq2Xxs {
    const CODE_BITS: u32 = 8;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for (group, codes) in self.qs.iter().zip(codes.as_chunks_mut().0.as_chunks_mut::<4>().0) {
            let mut negative = group.signs.get();
            for (point, codes) in group.points.iter().zip(codes) {
                *codes = negate(IQ2_XXS[usize::from(*point)], signs(negative));
                negative >>= 7;
            }
        }
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 8] {
        let (d, mut scales) = (half(self.d), [0.0; 8]);
        for (scale, group) in scales.iter_mut().zip(self.qs) {
            *scale = d * (0.5 + (group.signs.get() >> 28) as f32) * 0.25;
        }
        scales
    }

    fn code(&self, element: usize) -> u32 {
        self.qs[element / 32].points[element / 8 % 4].into()
    }
}

/// Points of eight elements in 9 bits, with their signs in 7 bits.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Iq2Xs {
    d: U16,
    qs: [U16; 32],
    scales: [u8; 8],
}

impl BlockLayout<256, 16> for Iq2Xs {
    const CODE_BITS: u32 = 9;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for (code, codes) in self.qs.iter().zip(codes.as_chunks_mut().0) {
            let code = usize::from(code.get());
            *codes = negate(IQ2_XS[code & 511], signs(code as u32 >> 9));
        }
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 16] {
        scales_of_4_bits(half(self.d), &self.scales)
    }

    fn code(&self, element: usize) -> u32 {
        u32::from(self.qs[element / 8].get()) & 511
    }
}

/// Points of eight elements in 10 bits, with their signs in 8 bits.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Iq2S {
    d: U16,
    qs: [u8; 32],
    signs: [u8; 32],
    qh: [u8; 8],
    scales: [u8; 8],
}

impl Iq2S {
    #[inline(always)]
    fn point(&self, at: usize) -> usize {
        usize::from(self.qs[at]) | (usize::from(self.qh[at / 4]) >> (at % 4 * 2) & 3) << 8
    }
}

impl BlockLayout<256, 16> for Iq2S {
    const CODE_BITS: u32 = 10;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for (at, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            *codes = negate(IQ2_S[self.point(at)], self.signs[at]);
        }
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 16] {
        scales_of_4_bits(half(self.d), &self.scales)
    }

    fn code(&self, element: usize) -> u32 {
        self.point(element / 8) as u32
    }
}

/// Points of four elements. For 32 elements, 28 bits of `signs` are signs, and the 4 highest are the scale.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Iq3Xxs {
    d: U16,
    qs: [[[u8; 2]; 4]; 8],
    signs: [U32; 8],
}

impl BlockLayout<256, 8> for Iq3Xxs {
    const CODE_BITS: u32 = 8;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        let groups = codes.as_chunks_mut().0.as_chunks_mut::<4>().0;
        for ((points, negative), codes) in self.qs.iter().zip(self.signs).zip(groups) {
            let mut negative = negative.get();
            for ([first, second], codes) in points.iter().zip(codes) {
                let numbers = IQ3_XXS[usize::from(*first)] | IQ3_XXS[usize::from(*second)] << 32;
                *codes = negate(numbers, signs(negative));
                negative >>= 7;
            }
        }
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 8] {
        let (d, mut scales) = (half(self.d), [0.0; 8]);
        for (scale, signs) in scales.iter_mut().zip(self.signs) {
            *scale = d * (0.5 + (signs.get() >> 28) as f32) * 0.5;
        }
        scales
    }

    fn code(&self, element: usize) -> u32 {
        self.qs[element / 32][element / 8 % 4][element / 4 % 2].into()
    }
}

/// Points of four elements in 9 bits, with their signs in 4 bits.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Iq3S {
    d: U16,
    qs: [u8; 64],
    qh: [u8; 8],
    signs: [u8; 32],
    scales: [u8; 4],
}

impl Iq3S {
    #[inline(always)]
    fn point(&self, at: usize) -> usize {
        usize::from(self.qs[at]) | (usize::from(self.qh[at / 8]) >> (at % 8) & 1) << 8
    }
}

impl BlockLayout<256, 8> for Iq3S {
    const CODE_BITS: u32 = 9;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for (at, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            let numbers = IQ3_S[self.point(2 * at)] | IQ3_S[self.point(2 * at + 1)] << 32;
            *codes = negate(numbers, self.signs[at]);
        }
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 8] {
        let (d, integers, mut scales) = (half(self.d), pairs::<4, 8>(&self.scales), [0.0; 8]);
        for (scale, integer) in scales.iter_mut().zip(integers) {
            *scale = d * f32::from(2 * integer + 1);
        }
        scales
    }

    fn code(&self, element: usize) -> u32 {
        self.point(element / 4) as u32
    }
}

/// Points of eight elements in 11 bits, moved up or down by 1/8. In `qh`, each 32 elements have the 3 high bits of
/// their points, a scale of 3 bits, and the direction.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Iq1S {
    d: U16,
    qs: [u8; 32],
    qh: [U16; 8],
}

impl Iq1S {
    #[inline(always)]
    fn point(&self, at: usize) -> usize {
        usize::from(self.qs[at]) | (usize::from(self.qh[at / 4].get()) >> (at % 4 * 3) & 7) << 8
    }
}

impl BlockLayout<256, 8> for Iq1S {
    const CODE_BITS: u32 = 11;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for (at, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            *codes = moved(self.point(at), self.qh[at / 4].get() >> 15 != 0);
        }
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        unmoved(code)
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 8] {
        let (d, mut scales) = (half(self.d) * Self::UNIT, [0.0; 8]);
        for (scale, bits) in scales.iter_mut().zip(self.qh) {
            *scale = d * f32::from(2 * (bits.get() >> 12 & 7) + 1);
        }
        scales
    }

    fn code(&self, element: usize) -> u32 {
        self.point(element / 8) as u32
    }
}

/// Points of eight elements in 11 bits, moved up or down by 1/8. In `qh`, each point has its 3 high bits and the
/// direction. The high bits of `scales` are the scale of the block.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::blocks) struct Iq1M {
    qs: [u8; 32],
    qh: [u8; 16],
    scales: [U16; 4],
}

impl Iq1M {
    /// Returns a point, and above it the direction.
    #[inline(always)]
    fn point(&self, at: usize) -> usize {
        usize::from(self.qs[at]) | (usize::from(self.qh[at / 2]) >> (at % 2 * 4) & 15) << 8
    }
}

impl BlockLayout<256, 16> for Iq1M {
    const CODE_BITS: u32 = 11;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn codes(&self, codes: &mut [u8; 256]) {
        for (at, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            let point = self.point(at);
            *codes = moved(point & 2047, point & 2048 != 0);
        }
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        unmoved(code)
    }

    #[inline(always)]
    fn scales(&self) -> [f32; 16] {
        let (mut d, mut scales) = (0, [0.0; 16]);
        for bits in self.scales {
            d = d >> 4 | bits.get() & 0xf000;
        }
        let d = half(d.into()) * Self::UNIT;
        for (at, scale) in scales.iter_mut().enumerate() {
            *scale = d * f32::from(2 * (self.scales[at / 4].get() >> (at % 4 * 3) & 7) + 1);
        }
        scales
    }

    fn code(&self, element: usize) -> u32 {
        self.point(element / 8) as u32 & 2047
    }
}

/// Returns an entry of the table of [`Iq4Nl`].
#[inline(always)]
fn entry(code: u8) -> i8 {
    // Selections vectorize, loads do not.
    let select = |bit: u8, low: i8, high: i8| if code & bit == 0 { low } else { high };
    let four = |a, b, c, d| select(2, select(1, a, b), select(1, c, d));
    let low = select(4, four(-127, -104, -83, -65), four(-49, -35, -22, -10));
    let high = select(4, four(1, 13, 25, 38), four(53, 69, 89, 113));
    select(8, low, high)
}

/// Returns eight numbers in eighths, plus 64.
#[inline(always)]
fn moved(point: usize, is_down: bool) -> [u8; 8] {
    let numbers = IQ1[point];
    (if is_down { numbers - ONES } else { numbers + ONES }).to_le_bytes()
}

/// Subtracts the 64 that [`moved`] adds.
#[inline(always)]
fn unmoved(code: u8) -> i8 {
    code.wrapping_sub(64) as i8
}

/// Returns the scales of 16 groups: `d * (integer + 1/2) / 4`.
#[inline(always)]
fn scales_of_4_bits(d: f32, bytes: &[u8; 8]) -> [f32; 16] {
    let mut scales = [0.0; 16];
    for (scale, integer) in scales.iter_mut().zip(pairs::<8, 16>(bytes)) {
        *scale = d * (0.5 + f32::from(integer)) * 0.25;
    }
    scales
}
