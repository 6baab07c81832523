//! The planner of quantized weights, and the weights that it decides about.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::lora::Merges;
use crate::options::QuantizeOptions;
use crate::plan::partition::Partition;
use crate::plan::quantization::CodesSource;
use crate::plan::weight_rows::{Changes, WeightValues};
use crate::quant::{Decoder, Encoder, FoundWeight, RowMap, Scheme, SchemeLayout};
use crate::read::Model;
use crate::select::KeptReason;
use crate::select::experts::ModelFacts;
use crate::select::policy::Policy;
use crate::text::shorten;
use std::collections::HashMap;
use std::sync::Arc;

/// The layout of gpt-oss: banks of experts stay banks, and nothing else is quantized.
pub(super) const GPT_OSS: &str = "gpt-oss";

/// A weight that could be quantized, and the decision about it.
#[derive(Clone)]
pub(super) struct WeightCandidate<'p, 'a> {
    /// The index of the stored tensor with its values or codes.
    pub(super) at: usize,
    pub(super) name: String,
    /// The weight of the input; `None` if it is not quantized there.
    pub(super) input_weight: Option<&'p FoundWeight>,
    pub(super) values: WeightValues,
    /// The changes of adapters; `None` if they change neither it nor a weight that shares its scale.
    pub(super) changes: Option<Changes>,
    pub(super) shape: Vec<u64>,
    pub(super) dtype: Dtype,
    /// Its scheme and layout in the output, or the reason for keeping it.
    pub(super) decision: Result<SchemeTarget, KeptReason>,
    /// True if the options decide about it by name, rather than the policy.
    pub(super) is_named: bool,
    /// The encoder for the codes and scales of the input, if no value changes.
    pub(super) exact: Option<Arc<Encoder>>,
    pub(super) codes: CodesSource<'a>,
}

/// The tensors that a rule of the options has named so far.
#[derive(Default)]
pub(super) struct RuleUse {
    pub(super) names_weight: bool,
    /// The error if none of them is a weight.
    pub(super) error: Option<Error>,
}

/// Choice of the options for a weight, and the number of the rule that decides.
pub(super) struct Choice {
    pub(super) decision: Result<SchemeTarget, KeptReason>,
    pub(super) rule: Option<usize>,
}

/// The scheme and layout of a quantized weight in the output.
#[derive(Clone)]
pub(super) struct SchemeTarget {
    pub(super) scheme: &'static Scheme,
    /// The layout, with the groups that the options request.
    pub(super) layout: SchemeLayout,
    /// `None` before it is known to fit.
    pub(super) encoder: Option<Arc<Encoder>>,
}

impl WeightCandidate<'_, '_> {
    /// Returns the decoder and the rows of the input's weight, if it is quantized both there and in the output, and adapters
    /// do not change it.
    pub(super) fn coded(&self) -> Option<(&Arc<Decoder>, RowMap)> {
        match (&self.values, &self.changes) {
            (WeightValues::Coded(decoder, rows), None) if self.decision.is_ok() => Some((decoder, *rows)),
            _ => None,
        }
    }

    /// Returns its encoder, if it is quantized and fits.
    pub(super) fn encoder(&self) -> Option<&Encoder> {
        self.decision.as_ref().ok()?.encoder.as_deref()
    }
}

/// Returns how a layout stores a scheme: the layout of this name, or the usual one. Fails if it lacks the scheme.
pub(crate) fn layout_of(scheme: &'static Scheme, name: Option<&str>) -> Result<&'static SchemeLayout> {
    scheme.in_layout(name).ok_or_else(|| {
        let known: Vec<&str> = scheme.layout_names().collect();
        let name = name.unwrap_or_default();
        let (name, known) = (shorten(name), known.join(", "));
        Error::usage(if scheme.in_model(Some(&name)).is_some() {
            format!("the layout {name} is for ONNX models: other models store {} as {known}", scheme.name)
        } else {
            format!("the layout {name} has no scheme {}, which is stored as {known}", scheme.name)
        })
    })
}

/// All tensors of a checkpoint.
pub(super) struct WeightCandidates<'p, 'a> {
    pub(super) weights: Vec<WeightCandidate<'p, 'a>>,
    /// The indices of stored tensors that are not weight matrices.
    pub(super) others: Vec<(usize, KeptReason)>,
    /// The indices of tensors that engines do not load.
    pub(super) dropped: Vec<usize>,
}

pub(super) struct Planner<'p, 'a> {
    pub(super) options: &'p QuantizeOptions,
    /// The shards that this run writes. Only their weights are searched.
    pub(super) partition: Option<Partition>,
    pub(super) threads: usize,
    pub(super) policy: Policy,
    pub(super) facts: &'p ModelFacts,
    pub(super) layout: &'static str,
    /// The new name of each tensor that has one.
    pub(super) renames: HashMap<&'p str, String>,
    pub(super) model: &'p Model<'a>,
    pub(super) merges: Option<&'p Merges>,
}
