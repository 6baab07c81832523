//! Encodes the rows of one call: first the scales of a band of groups, then the codes of its rows, in segments that fit
//! into the first-level cache.

use super::Encoder;
use super::choose::GroupScale;
use super::extremes::{INFINITY, first_special, largest};
use super::lanes::{self, Divisors, ErrorSums};
use super::rounding::power_of_two;
use super::search::SearchGroup;
use super::store::PartWriter;
use super::tally::EncodeTally;
use crate::kernel::Loop;
use std::ops::Range;

/// Values that are encoded together.
const SEGMENT: usize = 1024;

/// Scratch space for each lane of a segment, and for the groups of a tile.
struct EncodeRoom {
    values: Vec<f32>,
    numbers: Vec<f32>,
    /// A copy of its group's factor for each value, if groups are small.
    lane: Vec<f32>,
    multiples: Vec<f32>,
    codes: Vec<u8>,
    amax: Vec<u32>,
    bounds: Vec<[f32; 2]>,
    chosen: Vec<GroupScale>,
    /// The fields of `chosen` that the loops need, each in a lane of its own.
    factors: Vec<f32>,
    wide: Vec<f64>,
    zeros: Vec<f32>,
    /// Scales in units of a power of two.
    scales: Vec<f32>,
}

/// The rows of one call.
pub(super) struct EncodeRows<'a, 'o> {
    pub(super) encoder: &'a Encoder,
    pub(super) rows: Range<u64>,
    pub(super) source: &'a [u8],
    pub(super) amax: f32,
    pub(super) global: f32,
    pub(super) writer: PartWriter<'a, 'o>,
    pub(super) tally: &'a mut EncodeTally,
}

/// Some columns of rows that share scales.
#[derive(Clone)]
struct Tile {
    matrix: usize,
    /// Rows of the matrix.
    rows: Range<usize>,
    columns: Range<usize>,
    /// Groups in a row of groups.
    groups: Range<usize>,
}

impl Loop for EncodeRows<'_, '_> {
    type Result = ();

    #[inline(always)]
    fn run(mut self) {
        let encoder = self.encoder;
        let shape = &encoder.shape;
        let (height, width) = (shape.rows as usize, shape.columns as usize);
        let [below, beside] = shape.block.map(|length| length as usize);
        // Groups per tile: as many as fit into a segment; a group longer than a segment is a tile of its own.
        let groups = (SEGMENT / beside).max(1).min(width.div_ceil(beside));
        let columns = SEGMENT.min(width);
        let mut room = EncodeRoom {
            values: vec![0.0; columns],
            numbers: vec![0.0; SEGMENT],
            lane: vec![0.0; SEGMENT],
            multiples: vec![0.0; columns],
            codes: vec![0; columns],
            amax: vec![0; groups],
            bounds: vec![[0.0; 2]; groups],
            chosen: vec![GroupScale::NONE; groups],
            factors: vec![0.0; groups],
            wide: vec![0.0; groups],
            zeros: vec![0.0; groups],
            scales: vec![0.0; groups],
        };
        let global = self.global;
        if shape.is_tensor {
            let amax = [self.amax.to_bits()];
            encoder.chooser.choose(&amax, &[], global, &mut room.chosen);
            if self.rows.start == 0 {
                self.writer.store_only_scale(room.chosen[0]);
                self.tally.underflowed_groups += u64::from(room.chosen[0].is_underflow);
            }
        }
        let (mut row, end) = (self.rows.start as usize, self.rows.end as usize);
        while row < end {
            let (matrix, within) = (row / height, row % height);
            let rows = (below - within % below).min(height - within).min(end - row);
            for group in (0..width.div_ceil(beside)).step_by(groups) {
                let tile = Tile {
                    matrix,
                    rows: within..within + rows,
                    columns: group * beside..((group + groups) * beside).min(width),
                    groups: group..(group + groups).min(width.div_ceil(beside)),
                };
                let count = tile.groups.len();
                if !shape.is_tensor {
                    self.choose(&tile, &mut room, global);
                    self.writer.store_scales(matrix, within, group, &room.chosen[..count]);
                }
                room.spread(count);
                for row in tile.rows.clone() {
                    self.encode(&tile, row, &mut room);
                }
            }
            row += rows;
        }
    }
}

impl EncodeRoom {
    /// Copies the fields of the chosen scales to the lanes that the loops read.
    #[inline(always)]
    fn spread(&mut self, count: usize) {
        for (at, chosen) in self.chosen[..count].iter().enumerate() {
            (self.factors[at], self.wide[at], self.zeros[at]) = (chosen.factor, chosen.wide, chosen.zero);
        }
    }
}

impl EncodeRows<'_, '_> {
    /// The stored values of some columns of a row of a matrix.
    #[inline(always)]
    fn stored(&self, matrix: usize, row: usize, columns: Range<usize>) -> &[u8] {
        let shape = &self.encoder.shape;
        let width = self.encoder.width;
        let row = matrix * shape.rows as usize + row - self.rows.start as usize;
        let start = row * shape.columns as usize;
        &self.source[(start + columns.start) * width..(start + columns.end) * width]
    }

    /// Chooses the scales of a tile.
    #[inline(always)]
    fn choose(&mut self, tile: &Tile, room: &mut EncodeRoom, global: f32) {
        let Encoder { chooser, shape, weight, width, .. } = self.encoder;
        let (count, size) = (tile.groups.len(), shape.block[1] as usize);
        let (amax, bounds) = (&mut room.amax[..count], &mut room.bounds[..count]);
        amax.fill(0);
        bounds.fill([f32::INFINITY, f32::NEG_INFINITY]);
        for row in tile.rows.clone() {
            let bytes = self.stored(tile.matrix, row, tile.columns.clone());
            lanes::largest_of_groups(*weight, bytes, size, [&mut room.lane, &mut room.numbers], amax);
            if chooser.zero_bits.is_some() {
                // A group may be longer than a segment.
                for (bounds, bytes) in bounds.iter_mut().zip(bytes.chunks(size * width)) {
                    for bytes in bytes.chunks(SEGMENT * width) {
                        let values = &mut room.values[..bytes.len() / width];
                        lanes::widen(*weight, bytes, values);
                        let [low, high] = lanes::bounds(values);
                        *bounds = [low.min(bounds[0]), high.max(bounds[1])];
                    }
                }
            }
        }
        if amax.iter().any(|amax| *amax >= INFINITY) {
            self.count_special(tile);
        }
        chooser.choose(amax, bounds, global, &mut room.chosen[..count]);
        if let Some(search) = &self.encoder.search {
            let Encoder { division, rounding, .. } = self.encoder;
            let bytes = self.stored(tile.matrix, tile.rows.start, tile.columns.clone());
            for (at, bytes) in bytes.chunks(size * width).enumerate() {
                let group = SearchGroup {
                    weight: *weight,
                    bytes,
                    amax: f32::from_bits(amax[at]),
                    bounds: bounds[at],
                    chooser,
                    division: *division,
                    rounding,
                    global,
                };
                room.chosen[at] = search.best(&group, room.chosen[at]);
            }
        }
        let underflowed: u32 = room.chosen[..count].iter().map(|chosen| u32::from(chosen.is_underflow)).sum();
        self.tally.underflowed_groups += u64::from(underflowed);
    }

    #[inline(never)]
    fn count_special(&mut self, tile: &Tile) {
        let Encoder { shape, weight, width, .. } = self.encoder;
        for row in tile.rows.clone() {
            let bytes = self.stored(tile.matrix, row, tile.columns.clone());
            let special = bytes.chunks_exact(*width).filter(|bytes| largest(*weight, bytes) >= INFINITY).count() as u64;
            let first = first_special(*weight, bytes).map(|at| {
                let row = (tile.matrix as u64) * shape.rows + row as u64;
                row * shape.columns + (tile.columns.start + at / width) as u64
            });
            self.tally.special += special;
            self.tally.first_special = self.tally.first_special.into_iter().chain(first).min();
        }
    }

    /// Encodes one row of a tile.
    #[inline(always)]
    fn encode(&mut self, tile: &Tile, row: usize, room: &mut EncodeRoom) {
        let Encoder { shape, weight, division, rounding, .. } = self.encoder;
        let size = shape.block[1] as usize;
        let step = if size > SEGMENT { SEGMENT } else { tile.columns.len() };
        let (mut signal, mut noise) = (0.0, 0.0);
        for column in tile.columns.clone().step_by(step) {
            let columns = column..(column + step).min(tile.columns.end);
            let count = columns.len();
            let groups = &room.chosen[..count.div_ceil(size)];
            let (values, numbers) = (&mut room.values[..count], &mut room.numbers[..count]);
            let expanded = &mut room.lane[..count];
            let (codes, multiples) = (&mut room.codes[..count], &mut room.multiples[..count]);
            lanes::widen(*weight, self.stored(tile.matrix, row, columns.clone()), values);
            // 1. Codes.
            let divisors = Divisors {
                factors: &room.factors[..groups.len()],
                wide: &room.wide[..groups.len()],
                zeros: &room.zeros[..groups.len()],
                size,
            };
            lanes::divide(values, &divisors, *division, expanded, numbers);
            let clipped = lanes::round(rounding, numbers, codes, multiples);
            self.tally.clipped += u64::from(clipped);
            if division.has_zeros {
                for (multiples, group) in multiples.chunks_mut(size).zip(groups) {
                    for multiple in multiples {
                        *multiple -= group.zero;
                    }
                }
            }
            self.writer.store_codes(tile.matrix, row, columns.clone(), codes);
            // 2. Errors, divided by a power of two near the largest scale: the squares of tiny errors would underflow.
            let scales = &mut room.scales[..groups.len()];
            let mut largest = 0.0_f32;
            for group in groups {
                largest = largest.max(group.scale);
            }
            if largest == 0.0 {
                // Codes of 0: the errors are the values, whose squares must not overflow.
                largest = values.iter().fold(0.0, |largest, value| value.abs().max(largest));
            }
            let exponent = ((largest.to_bits() >> 23) as i32 - 127).clamp(-126, 126);
            let (unit, over) = (power_of_two(exponent), power_of_two(-exponent));
            for (scale, group) in scales.iter_mut().zip(groups) {
                *scale = group.scale * over;
            }
            let sums = ErrorSums::of(values, over, (scales, size), expanded, multiples);
            let unit = f64::from(unit);
            self.take(&sums, unit, multiples, tile.matrix, row, column);
            signal += sums.signal * unit * unit;
            noise += sums.noise * unit * unit;
        }
        self.tally.values += tile.columns.len() as u64;
        self.tally.signal.add(signal);
        self.tally.noise.add(noise);
    }

    /// Records the largest error of a segment.
    #[inline(always)]
    fn take(&mut self, sums: &ErrorSums, unit: f64, errors: &[f32], matrix: usize, row: usize, column: usize) {
        let largest = f64::from(sums.largest) * unit;
        if sums.largest == 0.0 || largest < self.tally.max_error || !largest.is_finite() {
            return;
        }
        let shape = &self.encoder.shape;
        let first = (matrix as u64 * shape.rows + row as u64) * shape.columns + column as u64;
        let at = errors.iter().position(|error| error.abs() == sums.largest);
        self.tally.take_error(largest, at.map(|at| first + at as u64));
    }
}
