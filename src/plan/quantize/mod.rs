//! Decides which weights of an input are quantized, and how.
//!
//! `candidates` finds the weights and applies options and policy; `coded` does the same for weights that are quantized
//! already. `fit` makes the encoders and keeps weights that do not fit, `recover` searches for the codes from which
//! values were decoded, `steps` makes the steps, and `config` writes the config. `model` decides
//! for ONNX models.

mod candidates;
mod coded;
mod config;
mod fit;
mod gpt_oss;
#[cfg(feature = "cli")]
mod matchable;
mod misfit;
mod mlx;
mod model;
mod naming;
mod recover;
mod steps;

#[cfg(feature = "cli")]
pub(crate) use matchable::matchable_names;
pub(crate) use misfit::Misfit;
pub(super) use misfit::not_a_weight;
use misfit::nothing_to_quantize;
pub(crate) use naming::{OTHER_NAME, name_instead_of};
pub(super) use recover::refuse_unrecovered;

use super::decisions::Decisions;
use super::partition::Partition;
use super::quantization::{CodesSource, TensorIndex};
#[cfg(feature = "cli")]
use super::step::Step;
use super::weight_rows::WeightValues;
use crate::container::checkpoint::{CONFIG, HF_QUANT_CONFIG, QUANTIZE_CONFIG};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::options::QuantizeOptions;
use crate::progress::Observer;
use crate::quant::{
    COMFYUI, Decoder, EncodeOptions, Encoder, EngineConfig, FoundWeight, Modules, QuantMethod, RowMap, Scheme,
    SchemeLayout, TargetGrid, named_dtype,
};
use crate::read::{LogicalCheckpoint, Membership};
use crate::select::KeptReason;
use crate::select::experts::Model;
use crate::select::policy::Policy;
use crate::text::shorten;
#[cfg(feature = "cli")]
use std::collections::BTreeMap;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Request of the user.
pub(crate) struct QuantizeRequest<'a> {
    pub options: &'a QuantizeOptions,
    /// The shards that this run writes. Only their weights are searched.
    pub partition: Option<Partition>,
    pub threads: usize,
}

impl QuantizeRequest<'_> {
    fn encoding(&self) -> EncodeOptions {
        let QuantizeOptions { arithmetic, search, input_global_scale, .. } = *self.options;
        EncodeOptions { arithmetic, scale: search, input_global_scale, ..EncodeOptions::default() }
    }
}

/// Data that a job needs to quantize weights, and the config that engines need to load the result.
#[derive(Default)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words the findings"))]
pub(crate) struct QuantizePlan<'a> {
    pub(crate) decisions: Decisions<'a>,
    pub(crate) config: EngineConfig,
    /// Weights that are kept because of their shape.
    pub(crate) misfits: Vec<Misfit>,
    /// Embeddings that a rule quantizes.
    pub(crate) embeddings: Vec<String>,
    /// The schemes and layouts in which weights are stored.
    pub(crate) stored: BTreeSet<(&'static str, &'static str)>,
    /// The schemes and layouts in which experts are stored one by one.
    pub(crate) experts: BTreeSet<(&'static str, &'static str)>,
    /// The names of tensors that engines of the layout do not load, and that are left out.
    pub(crate) dropped: Vec<String>,
    /// Quantized stacks of experts that are decoded, because the names of the file are kept.
    pub(crate) decoded_stacks: Vec<String>,
    /// `model_type` of the whole model, and of its language model.
    pub(crate) kinds: Vec<String>,
    /// The type in which engines compute, unless an option names another one.
    pub(crate) computes_in: Option<Dtype>,
    /// True if linear layers are kept that engines identify only by their names.
    pub(crate) has_kept_layers: bool,
    /// The names of weights that must have the same scheme, because engines load them as one module.
    pub(crate) loaded_together: Vec<Vec<String>>,
}

/// A weight that could be quantized, and the decision about it.
#[derive(Clone)]
struct WeightCandidate<'a> {
    place: TensorIndex,
    name: String,
    /// Its index among the quantized weights of the input; `None` if it is not quantized there.
    input_weight: Option<usize>,
    values: WeightValues,
    shape: Vec<u64>,
    dtype: Dtype,
    /// Its scheme and layout in the output, or the reason for keeping it.
    decision: Result<SchemeTarget, KeptReason>,
    /// True if the options decide about it by name, rather than the policy.
    is_named: bool,
    /// The encoder for the codes and scales of the input, if no value changes.
    exact: Option<Arc<Encoder>>,
    codes: CodesSource<'a>,
}

/// The tensors that a rule of the options has named so far.
#[derive(Default)]
struct RuleUse {
    names_weight: bool,
    /// The error if none of them is a weight.
    error: Option<Error>,
}

/// Choice of the options for a weight, and the number of the rule that decides.
struct Choice {
    decision: Result<SchemeTarget, KeptReason>,
    rule: Option<usize>,
}

/// The scheme and layout of a quantized weight in the output.
#[derive(Clone)]
struct SchemeTarget {
    scheme: &'static Scheme,
    layout: &'static SchemeLayout,
    grid: TargetGrid,
    /// `None` before it is known to fit.
    encoder: Option<Arc<Encoder>>,
}

impl SchemeTarget {
    /// Returns the target for a scheme with the grid of a layout.
    fn new(scheme: &'static Scheme, layout: &'static SchemeLayout) -> Self {
        Self { scheme, layout, grid: layout.grid, encoder: None }
    }
}

impl WeightCandidate<'_> {
    /// Returns the decoder and the rows of the input's weight, if it is quantized both there and in the output.
    fn coded(&self) -> Option<(&Arc<Decoder>, RowMap)> {
        match &self.values {
            WeightValues::Coded(decoder, rows) if self.decision.is_ok() => Some((decoder, *rows)),
            _ => None,
        }
    }

    /// Returns its encoder, if it is quantized and fits.
    fn encoder(&self) -> Option<&Encoder> {
        self.decision.as_ref().ok()?.encoder.as_deref()
    }
}

impl<'a> QuantizePlan<'a> {
    /// Decides which weights are quantized, and how. Fails if no weight would be quantized, the layout lacks a scheme,
    /// nothing proves the orientation of a bank of experts, modules that engines fuse would differ, or the config
    /// cannot describe the result.
    pub(crate) fn new(
        logical: &LogicalCheckpoint<'a>,
        request: &QuantizeRequest,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let source = logical.source;
        let in_file = |error: Error| error.in_file(&source.path);
        let text = logical.config()?;
        let model = Model::read(text);
        let layout = match request.options.scheme {
            Some(scheme) => layout_of(scheme, request.options.layout)?.name,
            None => request.options.layout.expect("there is a scheme or a layout"),
        };
        let policy = Policy { layers: model.layers, is_diffusion: layout == COMFYUI, heads: model.heads() };
        let memberships = logical.memberships();
        coded::check_is_readable(logical, &memberships)?;
        if model.has_transposed_layers() {
            let kind = shorten(model.kind.as_deref().unwrap_or_default());
            return Err(in_file(Error::new(format!(
                "files of '{kind}' store the weights transposed, [in, out], and engines load quantized weights as [out, in]"
            ))));
        }
        let renames = request.options.tensors.rename.iter().map(|rename| (&*rename.old, &*rename.new)).collect();
        let planner = Planner { request, policy, model: &model, layout, renames, logical, memberships };
        let mut candidates = planner.candidates().map_err(in_file)?;
        let misfits = planner.fit(&mut candidates.weights).map_err(in_file)?;
        planner.check_fused(&mut candidates.weights).map_err(in_file)?;
        if !candidates.weights.iter().any(|weight| weight.decision.is_ok()) {
            return Err(in_file(nothing_to_quantize(&candidates, &misfits)));
        }
        planner.check_names(&candidates).map_err(in_file)?;
        planner.resolve(&mut candidates.weights).map_err(in_file)?;
        planner.recover(&mut candidates.weights, observer).map_err(in_file)?;
        planner.check_dropped(&candidates.dropped).map_err(in_file)?;
        let stacks = planner.new_stacks(&candidates).map_err(in_file)?;
        let config = planner.config(&candidates, stacks.is_some()).map_err(in_file)?;
        let mut side_files = Vec::new();
        if let Some(text) = text {
            let text = planner.plain_config(text).and_then(|text| config.write_into(&text));
            let text = text.map_err(|error| error.in_file(&source.config_folder().join(CONFIG)))?;
            side_files.push((CONFIG, Some(text)));
        }
        // The file of the input would contradict the config.
        let older = config.hf_quant_config.as_ref().filter(|_| source.folder.is_some());
        let older = older.map(|older| serde_json::to_string_pretty(older).expect("a JSON value is always text") + "\n");
        side_files.extend([(HF_QUANT_CONFIG, older), (QUANTIZE_CONFIG, None)]);
        let is_embedding = |weight: &&WeightCandidate| {
            weight.decision.is_ok() && planner.reason(&weight.name, false) == Some(KeptReason::Embedding)
        };
        let embeddings = candidates.weights.iter().filter(is_embedding).map(|weight| weight.name.clone()).collect();
        let quantized =
            || candidates.weights.iter().filter_map(|weight| Some((weight, weight.decision.as_ref().ok()?)));
        let stored_as = |(_, target): (_, &SchemeTarget)| (target.scheme.name, target.layout.name);
        let stored = quantized().map(stored_as).collect();
        let experts = quantized().filter(|(weight, _)| weight.name.contains(".experts.")).map(stored_as).collect();
        let is_kept_layer = |weight: &WeightCandidate| {
            let found_otherwise = [KeptReason::Head, KeptReason::Embedding, KeptReason::Router];
            weight.shape.len() == 2 && weight.decision.as_ref().is_err_and(|reason| !found_otherwise.contains(reason))
        };
        let has_kept_layers = candidates.weights.iter().any(is_kept_layer);
        let computes_in = named_dtype(text).or_else(|| quantized().next().map(|(weight, _)| weight.dtype));
        let kinds = model.kinds().map(str::to_owned).collect();
        let dropped = candidates.dropped.iter().map(|place| planner.name_at(*place).to_owned()).collect();
        let is_stack = |weight: &&WeightCandidate| {
            weight.input_weight.is_some()
                && weight.shape.len() == 3
                && matches!(weight.decision, Err(KeptReason::NoMatrix))
        };
        let decoded_stacks = candidates.weights.iter().filter(is_stack).map(|weight| weight.name.clone()).collect();
        let names = |set: Vec<usize>| set.into_iter().map(|at| candidates.weights[at].name.clone()).collect();
        let loaded_together = planner.loaded_together(&candidates.weights).into_iter().map(names).collect();
        let mut decisions = planner.decisions(candidates)?;
        decisions.stacks = stacks;
        decisions.side_files = side_files;
        decisions.block = config.block.as_ref().filter(|_| text.is_none()).map(ToString::to_string);
        let is_of_mlx = |weight: &FoundWeight| weight.layout.method == QuantMethod::Mlx;
        if layout == mlx::NAME || logical.found.weights.iter().any(is_of_mlx) {
            let format = if layout == mlx::NAME { mlx::NAME } else { "pt" };
            decisions.change_metadata("format", Some(format.to_owned()));
        }
        if !logical.found.weights.is_empty() {
            let weights: Vec<&FoundWeight> = logical.found.weights.iter().collect();
            decisions.leave_out_descriptions(logical, &weights, true, false);
            decisions.describe_in_metadata(logical, &Modules::default());
        }
        Ok(Self {
            decisions,
            config,
            misfits,
            embeddings,
            stored,
            experts,
            dropped,
            decoded_stacks,
            kinds,
            computes_in,
            has_kept_layers,
            loaded_together,
        })
    }
}

#[cfg(feature = "cli")]
impl QuantizePlan<'_> {
    /// Returns the scheme of each weight that gets codes and scales, by its name, and whether its blocks are copied from
    /// the input.
    pub(crate) fn schemes(&self) -> BTreeMap<&str, (&'static str, bool)> {
        let weights = self.decisions.steps().filter_map(Step::quantization);
        weights.map(|weight| (&*weight.name, (weight.scheme, matches!(weight.codes, CodesSource::Copied)))).collect()
    }
}

pub(crate) fn layout_of(scheme: &'static Scheme, name: Option<&str>) -> Result<&'static SchemeLayout> {
    scheme.in_layout(name).ok_or_else(|| {
        let known: Vec<&str> = scheme.layout_names().collect();
        let name = name.unwrap_or_default();
        let message = format!("the layout {} has no scheme {}, which is stored as ", shorten(name), scheme.name);
        Error::usage(message + &known.join(", "))
    })
}

/// All tensors of a checkpoint.
struct WeightCandidates<'a> {
    weights: Vec<WeightCandidate<'a>>,
    /// Tensors that are not weight matrices.
    others: Vec<(TensorIndex, KeptReason)>,
    /// Tensors that engines do not load.
    dropped: Vec<TensorIndex>,
}

struct Planner<'p, 'a> {
    request: &'p QuantizeRequest<'p>,
    policy: Policy,
    model: &'p Model,
    layout: &'static str,
    /// The new name of each tensor that has one.
    renames: HashMap<&'p str, &'p str>,
    logical: &'p LogicalCheckpoint<'a>,
    memberships: Vec<Membership>,
}
