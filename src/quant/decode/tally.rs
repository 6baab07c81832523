//! Counts of decoded values.

use crate::dtype::Dtype;
use std::ops::AddAssign;

/// Counts of decoded values that differ from code x scale x global scale, and of values that are not finite. Stored
/// scales are the reference: a library may round them before it multiplies. Sums do not depend on the order, so each
/// thread counts separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeTally {
    /// Values that are NaN although none of their factors is: products of 0 and infinity.
    pub nan: Occurrences,
    /// Values that are NaN because a factor is.
    pub input_nan: Occurrences,
    /// Values that are infinite although their factors are finite: the product is beyond the range of the target, or of an
    /// intermediate type.
    pub infinite: Occurrences,
    /// Values that are infinite because a factor is.
    pub input_infinite: Occurrences,
    /// Values that are 0 although no factor is; not counted for rotated weights.
    pub flushed: u64,
    /// Values that differ from the exact product; counted only by [`super::Decoder::watch`].
    pub inexact: Occurrences,
}

impl DecodeTally {
    /// Counts the value at `at`, which is NaN or infinite, and the product of these factors.
    pub(super) fn add_special(&mut self, at: u64, is_nan: bool, factors: &[f64]) {
        let is_input = factors.iter().any(|factor| if is_nan { factor.is_nan() } else { !factor.is_finite() });
        let counts = match (is_nan, is_input) {
            (true, true) => &mut self.input_nan,
            (true, false) => &mut self.nan,
            (false, true) => &mut self.input_infinite,
            (false, false) => &mut self.infinite,
        };
        counts.add(at);
    }
}

/// Returns the bytes of a value, and the bits of infinity; `None` for exact values, which are not counted.
pub(super) fn infinity(target: Dtype) -> Option<(usize, u32)> {
    match target {
        Dtype::Bfloat16 => Some((2, 0x7f80)),
        Dtype::Float16 => Some((2, 0x7c00)),
        Dtype::Float32 => Some((4, 0x7f80_0000)),
        _ => None,
    }
}

/// Returns the bits of an element.
pub(super) fn bits(element: &[u8]) -> u32 {
    element.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte))
}

/// Returns the bits of a float without its sign.
pub(super) fn magnitude(value: &[u8]) -> u32 {
    bits(value) & (u32::MAX >> (33 - 8 * value.len()))
}

/// Values of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occurrences {
    pub count: u64,
    /// Index of the first, counted in row-major order through the whole weight.
    pub first: Option<u64>,
}

impl Occurrences {
    /// Counts the value at `at`, which follows all values counted before.
    pub fn add(&mut self, at: u64) {
        self.count += 1;
        self.first.get_or_insert(at);
    }
}

impl AddAssign for Occurrences {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.first = self.first.into_iter().chain(other.first).min();
    }
}

impl AddAssign for DecodeTally {
    fn add_assign(&mut self, other: Self) {
        self.nan += other.nan;
        self.input_nan += other.input_nan;
        self.infinite += other.infinite;
        self.input_infinite += other.input_infinite;
        self.flushed += other.flushed;
        self.inexact += other.inexact;
    }
}
