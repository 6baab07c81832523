//! Converts bfloat16 to float4e2m1 with scales that are powers of two, in lanes of 16 bits: a vector holds twice as
//! many values as in float32, and each takes fewer steps.
//!
//! The bits of magnitudes are ordered like the magnitudes, and a scale only moves the exponent. So the code of a value
//! follows from the integer difference between its bits and the bits of its scale.

use super::super::layout::Packing;
use super::super::rules::{SignRule, Ties};
use super::encoder::Encoder;
use super::lanes::{CodeRounding, FusedSegment, LANES, PartialSums, Quotient, SegmentLoop};
use super::rounding::WeightType;
use crate::dtype::Dtype;
use crate::kernel::{Isa, Loop, prefetch_line};

/// Number of values in a group.
const GROUP: usize = 32;

/// The loop of an encoder that needs no errors. It writes codes as they are stored.
struct NarrowEncoder {
    isa: Isa,
    /// True if -0 keeps its sign.
    keeps_zero: bool,
}

impl Encoder {
    /// Returns its loop in lanes of 16 bits, if there is one for its codes and groups.
    pub(super) fn narrow(&self) -> Option<Box<dyn SegmentLoop>> {
        let CodeRounding::Float { sign, ties: Ties::Even, .. } = self.rounding else { return None };
        let is_narrow = (self.weight, self.geometry.bits) == (WeightType::Bfloat16, 4)
            && self.division.quotient == Quotient::Multiply
            && matches!(self.chooser.stored, Dtype::Uint8 | Dtype::Float8E8M0)
            && self.geometry.block[1] == GROUP as u64
            && matches!(self.packing, Packing::Rows(_) | Packing::TransposedBlocks)
            && self.geometry.columns.is_multiple_of(GROUP as u64);
        let narrow = NarrowEncoder { isa: self.isa, keeps_zero: sign == SignRule::Kept };
        is_narrow.then(|| Box::new(narrow) as Box<dyn SegmentLoop>)
    }
}

impl SegmentLoop for NarrowEncoder {
    fn encode(&self, FusedSegment { bytes, scales, ahead, .. }: FusedSegment, out: &mut [u8]) -> PartialSums {
        if self.keeps_zero {
            self.isa.run(NarrowGroups::<true> { bytes, scales, ahead, out });
        } else {
            self.isa.run(NarrowGroups::<false> { bytes, scales, ahead, out });
        }
        PartialSums::default()
    }
}

/// Groups of a row, whose scales are all between 2^-80 and 2^80. -0 keeps its sign only if `KEEPS_ZERO`.
struct NarrowGroups<'a, const KEEPS_ZERO: bool> {
    /// The stored values.
    bytes: &'a [u8],
    /// The scale of every [`LANES`] values, a power of two.
    scales: &'a [f32],
    /// The bytes to prefetch meanwhile.
    ahead: &'a [u8],
    /// Two codes per byte, the first in the low bits.
    out: &'a mut [u8],
}

impl<const KEEPS_ZERO: bool> Loop for NarrowGroups<'_, KEEPS_ZERO> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { bytes, scales, ahead, out } = self;
        let groups =
            bytes.as_chunks::<2>().0.as_chunks::<GROUP>().0.iter().zip(scales.as_chunks::<{ GROUP / LANES }>().0);
        for (at, ((values, [scale, ..]), out)) in groups.zip(out.as_chunks_mut::<{ GROUP / 2 }>().0).enumerate() {
            prefetch_line(ahead, 2 * GROUP * at);
            let (values, mut codes) = (*values, [0; GROUP]);
            let half = (scale.to_bits() >> 16) as i16 - (1 << 7);
            for at in 0..GROUP {
                let bits = u16::from_le_bytes(values[at]);
                // The upper bit is set for numbers below 0, and for 0.
                let below = if KEEPS_ZERO { bits } else { 0x8000_u16.wrapping_sub(bits) };
                codes[at] = (code(bits & 0x7fff, half) | (bits & below) >> 12 & 8) as u8;
            }
            let mut packed = [0; GROUP / 2];
            for (packed, pair) in packed.iter_mut().zip(codes.as_chunks().0) {
                // A pair as one word: the compiler then narrows whole vectors.
                let pair = u16::from_le_bytes(*pair);
                *packed = (pair | pair >> 4) as u8;
            }
            *out = packed;
        }
    }
}

/// Returns the code of a magnitude, rounded to nearest, ties to even, saturating; `half` has the bits of half the
/// scale.
#[inline(always)]
fn code(magnitude: u16, half: i16) -> u16 {
    /// In multiples of the scale.
    const QUARTER: i16 = -(1 << 7);
    const THREE_QUARTERS: i16 = 1 << 6;
    let above = (magnitude as i16).wrapping_sub(half);
    // From the scale on, a code is a binary digit of the mantissa and the exponent above it.
    let normal = above.wrapping_add(31 + (above >> 6 & 1)) >> 6;
    // Below the scale, ties are at 1/4, which becomes 0, and 3/4, which becomes 1.
    let subnormal = i16::from(above > QUARTER) + i16::from(above >= THREE_QUARTERS);
    let code = if normal > subnormal { normal } else { subnormal };
    (if code < 7 { code } else { 7 }) as u16
}

#[cfg(test)]
mod tests {
    use super::super::rounding::power_of_two;
    use super::*;
    use crate::dtype::Class;
    use crate::kernel::Minifloat;
    use crate::kernel::half::bfloat16;

    #[test]
    fn every_bfloat16_becomes_the_code_that_it_becomes_through_float32() {
        let Class::Float(format) = Dtype::Float4E2M1.class() else { panic!("it is a float") };
        let float = Minifloat::new(&format);
        let bytes: Vec<u8> = (0..=u16::MAX).filter(|bits| bits & 0x7fff <= 0x7f80).flat_map(u16::to_le_bytes).collect();
        let bytes = &bytes[..bytes.len() / 64 * 64];
        let numbers = || bytes.as_chunks().0.iter().map(|bytes| bfloat16(u16::from_le_bytes(*bytes)));
        for exponent in [47, 48, 90, 119, 120, 126, 127, 128, 150, 166, 167] {
            let codes = |keeps_zero: bool| {
                let code = move |value: f32| {
                    let is_signed = value < 0.0 || keeps_zero && value.is_sign_negative();
                    float.round(value.abs() * power_of_two(127 - exponent)).0 as u8 | if is_signed { 8 } else { 0 }
                };
                let codes: Vec<u8> = numbers().map(code).collect();
                codes.as_chunks().0.iter().map(|[low, high]| low | high << 4).collect::<Vec<u8>>()
            };
            let scales = &vec![power_of_two(exponent - 127); bytes.len() / 32];
            for isa in Isa::available() {
                let mut out = vec![0xee; bytes.len() / 4];
                isa.run(NarrowGroups::<true> { bytes, scales, ahead: &[], out: &mut out });
                assert!(out == codes(true), "{exponent} {isa:?}");
                isa.run(NarrowGroups::<false> { bytes, scales, ahead: &[], out: &mut out });
                assert!(out == codes(false), "{exponent} {isa:?}, without -0");
            }
        }
    }
}
