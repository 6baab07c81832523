//! The rules of the operators for types and attributes. No code here touches tensor data.

pub mod bitcast;
pub mod cast;
pub mod promote;

use crate::dtype::Dtype;
use crate::error::Result;

/// Operation on the selected tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// ONNX Cast: the same values as another type.
    Cast(cast::CastAttributes),
    /// ONNX `BitCast`: the same bits as another type.
    BitCast,
    /// `OpenVINO`'s `ConvertPromoteTypes` after its decision: converts values as Cast does, and complex types too.
    Promote(cast::CastAttributes),
    /// Decodes quantized weights; all other tensors stay unchanged.
    Dequantize,
    /// Turns weights into codes and scales; all other tensors stay unchanged.
    Quantize,
}

impl Operator {
    /// Refuses pairs of types that the operator does not support.
    ///
    /// # Errors
    /// The error gives the reason and an alternative that works.
    pub fn check(&self, source: Dtype, target: Dtype) -> Result<()> {
        match self {
            Self::Cast(attributes) => cast::check(source, target, attributes),
            Self::BitCast => bitcast::check(source, target),
            // `promote::promote` and the decoder have already refused the others.
            Self::Promote(_) | Self::Dequantize | Self::Quantize => Ok(()),
        }
    }

    /// True if every value stays the same when source and target both have this type. Cast maps a float8 to itself by
    /// its table, and a bool other than 0 and 1 to 1.
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
