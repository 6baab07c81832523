//! Defines the base of the rows of all libraries, and values that several of them share.

use crate::dtype::Dtype::{self, Bfloat16, Float4E2M1, Float8E4M3FN, Float8E8M0, Float16, Float32, Int8, Int32, Uint8};
use crate::quant::layout::{
    CodeStorage, CodeValues, Combination, Exponents, Group, Layout, Packing, Precision, RotationUse, ScaleOrder, Zeros,
};
use crate::quant::rules::{Encoding, ScaleRule, ScaleShape, SignRule, Ties};

pub(super) const FLOATS: &[Dtype] = &[Float32, Bfloat16, Float16];
pub(super) const EXPONENTS: &[Dtype] = &[Uint8, Float8E8M0];

/// Storage of codes as numbers of the tensor's dtype.
pub(super) const fn bytes(dtypes: &'static [Dtype]) -> CodeStorage {
    CodeStorage { values: CodeValues::Stored, packing: Packing::Rows(1), dtypes, padding: 1 }
}

/// Storage of unsigned codes, packed into words of 32 bits.
pub(super) const fn words(packing: Packing) -> CodeStorage {
    CodeStorage { values: CodeValues::Unsigned, packing, dtypes: &[Int32], padding: 1 }
}

/// Pairs of E2M1, the low four bits first.
pub(super) const NIBBLES: CodeStorage = CodeStorage {
    values: CodeValues::Float(Float4E2M1),
    packing: Packing::Rows(1),
    dtypes: &[Uint8, Int8, Float4E2M1],
    padding: 1,
};

/// The base of most rows, which differ from it in only a few fields: float8 with float32 products.
pub(super) const BASE: Layout = Layout {
    name: "",
    library: "",
    tensor_classes: &[],
    is_diffusion: false,
    formats: &[],
    needs_config: false,
    names: &[],
    codes: bytes(&[Float8E4M3FN]),
    groups: &[Group::Tensor, Group::Channel, Group::ANY_NEIGHBOURS, Group::ANY_BLOCK],
    scale_dtypes: FLOATS,
    exponents: Exponents::Infinity,
    scale_order: ScaleOrder::Rows,
    global: Combination::Nothing,
    zeros: Zeros::None,
    rotation: RotationUse::Never,
    column_multiple: 1,
    scale_precision: Precision::Float32,
    product_precision: Precision::Float32,
    encoding: None,
    needs: None,
    shares_names: false,
    partial_groups: false,
    kept_scales: None,
    nodes: None,
    stacks_experts: false,
    renames_parts: false,
    interleaves_experts: false,
    untransposed: None,
    mark: "pt",
};

/// Encoding that keeps the sign of zero and rounds ties to even.
pub(super) const fn encoding(scale: ScaleRule, scale_shape: ScaleShape) -> Encoding {
    Encoding { scale, sign: SignRule::Kept, ties: Ties::Even, scale_shape, partial_blocks: false }
}

/// Like [`encoding`], but -0 becomes 0.
pub(super) const fn unsigned_zero(scale: ScaleRule, scale_shape: ScaleShape) -> Encoding {
    Encoding { sign: SignRule::Negative, ..encoding(scale, scale_shape) }
}

/// The encoding of MLX to float4, which takes the first of the nearest codes.
pub(super) const fn nearest_float4(scale: ScaleRule) -> Encoding {
    Encoding { sign: SignRule::Nonzero, ties: Ties::TowardZero, ..encoding(scale, ScaleShape::Matrix) }
}
