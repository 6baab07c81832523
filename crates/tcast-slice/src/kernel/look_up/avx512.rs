//! Look-ups with AVX-512: one instruction looks up the entries of 32 codes.

use super::table::{Table, each_table, entry_of, float_of};
use std::arch::x86_64::{
    __m512i, _mm256_loadu_si256, _mm512_add_epi16, _mm512_and_si512, _mm512_broadcast_i64x4, _mm512_cvtepu8_epi16,
    _mm512_loadu_si512, _mm512_min_epu16, _mm512_or_si512, _mm512_permutexvar_epi16, _mm512_set_epi64,
    _mm512_set1_epi16, _mm512_slli_epi16, _mm512_srai_epi16, _mm512_storeu_si512,
};

/// Looks up the entry of each code by its lowest four bits: 32 codes at a time, which are in one group or in two.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn look_up(codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
    const SIXTEENS: i64 = 0x0010_0010_0010_0010;
    if size == 16 {
        let (low, second) =
            (_mm512_set1_epi16(15), _mm512_set_epi64(SIXTEENS, SIXTEENS, SIXTEENS, SIXTEENS, 0, 0, 0, 0));
        let ((codes, last), (out, last_out)) = (codes.as_chunks(), out.as_chunks_mut());
        let (pairs, last_tables) = tables.split_at(2 * codes.len());
        for ((codes, out), pair) in codes.iter().zip(out).zip(pairs.as_chunks::<2>().0) {
            let codes = _mm512_or_si512(_mm512_and_si512(load(codes), low), second);
            // SAFETY: `pair` has the 64 bytes that are read.
            let pair = unsafe { _mm512_loadu_si512(pair.as_ptr().cast()) };
            store(_mm512_permutexvar_epi16(codes, pair), out);
        }
        each_table::<32, ()>(last, last_tables, size, last_out, |_| (), |_, (), _| (), entry_of);
    } else {
        let look_up = |codes: &[u8; 32], table: __m512i, out: &mut [[u8; 2]; 32]| {
            store(_mm512_permutexvar_epi16(load(codes), table), out);
        };
        each_table(codes, tables, size, out, |table| in_both_halves(table), look_up, entry_of);
    }
}

/// Looks up finite float8e4m3fn codes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn look_up_floats(codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
    let [magnitude, mantissa, eight, exponent_and_sign] =
        [0x7f, 7, 8, 0x8780_u16 as i16].map(|word| _mm512_set1_epi16(word));
    let look_up = |codes: &[u8; 32], table: __m512i, out: &mut [[u8; 2]; 32]| {
        let codes = load(codes);
        let normal = _mm512_or_si512(_mm512_and_si512(codes, mantissa), eight);
        let index = _mm512_min_epu16(_mm512_and_si512(codes, magnitude), normal);
        // The exponent field of the code moves to bit 7 of the result, and the sign to bit 15.
        let moved = _mm512_srai_epi16::<4>(_mm512_slli_epi16::<8>(codes));
        let added = _mm512_and_si512(moved, exponent_and_sign);
        store(_mm512_add_epi16(_mm512_permutexvar_epi16(index, table), added), out);
    };
    each_table(codes, tables, size, out, |table| in_both_halves(table), look_up, float_of);
}

/// Returns 32 codes as words.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load(codes: &[u8; 32]) -> __m512i {
    // SAFETY: `codes` has the 32 bytes that are read.
    _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) })
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn in_both_halves(table: &Table) -> __m512i {
    // SAFETY: `table` has the 32 bytes that are read.
    _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(table.as_ptr().cast()) })
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store(entries: __m512i, out: &mut [[u8; 2]; 32]) {
    // SAFETY: `out` has the 64 bytes that are written.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), entries) };
}
