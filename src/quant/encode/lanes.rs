//! Loops over one row of values: each vectorises by itself.

use super::super::rules::{SignRule, Ties};
use super::choose::{GroupScale, Quotient};
use super::rounding::{Minifloat, WeightType, from_float16, to_bfloat16, to_float16, to_odd};

/// Stored values as float32.
#[inline(always)]
pub(super) fn widen(weight: WeightType, bytes: &[u8], lane: &mut [f32]) {
    match weight {
        WeightType::Float32 => {
            lane.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, bytes)| *value = f32::from_le_bytes(*bytes));
        }
        WeightType::Bfloat16 => lane.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, bytes)| {
            *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        }),
        WeightType::Float16 => {
            let pairs = lane.iter_mut().zip(bytes.as_chunks().0);
            pairs.for_each(|(value, bytes)| *value = from_float16(u16::from_le_bytes(*bytes)));
        }
    }
}

/// The lowest and the highest value of a group, none of which is NaN.
#[inline(always)]
pub(super) fn bounds(lane: &[f32]) -> [f32; 2] {
    // As integers in the order of the numbers, -0 below 0: what vectorises.
    let key = |value: &f32| {
        let bits = value.to_bits() as i32;
        bits ^ ((bits >> 31) as u32 >> 1) as i32
    };
    let number = |key: i32| f32::from_bits((key ^ ((key >> 31) as u32 >> 1) as i32) as u32);
    let low = lane.iter().map(key).fold(i32::MAX, |low, key| if key < low { key } else { low });
    let high = lane.iter().map(key).fold(i32::MIN, |high, key| if key > high { key } else { high });
    [number(low), number(high)]
}

/// What the numbers of a row are made by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pub(super) quotient: Quotient,
    /// What the library rounds quotients to.
    pub(super) rounding: WeightType,
    /// Whether zero points are added.
    pub(super) has_zeros: bool,
}

/// Values divided by the scales of their groups of `size`, and what the library adds.
#[inline(always)]
pub(super) fn divide(values: &[f32], groups: &[GroupScale], size: usize, division: Division, out: &mut [f32]) {
    match division.rounding {
        WeightType::Float32 => divide_and_round(values, groups, size, division, out, |value| value),
        WeightType::Bfloat16 => divide_and_round(values, groups, size, division, out, to_bfloat16),
        WeightType::Float16 => divide_and_round(values, groups, size, division, out, to_float16),
    }
}

#[inline(always)]
fn divide_and_round(
    values: &[f32],
    groups: &[GroupScale],
    size: usize,
    division: Division,
    out: &mut [f32],
    round: impl Fn(f32) -> f32 + Copy,
) {
    // A scale of 0 makes all values 0.
    let divided = |value: f32, group: &GroupScale| if group.factor == 0.0 { 0.0 } else { round(value / group.factor) };
    let multiplied =
        |value: f32, group: &GroupScale| if group.factor == 0.0 { 0.0 } else { round(value * group.factor) };
    let exact = |value: f32, group: &GroupScale| {
        if group.wide == 0.0 { 0.0 } else { to_odd(f64::from(value) / group.wide) }
    };
    // A sum would take the sign of -0.
    let moved = |value: f32, group: &GroupScale| to_odd(f64::from(value) / group.wide + f64::from(group.zero));
    match division.quotient {
        Quotient::Divide => by_groups(values, groups, size, out, divided),
        Quotient::Multiply => by_groups(values, groups, size, out, multiplied),
        Quotient::Exact if division.has_zeros => by_groups(values, groups, size, out, moved),
        Quotient::Exact => by_groups(values, groups, size, out, exact),
    }
    if division.has_zeros && division.quotient != Quotient::Exact {
        for (chunk, group) in out.chunks_mut(size).zip(groups) {
            for value in chunk {
                *value = round(*value + group.zero);
            }
        }
    }
}

/// One number out of each value and its group.
#[inline(always)]
fn by_groups(
    values: &[f32],
    groups: &[GroupScale],
    size: usize,
    out: &mut [f32],
    number: impl Fn(f32, &GroupScale) -> f32 + Copy,
) {
    match size {
        16 => by_groups_of::<16>(values, groups, out, number),
        32 => by_groups_of::<32>(values, groups, out, number),
        _ => {
            for ((values, out), group) in values.chunks(size).zip(out.chunks_mut(size)).zip(groups) {
                let group = *group;
                values.iter().zip(out).for_each(|(value, out)| *out = number(*value, &group));
            }
        }
    }
}

#[inline(always)]
fn by_groups_of<const N: usize>(
    values: &[f32],
    groups: &[GroupScale],
    out: &mut [f32],
    number: impl Fn(f32, &GroupScale) -> f32 + Copy,
) {
    let ((values, last), (out, last_out)) = (values.as_chunks::<N>(), out.as_chunks_mut::<N>());
    for ((values, out), group) in values.iter().zip(out).zip(groups) {
        let group = *group;
        values.iter().zip(out).for_each(|(value, out)| *out = number(*value, &group));
    }
    if let Some(group) = groups.get(values.len()) {
        last.iter().zip(last_out).for_each(|(value, out)| *out = number(*value, group));
    }
}

/// How numbers become codes.
#[derive(Clone, Copy, Debug)]
pub(super) enum CodeRounding {
    Float {
        float: Minifloat,
        sign: SignRule,
        ties: Ties,
    },
    /// The lowest and the highest code, and what is added to it where it is stored.
    Int {
        low: f32,
        high: f32,
        offset: u8,
    },
}

/// Rounds numbers to codes. What codes stand for goes into `multiples`, as multiples of the scale less the zero point.
/// Gives how many numbers lie beyond the codes.
#[inline(always)]
pub(super) fn round(rounding: &CodeRounding, numbers: &[f32], codes: &mut [u8], multiples: &mut [f32]) -> u32 {
    match *rounding {
        CodeRounding::Float { float, sign: SignRule::Kept, ties: Ties::Even } => {
            floats(float, numbers, codes, multiples, Minifloat::round, f32::is_sign_negative)
        }
        CodeRounding::Float { float, sign: SignRule::Negative, ties: Ties::Even } => {
            floats(float, numbers, codes, multiples, Minifloat::round, |number| number < 0.0)
        }
        CodeRounding::Float { float, sign, ties } => {
            let round = move |float: Minifloat, magnitude| match ties {
                Ties::Even => float.round(magnitude),
                Ties::TowardZero => float.round_down(magnitude),
            };
            let is_signed = move |number: f32| match sign {
                SignRule::Kept => number.is_sign_negative(),
                SignRule::Negative => number < 0.0,
                SignRule::NotPositive => number <= 0.0,
            };
            floats(float, numbers, codes, multiples, round, is_signed)
        }
        CodeRounding::Int { low, high, offset } => {
            // 1.5 * 2^23: its last bit is worth 1, so the adder rounds, and the low bits are the code.
            const RAISED: f32 = 12_582_912.0;
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
        *code = rounded as u8 | if is_signed(*number) { float.sign } else { 0 };
        *multiple = value.copysign(*number);
        clipped += u32::from(magnitude > float.limit);
    }
    clipped
}

/// Sums that are kept side by side, as vectors keep them.
const LANES: usize = 16;

/// What errors of some values add up to, in units of a power of two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ErrorSums {
    pub(super) signal: f64,
    pub(super) noise: f64,
    pub(super) largest: f32,
}

/// Makes errors of multiples of the scales, over a power of two; `scales` are over the same one.
#[inline(always)]
pub(super) fn subtract(values: &[f32], over: f32, scales: &[f32], size: usize, multiples: &mut [f32]) {
    for ((values, multiples), scale) in values.chunks(size).zip(multiples.chunks_mut(size)).zip(scales) {
        let scale = *scale;
        for (value, multiple) in values.iter().zip(multiples) {
            *multiple = *value * over - *multiple * scale;
        }
    }
}

/// Adds errors and values up, in lanes that are always the same.
#[inline(always)]
pub(super) fn sum(values: &[f32], over: f32, errors: &[f32]) -> ErrorSums {
    let (mut signal, mut noise, mut largest) = ([0.0_f32; LANES], [0.0_f32; LANES], [0.0_f32; LANES]);
    let ((values, last), (errors, last_errors)) = (values.as_chunks::<LANES>(), errors.as_chunks::<LANES>());
    for (values, errors) in values.iter().zip(errors) {
        for at in 0..LANES {
            let (value, error) = (values[at] * over, errors[at]);
            signal[at] += value * value;
            noise[at] += error * error;
            largest[at] = if error.abs() > largest[at] { error.abs() } else { largest[at] };
        }
    }
    for (at, (value, error)) in last.iter().zip(last_errors).enumerate() {
        let value = value * over;
        signal[at] += value * value;
        noise[at] += error * error;
        largest[at] = if error.abs() > largest[at] { error.abs() } else { largest[at] };
    }
    let add = |lanes: [f32; LANES]| lanes.into_iter().map(f64::from).sum();
    ErrorSums { signal: add(signal), noise: add(noise), largest: largest.into_iter().fold(0.0, f32::max) }
}

/// Codes, one in a byte, in as few bits as they have; what is left of the last byte is 0.
#[inline(always)]
pub(super) fn pack(codes: &[u8], bits: u32, high_first: bool, out: &mut [u8]) {
    match bits {
        8 => out[..codes.len()].copy_from_slice(codes),
        4 => {
            let (pairs, last) = codes.as_chunks::<2>();
            let (even, odd) = if high_first { (4, 0) } else { (0, 4) };
            for ([first, second], out) in pairs.iter().zip(&mut *out) {
                *out = first << even | second << odd;
            }
            if let [last] = last {
                out[pairs.len()] = last << even;
            }
        }
        _ => {
            // Eight codes fill as many bytes as a code has bits.
            for (codes, out) in codes.chunks(8).zip(out.chunks_mut(bits as usize)) {
                let word = codes.iter().rev().fold(0_u64, |word, code| word << bits | u64::from(*code));
                out.copy_from_slice(&word.to_le_bytes()[..out.len()]);
            }
        }
    }
}
