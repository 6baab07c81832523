//! Plans the decoding of the quantized weights of an input, and the new texts of its configs.

use super::decisions::{Decisions, ExpertStacks, StackForm};
use super::renaming::Renaming;
use crate::container::checkpoint::{CONFIG, Checkpoint, HF_QUANT_CONFIG, QUANTIZE_CONFIG, stack_of};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::options::{DequantizeOptions, Naming};
use crate::quant::{
    Arithmetic, FoundWeight, Modules, QuantMethod, Role, config_of, hf_quant_config_of, metadata_of, quantize_config_of,
};
use crate::read::{DecodedValues, Decoders, LogicalCheckpoint};
use crate::select::experts::Model;
use crate::select::policy::{Policy, expert_sets, fused_sets};
use crate::select::tried::has_banks;
use crate::select::{Candidate, KeptReason, Rename, Selection};
use crate::text::shorten;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of problems listed for a model without quantized weights.
const FEW: usize = 5;

impl<'a> Decisions<'a> {
    /// Plans the decoding of the selected weights. Fails if the model has no quantized weights, a weight cannot be
    /// decoded, or the config cannot express that other weights stay quantized.
    pub(crate) fn dequantize(model: &LogicalCheckpoint<'a>, options: &DequantizeOptions) -> Result<Self> {
        let &DequantizeOptions { to: target, arithmetic, keep_activation_scales, .. } = options;
        let selection = &options.tensors.selection();
        let in_file = |error: Error| error.in_file(&model.source.path);
        let (selected, left): (Vec<&FoundWeight>, Vec<&FoundWeight>) =
            model.found.weights.iter().partition(|weight| selection.selects(&weight.name));
        let (reordered, left): (Vec<&FoundWeight>, Vec<&FoundWeight>) =
            left.into_iter().partition(|weight| weight.has_plain_blocks());
        let plain = model.plain_weights();
        if model.found.weights.is_empty() && plain.is_empty() {
            return Err(in_file(no_weights(model)));
        }
        check_shared(&selected, &left).map_err(in_file)?;
        if let Some((weight, blocks)) =
            left.iter().find_map(|weight| Some((weight, weight.parameters.blocks.as_ref()?)))
        {
            let format = blocks.formats[0].name;
            let error = Error::new(format!("cannot stay as it is: tcast writes no blocks of {format}"));
            return Err(in_file(error.in_tensor(&weight.name).remedy("decode all quantized weights")));
        }
        let is_expert =
            |weight: &&&FoundWeight| weight.layout.method == QuantMethod::Mlx && stack_of(&weight.module).is_some();
        if let Some(expert) = left.iter().find(is_expert) {
            let what = "is one of the experts that MLX stacks, and MLX loads it only under the names of the file";
            return Err(in_file(Error::new(what).of(Kind::Unmapped).in_tensor(&expert.name)));
        }
        if selected.is_empty() && !plain.iter().any(|weight| selection.selects(&weight.name)) {
            let what = "has quantized weights, and none of them is selected: the output would be quantized too";
            let option = if selection.exclude.is_empty() { "include" } else { "exclude" };
            return Err(in_file(Error::usage(what).without(option)));
        }
        let renaming = Renaming::new(model, &selection.renames, |weight| selection.selects(&weight.name));
        let renaming = renaming.map_err(in_file)?;
        let mut decisions = Self::default();
        for (_, at) in left.iter().flat_map(|weight| &weight.parts) {
            decisions.keep(model.places[*at], KeptReason::LeftOut);
        }
        for at in &model.found.codes_that_stay {
            decisions.keep(model.places[*at], KeptReason::Codes);
        }
        decisions.treatments.reserve(selected.iter().map(|weight| weight.parts.len()).sum());
        decisions.leave_out_descriptions(model, &selected, left.is_empty(), keep_activation_scales);
        let values = DecodedValues::Rounded { target, arithmetic, is_watched: options.counts_inexact() };
        let mut shared = Decoders::new(model, values);
        for weight in &selected {
            let decoder = shared.get(weight)?;
            model.check_parts(&decoder, weight)?;
            decisions.decode(model, weight, decoder, None);
        }
        // The plain tensors of a GGUF model get the type of the others.
        for weight in plain.iter().filter(|weight| selection.selects(&weight.name)) {
            let decoder = shared.get(weight)?;
            if model.tensors[weight.parts[0].1].dtype != Some(decoder.target()) {
                decisions.decode(model, weight, decoder, None);
            }
        }
        for weight in reordered {
            let decoder = model.decoder(weight, model.own_type(weight), Arithmetic::Library)?;
            decisions.decode(model, weight, Arc::new(decoder), Some(KeptReason::LeftOut));
        }
        if left.is_empty() && selected.iter().any(|weight| weight.layout.method == QuantMethod::Mlx) {
            decisions.change_metadata("format", Some("pt".to_owned())); // transformers does not load the format of MLX
        }
        let is_decoded = !selected.is_empty() || !plain.is_empty();
        let target = is_decoded.then(|| target.unwrap_or_else(|| model.default_target()));
        decisions.describe(model, &renaming.modules(&selected, &left), target).map_err(in_file)?;
        decisions.divided_sets = divided_sets(model, selection);
        if left.is_empty() && options.tensors.naming.names != Some(Naming::File) {
            decisions.stacks = banks(model.config()?);
        }
        decisions.renames = Some(renaming.tensors);
        Ok(decisions)
    }

    /// Plans a cast: tensors that are made of others because the names of a GGUF model changed, a config without the
    /// quantization of the original model, and new names in a quantized checkpoint.
    pub(crate) fn cast(source: &'a Checkpoint, selection: &Selection) -> Result<Self> {
        if source.assembled.is_empty() && source.base.is_none() {
            return Self::rename(source, &selection.renames);
        }
        let model = LogicalCheckpoint::open(source)?;
        let in_file = |error: Error, name: &str| error.in_tensor(name).in_file(&source.path);
        let mut decisions = Self::default();
        for weight in model.found.weights.iter().filter(|weight| weight.has_plain_blocks()) {
            let FoundWeight { name, shape, .. } = weight;
            let stored = model.own_type(weight);
            let candidate = Candidate { name, dtype: Some(stored), rank: shape.len(), is_alone: false };
            let chosen = selection.target(&candidate);
            let target = chosen.unwrap_or(stored);
            if !target.is_weight() {
                let error = Error::new(format!("its values change their order, and cannot become {target} at once"));
                return Err(in_file(error.remedy("cast to bfloat16, float16 or float32, and cast the result"), name));
            }
            let decoder = model.decoder(weight, target, Arithmetic::Library).map_err(|error| in_file(error, name))?;
            decisions.decode(&model, weight, Arc::new(decoder), chosen.err());
        }
        decisions.side_files =
            side_files(&model, &Modules::default(), None).map_err(|error| error.in_file(&source.path))?;
        Ok(decisions)
    }

    /// Plans the changes that new names of tensors require in a quantized checkpoint of which nothing is decoded.
    pub(crate) fn rename(source: &'a Checkpoint, renames: &[Rename]) -> Result<Self> {
        if renames.is_empty() || source.is_model() {
            return Ok(Self::default());
        }
        let model = LogicalCheckpoint::probe(source);
        if model.found.weights.is_empty() {
            return Ok(Self::default());
        }
        let in_file = |error: Error| error.in_file(&source.path);
        let renaming = Renaming::new(&model, renames, |_| false).map_err(in_file)?;
        let left: Vec<&FoundWeight> = model.found.weights.iter().collect();
        let mut decisions = Self::default();
        decisions.describe(&model, &renaming.modules(&[], &left), None).map_err(in_file)?;
        decisions.renames = Some(renaming.tensors);
        Ok(decisions)
    }

    /// Changes the descriptions of quantized weights, in the metadata of files and in the files next to them. `target` is
    /// the type of the decoded weights, if there are any.
    fn describe(&mut self, model: &LogicalCheckpoint, modules: &Modules, target: Option<Dtype>) -> Result<()> {
        self.describe_in_metadata(model, modules);
        self.side_files = side_files(model, modules, target)?;
        Ok(())
    }

    /// Changes the descriptions of quantized weights in the metadata of files.
    pub(super) fn describe_in_metadata(&mut self, model: &LogicalCheckpoint, modules: &Modules) {
        self.metadata.extend(metadata_of(model.source.metadata(), modules));
    }
}

/// Returns the banks that the experts of a model become, if files of its kind store them so.
fn banks(config: Option<&str>) -> Option<ExpertStacks> {
    let model = Model::read(config);
    let is_bank = has_banks(model.kinds());
    is_bank.then_some(ExpertStacks { form: StackForm::Bank, experts: model.experts })
}

/// Refuses to decode only some of the weights that have the same codes.
fn check_shared(selected: &[&FoundWeight], left: &[&FoundWeight]) -> Result<()> {
    let codes = |weight: &FoundWeight| weight.parts.iter().find(|(role, _)| *role == Role::Codes).map(|(_, at)| *at);
    let of_left: HashMap<usize, &str> = left.iter().filter_map(|it| Some((codes(it)?, &*it.name))).collect();
    let shared = selected.iter().find_map(|weight| Some((&*weight.name, *of_left.get(&codes(weight)?)?)));
    shared.map_or(Ok(()), |(decoded, left)| {
        let error = Error::usage(format!("has the same codes as '{}', which stays quantized", shorten(left)));
        Err(error.in_tensor(decoded).remedy("choose both or none of them"))
    })
}

fn no_weights(model: &LogicalCheckpoint) -> Error {
    if !model.is_model() {
        // Without codes, recognition was skipped. There may be scales.
        let problems = model.recognize().unwrap_or_default().problems;
        let details: Vec<String> = problems.iter().take(FEW).map(|problem| problem.error.to_string()).collect();
        let error = Error::new("holds no quantized weights");
        return if details.is_empty() { error.of(Kind::Plain) } else { model.in_whole(error.with_details(details)) };
    }
    let error = Error::new("has no DequantizeLinear node that tcast can compute");
    error.with_details(model.nodes_with_codes().collect())
}

/// Returns [`Decisions::divided_sets`].
fn divided_sets(model: &LogicalCheckpoint, selection: &Selection) -> Vec<[String; 2]> {
    let weights = &model.found.weights;
    let is_diffusion = weights.iter().any(|weight| weight.layout.is_diffusion());
    let policy = Policy { is_diffusion, ..Policy::default() };
    let fused = fused_sets(&policy, weights.iter().map(|weight| &*weight.module));
    let sets = fused.into_iter().chain(expert_sets(&policy, weights.iter().map(|weight| &*weight.name)));
    let one = |set: &[usize], is_decoded: bool| {
        let mut names = set.iter().map(|at| &*weights[*at].name);
        names.find(|name| selection.selects(name) == is_decoded).map(str::to_owned)
    };
    sets.filter_map(|set| Some([one(&set, true)?, one(&set, false)?])).collect()
}

/// Returns the new texts of the files next to the shards. `target` is the type of the decoded weights, if there are
/// any.
fn side_files(
    model: &LogicalCheckpoint,
    modules: &Modules,
    target: Option<Dtype>,
) -> Result<Vec<(&'static str, Option<String>)>> {
    let mut files = Vec::new();
    let method = model.found.method.as_deref();
    if let Some(config) = model.config()? {
        files.push((CONFIG, Some(config_of(config, method, modules, target)?)));
    }
    if model.source.base.is_some() {
        // They describe the weights of the original model.
        files.extend([(HF_QUANT_CONFIG, None), (QUANTIZE_CONFIG, None)]);
    }
    if let Some(text) = &model.hf_quant_config {
        files.push((HF_QUANT_CONFIG, hf_quant_config_of(text, modules)?));
    }
    if let Some(text) = &model.quantize_config {
        files.push((QUANTIZE_CONFIG, quantize_config_of(text, method, modules)?));
    }
    Ok(files)
}
