//! Computes codes and errors of a segment in one pass over its values, for the quotients of the libraries.
//!
//! The loops of `lanes` do the same one step after the other, each over the whole segment, and also take exact
//! quotients and groups of any size. Here a value stays in a register from its stored bytes to its code and its error.
//! A division then costs little: the processor does the other steps of earlier values meanwhile.

use super::super::rules::{Away, SignRule, Ties};
use super::encoder::Encoder;
use super::lanes::{CodeRounding, Division, FusedSegment, LANES, PartialSums, Quotient, RAISED, SegmentLoop, larger};
use super::rounding::{WeightType, round_half_away};
use crate::kernel::half::{bfloat16, float16, to_bfloat16, to_float16, untied_to_bfloat16};
use crate::kernel::{Isa, Loop, Minifloat, prefetch_line};

/// A function that is a part of a loop.
trait Inlined: Copy + Send + Sync + 'static {}
impl<T: Copy + Send + Sync + 'static> Inlined for T {}

/// The loops of an encoder for values of one dtype. Closures own their constants, which then stay in registers.
#[derive(Clone, Copy)]
struct LoopsOf<'a, const W: usize, R, N, U> {
    encoder: &'a Encoder,
    /// Widens a stored value.
    read: R,
    /// Rounds to the dtype.
    narrow: N,
    /// Rounds numbers that are not ties to the dtype: a quotient of two numbers of a type is not a tie unless it is subnormal, and
    /// then its code is 0.
    narrow_untied: U,
}

impl Encoder {
    /// Returns its loop; `None` if groups cross the lanes, values are not divided by the stored scales, or no layout
    /// combines its steps, which keeps the number of loops small.
    pub(super) fn fused(&self) -> Option<Box<dyn SegmentLoop>> {
        let (encoder, size) = (self, self.geometry.block[1]);
        let is_whole = size == 1 || size.is_multiple_of(LANES as u64) || size >= self.geometry.columns;
        let is_divided = self.division.away.is_some() || !self.chooser.divides_unrounded();
        if !is_whole || !is_divided || self.chooser.keeps_type {
            return None;
        }
        match self.weight {
            WeightType::Float32 => {
                let read = f32::from_le_bytes;
                LoopsOf { encoder, read, narrow: |number| number, narrow_untied: |number| number }.choose()
            }
            WeightType::Bfloat16 => {
                let read = |bytes| bfloat16(u16::from_le_bytes(bytes));
                LoopsOf { encoder, read, narrow: to_bfloat16, narrow_untied: untied_to_bfloat16 }.choose()
            }
            WeightType::Float16 => {
                let read = |bytes| float16(u16::from_le_bytes(bytes));
                LoopsOf { encoder, read, narrow: to_float16, narrow_untied: to_float16 }.choose()
            }
        }
    }
}

impl<const W: usize, R, N, U> LoopsOf<'_, W, R, N, U>
where
    R: Fn([u8; W]) -> f32 + Inlined,
    N: Fn(f32) -> f32 + Inlined,
    U: Fn(f32) -> f32 + Inlined,
{
    fn choose(self) -> Option<Box<dyn SegmentLoop>> {
        let Self { encoder, narrow, narrow_untied, .. } = self;
        let quotient = encoder.division.quotient;
        // float32 has no narrower loops.
        let is_narrowed = W == 2 && encoder.division.rounding != WeightType::Float32;
        let product = |value: f32, group: GroupFactors| value * group.factor;
        let over = |value: f32, group: GroupFactors| value / group.scale;
        let narrowed = move |value: f32, group: GroupFactors| narrow_untied(value * group.factor);
        let (float, sign, ties) = match encoder.rounding {
            CodeRounding::Int { low, high, offset } => return self.integers([low, high], offset, is_narrowed),
            CodeRounding::Float { float, sign, ties } => (float, sign, ties),
        };
        if ties == Ties::TowardZero {
            let is_not_positive = |value: f32, number: f32| value.is_sign_negative() | (number == 0.0);
            let is_nonzero =
                move |value: f32, number: f32| value.is_sign_negative() & (number > f32::from_bits(float.zero));
            return match (sign, quotient, is_narrowed) {
                (SignRule::NotPositive, Quotient::Multiply, false) => {
                    self.float::<1>(float, product, down, is_not_positive)
                }
                (SignRule::Nonzero, Quotient::Multiply, false) => self.float::<1>(float, product, down, is_nonzero),
                (SignRule::Nonzero, Quotient::Divide, true) => self.float::<1>(float, narrowed, down, is_nonzero),
                (SignRule::Nonzero, Quotient::Divide, false) => self.float::<1>(float, over, down, is_nonzero),
                _ => None,
            };
        }
        let is_simple = sign == SignRule::Kept && !encoder.may_clip;
        match (quotient, is_narrowed) {
            (Quotient::Divide, false) if is_simple && encoder.geometry.block[1] == 1 => {
                self.float::<LANES>(float, over, in_range, has_sign)
            }
            (Quotient::Divide, false) if is_simple && encoder.isa == Isa::Avx512 => {
                self.float::<1>(float, divided, in_range, has_sign)
            }
            (Quotient::Divide, false) => self.floats(float, sign, over),
            (Quotient::Multiply, false) => self.floats(float, sign, product),
            (Quotient::Divide, true) if sign == SignRule::Kept => self.floats(float, sign, narrowed),
            (Quotient::Divide | Quotient::Multiply, true) => {
                self.floats(float, sign, move |value: f32, group: GroupFactors| narrow(value * group.factor))
            }
            (Quotient::Exact, _) => None,
        }
    }

    /// Returns the loop to the nearest floats.
    fn floats(
        self,
        float: Minifloat,
        sign: SignRule,
        number: impl Fn(f32, GroupFactors) -> f32 + Inlined,
    ) -> Option<Box<dyn SegmentLoop>> {
        // A value that is 0, or becomes 0, has no sign.
        let is_negative = |value: f32, number: f32| value.is_sign_negative() & (number > 0.0);
        match (sign == SignRule::Kept, self.encoder.may_clip) {
            (true, true) => self.float::<1>(float, number, bounded, has_sign),
            (true, false) => self.float::<1>(float, number, in_range, has_sign),
            (false, true) => self.float::<1>(float, number, bounded, is_negative),
            (false, false) => self.float::<1>(float, number, in_range, is_negative),
        }
    }

    fn float<const GROUPS: usize>(
        self,
        float: Minifloat,
        number: impl Fn(f32, GroupFactors) -> f32 + Inlined,
        round: impl Fn(Minifloat, f32) -> ((u32, f32), bool) + Inlined,
        is_signed: impl Fn(f32, f32) -> bool + Inlined,
    ) -> Option<Box<dyn SegmentLoop>> {
        self.of::<GROUPS>(move |value: f32, group: GroupFactors| {
            let number = number(value.abs(), group);
            let ((code, multiple), is_clipped) = round(float, number);
            let sign = if is_signed(value, number) { float.sign } else { 0 };
            RoundedCode { code: code | sign, value: value.abs(), multiple, offset: 0.0, is_clipped }
        })
    }

    /// Returns the loop to integers.
    fn integers(self, bounds: [f32; 2], offset: u8, is_narrowed: bool) -> Option<Box<dyn SegmentLoop>> {
        let Self { encoder, narrow, narrow_untied, .. } = self;
        let Division { quotient, has_zeros, has_offsets, away, .. } = encoder.division;
        match (quotient, is_narrowed) {
            (Quotient::Multiply, false) => match away? {
                // Rounds the quotient first, halves away from zero; then adds the zero point.
                Away::Quotient => self.of_any(move |value: f32, group: GroupFactors| {
                    with_zero(value, group, round_half_away(value * group.factor) + group.zero, bounds, offset)
                }),
                // Adds the zero point first; then rounds the sum, halves away from zero.
                Away::Sum => self.of::<1>(move |value: f32, group: GroupFactors| {
                    with_zero(value, group, round_half_away(value * group.factor + group.zero), bounds, offset)
                }),
            },
            (Quotient::Divide, true) if has_zeros => self.of::<1>(move |value: f32, group: GroupFactors| {
                with_zero(value, group, narrow(narrow_untied(value * group.factor) + group.zero), bounds, offset)
            }),
            (Quotient::Divide, false) if has_zeros => self.of::<1>(move |value: f32, group: GroupFactors| {
                with_zero(value, group, value / group.scale + group.zero, bounds, offset)
            }),
            (Quotient::Divide, _) if has_offsets => self.of::<1>(move |value: f32, group: GroupFactors| {
                let rounded = to_integer(value, (value - group.zero) / group.factor, bounds, offset);
                RoundedCode { offset: narrow(group.zero), ..rounded }
            }),
            (Quotient::Divide, true) => self.of::<1>(move |value: f32, group: GroupFactors| {
                to_integer(value, narrow_untied(value * group.factor), bounds, offset)
            }),
            (Quotient::Divide, false) => self
                .of_any(move |value: f32, group: GroupFactors| to_integer(value, value / group.scale, bounds, offset)),
            (Quotient::Multiply, true) | (Quotient::Exact, _) => None,
        }
    }

    /// Returns a loop for groups of any shape.
    fn of_any(self, encode: impl Fn(f32, GroupFactors) -> RoundedCode + Inlined) -> Option<Box<dyn SegmentLoop>> {
        self.of::<1>(encode).or_else(|| self.of::<LANES>(encode))
    }

    /// Returns a loop if [`LANES`] values belong to so many groups: 1 or [`LANES`].
    fn of<const GROUPS: usize>(
        self,
        encode: impl Fn(f32, GroupFactors) -> RoundedCode + Inlined,
    ) -> Option<Box<dyn SegmentLoop>> {
        let (isa, read) = (self.encoder.isa, self.read);
        let fits = (self.encoder.geometry.block[1] == 1) == (GROUPS == LANES);
        fits.then(|| Box::new(EncodeValue::<GROUPS, W, _, _> { isa, read, encode }) as Box<dyn SegmentLoop>)
    }
}

/// The numbers of a group that its values are divided or multiplied by.
#[derive(Clone, Copy)]
struct GroupFactors {
    factor: f32,
    zero: f32,
    scale: f32,
}

/// A number rounded to a code.
struct RoundedCode {
    code: u32,
    /// The value, or its magnitude.
    value: f32,
    /// The number that the code stands for, as a multiple of the scale, with a sign if `value` has one.
    multiple: f32,
    /// The number added to the product of multiple and scale.
    offset: f32,
    is_clipped: bool,
}

/// Rounds a number to an integer code.
#[inline(always)]
fn to_integer(value: f32, number: f32, [low, high]: [f32; 2], offset: u8) -> RoundedCode {
    let above = if number > low { number } else { low };
    let sum = (if above < high { above } else { high }) + RAISED;
    RoundedCode {
        code: sum.to_bits().wrapping_add(offset.into()),
        value,
        multiple: sum - RAISED,
        offset: 0.0,
        is_clipped: (number > high + 0.5) | (number < low - 0.5),
    }
}

/// Rounds a number that includes the zero point.
#[inline(always)]
fn with_zero(value: f32, group: GroupFactors, number: f32, bounds: [f32; 2], offset: u8) -> RoundedCode {
    let rounded = to_integer(value, number, bounds, offset);
    RoundedCode { multiple: rounded.multiple - group.zero, ..rounded }
}

/// Rounds a magnitude to a code and its number; also returns true if it is beyond the codes by more than half a step.
#[inline(always)]
fn bounded(float: Minifloat, number: f32) -> ((u32, f32), bool) {
    (float.round(number), number > float.clipped)
}

/// Like [`bounded`], with ties toward zero.
#[inline(always)]
fn down(float: Minifloat, number: f32) -> ((u32, f32), bool) {
    (float.round_down(number), number > float.clipped)
}

/// Like [`bounded`], for numbers that are not beyond the codes.
#[inline(always)]
fn in_range(float: Minifloat, number: f32) -> ((u32, f32), bool) {
    (float.round_in_range(number), false)
}

#[inline(always)]
fn has_sign(value: f32, _: f32) -> bool {
    value.is_sign_negative()
}

/// The steps from a stored value to its code. [`LANES`] values belong to `GROUPS` groups: 1 or [`LANES`].
#[derive(Clone, Copy)]
struct EncodeValue<const GROUPS: usize, const W: usize, R, E> {
    isa: Isa,
    read: R,
    encode: E,
}

impl<const GROUPS: usize, const W: usize, R, E> SegmentLoop for EncodeValue<GROUPS, W, R, E>
where
    R: Fn([u8; W]) -> f32 + Inlined,
    E: Fn(f32, GroupFactors) -> RoundedCode + Inlined,
{
    fn encode(&self, segment: FusedSegment, codes: &mut [u8]) -> PartialSums {
        if segment.is_measured {
            self.isa.run(FusedLoop::<true, GROUPS, W, R, E> { steps: *self, segment, codes })
        } else {
            self.isa.run(FusedLoop::<false, GROUPS, W, R, E> { steps: *self, segment, codes })
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

/// The loop over the values of a segment, with the steps of one layout: see [`EncodeValue`].
struct FusedLoop<'a, const IS_MEASURED: bool, const GROUPS: usize, const W: usize, R, E> {
    steps: EncodeValue<GROUPS, W, R, E>,
    segment: FusedSegment<'a>,
    codes: &'a mut [u8],
}

impl<const IS_MEASURED: bool, const GROUPS: usize, const W: usize, R, E> Loop
    for FusedLoop<'_, IS_MEASURED, GROUPS, W, R, E>
where
    R: Fn([u8; W]) -> f32,
    E: Fn(f32, GroupFactors) -> RoundedCode,
{
    type Result = PartialSums;

    #[inline(always)]
    fn run(self) -> PartialSums {
        let Self { steps: EncodeValue { read, encode, .. }, segment, codes } = self;
        let FusedSegment { bytes, factors, zeros, scales, ahead, .. } = segment;
        let (mut signal, mut noise) = ([0.0; LANES], [0.0; LANES]);
        let (mut largest, mut clipped) = ([0; LANES], [0; LANES]);
        let values = bytes.as_chunks().0.as_chunks::<LANES>().0;
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
