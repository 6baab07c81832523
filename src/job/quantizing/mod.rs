//! Decides which weights of an input are quantized, and how.

mod coded;
mod describing;
mod fit;
mod gpt_oss;
mod misfit;
mod model;
mod naming;
mod recovering;
mod rule;
mod sharing;

pub(crate) use misfit::Misfit;
use misfit::{no_weight, nothing_to_quantize, whole_bank};
pub use rule::SchemeRule;

use super::decoding::Recoding;
use super::observer::Observer;
use super::share::Partition;
use crate::container::Form;
use crate::container::checkpoint::{CONFIG, Checkpoint, HF_QUANT_CONFIG, QUANTIZE_CONFIG, read_side_file};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::output::directory_of;
use crate::plan::{TensorIndex, WeightValues, source_form};
use crate::quant::{
    Decoder, EncodeOptions, Encoder, EngineConfig, Grid, Group, RowMap, Scheme, SchemeLayout, TargetGrid,
};
use crate::read::{LogicalCheckpoint, Membership};
use crate::select::experts::{Expert, Model, experts, unsplit_bank};
use crate::select::policy::{Policy, module_of};
use crate::select::{KeptReason, Pattern, Rename, Selection};
use crate::text::shorten;
use std::collections::HashMap;
use std::sync::Arc;

/// What the user asks for.
pub(crate) struct QuantizeRequest<'a> {
    /// The scheme of weights that match no rule; `None` if weights keep their grid, and only the layout changes.
    pub scheme: Option<&'static Scheme>,
    /// The layout of all weights; `None` for the default of the scheme.
    pub layout: Option<&'a str>,
    pub group_size: Option<u64>,
    pub options: EncodeOptions,
    /// Which weights to quantize.
    pub selection: &'a Selection,
    pub rules: &'a [SchemeRule],
    /// New names of tensors. Engines see these; patterns match the old ones.
    pub renames: &'a [Rename],
    /// Whether blocks at the edges may be partial.
    pub with_partial_blocks: bool,
    /// Whether no value of a quantized weight may change, or of a weight that was decoded.
    pub only_exact: bool,
    /// Whether codes and scales are searched that plain weights were decoded from.
    pub recovers: bool,
    /// The share of the input's shards to write in this run, whose weights are searched.
    pub partition: Option<Partition>,
    pub threads: usize,
}

/// What a job needs to quantize weights, and the config that engines need to load the result.
pub(crate) struct Quantizing {
    pub(crate) recoding: Recoding,
    pub(crate) config: EngineConfig,
    /// Weights that are kept because of their shape.
    pub(crate) misfits: Vec<Misfit>,
    /// Embeddings that a rule quantizes.
    pub(crate) embeddings: Vec<String>,
}

/// A weight that could be quantized, and the decision about it.
struct WeightCandidate {
    place: TensorIndex,
    name: String,
    values: Values,
    shape: Vec<u64>,
    dtype: Dtype,
    /// How it will be stored, or why it is kept.
    stored: Result<StoredAs, KeptReason>,
    /// Whether the options decide about it by name, rather than the policy.
    is_named: bool,
}

/// What the values of a weight are made from.
enum Values {
    Stored(WeightValues),
    Coded(CodedCandidate),
}

/// Rows of a quantized weight that could be quantized again.
struct CodedCandidate {
    /// Its index among the weights of the input.
    weight: usize,
    decoder: Arc<Decoder>,
    rows: RowMap,
    /// The encoder for its codes and scales, if values do not change.
    exact: Option<Arc<Encoder>>,
}

/// What the options ask for a weight.
struct Asked {
    stored: Result<StoredAs, KeptReason>,
    /// The rule that decides.
    rule: Option<usize>,
}

/// How a weight is to be stored.
#[derive(Clone)]
struct StoredAs {
    scheme: &'static Scheme,
    layout: &'static SchemeLayout,
    grid: TargetGrid,
    encoder: Option<Arc<Encoder>>,
}

impl Quantizing {
    /// The names that patterns can match: the names of all tensors and of the experts in banks.
    ///
    /// # Errors
    /// When the config cannot be read.
    pub(crate) fn names(source: &LogicalCheckpoint) -> Result<Vec<String>> {
        let model = Model::read(config_beside(source.source)?.as_deref());
        let mut names: Vec<String> = Vec::new();
        for (tensor, membership) in source.tensors.iter().zip(source.memberships()) {
            let (name, shape) = match membership {
                Membership::Plain => (tensor.name, tensor.shape),
                Membership::Codes(weight) => {
                    let weight = &source.found.weights[weight];
                    (&*weight.name, &weight.shape[..])
                }
                _ => continue,
            };
            names.push(name.to_owned());
            if let Some(Ok(bank)) = experts(&model, name, shape) {
                names.extend(bank.into_iter().map(|expert| expert.name));
            }
        }
        Ok(names)
    }

    /// Decides which weights are quantized, and how.
    ///
    /// # Errors
    /// When no weight would be quantized, the layout lacks a scheme, nothing proves the orientation of a bank of
    /// experts, modules that engines fuse would differ, or the config cannot be read or cannot describe the result.
    pub(crate) fn new(logical: &LogicalCheckpoint, request: &QuantizeRequest, observer: &dyn Observer) -> Result<Self> {
        let source = logical.source;
        let in_file = |error: Error| error.in_file(&source.path);
        let folder = source.folder.as_deref().unwrap_or_else(|| directory_of(&source.path));
        let text = config_beside(source)?;
        let model = Model::read(text.as_deref());
        let layout = match request.scheme {
            Some(scheme) => layout_of(scheme, request.layout)?.name,
            None => request.layout.expect("there is a scheme or a layout"),
        };
        let policy = Policy { layers: model.layers, is_diffusion: layout == "comfyui" };
        let memberships = logical.memberships();
        coded::check_is_readable(logical, &memberships)?;
        if model.has_transposed_layers() {
            let kind = shorten(model.kind.as_deref().unwrap_or_default());
            return Err(in_file(Error::new(format!(
                "files of '{kind}' store the weights transposed, [in, out], and engines load quantized weights as [out, in]"
            ))));
        }
        let renames = request.renames.iter().map(|rename| (&*rename.old, &*rename.new)).collect();
        let planner = Planner { request, policy, model: &model, layout, renames, source: logical, memberships };
        let mut plan = planner.candidates().map_err(in_file)?;
        let misfits = planner.fit(&mut plan.weights).map_err(in_file)?;
        planner.check_fused(&mut plan.weights).map_err(in_file)?;
        if !plan.weights.iter().any(|weight| weight.stored.is_ok()) {
            return Err(in_file(nothing_to_quantize(&plan, &misfits)));
        }
        planner.check_names(&plan).map_err(in_file)?;
        let coded = planner.resolve(&mut plan.weights).map_err(in_file)?;
        let recovered = planner.recover(&mut plan.weights, observer).map_err(in_file)?;
        let config = planner.config(&plan).map_err(in_file)?;
        let mut side_files = Vec::new();
        if let Some(text) = &text {
            let text = planner.plain_config(text).map_err(|error| error.in_file(&folder.join(CONFIG)))?;
            let text = config.write_into(&text).map_err(|error| error.in_file(&folder.join(CONFIG)))?;
            side_files.push((CONFIG, Some(text)));
        }
        // Those of the input would contradict the config.
        let older = config.hf_quant_config.as_ref().filter(|_| source.folder.is_some());
        let older = older.map(|older| serde_json::to_string_pretty(older).expect("a JSON value is always text") + "\n");
        side_files.extend([(HF_QUANT_CONFIG, older), (QUANTIZE_CONFIG, None)]);
        let is_embedding = |weight: &&WeightCandidate| {
            weight.stored.is_ok() && planner.reason(&weight.name, false) == Some(KeptReason::Embedding)
        };
        let embeddings = plan.weights.iter().filter(is_embedding).map(|weight| weight.name.clone()).collect();
        let mut weights = planner.weights(plan, coded, recovered)?;
        let left_out = planner.leave_out(&mut weights);
        let recoding = Recoding { weights, side_files, left_out, divided: Vec::new() };
        Ok(Self { recoding, config, misfits, embeddings })
    }
}

/// The text of the config.json in the checkpoint's folder, or beside its file.
fn config_beside(source: &Checkpoint) -> Result<Option<String>> {
    read_side_file(source.folder.as_deref().unwrap_or_else(|| directory_of(&source.path)), CONFIG)
}

/// How a layout stores a scheme.
///
/// # Errors
/// When it lacks the scheme.
pub(crate) fn layout_of(scheme: &'static Scheme, name: Option<&str>) -> Result<&'static SchemeLayout> {
    scheme.in_layout(name).ok_or_else(|| {
        let known: Vec<&str> = scheme.layouts.iter().map(|layout| layout.name).collect();
        let name = name.unwrap_or_default();
        let message = format!("the layout {} has no scheme {}, which is stored as ", shorten(name), scheme.name);
        Error::usage(message + &known.join(", "))
    })
}

/// All tensors of a checkpoint.
struct WeightCandidates {
    weights: Vec<WeightCandidate>,
    /// Tensors that are not weight matrices.
    others: Vec<(TensorIndex, KeptReason)>,
}

struct Planner<'a> {
    request: &'a QuantizeRequest<'a>,
    policy: Policy,
    model: &'a Model,
    /// The layout of all weights.
    layout: &'a str,
    /// The new name of each tensor that has one.
    renames: HashMap<&'a str, &'a str>,
    source: &'a LogicalCheckpoint<'a>,
    /// What each tensor of the source is.
    memberships: Vec<Membership>,
}

impl Planner<'_> {
    /// Decides by names, dtypes and ranks.
    fn candidates(&self) -> Result<WeightCandidates> {
        let mut memberships = self.memberships.iter();
        let mut found = WeightCandidates { weights: Vec::new(), others: Vec::new() };
        // For each rule, whether it names a weight, and an error for the first other tensor that it names.
        let mut rules: Vec<(bool, Option<Error>)> = self.request.rules.iter().map(|_| (false, None)).collect();
        for (input, shard) in self.source.source.shards.iter().enumerate() {
            for (at, tensor) in shard.contents.tensors.iter().enumerate() {
                let (place, name) = ((input, at), shard.name_of(tensor));
                let in_place = |error: Error| error.in_tensor(name).in_file(shard.path());
                match memberships.next() {
                    Some(Membership::Codes(weight)) => {
                        let weights = self.coded_candidates(*weight, place, &mut rules).map_err(in_place)?;
                        found.weights.extend(weights);
                        continue;
                    }
                    Some(Membership::Plain) | None => {}
                    Some(_) => continue, // a part of a weight, or of no use without codes
                }
                let Ok(dtype) = source_form(tensor, None).map(Form::dtype) else {
                    found.others.push((place, KeptReason::NotFloating));
                    continue;
                };
                let whole = self.gpt_oss_bank(name, &tensor.shape).map_err(in_place)?;
                let bank = if whole.is_some() { None } else { experts(self.model, name, &tensor.shape) };
                let Asked { stored: asked, rule } = self.asked_of(name, bank.as_ref(), None).map_err(in_place)?;
                let is_named = rule.is_some() || matches!(asked, Err(KeptReason::LeftOut));
                let reason = self.reason(name, asked.as_ref().is_ok_and(|stored| stored.grid.codes.bits() <= 4));
                let is_matrix = tensor.shape.len() == 2 && module_of(name).is_some();
                let is_unsplit = unsplit_bank(name).is_some() && tensor.shape.len() == 3;
                let cannot = match dtype {
                    Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16 if whole.is_some() => None,
                    Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16 if self.layout == gpt_oss::NAME => {
                        Some(reason.unwrap_or(KeptReason::NoExpert))
                    }
                    Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16 if is_matrix || bank.is_some() => None,
                    Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16 if is_unsplit => Some(KeptReason::Bank),
                    Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16 => Some(reason.unwrap_or(KeptReason::NoMatrix)),
                    dtype if dtype.is_floating() => Some(KeptReason::OtherFloat),
                    _ => Some(KeptReason::NotFloating),
                };
                if let (Some(rule), Ok(stored)) = (rule, &asked) {
                    let (is_met, error) = &mut rules[rule];
                    *is_met |= cannot.is_none();
                    error.get_or_insert_with(|| in_place(no_weight(stored, &tensor.shape, dtype)));
                }
                let stored = match (cannot, reason, asked) {
                    (Some(reason), _, _) => Err(reason),
                    (None, Some(reason), Ok(_) | Err(KeptReason::Unquantized)) if !is_named => Err(reason),
                    (None, _, asked) => asked,
                };
                let one = |name: &str, values, shape: &[u64]| WeightCandidate {
                    place,
                    name: name.to_owned(),
                    values: Values::Stored(values),
                    shape: shape.to_vec(),
                    dtype,
                    stored: stored.clone(),
                    is_named,
                };
                if let Some(shape) = whole {
                    found.weights.push(one(name, WeightValues::Columns, &shape));
                    continue;
                }
                match (bank, &stored) {
                    (Some(Err(error)), Ok(_)) => return Err(in_place(error.of(whole_bank(name)))),
                    (Some(Ok(_)), Ok(_)) if self.policy.is_diffusion => {
                        let error = Error::new("is a bank of experts, which the layout cannot store");
                        return Err(in_place(error.of(whole_bank(name))));
                    }
                    (Some(Ok(bank)), Ok(_)) => found.weights.extend(
                        bank.iter()
                            .map(|expert| one(&expert.name, WeightValues::Rows(expert.first_row), &expert.shape)),
                    ),
                    // A bank that is kept is not split.
                    (Some(_), Err(_)) => found.weights.push(one(name, WeightValues::Rows(0), &tensor.shape)),
                    (None, _) if is_matrix || is_unsplit => {
                        found.weights.push(one(name, WeightValues::Rows(0), &tensor.shape));
                    }
                    (None, stored) => {
                        found.others.push((place, stored.as_ref().err().copied().unwrap_or(KeptReason::NoMatrix)));
                    }
                }
            }
        }
        match rules.into_iter().find_map(|(is_met, error)| error.filter(|_| !is_met)) {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }

    /// Why engines need a weight as it is, judging by its name in the output.
    fn reason(&self, name: &str, has_four_bits: bool) -> Option<KeptReason> {
        self.policy.reason(self.new_name(name), has_four_bits)
    }

    /// What the options ask for a weight, or for all experts of a bank.
    ///
    /// # Errors
    /// When they do not ask the same for all experts, which engines load as one module.
    fn asked_of(&self, name: &str, bank: Option<&Result<Vec<Expert>>>, coded: Option<&Grid>) -> Result<Asked> {
        let Some(Ok([first, others @ ..])) = bank.map(Result::as_deref) else {
            return self.asked(&[name], coded);
        };
        let asked = self.asked(&[name, &first.name], coded)?;
        for expert in others {
            let own = self.asked(&[name, &expert.name], coded)?;
            if (own.rule, own.stored.is_ok()) != (asked.rule, asked.stored.is_ok()) {
                let message = format!(
                    "engines load its experts together, and the options treat '{}' differently",
                    shorten(&expert.name)
                );
                return Err(Error::new(message).of(whole_bank(name)));
            }
        }
        Ok(asked)
    }

    /// What the options ask for a weight with these names.
    fn asked(&self, names: &[&str], coded: Option<&Grid>) -> Result<Asked> {
        let is_one =
            |patterns: &[Pattern]| patterns.iter().any(|pattern| names.iter().any(|name| pattern.matches(name)));
        let Selection { include, exclude, .. } = self.request.selection;
        if !include.is_empty() && !is_one(include) || is_one(exclude) {
            return Ok(Asked { stored: Err(KeptReason::LeftOut), rule: None });
        }
        let rule = self.request.rules.iter().position(|rule| rule.matches_one(names));
        let scheme = match rule.map(|rule| self.request.rules[rule].scheme) {
            Some(None) => return Ok(Asked { stored: Err(KeptReason::LeftOut), rule }),
            Some(Some(scheme)) => scheme,
            // The model has them so on purpose.
            None if coded.is_none() && !self.source.found.weights.is_empty() => {
                return Ok(Asked { stored: Err(KeptReason::Unquantized), rule });
            }
            None => match (self.request.scheme, coded) {
                (Some(scheme), _) => scheme,
                (None, None) => return Ok(Asked { stored: Err(KeptReason::Unquantized), rule }),
                (None, Some(grid)) => return Ok(Asked { stored: Ok(self.same_grid(grid)?), rule }),
            },
        };
        let layout = layout_of(scheme, Some(self.layout))?;
        let mut grid = layout.grid;
        if let (Some(size), true) = (self.request.group_size, scheme.has_group_size) {
            grid.group = Group::Neighbours(size);
        }
        Ok(Asked { stored: Ok(StoredAs { scheme, layout, grid, encoder: None }), rule })
    }
}
