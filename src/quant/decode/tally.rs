//! Counts of decoded values.

use std::ops::AddAssign;

/// How many values of a weight are not finite, and why. Sums do not depend on the order, so each thread counts on its
/// own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeTally {
    /// Values that are NaN.
    pub nan: u64,
    /// NaN values whose code is NaN.
    pub nan_codes: u64,
    /// NaN values whose code is a number and whose scale or global scale is NaN. The rest are products of 0 and infinity.
    pub nan_scales: u64,
    /// Values that are infinite.
    pub infinite: u64,
    /// Infinite values whose scale is finite: the product is beyond the range of the target, or of an intermediate
    /// type.
    pub overflowed: u64,
    /// Values that are 0 although neither their code nor their scale is; not counted for rotated weights.
    pub flushed: u64,
    /// Values that are not the exact product of code, scale and global scale; counted only by [`super::Decoder::watch`].
    pub inexact: u64,
    /// The first NaN, counted in row-major order through the whole weight.
    pub first_nan: Option<u64>,
    /// The first infinite value.
    pub first_infinite: Option<u64>,
    /// The first inexact value.
    pub first_inexact: Option<u64>,
}

impl AddAssign for DecodeTally {
    fn add_assign(&mut self, other: Self) {
        let first = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        self.nan += other.nan;
        self.nan_codes += other.nan_codes;
        self.nan_scales += other.nan_scales;
        self.infinite += other.infinite;
        self.overflowed += other.overflowed;
        self.flushed += other.flushed;
        self.inexact += other.inexact;
        self.first_inexact = first(self.first_inexact, other.first_inexact);
        self.first_nan = first(self.first_nan, other.first_nan);
        self.first_infinite = first(self.first_infinite, other.first_infinite);
    }
}
