//! Text of the report on quantized weights.

use super::{Report, TensorReport, counts_of};
use crate::job::QuantizedReport;
use crate::measure::quantized::{CodesOrigin, QuantizedAccuracy};
use crate::quant::layouts;
use crate::select::KeptReason;
use crate::text::{counted, first_few, shorten};
use std::fmt::Write as _;

/// Maximum number of names on a line.
const FEW: usize = 5;

/// Returns the layouts between which a weight was moved without a change, if their libraries round its products
/// differently.
fn rounded_otherwise(weight: &QuantizedReport) -> Option<[&'static str; 2]> {
    // Unlike `quant::find`, this leaves out the layouts of GGUF files and ONNX models.
    let find = |name: &str| layouts().find(|layout| layout.name == name);
    let (from, to) = (find(weight.source_layout.as_deref()?)?, find(&weight.layout)?);
    let scale = weight.parts.iter().find(|part| part.name.contains("scale"))?;
    let is_moved = weight.codes == Some(CodesOrigin::Exact);
    (is_moved && !from.rounds_like(to, scale.dtype)).then_some([from.name, to.name])
}

impl Report {
    /// Lists the reasons for which tensors are copied, with the number of tensors for each.
    pub(super) fn kept_reasons(&self) -> String {
        let counts = counts_of(self.tensors().filter_map(|tensor| tensor.kept));
        let reasons: Vec<String> =
            counts.iter().map(|(reason, count)| format!("{} ({count})", reason.describe())).collect();
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) }
    }

    /// Lists the weights that are kept although an engine could load them quantized, one line per reason.
    pub(super) fn unfit(&self) -> String {
        let mut text = String::new();
        let of_weights =
            [KeptReason::Shape, KeptReason::Fused, KeptReason::Absorbed, KeptReason::Bank, KeptReason::OtherFloat];
        for reason in of_weights.into_iter().chain(KeptReason::OF_MODELS).filter(|reason| *reason != KeptReason::Small)
        {
            let names = self.tensors().filter(|tensor| tensor.kept == Some(reason)).map(|tensor| &*tensor.name);
            let names = first_few(names, FEW);
            if !names.is_empty() {
                let _ = write!(text, "\n  kept, {}: {names}", reason.describe());
            }
        }
        text
    }

    /// Describes the origin of codes of weights that were quantized before or searched, as lines that each follow a
    /// line feed.
    pub(super) fn requantized(&self) -> String {
        let mut text = String::new();
        let decoded = self.converted().filter(|tensor| tensor.layout.is_some()).count() as u64;
        if decoded > 0 {
            let weights = if decoded == 1 { "it is" } else { "they are" };
            let decoded = counted(decoded, "weight");
            let _ = write!(text, "\n  {decoded}: decoded, because {weights} not quantized in the output");
        }
        for (origin, what) in [
            (CodesOrigin::Exact, "exact, codes and scales are those of the input"),
            (CodesOrigin::Rescaled, "codes and block scales unchanged, global scale rounded"),
            (CodesOrigin::RoundedOffsets, "codes and scales unchanged, offsets rounded"),
            (CodesOrigin::Requantized, "decoded and quantized again"),
            (CodesOrigin::Recovered, "recovered, codes and scales decode to the same bits"),
            (
                CodesOrigin::Equivalent,
                "equivalent, codes are recovered, and float32 scales near the first decode to the same bits",
            ),
            (CodesOrigin::Quantized, "not recovered, quantized as usual"),
        ] {
            let weights = self.tensors().filter_map(|tensor| Some((tensor, tensor.quantized.as_ref()?)));
            let weights: Vec<_> = weights.filter(|(_, quantized)| quantized.codes == Some(origin)).collect();
            if weights.is_empty() {
                continue;
            }
            let _ = write!(text, "\n  {}: {what}", counted(weights.len() as u64, "weight"));
            if let Some([from, to]) = weights.iter().find_map(|(_, quantized)| rounded_otherwise(quantized)) {
                let _ = write!(
                    text,
                    "; the libraries of {from} and {to} round their products differently, and may decode other bits"
                );
            }
            let may_change = origin.rounds_once() || origin == CodesOrigin::Requantized;
            if !may_change || self.time.is_none() {
                continue;
            }
            let values = weights.iter().map(|(tensor, _)| tensor.elements()).sum();
            let sum = |count: fn(&QuantizedAccuracy) -> Option<u64>| -> u64 {
                weights.iter().filter_map(|(_, quantized)| count(quantized.accuracy.as_ref()?)).sum()
            };
            let (changed, values) = (sum(|accuracy| accuracy.changed), counted(values, "value"));
            if !origin.rounds_once() {
                let _ = write!(text, ", {changed} of {values} changed");
                continue;
            }
            let _ = match sum(|accuracy| accuracy.changed_bfloat16) {
                0 => write!(text, ": {changed} of {values} changed, none after rounding to bfloat16"),
                count => {
                    write!(text, ": {changed} of {values} changed, {count} of them also after rounding to bfloat16")
                }
            };
        }
        text
    }

    /// Describes the size and errors of all quantized weights, as lines that each follow a line feed.
    pub(super) fn quantized_values(&self) -> String {
        let weights: Vec<(&TensorReport, &QuantizedAccuracy)> =
            self.tensors().filter_map(|tensor| Some((tensor, tensor.quantized_accuracy()?))).collect();
        let sqnr = |accuracy: &QuantizedAccuracy| accuracy.sqnr_db.unwrap_or(f64::INFINITY);
        let worst = weights.iter().min_by(|a, b| sqnr(a.1).total_cmp(&sqnr(b.1)));
        let Some((worst, accuracy)) = worst else { return String::new() };
        let values: f64 = weights.iter().map(|(tensor, _)| tensor.elements() as f64).sum();
        let bits: f64 =
            weights.iter().map(|(tensor, accuracy)| tensor.elements() as f64 * accuracy.bits_per_weight).sum();
        let mut text = format!("\n  {:.2} bits per weight; ", bits / values);
        if let Some(sqnr) = accuracy.sqnr_db {
            let _ = write!(text, "the lowest SQNR is {sqnr:.2} dB, of {}", shorten(&worst.name));
        } else {
            let is_part = self.converted().any(|tensor| tensor.layout.is_some());
            let values = if is_part { "every value that is still quantized" } else { "every value" };
            let is_moved = |(tensor, _): &(&TensorReport, _)| {
                tensor.quantized.as_deref().is_some_and(|weight| weight.codes == Some(CodesOrigin::Exact))
            };
            let exactly = if weights.iter().any(is_moved) { ", as the product of code and scale," } else { "" };
            let _ = write!(text, "{values}{exactly} came through unchanged");
        }
        let sum = |count: fn(&QuantizedAccuracy) -> u64| weights.iter().map(|(_, accuracy)| count(accuracy)).sum();
        let (clipped, groups): (u64, u64) =
            (sum(|accuracy| accuracy.clipped), sum(|accuracy| accuracy.underflowed_groups));
        if clipped > 0 {
            let whose = if clipped == 1 { "its" } else { "their" };
            let _ = write!(text, "\n  {} clipped to the largest code of {whose} group", counted(clipped, "value"));
        }
        if groups > 0 {
            let _ = write!(text, "\n  {} with a scale too small for its type", counted(groups, "group"));
        }
        text
    }
}
