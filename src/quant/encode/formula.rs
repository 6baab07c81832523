//! The formulas for the scales of groups: what the rule of a layout means for one grid of codes and one dtype of scales.

use super::super::rules::ScaleRule;
use super::super::scheme::CodeType;
use super::rounding::WeightType;
use crate::dtype::Dtype;

/// Computation of a group's scale. Where [`ScaleRule`] depends on the codes or on the dtype of scales, each case is a
/// separate formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Formula {
    /// amax / largest code, as a float.
    Number(NumberFormula),
    /// A power of two near amax / largest code.
    Power(PowerFormula),
    /// A float8e4m3fn near amax / 6, or near its quotient with a global scale.
    Block(BlockFormula),
    /// A float that depends on the lowest and the highest value, not on amax.
    Bounds(BoundsFormula),
}

/// Formulas for scales that are stored as floats, and do not depend on signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberFormula {
    /// See [`ScaleRule::Epsilon`].
    Epsilon,
    /// See [`ScaleRule::Reciprocal`].
    Reciprocal,
    /// See [`ScaleRule::Bounded`].
    Bounded,
    /// See [`ScaleRule::Inverse`].
    Inverse,
    /// amax / largest code, and 1 where that is 0.
    Plain,
    /// See [`ScaleRule::Floored`].
    Floored(u32),
    /// Like `Floored`, but rounded to T (comfy-kitchen in the type of the weight, 4 bits).
    FlooredInType(u32),
    /// Like `Floored`, but values are divided by the scale in T, at least the smallest normal number (8 bits).
    FlooredBesideType(u32),
    /// Like `Plain`, and rounded to bfloat16.
    Bfloat16,
    /// Rounded once to the dtype of stored scales; 1 where it would be subnormal (in float16, where it would be 0).
    Linear,
}

/// Formulas for scales that are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PowerFormula {
    /// See [`ScaleRule::HalfStep`].
    HalfStep,
    /// See [`ScaleRule::Floor`].
    Floor,
    /// See [`ScaleRule::Ceiling`].
    Ceiling,
    /// See [`ScaleRule::CeilingOrZero`].
    CeilingOrZero,
    /// See [`ScaleRule::CeilingOrOne`].
    CeilingOrOne,
    /// The smallest power of two that is not below the scale of [`ScaleRule::Reciprocal`], from 2^-126 on; 1 for zeros.
    Reciprocal,
}

/// Formulas for scales that are stored as float8e4m3fn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockFormula {
    /// See [`ScaleRule::GlobalDivisor`].
    Divisor,
    /// See [`ScaleRule::GlobalMultiplier`].
    Multiplier,
    /// See [`ScaleRule::GlobalPadded`].
    Padded,
    /// See [`ScaleRule::BlockOnly`].
    Alone,
}

/// Formulas that depend on the lowest and the highest value of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BoundsFormula {
    /// A scale by [`ScaleRule::Epsilon`] with a zero point for integers of this many bits.
    ZeroPoint(u32),
    /// See [`ScaleRule::Affine`].
    Affine,
    /// See [`ScaleRule::Linear`], for 4 bits without zero points.
    Signed,
    /// See [`ScaleRule::Linear`], for 4 bits with zero points.
    Shifted,
    /// See [`ScaleRule::Blocks`], for codes of this many bits: the zero point is in the middle of the range.
    Centered(u32),
    /// The same with zero points.
    Unsigned(u32),
    /// See [`ScaleRule::Tables`], without zero points.
    SignedTable,
    /// The same with zero points.
    ShiftedTable,
}

impl BoundsFormula {
    /// Returns the lowest and the highest code to which zero points of [`ScaleRule::Epsilon`] and [`ScaleRule::Tables`] are
    /// bounded.
    pub(super) fn zero_range(self) -> [f32; 2] {
        match self {
            Self::ZeroPoint(bits) => {
                let half = (1_u32 << (bits - 1)) as f32;
                [-half, half - 1.0]
            }
            _ => [0.0, 15.0],
        }
    }
}

/// Says which number is rounded to an integer, halves away from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Away {
    /// The quotient, before the zero point is added.
    Quotient,
    /// The sum of quotient and zero point.
    Sum,
}

/// Conversion of a value to the number that is rounded to a code. `factor` and `wide` are fields of
/// [`GroupScale`](super::scale::GroupScale).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotient {
    /// value / factor, in float32.
    Divide,
    /// value * factor, in float32.
    Multiply,
    /// value * multiplier / wide in float64, rounded to odd, so that rounding to a code afterwards has the effect of a single
    /// rounding.
    Exact,
}

impl Formula {
    /// Returns the formula of a rule for these codes, and for scales that are stored as `stored`; the conversion of values
    /// to numbers to round; and the type to which the library rounds these numbers first. `weight` is the dtype that the
    /// library computes in. `is_tensor` is true if the whole tensor has one scale, `keeps_sign` if -0 has a code.
    pub(super) fn of(
        rule: ScaleRule,
        (codes, stored, weight): (CodeType, Dtype, WeightType),
        is_tensor: bool,
        keeps_sign: bool,
    ) -> (Self, Quotient, WeightType) {
        use Quotient::{Divide, Multiply};
        use WeightType::Float32;
        match (rule, codes) {
            (ScaleRule::Epsilon, CodeType::Int { bits, symmetric: false }) => {
                (Self::Bounds(BoundsFormula::ZeroPoint(bits)), Divide, weight)
            }
            (ScaleRule::Epsilon, _) => (Self::Number(NumberFormula::Epsilon), Divide, weight),
            (ScaleRule::Reciprocal, _) => match stored {
                Dtype::Float8E8M0 | Dtype::Uint8 => (Self::Power(PowerFormula::Reciprocal), Multiply, Float32),
                Dtype::Bfloat16 => (Self::Number(NumberFormula::Bfloat16), Divide, Float32),
                _ => (Self::Number(NumberFormula::Reciprocal), Multiply, Float32),
            },
            (ScaleRule::Bounded, _) if is_tensor => (Self::Number(NumberFormula::Plain), Divide, weight),
            (ScaleRule::Bounded, _) => (Self::Number(NumberFormula::Bounded), Divide, Float32),
            (ScaleRule::Inverse, _) => (Self::Number(NumberFormula::Inverse), Multiply, weight),
            (ScaleRule::Floored(least), _) => (Self::Number(NumberFormula::Floored(least)), Divide, Float32),
            // Not used: levels have an encoder of their own.
            (ScaleRule::Levels, _) => (Self::Number(NumberFormula::Plain), Divide, Float32),
            (ScaleRule::GlobalDivisor, _) => (Self::Block(BlockFormula::Divisor), Divide, Float32),
            (ScaleRule::GlobalMultiplier, _) => (Self::Block(BlockFormula::Multiplier), Divide, Float32),
            (ScaleRule::GlobalPadded, _) => (Self::Block(BlockFormula::Padded), Divide, Float32),
            (ScaleRule::BlockOnly, _) => (Self::Block(BlockFormula::Alone), Divide, weight),
            // Multiplying by a power of two is exact, unless the product is much too small for a code other than 0.
            // Rounding such a product to 0 only affects the sign.
            (ScaleRule::HalfStep, _) => {
                (Self::Power(PowerFormula::HalfStep), Multiply, if keeps_sign { Float32 } else { weight })
            }
            (ScaleRule::Floor, _) => (Self::Power(PowerFormula::Floor), Multiply, Float32),
            (ScaleRule::Ceiling, _) => (Self::Power(PowerFormula::Ceiling), Multiply, Float32),
            (ScaleRule::CeilingOrZero, _) => (Self::Power(PowerFormula::CeilingOrZero), Multiply, Float32),
            (ScaleRule::CeilingOrOne, _) => (Self::Power(PowerFormula::CeilingOrOne), Multiply, Float32),
            (ScaleRule::Affine, _) => (Self::Bounds(BoundsFormula::Affine), Divide, Float32),
            (ScaleRule::Linear, CodeType::Int { bits: 4, symmetric: true }) => {
                (Self::Bounds(BoundsFormula::Signed), Multiply, Float32)
            }
            (ScaleRule::Linear, CodeType::Int { bits: 4, symmetric: false }) => {
                (Self::Bounds(BoundsFormula::Shifted), Multiply, Float32)
            }
            (ScaleRule::Linear, _) => (Self::Number(NumberFormula::Linear), Divide, Float32),
            (ScaleRule::Blocks, CodeType::Int { bits, symmetric: false }) => {
                (Self::Bounds(BoundsFormula::Unsigned(bits)), Multiply, Float32)
            }
            (ScaleRule::Blocks, codes) => (Self::Bounds(BoundsFormula::Centered(codes.bits())), Multiply, Float32),
            (ScaleRule::Tables, _) => {
                let is_shifted = matches!(codes, CodeType::Int { symmetric: false, .. });
                let bounds = if is_shifted { BoundsFormula::ShiftedTable } else { BoundsFormula::SignedTable };
                (Self::Bounds(bounds), Divide, if weight == WeightType::Bfloat16 { Float32 } else { weight })
            }
        }
    }

    /// Returns the formula of comfy-kitchen in the type of the weight, and the type that its quotients are rounded to.
    pub(super) fn in_type(self, codes: CodeType, rounded: WeightType, weight: WeightType) -> (Self, WeightType) {
        let Self::Number(NumberFormula::Floored(least)) = self else { return (self, rounded) };
        let number = if codes.bits() == 4 {
            NumberFormula::FlooredInType(least)
        } else {
            NumberFormula::FlooredBesideType(least)
        };
        (Self::Number(number), weight)
    }

    /// True if block scales are combined with a global scale.
    pub(super) fn has_global(self) -> bool {
        matches!(self, Self::Block(BlockFormula::Divisor | BlockFormula::Multiplier | BlockFormula::Padded))
    }

    /// Returns the rounding of quotients to integers, halves away from zero, before codes are chosen.
    pub(super) fn away(self) -> Option<Away> {
        match self {
            Self::Bounds(BoundsFormula::Signed | BoundsFormula::Shifted) => Some(Away::Quotient),
            Self::Bounds(BoundsFormula::Centered(_) | BoundsFormula::Unsigned(_)) => Some(Away::Sum),
            _ => None,
        }
    }

    /// True if scales depend on the lowest and the highest value of a group.
    pub(super) fn has_bounds(self) -> bool {
        matches!(self, Self::Bounds(_))
    }

    /// The width of integer codes to which zero points are added; `None` for other codes.
    pub(super) fn zero_bits(self) -> Option<u32> {
        match self {
            Self::Bounds(
                BoundsFormula::ZeroPoint(bits) | BoundsFormula::Centered(bits) | BoundsFormula::Unsigned(bits),
            ) => Some(bits),
            Self::Bounds(BoundsFormula::Shifted | BoundsFormula::ShiftedTable) => Some(4),
            _ => None,
        }
    }
}
