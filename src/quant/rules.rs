//! The encoder's columns of the table of layouts: the choice of scales and the rounding of codes in each library.

/// Conversion of values to codes and scales in a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    pub scale: ScaleRule,
    /// Codes that have the sign bit.
    pub sign: SignRule,
    /// Rounding of a value halfway between two codes.
    pub ties: Ties,
    pub scale_shape: ScaleShape,
}

/// Computation of a group's scale from `amax`, the largest magnitude, and the divisor of its values. `T` is the dtype
/// of the weight; steps without a dtype are in float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRule {
    /// amax / largest code in T; a scale that is or rounds to 0 becomes the epsilon of T. Quotients are rounded to T
    /// (compressed-tensors, float8 and integers).
    Epsilon,
    /// The reciprocal of (1 / amax) * largest code; values are multiplied by this product (transformers).
    Reciprocal,
    /// amax / largest code, with amax raised to the smallest normal number of T for rows and blocks. With one scale for
    /// the whole tensor, quotients are rounded to T (`ModelOpt`, float8).
    Bounded,
    /// amax / largest code; values are multiplied by the reciprocal in T (`ComfyUI`, float8).
    Inverse,
    /// amax / largest code, at least the float32 with these bits (`ComfyUI`, integers).
    Floored(u32),
    /// Two levels: a scale for each group and one for each row (`ComfyUI`).
    Levels,
    /// A global scale of 2688 / amax of the tensor in T; scales are global * (amax / 6 in T), and 0.125 where that is 0
    /// (compressed-tensors, NVFP4).
    GlobalDivisor,
    /// A global scale of amax of the tensor / 2688; scales are amax / (6 * global), at least 2^-9, and 1 where that is
    /// 0 (`ModelOpt`, NVFP4).
    GlobalMultiplier,
    /// A global scale of amax of the tensor / 2688 in T; scales are amax / 6 / global (`ComfyUI`, NVFP4).
    GlobalPadded,
    /// A power of two: the exponent of amax, plus 1 if its mantissa is at least 1.75 (1.9375 for E2M3), minus the
    /// exponent of the largest code, in T (compressed-tensors, MX).
    HalfStep,
    /// A power of two: the exponent of amax minus the exponent of the largest code (OCP MX 1.0, section 6.3).
    Floor,
    /// The smallest power of two that is not below amax / largest code (`ModelOpt`, MX).
    Ceiling,
    /// Like `Ceiling`, but the byte 0 means a scale of 0 (`ComfyUI`, MXFP8).
    CeilingOrZero,
    /// Like `Ceiling`, but amax / largest code is rounded to T first, and the scale is 1 where that is 0 (MLX, MX).
    CeilingOrOne,
    /// amax / 6 in T, without a global scale; quotients are rounded to T (MLX, NVFP4).
    BlockOnly,
    /// (highest - lowest) / largest code, at least 1e-7. The value of the largest magnitude is the offset, and negates the
    /// scale if it is the highest. The scale is then changed so that a code stands for 0, unless the offset rounds to 0
    /// codes and is 0 itself. Codes follow from the scale and the offset before these are rounded to T (MLX, affine).
    Affine,
    /// For 8 bits, amax / largest code, and 1 where that is subnormal (where it is 0, if scales are float16). For 4
    /// bits, the value of the largest magnitude / -8 without zero points, and (highest - lowest) / 15 with them; a
    /// scale of 0 stays 0 (ONNX).
    Linear,
    /// Like `Linear` for 4 bits, with as many codes as the width has, and a zero point in the middle if none is stored. The
    /// sum of quotient and zero point is rounded, halves away from zero. Codes follow from the stored scale, but not if
    /// that is bfloat16 (ONNX Runtime, `MatMulNBits`).
    Blocks,
    /// Like `Linear` for 4 bits, but all steps are in T, halves become even, and the zero point of a scale of 0 is 8. For
    /// bfloat16, quotients are float32, as in `NumPy`, and the stored scale is rounded (ONNX Runtime, `GatherBlockQuantized`).
    Tables,
}

impl ScaleRule {
    /// True if block scales are combined with a global scale.
    pub fn is_global(self) -> bool {
        matches!(self, Self::GlobalDivisor | Self::GlobalMultiplier | Self::GlobalPadded)
    }

    /// True if scales can be searched for codes of this width, in groups that are parts of a row.
    pub fn has_search(self, code_bits: u32) -> bool {
        match self {
            Self::GlobalDivisor | Self::GlobalMultiplier | Self::GlobalPadded => true,
            Self::HalfStep | Self::Floor | Self::Ceiling => code_bits == 4,
            Self::Epsilon => code_bits < 8,
            _ => false,
        }
    }

    /// True if blocks at the edges of a weight may be partial.
    pub fn has_partial_blocks(self) -> bool {
        self == Self::Epsilon
    }
}

/// Float codes that have the sign bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignRule {
    /// The codes of values with a sign, including -0.
    Kept,
    /// The codes of values below 0, which may round to -0; -0 itself becomes 0.
    Negative,
    /// The codes of values that are not above 0, so that every 0 becomes -0 (`ModelOpt`, MXFP4).
    NotPositive,
    /// The codes of numbers below 0: there is no -0 (MLX, float4).
    Nonzero,
}

/// Rounding of a value halfway between two codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    Even,
    /// The code nearer to zero.
    TowardZero,
}

/// The shapes of stored scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleShape {
    /// `[1]` for one scale per tensor, `[rows, 1]` for one per row.
    Matrix,
    /// `[]` for one scale per tensor, `[rows]` for one per row, `[rows / block, 1, columns / block, 1]` for blocks.
    Squeezed,
    /// `[]` for one scale per tensor, `[rows, 1]` for one per row.
    Mixed,
}
