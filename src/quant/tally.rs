//! What decoded values are, counted where they are decoded.

use std::ops::AddAssign;

/// How many values of a weight are not finite, and why. Sums in any order are equal, so threads add theirs up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeTally {
    /// Values that are NaN.
    pub nan: u64,
    /// Those of them whose code is NaN.
    pub nan_codes: u64,
    /// Those of them whose scale or global scale is NaN. The rest are products of 0 and infinity.
    pub nan_scales: u64,
    /// Values that are infinite.
    pub infinite: u64,
    /// Those of them whose scale is finite: the product is beyond the range of the target, or of a type on the way to it.
    pub overflowed: u64,
    /// Values that are 0 though neither their code nor their scale is; of rotated weights not counted.
    pub flushed: u64,
    /// The first value that is NaN, counted in row-major order through the whole weight.
    pub first_nan: Option<u64>,
    /// Likewise, infinite.
    pub first_infinite: Option<u64>,
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
        self.first_nan = first(self.first_nan, other.first_nan);
        self.first_infinite = first(self.first_infinite, other.first_infinite);
    }
}
