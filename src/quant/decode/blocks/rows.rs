//! Decodes rows of a weight in blocks.

use super::{BlockDecoder, SourceLine};
use crate::blocks::{Assembly, ValueChange};
use crate::dtype::Dtype;
use crate::quant::decode::buffers::SEGMENT;
use crate::quant::decode::casts::run;
use crate::quant::decode::rows::DecodeRange;
use crate::quant::decode::tally::DecodeTally;
use std::ops::Range;

/// Least number of rows of a tile.
const TILE: u64 = 32;

impl BlockDecoder {
    /// Decodes whole rows, or columns of one row.
    pub(in crate::quant::decode) fn decode(&self, range: &DecodeRange, out: &mut [u8]) -> DecodeTally {
        let DecodeRange { isa, parts, rows, columns } = range;
        let (mut tally, mut lines) = (DecodeTally::default(), LineDecoder::new(self, range, self.lane));
        let row_bytes = range.width() * self.target.bits() as usize / 8;
        let (mut row, mut out) = (rows.start, out);
        while row < rows.end {
            let end = self.end_of_run(row, rows.end);
            let (now, rest) = out.split_at_mut((end - row) as usize * row_bytes);
            if self.is_direct(row) {
                let count = (end - row) * range.width() as u64;
                let (format, blocks, factor) = self.blocks(self.line(row), columns.start..columns.start + count, parts);
                if format.decode(*isa, blocks, factor, self.target, now) {
                    tally += self.count(&range.of_rows(row..end), now);
                }
            } else {
                tally += lines.decode(row..end, now);
            }
            (row, out) = (end, rest);
        }
        tally
    }

    /// True if a row of the weight is a column of a stored matrix.
    fn is_by_columns(&self, row: u64) -> bool {
        !self.assembly.orders_columns() && (self.assembly.is_transposed || self.line(row).is_column)
    }

    /// True if the values of a row are those of stored blocks, which decode to the target.
    fn is_direct(&self, row: u64) -> bool {
        self.lane == Dtype::Float32
            && self.target != Dtype::Float64
            && self.assembly.change == ValueChange::None
            && !self.assembly.orders_columns()
            && !self.is_by_columns(row)
    }

    /// Returns the end of the rows from `row` on that are decoded together: a tile, or adjacent rows with the same scale.
    fn end_of_run(&self, row: u64, end: u64) -> u64 {
        let within = row % self.rows;
        let run = if self.is_by_columns(row) {
            let height = if self.assembly.is_transposed { self.rows } else { self.sources[0].columns };
            let unit = self.sources.iter().map(|source| source.format.elements).max().unwrap_or(1).max(TILE);
            ((within / unit + 1) * unit).min(height) - within
        } else if self.assembly != Assembly::default() || !self.is_direct(row) {
            1
        } else if self.factor.is_some_and(|(_, is_of_matrix)| is_of_matrix) {
            self.rows - within
        } else {
            end - row
        };
        (row + run).min(end)
    }
}

/// Decodes rows into lanes of float32 or float64.
pub(super) struct LineDecoder<'a> {
    decoder: &'a BlockDecoder,
    range: &'a DecodeRange<'a>,
    lane: Dtype,
    /// The values of the rows of a run, one row after the other.
    tile: Vec<u8>,
    /// Decoded blocks of one stored row, for a tile.
    blocks: Vec<u8>,
}

impl<'a> LineDecoder<'a> {
    pub(super) fn new(decoder: &'a BlockDecoder, range: &'a DecodeRange<'a>, lane: Dtype) -> Self {
        Self { decoder, range, lane, tile: Vec::new(), blocks: Vec::new() }
    }

    /// Calls `done` with the lane of each row of a run, in pieces of [`SEGMENT`] columns.
    pub(super) fn each(&mut self, rows: Range<u64>, mut done: impl FnMut(u64, &Range<u64>, &[u8])) {
        for start in self.range.columns.clone().step_by(SEGMENT) {
            let now = start..self.range.columns.end.min(start + SEGMENT as u64);
            self.fill(rows.clone(), now.clone());
            let width = (now.end - now.start) as usize * self.width();
            for (row, lane) in rows.clone().zip(self.tile.chunks_exact_mut(width)) {
                change(lane, self.lane, self.decoder.assembly.change);
                done(row, &now, lane);
            }
        }
    }

    fn width(&self) -> usize {
        self.lane.bits() as usize / 8
    }

    fn decode(&mut self, rows: Range<u64>, out: &mut [u8]) -> DecodeTally {
        let Self { decoder, range, .. } = *self;
        let mut tally = DecodeTally::default();
        let width = decoder.target.bits() as usize / 8;
        self.each(rows.clone(), |row, now, lane| {
            let place = (row - rows.start) as usize * range.width() + (now.start - range.columns.start) as usize;
            let count = (now.end - now.start) as usize;
            let out = &mut out[place * width..(place + count) * width];
            run(&decoder.encode, lane, out, count);
            if decoder.has_special(lane, out) {
                tally += decoder.count(&DecodeRange { rows: row..row + 1, columns: now.clone(), ..*range }, out);
            }
        });
        tally
    }

    /// Fills the tile with some columns of the rows of a run.
    fn fill(&mut self, rows: Range<u64>, columns: Range<u64>) {
        let Self { decoder, range: &DecodeRange { isa, parts, .. }, lane, .. } = *self;
        let width = self.width();
        let (height, count) = ((rows.end - rows.start) as usize, (columns.end - columns.start) as usize);
        self.tile.resize(height * count * width, 0);
        let decode = |line: SourceLine, columns: Range<u64>, out: &mut [u8]| {
            let (format, blocks, factor) = decoder.blocks(line, columns, parts);
            format.decode(isa, blocks, factor, lane, out);
        };
        if decoder.assembly.orders_columns() {
            self.blocks.resize(decoder.columns as usize * width, 0);
            decode(decoder.line(rows.start), 0..decoder.columns, &mut self.blocks);
            for (column, value) in columns.zip(self.tile.chunks_exact_mut(width)) {
                let (_, stored) = decoder.in_order(column, decoder.columns);
                value.copy_from_slice(&self.blocks[stored as usize * width..][..width]);
            }
            return;
        }
        if !decoder.is_by_columns(rows.start) {
            return decode(decoder.line(rows.start), columns, &mut self.tile);
        }
        let (matrix, within) = (rows.start / decoder.rows, rows.start % decoder.rows);
        for (at, column) in columns.enumerate() {
            // A column of the tile is a stored row.
            let stored = if decoder.assembly.is_transposed {
                decoder.line(matrix * decoder.columns + column)
            } else {
                SourceLine { line: column, ..decoder.line(rows.start) }
            };
            let elements = decoder.sources[stored.source].format.elements;
            let (first, end) = (within / elements * elements, (within + height as u64).next_multiple_of(elements));
            self.blocks.resize((end - first) as usize * width, 0);
            decode(stored, first..end, &mut self.blocks);
            let values = self.blocks.chunks_exact(width).skip((within - first) as usize).take(height);
            for (row, value) in values.enumerate() {
                self.tile[(row * count + at) * width..][..width].copy_from_slice(value);
            }
        }
    }
}

/// Changes each value of a lane. Logarithms are computed in float64 and rounded once.
fn change(lane: &mut [u8], dtype: Dtype, change: ValueChange) {
    let changed: fn(f64) -> f64 = match change {
        ValueChange::None => return,
        // The sum of two values of float32 in float64 gives the same float32.
        ValueChange::LessOne => |value| value - 1.0,
        ValueChange::LogOfNegative => |value| (-value).ln(),
    };
    if dtype == Dtype::Float64 {
        for value in lane.as_chunks_mut().0 {
            *value = changed(f64::from_le_bytes(*value)).to_le_bytes();
        }
    } else {
        for value in lane.as_chunks_mut().0 {
            *value = (changed(f32::from_le_bytes(*value).into()) as f32).to_le_bytes();
        }
    }
}
