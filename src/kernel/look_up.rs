//! Table lookup in registers: one instruction looks up the entries of 32 codes. The compiler does not generate it by
//! itself.
#![allow(unsafe_code, reason = "a function compiled for an instruction set may only run where the set exists")]

use super::isa::Isa;

/// Entries of two bytes, for codes of 4 bits.
pub(crate) type Table = [[u8; 2]; 16];

/// Entries of two bytes, for the magnitudes of codes of 8 bits with a sign.
pub(crate) type Magnitudes = [[u8; 2]; 128];

/// Derivation of table entries from the first or the second of a pair of numbers.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AVX-512 looks up"))]
pub(crate) struct Derivation {
    /// Index of the word in two pairs, for each entry of two tables.
    words: [u16; 32],
    /// Number added to the word, and mask of the bits of the sum that are kept.
    added: [u16; 32],
    kept: [u16; 32],
}

impl Derivation {
    /// Creates a derivation. Each of `entries` is true if the entry derives from the second number, followed by the
    /// number to add and the mask of the bits to keep.
    pub(crate) fn new(entries: [(bool, u16, u16); 16]) -> Self {
        let entry = |at: usize| entries[at % 16];
        Self {
            words: std::array::from_fn(|at| at as u16 / 16 * 2 + u16::from(entry(at).0)),
            added: std::array::from_fn(|at| entry(at).1),
            kept: std::array::from_fn(|at| entry(at).2),
        }
    }
}

impl Isa {
    /// True if the set has an instruction for [`Isa::look_up`]. Loads from a table in memory are not faster than
    /// arithmetic.
    pub(crate) fn can_look_up(self) -> bool {
        self == Self::Avx512
    }

    /// Looks up the two-byte entry of each code by its lowest four bits. Each table is for `size` codes. Panics if the
    /// machine lacks the instruction set, or the set lacks the instruction.
    #[inline(always)]
    pub(crate) fn look_up(self, codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
        assert!(self.can_look_up() && self.is_available(), "this machine has no {self:?}");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the assertion has checked the features that the function is compiled for.
        unsafe {
            look_up_avx512(codes, tables, size, out);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (codes, tables, size, out);
    }

    /// Looks up the two-byte entry of each code by its lowest seven bits. The highest bit of the code inverts the
    /// highest bit of the entry. Each table is for `size` codes. Panics if the machine lacks the instruction set, or
    /// the set lacks the instruction.
    #[inline(always)]
    pub(crate) fn look_up_magnitudes(self, codes: &[u8], tables: &[Magnitudes], size: usize, out: &mut [[u8; 2]]) {
        assert!(self.can_look_up() && self.is_available(), "this machine has no {self:?}");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the assertion has checked the features that the function is compiled for.
        unsafe {
            look_up_magnitudes_avx512(codes, tables, size, out);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (codes, tables, size, out);
    }

    /// Writes the table of each pair of numbers. The number of pairs is a multiple of 16. Panics if the machine lacks
    /// the instruction set, or the set lacks the instruction.
    #[inline(always)]
    pub(crate) fn derive(self, pairs: &[[[u8; 2]; 2]], derivation: &Derivation, tables: &mut [Table]) {
        assert!(self.can_look_up() && self.is_available(), "this machine has no {self:?}");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the assertion has checked the features that the function is compiled for.
        unsafe {
            derive_avx512(pairs, derivation, tables);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (pairs, derivation, tables);
    }
}

/// Looks up 32 codes at a time. A table takes four registers: the instruction selects from two of them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn look_up_magnitudes_avx512(codes: &[u8], tables: &[Magnitudes], size: usize, out: &mut [[u8; 2]]) {
    use std::arch::x86_64::{
        _mm256_loadu_si256, _mm512_cvtepu8_epi16, _mm512_loadu_si512, _mm512_mask_blend_epi16,
        _mm512_permutex2var_epi16, _mm512_set1_epi16, _mm512_slli_epi16, _mm512_storeu_si512,
        _mm512_ternarylogic_epi32, _mm512_test_epi16_mask,
    };
    /// a ^ (b & c), as a truth table.
    const XOR_OF_AND: i32 = 0b0111_1000;
    let (upper, sign) = (_mm512_set1_epi16(64), _mm512_set1_epi16(i16::MIN));
    for ((codes, out), table) in codes.chunks(size).zip(out.chunks_mut(size)).zip(tables) {
        // SAFETY: each quarter of the table has the 64 bytes that are read.
        let quarter = |at: usize| unsafe { _mm512_loadu_si512(table[32 * at..][..32].as_ptr().cast()) };
        let [a, b, c, d] = [quarter(0), quarter(1), quarter(2), quarter(3)];
        let ((codes, last), (out, last_out)) = (codes.as_chunks::<32>(), out.as_chunks_mut::<32>());
        for (codes, out) in codes.iter().zip(out) {
            // SAFETY: `codes` has the 32 bytes that are read.
            let codes = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) });
            let [below, above] = [_mm512_permutex2var_epi16(a, codes, b), _mm512_permutex2var_epi16(c, codes, d)];
            let entries = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(codes, upper), below, above);
            let signed = _mm512_ternarylogic_epi32::<XOR_OF_AND>(entries, _mm512_slli_epi16::<8>(codes), sign);
            // SAFETY: `out` has the 64 bytes that are written.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), signed) };
        }
        for (out, code) in last_out.iter_mut().zip(last) {
            let [low, high] = table[usize::from(code & 0x7f)];
            *out = [low, high ^ code & 0x80];
        }
    }
}

/// Looks up 32 codes at a time, which are in one group or in two.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn look_up_avx512(codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
    use std::arch::x86_64::{
        __m512i, _mm256_loadu_si256, _mm512_and_si512, _mm512_broadcast_i64x4, _mm512_cvtepu8_epi16,
        _mm512_loadu_si512, _mm512_or_si512, _mm512_permutexvar_epi16, _mm512_set_epi64, _mm512_set1_epi16,
        _mm512_storeu_si512,
    };
    const SIXTEENS: i64 = 0x0010_0010_0010_0010;
    // Selects the entry of each code from 32 entries.
    let entries = |table: __m512i, codes: __m512i, out: &mut [[u8; 2]; 32]| {
        // SAFETY: `out` has the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_permutexvar_epi16(codes, table)) };
    };
    // SAFETY: `codes` has the 32 bytes that are read.
    let wide = |codes: &[u8; 32]| _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) });
    // SAFETY: `table` has the 32 bytes that are read.
    let twice = |table: &Table| _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(table.as_ptr().cast()) });
    let one_by_one = |codes: &[u8], table: &Table, out: &mut [[u8; 2]]| {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = table[usize::from(code & 15)];
        }
    };
    if size == 16 {
        let (low, second) =
            (_mm512_set1_epi16(15), _mm512_set_epi64(SIXTEENS, SIXTEENS, SIXTEENS, SIXTEENS, 0, 0, 0, 0));
        let ((codes, last), (out, last_out)) = (codes.as_chunks(), out.as_chunks_mut());
        let last_tables = &tables[2 * codes.len()..];
        for ((codes, out), pair) in codes.iter().zip(out).zip(tables.as_chunks::<2>().0) {
            let codes = _mm512_or_si512(_mm512_and_si512(wide(codes), low), second);
            // SAFETY: `pair` has the 64 bytes that are read.
            entries(unsafe { _mm512_loadu_si512(pair.as_ptr().cast()) }, codes, out);
        }
        let rest = last.chunks(16).zip(last_out.chunks_mut(16));
        for ((codes, out), table) in rest.zip(last_tables) {
            one_by_one(codes, table, out);
        }
    } else if size == 32 {
        let ((codes, last), (out, last_out)) = (codes.as_chunks(), out.as_chunks_mut());
        let last_table = tables.get(codes.len());
        for ((codes, out), table) in codes.iter().zip(out).zip(tables) {
            entries(twice(table), wide(codes), out);
        }
        if let Some(table) = last_table {
            one_by_one(last, table, last_out);
        }
    } else {
        for ((codes, out), table) in codes.chunks(size).zip(out.chunks_mut(size)).zip(tables) {
            let ((codes, last), (out, last_out)) = (codes.as_chunks(), out.as_chunks_mut());
            let table_of_both = twice(table);
            for (codes, out) in codes.iter().zip(out) {
                entries(table_of_both, wide(codes), out);
            }
            one_by_one(last, table, last_out);
        }
    }
}

/// Reads 16 pairs at a time, and derives two tables at a time from them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn derive_avx512(pairs: &[[[u8; 2]; 2]], derivation: &Derivation, tables: &mut [Table]) {
    use std::arch::x86_64::{
        _mm512_add_epi16, _mm512_and_si512, _mm512_loadu_si512, _mm512_permutexvar_epi16, _mm512_set1_epi16,
        _mm512_storeu_si512,
    };
    // SAFETY: each of these has the 64 bytes that are read.
    let load = |words: &[u16; 32]| unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
    let Derivation { words, added, kept } = derivation;
    let (words, added, kept) = (load(words), load(added), load(kept));
    for (pairs, tables) in pairs.as_chunks::<16>().0.iter().zip(tables.as_chunks_mut::<16>().0) {
        // SAFETY: `pairs` has the 64 bytes that are read.
        let pairs = unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) };
        let mut words = words;
        for two in tables.as_chunks_mut::<2>().0 {
            let sums = _mm512_add_epi16(_mm512_permutexvar_epi16(words, pairs), added);
            // SAFETY: `two` has the 64 bytes that are written.
            unsafe { _mm512_storeu_si512(two.as_mut_ptr().cast(), _mm512_and_si512(sums, kept)) };
            words = _mm512_add_epi16(words, _mm512_set1_epi16(4));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magnitude_gets_the_entry_of_its_table_and_its_sign() {
        let codes: Vec<u8> = (0..2000_u32).map(|at| ((at * 37) >> 3) as u8).collect();
        let entry = |table: usize, code: usize| [(table * 16 + code) as u8, (table * 5 + 3 * code) as u8];
        let tables: Vec<Magnitudes> = (0..200).map(|table| std::array::from_fn(|code| entry(table, code))).collect();
        for isa in Isa::available().into_iter().filter(|isa| isa.can_look_up()) {
            for size in [10, 32, 33, 128, 1000, 5000] {
                for count in (0..70).chain([1024, 1999]) {
                    let codes = &codes[..count];
                    let expected = codes.iter().enumerate().map(|(at, code)| {
                        let [low, high] = tables[at / size][usize::from(code & 127)];
                        [low, high ^ (code & 128)]
                    });
                    let mut found = vec![[0; 2]; count];
                    isa.look_up_magnitudes(codes, &tables, size, &mut found);
                    assert!(found.iter().copied().eq(expected), "{isa:?}: {count} codes in groups of {size}");
                }
            }
        }
    }

    #[test]
    fn every_code_gets_the_entry_of_its_table() {
        let codes: Vec<u8> = (0..2000_u32).map(|at| ((at * 37) >> 3) as u8 & 15).collect();
        let entry = |table: usize, code: usize| [(table * 16 + code) as u8, (table * 5) as u8 ^ code as u8];
        let tables: Vec<Table> = (0..126).map(|table| std::array::from_fn(|code| entry(table, code))).collect();
        for isa in Isa::available().into_iter().filter(|isa| isa.can_look_up()) {
            for size in [16, 17, 24, 32, 33, 64, 128, 1000, 5000] {
                for count in (0..100).chain([1024, 1999]) {
                    let codes = &codes[..count];
                    let expected: Vec<[u8; 2]> =
                        codes.iter().enumerate().map(|(at, code)| tables[at / size][usize::from(*code)]).collect();
                    let mut found = vec![[0; 2]; count];
                    isa.look_up(codes, &tables, size, &mut found);
                    assert!(found == expected, "{isa:?}: {count} codes in groups of {size}");
                }
            }
        }
    }

    #[test]
    fn tables_follow_from_pairs() {
        let derivation =
            |at: usize| (at % 3 == 1, 0x1234_u16.wrapping_mul(at as u16), if at == 5 { 0x8000 } else { u16::MAX });
        let pairs: Vec<[[u8; 2]; 2]> = (0..96_u8).map(|at| [[at, 200 - at], [at ^ 0x4d, at / 3]]).collect();
        for isa in Isa::available().into_iter().filter(|isa| isa.can_look_up()) {
            for count in [0, 16, 96] {
                let pairs = &pairs[..count];
                let table = |pair: &[[u8; 2]; 2]| -> Table {
                    std::array::from_fn(|at| {
                        let (is_second, added, kept) = derivation(at);
                        let word = u16::from_le_bytes(pair[usize::from(is_second)]);
                        (word.wrapping_add(added) & kept).to_le_bytes()
                    })
                };
                let mut found = vec![Table::default(); count];
                isa.derive(pairs, &Derivation::new(std::array::from_fn(derivation)), &mut found);
                assert!(found.iter().copied().eq(pairs.iter().map(table)), "{isa:?}: {count} pairs");
            }
        }
    }
}
