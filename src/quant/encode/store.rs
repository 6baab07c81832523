//! Stores scales, zero points and codes at their places in the parts of a weight.

use super::super::layout::{Packing, Role};
use super::super::scales::swizzled_line;
use super::Encoder;
use super::choose::GroupScale;
use super::lanes;
use crate::dtype::Dtype;
use std::ops::Range;

/// The buffers for some rows of a weight.
pub(in crate::quant) struct PartWriter<'a, 'o> {
    encoder: &'a Encoder,
    outputs: &'a mut [&'o mut [u8]],
    /// Where in its part each buffer begins.
    starts: Vec<usize>,
}

impl<'a, 'o> PartWriter<'a, 'o> {
    /// Fills the buffers with zeros, and writes the parts that do not depend on values, and the global scale.
    pub(in crate::quant) fn new(
        encoder: &'a Encoder,
        rows: &Range<u64>,
        outputs: &'a mut [&'o mut [u8]],
        global: f32,
    ) -> Self {
        let starts = encoder.shape.part_ranges(rows).iter().map(|range| range.start as usize).collect();
        outputs.iter_mut().for_each(|out| out.fill(0));
        for (part, out) in encoder.shape.parts.iter().zip(&mut *outputs) {
            match (&part.fixed, part.role) {
                _ if out.is_empty() => {}
                (Some(bytes), _) => out.copy_from_slice(bytes),
                (None, Role::GlobalScale) => out.copy_from_slice(&global.to_le_bytes()),
                _ => {}
            }
        }
        Self { encoder, outputs, starts }
    }

    /// Stores the scale of the whole weight. The rows must be the first ones.
    pub(in crate::quant) fn store_only_scale(&mut self, scale: GroupScale) {
        self.store(&[scale], |_| 0, |_| 0);
    }

    /// Stores the scales and zero points of groups of a matrix: those from the group `first` on in the row of groups
    /// that begins at `row`.
    #[inline(always)]
    pub(in crate::quant) fn store_scales(&mut self, matrix: usize, row: usize, first: usize, chosen: &[GroupScale]) {
        let shape = &self.encoder.shape;
        let [height, beside] = shape.grid.map(|count| count as usize);
        let below = row / shape.block[0] as usize;
        let line = (matrix * height + below) * beside;
        let width = shape.parts[1].dtype.bits() as usize / 8;
        let zero = line + first;
        let (start, zero_start) = (self.starts[1], self.starts.get(2).copied().unwrap_or_default());
        match shape.swizzled {
            Some([_, columns]) => {
                let line = swizzled_line(below, columns as usize);
                self.store(chosen, |at| line + 512 * ((first + at) / 4) + (first + at) % 4 - start, |at| at);
            }
            None => {
                self.store(chosen, |at| (line + first + at) * width - start, |at| zero + at - zero_start);
            }
        }
        if let Some(words) = shape.zero_words {
            let bit = row * shape.bits as usize;
            let out = &mut self.outputs[2];
            let half = (1_u32 << (shape.bits - 1)) as f32;
            for (at, chosen) in chosen.iter().enumerate() {
                let code = u64::from((chosen.zero + half) as u32) << (bit % 32);
                for (word, code) in [code as u32, (code >> 32) as u32].into_iter().enumerate() {
                    let word = matrix * words as usize + bit / 32 + word;
                    let place = 4 * (word * beside + first + at) - zero_start;
                    if let Some(bytes) = out.get_mut(place..place + 4).filter(|_| code != 0) {
                        bytes.iter_mut().zip(code.to_le_bytes()).for_each(|(byte, code)| *byte |= code);
                    }
                }
            }
        }
    }

    /// Stores scales and plain zero points at these places of their buffers.
    #[inline(always)]
    fn store(&mut self, chosen: &[GroupScale], scale: impl Fn(usize) -> usize, zero: impl Fn(usize) -> usize) {
        let shape = &self.encoder.shape;
        let out = &mut self.outputs[1];
        for (at, chosen) in chosen.iter().enumerate() {
            let place = scale(at);
            match shape.parts[1].dtype {
                Dtype::Float32 => out[place..place + 4].copy_from_slice(&chosen.stored.to_le_bytes()),
                Dtype::Bfloat16 => out[place..place + 2].copy_from_slice(&((chosen.stored >> 16) as u16).to_le_bytes()),
                Dtype::Float16 => {
                    let (code, _) = self.encoder.float16.round(f32::from_bits(chosen.stored));
                    out[place..place + 2].copy_from_slice(&(code as u16).to_le_bytes());
                }
                _ => out[place] = chosen.stored as u8,
            }
        }
        if self.encoder.chooser.zero_bits.is_some() && shape.zero_words.is_none() {
            let out = &mut self.outputs[2];
            chosen.iter().enumerate().for_each(|(at, chosen)| out[zero(at)] = chosen.zero as i8 as u8);
        }
    }

    /// Stores the codes of some columns of a row of a matrix, one per byte of `codes`.
    #[inline(always)]
    pub(in crate::quant) fn store_codes(&mut self, matrix: usize, row: usize, columns: Range<usize>, codes: &[u8]) {
        let Encoder { shape, packing, .. } = self.encoder;
        let (bits, stride) = (shape.bits as usize, shape.stride as usize);
        let line = (matrix * shape.rows as usize + row) * stride - self.starts[0];
        let start = line + columns.start * bits / 8;
        let end = if columns.end == shape.columns as usize { line + stride } else { line + columns.end * bits / 8 };
        lanes::pack(codes, shape.bits, *packing == Packing::RowsHighFirst, &mut self.outputs[0][start..end]);
    }
}
