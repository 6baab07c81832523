//! Plans a GGUF file: which tensors it has, their types, and its keys.
//!
//! `model` finds the tensors of the new file in a GGUF or in a language model of Hugging Face, which a `donor` describes,
//! and `diffusion` in a diffusion model; `keys` makes its keys, `rope` computes factors of rotary embeddings, `left_out`
//! describes what the new file lacks, `importance` reads importance matrices, and `recover` finds the blocks of decoded
//! weights. The types follow the rules of llama.cpp and `ComfyUI-GGUF` ([`crate::quant::gguf`]), unless options name others.

mod diffusion;
mod donor;
mod importance;
mod keys;
mod left_out;
mod model;
mod recover;
mod rope;

use super::quantization::CodesSource;
use super::quantize::not_a_weight;
use super::step::{Step, TensorIndex};
use super::steps::Steps;
use super::stored::Few;
use super::weight_rows::{Changes, WeightRows, WeightValues, changes};
use super::{PlanFindings, Planned, Request};
use crate::blocks::{BlockFormat, ValueChange};
use crate::container::Form;
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::kernel::Storage;
use crate::lora::{Merge, unmerged};
use crate::operator::Operator;
use crate::options::{CastOptions, GgufOptions, QuantizeOptions, Task, TensorOptions};
use crate::progress::{GgufNote, Note, Observer};
use crate::quant::gguf::{GgufScheme, KeptRule, TypeChoice, language};
use crate::quant::{
    Arithmetic, BlockWeightEncoder, CodeKind, FoundWeight, Grid, Group, Role, RowMap, Scheme, WeightEncoder,
};
use crate::read::{Model, SourceTensor};
use crate::select::{KeptReason, Pattern};
use importance::ImportanceFile;
#[cfg(feature = "cli")]
pub(crate) use model::folder_metadata;
use model::{GgufModel, NewWeight, TypeRules, WeightOrigin};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A task that makes a GGUF file, with its options in terms of ggml's types.
pub(crate) struct GgufTask<'r> {
    /// The scheme of the weights that no rule names; `None` if they keep their types.
    scheme: Option<&'static GgufScheme>,
    /// Patterns of names, and the scheme of the tensors that match, or `None` to keep them.
    rules: Vec<(&'r Pattern, Option<&'static GgufScheme>)>,
    tensors: &'r TensorOptions,
    options: &'r GgufOptions,
    /// The options of quantize; `None` for a cast to plain floats, which may decode no codes.
    quantize: Option<&'r QuantizeOptions>,
}

impl<'r> GgufTask<'r> {
    /// Returns the task in terms of ggml's types; `None` if it `makes` no GGUF file. Refuses options that the output has no
    /// use for, or cannot follow.
    pub(crate) fn of(task: Task<'r>, makes: bool) -> Result<Option<Self>> {
        match task {
            Task::Cast(options) if makes => Self::cast(options).map(Some),
            Task::Quantize(options) if makes => Self::quantize(options).map(Some),
            Task::Cast(options) => options.gguf.first_given().map_or(Ok(None), |option| {
                Err(Error::usage("the output is not a GGUF file: an option has no effect").without(option))
            }),
            _ => Ok(None),
        }
    }

    /// Returns the other files that it reads, which no output may replace.
    pub(crate) fn files(&self) -> impl Iterator<Item = &'r Path> {
        self.options.metadata_from.iter().map(PathBuf::as_path).chain(self.imatrix())
    }

    /// Returns the file with the importance of the columns of weights.
    fn imatrix(&self) -> Option<&'r Path> {
        self.quantize?.imatrix.as_deref()
    }

    /// The weights are cast.
    fn cast(options: &'r CastOptions) -> Result<Self> {
        let scheme = |to: Dtype| {
            let format = BlockFormat::plain(to).filter(|_| to.is_weight()).ok_or_else(|| {
                let error = Error::usage(format!("models in GGUF files are not cast to {to}"));
                error.with(Opt::TO, "cast to f32, f16 or bf16, and quantize to narrower types")
            })?;
            Ok(GgufScheme::find(format.name).expect("plain types have a scheme"))
        };
        let rules = options.rule.iter().map(|rule| Ok((&rule.pattern, rule.target().map(scheme).transpose()?)));
        Ok(Self {
            scheme: options.to.map(scheme).transpose()?,
            rules: rules.collect::<Result<_>>()?,
            tensors: &options.tensors,
            options: &options.gguf,
            quantize: None,
        })
    }

    /// The weights are quantized.
    fn quantize(options: &'r QuantizeOptions) -> Result<Self> {
        let rules = options.rule.iter().map(|rule| Ok((&rule.pattern, rule.scheme.map(gguf_type).transpose()?)));
        Ok(Self {
            scheme: options.scheme.map(gguf_scheme).transpose()?,
            rules: rules.collect::<Result<_>>()?,
            tensors: &options.tensors,
            options: &options.gguf,
            quantize: Some(options),
        })
    }
}

/// Returns the types of GGUF files that store a scheme.
fn gguf_scheme(scheme: &'static Scheme) -> Result<&'static GgufScheme> {
    scheme.gguf.as_ref().ok_or_else(|| Error::usage(format!("GGUF files have no scheme {}", scheme.name)))
}

/// Returns the type of GGUF files for a rule.
fn gguf_type(scheme: &'static Scheme) -> Result<&'static GgufScheme> {
    let found = gguf_scheme(scheme)?;
    if found.is_mix() {
        let error = Error::usage(format!("a rule gives tensors one type, and {} is a mix", scheme.name));
        return Err(error.remedy(format!("name the type: {}", found.format.name.to_ascii_lowercase())));
    }
    Ok(found)
}

/// The type of a tensor of the new file, and the reason if it is not the requested one.
#[derive(Clone, Copy)]
struct ChosenType {
    /// `None` for the type that the tensor has.
    format: Option<&'static BlockFormat>,
    kept: Option<KeptReason>,
    /// The requested format, if its rows are no whole blocks of it.
    wanted: Option<&'static BlockFormat>,
}

impl<'a> Planned<'a> {
    /// Plans a GGUF file.
    ///
    /// # Errors
    /// When tcast cannot describe the model to readers of GGUF files, a tensor has no name there, or a type is impossible.
    pub(super) fn gguf(input: &Model<'a>, task: &GgufTask, request: &Request, observer: &dyn Observer) -> Result<Self> {
        let model = GgufModel::new(input, task.options)?;
        let is_language = matches!(model.rules, TypeRules::Language(_));
        if let Some(first) = input.source.dropped.names().next().filter(|_| is_language && input.source.is_gguf()) {
            let error = Error::new("cannot be left out: llama.cpp refuses a GGUF file without a tensor of its model");
            return Err(error.in_tensor(first).with(Opt::OUTPUT, "name an output in another format"));
        }
        let importance = task.imatrix().map(ImportanceFile::read).transpose()?;
        let mut planner = GgufPlanner {
            input,
            task,
            model: &model,
            importance: importance.as_ref(),
            steps: Steps::new(request, &input.source.shards, None)?,
            used: HashSet::new(),
        };
        let chosen = planner.choose()?;
        let of_types = planner.notes(&chosen);
        for (tensor, chosen) in model.tensors.iter().zip(chosen) {
            let added = planner.add(tensor, chosen);
            added.map_err(|error| error.in_tensor(tensor.source_name(input)))?;
        }
        let GgufPlanner { mut steps, used, .. } = planner;
        steps.planned.steps.sort_by_key(|step| step.place);
        let unused: Vec<usize> = (0..input.places.len()).filter(|at| !used.contains(at)).collect();
        let (left_out_scales, lost) = left_out::tensors(input, &unused);
        if let Some(options) = task.quantize.filter(|options| options.recover) {
            recover::search(&mut steps.planned.steps, options.only_exact, request.threads, observer)?;
        }
        let mut plan = steps.finish(&task.tensors.rename, true)?;
        let file_type = task.scheme.map_or_else(|| model.file_type(), |scheme| scheme.file_type);
        if is_language {
            plan.steps.sort_by(|one, other| language::place(one.name()).cmp(&language::place(other.name())));
        } else if !input.source.is_gguf() {
            let places: HashMap<&str, usize> = model.tensors.iter().map(|tensor| &*tensor.name).zip(0..).collect();
            plan.steps.sort_by_key(|step| places.get(step.name()).copied().unwrap_or(usize::MAX));
        }
        let GgufModel { keys, computed, mut notes, .. } = model;
        notes.extend(lost.into_iter().chain(left_out::metadata(input, &keys)).chain(of_types));
        let scales = task.quantize.map(|_| Note::ScalesLeftOut(left_out_scales, Operator::Quantize));
        let notes = scales.into_iter().chain(notes.into_iter().map(Note::Gguf)).collect();
        (plan.keys, plan.computed) = (keys::finished(keys, file_type, importance.as_ref()), computed);
        plan.findings = PlanFindings { notes, ..PlanFindings::default() };
        Ok(plan)
    }
}

struct GgufPlanner<'p, 'a> {
    input: &'p Model<'a>,
    task: &'p GgufTask<'p>,
    model: &'p GgufModel<'p>,
    importance: Option<&'p ImportanceFile>,
    steps: Steps<'p, 'a>,
    /// The stored tensors that the new file needs.
    used: HashSet<usize>,
}

impl<'a> GgufPlanner<'_, 'a> {
    /// Chooses the type of each tensor.
    fn choose(&self) -> Result<Vec<ChosenType>> {
        let GgufModel { tensors, rules, .. } = self.model;
        let shapes: Vec<(&str, &[u64])> = tensors.iter().map(|tensor| (&*tensor.name, &*tensor.shape)).collect();
        let choices = match self.task.scheme {
            Some(scheme) => rules.choose(scheme, &shapes)?.into_iter().map(Some).collect(),
            None => vec![None; tensors.len()],
        };
        self.check_patterns()?;
        // Plain types are for the tensors with which llama.cpp does not compute in float32.
        let is_plain = self.task.scheme.is_some_and(|scheme| scheme.format.dtype.is_some());
        let is_plain = is_plain && matches!(rules, TypeRules::Language(_));
        let mut chosen = Vec::with_capacity(tensors.len());
        for (tensor, choice) in tensors.iter().zip(choices) {
            let names @ [_, old] = tensor.names(self.input);
            let rule = self.task.rules.iter().find(|(pattern, _)| pattern.matches_one(&names));
            let is_wide = tensor.dtype == Some(Dtype::Float64);
            let kept = |reason| ChosenType { format: tensor.unquantized, kept: Some(reason), wanted: None };
            let typed = |choice| match choice {
                TypeChoice::Kept(rule) => kept(reason_of(rule, &tensor.name)),
                TypeChoice::Wanted(format) => ChosenType { format: Some(format), kept: None, wanted: None },
                TypeChoice::Fallback { wanted, format } => {
                    ChosenType { format: Some(format), kept: None, wanted: Some(wanted) }
                }
            };
            chosen.push(match rule.map(|(_, scheme)| *scheme) {
                _ if !tensor.dtype.is_some_and(Dtype::is_floating) => kept(KeptReason::NotFloating),
                Some(Some(_)) if is_wide => {
                    let error = Error::new(not_a_weight(tensor.dtype));
                    return Err(error.unconvertible().in_tensor(old));
                }
                _ if is_wide => kept(KeptReason::OtherFloat),
                _ if self.task.tensors.leaves_out(&names) => kept(KeptReason::LeftOut),
                Some(None) => kept(KeptReason::LeftOut),
                Some(Some(scheme)) => typed(rules.fit(scheme.format, tensor.shape.last().copied().unwrap_or(1))),
                None if is_plain && tensor.unquantized.is_some() => kept(match choice {
                    Some(TypeChoice::Kept(rule)) => reason_of(rule, &tensor.name),
                    _ => KeptReason::Library,
                }),
                None => choice.map_or_else(|| kept(KeptReason::Already), typed),
            });
        }
        Ok(chosen)
    }

    /// Refuses patterns that match no tensor, by its old or its new name.
    fn check_patterns(&self) -> Result<()> {
        let selection = self.task.tensors.selection();
        let rules = self.task.rules.iter().map(|(pattern, _)| (Opt::RULE, *pattern));
        let mut all = selection.patterns().map(|(option, pattern, _)| (option, pattern)).chain(rules);
        let has = |pattern: &Pattern| self.model.tensors.iter().any(|new| pattern.matches_one(&new.names(self.input)));
        match all.find(|(_, pattern)| !self.task.tensors.allow_unmatched && !has(pattern)) {
            Some((option, pattern)) => {
                let error = Error::usage(format!("the pattern '{pattern}' matches no tensor"));
                Err(error.without(option))
            }
            None => Ok(()),
        }
    }

    /// Describes the weights whose type is not the requested one.
    fn notes(&self, chosen: &[ChosenType]) -> Vec<GgufNote> {
        let mut others: BTreeMap<[&'static str; 2], Vec<String>> = BTreeMap::new();
        for (tensor, chosen) in self.model.tensors.iter().zip(chosen) {
            if let (Some(wanted), Some(stored)) = (chosen.wanted, chosen.format) {
                others.entry([wanted.name, stored.name]).or_default().push(tensor.name.clone());
            }
        }
        let note = |([wanted, stored], names): ([&'static str; 2], _)| GgufNote::OtherType { wanted, stored, names };
        let mut notes: Vec<GgufNote> = others.into_iter().map(note).collect();
        if let Some(importance) = self.importance {
            let names: HashSet<&str> = self.model.tensors.iter().map(|tensor| &*tensor.name).collect();
            let unknown = importance.names().filter(|name| !names.contains(name)).map(str::to_owned);
            let unknown: Vec<String> = unknown.collect();
            if !unknown.is_empty() {
                notes.push(GgufNote::UnknownImportance(unknown));
            }
        }
        notes
    }

    /// Adds the step for a tensor of the new file.
    fn add(&mut self, tensor: &NewWeight, chosen: ChosenType) -> Result<()> {
        let input = self.input;
        match &tensor.origin {
            WeightOrigin::Stored(at) => {
                self.used.insert(*at);
                self.add_stored(tensor, *at, chosen)
            }
            WeightOrigin::Coded(weight) => {
                self.used.insert(weight.codes());
                self.add_coded(tensor, weight, chosen)
            }
            WeightOrigin::Gathered { sources, rows, change } => {
                self.used.extend(sources);
                let stored = |at: &usize| input.tensors[*at].dtype.filter(|dtype| dtype.is_weight());
                let dtype = stored(&sources[0]).ok_or_else(|| {
                    Error::new("is made of several tensors, which must be float32, bfloat16 or float16")
                })?;
                if sources.iter().any(|at| stored(at) != Some(dtype)) {
                    return Err(Error::new("is made of several tensors, whose types differ"));
                }
                let format = chosen.format.or(BlockFormat::plain(dtype)).expect("weights have a type");
                let merges: Vec<_> = sources.iter().map(|at| self.steps.merge_of(input.tensors[*at].name)).collect();
                let values = WeightValues::Gathered { rows: Arc::clone(rows), change: *change };
                // The experts of a stack share the place of the first.
                let source = (input.places[sources[0]], sources.iter().map(|at| input.stored(*at)).collect(), values);
                let is_rearranged = !rows.has_whole_rows() || *change != ValueChange::None;
                if is_rearranged && merges.iter().any(Option::is_some) {
                    return Err(unmerged()); // another weight may be made of the same tensor, and get its changes
                }
                let kept = kept(chosen, format.dtype, Some(dtype));
                let dtype = if *change == ValueChange::None { dtype } else { Dtype::Float32 };
                self.add_values(tensor, source, &merges, (format, dtype), kept)
            }
        }
    }

    fn add_stored(&mut self, tensor: &NewWeight, at: usize, chosen: ChosenType) -> Result<()> {
        let (place, stored) = (self.input.places[at], self.input.tensors[at].dtype);
        // Without its last rows, a tensor is not converted as a whole.
        let is_cut = tensor.shape.iter().product::<u64>() < self.input.stored(at).tensor.count;
        let to = match chosen.format.or(stored.and_then(BlockFormat::plain)) {
            Some(format) if format.dtype.is_none() || is_cut => {
                let dtype = stored.filter(|dtype| dtype.is_floating() && dtype.bits() <= 32);
                let dtype = dtype.ok_or_else(|| Error::new(not_a_weight(stored)).unconvertible())?;
                let source = (place, Few::One(self.input.stored(at)), WeightValues::Rows(0));
                let merge = self.steps.merge_of(self.input.tensors[at].name);
                return self.add_values(tensor, source, &[merge], (format, dtype), chosen.kept);
            }
            Some(format) => format.dtype.filter(|dtype| Some(*dtype) != stored),
            None => None,
        };
        let kept = kept(chosen, to.or(stored), stored);
        self.steps.stored(place, (&tensor.name, &tensor.shape), to, kept)
    }

    /// Adds a weight that is quantized in the input.
    fn add_coded(&mut self, tensor: &NewWeight, weight: &FoundWeight, chosen: ChosenType) -> Result<()> {
        let own = weight.parameters.blocks.as_ref().map(|blocks| blocks.formats[0]);
        let stays = own.is_some() && chosen.format.or(own) == own && self.task.scheme.is_none();
        let is_cast = self.task.quantize.is_none();
        let no_values = || {
            let error = Error::new("holds codes and scales, and no values to cast");
            Err(error.remedy("quantize the model to f32, f16 or bf16, which decodes its weights"))
        };
        if is_cast && !stays {
            return no_values();
        }
        // Plain numbers are the values of the library, and so are the values of blocks. Other blocks are made from the
        // products of codes and scales.
        let is_plain = chosen.format.or(own).map_or(self.task.scheme.is_some(), |format| format.dtype.is_some());
        let arithmetic = if own.is_some() || is_plain { Arithmetic::Library } else { Arithmetic::Exact };
        let decoder = self.input.decoder(weight, Dtype::Float32, arithmetic)?;
        let format = match chosen.format.or(own) {
            Some(format) => format,
            None if self.task.scheme.is_none() => same_format(&decoder.grid())?,
            None => BlockFormat::plain(self.input.default_target()).expect("weights are decoded to floats"),
        };
        self.input.check_parts(&decoder, weight)?;
        let is_same = own == Some(format) && decoder.is_stored_in_order();
        let values = WeightValues::Coded(Arc::new(decoder), RowMap::ALL);
        let place = self.input.places[Model::value_parts(weight)[0].1];
        let source = (place, self.input.value_sources(weight).collect(), values);
        if let Some(merge) = self.steps.merge_of(&weight.name).filter(|_| !is_cast) {
            return self.add_values(tensor, source, &[Some(merge)], (format, Dtype::Float32), None);
        }
        if is_cast && !is_same {
            return no_values();
        }
        for (role, part) in &weight.parts[1..] {
            // Blocks that stay as they are keep the scales of their tensor.
            if is_same && matches!(role, Role::GlobalScale | Role::Activation) {
                self.used.insert(*part);
                let stored = self.input.tensors[*part];
                let place = self.input.places[*part];
                self.steps.stored(place, (stored.name, stored.shape), None, Some(KeptReason::Already))?;
            }
        }
        let encoder = if is_same {
            BlockWeightEncoder::copying(format, &tensor.shape)
                .map_err(|why| Error::new(format!("cannot be copied: {why}")))?
        } else {
            let keeps_values = self.task.quantize.is_some_and(QuantizeOptions::keeps_values);
            self.encoder(tensor, format, Dtype::Float32)?.keeping_values(keeps_values)
        };
        let codes = if is_same { CodesSource::Copied } else { self.codes(format, Dtype::Float32)? };
        let kept = is_cast.then_some(KeptReason::Already);
        self.steps.weight(Self::encode(tensor, source, None, encoder, codes, kept))
    }

    /// Adds a weight whose values, of this type, become blocks or plain numbers. If adapters change it, blocks are made from
    /// float32 values, and plain numbers from float64 values.
    fn add_values(
        &mut self,
        tensor: &NewWeight,
        source: (TensorIndex, Few<SourceTensor<'a>>, WeightValues),
        merges: &[Option<&Arc<Merge>>],
        (format, dtype): (&'static BlockFormat, Dtype),
        kept: Option<KeptReason>,
    ) -> Result<()> {
        let changes = merges.iter().any(Option::is_some).then(|| changes(merges.iter().copied()));
        let step = match (changes, format.dtype) {
            (Some(changes), Some(to)) => {
                let to = self.steps.form(to);
                self.steps.merged_cast(source, changes, (&tensor.name, &tensor.shape), to, kept)?
            }
            (changes, _) => {
                let dtype = if changes.is_some() { Dtype::Float32 } else { dtype };
                let (encoder, codes) = (self.encoder(tensor, format, dtype)?, self.codes(format, dtype)?);
                Self::encode(tensor, source, changes, encoder, codes, kept)
            }
        };
        self.steps.weight(step)
    }

    /// Returns how values of this type become blocks, or plain numbers.
    fn codes(&mut self, format: &BlockFormat, dtype: Dtype) -> Result<CodesSource<'a>> {
        let Some(target) = format.dtype else { return Ok(CodesSource::COMPUTED) };
        let [from, to] = [dtype, target].map(|dtype| Form::Numbers(Storage::packed(dtype)));
        let conversion = self.steps.planned.conversions.get(from, to, from != to);
        conversion.map(CodesSource::Cast).map_err(Error::unconvertible)
    }

    fn encoder(&self, tensor: &NewWeight, format: &'static BlockFormat, dtype: Dtype) -> Result<BlockWeightEncoder> {
        let refuse = |why| Error::new(format!("cannot become {}: {why}", format.name)).unconvertible();
        let encoder = BlockWeightEncoder::new(format, &tensor.shape, dtype).map_err(refuse)?;
        let weights = match self.importance.filter(|_| format.uses_importance()) {
            Some(importance) => importance.of_tensor(&tensor.name, &tensor.shape)?,
            None => None,
        };
        let scheme = self.task.scheme.filter(|_| weights.is_none());
        if let Some(scheme) = scheme.filter(|scheme| language::needs_importance(scheme, &tensor.name, format)) {
            let scheme = scheme.name;
            let error = Error::new(format!("{scheme} needs the importance of its columns, which is not known"));
            return Err(error
                .with(Opt::SCHEME, "choose another scheme")
                .with(Opt::IMATRIX, "give an importance matrix with {}"));
        }
        Ok(encoder.with_importance(weights))
    }

    fn encode(
        tensor: &NewWeight,
        (place, sources, values): (TensorIndex, Few<SourceTensor<'a>>, WeightValues),
        changes: Option<Changes>,
        encoder: BlockWeightEncoder,
        codes: CodesSource<'a>,
        kept: Option<KeptReason>,
    ) -> Step<'a> {
        let format = encoder.format().name;
        let scheme = Scheme::find(format).map_or(format, |scheme| scheme.name);
        let rows = WeightRows { sources, values, changes, encoder: WeightEncoder::Blocks(Arc::new(encoder)) };
        Step::encode(place, (tensor.name.clone(), scheme), rows, codes, kept)
    }
}

/// Returns the reason why a tensor is not converted, if its values become the type `new`.
fn kept(chosen: ChosenType, new: Option<Dtype>, stored: Option<Dtype>) -> Option<KeptReason> {
    if new == stored {
        return chosen.kept.or(Some(KeptReason::Already));
    }
    chosen.kept.filter(|reason| *reason != KeptReason::Already)
}

/// Returns the format that can hold the codes and scales of this grid; the result shows whether it does.
fn same_format(grid: &Grid) -> Result<&'static BlockFormat> {
    let name = match (grid.codes, grid.group) {
        (CodeKind::Dtype(Dtype::Int8), _) if !grid.has_zero_points => "q8_0",
        (CodeKind::Centered(8), _) => "q8_0",
        (CodeKind::Centered(4), _) => "q4_0",
        (CodeKind::Dtype(Dtype::Float4E2M1), Some(Group::Neighbours(32))) => "mxfp4",
        (CodeKind::Dtype(Dtype::Float4E2M1), Some(Group::Neighbours(16))) => "nvfp4",
        _ => {
            let error = match grid.codes {
                CodeKind::Offset(_) => Error::new("has offsets, which tcast does not move to blocks of GGUF files"),
                _ => Error::new(format!("no type of GGUF files has its codes and groups ({grid})")),
            };
            return Err(error.with(Opt::SCHEME, "choose a scheme to quantize the weights again"));
        }
    };
    Ok(GgufScheme::find(name).expect("the scheme is in the table").format)
}

/// Returns the reason why a tensor is not quantized, in the words of the report.
fn reason_of(rule: KeptRule, name: &str) -> KeptReason {
    match rule {
        _ if name.ends_with("bias") => KeptReason::Bias,
        _ if name.contains("norm") => KeptReason::Norm,
        KeptRule::NotAWeight | KeptRule::Dimensions => KeptReason::NoMatrix,
        KeptRule::Name(part) if part.contains("embd") => KeptReason::Embedding,
        KeptRule::Name(part) if part.contains("gate_inp") => KeptReason::Router,
        KeptRule::Name(_) => KeptReason::Library,
    }
}
