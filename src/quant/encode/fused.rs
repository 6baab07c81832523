//! Codes and errors of a segment in one pass over its values, for the quotients of the libraries.
//!
//! The loops of `lanes` do the same one step after the other, each over the whole segment, and take exact quotients and
//! groups of any size too. Here a value stays in a register from its stored bytes to its code and its error. A division
//! then costs little: the processor does the other steps of earlier values meanwhile.

use super::super::rules::{SignRule, Ties};
use super::choose::Quotient;
use super::lanes::{CodeRounding, Division, LANES, PartialSums, RAISED};
use super::rounding::{Minifloat, WeightType, from_float16, to_bfloat16, to_float16};

/// A segment of one row. Every [`LANES`] values lie in one group, of which `factors`, `zeros` and `scales` are.
#[derive(Clone, Copy)]
pub(super) struct FusedSegment<'a> {
    pub(super) weight: WeightType,
    /// The stored values, a multiple of [`LANES`].
    pub(super) bytes: &'a [u8],
    pub(super) division: Division,
    pub(super) factors: &'a [f32],
    pub(super) zeros: &'a [f32],
    /// The scales, multiplied by `over`.
    pub(super) scales: &'a [f32],
    /// A power of two, by which values are multiplied before they are compared: see [`PartialSums`].
    pub(super) over: f32,
}

/// A number rounded to a code.
struct RoundedCode {
    code: u32,
    /// What the code stands for, as a multiple of the scale.
    multiple: f32,
    is_clipped: bool,
}

impl FusedSegment<'_> {
    /// Writes the code and the error of each value. `None` for what no layout combines, to keep the number of loops small.
    #[inline(always)]
    pub(super) fn encode(self, rounding: &CodeRounding, codes: &mut [u8], errors: &mut [f32]) -> Option<PartialSums> {
        match self.weight {
            WeightType::Float32 => self.read(rounding, codes, errors, f32::from_le_bytes, |number| number),
            WeightType::Bfloat16 => {
                let read = |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
                self.read(rounding, codes, errors, read, to_bfloat16)
            }
            WeightType::Float16 => {
                self.read(rounding, codes, errors, |bytes| from_float16(u16::from_le_bytes(bytes)), to_float16)
            }
        }
    }

    /// Chooses the loop. `narrow` rounds to the dtype of the weight.
    #[inline(always)]
    fn read<const W: usize>(
        self,
        rounding: &CodeRounding,
        codes: &mut [u8],
        errors: &mut [f32],
        read: impl Fn([u8; W]) -> f32 + Copy,
        narrow: impl Fn(f32) -> f32 + Copy,
    ) -> Option<PartialSums> {
        // float32 has no narrower loops.
        let is_narrowed = W == 2 && self.division.rounding != WeightType::Float32;
        Some(match (*rounding, self.division.quotient, is_narrowed) {
            (
                CodeRounding::Float { float, sign: SignRule::NotPositive, ties: Ties::TowardZero },
                quotient,
                narrowed,
            ) => {
                if quotient != Quotient::Multiply || narrowed {
                    return None;
                }
                let round = |number: f32, _| to_float(float, number, Minifloat::round_down, number <= 0.0);
                self.run(codes, errors, read, |value, factor| value * factor, round)
            }
            (CodeRounding::Float { float, sign, ties: Ties::Even }, quotient, narrowed) => {
                // The bits of numbers with a sign are above those of the numbers without.
                let least = if sign == SignRule::Kept { 1 << 31 } else { (1 << 31) + 1 };
                let round = |number: f32, _| to_float(float, number, Minifloat::round, number.to_bits() >= least);
                match (quotient, narrowed) {
                    (Quotient::Divide, true) => {
                        self.run(codes, errors, read, |value, factor| narrow(value / factor), round)
                    }
                    (Quotient::Divide, false) => self.run(codes, errors, read, |value, factor| value / factor, round),
                    (Quotient::Multiply, true) => {
                        self.run(codes, errors, read, |value, factor| narrow(value * factor), round)
                    }
                    (Quotient::Multiply, false) => self.run(codes, errors, read, |value, factor| value * factor, round),
                    (Quotient::Exact, _) => return None,
                }
            }
            (CodeRounding::Int { low, high, offset }, Quotient::Divide, true) if self.division.has_zeros => {
                let round = |number: f32, zero: f32| {
                    let rounded = to_integer(narrow(number + zero), [low, high], offset);
                    RoundedCode { multiple: rounded.multiple - zero, ..rounded }
                };
                self.run(codes, errors, read, |value, factor| narrow(value / factor), round)
            }
            (CodeRounding::Int { low, high, offset }, Quotient::Divide, narrowed) if !self.division.has_zeros => {
                let round = |number: f32, _| to_integer(number, [low, high], offset);
                if narrowed {
                    self.run(codes, errors, read, |value, factor| narrow(value / factor), round)
                } else {
                    self.run(codes, errors, read, |value, factor| value / factor, round)
                }
            }
            _ => return None,
        })
    }

    #[inline(always)]
    fn run<const W: usize>(
        self,
        codes: &mut [u8],
        errors: &mut [f32],
        read: impl Fn([u8; W]) -> f32 + Copy,
        divide: impl Fn(f32, f32) -> f32 + Copy,
        round: impl Fn(f32, f32) -> RoundedCode + Copy,
    ) -> PartialSums {
        let mut sums = PartialSums::default();
        let values = self.bytes.as_chunks().0.as_chunks::<LANES>().0;
        let groups = self.factors.iter().zip(self.zeros).zip(self.scales);
        let results = codes.as_chunks_mut::<LANES>().0.iter_mut().zip(errors.as_chunks_mut::<LANES>().0);
        for ((values, ((factor, zero), scale)), (codes, errors)) in values.iter().zip(groups).zip(results) {
            for at in 0..LANES {
                let value = read(values[at]);
                // Where the scale is 0, all numbers are 0.
                let number = if *factor == 0.0 { 0.0 } else { divide(value, *factor) };
                let rounded = round(number, *zero);
                codes[at] = rounded.code as u8;
                let value = value * self.over;
                let error = value - rounded.multiple * *scale;
                errors[at] = error;
                sums.add(at, value, error);
                sums.clipped[at] += u32::from(rounded.is_clipped);
            }
        }
        sums
    }
}

#[inline(always)]
fn to_float(
    float: Minifloat,
    number: f32,
    round: impl Fn(Minifloat, f32) -> (u32, f32),
    is_signed: bool,
) -> RoundedCode {
    let magnitude = number.abs();
    let (code, value) = round(float, magnitude);
    RoundedCode {
        code: code | if is_signed { float.sign.into() } else { 0 },
        multiple: value.copysign(number),
        is_clipped: magnitude > float.limit,
    }
}

#[inline(always)]
fn to_integer(number: f32, [low, high]: [f32; 2], offset: u8) -> RoundedCode {
    let above = if number > low { number } else { low };
    let sum = (if above < high { above } else { high }) + RAISED;
    RoundedCode {
        code: sum.to_bits().wrapping_add(offset.into()),
        multiple: sum - RAISED,
        is_clipped: (number > high + 0.5) | (number < low - 0.5),
    }
}
