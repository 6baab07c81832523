//! Numbers rounded to codes, with the inputs of the error sums.

use super::lanes::RAISED;
use super::rounding::round_half_away;
use crate::kernel::Minifloat;

/// The numbers of a group that its values are divided or multiplied by.
#[derive(Clone, Copy)]
pub(super) struct GroupFactors {
    pub(super) factor: f32,
    pub(super) zero: f32,
    pub(super) scale: f32,
}

/// A number rounded to a code.
pub(super) struct RoundedCode {
    pub(super) code: u32,
    /// The value, or its magnitude.
    pub(super) value: f32,
    /// The number that the code stands for, as a multiple of the scale, with a sign if `value` has one.
    pub(super) multiple: f32,
    /// The number added to the product of multiple and scale.
    pub(super) offset: f32,
    pub(super) is_clipped: bool,
}

/// Rounds the magnitude `number` to a code; `value` is the original value.
#[inline(always)]
pub(super) fn to_float(
    float: Minifloat,
    value: f32,
    number: f32,
    round: impl Fn(Minifloat, f32) -> (u32, f32),
    is_signed: impl Fn(f32, f32) -> bool,
) -> RoundedCode {
    let (code, multiple) = round(float, number);
    RoundedCode {
        code: code | if is_signed(value, number) { float.sign } else { 0 },
        value: value.abs(),
        multiple,
        offset: 0.0,
        is_clipped: number > float.clipped,
    }
}

/// Rounds the quotient first, halves away from zero; then adds the zero point.
#[inline(always)]
pub(super) fn away_from_zero(value: f32, group: GroupFactors, bounds: [f32; 2], offset: u8) -> RoundedCode {
    let number = round_half_away(value * group.factor) + group.zero;
    let rounded = to_integer(value, number, bounds, offset);
    RoundedCode { multiple: rounded.multiple - group.zero, ..rounded }
}

/// Adds the zero point first; then rounds the sum, halves away from zero.
#[inline(always)]
pub(super) fn sum_away_from_zero(value: f32, group: GroupFactors, bounds: [f32; 2], offset: u8) -> RoundedCode {
    let number = round_half_away(value * group.factor + group.zero);
    let rounded = to_integer(value, number, bounds, offset);
    RoundedCode { multiple: rounded.multiple - group.zero, ..rounded }
}

#[inline(always)]
pub(super) fn to_integer(value: f32, number: f32, [low, high]: [f32; 2], offset: u8) -> RoundedCode {
    let above = if number > low { number } else { low };
    let sum = (if above < high { above } else { high }) + RAISED;
    RoundedCode {
        code: sum.to_bits().wrapping_add(offset.into()),
        value,
        multiple: sum - RAISED,
        offset: 0.0,
        is_clipped: (number > high + 0.5) | (number < low - 0.5),
    }
}
