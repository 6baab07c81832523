//! Inverts the arithmetic of the decoder: finds the code that decodes to a value, bit for bit.

use super::super::super::decode::Arithmetic;
use super::super::super::layout::{CodeValues, Combination, Layout, Precision};
use super::super::super::rules::{SignRule, Ties};
use super::super::lanes::{self, CodeRounding};
use super::super::rounding::WeightType;
use crate::dtype::Dtype;
use crate::kernel::to_odd;

/// Number of values that are tried together.
pub(super) const SEGMENT: usize = 256;

/// Conversion of codes to values: the steps of the decoder.
pub(super) struct Redecoding {
    is_exact: bool,
    global: Combination,
    /// The types that scales, products and values are rounded to.
    scale: WeightType,
    product: WeightType,
    target: WeightType,
    rounding: CodeRounding,
    has_zeros: bool,
    /// Added to numbers: turns -0 into 0 if the layout has no -0.
    nothing: f32,
}

/// The factor of the codes of a group, and their zero point.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    /// Scale and global scale, combined as in the library; an approximation with exact arithmetic.
    combined: f32,
    /// The factors and the divisor of exact arithmetic.
    exact: [f64; 3],
    zero: f32,
}

/// Buffers for a segment.
pub(super) struct Segment {
    pub(super) values: [f32; SEGMENT],
    pub(super) codes: [u8; SEGMENT],
    numbers: [f32; SEGMENT],
    multiples: [f32; SEGMENT],
}

impl Segment {
    pub(super) fn new() -> Self {
        Self { values: [0.0; SEGMENT], codes: [0; SEGMENT], numbers: [0.0; SEGMENT], multiples: [0.0; SEGMENT] }
    }
}

impl Redecoding {
    /// Determines the steps for codes with this rounding, and scales stored as `stored`.
    pub(super) fn new(
        layout: &Layout,
        rounding: CodeRounding,
        has_zeros: bool,
        stored: Dtype,
        target: WeightType,
        arithmetic: Arithmetic,
    ) -> Self {
        let through = |precision: Precision| match precision {
            Precision::Float32 | Precision::Weight | Precision::Promoted => WeightType::Float32,
            Precision::Bfloat16 => WeightType::Bfloat16,
            Precision::Scale => WeightType::new(stored).unwrap_or(WeightType::Float32),
            Precision::Target => target,
        };
        let rounding = match rounding {
            // A code has the sign of its value, and the nearest code is sought.
            CodeRounding::Float { float, .. } => CodeRounding::Float { float, sign: SignRule::Kept, ties: Ties::Even },
            integers @ CodeRounding::Int { .. } => integers,
        };
        let has_negative_zero = !matches!(layout.codes.values, CodeValues::FloatWithoutNegativeZero(_));
        Self {
            is_exact: arithmetic == Arithmetic::Exact,
            global: layout.global,
            scale: through(layout.scale_precision),
            product: through(layout.product_precision),
            target,
            rounding,
            has_zeros,
            nothing: if has_negative_zero { -0.0 } else { 0.0 },
        }
    }

    #[inline(always)]
    pub(super) fn factor(&self, scale: f32, global: f32, zero: f32) -> Factor {
        let wide = f64::from(global);
        let (times, by) = match self.global {
            Combination::Multiplier => (wide, 1.0),
            Combination::Divisor => (1.0, wide),
            // No global scale of MLX is written, and rotated weights are not recovered.
            Combination::Nothing | Combination::OverLargest | Combination::Over127 | Combination::Levels => (1.0, 1.0),
        };
        let exact = [scale.into(), times, by];
        if self.is_exact {
            return Factor { combined: (exact[0] * times / by) as f32, exact, zero };
        }
        let [scale, global] = [scale, global].map(|number| self.scale.round(number));
        let combined = match self.global {
            Combination::Multiplier => self.scale.round(scale * global),
            Combination::Divisor => self.scale.round(scale / global),
            Combination::Nothing | Combination::OverLargest | Combination::Over127 | Combination::Levels => scale,
        };
        Factor { combined, exact, zero }
    }

    /// Finds the codes of the first `count` values of a segment. True if the decoder makes the same values from them.
    #[inline(always)]
    pub(super) fn fit(&self, factor: &Factor, segment: &mut Segment, count: usize) -> bool {
        self.find_codes(factor, segment, count);
        self.decode(factor, segment, count)
    }

    /// Finds the nearest codes: the decoder moved a value by less than half of the distance to the next code.
    #[inline(always)]
    fn find_codes(&self, factor: &Factor, segment: &mut Segment, count: usize) {
        let Segment { values, codes, numbers, multiples } = segment;
        let (values, numbers, multiples) = (&values[..count], &mut numbers[..count], &mut multiples[..count]);
        let (over, zero) = (factor.combined, factor.zero);
        if over == 0.0 {
            for (number, value) in numbers.iter_mut().zip(values) {
                *number = 0_f32.copysign(*value);
            }
        } else if self.has_zeros {
            for (number, value) in numbers.iter_mut().zip(values) {
                *number = *value / over + zero;
            }
        } else {
            for (number, value) in numbers.iter_mut().zip(values) {
                *number = *value / over;
            }
        }
        lanes::round(&self.rounding, numbers, &mut codes[..count], multiples);
        for multiple in &mut *multiples {
            *multiple += self.nothing;
        }
        if self.has_zeros {
            for multiple in &mut *multiples {
                *multiple -= zero;
            }
        }
    }

    /// Decodes the codes of a segment. True if the results equal the values.
    #[inline(always)]
    fn decode(&self, factor: &Factor, segment: &mut Segment, count: usize) -> bool {
        let (values, multiples) = (&segment.values[..count], &mut segment.multiples[..count]);
        if self.is_exact {
            let [scale, times, by] = factor.exact;
            let is_wide = self.target == WeightType::Float32;
            for multiple in &mut *multiples {
                let product = f64::from(*multiple) * scale * times / by;
                *multiple = if is_wide { product as f32 } else { to_odd(product) };
            }
        } else {
            for multiple in &mut *multiples {
                *multiple *= factor.combined;
            }
            lanes::round_all(multiples, self.product);
        }
        lanes::round_all(multiples, self.target);
        let mut differing = 0;
        for (value, multiple) in values.iter().zip(&*multiples) {
            differing |= value.to_bits() ^ multiple.to_bits();
        }
        differing == 0
    }

    /// Narrows the range of scales with which the codes of the first `count` values of a segment decode to these
    /// values; `factor` is near to such a scale. Returns false if the range is empty or not finite, or values are
    /// float16. The bounds are not exact.
    pub(super) fn narrow(&self, factor: &Factor, segment: &mut Segment, count: usize, range: &mut [f64; 2]) -> bool {
        // The distance to the next value, in units of the last bit of a float32.
        let step = match self.target {
            WeightType::Bfloat16 => 1 << 16,
            WeightType::Float32 => 1,
            WeightType::Float16 => return false,
        };
        self.find_codes(factor, segment, count);
        for (value, multiple) in segment.values[..count].iter().zip(&segment.multiples) {
            let (magnitude, code) = (value.abs(), f64::from(multiple.abs()));
            if magnitude == 0.0 {
                continue;
            }
            let next = |bits: u32| f64::midpoint(magnitude.into(), f32::from_bits(bits).into()) / code;
            let bits = magnitude.to_bits();
            *range = [range[0].max(next(bits.saturating_sub(step))), range[1].min(next(bits + step))];
            // The bounds for a code of 0 are not finite.
            if range[0] > range[1] || !range[0].is_finite() {
                return false;
            }
        }
        true
    }

    /// True if the library multiplies codes by scales as stored.
    pub(super) fn has_wide_scales(&self) -> bool {
        self.is_exact || (self.scale, self.product) == (WeightType::Float32, WeightType::Float32)
    }

    /// Returns the index of the first value for which [`Self::fit`] found no code.
    #[inline(never)]
    pub(super) fn misfit(segment: &Segment) -> usize {
        let mut pairs = segment.values.iter().zip(&segment.multiples);
        pairs.position(|(value, multiple)| value.to_bits() != multiple.to_bits()).unwrap_or_default()
    }
}
