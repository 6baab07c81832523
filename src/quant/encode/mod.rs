//! The encoder for all layouts: turns values into codes and scales, byte for byte as the library that owns the layout
//! writes them.
//!
//! Longer than 400 lines because of a test that compares two ways to encode all schemes.
//!
//! A group's largest magnitude chooses its scale ([`ScaleRule`](super::ScaleRule)), values are divided by it, and the
//! quotients are rounded to codes. Layouts differ only in how they choose scales and in how they round.
//!
//! Some libraries write NaNs for finite weights: for a tensor of zeros, or for a block so small that the reciprocal of
//! its scale overflows. The encoder stores a scale of 1 and codes of 0 there. It counts the group as underflowed unless
//! all of its values are 0.

mod choose;
mod exact;
mod extremes;
mod float64;
mod fused;
mod geometry;
mod groups;
mod lanes;
mod linear;
mod narrow;
mod recover;
mod room;
mod rounding;
mod rows;
mod scale;
mod screen;
mod search;
mod store;
mod tally;

pub use extremes::Extremes;
pub(crate) use extremes::count_special;
pub use geometry::{EncodedPart, Unfit};
pub use recover::{Recoverer, ScaleMatch, SharedScale};
pub(super) use rounding::nearest_bfloat16;
pub(super) use store::PartWriter;
pub use tally::EncodeTally;

use super::decode::Arithmetic;
use super::layout::{Group, Layout, Packing};
use super::parts::LinearAxis;
use super::rules::{ScaleRule, SignRule, Ties};
use super::scheme::{CodeType, TargetGrid};
use crate::dtype::{Class, Dtype};
use crate::kernel::Isa;
use choose::{Chooser, Quotient};
use float64::Float64Rows;
use geometry::EncodeGeometry;
use lanes::{CodeRounding, Division, LANES};
use rounding::{Minifloat, WeightType};
use rows::EncodeRows;
use search::ScaleSearch;
use std::ops::Range;

/// How the encoder chooses scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleChoice {
    /// Computes the scale from the largest magnitude of the group, by the rule of the layout.
    #[default]
    Amax,
    /// Takes the scale with the least squared error in the group; of two equally good scales, the larger. The
    /// candidates are all E4M3 scale codes for NVFP4, the exponent of the rule and its two neighbours for MXFP4, and
    /// for integers below 8 bits the scales for 1.00, 0.99, ... 0.81 of amax. Errors are summed in float64.
    Mse,
}

/// How codes and scales are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncodeOptions {
    /// With [`Arithmetic::Exact`], a scale is the exact quotient of the largest magnitude and the largest code, and a
    /// code is the exact quotient of value and stored scale; each is rounded once. Scales that are powers of two follow
    /// the rule of the layout either way.
    pub arithmetic: Arithmetic,
    /// Whether -0 keeps its sign in float8 codes of compressed-tensors: `model_free_ptq` of llm-compressor keeps it,
    /// its `oneshot` does not.
    pub keeps_negative_zero: bool,
    /// How scales are chosen.
    pub scale: ScaleChoice,
    /// The global scale of 4-bit activations, 2688 / their largest magnitude, to store beside NVFP4 weights.
    pub input_global_scale: Option<f32>,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self {
            arithmetic: Arithmetic::Library,
            keeps_negative_zero: true,
            scale: ScaleChoice::Amax,
            input_global_scale: None,
        }
    }
}

/// How the values of a segment become codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentLoop {
    /// Step by step.
    Steps,
    /// In one loop, with their errors: see [`fused`].
    Fused,
    /// The same, but in lanes of 16 bits where nobody asks for errors: see [`narrow`].
    Narrow,
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
    /// Whether many values may be beyond the codes.
    is_clipped: bool,
    search: Option<ScaleSearch>,
    float16: Minifloat,
    /// Whether values are float64.
    is_float64: bool,
    /// Of a tensor of an ONNX model.
    axis: Option<LinearAxis>,
}

impl Encoder {
    /// An encoder for weights of the shape `[.., rows, columns]` and the dtype `source`: float32, bfloat16 or float16, or
    /// float64 with exact arithmetic.
    ///
    /// # Errors
    /// When the grid cannot take the weight, or the layout cannot store the grid.
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
        let minifloat = |dtype: Dtype| match dtype.class() {
            Class::Float(format) if dtype.bits() <= 16 => Some(Minifloat::new(&format)),
            _ => None,
        };
        let (rounding, largest, zero_bits) = match grid.codes {
            CodeType::Float(dtype) => {
                let float = minifloat(dtype).ok_or(Unfit::Grid)?;
                let is_summed = encoding.scale == ScaleRule::Epsilon || encoding.scale == ScaleRule::HalfStep;
                let is_float8 = dtype == Dtype::Float8E4M3FN;
                let sign = match encoding.sign {
                    SignRule::Kept if is_summed && is_float8 && !options.keeps_negative_zero => SignRule::Negative,
                    sign => sign,
                };
                (CodeRounding::Float { float, sign, ties: encoding.ties }, float.largest, None)
            }
            CodeType::Int { bits: 4, symmetric: false } if encoding.scale == ScaleRule::Linear => {
                (CodeRounding::Int { low: 0.0, high: 15.0, offset: 0 }, 15.0, Some(4))
            }
            CodeType::Int { bits, symmetric } => {
                let half = (1_u32 << (bits - 1)) as f32;
                let is_stored = matches!(geometry.parts[0].dtype, Dtype::Int8 | Dtype::Int4);
                let offset = if is_stored { 0 } else { half as u8 };
                let is_full = matches!(encoding.scale, ScaleRule::Plain | ScaleRule::Linear);
                let largest = if is_full { half - 1.0 } else { half - 0.5 };
                (CodeRounding::Int { low: -half, high: half - 1.0, offset }, largest, (!symmetric).then_some(bits))
            }
        };
        let chooser = Chooser {
            rule: encoding.scale,
            is_exact,
            weight: if is_exact { WeightType::Float32 } else { weight },
            largest,
            largest_exponent: (largest.to_bits() >> 23) as i32 - 127,
            stored: geometry.parts[1].dtype,
            is_tensor: grid.group == Group::Tensor,
            has_three_bits: grid.codes == CodeType::Float(Dtype::Float6E2M3),
            zero_bits,
            bits: grid.codes.bits(),
            e4m3: minifloat(Dtype::Float8E4M3FN).ok_or(Unfit::Grid)?,
        };
        let (quotient, rounded) =
            chooser.quotient(matches!(rounding, CodeRounding::Float { sign: SignRule::Kept, .. }));
        let search = match options.scale {
            ScaleChoice::Amax => None,
            ScaleChoice::Mse if !geometry.is_tensor && geometry.block[0] > 1 => return Err(Unfit::Search),
            ScaleChoice::Mse => Some(ScaleSearch::new(&chooser, grid.codes.bits()).ok_or(Unfit::Search)?),
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
                rounding: if quotient == Quotient::Exact { WeightType::Float32 } else { rounded },
                has_zeros: zero_bits.is_some(),
                rounds_away: encoding.scale == ScaleRule::Linear && grid.codes.bits() == 4,
            },
            rounding,
            packing: layout.codes.packing,
            segments,
            is_clipped: encoding.scale == ScaleRule::Floor || options.scale == ScaleChoice::Mse,
            search,
            float16: minifloat(Dtype::Float16).ok_or(Unfit::Grid)?,
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

    /// Values of a row.
    #[must_use]
    pub fn columns(&self) -> u64 {
        self.geometry.columns
    }

    /// Bytes of one row of source values.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.geometry.columns * self.width as u64
    }

    /// Stored bits per value, counting all parts: codes, scales, zero points and the rest.
    #[must_use]
    pub fn bits_per_value(&self) -> f64 {
        let bytes: u64 = self.parts().iter().map(EncodedPart::byte_len).sum();
        8.0 * bytes as f64 / (self.rows() * self.geometry.columns) as f64
    }

    /// Whether scales depend on the largest magnitude of the whole tensor or of all tensors that share a scale. If so,
    /// [`Encoder::encode`] needs that magnitude.
    #[must_use]
    pub fn needs_extremes(&self) -> bool {
        let is_global = matches!(
            self.chooser.rule,
            ScaleRule::GlobalDivisor | ScaleRule::GlobalMultiplier | ScaleRule::GlobalPadded
        );
        is_global || self.geometry.is_tensor || self.geometry.has_column_scales
    }

    /// A range of rows to encode must start at a multiple of this, and end at a multiple or after the last row.
    #[must_use]
    pub fn row_alignment(&self) -> u64 {
        self.geometry.row_alignment()
    }

    /// The byte range within each part that encoding these rows writes. Ranges of rows that together cover the weight
    /// also cover all parts: bytes that belong to no row come with the first row, padding comes with the last.
    #[must_use]
    pub fn part_ranges(&self, rows: Range<u64>) -> Vec<Range<u64>> {
        self.geometry.part_ranges(&rows)
    }

    /// Encodes a range of rows. `source` holds their values, little-endian; `outputs` are buffers for the byte ranges
    /// of [`Encoder::part_ranges`], and are overwritten. `extremes` covers all weights that share a scale; it matters
    /// only if [`Encoder::needs_extremes`].
    ///
    /// The result does not depend on how the rows are split: the bytes are the same, and the tallies add up to the
    /// same.
    ///
    /// # Panics
    /// When the rows are not aligned, or the lengths of `source` or `outputs` are wrong.
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

    /// Does the same as [`Encoder::encode`] with one of the instruction sets of [`Isa::available`]: for tests.
    ///
    /// # Panics
    /// As [`Encoder::encode`], and when the machine lacks the instruction set.
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
mod tests {
    use super::super::scheme::SCHEMES;
    use super::*;

    /// Weights of ordinary size, and among them zeros of both signs, subnormal numbers and large ones.
    fn weights(dtype: Dtype, count: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let mut bytes = Vec::new();
        for at in 0..count {
            let (bits, range) = (random(), (at / 50) % 7);
            // A run of 50 has numbers of one size, so that all groups of a row differ.
            match dtype {
                Dtype::Float32 => {
                    let exponent = [120, 117, 0, 1, 150, 90, 123][range] + bits % 3;
                    let is_zero = bits % 11 == 0;
                    let number = if is_zero { 0 } else { exponent << 23 | random() & 0x7f_ffff };
                    bytes.extend((number | (bits & 1) << 31).to_le_bytes());
                }
                Dtype::Bfloat16 => {
                    let exponent = [120, 117, 0, 1, 150, 90, 123][range] + bits % 3;
                    let number = if bits % 11 == 0 { 0 } else { exponent << 7 | random() & 0x7f };
                    bytes.extend(((number | (bits & 1) << 15) as u16).to_le_bytes());
                }
                _ => {
                    let exponent = [8, 5, 0, 1, 22, 3, 12][range] + bits % 3;
                    let number = if bits % 11 == 0 { 0 } else { exponent << 10 | random() & 0x3ff };
                    bytes.extend(((number | (bits & 1) << 15) as u16).to_le_bytes());
                }
            }
        }
        bytes
    }

    /// Multiples of 1/2 from -8 to 8, whose quotients by a scale of 1 are ties.
    fn halves(dtype: Dtype, count: usize) -> Vec<u8> {
        let numbers = (0..count).map(|at| ((at * 7919 + at / 50) % 33) as f32 / 2.0 - 8.0);
        match dtype {
            Dtype::Float32 => numbers.flat_map(f32::to_le_bytes).collect(),
            Dtype::Bfloat16 => numbers.flat_map(|number| half::bf16::from_f32(number).to_le_bytes()).collect(),
            _ => numbers.flat_map(|number| half::f16::from_f32(number).to_le_bytes()).collect(),
        }
    }

    /// Compares both ways to encode with every instruction set.
    fn check(encoder: &mut Encoder, dtype: Dtype, source: &[u8], name: &str) {
        let extremes = if encoder.has_column_scales() {
            Extremes::of_columns(dtype, source, 0, encoder.columns())
        } else {
            Extremes::of(dtype, source, 0)
        };
        assert_eq!(extremes.largest, Extremes::of(dtype, source, 0).largest);
        let segments = encoder.segments;
        let mut run = |is_fused: bool, skips_errors: bool, isa: Isa| {
            encoder.segments = if is_fused { segments } else { SegmentLoop::Steps };
            let mut parts: Vec<Vec<u8>> =
                encoder.parts().iter().map(|part| vec![0xa5; part.byte_len() as usize]).collect();
            let mut outputs: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part[..]).collect();
            let mut tally = EncodeTally { skips_errors, ..EncodeTally::default() };
            encoder.encode_on(isa, 0..encoder.rows(), source, &extremes, &mut outputs, &mut tally);
            (parts, tally)
        };
        let plain = run(false, false, Isa::Baseline);
        assert_eq!(plain.1.special, 0);
        for isa in Isa::available() {
            assert!(run(true, false, isa) == plain, "{name} {dtype} {isa:?}");
            assert!(run(true, true, isa).0 == plain.0, "{name} {dtype} {isa:?}, without errors");
        }
    }

    #[test]
    fn one_loop_and_single_steps_give_the_same_codes_and_errors() {
        let mut fused = 0;
        for stored in SCHEMES.iter().flat_map(|scheme| scheme.layouts) {
            for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
                let shape = match stored.grid.group {
                    Group::Block([rows, _]) => [rows, 1152],
                    Group::Neighbours(_) => [32, 1152],
                    _ => [3, 2077],
                };
                for keeps_negative_zero in [true, false] {
                    let options = EncodeOptions { keeps_negative_zero, ..EncodeOptions::default() };
                    let mut encoder = Encoder::new(stored.layout(), &stored.grid, &shape, dtype, options).unwrap();
                    fused += usize::from(encoder.segments != SegmentLoop::Steps);
                    check(&mut encoder, dtype, &weights(dtype, (shape[0] * shape[1]) as usize), stored.name);
                }
            }
        }
        assert!(fused > 100, "{fused}");
    }

    #[test]
    fn codes_are_the_same_whether_or_not_anybody_asks_for_errors() {
        let mut narrow = 0;
        for stored in SCHEMES.iter().flat_map(|scheme| scheme.layouts) {
            // A row with numbers up to 1/50, and one with numbers up to 50, whose scales are above 1; zeros of both signs.
            let number = |at: usize| {
                let size = if at < 4608 { 0.02 } else { 50.0 };
                (((at * 7919 + at / 50) % 255) as f32 / 127.0 - 1.0) * size * [1.0, -0.0, 0.3, 0.0, 0.9][at % 5]
            };
            // The segments of blocks are as long either way.
            if matches!(stored.grid.group, Group::Block(_)) {
                continue;
            }
            let source: Vec<u8> = (0..9216).flat_map(|at| half::bf16::from_f32(number(at)).to_le_bytes()).collect();
            let options = EncodeOptions::default();
            let mut encoder =
                Encoder::new(stored.layout(), &stored.grid, &[2, 4608], Dtype::Bfloat16, options).unwrap();
            narrow += usize::from(encoder.segments == SegmentLoop::Narrow);
            check(&mut encoder, Dtype::Bfloat16, &source, stored.name);
        }
        assert_eq!(narrow, 2);
    }

    #[test]
    fn one_loop_and_single_steps_give_the_same_for_scales_along_columns() {
        let mut with_columns = 0;
        for stored in SCHEMES.iter().filter_map(super::super::scheme::Scheme::in_model) {
            for (dtype, shape) in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16]
                .into_iter()
                .flat_map(|dtype| [[64, 1056], [70, 1101], [5, 1]].map(|shape| (dtype, shape)))
            {
                for axis in [0, 1] {
                    let block_size = if let Group::Neighbours(size) = stored.grid.group { size } else { 0 };
                    let along = (&shape[..], LinearAxis { axis, block_size });
                    let options = EncodeOptions::default();
                    let mut encoder = Encoder::linear(stored.layout(), &stored.grid, along, dtype, options).unwrap();
                    assert!(encoder.segments == SegmentLoop::Fused || shape[1] == 1101, "{}", stored.name);
                    with_columns += usize::from(encoder.geometry.block[1] == 1);
                    let count = (shape[0] * shape[1]) as usize;
                    for source in [weights(dtype, count), halves(dtype, count)] {
                        check(&mut encoder, dtype, &source, stored.name);
                    }
                }
            }
        }
        assert!(with_columns >= 18, "{with_columns}");
    }
}
