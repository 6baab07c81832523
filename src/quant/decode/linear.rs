//! The shapes of ONNX's `DequantizeLinear` (opset 10 to 28): codes of any rank, and scales for the tensor, for each
//! index of an axis, or for blocks along it.
//!
//! With an axis, a tensor is matrices of [length of the axis, product of the lengths behind it]: a scale for each index
//! is a row of such a matrix, and a block is some rows of a column. Nothing is behind the last axis. With that axis, a
//! row holds the values along it, and a block is some neighbours.

use super::super::layout::{Group, Role};
use super::super::parts::{LinearAxis, Parameters, Parts};
use super::geometry::DecodeGeometry;
use crate::dtype::{Class, Dtype};
use crate::error::Result;
use crate::kernel::Minifloat;

/// Returns the product of the lengths before an axis, the length of the axis, and the product of the lengths behind it.
fn around(shape: &[u64], axis: usize) -> [u64; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}

impl LinearAxis {
    /// Returns the matrices, rows and columns of a tensor with scales along an axis, and the group of a scale.
    pub(in crate::quant) fn view(self, shape: &[u64]) -> ([u64; 3], Group) {
        let [before, along, behind] = around(shape, self.axis);
        match (self.axis + 1 == shape.len(), self.block_size) {
            // A scale for each column: all rows of it.
            (true, 0) => ([1, before, along], Group::Block([before.max(1), 1])),
            (true, size) => ([1, before, along], Group::Neighbours(size)),
            (false, 0) => ([before, along, behind], Group::Channel),
            (false, size) => ([before, along, behind], Group::Block([size, 1])),
        }
    }

    pub(in crate::quant) fn scales(self, shape: &[u64]) -> Vec<u64> {
        if self.block_size == 0 {
            return vec![shape[self.axis]];
        }
        let mut blocks = shape.to_vec();
        blocks[self.axis] = blocks[self.axis].div_ceil(self.block_size);
        blocks
    }
}

impl DecodeGeometry {
    /// Determines the geometry of a tensor of `DequantizeLinear`.
    pub(super) fn linear(parts: &Parts, parameters: &Parameters) -> Result<Self> {
        let (layout, axis) = (parts.layout, parameters.linear);
        parts.check_shapes(None)?;
        let codes = parts.typed(parts.need(Role::Codes)?, layout.codes.dtypes)?;
        let scale = parts.typed(parts.need(Role::Scale)?, layout.scale_dtypes)?;
        let zero = parts.find(Role::ZeroPoint)?;
        let bits = parts.code_bits(parameters, codes.1.dtype)?;
        // Codes that are packed along the last axis.
        let unpacked = |stored: &[u64]| {
            let mut shape = stored.to_vec();
            shape.last_mut().into_iter().for_each(|length| *length *= u64::from(codes.1.dtype.bits() / bits));
            shape
        };
        let shape = &unpacked(codes.1.shape)[..];
        let ([matrices, rows, columns], group, expected) = match axis {
            None => {
                let (columns, leading) = shape.split_last().unwrap_or((&1, &[]));
                ([1, leading.iter().product(), *columns], Group::Tensor, Vec::new())
            }
            Some(axis) if axis.axis >= shape.len() => {
                return Err(parts.error(format!("its shape {shape:?} lacks the axis of the scales")));
            }
            Some(axis) => {
                let (view, group) = axis.view(shape);
                (view, group, axis.scales(shape))
            }
        };
        let is_right = scale.1.shape == expected || axis.is_none() && scale.0.count == 1;
        if !is_right {
            return Err(parts.mismatch(&scale.1, &expected, &format!("the shape {shape:?} of its codes")));
        }
        if let Some((slot, part)) = &zero {
            let is_bias = codes.1.dtype == Dtype::Int32;
            parts
                .typed((*slot, *part), if is_bias { &[Dtype::Int32] } else { std::slice::from_ref(&codes.1.dtype) })?;
            if unpacked(part.shape) != scale.1.shape && slot.count * scale.0.count != 1 {
                return Err(parts.mismatch(part, scale.1.shape, "its scale"));
            }
        }
        let block = group.lengths([rows, columns]).map(|length| length.max(1));
        let grid = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        let has_own_scales = axis.is_some_and(|axis| axis.block_size > 0);
        let bytes = codes.1.dtype.packed_bytes(codes.0.count).unwrap_or(u64::MAX);
        Ok(Self {
            shape: shape.to_vec(),
            matrices,
            rows,
            columns,
            bits,
            stride: columns * u64::from(bits) / 8,
            matrix_bytes: bytes,
            group: Some(group),
            block,
            grid,
            scale_order: layout.scale_order,
            matrix_scales: if has_own_scales { grid[0] * grid[1] } else { 0 },
            codes: codes.0,
            scale: scale.0,
            zero: zero.map(|(slot, _)| slot),
            ..Self::default()
        })
    }
}

/// Converts codes of fewer than 8 bits, one per byte, to numbers of 8 bits: extends the sign of signed codes.
#[inline(always)]
pub(in crate::quant) fn extend_signs(codes: &mut [u8], dtype: Dtype) {
    let spare = 8 - dtype.bits().min(8);
    if dtype.class() == (Class::Int { signed: true }) && spare > 0 {
        for code in codes {
            *code = ((*code << spare) as i8 >> spare) as u8;
        }
    }
}

/// Returns the number at an index of a stream.
#[inline(always)]
pub(super) fn number_at(bytes: &[u8], dtype: Dtype, at: usize) -> f32 {
    let bits = dtype.bits();
    let raw = match bits {
        32 => u32::from_le_bytes(bytes.as_chunks().0[at]),
        16 => u16::from_le_bytes(bytes.as_chunks().0[at]).into(),
        8 => bytes[at].into(),
        bits => {
            let first = at * bits as usize;
            u32::from(bytes[first / 8]) >> (first % 8) & ((1 << bits) - 1)
        }
    };
    let spare = 32 - bits;
    match dtype.class() {
        Class::Int { signed: true } => ((raw << spare) as i32 >> spare) as f32,
        Class::Float(format) => {
            let number = Minifloat::new(&format).number(raw);
            if number.is_nan() { f32::NAN } else { number }
        }
        _ => raw as f32,
    }
}
