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
mod exact;
mod extremes;
mod float64;
mod formula;
mod fused;
mod geometry;
mod groups;
mod infinite;
mod lanes;
mod linear;
mod narrow;
mod recover;
mod rounded;
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
pub use extremes::Extremes;
pub(crate) use extremes::count_special;
pub use geometry::{EncodedPart, Unfit};
pub use recover::{Recoverer, ScaleMatch, SharedScale};
pub(super) use store::PartWriter;
pub use tally::EncodeTally;
pub use weight::WeightEncoder;

use super::decode::Arithmetic;
use super::layout::{Layout, Packing};
use super::parts::LinearAxis;
use super::rules::{Encoding, ScaleRule, SignRule, Ties};
use super::scheme::{CodeType, TargetGrid};
use crate::dtype::{Class, Dtype};
use crate::kernel::{Isa, Minifloat};
use choose::Chooser;
use float64::Float64Rows;
use formula::{BoundsFormula, Formula, Quotient};
use geometry::EncodeGeometry;
use lanes::{CodeRounding, Division, LANES};
use rounding::WeightType;
use rows::EncodeRows;
use search::ScaleSearch;
use std::ops::Range;

/// The choice of scales by the encoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum ScaleChoice {
    /// From the largest magnitude, as the library of the layout does
    #[default]
    Amax,
    /// The scale with the least squared error; a lower error does not guarantee a better model
    ///
    /// The error is that of the group. Of two equally good scales, it takes the larger. The candidates are all E4M3
    /// scale codes for NVFP4, the exponent of the rule and its two neighbours for MXFP4, and for integers below 8 bits
    /// the scales for 1.00, 0.99, ... 0.81 of amax. Errors are summed in float64.
    Mse,
}

/// Options for the computation of codes and scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncodeOptions {
    /// With [`Arithmetic::Exact`], a scale is the exact quotient of the largest magnitude and the largest code, and a
    /// code is the exact quotient of value and stored scale; each is rounded once. Scales that are powers of two follow
    /// the rule of the layout either way.
    pub arithmetic: Arithmetic,
    pub scale: ScaleChoice,
    /// The global scale of 4-bit activations, 2688 / their largest magnitude, to store with NVFP4 weights.
    pub input_global_scale: Option<f32>,
    /// True if the description of `ComfyUI` asks for multiplication in full precision.
    pub has_full_precision: bool,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self {
            arithmetic: Arithmetic::Library,
            scale: ScaleChoice::Amax,
            input_global_scale: None,
            has_full_precision: false,
        }
    }
}

/// Loop that converts the values of a segment to codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentLoop {
    Steps,
    /// One loop, which also computes the errors: see [`fused`].
    Fused,
    /// Like `Fused`, but in lanes of 16 bits if errors are not needed: see [`narrow`].
    Narrow,
}

fn minifloat(dtype: Dtype) -> Result<Minifloat, Unfit> {
    match dtype.class() {
        Class::Float(format) if dtype.bits() <= 16 => Ok(Minifloat::new(&format)),
        _ => Err(Unfit::Grid),
    }
}

/// Returns the rounding of quotients to codes, which are stored as `stored`, with the largest quotient.
fn code_rounding(encoding: Encoding, codes: CodeType, stored: Dtype) -> Result<(CodeRounding, f32), Unfit> {
    Ok(match codes {
        CodeType::Float(dtype) => {
            let float = minifloat(dtype)?;
            (CodeRounding::Float { float, sign: encoding.sign, ties: encoding.ties }, float.largest)
        }
        CodeType::Int { bits, symmetric: false } if encoding.scale == ScaleRule::Affine => {
            let largest = ((1_u32 << bits) - 1) as f32;
            (CodeRounding::Int { low: 0.0, high: largest, offset: 0 }, largest)
        }
        CodeType::Int { bits: 4, symmetric: false } if encoding.scale == ScaleRule::Linear => {
            (CodeRounding::Int { low: 0.0, high: 15.0, offset: 0 }, 15.0)
        }
        CodeType::Int { bits, .. } => {
            let half = (1_u32 << (bits - 1)) as f32;
            let offset = if matches!(stored, Dtype::Int8 | Dtype::Int4) { 0 } else { half as u8 };
            let is_full = matches!(encoding.scale, ScaleRule::Plain | ScaleRule::Linear);
            let largest = if is_full { half - 1.0 } else { half - 0.5 };
            (CodeRounding::Int { low: -half, high: half - 1.0, offset }, largest)
        }
    })
}

/// Turns the values of a weight into the stored bytes of its parts.
pub struct Encoder {
    layout: &'static Layout,
    chooser: Chooser,
    geometry: EncodeGeometry,
    weight: WeightType,
    /// Bytes per source value.
    width: usize,
    division: Division,
    rounding: CodeRounding,
    packing: Packing,
    segments: SegmentLoop,
    /// True if many values may be beyond the codes.
    may_clip: bool,
    search: Option<ScaleSearch>,
    is_float64: bool,
    /// The axis of the scales in a tensor of an ONNX model.
    axis: Option<LinearAxis>,
}

impl Encoder {
    /// Creates an encoder for weights of the shape `[.., rows, columns]` and the dtype `source`: float32, bfloat16 or
    /// float16, or float64 with exact arithmetic.
    pub fn new(
        layout: &'static Layout,
        grid: &TargetGrid,
        shape: &[u64],
        source: Dtype,
        options: EncodeOptions,
    ) -> Result<Self, Unfit> {
        let is_exact = options.arithmetic == Arithmetic::Exact;
        // Searches for scales take float64 values as float32.
        let is_float64 = source == Dtype::Float64 && is_exact;
        let weight =
            if is_float64 { WeightType::Float32 } else { WeightType::new(source).ok_or(Unfit::Source(source))? };
        let geometry = EncodeGeometry::new(layout, grid, shape, source)?;
        Self::with_geometry(layout, grid, geometry, (source, weight, is_float64), options)
    }

    fn with_geometry(
        layout: &'static Layout,
        grid: &TargetGrid,
        mut geometry: EncodeGeometry,
        (source, weight, is_float64): (Dtype, WeightType, bool),
        options: EncodeOptions,
    ) -> Result<Self, Unfit> {
        let is_exact = options.arithmetic == Arithmetic::Exact;
        let encoding = layout.encoding.ok_or(Unfit::Grid)?;
        if let Some(scale) = options.input_global_scale {
            geometry.add_input_scale(layout, scale)?;
        }
        if options.has_full_precision {
            geometry.describe_full_precision();
        }
        let (rounding, largest) = code_rounding(encoding, grid.codes, geometry.parts[0].dtype)?;
        let stored = geometry.parts[1].dtype;
        let computed = if is_exact { WeightType::Float32 } else { weight };
        let keeps_sign = matches!(rounding, CodeRounding::Float { sign: SignRule::Kept, .. });
        let (formula, quotient, rounded) =
            Formula::of(encoding.scale, (grid.codes, stored, computed), geometry.is_tensor, keeps_sign);
        let chooser = Chooser {
            formula,
            is_exact,
            weight: computed,
            largest,
            largest_exponent: (largest.to_bits() >> 23) as i32 - 127,
            stored,
            has_three_bits: grid.codes == CodeType::Float(Dtype::Float6E2M3),
            e4m3: minifloat(Dtype::Float8E4M3FN)?,
        };
        // A product with a power of two is the exact quotient.
        let quotient = if is_exact && !matches!(formula, Formula::Power(_)) { Quotient::Exact } else { quotient };
        let has_search = encoding.scale.has_search(grid.codes.bits()) && !geometry.is_tensor && geometry.block[0] == 1;
        let search = match options.scale {
            ScaleChoice::Amax => None,
            ScaleChoice::Mse if has_search => Some(ScaleSearch::new(&chooser)),
            ScaleChoice::Mse => return Err(Unfit::Search),
        };
        let block = geometry.block[1];
        let is_whole = block == 1 || block.is_multiple_of(LANES as u64) || block >= geometry.columns;
        let is_even = matches!(rounding, CodeRounding::Float { ties: Ties::Even, .. });
        let is_narrow = (weight, grid.codes) == (WeightType::Bfloat16, CodeType::Float(Dtype::Float4E2M1))
            && is_even
            && quotient == Quotient::Multiply
            && matches!(chooser.stored, Dtype::Uint8 | Dtype::Float8E8M0)
            && block == narrow::GROUP as u64
            && matches!(layout.codes.packing, Packing::Rows(_) | Packing::TransposedBlocks)
            && geometry.columns.is_multiple_of(block);
        let segments = match quotient {
            Quotient::Divide | Quotient::Multiply if is_narrow => SegmentLoop::Narrow,
            Quotient::Divide | Quotient::Multiply if is_whole => SegmentLoop::Fused,
            _ => SegmentLoop::Steps,
        };
        Ok(Self {
            layout,
            chooser,
            geometry,
            weight,
            width: source.bits() as usize / 8,
            division: Division {
                quotient,
                rounding: rounded,
                has_zeros: formula.zero_bits().is_some(),
                has_offsets: formula == Formula::Bounds(BoundsFormula::Affine),
                rounds_away: matches!(formula, Formula::Bounds(BoundsFormula::Signed | BoundsFormula::Shifted)),
            },
            rounding,
            packing: layout.codes.packing,
            segments,
            may_clip: matches!(encoding.scale, ScaleRule::Floor | ScaleRule::BlockOnly)
                || options.scale == ScaleChoice::Mse,
            search,
            is_float64,
            axis: None,
        })
    }

    /// The layout that the encoder writes.
    #[must_use]
    pub fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// The tensors that the encoder writes, in the order in which the library writes them.
    #[must_use]
    pub fn parts(&self) -> &[EncodedPart] {
        &self.geometry.parts
    }

    /// The shape of the weight.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.geometry.shape
    }

    /// The number of rows: the product of all dimensions but the last.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.geometry.all_rows()
    }

    /// The number of values in a row.
    #[must_use]
    pub fn columns(&self) -> u64 {
        self.geometry.columns
    }

    /// Bytes of one row of source values.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.geometry.columns * self.width as u64
    }

    /// True if scales depend on the largest magnitude of the whole tensor or of all tensors that share a scale.
    /// [`Encoder::encode`] then needs that magnitude.
    #[must_use]
    pub fn needs_extremes(&self) -> bool {
        self.chooser.formula.has_global() || self.geometry.is_tensor || self.geometry.has_column_scales
    }

    /// The alignment of ranges of rows to encode: they must start at a multiple of it, and end at a multiple or after
    /// the last row.
    #[must_use]
    pub fn row_alignment(&self) -> u64 {
        self.geometry.row_alignment()
    }

    /// Returns the byte range within each part that encoding these rows writes. Ranges of rows that together cover the
    /// weight also cover all parts: bytes that belong to no row come with the first row, padding with the last row.
    #[must_use]
    pub fn part_ranges(&self, rows: Range<u64>) -> Vec<Range<u64>> {
        self.geometry.part_ranges(&rows)
    }

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
        self.encode_on(Isa::chosen(), rows, source, extremes, outputs, tally);
    }

    /// Like [`Encoder::encode`], with one of the instruction sets of [`Isa::available`], for tests.
    pub fn encode_on(
        &self,
        isa: Isa,
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
        if !rows.is_empty() {
            let global = self.chooser.global(extremes.largest);
            let writer = PartWriter::new(self, &rows, outputs, global).on(isa);
            if self.is_float64 {
                let (source, amax) = (source.as_chunks().0, extremes.largest);
                isa.run(Float64Rows { encoder: self, rows, source, amax, global, writer, tally });
            } else {
                let amax = extremes.largest as f32;
                let columns = &extremes.columns[..];
                EncodeRows { encoder: self, isa, rows, source, amax, columns, global, writer, tally }.run();
            }
        }
    }
}

#[cfg(test)]
mod tests;
