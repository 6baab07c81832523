//! Stacks of experts: MLX stores the same part of all experts of a layer as one tensor. Each expert keeps its step, whose
//! results are ranges of the tensors of the stack.

use super::decisions::ExpertStacks;
use super::draft::DraftStep;
use super::stored::StackPart;
use crate::container::checkpoint::{name_of_expert, stacked_name};
use crate::error::{Error, Kind, Result};
use crate::text::shorten;
use std::collections::{BTreeMap, HashMap};

impl ExpertStacks {
    /// Returns the number of experts of each layer: of all its stacks, and according to config.json.
    fn counts(self, stacks: &BTreeMap<String, Vec<(u64, usize)>>) -> HashMap<&str, u64> {
        let mut counts = HashMap::new();
        for (name, numbers) in stacks {
            let found = numbers.iter().map(|(number, _)| number.saturating_add(1)).max().unwrap_or_default();
            let count = counts.entry(layer_of(name)).or_insert_with(|| self.experts.unwrap_or_default());
            *count = found.max(*count);
        }
        counts
    }

    /// Makes stacks of the steps of experts: moves the steps of a stack to the place of the first, in the order of the
    /// experts. Fails if an expert is missing, or differs from the others in its types or shapes.
    pub(super) fn stack(self, steps: Vec<DraftStep>) -> Result<Vec<DraftStep>> {
        let mut stacks: BTreeMap<String, Vec<(u64, usize)>> = BTreeMap::new(); // for the same error in every run
        for (at, draft) in steps.iter().enumerate() {
            if let Some((name, number)) = stacked_name(draft.step.name()) {
                stacks.entry(name).or_default().push((number, at));
            }
        }
        let counts = self.counts(&stacks);
        // The members of a stack, by the index of the first of them.
        let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
        for (name, numbers) in &stacks {
            let mut numbers = numbers.clone();
            let first = numbers[0].1;
            numbers.sort_unstable();
            let all = counts[layer_of(name)];
            let mut found = numbers.iter().map(|(number, _)| *number);
            if let Some(missing) = (0..all).find(|number| found.next() != Some(*number)) {
                let tensor = name_of_expert(steps[first].step.name(), missing).unwrap_or_default();
                let error = Error::new(format!("is a stack of {all} experts, and '{}' is missing", shorten(&tensor)));
                return Err(error.in_tensor(name).of(Kind::Unmapped));
            }
            let stored = |at: usize| steps[at].step.new_tensors().map(|(_, dtype, shape)| (dtype, shape));
            let differs = |at: &usize| !stored(*at).eq(stored(first));
            if let Some(other) = numbers.iter().map(|(_, at)| *at).find(differs) {
                let is_same = steps[other].step.dtypes().0 == steps[first].step.dtypes().0;
                let other = shorten(steps[other].step.name());
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
        let mut left: Vec<Option<DraftStep>> = steps.into_iter().map(Some).collect();
        let mut stacked = Vec::with_capacity(left.len());
        for at in 0..left.len() {
            let Some(numbers) = members.get(&at) else {
                stacked.extend(left[at].take_if(|draft| stacked_name(draft.step.name()).is_none()));
                continue;
            };
            let count = numbers.len() as u64;
            let place = left[at].as_ref().map(|draft| draft.place);
            for (expert, number) in numbers.iter().zip(0..) {
                let Some(mut draft) = left[*expert].take() else { continue };
                draft.place = place.unwrap_or(draft.place);
                let shapes = draft.step.new_tensors().map(|(_, _, shape)| [&[count], shape].concat());
                let shapes: Vec<Vec<u64>> = shapes.collect();
                for (result, shape) in draft.step.results.iter_mut().zip(shapes) {
                    if let Some((name, _)) = stacked_name(&result.name) {
                        let part = StackPart { name: name.into(), shape: shape.into(), number };
                        result.extra.get_or_insert_default().stack = Some(part);
                    }
                }
                stacked.push(draft);
            }
        }
        Ok(stacked)
    }
}

/// Returns the module that has the stacks of a layer, from the name of one of their tensors.
fn layer_of(stack: &str) -> &str {
    stack.rsplitn(3, '.').last().unwrap_or_default()
}
