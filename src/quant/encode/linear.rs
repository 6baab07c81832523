//! The encodings that ONNX's `DequantizeLinear` decodes, as ONNX Runtime's tools write them: integers of 8 bits per
//! channel like `quantize_static`, integers of 4 bits in blocks like `MatMulNBitsQuantizer`. No tool of ONNX Runtime
//! has scales of float8 for channels: they are amax / 448, with the codes of `QuantizeLinear`.

use super::super::layout::{Layout, Role};
use super::super::parts::LinearAxis;
use super::super::rules::{Apply, Away, Divide};
use super::super::scheme::{CodeType, TargetGrid};
use super::choose::Chooser;
use super::encoder::{EncodeOptions, Encoder, SourceType};
use super::extremes::Extremes;
use super::geometry::{EncodeGeometry, EncodedPart, Unfit, check_count};
use super::lanes::{self, larger, round_all};
use super::rounding::{WeightType, round_half_away};
use super::scale::{ScaleLanes, each};
use crate::dtype::Dtype;
use crate::kernel::half::float16;
use crate::kernel::{Isa, Loop};

impl Encoder {
    /// Creates an encoder for a tensor of an ONNX model with scales along an axis.
    pub fn linear(
        layout: &'static Layout,
        grid: &TargetGrid,
        shape: &[u64],
        axis: LinearAxis,
        source: Dtype,
        options: EncodeOptions,
    ) -> Result<Self, Unfit> {
        let weight = WeightType::new(source).ok_or(Unfit::Source(source))?;
        let geometry = EncodeGeometry::linear(layout, grid, shape, axis, source)?;
        let encoder = Self::with_geometry(
            layout,
            grid,
            geometry,
            SourceType { dtype: source, weight, is_float64: false },
            options,
        )?;
        Ok(Self { axis: Some(axis), ..encoder })
    }

    /// The axis of the scales in a tensor of an ONNX model.
    #[must_use]
    pub fn axis(&self) -> Option<LinearAxis> {
        self.axis
    }

    /// True if the scale of each column depends on all of its values: [`Extremes::of_columns`] then gives the extremes.
    #[must_use]
    pub fn has_column_scales(&self) -> bool {
        self.geometry.has_column_scales
    }
}

impl Extremes {
    /// Scans whole rows of `columns` values for the extremes of each column.
    #[must_use]
    pub fn of_columns(source: Dtype, bytes: &[u8], start: u64, columns: u64) -> Self {
        let weight = WeightType::new(source).expect("weights are float32, bfloat16 or float16");
        let columns = Isa::chosen().run(ScanColumns { weight, bytes, columns: columns as usize });
        let largest = columns.iter().copied().max().unwrap_or_default();
        Self { columns, ..Self::with_largest(weight, bytes, start, largest) }
    }
}

struct ScanColumns<'a> {
    weight: WeightType,
    bytes: &'a [u8],
    columns: usize,
}

impl Loop for ScanColumns<'_> {
    type Result = Vec<u32>;

    #[inline(always)]
    fn run(self) -> Vec<u32> {
        let Self { weight, bytes, columns } = self;
        match weight {
            WeightType::Float32 => largest_of_columns(bytes, columns, u32::from_le_bytes),
            WeightType::Bfloat16 => {
                largest_of_columns(bytes, columns, |bytes| u32::from(u16::from_le_bytes(bytes)) << 16)
            }
            WeightType::Float16 => {
                largest_of_columns(bytes, columns, |bytes| float16(u16::from_le_bytes(bytes)).to_bits())
            }
        }
    }
}

/// Returns the largest magnitude of each column. `read` returns a stored value as the bits of a float32.
#[inline(always)]
fn largest_of_columns<const W: usize>(bytes: &[u8], columns: usize, read: impl Fn([u8; W]) -> u32) -> Vec<u32> {
    let mut largest = vec![0; columns];
    for row in bytes.as_chunks().0.chunks_exact(columns) {
        for (largest, bytes) in largest.iter_mut().zip(row) {
            *largest = larger(read(*bytes) & 0x7fff_ffff, *largest);
        }
    }
    largest
}

impl EncodeGeometry {
    /// Determines the geometry of a tensor of the shape `shape`, with scales along an axis.
    pub(super) fn linear(
        layout: &'static Layout,
        grid: &TargetGrid,
        shape: &[u64],
        axis: LinearAxis,
        source: Dtype,
    ) -> Result<Self, Unfit> {
        check_count(shape)?;
        if axis.axis >= shape.len() || shape.len() < 2 {
            return Err(Unfit::Dimensions(shape.to_vec()));
        }
        let ([matrices, rows, columns], group) = axis.view(shape);
        let block = group.lengths([rows, columns]);
        let codes = match grid.codes {
            CodeType::Float(dtype) => dtype,
            CodeType::Int { bits: 8, symmetric: true } => Dtype::Int8,
            CodeType::Int { bits: 4, symmetric: true } => Dtype::Int4,
            CodeType::Int { bits: 4, symmetric: false } => Dtype::Uint4,
            CodeType::Int { .. } => return Err(Unfit::Grid),
        };
        if matrices != 1 || !layout.codes.dtypes.contains(&codes) || !layout.scale_dtypes.contains(&source) {
            return Err(Unfit::Grid);
        }
        let scales = axis.scales(shape);
        let mut parts = vec![
            EncodedPart::new(Role::Codes, "", codes, shape.to_vec()),
            EncodedPart::new(Role::Scale, "_scale", source, scales.clone()),
        ];
        if codes == Dtype::Uint4 {
            parts.push(EncodedPart::new(Role::ZeroPoint, "_zero_point", codes, scales));
        }
        Ok(Self {
            shape: vec![rows, columns],
            matrices,
            rows,
            columns,
            bits: codes.bits(),
            stride: columns * u64::from(codes.bits()) / 8,
            block,
            grid: [rows.div_ceil(block[0]), columns.div_ceil(block[1])],
            is_tensor: false,
            has_column_scales: axis.axis + 1 == shape.len() && axis.block_size == 0 && rows > 1,
            is_stream: true,
            swizzled: None,
            zero_words: None,
            zero_bytes: None,
            parts,
        })
    }

    /// Returns the alignment of rows at which the streams of codes and of zero points are on whole bytes.
    pub(super) fn stream_alignment(&self) -> u64 {
        let is_odd = |length: u64| !(length * u64::from(self.bits)).is_multiple_of(8);
        let height = if self.has_column_scales { 1 } else { self.block[0] };
        let is_cut = is_odd(self.columns * height) || self.parts.len() > 2 && is_odd(self.grid[1]);
        if is_cut { height * 2 } else { height }
    }
}

/// Stores the codes of some columns of a row in a stream of 4 bits, whose bytes must be 0 before; `start` is the
/// position of the first code.
#[inline(always)]
pub(super) fn store_nibbles(codes: impl Iterator<Item = u8>, start: usize, out: &mut [u8]) {
    for (at, code) in (start..).zip(codes) {
        out[at / 2] |= (code & 15) << (4 * (at % 2));
    }
}

/// ONNX Runtime's formulas for integers.
impl Chooser {
    /// Chooses scales by [`Extreme::Signed`](super::super::rules::Extreme::Signed).
    #[inline(always)]
    pub(super) fn linear<const N: usize>(&self, bounds: &[[f32; 2]; N]) -> ScaleLanes<N> {
        let is_wide = self.divides_unrounded();
        let wide = Self { stored: Dtype::Float32, weight: WeightType::Float32, ..*self };
        let own = if is_wide { &wide } else { self };
        let chosen = match self.rule.divide {
            _ if !self.has_zero_points => own.signed(bounds),
            Divide::Once => own.shifted(bounds),
            _ => own.with_zero_points(bounds, self.stored_type()),
        };
        let mut scale = chosen.scale;
        round_all(&mut scale, self.stored_type());
        let is_lost = |at: usize| (scale[at] == 0.0) & (chosen.scale[at] != 0.0);
        let is_multiplied = self.rule.apply == Apply::Multiply;
        ScaleLanes {
            factor: if is_multiplied { each(|at| reciprocal(chosen.scale[at])) } else { chosen.scale },
            zero: chosen.zero,
            is_underflow: each(|at| chosen.is_underflow[at] | u32::from(is_lost(at))),
            ..ScaleLanes::of_numbers(scale)
        }
    }

    /// Chooses scales for integers from -half to half - 1, the lowest of which stands for the value of the largest magnitude.
    #[inline(always)]
    fn signed<const N: usize>(&self, bounds: &[[f32; 2]; N]) -> ScaleLanes<N> {
        let half = (1_u32 << (self.bits - 1)) as f32;
        let values: [f32; N] = each(|at| {
            let [low, high] = bounds[at];
            if high.abs() > low.abs() { high } else { low }
        });
        let mut scale: [f32; N] = each(|at| values[at] / -half);
        round_all(&mut scale, self.stored_type());
        let is_underflow = each(|at| u32::from((scale[at] == 0.0) & (values[at] != 0.0)));
        let zero = if self.rule.away == Some(Away::Sum) { half } else { 0.0 };
        ScaleLanes { zero: [zero; N], is_underflow, ..ScaleLanes::of_numbers(scale) }
    }

    /// Chooses scales and zero points for integers from 0.
    #[inline(always)]
    fn shifted<const N: usize>(&self, bounds: &[[f32; 2]; N]) -> ScaleLanes<N> {
        let most = self.most();
        let low: [f32; N] = each(|at| bounds[at][0].min(0.0));
        let high: [f32; N] = each(|at| bounds[at][1].max(0.0));
        let mut scale: [f32; N] = each(|at| (high[at] - low[at]) / most);
        let zero: [f32; N] = each(|at| if scale[at] == 0.0 { low[at] } else { 0.0 - low[at] / scale[at] });
        let zero: [f32; N] = each(|at| round_half_away(zero[at].clamp(0.0, most)));
        round_all(&mut scale, self.stored_type());
        let is_underflow = each(|at| u32::from((scale[at] == 0.0) & (high[at] > low[at])));
        ScaleLanes { zero, is_underflow, ..ScaleLanes::of_numbers(scale) }
    }
}

/// Returns the factor of values; 0 for a scale of 0, whose codes are all 0.
#[inline(always)]
fn reciprocal(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Extends the extremes of columns by a row: the magnitudes as bits, and the lowest and highest values. `values` is
/// scratch space as long as the row.
pub(super) struct ExtendColumns<'a> {
    pub(super) weight: WeightType,
    pub(super) bytes: &'a [u8],
    pub(super) values: &'a mut [f32],
    pub(super) amax: &'a mut [u32],
    pub(super) bounds: &'a mut [[f32; 2]],
}

impl Loop for ExtendColumns<'_> {
    /// The largest magnitude of all columns so far.
    type Result = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let Self { weight, bytes, values, amax, bounds } = self;
        lanes::widen(weight, bytes, values);
        let mut most = 0;
        for ((value, amax), [low, high]) in values.iter().zip(amax).zip(bounds) {
            *amax = larger(value.to_bits() & 0x7fff_ffff, *amax);
            most = larger(most, *amax);
            *low = if *value < *low { *value } else { *low };
            *high = if *value > *high { *value } else { *high };
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::libraries::SCHEMES;
    use super::super::super::scheme::SchemeLayout;
    use super::super::EncodeTally;
    use super::*;
    use crate::random::random;

    /// Encodes a weight of this shape with a scale for each index of its first axis.
    fn encode(scheme: &SchemeLayout, shape: &[u64], values: &[f32]) -> [Vec<u8>; 2] {
        let along = (shape, LinearAxis { axis: 0, block_size: 0 });
        let options = EncodeOptions::default();
        let encoder = Encoder::linear(scheme.row, &scheme.grid, along.0, along.1, Dtype::Float32, options).unwrap();
        let source: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let rows = 0..encoder.rows();
        let lengths = encoder.part_ranges(rows.clone());
        let [mut codes, mut scales] = [0, 1].map(|part: usize| vec![0; lengths[part].end as usize]);
        assert!(!encoder.needs_extremes());
        encoder.encode(
            rows,
            &source,
            &Extremes::default(),
            &mut [&mut codes, &mut scales],
            &mut EncodeTally::default(),
        );
        [codes, scales]
    }

    #[test]
    fn outputs_with_one_input_have_separate_scales() {
        let mut next = random(1);
        let values: Vec<f32> = (0..300).map(|_| (next() >> 40) as f32 / 1e6 - 8.0).collect();
        let twice: Vec<f32> = values.iter().flat_map(|value| [*value; 2]).collect();
        let schemes = SCHEMES.iter().filter_map(|scheme| scheme.in_model(Some("onnx")));
        for scheme in schemes.filter(|scheme| scheme.grid.codes.bits() == 8) {
            let [codes, scales] = encode(scheme, &[300, 2], &twice);
            let codes: Vec<u8> = codes.into_iter().step_by(2).collect();
            for shape in [&[300, 1][..], &[300, 1, 1, 1]] {
                assert!(encode(scheme, shape, &values) == [codes.clone(), scales.clone()], "{:?}", scheme.grid);
            }
        }
    }
}
