//! Numbers and opaque bytes: first the bits; if they differ, values and accuracy.

use super::values::{ValuePairs, convert, storage};
use super::{Comparison, Difference, Shown, Status, Tolerance};
use crate::container::Form;
use crate::conversion::Conversion;
use crate::error::Result;
use crate::kernel::{Kernel, Storage};
use crate::measure::accuracy::{AccuracyTally, BLOCK};
use crate::measure::bits::{codes, hex, meaning};
use crate::read::{LogicalTensor, Piece, Zip};
use crate::text::hex_digits;
use std::ops::ControlFlow;

/// Number of bytes of a side in a piece when bits are compared.
const PIECE: u64 = 1 << 20;
/// Number of elements in a piece when values are compared: the same for every type, so that results do not depend on
/// it.
const VALUES: u64 = 1 << 17;

pub(super) fn compare(mut zip: Zip<2>, tolerance: Option<Tolerance>) -> Result<Comparison> {
    let sides = zip.sources;
    let bits = BitComparison::new(&sides);
    if let Some(bits) = &bits
        && bits.are_all_equal(&mut zip)?
    {
        return Ok(Comparison::of(Status::Equal));
    }
    let values = ValuePairs::new(&sides);
    let piece = if values.is_some() { VALUES } else { piece_of_bits(&sides) };
    let look = Look { sides, bits, values, tolerance };
    let mut seen = Seen::default();
    let append = |next| {
        seen.append(next);
        ControlFlow::Continue(())
    };
    let read = zip.read(piece, || (), |(), piece| look.at(piece), append);
    // The position of the first difference helps to repair a damaged file.
    let first = [&seen.beyond, &seen.unequal, &seen.bits].into_iter().find_map(|spots| spots.first.as_ref());
    read.map_err(|error| match first {
        Some((element, [a, b])) if error.remedy_text().is_none() => {
            let index = sides[0].indices(*element);
            error.remedy(format!("the first difference is at {index:?}: {}, {}", a.value, b.value))
        }
        _ => error,
    })?;
    Ok(look.outcome(seen))
}

/// True if the types and all bits of two tensors are equal.
pub(super) fn are_equal(mut zip: Zip<2>) -> Result<bool> {
    BitComparison::new(&zip.sources).map_or(Ok(false), |bits| bits.are_all_equal(&mut zip))
}

/// Returns the number of elements in a piece when bits are compared.
fn piece_of_bits(sides: &[LogicalTensor; 2]) -> u64 {
    // Packed elements start on whole bytes, and 8 of them end on one.
    let width = sides.iter().map(|side| side.bytes(8).div_ceil(8) as u64).max().unwrap_or(1);
    (PIECE / width.max(1)).max(1)
}

/// Comparison of bits: as stored if both sides are stored alike, otherwise little endian with a byte or more per
/// element.
struct BitComparison {
    are_alike: bool,
    /// Conversion of each side to that form; `None` if none is needed or the bytes are opaque.
    ordered: Option<[Conversion; 2]>,
    /// Bytes of an element in that form.
    width: usize,
}

impl BitComparison {
    /// Creates the comparison; `None` for different types.
    fn new(sides: &[LogicalTensor; 2]) -> Option<Self> {
        let [a, b] = sides.each_ref().map(storage);
        let (Some(a), Some(b)) = (a, b) else {
            return Some(Self { are_alike: true, ordered: None, width: sides[0].bytes(1) });
        };
        if a.dtype != b.dtype {
            return None;
        }
        let target = Storage::per_byte(a.dtype);
        let width = target.bytes(1)? as usize;
        let are_alike = a == b;
        if are_alike && sides[0].bytes(8) == 8 * width {
            return Some(Self { are_alike, ordered: None, width });
        }
        let order = |from| Conversion::copy(Form::Numbers(from), Form::Numbers(target));
        Some(Self { are_alike, ordered: Some([order(a)?, order(b)?]), width })
    }

    /// Reads both sides until a piece differs; true if none does.
    fn are_all_equal(&self, zip: &mut Zip<2>) -> Result<bool> {
        let sides = zip.sources;
        let mut are_equal = true;
        let until_unequal = |piece_is_equal| {
            are_equal &= piece_is_equal;
            if are_equal { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        zip.read(piece_of_bits(&sides), || (), |(), piece| self.are_equal(&sides, piece), until_unequal)?;
        Ok(are_equal)
    }

    fn are_equal(&self, sides: &[LogicalTensor; 2], piece: &Piece<2>) -> Result<bool> {
        if self.are_alike {
            return Ok(piece.bytes[0] == piece.bytes[1]);
        }
        let mut buffers = [Vec::new(), Vec::new()];
        for block in piece.blocks(sides, BLOCK) {
            let [a, b] = self.order(sides, &block, &mut buffers)?;
            if a != b {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn order<'a>(
        &self,
        sides: &[LogicalTensor; 2],
        block: &Piece<'a, 2>,
        buffers: &'a mut [Vec<u8>; 2],
    ) -> Result<[&'a [u8]; 2]> {
        let Some(ordered) = &self.ordered else { return Ok(block.bytes) };
        for at in 0..2 {
            convert(&ordered[at], &sides[at], block.start, block.bytes[at], block.count, &mut buffers[at])?;
        }
        Ok(buffers.each_ref().map(Vec::as_slice))
    }

    /// Calls `differs` with each element whose bits differ, counted from the start of a block.
    fn differences(&self, sides: &[LogicalTensor; 2], block: &Piece<2>, mut differs: impl FnMut(usize)) -> Result<()> {
        let mut buffers = [Vec::new(), Vec::new()];
        let [a, b] = self.order(sides, block, &mut buffers)?;
        let pairs = a.chunks_exact(self.width).zip(b.chunks_exact(self.width));
        let mut found = false;
        for (at, _) in pairs.enumerate().filter(|(_, (a, b))| a != b) {
            differs(at);
            found = true;
        }
        // Padding in the last byte of packed elements belongs to no element and is attributed to the last one.
        if !found && self.are_alike {
            differs(block.count - 1);
        }
        Ok(())
    }
}

/// Elements with some property: their number, and the first one with the elements of both sides.
#[derive(Default)]
struct Spots {
    count: u64,
    first: Option<(u64, [Shown; 2])>,
}

impl Spots {
    fn add(&mut self, sides: &[LogicalTensor; 2], block: &Piece<2>, at: usize) {
        self.count += 1;
        self.first.get_or_insert_with(|| {
            (block.start + at as u64, [0, 1].map(|side| shown(&sides[side], block.bytes[side], at)))
        });
    }

    fn append(&mut self, next: Self) {
        self.count += next.count;
        self.first = self.first.take().or(next.first);
    }
}

fn shown(side: &LogicalTensor, bytes: &[u8], at: usize) -> Shown {
    let Some(storage) = storage(side) else {
        let opaque = &bytes[side.bytes(at as u64)..side.bytes(at as u64 + 1)];
        let digits = hex_digits(&opaque[..opaque.len().min(32)]);
        return Shown { value: format!("bytes {digits}"), bits: Some(digits) };
    };
    // Packed elements are read from the start of a byte.
    let (start, target) = (at / 8 * 8, Storage::per_byte(storage.dtype));
    let count = at - start + 1;
    let mut ordered = vec![0; target.bytes(count as u64).unwrap_or_default() as usize];
    let kernel = Kernel::copy(storage, target);
    // Excess bits are reported where the value is needed.
    let _ = kernel.map(|kernel| kernel.run(&bytes[side.bytes(start as u64)..], &mut ordered, count));
    let code = codes(storage.dtype, &ordered).last().unwrap_or_default();
    Shown { value: meaning(storage.dtype, code).value, bits: Some(hex(storage.dtype, code)) }
}

/// Differences found in some elements.
#[derive(Default)]
struct Seen {
    /// Elements whose bits differ.
    bits: Spots,
    /// Elements whose values differ.
    unequal: Spots,
    /// Elements whose values differ by more than the tolerance.
    beyond: Spots,
    tally: AccuracyTally,
}

impl Seen {
    fn append(&mut self, next: Self) {
        self.bits.append(next.bits);
        self.unequal.append(next.unequal);
        self.beyond.append(next.beyond);
        self.tally.append(&next.tally);
    }
}

struct Look<'a> {
    sides: [LogicalTensor<'a>; 2],
    /// `None` for different types.
    bits: Option<BitComparison>,
    /// `None` for opaque bytes.
    values: Option<ValuePairs>,
    /// `None` if bits and types count.
    tolerance: Option<Tolerance>,
}

impl Look<'_> {
    fn at(&self, piece: &Piece<2>) -> Result<Seen> {
        let mut seen = Seen::default();
        for block in piece.blocks(&self.sides, BLOCK) {
            self.at_block(&block, &mut seen)?;
        }
        Ok(seen)
    }

    fn at_block(&self, block: &Piece<2>, seen: &mut Seen) -> Result<()> {
        let sides = &self.sides;
        let are_alike = self.bits.as_ref().is_some_and(|bits| bits.are_alike) && block.bytes[0] == block.bytes[1];
        if let (Some(bits), false) = (&self.bits, are_alike) {
            bits.differences(sides, block, |at| seen.bits.add(sides, block, at))?;
        }
        let Some(values) = &self.values else { return Ok(()) };
        let (start, floats) = values.floats(sides, block)?;
        let [a, b] = &floats.values;
        let differences = if are_alike { vec![0.0; a.len()] } else { values.differences(sides, block, &floats)? };
        seen.tally.add(start, a, b, Some(&differences));
        if differences.iter().all(|difference| *difference == 0.0) {
            return Ok(());
        }
        let per_element = values.per_element;
        let elements = differences.chunks_exact(per_element).zip(a.chunks_exact(per_element));
        for (at, (differences, numbers)) in elements.enumerate() {
            if differences.iter().any(|difference| *difference != 0.0) {
                seen.unequal.add(sides, block, at);
                let mut pairs = differences.iter().zip(numbers);
                let tolerance = self.tolerance.unwrap_or_default();
                if pairs.any(|(difference, number)| !tolerance.accepts(*difference, *number)) {
                    seen.beyond.add(sides, block, at);
                }
            }
        }
        Ok(())
    }

    fn outcome(&self, seen: Seen) -> Comparison {
        let Seen { bits, unequal, beyond, tally } = seen;
        let (status, spots) = if self.values.is_none() || beyond.count > 0 {
            (Status::ValuesDiffer, if self.values.is_none() { bits } else { beyond })
        } else if unequal.count > 0 || self.tolerance.is_some() {
            (Status::WithinTolerance, beyond)
        } else if self.bits.is_none() {
            (Status::TypesDiffer, bits)
        } else {
            (Status::BitsDiffer, bits)
        };
        let first =
            spots.first.map(|(element, elements)| Difference { index: self.sides[0].indices(element), elements });
        let mut accuracy = tally.accuracy();
        let values = self.values.as_ref().filter(|_| unequal.count > 0);
        let per_element = values.map_or(1, |values| values.per_element as u64);
        accuracy.max_abs_error_at = accuracy.max_abs_error_at.map(|at| at / per_element);
        accuracy.max_rel_error_at = accuracy.max_rel_error_at.map(|at| at / per_element);
        let largest_at = [accuracy.max_abs_error_at, accuracy.max_rel_error_at];
        let largest_at = largest_at.map(|at| at.filter(|_| values.is_some()).map(|at| self.sides[0].indices(at)));
        Comparison { status, differing: spots.count, first, accuracy: values.map(|_| accuracy), largest_at }
    }
}
