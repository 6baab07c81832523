//! The types of values: float32, and float64 for exact values.

use std::ops::{BitOr, Mul, Sub};

/// A type of values, whose bytes are little endian.
pub(super) trait Real: From<f32> + From<i8> + Copy + Mul<Output = Self> + Sub<Output = Self> {
    type Bytes: Copy;
    /// The unsigned integer of the same width.
    type Bits: BitOr<Output = Self::Bits> + Default;
    const ZERO: Self;
    const NAN: Self;
    fn from_bytes(bytes: Self::Bytes) -> Self;
    fn to_bytes(self) -> Self::Bytes;
    fn is_nan(self) -> bool;
    /// Returns a number whose highest bit is set if the product of `value` and a factor is infinite, NaN, or 0 although
    /// the value is not.
    fn mark(value: Self, product: Self) -> Self::Bits;
    /// True if the highest bit is set.
    fn is_marked(marks: Self::Bits) -> bool;
}

macro_rules! real {
    ($float:ty, $bits:ty) => {
        impl Real for $float {
            type Bytes = [u8; size_of::<$float>()];
            type Bits = $bits;
            const ZERO: Self = 0.0;
            const NAN: Self = <$float>::NAN;
            #[inline(always)]
            fn from_bytes(bytes: Self::Bytes) -> Self {
                Self::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn to_bytes(self) -> Self::Bytes {
                self.to_le_bytes()
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            #[inline(always)]
            fn mark(value: Self, product: Self) -> $bits {
                const LAST_EXPONENT_BIT: $bits = 1 << (<$float>::MANTISSA_DIGITS - 1);
                let is_flushed = (product == 0.0) & (value != 0.0);
                // A carry out of the exponent shows that all of its bits are set.
                (product.abs().to_bits() + LAST_EXPONENT_BIT) | if is_flushed { 1 << (<$bits>::BITS - 1) } else { 0 }
            }
            #[inline(always)]
            fn is_marked(marks: $bits) -> bool {
                marks >> (<$bits>::BITS - 1) != 0
            }
        }
    };
}

real!(f32, u32);
real!(f64, u64);
