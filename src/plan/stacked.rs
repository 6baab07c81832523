//! Stacks of experts: MLX stores the same part of all experts of a layer as one tensor. Each expert keeps its step, whose
//! results are ranges of the tensors of the stack.

use super::draft::{DraftStep, StackPlace};
use super::step::StackPart;
use crate::container::checkpoint::stacked_name;
use crate::error::{Error, Result};
use crate::text::shorten;
use std::collections::HashMap;

/// Makes stacks of the steps of experts: moves the steps of a stack to the place of the first, in the order of the
/// experts. Fails if an expert is missing, or differs from the others in its types or shapes.
pub(super) fn stack(steps: Vec<DraftStep>) -> Result<Vec<DraftStep>> {
    let mut stacks: HashMap<String, Vec<(u64, usize)>> = HashMap::new();
    for (at, draft) in steps.iter().enumerate() {
        if let Some((name, number)) = stacked_name(draft.step.name()) {
            stacks.entry(name).or_default().push((number, at));
        }
    }
    // The members of a stack, by the index of the first of them.
    let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
    for (name, mut numbers) in stacks {
        let first = numbers[0].1;
        numbers.sort_unstable();
        if let Some((_, missing)) = numbers.iter().zip(0..).find(|((number, _), expected)| number != expected) {
            let error = Error::new(format!("is a stack of experts, and expert {missing} is missing"));
            return Err(error.in_tensor(&name));
        }
        let stored = |at: usize| steps[at].step.new_tensors().map(|(_, dtype, shape)| (dtype, shape));
        let differs = |at: &usize| !stored(*at).eq(stored(first));
        if let Some(other) = numbers.iter().map(|(_, at)| *at).find(differs) {
            let other = shorten(steps[other].step.name());
            let message = format!("is a stack of experts, and '{other}' differs from the others in its type or shape");
            return Err(Error::new(message).in_tensor(&name).remedy("quantize all experts of a layer to one scheme"));
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
            let shapes = draft.step.new_tensors().map(|(_, _, shape)| [&[count], shape].concat()).collect();
            for result in draft.step.results.iter_mut() {
                if let Some((name, _)) = stacked_name(&result.name) {
                    let part = StackPart { name: name.into(), is_first: number == 0 };
                    result.extra.get_or_insert_default().stack = Some(part);
                }
            }
            draft.extra.get_or_insert_default().stack = Some(StackPlace { number, count, shapes });
            stacked.push(draft);
        }
    }
    Ok(stacked)
}
