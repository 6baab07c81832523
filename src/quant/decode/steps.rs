//! The steps that compute each value of a weight, determined once.

use super::super::layout::{CodeValues, Combination, Layout, Precision, Zeros};
use super::super::parts::{Parameters, Part};
use super::casts::{Through, cast};
use super::fused::{Fused, FusedCodes};
use super::geometry::DecodeGeometry;
use super::lanes::FloatCodes;
use super::scales::{GroupRange, ScaleReader};
use super::zeros::ZeroPoints;
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result};
use crate::kernel::Kernel;

/// The steps in which values are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Arithmetic {
    /// As the library of the layout rounds them: the same bytes
    #[default]
    Library,
    // Scales of nested bitsandbytes layouts are computed as by that library, and rotated weights are sums in float64.
    /// The exact result, rounded once
    ///
    /// The product of code (minus its zero point), scale and global scale. Scales of nested bitsandbytes layouts are
    /// computed as by that library, and rotated weights are sums in float64.
    Exact,
}

/// Interpretation of codes by the general loops.
pub(super) enum CodeDecoding {
    /// Numbers of 8 bits.
    Kernel(Kernel),
    Floats(FloatCodes),
    /// Unsigned integers minus a number.
    Integers(i32),
    Map,
}

impl CodeDecoding {
    /// Chooses the interpretation; `None` if there are no such codes.
    fn new(layout: &Layout, geometry: &DecodeGeometry) -> Option<Self> {
        let (values, is_centered) = (layout.codes.values, layout.zeros == Zeros::Added);
        let dtype = geometry.codes.dtype;
        Some(match values {
            CodeValues::Float(float) if float.bits() == 8 => Self::Kernel(cast(float, Dtype::Float32)?),
            CodeValues::Stored => match (dtype.class(), geometry.bits) {
                (Class::Float(format), 4) => Self::Floats(FloatCodes::new(format, true)),
                (Class::Int { signed: false }, 1..8) => Self::Integers(0),
                // Their signs are extended when they are unpacked.
                (_, 1..8) => Self::Kernel(cast(Dtype::Int8, Dtype::Float32)?),
                _ => Self::Kernel(cast(dtype, Dtype::Float32)?),
            },
            CodeValues::Float(float) | CodeValues::FloatWithoutNegativeZero(float) => {
                let Class::Float(format) = float.class() else { return None };
                Self::Floats(FloatCodes::new(format, matches!(values, CodeValues::Float(_))))
            }
            // Their signs are extended when they are unpacked.
            CodeValues::Signed(_) => Self::Kernel(cast(Dtype::Int8, Dtype::Float32)?),
            CodeValues::Levels if geometry.map.is_some() => Self::Map,
            CodeValues::Levels => Self::Integers(1 << (geometry.bits - 1)),
            CodeValues::Unsigned if layout.zeros == Zeros::Scaled => Self::Integers(0),
            CodeValues::Unsigned if geometry.zero.is_none() || is_centered => Self::Integers(1 << (geometry.bits - 1)),
            CodeValues::Unsigned => Self::Integers(0),
            CodeValues::Map => Self::Map,
            CodeValues::Blocks => return None,
        })
    }

    /// Returns the loop that decodes such codes of this dtype in one step, if there is one.
    fn fused(&self, dtype: Dtype, has_zeros: bool) -> Option<FusedCodes> {
        match (self, dtype) {
            (Self::Kernel(_), Dtype::Int8 | Dtype::Int4 | Dtype::Int2) => Some(FusedCodes::Signed),
            (Self::Kernel(_), Dtype::Uint8) => Some(FusedCodes::Unsigned(0)),
            (Self::Kernel(_), Dtype::Float8E4M3FN) if !has_zeros => FusedCodes::e4m3(),
            (Self::Kernel(_), _) => None,
            (Self::Floats(floats), _) => Some(FusedCodes::Floats(*floats, u8::MAX)),
            (Self::Integers(half), _) => Some(FusedCodes::Unsigned(*half)),
            (Self::Map, _) => Some(FusedCodes::Map),
        }
    }
}

/// The layout and the steps of one weight.
pub(in crate::quant) struct DecodeSteps {
    pub(in crate::quant) layout: &'static Layout,
    pub(in crate::quant) geometry: DecodeGeometry,
    pub(super) target: Dtype,
    /// The type of unpacked codes.
    pub(in crate::quant) code_dtype: Dtype,
    pub(super) arithmetic: Arithmetic,
    pub(in crate::quant) rotation: Option<usize>,
    pub(super) widening: CodeDecoding,
    pub(in crate::quant) scales: ScaleReader,
    pub(in crate::quant) zeros: ZeroPoints,
    /// Effect of the global scale on the scales; nothing if there is none.
    pub(in crate::quant) combination: Combination,
    /// See [`Parameters::is_in_order`].
    pub(super) is_in_order: bool,
    /// Conversion of the global scale to float32.
    pub(super) global: Option<Kernel>,
    /// The rounding of values before they are rotated.
    pub(super) rotated: Option<Through>,
    pub(super) scale_rounding: Option<Through>,
    pub(super) product_rounding: Option<Through>,
    /// Conversion from the last lane to the target.
    pub(super) encode: Kernel,
    /// The fast method, if possible.
    pub(super) fused: Option<Fused>,
}

impl DecodeSteps {
    pub(super) fn new(
        layout: &'static Layout,
        parameters: &Parameters,
        parts: &[Part],
        target: Dtype,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        let geometry = DecodeGeometry::new(layout, parameters, parts)?;
        let name = parts[geometry.codes.index].name;
        let no_target = || Error::new(format!("weights cannot be decoded to {target}")).in_tensor(name);
        let last = match arithmetic {
            Arithmetic::Library => Dtype::Float32,
            Arithmetic::Exact => Dtype::Float64,
        };
        let is_float = target.is_weight() || target == last;
        let through = |precision: Precision| match precision {
            Precision::Float32 => None,
            Precision::Bfloat16 => Some(Dtype::Bfloat16),
            Precision::Scale => Some(geometry.scale.dtype),
            Precision::Target => Some(target),
            Precision::Weight => parameters.weight_dtype,
            Precision::Promoted => (geometry.scale.dtype == target).then_some(target),
        };
        // The last step rounds to the target anyway.
        let product = through(layout.product_precision).filter(|dtype| *dtype != target);
        let widening = CodeDecoding::new(layout, &geometry).ok_or_else(no_target)?;
        let zero = geometry.zero.filter(|_| layout.zeros == Zeros::Plain);
        let is_short = arithmetic == Arithmetic::Library
            && parameters.rotation.is_none()
            && layout.global != Combination::Levels
            && layout.zeros != Zeros::Fused;
        let code_dtype = match layout.codes.values {
            CodeValues::Float(float) | CodeValues::Signed(float) => float,
            _ => geometry.codes.dtype,
        };
        let codes = widening.fused(code_dtype, zero.is_some()).filter(|_| is_short);
        let has_zeros = geometry.zero.is_some() || layout.zeros == Zeros::Scaled;
        let has_offsets = has_zeros && layout.zeros.are_offsets();
        let rounded = product.filter(|dtype| *dtype != Dtype::Float32).unwrap_or(target);
        let rounded = match layout.zeros {
            Zeros::Offset | Zeros::Fused if has_offsets => geometry.scale.dtype,
            Zeros::Added | Zeros::Scaled => through(layout.product_precision).unwrap_or(Dtype::Float32),
            _ => rounded,
        };
        let are_integers = matches!(codes, Some(FusedCodes::Unsigned(_) | FusedCodes::Signed));
        let is_last = match (rounded, target) {
            _ if layout.global == Combination::Over127 => false,
            (rounded, target) if has_offsets => target == rounded || target == Dtype::Float32,
            (Dtype::Float16, _) => {
                are_integers && geometry.scale.dtype == Dtype::Float16 && layout.global == Combination::Nothing
            }
            (Dtype::Bfloat16, Dtype::Bfloat16 | Dtype::Float32) | (Dtype::Float32, Dtype::Float32) => true,
            _ => false,
        };
        let narrowest = if product == Some(Dtype::Float16) { Dtype::Float16 } else { target };
        let fused = codes.map(|codes| {
            let [rounded, written] = if is_last { [rounded, target] } else { [Dtype::Float32; 2] };
            Fused { codes, rounded, written, has_offsets: has_offsets && is_last, narrowest, is_last }
        });
        Ok(Self {
            layout,
            target,
            code_dtype,
            arithmetic,
            rotation: parameters.rotation.map(|size| size as usize),
            widening,
            scales: ScaleReader::new(layout, &geometry, parameters.nested_offset).ok_or_else(no_target)?,
            zeros: ZeroPoints {
                order: if has_zeros { layout.zeros } else { Zeros::None },
                more: u32::from(parameters.zeros_are_one_less && layout.zeros == Zeros::PackedTransposed),
                kernel: geometry.zero.and_then(|slot| cast(slot.dtype, Dtype::Float32)),
                dtype: match (layout.zeros, geometry.bits) {
                    (Zeros::Added | Zeros::Scaled, _) => geometry.zero.map_or(geometry.scale.dtype, |slot| slot.dtype),
                    (_, 2) if geometry.codes.dtype == Dtype::Uint8 => Dtype::Uint2,
                    (_, 4) if geometry.codes.dtype == Dtype::Uint8 => Dtype::Uint4,
                    _ => geometry.codes.dtype,
                },
                is_symmetric: parameters.is_symmetric,
            },
            // The values of other layouts are rotated as float32.
            rotated: (layout.global == Combination::Levels && arithmetic == Arithmetic::Library)
                .then(|| Through::new(target))
                .flatten(),
            combination: match layout.global {
                Combination::OverLargest if geometry.global.is_none() => Combination::Nothing,
                combination => combination,
            },
            is_in_order: parameters.is_in_order,
            global: geometry.global.and_then(|slot| cast(slot.dtype, Dtype::Float32)),
            scale_rounding: through(layout.scale_precision).and_then(Through::new),
            // The sum of product and offset is rounded again.
            product_rounding: if has_offsets { Some(rounded) } else { product }.and_then(Through::new),
            encode: Some(()).filter(|()| is_float).and_then(|()| cast(last, target)).ok_or_else(no_target)?,
            fused,
            geometry,
        })
    }

    /// Returns the scale of each of some groups, without the global scale, and its zero point or offset; `zero` if there
    /// is none.
    pub(in crate::quant) fn groups(
        &self,
        place: &GroupRange,
        parts: &[&[u8]],
        zero: f32,
    ) -> impl Iterator<Item = (f64, f32)> + use<> {
        let (geometry, count) = (&self.geometry, place.groups.len());
        let (mut scales, mut zeros) = (vec![[0; 4]; count], vec![zero.to_le_bytes(); count]);
        self.scales.fetch(geometry, place, parts, &mut vec![0; 4 * count], &mut scales);
        if let Some(slot) = geometry.zero {
            self.zeros.fetch(geometry, parts[slot.index], place, &mut zeros);
        }
        let factor = f64::from(self.scales.factor());
        let group = move |(scale, zero)| (f64::from(f32::from_le_bytes(scale)) * factor, f32::from_le_bytes(zero));
        scales.into_iter().zip(zeros).map(group)
    }
}
