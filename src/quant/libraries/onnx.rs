//! Weights of ONNX models: ONNX's own operator, and operators of ONNX Runtime.

use super::base::{BASE, encoding};
use crate::dtype::Dtype::{
    Float4E2M1, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Int2, Int4, Int8, Int16, Int32, Uint2, Uint4,
    Uint8, Uint16,
};
use crate::quant::layout::{
    CodeNodes, CodeStorage, CodeValues, Group, Layout, Packing, Precision, Role, ScaleOrder, Zeros,
};
use crate::quant::rules::{Apply, Away, Divide, Extreme, Integers, Least, ScaleRule, ScaleShape};

/// The rule of ONNX Runtime's tools: `quantize_static` for 8 bits, `MatMulNBitsQuantizer` for 4 bits.
const LINEAR: ScaleRule = ScaleRule {
    extreme: Extreme::Signed,
    integers: Integers::Highest,
    divide: Divide::Once,
    least: Least::OneIfSubnormal,
    apply: Apply::Multiply,
    away: Some(Away::Quotient),
    ..ScaleRule::PLAIN
};

/// Layout of ONNX initializers that a `DequantizeLinear` node decodes. The graph identifies them; their names do not.
pub static ONNX: Layout = Layout {
    name: "onnx",
    library: "ONNX: DequantizeLinear",
    names: &[&[(Role::Codes, ""), (Role::Scale, "_scale"), (Role::ZeroPoint, "_zero_point")]],
    codes: CodeStorage {
        values: CodeValues::Stored,
        packing: Packing::Stream,
        dtypes: &[
            Int8,
            Uint8,
            Int4,
            Uint4,
            Int2,
            Uint2,
            Int16,
            Uint16,
            Int32,
            Float8E4M3FN,
            Float8E4M3FNUZ,
            Float8E5M2,
            Float8E5M2FNUZ,
            Float4E2M1,
        ],
        padding: 1,
    },
    zeros: Zeros::Stream,
    product_precision: Precision::Scale,
    encoding: Some(encoding(LINEAR, ScaleShape::Matrix)),
    nodes: Some(CodeNodes::Decoding),
    ..BASE
};

/// Layout of the tables of `GatherBlockQuantized`, of unsigned integers. Codes of `uint8` tensors may be packed along the
/// last axis.
pub static GATHER: Layout = Layout {
    name: "onnx-gather",
    library: "ONNX Runtime: GatherBlockQuantized",
    codes: CodeStorage { values: CodeValues::Unsigned, dtypes: &[Uint4, Uint8], ..ONNX.codes },
    encoding: Some(encoding(
        ScaleRule { extreme: Extreme::Signed, apply: Apply::DivideInType, ..ScaleRule::PLAIN },
        ScaleShape::Matrix,
    )),
    nodes: Some(CodeNodes::Table),
    ..ONNX
};

/// The same for signed integers.
pub static SIGNED_GATHER: Layout =
    Layout { codes: CodeStorage { values: CodeValues::Stored, dtypes: &[Int4], ..ONNX.codes }, ..GATHER };

/// Layout of the weights of `MatMulNBits`. The weight is [K, N], and each block belongs to a column.
pub static MATMUL_NBITS: Layout = Layout {
    name: "onnx-matmulnbits",
    library: "ONNX Runtime: MatMulNBits",
    names: &[&[
        (Role::Codes, ""),
        (Role::Scale, "_scales"),
        (Role::ZeroPoint, "_zero_points"),
        (Role::GroupIndex, "_g_idx"),
    ]],
    codes: CodeStorage {
        values: CodeValues::Unsigned,
        packing: Packing::TransposedBlocks,
        dtypes: &[Uint8],
        padding: 1,
    },
    groups: &[Group::ANY_BLOCK, Group::ANY_NEIGHBOURS],
    scale_order: ScaleOrder::Transposed,
    zeros: Zeros::PackedBlocks,
    encoding: Some(encoding(ScaleRule { away: Some(Away::Sum), ..LINEAR }, ScaleShape::Matrix)),
    partial_groups: true,
    nodes: Some(CodeNodes::Product),
    untransposed: Some(&MATMUL_NBITS_ROWS),
    ..BASE
};

/// The same for the transpose of the weight: [N, K].
static MATMUL_NBITS_ROWS: Layout = Layout {
    codes: CodeStorage { packing: Packing::Blocks, ..MATMUL_NBITS.codes },
    groups: &[Group::ANY_NEIGHBOURS],
    scale_order: ScaleOrder::Rows,
    untransposed: None,
    ..MATMUL_NBITS
};

/// The same with zero points that are not packed, or a group for each row of the weight.
pub static MATMUL_NBITS_SCALED: Layout =
    Layout { name: "onnx-matmulnbits-scaled", zeros: Zeros::Scaled, encoding: None, ..MATMUL_NBITS };
