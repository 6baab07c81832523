//! Encodes weights that are rotated before they are quantized: some rows at a time become float32 and are rotated.

use super::super::rotation::rotate_to_float32s;
use super::encoder::Encoder;
use super::extremes::{Extremes, INFINITY, first_special, largest};
use super::lanes::larger;
use super::levels::Levels;
use super::rounding::WeightType;
use super::rows::EncodeRows;
use super::tally::EncodeTally;
use crate::dtype::Dtype;
use crate::kernel::Loop;
use crate::kernel::half::{bfloat16, float16, to_bfloat16, to_float16};
use half::{bf16, f16};
use std::ops::Range;

/// Encodes rows of levels: their values are float32.
struct EncodeLevels<'a, 'o> {
    encoder: &'a Encoder,
    levels: &'a Levels,
    rows: Range<u64>,
    values: &'a [f32],
    outputs: &'a mut [&'o mut [u8]],
    tally: &'a mut EncodeTally,
}

impl Loop for EncodeLevels<'_, '_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { encoder, levels, rows, values, outputs, tally } = self;
        let geometry = &encoder.geometry;
        let (columns, stride) = (geometry.columns as usize, geometry.stride as usize);
        let groups = geometry.grid[1] as usize;
        let (mut indices, mut grid) = (vec![0; columns], vec![0.0; levels.table.len()]);
        for (at, values) in values.chunks_exact(columns).enumerate() {
            let scales = &mut outputs[1][at * groups..][..groups];
            let row = levels.row(values, &mut indices, scales);
            outputs[2][4 * at..][..4].copy_from_slice(&row.to_le_bytes());
            if !tally.skips_errors {
                let first = (rows.start + at as u64) * geometry.columns;
                let scales = &outputs[1][at * groups..][..groups];
                measure(levels, values, (&indices, scales, row), &mut grid, first, tally);
            }
            // The codes of 6 bits start at 1.
            if levels.is_even() {
                for index in &mut indices {
                    *index += 1;
                }
            }
            store(&indices, geometry.bits == 6, &mut outputs[0][at * stride..][..stride]);
        }
        tally.values += values.len() as u64;
    }
}

/// Adds the errors of a row.
#[inline(always)]
fn measure(
    levels: &Levels,
    values: &[f32],
    (indices, scales, row): (&[u8], &[u8], f32),
    grid: &mut [f32],
    first: u64,
    tally: &mut EncodeTally,
) {
    let (mut signal, mut noise) = (0.0, 0.0);
    let groups = values.chunks(levels.group).zip(indices.chunks(levels.group)).zip(scales);
    for (group, ((values, indices), scale)) in groups.enumerate() {
        levels.grid(f32::from_bits(levels.e4m3.widen(u32::from(*scale))), grid);
        for (at, (value, index)) in values.iter().zip(indices).enumerate() {
            let (wide, error) = (f64::from(*value), f64::from(grid[usize::from(*index)] * row) - f64::from(*value));
            signal += wide * wide;
            noise += error * error;
            let place = first + (group * levels.group + at) as u64;
            if tally.needs_place(error.abs(), place) {
                tally.take_error(error.abs(), Some(place));
            }
        }
    }
    tally.take_errors(signal, noise);
}

/// Stores the codes of a row: the low four bits of all, and then the upper two bits.
#[inline(always)]
fn store(codes: &[u8], has_upper: bool, out: &mut [u8]) {
    for (out, pair) in out.iter_mut().zip(codes.as_chunks::<2>().0) {
        *out = pair[0] & 15 | pair[1] << 4;
    }
    if has_upper {
        for (out, codes) in out[codes.len() / 2..].iter_mut().zip(codes.as_chunks::<4>().0) {
            *out = codes[0] >> 4 | codes[1] >> 4 << 2 | codes[2] >> 4 << 4 | codes[3] >> 4 << 6;
        }
    }
}

/// Widens some rows to float32, and rotates them. Returns the bits of the largest magnitude.
struct Rotate<'a> {
    source: Dtype,
    bytes: &'a [u8],
    size: usize,
    rounded: WeightType,
    values: &'a mut [[u8; 4]],
}

impl Loop for Rotate<'_> {
    type Result = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let Self { source, bytes, size, rounded, values } = self;
        let (words, floats) = (bytes.as_chunks().0, bytes.as_chunks().0);
        match WeightType::new(source) {
            Some(WeightType::Float32) => rotate_to_float32s(floats, values, size, f32::from_le_bytes),
            Some(WeightType::Bfloat16) => {
                rotate_to_float32s(words, values, size, |word| bfloat16(u16::from_le_bytes(word)));
            }
            Some(WeightType::Float16) => {
                rotate_to_float32s(words, values, size, |word| float16(u16::from_le_bytes(word)));
            }
            None => rotate_to_float32s(bytes.as_chunks().0, values, size, |value| f64::from_le_bytes(value) as f32),
        }
        // A loop for each type, which the compiler makes vectors of.
        match rounded {
            WeightType::Float32 => round(values, |number| number),
            WeightType::Bfloat16 => round(values, to_bfloat16),
            WeightType::Float16 => round(values, to_float16),
        }
    }
}

/// Rounds numbers; returns the bits of the largest magnitude.
#[inline(always)]
fn round(values: &mut [[u8; 4]], round: impl Fn(f32) -> f32) -> u32 {
    let mut most = 0;
    for value in values {
        let rounded = round(f32::from_le_bytes(*value));
        *value = rounded.to_le_bytes();
        most = larger(most, rounded.abs().to_bits());
    }
    most
}

impl Encoder {
    /// Widens rows, rotates `size` columns together, a few rows at a time, and encodes them.
    pub(super) fn encode_rotated(
        &self,
        size: usize,
        rows: Range<u64>,
        source: &[u8],
        outputs: &mut [&mut [u8]],
        tally: &mut EncodeTally,
    ) {
        /// Values that are rotated at a time: they stay in the second-level cache.
        const PIECE: u64 = 1 << 14;
        let columns = self.geometry.columns;
        let step = (PIECE / columns).max(1);
        let count = (step * columns) as usize;
        let mut values = vec![[0; 4]; count];
        let mut rest: Vec<&mut [u8]> = outputs.iter_mut().map(|out| &mut **out).collect();
        let width = self.source.bits() as usize / 8;
        for start in (rows.start..rows.end).step_by(step as usize) {
            let end = rows.end.min(start + step);
            let bytes = &source[((start - rows.start) * columns) as usize * width..];
            let count = ((end - start) * columns) as usize;
            let bytes = &bytes[..count * width];
            let mut now: Vec<&mut [u8]> = Vec::new();
            for (rest, range) in rest.iter_mut().zip(self.part_ranges(start..end)) {
                let (first, others) = std::mem::take(rest).split_at_mut((range.end - range.start) as usize);
                now.push(first);
                *rest = others;
            }
            let (values, rounded) = (&mut values[..count], self.rotated);
            let most = self.isa.run(Rotate { source: self.source, bytes, size, rounded, values });
            let numbers = || values.iter().map(|bytes| f32::from_le_bytes(*bytes));
            // The rotation spreads an infinite value or NaN over a group.
            let special = match WeightType::new(self.source) {
                Some(weight) if largest(weight, bytes) >= INFINITY => first_special(weight, bytes).map(|at| at / width),
                Some(_) if self.rotated == WeightType::Float32 => None,
                // Sums can be beyond float16.
                _ if most < INFINITY => None,
                _ => numbers().position(|value| !value.is_finite()),
            };
            if let Some(at) = special {
                tally.take_special(Some(start * columns + at as u64));
                for out in &mut now {
                    out.fill(0);
                }
                continue;
            }
            if let Some(levels) = &self.levels {
                for (part, out) in self.geometry.parts.iter().zip(&mut now) {
                    if let Some(bytes) = part.fixed().filter(|_| !out.is_empty()) {
                        out.copy_from_slice(bytes);
                    }
                }
                let (rows, values) = (start..end, &numbers().collect::<Vec<_>>()[..]);
                self.isa.run(EncodeLevels { encoder: self, levels, rows, values, outputs: &mut now, tally });
                continue;
            }
            let narrow: Vec<u8> = match self.weight {
                WeightType::Float32 => Vec::new(),
                WeightType::Bfloat16 => numbers().flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
                WeightType::Float16 => numbers().flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
            };
            let values = if self.weight == WeightType::Float32 { values.as_flattened() } else { &narrow };
            EncodeRows::new(self, start..end, values, &Extremes::default(), &mut now, tally).run();
        }
    }
}
