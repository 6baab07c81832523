//! Scales of groups out of their largest magnitudes, by the rules of the libraries.

use super::super::rules::ScaleRule;
use super::rounding::{
    Minifloat, WeightType, ceil_log2, exact_ceil_log2, power_of_two, to_bfloat16, to_float16, to_odd,
};
use crate::dtype::Dtype;

/// What values are divided by, or multiplied with, on the way to codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotient {
    /// Value / factor.
    Divide,
    /// Value * factor.
    Multiply,
    /// Value * global divisor / the factor in float64, rounded to odd: what is rounded next is rounded once.
    Exact,
}

/// How scales are chosen, and how values become numbers to round: what is the same for all groups of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chooser {
    pub(super) rule: ScaleRule,
    pub(super) is_exact: bool,
    /// The dtype of the weight, which the library computes in; float32 for exact arithmetic.
    pub(super) weight: WeightType,
    /// What amax is divided by.
    pub(super) largest: f32,
    /// The exponent of the largest code.
    pub(super) largest_exponent: i32,
    /// The dtype of stored scales.
    pub(super) stored: Dtype,
    /// One scale for the tensor.
    pub(super) is_tensor: bool,
    /// Whether the codes are E2M3: see [`ScaleRule::HalfStep`].
    pub(super) has_three_bits: bool,
    /// Bits of integer codes with zero points.
    pub(super) zero_bits: Option<u32>,
    /// Block scales of NVFP4.
    pub(super) e4m3: Minifloat,
}

/// The largest value of NVFP4 over the global scale: 6 * 448.
const MOST: f32 = 2688.0;

/// The scale of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupScale {
    /// The number that codes stand for a multiple of.
    pub(super) scale: f32,
    /// Its stored bits: of floats as float32, of others the byte.
    pub(super) stored: u32,
    /// See [`Quotient`].
    pub(super) factor: f32,
    /// As `factor`, for exact arithmetic.
    pub(super) wide: f64,
    /// The zero point.
    pub(super) zero: f32,
    /// See [`super::EncodeTally::underflowed_groups`].
    pub(super) is_underflow: bool,
}

impl GroupScale {
    /// Not chosen yet.
    pub(super) const NONE: Self =
        Self { scale: 0.0, stored: 0, factor: 0.0, wide: 0.0, zero: 0.0, is_underflow: false };

    /// A scale that is stored as a number, and that values are divided by.
    #[inline(always)]
    fn number(scale: f32, is_underflow: bool) -> Self {
        Self { scale, stored: scale.to_bits(), factor: scale, wide: scale.into(), zero: 0.0, is_underflow }
    }

    /// A power of two that values are divided by.
    #[inline(always)]
    fn exponent(exponent: i32, is_underflow: bool) -> Self {
        let byte = (exponent + 127).clamp(0, 254);
        let scale = f32::from_bits(if byte == 0 { 0x0040_0000 } else { (byte as u32) << 23 });
        // The reciprocal is as exact.
        let factor = f32::from_bits(if byte == 254 { 0x0040_0000 } else { (254 - byte as u32) << 23 });
        Self { scale, stored: byte as u32, factor, wide: scale.into(), zero: 0.0, is_underflow }
    }
}

impl Chooser {
    /// How values become numbers to round, and what the library rounds these numbers to on the way.
    pub(super) fn quotient(&self) -> (Quotient, WeightType) {
        let divides = if self.is_exact { Quotient::Exact } else { Quotient::Divide };
        let multiplies = if self.is_exact { Quotient::Exact } else { Quotient::Multiply };
        match self.rule {
            ScaleRule::Epsilon => (divides, self.weight),
            ScaleRule::Bounded if self.is_tensor => (divides, self.weight),
            ScaleRule::Inverse => (multiplies, self.weight),
            ScaleRule::Reciprocal if self.stored == Dtype::Bfloat16 => (divides, WeightType::Float32),
            ScaleRule::Reciprocal => (multiplies, WeightType::Float32),
            ScaleRule::Bounded
            | ScaleRule::Plain
            | ScaleRule::GlobalDivisor
            | ScaleRule::GlobalMultiplier
            | ScaleRule::GlobalPadded => (divides, WeightType::Float32),
            // Products with powers of two are exact.
            ScaleRule::HalfStep => (Quotient::Multiply, self.weight),
            ScaleRule::Floor | ScaleRule::Ceiling | ScaleRule::CeilingOrZero => {
                (Quotient::Multiply, WeightType::Float32)
            }
        }
    }

    /// The global scale, of the largest magnitude of the tensor or of all that share it. 1 where there is none.
    pub(super) fn global(&self, amax: f32) -> f32 {
        let round = |value: f32| self.weight.round(value);
        match self.rule {
            ScaleRule::GlobalDivisor => {
                let amax = amax.max(self.weight.tiny());
                let global = if self.is_exact {
                    (f64::from(MOST) / f64::from(amax)) as f32
                } else {
                    round(round(1.0 / amax) * MOST)
                };
                if global.is_finite() { global } else { 1.0 }
            }
            ScaleRule::GlobalMultiplier | ScaleRule::GlobalPadded => {
                let global = if self.rule == ScaleRule::GlobalPadded { round(amax / MOST) } else { amax / MOST };
                // A tensor of zeros: the libraries write NaNs.
                if global > 0.0 { global } else { 1.0 }
            }
            _ => 1.0,
        }
    }

    /// The scales of groups, of which `amax` are the largest magnitudes, or of groups with zero points the lowest and
    /// highest values.
    #[inline(always)]
    pub(super) fn choose(&self, amax: &[u32], bounds: &[[f32; 2]], global: f32, out: &mut [GroupScale]) {
        let this = *self;
        if let Some(bits) = this.zero_bits {
            for (bounds, out) in bounds.iter().zip(out) {
                *out = this.asymmetric(*bounds, bits);
            }
            return;
        }
        // A loop for each rule, which a closure might keep from being compiled for the instruction set.
        macro_rules! each {
            ($amax:ident => $scale:expr) => {
                for (bits, out) in amax.iter().zip(out) {
                    let $amax = f32::from_bits(*bits);
                    *out = $scale;
                }
            };
        }
        match this.rule {
            ScaleRule::Epsilon => each!(amax => this.epsilon(amax)),
            ScaleRule::Reciprocal => each!(amax => this.reciprocal(amax)),
            ScaleRule::Bounded => each!(amax => this.bounded(amax)),
            ScaleRule::Inverse => each!(amax => this.inverse(amax)),
            ScaleRule::Plain => each!(amax => this.plain(amax)),
            ScaleRule::GlobalDivisor => each!(amax => this.global_divisor(amax, global)),
            ScaleRule::GlobalMultiplier => each!(amax => this.global_multiplier(amax, global)),
            ScaleRule::GlobalPadded => each!(amax => this.global_padded(amax, global)),
            ScaleRule::HalfStep => each!(amax => this.half_step(amax)),
            ScaleRule::Floor => each!(amax => this.floor(amax)),
            ScaleRule::Ceiling => each!(amax => {
                let exponent = this.ceiling(amax);
                GroupScale::exponent(exponent, (exponent < -127) & (amax > 0.0))
            }),
            ScaleRule::CeilingOrZero => each!(amax => this.ceiling_or_zero(amax)),
        }
    }

    #[inline(always)]
    fn plain(&self, amax: f32) -> GroupScale {
        let scale = self.quotient_of(amax);
        let is_zero = scale == 0.0;
        GroupScale::number(if is_zero { 1.0 } else { scale }, is_zero & (amax > 0.0))
    }

    #[inline(always)]
    fn floor(&self, amax: f32) -> GroupScale {
        let exponent = (amax.to_bits() >> 23) as i32 - 127 - self.largest_exponent;
        GroupScale::exponent(exponent, (exponent < -127) & (amax > 0.0))
    }

    #[inline(always)]
    fn ceiling_or_zero(&self, amax: f32) -> GroupScale {
        let chosen = GroupScale::exponent(self.ceiling(amax), false);
        let is_zero = chosen.stored == 0;
        let or_zero = |value: f32| if is_zero { 0.0 } else { value };
        let is_underflow = is_zero & (amax > 0.0);
        GroupScale { scale: or_zero(chosen.scale), factor: or_zero(chosen.factor), is_underflow, ..chosen }
    }

    /// amax / largest code: rounded once to the dtype of the scale where arithmetic is exact, else float32.
    #[inline(always)]
    fn quotient_of(&self, amax: f32) -> f32 {
        if self.is_exact { self.store_once(f64::from(amax) / f64::from(self.largest)) } else { amax / self.largest }
    }

    /// A float64 in the dtype of stored scales, rounded once.
    #[inline(always)]
    fn store_once(&self, value: f64) -> f32 {
        if self.stored == Dtype::Float32 { value as f32 } else { self.store(to_odd(value)) }
    }

    /// A float32 in the dtype of stored scales.
    #[inline(always)]
    fn store(&self, value: f32) -> f32 {
        match self.stored {
            Dtype::Bfloat16 => to_bfloat16(value),
            Dtype::Float16 => to_float16(value),
            _ => value,
        }
    }

    #[inline(always)]
    fn epsilon(&self, amax: f32) -> GroupScale {
        let scale = if self.is_exact { self.quotient_of(amax) } else { self.weight.round(amax / self.largest) };
        let is_zero = scale == 0.0;
        let epsilon = WeightType::new(self.stored).unwrap_or(self.weight).epsilon();
        GroupScale::number(if is_zero { epsilon } else { scale }, is_zero & (amax > 0.0))
    }

    #[inline(always)]
    fn asymmetric(&self, [low, high]: [f32; 2], bits: u32) -> GroupScale {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let (codes, least) = (((1_u32 << bits) - 1) as f32, -((1_u32 << (bits - 1)) as f32));
        let round = |value: f32| self.weight.round(value);
        let (scale, zero) = if self.is_exact {
            let scale = self.store_once((f64::from(high) - f64::from(low)) / f64::from(codes));
            (scale, to_odd(f64::from(least) - f64::from(low) / f64::from(scale)))
        } else {
            let scale = round(round(high - low) / codes);
            (scale, round(least - round(low / scale)))
        };
        // 0 / 0 is a zero point of 0.
        let zero = if zero.is_nan() { 0.0 } else { zero.clamp(least, least + codes).round_ties_even() };
        let is_zero = scale == 0.0;
        let epsilon = WeightType::new(self.stored).unwrap_or(self.weight).epsilon();
        GroupScale { zero, ..GroupScale::number(if is_zero { epsilon } else { scale }, is_zero & (high > low)) }
    }

    #[inline(always)]
    fn reciprocal(&self, amax: f32) -> GroupScale {
        let is_ideal = self.is_exact || self.stored == Dtype::Bfloat16;
        let forward = 1.0 / amax * self.largest;
        // Of a block of zeros, and of one so small that the library writes zeros and NaNs.
        let is_ordinary = (amax > 0.0) & (is_ideal | (forward < f32::INFINITY));
        let inverse = 1.0 / forward;
        match self.stored {
            Dtype::Float8E8M0 | Dtype::Uint8 => {
                let scale = if self.is_exact {
                    exact_ceil_log2(f64::from(amax) / f64::from(self.largest))
                } else {
                    ceil_log2(inverse.max(power_of_two(-126)))
                };
                let exponent = if amax > 0.0 { scale.clamp(-126, 127) } else { 0 };
                GroupScale::exponent(exponent, scale < -126 && amax > 0.0)
            }
            _ if is_ideal => {
                let scale = self.store(self.quotient_of(amax));
                let is_zero = scale == 0.0;
                GroupScale::number(if is_zero { 1.0 } else { scale }, is_zero & (amax > 0.0))
            }
            _ => {
                let scale = if is_ordinary { inverse } else { 1.0 };
                let factor = if is_ordinary { forward } else { 1.0 };
                GroupScale { factor, ..GroupScale::number(scale, !is_ordinary & (amax > 0.0)) }
            }
        }
    }

    #[inline(always)]
    fn bounded(&self, amax: f32) -> GroupScale {
        let least = if self.is_tensor { 0.0 } else { self.weight.tiny() };
        let scale = self.quotient_of(amax.max(least));
        let is_zero = (amax == 0.0) | (scale == 0.0);
        GroupScale::number(if is_zero { 1.0 } else { scale }, (amax > 0.0) & ((amax < least) | (scale == 0.0)))
    }

    #[inline(always)]
    fn inverse(&self, amax: f32) -> GroupScale {
        let scale = self.quotient_of(amax);
        let is_bounded = !self.is_exact && self.weight == WeightType::Float16;
        let scale = if is_bounded { 1.0 / (1.0 / scale).min(65504.0) } else { scale };
        let factor = self.weight.round(1.0 / scale);
        // The library writes NaNs.
        let is_zero = (amax == 0.0) | (scale == 0.0) | (factor == f32::INFINITY);
        let factor = if is_zero { 1.0 } else { factor };
        GroupScale { factor, ..GroupScale::number(if is_zero { 1.0 } else { scale }, is_zero & (amax > 0.0)) }
    }

    /// amax * times / over in E4M3: rounded once where arithmetic is exact, else what the library rounds in float32.
    #[inline(always)]
    fn block(&self, amax: f32, library: f32, [times, over]: [f64; 2]) -> (u32, f32) {
        let value = if self.is_exact { to_odd(f64::from(amax) * times / over) } else { library };
        self.e4m3.round(value)
    }

    #[inline(always)]
    fn global_divisor(&self, amax: f32, global: f32) -> GroupScale {
        let (code, value) = self.block(amax, self.weight.round(amax / 6.0) * global, [global.into(), 6.0]);
        let is_zero = code == 0;
        let (code, value) = if is_zero { (0x20, 0.125) } else { (code, value) };
        GroupScale { is_underflow: is_zero & (amax > 0.0), ..self.of_block(code, value, global) }
    }

    #[inline(always)]
    fn global_multiplier(&self, amax: f32, global: f32) -> GroupScale {
        const LEAST: f32 = 1.0 / 512.0;
        let ratio = amax / (6.0 * global);
        let is_zero = if self.is_exact { amax == 0.0 } else { ratio == 0.0 };
        let (code, value) = self.block(amax, ratio, [1.0, 6.0 * f64::from(global)]);
        let is_small = code == 0;
        let (code, value) = if is_small { (1, LEAST) } else { (code, value) };
        let (code, value) = if is_zero { (0x38, 1.0) } else { (code, value) };
        GroupScale { is_underflow: is_small & (amax > 0.0), ..self.of_block(code, value, global) }
    }

    #[inline(always)]
    fn global_padded(&self, amax: f32, global: f32) -> GroupScale {
        let (code, value) = self.block(amax, amax / 6.0 / global, [1.0, 6.0 * f64::from(global)]);
        let scale = self.of_block(code, value, global);
        GroupScale { is_underflow: (scale.scale == 0.0) & (amax > 0.0), ..scale }
    }

    /// The scale that a number in E4M3 makes with the global scale.
    #[inline(always)]
    pub(super) fn of_block(&self, code: u32, value: f32, global: f32) -> GroupScale {
        let (times, wide) = if self.rule == ScaleRule::GlobalDivisor {
            (value / global, f64::from(value) / f64::from(global))
        } else {
            (value * global, f64::from(value) * f64::from(global))
        };
        GroupScale { scale: times, stored: code, factor: times, wide, zero: 0.0, is_underflow: false }
    }

    /// A scale that is a power of two, doubled or halved so many times.
    #[inline(always)]
    pub(super) fn moved(&self, scale: &GroupScale, exponent: i32) -> GroupScale {
        let exponent = scale.stored as i32 - 127 + exponent;
        let least = if self.weight == WeightType::Float16 && self.rule == ScaleRule::HalfStep { -24 } else { -127 };
        GroupScale::exponent(exponent.max(least), scale.is_underflow)
    }

    /// The scale of an integer grid for values that are so much smaller.
    #[inline(always)]
    pub(super) fn shrunk(&self, amax: f32, bounds: [f32; 2], part: f32) -> GroupScale {
        match self.zero_bits {
            Some(bits) => self.asymmetric(bounds.map(|bound| self.weight.round(bound * part)), bits),
            None => self.epsilon(self.weight.round(amax * part)),
        }
    }

    #[inline(always)]
    fn half_step(&self, amax: f32) -> GroupScale {
        // What the library adds to the mantissa of T is the same bit of float32, as amax is a number of T.
        let (bump, raised) = if self.has_three_bits { (1 << 19, 0.9375) } else { (1 << 21, 0.75) };
        let tiny = self.weight.tiny();
        let of_subnormal = if amax >= tiny * raised { tiny.to_bits() >> 23 } else { 0 };
        let field = if amax < tiny { of_subnormal } else { (amax.to_bits() + bump) >> 23 } as i32;
        let exponent = field - 127 - self.largest_exponent;
        let is_small = (field == 0) | (exponent < -127);
        let exponent = if is_small { -127 } else { exponent };
        // In float16 small powers of two are 0, for which the library takes 1.
        let least = if self.weight == WeightType::Float16 { -24 } else { -127 };
        let is_one = exponent < least;
        GroupScale::exponent(if is_one { 0 } else { exponent }, (is_one | is_small) & (amax > 0.0))
    }

    /// The exponent of the smallest power of two from amax / largest code on; below all of them that of 0.
    #[inline(always)]
    fn ceiling(&self, amax: f32) -> i32 {
        if amax == 0.0 {
            -127
        } else if self.is_exact {
            exact_ceil_log2(f64::from(amax) / f64::from(self.largest))
        } else {
            let ratio = amax / self.largest;
            if ratio == 0.0 { -150 } else { ceil_log2(ratio) }
        }
    }
}
