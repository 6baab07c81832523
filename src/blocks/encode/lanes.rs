//! Numbers of several groups side by side, and the arithmetic of ggml on one number.
//!
//! ggml adds the numbers of a group one after the other. Loops over lanes, one for each group, keep this order and
//! vectorize. All arithmetic is float32 with one rounding for each operation.

use crate::kernel::half::float16_bits;
use crate::kernel::{Isa, Loop};
use zerocopy::little_endian::U16;

/// Number of groups side by side.
pub(super) const WIDTH: usize = 16;

/// A number of each group.
pub(super) type GroupLane = [f32; WIDTH];

/// Number of elements that a loop over lanes adds up before it stores the sums.
pub(super) const STRIDE: usize = 8;

/// Splits the elements of groups, whose number is a multiple of [`STRIDE`].
#[inline(always)]
pub(super) fn strides(lanes: &[GroupLane]) -> &[[GroupLane; STRIDE]] {
    lanes.as_chunks().0
}

/// As [`strides`].
#[inline(always)]
pub(super) fn strides_mut(lanes: &mut [GroupLane]) -> &mut [[GroupLane; STRIDE]] {
    lanes.as_chunks_mut().0
}

/// The least largest magnitude that ggml does not take for 0.
pub(super) const EPSILON: f32 = 1e-15;

/// 1.5 * 2^23. Its last bit is worth 1, so adding it rounds to an integer, to nearest even.
const RAISED: f32 = 12_582_912.0;

/// Returns ggml's `nearest_int`: the low 23 bits of the mantissa of a sum. Numbers from 2^22, Inf and NaN give other
/// integers than the nearest, which are part of the format.
#[inline(always)]
pub(super) fn nearest(value: f32) -> f32 {
    f32::from_bits((value + RAISED).to_bits() & 0x007f_ffff | 0x4b00_0000) - RAISED
}

/// Returns [`nearest`] as an integer.
#[inline(always)]
pub(super) fn nearest_int(value: f32) -> i32 {
    ((value + RAISED).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Returns the nearest integer of a number whose magnitude is below 2^22, ties to even.
#[inline(always)]
pub(super) fn nearest_of_small(value: f32) -> f32 {
    (value + RAISED) - RAISED
}

/// Returns the largest integer that is not above a number whose magnitude is below 2^22.
#[inline(always)]
pub(super) fn floor_of_small(value: f32) -> f32 {
    let nearest = nearest_of_small(value);
    nearest - if nearest > value { 1.0 } else { 0.0 }
}

/// Returns the low byte of an integer whose magnitude is below 2^22.
#[inline(always)]
pub(super) fn low_byte(integer: f32) -> u8 {
    (integer + RAISED).to_bits() as u8
}

/// Limits a number that is not NaN.
#[inline(always)]
pub(super) fn limit(value: f32, low: f32, high: f32) -> f32 {
    let above = if value < low { low } else { value };
    if above > high { high } else { above }
}

/// Returns 1 / `value`, and 0 for 0.
#[inline(always)]
pub(super) fn inverse(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { 1.0 / value }
}

/// Rounds a scale to its stored type.
#[inline(always)]
pub(super) fn stored(value: f32) -> U16 {
    U16::new(float16_bits(value))
}

/// False for Inf and NaN.
#[inline(always)]
pub(super) fn is_finite(half: U16) -> bool {
    half.get() & 0x7c00 != 0x7c00
}

/// Returns the largest magnitude, and the first number that has it. Both are +0 if all numbers are 0.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> (f32, f32) {
    let (mut magnitude, mut signed) = (0.0, 0.0);
    for value in values {
        if value.abs() > magnitude {
            (magnitude, signed) = (value.abs(), *value);
        }
    }
    (magnitude, signed)
}

/// Returns [`largest`] of each group.
#[inline(always)]
pub(super) fn largest_of_lanes<const K: usize>(values: &[GroupLane; K]) -> (GroupLane, GroupLane) {
    let (mut magnitudes, mut signed) = ([0.0; WIDTH], [0.0; WIDTH]);
    for values in values {
        for at in 0..WIDTH {
            let (value, magnitude) = (values[at], values[at].abs());
            let is_larger = magnitude > magnitudes[at];
            magnitudes[at] = if is_larger { magnitude } else { magnitudes[at] };
            signed[at] = if is_larger { value } else { signed[at] };
        }
    }
    (magnitudes, signed)
}

/// Returns the first of the least and the first of the greatest numbers of each group.
#[inline(always)]
pub(super) fn bounds_of_lanes<const K: usize>(values: &[GroupLane; K]) -> (GroupLane, GroupLane) {
    let (mut low, mut high) = (values[0], values[0]);
    for values in &values[1..] {
        for at in 0..WIDTH {
            low[at] = if values[at] < low[at] { values[at] } else { low[at] };
            high[at] = if values[at] > high[at] { values[at] } else { high[at] };
        }
    }
    (low, high)
}

/// Puts groups side by side.
#[inline(always)]
pub(super) fn transpose<const K: usize>(groups: &[&[f32; K]; WIDTH], lanes: &mut [GroupLane; K]) {
    for (at, lane) in lanes.iter_mut().enumerate() {
        for group in 0..WIDTH {
            lane[group] = groups[group][at];
        }
    }
}

/// Returns the integers of a group.
pub(super) fn column<const K: usize>(lanes: &[[u8; WIDTH]; K], group: usize) -> [u8; K] {
    lanes.each_ref().map(|lane| lane[group])
}

/// Returns the sum of the numbers of each group.
#[inline(always)]
pub(super) fn sums_of_lanes<const K: usize>(lanes: &[GroupLane; K]) -> GroupLane {
    let mut sums = [0.0; WIDTH];
    for lane in lanes {
        for at in 0..WIDTH {
            sums[at] += lane[at];
        }
    }
    sums
}

/// Returns the index of the first number that is infinite or NaN.
pub(super) fn first_not_finite(isa: Isa, values: &[f32]) -> Option<usize> {
    if isa.run(AreFinite(values)) {
        return None;
    }
    values.iter().position(|value| !value.is_finite())
}

/// The loop that looks for numbers that are infinite or NaN.
struct AreFinite<'a>(&'a [f32]);

impl Loop for AreFinite<'_> {
    type Result = bool;

    #[inline(always)]
    fn run(self) -> bool {
        largest_magnitude(self.0).is_finite()
    }
}

/// Returns the largest magnitude; NaN is larger than all numbers.
#[inline(always)]
pub(super) fn largest_magnitude(values: &[f32]) -> f32 {
    // Magnitudes as integers: the compiler does not vectorize a maximum of floats.
    let mut most = 0_i32;
    for value in values {
        let magnitude = (value.to_bits() & 0x7fff_ffff) as i32;
        most = if magnitude > most { magnitude } else { most };
    }
    f32::from_bits(most as u32)
}
