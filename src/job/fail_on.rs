//! Losses and defects that make a job fail.

use crate::kernel::{Condition, Loss};
use crate::measure::quantized::QuantizedAccuracy;
use crate::options::Defect;
use crate::text::counted;

/// Events that make a job fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailOn {
    /// Conditions that no value may meet.
    pub conditions: Vec<Condition>,
    /// Defects that no quantized weight may have.
    pub defects: Vec<Defect>,
    /// The minimum signal-to-noise ratio of a quantized weight, in decibels.
    pub min_sqnr_db: Option<f64>,
    /// True if no value of a quantized weight may change.
    pub changed: bool,
}

impl From<&[Condition]> for FailOn {
    /// Refuses values that meet one of these conditions. `nan` also stands for NaN that is lost.
    fn from(given: &[Condition]) -> Self {
        let mut conditions = given.to_vec();
        if conditions.contains(&Condition::Lost(Loss::Nan)) {
            conditions.push(Condition::Lost(Loss::NanLost));
        }
        Self { conditions, ..Self::default() }
    }
}

impl FailOn {
    /// True if everything is allowed.
    pub(crate) fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.defects.is_empty() && self.min_sqnr_db.is_none() && !self.changed
    }

    /// Returns the reasons why a weight is refused, in words.
    pub(crate) fn refuses(&self, figures: &QuantizedAccuracy) -> impl Iterator<Item = String> {
        let count = |defect| match defect {
            Defect::Clipped => Some((figures.clipped, "value", "clipped to the largest code of its group")),
            Defect::Underflowed => Some((figures.underflowed_groups, "group", "with a scale too small for its type")),
            Defect::Infinite => None, // a condition of values
        };
        let defects = self.defects.iter().filter_map(move |defect| count(*defect)).filter(|(count, ..)| *count > 0);
        let defects = defects.map(|(count, what, how)| format!("{} {how}", counted(count, what)));
        let noise = self.min_sqnr_db.zip(figures.sqnr_db).filter(|(least, sqnr)| sqnr < least);
        let noise = noise.map(|(least, sqnr)| format!("SQNR {} dB, below {least} dB", text_below(sqnr, least)));
        let is_changed = self.changed && (!figures.is_exact || figures.changed.is_some_and(|changed| changed > 0));
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
