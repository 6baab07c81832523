//! Stacks of experts: MLX, and Hugging Face for some kinds of models, store the same part of all experts of a layer as one
//! tensor. Each expert keeps its step, whose results are ranges of the tensors of the stack.

use super::Planned;
use super::step::{Operation, Step, TensorIndex};
use super::stored::StackPart;
use crate::container::Container;
use crate::container::checkpoint::{ExpertNames, MlxStacks, PlaceInStack, layer_of_expert, name_of_expert};
use crate::error::{Error, Opt, Result};
use crate::quant::{FoundWeight, Group, Layout, Role, WeightEncoder};
use crate::read::Model;
use crate::select::experts::ModelFacts;
use crate::text::shorten;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// The stacks of a model.
#[derive(Clone, Copy)]
pub(super) struct ExpertStacks {
    pub(super) form: StackForm,
    /// The number of experts in a layer, if config.json has it.
    pub(super) experts: Option<u64>,
    /// True if an option asks for them.
    pub(super) are_requested: bool,
}

/// The form of a stack.
#[derive(Clone, Copy)]
pub(super) enum StackForm {
    /// As MLX has it: a tensor of each part.
    Mlx(&'static MlxStacks),
    /// Banks of Hugging Face: gate and up in one tensor.
    Bank(&'static ExpertNames),
}

impl ExpertStacks {
    /// Returns the form of MLX, if it is one.
    pub(super) fn in_mlx(&self) -> Option<&'static MlxStacks> {
        if let StackForm::Mlx(form) = self.form { Some(form) } else { None }
    }

    /// Returns the place of a tensor in a stack; `None` if it is not part of one.
    fn place<'n>(&self, tensor: &'n str) -> Option<PlaceInStack<'n>> {
        match self.form {
            StackForm::Mlx(form) => PlaceInStack::in_mlx(tensor, form),
            StackForm::Bank(names) => PlaceInStack::in_bank(tensor, names),
        }
    }

    /// Makes stacks of the steps of experts: moves the steps of a stack to the place of the first, in the order of the
    /// experts. Fails if an expert is missing, or differs from the others in its types or shapes.
    pub(super) fn stack(self, steps: Vec<Step>) -> Result<Vec<Step>> {
        let mut stacks: BTreeMap<String, Vec<(u64, usize)>> = BTreeMap::new(); // for the same error in every run
        // The number of experts of each layer: of all its stacks, and according to config.json.
        let mut counts: HashMap<&str, u64> = HashMap::new();
        for (at, step) in steps.iter().enumerate() {
            if let Some(place) = self.place(step.name()) {
                let count = counts.entry(place.layer).or_insert_with(|| self.experts.unwrap_or_default());
                *count = place.expert.saturating_add(1).max(*count);
                let number = place.expert.saturating_mul(place.count()).saturating_add(place.part);
                stacks.entry(place.stack).or_default().push((number, at));
            }
        }
        // The rank of each step: the first step of its stack, its number there, and the number of steps in it. Other steps: their
        // own index, 0 and 0.
        let mut ranks: Vec<(usize, u64, u64)> = (0..steps.len()).map(|at| (at, 0, 0)).collect();
        for (name, mut numbers) in stacks {
            let first = numbers[0].1;
            numbers.sort_unstable();
            let Some(place) = self.place(steps[first].name()) else { continue };
            let (experts, parts) = (counts[place.layer], place.count());
            let mut found = numbers.iter().map(|(number, _)| *number);
            let all = experts.saturating_mul(parts);
            if let Some(missing) = (0..all).find(|number| found.next() != Some(*number)) {
                let part = place.parts.get((missing % parts) as usize).copied();
                let tensor = name_of_expert(steps[first].name(), missing / parts, part).unwrap_or_default();
                let error =
                    Error::new(format!("is a stack of {experts} experts, and '{}' is missing", shorten(&tensor)));
                let error = error.in_tensor(&name);
                return Err(if self.are_requested { error.without(Opt::EXPERTS) } else { error.keeping_names() });
            }
            let stored = |at: usize| steps[at].new_tensors().map(|(_, dtype, shape)| (dtype, shape));
            let differs = |at: &usize| !stored(*at).eq(stored(first));
            if let Some(other) = numbers.iter().map(|(_, at)| *at).find(differs) {
                let is_same = steps[other].dtypes().0 == steps[first].dtypes().0;
                let other = shorten(steps[other].name());
                let message =
                    format!("is a stack of experts, and '{other}' differs from the others in its type or shape");
                let error = Error::new(message).in_tensor(&name);
                return Err(if is_same {
                    error.remedy("quantize all experts of a layer to one scheme")
                } else {
                    error.remedy("cast the model to one type first, such as bfloat16")
                });
            }
            for (number, (_, at)) in (0..).zip(&numbers) {
                ranks[*at] = (first, number, numbers.len() as u64);
            }
        }
        let places: Vec<TensorIndex> = steps.iter().map(|step| step.place).collect();
        let mut ranked: Vec<_> = ranks.into_iter().zip(steps).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        for ((first, number, count), step) in &mut ranked {
            if *count == 0 {
                for result in step.results.iter_mut() {
                    if let Some(new) = self.in_mlx().and_then(|form| form.name_of(&result.name)) {
                        result.name = Cow::Owned(new);
                    }
                }
                continue;
            }
            step.place = places[*first];
            let shapes: Vec<Vec<u64>> = step.new_tensors().map(|(_, _, shape)| shape.to_vec()).collect();
            for (result, shape) in step.results.iter_mut().zip(shapes) {
                let Some(place) = self.place(&result.name) else { continue };
                let parts = place.count();
                let mut shape = [&[*count / parts], &shape[..]].concat();
                if let Some(rows) = shape.get_mut(1) {
                    *rows *= parts;
                }
                let part = StackPart { name: place.stack.into(), shape: shape.into(), count: *count, number: *number };
                result.extra.get_or_insert_default().stack = Some(part);
            }
        }
        Ok(ranked.into_iter().map(|(_, step)| step).collect())
    }
}

impl Planned<'_> {
    /// Stacks the experts as transformers has them in memory. Refuses parts of quantized weights that have no such form.
    pub(super) fn stack_experts(&mut self, model: &Model, container: &dyn Container) -> Result<()> {
        if container.format_info().extension != "safetensors" {
            return Err(Error::usage("experts are stacked in .safetensors files only").without(Opt::EXPERTS));
        }
        let facts = ModelFacts::read(model.config()?);
        let form = StackForm::Bank(facts.expert_names()?);
        let stacks = ExpertStacks { form, experts: facts.experts, are_requested: true };
        let codes = model.found.weights.iter().map(|weight| (model.places[weight.codes()], weight));
        let weights: HashMap<TensorIndex, &FoundWeight> = codes.collect();
        for step in self.steps.iter().filter(|step| layer_of_expert(step.name()).is_some()) {
            let checked = match (stacks.place(step.name()), &step.how, weights.get(&step.place)) {
                (None, ..) => Err(unstacked("a stack has no place for it")),
                // Plain numbers that adapters change.
                (Some(_), Operation::Encode(weight), _) if matches!(weight.rows.encoder, WeightEncoder::Plain(_)) => {
                    Ok(())
                }
                (Some(place), Operation::Encode(weight), _) => {
                    let (encoder, layout) = (&weight.rows.encoder, weight.rows.encoder.layout());
                    let parts = encoder.parts().iter().map(|part| (part.role, part.suffix, &part.shape[..]));
                    check_parts(layout, &place, (encoder.rows(), encoder.row_alignment()), parts)
                }
                (Some(place), Operation::Convert(_), Some(weight)) => {
                    let parts = weight.parts.iter().map(|(role, at)| {
                        let part = &model.tensors[*at];
                        (*role, part.name.strip_prefix(&*weight.module).unwrap_or_default(), part.shape)
                    });
                    let group = match weight.grid(&model.tensors)?.group {
                        Some(Group::Block([rows, _])) => rows,
                        Some(Group::Neighbours(_) | Group::Channel) => 1,
                        Some(Group::Tensor) | None => 0,
                    };
                    check_parts(weight.layout, &place, (weight.shape[0], group), parts)
                }
                (Some(_), Operation::Convert(_) | Operation::Decode(_), _) => Ok(()),
            };
            checked.map_err(|error| error.in_tensor(step.name()))?;
        }
        // Stacks that follow one another are in the order of their names, as transformers writes them.
        let layer = |step: &Step| layer_of_expert(step.name()).map(|layer| (step.place.0, layer.to_owned()));
        for run in self.steps.chunk_by_mut(|one, next| layer(one).is_some() && layer(one) == layer(next)) {
            run.sort_by_cached_key(|step| stacks.place(step.name()).map(|place| place.stack));
        }
        self.stack(Some(stacks))
    }
}

fn unstacked(why: &str) -> Error {
    let error = Error::new(format!("is a part of an expert that cannot be stacked: {why}"));
    error.remedy("decode the model first, or leave its experts as they are")
}

/// Checks that the library knows stacks of the parts of a quantized expert, and that no scale is for rows of two weights.
/// `group` has the rows of the weight, and the rows that share a scale: 0 if all do.
fn check_parts<'p>(
    layout: &Layout,
    place: &PlaceInStack,
    (rows, group): (u64, u64),
    mut parts: impl Iterator<Item = (Role, &'p str, &'p [u64])>,
) -> Result<()> {
    let is_known = |(role, suffix, shape): (Role, &str, &[u64])| {
        let end = suffix.strip_prefix(".weight").filter(|_| shape.len() == 2);
        end.is_some_and(|end| layout.has_stacks(role, end))
    };
    if group == 0 || !parts.all(is_known) {
        return Err(unstacked(&format!("the library of the layout {} has no stacks of experts", layout.name)));
    }
    if place.count() > 1 && !rows.is_multiple_of(group) {
        return Err(unstacked(&format!("it has {rows} rows, and a scale is for {group}")));
    }
    Ok(())
}
