//! Encodes float64 values with exact arithmetic: values of weights that were quantized before, whose products of codes
//! and float32 scales have more digits than a float32.
//!
//! A scale is the quotient of the largest magnitude and the largest code. A code is the quotient of value and stored
//! scale. Each quotient is computed in float64 and rounded once. Errors are differences of float64 numbers.

use super::super::rules::GlobalScale;
use super::choose::product_over;
use super::dither::Neighbours;
use super::encoder::Encoder;
use super::extremes::{Extremes, is_finite};
use super::geometry::Band;
use super::lanes;
use super::scale::GroupScale;
use super::screen::SearchGroup;
use super::store::PartWriter;
use super::tally::EncodeTally;
use crate::kernel::{Loop, to_odd};
use std::ops::Range;

/// Number of values that are encoded together.
const SEGMENT: usize = 1024;
/// Number of partial sums that are kept side by side, so that the loop vectorizes.
const LANES: usize = 8;
/// Maximum difference, relative to their size, of two equal numbers after a division by a global scale: each of up to
/// four roundings to float64 adds half a unit in the last place.
const QUOTIENT_ERROR: f64 = 2.0 * f64::EPSILON;

/// The rows of one call.
pub(super) struct Float64Rows<'a, 'o> {
    encoder: &'a Encoder,
    rows: Range<u64>,
    /// float64 values, little-endian.
    source: &'a [[u8; 8]],
    amax: f64,
    global: f32,
    writer: PartWriter<'a, 'o>,
    tally: &'a mut EncodeTally,
}

impl<'a, 'o> Float64Rows<'a, 'o> {
    pub(super) fn new(
        encoder: &'a Encoder,
        rows: Range<u64>,
        source: &'a [u8],
        extremes: &Extremes,
        outputs: &'a mut [&'o mut [u8]],
        tally: &'a mut EncodeTally,
    ) -> Self {
        let (amax, global) = (extremes.largest, encoder.chooser.global(extremes.largest));
        let writer = PartWriter::new(encoder, &rows, outputs, global);
        Self { encoder, rows, source: source.as_chunks().0, amax, global, writer, tally }
    }
}

/// Buffers for the values of a segment.
struct Float64Buffers {
    values: [f64; SEGMENT],
    numbers: [f32; SEGMENT],
    multiples: [f32; SEGMENT],
    codes: [u8; SEGMENT],
}

impl Loop for Float64Rows<'_, '_> {
    type Result = ();

    #[inline(always)]
    fn run(mut self) {
        let geometry = &self.encoder.geometry;
        let mut buffers = Float64Buffers {
            values: [0.0; SEGMENT],
            numbers: [0.0; SEGMENT],
            multiples: [0.0; SEGMENT],
            codes: [0; SEGMENT],
        };
        let mut scales = Vec::new();
        if geometry.is_tensor {
            scales.push(self.encoder.chooser.exact(self.amax, [0.0; 2], self.global));
            if self.rows.start == 0 {
                self.writer.store_only_scale((scales[0].stored, scales[0].zero));
                self.tally.underflowed_groups += u64::from(scales[0].is_underflow);
            }
        }
        for band in geometry.bands(&self.rows) {
            if !geometry.is_tensor {
                self.choose(&band, &mut scales);
                let stored = scales.iter().map(|scale| (scale.stored, scale.zero));
                self.writer.store_scales(band.matrix, band.rows.start, 0, stored);
                self.tally.underflowed_groups += scales.iter().filter(|scale| scale.is_underflow).count() as u64;
            }
            // A closure is compiled without the instruction set.
            for row in band.rows {
                self.encode(band.matrix, row, &scales, &mut buffers);
            }
        }
    }
}

impl Float64Rows<'_, '_> {
    #[inline(always)]
    fn row(&self, matrix: usize, row: usize) -> &[[u8; 8]] {
        let geometry = &self.encoder.geometry;
        &self.source[geometry.source_range(&self.rows, matrix, row, 0..geometry.columns as usize)]
    }

    #[inline(always)]
    fn choose(&mut self, band: &Band, scales: &mut Vec<GroupScale>) {
        let Encoder { chooser, geometry, is_searched, .. } = self.encoder;
        let size = geometry.block[1] as usize;
        let groups = (geometry.columns as usize).div_ceil(size);
        let mut bounds = vec![[f64::INFINITY, f64::NEG_INFINITY]; groups];
        for row in band.rows.clone() {
            let values = self.row(band.matrix, row);
            let mut is_all_finite = true;
            for (bounds, values) in bounds.iter_mut().zip(values.chunks(size)) {
                let has_nan = widen_bounds(bounds, values);
                is_all_finite &= !has_nan && bounds.iter().all(|bound| is_finite(*bound));
            }
            if !is_all_finite {
                let special = values.iter().position(|bytes| !is_finite(f64::from_le_bytes(*bytes)));
                self.tally.take_special(special.map(|at| geometry.element(band.matrix, row, at)));
            }
        }
        scales.clear();
        // A positive 0 for zeros of both signs: exponents follow from its bits.
        let amax = |bounds: &[f64; 2]| bounds[1].max(-bounds[0]).abs();
        scales.extend(bounds.iter().map(|bounds| chooser.exact(amax(bounds), *bounds, self.global)));
        if !is_searched {
            return;
        }
        // Searches with the nearest float32 values; groups then have one row.
        for (at, values) in self.row(band.matrix, band.rows.start).chunks(size).enumerate() {
            let bytes: Vec<u8> =
                values.iter().flat_map(|bytes| (f64::from_le_bytes(*bytes) as f32).to_le_bytes()).collect();
            let (amax, bounds) = (amax(&bounds[at]) as f32, bounds[at].map(|bound| bound as f32));
            let group = SearchGroup { encoder: self.encoder, bytes: &bytes, amax, bounds, global: self.global };
            scales[at] = group.best(scales[at]);
        }
    }

    #[inline(always)]
    fn encode(&mut self, matrix: usize, row: usize, scales: &[GroupScale], buffers: &mut Float64Buffers) {
        let Encoder { geometry, rounding, division, chooser, .. } = self.encoder;
        let (size, columns) = (geometry.block[1] as usize, geometry.columns as usize);
        let is_divided = chooser.rule.global == Some(GlobalScale::Divisor);
        let multiplier = chooser.multiplier(self.global);
        let (mut signals, mut noises) = (SumOfSquares::default(), SumOfSquares::default());
        for start in (0..columns).step_by(SEGMENT) {
            let end = (start + SEGMENT).min(columns);
            let count = end - start;
            let (values, numbers) = (&mut buffers.values[..count], &mut buffers.numbers[..count]);
            for (value, bytes) in values.iter_mut().zip(&self.row(matrix, row)[start..end]) {
                *value = f64::from_le_bytes(*bytes);
            }
            // 1. Codes, group by group, because a group may be longer than a segment or begin within a segment.
            let groups = || {
                let starts = std::iter::once(start).chain((start / size + 1..).map(move |group| group * size));
                starts.take_while(move |at| *at < end).map(move |at| {
                    (
                        at - start..((at / size + 1) * size).min(end) - start,
                        if geometry.is_tensor { 0 } else { at / size },
                    )
                })
            };
            for (range, group) in groups() {
                let scale = &scales[group];
                if scale.factor == 0.0 {
                    numbers[range].fill(if division.has_zeros { scale.zero } else { 0.0 });
                    continue;
                }
                // Adding 0 would turn -0 into 0.
                let zero = if division.has_zeros { f64::from(scale.zero) } else { -0.0 };
                let offset = if division.has_offsets { f64::from(scale.zero) } else { 0.0 };
                let wide = scale.wide;
                let pairs = values[range.clone()].iter().zip(&mut numbers[range]);
                if is_divided {
                    for (value, number) in pairs {
                        *number = product_over(*value, multiplier, wide);
                    }
                } else {
                    for (value, number) in pairs {
                        *number = to_odd((*value - offset) / wide + zero);
                    }
                }
            }
            if let Some(dither) = self.tally.dither {
                let (first, neighbours) = (geometry.element(matrix, row, start), Neighbours::of_codes(rounding));
                for (element, number) in (first..).zip(&mut *numbers) {
                    *number = dither.round(element, (*number).into(), &neighbours) as f32;
                }
            }
            let (codes, multiples) = (&mut buffers.codes[..count], &mut buffers.multiples[..count]);
            self.tally.clipped += u64::from(lanes::round(rounding, numbers, codes, multiples));
            self.writer.store_codes(matrix, row, start..end, codes);
            if self.tally.skips_errors {
                continue;
            }
            // 2. Errors, in place of the values.
            signals.add(values);
            for (range, group) in groups() {
                let scale = &scales[group];
                let wide = if scale.factor == 0.0 { 0.0 } else { scale.wide / multiplier };
                let own = f64::from(scale.zero);
                let (zero, offset) = if division.has_offsets { (0.0, own) } else { (own, 0.0) };
                for (value, multiple) in values[range.clone()].iter_mut().zip(&multiples[range]) {
                    let error = *value - (f64::from(*multiple) - zero) * wide - offset;
                    let is_zero = is_divided && error.abs() <= QUOTIENT_ERROR * value.abs();
                    *value = if is_zero { 0.0 } else { error };
                }
            }
            noises.add(values);
            self.tally.changed += values.iter().map(|error| u64::from(*error != 0.0)).sum::<u64>();
            let most = largest_magnitude(values);
            if most.is_infinite() || self.tally.needs_place(most, geometry.element(matrix, row, start)) {
                let at = values.iter().position(|error| error.abs() == most).unwrap_or_default();
                self.tally.take_error(most, Some(geometry.element(matrix, row, start + at)));
            }
        }
        self.tally.values += geometry.columns;
        self.tally.take_errors(signals.0.into_iter().sum(), noises.0.into_iter().sum());
    }
}

/// Widens bounds to values; returns true if one is NaN.
#[inline(always)]
fn widen_bounds(bounds: &mut [f64; 2], values: &[[u8; 8]]) -> bool {
    let (mut low, mut high, mut sums) = ([bounds[0]; LANES], [bounds[1]; LANES], [0.0; LANES]);
    let (whole, last) = values.as_chunks::<LANES>();
    let mut padded = [last.first().copied().unwrap_or_default(); LANES];
    padded[..last.len()].copy_from_slice(last);
    let padded = if last.is_empty() { &[][..] } else { std::slice::from_ref(&padded) };
    for chunks in [whole, padded] {
        for chunk in chunks {
            for lane in 0..LANES {
                let value = f64::from_le_bytes(chunk[lane]);
                low[lane] = if value < low[lane] { value } else { low[lane] };
            }
            for lane in 0..LANES {
                let value = f64::from_le_bytes(chunk[lane]);
                high[lane] = if value > high[lane] { value } else { high[lane] };
            }
            for lane in 0..LANES {
                sums[lane] += f64::from_le_bytes(chunk[lane]);
            }
        }
    }
    *bounds = [low.into_iter().fold(f64::INFINITY, f64::min), high.into_iter().fold(f64::NEG_INFINITY, f64::max)];
    // A sum with NaN is NaN. Without NaN, it may be NaN if values are infinite, which are as special.
    sums.iter().any(|sum| sum.is_nan())
}

/// Sums of squares, side by side.
#[derive(Default)]
struct SumOfSquares([f64; LANES]);

impl SumOfSquares {
    #[inline(always)]
    fn add(&mut self, values: &[f64]) {
        let mut sums = self.0;
        let (chunks, last) = values.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                sums[lane] += chunk[lane] * chunk[lane];
            }
        }
        for (sum, value) in sums.iter_mut().zip(last) {
            *sum += value * value;
        }
        self.0 = sums;
    }
}

/// Returns the largest magnitude of values; NaN does not count.
#[inline(always)]
fn largest_magnitude(values: &[f64]) -> f64 {
    let mut most = [0.0; LANES];
    let (chunks, last) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let magnitude = chunk[lane].abs();
            most[lane] = if magnitude > most[lane] { magnitude } else { most[lane] };
        }
    }
    last.iter().map(|value| value.abs()).chain(most).fold(0.0, f64::max)
}
