//! Elements of any two types as numbers that can be compared: float64, and 64-bit integers if float64 would round them.

use crate::container::{Elements, Form};
use crate::conversion::Conversion;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::kernel::{Counts, Loss, Storage};
use crate::measure::number::{Number, difference, integers, is_wide_integer};
use crate::operator::cast::CastAttributes;
use crate::read::{LogicalTensor, Piece};

/// Returns the storage of a side's elements; `None` for opaque bytes.
pub(super) fn storage(side: &LogicalTensor) -> Option<Storage> {
    match side.elements() {
        Elements::Typed(Form::Numbers(storage)) => Some(storage),
        _ => None,
    }
}

/// Converts `count` elements of a side from index `start` on.
pub(super) fn convert(
    how: &Conversion,
    side: &LogicalTensor,
    start: u64,
    input: &[u8],
    count: usize,
    output: &mut Vec<u8>,
) -> Result<Counts> {
    how.convert(side.named(), start, input, count, output).map_err(|error| side.error(error))
}

/// Conversion of the elements of both sides to comparable numbers.
pub(super) struct ValuePairs {
    sides: [SideConversion; 2],
    /// Numbers per element: 2 if one of the types is complex.
    pub(super) per_element: usize,
}

/// A block of both sides as float64.
pub(super) struct Float64Block {
    pub(super) values: [Vec<f64>; 2],
    /// True if none was rounded.
    are_exact: bool,
}

struct SideConversion {
    float: Conversion,
    /// Conversion to little endian, for 64-bit integers.
    integer: Option<Conversion>,
    /// Numbers per element, without the imaginary part of a real number.
    parts: usize,
}

impl ValuePairs {
    /// Creates the conversion; `None` for opaque bytes.
    pub(super) fn new(sides: &[LogicalTensor; 2]) -> Option<Self> {
        let [a, b] = sides.each_ref().map(storage);
        let sides = [SideConversion::new(a?)?, SideConversion::new(b?)?];
        let per_element = sides[0].parts.max(sides[1].parts);
        Some(Self { sides, per_element })
    }

    /// Returns both sides as float64, and the index of the first number.
    pub(super) fn floats(&self, sides: &[LogicalTensor; 2], block: &Piece<2>) -> Result<(u64, Float64Block)> {
        let mut floats = Float64Block { values: [Vec::new(), Vec::new()], are_exact: true };
        for (at, widening) in self.sides.iter().enumerate() {
            let mut wide = Vec::new();
            let count = block.count * widening.parts;
            let start = block.start * widening.parts as u64;
            let lost = convert(&widening.float, &sides[at], start, block.bytes[at], count, &mut wide)?;
            floats.are_exact &= widening.integer.is_none() || lost[Loss::Inexact] == 0;
            let values = wide.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
            floats.values[at] = self.spread(widening, values, 0.0);
        }
        Ok((block.start * self.per_element as u64, floats))
    }

    /// Subtracts the numbers of A from the numbers of B: 0 exactly where they are equal, NaN where only one is NaN.
    pub(super) fn differences(
        &self,
        sides: &[LogicalTensor; 2],
        block: &Piece<2>,
        floats: &Float64Block,
    ) -> Result<Vec<f64>> {
        let [a, b] = &floats.values;
        if floats.are_exact {
            return Ok(a.iter().zip(b).map(|(&a, &b)| difference(a, b)).collect());
        }
        let a = self.exact(0, &sides[0], block, a)?;
        let b = self.exact(1, &sides[1], block, b)?;
        Ok(a.into_iter().zip(b).map(|(a, b)| a.to(b)).collect())
    }

    fn exact(&self, at: usize, side: &LogicalTensor, block: &Piece<2>, floats: &[f64]) -> Result<Vec<Number>> {
        let widening = &self.sides[at];
        let Some(conversion) = &widening.integer else {
            return Ok(floats.iter().copied().map(Number::Float).collect());
        };
        let mut wide = Vec::new();
        convert(conversion, side, block.start, block.bytes[at], block.count, &mut wide)?;
        Ok(self.spread(widening, integers(conversion.to.dtype(), &wide), Number::Integer(0)))
    }

    /// Adds an imaginary part to real numbers that are compared with complex ones.
    fn spread<T: Copy>(&self, widening: &SideConversion, numbers: Vec<T>, zero: T) -> Vec<T> {
        if widening.parts == self.per_element {
            return numbers;
        }
        numbers.into_iter().flat_map(|number| [number, zero]).collect()
    }
}

impl SideConversion {
    fn new(storage: Storage) -> Option<Self> {
        let dtype = storage.dtype.part();
        let from = Form::Numbers(Storage { dtype, ..storage });
        let widen = |to| Conversion::cast(from, Form::Numbers(Storage::packed(to)), CastAttributes::default().rules());
        let integer = if is_wide_integer(dtype) { Some(widen(dtype)?) } else { None };
        let parts = if dtype == storage.dtype { 1 } else { 2 };
        Some(Self { float: widen(Dtype::Float64)?, integer, parts })
    }
}
