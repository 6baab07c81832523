//! Scales of groups, as float32.

use super::super::layout::{Exponents, Layout, ScaleOrder};
use super::casts::{cast, run};
use super::geometry::DecodeGeometry;
use crate::dtype::Dtype;
use crate::kernel::Kernel;
use std::ops::Range;

/// Conversion of stored scales to numbers.
pub(in crate::quant) enum ScaleReader {
    /// Floats.
    Numbers(Kernel),
    /// Bytes that are powers of two: the float32 bits of the first and last, and the number subtracted from the others.
    Exponents { first: u32, last: u32, less: u32 },
    /// Codes of a map, with separate scales and an offset (bitsandbytes).
    Nested { group: usize, offset: f32 },
}

impl ScaleReader {
    /// Creates the reader; `None` for a dtype that is not a number.
    pub(super) fn new(layout: &Layout, geometry: &DecodeGeometry, offset: f32) -> Option<Self> {
        let dtype = geometry.scale.dtype;
        if geometry.nested.is_some() {
            return Some(Self::Nested { group: geometry.nested_group as usize, offset });
        }
        // Only old versions of torch lack a type for E4M3 and use bytes.
        let is_viewed = dtype == Dtype::Uint8 && layout.scale_dtypes.contains(&Dtype::Float8E4M3FN);
        if matches!(dtype, Dtype::Uint8 | Dtype::Float8E8M0) && !is_viewed {
            return Some(exponents(layout.exponents, dtype));
        }
        let dtype = if is_viewed { Dtype::Float8E4M3FN } else { dtype };
        cast(dtype, Dtype::Float32).map(Self::Numbers)
    }

    /// Returns the factor of the scales: 2 if they are half of their real values, otherwise 1.
    pub(in crate::quant) fn factor(&self) -> f32 {
        if matches!(self, Self::Exponents { less: 1, .. }) { 2.0 } else { 1.0 }
    }
}

/// Returns the reader of exponents by a rule: see [`Exponents`].
fn exponents(rule: Exponents, dtype: Dtype) -> ScaleReader {
    const TINY: u32 = 0x0040_0000; // 2^-127
    let (infinity, nan) = (f32::INFINITY.to_bits(), f32::NAN.to_bits());
    let (first, last, less) = match rule {
        Exponents::ByDtype if dtype == Dtype::Float8E8M0 => (TINY, nan, 0),
        Exponents::Infinity | Exponents::ByDtype => (TINY, infinity, 0),
        Exponents::Zero => (0, infinity, 0),
        // 2^(b-128), which is a float32 for every b; codes are doubled to compensate.
        Exponents::Ldexp => (TINY >> 1, 254 << 23, 1),
    };
    ScaleReader::Exponents { first, last, less }
}

/// Groups of one row of a matrix.
#[derive(Clone)]
pub(in crate::quant) struct GroupRange {
    pub(in crate::quant) matrix: usize,
    /// The row of groups.
    pub(in crate::quant) below: usize,
    /// The groups; for [`ScaleOrder::Flat`], counted through the whole weight.
    pub(in crate::quant) groups: Range<usize>,
}

impl GroupRange {
    /// True if these groups of a row of groups are in the range.
    #[inline(always)]
    pub(super) fn contains(&self, matrix: usize, below: usize, groups: &Range<usize>) -> bool {
        (self.matrix, self.below) == (matrix, below)
            && self.groups.start <= groups.start
            && groups.end <= self.groups.end
    }
}

impl ScaleReader {
    /// Writes the scales of some groups from the stored `parts`; `raw` is a buffer for stored scales.
    #[inline(always)]
    pub(in crate::quant) fn fetch(
        &self,
        geometry: &DecodeGeometry,
        place: &GroupRange,
        parts: &[&[u8]],
        raw: &mut [u8],
        out: &mut [[u8; 4]],
    ) {
        let (stored, groups) = (stored_scales(geometry, place, parts, raw), place.groups.clone());
        match self {
            Self::Numbers(kernel) => {
                run(kernel, stored, out.as_flattened_mut(), groups.len());
            }
            Self::Exponents { first, last, less } => {
                for (out, byte) in out.iter_mut().zip(stored) {
                    let bits = u32::from(*byte).wrapping_sub(*less) << 23;
                    let bits = if *byte == 0 { *first } else { bits };
                    // 2^-127 is subnormal.
                    let bits = if *less == 1 && *byte == 1 { *first << 1 } else { bits };
                    *out = (if *byte == 255 { *last } else { bits }).to_le_bytes();
                }
            }
            Self::Nested { group, offset } => {
                let Some([scales, map]) = geometry.nested else { return };
                let number = |index: usize, at: usize| f32::from_le_bytes(parts[index].as_chunks().0[at]);
                for ((out, code), at) in out.iter_mut().zip(stored).zip(groups) {
                    let value = number(map.index, usize::from(*code)) * number(scales.index, at / group);
                    *out = (value + offset).to_le_bytes();
                }
            }
        }
    }
}

/// Returns the stored bytes of the scales of some groups, in the order of the groups; `raw` is a buffer for them.
#[inline(always)]
pub(in crate::quant) fn stored_scales<'a>(
    geometry: &DecodeGeometry,
    place: &GroupRange,
    parts: &[&'a [u8]],
    raw: &'a mut [u8],
) -> &'a [u8] {
    let bytes = parts[geometry.scale.index];
    let width = geometry.scale.dtype.bits() as usize / 8;
    let GroupRange { matrix, below, groups } = place.clone();
    let [rows, beside] = geometry.grid.map(|count| count as usize);
    let base = matrix * geometry.matrix_scales as usize;
    let len = groups.len() * width;
    let stored = match geometry.scale_order {
        ScaleOrder::Rows => &bytes[(base + below * beside + groups.start) * width..],
        ScaleOrder::Flat => &bytes[groups.start * width..],
        ScaleOrder::Transposed => {
            gather(bytes, raw, width, groups.map(|group| base + group * rows + below));
            raw
        }
        ScaleOrder::Swizzled => {
            let line = swizzled_line(below, geometry.swizzled_columns as usize);
            gather(bytes, raw, width, groups.map(|group| line + 512 * (group / 4) + group % 4));
            raw
        }
    };
    &stored[..len]
}

/// Returns the offset of a row's first scale in row-major tiles of 128 x 4: see [`ScaleOrder::Swizzled`].
pub(in crate::quant) fn swizzled_line(row: usize, columns: usize) -> usize {
    512 * (row / 128 * (columns / 4)) + 16 * (row % 32) + 4 * (row % 128 / 32)
}

/// Copies elements of `width` bytes.
#[inline(always)]
fn gather(bytes: &[u8], out: &mut [u8], width: usize, places: impl Iterator<Item = usize>) {
    match width {
        1 => {
            for (at, out) in places.zip(out) {
                *out = bytes[at];
            }
        }
        2 => gather_elements::<2>(bytes, out, places),
        _ => gather_elements::<4>(bytes, out, places),
    }
}

#[inline(always)]
fn gather_elements<const N: usize>(bytes: &[u8], out: &mut [u8], places: impl Iterator<Item = usize>) {
    let elements = bytes.as_chunks::<N>().0;
    for (at, out) in places.zip(out.as_chunks_mut::<N>().0) {
        *out = elements[at];
    }
}
