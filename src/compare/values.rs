//! Elements of any two types as numbers that can be compared: float64, and 64-bit integers where that would round them.

use super::Side;
use super::pieces::Piece;
use crate::container::Elements;
use crate::conversion::Conversion;
use crate::dtype::{Class, Dtype};
use crate::error::Result;
use crate::kernel::{Form, Loss, Storage};
use crate::operator::cast::Attributes;

/// How the elements of a side are stored; `None` of opaque bytes.
pub(super) fn storage(side: &Side) -> Option<Storage> {
    match side.elements {
        Elements::Typed(Form::Numbers(storage)) => Some(storage),
        _ => None,
    }
}

/// What makes numbers of both sides' elements.
pub(super) struct Values {
    sides: [Widening; 2],
    /// Numbers of an element: 2 where one of the types is complex.
    pub(super) per_element: usize,
}

/// A block of both sides as float64.
pub(super) struct Floats {
    pub(super) values: [Vec<f64>; 2],
    /// Whether none was rounded.
    are_exact: bool,
}

struct Widening {
    float: Conversion,
    /// To 64 bits, for integers that have as many; and whether they are signed.
    integer: Option<(Conversion, bool)>,
    /// Numbers of an element, where the imaginary part of a real number does not count.
    parts: usize,
}

/// A number, exactly.
#[derive(Clone, Copy)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Values {
    /// `None` of opaque bytes.
    pub(super) fn new(sides: &[Side; 2]) -> Option<Self> {
        let [a, b] = sides.each_ref().map(storage);
        let sides = [Widening::new(a?)?, Widening::new(b?)?];
        let per_element = sides[0].parts.max(sides[1].parts);
        Some(Self { sides, per_element })
    }

    /// Whether there are integers that float64 may have to round.
    pub(super) fn are_wide(&self) -> bool {
        self.sides.iter().any(|side| side.integer.is_some())
    }

    /// Both as float64, and the place of the first number.
    pub(super) fn floats(&self, sides: &[Side; 2], block: &Piece) -> Result<(u64, Floats)> {
        let mut floats = Floats { values: [Vec::new(), Vec::new()], are_exact: true };
        for (at, widening) in self.sides.iter().enumerate() {
            let mut wide = Vec::new();
            let count = block.count * widening.parts;
            let start = block.start * widening.parts as u64;
            let lost = sides[at].run(&widening.float, start, block.bytes[at], count, &mut wide)?;
            floats.are_exact &= widening.integer.is_none() || lost[Loss::Inexact] == 0;
            let values = wide.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
            floats.values[at] = self.spread(widening, values, 0.0);
        }
        Ok((block.start * self.per_element as u64, floats))
    }

    /// How far the numbers of a block are apart.
    pub(super) fn distances(&self, sides: &[Side; 2], block: &Piece, floats: &Floats) -> Result<Vec<f64>> {
        let [a, b] = &floats.values;
        if floats.are_exact {
            return Ok(a.iter().zip(b).map(|(&a, &b)| distance(a, b)).collect());
        }
        let a = self.exact(0, &sides[0], block, a)?;
        let b = self.exact(1, &sides[1], block, b)?;
        Ok(a.into_iter().zip(b).map(|(a, b)| exact_distance(a, b)).collect())
    }

    fn exact(&self, at: usize, side: &Side, block: &Piece, floats: &[f64]) -> Result<Vec<Number>> {
        let widening = &self.sides[at];
        let Some((conversion, is_signed)) = &widening.integer else {
            return Ok(floats.iter().copied().map(Number::Float).collect());
        };
        let mut wide = Vec::new();
        side.run(conversion, block.start, block.bytes[at], block.count, &mut wide)?;
        let number = |bytes: &[u8; 8]| {
            let integer =
                if *is_signed { i64::from_le_bytes(*bytes).into() } else { u64::from_le_bytes(*bytes).into() };
            Number::Integer(integer)
        };
        let numbers = wide.as_chunks().0.iter().map(number).collect();
        Ok(self.spread(widening, numbers, Number::Integer(0)))
    }

    /// Real numbers beside complex ones have an imaginary part too.
    fn spread<T: Copy>(&self, widening: &Widening, numbers: Vec<T>, zero: T) -> Vec<T> {
        if widening.parts == self.per_element {
            return numbers;
        }
        numbers.into_iter().flat_map(|number| [number, zero]).collect()
    }
}

impl Widening {
    fn new(storage: Storage) -> Option<Self> {
        let dtype = storage.dtype.part();
        let from = Form::Numbers(Storage { dtype, ..storage });
        let widen = |to| Conversion::cast(from, Form::Numbers(Storage::packed(to)), Attributes::default().rules());
        let integer = match dtype.class() {
            Class::Int { signed } if dtype.bits() == 64 => {
                Some((widen(if signed { Dtype::Int64 } else { Dtype::Uint64 })?, signed))
            }
            _ => None,
        };
        let parts = if dtype == storage.dtype { 1 } else { 2 };
        Some(Self { float: widen(Dtype::Float64)?, integer, parts })
    }
}

/// |a - b|, which is 0 where they are equal and nowhere else. NaN is equal to NaN, and infinitely far from any number.
fn distance(a: f64, b: f64) -> f64 {
    let distance = (a - b).abs();
    let apart = if distance.is_nan() { f64::INFINITY } else { distance };
    #[allow(clippy::float_cmp, reason = "equality is meant exactly")]
    let are_equal = (a == b) | (a.is_nan() & b.is_nan());
    if are_equal { 0.0 } else { apart }
}

/// The same of integers that float64 may not hold.
fn exact_distance(a: Number, b: Number) -> f64 {
    /// Far beyond all integers there are, and few enough for the difference to fit in 128 bits.
    const BEYOND: f64 = 1e30;
    match (a, b) {
        (Number::Integer(a), Number::Integer(b)) => a.abs_diff(b) as f64,
        (Number::Float(a), Number::Float(b)) => distance(a, b),
        (Number::Integer(integer), Number::Float(float)) | (Number::Float(float), Number::Integer(integer)) => {
            if float.fract() == 0.0 && float.abs() < BEYOND {
                integer.abs_diff(float as i128) as f64
            } else {
                // A fraction is below 2^52: an integer near it is exact as float64.
                distance(integer as f64, float)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_values_have_no_distance() {
        assert_eq!((distance(0.0, -0.0), distance(f64::NAN, -f64::NAN)), (0.0, 0.0));
        assert_eq!((distance(f64::NAN, 1.0), distance(f64::INFINITY, 1.0)), (f64::INFINITY, f64::INFINITY));
        assert_eq!((distance(f64::INFINITY, f64::INFINITY), distance(1.0, -0.5)), (0.0, 1.5));
        assert!(distance(f64::INFINITY, f64::NEG_INFINITY).is_infinite());
        assert!(distance(f64::MIN_POSITIVE, f64::from_bits(f64::MIN_POSITIVE.to_bits() - 1)) > 0.0);
    }

    #[test]
    fn integers_are_not_rounded_before_they_are_compared() {
        let (integer, float) = (Number::Integer, Number::Float);
        let two_to_53 = 1_i128 << 53;
        let cases = [
            (integer(two_to_53), float(two_to_53 as f64), 0.0),
            (integer(two_to_53 + 1), float(two_to_53 as f64), 1.0),
            (integer(i64::MAX.into()), float(9_223_372_036_854_775_808.0), 1.0),
            (integer(u64::MAX.into()), float(18_446_744_073_709_551_616.0), 1.0),
            (integer(u64::MAX.into()), integer(i64::MIN.into()), 27_670_116_110_564_327_424.0),
            (integer(-1), integer(u64::MAX.into()), 18_446_744_073_709_551_616.0),
            (integer(3), float(2.5), 0.5),
            (integer(3), float(f64::NAN), f64::INFINITY),
            (integer(3), float(f64::NEG_INFINITY), f64::INFINITY),
            (integer(0), float(1e300), 1e300),
        ];
        for (a, b, wanted) in cases {
            assert_eq!((exact_distance(a, b), exact_distance(b, a)), (wanted, wanted));
        }
    }
}
