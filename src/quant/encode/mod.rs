//! The encoder for all layouts: turns values into codes and scales, byte for byte as the library that owns the layout
//! writes them.
//!
//! A group's largest magnitude chooses its scale ([`ScaleRule`](super::ScaleRule)), values are divided by it, and the
//! quotients are rounded to codes. Layouts differ only in the choice of scales and in rounding.
//!
//! Some libraries write NaNs for finite weights: for a tensor of zeros, or for a block so small that the reciprocal of
//! its scale overflows. The encoder stores a scale of 1 and codes of 0 in these cases. It counts the group as
//! underflowed unless all of its values are 0.

mod blocks;
mod buffers;
mod choose;
mod dither;
mod encoder;
mod extremes;
mod float64;
mod fused;
mod geometry;
mod infinite;
mod lanes;
mod levels;
mod linear;
mod narrow;
mod recover;
mod rotated;
mod rounding;
mod rows;
mod scale;
mod screen;
mod search;
mod steps;
mod store;
mod tally;
mod weight;

pub use blocks::BlockWeightEncoder;
pub(crate) use dither::{Dither, Neighbours};
pub use encoder::{EncodeArithmetic, EncodeOptions, Encoder, ScaleChoice};
pub use extremes::Extremes;
pub(crate) use extremes::count_special;
pub use geometry::{EncodedPart, Unfit};
pub use recover::{Recoverer, ScaleMatch, SharedScale};
pub(super) use store::PartWriter;
pub use tally::EncodeTally;
pub use weight::{PlainWeight, WeightEncoder};

use float64::Float64Rows;
use rows::EncodeRows;
use std::ops::Range;

impl Encoder {
    /// Encodes a range of rows. `source` holds their values, little-endian; `outputs` are buffers for the byte ranges
    /// of [`Encoder::part_ranges`], and are overwritten. `extremes` covers all weights that share a scale; it matters
    /// only if [`Encoder::needs_extremes`].
    ///
    /// The result does not depend on how the rows are split: the bytes are the same, and the tallies add up to the
    /// same. Panics if the rows are not aligned, or the lengths of `source` or `outputs` are wrong.
    pub fn encode(
        &self,
        rows: Range<u64>,
        source: &[u8],
        extremes: &Extremes,
        outputs: &mut [&mut [u8]],
        tally: &mut EncodeTally,
    ) {
        let alignment = self.row_alignment();
        let is_end = |row: u64| row.is_multiple_of(alignment) || row == self.rows();
        assert!(rows.start <= rows.end && rows.end <= self.rows(), "the rows are those of the weight");
        assert!(is_end(rows.start) && is_end(rows.end), "ranges of rows are aligned");
        assert_eq!(
            source.len() as u64,
            (rows.end - rows.start) * self.row_bytes(),
            "the source is as long as the rows"
        );
        let lengths = self.part_ranges(rows.clone()).into_iter().map(|range| range.end - range.start);
        assert!(lengths.eq(outputs.iter().map(|out| out.len() as u64)), "outputs are as long as the rows need");
        match self.rotation {
            _ if rows.is_empty() => {}
            Some(size) => self.encode_rotated(size, rows, source, outputs, tally),
            None if self.is_float64 => {
                let isa = self.isa;
                isa.run(Float64Rows::new(self, rows, source, extremes, outputs, tally));
            }
            None => EncodeRows::new(self, rows, source, extremes, outputs, tally).run(),
        }
    }
}

#[cfg(test)]
mod tests;
