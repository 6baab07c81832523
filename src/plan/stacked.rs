//! Stacks of experts: MLX, and Hugging Face for some kinds of models, store the same part of all experts of a layer as one
//! tensor. Each expert keeps its step, whose results are ranges of the tensors of the stack.

use super::step::Step;
use super::stored::StackPart;
use crate::container::checkpoint::{PlaceInStack, name_of_expert};
use crate::error::{Error, Kind, Result};
use crate::text::shorten;
use std::collections::{BTreeMap, HashMap};

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

impl ExpertStacks {
    /// Returns the place of a tensor in a stack; `None` if it is not part of one.
    fn place<'n>(&self, tensor: &'n str) -> Option<PlaceInStack<'n>> {
        match self.form {
            StackForm::Mlx => PlaceInStack::in_mlx(tensor),
            StackForm::Bank => PlaceInStack::in_bank(tensor),
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
        // The members of a stack, by the index of the first of them.
        let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
        for (name, numbers) in &stacks {
            let mut numbers = numbers.clone();
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
                return Err(error.in_tensor(name).of(Kind::Unmapped));
            }
            let stored = |at: usize| steps[at].new_tensors().map(|(_, dtype, shape)| (dtype, shape));
            let differs = |at: &usize| !stored(*at).eq(stored(first));
            if let Some(other) = numbers.iter().map(|(_, at)| *at).find(differs) {
                let is_same = steps[other].dtypes().0 == steps[first].dtypes().0;
                let other = shorten(steps[other].name());
                let message =
                    format!("is a stack of experts, and '{other}' differs from the others in its type or shape");
                let error = Error::new(message).in_tensor(name);
                return Err(if is_same {
                    error.remedy("quantize all experts of a layer to one scheme")
                } else {
                    error.remedy("cast the model to one type first, such as bfloat16")
                });
            }
            members.insert(first, numbers.into_iter().map(|(_, at)| at).collect());
        }
        let mut left: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
        let mut stacked = Vec::with_capacity(left.len());
        for at in 0..left.len() {
            let Some(numbers) = members.get(&at) else {
                stacked.extend(left[at].take_if(|step| self.place(step.name()).is_none()));
                continue;
            };
            let count = numbers.len() as u64;
            let place = left[at].as_ref().map(|step| step.place);
            for (expert, number) in numbers.iter().zip(0..) {
                let Some(mut step) = left[*expert].take() else { continue };
                step.place = place.unwrap_or(step.place);
                let shapes: Vec<Vec<u64>> = step.new_tensors().map(|(_, _, shape)| shape.to_vec()).collect();
                for (result, shape) in step.results.iter_mut().zip(shapes) {
                    if let Some(place) = self.place(&result.name) {
                        let parts = place.count();
                        let mut shape = [&[count / parts], &shape[..]].concat();
                        if let Some(rows) = shape.get_mut(1) {
                            *rows *= parts;
                        }
                        let part = StackPart { name: place.stack.into(), shape: shape.into(), count, number };
                        result.extra.get_or_insert_default().stack = Some(part);
                    }
                }
                stacked.push(step);
            }
        }
        Ok(stacked)
    }
}
