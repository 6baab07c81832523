//! Accuracy of quantized weights.

use crate::plan::{CodesSource, Quantization};
use crate::quant::{EncodeTally, Fidelity, ScaleMatch};
use serde::{Deserialize, Serialize};

/// Origin of the codes of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodesOrigin {
    /// Codes and scales of the input are kept.
    Exact,
    /// Codes and block scales of the input are kept, and the global scale is rounded.
    Rescaled,
    /// Codes and scales of the input are kept, and offsets are rounded.
    #[serde(rename = "rounded_offsets")]
    RoundedOffsets,
    /// Values of the input are decoded and quantized again.
    Requantized,
    /// Codes and scales are found in the values of the input, and decode to the same bits.
    Recovered,
    /// The same, but some scales are one of many float32 scales that decode to the same bits.
    Equivalent,
    /// No codes are found, and the values of the input are quantized.
    Quantized,
}

impl CodesOrigin {
    /// True if codes are kept, and a number that several values share is rounded.
    pub(crate) fn rounds_once(self) -> bool {
        matches!(self, Self::Rescaled | Self::RoundedOffsets)
    }

    /// Returns the origin; `None` if the weight was not quantized before, and no codes were searched for its values.
    pub(crate) fn of(weight: &Quantization) -> Option<Self> {
        Some(match &weight.codes {
            CodesSource::Recovered(_, _, ScaleMatch::Derived) | CodesSource::RecoveredBlocks(_) => Self::Recovered,
            CodesSource::Recovered(_, _, ScaleMatch::Equivalent) => Self::Equivalent,
            CodesSource::Values { unrecovered: Some(_), .. } => Self::Quantized,
            CodesSource::Values { .. } => weight.rows.decoder().map(|_| Self::Requantized)?,
            CodesSource::Copied | CodesSource::Transposed(_) => Self::Exact,
            CodesSource::Cast(_) => return None,
            CodesSource::Moved(transcoder) => match transcoder.fidelity() {
                Fidelity::Exact => Self::Exact,
                Fidelity::Rescaled => Self::Rescaled,
                Fidelity::RoundedOffsets => Self::RoundedOffsets,
            },
        })
    }
}

/// Accuracy of the codes and scales of a weight, compared with its values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantizedAccuracy {
    /// Bits of codes, scales and everything else that is stored, for each value.
    pub bits_per_weight: f64,
    /// True if every value is its code times its scale.
    pub is_exact: bool,
    /// Ratio of signal to noise in decibels; `None` if there is no noise.
    pub sqnr_db: Option<f64>,
    /// Sum of the squared errors divided by the sum of the squared values; `None` in records of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub relative_squared_error: Option<f64>,
    /// Largest difference between a value and its decoded code.
    pub max_abs_error: f64,
    /// First element that has it, counted in row-major order; `None` if there is no noise.
    pub max_abs_error_at: Option<u64>,
    /// Values beyond the largest code of their group.
    pub clipped: u64,
    /// Groups whose scale is too small for its type.
    pub underflowed_groups: u64,
    /// Values that changed, of a weight that was quantized before or is recovered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub changed: Option<u64>,
    /// Values that also change when they are rounded to bfloat16, of a weight whose global scale or offsets were rounded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub changed_bfloat16: Option<u64>,
}

impl QuantizedAccuracy {
    /// Creates the accuracy from the counts of a whole weight.
    pub(crate) fn new(weight: &Quantization, tally: &EncodeTally) -> Self {
        let origin = CodesOrigin::of(weight);
        Self {
            bits_per_weight: weight.rows.encoder.bits_per_value(),
            is_exact: tally.is_exact(),
            sqnr_db: tally.sqnr_db().filter(|decibels| *decibels < f64::INFINITY),
            relative_squared_error: Some(tally.relative_squared_error()).filter(|error| error.is_finite()),
            max_abs_error: tally.max_error,
            max_abs_error_at: tally.max_error_at.filter(|_| tally.max_error > 0.0),
            clipped: tally.clipped,
            underflowed_groups: tally.underflowed_groups,
            changed: origin.filter(|origin| *origin != CodesOrigin::Quantized).map(|_| tally.changed),
            changed_bfloat16: origin.filter(|origin| origin.rounds_once()).map(|_| tally.changed_bfloat16),
        }
    }
}
