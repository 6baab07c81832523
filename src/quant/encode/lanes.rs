//! Loops over the values of one row. Each is written so that the compiler vectorizes it.

use super::super::rules::{SignRule, Ties};
use super::choose::Quotient;
use super::extremes::largest;
use super::rounding::{Minifloat, WeightType, from_float16, to_bfloat16, to_float16, to_odd};

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
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        WeightType::Float16 => {
            for (value, bytes) in lane.iter_mut().zip(bytes.as_chunks().0) {
                *value = from_float16(u16::from_le_bytes(*bytes));
            }
        }
    }
}

/// The lowest and the highest value of a group, none of which is NaN.
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

/// How the values of a weight become numbers to round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pub(super) quotient: Quotient,
    /// The type to which the library rounds quotients.
    pub(super) rounding: WeightType,
    /// Whether zero points are added.
    pub(super) has_zeros: bool,
}

/// The scales of the groups of some values, one lane per field of `GroupScale`.
#[derive(Clone, Copy)]
pub(super) struct Divisors<'a> {
    pub(super) factors: &'a [f32],
    pub(super) wide: &'a [f64],
    pub(super) zeros: &'a [f32],
    /// Values per group.
    pub(super) size: usize,
}

/// Groups of at least this many values get a loop each. For smaller groups, each value gets a copy of its group's
/// factor first, so that one loop runs over all of them.
const SMALL: usize = 64;

/// Copies the number of each group to all of its values.
#[inline(always)]
fn expand(groups: &[f32], size: usize, lane: &mut [f32]) {
    match size {
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
    match division.rounding {
        WeightType::Float32 => divide_and_round(values, divisors, division, lane, out, |value| value),
        WeightType::Bfloat16 => divide_and_round(values, divisors, division, lane, out, to_bfloat16),
        WeightType::Float16 => divide_and_round(values, divisors, division, lane, out, to_float16),
    }
}

#[inline(always)]
fn divide_and_round(
    values: &[f32],
    divisors: &Divisors,
    division: Division,
    lane: &mut [f32],
    out: &mut [f32],
    round: impl Fn(f32) -> f32 + Copy,
) {
    let Divisors { factors, wide, zeros, size } = *divisors;
    let is_small = size < SMALL && factors.len() > 1;
    // Where the scale is 0, all numbers are 0.
    match division.quotient {
        Quotient::Divide | Quotient::Multiply if is_small => {
            expand(factors, size, lane);
            let is_divided = division.quotient == Quotient::Divide;
            if is_divided {
                for ((value, factor), out) in values.iter().zip(&*lane).zip(&mut *out) {
                    *out = if *factor == 0.0 { 0.0 } else { round(*value / *factor) };
                }
            } else {
                for ((value, factor), out) in values.iter().zip(&*lane).zip(&mut *out) {
                    *out = if *factor == 0.0 { 0.0 } else { round(*value * *factor) };
                }
            }
        }
        Quotient::Divide => {
            for ((values, out), factor) in values.chunks(size).zip(out.chunks_mut(size)).zip(factors) {
                let factor = *factor;
                for (value, out) in values.iter().zip(out) {
                    *out = if factor == 0.0 { 0.0 } else { round(*value / factor) };
                }
            }
        }
        Quotient::Multiply => {
            for ((values, out), factor) in values.chunks(size).zip(out.chunks_mut(size)).zip(factors) {
                let factor = *factor;
                for (value, out) in values.iter().zip(out) {
                    *out = if factor == 0.0 { 0.0 } else { round(*value * factor) };
                }
            }
        }
        Quotient::Exact => {
            let groups = values.chunks(size).zip(out.chunks_mut(size)).zip(wide.iter().zip(zeros));
            for ((values, out), (factor, zero)) in groups {
                // Adding 0 would turn -0 into 0; adding -0 changes nothing.
                let zero = if division.has_zeros { f64::from(*zero) } else { -0.0 };
                for (value, out) in values.iter().zip(out) {
                    *out = if *factor == 0.0 { 0.0 } else { to_odd(f64::from(*value) / factor + zero) };
                }
            }
        }
    }
    if division.has_zeros && division.quotient != Quotient::Exact {
        for (chunk, zero) in out.chunks_mut(size).zip(zeros) {
            for value in chunk {
                *value = round(*value + zero);
            }
        }
    }
}

/// Raises each `amax`, the bits of a float32, to the largest magnitude of its group of `size` values. The two lanes are
/// scratch space for a segment.
#[inline(always)]
pub(super) fn largest_of_groups(
    weight: WeightType,
    bytes: &[u8],
    size: usize,
    [lane, other]: [&mut [f32]; 2],
    amax: &mut [u32],
) {
    let width = if weight == WeightType::Float32 { 4 } else { 2 };
    let mut left = amax.len() * size;
    if size >= SMALL || !size.is_power_of_two() || left > lane.len() {
        for (amax, bytes) in amax.iter_mut().zip(bytes.chunks(size * width)) {
            *amax = largest(weight, bytes).max(*amax);
        }
        return;
    }
    let (values, missing) = lane[..left].split_at_mut(bytes.len() / width);
    widen(weight, bytes, values);
    missing.fill(0.0);
    // Keeps the larger of each two neighbours until one number per group is left.
    let (mut from, mut to) = (lane, other);
    while left > amax.len() {
        for (larger, [first, second]) in to.iter_mut().zip(from[..left].as_chunks().0) {
            // `map` of an array would compile to a call for each pair.
            let (first, second) = (first.to_bits() & 0x7fff_ffff, second.to_bits() & 0x7fff_ffff);
            *larger = f32::from_bits(if first > second { first } else { second });
        }
        left /= 2;
        (from, to) = (to, from);
    }
    for (amax, largest) in amax.iter_mut().zip(from) {
        *amax = (largest.to_bits() & 0x7fff_ffff).max(*amax);
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
    /// The lowest and the highest code, and the offset that is added to a code when it is stored.
    Int {
        low: f32,
        high: f32,
        offset: u8,
    },
}

/// Rounds numbers to codes, and writes the numbers that the codes stand for to `multiples`: multiples of the scale,
/// before the zero point is subtracted. Returns how many numbers lie beyond the codes by more than half a step.
#[inline(always)]
pub(super) fn round(rounding: &CodeRounding, numbers: &[f32], codes: &mut [u8], multiples: &mut [f32]) -> u32 {
    match *rounding {
        CodeRounding::Float { float, sign: SignRule::Negative, ties: Ties::Even } => {
            floats(float, numbers, codes, multiples, Minifloat::round, |number| number < 0.0)
        }
        CodeRounding::Float { float, sign: SignRule::NotPositive, ties: Ties::TowardZero } => {
            floats(float, numbers, codes, multiples, Minifloat::round_down, |number| number <= 0.0)
        }
        // No layout combines another sign rule with ties toward zero.
        CodeRounding::Float { float, .. } => {
            floats(float, numbers, codes, multiples, Minifloat::round, f32::is_sign_negative)
        }
        CodeRounding::Int { low, high, offset } => {
            // 1.5 * 2^23: its last bit is worth 1, so the addition rounds, and the low bits of the sum are the code.
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

/// Partial sums that are kept side by side, so that the loop vectorizes.
const LANES: usize = 16;

/// Sums of squares below this may lack squares that are 0 in float32.
const VANISHING: f64 = 1e-30;

fn square(number: f32) -> f64 {
    f64::from(number) * f64::from(number)
}

/// Sums over the errors of some values, in units of a power of two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ErrorSums {
    pub(super) signal: f64,
    pub(super) noise: f64,
    pub(super) largest: f32,
}

impl ErrorSums {
    /// Compares values with the multiples of scales that stand for them, and replaces `multiples` by the errors. Values
    /// are multiplied by `over` here; the caller has already multiplied the scales. Each value is always added to the
    /// same partial sum, so that the result is the same for every instruction set.
    #[inline(always)]
    pub(super) fn of(
        values: &[f32],
        over: f32,
        (scales, size): (&[f32], usize),
        lane: &mut [f32],
        multiples: &mut [f32],
    ) -> Self {
        if size < SMALL {
            expand(scales, size, lane);
            for ((value, scale), multiple) in values.iter().zip(&*lane).zip(&mut *multiples) {
                *multiple = *value * over - *multiple * *scale;
            }
        } else {
            for ((values, multiples), scale) in values.chunks(size).zip(multiples.chunks_mut(size)).zip(scales) {
                let scale = *scale;
                for (value, multiple) in values.iter().zip(multiples) {
                    *multiple = *value * over - *multiple * scale;
                }
            }
        }
        let (all_values, all_errors) = (values, &*multiples);
        let (mut signal, mut noise, mut largest) = ([0.0_f32; LANES], [0.0_f32; LANES], [0_u32; LANES]);
        let ((values, last), (errors, last_errors)) =
            (all_values.as_chunks::<LANES>(), all_errors.as_chunks::<LANES>());
        let mut add = |at: usize, value: f32, error: f32| {
            let value = value * over;
            signal[at] += value * value;
            noise[at] += error * error;
            // Magnitudes are ordered like their bits.
            let magnitude = error.to_bits() & 0x7fff_ffff;
            largest[at] = if magnitude > largest[at] { magnitude } else { largest[at] };
        };
        for (values, errors) in values.iter().zip(errors) {
            for at in 0..LANES {
                add(at, values[at], errors[at]);
            }
        }
        for (at, (value, error)) in last.iter().zip(last_errors).enumerate() {
            add(at, *value, *error);
        }
        // Squares of numbers far below the largest scale vanish in float32.
        let sum = |lanes: [f32; LANES]| lanes.into_iter().map(f64::from).sum::<f64>();
        let or_wide = |sum: f64, wide: &dyn Fn() -> f64| if sum < VANISHING { wide() } else { sum };
        let signal = or_wide(sum(signal), &|| all_values.iter().map(|value| square(value * over)).sum());
        let noise = or_wide(sum(noise), &|| all_errors.iter().map(|error| square(*error)).sum());
        let largest = largest.into_iter().fold(0, |largest, lane| if lane > largest { lane } else { largest });
        Self { signal, noise, largest: f32::from_bits(largest) }
    }
}

/// Packs codes, which come one per byte, into `bits` bits each; the unused bits of the last byte are 0.
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

/// Packs codes into a stream of bits, the low bits of a byte first. Eight codes fill as many bytes as a code has bits.
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
