//! Table lookup in registers: a few instructions look up the entries of 32 codes. The compiler does not generate these
//! instructions by itself.
#![allow(unsafe_code, reason = "a function compiled for an instruction set may only run where the set exists")]
#![cfg_attr(
    not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))),
    allow(dead_code, unused_variables, reason = "other machines have no such instructions")
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
mod table;

pub use table::{Derivation, EXPONENT, Table};

use super::isa::Isa;

impl Isa {
    /// True if the set has instructions for [`Isa::look_up`]. Loads from a table in memory are not faster than
    /// arithmetic.
    pub fn can_look_up(self) -> bool {
        self != Self::Baseline || cfg!(all(target_arch = "aarch64", target_endian = "little"))
    }

    /// Looks up the entry of each code by its lowest four bits. Each table is for `size` codes.
    ///
    /// # Panics
    /// If the machine lacks the instruction set, or the set lacks the instruction.
    #[inline(always)]
    pub fn look_up(self, codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
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

    /// Writes the table of each pair of numbers.
    ///
    /// # Panics
    /// As [`Isa::look_up`].
    #[inline(always)]
    pub fn derive(self, pairs: &[[u16; 2]], derivation: &Derivation, tables: &mut [Table]) {
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

    /// Looks up finite float8e4m3fn codes: see [`Table`]. Each table is for `size` codes.
    ///
    /// # Panics
    /// As [`Isa::look_up`].
    #[inline(always)]
    pub fn look_up_floats(self, codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
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
