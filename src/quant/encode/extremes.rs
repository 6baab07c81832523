//! The largest magnitudes of values, which some scales need before encoding starts.

use super::rounding::WeightType;
use crate::dtype::Dtype;
use crate::kernel::half::float16;

/// The largest magnitude of a tensor and its first element that is not finite, for a scale of the whole tensor.
///
/// The extremes of pieces of a tensor, or of tensors that share a scale, can be [merged](Extremes::merge) in any order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extremes {
    /// The largest magnitude: infinite if an element is infinite, NaN if one is NaN. For float64, NaN in both cases.
    pub largest: f64,
    /// The first infinite or NaN element, by its index in row-major order.
    pub first_special: Option<u64>,
    /// The largest magnitude of each column as the bits of a float32, if each has a scale.
    pub columns: Vec<u32>,
}

impl Extremes {
    /// The extremes of no values.
    pub(crate) const NONE: Self = Self { largest: 0.0, first_special: None, columns: Vec::new() };

    /// Scans stored float64, float32, bfloat16 or float16 values, little-endian; the first of them is element `start`
    /// of the tensor. Panics if `source` is another dtype.
    #[must_use]
    pub fn of(source: Dtype, bytes: &[u8], start: u64) -> Self {
        if source == Dtype::Float64 {
            return Self::of_wide(bytes.as_chunks().0, start);
        }
        let weight = WeightType::new(source).expect("weights are float64, float32, bfloat16 or float16");
        Self::with_largest(weight, bytes, start, crate::kernel::Isa::chosen().run(Scan { weight, bytes }))
    }

    /// Makes the extremes of values whose largest magnitude has the bits `largest`.
    pub(super) fn with_largest(weight: WeightType, bytes: &[u8], start: u64, largest: u32) -> Self {
        let is_finite = largest < INFINITY;
        let width = weight.bytes() as u64;
        let first_special =
            (!is_finite).then(|| first_special(weight, bytes).map(|at| start + at as u64 / width)).flatten();
        Self { largest: f32::from_bits(largest).into(), first_special, columns: Vec::new() }
    }

    fn of_wide(values: &[[u8; 8]], start: u64) -> Self {
        let values = || values.iter().map(|bytes| f64::from_le_bytes(*bytes));
        let first_special = values().position(|value| !is_finite(value)).map(|at| start + at as u64);
        let largest = values().map(f64::abs).fold(0.0, f64::max);
        Self { largest: if first_special.is_some() { f64::NAN } else { largest }, first_special, columns: Vec::new() }
    }

    /// Combines these extremes with the extremes of another piece or tensor.
    pub fn merge(&mut self, other: &Self) {
        // Magnitudes are ordered like their bits, with NaN last.
        self.largest = f64::from_bits(self.largest.to_bits().max(other.largest.to_bits()));
        self.columns.resize(other.columns.len().max(self.columns.len()), 0);
        self.columns.iter_mut().zip(&other.columns).for_each(|(own, other)| *own = (*own).max(*other));
        self.first_special = self.first_special.into_iter().chain(other.first_special).min();
    }
}

/// True if a float64 can be encoded. From 2^128 on, it is infinite as a float32, like the products of the libraries.
#[inline(always)]
pub(super) fn is_finite(value: f64) -> bool {
    const LIMIT: f64 = f64::from_bits((1023 + 128) << 52);
    value.abs() < LIMIT
}

struct Scan<'a> {
    weight: WeightType,
    bytes: &'a [u8],
}

impl crate::kernel::Loop for Scan<'_> {
    type Result = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        largest(self.weight, self.bytes)
    }
}

/// The bits of infinity as float32; larger bit patterns without a sign are NaN.
pub(super) const INFINITY: u32 = 0x7f80_0000;

/// Returns the largest magnitude as the bits of a float32.
#[inline(always)]
pub(super) fn largest(weight: WeightType, bytes: &[u8]) -> u32 {
    let (mut narrow, mut wide) = (0, 0);
    if weight == WeightType::Float32 {
        for bytes in bytes.as_chunks().0 {
            let bits = u32::from_le_bytes(*bytes) & 0x7fff_ffff;
            wide = if bits > wide { bits } else { wide };
        }
    } else {
        for bytes in bytes.as_chunks().0 {
            let bits = u16::from_le_bytes(*bytes) & 0x7fff;
            narrow = if bits > narrow { bits } else { narrow };
        }
    }
    match weight {
        WeightType::Bfloat16 => u32::from(narrow) << 16,
        WeightType::Float16 => float16(narrow).to_bits(),
        WeightType::Float32 => wide,
    }
}

/// True if no value is nonzero and below 2^-50, so that the square of an error of a few bits less is not 0 in float32.
pub(super) struct AreLarge<'a> {
    pub(super) weight: WeightType,
    pub(super) bytes: &'a [u8],
}

impl crate::kernel::Loop for AreLarge<'_> {
    type Result = bool;

    #[inline(always)]
    fn run(self) -> bool {
        const LEAST: u32 = (127 - 50) << 23;
        let mut small = 0;
        match self.weight {
            WeightType::Float32 => {
                for bytes in self.bytes.as_chunks().0 {
                    let magnitude = u32::from_le_bytes(*bytes) & 0x7fff_ffff;
                    small |= u32::from((magnitude != 0) & (magnitude < LEAST));
                }
            }
            WeightType::Bfloat16 => {
                for bytes in self.bytes.as_chunks().0 {
                    let magnitude = u16::from_le_bytes(*bytes) & 0x7fff;
                    small |= u32::from((magnitude != 0) & (magnitude < (LEAST >> 16) as u16));
                }
            }
            // The least float16 is 2^-24.
            WeightType::Float16 => {}
        }
        small == 0
    }
}

/// Counts the stored values that are infinite or NaN, for the types of [`Extremes::of`].
pub(crate) fn count_special(source: Dtype, bytes: &[u8]) -> u64 {
    let is_special = |value: &&[u8]| match WeightType::new(source) {
        Some(weight) => largest(weight, value) >= INFINITY,
        None => value.first_chunk().is_some_and(|bytes| !is_finite(f64::from_le_bytes(*bytes))),
    };
    bytes.chunks_exact(source.bits() as usize / 8).filter(is_special).count() as u64
}

/// Returns the byte offset of the first value that is not finite.
pub(super) fn first_special(weight: WeightType, bytes: &[u8]) -> Option<usize> {
    let width = weight.bytes();
    let mut elements = bytes.chunks_exact(width);
    elements.position(|bytes| largest(weight, bytes) >= INFINITY).map(|at| at * width)
}
