//! The scale of a group with exact arithmetic: quotients are computed in float64 and rounded once.

use super::super::rules::ScaleRule;
use super::choose::Chooser;
use super::rounding::{exact_ceil_log2, to_odd};
use super::scale::GroupScale;
use crate::dtype::Dtype;

impl Chooser {
    /// Returns the scale of a group with this largest magnitude. `bounds` are its lowest and its highest value; they
    /// matter only if codes have zero points.
    #[inline(always)]
    pub(super) fn exact(&self, amax: f64, bounds: [f64; 2], global: f32) -> GroupScale {
        let is_some = amax > 0.0;
        let quotient = amax / f64::from(self.largest);
        let number_or = |otherwise: f32| {
            let scale = self.store_once(quotient);
            let is_zero = scale == 0.0;
            GroupScale::number(if is_zero { otherwise } else { scale }, is_zero && is_some)
        };
        let above = || if is_some { exact_ceil_log2(quotient) } else { -127 };
        match (self.rule, self.zero_bits) {
            (ScaleRule::Affine, _) => {
                let [low, high] = bounds;
                let is_low = low.abs() > high.abs();
                let (edge, sign) = if is_low { (low, 1.0) } else { (high, -1.0) };
                let step = sign * ((high - low) / f64::from(self.largest)).max(1e-7);
                let code_of_zero = (edge / step).round_ties_even();
                let (scale, offset) = if code_of_zero == 0.0 { (step, 0.0) } else { (edge / code_of_zero, edge) };
                let scale = self.store_once(scale);
                let is_underflow = scale == 0.0 && high > low;
                GroupScale { zero: self.store_once(offset), ..GroupScale::number(scale, is_underflow) }
            }
            (_, Some(bits)) => {
                let [low, high] = [bounds[0].min(0.0), bounds[1].max(0.0)];
                let (codes, least) = (f64::from((1_u32 << bits) - 1), -f64::from(1_u32 << (bits - 1)));
                let scale = self.store_once((high - low) / codes);
                let zero = to_odd(least - low / f64::from(scale));
                self.with_zero(scale, zero, [least as f32, (least + codes) as f32], high > low)
            }
            (ScaleRule::Epsilon, _) => number_or(self.least_step()),
            (ScaleRule::Reciprocal, _) if matches!(self.stored, Dtype::Float8E8M0 | Dtype::Uint8) => {
                let exponent = if is_some { exact_ceil_log2(quotient) } else { 0 };
                GroupScale::exponent(exponent.clamp(-126, 127), exponent < -126)
            }
            (ScaleRule::Bounded, _) if is_some && amax < self.least_magnitude().into() => {
                GroupScale { is_underflow: true, ..self.exact(self.least_magnitude().into(), bounds, global) }
            }
            (
                ScaleRule::Reciprocal | ScaleRule::Bounded | ScaleRule::Inverse | ScaleRule::Plain | ScaleRule::Linear,
                _,
            ) => number_or(1.0),
            (ScaleRule::GlobalDivisor, _) => {
                self.divided(self.e4m3.round(to_odd(amax * f64::from(global) / 6.0)), is_some, global)
            }
            (ScaleRule::GlobalMultiplier, _) => {
                let block = self.e4m3.round(to_odd(amax / (6.0 * f64::from(global))));
                self.multiplied(block, !is_some, is_some, global)
            }
            (ScaleRule::GlobalPadded, _) => {
                self.padded(self.e4m3.round(to_odd(amax / (6.0 * f64::from(global)))), is_some, global)
            }
            // The thresholds of these rules are float32 numbers, and rounding to odd does not move values across them.
            (ScaleRule::HalfStep, _) => self.half_step(to_odd(amax)),
            (ScaleRule::Floor, _) => self.floor(to_odd(amax)),
            (ScaleRule::CeilingOrOne, _) => {
                GroupScale::raised(if is_some { exact_ceil_log2(quotient) } else { 0 }, is_some)
            }
            (ScaleRule::BlockOnly, _) => {
                let (code, value) = self.e4m3.round(to_odd(quotient));
                GroupScale { stored: code, ..GroupScale::number(value, code == 0 && is_some) }
            }
            (ScaleRule::Ceiling, _) => GroupScale::raised(above(), is_some),
            (ScaleRule::CeilingOrZero, _) => GroupScale::raised_or_zero(above(), is_some),
        }
    }
}
