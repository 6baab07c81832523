//! Stores scales, zero points and codes at their places in the parts of a weight.

use super::super::decode::scales::swizzled_line;
use super::super::layout::{CodeValues, Combination, Exponents, Packing, Role};
use super::encoder::Encoder;
use super::lanes::{CodeRounding, Pack};
use super::linear::store_nibbles;
use crate::dtype::Dtype;
use crate::kernel::half::{FLOAT16, bfloat16_bits};
use std::ops::Range;

/// The buffers for some rows of a weight.
pub(in crate::quant) struct PartWriter<'a, 'o> {
    encoder: &'a Encoder,
    outputs: &'a mut [&'o mut [u8]],
    /// The offset of each buffer in its part.
    starts: Vec<usize>,
}

impl<'a, 'o> PartWriter<'a, 'o> {
    /// Fills the buffers with zeros where necessary. Writes the global scale and the parts that do not depend on
    /// values.
    pub(in crate::quant) fn new(
        encoder: &'a Encoder,
        rows: &Range<u64>,
        outputs: &'a mut [&'o mut [u8]],
        global: f32,
    ) -> Self {
        let starts = encoder.geometry.part_ranges(rows).iter().map(|range| range.start as usize).collect();
        // Codes without padding are overwritten.
        let geometry = &encoder.geometry;
        let is_cut = geometry.is_stream && !(geometry.columns * u64::from(geometry.bits)).is_multiple_of(8);
        let is_padded = is_cut
            || geometry.parts[0].byte_len() * 8 != geometry.all_rows() * geometry.columns * u64::from(geometry.bits);
        outputs.iter_mut().skip(usize::from(!is_padded)).for_each(|out| out.fill(0));
        for (part, out) in encoder.geometry.parts.iter().zip(&mut *outputs) {
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
    pub(in crate::quant) fn store_only_scale(&mut self, scale: (u32, f32)) {
        self.store(std::iter::once(scale), [0, 0]);
    }

    /// Stores the scales and zero points of groups of a matrix, from the group `first` on in the row of groups that
    /// begins at `row`.
    pub(in crate::quant) fn store_scales(
        &mut self,
        matrix: usize,
        row: usize,
        first: usize,
        groups: impl Iterator<Item = (u32, f32)> + Clone,
    ) {
        let geometry = &self.encoder.geometry;
        let [height, beside] = geometry.grid.map(|count| count as usize);
        let below = row / geometry.block[0] as usize;
        let line = (matrix * height + below) * beside;
        let (start, zero_start) = (self.starts[1], self.starts.get(2).copied().unwrap_or_default());
        if let Some([_, columns]) = geometry.swizzled {
            let line = swizzled_line(below, columns as usize) - start;
            for (group, (code, _)) in (first..).zip(groups) {
                self.outputs[1][line + 512 * (group / 4) + group % 4] = code as u8;
            }
            return;
        }
        let width = geometry.parts[1].dtype.bits() as usize / 8;
        // Only plain zero points are stored in the order of scales.
        let before = if geometry.is_stream { 2 * zero_start } else { zero_start };
        let zero = (line + first).wrapping_sub(before);
        self.store(groups.clone(), [(line + first) * width - start, zero]);
        if let Some(bytes) = geometry.zero_bytes {
            let line = (matrix * height + below) * bytes as usize - zero_start;
            let out = &mut self.outputs[2][line..line + bytes as usize];
            let bits = geometry.bits as usize;
            let zeros = groups.clone().map(|(_, zero)| zero as u8);
            let end = first + groups.clone().count();
            // Unused bits stand for the middle of the range.
            let unused = if end == beside { end..out.len() * 8 / bits } else { 0..0 };
            for (group, zero) in (first..).zip(zeros).chain(unused.map(|at| (at, 1 << (bits - 1)))) {
                out[group * bits / 8] |= zero << (group * bits % 8);
            }
        }
        if let Some(words) = geometry.zero_words {
            let bit = row * geometry.bits as usize;
            let out = &mut self.outputs[2];
            let half = (1_u32 << (geometry.bits - 1)) as f32;
            for (group, (_, zero)) in (first..).zip(groups) {
                let code = u64::from((zero + half) as u32) << (bit % 32);
                for (word, code) in [code as u32, (code >> 32) as u32].into_iter().enumerate() {
                    let word = matrix * words as usize + bit / 32 + word;
                    let place = 4 * (word * beside + group) - zero_start;
                    if let Some(bytes) = out.get_mut(place..place + 4).filter(|_| code != 0) {
                        bytes.iter_mut().zip(code.to_le_bytes()).for_each(|(byte, code)| *byte |= code);
                    }
                }
            }
        }
    }

    /// Stores scales and plain zero points from these positions of their buffers on.
    fn store(&mut self, groups: impl Iterator<Item = (u32, f32)> + Clone, [scale, zero]: [usize; 2]) {
        let Encoder { geometry, chooser, division, .. } = self.encoder;
        let width = geometry.parts[1].dtype.bits() as usize / 8;
        self.store_numbers(1, scale / width, groups.clone().map(|(stored, _)| stored));
        if geometry.is_stream {
            if let Some(out) = self.outputs.get_mut(2) {
                store_nibbles(groups.map(|(_, zero)| zero as u8), zero, out);
            }
        } else if division.has_offsets {
            self.store_numbers(2, scale / width, groups.map(|(_, offset)| chooser.store(offset).to_bits()));
        } else if division.has_zeros && geometry.zero_words.is_none() && geometry.zero_bytes.is_none() {
            // Zero points in the middle of the range are not stored.
            let out = self.outputs.get_mut(2).map(|out| &mut out[zero..]).unwrap_or_default();
            out.iter_mut().zip(groups).for_each(|(out, (_, zero))| *out = zero as i8 as u8);
        }
    }

    /// Stores numbers of the type of scales, or bytes, in a part: the bits of float32 numbers of this type.
    fn store_numbers(&mut self, part: usize, at: usize, numbers: impl Iterator<Item = u32>) {
        let dtype = self.encoder.geometry.parts[part].dtype;
        let out = &mut self.outputs[part][at * dtype.bits() as usize / 8..];
        match dtype {
            Dtype::Float32 => {
                out.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, bits)| *out = bits.to_le_bytes());
            }
            Dtype::Bfloat16 => {
                let numbers = numbers.map(|bits| bfloat16_bits(f32::from_bits(bits)));
                out.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, bits)| *out = bits.to_le_bytes());
            }
            Dtype::Float16 => {
                let round =
                    |number: f32| FLOAT16.round(number.abs()).0 as u16 | u16::from(number.is_sign_negative()) << 15;
                let numbers = numbers.map(|bits| round(f32::from_bits(bits)));
                out.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, bits)| *out = bits.to_le_bytes());
            }
            _ => out.iter_mut().zip(numbers).for_each(|(out, code)| *out = code as u8),
        }
    }

    /// Stores the codes of some columns of a row of a matrix, one per byte of `codes`.
    pub(in crate::quant) fn store_codes(&mut self, matrix: usize, row: usize, columns: Range<usize>, codes: &[u8]) {
        let Encoder { geometry, packing, isa, .. } = self.encoder;
        if geometry.is_stream {
            let bits = geometry.bits as usize;
            let first = row * geometry.columns as usize + columns.start - self.starts[0] * 8 / bits;
            if bits == 8 {
                self.outputs[0][first..first + codes.len()].copy_from_slice(codes);
            } else if first.is_multiple_of(2) && codes.len().is_multiple_of(2) {
                let out = &mut self.outputs[0][first / 2..];
                isa.run(Pack { codes, bits: 4, high_first: false, out });
            } else {
                store_nibbles(codes.iter().copied(), first, self.outputs[0]);
            }
            return;
        }
        let (bits, high_first) = (geometry.bits, *packing == Packing::RowsHighFirst);
        let out = self.row_codes(matrix, row, columns);
        if bits == 8 {
            out[..codes.len()].copy_from_slice(codes);
        } else {
            isa.run(Pack { codes, bits, high_first, out });
        }
    }

    /// Returns the buffer of the codes of some columns of a row of a matrix, where rows of codes are whole bytes.
    pub(super) fn row_codes(&mut self, matrix: usize, row: usize, columns: Range<usize>) -> &mut [u8] {
        let geometry = &self.encoder.geometry;
        let (bits, stride) = (geometry.bits as usize, geometry.stride as usize);
        let line = (matrix * geometry.rows as usize + row) * stride - self.starts[0];
        let start = line + columns.start * bits / 8;
        let end = if columns.end == geometry.columns as usize { line + stride } else { line + columns.end * bits / 8 };
        &mut self.outputs[0][start..end]
    }
}

impl PartWriter<'_, '_> {
    /// Copies the stored codes of a row of a matrix, which takes whole bytes: see [`Encoder::stores_rows_as`].
    pub(in crate::quant) fn copy_codes(&mut self, matrix: usize, row: usize, stored: &[u8]) {
        let geometry = &self.encoder.geometry;
        let line = (matrix * geometry.rows as usize + row) * geometry.stride as usize - self.starts[0];
        self.outputs[0][line..line + stored.len()].copy_from_slice(stored);
    }
}

/// Methods for transcoders and recoverers, which find codes and scales by other means.
impl Encoder {
    /// True if rows of codes with this packing, of `bits` bits, are stored in the same bytes.
    pub(in crate::quant) fn stores_rows_as(&self, packing: Packing, bits: u32) -> bool {
        let is_same = match (packing, self.packing) {
            (Packing::Rows(_) | Packing::Blocks, Packing::Rows(_)) => true,
            (packing, own) => packing == Packing::RowsHighFirst && own == packing,
        };
        is_same
            && !self.geometry.is_stream
            && bits == self.geometry.bits
            && (self.geometry.columns * u64::from(bits)).is_multiple_of(8)
    }

    /// True if scales are bytes, and there are no zero points.
    pub(in crate::quant) fn has_byte_scales(&self) -> bool {
        self.geometry.parts[1].dtype.bits() == 8 && !self.division.has_zeros && !self.geometry.is_stream
    }

    /// True if the whole weight has one scale.
    pub(in crate::quant) fn has_one_scale(&self) -> bool {
        self.geometry.is_tensor
    }

    pub(in crate::quant) fn block_height(&self) -> usize {
        self.geometry.block[0] as usize
    }

    pub(in crate::quant) fn block_width(&self) -> usize {
        self.geometry.block[1] as usize
    }

    pub(in crate::quant) fn matrix_rows(&self) -> usize {
        self.geometry.rows as usize
    }

    /// Returns the factor of block scales that a stored global scale stands for.
    pub(in crate::quant) fn global_factor(&self, global: f32) -> f64 {
        if self.layout.global == Combination::Divisor { 1.0 / f64::from(global) } else { global.into() }
    }

    /// Returns the stored code of a number; `None` if no code represents it. Integers do not include their zero points.
    pub(in crate::quant) fn code_of(&self, number: f32, is_integer: bool) -> Option<u8> {
        match self.rounding {
            CodeRounding::Float { float, .. } if !is_integer => {
                let sign = if number.is_sign_negative() { float.sign as u8 } else { 0 };
                if number.is_nan() {
                    // The only type with a NaN among the written types of 8 bits.
                    return (self.dtype_of_codes() == Dtype::Float8E4M3FN).then_some(0x7f | sign);
                }
                let (code, value) = float.round(number.abs());
                (value == number.abs()).then_some(code as u8 | sign)
            }
            CodeRounding::Int { low, high, offset } if is_integer => {
                (low..=high).contains(&number).then(|| (number as i32 + i32::from(offset)) as u8)
            }
            _ => None,
        }
    }

    /// The dtype of codes, which may be stored in words.
    fn dtype_of_codes(&self) -> Dtype {
        match self.layout.codes.values {
            CodeValues::Float(dtype) => dtype,
            _ => self.geometry.parts[0].dtype,
        }
    }

    /// True if another encoder has the same [`Self::code_of`] and [`Self::range_of_codes`].
    pub(in crate::quant) fn has_codes_of(&self, other: &Self) -> bool {
        let has_same_offsets = self.has_offsets() == other.has_offsets();
        self.rounding == other.rounding && self.dtype_of_codes() == other.dtype_of_codes() && has_same_offsets
    }

    /// Returns the largest number of a code, and the exponent of the smallest digit of all numbers.
    pub(in crate::quant) fn range_of_codes(&self) -> (f32, i32) {
        match self.rounding {
            CodeRounding::Float { float, .. } => (float.largest, float.lowest_exponent()),
            CodeRounding::Int { high, .. } => (high, 0),
        }
    }

    /// True if the weight has a global scale.
    pub(in crate::quant) fn has_global_scale(&self) -> bool {
        self.chooser.rule.global.is_some()
    }

    /// True if codes start at 0, and groups have offsets.
    pub(in crate::quant) fn has_offsets(&self) -> bool {
        self.division.has_offsets
    }

    /// Returns the stored form of a scale and of the number that is added to products of codes: the bits of the scale,
    /// the zero point or offset, and the error of the offset. `None` if they cannot be stored. With `global`, the scale
    /// is the product of the stored scale and this global scale.
    pub(in crate::quant) fn stored_scale(
        &self,
        scale: f64,
        offset: f64,
        global: Option<f32>,
    ) -> Option<((u32, f32), f64)> {
        let (zero, change, is_zero_allowed) = match self.chooser.zero_bits() {
            _ if self.division.has_offsets => {
                let stored = self.chooser.store_once(offset);
                (stored, f64::from(stored) - offset, stored.is_finite())
            }
            Some(bits) => {
                let zero = if offset == 0.0 { 0.0 } else { -offset / scale };
                let half = f64::from(1_u32 << (bits - 1));
                (zero as f32, 0.0, zero.fract() == 0.0 && (-half..half).contains(&zero))
            }
            None => (0.0, 0.0, offset == 0.0),
        };
        let dtype = self.geometry.parts[1].dtype;
        // ggml's scales have the sign of the largest value.
        let has_sign = dtype.is_weight();
        if !is_zero_allowed || !scale.is_finite() || scale < 0.0 && !has_sign {
            return None;
        }
        let stored = match dtype {
            Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16 => {
                let narrow = scale as f32;
                (f64::from(narrow) == scale && self.chooser.store(narrow) == narrow).then(|| narrow.to_bits())?
            }
            Dtype::Float8E4M3FN | Dtype::Uint8 if self.layout.scale_dtypes.contains(&Dtype::Float8E4M3FN) => {
                let block = global.map_or(scale, |global| scale / self.global_factor(global));
                let (code, value) = self.chooser.e4m3.round(block as f32);
                (f64::from(value) == block).then_some(code)?
            }
            // A power of two: the smallest for groups of zeros.
            _ if scale == 0.0 => 0,
            _ => {
                let exponent = (scale.to_bits() >> 52) as i32 - 1023 + 127;
                let least = i32::from(self.layout.exponents == Exponents::Zero);
                let is_power = scale.to_bits().trailing_zeros() >= 52;
                (is_power && (least..=254).contains(&exponent)).then_some(exponent as u32)?
            }
        };
        Some(((stored, zero), change))
    }
}
