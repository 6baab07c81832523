//! Zero points and offsets of groups, as float32.

use super::super::layout::Zeros;
use super::casts::run;
use super::codes::AWQ_NIBBLES;
use super::geometry::DecodeGeometry;
use super::linear::number_at;
use super::{Decoder, Steps};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use std::ops::Range;

/// Reader of stored zero points.
pub(in crate::quant) struct ZeroPoints {
    pub(in crate::quant) order: Zeros,
    /// Number added to the stored number, modulo the range of codes.
    pub(super) more: u32,
    /// Conversion to float32, for [`Zeros::Plain`] and [`Zeros::Offset`].
    pub(super) kernel: Option<Kernel>,
    /// The dtype of zero points, for [`Zeros::Stream`].
    pub(super) dtype: Dtype,
    /// See [`super::super::parts::Parameters::is_symmetric`].
    pub(super) is_symmetric: bool,
}

impl Decoder {
    /// The index of the part with zero points, if the config declares the grid symmetric.
    #[must_use]
    pub fn symmetric_part(&self) -> Option<usize> {
        let steps = self.steps()?;
        steps.geometry.zero.filter(|_| steps.zeros.is_symmetric).map(|slot| slot.index)
    }

    /// Refuses zero points that contradict a symmetric grid. `bytes` are the bytes of the part
    /// [`Decoder::symmetric_part`].
    pub fn check_symmetric(&self, bytes: &[u8]) -> Result<()> {
        let Some(Steps { geometry, zeros, .. }) = self.steps() else { return Ok(()) };
        let [below, beside] = geometry.grid.map(|count| count as usize);
        let middle = if zeros.order == Zeros::Plain { 0.0 } else { (1_u32 << (geometry.bits - 1)) as f32 };
        let correction = match zeros.order {
            Zeros::Plain | Zeros::PackedDown => "\"symmetric\" to false",
            Zeros::Awq => "\"zero_point\" to true (AWQ) or \"sym\" to false (auto-round)",
            _ => "\"sym\" to false",
        };
        let v2 = "\"checkpoint_format\" to \"gptq_v2\"";
        let mut row = vec![[0; 4]; beside];
        for (matrix, at) in (0..geometry.matrices as usize).flat_map(|matrix| (0..below).map(move |at| (matrix, at))) {
            zeros.fetch(geometry, bytes, (matrix, at), 0..beside, &mut row);
            if let Some(other) = row.iter().map(|zero| f32::from_le_bytes(*zero)).find(|zero| *zero != middle) {
                let message = format!(
                    "holds the zero point {other}, and the config says that the grid is symmetric, where engines use {middle}"
                );
                // Stored as the middle itself, and not as one less.
                let is_v2 = zeros.more == 1 && other == middle + 1.0;
                let correction = if is_v2 { v2 } else { correction };
                let remedy = format!("if the zero points are right, set {correction} in the config");
                return Err(Error::new(message).remedy(remedy));
            }
        }
        Ok(())
    }
}

impl ZeroPoints {
    /// Writes the zero points of some groups of a row of groups; `bytes` holds all of them.
    #[inline(always)]
    pub(in crate::quant) fn fetch(
        &self,
        geometry: &DecodeGeometry,
        bytes: &[u8],
        (matrix, below): (usize, usize),
        groups: Range<usize>,
        out: &mut [[u8; 4]],
    ) {
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
            Zeros::Plain | Zeros::Offset => {
                let width = if self.order == Zeros::Offset { geometry.scale.dtype.bits() as usize / 8 } else { 1 };
                let first = if geometry.matrix_scales == 0 { 0 } else { (matrix * rows + below) * beside };
                let count = groups.len();
                let bytes = &bytes[(first + groups.start) * width..(first + groups.end) * width];
                if let Some(kernel) = &self.kernel {
                    run(kernel, bytes, out.as_flattened_mut(), count);
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
