//! Decisions of the planners, which the plan of an output follows.

use super::quantization::TensorIndex;
use super::step::{Operation, Step};
use crate::container::{ComputedTensor, GgufKey};
use crate::dtype::Dtype;
use crate::quant::{Decoder, FoundWeight, Role};
use crate::read::LogicalCheckpoint;
use crate::select::{KeptReason, Rename};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The decisions of a planner about one input: its tensors, and the files next to them. A tensor without a decision is
/// cast or copied, as the operator and the selection say.
#[derive(Default)]
pub(crate) struct Decisions<'a> {
    pub(super) treatments: HashMap<TensorIndex, Treatment<'a>>,
    /// Metadata of the files to change: the key, and the new value or `None` to remove it.
    pub(super) metadata: HashMap<String, Option<String>>,
    /// The new names of tensors, in place of the names in the selection.
    pub(super) renames: Option<Vec<Rename>>,
    /// The stacks that the tensors of experts become; `None` if they are stored one by one.
    pub(super) stacks: Option<ExpertStacks>,
    /// The contents of a GGUF file besides the tensors, if the output is one.
    pub(super) gguf: GgufContents,
    /// Files next to the shards with their new text; `None` if a file is left out.
    pub(crate) side_files: Vec<(&'static str, Option<String>)>,
    /// The `quantization_config` of a quantized output that has no config.json.
    pub(crate) block: Option<String>,
    /// The names of scales of activations that are left out.
    pub(crate) left_out_scales: Vec<String>,
    /// A decoded and a quantized weight of each set that engines load as one module and that is partly decoded.
    pub(crate) divided_sets: Vec<[String; 2]>,
    /// Other files that were read, which no output may replace.
    pub(crate) files: Vec<PathBuf>,
}

/// Order of the tensors in a file.
pub(super) enum TensorOrder {
    /// By a place that follows from the name.
    ByName(fn(&str) -> (Option<u64>, &str)),
    /// As in this list of names.
    Listed(Vec<String>),
}

/// The contents of a new GGUF file besides its tensors.
#[derive(Default)]
pub(super) struct GgufContents {
    /// Keys with their values.
    pub keys: Vec<GgufKey>,
    /// Tensors that the input does not have.
    pub computed: Vec<ComputedTensor>,
    /// Order of the tensors; `None` for the order of the input.
    pub order: Option<TensorOrder>,
    /// Facts about the model for the user.
    pub facts: Vec<String>,
    /// Warnings for the user.
    pub notes: Vec<String>,
}

/// The stacks of a model.
#[derive(Clone, Copy)]
pub(super) struct ExpertStacks {
    pub(super) form: StackForm,
    /// The number of experts in a layer, if config.json has it.
    pub(super) experts: Option<u64>,
}

/// The form of a stack.
#[derive(Clone, Copy)]
pub(super) enum StackForm {
    /// As MLX has it: a tensor of each part.
    Mlx,
    /// A bank of Hugging Face: gate and up in one tensor.
    Bank,
}

/// Treatment of a stored tensor.
pub(super) enum Treatment<'a> {
    /// It is not in the output.
    Dropped,
    /// It is copied.
    Kept(KeptReason),
    /// It is cast or copied, with another name or shape.
    Stored(NewForm),
    /// These steps make the tensors that take its place: the weights whose first part it is, or the weights that it holds
    /// one after another.
    Replaced(Vec<Step<'a>>),
}

/// The form of a tensor that is cast or copied.
pub(super) struct NewForm {
    pub name: String,
    pub shape: Vec<u64>,
    /// The new type; `None` for the same one.
    pub to: Option<Dtype>,
    /// The reason for not quantizing the tensor, or for copying it.
    pub kept: Option<KeptReason>,
}

impl<'a> Decisions<'a> {
    /// Adds a step that takes the place of a stored tensor, after earlier steps in that place.
    pub(super) fn replace(&mut self, place: TensorIndex, step: Step<'a>) {
        match self.treatments.entry(place).or_insert(Treatment::Dropped) {
            Treatment::Replaced(steps) => steps.push(step),
            other => *other = Treatment::Replaced(vec![step]),
        }
    }

    /// Decodes a weight. The decoded tensor takes the place of the codes, and the other parts are left out. `kept` is the
    /// reason for not quantizing numbers that are not codes.
    pub(super) fn decode(
        &mut self,
        model: &LogicalCheckpoint<'a>,
        weight: &FoundWeight,
        decoder: Arc<Decoder>,
        kept: Option<KeptReason>,
    ) {
        let parts = LogicalCheckpoint::value_parts(weight);
        parts[1..].iter().for_each(|(_, part)| self.leave_out(model.places[*part]));
        let sources = model.value_sources(weight).collect();
        self.replace(model.places[parts[0].1], Step::decode(weight.name.clone(), sources, decoder, kept));
    }

    /// Leaves out the tensors that only describe how these weights are quantized and, if `are_all` of the model, the other
    /// descriptions. Leaves out and records the scales of activations, unless `keeps_activation_scales`.
    pub(super) fn leave_out_descriptions(
        &mut self,
        model: &LogicalCheckpoint,
        weights: &[&FoundWeight],
        are_all: bool,
        keeps_activation_scales: bool,
    ) {
        let mut scales = Vec::new();
        for &(role, at) in weights.iter().flat_map(|weight| &weight.parts) {
            match role {
                Role::Shape | Role::Description => self.leave_out(model.places[at]),
                Role::Activation => scales.push(at),
                _ => {}
            }
        }
        if are_all {
            model.found.markers.iter().for_each(|at| self.leave_out(model.places[*at]));
            scales.clone_from(&model.found.activation_scales);
        }
        if !keeps_activation_scales {
            for at in scales {
                self.leave_out(model.places[at]);
                self.left_out_scales.push(model.tensors[at].name.to_owned());
            }
        }
    }

    /// Copies a tensor, and records why.
    pub(super) fn keep(&mut self, tensor: TensorIndex, reason: KeptReason) {
        self.treatments.insert(tensor, Treatment::Kept(reason));
    }

    /// Casts or copies a tensor, with another name or shape.
    pub(super) fn store(&mut self, tensor: TensorIndex, new: NewForm) {
        self.treatments.insert(tensor, Treatment::Stored(new));
    }

    /// Leaves a tensor out that the output does not need.
    pub(super) fn leave_out(&mut self, tensor: TensorIndex) {
        self.treatments.insert(tensor, Treatment::Dropped);
    }

    /// Returns the steps that take the places of stored tensors, in the order of these.
    pub(super) fn steps_mut(&mut self) -> Vec<&mut Step<'a>> {
        let mut treatments: Vec<_> = self.treatments.iter_mut().collect();
        treatments.sort_unstable_by_key(|(place, _)| **place);
        let steps = treatments.into_iter().filter_map(|(_, treatment)| match treatment {
            Treatment::Replaced(steps) => Some(steps),
            _ => None,
        });
        steps.flatten().collect()
    }

    /// Returns the steps that take the places of stored tensors, in no order.
    #[cfg(feature = "cli")]
    pub(super) fn steps(&self) -> impl Iterator<Item = &Step<'a>> {
        let steps = self.treatments.values().map(|treatment| match treatment {
            Treatment::Replaced(steps) => &steps[..],
            _ => &[],
        });
        steps.flatten()
    }

    /// True if a stored tensor is replaced by decoded weights.
    pub(super) fn decodes(&self, tensor: TensorIndex) -> bool {
        let Some(Treatment::Replaced(steps)) = self.treatments.get(&tensor) else { return false };
        steps.iter().any(|step| matches!(step.how, Operation::Decode(_)))
    }

    /// Changes a metadata value, or removes it.
    pub(super) fn change_metadata(&mut self, key: &str, value: Option<String>) {
        self.metadata.insert(key.to_owned(), value);
    }

    /// True if a metadata value is changed or removed.
    pub(crate) fn changes(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }
}
