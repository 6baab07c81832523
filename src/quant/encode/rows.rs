//! Encodes the rows of one call: first the scales of a band of groups, then the codes of its rows, in segments that fit
//! into the first-level cache.

use super::super::rules::SignRule;
use super::buffers::{EncodeBuffers, RaiseValues, SpreadScales};
use super::choose::Choose;
use super::encoder::Encoder;
use super::extremes::{AreLarge, Extremes, INFINITY, first_special, largest};
use super::geometry::Band;
use super::lanes::{
    Bounds, BoundsOfGroups, CodeRounding, ErrorSums, FusedSegment, LANES, LargestOfGroups, SegmentLoop,
};
use super::linear::ExtendColumns;
use super::screen::SearchGroup;
use super::search::FindScale;
use super::steps::{Float64Errors, SegmentInSteps};
use super::store::PartWriter;
use super::tally::EncodeTally;
use crate::dtype::Dtype;
use std::ops::Range;

/// Default distance in bytes at which the input is prefetched.
const AHEAD: usize = 4 << 10;

/// The rows of one call.
pub(super) struct EncodeRows<'a, 'o> {
    pub(super) encoder: &'a Encoder,
    rows: Range<u64>,
    source: &'a [u8],
    extremes: &'a Extremes,
    pub(super) global: f32,
    pub(super) writer: PartWriter<'a, 'o>,
    pub(super) tally: &'a mut EncodeTally,
}

/// Some columns of rows that share scales.
#[derive(Clone)]
pub(super) struct Tile {
    pub(super) matrix: usize,
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    pub(super) groups: Range<usize>,
}

impl<'a, 'o> EncodeRows<'a, 'o> {
    pub(super) fn new(
        encoder: &'a Encoder,
        rows: Range<u64>,
        source: &'a [u8],
        extremes: &'a Extremes,
        outputs: &'a mut [&'o mut [u8]],
        tally: &'a mut EncodeTally,
    ) -> Self {
        let global = encoder.chooser.global(extremes.largest);
        let writer = PartWriter::new(encoder, &rows, outputs, global);
        Self { encoder, rows, source, extremes, global, writer, tally }
    }

    pub(super) fn run(mut self) {
        let encoder = self.encoder;
        let geometry = &encoder.geometry;
        let [width, beside] = [geometry.columns, geometry.block[1]].map(|length| length as usize);
        let mut buffers = EncodeBuffers::new(encoder, !self.tally.skips_errors);
        let groups = buffers.groups;
        if geometry.is_tensor {
            if encoder.is_float64 {
                buffers.chosen.set(0, &encoder.chooser.exact(self.extremes.largest, [0.0; 2], self.global));
            } else {
                buffers.amax[0] = (self.extremes.largest as f32).to_bits();
                self.choose_scales(&mut buffers, 1);
            }
            if self.rows.start == 0 {
                let only = buffers.chosen.get(0);
                self.writer.store_only_scale((only.stored, only.zero));
                self.tally.underflowed_groups += buffers.chosen.underflowed(1);
            }
            self.spread_scales(&mut buffers, 1);
        }
        for Band { matrix, rows } in geometry.bands(&self.rows) {
            for group in (0..width.div_ceil(beside)).step_by(groups) {
                let tile = Tile {
                    matrix,
                    rows: rows.clone(),
                    columns: group * beside..((group + groups) * beside).min(width),
                    groups: group..(group + groups).min(width.div_ceil(beside)),
                };
                let count = tile.groups.len();
                if !geometry.is_tensor {
                    self.choose(&tile, &mut buffers);
                    if !geometry.has_column_scales || (matrix, rows.start) == (0, 0) {
                        self.tally.underflowed_groups += buffers.chosen.underflowed(count);
                        self.writer.store_scales(matrix, rows.start, group, buffers.chosen.stored_with_zeros(count));
                    }
                    self.spread_scales(&mut buffers, count);
                }
                for row in tile.rows.clone() {
                    self.encode(&tile, row, &mut buffers);
                }
            }
        }
    }

    fn spread_scales(&self, buffers: &mut EncodeBuffers, count: usize) {
        let Encoder { geometry, weight, division, rounding, is_float64, isa, .. } = self.encoder;
        if *is_float64 {
            return;
        }
        let size = geometry.block[1] as usize;
        isa.run(SpreadScales { buffers, count, size, division: *division, weight: *weight, rounding });
    }

    pub(super) fn source_bytes(&self, matrix: usize, row: usize, columns: Range<usize>) -> &'a [u8] {
        let Encoder { geometry, width, .. } = self.encoder;
        let range = geometry.source_range(&self.rows, matrix, row, columns);
        &self.source[range.start * width..range.end * width]
    }

    /// Returns the bytes `distance` after the start of a segment: as long as the segment, or shorter at the end of the
    /// source.
    fn ahead(&self, segment: &[u8], distance: usize) -> &'a [u8] {
        let start = segment.as_ptr().addr() - self.source.as_ptr().addr() + distance;
        let end = (start + segment.len()).min(self.source.len());
        self.source.get(start..end).unwrap_or_default()
    }

    fn choose(&mut self, tile: &Tile, buffers: &mut EncodeBuffers) {
        let Encoder { chooser, geometry, weight, width, isa, .. } = self.encoder;
        if self.encoder.is_float64 {
            return self.choose_in_float64(tile, &mut buffers.chosen);
        }
        let (count, size) = (tile.groups.len(), geometry.block[1] as usize);
        let has_bounds = chooser.has_bounds();
        let has_offsets = self.encoder.division.has_offsets && matches!(size, 32 | 64 | 128);
        if has_bounds || size == 1 {
            buffers.make_lanes(buffers.segment.min(tile.columns.len()));
        }
        let (amax, bounds) = (&mut buffers.amax[..count], &mut buffers.bounds[..count]);
        amax.fill(0);
        if geometry.has_column_scales {
            amax.copy_from_slice(&self.extremes.columns[tile.groups.clone()]);
            self.choose_scales(buffers, count);
            return;
        }
        if has_bounds || size == 1 {
            bounds.fill([f32::INFINITY, f32::NEG_INFINITY]);
        }
        let mut most = 0;
        for row in tile.rows.clone() {
            let bytes = self.source_bytes(tile.matrix, row, tile.columns.clone());
            if size == 1 {
                let values = &mut buffers.values[..count];
                most = isa.run(ExtendColumns { weight: *weight, bytes, values, amax, bounds });
                continue;
            }
            if has_offsets {
                most = isa.run(BoundsOfGroups { weight: *weight, bytes, size, amax, bounds });
                continue;
            }
            most = isa.run(LargestOfGroups { weight: *weight, bytes, size, amax: &mut *amax });
            if has_bounds {
                // A group may be longer than a segment.
                for (bounds, bytes) in bounds.iter_mut().zip(bytes.chunks(size * width)) {
                    for bytes in bytes.chunks(buffers.segment * width) {
                        let values = &mut buffers.values[..bytes.len() / width];
                        let [low, high] = isa.run(Bounds { weight: *weight, bytes, values });
                        *bounds = [low.min(bounds[0]), high.max(bounds[1])];
                    }
                    // Of zeros, the lowest is the first, as for ONNX Runtime: the sign of its scale follows from it.
                    if *bounds == [0.0; 2] {
                        bounds[0] = if bytes[width - 1] & 0x80 == 0 { 0.0 } else { -0.0 };
                    }
                }
            }
        }
        if most >= INFINITY {
            self.find_special(tile);
        }
        self.choose_scales(buffers, count);
        if self.encoder.is_searched {
            let (encoder, global) = (self.encoder, self.global);
            let bytes = self.source_bytes(tile.matrix, tile.rows.start, tile.columns.clone());
            for (at, bytes) in bytes.chunks(size * width).enumerate() {
                let (amax, bounds) = (f32::from_bits(buffers.amax[at]), buffers.bounds[at]);
                let group = SearchGroup { encoder, bytes, amax, bounds, global };
                let best = isa.run(FindScale { group, chosen: buffers.chosen.get(at) });
                buffers.chosen.set(at, &best);
            }
        }
    }

    /// Chooses the scales of groups from the extremes in the buffers.
    fn choose_scales(&self, buffers: &mut EncodeBuffers, count: usize) {
        let EncodeBuffers { amax, bounds, chosen: out, .. } = buffers;
        self.encoder.isa.run(Choose { chooser: &self.encoder.chooser, amax, count, bounds, global: self.global, out });
    }

    #[inline(never)]
    fn find_special(&mut self, tile: &Tile) {
        let Encoder { geometry, weight, width, .. } = self.encoder;
        for row in tile.rows.clone() {
            let bytes = self.source_bytes(tile.matrix, row, tile.columns.clone());
            let at = first_special(*weight, bytes);
            self.tally.take_special(at.map(|at| geometry.element(tile.matrix, row, tile.columns.start + at / width)));
        }
    }

    /// Encodes a row of a tile, segment by segment.
    fn encode(&mut self, tile: &Tile, row: usize, buffers: &mut EncodeBuffers) {
        let Encoder { geometry, is_float64, .. } = self.encoder;
        if *is_float64 {
            return self.encode_in_float64(tile, row, buffers);
        }
        let size = geometry.block[1] as usize;
        let step = if size > buffers.segment { buffers.segment } else { tile.columns.len() };
        let (distance, fused) = (self.distance(tile, buffers.segment), self.segment_loop(buffers));
        let is_measured = !self.tally.skips_errors;
        let (mut signal, mut noise) = (0.0, 0.0);
        for column in tile.columns.clone().step_by(step) {
            let columns = column..(column + step).min(tile.columns.end);
            let source = self.source_bytes(tile.matrix, row, columns.clone());
            let sums = if let Some((fused, writes_stored)) = fused {
                let ahead = self.ahead(source, distance);
                let [factors, zeros, scales] = buffers.spread.each_ref().map(|lane| &lane[..]);
                let bytes = self.whole_lanes(source, &buffers.raises, &mut buffers.padded);
                let segment = FusedSegment { bytes, factors, zeros, scales, ahead, is_measured };
                if writes_stored && bytes.len() == source.len() {
                    fused.encode(segment, self.writer.row_codes(tile.matrix, row, columns));
                    continue;
                }
                let sums = fused.encode(segment, &mut buffers.codes).total();
                if buffers.has_no_scale {
                    let groups = buffers.codes[..columns.len()].chunks_mut(size).zip(&buffers.chosen.scale);
                    groups.filter(|(_, scale)| **scale == 0.0).for_each(|(codes, _)| codes.fill(0));
                }
                sums
            } else {
                self.encode_in_steps(source, buffers)
            };
            self.tally.clipped += u64::from(sums.clipped);
            self.writer.store_codes(tile.matrix, row, columns.clone(), &buffers.codes[..columns.len()]);
            if is_measured {
                let first = geometry.element(tile.matrix, row, column);
                let squares = self.measure(source, first, sums, fused.is_some(), buffers);
                signal += squares[0];
                noise += squares[1];
            }
        }
        self.tally.values += tile.columns.len() as u64;
        self.tally.take_errors(signal, noise);
    }

    /// Returns the loop for the scales of a tile, unless they need single steps. With true, the loop can write codes of
    /// whole lanes as they are stored.
    fn segment_loop(&self, buffers: &EncodeBuffers) -> Option<(&'a dyn SegmentLoop, bool)> {
        let Encoder { geometry, rounding, fused, narrow, .. } = self.encoder;
        let (fits, keeps_zero) = match *rounding {
            CodeRounding::Float { float, sign, .. } => {
                (self.encoder.may_clip || buffers.most < float.clipped, sign == SignRule::Kept)
            }
            CodeRounding::Int { .. } => (true, false),
        };
        let fused = fused.as_deref().filter(|_| buffers.is_ordinary && fits)?;
        match narrow.as_deref() {
            _ if !self.tally.skips_errors => Some((fused, false)),
            // Numbers that are too small for float32 have no sign either.
            Some(narrow) if keeps_zero || buffers.is_at_most_one => Some((narrow, true)),
            _ => Some((fused, geometry.bits == 8 && !geometry.is_stream && !buffers.has_no_scale)),
        }
    }

    /// Returns the distance to the values to prefetch: the values of the next row or tile, or a bit further ahead.
    fn distance(&self, tile: &Tile, segment: usize) -> usize {
        let tile_bytes = tile.columns.len() * self.encoder.width;
        match self.encoder.geometry.block {
            _ if self.encoder.geometry.is_tensor => AHEAD,
            _ if self.encoder.geometry.has_column_scales => self.encoder.row_bytes() as usize,
            [1, length] if length > segment as u64 => self.encoder.row_bytes() as usize,
            [1, _] => tile_bytes.max(AHEAD),
            _ => tile_bytes,
        }
    }

    /// Returns the values of a segment for its loop: raised, and padded with zeros to whole lanes.
    fn whole_lanes<'s>(&self, source: &'s [u8], raises: &[i32], padded: &'s mut [u8]) -> &'s [u8] {
        let Encoder { geometry, weight, width, isa, .. } = self.encoder;
        let whole = source.len().next_multiple_of(LANES * width);
        if whole == source.len() && raises.is_empty() {
            return source;
        }
        let (out, rest) = padded[..whole].split_at_mut(source.len());
        if raises.is_empty() {
            out.copy_from_slice(source);
        } else {
            let size = geometry.block[1] as usize;
            isa.run(RaiseValues { weight: *weight, bytes: source, size, raises, out });
        }
        rest.fill(0);
        &padded[..whole]
    }

    /// Returns the sums of squares of a segment's values and errors; `first` is the index of its first value. Few
    /// segments need more than the sums of their loop.
    fn measure(
        &mut self,
        source: &[u8],
        first: u64,
        sums: ErrorSums,
        is_fused: bool,
        buffers: &mut EncodeBuffers,
    ) -> [f64; 2] {
        let unit = f64::from(buffers.unit);
        if !sums.is_complete(buffers.least_sum) {
            // Single steps do not raise values.
            let lacks_raise = !buffers.raises.is_empty() && !is_fused;
            // Zeros have no errors.
            return if sums.noise == 0.0
                && sums.signal >= buffers.least_sum
                && !lacks_raise
                && self.is_exact(source, buffers)
            {
                [sums.signal * unit * unit, 0.0]
            } else if largest(self.encoder.weight, source) > 0 {
                self.errors_in_float64(source, first, buffers)
            } else {
                [0.0; 2]
            };
        }
        let largest = f64::from(sums.largest) * unit;
        if self.tally.needs_place(largest, first) {
            if is_fused {
                self.encode_in_steps(source, buffers);
            }
            let errors = &buffers.multiples[..source.len() / self.encoder.width];
            let at = errors.iter().position(|error| error.abs() == sums.largest);
            self.tally.take_error(largest, at.map(|at| first + at as u64));
        }
        [sums.signal * unit * unit, sums.noise * unit * unit]
    }

    /// True if errors of a segment that are 0 in float32 are 0: the products of its codes and scales are exact, and no
    /// square of an error underflows.
    fn is_exact(&self, source: &[u8], buffers: &EncodeBuffers) -> bool {
        let Encoder { chooser, division, weight, .. } = self.encoder;
        let are_short = matches!(chooser.stored, Dtype::Bfloat16 | Dtype::Float16) || chooser.power().is_some();
        let bytes = if buffers.raises.is_empty() { source } else { &buffers.padded[..source.len()] };
        are_short
            && !division.has_offsets
            && buffers.is_ordinary
            && self.encoder.isa.run(AreLarge { weight: *weight, bytes })
    }

    /// Encodes a segment step by step, for groups of any size, and for exact quotients.
    fn encode_in_steps(&self, source: &[u8], buffers: &mut EncodeBuffers) -> ErrorSums {
        let size = self.encoder.geometry.block[1] as usize;
        buffers.make_lanes(source.len() / self.encoder.width);
        self.encoder.isa.run(SegmentInSteps { encoder: self.encoder, source, buffers, size, is_measured: true }).total()
    }

    /// Sums the squares of a segment's values and errors in float64, for errors or squares too small or too large for
    /// float32; `first` is the index of its first value.
    #[inline(never)]
    fn errors_in_float64(&mut self, source: &[u8], first: u64, buffers: &mut EncodeBuffers) -> [f64; 2] {
        let (encoder, size) = (self.encoder, self.encoder.geometry.block[1] as usize);
        let count = source.len() / encoder.width;
        buffers.make_lanes(count);
        self.encoder.isa.run(SegmentInSteps { encoder, source, buffers, size, is_measured: false });
        let errors = Float64Errors { encoder, buffers, count, size };
        let sums = self.encoder.isa.run(&errors);
        if self.tally.needs_place(sums.largest, first) {
            let at = errors.position(sums.largest);
            self.tally.take_error(sums.largest, at.map(|at| first + at as u64));
        }
        [sums.signal, sums.noise]
    }
}
