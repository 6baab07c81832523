//! Zero points and offsets of groups, as float32.

use super::super::layout::{ScaleOrder, Zeros};
use super::casts::run;
use super::codes::AWQ_NIBBLES;
use super::geometry::DecodeGeometry;
use super::linear::number_at;
use super::scales::GroupRange;
use crate::dtype::Dtype;
use crate::kernel::Kernel;

/// Reader of stored zero points.
pub(in crate::quant) struct ZeroPoints {
    pub(in crate::quant) order: Zeros,
    /// Number added to the stored number, modulo the range of codes.
    pub(super) more: u32,
    /// Conversion to float32, for [`Zeros::Plain`], [`Zeros::Scaled`] and offsets.
    pub(super) kernel: Option<Kernel>,
    /// The dtype of zero points, for [`Zeros::Stream`], [`Zeros::Added`] and [`Zeros::Scaled`].
    pub(super) dtype: Dtype,
    /// See [`super::super::parts::Parameters::is_symmetric`].
    pub(super) is_symmetric: bool,
}

impl ZeroPoints {
    /// Returns the middle of the range of unsigned codes.
    pub(super) fn middle(&self, geometry: &DecodeGeometry) -> f32 {
        if self.order == Zeros::Plain { 0.0 } else { (1_u32 << (geometry.bits - 1)) as f32 }
    }

    /// Writes the zero points of some groups of a row of groups; `bytes` holds all of them.
    #[inline(always)]
    pub(in crate::quant) fn fetch(
        &self,
        geometry: &DecodeGeometry,
        bytes: &[u8],
        place: &GroupRange,
        out: &mut [[u8; 4]],
    ) {
        let GroupRange { matrix, below, groups } = place.clone();
        let [rows, beside] = geometry.grid.map(|count| count as usize);
        let bits = geometry.bits as usize;
        let words = (rows * bits).div_ceil(32);
        let mask = ((1_u64 << bits) - 1) as u32;
        let base = matrix * words * beside;
        let word = |at: usize| u32::from_le_bytes(bytes.as_chunks().0[base + at]);
        let finish = |code: u32| (((code + self.more) & mask) as f32).to_le_bytes();
        match self.order {
            Zeros::None => {}
            Zeros::Stream => {
                let first = matrix * geometry.matrix_scales as usize + below * beside;
                for (out, group) in out.iter_mut().zip(groups) {
                    *out = number_at(bytes, self.dtype, first + group).to_le_bytes();
                }
            }
            Zeros::Plain | Zeros::Offset | Zeros::Fused => {
                let width = if self.order == Zeros::Plain { 1 } else { geometry.scale.dtype.bits() as usize / 8 };
                let first = if geometry.matrix_scales == 0 { 0 } else { (matrix * rows + below) * beside };
                let count = groups.len();
                let bytes = &bytes[(first + groups.start) * width..(first + groups.end) * width];
                if let Some(kernel) = &self.kernel {
                    run(kernel, bytes, out.as_flattened_mut(), count);
                }
            }
            Zeros::Added | Zeros::Scaled => {
                let width = self.dtype.bits() as usize / 8;
                for (out, group) in out.iter_mut().zip(groups) {
                    let at = ((matrix * beside + group) * rows + below) * width;
                    if let Some(kernel) = &self.kernel {
                        run(kernel, &bytes[at..at + width], out, 1);
                    }
                }
            }
            Zeros::PackedBlocks => {
                let is_transposed = geometry.scale_order == ScaleOrder::Transposed;
                let line = (if is_transposed { rows } else { beside } * bits).div_ceil(8);
                for (out, group) in out.iter_mut().zip(groups) {
                    let [row, at] = if is_transposed { [group, below] } else { [below, group] };
                    let bit = at * bits;
                    *out = finish(u32::from(bytes[row * line + bit / 8]) >> (bit % 8) & mask);
                }
            }
            Zeros::PackedDown | Zeros::PackedTransposed => {
                let (start, shift) = (below * bits / 32, below * bits % 32);
                for (out, group) in out.iter_mut().zip(groups) {
                    let at = |word: usize| {
                        if self.order == Zeros::PackedDown { word * beside + group } else { group * words + word }
                    };
                    let high = if shift + bits > 32 { word(at(start + 1)) } else { 0 };
                    let both = u64::from(word(at(start))) | u64::from(high) << 32;
                    *out = finish((both >> shift) as u32 & mask);
                }
            }
            Zeros::Awq => {
                for (out, group) in out.iter_mut().zip(groups) {
                    *out = finish(word(group * words + below / 8) >> (4 * AWQ_NIBBLES[below % 8]) & mask);
                }
            }
        }
    }
}
