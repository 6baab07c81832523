//! Buffers for the segments of a row.

use super::lanes::LANES;
use super::rounding::power_of_two;
use super::scale::ChosenScales;

/// Values that are encoded together.
pub(super) const SEGMENT: usize = 1024;

/// Scratch space for each lane of a segment, and for the groups of a tile.
pub(super) struct EncodeRoom {
    pub(super) values: Vec<f32>,
    pub(super) numbers: Vec<f32>,
    /// A copy of its group's factor for each value, if groups are small.
    pub(super) lane: Vec<f32>,
    /// Multiples of the scales, then errors.
    pub(super) multiples: Vec<f32>,
    pub(super) codes: Vec<u8>,
    pub(super) magnitudes: [Vec<u32>; 2],
    pub(super) amax: Vec<u32>,
    pub(super) bounds: Vec<[f32; 2]>,
    pub(super) chosen: ChosenScales,
    /// Scales in units of a power of two.
    pub(super) scales: Vec<f32>,
    pub(super) unit: f32,
    /// Whether all scales are 0.
    pub(super) has_no_scales: bool,
    /// Factors, zero points and such scales of every [`LANES`] values.
    pub(super) spread: [Vec<f32>; 3],
    /// Stored values, and zeros up to a multiple of [`LANES`].
    pub(super) padded: Vec<u8>,
}

impl EncodeRoom {
    /// For segments of so many values in so many groups; a stored value takes `width` bytes.
    pub(super) fn new(columns: usize, groups: usize, width: usize) -> Self {
        Self {
            values: vec![0.0; columns],
            numbers: vec![0.0; columns],
            lane: vec![0.0; columns],
            multiples: vec![0.0; SEGMENT],
            codes: vec![0; SEGMENT],
            magnitudes: [vec![0; columns], vec![0; columns]],
            amax: vec![0; groups],
            bounds: vec![[0.0; 2]; groups],
            chosen: ChosenScales::new(groups),
            scales: vec![0.0; groups],
            unit: 1.0,
            has_no_scales: false,
            spread: [const { Vec::new() }; 3],
            padded: vec![0; SEGMENT * width],
        }
    }

    /// Prepares what the loops over values read, for groups of `size` values.
    #[inline(always)]
    pub(super) fn spread(&mut self, count: usize, size: usize) {
        // Errors are divided by a power of two near the largest scale: the squares of tiny errors would underflow.
        let mut largest = 0.0_f32;
        for scale in &self.chosen.scale[..count] {
            largest = largest.max(scale.abs());
        }
        self.has_no_scales = largest == 0.0;
        self.set_unit(largest);
        let over = 1.0 / self.unit;
        let Self { chosen, scales, spread, .. } = self;
        for (scale, chosen) in scales.iter_mut().zip(&chosen.scale[..count]) {
            *scale = *chosen * over;
        }
        // A group may be longer than a segment.
        let times = size.min(SEGMENT).div_ceil(LANES);
        for (all, group) in spread.iter_mut().zip([&chosen.factor[..count], &chosen.zero[..count], &scales[..count]]) {
            all.clear();
            if times == 1 {
                all.extend_from_slice(group);
            } else {
                for number in group {
                    all.extend(std::iter::repeat_n(*number, times));
                }
            }
        }
    }

    /// Takes the power of two near this magnitude as the unit.
    #[inline(always)]
    pub(super) fn set_unit(&mut self, magnitude: f32) {
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).clamp(-126, 126);
        self.unit = power_of_two(exponent);
    }
}
