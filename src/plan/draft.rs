//! Steps for all tensors of an output, before their places are known: planners of weights have made some, all other
//! tensors are cast or copied.

use super::cast::{Cast, check_from};
use super::decisions::{Decisions, TensorOrder, Treatment};
use super::quantization::TensorIndex;
use super::step::{Operation, Step};
use super::{Conversions, Request};
use crate::container::onnx::model::{Dequantization, ModelGraph, TensorRole};
use crate::container::{Input, NewTensor, NewTensors, TextExtent};
use crate::conversion;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::large_buffer;
use crate::operator::Operator;
use crate::quant::{EncodedPart, QuantMethod};
use crate::read::Share;
use crate::select::{KeptReason, Rename};
use crate::text::shorten;
use std::collections::{HashMap, HashSet};

/// A step, and the facts that laying out its output needs.
pub(super) struct DraftStep<'a> {
    /// The stored tensor whose place its results take.
    pub place: TensorIndex,
    pub step: Step<'a>,
    /// The lengths of the texts, if it becomes text.
    text: Option<Box<TextExtent>>,
}

impl<'a> DraftStep<'a> {
    fn new(place: TensorIndex, step: Step<'a>) -> Self {
        Self { place, step, text: None }
    }

    /// True if an earlier step begins the stack of experts that it belongs to.
    pub(super) fn continues_stack(&self) -> bool {
        !self.step.results[0].begins_tensor()
    }

    /// Returns the bytes of its results in the output. The first step of a stack counts for all.
    pub(super) fn bytes(&self) -> u64 {
        if self.continues_stack() {
            return 0;
        }
        let own = match &self.step.how {
            Operation::Encode(weight) => weight.rows.encoder.parts().iter().map(EncodedPart::byte_len).sum(),
            Operation::Convert(_) | Operation::Decode(_) => {
                self.step.dtypes().1.packed_bytes(self.step.source_count()).unwrap_or(u64::MAX)
            }
        };
        own.saturating_mul(self.step.results[0].stack().map_or(1, |part| part.count))
    }

    /// Returns one of its results, for the format of the output.
    pub(super) fn new_tensor(&self, result: usize) -> NewTensor<'_> {
        NewTensor { text: self.text.clone(), ..self.step.new_tensor(result) }
    }
}

/// The tensors of an output: the results of its steps.
pub(super) struct PlannedTensors<'s, 'a> {
    steps: &'s [DraftStep<'a>],
    /// The step and the number of each result, if some steps have several.
    places: Vec<(usize, usize)>,
}

impl<'s, 'a> PlannedTensors<'s, 'a> {
    pub(super) fn of(steps: &'s [DraftStep<'a>]) -> Self {
        let of_step = |(at, draft): (usize, &DraftStep)| {
            let results = if draft.continues_stack() { 0 } else { draft.step.results.len() };
            (0..results).map(move |result| (at, result))
        };
        let has_parts =
            steps.iter().any(|draft| draft.step.results.len() > 1 || draft.step.results[0].stack().is_some());
        let places = if has_parts { steps.iter().enumerate().flat_map(of_step).collect() } else { Vec::new() };
        Self { steps, places }
    }
}

impl NewTensors for PlannedTensors<'_, '_> {
    fn count(&self) -> usize {
        if self.places.is_empty() { self.steps.len() } else { self.places.len() }
    }

    fn are_kept(&self) -> bool {
        self.places.is_empty()
    }

    fn get(&self, at: usize) -> NewTensor<'_> {
        let (step, result) = if self.places.is_empty() { (at, 0) } else { self.places[at] };
        self.steps[step].new_tensor(result)
    }
}

/// Makes the steps for all tensors, in the order of the inputs, and refuses impossible conversions.
pub(super) fn steps<'r, 'a>(
    request: &Request<'r>,
    inputs: &'a [Input],
    model: Option<&ModelGraph<'a>>,
    decisions: &mut Decisions<'a>,
    conversions: &mut Conversions<'r>,
) -> Result<Vec<DraftStep<'a>>> {
    let stored =
        || inputs.iter().enumerate().flat_map(|(at, input)| (0..input.contents.tensors.len()).map(move |t| (at, t)));
    let tensor = |(input, at): TensorIndex| &inputs[input].contents.tensors[at];
    check_from(stored().map(tensor), request.from)?;
    let needed = model.map(|graph| {
        let is_folded = |folded: &&Dequantization| decisions.decodes((0, folded.codes));
        let folded: Vec<&Dequantization> = graph.dequantizations.iter().filter(is_folded).collect();
        graph.parts_of_others(&folded)
    });
    let needed = needed.unwrap_or_default();
    let role_of = |at| model.and_then(|graph| graph.role(at)).filter(|role| *role == TensorRole::Scale);
    let renames = decisions.renames.as_ref().unwrap_or(&request.selection.renames);
    let new = match &renames[..] {
        [] => Vec::new(), // containers refuse duplicate names
        renames => new_names(stored().flat_map(|at| old_names(inputs, at, decisions, &needed)).collect(), renames)?,
    };
    let mut cast = Cast::new(request, inputs, model, conversions);
    let mut steps = large_buffer(stored().count());
    let mut treatments = std::mem::take(&mut decisions.treatments);
    for place in stored() {
        // Most plans have none, and an empty map computes a hash to find nothing.
        let treatment = if treatments.is_empty() { None } else { treatments.remove(&place) };
        let reason = match treatment {
            Some(Treatment::Replaced(new)) => {
                for step in new {
                    check_weight(request, &step)?;
                    steps.push(DraftStep::new(place, step));
                }
                continue;
            }
            Some(Treatment::Dropped) if !needed.contains(&place.1) => continue,
            Some(Treatment::Dropped) => Some(KeptReason::Role(TensorRole::Scale)),
            Some(Treatment::Kept(reason)) => Some(reason),
            Some(Treatment::Stored(new)) => {
                steps.push(DraftStep::new(place, cast.stored(place, new)?));
                continue;
            }
            None if matches!(request.operator, Operator::Dequantize) => {
                Some(role_of(place.1).map_or(KeptReason::Unquantized, KeptReason::Role))
            }
            None => None,
        };
        steps.push(DraftStep::new(place, cast.step(place, reason)?));
    }
    for (at, name) in new {
        steps[at].step.rename(name);
    }
    match &decisions.gguf.order {
        Some(TensorOrder::ByName(place)) => {
            steps.sort_by(|one, other| place(one.step.name()).cmp(&place(other.step.name())));
        }
        Some(TensorOrder::Listed(names)) => {
            let places: HashMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
            steps.sort_by_key(|draft| places.get(draft.step.name()).copied().unwrap_or(usize::MAX));
        }
        None => {}
    }
    check_codes(request, inputs, &steps)?;
    Ok(steps)
}

/// Refuses a cast that leaves codes as they are although no option requests that.
fn check_codes(request: &Request, inputs: &[Input], steps: &[DraftStep]) -> Result<()> {
    let Some(codes) = request.codes else { return Ok(()) };
    let has_cast = steps.iter().any(|draft| draft.step.is_converted());
    if !has_cast && !matches!(request.operator, Operator::Cast(_)) {
        return Ok(());
    }
    for DraftStep { place, step, .. } in steps {
        let (input, Some(kept)) = (&inputs[place.0], step.kept) else { continue };
        let name = input.name_of(step.source());
        if let Some(error) = codes.left_by_cast(name, kept, has_cast, request.selection) {
            return Err(error.in_tensor(name).in_file(input.path()));
        }
    }
    Ok(())
}

/// Refuses to decode or quantize a weight that cannot be read in pieces, or that the output cannot store.
fn check_weight(request: &Request, step: &Step) -> Result<()> {
    let container = request.container;
    let held = |part: usize| matches!(&step.how, Operation::Decode(decoder) if decoder.held(part).is_some());
    for (_, source) in step.sources.iter().enumerate().filter(|(part, _)| !held(*part)) {
        source.unpack()?;
        if !source.is_plain() {
            let message = "quantized weights are read from and made of .safetensors files only";
            return Err(source.error(Error::new(message)));
        }
    }
    let refuse = |error: Error| Err(step.sources[0].error(error));
    let quantization = step.quantization();
    if quantization.is_some_and(|weight| weight.rows.encoder.grid().is_none()) {
        return Ok(()); // the planner of GGUF files has chosen a format for them
    }
    if let Some(weight) = quantization
        && !container.format_info().is_changed_only()
    {
        let method = weight.rows.encoder.layout().method;
        if method == QuantMethod::Onnx {
            let error = Error::new("the weights of an ONNX model are quantized in an ONNX model");
            return refuse(error.remedy("name an output that ends in .onnx"));
        }
        if container.format_info().extension != "safetensors" {
            let error = Error::new("engines read quantized weights from .safetensors files only");
            return refuse(error.remedy("name a .safetensors file or a folder"));
        }
    }
    let mut dtypes = step.new_tensors().map(|(_, dtype, _)| dtype);
    match dtypes.find(|dtype| container.stores(*dtype).is_none()) {
        Some(dtype) => refuse(container.refusal(dtype, true)),
        None => Ok(()),
    }
}

/// Returns the names of the tensors that take the place of a stored tensor, unless they are renamed.
fn old_names(inputs: &[Input], place: TensorIndex, decisions: &Decisions, needed: &HashSet<usize>) -> Vec<String> {
    match decisions.treatments.get(&place) {
        Some(Treatment::Replaced(steps)) => steps.iter().map(|step| step.name().to_owned()).collect(),
        Some(Treatment::Dropped) if !needed.contains(&place.1) => Vec::new(),
        Some(Treatment::Stored(new)) => vec![new.name.clone()],
        _ => {
            let input = &inputs[place.0];
            vec![input.name_of(&input.contents.tensors[place.1]).to_owned()]
        }
    }
}

/// Returns the new names of renamed tensors, by the places of their steps. Refuses names that no tensor has, and two
/// tensors of one name.
fn new_names(mut names: Vec<String>, renames: &[Rename]) -> Result<Vec<(usize, String)>> {
    let places: HashMap<String, usize> = names.iter().cloned().zip(0..).collect();
    let mut changed = HashSet::new();
    for Rename { old, new } in renames {
        let place = places.get(old);
        let &place = place.ok_or_else(|| {
            let error = Error::usage(format!("there is no tensor '{}' to rename", shorten(old)));
            if new.contains('=') {
                error.remedy("the old name ends at the first '=': a tensor with '=' in its name cannot be renamed")
            } else {
                error
            }
        })?;
        if !changed.insert(place) {
            return Err(Error::new("is renamed twice").in_tensor(old));
        }
        names[place].clone_from(new);
    }
    let mut seen = HashSet::new();
    if let Some(clash) = names.iter().find(|name| !seen.insert(name.as_str())) {
        return Err(Error::new("two tensors would have this name").in_tensor(clash));
    }
    Ok(changed.into_iter().map(|place| (place, std::mem::take(&mut names[place]))).collect())
}

/// Measures the texts to be written. No file can be laid out without their lengths.
pub(super) fn measure_texts(steps: &mut [DraftStep], measured: &dyn Fn(u64)) -> Result<()> {
    for DraftStep { step, text, .. } in steps.iter_mut().filter(|draft| draft.step.dtypes().1 == Dtype::String) {
        let (source, Some(conversion)) = (&step.sources[0], step.conversion()) else { continue };
        let mut share = Share::new(source.stored_len(), source.tensor.count);
        let progress = &mut |elements| measured(share.up_to(elements));
        let extent =
            source.open().and_then(|reader| conversion::measure(conversion.from, source.named(), reader, progress));
        let extent = extent.map_err(|error| source.error(error))?;
        *text = Some(Box::new(extent));
    }
    Ok(())
}
