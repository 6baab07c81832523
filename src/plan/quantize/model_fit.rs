//! Makes the encoders of the weights of ONNX models.

use crate::container::onnx::model::WeightUse;
use crate::dtype::Dtype;
use crate::options::QuantizeOptions;
use crate::quant::{CodeNodes, EncodeOptions, Encoder, Group, LinearAxis, SchemeLayout, TargetGrid, Unfit};

/// Returns the encoder of a weight of this shape and type for a layout, with groups of a size that the layout has or of
/// this one.
pub(super) fn encoder(
    stored: &SchemeLayout,
    usage: WeightUse,
    (shape, dtype): (&[u64], Dtype),
    group: Option<Group>,
    options: &QuantizeOptions,
) -> Result<Encoder, Unfit> {
    let grid = stored.grid;
    // ONNX Runtime's tools use blocks only in matrices.
    let is_matrix = shape.len() == 2 && usage != WeightUse::Kernel;
    let has_blocks = matches!(grid.group, Group::Neighbours(_));
    if shape.len() < 2 || has_blocks && !is_matrix {
        return Err(Unfit::Dimensions(shape.to_vec()));
    }
    let encoding = EncodeOptions { arithmetic: options.arithmetic.of_decoder(), ..EncodeOptions::default() };
    let block_size = match (grid.group, group) {
        (Group::Neighbours(size), None) | (Group::Neighbours(_), Some(Group::Neighbours(size))) => size,
        (Group::Neighbours(_), Some(_)) => return Err(Unfit::Grid),
        _ => 0,
    };
    if stored.row.nodes != Some(CodeNodes::Decoding) && (block_size < 16 || !block_size.is_power_of_two()) {
        return Err(Unfit::Grid);
    }
    if stored.row.nodes == Some(CodeNodes::Product) {
        if usage != WeightUse::Product {
            return Err(Unfit::Operator);
        }
        let grid = TargetGrid { group: Group::Neighbours(block_size), ..grid };
        return Encoder::new(stored.row, &grid, &[shape[1], shape[0]], dtype, encoding);
    }
    let axis = match usage {
        _ if block_size > 0 => usize::from(matches!(usage, WeightUse::OutputsFirst | WeightUse::Table)),
        WeightUse::Product | WeightUse::OutputsLast => shape.len() - 1,
        WeightUse::OutputsFirst | WeightUse::Kernel | WeightUse::Table => 0,
    };
    Encoder::linear(stored.row, &grid, shape, LinearAxis { axis, block_size }, dtype, encoding)
}
