//! The error for values that a job refuses, which contains the report and a line for each of them.

use super::{Report, TensorReport};
use crate::error::{Error, Kind};
use crate::job::FailOn;
use crate::kernel::{Condition, First};
use crate::operator::Operator;
use crate::text::{counted, shorten};

impl Report {
    pub(crate) fn is_quantized(&self) -> bool {
        self.operator == Operator::Quantize.name()
    }

    /// Returns the tensors that a job refuses, because of their values or their quantization.
    pub(crate) fn refused(&self, fail_on: &FailOn) -> Vec<&TensorReport> {
        self.tensors().filter(|tensor| tensor.meets(fail_on)).collect()
    }

    /// Returns the error for tensors that a job refuses, with a line for each condition that one of them meets; `None` if there
    /// are none.
    pub(crate) fn refusal(&self, fail_on: &FailOn) -> Option<Error> {
        let refused = self.refused(fail_on);
        if refused.is_empty() {
            return None;
        }
        let verb = if refused.len() == 1 { "has" } else { "have" };
        let what = format!(
            "{} {verb} {}: no output was written",
            counted(refused.len() as u64, "tensor"),
            if self.is_quantized() || !self.adapters.is_empty() {
                "more loss than is allowed"
            } else {
                "values that are not allowed"
            }
        );
        let details = refused.iter().flat_map(|tensor| lines(tensor, fail_on)).collect();
        let error = Error::new(what).in_file(&self.input).with_details(details).of(Kind::Loss);
        Some(self.advise(error, &refused, fail_on))
    }

    /// Returns the report, unless the job refuses one of its tensors. The error contains the report.
    pub(crate) fn unless_refused(self, fail_on: &FailOn) -> Result<Self, Error> {
        match self.refusal(fail_on) {
            Some(error) => Err(error.with_payload(self)),
            None => Ok(self),
        }
    }
}

impl Error {
    /// Returns the report of a conversion whose values or weights were refused, because of `fail_on` or `min_sqnr` in
    /// its options: the kind is then [`ErrorKind::Loss`](crate::error::ErrorKind::Loss), and no output was
    /// written.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        self.payload()?.downcast_ref()
    }
}

/// Describes the values that met each condition, and the position of the first.
fn lines(tensor: &TensorReport, fail_on: &FailOn) -> Vec<String> {
    let is_merged = tensor.delta.is_some();
    let quantized = tensor.quantized_accuracy().into_iter().flat_map(|figures| fail_on.refuses(figures, is_merged));
    let deltas = tensor.delta.iter().flat_map(|figures| fail_on.refuses_delta(figures));
    let quantized = quantized.chain(deltas).map(|what| format!("{}: {what}", shorten(&tensor.name)));
    let line = |condition: Condition| {
        let (met, all) = (tensor.count_of(condition), tensor.elements());
        let name = if tensor.name.is_empty() { String::new() } else { format!("{}: ", shorten(&tensor.name)) };
        let first = tensor.firsts.of(condition).and_then(|First { at, values: [from, to] }| {
            let values = match (from.as_str(), to.as_str()) {
                ("", _) => String::new(),
                (from, _) if matches!(condition, Condition::InputNan | Condition::InputInfinite) => format!(": {from}"),
                (from, "") => format!(": {from}"),
                (from, to) => format!(": {from} became {to}"),
            };
            Some(format!(", first at {}{values}", tensor.place(*at)?))
        });
        format!(
            "{name}{met} of {} {}{}{}",
            counted(all, "value"),
            condition.describe(),
            tensor.when_met(condition),
            first.unwrap_or_default()
        )
    };
    tensor.met(fail_on).map(line).chain(quantized).collect()
}
