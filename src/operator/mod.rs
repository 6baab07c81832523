//! The operators' rules for types and attributes, without bytes.

pub mod bitcast;
pub mod cast;
pub mod promote;

use crate::dtype::Dtype;
use crate::error::Result;

/// What happens to the chosen tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// ONNX Cast: the same values as another type.
    Cast(cast::CastAttributes),
    /// ONNX `BitCast`: the same bits as another type.
    BitCast,
    /// `OpenVINO`'s `ConvertPromoteTypes` after its decision: the values of Cast, and those of complex types.
    Promote(cast::CastAttributes),
    /// Quantized weights are decoded; all other tensors stay.
    Dequantize,
    /// Weights become codes and scales; all other tensors stay.
    Quantize,
}

impl Operator {
    /// Refuses pairs of types that the operator does not have.
    ///
    /// # Errors
    /// The error says why, and what would work.
    pub fn check(&self, source: Dtype, target: Dtype) -> Result<()> {
        match self {
            Self::Cast(attributes) => cast::check(source, target, attributes),
            Self::BitCast => bitcast::check(source, target),
            // `promote::promote` and the decoder have already refused the others.
            Self::Promote(_) | Self::Dequantize | Self::Quantize => Ok(()),
        }
    }

    /// Whether every value stays the same when source and target have this type. Cast maps a float8 to itself by its
    /// table, and a bool other than 0 and 1 to 1.
    pub(crate) fn keeps(&self, dtype: Dtype) -> bool {
        !matches!(self, Self::Cast(_)) || !dtype.is_float8() && dtype != Dtype::Bool
    }

    /// The name of the subcommand; it is also a verb.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cast(_) => "cast",
            Self::BitCast => "bitcast",
            Self::Promote(_) => "promote",
            Self::Dequantize => "dequantize",
            Self::Quantize => "quantize",
        }
    }
}
