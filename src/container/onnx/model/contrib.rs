//! Operators of ONNX Runtime that compute with the values of blocks of codes: `MatMulNBits`, a product with a weight, and
//! `GatherBlockQuantized`, the rows of a table (`docs/ContribOperators.md`). ONNX's operators with the values do the same.

use super::super::super::Tensor;
use super::graph::{CodesForm, Dequantization, ModelGraph, copy_of};
use super::messages::NodeFields;
use crate::dtype::Dtype;
use std::collections::HashSet;

/// The domain of the operators of ONNX Runtime.
pub(super) const DOMAIN: &str = "com.microsoft";

/// An operator that computes with the values of blocks of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockOperator {
    Product,
    Gather,
}

impl BlockOperator {
    pub(super) fn of(node: &NodeFields) -> Option<Self> {
        match node.op_type {
            _ if node.domain != DOMAIN.as_bytes() => None,
            name => [Self::Product, Self::Gather].into_iter().find(|own| own.name().as_bytes() == name),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Product => "MatMulNBits",
            Self::Gather => "GatherBlockQuantized",
        }
    }

    /// The index of the input that holds the codes.
    pub(super) fn codes_slot(self) -> usize {
        match self {
            Self::Product => 1,
            Self::Gather => 0,
        }
    }

    /// ONNX's operator with the values in place of the codes, and no other inputs than the first two.
    pub(super) fn plain(self) -> &'static str {
        match self {
            Self::Product => "MatMul",
            Self::Gather => "Gather",
        }
    }
}

/// Returns a name without the suffix of ONNX Runtime's quantizer, if it has one.
pub(super) fn without_suffix(name: &str) -> Option<&str> {
    ["_Q2", "_Q4", "_Q8"].iter().find_map(|suffix| name.strip_suffix(suffix))
}

impl CodesForm {
    /// Returns the shape of the values of codes whose tensor has this shape.
    pub(crate) fn shape(self, codes: &Tensor) -> Vec<u64> {
        match self {
            Self::Linear(_) | Self::Gather { unsigned_bits: None, .. } => codes.shape.to_vec(),
            Self::Gather { unsigned_bits: Some(bits), .. } => {
                let mut shape = codes.shape.to_vec();
                let width = u64::from(codes.elements.stored_dtype().bits() / bits);
                shape.last_mut().into_iter().for_each(|length| *length *= width);
                shape
            }
            Self::Product { shape, .. } => shape.to_vec(),
        }
    }
}

impl ModelGraph<'_> {
    /// Returns the value of a tensor of codes, scale and zero point in a node, or the reason why it cannot be computed.
    pub(super) fn blocks(
        &self,
        tensors: &[Tensor],
        operator: BlockOperator,
        (codes, scale, zero_point): (usize, usize, Option<usize>),
        node: usize,
    ) -> Result<Dequantization, &'static str> {
        const NO_BLOCKS: &str = "its attributes do not describe blocks of codes";
        let dtype = |tensor: usize| tensors[tensor].elements.stored_dtype();
        let width = |bits: i64| u32::try_from(bits).ok().filter(|bits| [2, 4, 8].contains(bits)).ok_or(NO_BLOCKS);
        let length = |length: i64| u64::try_from(length).ok().filter(|length| *length > 0).ok_or(NO_BLOCKS);
        let (form, group_index) = match operator {
            BlockOperator::Product => {
                let [k, n, bits, block_size, packed] =
                    self.integers(node, [("K", 0), ("N", 0), ("bits", 4), ("block_size", 0), ("weight_prepacked", 0)]);
                if packed != 0 {
                    return Err("its weight is packed for one kernel");
                }
                let (bits, block_size) = (width(bits)?, length(block_size)?);
                let group_index = self.optional(node, 4, "its group index is not a constant")?;
                match (group_index, zero_point.map(dtype)) {
                    (Some(_), Some(Dtype::Uint8)) => {
                        return Err("ONNX Runtime ignores its packed zero points, because it has a group index");
                    }
                    (Some(_), _) if bits != 4 => {
                        return Err("it has a group index, which ONNX Runtime supports for 4 bits only");
                    }
                    (_, Some(zero_point)) if zero_point != Dtype::Uint8 && bits == 8 => {
                        return Err("its zero points are not packed, which ONNX Runtime refuses for 8 bits");
                    }
                    _ => {}
                }
                if block_size < 16 || !block_size.is_power_of_two() {
                    return Err("its block_size is not a power of two from 16 on");
                }
                (CodesForm::Product { shape: [length(k)?, length(n)?], bits, block_size }, group_index)
            }
            BlockOperator::Gather => {
                let [axis, block_size, bits] =
                    self.integers(node, [("quantize_axis", 1), ("block_size", 128), ("bits", 4)]);
                let rank = tensors[codes].shape.len() as i64;
                let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).unwrap_or(usize::MAX);
                let unsigned_bits = match dtype(codes) {
                    Dtype::Uint8 => Some(width(bits)?),
                    Dtype::Uint4 => Some(4),
                    _ => None,
                };
                let codes_of_element = unsigned_bits.map_or(1, |bits| u64::from(dtype(codes).bits() / bits));
                if tensors[codes].shape.last().is_some_and(|length| length.checked_mul(codes_of_element).is_none()) {
                    return Err("its codes are too many"); // of a table without rows, which is small
                }
                (CodesForm::Gather { axis, block_size: length(block_size)?, unsigned_bits }, None)
            }
        };
        Ok(Dequantization { codes, scale, zero_point, group_index, form, name: String::new(), nodes: vec![node] })
    }

    /// Names the values of a tensor of codes that nodes compute with: like the codes, without the suffix of ONNX Runtime's
    /// quantizer. `names` are the names of other such values.
    pub(super) fn name_weights(&self, tensors: &[Tensor], found: &mut [Dequantization], names: &mut HashSet<String>) {
        for (number, one) in found.iter_mut().enumerate().filter(|(_, one)| one.name.is_empty()) {
            let codes = String::from_utf8_lossy(self.value_name(one.codes)).into_owned();
            let plain = without_suffix(&codes);
            let free = plain.filter(|name| !self.has_value(name.as_bytes()) && names.insert((*name).to_owned()));
            let other = || {
                let stored = self.stored_name(&codes, tensors[one.scale].elements.stored_dtype());
                if number == 0 { stored } else { copy_of(&stored, number + 1) }
            };
            one.name = free.map_or_else(other, str::to_owned);
        }
    }
}
