//! Elements of two tensors as numbers that can be compared: float64, and 64-bit integers where float64 rounds them.

use super::accuracy::{AccuracyTally, BLOCK};
use super::number::{Number, difference, integers, is_wide_integer};
use crate::container::Form;
use crate::conversion::{Conversion, NamedElements};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::{Loss, Storage};
use crate::operator::cast::CastAttributes;
use crate::read::Piece;

/// Conversion of the elements of two tensors, A and B, to numbers that can be compared.
pub(crate) struct NumberPairs {
    sides: [Widener; 2],
    /// Numbers per element: 2 if one of the types is complex.
    pub(super) per_element: usize,
}

/// Conversion of elements to float64, which holds all types of at most 32 bits and all floats.
struct Widener {
    float: Conversion,
    /// Conversion to little endian, for 64-bit integers.
    integer: Option<Conversion>,
    /// Numbers per element, without the imaginary part of a real number.
    parts: usize,
}

impl Widener {
    /// Creates a widener; `None` for text.
    fn new(storage: Storage) -> Option<Self> {
        let dtype = storage.dtype.part();
        let from = Form::Numbers(Storage { dtype, ..storage });
        let widen = |to| Conversion::cast(from, Form::Numbers(Storage::packed(to)), CastAttributes::default().rules());
        let integer = if is_wide_integer(dtype) { Some(widen(dtype)?) } else { None };
        Some(Self { float: widen(Dtype::Float64)?, integer, parts: if dtype == storage.dtype { 1 } else { 2 } })
    }
}

/// The numbers of some elements of both sides.
#[derive(Default)]
pub(super) struct NumberBlock {
    /// Index of the first number.
    pub(super) start: u64,
    pub(super) values: [Vec<f64>; 2],
    /// Differences of B from A: 0 exactly where they are equal, NaN where only one is NaN.
    pub(super) differences: Vec<f64>,
    bytes: Vec<u8>,
}

impl NumberPairs {
    /// Creates the conversion; `None` for text and opaque bytes.
    pub(super) fn new([a, b]: [Option<Storage>; 2]) -> Option<Self> {
        let sides = [Widener::new(a?)?, Widener::new(b?)?];
        let per_element = sides[0].parts.max(sides[1].parts);
        Some(Self { sides, per_element })
    }

    /// Creates the conversion for the source and the result of a cast; `None` if one of them is text or complex.
    pub(crate) fn of_cast(from: Form, to: Form) -> Option<Self> {
        let storage = |form| if let Form::Numbers(storage) = form { Some(storage) } else { None };
        Self::new([from, to].map(storage)).filter(|pairs| pairs.per_element == 1)
    }

    /// Reads the elements of a piece of both sides. `in_side` adds the side to an error.
    pub(super) fn read(
        &self,
        elements: [NamedElements; 2],
        piece: &Piece<2>,
        block: &mut NumberBlock,
        in_side: impl Fn(usize, Error) -> Error,
    ) -> Result<()> {
        block.start = piece.start * self.per_element as u64;
        let convert = |at: usize, how: &Conversion, bytes: &mut Vec<u8>| {
            let (start, count) = (piece.start * self.sides[at].parts as u64, piece.count * self.sides[at].parts);
            how.convert(elements[at], start, piece.bytes[at], count, bytes).map_err(|error| in_side(at, error))
        };
        let mut is_rounded = false;
        for (at, side) in self.sides.iter().enumerate() {
            let counts = convert(at, &side.float, &mut block.bytes)?;
            is_rounded |= side.integer.is_some() && counts[Loss::Inexact] > 0;
            let values = block.bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
            block.values[at].clear();
            if side.parts < self.per_element {
                block.values[at].extend(values.flat_map(|value| [value, 0.0]));
            } else {
                block.values[at].extend(values);
            }
        }
        let [a, b] = &block.values;
        block.differences.clear();
        if !is_rounded {
            block.differences.extend(a.iter().zip(b).map(|(a, b)| difference(*a, *b)));
            return Ok(());
        }
        let mut exact = |at: usize| -> Result<Vec<Number>> {
            let (side, floats) = (&self.sides[at], &block.values[at]);
            let Some(integer) = &side.integer else { return Ok(floats.iter().copied().map(Number::Float).collect()) };
            convert(at, integer, &mut block.bytes)?;
            let numbers = integers(integer.to.dtype(), &block.bytes);
            let imaginary = || (side.parts < self.per_element).then_some(Number::Integer(0));
            Ok(numbers.into_iter().flat_map(|number| std::iter::once(number).chain(imaginary())).collect())
        };
        let numbers = exact(0)?.into_iter().zip(exact(1)?);
        block.differences.extend(numbers.map(|(a, b)| a.to(b)));
        Ok(())
    }

    /// Tallies some elements of a cast that succeeded; `start` is the index of the first.
    pub(crate) fn tally(&self, start: u64, [source, result]: [&[u8]; 2], count: usize) -> AccuracyTally {
        let (mut tally, mut block) = (AccuracyTally::default(), NumberBlock::default());
        let elements = NamedElements { count: start + count as u64, shape: &[], fortran_order: false };
        for first in (0..count).step_by(BLOCK) {
            let place = |form: Form| form.bytes(first as u64).unwrap_or_default() as usize;
            let bytes = [&source[place(self.sides[0].float.from)..], &result[place(self.sides[1].float.from)..]];
            let piece = Piece { start: start + first as u64, count: BLOCK.min(count - first), bytes };
            self.read([elements; 2], &piece, &mut block, |_, error| error).expect("both were converted");
            tally.add(piece.start, [&block.values[0], &block.values[1], &block.differences]);
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_64_bits_are_compared_as_integers() {
        let form = |dtype| Form::Numbers(Storage::packed(dtype));
        let two_to_53 = 1_i64 << 53;
        let integers = [two_to_53 + 1, 3, -two_to_53 - 1].map(i64::to_le_bytes).concat();
        let floats = [two_to_53 as f64, 3.0, -two_to_53 as f64].map(f64::to_le_bytes).concat();
        let pairs = NumberPairs::of_cast(form(Dtype::Int64), form(Dtype::Float64)).unwrap();
        let accuracy = pairs.tally(0, [&integers, &floats], 3).accuracy();
        assert_eq!((accuracy.is_exact, accuracy.max_abs_error, accuracy.max_abs_error_at), (false, 1.0, Some(0)));
        assert_eq!(accuracy.mean_error, Some(0.0));
        let pairs = NumberPairs::of_cast(form(Dtype::Int64), form(Dtype::Uint64)).unwrap();
        assert!(!pairs.tally(0, [&integers, &integers], 3).accuracy().is_exact); // -2^53 - 1 wrapped
        assert!(pairs.tally(0, [&integers, &integers], 2).accuracy().is_exact);
    }
}
