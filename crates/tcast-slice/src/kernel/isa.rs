//! One loop, compiled for several instruction sets and chosen at run time.
//!
//! Loops do not branch on values, so the compiler vectorises them, and a wider instruction set only has to be enabled.
//! The only instruction that the compiler does not generate by itself is the table lookup in registers: see `look_up`.
//! Every set gives the same bits; tests force each of them.
#![allow(unsafe_code, reason = "a function compiled for an instruction set may only run where the set exists")]

use std::hint::black_box;
use std::sync::OnceLock;

/// The result of [`Isa::chosen`] for the life of the process.
static CHOSEN: OnceLock<Isa> = OnceLock::new();

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Instructions that every machine of the target architecture has.
    Baseline,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// The sets that this machine has, the best last.
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

    /// The set that kernels run on: the best one, unless [`Isa::choose`] was called first.
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
    pub(super) fn is_available(self) -> bool {
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
    pub(super) fn is_available(self) -> bool {
        self == Self::Baseline
    }
}

/// A loop worth compiling for each instruction set.
pub trait Loop {
    /// Result of the loop.
    type Result;

    /// Runs the loop. This method, and everything in it that is to be vectorised, must be `#[inline(always)]`: only
    /// inlined code is compiled for the instruction set.
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
            // SAFETY: the assertion above has checked the features that the function is compiled for.
            Self::Avx512 => unsafe { avx512(work) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx2 => unsafe { avx2(work) },
            _ => work.run(),
        }
    }
}

/// Returns 1, hidden from the compiler. Adding either it or 0 then becomes an addition under a mask, which saves a step
/// with AVX-512.
#[inline(always)]
pub fn hidden_one<T: From<u8>>() -> T {
    black_box(T::from(1))
}

/// Prefetches the cache lines of bytes that will soon be read.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    prefetch_behind(bytes, 0);
    // Bytes that do not begin at a line can end in one more line.
    prefetch_line(bytes, bytes.len().wrapping_sub(1));
}

/// Prefetches the cache line of the byte at `at`, if it exists.
#[inline(always)]
pub fn prefetch_line(bytes: &[u8], at: usize) {
    prefetch_behind(bytes.get(at).map_or(&[], std::slice::from_ref), 0);
}

/// Prefetches the cache lines `distance` bytes after the lines of `items`. They need not be part of the slice: the next
/// tensor usually follows.
#[inline(always)]
pub fn prefetch_behind<T>(items: &[T], distance: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in items.chunks(64 / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction changes nothing but the cache, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast::<i8>().wrapping_add(distance)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (items, distance);
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
