//! Buffers for the segments of a row.

use super::super::rules::SignRule;
use super::encoder::Encoder;
use super::lanes::{CodeRounding, Division, LANES, Quotient, expand, larger};
use super::rounding::{WeightType, exponent, power_of_two, raised};
use super::scale::{ChosenScales, WIDTH};
use crate::kernel::Loop;

/// Number of values that are encoded together, with errors summed in float32.
pub(super) const SEGMENT: usize = 1024;
/// Like [`SEGMENT`], if errors are not summed: the fixed work for each segment then takes a smaller part of the time.
const LONG_SEGMENT: usize = 4096;

/// Scratch space for each lane of a segment, and for the groups of a tile.
pub(super) struct EncodeBuffers {
    /// Number of values that are encoded together.
    pub(super) segment: usize,
    /// Number of groups in a tile: for float64 all of a row, otherwise as many as fit into a segment. A group longer than a
    /// segment is then a separate tile.
    pub(super) groups: usize,
    /// Values of float64, then their errors.
    pub(super) wide: Vec<f64>,
    pub(super) values: Vec<f32>,
    pub(super) numbers: Vec<f32>,
    /// A copy of its group's factor for each value, if groups are small.
    pub(super) lane: Vec<f32>,
    /// Multiples of the scales, then errors.
    pub(super) multiples: Vec<f32>,
    pub(super) codes: Vec<u8>,
    /// Padded to a multiple of [`WIDTH`].
    pub(super) amax: Vec<u32>,
    /// As long as `amax`.
    pub(super) bounds: Vec<[f32; 2]>,
    pub(super) chosen: ChosenScales,
    /// Scales in units of a power of two.
    pub(super) scales: Vec<f32>,
    /// The scales for [`super::fused`].
    pub(super) divisors: Vec<f32>,
    /// Factors or their reciprocals.
    factors: Vec<f32>,
    pub(super) unit: f32,
    /// True if [`super::fused`] is exact for these scales, or for the scales and values that replace them.
    pub(super) is_ordinary: bool,
    /// The exponents of the powers of two that the values of each group are multiplied by; empty if they stay as they are.
    pub(super) raises: Vec<i32>,
    /// True if codes are floats, and the scale of a group is 0: its codes are 0 without a sign.
    pub(super) has_no_scale: bool,
    /// Sums of squares below this may lack squares that are 0 in float32, or count the squares of raised values.
    pub(super) least_sum: f64,
    /// True if no scale is above 1.
    pub(super) is_at_most_one: bool,
    /// The largest magnitude of a number to round.
    pub(super) most: f32,
    /// Factors, zero points and `divisors` for every [`LANES`] values, or for each value if groups have one column.
    pub(super) spread: [Vec<f32>; 3],
    /// Stored values, padded with zeros to a multiple of [`LANES`].
    pub(super) padded: Vec<u8>,
}

impl EncodeBuffers {
    pub(super) fn new(encoder: &Encoder, is_measured: bool) -> Self {
        let Encoder { geometry, width, is_float64, .. } = encoder;
        let [columns, rows, beside] = [geometry.columns, geometry.block[0], geometry.block[1]].map(|len| len as usize);
        // All rows of a tile should stay in the second-level cache.
        let is_long = !is_measured && !is_float64 && (rows == 1 || geometry.is_tensor);
        let segment = if is_long { LONG_SEGMENT } else { SEGMENT };
        // The errors of a row of float64 have one sum.
        let groups = if *is_float64 { usize::MAX } else { (segment / beside).max(1) }.min(columns.div_ceil(beside));
        let spread = groups * beside.min(segment).div_ceil(LANES);
        let spread = if beside == 1 { spread.next_multiple_of(LANES) } else { spread };
        Self {
            segment,
            groups,
            wide: Vec::new(),
            values: Vec::new(),
            numbers: Vec::new(),
            lane: Vec::new(),
            multiples: Vec::new(),
            codes: vec![0; segment],
            amax: vec![0; groups.next_multiple_of(WIDTH)],
            bounds: vec![[0.0; 2]; groups.next_multiple_of(WIDTH)],
            chosen: ChosenScales::new(groups),
            scales: vec![0.0; groups],
            divisors: vec![0.0; groups],
            factors: vec![0.0; groups],
            unit: 1.0,
            is_ordinary: false,
            raises: Vec::with_capacity(groups),
            has_no_scale: false,
            least_sum: VANISHING,
            is_at_most_one: false,
            most: 0.0,
            // Padding is divided too.
            spread: [1.0, 0.0, 1.0].map(|number| vec![number; spread]),
            padded: vec![0; segment * width],
        }
    }

    /// Allocates the lanes for `count` values, which few segments need.
    pub(super) fn make_lanes(&mut self, count: usize) {
        for lane in [&mut self.values, &mut self.numbers, &mut self.lane, &mut self.multiples] {
            lane.resize(count.max(lane.len()), 0.0);
        }
    }

    /// Sets the unit of errors to 1, or to the power of two near the largest error if that is very small or large.
    #[inline(always)]
    fn set_unit(&mut self, magnitude: u32) {
        let exponent = (magnitude >> 23) as i32 - 127;
        let is_usual = exponent.abs() <= 48 || magnitude == 0;
        self.unit = if is_usual { 1.0 } else { power_of_two(exponent.clamp(-126, 126)) };
    }
}

/// Copies the scales of `count` groups of `size` values for the loops over values.
pub(super) struct SpreadScales<'a> {
    pub(super) buffers: &'a mut EncodeBuffers,
    pub(super) count: usize,
    pub(super) size: usize,
    pub(super) division: Division,
    pub(super) weight: WeightType,
    pub(super) rounding: &'a CodeRounding,
}

/// Sums of squares below this may lack squares that are 0 in float32.
const VANISHING: f64 = 1e-30;
/// Groups whose errors are below 2^`FAINT` are raised: squares of float32 numbers below it are 0 or take long.
const FAINT: i32 = -60;
/// The size of the errors of raised groups in a tile with larger ones, and the least sum that they do not change.
const RAISED: i32 = -57;
const UNCHANGED: f64 = 1.0 / (1_u128 << 70) as f64;
/// Quotients below 2^-`LOST` become the code 0, whatever the codes are.
const LOST: i32 = 42;

impl Loop for SpreadScales<'_> {
    type Result = ();

    #[inline(always)]
    fn run(mut self) {
        let Self { ref mut buffers, count, size, .. } = self;
        // Errors are divided by a power of two near the largest: the squares of tiny errors would underflow. An error is
        // at most a value, or half a step. The bits of magnitudes are ordered like the magnitudes.
        let (mut largest, mut scale_bits, mut least, mut any_zero) = (0, 0, i32::MAX, false);
        for (scale, amax) in buffers.chosen.scale[..count].iter().zip(&buffers.amax[..count]) {
            let (scale, amax) = (scale.abs().to_bits() as i32, *amax as i32);
            let both = if amax < scale { amax } else { scale };
            let error = if scale == 0 { amax } else { both };
            // Any scale makes the codes of zeros: see `take_factors`.
            let used = if amax == 0 { i32::MAX } else { both };
            any_zero |= scale == 0;
            largest = if error > largest { error } else { largest };
            scale_bits = if scale > scale_bits { scale } else { scale_bits };
            least = if used < least { used } else { least };
        }
        buffers.set_unit(largest as u32);
        buffers.is_at_most_one = scale_bits <= 1.0_f32.to_bits() as i32;
        let is_float = matches!(self.rounding, CodeRounding::Float { .. });
        (buffers.has_no_scale, buffers.least_sum) = (any_zero && is_float, VANISHING);
        buffers.raises.clear();
        let over = 1.0 / buffers.unit;
        for (scale, chosen) in buffers.scales.iter_mut().zip(&buffers.chosen.scale[..count]) {
            // Codes are 0 where this is infinite.
            let product = *chosen * over;
            *scale = if product < f32::MAX { product } else { f32::MAX };
        }
        buffers.is_ordinary = buffers.unit == 1.0 && least >= power_of_two(FAINT).to_bits() as i32;
        if buffers.is_ordinary {
            self.take_factors();
        } else {
            self.replace();
        }
        let Self { buffers, .. } = self;
        // A group may be longer than a segment.
        let times = size.min(buffers.segment).div_ceil(LANES);
        let groups = [&buffers.factors[..count], &buffers.chosen.zero[..count], &buffers.divisors[..count]];
        for (all, groups) in buffers.spread.iter_mut().zip(groups) {
            let len = all.len().min(count * times);
            expand(groups, times, &mut all[..len]);
        }
    }
}

impl SpreadScales<'_> {
    fn is_divided(&self) -> bool {
        self.division.quotient == Quotient::Divide && !self.division.has_offsets
    }

    /// Takes the scales as they are. Those of zeros may be 0 or tiny, so 1 takes their place.
    #[inline(always)]
    fn take_factors(&mut self) {
        let (is_divided, count) = (self.is_divided(), self.count);
        let EncodeBuffers { chosen, factors, divisors, scales, amax, most, .. } = &mut *self.buffers;
        let groups = divisors.iter_mut().zip(&mut *factors).zip(&scales[..count]).zip(&chosen.factor[..count]);
        for ((((divisor, factor), scale), chosen), amax) in groups.zip(&amax[..count]) {
            let applied = if is_divided { 1.0 / *chosen } else { *chosen };
            (*divisor, *factor) = if *amax == 0 { (1.0, 1.0) } else { (*scale, applied) };
        }
        let mut bits = 0;
        for (factor, amax) in factors[..count].iter().zip(&amax[..count]) {
            bits = larger(bits, (f32::from_bits(*amax) * *factor).to_bits());
        }
        // Slightly above the exact quotient.
        *most = f32::from_bits(bits) * (1.0 + f32::EPSILON);
    }

    /// Replaces scales, and chooses powers of two to raise values with, so that no number is subnormal, and no reciprocal
    /// or square underflows. Quotients stay the same, except that they are far below the first code where they were.
    #[inline(always)]
    fn replace(&mut self) {
        let (is_divided, has_offsets, count) = (self.is_divided(), self.division.has_offsets, self.count);
        let EncodeBuffers { chosen, factors, divisors, amax, raises, unit, .. } = &mut *self.buffers;
        raises.resize(count, 0);
        let raise_all = 127 - (unit.to_bits() >> 23) as i32;
        let (mut bits, mut any_raised, mut any_faint, mut any_lost, mut any_kept) = (0, 0, 0, 0, 0);
        for at in 0..count {
            let (amax, number) = (amax[at], chosen.scale[at]);
            let scale = number.abs().to_bits();
            let is_lost = (scale == 0) | ((amax as i32) < scale as i32 - (LOST << 23));
            let is_free = is_lost | (amax == 0);
            let error = exponent(if is_lost | (amax < scale) { amax } else { scale });
            let is_faint = error + raise_all < FAINT;
            let raise = if is_faint { RAISED - error } else { raise_all };
            let raise = if amax == 0 { 0 } else { raise };
            // Where all codes are 0, any scale does that is far above the values.
            let free = if amax == 0 { 0 } else { exponent(amax) + raise + LOST + 2 };
            let sign = number.to_bits() & 0x8000_0000;
            let divisor = if is_free { power_of_two(free) } else { raised(scale | sign, raise) };
            // A product with a power of two, by its exponent: a product of a number that is not used might be subnormal.
            let lowered = chosen.factor[at].to_bits().wrapping_sub((raise as u32) << 23);
            let applied = if has_offsets { chosen.factor[at] } else { f32::from_bits(lowered) };
            let over = 1.0 / divisor;
            let factor = if is_free & has_offsets {
                divisor
            } else if is_free | is_divided {
                over
            } else {
                applied
            };
            (factors[at], divisors[at], raises[at]) = (factor, divisor, raise);
            bits = larger(bits, (raised(amax, raise) * factor).to_bits());
            any_raised |= u32::from(raise != 0);
            any_kept |= u32::from((raise != 0) & !is_free);
            any_faint |= u32::from(is_faint & (amax != 0));
            any_lost |= u32::from(is_lost & (amax != 0));
        }
        // A number that is too small for its type may have no sign.
        let keeps_signs = match self.rounding {
            CodeRounding::Float { sign, .. } => matches!(sign, SignRule::Kept | SignRule::Nonzero),
            CodeRounding::Int { .. } => true,
        };
        let can_raise = self.weight != WeightType::Float16 && (any_kept == 0 || !has_offsets);
        let buffers = &mut *self.buffers;
        buffers.is_ordinary = buffers.unit <= 1.0
            && (any_raised == 0 || can_raise)
            && (any_lost == 0 || keeps_signs || buffers.is_at_most_one);
        if any_raised == 0 {
            buffers.raises.clear();
        }
        buffers.least_sum = if any_faint != 0 { UNCHANGED } else { VANISHING };
        buffers.most = f32::from_bits(bits) * (1.0 + f32::EPSILON);
    }
}

/// Multiplies the values of groups by powers of two.
pub(super) struct RaiseValues<'a> {
    pub(super) weight: WeightType,
    pub(super) bytes: &'a [u8],
    /// Values per group.
    pub(super) size: usize,
    pub(super) raises: &'a [i32],
    pub(super) out: &'a mut [u8],
}

impl Loop for RaiseValues<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { weight, bytes, size, raises, out } = self;
        let size = size * weight.bytes();
        let groups = bytes.chunks(size).zip(out.chunks_mut(size)).zip(raises);
        for ((bytes, out), raise) in groups {
            if weight == WeightType::Float32 {
                raise_group(bytes, out, |bytes| raised(u32::from_le_bytes(bytes), *raise).to_le_bytes());
            } else {
                raise_group(bytes, out, |bytes| {
                    let number = raised(u32::from(u16::from_le_bytes(bytes)) << 16, *raise);
                    ((number.to_bits() >> 16) as u16).to_le_bytes()
                });
            }
        }
    }
}

#[inline(always)]
fn raise_group<const W: usize>(bytes: &[u8], out: &mut [u8], raise: impl Fn([u8; W]) -> [u8; W]) {
    let ((values, last), (out, last_out)) =
        (bytes.as_chunks().0.as_chunks::<LANES>(), out.as_chunks_mut().0.as_chunks_mut::<LANES>());
    for (values, out) in values.iter().zip(out) {
        // The compiler knows that copies do not overlap.
        let (values, mut lanes) = (*values, [[0; W]; LANES]);
        for at in 0..LANES {
            lanes[at] = raise(values[at]);
        }
        *out = lanes;
    }
    for (value, out) in last.iter().zip(last_out) {
        *out = raise(*value);
    }
}
