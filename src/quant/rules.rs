//! The encoder's columns of the table of layouts: the choice of scales and the rounding of codes in each library.

use crate::dtype::Dtype;

/// Conversion of values to codes and scales in a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    pub scale: ScaleRule,
    /// Codes that have the sign bit.
    pub sign: SignRule,
    /// Rounding of a value halfway between two codes.
    pub ties: Ties,
    pub scale_shape: ScaleShape,
    /// True if blocks at the edges of a weight may be partial.
    pub partial_blocks: bool,
}

/// The steps from the values of a group to its scale, and from the scale to the numbers that are rounded to codes. `T` is
/// the dtype of the weight; steps without a dtype are in float32. amax is the largest magnitude of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleRule {
    /// The numbers of the group that its scale follows from.
    pub extreme: Extreme,
    /// The largest code, if codes are signed integers.
    pub integers: Integers,
    /// Division of the extreme by the largest code.
    pub divide: Divide,
    /// The scale of the whole tensor that is combined with the scales of groups, which are float8e4m3fn.
    pub global: Option<GlobalScale>,
    /// The exponent for the quotient, if scales are stored as exponents. Without it, scales of 8 bits are float8e4m3fn.
    pub power: Option<Power>,
    /// The least scale.
    pub least: Least,
    /// The use of the scale.
    pub apply: Apply,
    /// The number that is rounded to an integer, halves away from zero, before codes are chosen.
    pub away: Option<Away>,
    /// The widest codes for which scales can be searched.
    pub searched_bits: u32,
}

/// The numbers of a group that its scale follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extreme {
    /// amax. For integers with zero points, the distance from the lowest to the highest value or 0 in T; the zero point is
    /// the lowest code - lowest / scale, rounded to T twice.
    Magnitude,
    /// The value of the largest magnitude, for which the lowest code stands. With zero points, highest - lowest. A scale
    /// that is 0 stays 0. If quotients are rounded away from zero ([`Away::Quotient`]), codes of 8 bits have amax (ONNX).
    Signed,
    /// highest - lowest, and a scale of at least 1e-7. The value of the largest magnitude is the offset, and negates the
    /// scale if it is the highest. The scale is then changed so that a code stands for 0, unless the offset rounds to 0
    /// codes and is 0 itself. Codes follow from the scale and the offset before these are rounded to T (MLX).
    Edges,
}

/// The largest code of signed integers, the divisor of the extreme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integers {
    /// Half of the distance from the lowest to the highest code.
    HalfRange,
    /// The highest code.
    Highest,
    /// The same, and the lowest code is its negative (comfy-kitchen).
    Symmetric,
}

/// Division of the extreme by the largest code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divide {
    /// The quotient is rounded to the dtype of stored scales, if that is a float of 16 bits.
    Float32,
    /// The quotient is rounded to T.
    InType,
    /// The quotient is exact, and rounded once.
    Once,
    /// The quotient is 1 / ((1 / amax) * largest code), and values are multiplied by its denominator. Scales that are stored
    /// as bfloat16 are quotients, which divide the values.
    Reciprocal,
}

/// Combination of a global scale and the scales of groups. 2688 is the largest NVFP4 value, 6 * 448.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobalScale {
    /// 2688 / amax of the tensor in T. Scales are global * (amax / 6 in T), and 0.125 where that is 0.
    Divisor,
    /// amax of the tensor / 2688. Scales are amax / (6 * global), at least 2^-9, and 1 where that is 0.
    Multiplier,
    /// amax of the tensor / 2688 in T. Scales are amax / 6 / global.
    Padded,
}

/// The exponent of a scale that is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// The exponent of amax, plus 1 if its mantissa is at least 1.75 (1.9375 for E2M3), minus the exponent of the largest
    /// code, in T. The scale is 1 where the power is 0 in T (compressed-tensors).
    HalfStep,
    /// The exponent of amax minus the exponent of the largest code (OCP MX 1.0, section 6.3).
    Floor,
    /// The logarithm of the quotient, rounded to float32 and then up.
    Ceiling,
    /// The logarithm of the quotient, rounded up.
    ExactCeiling,
}

/// The least scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Least {
    /// 1 where the scale is 0.
    One,
    /// Epsilon of the dtype of scales where the scale is 0.
    Epsilon,
    /// 1 where the scale is subnormal; where it is 0, if scales are float16.
    OneIfSubnormal,
    /// The scale of the smallest normal number of T, and 1 for zeros. With one scale for the whole tensor, as `One`, and
    /// quotients are rounded to T.
    Normal,
    /// The float32 with these bits.
    Number(u32),
    /// 2^-127, the least power of two.
    Power,
    /// The byte 0, which means a scale of 0.
    Zero,
}

/// The conversion of values to the numbers that are rounded to codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// Division by the scale.
    Divide,
    /// The same; quotients are rounded to T, except for bfloat16 with [`Extreme::Signed`].
    DivideInType,
    /// Multiplication by the reciprocal of the scale.
    Multiply,
    /// The same; the reciprocal and products are rounded to T.
    MultiplyInType,
}

/// Says which number is rounded to an integer, halves away from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// The quotient, before the zero point is added.
    Quotient,
    /// The sum of quotient and zero point. Codes start at 0, and have a zero point in the middle if none is stored.
    Sum,
}

impl ScaleRule {
    /// amax / largest code, and 1 where that is 0; values are divided by the scale.
    pub const PLAIN: Self = Self {
        extreme: Extreme::Magnitude,
        integers: Integers::HalfRange,
        divide: Divide::Float32,
        global: None,
        power: None,
        least: Least::One,
        apply: Apply::Divide,
        away: None,
        searched_bits: 0,
    };

    /// The base of rules for scales that are powers of two. Multiplying by the reciprocal is exact.
    pub const POWER: Self =
        Self { power: Some(Power::Ceiling), least: Least::Power, apply: Apply::Multiply, ..Self::PLAIN };

    /// Returns the rule of NVFP4 with this global scale.
    pub const fn global(global: GlobalScale) -> Self {
        Self { global: Some(global), searched_bits: 4, ..Self::PLAIN }
    }

    /// Returns the rule for codes of this width and scales of this dtype, with the exceptions of its fields resolved.
    pub(super) fn of(self, bits: u32, stored: Dtype, is_tensor: bool) -> Self {
        match self {
            Self { least: Least::Normal, .. } if is_tensor => {
                Self { least: Least::One, apply: Apply::DivideInType, ..self }
            }
            Self { divide: Divide::Reciprocal, .. } if stored == Dtype::Bfloat16 => {
                Self { divide: Divide::Float32, apply: Apply::Divide, ..self }
            }
            Self { extreme: Extreme::Signed, away: Some(Away::Quotient), .. } if bits == 8 => {
                Self { extreme: Extreme::Magnitude, apply: Apply::Divide, away: None, ..self }
            }
            Self { extreme: Extreme::Signed, apply: Apply::DivideInType, .. } if stored == Dtype::Bfloat16 => {
                Self { apply: Apply::Divide, ..self }
            }
            _ => self,
        }
    }

    /// Returns the rule of comfy-kitchen in the type of the weight.
    pub(super) fn in_type(self, bits: u32) -> Self {
        Self { divide: if bits == 4 { Divide::InType } else { self.divide }, ..self }
    }

    /// True if many values may be beyond the codes, because scales are rounded down.
    pub(super) fn may_clip(self, stored: Dtype) -> bool {
        self.power == Some(Power::Floor) || self.power.is_none() && self.global.is_none() && stored.bits() == 8
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
