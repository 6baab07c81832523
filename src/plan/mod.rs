//! Plans of conversions: the operation for each tensor, and its place in the output. All problems that headers reveal
//! are refused here. Once a plan exists, only reading and writing can fail, apart from damaged elements and values that
//! the rules of the cast forbid.

mod codes;
mod dequantize;
mod gathered;
mod gguf;
mod metadata;
mod partition;
mod plain;
mod planned;
mod quantization;
mod quantize;
mod renaming;
mod rewrite;
mod stacked;
mod step;
mod steps;
mod stored;
mod survival;
mod weight_rows;

pub use codes::Codes;
pub(crate) use gguf::GgufTask;
#[cfg(feature = "cli")]
pub(crate) use gguf::folder_metadata;
#[cfg(feature = "cli")]
pub(crate) use metadata::is_owned_key;
pub use partition::Partition;
pub(crate) use partition::{chosen_shards, shard_sizes};
pub(crate) use plain::check_from;
pub use plain::source_form;
pub use planned::Request;
pub(crate) use planned::{PlanFindings, Planned};
pub(crate) use quantization::{CodesSource, Quantization, Unrecovered};
pub(crate) use quantize::{OTHER_NAME, matchable_names, name_instead_of};
#[cfg(feature = "cli")]
pub(crate) use quantize::{check_schemes_of_model, layout_of};
pub(crate) use step::{NewStored, Operation, PieceUnit};
pub use step::{Plan, Step};
pub(crate) use survival::FewRows;
pub(crate) use weight_rows::SharedExtremes;

use crate::container::gguf::MAX_PARTS;
use crate::container::{
    self, Container, Form, Input, Metadata, MetadataChange, NewMetadata, NewTensor, Placement, keys_of_part,
};
use crate::conversion::{self};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::kernel::Storage;
use crate::options::{ExpertForm, Task};
use crate::progress::{Note, Observer};
use crate::read::{Model, Share};
use crate::select::Rename;
use planned::Conversions;
use std::collections::HashMap;
use std::vec;
use steps::Steps;

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
    Planned::of_values(request, inputs, &request.selection.renames, true)?.lay_out(request, spread, measured)
}

impl<'a> Planned<'a> {
    /// Plans a task for an input, with all checks that need no layout. `partition` is the part of its shards that the run
    /// writes.
    pub(crate) fn new(
        (task, gguf): (Task, Option<&GgufTask>),
        request: &Request,
        model: &Model<'a>,
        partition: Option<Partition>,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let mut planned = match (task, gguf) {
            (Task::Quantize(options), _) if model.is_onnx_model() => Self::quantize_model(model, options, request),
            (_, Some(gguf)) => Self::gguf(model, gguf, request, observer),
            (Task::Cast(_), None) => Self::cast(model, request),
            (Task::BitCast(_), None) => match model.source.assembled.first() {
                None => Self::rename(model, request),
                Some(tensor) => {
                    let what = "has its values in another order than the file, and tcast does not copy its bits";
                    Err(Error::new(what).keeping_names().in_tensor(&tensor.name))
                }
            },
            (Task::Promote(_), None) => Self::of_values(request, &model.source.shards, &[], true),
            (Task::Dequantize(options), None) => Self::dequantize(model, options, request),
            (Task::Quantize(options), None) => Self::quantize(model, options, request, partition, observer),
        }?;
        if matches!(task, Task::Cast(_)) && !model.source.added.is_empty() {
            planned.findings.notes.extend(model.notes_of_additions()?);
        }
        if model.source.experts == Some(ExpertForm::Stacked) {
            planned.stack_experts(model, request.container)?;
        }
        Ok(planned)
    }

    /// Plans tensors that are all values. Reports wrong new names before tensors that cannot be converted.
    fn of_values(request: &Request, inputs: &'a [Input], renames: &[Rename], must_match: bool) -> Result<Self> {
        let mut steps = Steps::new(request, inputs, None)?;
        steps.values(renames, must_match)?;
        steps.finish(&[], true)
    }

    /// Passes the notes that meet a condition to an observer, in their order.
    pub(crate) fn tell(&mut self, observer: &dyn Observer, is_told: impl Fn(&Note) -> bool) {
        self.findings.notes.extract_if(.., |note| is_told(note)).for_each(|note| observer.notice(note));
    }

    /// True if a metadata value is changed or removed.
    pub(crate) fn changes(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    /// Lays out the outputs, like [`build`]. The steps go to the plans of the outputs.
    pub(crate) fn lay_out(
        &mut self,
        request: &Request,
        spread: Spread,
        measured: &dyn Fn(u64),
    ) -> Result<Vec<Plan<'a>>> {
        let Self { inputs, graph, conversions, metadata, set, keys, computed, findings, .. } = self;
        let mut steps = std::mem::take(&mut self.steps);
        if let Some(graph) = graph {
            let (plan, notes) = rewrite::build(request, &inputs[0], graph, (steps, set), conversions)?;
            findings.notes.extend(notes.into_iter().map(Note::Onnx));
            return Ok(vec![plan]);
        }
        measure_texts(&mut steps, measured)?;
        let mut plans = Vec::new();
        let mut differing = Vec::new();
        let tensors = steps.iter().map(|step| step.results.len()).sum::<usize>() + computed.len();
        let groups = groups(steps, inputs.len(), spread);
        let parts = groups.len();
        if parts > MAX_PARTS && request.container.is(container::GGUF) {
            let error =
                Error::new(format!("would have {parts} parts, and a model in GGUF files has at most {MAX_PARTS}"));
            return Err(error.with(Opt::MAX_SHARD_SIZE, "choose a larger maximum size of parts"));
        }
        for (at, group) in groups.into_iter().enumerate() {
            let mut sources: Vec<usize> = group.iter().map(|step| step.place.0).collect();
            sources.dedup();
            if spread == Spread::AsInputs {
                sources = vec![at]; // even if it has no tensors
            } else if sources.is_empty() {
                sources = (0..inputs.len()).collect(); // there are no tensors at all
            }
            let sources = sources.iter().map(|input| &inputs[*input]);
            let texts = metadata_of(request.container, sources, (metadata, set), &mut differing);
            let keys = keys_of_part(std::mem::take(keys), (at, parts), tensors);
            let metadata = NewMetadata { texts, keys, computed: std::mem::take(computed) };
            let mut plan = Plan::of(group);
            let layout = request.container.lay_out(&plan, &metadata, request.threads)?;
            let mut places = Places::new(&layout.literals, layout.places);
            let mut stack = Vec::new();
            for step in &mut plan.steps {
                place(step, &mut places, &mut stack, conversions)?;
            }
            (plan.literals, plan.entries, plan.len) = (layout.literals, layout.entries, layout.len);
            plans.push(plan);
        }
        differing.sort();
        differing.dedup();
        if request.container.format_info().metadata == Metadata::None {
            differing.clear();
        }
        findings.notes.extend(differing.into_iter().map(Note::DifferentMetadata));
        Ok(plans)
    }
}

/// Measures the texts to be written. No file can be laid out without their lengths.
fn measure_texts(steps: &mut [Step], measured: &dyn Fn(u64)) -> Result<()> {
    for step in steps.iter_mut().filter(|step| step.dtypes().1 == Dtype::String) {
        let (source, Some(conversion)) = (&step.sources[0], step.conversion()) else { continue };
        let mut share = Share::new(source.stored_len(), source.tensor.count);
        let progress = &mut |elements| measured(share.up_to(elements));
        let extent =
            source.open().and_then(|reader| conversion::measure(conversion.from, source.named(), reader, progress));
        let extent = extent.map_err(|error| source.error(error))?;
        step.results[0].extra.get_or_insert_default().text = Some(Box::new(extent));
    }
    Ok(())
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
fn place(
    step: &mut Step,
    places: &mut Places,
    stack: &mut Vec<Placement>,
    conversions: &mut Conversions,
) -> Result<()> {
    for at in 0..step.results.len() {
        let place = match step.results[at].stack() {
            None => places.next(&step.new_tensor(at)),
            Some(part) => {
                if part.number == 0 {
                    stack.truncate(at);
                    stack.push(places.next(&step.new_tensor(at)));
                }
                part.place_in(&stack[at])
            }
        };
        let result = &mut step.results[at];
        result.range = place.range;
        if place.crc.is_some() {
            result.extra.get_or_insert_default().crc = place.crc;
        }
        conversions.complete(step, place.form)?;
    }
    Ok(())
}

/// Returns the steps of each output file, in the order of the inputs.
fn groups(steps: Vec<Step>, inputs: usize, spread: Spread) -> Vec<Vec<Step>> {
    let mut groups: Vec<Vec<Step>> = Vec::new();
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
                let bytes = step.planned_bytes();
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

/// Merges the metadata of all files that the tensors of an output come from, with changed values: `None` removes one. If
/// values differ, keeps the first, and adds the key to `differing` unless it is changed.
fn metadata_of<'a>(
    container: &dyn Container,
    sources: impl Iterator<Item = &'a Input>,
    (changes, set): (&HashMap<String, Option<String>>, &[MetadataChange]),
    differing: &mut Vec<String>,
) -> Option<Vec<(String, String)>> {
    let mut merged: Option<Vec<(String, String)>> = None;
    for pairs in sources.filter_map(|input| metadata(input, container)) {
        let merged = merged.get_or_insert_default();
        let before: HashMap<String, String> = merged.iter().cloned().collect();
        for (key, value) in pairs {
            match before.get(&key) {
                Some(first)
                    if *first != value && !changes.contains_key(&key) && set.iter().all(|(known, _)| *known != key) =>
                {
                    differing.push(key);
                }
                Some(_) => {}
                None => merged.push((key, value)),
            }
        }
    }
    let mut merged = if set.is_empty() { merged? } else { merged.unwrap_or_default() };
    merged.retain_mut(|(key, value)| match changes.get(key) {
        Some(Some(new)) => {
            value.clone_from(new);
            true
        }
        Some(None) => false,
        None => true,
    });
    set_pairs(&mut merged, set);
    Some(merged)
}

/// Returns the metadata for the output: unchanged except for the marks of the old and the new format.
fn metadata(input: &Input, container: &dyn Container) -> Option<Vec<(String, String)>> {
    let mut metadata = input.contents.metadata.clone()?;
    let (from, to) = (input.container.format_info().metadata, container.format_info().metadata);
    if from != to {
        if let Some(name) = from.mark() {
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

/// Changes the metadata of a file: each key gets its new value, at its place or at the end, or is removed.
fn set_pairs(pairs: &mut Vec<(String, String)>, set: &[MetadataChange]) {
    for (key, value) in set {
        let known = pairs.iter().position(|(known, _)| known == key);
        match (known, value) {
            (Some(at), Some(value)) => pairs[at].1.clone_from(value),
            (None, Some(value)) => pairs.push((key.clone(), value.clone())),
            (Some(at), None) => drop(pairs.remove(at)),
            (None, None) => {}
        }
    }
}
