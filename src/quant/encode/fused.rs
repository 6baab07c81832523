//! Codes and errors of a segment in one pass over its values, for the quotients of the libraries.
//!
//! The loops of `lanes` do the same one step after the other, each over the whole segment, and take exact quotients and
//! groups of any size too. Here a value stays in a register from its stored bytes to its code and its error. A division
//! then costs little: the processor does the other steps of earlier values meanwhile.

use super::super::rules::{SignRule, Ties};
use super::choose::Quotient;
use super::lanes::{CodeRounding, Division, LANES, PartialSums, RAISED, larger};
use super::rounding::{Minifloat, WeightType, from_float16, to_bfloat16, to_float16};
use crate::kernel::{Isa, Loop};

/// A segment of one row. Every [`LANES`] values lie in one group, of which `factors`, `zeros` and `scales` are.
#[derive(Clone, Copy)]
pub(super) struct FusedSegment<'a> {
    pub(super) weight: WeightType,
    /// The stored values, a multiple of [`LANES`].
    pub(super) bytes: &'a [u8],
    pub(super) division: Division,
    /// Of [`Division::by_reciprocals`], the reciprocals.
    pub(super) factors: &'a [f32],
    pub(super) zeros: &'a [f32],
    pub(super) scales: &'a [f32],
    /// Whether many values may be beyond the codes.
    pub(super) is_clipped: bool,
}

/// A number rounded to a code.
struct RoundedCode {
    code: u32,
    /// The value, or its magnitude.
    value: f32,
    /// What the code stands for, as a multiple of the scale: with a sign if the value has one.
    multiple: f32,
    /// The magnitude of the number before it was rounded, if the codes are floats.
    magnitude: f32,
    is_clipped: bool,
}

impl FusedSegment<'_> {
    /// Writes the code of each value. `None` for what no layout combines, to keep the number of loops small, and for what
    /// the loop does not count.
    pub(super) fn encode(self, isa: Isa, rounding: &CodeRounding, codes: &mut [u8]) -> Option<PartialSums> {
        match self.weight {
            WeightType::Float32 => self.read(isa, rounding, codes, f32::from_le_bytes, |number| number),
            WeightType::Bfloat16 => {
                let read = move |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
                self.read(isa, rounding, codes, read, to_bfloat16)
            }
            WeightType::Float16 => {
                self.read(isa, rounding, codes, |bytes| from_float16(u16::from_le_bytes(bytes)), to_float16)
            }
        }
    }

    /// Chooses the loop. `narrow` rounds to the dtype of the weight.
    fn read<const W: usize>(
        self,
        isa: Isa,
        rounding: &CodeRounding,
        codes: &mut [u8],
        read: impl Fn([u8; W]) -> f32 + Copy,
        narrow: impl Fn(f32) -> f32 + Copy,
    ) -> Option<PartialSums> {
        // float32 has no narrower loops.
        let is_narrowed = W == 2 && self.division.rounding != WeightType::Float32;
        // As macros: each loop has types of its own. The closures own their constants, which then stay in registers.
        macro_rules! run {
            ($is_counted:expr, $encode:expr) => {
                isa.run(FusedLoop::<$is_counted, W, _, _> {
                    segment: self,
                    values: self.bytes.as_chunks().0,
                    codes,
                    read,
                    encode: $encode,
                })
            };
        }
        macro_rules! run_floats {
            ($float:expr, $number:expr, $round:expr, $is_signed:expr) => {{
                let (float, number, round, is_signed) = ($float, $number, $round, $is_signed);
                let encode = move |value: f32, factor: f32, _: f32| {
                    to_float(float, value, number(value.abs(), factor), round, is_signed)
                };
                if self.is_clipped { run!(true, encode) } else { run!(false, encode) }
            }};
        }
        macro_rules! run_signs {
            ($float:expr, $sign:expr, $number:expr) => {
                if $sign == SignRule::Kept {
                    run_floats!($float, $number, Minifloat::round, |value: f32, _| value.is_sign_negative())
                } else {
                    // A value that is 0, or becomes 0, has no sign.
                    let is_signed = |value: f32, number: f32| value.is_sign_negative() & (number > 0.0);
                    run_floats!($float, $number, Minifloat::round, is_signed)
                }
            };
        }
        let (sums, most) = match (*rounding, self.division.quotient, is_narrowed) {
            (
                CodeRounding::Float { float, sign: SignRule::NotPositive, ties: Ties::TowardZero },
                quotient,
                narrowed,
            ) => {
                if quotient != Quotient::Multiply || narrowed {
                    return None;
                }
                let is_signed = |value: f32, number: f32| value.is_sign_negative() | (number == 0.0);
                run_floats!(float, move |value, factor| value * factor, Minifloat::round_down, is_signed)
            }
            (CodeRounding::Float { float, sign, ties: Ties::Even }, quotient, narrowed) => match (quotient, narrowed) {
                (Quotient::Divide, false) => run_signs!(float, sign, move |value, factor| value / factor),
                (Quotient::Multiply, false) => run_signs!(float, sign, move |value, factor| value * factor),
                // By the reciprocal, or as the library does.
                (Quotient::Divide | Quotient::Multiply, true) => {
                    run_signs!(float, sign, move |value, factor| narrow(value * factor))
                }
                (Quotient::Exact, _) => return None,
            },
            (CodeRounding::Int { low, high, offset }, Quotient::Divide, true) if self.division.has_zeros => {
                let encode = move |value: f32, factor: f32, zero: f32| {
                    let rounded = to_integer(value, narrow(narrow(value * factor) + zero), [low, high], offset);
                    RoundedCode { multiple: rounded.multiple - zero, ..rounded }
                };
                run!(true, encode)
            }
            (CodeRounding::Int { low, high, offset }, Quotient::Divide, true) if !self.division.has_zeros => {
                let encode = move |value: f32, factor: f32, _: f32| {
                    to_integer(value, narrow(value * factor), [low, high], offset)
                };
                run!(true, encode)
            }
            (CodeRounding::Int { low, high, offset }, Quotient::Divide, false) if !self.division.has_zeros => {
                let encode =
                    move |value: f32, factor: f32, _: f32| to_integer(value, value / factor, [low, high], offset);
                run!(true, encode)
            }
            _ => return None,
        };
        (!is_beyond(rounding, most)).then_some(sums)
    }
}

/// Whether a magnitude is beyond the codes; those of integers are counted.
fn is_beyond(rounding: &CodeRounding, magnitude: f32) -> bool {
    matches!(rounding, CodeRounding::Float { float, .. } if magnitude > float.limit)
}

/// The loop, with the steps of one layout.
struct FusedLoop<'a, const IS_COUNTED: bool, const W: usize, R, E> {
    segment: FusedSegment<'a>,
    /// The stored values.
    values: &'a [[u8; W]],
    codes: &'a mut [u8],
    read: R,
    encode: E,
}

impl<const IS_COUNTED: bool, const W: usize, R, E> Loop for FusedLoop<'_, IS_COUNTED, W, R, E>
where
    R: Fn([u8; W]) -> f32,
    E: Fn(f32, f32, f32) -> RoundedCode,
{
    /// With the largest magnitude of a number, unless clipped values are counted.
    type Result = (PartialSums, f32);

    #[inline(always)]
    fn run(self) -> (PartialSums, f32) {
        let Self { segment: FusedSegment { factors, zeros, scales, .. }, values, codes, read, encode } = self;
        let (mut signal, mut noise) = ([0.0; LANES], [0.0; LANES]);
        let (mut largest, mut clipped, mut most) = ([0; LANES], [0; LANES], [0; LANES]);
        let values = values.as_chunks::<LANES>().0;
        let groups = factors.iter().zip(zeros).zip(scales);
        let results = codes.as_chunks_mut::<LANES>().0;
        for ((values, ((factor, zero), scale)), result) in values.iter().zip(groups).zip(results) {
            // Copies, of which the compiler knows that they do not overlap.
            let (values, mut codes) = (*values, [0; LANES]);
            let (factor, zero, scale) = (*factor, *zero, *scale);
            for at in 0..LANES {
                let rounded = encode(read(values[at]), factor, zero);
                codes[at] = rounded.code as u8;
                let error = rounded.value - rounded.multiple * scale;
                let square = error * error;
                signal[at] += rounded.value * rounded.value;
                noise[at] += square;
                largest[at] = larger(largest[at], square.to_bits());
                if IS_COUNTED {
                    clipped[at] += u32::from(rounded.is_clipped);
                } else {
                    most[at] = larger(most[at], rounded.magnitude.to_bits());
                }
            }
            *result = codes;
        }
        // The root of the square of a float is the float, unless the square is too small or too large.
        let largest = largest.map(|square| f32::from_bits(square).sqrt().to_bits());
        (PartialSums { signal, noise, largest, clipped }, f32::from_bits(most.into_iter().fold(0, larger)))
    }
}

/// Of a value and the magnitude of the number to round.
#[inline(always)]
fn to_float(
    float: Minifloat,
    value: f32,
    number: f32,
    round: impl Fn(Minifloat, f32) -> (u32, f32),
    is_signed: impl Fn(f32, f32) -> bool,
) -> RoundedCode {
    let (code, multiple) = round(float, number);
    RoundedCode {
        code: code | if is_signed(value, number) { float.sign.into() } else { 0 },
        value: value.abs(),
        multiple,
        magnitude: number,
        is_clipped: number > float.limit,
    }
}

#[inline(always)]
fn to_integer(value: f32, number: f32, [low, high]: [f32; 2], offset: u8) -> RoundedCode {
    let above = if number > low { number } else { low };
    let sum = (if above < high { above } else { high }) + RAISED;
    RoundedCode {
        code: sum.to_bits().wrapping_add(offset.into()),
        value,
        multiple: sum - RAISED,
        magnitude: 0.0,
        is_clipped: (number > high + 0.5) | (number < low - 0.5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of a type by their significands and exponents, of which the first have all bits.
    fn check(bits: u32, narrow: impl Fn(f32) -> f32) {
        let number = |significand: u32, exponent: i32| (significand as f32) * 2_f32.powi(exponent);
        let significands = 1 << (bits - 1)..1 << bits;
        for scale in significands.clone() {
            for value in significands.clone() {
                let (value, scale) = (number(value, -10), number(scale, -14));
                assert_eq!(narrow(value * (1.0 / scale)), narrow(value / scale), "{value} / {scale}");
            }
        }
    }

    #[test]
    fn products_with_reciprocals_round_as_quotients_do() {
        // Other exponents multiply numbers, reciprocals and products by powers of two.
        check(8, to_bfloat16);
        check(11, to_float16);
    }
}
