//! bfloat16 and float16 to floats of 8 bits and fewer, in lanes of 16 bits: twice as many elements in a vector as in
//! the float32 lane. With AVX2, float32 too.
//!
//! The float32 lane converts blocks in which a magnitude is beyond the range, infinite or NaN.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::counts::{Counts, Loss};
use super::float::Minifloat;
use super::isa::{Isa, hidden_one, prefetch_behind};
use super::lane::AHEAD;
use super::tally::COUNTED;
use crate::dtype::{Class, Dtype, FloatFormat};

/// Number of bits below the last bit of a code while it is rounded.
const BELOW: u32 = 9;

/// Number of elements that are rounded in parallel: a vector of the widest instruction set.
const LANES: usize = 32;

/// Constants of the loop that converts a narrow source. With M mantissa bits of the target, `steps` is M + 2, and E is
/// the exponent field of the target's smallest normal number in the source.
#[derive(Clone, Copy)]
pub(super) struct Narrowing {
    source: Dtype,
    /// True if the target has the exponents of the source, so that a code is the upper half of the source.
    is_upper_half: bool,
    steps: u16,
    /// E - `steps`.
    first: u16,
    /// E - 1, shifted to the exponent field of the source: the start of the line through normal numbers.
    line: u16,
    /// The largest source magnitude that stays in range.
    limit: i16,
    sign: u16,
    /// Right shift that moves the sign bit to its place in the target.
    sign_shift: u32,
    /// Source magnitudes from which a mantissa is doubled once more.
    doublings: [i16; 5],
    /// The code of -0, in formats that have none.
    lacks: Option<u8>,
    #[cfg(target_arch = "x86_64")]
    avx2: avx2::Constants,
}

/// Sums of a block, one per vector lane. A u16 can count all elements of a block.
struct NarrowSums {
    largest: [i16; LANES],
    inexact: [u16; LANES],
    flushed: [u16; LANES],
    /// [`hidden_one`].
    one: u16,
}

impl Narrowing {
    /// Creates the constants. `None` for other types, and if the exponents of the source do not reach far enough below
    /// the exponents of the target.
    pub(super) fn new(source: Dtype, target: Dtype, float: &Minifloat) -> Option<Self> {
        let is_float16 = source == Dtype::Float16;
        let Class::Float(FloatFormat { mantissa_bits, bias, .. }) = target.class() else { return None };
        if target.bits() > 8 || !matches!(source, Dtype::Bfloat16 | Dtype::Float16 | Dtype::Float32) {
            return None;
        }
        let steps = mantissa_bits as u16 + 2;
        let source_bias = if is_float16 { 15 } else { 127 };
        let is_upper_half = is_float16 && (mantissa_bits, bias) == (2, source_bias);
        let exponent = u16::try_from(source_bias + 1 - bias).ok();
        let exponent = if is_upper_half { steps } else { exponent.filter(|exponent| *exponent >= steps)? };
        // Converts the limit from float32; it is a normal number of the source.
        let limit = if is_float16 {
            (float.limit.saturating_sub(112 << 23) >> 13).min(0x7bff)
        } else {
            (float.limit >> 16).min(0x7f7f)
        };
        let sign = 1 << (target.bits() - 1);
        Some(Self {
            source,
            is_upper_half,
            steps,
            first: exponent - steps,
            line: (exponent - 1) << 7,
            limit: limit as i16,
            sign,
            sign_shift: 15 - sign.trailing_zeros(),
            // More steps than the target needs begin beyond every number.
            doublings: [1, 2, 3, 4, 5]
                .map(|step| if step <= steps { ((exponent - steps + step) << 7) as i16 } else { i16::MAX }),
            lacks: float.lacks,
            #[cfg(target_arch = "x86_64")]
            avx2: avx2::Constants::new(mantissa_bits, exponent, sign as u8),
        })
    }

    /// Writes one code per byte. `None` if the block needs the complete rules; `codes` may then hold anything.
    #[inline(always)]
    pub(super) fn encode(self, bytes: &[u8], codes: &mut [u8], isa: Isa) -> Option<Counts> {
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Avx2 {
            return self.encode_avx2(bytes, codes);
        }
        // Only AVX-512 and NEON can shift each lane of 16 bits by a different distance.
        let has_shifts = isa == Isa::Avx512 || cfg!(target_arch = "aarch64");
        // Drops three of float16's ten mantissa bits by rounding to odd; the remaining bits decide every tie as before.
        let float16 = |magnitude: u16| magnitude >> 3 | u16::from(magnitude & 7 != 0);
        match (self.source, has_shifts) {
            _ if self.is_upper_half => self.run(bytes, codes, |_, magnitude| magnitude << (BELOW - 8)),
            (Dtype::Float32, _) => None,
            (Dtype::Bfloat16, true) => self.run(bytes, codes, |own, magnitude| own.code(magnitude, Self::shifted)),
            (Dtype::Bfloat16, false) => self.run(bytes, codes, |own, magnitude| own.code(magnitude, Self::doubled)),
            (_, true) => self.run(bytes, codes, |own, magnitude| own.code(float16(magnitude), Self::shifted)),
            (_, false) => self.run(bytes, codes, |own, magnitude| own.code(float16(magnitude), Self::doubled)),
        }
    }

    /// [`Self::encode`] with AVX2.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn encode_avx2(self, bytes: &[u8], codes: &mut [u8]) -> Option<Counts> {
        let found = match self.source {
            _ if self.is_upper_half => self.avx2.encode::<{ avx2::FLOAT16_UPPER_HALF }>(bytes, codes),
            Dtype::Float32 => self.avx2.encode::<{ avx2::FLOAT32 }>(bytes, codes),
            Dtype::Bfloat16 => self.avx2.encode::<{ avx2::BFLOAT16 }>(bytes, codes),
            _ => self.avx2.encode::<{ avx2::FLOAT16 }>(bytes, codes),
        };
        self.finish(codes, found.largest, found.inexact, found.flushed)
    }

    /// Returns the counts if all elements are in range, and removes negative zeros from types that have none.
    #[inline(always)]
    fn finish(self, codes: &mut [u8], largest: i16, inexact: u64, flushed: u64) -> Option<Counts> {
        if largest > self.limit {
            return None;
        }
        if let Some(negative_zero) = self.lacks {
            for code in codes {
                *code = if *code == negative_zero { 0 } else { *code };
            }
        }
        let mut counts = Counts::default();
        if COUNTED {
            (counts[Loss::Inexact], counts[Loss::Flushed]) = (inexact, flushed);
        }
        Some(counts)
    }

    /// Converts a block. `code` returns the code of a magnitude, with BELOW bits below it.
    #[inline(always)]
    fn run(self, bytes: &[u8], codes: &mut [u8], code: impl Fn(Self, u16) -> u16) -> Option<Counts> {
        let mut sums = NarrowSums { largest: [0; LANES], inexact: [0; LANES], flushed: [0; LANES], one: hidden_one() };
        let (elements, last) = bytes.as_chunks().0.as_chunks::<LANES>();
        let (results, last_results) = codes.as_chunks_mut::<LANES>();
        for (elements, results) in elements.iter().zip(results) {
            prefetch_behind(elements, AHEAD);
            *results = self.round(*elements, &code, &mut sums);
        }
        if !last.is_empty() {
            let mut elements = [[0; 2]; LANES];
            elements[..last.len()].copy_from_slice(last);
            last_results.copy_from_slice(&self.round(elements, &code, &mut sums)[..last.len()]);
        }
        let sum = |counts: [u16; LANES]| counts.into_iter().fold(0, u16::wrapping_add).into();
        let largest = sums.largest.into_iter().fold(0, i16::max);
        self.finish(codes, largest, sum(sums.inexact), sum(sums.flushed))
    }

    /// Takes and returns copies: the compiler knows that they do not overlap.
    #[inline(always)]
    fn round(self, elements: [[u8; 2]; LANES], code: &impl Fn(Self, u16) -> u16, sums: &mut NarrowSums) -> [u8; LANES] {
        let one = sums.one;
        let mut codes = [0; LANES];
        for at in 0..LANES {
            let bits = u16::from_le_bytes(elements[at]);
            let magnitude = bits & 0x7fff;
            // Only signed numbers have a maximum instruction in all instruction sets.
            sums.largest[at] = sums.largest[at].max(magnitude as i16);
            let code = code(self, magnitude);
            sums.inexact[at] += if code & ((1 << BELOW) - 1) != 0 { one } else { 0 };
            sums.flushed[at] += if (magnitude != 0) & (code <= 1 << (BELOW - 1)) { one } else { 0 };
            // To nearest, ties to even; a carry runs into the exponent.
            let rounded = code.wrapping_add((1 << (BELOW - 1)) - 1).wrapping_add(code >> BELOW & 1) >> BELOW;
            codes[at] = (rounded | bits >> self.sign_shift & self.sign) as u8;
        }
        codes
    }

    /// Returns the code of a magnitude that is given by exponent and seven mantissa bits, as in bfloat16. `align`
    /// receives the mantissa with its hidden bit. Subnormal numbers have no hidden bit, but their codes are 0 with it
    /// and without.
    #[inline(always)]
    fn code(self, number: u16, align: impl Fn(Self, u16, u16) -> u16) -> u16 {
        let mantissa = if number == 0 { 0 } else { number & 0x7f | 0x80 };
        // Subnormal results are shifted less, and no bit is lost. The line through normal numbers is below them.
        align(self, number, mantissa).max(number.saturating_sub(self.line) << self.steps)
    }

    /// Shifts a mantissa left by `steps`, and by one less for each exponent below the exponent of the smallest normal
    /// number.
    #[inline(always)]
    fn shifted(self, number: u16, mantissa: u16) -> u16 {
        // The mask tells the compiler that no distance exceeds 15.
        mantissa << (number >> 7).saturating_sub(self.first).min(self.steps & 7)
    }

    /// [`Self::shifted`] for processors that shift all lanes by the same distance: doubles the mantissa up to five
    /// times.
    #[inline(always)]
    fn doubled(self, number: u16, mantissa: u16) -> u16 {
        let [one, two, three, four, five] = self.doublings;
        let double = |mantissa: u16, from: i16| mantissa.wrapping_add(if number as i16 >= from { mantissa } else { 0 });
        double(double(double(double(double(mantissa, one), two), three), four), five)
    }
}
