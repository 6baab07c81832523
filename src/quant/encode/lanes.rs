//! Loops over one row of values: each vectorises by itself.

use super::super::rules::{SignRule, Ties};
use super::choose::Quotient;
use super::extremes::largest;
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

/// What the groups of some values are divided by: see `GroupScale`.
#[derive(Clone, Copy)]
pub(super) struct Divisors<'a> {
    pub(super) factors: &'a [f32],
    pub(super) wide: &'a [f64],
    pub(super) zeros: &'a [f32],
    /// Values of a group.
    pub(super) size: usize,
}

/// Values divided by the scales of their groups, and what the library adds.
#[inline(always)]
pub(super) fn divide(values: &[f32], divisors: &Divisors, division: Division, out: &mut [f32]) {
    match division.rounding {
        WeightType::Float32 => divide_and_round(values, divisors, division, out, |value| value),
        WeightType::Bfloat16 => divide_and_round(values, divisors, division, out, to_bfloat16),
        WeightType::Float16 => divide_and_round(values, divisors, division, out, to_float16),
    }
}

#[inline(always)]
fn divide_and_round(
    values: &[f32],
    divisors: &Divisors,
    division: Division,
    out: &mut [f32],
    round: impl Fn(f32) -> f32 + Copy,
) {
    let Divisors { factors, wide, zeros, size } = *divisors;
    // A scale of 0 makes all values 0.
    let divided = |value: f32, factor: f32| if factor == 0.0 { 0.0 } else { round(value / factor) };
    let multiplied = |value: f32, factor: f32| if factor == 0.0 { 0.0 } else { round(value * factor) };
    let exact = |value: f32, factor: f64| if factor == 0.0 { 0.0 } else { to_odd(f64::from(value) / factor) };
    match division.quotient {
        Quotient::Divide => by_groups(values, factors, size, out, divided),
        Quotient::Multiply => by_groups(values, factors, size, out, multiplied),
        Quotient::Exact if division.has_zeros => {
            // A sum takes the sign of -0, which these codes do not have.
            let groups = values.chunks(size).zip(out.chunks_mut(size)).zip(wide.iter().zip(zeros));
            for ((values, out), (factor, zero)) in groups {
                for (value, out) in values.iter().zip(out) {
                    *out = to_odd(f64::from(*value) / factor + f64::from(*zero));
                }
            }
        }
        Quotient::Exact => by_groups(values, wide, size, out, exact),
    }
    if division.has_zeros && division.quotient != Quotient::Exact {
        for (chunk, zero) in out.chunks_mut(size).zip(zeros) {
            for value in chunk {
                *value = round(*value + zero);
            }
        }
    }
}

/// One number out of each value and the factor of its group.
#[inline(always)]
fn by_groups<F: Copy>(
    values: &[f32],
    factors: &[F],
    size: usize,
    out: &mut [f32],
    number: impl Fn(f32, F) -> f32 + Copy,
) {
    match size {
        16 => by_groups_of::<16, F>(values, factors, out, number),
        32 => by_groups_of::<32, F>(values, factors, out, number),
        _ => {
            for ((values, out), factor) in values.chunks(size).zip(out.chunks_mut(size)).zip(factors) {
                let factor = *factor;
                values.iter().zip(out).for_each(|(value, out)| *out = number(*value, factor));
            }
        }
    }
}

/// As [`by_groups`], with loops of a known length.
#[inline(always)]
fn by_groups_of<const N: usize, F: Copy>(
    values: &[f32],
    factors: &[F],
    out: &mut [f32],
    number: impl Fn(f32, F) -> f32 + Copy,
) {
    let ((values, last), (out, last_out)) = (values.as_chunks::<N>(), out.as_chunks_mut::<N>());
    for ((values, out), factor) in values.iter().zip(out).zip(factors) {
        let factor = *factor;
        for at in 0..N {
            out[at] = number(values[at], factor);
        }
    }
    if let Some(factor) = factors.get(values.len()) {
        last.iter().zip(last_out).for_each(|(value, out)| *out = number(*value, *factor));
    }
}

/// The largest magnitudes of groups of `size` stored values, as bits of float32.
#[inline(always)]
pub(super) fn largest_of_groups(weight: WeightType, bytes: &[u8], size: usize, amax: &mut [u32]) {
    match (weight, size) {
        (WeightType::Float32, 16) => groups_of_words::<16>(bytes, amax),
        (WeightType::Float32, 32) => groups_of_words::<32>(bytes, amax),
        (_, 16) => groups_of_halves::<16>(weight, bytes, amax),
        (_, 32) => groups_of_halves::<32>(weight, bytes, amax),
        _ => {
            let width = if weight == WeightType::Float32 { 4 } else { 2 };
            for (amax, bytes) in amax.iter_mut().zip(bytes.chunks(size * width)) {
                *amax = largest(weight, bytes).max(*amax);
            }
        }
    }
}

#[inline(always)]
fn groups_of_words<const N: usize>(bytes: &[u8], amax: &mut [u32]) {
    let (groups, last) = bytes.as_chunks::<4>().0.as_chunks::<N>();
    for (amax, group) in amax.iter_mut().zip(groups) {
        let mut largest = 0;
        for bytes in group {
            let bits = u32::from_le_bytes(*bytes) & 0x7fff_ffff;
            largest = if bits > largest { bits } else { largest };
        }
        *amax = largest.max(*amax);
    }
    if let Some(amax) = amax.get_mut(groups.len()) {
        *amax = largest(WeightType::Float32, last.as_flattened()).max(*amax);
    }
}

#[inline(always)]
fn groups_of_halves<const N: usize>(weight: WeightType, bytes: &[u8], amax: &mut [u32]) {
    let (groups, last) = bytes.as_chunks::<2>().0.as_chunks::<N>();
    for (amax, group) in amax.iter_mut().zip(groups) {
        let mut largest = 0;
        for bytes in group {
            let bits = u16::from_le_bytes(*bytes) & 0x7fff;
            largest = if bits > largest { bits } else { largest };
        }
        let is_float16 = weight == WeightType::Float16;
        let bits = if is_float16 { from_float16(largest).to_bits() } else { u32::from(largest) << 16 };
        *amax = bits.max(*amax);
    }
    if let Some(amax) = amax.get_mut(groups.len()) {
        *amax = largest(weight, last.as_flattened()).max(*amax);
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
        CodeRounding::Float { float, sign: SignRule::NotPositive, ties: Ties::TowardZero } => {
            floats(float, numbers, codes, multiples, Minifloat::round_down, |number| number <= 0.0)
        }
        // No row has another pair.
        CodeRounding::Float { float, .. } => {
            floats(float, numbers, codes, multiples, Minifloat::round, f32::is_sign_negative)
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

impl ErrorSums {
    /// Of values and the multiples of scales that stand for them. Errors go into `multiples`; values are multiplied with
    /// `over`, and scales have been already. Sums are made in lanes that are always the same.
    #[inline(always)]
    pub(super) fn of(values: &[f32], over: f32, scales: &[f32], size: usize, multiples: &mut [f32]) -> Self {
        match size {
            16 => by_groups_of_pairs::<16>(values, over, scales, multiples),
            32 => by_groups_of_pairs::<32>(values, over, scales, multiples),
            _ => {
                for ((values, multiples), scale) in values.chunks(size).zip(multiples.chunks_mut(size)).zip(scales) {
                    let scale = *scale;
                    for (value, multiple) in values.iter().zip(multiples) {
                        *multiple = *value * over - *multiple * scale;
                    }
                }
            }
        }
        let errors = &*multiples;
        let (mut signal, mut noise, mut largest) = ([0.0_f32; LANES], [0.0_f32; LANES], [0_u32; LANES]);
        let ((values, last), (errors, last_errors)) = (values.as_chunks::<LANES>(), errors.as_chunks::<LANES>());
        let mut add = |at: usize, value: f32, error: f32| {
            let value = value * over;
            signal[at] += value * value;
            noise[at] += error * error;
            // The order of the bits is that of the magnitudes.
            let magnitude = error.to_bits() & 0x7fff_ffff;
            largest[at] = if magnitude > largest[at] { magnitude } else { largest[at] };
        };
        for (values, errors) in values.iter().zip(errors) {
            for at in 0..LANES {
                add(at, values[at], errors[at]);
            }
        }
        last.iter().zip(last_errors).enumerate().for_each(|(at, (value, error))| add(at, *value, *error));
        let sum = |lanes: [f32; LANES]| lanes.into_iter().map(f64::from).sum();
        let largest = largest.into_iter().fold(0, |largest, lane| if lane > largest { lane } else { largest });
        Self { signal: sum(signal), noise: sum(noise), largest: f32::from_bits(largest) }
    }
}

#[inline(always)]
fn by_groups_of_pairs<const N: usize>(values: &[f32], over: f32, scales: &[f32], multiples: &mut [f32]) {
    let ((values, last), (multiples, last_multiples)) = (values.as_chunks::<N>(), multiples.as_chunks_mut::<N>());
    for ((values, multiples), scale) in values.iter().zip(multiples).zip(scales) {
        let scale = *scale;
        for at in 0..N {
            multiples[at] = values[at] * over - multiples[at] * scale;
        }
    }
    if let Some(scale) = scales.get(values.len()) {
        for (value, multiple) in last.iter().zip(last_multiples) {
            *multiple = *value * over - *multiple * scale;
        }
    }
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
        1 => stream::<1>(codes, out),
        2 => stream::<2>(codes, out),
        3 => stream::<3>(codes, out),
        5 => stream::<5>(codes, out),
        6 => stream::<6>(codes, out),
        _ => stream::<7>(codes, out),
    }
}

/// A stream of bits, the low bits of a byte first: eight codes fill as many bytes as a code has bits.
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
