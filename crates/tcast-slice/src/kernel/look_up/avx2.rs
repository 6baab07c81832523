//! Look-ups with AVX2, which looks up bytes: those of the lower and of the upper halves of entries apart.

use super::table::{Derivation, Table, each_table, entry_of, float_of};
use std::arch::x86_64::{
    __m256i, _mm_storeu_si128, _mm256_add_epi16, _mm256_and_si256, _mm256_castsi256_si128, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_min_epu8, _mm256_or_si256, _mm256_permute2x128_si256, _mm256_permute4x64_epi64,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setr_epi8, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_srai_epi16, _mm256_storeu_si256, _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
};

/// Looks up the entry of each code by its lowest four bits.
#[target_feature(enable = "avx2")]
pub(super) fn look_up(codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
    if size == 16 {
        let ((codes, last), (out, last_out)) = (codes.as_chunks(), out.as_chunks_mut());
        let (pairs, last_tables) = tables.split_at(2 * codes.len());
        for ((codes, out), pair) in codes.iter().zip(out).zip(pairs.as_chunks::<2>().0) {
            let [first, second] = [bytes_apart(&pair[0]), bytes_apart(&pair[1])];
            let lower = _mm256_permute2x128_si256::<0x20>(first, second);
            let upper = _mm256_permute2x128_si256::<0x31>(first, second);
            entries(codes, [lower, upper], out);
        }
        each_table::<32, ()>(last, last_tables, size, last_out, |_| (), |_, (), _| (), entry_of);
    } else {
        each_table(
            codes,
            tables,
            size,
            out,
            |table| in_both_halves(table),
            |codes, table, out| entries(codes, table, out),
            entry_of,
        );
    }
}

/// Looks up finite float8e4m3fn codes.
#[target_feature(enable = "avx2")]
pub(super) fn look_up_floats(codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
    let [magnitude, mantissa, eight] = [0x7f, 7, 8].map(|byte| _mm256_set1_epi8(byte));
    let (exponent_and_sign, zero) = (_mm256_set1_epi16(0x8780_u16 as i16), _mm256_setzero_si256());
    let look_up = |codes: &[u8; 32], [lower, upper]: [__m256i; 2], out: &mut [[u8; 2]; 32]| {
        let codes = load(codes);
        let normal = _mm256_or_si256(_mm256_and_si256(codes, mantissa), eight);
        let index = _mm256_min_epu8(_mm256_and_si256(codes, magnitude), normal);
        let (lower, upper) = (_mm256_shuffle_epi8(lower, index), _mm256_shuffle_epi8(upper, index));
        // The exponent field of the code moves from bit 11 of a word to bit 7; the sign stays.
        let added = |word: __m256i| _mm256_and_si256(_mm256_srai_epi16::<4>(word), exponent_and_sign);
        let first = added(_mm256_unpacklo_epi8(zero, codes));
        let second = added(_mm256_unpackhi_epi8(zero, codes));
        store(
            _mm256_add_epi16(_mm256_unpacklo_epi8(lower, upper), first),
            _mm256_add_epi16(_mm256_unpackhi_epi8(lower, upper), second),
            out,
        );
    };
    each_table(codes, tables, size, out, |table| in_both_halves(table), look_up, float_of);
}

/// Writes the table of each pair of numbers.
#[target_feature(enable = "avx2")]
pub(super) fn derive(pairs: &[[u16; 2]], derivation: &Derivation, tables: &mut [Table]) {
    // SAFETY: `words` has the 32 bytes that are read.
    let load_words = |words: &Table| unsafe { _mm256_loadu_si256(words.as_ptr().cast()) };
    let (chosen, added, kept) = (load(&derivation.chosen), load_words(&derivation.added), load_words(&derivation.kept));
    for ([first, second], table) in pairs.iter().zip(tables) {
        let pair = _mm256_set1_epi32((u32::from(*second) << 16 | u32::from(*first)) as i32);
        let sums = _mm256_add_epi16(_mm256_shuffle_epi8(pair, chosen), added);
        // SAFETY: `table` has the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(table.as_mut_ptr().cast(), _mm256_and_si256(sums, kept)) };
    }
}

#[target_feature(enable = "avx2")]
fn load(codes: &[u8; 32]) -> __m256i {
    // SAFETY: `codes` has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
}

/// Returns the lower bytes of all entries, followed by the upper bytes.
#[target_feature(enable = "avx2")]
fn bytes_apart(table: &Table) -> __m256i {
    let apart = _mm256_setr_epi8(
        0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,
    );
    // SAFETY: `table` has the 32 bytes that are read.
    let table = unsafe { _mm256_loadu_si256(table.as_ptr().cast()) };
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(table, apart))
}

/// Returns the lower bytes of all entries in both halves of a register, and the upper bytes in both halves of another.
#[target_feature(enable = "avx2")]
fn in_both_halves(table: &Table) -> [__m256i; 2] {
    let bytes = bytes_apart(table);
    [_mm256_permute2x128_si256::<0x00>(bytes, bytes), _mm256_permute2x128_si256::<0x11>(bytes, bytes)]
}

/// Looks up 32 codes, the first 16 of them in the lower halves of a table's registers.
#[target_feature(enable = "avx2")]
fn entries(codes: &[u8; 32], [lower, upper]: [__m256i; 2], out: &mut [[u8; 2]; 32]) {
    let index = _mm256_and_si256(load(codes), _mm256_set1_epi8(15));
    let (lower, upper) = (_mm256_shuffle_epi8(lower, index), _mm256_shuffle_epi8(upper, index));
    store(_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper), out);
}

/// Writes the entries of 32 codes. The unpacking instructions leave the entries of codes 0 to 7 and 16 to 23 in one
/// register, and the others in a second one.
#[target_feature(enable = "avx2")]
fn store(first: __m256i, second: __m256i, out: &mut [[u8; 2]; 32]) {
    let quarters = [
        _mm256_castsi256_si128(first),
        _mm256_castsi256_si128(second),
        _mm256_extracti128_si256::<1>(first),
        _mm256_extracti128_si256::<1>(second),
    ];
    for (out, quarter) in out.as_chunks_mut::<8>().0.iter_mut().zip(quarters) {
        // SAFETY: `out` has the 16 bytes that are written.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), quarter) };
    }
}
