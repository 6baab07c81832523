//! The same loop, compiled for several instruction sets and chosen when it runs.
//!
//! There is no hand-written vector code: the loop has no branch on values, so the compiler vectorises it, and a
//! wider instruction set only needs to be allowed. Every set gives the same bits; a test forces each of them.
#![allow(unsafe_code, reason = "a function compiled for an instruction set may only run where the set exists")]

use super::{Counts, Kernel, Malformed};

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

    /// The best set that this machine has.
    #[must_use]
    pub fn best() -> Self {
        [Self::Avx512, Self::Avx2].into_iter().find(|isa| isa.is_available()).unwrap_or(Self::Baseline)
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

pub(super) fn dispatch(
    isa: Isa,
    kernel: &Kernel,
    input: &[u8],
    output: &mut [u8],
    count: usize,
) -> Result<Counts, Malformed> {
    assert!(isa.is_available(), "this machine has no {isa:?}");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the assertion above has found the features that the function is compiled for.
        Isa::Avx512 => unsafe { avx512(kernel, input, output, count) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2(kernel, input, output, count) },
        _ => kernel.run_blocks(input, output, count),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512(kernel: &Kernel, input: &[u8], output: &mut [u8], count: usize) -> Result<Counts, Malformed> {
    kernel.run_blocks(input, output, count)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(kernel: &Kernel, input: &[u8], output: &mut [u8], count: usize) -> Result<Counts, Malformed> {
    kernel.run_blocks(input, output, count)
}
