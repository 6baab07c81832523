//! The encoder's columns of the table of layouts: how each library chooses scales, and how it rounds codes.

/// How a library turns values into codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    pub scale: ScaleRule,
    /// Which codes have the sign bit.
    pub sign: SignRule,
    /// What a value halfway between two codes becomes.
    pub ties: Ties,
    pub scale_shape: ScaleShape,
}

/// How a library computes the scale of a group from `amax`, the largest magnitude, and by what it divides values. `T`
/// is the dtype of the weight; steps without a dtype are in float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRule {
    /// amax / largest code in T; a scale that is or rounds to 0 becomes the epsilon of T. Quotients are rounded to T
    /// (compressed-tensors, float8 and integers).
    Epsilon,
    /// The reciprocal of (1 / amax) * largest code; values are multiplied by that product itself (transformers).
    Reciprocal,
    /// amax / largest code, with amax raised to the smallest normal number of T for rows and blocks. With one scale for
    /// the whole tensor, quotients are rounded to T (`ModelOpt`, float8).
    Bounded,
    /// amax / largest code; values are multiplied by the reciprocal in T (`ComfyUI`, float8).
    Inverse,
    /// amax / largest code (`ComfyUI`, int8).
    Plain,
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
    /// A power of two: the exponent of amax minus that of the largest code (OCP MX 1.0, section 6.3).
    Floor,
    /// The smallest power of two that is not below amax / largest code (`ModelOpt`, MX).
    Ceiling,
    /// Like `Ceiling`, but the byte 0 means a scale of 0 (`ComfyUI`, MXFP8).
    CeilingOrZero,
    /// Of ONNX: amax / largest code for 8 bits, and 1 where that is subnormal; the value of the largest magnitude / -8 for
    /// 4 bits without zero points; (highest - lowest) / 15 with them, a scale of 0 staying 0.
    Linear,
}

impl ScaleRule {
    /// Whether block scales are multiplied with a global scale.
    pub fn is_global(self) -> bool {
        matches!(self, Self::GlobalDivisor | Self::GlobalMultiplier | Self::GlobalPadded)
    }

    /// Whether scales can be searched for codes of this width, in groups that are parts of a row.
    pub fn has_search(self, code_bits: u32) -> bool {
        match self {
            Self::GlobalDivisor | Self::GlobalMultiplier | Self::GlobalPadded => true,
            Self::HalfStep | Self::Floor | Self::Ceiling => code_bits == 4,
            Self::Epsilon => code_bits < 8,
            _ => false,
        }
    }

    /// Whether blocks at the edges of a weight may be partial.
    pub fn has_partial_blocks(self) -> bool {
        self == Self::Epsilon
    }
}

/// Which float codes have the sign bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignRule {
    /// The codes of values with a sign, including -0.
    Kept,
    /// The codes of values below 0, which may round to -0; -0 itself becomes 0.
    Negative,
    /// The codes of values that are not above 0, so that every 0 becomes -0 (`ModelOpt`, MXFP4).
    NotPositive,
}

/// What a value halfway between two codes becomes.
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
