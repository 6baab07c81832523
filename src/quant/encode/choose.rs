//! Chooses the scales of groups by the rules of the libraries, or by the same rules with exact arithmetic.
//!
//! The steps of a [`ScaleRule`] are loops over some groups side by side, so that each vectorizes whatever the others are.
//! Steps in float32 round as the library does. Exact arithmetic is the same steps in float64, whose result is rounded once.

use super::super::rules::{Apply, Away, Divide, Extreme, GlobalScale, Least, Power, ScaleRule};
use super::lanes::round_all;
use super::rounding::{SMALL, WeightType, ceil_log2, exact_ceil_log2, power_of_two, quotient_of_small, raised};
use super::scale::{ChosenScales, GroupScale, ScaleLanes, WIDTH, each};
use crate::dtype::Dtype;
use crate::kernel::{Loop, Minifloat, to_odd};
use std::ops::{Div, Mul, Sub};

/// The properties that all groups of a weight share, and that choose their scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chooser {
    /// The rule for these codes and scales.
    pub(super) rule: ScaleRule,
    pub(super) is_exact: bool,
    /// The dtype of the weight, which the library computes in; float32 for exact arithmetic.
    pub(super) weight: WeightType,
    /// True if comfy-kitchen computes in this dtype: the divisors of values are numbers of it.
    pub(super) keeps_type: bool,
    /// The largest code, the divisor of extremes.
    pub(super) largest: f32,
    /// The exponent of the largest code.
    pub(super) largest_exponent: i32,
    /// The dtype of stored scales.
    pub(super) stored: Dtype,
    /// The width of codes.
    pub(super) bits: u32,
    /// True if groups have zero points.
    pub(super) has_zero_points: bool,
    /// The dtype of NVFP4 block scales.
    pub(super) e4m3: Minifloat,
}

/// The arithmetic of scales: float32 as in the libraries, or float64 for exact arithmetic.
pub(super) trait ScaleFloat:
    Copy + Default + PartialOrd + From<f32> + Into<f64> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    const IS_EXACT: bool;
    /// Rounds to float32, to odd: rounding once more, to fewer bits, has the effect of a single rounding.
    fn narrow(self) -> f32;
    fn round_ties_even(self) -> Self;
}

macro_rules! scale_float {
    ($float:ident, $is_exact:expr, $narrow:expr) => {
        impl ScaleFloat for $float {
            const IS_EXACT: bool = $is_exact;

            #[inline(always)]
            fn narrow(self) -> f32 {
                $narrow(self)
            }

            #[inline(always)]
            fn round_ties_even(self) -> Self {
                self.round_ties_even()
            }
        }
    };
}

scale_float!(f32, false, std::convert::identity);
scale_float!(f64, true, to_odd);

/// Chooses the scales of groups. `amax` holds their largest magnitudes, and `bounds` their lowest and highest values,
/// which only some rules need.
pub(super) struct Choose<'a> {
    pub(super) chooser: &'a Chooser,
    /// One for each group, padded to whole chunks of [`WIDTH`].
    pub(super) amax: &'a [u32],
    /// Number of groups.
    pub(super) count: usize,
    /// For rules with bounds, with the length of `amax`.
    pub(super) bounds: &'a [[f32; 2]],
    pub(super) global: f32,
    pub(super) out: &'a mut ChosenScales,
}

impl Loop for Choose<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { chooser, amax, count, bounds, global, out } = self;
        out.multiplier = chooser.multiplier(global);
        // The last chunk is padded with groups whose scales are never read.
        for (chunk, amax) in amax.as_chunks::<WIDTH>().0.iter().enumerate().take(count.div_ceil(WIDTH)) {
            let bounds = bounds.as_chunks::<WIDTH>().0.get(chunk).copied().unwrap_or_default();
            let amax = each(|at| f32::from_bits(amax[at]));
            if chooser.is_exact {
                let (amax, bounds) = (each(|at| f64::from(amax[at])), each(|at| bounds[at].map(f64::from)));
                out.take(chunk, &chooser.choose(&amax, &bounds, global));
                for at in WIDTH * chunk..WIDTH * (chunk + 1) {
                    out.wide[at] = chooser.wide(out.scale[at], out.stored[at], global);
                }
            } else {
                out.take(chunk, &chooser.choose(&amax, &bounds, global));
            }
        }
    }
}

/// The largest NVFP4 value in units of the global scale: 6 * 448.
const MOST: f32 = 2688.0;

impl Chooser {
    /// Returns the global scale for the largest magnitude of all tensors that share it; 1 if the layout has no global
    /// scale.
    pub(super) fn global(&self, amax: f64) -> f32 {
        let round = |value: f32| self.weight.round(value);
        match self.rule.global {
            Some(GlobalScale::Divisor) => {
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
            Some(global) => {
                // For a float32, this is the quotient in float32.
                let quotient = (amax / f64::from(MOST)) as f32;
                let global = if global == GlobalScale::Padded { round(quotient) } else { quotient };
                // For a tensor of zeros, the libraries write NaNs; tcast uses 1.
                if global > 0.0 { global } else { 1.0 }
            }
            None => 1.0,
        }
    }

    /// Returns the rule for exponents, if scales are exponents.
    #[inline(always)]
    pub(super) fn power(&self) -> Option<Power> {
        self.rule.power.filter(|_| self.stored.bits() == 8)
    }

    /// True if scales depend on the lowest and the highest value of a group.
    pub(super) fn has_bounds(&self) -> bool {
        self.rule.extreme != Extreme::Magnitude || self.has_zero_points
    }

    /// The width of integer codes to which zero points are added; `None` for other codes.
    pub(super) fn zero_bits(&self) -> Option<u32> {
        (self.has_zero_points || self.rule.away == Some(Away::Sum)).then_some(self.bits)
    }

    /// True if all quotients are rounded to float32 for bfloat16 too (ONNX Runtime's blocks).
    pub(super) fn divides_unrounded(&self) -> bool {
        let is_of_blocks = self.rule.extreme == Extreme::Signed && self.rule.away != Some(Away::Quotient);
        is_of_blocks && self.stored == Dtype::Bfloat16
    }

    /// Chooses the scale of one group from its largest magnitude and its lowest and highest value.
    #[inline(always)]
    pub(super) fn one(&self, amax: f32, bounds: [f32; 2], global: f32) -> GroupScale {
        if self.is_exact {
            self.exact(amax.into(), bounds.map(f64::from), global)
        } else {
            self.choose(&[amax], &[bounds], global).group(0)
        }
    }

    /// Chooses the scale of one group with exact arithmetic. `bounds` matter only if codes have zero points or offsets.
    #[inline(always)]
    pub(super) fn exact(&self, amax: f64, bounds: [f64; 2], global: f32) -> GroupScale {
        let chosen = self.choose(&[amax], &[bounds], global).group(0);
        GroupScale { wide: self.wide(chosen.scale, chosen.stored, global), ..chosen }
    }

    /// Chooses the scales of groups from their largest magnitudes and their lowest and highest values.
    #[inline(always)]
    fn choose<R: ScaleFloat, const N: usize>(&self, amax: &[R; N], bounds: &[[R; 2]; N], global: f32) -> ScaleLanes<N> {
        let is_once = self.rule.divide == Divide::Once && !R::IS_EXACT;
        match self.rule.extreme {
            Extreme::Edges => self.with_offsets(bounds),
            // ONNX Runtime's other formulas round once already.
            Extreme::Signed if self.rule.divide == Divide::Once || !(R::IS_EXACT && self.has_zero_points) => {
                self.linear(&each(|at| bounds[at].map(|bound| bound.into() as f32)))
            }
            _ if self.has_zero_points => self.with_zero_points(bounds, self.weight),
            Extreme::Signed | Extreme::Magnitude => match self.power() {
                Some(power) => self.powers(power, amax),
                None if self.stored.bits() == 8 => self.blocks(amax, global),
                None if is_once => self.floats(&each(|at| -> f64 { amax[at].into() })),
                None => self.floats(amax),
            },
        }
    }

    /// Returns the quotients of largest magnitudes and the largest code.
    #[inline(always)]
    fn quotients<R: ScaleFloat, const N: usize>(&self, amax: &[R; N]) -> [R; N] {
        let (one, largest): (R, R) = (1.0.into(), self.largest.into());
        if self.rule.divide == Divide::Reciprocal && !R::IS_EXACT {
            return each(|at| one / (one / amax[at] * largest));
        }
        let quotients = each(|at| amax[at] / largest);
        if self.rule.divide == Divide::InType { self.in_type(quotients) } else { quotients }
    }

    /// Rounds numbers to the type that the library computes in.
    #[inline(always)]
    fn in_type<R: ScaleFloat, const N: usize>(&self, numbers: [R; N]) -> [R; N] {
        if R::IS_EXACT {
            return numbers;
        }
        let mut rounded: [f32; N] = each(|at| numbers[at].narrow());
        round_all(&mut rounded, self.weight);
        each(|at| rounded[at].into())
    }

    /// Rounds scales to the dtype of stored scales; in float32, to the type that the library computes in.
    #[inline(always)]
    fn rounded<R: ScaleFloat, const N: usize>(&self, numbers: &[R; N]) -> [f32; N] {
        let stored = self.stored_type();
        if R::IS_EXACT && stored == WeightType::Float32 {
            return each(|at| numbers[at].into() as f32);
        }
        let mut rounded = each(|at| numbers[at].narrow());
        round_all(&mut rounded, if R::IS_EXACT { stored } else { self.weight });
        rounded
    }

    /// Chooses scales that are stored as floats.
    #[inline(always)]
    fn floats<R: ScaleFloat, const N: usize>(&self, amax: &[R; N]) -> ScaleLanes<N> {
        /// The smallest positive number: only 0 is below it.
        const LEAST: f32 = f32::from_bits(1);
        let Self { rule, weight, largest, stored, .. } = *self;
        let is_in_type = self.keeps_type && rule.divide == Divide::InType;
        // 1. The extreme, at least the smallest normal number of T, or the least scale times the largest code.
        let least: R = match rule.least {
            Least::Normal => weight.tiny(),
            Least::Number(bits) if is_in_type => weight.round(f32::from_bits(bits) * largest),
            _ => 0.0,
        }
        .into();
        let extremes: [R; N] = each(|at| if amax[at] > least { amax[at] } else { least });
        // 2. The quotient.
        let quotients: [R; N] = self.quotients(&extremes);
        let mut scale: [f32; N] =
            if R::IS_EXACT { self.rounded(&quotients) } else { each(|at| quotients[at].narrow()) };
        if rule.divide == Divide::Float32 {
            round_all(&mut scale, self.stored_type());
        }
        // 3. The reciprocal that values are multiplied by. Where it is infinite, the library writes NaNs.
        let mut factor = [1.0; N];
        if !R::IS_EXACT && rule.apply == Apply::Multiply {
            factor = each(|at| 1.0 / amax[at].narrow() * largest);
        } else if !R::IS_EXACT && rule.apply == Apply::MultiplyInType {
            if weight == WeightType::Float16 {
                scale = each(|at| 1.0 / (1.0 / scale[at]).min(65504.0));
            }
            factor = each(|at| 1.0 / scale[at]);
            round_all(&mut factor, weight);
            scale = each(|at| if factor[at] == f32::INFINITY { 0.0 } else { scale[at] });
        }
        // 4. Scales that are too small.
        let (limit, instead) = match rule.least {
            Least::Number(_) if is_in_type => (0.0, 0.0),
            Least::Number(bits) => (f32::from_bits(bits), f32::from_bits(bits)),
            Least::Epsilon => (LEAST, self.least_step()),
            _ => (LEAST, 1.0),
        };
        let is_small: [bool; N] = match rule.least {
            Least::OneIfSubnormal if stored != Dtype::Float16 => each(|at| quotients[at].narrow() < f32::MIN_POSITIVE),
            Least::Normal => each(|at| (amax[at] == R::default()) | (scale[at] < limit)),
            _ => each(|at| scale[at] < limit),
        };
        let scale: [f32; N] = each(|at| if is_small[at] { instead } else { scale[at] });
        // 5. The divisor of values, or the factor.
        let is_multiplied = !R::IS_EXACT && matches!(rule.apply, Apply::Multiply | Apply::MultiplyInType);
        let mut factor = each(|at| if is_multiplied & !is_small[at] { factor[at] } else { scale[at] });
        if self.keeps_type {
            round_all(&mut factor, weight);
            let least = if is_in_type { power_of_two(-100) } else { weight.tiny() };
            factor = each(|at| if factor[at] == 0.0 { least } else { factor[at] });
        }
        let is_underflow = each(|at| u32::from((is_small[at] | (amax[at] < least)) & (amax[at] > R::default())));
        ScaleLanes { factor, is_underflow, ..ScaleLanes::of_numbers(scale) }
    }

    /// Chooses scales that are powers of two.
    #[inline(always)]
    fn powers<R: ScaleFloat, const N: usize>(&self, power: Power, amax: &[R; N]) -> ScaleLanes<N> {
        let Self { rule, largest_exponent, .. } = *self;
        let mut quotients = self.quotients(amax);
        if rule.divide == Divide::Reciprocal && !R::IS_EXACT {
            let least: R = power_of_two(-126).into();
            quotients = each(|at| if quotients[at] > least { quotients[at] } else { least });
        }
        let exponents: [i32; N] = match power {
            // Rounding to odd does not move values across the thresholds, which are float32 numbers.
            Power::Floor => each(|at| (amax[at].narrow().to_bits() >> 23) as i32 - 127 - largest_exponent),
            Power::HalfStep => self.half_steps(&each(|at| amax[at].narrow())),
            Power::Ceiling if !R::IS_EXACT => each(|at| ceil_log2(quotients[at].narrow())),
            Power::Ceiling | Power::ExactCeiling => each(|at| exact_ceil_log2(quotients[at].into())),
        };
        let (zero, least) = (R::default(), self.least_exponent());
        let is_one = rule.least == Least::One;
        let is_zero: [bool; N] = each(|at| is_one & ((amax[at] == zero) | (quotients[at] == zero)));
        // Numbers below 2^-24 are 0 in float16.
        let instead = if least == LEAST_FLOAT16 { 0 } else { least };
        let is_small: [bool; N] = each(|at| is_zero[at] | (exponents[at] < least));
        let mut lanes = ScaleLanes::of_exponents(&each(|at| match (is_zero[at], is_small[at]) {
            (true, _) => 0,
            (_, true) => instead,
            _ => exponents[at],
        }));
        let mut is_lost = is_small;
        if rule.least == Least::Zero {
            is_lost = each(|at| lanes.stored[at] == 0);
            for number in [&mut lanes.scale, &mut lanes.factor] {
                *number = each(|at| if is_lost[at] { 0.0 } else { number[at] });
            }
        }
        ScaleLanes { is_underflow: each(|at| u32::from(is_lost[at] & (amax[at] > zero))), ..lanes }
    }

    /// The least exponent of scales that are powers of two.
    #[inline(always)]
    fn least_exponent(&self) -> i32 {
        match (self.rule.power, self.rule.divide) {
            (Some(Power::HalfStep), _) if self.weight == WeightType::Float16 => LEAST_FLOAT16,
            (_, Divide::Reciprocal) => -126,
            _ => -127,
        }
    }

    /// Moves a scale that is a power of two by `exponent`.
    #[inline(always)]
    pub(super) fn moved(&self, scale: &GroupScale, exponent: i32) -> GroupScale {
        let exponent = scale.stored as i32 - 127 + exponent;
        let moved = ScaleLanes::of_exponents(&[exponent.max(self.least_exponent())]).group(0);
        GroupScale { is_underflow: scale.is_underflow, ..moved }
    }

    /// Returns the exponents of [`Power::HalfStep`].
    #[inline(always)]
    fn half_steps<const N: usize>(&self, amax: &[f32; N]) -> [i32; N] {
        // The library adds a bit to the mantissa of T. amax is a number of T, so the same bit of float32 has the same
        // effect. A mantissa of three bits has a finer one.
        let (bump, raised) = if self.largest == 7.5 { (1 << 19, 0.9375) } else { (1 << 21, 0.75) };
        let tiny = self.weight.tiny();
        each(|at| {
            let of_subnormal = if amax[at] >= tiny * raised { tiny.to_bits() >> 23 } else { 0 };
            let field = if amax[at] < tiny { of_subnormal } else { (amax[at].to_bits() + bump) >> 23 };
            field as i32 - 127 - self.largest_exponent
        })
    }

    /// Chooses scales that are stored as float8e4m3fn.
    #[inline(always)]
    fn blocks<R: ScaleFloat, const N: usize>(&self, amax: &[R; N], global: f32) -> ScaleLanes<N> {
        let (zero, largest, wide): (R, R, R) = (0.0.into(), self.largest.into(), global.into());
        let quotients: [R; N] = self.quotients(amax);
        let ratios: [f32; N] = match self.rule.global {
            None => each(|at| quotients[at].narrow()),
            Some(GlobalScale::Divisor) if R::IS_EXACT => {
                each(|at| product_over(amax[at].into(), global.into(), self.largest.into()))
            }
            Some(GlobalScale::Divisor) => each(|at| (quotients[at] * wide).narrow()),
            Some(GlobalScale::Padded) if !R::IS_EXACT => each(|at| (quotients[at] / wide).narrow()),
            Some(GlobalScale::Multiplier | GlobalScale::Padded) => each(|at| (amax[at] / (largest * wide)).narrow()),
        };
        let rounded: [(u32, f32); N] = each(|at| self.e4m3.round(ratios[at]));
        let of_zeros: [(u32, f32); N] = match self.rule.global {
            Some(GlobalScale::Divisor) => [(0x20, 0.125); N],
            Some(GlobalScale::Multiplier) => each(|at| if ratios[at] == 0.0 { (0x38, 1.0) } else { (1, 1.0 / 512.0) }),
            Some(GlobalScale::Padded) | None => [(0, 0.0); N],
        };
        let is_zero: [bool; N] = each(|at| rounded[at].0 == 0);
        let stored = each(|at| if is_zero[at] { of_zeros[at].0 } else { rounded[at].0 });
        let scale = self.combined(&each(|at| if is_zero[at] { of_zeros[at].1 } else { rounded[at].1 }), global);
        let is_padded = self.rule.global == Some(GlobalScale::Padded);
        let is_lost = |at: usize| is_zero[at] | (is_padded & (scale[at] == 0.0));
        let is_underflow = each(|at| u32::from(is_lost(at) & (amax[at] > zero)));
        ScaleLanes { stored, is_underflow, ..ScaleLanes::of_numbers(scale) }
    }

    /// Combines the numbers of block scales with the global scale.
    #[inline(always)]
    fn combined<const N: usize>(&self, values: &[f32; N], global: f32) -> [f32; N] {
        if self.rule.global == Some(GlobalScale::Divisor) {
            each(|at| values[at] / global)
        } else {
            each(|at| values[at] * global)
        }
    }

    /// Combines a block scale, given as E4M3 code and number, with the global scale.
    #[inline(always)]
    pub(super) fn of_block(&self, code: u32, value: f32, global: f32) -> GroupScale {
        let [scale] = self.combined(&[value], global);
        let wide = self.wide(scale, code, global);
        GroupScale { scale, stored: code, factor: scale, wide, zero: 0.0, is_underflow: false }
    }

    /// Returns the divisor of the scales of exact arithmetic: the global scale where it is a divisor, otherwise 1. The
    /// quotient of the two would be rounded, so values are multiplied by this number instead.
    #[inline(always)]
    pub(super) fn multiplier(&self, global: f32) -> f64 {
        if self.rule.global == Some(GlobalScale::Divisor) { global.into() } else { 1.0 }
    }

    /// Returns a scale times [`Chooser::multiplier`], the divisor of exact arithmetic.
    #[inline(always)]
    fn wide(&self, scale: f32, stored: u32, global: f32) -> f64 {
        match self.rule.global {
            None => scale.into(),
            Some(GlobalScale::Divisor) => self.e4m3.number(stored).into(),
            Some(_) => f64::from(self.e4m3.number(stored)) * f64::from(global),
        }
    }

    /// Chooses scales and offsets by [`Extreme::Edges`]. In float32, offsets are not rounded to the dtype of the weight yet.
    #[inline(always)]
    fn with_offsets<R: ScaleFloat, const N: usize>(&self, bounds: &[[R; 2]; N]) -> ScaleLanes<N> {
        let (zero, largest): (R, R) = (0.0.into(), self.largest.into());
        let least = R::from(1.0) / R::from(1e7);
        let (mut scales, mut offsets) = ([zero; N], [zero; N]);
        for at in 0..N {
            let [low, high] = bounds[at];
            let magnitude = |number: R| if number < zero { zero - number } else { number };
            let is_low = magnitude(low) > magnitude(high);
            let step = (high - low) / largest;
            let step = if step > least { step } else { least };
            let (edge, step) = if is_low { (low, step) } else { (high, zero - step) };
            let code_of_zero = (edge / step).round_ties_even();
            let is_zero = code_of_zero == zero;
            scales[at] = if is_zero { step } else { edge / code_of_zero };
            offsets[at] = if is_zero { zero } else { edge };
        }
        let scale = self.rounded(&scales);
        let is_underflow = each(|at| u32::from((scale[at] == 0.0) & (bounds[at][1] > bounds[at][0])));
        let [factor, zero] = [&scales, &offsets]
            .map(|numbers| if R::IS_EXACT { self.rounded(numbers) } else { each(|at| numbers[at].narrow()) });
        ScaleLanes { factor, zero, is_underflow, ..ScaleLanes::of_numbers(scale) }
    }

    /// Chooses scales and zero points from the distance between the lowest and the highest value, or 0, which is rounded to
    /// the type `distance`.
    #[inline(always)]
    pub(super) fn with_zero_points<R: ScaleFloat, const N: usize>(
        &self,
        bounds: &[[R; 2]; N],
        distance: WeightType,
    ) -> ScaleLanes<N> {
        // ONNX Runtime's zero points start at 0, and its scale of zeros is 0.
        let is_table = self.rule.extreme == Extreme::Signed;
        let (nothing, codes) = (R::default(), self.most());
        let least = if is_table { 0.0 } else { -((1_u32 << (self.bits - 1)) as f32) };
        let low: [R; N] = each(|at| if bounds[at][0] < nothing { bounds[at][0] } else { nothing });
        let high: [R; N] = each(|at| if bounds[at][1] > nothing { bounds[at][1] } else { nothing });
        let range: [R; N] = Self { weight: distance, ..*self }.in_type(each(|at| high[at] - low[at]));
        // Subnormal operands take long.
        let is_small: [bool; N] = each(|at| !R::IS_EXACT & (range[at] < SMALL.into()));
        let scale: [f32; N] = self.rounded(&each(|at| {
            if is_small[at] { quotient_of_small(range[at].narrow(), codes).into() } else { range[at] / codes.into() }
        }));
        // The range of a group can overflow T. The library then stores an infinite scale, which decodes to NaN.
        let mut is_finite = true;
        for scale in scale {
            is_finite &= scale < f32::INFINITY;
        }
        let parts = || self.rounded(&each(|at| high[at] / codes.into() - low[at] / codes.into()));
        let parts: [f32; N] = if is_finite { scale } else { parts() };
        let scale: [f32; N] = each(|at| if scale[at] < f32::INFINITY { scale[at] } else { parts[at] });
        let quotient: [R; N] = self.in_type(each(|at| {
            let raise = |number: f32| raised(number.to_bits(), 100);
            let small = || raise(low[at].narrow()) / raise(scale[at]);
            if is_small[at] { small().into() } else { low[at] / scale[at].into() }
        }));
        let zero: [R; N] = self.in_type(each(|at| R::from(least) - quotient[at]));
        let zero: [f32; N] = each(|at| Self::bounded_zero(zero[at].narrow(), least, least + codes));
        let is_zero: [bool; N] = each(|at| scale[at] == 0.0);
        let of_zeros = if is_table { 0.0 } else { self.least_step() };
        let scale = each(|at| if is_zero[at] { of_zeros } else { scale[at] });
        ScaleLanes {
            zero: each(|at| if is_table & is_zero[at] { 8.0 } else { zero[at] }),
            is_underflow: each(|at| u32::from(is_zero[at] & (high[at] > low[at]))),
            ..ScaleLanes::of_numbers(scale)
        }
    }

    /// The distance from the lowest to the highest integer.
    #[inline(always)]
    pub(super) fn most(&self) -> f32 {
        ((1_u32 << self.bits) - 1) as f32
    }

    /// Bounds and rounds a zero point. A group of zeros gives 0 / 0, for which it is 0.
    #[inline(always)]
    pub(super) fn bounded_zero(zero: f32, least: f32, most: f32) -> f32 {
        if zero.is_nan() { 0.0 } else { zero.clamp(least, most).round_ties_even() }
    }

    /// Returns the scale of groups of zeros: epsilon of the dtype of stored scales.
    #[inline(always)]
    fn least_step(&self) -> f32 {
        WeightType::new(self.stored).unwrap_or(self.weight).epsilon()
    }

    /// Rounds a float64 once, to the dtype of stored scales.
    #[inline(always)]
    pub(super) fn store_once(&self, value: f64) -> f32 {
        if self.stored == Dtype::Float32 { value as f32 } else { self.store(to_odd(value)) }
    }

    /// The dtype of stored scales; float32 if they are bytes.
    #[inline(always)]
    pub(super) fn stored_type(&self) -> WeightType {
        WeightType::new(self.stored).unwrap_or(WeightType::Float32)
    }

    /// Rounds a float32 to the dtype of stored scales.
    #[inline(always)]
    pub(super) fn store(&self, value: f32) -> f32 {
        self.stored_type().round(value)
    }

    /// Chooses the scale of an integer grid as if the values were smaller by the factor `part`.
    #[inline(always)]
    pub(super) fn shrunk(&self, amax: f32, bounds: [f32; 2], part: f32) -> GroupScale {
        let round = |value: f32| self.weight.round(value * part);
        self.one(round(amax), bounds.map(round), 1.0)
    }
}

/// The exponent of the least float16.
const LEAST_FLOAT16: i32 = -24;

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
