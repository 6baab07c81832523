//! Computes the scale of a group from its largest magnitude, by the rules of the libraries.

use super::formula::{BlockFormula, BoundsFormula, Formula, NumberFormula, PowerFormula};
use super::rounding::{SMALL, WeightType, ceil_log2, exact_ceil_log2, power_of_two, quotient_of_small, raised};
use super::scale::GroupScale;
use crate::dtype::Dtype;
use crate::kernel::half::{to_bfloat16, to_float16};
use crate::kernel::{Minifloat, to_odd};

/// The properties that all groups of a weight share, and that choose their scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chooser {
    pub(super) formula: Formula,
    pub(super) is_exact: bool,
    /// The dtype of the weight, which the library computes in; float32 for exact arithmetic.
    pub(super) weight: WeightType,
    /// The largest code, the divisor of amax.
    pub(super) largest: f32,
    /// The exponent of the largest code.
    pub(super) largest_exponent: i32,
    /// The dtype of stored scales.
    pub(super) stored: Dtype,
    /// True if the codes are E2M3: see [`PowerFormula::HalfStep`].
    pub(super) has_three_bits: bool,
    /// The dtype of NVFP4 block scales.
    pub(super) e4m3: Minifloat,
}

/// The largest NVFP4 value in units of the global scale: 6 * 448.
const MOST: f32 = 2688.0;

impl Chooser {
    /// Returns the global scale for the largest magnitude of all tensors that share it; 1 if the layout has no global
    /// scale.
    pub(super) fn global(&self, amax: f64) -> f32 {
        let round = |value: f32| self.weight.round(value);
        match self.formula {
            Formula::Block(BlockFormula::Divisor) => {
                let amax = amax.max(self.weight.tiny().into());
                let global = if self.is_exact {
                    let quotient = f64::from(MOST) / amax;
                    // The quotient can be a tie of float32 only because it was rounded.
                    let rest = (-quotient).mul_add(amax, MOST.into());
                    let is_even = rest.abs() > 0.0 && quotient.to_bits() & 1 == 0;
                    let odd = if rest > 0.0 { quotient.next_up() } else { quotient.next_down() };
                    (if is_even { odd } else { quotient }) as f32
                } else {
                    round(round(1.0 / amax as f32) * MOST)
                };
                if global.is_finite() { global } else { 1.0 }
            }
            Formula::Block(block @ (BlockFormula::Multiplier | BlockFormula::Padded)) => {
                // For a float32, this is the quotient in float32.
                let quotient = (amax / f64::from(MOST)) as f32;
                let global = if block == BlockFormula::Padded { round(quotient) } else { quotient };
                // For a tensor of zeros, the libraries write NaNs; tcast uses 1.
                if global > 0.0 { global } else { 1.0 }
            }
            _ => 1.0,
        }
    }

    /// Chooses the scale of one group from its largest magnitude and its lowest and highest value.
    #[inline(always)]
    pub(super) fn one(&self, amax: f32, bounds: [f32; 2], global: f32) -> GroupScale {
        if self.is_exact {
            self.exact(amax.into(), bounds.map(f64::from), global)
        } else {
            self.scale_of(amax, bounds, global)
        }
    }

    /// Chooses the scale of one group with the arithmetic of the library.
    #[inline(always)]
    pub(super) fn scale_of(&self, amax: f32, bounds: [f32; 2], global: f32) -> GroupScale {
        match self.formula {
            Formula::Number(number) => self.number(number, amax),
            Formula::Power(power) => self.power(power, amax),
            Formula::Block(block) => {
                let ratio = match block {
                    BlockFormula::Divisor => self.weight.round(amax / 6.0) * global,
                    BlockFormula::Multiplier => amax / (6.0 * global),
                    BlockFormula::Padded => amax / 6.0 / global,
                    BlockFormula::Alone => self.weight.round(amax / 6.0),
                };
                self.of_ratio(block, ratio, amax > 0.0, global)
            }
            Formula::Bounds(formula @ BoundsFormula::ZeroPoint(_)) => {
                self.zero_point(bounds, self.weight.round(span(bounds)), formula.zero_range())
            }
            Formula::Bounds(BoundsFormula::SignedTable) => self.of_table(|wide| wide.linear_signed(bounds, 8.0)),
            Formula::Bounds(formula @ BoundsFormula::ShiftedTable) => {
                self.of_table(|wide| wide.zero_point(bounds, self.store(span(bounds)), formula.zero_range()))
            }
            Formula::Bounds(BoundsFormula::Affine) => self.affine(bounds),
            Formula::Bounds(BoundsFormula::Signed) => self.linear_signed(bounds, 8.0),
            Formula::Bounds(BoundsFormula::Shifted) => self.linear_shifted(bounds, 15.0),
            Formula::Bounds(BoundsFormula::Centered(bits)) => self.centered(bounds, bits),
            Formula::Bounds(BoundsFormula::Unsigned(bits)) => self.unsigned(bounds, bits),
        }
    }

    #[inline(always)]
    fn number(&self, number: NumberFormula, amax: f32) -> GroupScale {
        let or_one = |scale: f32| {
            let is_zero = scale == 0.0;
            GroupScale::number(if is_zero { 1.0 } else { scale }, is_zero & (amax > 0.0))
        };
        match number {
            NumberFormula::Plain => or_one(amax / self.largest),
            NumberFormula::Floored(least) => {
                let (scale, least) = (amax / self.largest, f32::from_bits(least));
                GroupScale::number(scale.max(least), (scale < least) & (amax > 0.0))
            }
            NumberFormula::FlooredInType(least) => {
                let least = self.weight.round(f32::from_bits(least) * self.largest);
                let scale = self.weight.round(amax.max(least) / self.largest);
                // The scale of float16 zeros is 0.
                let factor = if scale == 0.0 { power_of_two(-100) } else { scale };
                GroupScale { factor, ..GroupScale::number(scale, (amax < least) & (amax > 0.0)) }
            }
            NumberFormula::FlooredBesideType(least) => {
                let chosen = self.number(NumberFormula::Floored(least), amax);
                let factor = self.weight.round(chosen.scale);
                GroupScale { factor: if factor == 0.0 { self.weight.tiny() } else { factor }, ..chosen }
            }
            NumberFormula::Bfloat16 => or_one(to_bfloat16(amax / self.largest)),
            NumberFormula::Epsilon => {
                let scale = self.weight.round(amax / self.largest);
                let is_zero = scale == 0.0;
                GroupScale::number(if is_zero { self.least_step() } else { scale }, is_zero & (amax > 0.0))
            }
            NumberFormula::Reciprocal => {
                let factor = 1.0 / amax * self.largest;
                // False for a block of zeros, and for a block so small that the library writes zeros and NaNs.
                let is_ordinary = (amax > 0.0) & (factor < f32::INFINITY);
                let factor = if is_ordinary { factor } else { 1.0 };
                GroupScale { factor, ..GroupScale::number(1.0 / factor, !is_ordinary & (amax > 0.0)) }
            }
            NumberFormula::Bounded => {
                let least = self.weight.tiny();
                let scale = amax.max(least) / self.largest;
                let is_zero = (amax == 0.0) | (scale == 0.0);
                let is_underflow = (amax > 0.0) & ((amax < least) | (scale == 0.0));
                GroupScale::number(if is_zero { 1.0 } else { scale }, is_underflow)
            }
            NumberFormula::Inverse => {
                let scale = amax / self.largest;
                let scale = if self.weight == WeightType::Float16 { 1.0 / (1.0 / scale).min(65504.0) } else { scale };
                let factor = self.weight.round(1.0 / scale);
                // The library writes NaNs in these cases. The scale of zeros is 1 / 65504 in float16, and 0 in other
                // types.
                let is_zero = (scale == 0.0) | (factor == f32::INFINITY);
                let factor = if is_zero { 1.0 } else { factor };
                GroupScale { factor, ..GroupScale::number(if is_zero { 1.0 } else { scale }, is_zero & (amax > 0.0)) }
            }
            NumberFormula::Linear => {
                let wide = f64::from(amax) / f64::from(self.largest);
                let scale = self.store_once(wide);
                let is_small =
                    if self.stored == Dtype::Float16 { scale == 0.0 } else { wide < f64::from(f32::MIN_POSITIVE) };
                GroupScale::number(if is_small { 1.0 } else { scale }, is_small & (amax > 0.0))
            }
        }
    }

    #[inline(always)]
    pub(super) fn power(&self, power: PowerFormula, amax: f32) -> GroupScale {
        match power {
            PowerFormula::HalfStep => self.half_step(amax),
            PowerFormula::Floor => {
                let exponent = (amax.to_bits() >> 23) as i32 - 127 - self.largest_exponent;
                GroupScale::exponent(exponent, (exponent < -127) & (amax > 0.0))
            }
            PowerFormula::Ceiling => GroupScale::raised(self.exponent_above(amax), amax > 0.0),
            PowerFormula::CeilingOrZero => GroupScale::raised_or_zero(self.exponent_above(amax), amax > 0.0),
            PowerFormula::CeilingOrOne => {
                let ratio = self.weight.round(amax / self.largest);
                let exponent = if ratio == 0.0 { 0 } else { exact_ceil_log2(ratio.into()) };
                GroupScale::exponent(exponent, (ratio == 0.0) & (amax > 0.0) | (exponent < -127))
            }
            PowerFormula::Reciprocal => {
                let inverse = 1.0 / (1.0 / amax * self.largest);
                let scale = ceil_log2(inverse.max(power_of_two(-126)));
                let exponent = if amax > 0.0 { scale.clamp(-126, 127) } else { 0 };
                GroupScale::exponent(exponent, scale < -126 && amax > 0.0)
            }
        }
    }

    /// Makes the scale from its float8e4m3fn before rounding. `is_some` is true if a value of the group is not 0.
    #[inline(always)]
    pub(super) fn of_ratio(&self, block: BlockFormula, ratio: f32, is_some: bool, global: f32) -> GroupScale {
        const LEAST: f32 = 1.0 / 512.0;
        let (code, value) = self.e4m3.round(ratio);
        let is_zero = code == 0;
        let (code, value, is_underflow) = match block {
            BlockFormula::Divisor if is_zero => (0x20, 0.125, true),
            BlockFormula::Multiplier if ratio == 0.0 => (0x38, 1.0, true),
            BlockFormula::Multiplier if is_zero => (1, LEAST, true),
            _ => (code, value, is_zero),
        };
        let scale = self.of_block(code, value, global);
        let is_lost = block == BlockFormula::Padded && scale.scale == 0.0;
        GroupScale { is_underflow: (is_underflow | is_lost) & is_some, ..scale }
    }

    /// Chooses scale and offset by [`BoundsFormula::Affine`]. The offset is not rounded to the dtype of the weight yet.
    #[inline(always)]
    pub(super) fn affine(&self, [low, high]: [f32; 2]) -> GroupScale {
        const LEAST: f32 = 1e-7;
        let is_low = low.abs() > high.abs();
        let step = (high - low) / self.largest;
        let step = if step > LEAST { step } else { LEAST };
        let step = if is_low { step } else { -step };
        let edge = if is_low { low } else { high };
        let code_of_zero = (edge / step).round_ties_even();
        let is_zero = code_of_zero == 0.0;
        let scale = if is_zero { step } else { edge / code_of_zero };
        let offset = if is_zero { 0.0 } else { edge };
        let stored = self.weight.round(scale);
        GroupScale {
            scale: stored,
            stored: stored.to_bits(),
            factor: scale,
            wide: stored.into(),
            zero: offset,
            is_underflow: (stored == 0.0) & (high > low),
        }
    }

    /// Rounds a float64 once, to the dtype of stored scales.
    #[inline(always)]
    pub(super) fn store_once(&self, value: f64) -> f32 {
        if self.stored == Dtype::Float32 { value as f32 } else { self.store(to_odd(value)) }
    }

    /// Rounds a float32 to the dtype of stored scales.
    #[inline(always)]
    pub(super) fn store(&self, value: f32) -> f32 {
        match self.stored {
            Dtype::Bfloat16 => to_bfloat16(value),
            Dtype::Float16 => to_float16(value),
            _ => value,
        }
    }

    /// Returns the scale of groups of zeros: epsilon of the dtype of stored scales.
    #[inline(always)]
    pub(super) fn least_step(&self) -> f32 {
        WeightType::new(self.stored).unwrap_or(self.weight).epsilon()
    }

    #[inline(always)]
    fn zero_point(&self, [low, high]: [f32; 2], range: f32, [least, most]: [f32; 2]) -> GroupScale {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let codes = most - least;
        let round = |value: f32| self.weight.round(value);
        let scale = round(if range < SMALL { quotient_of_small(range, codes) } else { range / codes });
        // The range of a group can overflow T. The library then stores an infinite scale, which decodes to NaN.
        let scale = if scale < f32::INFINITY { scale } else { round(high / codes - low / codes) };
        let [low, over] =
            if range < SMALL { [low, scale].map(|number| raised(number.to_bits(), 100)) } else { [low, scale] };
        self.with_zero(scale, round(least - round(low / over)), [least, most], high > low)
    }

    /// Makes a scale with a zero point, which is rounded and bounded here.
    #[inline(always)]
    pub(super) fn with_zero(&self, scale: f32, zero: f32, [least, most]: [f32; 2], is_some: bool) -> GroupScale {
        // A group of zeros gives 0 / 0, for which the zero point is 0.
        let zero = if zero.is_nan() { 0.0 } else { zero.clamp(least, most).round_ties_even() };
        let is_zero = scale == 0.0;
        let is_table = self.formula == Formula::Bounds(BoundsFormula::ShiftedTable);
        let (of_zeros, zero) =
            if is_table { (0.0, if is_zero { 8.0 } else { zero }) } else { (self.least_step(), zero) };
        GroupScale { zero, ..GroupScale::number(if is_zero { of_zeros } else { scale }, is_zero & is_some) }
    }

    /// Combines a block scale, given as E4M3 code and number, with the global scale.
    #[inline(always)]
    pub(super) fn of_block(&self, code: u32, value: f32, global: f32) -> GroupScale {
        let (times, wide) = if self.formula == Formula::Block(BlockFormula::Divisor) {
            (value / global, value.into())
        } else {
            (value * global, f64::from(value) * f64::from(global))
        };
        GroupScale { scale: times, stored: code, factor: times, wide, zero: 0.0, is_underflow: false }
    }

    /// Returns the divisor of the scales of exact arithmetic: the global scale where it is a divisor, otherwise 1. The
    /// quotient of the two would be rounded, so values are multiplied by this number instead.
    #[inline(always)]
    pub(super) fn multiplier(&self, global: f32) -> f64 {
        if self.formula == Formula::Block(BlockFormula::Divisor) { global.into() } else { 1.0 }
    }

    /// Moves a scale that is a power of two by `exponent`.
    #[inline(always)]
    pub(super) fn moved(&self, scale: &GroupScale, exponent: i32) -> GroupScale {
        let exponent = scale.stored as i32 - 127 + exponent;
        let least = if self.weight == WeightType::Float16 && self.formula == Formula::Power(PowerFormula::HalfStep) {
            -24
        } else {
            -127
        };
        GroupScale::exponent(exponent.max(least), scale.is_underflow)
    }

    /// Chooses the scale of an integer grid as if the values were smaller by the factor `part`.
    #[inline(always)]
    pub(super) fn shrunk(&self, amax: f32, bounds: [f32; 2], part: f32) -> GroupScale {
        let round = |value: f32| self.weight.round(value * part);
        self.one(round(amax), bounds.map(round), 1.0)
    }

    #[inline(always)]
    fn half_step(&self, amax: f32) -> GroupScale {
        // The library adds a bit to the mantissa of T. amax is a number of T, so the same bit of float32 has the same
        // effect.
        let (bump, raised) = if self.has_three_bits { (1 << 19, 0.9375) } else { (1 << 21, 0.75) };
        let tiny = self.weight.tiny();
        let of_subnormal = if amax >= tiny * raised { tiny.to_bits() >> 23 } else { 0 };
        let field = if amax < tiny { of_subnormal } else { (amax.to_bits() + bump) >> 23 } as i32;
        let exponent = field - 127 - self.largest_exponent;
        let is_small = (field == 0) | (exponent < -127);
        let exponent = if is_small { -127 } else { exponent };
        // Powers of two below 2^-24 are 0 in float16, and the library replaces 0 by 1.
        let least = if self.weight == WeightType::Float16 { -24 } else { -127 };
        let is_one = exponent < least;
        GroupScale::exponent(if is_one { 0 } else { exponent }, (is_one | is_small) & (amax > 0.0))
    }

    /// Returns the exponent of the smallest power of two that is not below amax / largest code; -127 if amax is 0, and
    /// -150 if the quotient underflows to 0.
    #[inline(always)]
    fn exponent_above(&self, amax: f32) -> i32 {
        let ratio = amax / self.largest;
        if amax == 0.0 {
            -127
        } else if ratio == 0.0 {
            -150
        } else {
            ceil_log2(ratio)
        }
    }
}

/// Returns the distance from the lowest to the highest value of a group, or from 0.
#[inline(always)]
fn span([low, high]: [f32; 2]) -> f32 {
    high.max(0.0) - low.min(0.0)
}
