//! Casts of short runs of numbers, by the kernels.

use super::lanes::Float32Lane;
use crate::dtype::Dtype;
use crate::kernel::{Kernel, Rules, Storage};

/// Returns a cast between floats that keeps as much as possible.
pub(super) fn cast(source: Dtype, target: Dtype) -> Option<Kernel> {
    Kernel::cast(Storage::packed(source), Storage::packed(target), &Rules::LOSSLESS)
}

/// Runs a kernel over numbers of whole bytes, which cannot be malformed.
#[inline(always)]
pub(super) fn run(kernel: &Kernel, input: &[u8], output: &mut [u8], count: usize) {
    let _ = kernel.run(input, output, count);
}

/// An intermediate rounding: float32 to a narrower type and back.
pub(super) struct Through {
    narrow: Kernel,
    widen: Kernel,
}

impl Through {
    /// Creates the rounding to `dtype`; `None` if nothing is rounded.
    pub(super) fn new(dtype: Dtype) -> Option<Self> {
        let is_wide = dtype == Dtype::Float32;
        (!is_wide).then(|| Some(Self { narrow: cast(Dtype::Float32, dtype)?, widen: cast(dtype, Dtype::Float32)? }))?
    }

    #[inline(always)]
    pub(super) fn round(&self, lane: &mut Float32Lane, scratch: &mut [u8]) {
        let (count, lane) = (lane.len(), lane.as_flattened_mut());
        run(&self.narrow, lane, &mut scratch[..2 * count], count);
        run(&self.widen, &scratch[..2 * count], lane, count);
    }
}
