//! Loops over the values of one row. Each is written so that the compiler vectorizes it.

use super::super::rules::{Away, SignRule, Ties};
use super::extremes::largest;
use super::rounding::{WeightType, round_half_away};
use crate::kernel::half::{bfloat16, float16, to_bfloat16, to_float16};
use crate::kernel::{Loop, Minifloat, to_odd};
use std::hint::black_box;

/// Widens stored values to float32.
#[inline(always)]
pub(super) fn widen(weight: WeightType, bytes: &[u8], lane: &mut [f32]) {
    match weight {
        WeightType::Float32 => {
            for (value, bytes) in lane.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        WeightType::Bfloat16 => {
            for (value, bytes) in lane.iter_mut().zip(bytes.as_chunks().0) {
                *value = bfloat16(u16::from_le_bytes(*bytes));
            }
        }
        WeightType::Float16 => {
            for (value, bytes) in lane.iter_mut().zip(bytes.as_chunks().0) {
                *value = float16(u16::from_le_bytes(*bytes));
            }
        }
    }
}

pub(super) fn number(weight: WeightType, bytes: &[u8]) -> f32 {
    let mut value = [0.0];
    widen(weight, bytes, &mut value);
    value[0]
}

/// Finds the lowest and the highest of some stored values, none of which is NaN. `values` is scratch space of the same
/// length.
pub(super) struct Bounds<'a> {
    pub(super) weight: WeightType,
    pub(super) bytes: &'a [u8],
    pub(super) values: &'a mut [f32],
}

impl Loop for Bounds<'_> {
    type Result = [f32; 2];

    #[inline(always)]
    fn run(self) -> [f32; 2] {
        widen(self.weight, self.bytes, self.values);
        bounds(self.values)
    }
}

#[inline(always)]
pub(super) fn bounds(lane: &[f32]) -> [f32; 2] {
    // Compares integers that are ordered like the numbers, -0 below 0: unlike float comparisons, this vectorizes.
    let key = |value: &f32| {
        let bits = value.to_bits() as i32;
        bits ^ ((bits >> 31) as u32 >> 1) as i32
    };
    let number = |key: i32| f32::from_bits((key ^ ((key >> 31) as u32 >> 1) as i32) as u32);
    let (mut low, mut high) = (i32::MAX, i32::MIN);
    for value in lane {
        let key = key(value);
        low = if key < low { key } else { low };
        high = if key > high { key } else { high };
    }
    [number(low), number(high)]
}

/// Conversion of a value to the number that is rounded to a code. `factor` and `wide` are fields of
/// [`GroupScale`](super::scale::GroupScale).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotient {
    /// value / factor, in float32.
    Divide,
    /// value * factor, in float32.
    Multiply,
    /// value * multiplier / wide in float64, rounded to odd, so that rounding to a code afterwards has the effect of a single
    /// rounding.
    Exact,
}

/// Conversion of the values of a weight to numbers to round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pub(super) quotient: Quotient,
    /// The type to which the library rounds quotients.
    pub(super) rounding: WeightType,
    /// True if zero points are added.
    pub(super) has_zeros: bool,
    /// True if zeros are offsets, which are subtracted from values before they are divided.
    pub(super) has_offsets: bool,
    /// Says which number is rounded to an integer, halves away from zero, before codes are chosen.
    pub(super) away: Option<Away>,
}

/// The scales of the groups of some values, one lane per field of `GroupScale`.
#[derive(Clone, Copy)]
pub(super) struct Divisors<'a> {
    pub(super) factors: &'a [f32],
    pub(super) wide: &'a [f64],
    /// See [`Chooser::multiplier`](super::choose::Chooser::multiplier).
    pub(super) multiplier: f64,
    pub(super) zeros: &'a [f32],
    /// Values per group.
    pub(super) size: usize,
}

/// Copies the number of each group to all of its values.
#[inline(always)]
pub(super) fn expand(groups: &[f32], size: usize, lane: &mut [f32]) {
    match size {
        1 => lane.copy_from_slice(&groups[..lane.len()]),
        2 => expand_by::<2>(groups, lane),
        8 => expand_by::<8>(groups, lane),
        16 => expand_by::<16>(groups, lane),
        32 => expand_by::<32>(groups, lane),
        _ => {
            for (lane, group) in lane.chunks_mut(size).zip(groups) {
                lane.fill(*group);
            }
        }
    }
}

#[inline(always)]
fn expand_by<const N: usize>(groups: &[f32], lane: &mut [f32]) {
    let (whole, last) = lane.as_chunks_mut::<N>();
    let count = whole.len();
    for (lane, group) in whole.iter_mut().zip(groups) {
        *lane = [*group; N];
    }
    if let Some(group) = groups.get(count) {
        last.fill(*group);
    }
}

/// Divides values by the scales of their groups, and adds zero points if there are any. `lane` is scratch space as long
/// as `values`.
#[inline(always)]
pub(super) fn divide(values: &[f32], divisors: &Divisors, division: Division, lane: &mut [f32], out: &mut [f32]) {
    let Divisors { factors, wide, multiplier, zeros, size } = *divisors;
    // Where the scale is 0, all numbers are 0, or the zero point.
    if division.quotient == Quotient::Exact {
        let groups = values.chunks(size).zip(out.chunks_mut(size)).zip(wide.iter().zip(zeros));
        for ((values, out), (factor, zero_point)) in groups {
            // Adding 0 would turn -0 into 0; adding -0 changes nothing.
            let number = f64::from(*zero_point);
            let (offset, zero) =
                (if division.has_offsets { number } else { 0.0 }, if division.has_zeros { number } else { -0.0 });
            for (value, out) in values.iter().zip(out) {
                *out = if *factor == 0.0 {
                    if division.has_zeros { *zero_point } else { 0.0 }
                } else {
                    to_odd((f64::from(*value) - offset) * multiplier / factor + zero)
                };
            }
        }
        return;
    }
    if division.has_offsets {
        expand(zeros, size, lane);
        for ((value, offset), out) in values.iter().zip(&*lane).zip(&mut *out) {
            *out = *value - *offset;
        }
        expand(factors, size, lane);
        for (out, factor) in out.iter_mut().zip(&*lane) {
            *out = if *factor == 0.0 { 0.0 } else { *out / *factor };
        }
        return;
    }
    expand(factors, size, lane);
    let numbers = values.iter().zip(&*lane).zip(&mut *out);
    if division.quotient == Quotient::Divide {
        for ((value, factor), out) in numbers {
            *out = if *factor == 0.0 { 0.0 } else { *value / *factor };
        }
    } else {
        for ((value, factor), out) in numbers {
            *out = if *factor == 0.0 { 0.0 } else { *value * *factor };
        }
    }
    round_all(out, division.rounding);
    if division.away == Some(Away::Quotient) {
        round_all_away(out);
    }
    if division.has_zeros {
        expand(zeros, size, lane);
        for (number, zero) in out.iter_mut().zip(&*lane) {
            *number += *zero;
        }
        round_all(out, division.rounding);
    }
    if division.away == Some(Away::Sum) {
        round_all_away(out);
    }
}

#[inline(always)]
fn round_all_away(numbers: &mut [f32]) {
    for number in numbers {
        *number = round_half_away(*number);
    }
}

#[inline(always)]
pub(super) fn round_all(numbers: &mut [f32], dtype: WeightType) {
    match dtype {
        WeightType::Float32 => {}
        WeightType::Bfloat16 => {
            for number in numbers {
                *number = to_bfloat16(*number);
            }
        }
        WeightType::Float16 => {
            for number in numbers {
                *number = to_float16(*number);
            }
        }
    }
}

/// Raises each `amax`, the bits of a float32, to the largest magnitude of its group of `size` values. Returns the
/// largest of them.
pub(super) struct LargestOfGroups<'a> {
    pub(super) weight: WeightType,
    pub(super) bytes: &'a [u8],
    pub(super) size: usize,
    pub(super) amax: &'a mut [u32],
}

impl Loop for LargestOfGroups<'_> {
    type Result = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let Self { weight, bytes, size, amax } = self;
        let width = weight.bytes();
        let is_whole = bytes.len() == amax.len() * size * width;
        match size {
            16 if is_whole => groups_of::<16>(weight, bytes, &mut *amax),
            32 if is_whole => groups_of::<32>(weight, bytes, &mut *amax),
            128 if is_whole => groups_of::<128>(weight, bytes, &mut *amax),
            _ => {
                for (amax, bytes) in amax.iter_mut().zip(bytes.chunks(size * width)) {
                    *amax = larger(largest(weight, bytes), *amax);
                }
            }
        }
        let mut most = 0;
        for amax in amax {
            most = larger(most, *amax);
        }
        most
    }
}

/// Finds the lowest and the highest value of groups of `size` values, and their largest magnitudes as bits. Returns the
/// largest of these.
pub(super) struct BoundsOfGroups<'a> {
    pub(super) weight: WeightType,
    pub(super) bytes: &'a [u8],
    pub(super) size: usize,
    pub(super) amax: &'a mut [u32],
    pub(super) bounds: &'a mut [[f32; 2]],
}

impl Loop for BoundsOfGroups<'_> {
    type Result = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let Self { weight, bytes, size, amax, bounds } = self;
        match size {
            32 => bounds_of::<32>(weight, bytes, bounds),
            64 => bounds_of::<64>(weight, bytes, bounds),
            _ => bounds_of::<128>(weight, bytes, bounds),
        }
        let mut most = 0;
        for (amax, bounds) in amax.iter_mut().zip(bounds) {
            *amax = larger(bounds[0].abs().to_bits(), bounds[1].abs().to_bits());
            most = larger(most, *amax);
        }
        most
    }
}

#[inline(always)]
fn bounds_of<const N: usize>(weight: WeightType, bytes: &[u8], out: &mut [[f32; 2]]) {
    match weight {
        WeightType::Float32 => {
            for (group, of_group) in bytes.as_chunks().0.as_chunks::<N>().0.iter().zip(out) {
                *of_group = bounds(&group.map(f32::from_le_bytes));
            }
        }
        WeightType::Bfloat16 => narrow_bounds::<N>(bytes, out, bfloat16),
        WeightType::Float16 => narrow_bounds::<N>(bytes, out, float16),
    }
}

/// Compares numbers of 16 bits like [`bounds`].
#[inline(always)]
fn narrow_bounds<const N: usize>(bytes: &[u8], bounds: &mut [[f32; 2]], widen: impl Fn(u16) -> f32) {
    let number = |key: i16| widen((key ^ ((key >> 15) as u16 >> 1) as i16) as u16);
    for (group, out) in bytes.as_chunks().0.as_chunks::<N>().0.iter().zip(bounds) {
        let (mut low, mut high) = (i16::MAX, i16::MIN);
        for bytes in group {
            let bits = u16::from_le_bytes(*bytes) as i16;
            let key = bits ^ ((bits >> 15) as u16 >> 1) as i16;
            low = if key < low { key } else { low };
            high = if key > high { key } else { high };
        }
        *out = [number(low), number(high)];
    }
}

#[inline(always)]
fn groups_of<const N: usize>(weight: WeightType, bytes: &[u8], amax: &mut [u32]) {
    match weight {
        WeightType::Float32 => wide_groups::<N>(bytes, amax),
        WeightType::Bfloat16 => narrow_groups::<N>(bytes, amax, |bits| u32::from(bits) << 16),
        WeightType::Float16 => narrow_groups::<N>(bytes, amax, |bits| float16(bits).to_bits()),
    }
}

/// Groups are hidden, so that the compiler vectorizes each: it otherwise gathers one value of each of several groups.
#[inline(always)]
fn narrow_groups<const N: usize>(bytes: &[u8], amax: &mut [u32], widen: impl Fn(u16) -> u32) {
    for (group, amax) in bytes.as_chunks().0.as_chunks::<N>().0.iter().zip(amax) {
        let mut most = 0_i16;
        for bytes in black_box(group) {
            let magnitude = (u16::from_le_bytes(*bytes) & 0x7fff) as i16;
            most = if magnitude > most { magnitude } else { most };
        }
        *amax = larger(widen(most as u16), *amax);
    }
}

/// [`narrow_groups`] of float32.
#[inline(always)]
fn wide_groups<const N: usize>(bytes: &[u8], amax: &mut [u32]) {
    for (group, amax) in bytes.as_chunks().0.as_chunks::<N>().0.iter().zip(amax) {
        let mut most = 0;
        for bytes in black_box(group) {
            most = larger(u32::from_le_bytes(*bytes) & 0x7fff_ffff, most);
        }
        *amax = larger(most, *amax);
    }
}

/// Compares magnitudes as bits, below 2^31: a signed comparison works, and exists in all instruction sets.
#[inline(always)]
pub(super) fn larger(first: u32, second: u32) -> u32 {
    if first as i32 > second as i32 { first } else { second }
}

/// Rounding of numbers to codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CodeRounding {
    Float {
        float: Minifloat,
        sign: SignRule,
        ties: Ties,
    },
    /// The lowest and the highest code, and the offset added to stored codes.
    Int {
        low: f32,
        high: f32,
        offset: u8,
    },
}

/// 1.5 * 2^23. Its last bit is worth 1, so adding it rounds to an integer, whose bits are the low bits of the sum.
pub(super) const RAISED: f32 = 12_582_912.0;

/// Rounds numbers to codes, and writes the numbers that the codes stand for to `multiples`: multiples of the scale,
/// before the zero point is subtracted. Returns the count of numbers beyond the codes by more than half a step.
#[inline(always)]
pub(super) fn round(rounding: &CodeRounding, numbers: &[f32], codes: &mut [u8], multiples: &mut [f32]) -> u32 {
    match *rounding {
        CodeRounding::Float { float, sign: SignRule::Negative, ties: Ties::Even } => {
            floats(float, numbers, codes, multiples, Minifloat::round, |number| number < 0.0)
        }
        CodeRounding::Float { float, sign: SignRule::NotPositive, ties: Ties::TowardZero } => {
            floats(float, numbers, codes, multiples, Minifloat::round_down, |number| number <= 0.0)
        }
        CodeRounding::Float { float, sign: SignRule::Nonzero, ties: Ties::TowardZero } => {
            floats(float, numbers, codes, multiples, Minifloat::round_down, |number| {
                -number > f32::from_bits(float.zero)
            })
        }
        // No layout combines another sign rule with ties toward zero.
        CodeRounding::Float { float, .. } => {
            floats(float, numbers, codes, multiples, Minifloat::round, f32::is_sign_negative)
        }
        CodeRounding::Int { low, high, offset } => {
            let mut clipped = 0;
            for ((number, code), multiple) in numbers.iter().zip(codes).zip(multiples) {
                let above = if *number > low { *number } else { low };
                let sum = (if above < high { above } else { high }) + RAISED;
                *code = (sum.to_bits() as u8).wrapping_add(offset);
                *multiple = sum - RAISED;
                clipped += u32::from((*number > high + 0.5) | (*number < low - 0.5));
            }
            clipped
        }
    }
}

#[inline(always)]
fn floats(
    float: Minifloat,
    numbers: &[f32],
    codes: &mut [u8],
    multiples: &mut [f32],
    round: impl Fn(Minifloat, f32) -> (u32, f32),
    is_signed: impl Fn(f32) -> bool,
) -> u32 {
    let mut clipped = 0;
    for ((number, code), multiple) in numbers.iter().zip(codes).zip(multiples) {
        let magnitude = number.abs();
        let (rounded, value) = round(float, magnitude);
        *code = rounded as u8 | if is_signed(*number) { float.sign as u8 } else { 0 };
        *multiple = value.copysign(*number);
        clipped += u32::from(magnitude > float.clipped);
    }
    clipped
}

/// A segment of one row. [`LANES`] values share a group, with an item in `factors`, `zeros` and `scales`; or each value
/// is a separate group, if scales run along columns.
#[derive(Clone, Copy)]
pub(super) struct FusedSegment<'a> {
    /// The stored values, a multiple of [`LANES`].
    pub(super) bytes: &'a [u8],
    /// The reciprocals of factors, if values are divided ([`Quotient::Divide`]).
    pub(super) factors: &'a [f32],
    pub(super) zeros: &'a [f32],
    pub(super) scales: &'a [f32],
    /// The bytes to prefetch meanwhile, at most the length of the segment.
    pub(super) ahead: &'a [u8],
    /// True if errors are summed; otherwise the sums are 0.
    pub(super) is_measured: bool,
}

/// A loop over the values of a segment: see [`fused`](super::fused) and [`narrow`](super::narrow).
pub(super) trait SegmentLoop: Send + Sync {
    /// Writes the code of each value.
    fn encode(&self, segment: FusedSegment, codes: &mut [u8]) -> PartialSums;
}

/// Number of partial sums that are kept side by side, so that the loop vectorizes.
pub(super) const LANES: usize = 16;

/// Sums over the errors of a segment, in units of a power of two near its largest scale: the squares of tiny errors would
/// underflow. A value is always added to the same partial sum, so that the result is the same for every instruction set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PartialSums {
    pub(super) signal: [f32; LANES],
    pub(super) noise: [f32; LANES],
    /// The bits of the largest magnitudes, which are ordered like the magnitudes.
    pub(super) largest: [u32; LANES],
    /// Number of values beyond the codes by more than half a step.
    pub(super) clipped: [u32; LANES],
}

impl PartialSums {
    /// Compares values with the multiples of scales that stand for them, with the offsets of their groups if there are
    /// any, and replaces `multiples` by the errors. Values and offsets are multiplied by `over` here; the caller has
    /// already multiplied the scales.
    #[inline(always)]
    pub(super) fn of(
        values: &[f32],
        over: f32,
        (scales, size): (&[f32], usize),
        offsets: &[f32],
        lane: &mut [f32],
        multiples: &mut [f32],
    ) -> Self {
        expand(scales, size, lane);
        for ((value, scale), multiple) in values.iter().zip(&*lane).zip(&mut *multiples) {
            *multiple = *value * over - *multiple * *scale;
        }
        for (errors, offset) in multiples.chunks_mut(size).zip(offsets) {
            for error in errors {
                *error -= *offset * over;
            }
        }
        let mut sums = Self::default();
        for (values, errors) in values.chunks(LANES).zip(multiples.chunks(LANES)) {
            for (at, (value, error)) in values.iter().zip(errors).enumerate() {
                let value = *value * over;
                sums.signal[at] += value * value;
                sums.noise[at] += *error * *error;
                sums.largest[at] = larger(sums.largest[at], error.abs().to_bits());
            }
        }
        sums
    }

    #[inline(always)]
    pub(super) fn total(&self) -> ErrorSums {
        let (signal, noise) = (sum(self.signal.map(f64::from)), sum(self.noise.map(f64::from)));
        let (mut largest, mut clipped) = (0, 0);
        for at in 0..LANES {
            largest = larger(largest, self.largest[at]);
            clipped += self.clipped[at];
        }
        ErrorSums { signal, noise, largest: f32::from_bits(largest), clipped }
    }
}

impl ErrorSums {
    /// True if the squares were neither too small nor too large for float32, where sums of `least` are large enough.
    pub(super) fn is_complete(&self, least: f64) -> bool {
        self.signal >= least && self.noise >= least && self.largest.is_finite()
    }
}

/// Sums in a fixed order: each number of the first half and its counterpart in the second, and so on.
#[inline(always)]
fn sum(mut lanes: [f64; LANES]) -> f64 {
    let mut half = LANES;
    while half > 1 {
        half /= 2;
        for at in 0..half {
            lanes[at] += lanes[at + half];
        }
    }
    lanes[0]
}

/// The sums of all lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ErrorSums {
    pub(super) signal: f64,
    pub(super) noise: f64,
    pub(super) largest: f32,
    pub(super) clipped: u32,
}

/// Packs codes of one byte into `bits` bits each; the unused bits of the last byte are 0.
pub(super) struct Pack<'a> {
    pub(super) codes: &'a [u8],
    pub(super) bits: u32,
    pub(super) high_first: bool,
    pub(super) out: &'a mut [u8],
}

impl Loop for Pack<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { codes, bits, high_first, out } = self;
        match bits {
            8 => out[..codes.len()].copy_from_slice(codes),
            4 => {
                let (pairs, last) = codes.as_chunks::<2>();
                // A pair as one word: the compiler then narrows whole vectors.
                let pairs_of = pairs.iter().map(|pair| u16::from_le_bytes(*pair));
                if high_first {
                    for (pair, out) in pairs_of.zip(&mut *out) {
                        *out = (pair << 4 | pair >> 8) as u8;
                    }
                } else {
                    // The codes of a stream have their signs in the upper bits.
                    for (pair, out) in pairs_of.zip(&mut *out) {
                        *out = (pair & 0x0f | pair >> 4 & 0xf0) as u8;
                    }
                }
                if let [last] = last {
                    out[pairs.len()] = last << if high_first { 4 } else { 0 };
                }
            }
            1 => stream::<1>(codes, out),
            2 => stream::<2>(codes, out),
            3 => stream::<3>(codes, out),
            5 => stream::<5>(codes, out),
            6 => stream::<6>(codes, out),
            _ => stream::<7>(codes, out),
        }
    }
}

/// Packs codes into a stream of bits, the low bits of a byte first. Eight codes of n bits fill n bytes.
#[inline(always)]
fn stream<const BITS: usize>(codes: &[u8], out: &mut [u8]) {
    let join = |codes: &[u8]| codes.iter().rev().fold(0_u64, |word, code| word << BITS | u64::from(*code));
    let ((codes, last), (out, last_out)) = (codes.as_chunks::<8>(), out.as_chunks_mut::<BITS>());
    let mut words = codes.iter().map(|codes| join(codes));
    for (out, word) in out.iter_mut().zip(&mut words) {
        out.copy_from_slice(&word.to_le_bytes()[..BITS]);
    }
    let mut rest = out.get_mut(codes.len()..).unwrap_or_default().as_flattened_mut().iter_mut().chain(last_out);
    rest.by_ref().zip(join(last).to_le_bytes()).for_each(|(out, byte)| *out = byte);
}
