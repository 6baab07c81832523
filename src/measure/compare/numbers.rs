//! Numbers and opaque bytes: first the bits; if they differ, values and accuracy.

use super::{Comparison, DiffFigures, DiffOptions, DiffStatus, FirstDifference};
use crate::container::{Elements, Form};
use crate::conversion::Conversion;
use crate::error::Result;
use crate::kernel::{Kernel, Storage};
use crate::measure::accuracy::{AccuracyTally, BLOCK};
use crate::measure::bits::{codes, hex, meaning};
use crate::measure::pairs::{NumberBlock, NumberPairs};
use crate::read::{LogicalTensor, Piece, Zip};
use crate::text::hex_digits;
use std::ops::ControlFlow;

/// Number of bytes of a side in a piece when bits are compared.
const PIECE: u64 = 1 << 20;
/// Number of elements in a piece when values are compared: the same for every type, so that results do not depend on
/// it.
const VALUES: u64 = 1 << 17;

/// Returns the storage of a side's elements; `None` for opaque bytes.
fn storage(side: &LogicalTensor) -> Option<Storage> {
    match side.elements() {
        Elements::Typed(Form::Numbers(storage)) => Some(storage),
        _ => None,
    }
}

pub(super) fn compare(mut zip: Zip<2>, options: &DiffOptions) -> Result<Comparison> {
    let sides = zip.sources;
    let bits = BitComparison::new(&sides);
    if let Some(bits) = &bits
        && bits.are_all_equal(&mut zip)?
    {
        return Ok(Comparison::of(DiffStatus::Equal));
    }
    let look = Look { sides, bits, values: NumberPairs::new(sides.each_ref().map(storage)), options };
    let piece = if look.values.is_some() { VALUES } else { piece_of_bits(&sides) };
    let mut differences = Differences::default();
    let append = |next| {
        differences.append(next);
        ControlFlow::Continue(())
    };
    let read = zip.read(piece, NumberBlock::default, |block, piece| look.at(piece, block), append);
    // The position of the first difference helps to repair a damaged file.
    let Differences { beyond, unequal, bits, .. } = &differences;
    read.map_err(|error| match [beyond, unequal, bits].into_iter().find_map(|spots| spots.first.as_deref()) {
        Some(FirstDifference { index, a, b, .. }) if error.advice().is_empty() => {
            error.remedy(format!("the first difference is at {index:?}: {a}, {b}"))
        }
        _ => error,
    })?;
    Ok(look.comparison(differences))
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
        for (at, side) in sides.iter().enumerate() {
            let (bytes, count) = (block.bytes[at], block.count);
            let converted = ordered[at].convert(side.named(), block.start, bytes, count, &mut buffers[at]);
            converted.map_err(|error| side.error(error))?;
        }
        Ok(buffers.each_ref().map(Vec::as_slice))
    }

    /// Returns the elements whose bits differ, counted from the start of a block.
    fn differences(&self, sides: &[LogicalTensor; 2], block: &Piece<2>) -> Result<Vec<usize>> {
        let mut buffers = [Vec::new(), Vec::new()];
        let [a, b] = self.order(sides, block, &mut buffers)?;
        let pairs = a.chunks_exact(self.width).zip(b.chunks_exact(self.width)).enumerate();
        let differing: Vec<usize> = pairs.filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect();
        // Padding in the last byte of packed elements belongs to no element and is attributed to the last one.
        Ok(if differing.is_empty() && self.are_alike { vec![block.count - 1] } else { differing })
    }
}

/// Elements that differ in some way: their number, and the first one.
#[derive(Default)]
struct Spots {
    count: u64,
    first: Option<Box<FirstDifference>>,
}

impl Spots {
    #[inline]
    fn add(&mut self, sides: &[LogicalTensor; 2], block: &Piece<2>, at: usize) {
        self.count += 1;
        if self.first.is_none() {
            self.first = Some(Box::new(first_difference(sides, block, at)));
        }
    }

    fn append(&mut self, next: Self) {
        self.count += next.count;
        self.first = self.first.take().or(next.first);
    }
}

/// Describes an element of a block. Few elements are described, and all that differ are counted.
#[cold]
fn first_difference(sides: &[LogicalTensor; 2], block: &Piece<2>, at: usize) -> FirstDifference {
    let [(a, bits_a), (b, bits_b)] = [0, 1].map(|side| element_text(&sides[side], block.bytes[side], at));
    let index = sides[0].indices(block.start + at as u64);
    FirstDifference { index, a, b, bits_a: Some(bits_a), bits_b: Some(bits_b) }
}

/// Returns the value and the bits of an element.
fn element_text(side: &LogicalTensor, bytes: &[u8], at: usize) -> (String, String) {
    let Some(storage) = storage(side) else {
        let opaque = &bytes[side.bytes(at as u64)..side.bytes(at as u64 + 1)];
        let digits = hex_digits(&opaque[..opaque.len().min(32)]);
        return (format!("bytes {digits}"), digits);
    };
    // Packed elements are read from the start of a byte.
    let (start, target) = (at / 8 * 8, Storage::per_byte(storage.dtype));
    let count = at - start + 1;
    let mut ordered = vec![0; target.bytes(count as u64).unwrap_or_default() as usize];
    let kernel = Kernel::copy(storage, target);
    // Excess bits are reported where the value is needed.
    let _ = kernel.map(|kernel| kernel.run(&bytes[side.bytes(start as u64)..], &mut ordered, count));
    let code = codes(storage.dtype, &ordered).last().unwrap_or_default();
    (meaning(storage.dtype, code).value, hex(storage.dtype, code))
}

/// Differences in some elements.
#[derive(Default)]
struct Differences {
    /// Elements whose bits differ.
    bits: Spots,
    /// Elements whose values differ.
    unequal: Spots,
    /// Elements whose values differ by more than the tolerance.
    beyond: Spots,
    tally: AccuracyTally,
}

impl Differences {
    fn append(&mut self, next: Self) {
        self.bits.append(next.bits);
        self.unequal.append(next.unequal);
        self.beyond.append(next.beyond);
        self.tally.append(&next.tally);
    }
}

/// True if a value of B may differ so much from a number of A.
fn accepts([absolute, relative]: [f64; 2], difference: f64, number: f64) -> bool {
    // NaN and Inf must be equal; a tolerance times Inf would allow any difference.
    difference == 0.0 || difference.is_finite() && difference.abs() <= absolute + relative * number.abs()
}

struct Look<'a> {
    sides: [LogicalTensor<'a>; 2],
    /// `None` for different types.
    bits: Option<BitComparison>,
    /// `None` for opaque bytes.
    values: Option<NumberPairs>,
    options: &'a DiffOptions,
}

impl Look<'_> {
    fn at(&self, piece: &Piece<2>, numbers: &mut NumberBlock) -> Result<Differences> {
        let (sides, mut all) = (&self.sides, Differences::default());
        let tolerances = self.options.tolerances();
        for block in piece.blocks(sides, BLOCK) {
            let are_alike = self.bits.as_ref().is_some_and(|bits| bits.are_alike) && block.bytes[0] == block.bytes[1];
            if let (Some(bits), false) = (&self.bits, are_alike) {
                bits.differences(sides, &block)?.into_iter().for_each(|at| all.bits.add(sides, &block, at));
            }
            let Some(values) = &self.values else { continue };
            let elements = sides.each_ref().map(LogicalTensor::named);
            values.read(elements, &block, numbers, |side, error| sides[side].error(error))?;
            let NumberBlock { start, values: [a, b], differences, .. } = &*numbers;
            all.tally.add(*start, [a, b, differences]);
            if differences.iter().all(|difference| *difference == 0.0) {
                continue;
            }
            let each = values.per_element;
            for (at, (differences, numbers)) in differences.chunks_exact(each).zip(a.chunks_exact(each)).enumerate() {
                if differences.iter().any(|difference| *difference != 0.0) {
                    all.unequal.add(sides, &block, at);
                    let mut pairs = differences.iter().zip(numbers);
                    if pairs.any(|(difference, number)| !accepts(tolerances, *difference, *number)) {
                        all.beyond.add(sides, &block, at);
                    }
                }
            }
        }
        Ok(all)
    }

    fn comparison(&self, all: Differences) -> Comparison {
        let Differences { bits, unequal, beyond, tally } = all;
        let has_unequal = unequal.count > 0;
        let (status, spots) = if self.values.is_none() || beyond.count > 0 {
            (DiffStatus::ValuesDiffer, if self.values.is_none() { bits } else { beyond })
        } else if has_unequal || self.options.has_tolerance() {
            (DiffStatus::WithinTolerance, beyond)
        } else if self.bits.is_none() {
            (DiffStatus::TypesDiffer, bits)
        } else {
            (DiffStatus::BitsDiffer, bits)
        };
        let figures = self.values.as_ref().filter(|_| has_unequal).map(|values| {
            let mut accuracy = tally.accuracy();
            let index = |at: &mut Option<u64>| {
                *at = at.map(|at| at / values.per_element as u64);
                at.map(|at| self.sides[0].indices(at))
            };
            let max_abs_error_index = index(&mut accuracy.max_abs_error_at);
            let max_rel_error_index = index(&mut accuracy.max_rel_error_at);
            Box::new(DiffFigures { accuracy, max_abs_error_index, max_rel_error_index })
        });
        Comparison { status, differing: Some(spots.count), first_difference: spots.first, figures }
    }
}
