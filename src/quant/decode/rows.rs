//! Decodes the rows of one call: a tile of codes, then each row in segments that fit into the first-level cache.

use super::super::layout::{Combination, ScaleOrder, Zeros};
use super::buffers::DecodeBuffers;
use super::casts::run;
use super::codes::{CodeWindow, TransposedTile};
use super::fused::Products;
use super::lanes::{self, Float32Lane};
use super::linear::extend_signs;
use super::segment::{FetchedScales, SegmentGroups};
use super::steps::{Arithmetic, CodeDecoding, DecodeSteps};
use super::tables::Results;
use super::tally::{DecodeTally, infinity, magnitude};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::kernel::{Isa, Loop, prefetch_behind};
use crate::quant::rotation::{rotate_float32s, rotate_float64s};
use std::ops::Range;

/// Distance in bytes at which codes of whole bytes are prefetched.
const AHEAD: usize = 4096;

/// Some columns of some rows, which one call decodes.
pub(super) struct DecodeRange<'a> {
    pub(super) isa: Isa,
    /// All stored bytes of each part.
    pub(super) parts: &'a [&'a [u8]],
    pub(super) rows: Range<u64>,
    /// The columns of all these rows; the first is a multiple of [`SEGMENT`](super::buffers::SEGMENT).
    pub(super) columns: Range<u64>,
}

impl DecodeRange<'_> {
    /// Returns the same columns of other rows.
    pub(super) fn of_rows(&self, rows: Range<u64>) -> Self {
        Self { rows, columns: self.columns.clone(), ..*self }
    }

    /// Returns the number of columns.
    pub(super) fn width(&self) -> usize {
        (self.columns.end - self.columns.start) as usize
    }
}

/// The rows of one call.
pub(super) struct RowDecoder<'a> {
    steps: &'a DecodeSteps,
    parts: &'a [&'a [u8]],
    /// The groups of these columns, if they are not contiguous.
    index: Option<Vec<u32>>,
    /// The groups of these rows, likewise.
    row_index: Option<Vec<u32>>,
    map: [[u8; 4]; 16],
    buffers: DecodeBuffers,
    results: Option<Box<Results>>,
    rows: Range<usize>,
    columns: Range<usize>,
    out: &'a mut [u8],
}

impl<'a> RowDecoder<'a> {
    /// Fails if the group index names a group that does not exist.
    pub(super) fn new(steps: &'a DecodeSteps, range: &DecodeRange<'a>, out: &'a mut [u8]) -> Result<Self> {
        let DecodeRange { isa, parts, .. } = *range;
        let [rows, columns] = [&range.rows, &range.columns].map(|range| range.start as usize..range.end as usize);
        let (index, row_index) = (steps.group_index(parts, columns.clone())?, steps.row_index(parts, rows.clone())?);
        let (map, buffers) = (steps.geometry.map(parts), DecodeBuffers::new(steps, index.is_some()));
        let results = steps.fused.and_then(|fused| fused.results(isa, &steps.geometry, steps.scales.factor(), &map));
        Ok(Self { steps, parts, index, row_index, map, buffers, results, rows, columns, out })
    }
}

impl Loop for RowDecoder<'_> {
    type Result = DecodeTally;

    #[inline(always)]
    fn run(mut self) -> DecodeTally {
        let geometry = &self.steps.geometry;
        let packing = self.steps.layout.codes.packing;
        let height = geometry.rows as usize;
        let mut tally = DecodeTally::default();
        let (mut tile, mut unpacked) = (TransposedTile::default(), std::mem::take(&mut self.buffers.codes));
        let mut row = self.rows.start;
        while row < self.rows.end {
            let (matrix, within) = (row / height, row % height);
            let tile_rows = packing.tile_rows();
            let rows = (tile_rows - within % tile_rows).min(height - within).min(self.rows.end - row);
            for column in self.columns.clone().step_by(packing.tile_columns()) {
                let columns = packing.tile_columns().min(self.columns.end - column);
                let window = geometry.window(packing, self.parts, [matrix, within], column..column + columns);
                let window = tile.read(packing, &window, rows).unwrap_or(window);
                for at in 0..rows {
                    for start in (0..columns).step_by(self.buffers.columns) {
                        let count = self.buffers.columns.min(columns - start);
                        let window = CodeWindow {
                            row: window.row + at,
                            column: window.column + start,
                            columns: count,
                            ..window
                        };
                        let codes = if packing.is_plain(&window) {
                            prefetch_behind(window.plain(), AHEAD);
                            window.plain()
                        } else {
                            packing.unpack_row(&window, &mut unpacked[..count]);
                            extend_signs(&mut unpacked[..count], self.steps.code_dtype);
                            &unpacked[..count]
                        };
                        let place = [matrix, within + at, column + start];
                        tally += self.segment(codes, count, place, row + at, column + columns);
                    }
                }
            }
            row += rows;
        }
        tally
    }
}

/// Position of a segment of codes.
struct SegmentPlace {
    /// Range among the columns of the call.
    columns: Range<usize>,
    /// Range among the fetched groups.
    groups: Range<usize>,
    /// Elements of a group, and the number of elements of the first group before the segment.
    size: usize,
    skip: usize,
    /// Range among the bytes of the output.
    bytes: Range<usize>,
    /// The index of its first element in the weight.
    first: u64,
}

impl SegmentPlace {
    /// Returns its zero points, if there are any.
    #[inline(always)]
    fn zeros<'a>(&self, fetched: &'a Float32Lane) -> &'a Float32Lane {
        if fetched.is_empty() { fetched } else { &fetched[self.groups.clone()] }
    }
}

/// Writes the numbers that codes represent, minus their centre.
#[inline(always)]
pub(in crate::quant) fn widen(steps: &DecodeSteps, codes: &[u8], map: &[[u8; 4]; 16], lane: &mut Float32Lane) {
    match &steps.widening {
        CodeDecoding::Kernel(kernel) => {
            let count = lane.len();
            run(kernel, codes, lane.as_flattened_mut(), count);
        }
        CodeDecoding::Floats(floats) => lanes::widen_floats(codes, lane, *floats),
        CodeDecoding::Integers(zero) => lanes::widen_integers(codes, lane, *zero),
        CodeDecoding::Map => lanes::look_up(codes, lane, map),
    }
}

impl RowDecoder<'_> {
    /// Decodes codes, starting at a column of a row of a matrix. `row` is counted through all matrices. Codes of the
    /// same row up to the column `end` follow.
    #[inline(always)]
    fn segment(
        &mut self,
        codes: &[u8],
        columns: usize,
        [matrix, within, column]: [usize; 3],
        row: usize,
        end: usize,
    ) -> DecodeTally {
        let Self { steps, parts, index, row_index, buffers, rows, columns: decoded, .. } = self;
        let DecodeSteps { layout, geometry, .. } = steps;
        // 1. The groups of these columns, and the number of elements of the first group before them.
        let width = geometry.columns as usize;
        let below = match row_index {
            Some(index) => index[row - rows.start] as usize,
            None => within / geometry.block[0] as usize,
        };
        let size = geometry.block[1] as usize;
        let first = if layout.scale_order == ScaleOrder::Flat { row * width + column } else { column };
        let (groups, skip) = match index {
            Some(_) => (0..geometry.grid[1] as usize, 0),
            None => (first / size..(first + columns).div_ceil(size), first % size),
        };
        // 2. Their scales and zero points, fetched for many segments at a time: rows of a block share them.
        let count = groups.len();
        let all = if layout.scale_order == ScaleOrder::Flat {
            geometry.scale.count as usize
        } else {
            end.div_ceil(size).min(geometry.grid[1] as usize)
        };
        buffers.fetch(steps, parts, [matrix, below], &groups, all);
        let held = groups.start - buffers.fetched.as_ref().map_or(0, |held| held.groups.start);
        let start = (row - rows.start) * decoded.len() + column - decoded.start;
        let bytes = steps.target.bits() as usize / 8;
        let segment = SegmentPlace {
            columns: column - decoded.start..column - decoded.start + columns,
            groups: held..held + count,
            size,
            skip,
            bytes: start * bytes..(start + columns) * bytes,
            first: row as u64 * geometry.columns + column as u64,
        };
        // 3. Ordinary numbers take the short path.
        if self.multiply_fused(codes, &segment) {
            return DecodeTally::default();
        }
        self.multiply_in_steps(codes, segment)
    }

    /// Decodes codes in one loop: see `fused`. Returns false if values need the general method.
    #[inline(always)]
    fn multiply_fused(&mut self, codes: &[u8], segment: &SegmentPlace) -> bool {
        let Self { steps, index, map, buffers, results, out, .. } = self;
        let (Some(fused), false) = (steps.fused, buffers.is_changed) else { return false };
        let SegmentPlace { size, skip, .. } = *segment;
        let (out, columns, factor) = (&mut out[segment.bytes.clone()], segment.columns.len(), steps.scales.factor());
        let (scales_of, zeros_of) = (&buffers.groups[segment.groups.clone()], segment.zeros(&buffers.zeros));
        let fetched = FetchedScales {
            scales: &buffers.groups[..buffers.fetched.as_ref().map_or(0, |fetched| fetched.groups.len())],
            first: segment.groups.start,
            fetch: buffers.fetches,
            are_ordinary: buffers.are_ordinary,
        };
        let groups = match index {
            None => {
                let (zeros, offsets) =
                    if steps.zeros.order.are_offsets() { (&[][..], zeros_of) } else { (zeros_of, &[][..]) };
                let fetched = Some(fetched);
                SegmentGroups { scales: scales_of, fetched, zeros, offsets, size, skip, factor, map }
            }
            Some(index) => {
                let index = &index[segment.columns.clone()];
                let (scales, zeros) = (&mut buffers.scales[..columns], &mut buffers.lane[..columns]);
                lanes::expand_indexed(scales_of, index, scales);
                if !zeros_of.is_empty() {
                    lanes::expand_indexed(zeros_of, index, zeros);
                }
                let zeros = if zeros_of.is_empty() { &[][..] } else { zeros };
                SegmentGroups { scales, fetched: None, zeros, offsets: &[], size: 1, skip: 0, factor, map }
            }
        };
        if let Some(products) = steps.products {
            return fused.multiply(codes, &groups, steps.narrowest, products, results, out);
        }
        if !groups.offsets.is_empty() {
            return false; // sums of rounded products
        }
        let (lane, plain) = (&mut buffers.values[..columns], Products::PLAIN);
        let is_done = fused.multiply(codes, &groups, steps.narrowest, plain, results, lane.as_flattened_mut());
        if is_done {
            finish(steps, lane, &mut buffers.scratch, out);
        }
        is_done && !has_special(out, steps.target)
    }

    #[inline(always)]
    fn multiply_in_steps(&mut self, codes: &[u8], segment: SegmentPlace) -> DecodeTally {
        let Self { steps, index, map, buffers, out, .. } = self;
        let zeros_of = segment.zeros(&buffers.zeros);
        let SegmentPlace { columns, groups, size, skip, bytes: place, first } = segment;
        let scales_of = &buffers.groups[groups.clone()];
        let (global, factor) = (buffers.global, steps.scales.factor());
        let has_offsets = !buffers.offsets.is_empty();
        let index = index.as_ref().map(|index| &index[columns.clone()]);
        let columns = columns.len();
        let spread = |groups: &Float32Lane, lane: &mut Float32Lane| match index {
            Some(index) => lanes::expand_indexed(groups, index, lane),
            None => lanes::expand(groups, size, skip, lane),
        };
        let (lane, scales) = (&mut buffers.lane[..columns], &mut buffers.scales[..columns]);
        widen(steps, codes, map, lane);
        let offsets = if has_offsets { &mut buffers.offsets[..columns] } else { &mut [][..] };
        if has_offsets {
            spread(zeros_of, offsets);
        } else if !zeros_of.is_empty() {
            spread(zeros_of, scales);
            lanes::subtract(lane, scales); // exact
        }
        spread(scales_of, scales);
        // Products, and their roundings.
        let products = &mut buffers.values[..columns];
        if steps.combination == Combination::Levels {
            lanes::multiply(lane, scales, factor, products);
            lanes::round_to_levels(products, lane);
            scales.fill(global.to_le_bytes());
        }
        if steps.arithmetic == Arithmetic::Exact {
            let wide = &mut buffers.wide[..columns];
            lanes::multiply_exactly(lane, scales, factor, steps.combination, global, wide);
            lanes::add_exactly(wide, offsets);
            if let Some(size) = steps.rotation {
                rotate_float64s(wide, size);
            }
            if steps.target == Dtype::Float64 {
                out[place].copy_from_slice(wide.as_flattened());
                return DecodeTally::default();
            }
            run(&steps.encode, wide.as_flattened(), &mut out[place.clone()], columns);
            if has_offsets {
                lanes::mark_nonzero(wide, products);
            }
        } else {
            if steps.zeros.order == Zeros::Fused {
                let wide = &mut buffers.wide[..columns];
                lanes::multiply_exactly(lane, scales, factor, Combination::Nothing, global, wide);
                lanes::add_exactly(wide, offsets);
                lanes::narrow(wide, products);
            } else {
                lanes::multiply(lane, scales, factor, products);
            }
            if has_offsets && steps.zeros.order != Zeros::Fused {
                if let Some(rounding) = &steps.product_rounding {
                    rounding.round(products, &mut buffers.scratch);
                }
                lanes::add(products, offsets);
            }
            if let Some(rounding) = &steps.rotated {
                rounding.round(products, &mut buffers.scratch);
            }
            if let Some(size) = steps.rotation {
                rotate_float32s(products, size);
            }
            finish(steps, products, &mut buffers.scratch, &mut out[place.clone()]);
            if buffers.is_changed {
                spread(&buffers.stored[groups], scales);
            }
        }
        // Offsets can make 0 of a product, so sums are compared with the values that are made of them.
        let factors: [&Float32Lane; 2] = if has_offsets { [offsets, scales] } else { [lane, scales] };
        let nonzero = if has_offsets { [&*products; 2] } else { factors };
        tally_of(steps, &out[place], nonzero, factors, global, first)
    }
}

/// Counts special and flushed values, which start at this element of the weight and come from these factors. Values are
/// flushed if they are 0 although both numbers in `nonzero` are not.
#[inline(always)]
fn tally_of(
    steps: &DecodeSteps,
    out: &[u8],
    nonzero: [&Float32Lane; 2],
    factors: [&Float32Lane; 2],
    global: f32,
    at: u64,
) -> DecodeTally {
    let mut tally = DecodeTally::default();
    let is_nothing = match steps.combination {
        Combination::Divisor => global.is_infinite(),
        _ => global == 0.0,
    };
    if steps.rotation.is_none() && !is_nothing {
        tally.flushed = match steps.target.bits() {
            16 => lanes::count_flushed::<2>(nonzero[0], nonzero[1], out.as_chunks().0),
            _ => lanes::count_flushed::<4>(nonzero[0], nonzero[1], out.as_chunks().0),
        };
    }
    if has_special(out, steps.target) {
        count_specials(out, steps.target, factors, global, at, &mut tally);
    }
    tally
}

/// Performs the remaining steps from products to the target.
#[inline(always)]
fn finish(steps: &DecodeSteps, products: &mut Float32Lane, scratch: &mut [u8], out: &mut [u8]) {
    if steps.layout.global == Combination::Over127 {
        lanes::multiply_all(products, 1.0 / 127.0);
    }
    if let Some(rounding) = &steps.product_rounding {
        rounding.round(products, scratch);
    }
    run(&steps.encode, products.as_flattened(), out, products.len());
}

/// True if any value is infinite or NaN.
#[inline(always)]
fn has_special(out: &[u8], target: Dtype) -> bool {
    // No closures, which might not be compiled for the instruction set.
    let mut any = false;
    if target == Dtype::Float32 {
        for bytes in out.as_chunks().0 {
            any |= u32::from_le_bytes(*bytes) & 0x7f80_0000 == 0x7f80_0000;
        }
    } else {
        let mask = if target == Dtype::Bfloat16 { 0x7f80 } else { 0x7c00 };
        for bytes in out.as_chunks().0 {
            any |= u16::from_le_bytes(*bytes) & mask == mask;
        }
    }
    any
}

/// Counts infinite values and NaNs, for the few segments that have any; `at` is the index of the first element.
#[inline(never)]
fn count_specials(
    out: &[u8],
    target: Dtype,
    factors: [&Float32Lane; 2],
    global: f32,
    at: u64,
    tally: &mut DecodeTally,
) {
    let Some((width, infinity)) = infinity(target) else { return };
    let elements = out.chunks_exact(width).zip(factors[0].iter().zip(factors[1]));
    for (at, (bytes, (code, scale))) in (at..).zip(elements) {
        let magnitude = magnitude(bytes);
        if magnitude >= infinity {
            let factors = [f32::from_le_bytes(*code), f32::from_le_bytes(*scale), global];
            tally.add_special(at, magnitude > infinity, &factors.map(f64::from));
        }
    }
}
