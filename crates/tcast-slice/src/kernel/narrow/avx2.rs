//! The loop with AVX2, which cannot shift each lane by a different distance: it multiplies by powers of two, and looks
//! them up by the exponent. Steps that need no more than a byte take 32 elements at a time.
#![allow(unsafe_code, reason = "a function compiled for an instruction set may only run where the set exists")]

use super::super::isa::{Isa, prefetch_behind};
use super::super::lane::AHEAD;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_add_epi8, _mm256_add_epi16, _mm256_and_si256,
    _mm256_blend_epi16, _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_max_epi16,
    _mm256_min_epi16, _mm256_min_epu8, _mm256_min_epu16, _mm256_mullo_epi16, _mm256_or_si256, _mm256_packs_epi16,
    _mm256_packus_epi16, _mm256_packus_epi32, _mm256_permutevar8x32_epi32, _mm256_sad_epu8, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_setr_epi32, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srl_epi16,
    _mm256_srli_epi16, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_sub_epi8, _mm256_sub_epi16, _mm256_subs_epu8,
    _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
};

/// Elements of an iteration.
const LANES: usize = 32;

/// Source types.
pub(super) const BFLOAT16: u8 = 0;
pub(super) const FLOAT16: u8 = 1;
/// float16, to a type that is its upper half.
pub(super) const FLOAT16_UPPER_HALF: u8 = 2;
pub(super) const FLOAT32: u8 = 3;

/// Number that is added to a code with eight bits below it before its lower bits are dropped, if the code is even. Adding
/// one more to odd codes makes ties round to even.
const HALF_LESS_ONE: u16 = 127;

/// The code of everything that rounds to zero, with eight bits below it and [`HALF_LESS_ONE`] added: half of the smallest
/// number.
const ZERO: u16 = 128 + HALF_LESS_ONE;

/// Entries of the tables: one for all that rounds to zero, and one for each of the smallest exponents of the target. No
/// target has more than three mantissa bits.
const ENTRIES: usize = 6;

/// For each entry, the power of two by which magnitudes are multiplied.
const POWERS: [u8; 16] = [0, 1, 2, 4, 8, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Constants of a conversion, as few as possible: a model has a conversion for each of its tensors.
#[derive(Clone, Copy)]
pub(super) struct Constants {
    /// Exponent fields up to this one have entry 0 of the tables, and the smallest normal number has entry `last`.
    first: u8,
    last: u8,
    /// For each entry, the number that is subtracted from the product.
    subtracted: [u16; ENTRIES],
    sign: u8,
    /// Right shift that moves the sign bit of a byte to its place in the target.
    sign_shift: u8,
}

/// The constants in registers: tables in both halves, and the lower and the upper bytes of the numbers that are subtracted.
#[derive(Clone, Copy)]
struct Registers {
    first: __m256i,
    last: __m256i,
    powers: __m256i,
    lower: __m256i,
    upper: __m256i,
    sign: __m256i,
    sign_shift: __m128i,
}

/// Counts of a block.
pub(super) struct BlockCounts {
    pub(super) largest: i16,
    pub(super) inexact: u64,
    pub(super) flushed: u64,
}

impl Constants {
    /// Creates the constants for a target with this number of mantissa bits and this sign. `exponent` is the exponent
    /// field of its smallest normal number in the source, of which seven mantissa bits are used.
    pub(super) fn new(mantissa_bits: u32, exponent: u16, sign: u8) -> Self {
        // A number of exponent field E - M - 1 is at least half of the smallest number.
        let last = mantissa_bits as u16 + 2;
        let first = exponent - last;
        let subtracted = |entry: usize| match entry as u16 {
            0 => ZERO.wrapping_neg(),
            // The mantissa with its hidden bit remains of a magnitude, and of the exponent if it exceeds that of `last`.
            entry => ((first + entry - 1) << 7 << (entry - 1)).wrapping_sub(HALF_LESS_ONE),
        };
        Self {
            first: first as u8,
            last: last as u8,
            subtracted: std::array::from_fn(subtracted),
            sign,
            sign_shift: sign.leading_zeros() as u8,
        }
    }

    /// Writes one code per byte. The codes are right if `largest` is in range. Panics if the machine lacks AVX2.
    #[inline(always)]
    pub(super) fn encode<const SOURCE: u8>(&self, bytes: &[u8], codes: &mut [u8]) -> BlockCounts {
        assert!(Isa::Avx2.is_available(), "this machine has no AVX2");
        // SAFETY: the assertion has checked the features that the function is compiled for.
        unsafe { self.run::<SOURCE>(bytes, codes) }
    }

    #[target_feature(enable = "avx2")]
    fn run<const SOURCE: u8>(&self, bytes: &[u8], codes: &mut [u8]) -> BlockCounts {
        let step = if SOURCE == FLOAT32 { 4 * LANES } else { 2 * LANES };
        let (results, last_results) = codes.as_chunks_mut::<LANES>();
        let (whole, last) = bytes.split_at(results.len() * step);
        let mut sums = ByteSums::new();
        let registers = Registers::new(self);
        // No zip: the compiler does not inline its iterator here.
        let mut elements = whole;
        for results in results {
            prefetch_behind(&elements[..step], AHEAD);
            store(results, registers.round::<SOURCE>(elements, &mut sums));
            elements = &elements[step..];
        }
        if !last.is_empty() {
            let (mut elements, mut results) = ([0; 4 * LANES], [0; LANES]);
            elements[..last.len()].copy_from_slice(last);
            store(&mut results, registers.round::<SOURCE>(&elements, &mut sums));
            last_results.copy_from_slice(&results[..last_results.len()]);
        }
        sums.counts::<SOURCE>(bytes.len().div_ceil(step) * LANES)
    }
}

impl Registers {
    #[target_feature(enable = "avx2")]
    fn new(constants: &Constants) -> Self {
        let (mut lower, mut upper) = ([0; 16], [0; 16]);
        for (at, number) in constants.subtracted.iter().enumerate() {
            [lower[at], upper[at]] = number.to_le_bytes();
        }
        Self {
            first: byte(constants.first),
            last: byte(constants.last),
            powers: in_both_halves(&POWERS),
            lower: in_both_halves(&lower),
            upper: in_both_halves(&upper),
            sign: byte(constants.sign),
            sign_shift: _mm_cvtsi32_si128(constants.sign_shift.into()),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn round<const SOURCE: u8>(self, elements: &[u8], sums: &mut ByteSums) -> __m256i {
        // 1. Elements of 16 bits, in two registers: the lower halves of float32 only tell whether a number lies between
        //    two others.
        let (bits, more_bits) = if SOURCE == FLOAT32 {
            (upper_halves(elements), upper_halves(&elements[64..]))
        } else {
            (load(elements), load(&elements[32..]))
        };
        let (a, b) = (_mm256_and_si256(bits, word(0x7fff)), _mm256_and_si256(more_bits, word(0x7fff)));
        sums.largest = _mm256_max_epi16(sums.largest, _mm256_max_epi16(a, b));
        // 2. Their codes with eight bits below them, and half of the last bit, less one, added.
        let (codes, more_codes) = match SOURCE {
            FLOAT16_UPPER_HALF => (_mm256_add_epi16(a, word(HALF_LESS_ONE)), _mm256_add_epi16(b, word(HALF_LESS_ONE))),
            FLOAT16 => self.codes(seven_bits(a), seven_bits(b)),
            _ => self.codes(a, b),
        };
        // 3. To nearest, ties to even; a carry runs into the exponent. All eight lower bits are set only after a tie.
        let below = _mm256_packus_epi16(_mm256_and_si256(codes, word(0xff)), _mm256_and_si256(more_codes, word(0xff)));
        let truncated = _mm256_packus_epi16(_mm256_srli_epi16::<8>(codes), _mm256_srli_epi16::<8>(more_codes));
        let is_tie = _mm256_cmpeq_epi8(below, byte(0xff));
        let rounded = _mm256_add_epi8(truncated, _mm256_and_si256(_mm256_and_si256(truncated, is_tie), byte(1)));
        // 4. Counts: a comparison that holds is -1.
        let zero = _mm256_setzero_si256();
        sums.exact = _mm256_sub_epi8(sums.exact, _mm256_cmpeq_epi8(below, byte(HALF_LESS_ONE as u8)));
        sums.zeros = _mm256_sub_epi8(sums.zeros, _mm256_cmpeq_epi8(rounded, zero));
        sums.source_zeros = _mm256_sub_epi8(sums.source_zeros, _mm256_cmpeq_epi8(_mm256_packus_epi16(a, b), zero));
        // 5. Saturation keeps signs.
        let signs = _mm256_packs_epi16(bits, more_bits);
        let moved = _mm256_srl_epi16(signs, self.sign_shift);
        let signed = _mm256_or_si256(rounded, _mm256_and_si256(moved, self.sign));
        // 6. Packing has worked on each half of the registers.
        let order = if SOURCE == FLOAT32 {
            _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)
        } else {
            _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)
        };
        _mm256_permutevar8x32_epi32(signed, order)
    }

    /// Returns the codes of magnitudes with seven mantissa bits, as the second step of [`Self::round`].
    #[inline]
    #[target_feature(enable = "avx2")]
    fn codes(self, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        let exponents = _mm256_packus_epi16(_mm256_srli_epi16::<7>(a), _mm256_srli_epi16::<7>(b));
        let entry = _mm256_min_epu8(_mm256_subs_epu8(exponents, self.first), self.last);
        let powers = _mm256_shuffle_epi8(self.powers, entry);
        let lower = _mm256_shuffle_epi8(self.lower, entry);
        let upper = _mm256_shuffle_epi8(self.upper, entry);
        let nothing = _mm256_setzero_si256();
        let product = _mm256_mullo_epi16(a, _mm256_unpacklo_epi8(powers, nothing));
        let more_product = _mm256_mullo_epi16(b, _mm256_unpackhi_epi8(powers, nothing));
        (
            _mm256_sub_epi16(product, _mm256_unpacklo_epi8(lower, upper)),
            _mm256_sub_epi16(more_product, _mm256_unpackhi_epi8(lower, upper)),
        )
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn word(word: u16) -> __m256i {
    _mm256_set1_epi16(word as i16)
}

#[inline]
#[target_feature(enable = "avx2")]
fn byte(byte: u8) -> __m256i {
    _mm256_set1_epi8(byte as i8)
}

/// Sums of a block, one per byte, which can count all iterations of a block.
struct ByteSums {
    largest: __m256i,
    exact: __m256i,
    zeros: __m256i,
    source_zeros: __m256i,
}

impl ByteSums {
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        let zero = _mm256_setzero_si256();
        Self { largest: zero, exact: zero, zeros: zero, source_zeros: zero }
    }

    /// Returns the counts of `count` elements: zeros fill the last iteration. Zeros do not count as exact if tables made
    /// their codes.
    #[target_feature(enable = "avx2")]
    fn counts<const SOURCE: u8>(&self, count: usize) -> BlockCounts {
        let (exact, source_zeros) = (sum(self.exact), sum(self.source_zeros));
        let exact = if SOURCE == FLOAT16_UPPER_HALF { exact } else { exact + source_zeros };
        let mut largest = [0; 32];
        store(&mut largest, self.largest);
        BlockCounts {
            largest: largest.as_chunks().0.iter().map(|word| i16::from_le_bytes(*word)).fold(0, i16::max),
            inexact: count as u64 - exact,
            flushed: sum(self.zeros) - source_zeros,
        }
    }
}

/// Adds up 32 bytes.
#[target_feature(enable = "avx2")]
fn sum(bytes: __m256i) -> u64 {
    let mut quarters = [0; 32];
    store(&mut quarters, _mm256_sad_epu8(bytes, _mm256_setzero_si256()));
    quarters.as_chunks::<8>().0.iter().map(|quarter| u64::from_le_bytes(*quarter)).sum()
}

/// Returns the upper halves of 16 float32 numbers, with the last bit set if the lower half is not zero. Codes of 8 bits
/// and fewer do not depend on more. Numbers 0 to 3 come first, then 8 to 11, 4 to 7 and 12 to 15.
#[inline]
#[target_feature(enable = "avx2")]
fn upper_halves(elements: &[u8]) -> __m256i {
    let (a, b) = (load(elements), load(&elements[32..]));
    let upper = _mm256_packus_epi32(_mm256_srli_epi32::<16>(a), _mm256_srli_epi32::<16>(b));
    let nothing = _mm256_setzero_si256();
    let a = _mm256_blend_epi16::<0b1010_1010>(a, nothing);
    let b = _mm256_blend_epi16::<0b1010_1010>(b, nothing);
    _mm256_or_si256(upper, _mm256_min_epu16(_mm256_packus_epi32(a, b), word(1)))
}

/// Drops three of float16's ten mantissa bits by rounding to odd; the remaining bits decide every tie as before.
#[inline]
#[target_feature(enable = "avx2")]
fn seven_bits(magnitude: __m256i) -> __m256i {
    let dropped = _mm256_and_si256(magnitude, word(7));
    _mm256_or_si256(_mm256_srli_epi16::<3>(magnitude), _mm256_min_epi16(dropped, word(1)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m256i {
    let bytes = &bytes[..32];
    // SAFETY: the slice has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: &mut [u8; 32], register: __m256i) {
    // SAFETY: `bytes` has the 32 bytes that are written.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), register) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn in_both_halves(table: &[u8; 16]) -> __m256i {
    // SAFETY: `table` has the 16 bytes that are read.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}
