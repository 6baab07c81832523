//! Computes codes and errors of a segment in one pass over its values, for the quotients of the libraries.
//!
//! The loops of `lanes` do the same one step after the other, each over the whole segment, and also take exact
//! quotients and groups of any size. Here a value stays in a register from its stored bytes to its code and its error.
//! A division then costs little: the processor does the other steps of earlier values meanwhile.

use super::super::rules::{Away, SignRule, Ties};
use super::lanes::{CodeRounding, Division, LANES, PartialSums, Quotient, larger};
use super::rounded::{GroupFactors, RoundedCode, away_from_zero, sum_away_from_zero, to_float, to_integer};
use super::rounding::WeightType;
use crate::kernel::half::{bfloat16, float16, to_bfloat16, to_float16, untied_to_bfloat16};
use crate::kernel::{Isa, Loop, Minifloat, prefetch_line};

/// A segment of one row. [`LANES`] values share a group, with an item in `factors`, `zeros` and `scales`; or each value
/// is a separate group.
#[derive(Clone, Copy)]
pub(super) struct FusedSegment<'a> {
    pub(super) weight: WeightType,
    /// The stored values, a multiple of [`LANES`].
    pub(super) bytes: &'a [u8],
    pub(super) division: Division,
    /// The reciprocals of factors, if values are divided ([`Quotient::Divide`]).
    pub(super) factors: &'a [f32],
    pub(super) zeros: &'a [f32],
    pub(super) scales: &'a [f32],
    /// True if each value is a separate group: scales then run along columns.
    pub(super) has_columns: bool,
    /// The bytes to prefetch meanwhile, at most the length of the segment.
    pub(super) ahead: &'a [u8],
    /// True if values may be beyond the codes of floats by half a step or more.
    pub(super) may_clip: bool,
    /// True if errors are summed; otherwise the sums are 0.
    pub(super) is_measured: bool,
}

impl FusedSegment<'_> {
    /// Writes the code of each value. Returns `None` for combinations that no layout has, to keep the number of loops
    /// small.
    pub(super) fn encode(self, isa: Isa, rounding: &CodeRounding, codes: &mut [u8]) -> Option<PartialSums> {
        match self.weight {
            WeightType::Float32 => self.run(isa, rounding, codes, f32::from_le_bytes, |number| number, |number| number),
            WeightType::Bfloat16 => {
                let read = move |bytes| bfloat16(u16::from_le_bytes(bytes));
                self.run(isa, rounding, codes, read, to_bfloat16, untied_to_bfloat16)
            }
            WeightType::Float16 => {
                let read = |bytes| float16(u16::from_le_bytes(bytes));
                self.run(isa, rounding, codes, read, to_float16, to_float16)
            }
        }
    }

    /// Chooses the loop. `narrow` rounds to the dtype of the weight, and `narrow_untied` does so for numbers that are
    /// not ties: a quotient of two numbers of a type is not a tie unless it is subnormal, and then its code is 0.
    fn run<const W: usize>(
        self,
        isa: Isa,
        rounding: &CodeRounding,
        codes: &mut [u8],
        read: impl Fn([u8; W]) -> f32 + Copy,
        narrow: impl Fn(f32) -> f32 + Copy,
        narrow_untied: impl Fn(f32) -> f32 + Copy,
    ) -> Option<PartialSums> {
        if self.has_columns {
            return self.run_columns(isa, rounding, codes, read);
        }
        if let CodeRounding::Float { float, sign, ties: Ties::TowardZero } = *rounding {
            return self.run_down(isa, (float, sign), codes, read, narrow_untied);
        }
        // float32 has no narrower loops.
        let is_narrowed = W == 2 && self.division.rounding != WeightType::Float32;
        let has_sign = |value: f32, _: f32| value.is_sign_negative();
        // A value that is 0, or becomes 0, has no sign.
        let is_negative = |value: f32, number: f32| value.is_sign_negative() & (number > 0.0);
        let times = |value: f32, group: GroupFactors| value * group.factor;
        // Macros, because each loop has separate types. The closures own their constants, which then stay in registers.
        macro_rules! run {
            ($is_counted:expr, $encode:expr) => {{
                let (values, encode) = (self.bytes.as_chunks().0, $encode);
                if self.is_measured {
                    isa.run(FusedLoop::<true, $is_counted, 1, W, _, _> { segment: self, values, codes, read, encode })
                } else {
                    isa.run(FusedLoop::<false, false, 1, W, _, _> { segment: self, values, codes, read, encode })
                }
            }};
        }
        macro_rules! floats {
            ($float:expr, $number:expr, $round:expr, $is_signed:expr) => {{
                let (float, number, round, is_signed) = ($float, $number, $round, $is_signed);
                move |value: f32, group: GroupFactors| {
                    to_float(float, value, number(value.abs(), group), round, is_signed)
                }
            }};
        }
        // Only loops that count clipped numbers bound them.
        macro_rules! run_floats {
            ($float:expr, $sign:expr, $number:expr) => {
                match ($sign == SignRule::Kept, self.may_clip) {
                    (true, true) => run!(true, floats!($float, $number, Minifloat::round, has_sign)),
                    (true, false) => run!(false, floats!($float, $number, Minifloat::round_in_range, has_sign)),
                    (false, true) => run!(true, floats!($float, $number, Minifloat::round, is_negative)),
                    (false, false) => run!(false, floats!($float, $number, Minifloat::round_in_range, is_negative)),
                }
            };
        }
        let sums = match (*rounding, self.division.quotient, is_narrowed) {
            (CodeRounding::Int { low, high, offset }, Quotient::Multiply, false) => match self.division.away? {
                Away::Quotient => {
                    run!(true, move |value: f32, group: GroupFactors| away_from_zero(value, group, [low, high], offset))
                }
                Away::Sum => run!(true, move |value: f32, group: GroupFactors| {
                    sum_away_from_zero(value, group, [low, high], offset)
                }),
            },
            (CodeRounding::Float { float, sign, ties: Ties::Even }, quotient, narrowed) => match (quotient, narrowed) {
                (Quotient::Divide, false) if sign == SignRule::Kept && !self.may_clip && isa == Isa::Avx512 => {
                    run!(false, floats!(float, divided, Minifloat::round_in_range, has_sign))
                }
                (Quotient::Divide, false) => {
                    run_floats!(float, sign, move |value: f32, group: GroupFactors| value / group.scale)
                }
                (Quotient::Multiply, false) => run_floats!(float, sign, times),
                (Quotient::Divide, true) if sign == SignRule::Kept => {
                    run_floats!(float, sign, move |value: f32, group: GroupFactors| narrow_untied(value * group.factor))
                }
                (Quotient::Divide | Quotient::Multiply, true) => {
                    run_floats!(float, sign, move |value: f32, group: GroupFactors| narrow(value * group.factor))
                }
                (Quotient::Exact, _) => return None,
            },
            (CodeRounding::Int { low, high, offset }, Quotient::Divide, narrowed) if self.division.has_zeros => {
                let encode = move |value: f32, group: GroupFactors, number: f32| {
                    let rounded = to_integer(value, number, [low, high], offset);
                    RoundedCode { multiple: rounded.multiple - group.zero, ..rounded }
                };
                if narrowed {
                    run!(true, move |value: f32, group: GroupFactors| {
                        encode(value, group, narrow(narrow_untied(value * group.factor) + group.zero))
                    })
                } else {
                    run!(true, move |value: f32, group: GroupFactors| {
                        encode(value, group, value / group.scale + group.zero)
                    })
                }
            }
            (CodeRounding::Int { low, high, offset }, Quotient::Divide, _) if self.division.has_offsets => {
                run!(true, move |value: f32, group: GroupFactors| {
                    let rounded = to_integer(value, (value - group.zero) / group.factor, [low, high], offset);
                    RoundedCode { offset: narrow(group.zero), ..rounded }
                })
            }
            (CodeRounding::Int { low, high, offset }, Quotient::Divide, narrowed) if !self.division.has_zeros => {
                if narrowed {
                    run!(true, move |value: f32, group: GroupFactors| {
                        to_integer(value, narrow_untied(value * group.factor), [low, high], offset)
                    })
                } else {
                    run!(true, move |value: f32, group: GroupFactors| {
                        to_integer(value, value / group.scale, [low, high], offset)
                    })
                }
            }
            _ => return None,
        };
        Some(sums)
    }

    /// Like [`Self::run`], for floats whose ties go toward zero.
    fn run_down<const W: usize>(
        self,
        isa: Isa,
        (float, sign): (Minifloat, SignRule),
        codes: &mut [u8],
        read: impl Fn([u8; W]) -> f32 + Copy,
        narrow_untied: impl Fn(f32) -> f32 + Copy,
    ) -> Option<PartialSums> {
        let is_narrowed = W == 2 && self.division.rounding != WeightType::Float32;
        let times = |value: f32, group: GroupFactors| value * group.factor;
        let over = |value: f32, group: GroupFactors| value / group.scale;
        let narrowed = move |value: f32, group: GroupFactors| narrow_untied(value * group.factor);
        let is_not_positive = |value: f32, number: f32| value.is_sign_negative() | (number == 0.0);
        let is_nonzero =
            move |value: f32, number: f32| value.is_sign_negative() & (number > f32::from_bits(float.zero));
        macro_rules! run {
            ($number:expr, $is_signed:expr) => {{
                let (values, number, is_signed) = (self.bytes.as_chunks().0, $number, $is_signed);
                let encode = move |value: f32, group: GroupFactors| {
                    to_float(float, value, number(value.abs(), group), Minifloat::round_down, is_signed)
                };
                Some(if self.is_measured {
                    isa.run(FusedLoop::<true, true, 1, W, _, _> { segment: self, values, codes, read, encode })
                } else {
                    isa.run(FusedLoop::<false, false, 1, W, _, _> { segment: self, values, codes, read, encode })
                })
            }};
        }
        match (sign, self.division.quotient, is_narrowed) {
            (SignRule::NotPositive, Quotient::Multiply, false) => run!(times, is_not_positive),
            (SignRule::Nonzero, Quotient::Multiply, false) => run!(times, is_nonzero),
            (SignRule::Nonzero, Quotient::Divide, true) => run!(narrowed, is_nonzero),
            (SignRule::Nonzero, Quotient::Divide, false) => run!(over, is_nonzero),
            _ => None,
        }
    }

    /// Like [`Self::run`], for values that are separate groups, with the quotients of ONNX.
    fn run_columns<const W: usize>(
        self,
        isa: Isa,
        rounding: &CodeRounding,
        codes: &mut [u8],
        read: impl Fn([u8; W]) -> f32 + Copy,
    ) -> Option<PartialSums> {
        macro_rules! run {
            ($is_counted:expr, $encode:expr) => {{
                let values = self.bytes.as_chunks().0;
                let encode = $encode;
                Some(isa.run(FusedLoop::<true, $is_counted, LANES, W, _, _> {
                    segment: self,
                    values,
                    codes,
                    read,
                    encode,
                }))
            }};
        }
        let Division { quotient, rounding: narrowed, has_zeros, away, .. } = self.division;
        match *rounding {
            _ if W == 2 && narrowed != WeightType::Float32 => None,
            CodeRounding::Int { low, high, offset }
                if away == Some(Away::Quotient) && quotient == Quotient::Multiply =>
            {
                run!(true, move |value: f32, group: GroupFactors| away_from_zero(value, group, [low, high], offset))
            }
            CodeRounding::Int { low, high, offset } if !has_zeros && quotient == Quotient::Divide => {
                run!(true, move |value: f32, group: GroupFactors| {
                    to_integer(value, value / group.scale, [low, high], offset)
                })
            }
            CodeRounding::Float { float, sign: SignRule::Kept, ties: Ties::Even }
                if !self.may_clip && quotient == Quotient::Divide =>
            {
                let is_signed = |value: f32, _: f32| value.is_sign_negative();
                run!(false, move |value: f32, group: GroupFactors| {
                    to_float(float, value, value.abs() / group.scale, Minifloat::round_in_range, is_signed)
                })
            }
            _ => None,
        }
    }
}

/// Returns the quotient of a value and its scale, with the bits of a division, in less time where the processor
/// multiplies and adds with one rounding. The first correction leaves an error below a unit in the last place; the
/// second then rounds correctly, because the reciprocal is rounded correctly (Markstein 1990). Remainders are exact
/// unless the quotient is far below the smallest code.
#[inline(always)]
fn divided(value: f32, group: GroupFactors) -> f32 {
    let mut quotient = value * group.factor;
    for _ in 0..2 {
        quotient = (-quotient).mul_add(group.scale, value).mul_add(group.factor, quotient);
    }
    quotient
}

/// The loop over the values of a segment, with the steps of one layout. [`LANES`] values belong to `GROUPS` groups: 1
/// or [`LANES`].
struct FusedLoop<'a, const IS_MEASURED: bool, const IS_COUNTED: bool, const GROUPS: usize, const W: usize, R, E> {
    segment: FusedSegment<'a>,
    /// The stored values.
    values: &'a [[u8; W]],
    codes: &'a mut [u8],
    read: R,
    encode: E,
}

impl<const IS_MEASURED: bool, const IS_COUNTED: bool, const GROUPS: usize, const W: usize, R, E> Loop
    for FusedLoop<'_, IS_MEASURED, IS_COUNTED, GROUPS, W, R, E>
where
    R: Fn([u8; W]) -> f32,
    E: Fn(f32, GroupFactors) -> RoundedCode,
{
    type Result = PartialSums;

    #[inline(always)]
    fn run(self) -> PartialSums {
        let Self { segment: FusedSegment { factors, zeros, scales, ahead, .. }, values, codes, read, encode } = self;
        let (mut signal, mut noise) = ([0.0; LANES], [0.0; LANES]);
        let (mut largest, mut clipped) = ([0; LANES], [0; LANES]);
        let values = values.as_chunks::<LANES>().0;
        let [factors, zeros, scales] = [factors, zeros, scales].map(|lane| lane.as_chunks::<GROUPS>().0);
        let groups = factors.iter().zip(zeros).zip(scales);
        let results = codes.as_chunks_mut::<LANES>().0;
        for (step, ((values, ((factor, zero), scale)), result)) in values.iter().zip(groups).zip(results).enumerate() {
            prefetch_line(ahead, step * LANES * W);
            // The compiler knows that copies do not overlap.
            let (values, mut codes) = (*values, [0; LANES]);
            let [factor, zero, scale] = [*factor, *zero, *scale];
            for at in 0..LANES {
                let of = at % GROUPS;
                let group = GroupFactors { factor: factor[of], zero: zero[of], scale: scale[of] };
                let rounded = encode(read(values[at]), group);
                codes[at] = rounded.code as u8;
                if IS_MEASURED {
                    let error = rounded.value - rounded.multiple * group.scale - rounded.offset;
                    let square = error * error;
                    signal[at] += rounded.value * rounded.value;
                    noise[at] += square;
                    largest[at] = larger(largest[at], square.to_bits());
                }
                if IS_COUNTED {
                    clipped[at] += u32::from(rounded.is_clipped);
                }
            }
            *result = codes;
        }
        // The root of the square of a float is the float, unless the square is too small or too large.
        let largest = largest.map(|square| f32::from_bits(square).sqrt().to_bits());
        PartialSums { signal, noise, largest, clipped }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rounding::power_of_two;
    use super::*;
    use crate::random::random;

    /// Compares products with reciprocals and quotients, for all significands of `bits` bits.
    fn check(bits: u32, narrow: impl Fn(f32) -> f32, narrow_untied: impl Fn(f32) -> f32) {
        let number = |significand: u32, exponent: i32| (significand as f32) * 2_f32.powi(exponent);
        let significands = 1 << (bits - 1)..1 << bits;
        for scale in significands.clone() {
            for value in significands.clone() {
                let (value, scale) = (number(value, -10), number(scale, -14));
                assert_eq!(narrow_untied(value * (1.0 / scale)), narrow(value / scale), "{value} / {scale}");
            }
        }
    }

    #[test]
    // The program takes this path with AVX-512 only, and then the processor rounds. The tests call the C library.
    #[cfg_attr(all(windows, target_env = "gnu"), ignore = "fmaf of mingw-w64 rounds wrongly")]
    fn quotients_with_corrections_are_those_of_divisions() {
        let mut next = random(1);
        let mut random = |bits: u32| next() as u32 & ((1 << bits) - 1);
        for round in 0..1 << 21 {
            // Scales of the sizes that the loop takes; values of few and of all bits, from far below a code to the last
            // one.
            let scale = f32::from_bits((47 + random(16) % 121) << 23 | random(23));
            let number = f32::from_bits((107 + random(16) % 29) << 23 | random(23));
            let value = match round % 4 {
                // Near a quotient of three bits, where codes change.
                0 => scale * f32::from_bits(number.to_bits() & 0xffe0_0000),
                1 => (scale * f32::from_bits(number.to_bits() & 0xffe0_0000)).next_up(),
                2 => to_bfloat16(scale * number),
                _ => scale * number,
            };
            let group = GroupFactors { factor: 1.0 / scale, zero: 0.0, scale };
            assert_eq!(divided(value, group), value / scale, "{value:e} / {scale:e}");
        }
        for scale in [power_of_two(-80), power_of_two(40), 0.013] {
            assert_eq!(divided(0.0, GroupFactors { factor: 1.0 / scale, zero: 0.0, scale }), 0.0);
        }
    }

    #[test]
    fn products_with_reciprocals_round_as_quotients_do() {
        // Other exponents multiply numbers, reciprocals and products by powers of two.
        check(8, to_bfloat16, untied_to_bfloat16);
        check(11, to_float16, to_float16);
    }
}
