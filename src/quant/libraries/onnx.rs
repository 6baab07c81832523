//! Weights of ONNX models.

use super::base::{BASE, encoding};
use crate::dtype::Dtype::{
    Float4E2M1, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Int2, Int4, Int8, Int16, Int32, Uint2, Uint4,
    Uint8, Uint16,
};
use crate::quant::layout::{CodeStorage, CodeValues, Layout, Packing, Precision, Role, Zeros};
use crate::quant::rules::{ScaleRule, ScaleShape};

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
    encoding: Some(encoding(ScaleRule::Linear, ScaleShape::Matrix)),
    is_in_graph: true,
    ..BASE
};
