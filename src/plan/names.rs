//! Tensors as their model sees them, and their names in the output.

use super::quantized::{TargetWeight, TensorIndex};
use super::weights::QuantizedWeight;
use crate::container::{Container, Input, Tensor};
use crate::error::{Error, Result};
use crate::select::{KeptReason, Rename};
use crate::text::shorten;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// A tensor as its model sees it.
#[derive(Clone, Copy)]
pub(super) enum Logical<'a, 'r> {
    Plain(&'a Tensor, Option<KeptReason>),
    Weight(&'r QuantizedWeight),
    ToQuantize(TensorIndex, &'r TargetWeight),
}

fn old_name<'a>(inputs: &'a [Input], input: usize, logical: Logical<'a, '_>) -> Cow<'a, str> {
    match logical {
        Logical::Plain(tensor, _) => Cow::Borrowed(inputs[input].name_of(tensor)),
        Logical::Weight(weight) => Cow::Owned(weight.name.clone()),
        Logical::ToQuantize(_, weight) => Cow::Owned(weight.name.clone()),
    }
}

/// Returns the name of a tensor in the output, unless it is renamed.
pub(super) fn new_name<'a>(
    inputs: &'a [Input],
    input: usize,
    logical: Logical<'a, '_>,
    container: &dyn Container,
) -> Cow<'a, str> {
    match logical {
        // The nameless tensor of a format with names stays nameless if it is the only one.
        Logical::Plain(tensor, _)
            if inputs[input].container.format_info().has_names && container.format_info().holds_one =>
        {
            Cow::Borrowed(&*tensor.name)
        }
        _ => old_name(inputs, input, logical),
    }
}

/// Returns the new names of renamed tensors, by their indices among all tensors.
pub(super) fn renamed<'a, 'r>(
    inputs: &'a [Input],
    all: impl Iterator<Item = (TensorIndex, Logical<'a, 'r>)>,
    renames: &[Rename],
) -> Result<HashMap<usize, Cow<'a, str>>> {
    let mut names = HashMap::new();
    if renames.is_empty() {
        return Ok(names); // containers refuse duplicate names
    }
    let old: Vec<Cow<str>> = all.map(|(place, logical)| old_name(inputs, place.0, logical)).collect();
    let places: HashMap<&str, usize> = old.iter().map(|name| &**name).zip(0..).collect();
    for Rename { old, new } in renames {
        let place = places.get(old.as_str());
        let &place = place.ok_or_else(|| {
            let error = Error::usage(format!("there is no tensor '{}' to rename", shorten(old)));
            if new.contains('=') {
                error.remedy("the old name ends at the first '=': a tensor with '=' in its name cannot be renamed")
            } else {
                error
            }
        })?;
        if names.insert(place, Cow::Owned(new.clone())).is_some() {
            return Err(Error::new("is renamed twice").in_tensor(old));
        }
    }
    let mut seen = HashSet::new();
    let new = old.iter().enumerate().map(|(at, old)| names.get(&at).unwrap_or(old));
    match new.map(|name| &**name).find(|name| !seen.insert(*name)) {
        Some(clash) => Err(Error::new("two tensors would have this name").in_tensor(clash)),
        None => Ok(names),
    }
}
