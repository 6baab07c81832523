//! Plans of conversions: the operation for each tensor, and its place in the output. All problems that headers reveal
//! are refused here. Once a plan exists, only reading and writing can fail, apart from damaged elements and values that
//! the rules of the cast forbid.

mod choose;
mod codes;
mod few;
mod groups;
mod model;
mod names;
mod outputs;
mod quantized;
mod rewrite;
mod source;
mod step;
mod weights;

#[doc(hidden)] // for the program
pub use codes::Codes;
#[doc(hidden)] // for the program
pub use quantized::{CodedRows, Recovery, TargetWeight, TensorIndex, Unmoved, WeightValues};
pub(crate) use quantized::{Quantization, SharedExtremes, WeightRows};
pub(crate) use source::check_from;
#[doc(hidden)] // for tests
pub use source::source_form;
pub(crate) use step::{Direct, NewStored, Operation};
pub use step::{Plan, Step};
#[doc(hidden)] // for the program
pub use weights::{QuantizedWeight, Weights};

use crate::container::onnx::model::Study;
use crate::container::{Container, Form, Input, Metadata, Placement};
use crate::conversion::Conversion;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::Condition;
use crate::operator::Operator;
use crate::options::ModelOptions;
use crate::select::Selection;
use crate::text::shorten;
use choose::{Chosen, Origin, choose, measure_texts};
use few::Few;
use groups::groups;
use outputs::ChosenTensors;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

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
    #[doc(hidden)] // for the program
    pub weights: Option<&'a Weights>,
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
            weights: None,
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
    Draft::new(request, inputs)?.build(spread, measured)
}

/// Decisions about each tensor, before anything is laid out: texts have to be read before they can be laid out.
pub(crate) struct Draft<'r, 'a> {
    request: &'r Request<'r>,
    inputs: &'a [Input],
    /// The ONNX model that is changed, if the output is one.
    model: Option<Study>,
    chosen: Vec<Chosen<'a>>,
}

impl<'r, 'a> Draft<'r, 'a> {
    /// Decides about each tensor, with all checks that need no layout.
    pub(crate) fn new(request: &'r Request<'r>, inputs: &'a [Input]) -> Result<Self> {
        let is_model = request.container.format_info().is_changed_only;
        let model = is_model.then(|| model::study(request, inputs)).transpose()?;
        let chosen = choose(request, inputs, model.as_ref())?;
        Ok(Self { request, inputs, model, chosen })
    }

    /// Lays out the outputs, like [`build`].
    pub(crate) fn build(self, spread: Spread, measured: &dyn Fn(u64)) -> Result<Vec<Plan<'a>>> {
        let Self { request, inputs, model, mut chosen } = self;
        let mut conversions = Conversions { operator: request.operator, watched: request.fail_on, known: Vec::new() };
        if let Some(study) = &model {
            return Ok(vec![rewrite::build(request, &inputs[0], study, chosen, &mut conversions)?]);
        }
        measure_texts(&mut chosen, measured)?;
        let mut plans = Vec::new();
        let mut differing = Vec::new();
        for (at, group) in groups(chosen, inputs.len(), spread).into_iter().enumerate() {
            let mut sources: Vec<usize> = Vec::new();
            for chosen in &group {
                if sources.last() != Some(&chosen.place.0) {
                    sources.push(chosen.place.0);
                }
            }
            if spread == Spread::AsInputs {
                sources = vec![at]; // even if it has no tensors
            } else if sources.is_empty() {
                sources = (0..inputs.len()).collect(); // there are no tensors at all
            }
            let metadata = metadata_of(request, sources.iter().map(|input| &inputs[*input]), &mut differing);
            let layout =
                request.container.lay_out(&ChosenTensors::new(&group), metadata.as_deref(), request.threads)?;
            let mut places = layout.places.into_iter();
            // The steps reuse the memory of `group`.
            let steps = group.into_iter().map(|chosen| step(chosen, &mut places, &mut conversions));
            let steps = steps.collect::<Result<Vec<Step>>>()?;
            plans.push(Plan {
                steps,
                literals: layout.literals,
                copies: Vec::new(),
                len: layout.len,
                data_start: None,
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
        plans.iter_mut().take(1).for_each(|plan| plan.notes.extend(differing.iter().map(note)));
        Ok(plans)
    }
}

/// Returns the step for a tensor, which takes the next place.
fn step<'a>(
    chosen: Chosen<'a>,
    places: &mut impl Iterator<Item = Placement>,
    conversions: &mut Conversions,
) -> Result<Step<'a>> {
    let Chosen { sources, from, target, fortran_order, name, .. } = chosen;
    let mut form = None;
    let mut result = |name| {
        let place = places.next().expect("every new tensor has a place");
        form = Some(place.form);
        NewStored { name, range: place.range, crc: place.crc }
    };
    let results = match &from {
        Origin::Values(weight) => Few::Several(weight.part_names().map(Cow::Owned).map(result).collect()),
        Origin::Elements(_) | Origin::Parts(_) => Few::One(result(name)),
    };
    let how = match from {
        Origin::Parts(decoder) => Operation::Decode(decoder),
        Origin::Values(weight) => Operation::Encode(weight),
        Origin::Elements(from) => {
            let to = form.expect("it has a result");
            let conversion = conversions.get(from, to, target.is_ok());
            Operation::Convert(conversion.map_err(|error| error.in_tensor(&results[0].name))?)
        }
    };
    Ok(Step { stays: false, sources, results, how, kept: target.err(), fortran_order })
}

/// The conversions of a plan: one of each kind, shared by all tensors.
struct Conversions<'r> {
    operator: Operator,
    /// The conditions that the caller refuses.
    watched: &'r [Condition],
    known: Vec<(bool, Arc<Conversion>)>,
}

impl Conversions<'_> {
    fn get(&mut self, from: Form, to: Form, is_converted: bool) -> Result<Arc<Conversion>> {
        let is_it =
            |known: &&(bool, Arc<Conversion>)| known.0 == is_converted && known.1.from == from && known.1.to == to;
        if let Some((_, known)) = self.known.iter().find(is_it) {
            return Ok(Arc::clone(known));
        }
        let conversion = match self.operator {
            Operator::Cast(attributes) if is_converted => Conversion::cast(from, to, attributes.rules()),
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
        self.known.push((is_converted, Arc::clone(&conversion)));
        Ok(conversion)
    }
}

/// Returns the metadata of an output, with the changes of [`Weights::metadata`]. Adds the keys that have several values
/// to `differing`.
fn metadata_of<'a>(
    request: &Request,
    sources: impl Iterator<Item = &'a Input>,
    differing: &mut Vec<String>,
) -> Option<Vec<(String, String)>> {
    let mut pairs = merge_metadata(sources, request.container, differing)?;
    if let Some(weights) = request.weights {
        differing.retain(|key| !weights.metadata.contains_key(key));
        pairs.retain_mut(|(key, value)| match weights.metadata.get(key) {
            Some(Some(new)) => {
                value.clone_from(new);
                true
            }
            Some(None) => false,
            None => true,
        });
    }
    Some(pairs)
}

/// Merges the metadata of all files that the tensors of an output come from. If values differ, the first file's value
/// is kept.
fn merge_metadata<'a>(
    sources: impl Iterator<Item = &'a Input>,
    container: &dyn Container,
    differing: &mut Vec<String>,
) -> Option<Vec<(String, String)>> {
    let mut merged: Option<Vec<(String, String)>> = None;
    for pairs in sources.filter_map(|input| metadata(input, container)) {
        let merged = merged.get_or_insert_default();
        let known: HashMap<String, String> = merged.iter().cloned().collect();
        for (name, value) in pairs {
            match known.get(&name) {
                Some(first) if *first != value => differing.push(name),
                Some(_) => {}
                None => merged.push((name, value)),
            }
        }
    }
    merged
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
