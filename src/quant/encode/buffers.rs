//! Buffers for the segments of a row.

use super::lanes::{LANES, expand, larger};
use super::rounding::power_of_two;
use super::scale::{ChosenScales, WIDTH};
use crate::kernel::Loop;

/// Number of values that are encoded together, with errors summed in float32.
const SEGMENT: usize = 1024;
/// Like [`SEGMENT`], if errors are not summed: the fixed work for each segment then takes a smaller part of the time.
const LONG_SEGMENT: usize = 4096;

/// Scratch space for each lane of a segment, and for the groups of a tile.
pub(super) struct EncodeBuffers {
    /// Number of values that are encoded together.
    pub(super) segment: usize,
    /// Number of groups in a tile: as many as fit into a segment. A group longer than a segment is a separate tile.
    pub(super) groups: usize,
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
    /// Factors or their reciprocals.
    factors: Vec<f32>,
    pub(super) unit: f32,
    /// True if all scales are 0.
    pub(super) has_no_scales: bool,
    /// True if [`super::fused`] is exact for scales of these sizes.
    pub(super) is_ordinary: bool,
    /// True if no scale is above 1.
    pub(super) is_at_most_one: bool,
    /// The largest magnitude of a number to round.
    pub(super) most: f32,
    /// Factors, zero points and `scales` for every [`LANES`] values, or for each value if groups have one column.
    pub(super) spread: [Vec<f32>; 3],
    /// Stored values, padded with zeros to a multiple of [`LANES`].
    pub(super) padded: Vec<u8>,
}

impl EncodeBuffers {
    /// Creates buffers for groups of `rows` x `beside` values in rows of `columns` values; a stored value takes `width`
    /// bytes.
    pub(super) fn new([rows, beside]: [usize; 2], columns: usize, width: usize, is_measured: bool) -> Self {
        // All rows of a tile should stay in the second-level cache.
        let segment = if is_measured || rows > 1 { SEGMENT } else { LONG_SEGMENT };
        let groups = (segment / beside).max(1).min(columns.div_ceil(beside));
        let spread = groups * beside.min(segment).div_ceil(LANES);
        let spread = if beside == 1 { spread.next_multiple_of(LANES) } else { spread };
        Self {
            segment,
            groups,
            values: Vec::new(),
            numbers: Vec::new(),
            lane: Vec::new(),
            multiples: Vec::new(),
            codes: vec![0; segment],
            amax: vec![0; groups.next_multiple_of(WIDTH)],
            bounds: vec![[0.0; 2]; groups.next_multiple_of(WIDTH)],
            chosen: ChosenScales::new(groups),
            scales: vec![0.0; groups],
            factors: vec![0.0; groups],
            unit: 1.0,
            has_no_scales: false,
            is_ordinary: false,
            is_at_most_one: false,
            most: 0.0,
            spread: std::array::from_fn(|_| vec![0.0; spread]),
            padded: vec![0; segment * width],
        }
    }

    /// Allocates the lanes for `count` values, which few segments need.
    pub(super) fn make_lanes(&mut self, count: usize) {
        for lane in [&mut self.values, &mut self.numbers, &mut self.lane, &mut self.multiples] {
            lane.resize(count.max(lane.len()), 0.0);
        }
    }

    /// Sets the unit of errors to 1, or to the power of two near this magnitude if that is very small or large.
    pub(super) fn set_unit(&mut self, magnitude: f32) {
        let exponent = (magnitude.to_bits() >> 23) as i32 - 127;
        self.unit = if exponent.abs() <= 40 { 1.0 } else { power_of_two(exponent.clamp(-126, 126)) };
    }
}

/// Copies the scales of `count` groups of `size` values for the loops over values.
pub(super) struct SpreadScales<'a> {
    pub(super) buffers: &'a mut EncodeBuffers,
    pub(super) count: usize,
    pub(super) size: usize,
    /// True if values are divided by their scales: [`super::fused`] then reads reciprocals.
    pub(super) is_divided: bool,
}

impl Loop for SpreadScales<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { buffers, count, size, is_divided } = self;
        // Errors are divided by a power of two near the largest scale: the squares of tiny errors would underflow. The
        // bits of magnitudes are ordered like the magnitudes.
        let (mut largest, mut least) = (0, i32::MAX);
        for scale in &buffers.chosen.scale[..count] {
            let bits = scale.abs().to_bits() as i32;
            largest = if bits > largest { bits } else { largest };
            least = if bits < least { bits } else { least };
        }
        buffers.has_no_scales = largest == 0;
        buffers.set_unit(f32::from_bits(largest as u32));
        buffers.is_ordinary = buffers.unit == 1.0 && least >= power_of_two(-80).to_bits() as i32;
        buffers.is_at_most_one = largest <= 1.0_f32.to_bits() as i32;
        let over = 1.0 / buffers.unit;
        let EncodeBuffers { segment, chosen, scales, factors, spread, amax, .. } = buffers;
        for (scale, chosen) in scales.iter_mut().zip(&chosen.scale[..count]) {
            *scale = *chosen * over;
        }
        // A group may be longer than a segment.
        let times = size.min(*segment).div_ceil(LANES);
        if is_divided {
            for (factor, chosen) in factors.iter_mut().zip(&chosen.factor[..count]) {
                *factor = 1.0 / *chosen;
            }
        } else {
            factors[..count].copy_from_slice(&chosen.factor[..count]);
        }
        let mut most = 0;
        for (factor, amax) in factors[..count].iter().zip(&amax[..count]) {
            most = larger(most, (f32::from_bits(*amax) * *factor).to_bits());
        }
        // Slightly above the exact quotient.
        buffers.most = f32::from_bits(most) * (1.0 + f32::EPSILON);
        let groups = [&factors[..count], &chosen.zero[..count], &scales[..count]];
        for (all, groups) in spread.iter_mut().zip(groups) {
            let len = all.len().min(count * times);
            expand(groups, times, &mut all[..len]);
        }
    }
}
