//! Multiplies codes and scales in one pass over the values. This is possible for nearly all weights: scales are of
//! ordinary size, and no product becomes infinite or 0 before it has the target's type.
//!
//! The general method, which also counts, takes five passes: with AVX-512, one core decodes about 1 value per
//! nanosecond with it, 4 to 8 with this one where results are looked up (`tables`), and 2 to 4 elsewhere.

use super::geometry::DecodeGeometry;
use super::lanes::{Float32Lane, FloatCodes};
use super::segment::{CodeFactors, CodeSegment};
use super::tables::{CodeBits, Results};
use crate::dtype::{Class, Dtype};
use crate::kernel::Isa;
use crate::kernel::half::{
    bfloat16_bits, float16_bits, normal_float16_bits, normal_float16_product, to_bfloat16, to_float16,
};

/// The smallest magnitude of a code.
const SMALLEST: f32 = 1.0 / 512.0;

/// The multiplication of codes and scales in one loop.
#[derive(Clone, Copy)]
pub(super) struct Fused {
    pub(super) codes: FusedCodes,
    /// Products are rounded to the first type and written as the second.
    pub(super) rounded: Dtype,
    pub(super) written: Dtype,
    /// True if an offset is added to the rounded product, and the sum is rounded to the first type too.
    pub(super) has_offsets: bool,
    /// The target or the type that products are rounded to, whichever has the smaller range.
    pub(super) narrowest: Dtype,
    /// False if products stay float32 for further steps.
    pub(super) is_last: bool,
}

/// Interpretation of codes by the fused loop.
#[derive(Clone, Copy)]
pub(super) enum FusedCodes {
    /// Floats, with the magnitude of the code for NaN.
    Floats(FloatCodes, u8),
    /// Unsigned integers, minus a number or zero points.
    Unsigned(i32),
    /// Two's complement of 8 bits, minus zero points if there are any.
    Signed,
    /// Entries of a map.
    Map,
}

impl FusedCodes {
    /// Returns the interpretation of float8e4m3fn.
    pub(super) fn e4m3() -> Option<Self> {
        let Class::Float(format) = Dtype::Float8E4M3FN.class() else { return None };
        Some(Self::Floats(FloatCodes::new(format, true), format.nan() as u8))
    }

    /// Creates the tables of a weight, if the instruction set can look them up; numbers are multiplied by `factor`.
    pub(super) fn results(
        self,
        isa: Isa,
        geometry: &DecodeGeometry,
        factor: f32,
        map: &[[u8; 4]; 16],
    ) -> Option<Box<Results>> {
        let number = |code: usize| match self {
            Self::Floats(floats, _) => floats.number(code as u8) * factor,
            Self::Unsigned(half) => (code as i32 - half) as f32,
            Self::Signed => ((code as i32 ^ 8) - 8) as f32,
            Self::Map => f32::from_le_bytes(map[code % 16]),
        };
        let are_floats = matches!(self, Self::Floats(..));
        let kind = match geometry.bits {
            ..=4 => CodeBits::Four,
            8 if are_floats => CodeBits::Eight,
            _ => return None,
        };
        isa.can_look_up().then(|| Box::new(Results::new(isa, kind, number, are_floats)))
    }
}

impl Fused {
    /// True if no product with these scales can become infinite or NaN in the narrowest intermediate type, or 0 although
    /// its code is not 0 (the smallest code is 2^-9, and none is above 510). If products are float16,
    /// [`normal_float16_product`] must also be able to compute them.
    #[inline(always)]
    pub(super) fn are_ordinary(self, scales: &Float32Lane) -> bool {
        let is_float16 = self.rounded == Dtype::Float16 && !self.has_offsets;
        let (least, most) = match self.narrowest {
            // A rounded product may be 0.
            Dtype::Float16 if self.has_offsets => (0.0, 50.0),
            _ if self.has_offsets => (0.0, 6e35),
            _ if is_float16 => (6.11e-5, 50.0), // no product is subnormal
            Dtype::Float16 => (3.1e-5, 50.0),
            _ => (1e-32, 6e35),
        };
        // No `fold`: its closure might not be compiled for the instruction set.
        let mut all = true;
        for scale in scales {
            let scale = f32::from_le_bytes(*scale);
            let size = if is_float16 { scale } else { scale.abs() };
            all &= (size < most) & ((size > least) | (!is_float16 & (size == 0.0)));
        }
        all
    }

    /// True if [`Fused::multiply`] can compute the products of these codes and scales.
    #[inline(always)]
    fn takes(self, segment: &CodeSegment) -> bool {
        let is_near_one = |bytes: &[u8; 4]| {
            let number = f32::from_le_bytes(*bytes).abs();
            number == 0.0 || (SMALLEST..=448.0).contains(&number)
        };
        let mut all = segment.fetched.is_some_and(|fetched| fetched.are_ordinary) || self.are_ordinary(segment.scales);
        if let FusedCodes::Floats(_, nan) = self.codes {
            // These loops have no zero points, which floats of ONNX may have.
            for zero in segment.zeros {
                all &= *zero == [0; 4];
            }
            if nan != u8::MAX {
                for code in segment.codes {
                    all &= code & 0x7f != nan;
                }
            }
        }
        // The sum with a product of an ordinary scale is finite. Without `has_offsets`, the general method adds offsets, after
        // further roundings.
        let most = if self.narrowest == Dtype::Float16 { 3e4 } else { 1e38 };
        for offset in segment.offsets {
            all &= self.has_offsets & (f32::from_le_bytes(*offset).abs() < most);
        }
        all && (!matches!(self.codes, FusedCodes::Map) || segment.map.iter().all(is_near_one))
    }

    /// Writes products. Returns false if codes or scales need the general method; the contents of the output are then
    /// unspecified.
    #[inline(always)]
    pub(super) fn multiply(self, segment: &CodeSegment, results: &mut Option<Box<Results>>, out: &mut [u8]) -> bool {
        if !self.takes(segment) {
            return false;
        }
        match (self.has_offsets, self.rounded, self.written) {
            (false, Dtype::Float16, Dtype::Float16) => self.write::<2, false>(segment, results, out, |a, b, _| {
                normal_float16_bits(normal_float16_product(a, b)).to_le_bytes()
            }),
            (false, Dtype::Float16, Dtype::Bfloat16) => self.write::<2, false>(segment, results, out, |a, b, _| {
                bfloat16_bits(to_bfloat16(normal_float16_product(a, b))).to_le_bytes()
            }),
            (false, Dtype::Float16, _) => {
                self.write::<4, false>(segment, results, out, |a, b, _| normal_float16_product(a, b).to_le_bytes());
            }
            (false, Dtype::Bfloat16, Dtype::Bfloat16) => {
                if let Some(results) = results
                    && results.add_exponents(segment, out)
                {
                    return true;
                }
                self.write::<2, true>(segment, results, out, |a, b, _| bfloat16_bits(to_bfloat16(a * b)).to_le_bytes());
            }
            (false, Dtype::Bfloat16, _) => {
                self.write::<4, true>(segment, results, out, |a, b, _| to_bfloat16(a * b).to_le_bytes());
            }
            (false, _, _) => self.write::<4, true>(segment, results, out, |a, b, _| (a * b).to_le_bytes()),
            // Sums of products and offsets, both rounded.
            (true, Dtype::Float16, Dtype::Float16) => self.write::<2, false>(segment, results, out, |a, b, offset| {
                float16_bits(to_float16(a * b) + offset).to_le_bytes()
            }),
            (true, Dtype::Float16, _) => self.write::<4, false>(segment, results, out, |a, b, offset| {
                to_float16(to_float16(a * b) + offset).to_le_bytes()
            }),
            (true, Dtype::Bfloat16, Dtype::Bfloat16) => {
                self.write::<2, false>(segment, results, out, |a, b, offset| {
                    bfloat16_bits(to_bfloat16(to_bfloat16(a * b) + offset)).to_le_bytes()
                });
            }
            (true, Dtype::Bfloat16, _) => self.write::<4, false>(segment, results, out, |a, b, offset| {
                to_bfloat16(to_bfloat16(a * b) + offset).to_le_bytes()
            }),
            (true, _, _) => {
                self.write::<4, false>(segment, results, out, |a, b, offset| (a * b + offset).to_le_bytes());
            }
        }
        true
    }

    /// Writes results of `W` bytes. Unless `TAKES_FLOATS`, all codes are integers, and the other loops are not
    /// compiled.
    #[inline(always)]
    fn write<const W: usize, const TAKES_FLOATS: bool>(
        self,
        segment: &CodeSegment,
        results: &mut Option<Box<Results>>,
        out: &mut [u8],
        product: impl Fn(f32, f32, f32) -> [u8; W] + Copy,
    ) {
        if let Some(results) = results
            && results.write(segment, out, product)
        {
            return;
        }
        let out = out.as_chunks_mut().0;
        match self.codes {
            FusedCodes::Floats(floats, _) if TAKES_FLOATS => {
                let factor = segment.factor;
                products(segment, 0.0, out, |code, _| floats.number(code) * factor, product);
            }
            // 16 products for each group.
            FusedCodes::Map if TAKES_FLOATS => {
                for ((codes, out), factors) in by_group(segment, 0.0, out) {
                    let table = segment.map.map(|number| product(f32::from_le_bytes(number), factors.scale, 0.0));
                    for (out, code) in out.iter_mut().zip(codes) {
                        *out = table[usize::from(code & 15)];
                    }
                }
            }
            FusedCodes::Unsigned(half) => {
                products(segment, half as f32, out, |code, zero| f32::from(code) - zero, product);
            }
            _ => products(segment, 0.0, out, |code, zero| f32::from(code as i8) - zero, product),
        }
    }
}

/// Writes products group by group, so that scale and zero point of a group are loop constants. Common sizes have loops
/// of a fixed length.
#[inline(always)]
fn products<const W: usize>(
    segment: &CodeSegment,
    zero: f32,
    out: &mut [[u8; W]],
    number: impl Fn(u8, f32) -> f32 + Copy,
    product: impl Fn(f32, f32, f32) -> [u8; W] + Copy,
) {
    let CodeSegment { codes, scales, size, skip, .. } = *segment;
    match (size, skip) {
        (1, _) if segment.zeros.is_empty() && segment.offsets.is_empty() => {
            for ((out, code), scale) in out.iter_mut().zip(codes).zip(scales) {
                *out = product(number(*code, zero), f32::from_le_bytes(*scale), 0.0);
            }
        }
        (1, _) => {
            for ((out, code), factors) in out.iter_mut().zip(codes).zip(segment.factors(zero)) {
                *out = product(number(*code, factors.zero), factors.scale, factors.offset);
            }
        }
        (16, 0) => products_by::<16, W>(segment, zero, out, number, product),
        (32, 0) => products_by::<32, W>(segment, zero, out, number, product),
        _ => {
            for ((codes, out), CodeFactors { scale, zero, offset }) in by_group(segment, zero, out) {
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = product(number(*code, zero), scale, offset);
                }
            }
        }
    }
}

/// Returns the codes of each group, its factors, and the buffer for its values. No closure computes values: it might not
/// be compiled for the instruction set.
#[inline(always)]
fn by_group<'a, const W: usize>(
    segment: &'a CodeSegment,
    zero: f32,
    out: &'a mut [[u8; W]],
) -> impl Iterator<Item = ((&'a [u8], &'a mut [[u8; W]]), CodeFactors)> {
    let CodeSegment { codes, size, skip, .. } = *segment;
    let first = (size - skip).min(codes.len());
    let (codes, out) = (codes.split_at(first), out.split_at_mut(first));
    let others = codes.1.chunks(size).zip(out.1.chunks_mut(size));
    std::iter::once((codes.0, out.0)).chain(others).zip(segment.factors(zero))
}

#[inline(always)]
fn products_by<const N: usize, const W: usize>(
    segment: &CodeSegment,
    zero: f32,
    out: &mut [[u8; W]],
    number: impl Fn(u8, f32) -> f32 + Copy,
    product: impl Fn(f32, f32, f32) -> [u8; W] + Copy,
) {
    let mut factors = segment.factors(zero);
    let ((codes, last), (out, last_out)) = (segment.codes.as_chunks::<N>(), out.as_chunks_mut::<N>());
    for ((codes, out), CodeFactors { scale, zero, offset }) in codes.iter().zip(out).zip(&mut factors) {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = product(number(*code, zero), scale, offset);
        }
    }
    if let Some(CodeFactors { scale, zero, offset }) = factors.next() {
        for (out, code) in last_out.iter_mut().zip(last) {
            *out = product(number(*code, zero), scale, offset);
        }
    }
}
