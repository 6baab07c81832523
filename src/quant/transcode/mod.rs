//! Moves a quantized weight to another layout without quantizing it again: codes and scales are rearranged, or moved by
//! powers of two.
//!
//! Values are products of codes and scales. A weight can be moved if every group of the new grid has a scale for which
//! all of its products are the same real numbers as before. Most pairs of layouts only differ in names, packing, order
//! and types of the same numbers. In the other pairs, scales are powers of two (MXFP4 to NVFP4, MXFP4 to blocks of
//! float8): codes then move by a power of two, which is exact if no bit is lost. Only a global scale that has no exact
//! reciprocal changes values: see [`rescale`].

mod fit;
mod kept;
mod rescale;
mod source;
mod transposed;

use super::decode::Decoder;
use super::encode::{EncodeTally, Encoder, PartWriter};
use super::layout::Combination;
use crate::error::Result;
pub use fit::SharedTables;
use fit::{MovedCodes, NewScale, Tables};
use kept::{ScaleBuffers, ScaleBytes};
use rescale::Rescaling;
use source::SourceGrid;
use std::ops::Range;
use std::sync::Arc;
pub use transposed::{TransposeObstacle, Transposer};

/// Number of values that are moved at a time.
const SEGMENT: usize = 1024;

/// The rows of a quantized weight that a new weight consists of: row r is row `first` + r * `step` of the source,
/// counted through all its matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowMap {
    pub first: u64,
    /// The distance from one row to the next: 2 for gate and up of gpt-oss, which alternate.
    pub step: u64,
}

impl RowMap {
    /// The rows in their order.
    pub const ALL: Self = Self { first: 0, step: 1 };

    /// Returns the row of the source.
    pub fn row(self, row: u64) -> u64 {
        self.first + row * self.step
    }
}

/// Moves codes and scales of a weight to another layout.
pub struct Transcoder {
    source: SourceGrid,
    encoder: Arc<Encoder>,
    tables: Arc<Tables>,
    /// The stored global scale of the new layout.
    global: f32,
    /// The effect of rounding the global scale, if it has no exact reciprocal.
    rescaling: Option<Box<Rescaling>>,
    /// True if an offset has to be rounded.
    rounds_offsets: bool,
    /// The scale of a weight that has only one scale.
    only: Option<NewScale>,
    /// The new scales of stored bytes, if codes stay the same.
    bytes: Option<Box<ScaleBytes>>,
    /// True if rows of codes that stay the same are stored in the same bytes.
    keeps_packed_rows: bool,
}

/// Effect of a move on the values of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fidelity {
    /// No value changes.
    Exact,
    /// Codes and block scales stay the same, and the global scale is rounded once.
    Rescaled,
    /// Codes and scales stay the same, and offsets are rounded once.
    RoundedOffsets,
}

impl Transcoder {
    /// Creates a transcoder for the rows of a weight; `None` if its layout, or the group index among its `parts`, rules
    /// out unchanged values. `shared` holds the tables of the other weights of the model.
    pub fn new(
        decoder: Arc<Decoder>,
        rows: RowMap,
        encoder: Arc<Encoder>,
        parts: &[&[u8]],
        shared: &SharedTables,
    ) -> Result<Option<Self>> {
        if encoder.rotation() != decoder.rotation() || encoder.has_levels() {
            return Ok(None);
        }
        let keeps_blocks = encoder.has_global_scale() && decoder.has_global_scale();
        // Offsets that stay the same are exact, so codes that start at 0 stay the same too.
        let Some(mut source) = SourceGrid::new(decoder, rows, keeps_blocks, !encoder.has_offsets(), parts)? else {
            return Ok(None);
        };
        let tables = shared.get(&source.numbers, source.is_integer, &encoder);
        source.numbers = Arc::clone(&tables.numbers);
        let stores_alike = |(packing, bits)| encoder.stores_rows_as(packing, bits);
        let keeps_packed_rows = tables.keeps_codes() && source.packing().is_some_and(stores_alike);
        let (global, rescaling, rounds_offsets, only, bytes) = (1.0, None, false, None, None);
        Ok(Some(Self { source, encoder, tables, global, rescaling, rounds_offsets, only, bytes, keeps_packed_rows }))
    }

    /// True if the new layout has a global scale and the old layout has none. The weights that share it then need the
    /// largest of their [`Transcoder::largest_exponent`].
    pub fn needs_exponent(&self) -> bool {
        self.encoder.has_global_scale() && !self.source.keeps_blocks
    }

    /// Returns the largest exponent of the scales of codes other than 0; `None` if all codes are 0.
    pub fn largest_exponent(&self, parts: &[&[u8]]) -> Option<i32> {
        (0..self.encoder.rows() as usize).fold(None, |largest, row| self.source.largest_exponent(row, parts, largest))
    }

    /// True if a stored scale is NaN or infinite; such a weight cannot be moved.
    pub fn has_special_scale(&self, parts: &[&[u8]]) -> bool {
        (0..self.encoder.rows() as usize).any(|row| self.source.has_special_scale(row, parts))
    }

    /// Determines the fidelity of the move; `None` if the weight cannot be moved. If [`Transcoder::needs_exponent`],
    /// `exponent` is the largest exponent of all weights that share a global scale.
    pub fn settle(&mut self, exponent: Option<i32>, parts: &[&[u8]]) -> Option<Fidelity> {
        (self.global, self.rescaling) = self.global_scale(exponent, parts)?;
        if self.encoder.has_one_scale() {
            self.only = Some(self.only_scale(parts)?);
            return Some(self.fidelity());
        }
        self.bytes = self.scale_bytes(parts).map(Box::new);
        let mut raw = Vec::new();
        let mut rounds_offsets = false;
        for rows in self.bands(0..self.encoder.rows() as usize) {
            if self.kept(rows.start, parts, &mut raw).is_none() {
                rounds_offsets |= self.new_scales(rows, parts)?.iter().any(|scale| scale.change != 0.0);
            }
        }
        self.rounds_offsets = rounds_offsets;
        Some(self.fidelity())
    }

    /// Splits rows into rows of groups of the new grid, or into pieces if the weight has only one scale.
    fn bands(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let height = if self.encoder.has_one_scale() { SEGMENT } else { self.encoder.block_height() };
        let (matrix, mut row) = (self.encoder.matrix_rows(), rows.start);
        std::iter::from_fn(move || {
            let start = row;
            row += height.min(matrix - row % matrix).min(rows.end - row);
            (start < row).then_some(start..row)
        })
    }

    /// The global scale in the new layout, after [`Transcoder::settle`]; 1 if there is none.
    pub(crate) fn global(&self) -> f32 {
        self.global
    }

    /// The fidelity of the move, after [`Transcoder::settle`].
    pub fn fidelity(&self) -> Fidelity {
        match (&self.rescaling, self.rounds_offsets) {
            (Some(_), _) => Fidelity::Rescaled,
            (None, true) => Fidelity::RoundedOffsets,
            (None, false) => Fidelity::Exact,
        }
    }

    /// Determines the global scale in the new layout; `None` if no number fits.
    fn global_scale(&self, exponent: Option<i32>, parts: &[&[u8]]) -> Option<(f32, Option<Box<Rescaling>>)> {
        let is_divisor = self.encoder.layout().global == Combination::Divisor;
        if !self.encoder.has_global_scale() {
            return Some((1.0, None));
        }
        if !self.source.keeps_blocks {
            // The largest block scale is 2^8. If all codes are 0, any scale is right.
            let exponent = exponent.map_or(0, |exponent| exponent - 8);
            let exponent = if is_divisor { -exponent } else { exponent };
            return (-126..=127).contains(&exponent).then(|| (2_f32.powi(exponent), None));
        }
        let (global, was_divisor) = self.source.global(self.encoder.rows(), parts)?;
        if is_divisor == was_divisor {
            return Some((global, None));
        }
        let reciprocal = Some(1.0 / global).filter(|reciprocal| reciprocal.is_normal())?;
        let is_exact = f64::from(reciprocal) * f64::from(global) == 1.0;
        let before = if was_divisor { 1.0 / f64::from(global) } else { global.into() };
        let rescaling = || Box::new(Rescaling::new(before, self.encoder.global_factor(reciprocal)));
        Some((reciprocal, (!is_exact).then(rescaling)))
    }

    /// Moves a range of rows; `parts` are the whole stored bytes of the source. See [`Encoder::encode`] for the rest.
    /// Panics if [`Transcoder::settle`] was not called before, or has returned `None`.
    pub fn transcode(&self, rows: Range<u64>, parts: &[&[u8]], outputs: &mut [&mut [u8]], tally: &mut EncodeTally) {
        let mut writer = PartWriter::new(&self.encoder, &rows, outputs, self.global);
        let all = self.encoder.matrix_rows();
        if let (Some(only), 0) = (&self.only, rows.start) {
            writer.store_only_scale(only.chosen);
        }
        let mut buffers = ScaleBuffers::default();
        for band in self.bands(rows.start as usize..rows.end as usize) {
            if self.keep_row(band.start, parts, &mut buffers, &mut writer, tally) {
                continue;
            }
            let scales = if let Some(only) = self.only {
                vec![only]
            } else {
                let scales = self.new_scales(band.clone(), parts).expect("the weight is known to fit");
                let chosen = scales.iter().map(|scale| scale.chosen);
                writer.store_scales(band.start / all, band.start % all, 0, chosen);
                scales
            };
            self.move_codes(band, &scales, parts, |row, columns, codes| match codes {
                MovedCodes::Packed(packed) => writer.copy_codes(row / all, row % all, packed),
                MovedCodes::Unpacked(codes) => {
                    let first = row as u64 * self.encoder.columns() + columns.start as u64;
                    if let Some(rescaling) = &self.rescaling {
                        let width = self.encoder.block_width();
                        let groups = columns.start / width..columns.end.div_ceil(width);
                        let blocks: Vec<u8> = scales[groups].iter().map(NewScale::byte).collect();
                        rescaling.count(codes, &blocks, first, tally);
                    }
                    if self.rounds_offsets {
                        self.count_rounded(codes, columns.start, &scales, first, tally);
                    }
                    writer.store_codes(row / all, row % all, columns, codes);
                }
            });
        }
        tally.values += (rows.end - rows.start) * self.encoder.columns();
    }
}
