//! The encoder of all layouts: values in, codes and scales out, byte for byte those of the library that owns the layout.
//!
//! A group's largest magnitude chooses its scale ([`ScaleRule`](super::ScaleRule)), values are divided by it, and the
//! quotients are rounded to codes. Everything but the choice and the roundings is common to all layouts.
//!
//! Where a library would write NaNs for finite weights (a tensor of zeros, or a block so small that the reciprocal of its
//! scale overflows), the encoder stores a scale of 1 and codes of 0, and counts the group as underflowed.

mod choose;
mod extremes;
mod lanes;
mod rounding;
mod rows;
mod search;
mod shape;
mod tally;

pub use extremes::Extremes;
pub use shape::{EncodedPart, Unfit};
pub use tally::EncodeTally;

use super::layout::{Group, Layout, Packing};
use super::rules::{ScaleRule, SignRule};
use super::scheme::{CodeType, TargetGrid};
use super::steps::Arithmetic;
use crate::dtype::{Class, Dtype};
use crate::kernel::Isa;
use choose::{Chooser, Quotient};
use lanes::{CodeRounding, Division};
use rounding::{Minifloat, WeightType};
use rows::EncodeRows;
use search::ScaleSearch;
use shape::EncodeShape;
use std::ops::Range;

/// How scales are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleChoice {
    /// From the largest magnitude of the group, by the rule of the layout.
    #[default]
    Amax,
    /// With the least squared error of the group, the larger of equals: of NVFP4 among all scales of E4M3, of MXFP4 among the
    /// three exponents around that of the rule, of integers below 8 bits among 20 from amax down to 0.81 of it. Errors are
    /// sums in float64.
    Mse,
}

/// How codes and scales are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// [`Arithmetic::Exact`]: scales are the exact quotient of the largest magnitude and the largest code, and codes that of
    /// value and stored scale, each rounded once. Powers of two are chosen by the rule of the layout either way.
    pub arithmetic: Arithmetic,
    /// Whether -0 keeps its sign in float8 codes of compressed-tensors: as its `model_free_ptq` has it, not its `oneshot`.
    pub keeps_negative_zero: bool,
    /// How scales are found.
    pub scale: ScaleChoice,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { arithmetic: Arithmetic::Library, keeps_negative_zero: true, scale: ScaleChoice::Amax }
    }
}

/// Turns the values of a weight into the stored bytes of its parts.
pub struct Encoder {
    layout: &'static Layout,
    chooser: Chooser,
    shape: EncodeShape,
    weight: WeightType,
    /// Bytes of a source value.
    width: usize,
    division: Division,
    rounding: CodeRounding,
    packing: Packing,
    search: Option<ScaleSearch>,
    float16: Minifloat,
}

impl Encoder {
    /// An encoder of a weight of this shape, [.., rows, columns], and dtype, to a grid of a layout.
    ///
    /// # Errors
    /// The grid cannot take the weight, or the layout cannot store the grid.
    pub fn new(
        layout: &'static Layout,
        grid: &TargetGrid,
        shape: &[u64],
        source: Dtype,
        options: EncodeOptions,
    ) -> Result<Self, Unfit> {
        let weight = WeightType::new(source).ok_or(Unfit::Source(source))?;
        let encoding = layout.encoding.ok_or(Unfit::Grid)?;
        let shape = EncodeShape::new(layout, grid, shape, source)?;
        let is_exact = options.arithmetic == Arithmetic::Exact;
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
            CodeType::Int { bits, symmetric } => {
                let half = (1_u32 << (bits - 1)) as f32;
                let is_stored = grid.codes.bits() == 8 && shape.parts[0].dtype == Dtype::Int8;
                let offset = if is_stored { 0 } else { half as u8 };
                let largest = if encoding.scale == ScaleRule::Plain { half - 1.0 } else { half - 0.5 };
                (CodeRounding::Int { low: -half, high: half - 1.0, offset }, largest, (!symmetric).then_some(bits))
            }
        };
        let chooser = Chooser {
            rule: encoding.scale,
            is_exact,
            weight: if is_exact { WeightType::Float32 } else { weight },
            largest,
            largest_exponent: (largest.to_bits() >> 23) as i32 - 127,
            stored: shape.parts[1].dtype,
            is_tensor: grid.group == Group::Tensor,
            has_three_bits: grid.codes == CodeType::Float(Dtype::Float6E2M3),
            zero_bits,
            e4m3: minifloat(Dtype::Float8E4M3FN).ok_or(Unfit::Grid)?,
        };
        let (quotient, rounded) = chooser.quotient();
        let search = match options.scale {
            ScaleChoice::Amax => None,
            ScaleChoice::Mse => Some(ScaleSearch::new(&chooser, grid.codes.bits()).ok_or(Unfit::Search)?),
        };
        Ok(Self {
            layout,
            chooser,
            shape,
            weight,
            width: source.bits() as usize / 8,
            division: Division {
                quotient,
                rounding: if quotient == Quotient::Exact { WeightType::Float32 } else { rounded },
                has_zeros: zero_bits.is_some(),
            },
            rounding,
            packing: layout.codes.packing,
            search,
            float16: minifloat(Dtype::Float16).ok_or(Unfit::Grid)?,
        })
    }

    /// How the weight is stored.
    #[must_use]
    pub fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// The tensors that it writes, in the order of the library.
    #[must_use]
    pub fn parts(&self) -> &[EncodedPart] {
        &self.shape.parts
    }

    /// The shape of the weight.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape.shape
    }

    /// The rows of the weight: the product of all its lengths but the last.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.shape.all_rows()
    }

    /// Bytes of a row of values.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.shape.columns * self.width as u64
    }

    /// The bits of all parts for each value.
    #[must_use]
    pub fn bits_per_value(&self) -> f64 {
        let bytes: u64 = self.parts().iter().map(EncodedPart::byte_len).sum();
        8.0 * bytes as f64 / (self.rows() * self.shape.columns) as f64
    }

    /// Whether scales depend on the largest magnitude of the whole tensor, or of all tensors that share a scale.
    #[must_use]
    pub fn needs_extremes(&self) -> bool {
        let is_global = matches!(
            self.chooser.rule,
            ScaleRule::GlobalDivisor | ScaleRule::GlobalMultiplier | ScaleRule::GlobalPadded
        );
        is_global || self.shape.is_tensor
    }

    /// Ranges of rows that are encoded must start at multiples of this, and end at one or with the last row.
    #[must_use]
    pub fn row_alignment(&self) -> u64 {
        self.shape.row_alignment()
    }

    /// The bytes of each part that encoding these rows writes. Those of all ranges that cover the weight cover the parts:
    /// what belongs to no row comes with the first, and padding with the last.
    #[must_use]
    pub fn part_ranges(&self, rows: Range<u64>) -> Vec<Range<u64>> {
        self.shape.part_ranges(&rows)
    }

    /// Encodes a range of rows, of which `source` has the bytes, little endian. `outputs` are the bytes of
    /// [`Encoder::part_ranges`], which are overwritten.
    ///
    /// It is a pure function: any split of the rows gives the same bytes, and tallies that add up to the same.
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

    /// As [`Encoder::encode`], with one of the instruction sets of [`Isa::available`]: for tests.
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
            isa.run(EncodeRows { encoder: self, rows, source, amax: extremes.largest, outputs, tally });
        }
    }
}
