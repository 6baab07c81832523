//! List of the tensors of an output, for its format.

use super::choose::{Chosen, Origin};
use crate::container::{NewTensor, NewTensors};
use crate::quant::EncodedPart;
use std::borrow::Cow;

/// The tensors of an output, made from the logical tensors chosen for it.
pub(super) struct ChosenTensors<'s, 'a> {
    chosen: &'s [Chosen<'a>],
    /// All tensors, if some weights are stored as several.
    listed: Vec<NewTensor<'s>>,
}

impl<'s, 'a> ChosenTensors<'s, 'a> {
    pub(super) fn new(chosen: &'s [Chosen<'a>]) -> Self {
        let mut listed = Vec::new();
        if chosen.iter().any(|chosen| matches!(chosen.from, Origin::Values(_))) {
            for chosen in chosen {
                match &chosen.from {
                    Origin::Values(weight) => {
                        listed.extend(weight.part_names().zip(weight.rows.encoder.parts()).map(new_part));
                    }
                    Origin::Elements(_) | Origin::Parts(_) => listed.push(chosen.new_tensor()),
                }
            }
        }
        Self { chosen, listed }
    }
}

impl NewTensors for ChosenTensors<'_, '_> {
    fn count(&self) -> usize {
        if self.listed.is_empty() { self.chosen.len() } else { self.listed.len() }
    }

    fn get(&self, at: usize) -> NewTensor<'_> {
        if self.listed.is_empty() { self.chosen[at].new_tensor() } else { self.listed[at].clone() }
    }
}

fn new_part((name, part): (String, &EncodedPart)) -> NewTensor<'_> {
    NewTensor {
        name: Cow::Owned(name),
        dtype: part.dtype,
        shape: &part.shape,
        count: part.shape.iter().product(),
        fortran_order: false,
        text: None,
        opaque: None,
    }
}
