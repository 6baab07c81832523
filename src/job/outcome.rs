//! Results for an output file and its tensors: the contents of a report, which later runs also read.

use super::fail_on::FailOn;
use crate::container::{Elements, indices, row_major};
use crate::dtype::Dtype;
use crate::engine::Outcome;
use crate::kernel::{Condition, Counts, Firsts, Loss};
use crate::lora::DeltaFigures;
use crate::measure::accuracy::Accuracy;
use crate::measure::hash::Hashes;
use crate::measure::quantized::{CodesOrigin, QuantizedAccuracy};
use crate::plan::{CodesSource, Operation, Plan, Quantization, Step, Unrecovered};
use crate::quant::CodeValues;
use crate::select::KeptReason;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Borrow;
use std::iter;

/// The quantization of a weight, and its accuracy.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuantizedReport {
    /// The name of its scheme.
    pub scheme: Box<str>,
    /// Its layout.
    pub layout: Box<str>,
    /// Its layout in the input, if it was quantized there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source_layout: Option<Box<str>>,
    /// True if its codes and scales were moved to another layout, so that no value changes.
    #[serde(rename = "exact")]
    pub is_exact: bool,
    /// The origin of its codes, if it was quantized before, or if tcast searched for the codes of its values.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub codes: Option<CodesOrigin>,
    /// The element for which no codes and scales were found, counted in row-major order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unrecovered_at: Option<u64>,
    /// Its stored tensors: codes, scales and others.
    pub parts: Vec<PartReport>,
    /// Its accuracy; `None` before it is quantized.
    #[serde(flatten, skip_serializing_if = "Option::is_none", default)]
    pub accuracy: Option<QuantizedAccuracy>,
}

/// A stored tensor of a quantized weight. Experts of MLX share one, whose hash is in the report of the first of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PartReport {
    /// Its name.
    pub name: Box<str>,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Lengths of its dimensions.
    pub shape: Vec<u64>,
    /// The name of ggml's type, in a GGUF file: the dtype is then the type of its bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub blocks: Option<Box<str>>,
    /// SHA-256 of its bytes, if requested.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sha256: Option<Box<str>>,
}

impl QuantizedReport {
    fn new(step: &Step, weight: &Quantization, accuracy: Option<QuantizedAccuracy>) -> Self {
        let part = |at: usize, (_, dtype, shape): (&str, Dtype, &[u64])| PartReport {
            name: step.results[at].stored_name().into(),
            dtype,
            shape: step.results[at].stored_shape(shape).to_vec(),
            blocks: weight.rows.encoder.parts()[at].format.map(|format| format.name.into()),
            sha256: None,
        };
        let codes = CodesOrigin::of(weight);
        Self {
            scheme: weight.scheme.into(),
            layout: weight.rows.encoder.layout().name.into(),
            source_layout: weight.rows.decoder().map(|decoder| decoder.layout().name.into()),
            is_exact: codes == Some(CodesOrigin::Exact),
            codes,
            unrecovered_at: match weight.codes {
                CodesSource::Values { unrecovered: Some(Unrecovered::NotFound(element)), .. } => element,
                _ => None,
            },
            parts: step.new_tensors().enumerate().map(|(at, tensor)| part(at, tensor)).collect(),
            accuracy,
        }
    }
}

/// The result of an output.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) struct Written {
    /// The output, or the requested shards.
    pub(crate) files: Vec<FileReport>,
    /// Number of files that were complete before.
    pub(crate) before: usize,
    /// Number of complete shards of the folder; `all` is the final number.
    pub(crate) finished: usize,
    pub(crate) all: usize,
    /// True if everything was complete, and nothing was written.
    pub(crate) was_complete: bool,
}

/// One output file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FileReport {
    /// Its name; in a folder, its name there.
    pub file: String,
    /// Its length in bytes; before deflation, if it still has to be deflated.
    pub bytes: u64,
    /// Its tensors, in order.
    pub tensors: Vec<TensorReport>,
    /// True if it still has to be deflated.
    #[serde(skip)]
    pub(crate) will_be_deflated: bool,
}

/// One tensor of an output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TensorReport {
    /// Its name there; empty in a format without names.
    pub name: Box<str>,
    /// Its name in the input, if different.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub renamed_from: Option<Box<str>>,
    /// Lengths of its dimensions.
    pub shape: Vec<u64>,
    /// Its type in the input.
    pub from: Dtype,
    /// Its type in the output.
    pub to: Dtype,
    /// The file's name for a type that tcast does not support: its bytes were copied, as `uint8`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stored: Option<Box<str>>,
    /// The layout of a quantized weight that was decoded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub layout: Option<Box<str>>,
    /// True if the operator was applied; otherwise it was copied.
    #[serde(rename = "cast")]
    pub is_converted: bool,
    /// The reason for copying it, if it was copied.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) kept: Option<KeptReason>,
    /// Bytes that it took in its file.
    pub bytes_in: u64,
    /// Bytes that it takes now.
    pub bytes_out: u64,
    /// Counts of the losses of its values; `None` before the conversion.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counts: Option<Box<Counts>>,
    /// The first elements that were NaN or infinite before, or met a refused condition.
    #[serde(rename = "first_at", skip_serializing_if = "Firsts::is_empty", default)]
    pub(crate) firsts: Firsts,
    /// The accuracy of its values compared with the source, if requested.
    #[serde(rename = "figures", skip_serializing_if = "Option::is_none", default)]
    pub accuracy: Option<Box<Accuracy>>,
    /// Its quantization, if it was quantized.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub quantized: Option<Box<QuantizedReport>>,
    /// The stored tensor that holds a plain tensor of an expert, with the tensors of other experts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) stack: Option<Box<PartReport>>,
    /// Figures about the rest of the delta of the adapters that were merged into it.
    #[serde(rename = "lora", skip_serializing_if = "Option::is_none", default)]
    pub(crate) delta: Option<Box<DeltaFigures>>,
    /// SHA-256 of its bytes in the input, if requested.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sha256_in: Option<Box<str>>,
    /// SHA-256 of its bytes in the output, if requested.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sha256_out: Option<Box<str>>,
}

impl FileReport {
    /// Reports the planned conversion or, with `outcomes`, the finished one.
    #[must_use]
    #[doc(hidden)] // for fuzzing
    pub fn new(file: String, plan: &Plan, outcomes: Option<Vec<Outcome>>) -> Self {
        Self { tensors: TensorReport::of(plan.steps.iter(), outcomes), ..Self::without_tensors(file, plan) }
    }

    /// Reports a finished conversion. Drops each step as soon as it is reported: for many tensors, a plan takes as much
    /// memory as its report.
    pub(crate) fn taking(file: String, mut plan: Plan, outcomes: Option<Vec<Outcome>>) -> Self {
        let steps = std::mem::take(&mut plan.steps);
        Self { tensors: TensorReport::of(steps.into_iter(), outcomes), ..Self::without_tensors(file, &plan) }
    }

    /// Reports a finished conversion without its tensors.
    pub(super) fn without_tensors(file: String, plan: &Plan) -> Self {
        Self { file, bytes: plan.len, tensors: Vec::new(), will_be_deflated: plan.is_deflated }
    }

    /// Sets the lengths of a deflated file and of its members.
    pub(super) fn deflated(&mut self, (bytes, members): (u64, Vec<u64>)) {
        (self.bytes, self.will_be_deflated) = (bytes, false);
        for (tensor, bytes) in self.tensors.iter_mut().zip(members) {
            tensor.bytes_out = bytes;
        }
    }

    pub(super) fn add_hashes(&mut self, hashes: Vec<Hashes>) {
        for (tensor, hashes) in self.tensors.iter_mut().zip(hashes) {
            let mut targets = hashes.targets.into_iter().map(Into::into);
            tensor.sha256_in = hashes.source.map(Into::into);
            if let Some(quantized) = &mut tensor.quantized {
                quantized.parts.iter_mut().zip(targets).for_each(|(part, hash)| part.sha256 = Some(hash));
            } else if let Some(stack) = &mut tensor.stack {
                stack.sha256 = targets.next();
            } else {
                tensor.sha256_out = targets.next();
            }
        }
    }

    /// True if one of its values met a refused condition, or one of its weights has a refused defect.
    pub(crate) fn meets(&self, fail_on: &FailOn) -> bool {
        !fail_on.is_empty() && self.tensors.iter().any(|tensor| tensor.meets(fail_on))
    }

    /// Sums the losses of all tensors.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.tensors.iter().filter_map(|tensor| tensor.counts.as_deref().copied()).sum()
    }
}

impl TensorReport {
    fn of<'a, S: Borrow<Step<'a>>>(steps: impl Iterator<Item = S>, outcomes: Option<Vec<Outcome>>) -> Vec<Self> {
        let outcomes = outcomes.into_iter().flatten().map(Some).chain(iter::repeat_with(|| None));
        steps.zip(outcomes).map(|(step, outcome)| Self::new(step.borrow(), outcome)).collect()
    }

    fn new(step: &Step, outcome: Option<Outcome>) -> Self {
        let counts = outcome.as_ref().map(|outcome| Box::new(outcome.counts));
        let Outcome { mut firsts, tally, encoded, survival, .. } = outcome.unwrap_or_default();
        let (source, result) = (step.source(), &step.results[0]);
        let (weight, is_element_wise) = (step.quantization(), step.conversion().is_some());
        let accuracy_of = |weight| QuantizedAccuracy::new(weight, &encoded.unwrap_or_default());
        let quantized = weight.filter(|_| counts.is_some()).map(accuracy_of);
        if step.fortran_order {
            firsts.renumber(|at| row_major(at, &source.shape));
        }
        let old = if is_element_wise && step.sources.len() == 1 { &*source.name } else { "" };
        Self {
            name: match &step.how {
                Operation::Encode(weight) => weight.name.as_str().into(),
                Operation::Convert(_) | Operation::Decode(_) => (&*result.name).into(),
            },
            renamed_from: (!old.is_empty() && old != result.name).then(|| old.into()),
            shape: step.shape().to_vec(),
            from: step.dtypes().0,
            to: step.dtypes().1,
            layout: match &step.how {
                Operation::Convert(_) => None,
                Operation::Decode(decoder) => Some(decoder.layout().name.into()),
                Operation::Encode(weight) => {
                    let is_merged = weight.cast().is_some() && weight.rows.merges().next().is_some();
                    weight.rows.decoder().filter(|_| is_merged).map(|decoder| decoder.layout().name.into())
                }
            },
            stored: has_type_of_file(step).then(|| (&*source.stored).into()),
            is_converted: step.is_converted(),
            kept: step.kept,
            bytes_in: step.bytes_in(),
            bytes_out: step.bytes_out(),
            counts,
            firsts,
            accuracy: tally.map(|tally| {
                let mut accuracy = tally.accuracy();
                if step.fortran_order {
                    for index in [&mut accuracy.max_abs_error_at, &mut accuracy.max_rel_error_at].into_iter().flatten()
                    {
                        *index = row_major(*index, &source.shape);
                    }
                }
                Box::new(accuracy)
            }),
            quantized: weight.map(|weight| Box::new(QuantizedReport::new(step, weight, quantized))),
            stack: result.stack().filter(|_| weight.is_none()).map(|stack| {
                let (dtype, shape) = (step.dtypes().1, result.stored_shape(step.shape()).to_vec());
                Box::new(PartReport { name: stack.name.clone(), dtype, shape, blocks: None, sha256: None })
            }),
            delta: match (&step.how, survival) {
                (Operation::Encode(weight), Some(tally)) => tally.figures(weight.merge(), step.count()).map(Box::new),
                _ => None,
            },
            sha256_in: None,
            sha256_out: None,
        }
    }

    /// Returns the index, in row-major order, of the first element that was NaN or infinite before, or met a refused condition.
    #[must_use]
    pub fn first(&self, condition: Condition) -> Option<u64> {
        Some(self.firsts.of(condition)?.at)
    }

    /// True if it is or was text, which has no elements of a known size.
    pub(crate) fn is_text(&self) -> bool {
        [self.from, self.to].contains(&Dtype::String)
    }

    /// True if its bytes were hashed.
    pub(crate) fn is_hashed(&self) -> bool {
        self.sha256_in.is_some() || self.sha256_out.is_some()
    }

    /// True if it has measurements, or needs none because it is text or was copied.
    pub(crate) fn is_measured(&self) -> bool {
        let can_be = self.is_converted && !self.is_text();
        self.accuracy.is_some() || !can_be
    }

    /// True if one of its values met a refused condition, or one of its weights has a refused defect.
    pub(crate) fn meets(&self, fail_on: &FailOn) -> bool {
        let figures = self.quantized_accuracy();
        self.met(fail_on).next().is_some()
            || figures.is_some_and(|figures| fail_on.refuses(figures, self.delta.is_some()).next().is_some())
            || self.delta.as_ref().is_some_and(|figures| fail_on.refuses_delta(figures).next().is_some())
    }

    /// Returns the refused conditions that its values met, in the order of reports. Adapters may change values that otherwise
    /// have to stay.
    pub(crate) fn met(&self, fail_on: &FailOn) -> impl Iterator<Item = Condition> {
        let may_change = fail_on.changed && self.delta.is_some();
        Condition::ALL.into_iter().filter(move |condition| {
            let is_allowed = may_change && *condition == Condition::Lost(Loss::Inexact);
            !is_allowed && fail_on.conditions.contains(condition) && self.count_of(*condition) > 0
        })
    }

    /// Returns the number of its values that met a condition.
    pub(crate) fn count_of(&self, condition: Condition) -> u64 {
        self.counts.as_ref().map_or(0, |counts| counts[condition])
    }

    /// Returns words that say when its values met a condition: codes become infinite when a library decodes them.
    pub(crate) fn when_met(&self, condition: Condition) -> &'static str {
        let is_decoded = self.quantized.is_some() && self.from == Dtype::Float16;
        if is_decoded && condition == Condition::Lost(Loss::Infinite) { " when decoded to float16" } else { "" }
    }

    pub(crate) fn quantized_accuracy(&self) -> Option<&QuantizedAccuracy> {
        self.quantized.as_ref()?.accuracy.as_ref()
    }

    /// Returns the coordinates of an element, if it exists: recorded positions are not checked elsewhere.
    pub(crate) fn indices(&self, element: u64) -> Option<Vec<u64>> {
        (element < self.elements()).then(|| indices(element, &self.shape, false))
    }

    /// Returns the coordinates of an element as text, if it exists.
    pub(crate) fn place(&self, element: u64) -> Option<String> {
        self.indices(element).map(|indices| format!("{indices:?}"))
    }

    /// Converts the report to JSON, with coordinates next to every position.
    pub(crate) fn json(&self) -> Value {
        let mut value = json!(self);
        let indices = |at: u64| json!(self.indices(at));
        let firsts = Condition::ALL.into_iter().filter_map(|condition| Some((condition, self.first(condition)?)));
        if !self.firsts.is_empty() {
            value["first_index"] = firsts.map(|(condition, at)| (condition.name().to_owned(), indices(at))).collect();
        }
        if let Some(accuracy) = &self.accuracy {
            value["figures"]["max_abs_error_index"] = accuracy.max_abs_error_at.map_or(Value::Null, indices);
            value["figures"]["max_rel_error_index"] = accuracy.max_rel_error_at.map_or(Value::Null, indices);
        }
        if let Some(figures) = self.quantized_accuracy() {
            value["quantized"]["max_abs_error_index"] = figures.max_abs_error_at.map_or(Value::Null, indices);
        }
        if let Some(at) = self.quantized.as_ref().and_then(|quantized| quantized.unrecovered_at) {
            value["quantized"]["unrecovered_index"] = indices(at);
        }
        value
    }

    /// Returns the number of elements, the product of the shape.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |count: u64, length| count.saturating_mul(*length))
    }
}

/// True if only the name that the file gives to the type of a tensor describes its elements.
fn has_type_of_file(step: &Step) -> bool {
    let decoder = match &step.how {
        Operation::Decode(decoder) => Some(&**decoder),
        Operation::Encode(weight) => weight.rows.decoder(),
        Operation::Convert(_) => None,
    };
    let is_of_blocks = decoder.is_some_and(|decoder| decoder.layout().codes.values == CodeValues::Blocks);
    is_of_blocks || step.source().elements == Elements::Opaque
}
