//! Decides which weights of an input are quantized, and how.
//!
//! `planner` holds what all of these files share. `candidates` finds the weights and applies options and policy; `coded` does the
//! same for weights that are quantized already. `fit` makes the encoders and keeps weights that do not fit, `recover` searches
//! for the codes from which values were decoded, `steps` makes the steps, and `config` writes the config. `model` decides for
//! ONNX models, and `transposed` for weights of them that are quantized already.

mod candidates;
mod coded;
mod config;
mod fit;
mod merged;
mod misfit;
mod mlx;
mod model;
mod naming;
mod planner;
mod recover;
mod steps;
mod transposed;

pub(crate) use candidates::matchable_names;
pub(super) use misfit::not_a_weight;
use misfit::nothing_to_quantize;
#[cfg(feature = "cli")]
pub(crate) use model::check_schemes_of_model;
pub(crate) use naming::{OTHER_NAME, name_instead_of};
pub(crate) use planner::layout_of;
use planner::{Planner, SchemeTarget, WeightCandidate, WeightCandidates};
pub(super) use recover::refuse_unrecovered;

use super::partition::Partition;
use super::renaming::new_names_in;
use super::steps::Steps;
use super::{PlanFindings, Planned, Request};
use crate::container::checkpoint::{BESIDE_CONFIG, CONFIG, HF_QUANT_CONFIG};
use crate::error::{Error, Result};
use crate::operator::Operator;
use crate::options::{ExpertForm, QuantizeOptions};
use crate::progress::{Misfit, Note, Observer, QuantizedForms, UseNote};
use crate::quant::{
    COMFYUI, EncodeArithmetic, EncodeOptions, EngineConfig, FoundWeight, Group, Modules, RotationUse, metadata_of,
    named_dtype,
};
use crate::read::Model;
use crate::select::KeptReason;
use crate::select::experts::ModelFacts;
use crate::select::policy::{Policy, is_of_diffusion};
use crate::text::shorten;
use std::iter;

impl<'a> Planned<'a> {
    /// Plans which weights are quantized, and how. Fails if no weight would be quantized, the layout lacks a scheme,
    /// nothing proves the orientation of a bank of experts, modules that engines fuse would differ, or the config
    /// cannot describe the result.
    pub(super) fn quantize(
        model: &Model<'a>,
        options: &QuantizeOptions,
        request: &Request,
        partition: Option<Partition>,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let source = model.source;
        let text = model.config()?;
        let facts = ModelFacts::read(text);
        let layout = match options.scheme {
            Some(scheme) => layout_of(scheme, options.layout)?.name,
            None => options.layout.expect("there is a scheme or a layout"),
        };
        let policy = Policy { layers: facts.layers, is_diffusion: layout == COMFYUI, heads: facts.heads() };
        coded::check_is_readable(model)?;
        if facts.has_transposed_layers() {
            let kind = shorten(facts.kind.as_deref().unwrap_or_default());
            return Err(Error::new(format!(
                "files of '{kind}' store the weights transposed, [in, out], and engines load quantized weights as [out, in]"
            )));
        }
        let renames = new_names_in(model, &options.tensors.rename);
        // The weights of new shards are not known yet.
        let has_new_shards = options.shards.max_shard_size.is_some() || source.experts == Some(ExpertForm::Stacked);
        let partition = partition.filter(|_| !has_new_shards);
        let threads = request.threads;
        let merges = request.merges;
        let planner = Planner { options, partition, threads, policy, facts: &facts, layout, renames, model, merges };
        let mut candidates = planner.candidates()?;
        let misfits = planner.fit(&mut candidates.weights)?;
        planner.check_fused(&mut candidates.weights)?;
        if !candidates.weights.iter().any(|weight| weight.decision.is_ok()) {
            return Err(nothing_to_quantize(&candidates, &misfits));
        }
        planner.merge(&mut candidates.weights)?;
        planner.check_names(&candidates)?;
        planner.resolve(&mut candidates.weights)?;
        planner.recover(&mut candidates.weights, observer)?;
        planner.check_dropped(&candidates.dropped)?;
        let stacks = planner.new_stacks(&candidates)?;
        let config = planner.config(&candidates, if let Some(stacks) = &stacks { stacks.in_mlx() } else { None })?;
        let mut side_files = Vec::new();
        if let Some(text) = text {
            let text = planner.plain_config(text).and_then(|text| config.write_into(&text));
            let text = text.map_err(|error| error.in_file(&source.config_folder().join(CONFIG)))?;
            side_files.push((CONFIG, Some(text)));
        }
        // The file of the input would contradict the config.
        let older = config.hf_quant_config.as_ref().filter(|_| source.folder.is_some());
        let older = older.map(|older| serde_json::to_string_pretty(older).expect("a JSON value is always text") + "\n");
        side_files.extend(BESIDE_CONFIG.iter().map(|file| (*file, older.clone().filter(|_| *file == HF_QUANT_CONFIG))));
        let findings = planner.findings(&candidates, misfits, config);
        let mut steps = Steps::new(request, &source.shards, None)?;
        planner.emit(candidates, &mut steps)?;
        let mut plan = Self { side_files, findings, ..steps.finish(&options.tensors.rename, true)? };
        plan.stack(stacks)?;
        let is_of_mlx = |weight: &FoundWeight| weight.layout.mark == mlx::NAME;
        if layout == mlx::NAME || model.found.weights.iter().any(is_of_mlx) {
            plan.change_metadata("format", if layout == mlx::NAME { mlx::NAME } else { "pt" });
        }
        if !model.found.weights.is_empty() {
            plan.metadata.extend(metadata_of(source.metadata(), &Modules::default()));
        }
        Ok(plan)
    }
}

impl Planner<'_, '_> {
    /// Translates the options of the command to options of encoders.
    fn encoding(&self) -> EncodeOptions {
        let QuantizeOptions { arithmetic, search, input_global_scale, .. } = *self.options;
        let keeps_type = arithmetic == EncodeArithmetic::Kitchen;
        let arithmetic = arithmetic.of_decoder();
        EncodeOptions { arithmetic, keeps_type, scale: search, input_global_scale, ..EncodeOptions::default() }
    }

    fn findings(&self, candidates: &WeightCandidates, misfits: Vec<Misfit>, config: EngineConfig) -> PlanFindings {
        let weights = &candidates.weights;
        let names = |set: Vec<usize>| set.into_iter().map(|at| weights[at].name.clone()).collect();
        PlanFindings {
            notes: self.notes(weights, misfits),
            config: config.block,
            adapters: Vec::new(),
            dropped: self.model.names(candidates.dropped.iter().copied()),
            loaded_together: self.loaded_together(weights).into_iter().map(names).collect(),
        }
    }

    /// Returns notes about weights that engines may not load, and weights that other options would quantize.
    fn notes(&self, weights: &[WeightCandidate], misfits: Vec<Misfit>) -> Vec<Note<'static>> {
        let Self { options, model, .. } = self;
        let is_embedding = |weight: &&WeightCandidate| {
            weight.decision.is_ok() && self.reason(&weight.name, false) == Some(KeptReason::Embedding)
        };
        let is_stack = |weight: &&WeightCandidate| {
            weight.input_weight.is_some()
                && weight.shape.len() == 3
                && matches!(weight.decision, Err(KeptReason::NoMatrix))
        };
        let mut stacks = weights.iter().filter(is_stack).map(|weight| weight.name.clone());
        let first_stack = stacks.next();
        let scales = match &model.found {
            found if found.weights.is_empty() => Vec::new(),
            found => model.names(found.activation_scales.iter().copied()),
        };
        let is_of_diffusion = options.layout.is_none() && model.source.names().any(is_of_diffusion);
        let mut notes = vec![misfit::note(misfits, options)];
        notes.extend(options.scheme.filter(|_| is_of_diffusion).map(UseNote::OfDiffusion));
        notes.extend(weights.iter().find(is_embedding).map(|weight| UseNote::QuantizedEmbedding(weight.name.clone())));
        notes.extend(first_stack.map(|first| UseNote::DecodedStacks(1 + stacks.count() as u64, first)));
        notes.extend(self.unrotated(weights));
        notes.extend(self.groups_of_input(weights).map(UseNote::GroupsOfInput));
        notes.push(UseNote::Quantized(Box::new(self.forms(weights))));
        notes.extend(options.input_global_scale.map(|_| UseNote::SharedInputScale));
        if let Some(Group::Neighbours(size)) = options.group_size
            && ![32, 64, 128].contains(&size)
        {
            notes.push(UseNote::SlowGroups(size));
        }
        iter::once(Note::ScalesLeftOut(scales, Operator::Quantize)).chain(notes.into_iter().map(Note::Use)).collect()
    }

    /// Returns the note about plain weights that are not rotated, although others of their scheme are.
    fn unrotated(&self, weights: &[WeightCandidate]) -> Option<UseNote> {
        let size = self.options.rotation.unwrap_or_default().columns()?;
        let is_unrotated = |weight: &&WeightCandidate| {
            let is_plain = weight.input_weight.is_none();
            is_plain
                && weight.decision.as_ref().is_ok_and(|target| {
                    let encoder = target.encoder.as_ref();
                    target.layout.row.rotation == RotationUse::Optional
                        && encoder.is_some_and(|it| it.rotation().is_none())
                })
        };
        let mut found = weights.iter().filter(is_unrotated);
        let first = found.next()?;
        let (name, columns) = (first.name.clone(), first.shape.last().copied().unwrap_or_default());
        Some(UseNote::Unrotated { count: 1 + found.count() as u64, first: name, columns, size })
    }

    fn forms(&self, weights: &[WeightCandidate]) -> QuantizedForms {
        let quantized = || weights.iter().filter_map(|weight| Some((weight, weight.decision.as_ref().ok()?)));
        let stored_as = |(_, target): (_, &SchemeTarget)| (target.scheme.name, target.layout.name);
        let is_kept_layer = |weight: &WeightCandidate| {
            let found_otherwise = [KeptReason::Head, KeptReason::Embedding, KeptReason::Router];
            weight.shape.len() == 2 && weight.decision.as_ref().is_err_and(|reason| !found_otherwise.contains(reason))
        };
        let config_text = self.model.config().unwrap_or_default();
        QuantizedForms {
            stored: quantized().map(stored_as).collect(),
            experts: quantized().filter(|(weight, _)| weight.name.contains(".experts.")).map(stored_as).collect(),
            kinds: self.facts.kinds().map(str::to_owned).collect(),
            computes_in: named_dtype(config_text).or_else(|| quantized().next().map(|(weight, _)| weight.dtype)),
            has_kept_layers: weights.iter().any(is_kept_layer),
        }
    }
}
