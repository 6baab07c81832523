//! Plans the decoding of the quantized weights of an input, and the new texts of its configs. Makes the notes about sets that
//! engines load as one module, if a cast adds weights of another model to them.

use super::renaming::Renaming;
use super::stacked::{ExpertStacks, StackForm};
use super::step::{NewStored, Operation, Step};
use super::steps::Steps;
use super::stored::Few;
use super::weight_rows::{WeightValues, changes};
use super::{Planned, Request};
use crate::container::Form;
use crate::container::checkpoint::{BESIDE_CONFIG, CONFIG, HF_QUANT_CONFIG, PLAIN_EXPERTS, stack_of};
use crate::container::onnx::model::{Dequantization, TensorRole};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::lora::Merge;
use crate::operator::Operator;
use crate::options::{DequantizeOptions, Naming};
use crate::progress::{Note, UseNote};
use crate::quant::{
    Arithmetic, Decoder, FoundWeight, MLX, Modules, Role, RowMap, check_renamed, config_of, hf_quant_config_of,
    metadata_of, quantize_config_of,
};
use crate::read::{DecodedValues, Decoders, Model};
use crate::select::experts::ModelFacts;
use crate::select::policy::{Policy, expert_sets, fused_sets, module_of};
use crate::select::tried::has_banks;
use crate::select::{Candidate, KeptReason, Selection};
use crate::text::shorten;
use std::collections::{HashMap, HashSet};
use std::iter;
use std::sync::Arc;

/// Number of problems listed for a model without quantized weights.
const FEW: usize = 5;

impl<'a> Planned<'a> {
    /// Plans the decoding of the selected weights. Fails if the model has no quantized weights, a weight cannot be
    /// decoded, or the config cannot express that other weights stay quantized.
    pub(super) fn dequantize(model: &Model<'a>, options: &DequantizeOptions, request: &Request) -> Result<Self> {
        let &DequantizeOptions { to: target, arithmetic, keep_activation_scales, .. } = options;
        let selection = &options.tensors.selection();
        let (selected, left): (Vec<&FoundWeight>, Vec<&FoundWeight>) =
            model.found.weights.iter().partition(|weight| selection.selects(&weight.name));
        let (reordered, left): (Vec<&FoundWeight>, Vec<&FoundWeight>) =
            left.into_iter().partition(|weight| weight.has_plain_blocks());
        let plain = model.plain_weights();
        check_weights(model, selection, (&selected, &left), &plain)?;
        check_added(model, |name| !selection.selects(name))?;
        let renaming = Renaming::new(model, &selection.renames, |weight| selection.selects(&weight.name))?;
        let values = DecodedValues::Rounded { target, arithmetic, is_watched: options.counts_inexact() };
        let mut shared = Decoders::new(model, values);
        let mut weights = DecodedWeights::default();
        let mut steps = Steps::new(request, &model.source.shards, model.graph.as_ref())?;
        for weight in &selected {
            let decoder = shared.get(weight)?;
            model.check_parts(&decoder, weight)?;
            if let Some(merge) = steps.merge_of(&weight.name) {
                let to = request.container.form(decoder.target());
                let is_fused = arithmetic == Arithmetic::Library && request.rounding.is_none();
                weights.add(weight, model.merging(weight, &steps, (merge, to), None, is_fused)?);
                continue;
            }
            weights.add(weight, model.decoding(weight, decoder, None));
        }
        // The plain tensors of a GGUF model get the type of the others.
        for weight in plain.iter().filter(|weight| selection.selects(&weight.name)) {
            let decoder = shared.get(weight)?;
            if model.tensors[weight.parts[0].1].dtype != Some(decoder.target()) {
                weights.add(weight, model.decoding(weight, decoder, None));
            }
        }
        for weight in reordered {
            let decoder = model.decoder(weight, model.own_type(weight), Arithmetic::Library)?;
            weights.add(weight, model.decoding(weight, Arc::new(decoder), Some(KeptReason::LeftOut)));
        }
        let described = model.descriptions(&selected, left.is_empty());
        weights.left_out.extend(described);
        let scales = if keep_activation_scales { Vec::new() } else { model.scales_of(&selected, left.is_empty()) };
        weights.left_out.extend(&scales);
        let of_left: HashSet<usize> = left.iter().flat_map(|weight| &weight.parts).map(|(_, at)| *at).collect();
        let codes: HashSet<usize> = model.found.codes_that_stay.iter().copied().collect();
        weights.emit(model, &mut steps, |steps, at| {
            let kept = codes.contains(&at).then_some(KeptReason::Codes);
            let kept = kept.or(of_left.contains(&at).then_some(KeptReason::LeftOut));
            kept.or_else(|| steps.role_of_scale(model.places[at])).or(Some(KeptReason::Unquantized))
        })?;
        let mut planned = steps.finish(&renaming.tensors, false)?;
        if left.is_empty() && selected.iter().any(|weight| weight.layout.mark != "pt") {
            planned.change_metadata("format", "pt"); // transformers loads no other
        }
        let is_decoded = !selected.is_empty() || !plain.is_empty();
        let target = is_decoded.then(|| target.unwrap_or_else(|| model.default_target()));
        planned.describe(model, &renaming.modules(&selected, &left), target)?;
        let has_form = options.contents.experts.is_some() || options.tensors.naming.names == Some(Naming::File);
        if left.is_empty() && !has_form {
            planned.stack(banks(model.config()?))?;
        }
        planned.findings.notes = notes(model, model.names(scales), selection);
        Ok(planned)
    }

    /// Plans a cast: tensors that are made of others because the names of a GGUF model changed, a config without the
    /// quantization of the original model, and new names in a quantized checkpoint.
    pub(super) fn cast(model: &Model<'a>, request: &Request) -> Result<Self> {
        let source = model.source;
        if source.assembled.is_empty() && source.base.is_none() {
            return Self::rename(model, request);
        }
        let in_file = |error: Error, name: &str| error.in_tensor(name).in_file(&source.path);
        let mut weights = DecodedWeights::default();
        for weight in model.found.weights.iter().filter(|weight| weight.has_plain_blocks()) {
            let FoundWeight { name, shape, .. } = weight;
            let stored = model.own_type(weight);
            let candidate = Candidate { name, dtype: Some(stored), rank: shape.len(), is_alone: false };
            let chosen = request.selection.target(&candidate);
            let target = chosen.unwrap_or(stored);
            if !target.is_weight() {
                let error = Error::new(format!("its values change their order, and cannot become {target} at once"));
                return Err(in_file(
                    error.with(Opt::TO, "cast to bfloat16, float16 or float32, and cast the result"),
                    name,
                ));
            }
            let decoder = model.decoder(weight, target, Arithmetic::Library).map_err(|error| in_file(error, name))?;
            weights.add(weight, model.decoding(weight, Arc::new(decoder), chosen.err()));
        }
        let mut steps = Steps::new(request, &source.shards, None)?;
        weights.emit(model, &mut steps, |_, _| None)?;
        let mut planned = steps.finish(&request.selection.renames, true)?;
        planned.side_files = side_files(model, &Modules::default(), None)?;
        Ok(planned)
    }

    /// Plans tensors that are all values, and the changes that new names of tensors require in a quantized checkpoint.
    pub(super) fn rename(model: &Model<'a>, request: &Request) -> Result<Self> {
        let (source, renames) = (model.source, &request.selection.renames);
        check_added(model, |_| true)?;
        let (was_quantized, has_form) = (source.dropped.was_quantized, source.experts.is_some());
        if source.is_onnx_model()
            || !was_quantized
                && (renames.is_empty() && source.added.is_empty() && !has_form || model.found.weights.is_empty())
        {
            return Self::of_values(request, &source.shards, renames, true);
        }
        let renaming = Renaming::new(model, renames, |_| false)?;
        let left: Vec<&FoundWeight> = model.found.weights.iter().collect();
        let mut planned = Self::of_values(request, &source.shards, &renaming.tensors, false)?;
        planned.describe(model, &renaming.modules(&[], &left), None)?;
        Ok(planned)
    }

    /// Changes the descriptions of quantized weights, in the metadata of files and in the files next to them. `target` is
    /// the type of the decoded weights, if there are any.
    fn describe(&mut self, model: &Model, modules: &Modules, target: Option<Dtype>) -> Result<()> {
        self.metadata.extend(metadata_of(model.source.metadata(), modules));
        self.side_files = side_files(model, modules, target)?;
        if modules.renamed.is_empty() || modules.left.is_empty() {
            return Ok(());
        }
        let plain = model.found.plain.iter().map(|at| model.tensors[*at]).filter(|tensor| tensor.shape.len() > 1);
        let plain: HashSet<&str> = plain.filter_map(|tensor| module_of(tensor.name)).collect();
        let stays = |(old, new): &(&str, &str)| modules.left.contains(new) || plain.contains(old);
        let renamed = modules.renamed.iter().map(|(old, new)| (*old, *new)).filter(stays);
        let new: Vec<_> = self.side_files.iter().filter_map(|(file, text)| Some((*file, text.as_deref()?))).collect();
        check_renamed(&model.configs()?, &new, renamed, modules)
            .map_err(|error| error.in_file(&model.source.config_folder().join(CONFIG)))?;
        Ok(())
    }

    /// Changes a value of the metadata.
    pub(super) fn change_metadata(&mut self, key: &str, value: &str) {
        self.metadata.insert(key.to_owned(), Some(value.to_owned()));
    }

    /// Makes stacks of the experts, if there are stacks.
    pub(super) fn stack(&mut self, stacks: Option<ExpertStacks>) -> Result<()> {
        if let Some(stacks) = stacks {
            self.steps = stacks.stack(std::mem::take(&mut self.steps))?;
        }
        Ok(())
    }
}

/// Steps that decode weights, by the index of the stored tensor whose place they take, and the stored tensors that the
/// output does not need.
#[derive(Default)]
struct DecodedWeights<'a> {
    steps: HashMap<usize, Vec<Step<'a>>>,
    left_out: HashSet<usize>,
}

impl<'a> DecodedWeights<'a> {
    /// Adds the step for a weight. The decoded tensor takes the place of the codes, and the other parts are left out.
    fn add(&mut self, weight: &FoundWeight, step: Step<'a>) {
        let parts = Model::value_parts(weight);
        self.left_out.extend(parts[1..].iter().map(|(_, part)| *part));
        self.steps.entry(parts[0].1).or_default().push(step);
    }

    /// Adds all steps in the order of the stored tensors. `reason` says why a tensor that is not decoded is copied.
    fn emit(
        mut self,
        model: &Model<'a>,
        steps: &mut Steps<'_, 'a>,
        reason: impl Fn(&Steps, usize) -> Option<KeptReason>,
    ) -> Result<()> {
        let folded = steps.planned.graph.as_ref().map(|graph| {
            let is_folded = |folded: &&Dequantization| self.steps.contains_key(&folded.codes);
            graph.parts_of_others(&graph.dequantizations.iter().filter(is_folded).collect::<Vec<_>>())
        });
        let needed = folded.unwrap_or_default();
        for (at, place) in model.places.iter().enumerate() {
            if let Some(decoded) = self.steps.remove(&at) {
                decoded.into_iter().try_for_each(|step| steps.weight(step))?;
            } else if !self.left_out.contains(&at) {
                let reason = reason(steps, at);
                steps.plain(*place, reason)?;
            } else if needed.contains(&place.1) {
                steps.plain(*place, Some(KeptReason::Role(TensorRole::Scale)))?;
            }
        }
        Ok(())
    }
}

impl<'a> Model<'a> {
    /// Returns the step that decodes a weight. `kept` is the reason for not quantizing numbers that are not codes.
    pub(super) fn decoding(&self, weight: &FoundWeight, decoder: Arc<Decoder>, kept: Option<KeptReason>) -> Step<'a> {
        let place = self.places[Self::value_parts(weight)[0].1];
        let results = Few::One(NewStored::unplaced(weight.name.clone().into()));
        Step::new(place, self.value_sources(weight).collect(), results, Operation::Decode(decoder), kept)
    }

    /// Returns the decoder and the changes by which mlx-lm merges adapters into a weight of MLX: both have the type of its
    /// scales. `None` for other weights, and for changes that mlx-lm does not make.
    pub(super) fn fused(&self, weight: &FoundWeight, merge: &Merge) -> Result<Option<(Decoder, Merge)>> {
        if weight.layout.mark != MLX {
            return Ok(None);
        }
        let scales = weight.part(Role::Scale).and_then(|at| self.tensors[at].dtype);
        let dtype = scales.filter(|dtype| dtype.is_weight()).unwrap_or_else(|| self.own_type(weight));
        let Some(merge) = merge.fused(dtype) else { return Ok(None) };
        Ok(Some((self.decoder(weight, dtype, Arithmetic::Library)?, merge)))
    }

    /// Returns the step that decodes a weight, changes it as adapters do, and casts it. With `is_fused`, it has the values
    /// of mlx-lm where that merges adapters into such a weight.
    pub(super) fn merging(
        &self,
        weight: &FoundWeight,
        steps: &Steps<'_, 'a>,
        (merge, to): (&Arc<Merge>, Form),
        kept: Option<KeptReason>,
        is_fused: bool,
    ) -> Result<Step<'a>> {
        let fused = if is_fused { self.fused(weight, merge)? } else { None };
        let (decoder, merge) = match fused.filter(|(decoder, _)| decoder.target() == to.dtype()) {
            Some((decoder, fused)) => (decoder, Arc::new(fused)),
            None => (self.decoder_of_rows(weight)?, Arc::clone(merge)),
        };
        let shape = decoder.shape().to_vec();
        let values = WeightValues::Coded(Arc::new(decoder), RowMap::ALL);
        let place = self.places[Self::value_parts(weight)[0].1];
        let source = (place, self.value_sources(weight).collect(), values);
        steps.merged_cast(source, changes([Some(&merge)]), (&weight.name, &shape), to, kept)
    }

    /// Returns the stored tensors that only describe how these weights are quantized and, if they are all of the model, the
    /// other descriptions.
    fn descriptions(&self, weights: &[&FoundWeight], are_all: bool) -> Vec<usize> {
        let parts = weights.iter().flat_map(|weight| &weight.parts);
        let described = parts.filter(|(role, _)| matches!(role, Role::Shape | Role::Description)).map(|(_, at)| *at);
        let markers = self.found.markers.iter().copied().filter(|_| are_all);
        described.chain(markers).collect()
    }

    /// Returns the scales of activations of these weights, or all if they are all of the model.
    fn scales_of(&self, weights: &[&FoundWeight], are_all: bool) -> Vec<usize> {
        if are_all {
            return self.found.activation_scales.clone();
        }
        let parts = weights.iter().flat_map(|weight| &weight.parts);
        parts.filter(|(role, _)| *role == Role::Activation).map(|(_, at)| *at).collect()
    }

    /// Returns notes about sets of a model to which weights of another one were added.
    ///
    /// # Errors
    /// When a global scale cannot be read.
    pub(super) fn notes_of_additions(&self) -> Result<Vec<Note<'static>>> {
        let found = &self.found.weights;
        if found.is_empty() {
            return Ok(Vec::new()); // there may be a million plain tensors
        }
        let parts: HashSet<usize> = found.iter().flat_map(|weight| &weight.parts).map(|part| part.1).collect();
        let plain =
            self.tensors.iter().enumerate().filter(|(at, tensor)| {
                tensor.shape.len() == 2 && module_of(tensor.name).is_some() && !parts.contains(at)
            });
        let weights: Vec<(&str, bool)> = plain.map(|(_, tensor)| (tensor.name, true)).collect();
        let weights = [weights, found.iter().map(|weight| (&*weight.name, false)).collect()].concat();
        let is_diffusion = found.iter().any(|weight| weight.layout.is_diffusion);
        let mut notes: Vec<UseNote> = divided_sets(&weights, is_diffusion).into_iter().collect();
        // vLLM takes the largest of the global scales for all.
        let policy = Policy { is_diffusion, ..Policy::default() };
        let global = |at: &usize| found[*at].part(Role::GlobalScale).map(|part| self.part(Role::GlobalScale, part));
        for set in fused_sets(&policy, found.iter().map(|weight| &*weight.module)) {
            let scales = set.iter().filter_map(global).collect::<Result<Vec<_>>>()?;
            if let Some(other) = scales.iter().position(|scale| scale != &scales[0]) {
                notes.push(UseNote::UnequalGlobals([0, other].map(|at| found[set[at]].name.clone())));
                break;
            }
        }
        Ok(notes.into_iter().map(Note::Use).collect())
    }

    /// Returns the names of stored tensors.
    pub(super) fn names(&self, tensors: impl IntoIterator<Item = usize>) -> Vec<String> {
        tensors.into_iter().map(|at| self.tensors[at].name.to_owned()).collect()
    }
}

/// Refuses a model of which no weight is selected, and weights that cannot be left as they are.
fn check_weights(
    model: &Model,
    selection: &Selection,
    (selected, left): (&[&FoundWeight], &[&FoundWeight]),
    plain: &[FoundWeight],
) -> Result<()> {
    if model.found.weights.is_empty() && plain.is_empty() {
        return Err(no_weights(model));
    }
    check_shared(selected, left)?;
    if let Some((weight, blocks)) = left.iter().find_map(|weight| Some((weight, weight.parameters.blocks.as_ref()?))) {
        let format = blocks.formats[0].name;
        let error = Error::new(format!("cannot stay as it is: tcast writes no blocks of {format}"));
        return Err(error.in_tensor(&weight.name).remedy("decode all quantized weights"));
    }
    let is_expert = |weight: &&&FoundWeight| weight.layout.stacks_experts && stack_of(&weight.module).is_some();
    if let Some(expert) = left.iter().find(is_expert) {
        let what = "is one of the experts that MLX stacks, and MLX loads it only under the names of the file";
        return Err(Error::new(what).keeping_names().in_tensor(&expert.name));
    }
    if selected.is_empty() && !plain.iter().any(|weight| selection.selects(&weight.name)) {
        let what = "has quantized weights, and none of them is selected: the output would be quantized too";
        let option = if selection.exclude.is_empty() { Opt::INCLUDE } else { Opt::EXCLUDE };
        return Err(Error::usage(what).without(option));
    }
    Ok(())
}

/// Refuses weights of another checkpoint that stay quantized, if the config of the model does not describe them.
fn check_added(model: &Model, stays: impl Fn(&str) -> bool) -> Result<()> {
    let known: HashSet<&str> = model.found.weights.iter().map(|weight| &*weight.name).collect();
    let method_of = |method: &Option<String>| match method {
        Some(method) => format!("the quantization '{}'", shorten(method)),
        None => "no quantization".to_owned(),
    };
    for (name, method) in model.source.added_weights.iter().filter(|(name, _)| stays(name)) {
        let why = if *method != model.found.method {
            format!(
                "the config of the model describes {}, and its own {}",
                method_of(&model.found.method),
                method_of(method)
            )
        } else if !known.contains(&**name) {
            "the config of the model describes another form of it".to_owned()
        } else {
            continue;
        };
        let error = Error::new(format!("stays quantized as in another model: {why}"));
        return Err(error.in_tensor(name).remedy("decode the other model first"));
    }
    Ok(())
}

/// Returns the banks that the experts of a model become, if files of its kind store them so.
fn banks(config: Option<&str>) -> Option<ExpertStacks> {
    let facts = ModelFacts::read(config);
    let is_bank = has_banks(facts.kinds());
    is_bank.then_some(ExpertStacks {
        form: StackForm::Bank(PLAIN_EXPERTS),
        experts: facts.experts,
        are_requested: false,
    })
}

/// Refuses to decode only some of the weights that have the same codes.
fn check_shared(selected: &[&FoundWeight], left: &[&FoundWeight]) -> Result<()> {
    let of_left: HashMap<usize, &str> = left.iter().map(|it| (it.codes(), &*it.name)).collect();
    let shared = selected.iter().find_map(|weight| Some((&*weight.name, *of_left.get(&weight.codes())?)));
    shared.map_or(Ok(()), |(decoded, left)| {
        let error = Error::usage(format!("has the same codes as '{}', which stays quantized", shorten(left)));
        Err(error.in_tensor(decoded).remedy("choose both or none of them"))
    })
}

fn no_weights(model: &Model) -> Error {
    if !model.is_onnx_model() {
        // Without codes, recognition was skipped. There may be scales.
        let problems = model.recognize().unwrap_or_default().problems;
        let details: Vec<String> = problems.iter().take(FEW).map(|problem| problem.error.to_string()).collect();
        let error = Error::new("holds no quantized weights");
        if !details.is_empty() {
            return model.in_whole(error.with_details(details));
        }
        let error = error.run("cast", Some("".as_ref()), &[], "{} changes the type of plain weights");
        return error.run("quantize", Some("".as_ref()), &[], "{} quantizes them");
    }
    let error = Error::new("has no node with codes that tcast can decode");
    error.with_details(model.nodes_with_codes().collect())
}

/// Returns notes about scales of activations, which are left out, and about weights that engines may refuse, whose shapes
/// are unknown, or that stay quantized.
fn notes(model: &Model, scales: Vec<String>, selection: &Selection) -> Vec<Note<'static>> {
    let mut notes = Vec::new();
    let weights = &model.found.weights;
    let choices: Vec<_> = weights.iter().map(|weight| (&*weight.name, selection.selects(&weight.name))).collect();
    notes.extend(divided_sets(&choices, weights.iter().any(|weight| weight.layout.is_diffusion)));
    let decoded = weights.iter().filter(|weight| selection.selects(&weight.name));
    let mut padded = decoded.filter(|weight| weight.layout.codes.padding > 1);
    if let Some(FoundWeight { name, layout, .. }) = padded.next() {
        notes.push(UseNote::Padded { layout, first: name.clone(), others: padded.count() as u64 });
    }
    notes.extend(model.nodes_with_codes().map(UseNote::CodesStay));
    iter::once(Note::ScalesLeftOut(scales, Operator::Dequantize)).chain(notes.into_iter().map(Note::Use)).collect()
}

/// Returns the new texts of the files next to the shards. `target` is the type of the decoded weights, if there are
/// any.
fn side_files(model: &Model, modules: &Modules, target: Option<Dtype>) -> Result<Vec<(&'static str, Option<String>)>> {
    let mut files = Vec::new();
    let method = model.found.method.as_deref();
    if let Some(config) = model.config()? {
        files.push((CONFIG, Some(config_of(config, method, modules, target)?)));
    }
    if model.source.base.is_some() {
        // They describe the weights of the original model.
        files.extend(BESIDE_CONFIG.iter().map(|file| (*file, None)));
    }
    for &(file, text) in &model.beside_config {
        let new = if file == HF_QUANT_CONFIG {
            hf_quant_config_of(text, modules)
        } else {
            quantize_config_of(text, method, modules)
        };
        files.push((file, new?));
    }
    Ok(files)
}

/// Returns a note about sets that engines load as one module and that have plain and quantized weights. Each weight has its
/// name, and is plain or not.
fn divided_sets(weights: &[(&str, bool)], is_diffusion: bool) -> Option<UseNote> {
    let policy = Policy { is_diffusion, ..Policy::default() };
    let fused = fused_sets(&policy, weights.iter().map(|(name, _)| module_of(name).unwrap_or(name)));
    let sets = fused.into_iter().chain(expert_sets(&policy, weights.iter().map(|(name, _)| *name)));
    let one = |set: &[usize], is_plain: bool| {
        let mut members = set.iter().map(|at| weights[*at]);
        members.find(|member| member.1 == is_plain).map(|(name, _)| name.to_owned())
    };
    let mut divided = sets.filter_map(|set| Some([one(&set, true)?, one(&set, false)?]));
    let first = divided.next()?;
    Some(UseNote::DividedSets(1 + divided.count() as u64, first))
}
