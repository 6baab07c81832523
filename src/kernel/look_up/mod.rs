//! Table lookup in registers: a few instructions look up the entries of 32 codes. The compiler does not generate these
//! instructions by itself.
#![allow(unsafe_code, reason = "a function compiled for an instruction set may only run where the set exists")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;

use super::isa::Isa;

/// Entries of two bytes, for codes of 4 bits.
///
/// For float8e4m3fn, which has 128 magnitudes, the entries are bfloat16 numbers. Entry m is for the subnormal number of
/// mantissa m. Entry 8 + m plus the exponent field of a normal number is for the number of mantissa m.
pub(crate) type Table = [u16; 16];

/// The unit of the exponent field of a bfloat16 number.
pub(crate) const EXPONENT: u16 = 1 << 7;

/// Derivation of table entries from the first or the second of a pair of numbers.
pub(crate) struct Derivation {
    /// For each byte of the entries, the byte of the pair that it derives from.
    chosen: [u8; 32],
    /// Number added to the chosen number, and mask of the bits of the sum that are kept.
    added: [u16; 16],
    kept: [u16; 16],
}

impl Derivation {
    /// Creates a derivation. Each of `entries` is true if the entry derives from the second number, followed by the
    /// number to add and the mask of the bits to keep.
    pub(crate) fn new(entries: [(bool, u16, u16); 16]) -> Self {
        Self {
            chosen: std::array::from_fn(|at| 2 * u8::from(entries[at / 2].0) + at as u8 % 2),
            added: entries.map(|entry| entry.1),
            kept: entries.map(|entry| entry.2),
        }
    }
}

impl Isa {
    /// True if the set has instructions for [`Isa::look_up`]. Loads from a table in memory are not faster than
    /// arithmetic.
    pub(crate) fn can_look_up(self) -> bool {
        self != Self::Baseline || cfg!(all(target_arch = "aarch64", target_endian = "little"))
    }

    /// Looks up the entry of each code by its lowest four bits. Each table is for `size` codes. Panics if the machine
    /// lacks the instruction set, or the set lacks the instruction.
    #[inline(always)]
    pub(crate) fn look_up(self, codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
        assert!(self.can_look_up() && self.is_available(), "this machine has no {self:?}");
        match self {
            // SAFETY: the assertion has checked the features that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::look_up(codes, tables, size, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::look_up(codes, tables, size, out) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Self::Baseline => neon::look_up(codes, tables, size, out),
            _ => {}
        }
    }

    /// Writes the table of each pair of numbers. Panics as [`Isa::look_up`].
    #[inline(always)]
    pub(crate) fn derive(self, pairs: &[[u16; 2]], derivation: &Derivation, tables: &mut [Table]) {
        assert!(self.can_look_up() && self.is_available(), "this machine has no {self:?}");
        match self {
            // SAFETY: the assertion has checked the features that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx512 => unsafe { avx2::derive(pairs, derivation, tables) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Self::Baseline => neon::derive(pairs, derivation, tables),
            _ => {}
        }
    }

    /// Looks up finite float8e4m3fn codes: see [`Table`]. Each table is for `size` codes. Panics as [`Isa::look_up`].
    #[inline(always)]
    pub(crate) fn look_up_floats(self, codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
        assert!(self.can_look_up() && self.is_available(), "this machine has no {self:?}");
        match self {
            // SAFETY: the assertion has checked the features that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::look_up_floats(codes, tables, size, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::look_up_floats(codes, tables, size, out) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Self::Baseline => neon::look_up_floats(codes, tables, size, out),
            _ => {}
        }
    }
}

/// Returns the entry of one code.
#[inline(always)]
fn entry_of(code: u8, table: &Table) -> [u8; 2] {
    table[usize::from(code & 15)].to_le_bytes()
}

/// Returns the entry of one finite float8e4m3fn code.
#[inline(always)]
fn float_of(code: u8, table: &Table) -> [u8; 2] {
    let magnitude = code & 0x7f;
    let entry = table[usize::from(magnitude.min(magnitude & 7 | 8))];
    let exponent_and_sign = ((i16::from(code as i8) << 4) as u16) & 0x8780;
    entry.wrapping_add(exponent_and_sign).to_le_bytes()
}

/// Calls `look_up` with N codes, their table and their results, and `look_up_one` with each of the remaining codes of a
/// group.
#[inline(always)]
fn each_table<const N: usize, T: Copy>(
    codes: &[u8],
    tables: &[Table],
    size: usize,
    out: &mut [[u8; 2]],
    load: impl Fn(&Table) -> T,
    look_up: impl Fn(&[u8; N], T, &mut [[u8; 2]; N]),
    look_up_one: impl Fn(u8, &Table) -> [u8; 2],
) {
    for ((codes, out), table) in codes.chunks(size).zip(out.chunks_mut(size)).zip(tables) {
        let ((codes, last), (out, last_out)) = (codes.as_chunks(), out.as_chunks_mut());
        let loaded = load(table);
        for (codes, out) in codes.iter().zip(out) {
            look_up(codes, loaded, out);
        }
        for (out, code) in last_out.iter_mut().zip(last) {
            *out = look_up_one(*code, table);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_gets_the_entry_of_its_mantissa_with_its_exponent_and_sign() {
        let codes: Vec<u8> = (0..2000_u32).map(|at| ((at * 37) >> 3) as u8).collect();
        let entry = |table: usize, index: usize| (table * 771 + index * 100) as u16;
        let tables: Vec<Table> = (0..200).map(|table| std::array::from_fn(|index| entry(table, index))).collect();
        for isa in Isa::available().into_iter().filter(|isa| isa.can_look_up()) {
            for size in [10, 16, 32, 33, 128, 1000, 5000] {
                for count in (0..70).chain([1024, 1999]) {
                    let codes = &codes[..count];
                    let expected = codes.iter().enumerate().map(|(at, code)| {
                        let (sign, exponent, mantissa) = (code >> 7, code >> 3 & 15, usize::from(code & 7));
                        let entry = entry(at / size, if exponent == 0 { mantissa } else { 8 + mantissa });
                        let exponent = u16::from(exponent) * EXPONENT;
                        entry.wrapping_add(exponent).wrapping_add(u16::from(sign) << 15).to_le_bytes()
                    });
                    let mut found = vec![[0; 2]; count];
                    isa.look_up_floats(codes, &tables, size, &mut found);
                    assert!(found.iter().copied().eq(expected), "{isa:?}: {count} codes in groups of {size}");
                }
            }
        }
    }

    #[test]
    fn every_code_gets_the_entry_of_its_table() {
        let codes: Vec<u8> = (0..2000_u32).map(|at| ((at * 37) >> 3) as u8 & 15).collect();
        let entry = |table: usize, code: usize| (table * 16 + code) as u16 ^ ((table * 5) as u16) << 8;
        let tables: Vec<Table> = (0..126).map(|table| std::array::from_fn(|code| entry(table, code))).collect();
        for isa in Isa::available().into_iter().filter(|isa| isa.can_look_up()) {
            for size in [16, 17, 24, 32, 33, 64, 128, 1000, 5000] {
                for count in (0..100).chain([1024, 1999]) {
                    let codes = &codes[..count];
                    let expected: Vec<[u8; 2]> = codes
                        .iter()
                        .enumerate()
                        .map(|(at, code)| tables[at / size][usize::from(*code)].to_le_bytes())
                        .collect();
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
        let pairs: Vec<[u16; 2]> = (0..96).map(|at| [at * 600 + 5, 50_000 - at * 123]).collect();
        for isa in Isa::available().into_iter().filter(|isa| isa.can_look_up()) {
            for count in [0, 16, 96] {
                let pairs = &pairs[..count];
                let table = |pair: &[u16; 2]| -> Table {
                    std::array::from_fn(|at| {
                        let (is_second, added, kept) = derivation(at);
                        pair[usize::from(is_second)].wrapping_add(added) & kept
                    })
                };
                let mut found = vec![Table::default(); count];
                isa.derive(pairs, &Derivation::new(std::array::from_fn(derivation)), &mut found);
                assert!(found.iter().copied().eq(pairs.iter().map(table)), "{isa:?}: {count} pairs");
            }
        }
    }
}
