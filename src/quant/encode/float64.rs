//! Encodes float64 values with exact arithmetic: values of weights that were quantized before, whose products of codes
//! and float32 scales have more digits than a float32.
//!
//! A scale is the quotient of the largest magnitude and the largest code. A code is the quotient of value and stored
//! scale. Each quotient is computed in float64 and rounded once. Errors are differences of float64 numbers.

use super::super::rules::GlobalScale;
use super::buffers::{EncodeBuffers, SEGMENT};
use super::choose::product_over;
use super::dither::Neighbours;
use super::encoder::Encoder;
use super::extremes::is_finite;
use super::lanes;
use super::rows::{EncodeRows, Tile};
use super::scale::ChosenScales;
use super::screen::SearchGroup;
use crate::kernel::{Loop, to_odd};

/// Number of partial sums that are kept side by side, so that the loop vectorizes.
const LANES: usize = 8;
/// Maximum difference, relative to their size, of two equal numbers after a division by a global scale: each of up to
/// four roundings to float64 adds half a unit in the last place.
const QUOTIENT_ERROR: f64 = 2.0 * f64::EPSILON;

impl EncodeRows<'_, '_> {
    /// Chooses the scales of a tile, which has all columns.
    pub(super) fn choose_in_float64(&mut self, tile: &Tile, chosen: &mut ChosenScales) {
        self.encoder.isa.run(ChooseInFloat64 { rows: self, tile, chosen });
    }

    /// Encodes a row of a tile with these scales.
    pub(super) fn encode_in_float64(&mut self, tile: &Tile, row: usize, buffers: &mut EncodeBuffers) {
        self.encoder.isa.run(EncodeInFloat64 { rows: self, tile, row, buffers });
    }
}

struct ChooseInFloat64<'r, 'a, 'o> {
    rows: &'r mut EncodeRows<'a, 'o>,
    tile: &'r Tile,
    chosen: &'r mut ChosenScales,
}

struct EncodeInFloat64<'r, 'a, 'o> {
    rows: &'r mut EncodeRows<'a, 'o>,
    tile: &'r Tile,
    row: usize,
    buffers: &'r mut EncodeBuffers,
}

impl Loop for ChooseInFloat64<'_, '_, '_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { rows, tile, chosen } = self;
        let Encoder { chooser, geometry, is_searched, .. } = rows.encoder;
        let size = geometry.block[1] as usize;
        let mut bounds = vec![[f64::INFINITY, f64::NEG_INFINITY]; tile.groups.len()];
        for row in tile.rows.clone() {
            let values = rows.source_bytes(tile.matrix, row, tile.columns.clone()).as_chunks().0;
            let mut is_all_finite = true;
            for (bounds, values) in bounds.iter_mut().zip(values.chunks(size)) {
                let has_nan = widen_bounds(bounds, values);
                is_all_finite &= !has_nan && bounds.iter().all(|bound| is_finite(*bound));
            }
            if !is_all_finite {
                let special = values.iter().position(|bytes| !is_finite(f64::from_le_bytes(*bytes)));
                rows.tally.take_special(special.map(|at| geometry.element(tile.matrix, row, at)));
            }
        }
        // Searches with the nearest float32 values; groups then have one row.
        let first = rows.source_bytes(tile.matrix, tile.rows.start, tile.columns.clone()).as_chunks().0.chunks(size);
        for (at, (bounds, values)) in bounds.iter().zip(first).enumerate() {
            // A positive 0 for zeros of both signs: exponents follow from its bits.
            let amax = bounds[1].max(-bounds[0]).abs();
            let mut scale = chooser.exact(amax, *bounds, rows.global);
            if *is_searched {
                let narrow = values.iter().flat_map(|bytes| (f64::from_le_bytes(*bytes) as f32).to_le_bytes());
                let (bytes, bounds) = (&narrow.collect::<Vec<u8>>()[..], bounds.map(|bound| bound as f32));
                let group =
                    SearchGroup { encoder: rows.encoder, bytes, amax: amax as f32, bounds, global: rows.global };
                scale = group.best(scale);
            }
            chosen.set(at, &scale);
        }
    }
}

impl Loop for EncodeInFloat64<'_, '_, '_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { rows, tile, row, buffers } = self;
        let Encoder { geometry, rounding, division, chooser, .. } = rows.encoder;
        let (size, columns) = (geometry.block[1] as usize, geometry.columns as usize);
        let is_divided = chooser.rule.global == Some(GlobalScale::Divisor);
        let multiplier = chooser.multiplier(rows.global);
        let (mut signals, mut noises) = (SumOfSquares::default(), SumOfSquares::default());
        buffers.make_lanes(SEGMENT);
        buffers.wide.resize(SEGMENT, 0.0);
        let EncodeBuffers { wide: values, numbers, multiples, codes, chosen, .. } = buffers;
        let chosen = &*chosen;
        for start in (0..columns).step_by(SEGMENT) {
            let end = (start + SEGMENT).min(columns);
            let count = end - start;
            let (values, numbers) = (&mut values[..count], &mut numbers[..count]);
            let (codes, multiples) = (&mut codes[..count], &mut multiples[..count]);
            let first = geometry.element(tile.matrix, row, start);
            let source = rows.source_bytes(tile.matrix, row, start..end);
            for (value, bytes) in values.iter_mut().zip(source.as_chunks().0) {
                *value = f64::from_le_bytes(*bytes);
            }
            // 1. Codes, group by group, because a group may be longer than a segment or begin within a segment.
            let groups = || {
                let starts = std::iter::once(start).chain((start / size + 1..).map(move |group| group * size));
                let ends = starts.take_while(move |at| *at < end);
                ends.map(move |at| (at - start..((at / size + 1) * size).min(end) - start, chosen.get(at / size)))
            };
            for (range, scale) in groups() {
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
            if let Some(dither) = rows.tally.dither {
                let neighbours = Neighbours::of_codes(rounding);
                for (element, number) in (first..).zip(&mut *numbers) {
                    *number = dither.round(element, (*number).into(), &neighbours) as f32;
                }
            }
            rows.tally.clipped += u64::from(lanes::round(rounding, numbers, codes, multiples));
            rows.writer.store_codes(tile.matrix, row, start..end, codes);
            if rows.tally.skips_errors {
                continue;
            }
            // 2. Errors, in place of the values.
            signals.add(values);
            for (range, scale) in groups() {
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
            rows.tally.changed += values.iter().map(|error| u64::from(*error != 0.0)).sum::<u64>();
            let most = largest_magnitude(values);
            if most.is_infinite() || rows.tally.needs_place(most, first) {
                let at = values.iter().position(|error| error.abs() == most).unwrap_or_default();
                rows.tally.take_error(most, Some(first + at as u64));
            }
        }
        rows.tally.values += geometry.columns;
        rows.tally.take_errors(signals.0.into_iter().sum(), noises.0.into_iter().sum());
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
