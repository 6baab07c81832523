//! Plans of conversions: the operation for each tensor, and its place in the output. All problems that headers reveal
//! are refused here. Once a plan exists, only reading and writing can fail, apart from damaged elements and values that
//! the rules of the cast forbid.

mod cast;
mod codes;
mod decisions;
mod dequantize;
mod draft;
mod few;
mod gathered;
mod gguf;
mod model;
mod partition;
mod quantization;
mod quantize;
mod renaming;
mod rewrite;
mod stacked;
mod step;
mod stored;
mod weight_rows;

pub(crate) use cast::check_from;
#[doc(hidden)] // for tests
pub use cast::source_form;
#[doc(hidden)] // for the program
pub use codes::Codes;
pub(crate) use decisions::Decisions;
pub(crate) use gguf::{BlockSearch, GgufRequest};
#[doc(hidden)] // for the program
pub use partition::Partition;
pub(crate) use partition::{chosen_shards, shard_sizes};
pub(crate) use quantization::{CodesSource, Quantization, Unrecovered};
#[cfg(feature = "cli")]
pub(crate) use quantize::{Misfit, layout_of, matchable_names};
pub(crate) use quantize::{OTHER_NAME, QuantizePlan, QuantizeRequest, name_instead_of};
pub(crate) use step::{NewStored, Operation, PieceUnit};
pub use step::{Plan, Step};
pub(crate) use weight_rows::SharedExtremes;

use crate::container::gguf::MAX_PARTS;
use crate::container::onnx::model::ModelGraph;
use crate::container::{self, Container, Form, Input, Metadata, NewMetadata, NewTensor, Placement, keys_of_part};
use crate::conversion::Conversion;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::{Condition, Rules, Storage};
use crate::operator::Operator;
use crate::options::ModelOptions;
use crate::select::Selection;
use crate::text::shorten;
use decisions::GgufContents;
use draft::{DraftStep, PlannedTensors, measure_texts};
use std::collections::HashMap;
use std::sync::Arc;
use std::vec;

/// Conversion to plan for the tensors of some files that belong together.
#[non_exhaustive]
pub struct Request<'a> {
    /// Operator for the chosen tensors.
    pub operator: Operator,
    /// Choice of tensors, and their new types.
    pub selection: &'a Selection,
    /// Type of untyped elements.
    pub from: Option<Dtype>,
    /// The format of the outputs.
    pub container: &'a dyn Container,
    /// Tensors of codes, which no cast may treat as values.
    #[doc(hidden)] // for the program
    pub codes: Option<&'a Codes<'a>>,
    /// The conditions that the caller refuses. In each tensor, the first element that meets one is recorded.
    pub fail_on: &'a [Condition],
    /// Options for ONNX models.
    pub model: ModelOptions,
    /// The name of the file next to a model that can hold its elements; `None` if there can be none.
    pub data_file: Option<&'a str>,
    /// Number of threads that write a long header.
    pub threads: usize,
}

impl<'a> Request<'a> {
    /// Requests the operator on the selected tensors, and nothing else.
    #[must_use]
    pub fn new(operator: Operator, selection: &'a Selection, container: &'a dyn Container) -> Self {
        Self {
            operator,
            selection,
            from: None,
            container,
            codes: None,
            fail_on: &[],
            model: ModelOptions::default(),
            data_file: None,
            threads: 1,
        }
    }
}

/// Distribution of tensors over output files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// An output for each input.
    AsInputs,
    /// One output.
    One,
    /// At most this many bytes of tensors in each output, in the order of the inputs; a larger tensor has a separate
    /// output.
    UpTo(u64),
}

/// Plans the conversion of files that belong together. `measured` receives the number of input bytes that were read for
/// planning, for example for tensors that become text.
///
/// # Errors
/// When the operator lacks a pair of types, a tensor's type is unknown, an output cannot hold a result, or a cast would
/// treat codes as values.
pub fn build<'a>(
    request: &Request,
    inputs: &'a [Input],
    spread: Spread,
    measured: &dyn Fn(u64),
) -> Result<Vec<Plan<'a>>> {
    Draft::new(request, inputs, &mut Decisions::default())?.build(spread, measured)
}

/// The steps of all outputs, before anything is laid out: texts have to be read before they can be laid out.
pub(crate) struct Draft<'r, 'a> {
    request: &'r Request<'r>,
    inputs: &'a [Input],
    /// The ONNX model that is changed, if the output is one.
    model: Option<ModelGraph<'a>>,
    steps: Vec<DraftStep<'a>>,
    conversions: Conversions<'r>,
    /// Changes to the metadata of the outputs.
    metadata: HashMap<String, Option<String>>,
    gguf: GgufContents,
}

impl<'r, 'a> Draft<'r, 'a> {
    /// Makes the steps, with all checks that need no layout.
    pub(crate) fn new(request: &'r Request<'r>, inputs: &'a [Input], decisions: &mut Decisions<'a>) -> Result<Self> {
        let is_model = request.container.format_info().is_changed_only();
        let model = is_model.then(|| model::graph(request, inputs)).transpose()?;
        let mut conversions = Conversions { operator: request.operator, watched: request.fail_on, made: Vec::new() };
        let steps = draft::steps(request, inputs, model.as_ref(), decisions, &mut conversions)?;
        let steps = if let Some(stacks) = &decisions.stacks { stacks.stack(steps)? } else { steps };
        let (metadata, gguf) = (decisions.metadata.clone(), std::mem::take(&mut decisions.gguf));
        Ok(Self { request, inputs, model, steps, conversions, metadata, gguf })
    }

    /// Lays out the outputs, like [`build`].
    pub(crate) fn build(self, spread: Spread, measured: &dyn Fn(u64)) -> Result<Vec<Plan<'a>>> {
        let Self { request, inputs, model, mut steps, mut conversions, metadata, gguf } = self;
        let GgufContents { mut keys, mut computed, facts, notes, .. } = gguf;
        if let Some(graph) = &model {
            return Ok(vec![rewrite::build(request, &inputs[0], graph, steps, &mut conversions)?]);
        }
        measure_texts(&mut steps, measured)?;
        let mut plans = Vec::new();
        let mut differing = Vec::new();
        let tensors = steps.iter().map(|draft| draft.step.results.len()).sum::<usize>() + computed.len();
        let groups = groups(steps, inputs.len(), spread);
        let parts = groups.len();
        if parts > MAX_PARTS && request.container.is(container::GGUF) {
            let error =
                Error::new(format!("would have {parts} parts, and a model in GGUF files has at most {MAX_PARTS}"));
            return Err(error.remedy("choose a larger maximum size of parts"));
        }
        for (at, group) in groups.into_iter().enumerate() {
            let mut sources: Vec<usize> = Vec::new();
            for draft in &group {
                if sources.last() != Some(&draft.place.0) {
                    sources.push(draft.place.0);
                }
            }
            if spread == Spread::AsInputs {
                sources = vec![at]; // even if it has no tensors
            } else if sources.is_empty() {
                sources = (0..inputs.len()).collect(); // there are no tensors at all
            }
            let sources = sources.iter().map(|input| &inputs[*input]);
            let texts = metadata_of(request.container, sources, &metadata, &mut differing);
            let keys = keys_of_part(std::mem::take(&mut keys), (at, parts), tensors);
            let metadata = NewMetadata { texts, keys, computed: std::mem::take(&mut computed) };
            let layout = request.container.lay_out(&PlannedTensors::of(&group), &metadata, request.threads)?;
            let mut places = Places::new(&layout.literals, layout.places);
            let mut stack = Vec::new();
            // The steps reuse the memory of `group`.
            let steps = group.into_iter().map(|draft| place(draft, &mut places, &mut stack, &mut conversions));
            let steps = steps.collect::<Result<Vec<Step>>>()?;
            plans.push(Plan {
                steps,
                literals: layout.literals,
                entries: layout.entries,
                copies: Vec::new(),
                len: layout.len,
                data_start: None,
                facts: Vec::new(),
                notes: Vec::new(),
                is_deflated: false,
            });
        }
        differing.sort();
        differing.dedup();
        if request.container.format_info().metadata == Metadata::None {
            differing.clear();
        }
        let note = |key: &String| {
            let key = shorten(key);
            format!(
                "the inputs have different values of the metadata key '{key}': each output keeps that of its first input"
            )
        };
        if let Some(plan) = plans.first_mut() {
            plan.notes.extend(notes.into_iter().chain(differing.iter().map(note)));
            plan.facts = facts;
        }
        Ok(plans)
    }
}

/// The places of the tensors of a file, in the order of the tensors.
struct Places {
    listed: Option<vec::IntoIter<Placement>>,
    /// The end of the header, then of the last tensor.
    end: u64,
}

impl Places {
    fn new(literals: &[(u64, Vec<u8>)], listed: Vec<Placement>) -> Self {
        let end = literals.last().map_or(0, |(offset, last)| offset + last.len() as u64);
        Self { listed: (!listed.is_empty()).then(|| listed.into_iter()), end }
    }

    fn next(&mut self, tensor: &NewTensor) -> Placement {
        if let Some(listed) = &mut self.listed {
            return listed.next().expect("every new tensor has a place");
        }
        let bytes = if tensor.opaque.is_some() { Some(tensor.count) } else { tensor.dtype.packed_bytes(tensor.count) };
        let start = self.end;
        self.end += bytes.expect("the layout has counted all bytes");
        Placement { form: Form::Numbers(Storage::packed(tensor.dtype)), range: start..self.end, crc: None }
    }
}

/// Gives the results of a step the next places, or their parts of the places in `stack`, which the first step of a stack
/// of experts sets.
fn place<'a>(
    mut draft: DraftStep<'a>,
    places: &mut Places,
    stack: &mut Vec<Placement>,
    conversions: &mut Conversions,
) -> Result<Step<'a>> {
    for at in 0..draft.step.results.len() {
        let place = match draft.step.results[at].stack() {
            None => places.next(&draft.new_tensor(at)),
            Some(part) => {
                if part.number == 0 {
                    stack.truncate(at);
                    stack.push(places.next(&draft.new_tensor(at)));
                }
                part.place_in(&stack[at])
            }
        };
        let result = &mut draft.step.results[at];
        result.range = place.range;
        if place.crc.is_some() {
            result.extra.get_or_insert_default().crc = place.crc;
        }
        conversions.complete(&mut draft.step, place.form)?;
    }
    Ok(draft.step)
}

/// Returns the steps of each output file, in the order of the inputs.
fn groups(steps: Vec<DraftStep>, inputs: usize, spread: Spread) -> Vec<Vec<DraftStep>> {
    let mut groups: Vec<Vec<DraftStep>> = Vec::new();
    match spread {
        Spread::One => groups.push(steps),
        Spread::AsInputs if inputs == 1 => groups.push(steps),
        Spread::AsInputs => {
            groups.resize_with(inputs, Vec::new);
            for step in steps {
                groups[step.place.0].push(step);
            }
        }
        Spread::UpTo(limit) => {
            groups.push(Vec::new());
            let mut filled = 0_u64;
            for step in steps {
                let bytes = step.bytes();
                filled = filled.saturating_add(bytes);
                if filled > limit && !step.continues_stack() && groups.last().is_some_and(|group| !group.is_empty()) {
                    filled = bytes;
                    groups.push(Vec::new());
                }
                groups.last_mut().expect("there is one from the start").push(step);
            }
        }
    }
    groups
}

/// The conversions of a plan: one of each kind, shared by all tensors.
struct Conversions<'r> {
    operator: Operator,
    /// The conditions that the caller refuses.
    watched: &'r [Condition],
    /// Each with true if its operator is applied, and false for a copy.
    made: Vec<(bool, Arc<Conversion>)>,
}

impl Conversions<'_> {
    /// Makes the conversion of a step end in the form in which the output stores its result.
    fn complete(&mut self, step: &mut Step, form: Form) -> Result<()> {
        if let Operation::Convert(conversion) = &mut step.how
            && conversion.to != form
        {
            let completed = self.get(conversion.from, form, step.kept.is_none());
            *conversion = completed.map_err(|error| error.in_tensor(&step.results[0].name))?;
        }
        Ok(())
    }

    fn get(&mut self, from: Form, to: Form, is_converted: bool) -> Result<Arc<Conversion>> {
        let is_same =
            |made: &&(bool, Arc<Conversion>)| made.0 == is_converted && made.1.from == from && made.1.to == to;
        if let Some((_, same)) = self.made.iter().find(is_same) {
            return Ok(Arc::clone(same));
        }
        let conversion = match self.operator {
            Operator::Cast(attributes) if is_converted => Conversion::cast(from, to, attributes.rules()),
            // The planner of GGUF files stores some tensors in another type of floats.
            Operator::Quantize if is_converted => Conversion::cast(from, to, Rules::default()),
            Operator::Promote(attributes) if is_converted => {
                let rules = attributes.rules();
                Conversion::to_complex(from, to, rules).or_else(|| Conversion::cast(from, to, rules))
            }
            _ => Conversion::copy(from, to),
        };
        let refused = || Error::new(format!("{} cannot become {}", from.dtype(), to.dtype()));
        let conversion = conversion.ok_or_else(refused)?;
        let is_watched = is_converted && !self.watched.is_empty();
        let conversion = Arc::new(if is_watched { conversion.watch(self.watched) } else { conversion });
        self.made.push((is_converted, Arc::clone(&conversion)));
        Ok(conversion)
    }
}

/// Merges the metadata of all files that the tensors of an output come from, with changed values: `None` removes one. If
/// values differ, keeps the first, and adds the key to `differing` unless it is changed.
fn metadata_of<'a>(
    container: &dyn Container,
    sources: impl Iterator<Item = &'a Input>,
    changes: &HashMap<String, Option<String>>,
    differing: &mut Vec<String>,
) -> Option<Vec<(String, String)>> {
    let mut merged: Option<Vec<(String, String)>> = None;
    for pairs in sources.filter_map(|input| metadata(input, container)) {
        let merged = merged.get_or_insert_default();
        let before: HashMap<String, String> = merged.iter().cloned().collect();
        for (key, value) in pairs {
            match before.get(&key) {
                Some(first) if *first != value && !changes.contains_key(&key) => differing.push(key),
                Some(_) => {}
                None => merged.push((key, value)),
            }
        }
    }
    let mut merged = merged?;
    merged.retain_mut(|(key, value)| match changes.get(key) {
        Some(Some(new)) => {
            value.clone_from(new);
            true
        }
        Some(None) => false,
        None => true,
    });
    Some(merged)
}

/// Returns the metadata for the output: unchanged except for the marks of the old and the new format.
fn metadata(input: &Input, container: &dyn Container) -> Option<Vec<(String, String)>> {
    let mut metadata = input.contents.metadata.clone()?;
    let (from, to) = (input.container.format_info().metadata, container.format_info().metadata);
    if from != to {
        if let Metadata::Marked(name, _) = from {
            metadata.retain(|(known, _)| known != name);
        }
        if let Metadata::Marked(name, value) = to
            && !metadata.iter().any(|(known, _)| known == name)
        {
            metadata.insert(0, (name.to_owned(), value.to_owned()));
        }
    }
    Some(metadata)
}
