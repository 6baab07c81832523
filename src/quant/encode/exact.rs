//! The scale of a group with exact arithmetic: quotients are computed in float64 and rounded once.

use super::choose::Chooser;
use super::formula::{BlockFormula, BoundsFormula, Formula, NumberFormula, PowerFormula};
use super::rounding::exact_ceil_log2;
use super::scale::GroupScale;
use crate::kernel::to_odd;

impl Chooser {
    /// Returns the scale of a group with this largest magnitude. `bounds` are its lowest and its highest value; they
    /// matter only if codes have zero points or offsets.
    #[inline(always)]
    pub(super) fn exact(&self, amax: f64, bounds: [f64; 2], global: f32) -> GroupScale {
        let is_some = amax > 0.0;
        let quotient = amax / f64::from(self.largest);
        match self.formula {
            Formula::Number(NumberFormula::Bounded) if is_some && amax < self.weight.tiny().into() => {
                GroupScale { is_underflow: true, ..self.exact(self.weight.tiny().into(), bounds, global) }
            }
            // ONNX Runtime's formulas round once already.
            Formula::Number(NumberFormula::Linear)
            | Formula::Bounds(
                BoundsFormula::Signed
                | BoundsFormula::Shifted
                | BoundsFormula::Centered(_)
                | BoundsFormula::Unsigned(_)
                | BoundsFormula::SignedTable,
            ) => self.scale_of(amax as f32, bounds.map(|bound| bound as f32), global),
            Formula::Number(NumberFormula::Floored(least)) => {
                let (scale, least) = (self.store_once(quotient), f32::from_bits(least));
                GroupScale::number(scale.max(least), scale < least && is_some)
            }
            Formula::Number(number) => {
                let scale = self.store_once(quotient);
                let is_zero = scale == 0.0;
                let otherwise = if number == NumberFormula::Epsilon { self.least_step() } else { 1.0 };
                GroupScale::number(if is_zero { otherwise } else { scale }, is_zero && is_some)
            }
            // The thresholds of these formulas are float32 numbers, and rounding to odd does not move values across
            // them.
            Formula::Power(power @ (PowerFormula::HalfStep | PowerFormula::Floor)) => self.power(power, to_odd(amax)),
            Formula::Power(power) => {
                let above = |of_zero: i32| if is_some { exact_ceil_log2(quotient) } else { of_zero };
                match power {
                    PowerFormula::Reciprocal => {
                        let exponent = above(0);
                        GroupScale::exponent(exponent.clamp(-126, 127), exponent < -126)
                    }
                    PowerFormula::CeilingOrOne => GroupScale::raised(above(0), is_some),
                    PowerFormula::CeilingOrZero => GroupScale::raised_or_zero(above(-127), is_some),
                    _ => GroupScale::raised(above(-127), is_some),
                }
            }
            Formula::Block(block) => {
                let ratio = match block {
                    BlockFormula::Divisor => product_over(amax, global.into(), 6.0),
                    BlockFormula::Multiplier | BlockFormula::Padded => to_odd(amax / (6.0 * f64::from(global))),
                    BlockFormula::Alone => to_odd(quotient),
                };
                self.of_ratio(block, ratio, is_some, global)
            }
            Formula::Bounds(formula @ (BoundsFormula::ZeroPoint(_) | BoundsFormula::ShiftedTable)) => {
                let [low, high] = [bounds[0].min(0.0), bounds[1].max(0.0)];
                let [least, most] = formula.zero_range();
                let scale = self.store_once((high - low) / f64::from(most - least));
                let zero = to_odd(f64::from(least) - low / f64::from(scale));
                self.with_zero(scale, zero, [least, most], high > low)
            }
            Formula::Bounds(BoundsFormula::Affine) => {
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
        }
    }
}

/// Returns value * factor / divisor, rounded to odd once. Factor and divisor have at most 24 bits, as float32 numbers.
#[inline(always)]
pub(super) fn product_over(value: f64, factor: f64, divisor: f64) -> f32 {
    let product = value * factor;
    let quotient = product / divisor;
    // What is missing: the error of the product, less that of the quotient times the divisor. Both are exact, so their
    // difference has the right sign.
    let rest = error_of(value, factor, product) - error_of(quotient, divisor, product);
    let is_beyond = (rest > 0.0) == (quotient > 0.0);
    let bits = quotient.to_bits();
    // False for NaN, which infinite quotients have.
    let is_even = rest.abs() > 0.0 && bits & 1 == 0;
    let odd = if is_beyond { bits + 1 } else { bits.wrapping_sub(1) };
    to_odd(if is_even { f64::from_bits(odd) } else { quotient })
}

/// Returns the exact value of number * short - product, if `product` is near: `short` has at most 24 bits.
#[inline(always)]
fn error_of(number: f64, short: f64, product: f64) -> f64 {
    let high = f64::from_bits(number.to_bits() & !0xff_ffff); // 29 bits
    (high * short - product) + (number - high) * short
}
