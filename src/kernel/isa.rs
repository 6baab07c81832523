//! One loop, compiled for several instruction sets and chosen at run time.
//!
//! Loops do not branch on values, so the compiler vectorises them, and a wider instruction set only has to be enabled.
//! The one instruction that it does not find by itself is the table in a register: [`Isa::look_up`]. Every set gives the
//! same bits; tests force each of them.
#![allow(unsafe_code, reason = "a function compiled for an instruction set may only run where the set exists")]

use std::sync::OnceLock;

/// The result of [`Isa::chosen`], for as long as the process runs.
static CHOSEN: OnceLock<Isa> = OnceLock::new();

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What every machine of the target architecture has.
    Baseline,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// The sets this machine has, the best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Self::Baseline, Self::Avx2, Self::Avx512].into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// The best set of this machine.
    #[must_use]
    pub fn best() -> Self {
        [Self::Avx512, Self::Avx2].into_iter().find(|isa| isa.is_available()).unwrap_or(Self::Baseline)
    }

    /// The name of the set in the environment variable.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The set that kernels run on: the best one, unless [`Isa::choose`] was first.
    #[must_use]
    pub fn chosen() -> Self {
        *CHOSEN.get_or_init(Self::best)
    }

    /// Makes kernels run on this set; returns false if they already run on another, which they then keep.
    #[must_use]
    pub fn choose(self) -> bool {
        *CHOSEN.get_or_init(|| self) == self
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        match self {
            Self::Baseline => true,
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Self::Baseline
    }
}

/// A loop worth compiling for each instruction set.
pub trait Loop {
    /// Its result.
    type Result;

    /// Runs it. This method, and everything in it that is to be vectorised, must be `#[inline(always)]`: only inlined
    /// code is compiled for the instruction set.
    fn run(self) -> Self::Result;
}

impl Isa {
    /// Runs a loop compiled for this instruction set.
    ///
    /// # Panics
    /// When the machine lacks the instruction set.
    pub fn run<L: Loop>(self, work: L) -> L::Result {
        assert!(self.is_available(), "this machine has no {self:?}");
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the assertion above has found the features that the function is compiled for.
            Self::Avx512 => unsafe { avx512(work) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx2 => unsafe { avx2(work) },
            _ => work.run(),
        }
    }

    /// Whether it has an instruction for [`Isa::look_up`]. Loads from a table in memory are not faster than arithmetic.
    pub(crate) fn can_look_up(self) -> bool {
        self == Self::Avx512
    }

    /// Gives each code, whose lowest four bits count, the two bytes of its entry in a table. Each table is for `size`
    /// codes. Panics if the machine lacks the instruction set, or this lacks the instruction.
    #[inline(always)]
    pub(crate) fn look_up(self, codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
        assert!(self.can_look_up() && self.is_available(), "this machine has no {self:?}");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the assertion has found the features that the function is compiled for.
        unsafe {
            look_up_avx512(codes, tables, size, out);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (codes, tables, size, out);
    }
}

/// Sixteen entries of two bytes.
pub(crate) type Table = [[u8; 2]; 16];

/// 32 codes at a time, which are in one group or in two.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn look_up_avx512(codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
    use std::arch::x86_64::{
        __m512i, _mm256_loadu_si256, _mm512_and_si512, _mm512_broadcast_i64x4, _mm512_cvtepu8_epi16,
        _mm512_loadu_si512, _mm512_or_si512, _mm512_permutexvar_epi16, _mm512_set_epi64, _mm512_set1_epi16,
        _mm512_storeu_si512,
    };
    const SIXTEENS: i64 = 0x0010_0010_0010_0010;
    // The entry of each code, of 32 entries.
    let entries = |table: __m512i, codes: __m512i, out: &mut [[u8; 2]; 32]| {
        // SAFETY: `out` has the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_permutexvar_epi16(codes, table)) };
    };
    // SAFETY: `codes` has the 32 bytes that are read.
    let wide = |codes: &[u8; 32]| _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) });
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
    } else {
        for ((codes, out), table) in codes.chunks(size).zip(out.chunks_mut(size)).zip(tables) {
            let ((codes, last), (out, last_out)) = (codes.as_chunks(), out.as_chunks_mut());
            // SAFETY: `table` has the 32 bytes that are read.
            let twice = _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(table.as_ptr().cast()) });
            for (codes, out) in codes.iter().zip(out) {
                entries(twice, wide(codes), out);
            }
            one_by_one(last, table, last_out);
        }
    }
}

/// Asks for the cache lines of bytes that will soon be read.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8]) {
    prefetch_behind(bytes, 0);
}

/// Prefetches the cache lines `distance` bytes behind each of these. They need not be part of the slice: the next
/// tensor usually follows.
#[inline(always)]
pub(crate) fn prefetch_behind(bytes: &[u8], distance: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it changes nothing but the cache, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(distance).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (bytes, distance);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<L: Loop>(work: L) -> L::Result {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<L: Loop>(work: L) -> L::Result {
    work.run()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
