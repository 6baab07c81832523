//! Losses and defects that make a job fail.

use crate::kernel::{Condition, Loss};
use crate::lora::DeltaFigures;
use crate::measure::quantized::QuantizedAccuracy;
use crate::options::{Defect, QuantizeOptions, Task};
use crate::text::counted;

/// Events that make a job fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailOn {
    /// Conditions that no value may meet.
    pub conditions: Vec<Condition>,
    /// Defects that the options name.
    pub defects: Vec<Defect>,
    /// The minimum signal-to-noise ratio of a quantized weight, in decibels.
    pub min_sqnr_db: Option<f64>,
    /// True if no value of a quantized weight may change.
    pub changed: bool,
    /// The minimum share of the delta of adapters that is kept in a weight, and the minimum ratio to its noise, in decibels.
    pub min_kept: Option<f64>,
    pub min_delta_snr_db: Option<f64>,
}

impl FailOn {
    /// Returns what the options of a task refuse. `nan` also stands for NaN that is lost.
    pub(crate) fn of(task: Task) -> Self {
        let (defects, quantize) = match task {
            Task::Cast(options) => (options.fail_on.clone(), None),
            Task::Dequantize(options) => (options.fail_on.clone(), None),
            Task::Quantize(options) => (options.fail_on.clone(), Some(options)),
            Task::BitCast(_) | Task::Promote(_) => (Vec::new(), None),
        };
        // In a GGUF file, no value may be too large for its type or, if values are to be kept, changed. Only the
        // finished blocks show whether they hold the values.
        let is_gguf = quantize.is_some_and(QuantizeOptions::is_gguf);
        let changed = is_gguf && quantize.is_some_and(QuantizeOptions::keeps_values);
        let has = |loss| defects.contains(&Defect::Value(Condition::Lost(loss)));
        let implied = [
            (has(Loss::Nan), Loss::NanLost),
            (is_gguf && !has(Loss::Infinite), Loss::Infinite),
            (changed, Loss::Inexact),
        ];
        let implied = implied.into_iter().filter_map(|(is_refused, loss)| is_refused.then_some(Condition::Lost(loss)));
        let given = defects.iter().filter_map(|defect| match defect {
            Defect::Value(condition) => Some(*condition),
            Defect::Clipped | Defect::Underflowed | Defect::Lost => None,
        });
        let half = defects.contains(&Defect::Lost).then_some(0.5);
        let contents = task.contents();
        Self {
            conditions: given.chain(implied).collect(),
            min_sqnr_db: quantize.and_then(|options| options.min_sqnr),
            changed,
            min_kept: [half, contents.and_then(|contents| contents.min_kept)].into_iter().flatten().reduce(f64::max),
            min_delta_snr_db: contents.and_then(|contents| contents.min_delta_snr),
            defects,
        }
    }

    /// Returns the reasons why what is left of a delta is refused, in words.
    pub(crate) fn refuses_delta(&self, figures: &DeltaFigures) -> impl Iterator<Item = String> {
        let kept = self.min_kept.filter(|least| figures.kept < *least);
        let kept = kept.map(|least| format!("{:.2} of the delta is kept, less than {least}", figures.kept));
        let noise = self.min_delta_snr_db.zip(figures.delta_snr).filter(|(least, snr)| snr < least);
        let noise = noise.map(|(least, snr)| format!("delta SNR {} dB, below {least} dB", text_below(snr, least)));
        kept.into_iter().chain(noise)
    }

    /// True if everything is allowed.
    pub(crate) fn is_empty(&self) -> bool {
        self.conditions.is_empty()
            && self.defects.is_empty()
            && self.min_sqnr_db.is_none()
            && !self.changed
            && self.min_kept.is_none()
            && self.min_delta_snr_db.is_none()
    }

    /// Returns the reasons why a weight is refused, in words. Values of a merged weight may change.
    pub(crate) fn refuses(&self, figures: &QuantizedAccuracy, is_merged: bool) -> impl Iterator<Item = String> {
        let count = |defect| match defect {
            Defect::Clipped => Some((figures.clipped, "value", "clipped to the largest code of its group")),
            Defect::Underflowed => Some((figures.underflowed_groups, "group", "with a scale too small for its type")),
            Defect::Value(_) | Defect::Lost => None, // of values, and of deltas
        };
        let defects = self.defects.iter().filter_map(move |defect| count(*defect)).filter(|(count, ..)| *count > 0);
        let defects = defects.map(|(count, what, how)| format!("{} {how}", counted(count, what)));
        let noise = self.min_sqnr_db.zip(figures.sqnr_db).filter(|(least, sqnr)| sqnr < least);
        let noise = noise.map(|(least, sqnr)| format!("SQNR {} dB, below {least} dB", text_below(sqnr, least)));
        let must_stay = self.changed && !is_merged;
        let is_changed = must_stay && (!figures.is_exact || figures.changed.is_some_and(|changed| changed > 0));
        defects.chain(noise).chain(is_changed.then(|| "values that change".to_owned()))
    }
}

/// Formats `value` with two decimals, or with more if it would otherwise not look smaller than `limit`.
fn text_below(value: f64, limit: f64) -> String {
    let text = |decimals: usize| format!("{value:.decimals$}");
    (2..17)
        .map(text)
        .find(|text| text.parse().is_ok_and(|shown: f64| shown < limit))
        .unwrap_or_else(|| value.to_string())
}
