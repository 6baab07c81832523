//! Encodes the rows of one call: first the scales of a band of groups, then the codes of its rows, in segments that fit
//! into the first-level cache.

use super::super::rules::ScaleRule;
use super::Encoder;
use super::extremes::{INFINITY, first_special, largest};
use super::fused::FusedSegment;
use super::lanes::{self, Divisors, ErrorSums, LANES, PartialSums};
use super::linear::extend_columns;
use super::room::{EncodeRoom, SEGMENT};
use super::search::SearchGroup;
use super::store::PartWriter;
use super::tally::EncodeTally;
use crate::kernel::Loop;
use std::ops::Range;

/// The rows of one call.
pub(super) struct EncodeRows<'a, 'o> {
    pub(super) encoder: &'a Encoder,
    pub(super) rows: Range<u64>,
    pub(super) source: &'a [u8],
    pub(super) amax: f32,
    /// The largest magnitude of each column, as bits, where each has a scale.
    pub(super) columns: &'a [u32],
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
        let mut room = EncodeRoom::new(columns, groups, encoder.width);
        let global = self.global;
        if shape.is_tensor {
            let amax = [self.amax.to_bits()];
            encoder.chooser.choose(&amax, &[], global, &mut room.chosen);
            if self.rows.start == 0 {
                let only = room.chosen.get(0);
                self.writer.store_only_scale((only.stored, only.zero));
                self.tally.underflowed_groups += room.chosen.underflowed(1);
            }
            room.spread(1, beside);
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
                    if !shape.has_column_scales || row == 0 {
                        self.tally.underflowed_groups += room.chosen.underflowed(count);
                        self.writer.store_scales(matrix, within, group, room.chosen.stored_with_zeros(count));
                    }
                    room.spread(count, beside);
                }
                for row in tile.rows.clone() {
                    self.encode(&tile, row, &mut room);
                }
            }
            row += rows;
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
        if shape.has_column_scales {
            amax.copy_from_slice(&self.columns[tile.groups.clone()]);
            chooser.choose(amax, bounds, global, &mut room.chosen);
            return;
        }
        for row in tile.rows.clone() {
            let bytes = self.stored(tile.matrix, row, tile.columns.clone());
            if size == 1 {
                extend_columns(*weight, bytes, &mut room.values[..count], amax, bounds);
                continue;
            }
            lanes::largest_of_groups(*weight, bytes, size, room.magnitudes.each_mut().map(|lane| &mut lane[..]), amax);
            if chooser.zero_bits.is_some() || chooser.rule == ScaleRule::Linear && chooser.bits == 4 {
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
        chooser.choose(amax, bounds, global, &mut room.chosen);
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
                let best = search.best(&group, room.chosen.get(at));
                room.chosen.set(at, &best);
            }
        }
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
        let Encoder { shape, weight, width, .. } = self.encoder;
        let size = shape.block[1] as usize;
        let step = if size > SEGMENT { SEGMENT } else { tile.columns.len() };
        let (mut signal, mut noise) = (0.0, 0.0);
        for column in tile.columns.clone().step_by(step) {
            let columns = column..(column + step).min(tile.columns.end);
            let count = columns.len();
            let source = self.stored(tile.matrix, row, columns.clone());
            // 1. Codes and errors.
            if room.has_no_scales {
                // Codes of 0: the errors are the values, whose squares must not overflow.
                room.set_unit(f32::from_bits(largest(*weight, source)));
            }
            let sums = if self.encoder.is_fused { self.encode_fused(source, room) } else { None };
            let sums = match sums {
                Some(sums) => sums,
                None => self.encode_in_steps(source, room, size),
            };
            let (bytes, over) = (source.chunks_exact(*width), 1.0 / room.unit);
            let values = || bytes.clone().map(|bytes| lanes::number(*weight, bytes) * over);
            let sums = sums.total(&room.multiples[..count], values);
            self.tally.clipped += u64::from(sums.clipped);
            self.writer.store_codes(tile.matrix, row, columns.clone(), &room.codes[..count]);
            // 2. Errors.
            let unit = f64::from(room.unit);
            self.take(&sums, unit, &room.multiples[..count], tile.matrix, row, column);
            signal += sums.signal * unit * unit;
            noise += sums.noise * unit * unit;
        }
        self.tally.values += tile.columns.len() as u64;
        self.tally.signal.add(signal);
        self.tally.noise.add(noise);
    }

    /// Encodes a segment in one loop: see `fused`.
    #[inline(always)]
    fn encode_fused(&self, source: &[u8], room: &mut EncodeRoom) -> Option<PartialSums> {
        let Encoder { weight, width, division, rounding, .. } = self.encoder;
        let whole = source.len().next_multiple_of(LANES * width);
        let bytes = if whole == source.len() {
            source
        } else {
            let (values, rest) = room.padded[..whole].split_at_mut(source.len());
            values.copy_from_slice(source);
            rest.fill(0);
            &room.padded[..whole]
        };
        let [factors, zeros, scales] = room.spread.each_ref().map(|lane| &lane[..]);
        let over = 1.0 / room.unit;
        let segment = FusedSegment { weight: *weight, bytes, division: *division, factors, zeros, scales, over };
        segment.encode(rounding, &mut room.codes, &mut room.multiples)
    }

    /// The same step by step, for groups of any size, and for exact quotients.
    #[inline(always)]
    fn encode_in_steps(&self, source: &[u8], room: &mut EncodeRoom, size: usize) -> PartialSums {
        let Encoder { weight, width, division, rounding, .. } = self.encoder;
        let count = source.len() / width;
        let groups = count.div_ceil(size);
        let (values, numbers) = (&mut room.values[..count], &mut room.numbers[..count]);
        let (lane, multiples) = (&mut room.lane[..count], &mut room.multiples[..count]);
        lanes::widen(*weight, source, values);
        let divisors = Divisors {
            factors: &room.chosen.factor[..groups],
            wide: &room.chosen.wide[..groups],
            zeros: &room.chosen.zero[..groups],
            size,
        };
        lanes::divide(values, &divisors, *division, lane, numbers);
        let clipped = lanes::round(rounding, numbers, &mut room.codes[..count], multiples);
        if division.has_zeros {
            for (multiples, zero) in multiples.chunks_mut(size).zip(divisors.zeros) {
                for multiple in multiples {
                    *multiple -= zero;
                }
            }
        }
        let mut sums = PartialSums::of(values, 1.0 / room.unit, (&room.scales[..groups], size), lane, multiples);
        sums.clipped[0] += clipped;
        sums
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
