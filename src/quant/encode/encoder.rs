//! The encoder of a weight: its storage, the choice of its scales, and the loop for its values, determined once.

use super::super::decode::Arithmetic;
use super::super::layout::{Combination, Layout, Packing, RotationUse};
use super::super::parts::LinearAxis;
use super::super::rotation::is_rotation;
use super::super::rules::{Apply, Away, Encoding, Extreme, Integers, Least};
use super::super::scheme::{CodeType, TargetGrid};
use super::choose::Chooser;
use super::fused::SegmentLoop;
use super::geometry::{EncodeGeometry, EncodedPart, Unfit};
use super::lanes::{CodeRounding, Division, Quotient};
use super::levels::Levels;
use super::narrow::NarrowCodes;
use super::rounding::WeightType;
use crate::dtype::{Class, Dtype};
use crate::kernel::{Isa, Minifloat};
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

/// The rounding of scales and codes that users choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum EncodeArithmetic {
    /// As the library of the layout rounds them: the same bytes
    #[default]
    Library,
    /// Exact quotients, each rounded once
    ///
    /// A scale is the exact quotient of the largest magnitude and the largest code, and a code that of value and stored
    /// scale. Rotated weights are sums in float64.
    Exact,
    /// In layouts with a rotation, as comfy-kitchen computes in the type of the weight
    ///
    /// Rotated values, quotients and the divisors of values are rounded to bfloat16 or float16. The files of Comfy-Org
    /// are made in float32, which is the default.
    Kitchen,
}

impl EncodeArithmetic {
    /// The arithmetic of the decoder that is named alike; that of the library if none is.
    #[must_use]
    pub fn of_decoder(self) -> Arithmetic {
        if self == Self::Exact { Arithmetic::Exact } else { Arithmetic::Library }
    }
}

/// Options for the computation of codes and scales.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EncodeOptions {
    /// With [`Arithmetic::Exact`], a scale is the exact quotient of the largest magnitude and the largest code, and a
    /// code is the exact quotient of value and stored scale; each is rounded once. Scales that are powers of two follow
    /// the rule of the layout either way.
    pub arithmetic: Arithmetic,
    /// True if layouts with a rotation compute in the dtype of the weight: [`EncodeArithmetic::Kitchen`].
    pub keeps_type: bool,
    pub scale: ScaleChoice,
    /// The global scale of 4-bit activations, 2688 / their largest magnitude, to store with NVFP4 weights.
    pub input_global_scale: Option<f32>,
    /// The columns that are rotated together, for layouts with a rotation.
    pub rotation: Option<u64>,
    /// True if the description of `ComfyUI` asks for multiplication in full precision.
    pub has_full_precision: bool,
}

pub(super) fn minifloat(dtype: Dtype) -> Result<Minifloat, Unfit> {
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
        // Codes with zero points start at 0, except in compressed-tensors.
        CodeType::Int { bits, symmetric }
            if encoding.scale.away == Some(Away::Sum) || !symmetric && encoding.scale.extreme != Extreme::Magnitude =>
        {
            let largest = ((1_u32 << bits) - 1) as f32;
            (CodeRounding::Int { low: 0.0, high: largest, offset: 0 }, largest)
        }
        CodeType::Int { bits, .. } => {
            let (half, integers) = ((1_u32 << (bits - 1)) as f32, encoding.scale.integers);
            let offset = if matches!(stored, Dtype::Int8 | Dtype::Int4) { 0 } else { half as u8 };
            let largest = if integers == Integers::HalfRange { half - 0.5 } else { half - 1.0 };
            let low = if integers == Integers::Symmetric { 1.0 - half } else { -half };
            (CodeRounding::Int { low, high: half - 1.0, offset }, largest)
        }
    })
}

/// The type of the values to encode.
#[derive(Clone, Copy)]
pub(super) struct SourceType {
    pub(super) dtype: Dtype,
    /// The type in which the library computes.
    pub(super) weight: WeightType,
    /// True if they are encoded from float64.
    pub(super) is_float64: bool,
}

/// Turns the values of a weight into the stored bytes of its parts.
pub struct Encoder {
    pub(super) layout: &'static Layout,
    pub(super) chooser: Chooser,
    pub(super) geometry: EncodeGeometry,
    pub(super) weight: WeightType,
    /// Bytes per source value.
    pub(super) width: usize,
    pub(super) division: Division,
    pub(super) rounding: CodeRounding,
    pub(super) packing: Packing,
    /// The instruction set of its loops.
    pub(super) isa: Isa,
    /// The loop for the values of a segment, which also computes the errors; `None` for single steps.
    pub(super) fused: Option<Box<dyn SegmentLoop>>,
    /// The loop in lanes of 16 bits, if errors are not needed.
    pub(super) narrow: Option<NarrowCodes>,
    /// True if many values may be beyond the codes.
    pub(super) may_clip: bool,
    /// True if scales are searched.
    pub(super) is_searched: bool,
    pub(super) is_float64: bool,
    /// The axis of the scales in a tensor of an ONNX model.
    pub(super) axis: Option<LinearAxis>,
    /// The dtype of the weight, whose values are widened to float32 if the layout has a rotation.
    pub(super) source: Dtype,
    /// The type that rotated values are rounded to.
    pub(super) rotated: WeightType,
    /// The columns that are rotated together.
    pub(super) rotation: Option<usize>,
    /// The encoder of groups that stand for levels.
    pub(super) levels: Option<Levels>,
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
        if layout.rotation == RotationUse::Always || options.rotation.is_some() {
            return Self::rotated(layout, grid, shape, source, options);
        }
        // Searches for scales take float64 values as float32.
        let is_float64 = source == Dtype::Float64 && is_exact;
        let weight =
            if is_float64 { WeightType::Float32 } else { WeightType::new(source).ok_or(Unfit::Source(source))? };
        let geometry = EncodeGeometry::new(layout, grid, shape, source)?;
        Self::with_geometry(layout, grid, geometry, SourceType { dtype: source, weight, is_float64 }, options)
    }

    /// Creates an encoder of a layout with a rotation, whose values are float32 whatever the dtype of the weight, unless
    /// the options keep its type.
    fn rotated(
        layout: &'static Layout,
        grid: &TargetGrid,
        shape: &[u64],
        source: Dtype,
        options: EncodeOptions,
    ) -> Result<Self, Unfit> {
        if WeightType::new(source).is_none() && source != Dtype::Float64 {
            return Err(Unfit::Source(source));
        }
        let columns = shape.last().copied().unwrap_or_default();
        match options.rotation {
            Some(size) if layout.rotation == RotationUse::Never || !is_rotation(size) => return Err(Unfit::Grid),
            None => return Err(Unfit::Grid),
            Some(size) if !columns.is_multiple_of(size.max(layout.column_multiple)) => {
                return Err(Unfit::Columns { columns, multiple: size.max(layout.column_multiple) });
            }
            _ => {}
        }
        let mut geometry = EncodeGeometry::new(layout, grid, shape, Dtype::Float32)?;
        geometry.describe_rotation(layout, options.rotation);
        let has_levels = layout.global == Combination::Levels;
        let kept = WeightType::new(source).filter(|_| options.keeps_type);
        // Levels are chosen in float32 in any case.
        let (dtype, weight) = match kept.filter(|_| !has_levels) {
            Some(weight) => (source, weight),
            None => (Dtype::Float32, WeightType::Float32),
        };
        let values = SourceType { dtype, weight, is_float64: false };
        let made = Self::with_geometry(layout, grid, geometry, values, options)?;
        let levels = has_levels.then(|| Levels::new(grid, made.chooser.e4m3).ok_or(Unfit::Grid)).transpose()?;
        let rotated = kept.unwrap_or(WeightType::Float32);
        Ok(Self { source, rotated, rotation: options.rotation.map(|size| size as usize), levels, ..made })
    }

    pub(super) fn with_geometry(
        layout: &'static Layout,
        grid: &TargetGrid,
        mut geometry: EncodeGeometry,
        source: SourceType,
        options: EncodeOptions,
    ) -> Result<Self, Unfit> {
        let SourceType { dtype: source, weight, is_float64 } = source;
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
        let is_tensor = geometry.is_tensor;
        let rule = encoding.scale.of(grid.codes.bits(), stored, is_tensor);
        let keeps_type = options.keeps_type && !is_exact && matches!(rule.least, Least::Number(_));
        let chooser = Chooser {
            rule: if keeps_type { rule.in_type(grid.codes.bits()) } else { rule },
            is_exact,
            weight: computed,
            keeps_type,
            largest,
            largest_exponent: (largest.to_bits() >> 23) as i32 - 127,
            stored,
            bits: grid.codes.bits(),
            has_zero_points: matches!(grid.codes, CodeType::Int { symmetric: false, .. })
                && rule.extreme != Extreme::Edges,
            e4m3: minifloat(Dtype::Float8E4M3FN)?,
        };
        let quotient = match rule.apply {
            // A product with a power of two is the exact quotient.
            _ if is_exact && chooser.power().is_none() => Quotient::Exact,
            Apply::Divide | Apply::DivideInType => Quotient::Divide,
            Apply::Multiply | Apply::MultiplyInType => Quotient::Multiply,
        };
        let is_rounded = keeps_type || matches!(rule.apply, Apply::DivideInType | Apply::MultiplyInType);
        let has_search = grid.codes.bits() <= rule.searched_bits && !is_tensor && geometry.block[0] == 1;
        let is_searched = options.scale == ScaleChoice::Mse;
        if is_searched && !has_search {
            return Err(Unfit::Search);
        }
        let encoder = Self {
            layout,
            chooser,
            geometry,
            weight,
            width: source.bits() as usize / 8,
            division: Division {
                quotient,
                rounding: if is_rounded { computed } else { WeightType::Float32 },
                has_zeros: chooser.zero_bits().is_some(),
                has_offsets: rule.extreme == Extreme::Edges,
                away: rule.away,
            },
            rounding,
            packing: layout.codes.packing,
            isa: Isa::chosen(),
            fused: None,
            narrow: None,
            may_clip: rule.may_clip(stored) || is_searched,
            is_searched,
            is_float64,
            axis: None,
            source,
            rotated: WeightType::Float32,
            rotation: None,
            levels: None,
        };
        Ok(encoder.on(Isa::chosen()))
    }

    /// Returns the same encoder, with the loops of an instruction set of [`Isa::available`].
    #[must_use]
    pub fn on(self, isa: Isa) -> Self {
        let encoder = Self { isa, ..self };
        Self { fused: encoder.fused(), narrow: encoder.narrow(), ..encoder }
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

    /// The number of values of a row that share a scale, and the width of their codes.
    pub(crate) fn blocks(&self) -> (u64, u32) {
        (self.geometry.block[1], self.geometry.bits)
    }

    /// Bytes of one row of source values.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.geometry.columns * u64::from(self.source.bits() / 8)
    }

    /// The columns that are rotated together; `None` if values are not rotated.
    #[must_use]
    pub fn rotation(&self) -> Option<u64> {
        self.rotation.map(|size| size as u64)
    }

    /// True if it rounds values with the random numbers of [`EncodeTally::dither`](super::EncodeTally).
    pub(crate) fn has_dither(&self) -> bool {
        self.is_float64
    }

    /// True if groups stand for levels, to which codes of other layouts cannot be moved.
    pub(crate) fn has_levels(&self) -> bool {
        self.levels.is_some()
    }

    /// True if scales depend on the largest magnitude of the whole tensor or of all tensors that share a scale.
    /// [`Encoder::encode`] then needs that magnitude.
    #[must_use]
    pub fn needs_extremes(&self) -> bool {
        self.chooser.rule.global.is_some() || self.geometry.is_tensor || self.geometry.has_column_scales
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
}
