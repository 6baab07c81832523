//! Containment of types: whether one type holds all values of another, computed from their formats.

use super::{Class, Dtype, FloatFormat, Specials};

/// Properties that decide whether one set of floats contains another.
struct Extent {
    /// Digits after the first one.
    digits: u32,
    /// Exponent of the smallest positive number.
    lowest: i32,
    /// Largest number: its exponent, and its digits after the first as a fraction of 2^52.
    highest: (i32, u64),
    has_infinity: bool,
    has_nan: bool,
}

impl Extent {
    fn new(format: &FloatFormat) -> Self {
        let (code, digits) = (format.max_finite(), format.mantissa_bits);
        let fraction = code & ((1 << digits) - 1);
        Self {
            digits,
            lowest: format.min_subnormal_exponent(),
            highest: ((code >> digits) as i32 - format.bias, fraction << (52 - digits)),
            has_infinity: format.specials == Specials::Ieee,
            has_nan: format.specials != Specials::Finite,
        }
    }

    /// Describes integers as floats: a limited number of digits, from 1 up. A signed type includes a power of two on
    /// one side.
    fn of_int(bits: u32, signed: bool) -> Self {
        let digits = (bits - 1).saturating_sub(u32::from(signed));
        let fraction = if signed { 0 } else { (1_u128 << 52 >> digits).wrapping_neg() as u64 & ((1 << 52) - 1) };
        let highest = (bits as i32 - 1, fraction);
        Self { digits, lowest: 0, highest, has_infinity: false, has_nan: false }
    }

    /// True if this set contains `other`, including Inf and NaN. A float type holds the multiples of its smallest
    /// number that have at most `digits` digits after the first, up to the largest.
    fn holds(&self, other: &Self) -> bool {
        self.digits >= other.digits
            && self.lowest <= other.lowest
            && self.highest >= other.highest
            && self.has_infinity >= other.has_infinity
            && self.has_nan >= other.has_nan
    }
}

/// The 255 powers of two of E8M0, and NaN.
const SCALE: Extent = Extent { digits: 0, lowest: -127, highest: (127, 0), has_infinity: false, has_nan: true };

impl Dtype {
    /// The type of the real part; for a type that is not complex, the type itself.
    #[doc(hidden)] // for conversions
    #[must_use]
    pub fn part(self) -> Self {
        match self {
            Self::Complex64 => Self::Float32,
            Self::Complex128 => Self::Float64,
            real => real,
        }
    }

    /// True if this type holds every value of `other`, including Inf and NaN; the sign of a zero is ignored.
    ///
    /// No other type holds strings, and no integer type holds a float.
    #[must_use]
    pub fn holds(self, other: Self) -> bool {
        match (self.class(), other.class()) {
            (Class::Int { signed }, Class::Int { signed: other_signed }) => {
                (signed == other_signed && self.bits() >= other.bits()) || (signed && self.bits() > other.bits())
            }
            (Class::Float(format), Class::Float(other)) => Extent::new(&format).holds(&Extent::new(&other)),
            (Class::Float(format), Class::Scale) => Extent::new(&format).holds(&SCALE),
            (Class::Float(format), Class::Int { signed }) => {
                Extent::new(&format).holds(&Extent::of_int(other.bits(), signed))
            }
            (Class::Int { .. } | Class::Float(_), Class::Bool) => true,
            (Class::Complex, _) => self.part().holds(other.part()),
            _ => self == other,
        }
    }
}
