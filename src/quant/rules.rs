//! What a row of the table adds for the encoder: how its library chooses scales, and how it rounds codes.

/// How a library turns values into codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// How the scale of a group is chosen.
    pub scale: ScaleRule,
    /// Which codes have the sign bit.
    pub sign: SignRule,
    /// What a value halfway between two codes becomes.
    pub ties: Ties,
    /// The shapes of scales that are not one for each block.
    pub scale_shape: ScaleShape,
}

/// How the scale of a group follows from `amax`, its largest magnitude, and what values are divided by. `T` is the dtype of
/// the weight, and a step without a dtype is float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRule {
    /// amax / largest code in T; a scale that is or rounds to 0 becomes the epsilon of T. Quotients are rounded to T
    /// (compressed-tensors, float8 and integers).
    Epsilon,
    /// The reciprocal of (1 / amax) * largest code; values are multiplied with what it is the reciprocal of (transformers).
    Reciprocal,
    /// amax / largest code; of rows and blocks, amax is at least the smallest normal number of T. With one scale for the
    /// tensor, quotients are rounded to T (`ModelOpt`, float8).
    Bounded,
    /// amax / largest code; values are multiplied with the reciprocal in T (`ComfyUI`, float8).
    Inverse,
    /// amax / largest code (`ComfyUI`, int8).
    Plain,
    /// A global scale of 2688 / amax of the tensor in T; scales are global * (amax / 6 in T), and 0.125 where that is 0
    /// (compressed-tensors, NVFP4).
    GlobalDivisor,
    /// A global scale of amax of the tensor / 2688; scales are amax / (6 * global), at least 2^-9, and 1 where that is 0
    /// (`ModelOpt`, NVFP4).
    GlobalMultiplier,
    /// A global scale of amax of the tensor / 2688 in T; scales are amax / 6 / global (`ComfyUI`, NVFP4).
    GlobalPadded,
    /// The exponent of amax, which is one more where its mantissa is at least 1.75 (1.9375 for E2M3), less that of the
    /// largest code, in T (compressed-tensors, MX).
    HalfStep,
    /// The exponent of amax less that of the largest code (OCP MX 1.0, section 6.3).
    Floor,
    /// The smallest power of two from amax / largest code on (`ModelOpt`, MX).
    Ceiling,
    /// As `Ceiling`; the byte 0 is the scale 0 (`ComfyUI`, MXFP8).
    CeilingOrZero,
}

/// Which codes of floats have the sign bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignRule {
    /// Those of values with a sign, -0 included.
    Kept,
    /// Those of values below 0, which may round to -0; -0 itself becomes 0.
    Negative,
    /// Those of values that are not above 0: every 0 becomes -0 (`ModelOpt`, MXFP4).
    NotPositive,
}

/// What a value halfway between two codes becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// The even code.
    Even,
    /// The code nearer to zero.
    TowardZero,
}

/// The shapes of stored scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleShape {
    /// `[1]` for a tensor, `[rows, 1]` for rows.
    Matrix,
    /// `[]` for a tensor, `[rows]` for rows, `[rows / block, 1, columns / block, 1]` for blocks.
    Squeezed,
    /// `[]` for a tensor, `[rows, 1]` for rows.
    Mixed,
}
