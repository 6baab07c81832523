//! Codes to bfloat16 in one pass over the values, for what nearly all weights are: the scales are numbers of ordinary size,
//! and the library rounds the product once.
//!
//! The general way, which also counts, takes five passes: with AVX-512, one core makes about 1 value a nanosecond by it, and
//! 2 to 4 by this one.

use super::lanes::{Floats, Lane};
use crate::dtype::{Class, Dtype};

/// What codes are to the loop.
#[derive(Clone, Copy)]
pub(super) enum Fused {
    /// Floats, and the magnitude of the code that is NaN.
    Floats(Floats, u8),
    /// Unsigned integers less a number, or less zero points.
    Unsigned(i32),
    /// Two's complement of 8 bits, less zero points if there are any.
    Signed,
}

/// The groups of a segment, as float32.
pub(super) struct Groups<'a> {
    pub(super) scales: &'a Lane,
    /// Empty where there are none.
    pub(super) zeros: &'a Lane,
    /// Elements of a group, and how many of the first are before the segment.
    pub(super) size: usize,
    pub(super) skip: usize,
    /// Twice the product is meant.
    pub(super) is_halved: bool,
}

impl Fused {
    /// Of float8e4m3fn.
    pub(super) fn e4m3() -> Option<Self> {
        let Class::Float(format) = Dtype::Float8E4M3FN.class() else { return None };
        Some(Self::Floats(Floats::new(format, true), format.nan() as u8))
    }

    /// Writes products as bfloat16, but for codes and scales that need the general way: then it gives false.
    #[inline(always)]
    pub(super) fn multiply(self, codes: &[u8], groups: &Groups, out: &mut [u8]) -> bool {
        // A product beyond 2^-120 is no subnormal number of bfloat16, and so none becomes 0 that was not 0 before.
        let is_ordinary = |bytes: &[u8; 4]| {
            let scale = f32::from_le_bytes(*bytes).abs();
            (scale < 1e37) & ((scale > 1e-32) | (scale == 0.0))
        };
        if !groups.scales.iter().fold(true, |all, scale| all & is_ordinary(scale)) {
            return false;
        }
        let factor = if groups.is_halved { 2.0 } else { 1.0 };
        let out = out.as_chunks_mut().0;
        match self {
            Self::Floats(floats, nan) => {
                if nan != u8::MAX && codes.iter().fold(false, |any, code| any | (code & 0x7f == nan)) {
                    return false;
                }
                products(codes, groups, out, |code, _| floats.number(code) * factor);
            }
            Self::Unsigned(half) if groups.zeros.is_empty() => {
                products(codes, groups, out, |code, _| (i32::from(code) - half) as f32);
            }
            Self::Unsigned(_) => products(codes, groups, out, |code, zero| f32::from(code) - zero),
            Self::Signed if groups.zeros.is_empty() => products(codes, groups, out, |code, _| f32::from(code as i8)),
            Self::Signed => products(codes, groups, out, |code, zero| f32::from(code as i8) - zero),
        }
        true
    }
}

/// Group by group, so that scale and zero point of a group are constants of a loop; those of common sizes have loops of
/// a known length.
#[inline(always)]
fn products(codes: &[u8], groups: &Groups, out: &mut [[u8; 2]], number: impl Fn(u8, f32) -> f32 + Copy) {
    let zeros = groups.zeros.iter().chain(std::iter::repeat(&[0; 4]));
    let mut factors =
        groups.scales.iter().zip(zeros).map(|pair| (f32::from_le_bytes(*pair.0), f32::from_le_bytes(*pair.1)));
    match (groups.size, groups.skip) {
        (1, _) => {
            for ((out, code), scale) in out.iter_mut().zip(codes).zip(groups.scales) {
                *out = round(number(*code, 0.0) * f32::from_le_bytes(*scale));
            }
        }
        (16, 0) => products_by::<16>(codes, factors, out, number),
        (32, 0) => products_by::<32>(codes, factors, out, number),
        (size, skip) => {
            let first = (size - skip).min(codes.len());
            let (codes, out) = (codes.split_at(first), out.split_at_mut(first));
            let mut group = |codes: &[u8], out: &mut [[u8; 2]]| {
                let (scale, zero) = factors.next().unwrap_or_default();
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = round(number(*code, zero) * scale);
                }
            };
            group(codes.0, out.0);
            codes.1.chunks(size).zip(out.1.chunks_mut(size)).for_each(|(codes, out)| group(codes, out));
        }
    }
}

#[inline(always)]
fn products_by<const N: usize>(
    codes: &[u8],
    mut factors: impl Iterator<Item = (f32, f32)>,
    out: &mut [[u8; 2]],
    number: impl Fn(u8, f32) -> f32 + Copy,
) {
    let ((codes, last), (out, last_out)) = (codes.as_chunks::<N>(), out.as_chunks_mut::<N>());
    for ((codes, out), (scale, zero)) in codes.iter().zip(out).zip(&mut factors) {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = round(number(*code, zero) * scale);
        }
    }
    if let Some((scale, zero)) = factors.next() {
        for (out, code) in last_out.iter_mut().zip(last) {
            *out = round(number(*code, zero) * scale);
        }
    }
}

/// A float32 that is a number, or infinite, as bfloat16 to nearest even: just under half of the last kept bit is added,
/// one more if that bit is odd, and the rest is cut.
#[inline(always)]
fn round(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).to_le_bytes().first_chunk().copied().unwrap_or_default()
}
