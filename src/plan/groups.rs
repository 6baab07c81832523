//! Distribution of tensors over outputs.

use super::Spread;
use super::choose::Chosen;

/// Returns the tensors of each output file, in the order of the inputs.
pub(super) fn groups(chosen: Vec<Chosen>, inputs: usize, spread: Spread) -> Vec<Vec<Chosen>> {
    let mut groups: Vec<Vec<Chosen>> = Vec::new();
    match spread {
        Spread::One => groups.push(chosen),
        Spread::AsInputs if inputs == 1 => groups.push(chosen),
        Spread::AsInputs => {
            groups.resize_with(inputs, Vec::new);
            for tensor in chosen {
                groups[tensor.place.0].push(tensor);
            }
        }
        Spread::UpTo(limit) => {
            groups.push(Vec::new());
            let mut filled = 0_u64;
            for tensor in chosen {
                let bytes = tensor.bytes();
                filled = filled.saturating_add(bytes);
                if filled > limit && groups.last().is_some_and(|group| !group.is_empty()) {
                    filled = bytes;
                    groups.push(Vec::new());
                }
                groups.last_mut().expect("there is one from the start").push(tensor);
            }
        }
    }
    groups
}
