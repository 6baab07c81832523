//! A float format as data: the widths of its fields, its bias, and the codes that are infinite or NaN.

/// Set of codes of a float format that are infinite or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// The top exponent holds Inf and NaN (IEEE 754-2019, 3.4; also OCP OFP8 E5M2).
    Ieee,
    /// No Inf; all ones is NaN, in both signs (OCP OFP8 E4M3).
    Fn,
    /// No Inf, no negative zero; the code of negative zero is the one NaN.
    Fnuz,
    /// Every code is a finite number (OCP MX 1.0: FP4, FP6).
    Finite,
}

/// A binary float format of at most 64 bits: sign, exponent, mantissa from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatFormat {
    /// Width of the exponent field in bits.
    pub exponent_bits: u32,
    /// Width of the mantissa field in bits, without the hidden bit.
    pub mantissa_bits: u32,
    /// Number subtracted from the exponent field.
    pub bias: i32,
    /// Codes that are infinite or NaN.
    pub specials: Specials,
}

impl FloatFormat {
    /// binary16 (IEEE 754-2019, 3.6).
    pub const FLOAT16: Self = Self { exponent_bits: 5, mantissa_bits: 10, bias: 15, specials: Specials::Ieee };

    /// The sign bit.
    #[must_use]
    pub const fn sign(&self) -> u64 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The code of the largest finite number.
    #[must_use]
    pub const fn max_finite(&self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity() - 1,
            Specials::Fn => self.sign() - 2,
            Specials::Fnuz | Specials::Finite => self.sign() - 1,
        }
    }

    /// The code with an exponent of all ones and no mantissa: infinity, in [`Specials::Ieee`] formats.
    #[must_use]
    pub const fn infinity(&self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// The code of a positive NaN (quiet, without payload).
    ///
    /// Formats without NaN return their negative zero, as ONNX's node tests do.
    #[must_use]
    pub const fn nan(&self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity() | 1 << (self.mantissa_bits - 1),
            Specials::Fn => self.sign() - 1,
            Specials::Fnuz | Specials::Finite => self.sign(),
        }
    }

    /// True if `other` contains every number of this format.
    #[must_use]
    pub const fn is_within(&self, other: &Self) -> bool {
        if self.mantissa_bits > other.mantissa_bits || self.min_subnormal_exponent() < other.min_subnormal_exponent() {
            return false;
        }
        // The largest number, with the bias and mantissa width of `other`.
        let max = (self.max_finite() as i64) << (other.mantissa_bits - self.mantissa_bits);
        max + (((other.bias - self.bias) as i64) << other.mantissa_bits) <= other.max_finite() as i64
    }

    /// The exponent of the smallest positive number, a power of two.
    #[must_use]
    pub const fn min_subnormal_exponent(&self) -> i32 {
        1 - self.bias - self.mantissa_bits as i32
    }

    /// The exponent of the smallest positive number with full precision.
    #[must_use]
    pub const fn min_normal_exponent(&self) -> i32 {
        1 - self.bias
    }

    /// The exponents at which the rounding of numbers to this format changes.
    #[must_use]
    pub const fn edges(&self) -> FloatEdges {
        let max = (self.max_finite() >> self.mantissa_bits) as i32 - self.bias;
        FloatEdges { subnormal: self.min_subnormal_exponent() - 1, normal: self.min_normal_exponent(), beyond: max + 1 }
    }
}

/// The exponents at which the rounding of numbers to a format changes, each the first of its kind.
#[derive(Clone, Copy, Debug)]
pub struct FloatEdges {
    /// Numbers become subnormal, except exactly half of the smallest one, which becomes zero like all smaller numbers.
    pub subnormal: i32,
    /// Numbers have all digits.
    pub normal: i32,
    /// Numbers are too large.
    pub beyond: i32,
}
