//! Codes to products in one pass over the values, for what nearly all weights are: the scales are numbers of ordinary size,
//! and no product is infinite or 0 on the way to the target.
//!
//! The general method, which also counts, takes five passes: with AVX-512, one core decodes about 1 value per
//! nanosecond with it, and 2 to 4 with this one to bfloat16.

use super::lanes::{Float32Lane, SmallFloat};
use crate::dtype::{Class, Dtype};

/// The smallest magnitude of a code.
const SMALLEST: f32 = 1.0 / 512.0;

/// What codes are to the loop.
#[derive(Clone, Copy)]
pub(super) enum Fused {
    /// Floats, and the magnitude of the code that is NaN.
    Floats(SmallFloat, u8),
    /// Unsigned integers less a number, or less zero points.
    Unsigned(i32),
    /// Two's complement of 8 bits, less zero points if there are any.
    Signed,
    /// Entries of a map.
    Map,
}

/// The groups of a segment, as float32.
pub(super) struct SegmentGroups<'a> {
    pub(super) scales: &'a Float32Lane,
    /// Empty if there are none.
    pub(super) zeros: &'a Float32Lane,
    /// Elements of a group, and how many of the first are before the segment.
    pub(super) size: usize,
    pub(super) skip: usize,
    /// Whether the products have to be doubled.
    pub(super) is_halved: bool,
    /// What codes of [`Fused::Map`] are.
    pub(super) map: &'a [[u8; 4]; 16],
}

impl Fused {
    /// For float8e4m3fn.
    pub(super) fn e4m3() -> Option<Self> {
        let Class::Float(format) = Dtype::Float8E4M3FN.class() else { return None };
        Some(Self::Floats(SmallFloat::new(format, true), format.nan() as u8))
    }

    /// Whether scales are neither so large that a product may be infinite in the narrowest type on the way, nor so small that
    /// one may be 0, of a code that is not: the smallest is 2^-9.
    #[inline(always)]
    fn takes(self, codes: &[u8], groups: &SegmentGroups, narrowest: Dtype) -> bool {
        let (least, most) = if narrowest == Dtype::Float16 { (3.1e-5, 50.0) } else { (1e-32, 1e37) };
        let is_ordinary = |bytes: &[u8; 4]| {
            let scale = f32::from_le_bytes(*bytes).abs();
            (scale < most) & ((scale > least) | (scale == 0.0))
        };
        let nan = if let Self::Floats(_, nan) = self { nan } else { u8::MAX };
        let is_near_one = |bytes: &[u8; 4]| {
            let number = f32::from_le_bytes(*bytes).abs();
            number == 0.0 || (SMALLEST..=448.0).contains(&number)
        };
        // No `fold`: its closure might not be compiled for the instruction set.
        let mut all = true;
        for scale in groups.scales {
            all &= is_ordinary(scale);
        }
        if nan != u8::MAX {
            for code in codes {
                all &= code & 0x7f != nan;
            }
        }
        all && (!matches!(self, Self::Map) || groups.map.iter().all(is_near_one))
    }

    /// Writes products in bfloat16 if that is `product`, and otherwise in float32. Gives false, and may write anything,
    /// where codes or scales need the general way.
    #[inline(always)]
    pub(super) fn multiply(
        self,
        codes: &[u8],
        groups: &SegmentGroups,
        narrowest: Dtype,
        product: Dtype,
        out: &mut [u8],
    ) -> bool {
        if !self.takes(codes, groups, narrowest) {
            return false;
        }
        if product == Dtype::Bfloat16 {
            self.write(codes, groups, out.as_chunks_mut().0, round);
        } else {
            self.write(codes, groups, out.as_chunks_mut().0, f32::to_le_bytes);
        }
        true
    }

    #[inline(always)]
    fn write<const W: usize>(
        self,
        codes: &[u8],
        groups: &SegmentGroups,
        out: &mut [[u8; W]],
        finish: impl Fn(f32) -> [u8; W] + Copy,
    ) {
        let factor = if groups.is_halved { 2.0 } else { 1.0 };
        match self {
            Self::Floats(floats, _) => products(codes, groups, out, |code, _| floats.number(code) * factor, finish),
            Self::Unsigned(half) if groups.zeros.is_empty() => {
                products(codes, groups, out, |code, _| (i32::from(code) - half) as f32, finish);
            }
            Self::Unsigned(_) => products(codes, groups, out, |code, zero| f32::from(code) - zero, finish),
            // If there are no zero points, their iterator gives 0.
            Self::Signed => products(codes, groups, out, |code, zero| f32::from(code as i8) - zero, finish),
            // 16 products for each group.
            Self::Map => each_group(codes, groups, out, |codes, (scale, _), out| {
                let table = groups.map.map(|number| finish(f32::from_le_bytes(number) * scale));
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = table[usize::from(code & 15)];
                }
            }),
        }
    }
}

/// Group by group, so that scale and zero point of a group are loop constants; common sizes have loops of a fixed
/// length.
#[inline(always)]
fn products<const W: usize>(
    codes: &[u8],
    groups: &SegmentGroups,
    out: &mut [[u8; W]],
    number: impl Fn(u8, f32) -> f32 + Copy,
    finish: impl Fn(f32) -> [u8; W] + Copy,
) {
    match (groups.size, groups.skip) {
        (1, _) if groups.zeros.is_empty() => {
            for ((out, code), scale) in out.iter_mut().zip(codes).zip(groups.scales) {
                *out = finish(number(*code, 0.0) * f32::from_le_bytes(*scale));
            }
        }
        (1, _) => {
            let factors = groups.scales.iter().zip(groups.zeros);
            for ((out, code), (scale, zero)) in out.iter_mut().zip(codes).zip(factors) {
                *out = finish(number(*code, f32::from_le_bytes(*zero)) * f32::from_le_bytes(*scale));
            }
        }
        (16, 0) => products_by::<16, W>(codes, factors(groups), out, number, finish),
        (32, 0) => products_by::<32, W>(codes, factors(groups), out, number, finish),
        _ => each_group(codes, groups, out, |codes, (scale, zero), out| {
            for (out, code) in out.iter_mut().zip(codes) {
                *out = finish(number(*code, zero) * scale);
            }
        }),
    }
}

/// Calls `run` with the codes of each group, its scale and zero point, and the room for its values.
#[inline(always)]
fn each_group<const W: usize>(
    codes: &[u8],
    groups: &SegmentGroups,
    out: &mut [[u8; W]],
    run: impl Fn(&[u8], (f32, f32), &mut [[u8; W]]),
) {
    let mut factors = factors(groups);
    let first = (groups.size - groups.skip).min(codes.len());
    let (codes, out) = (codes.split_at(first), out.split_at_mut(first));
    run(codes.0, factors.next().unwrap_or_default(), out.0);
    for (codes, out) in codes.1.chunks(groups.size).zip(out.1.chunks_mut(groups.size)) {
        run(codes, factors.next().unwrap_or_default(), out);
    }
}

/// Scales and zero points; 0 where there are none of these.
#[inline(always)]
fn factors<'a>(groups: &'a SegmentGroups) -> impl Iterator<Item = (f32, f32)> + use<'a> {
    let zeros = groups.zeros.iter().chain(std::iter::repeat(&[0; 4]));
    groups.scales.iter().zip(zeros).map(|pair| (f32::from_le_bytes(*pair.0), f32::from_le_bytes(*pair.1)))
}

#[inline(always)]
fn products_by<const N: usize, const W: usize>(
    codes: &[u8],
    mut factors: impl Iterator<Item = (f32, f32)>,
    out: &mut [[u8; W]],
    number: impl Fn(u8, f32) -> f32 + Copy,
    finish: impl Fn(f32) -> [u8; W] + Copy,
) {
    let ((codes, last), (out, last_out)) = (codes.as_chunks::<N>(), out.as_chunks_mut::<N>());
    for ((codes, out), (scale, zero)) in codes.iter().zip(out).zip(&mut factors) {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = finish(number(*code, zero) * scale);
        }
    }
    if let Some((scale, zero)) = factors.next() {
        for (out, code) in last_out.iter_mut().zip(last) {
            *out = finish(number(*code, zero) * scale);
        }
    }
}

/// A float32, finite or infinite, as bfloat16 to nearest even: add just under half of the last kept bit, one more if
/// that bit is odd, and truncate.
#[inline(always)]
fn round(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).to_le_bytes().first_chunk().copied().unwrap_or_default()
}
