//! The decoders of a model's weights: weights of one kind share one, because a decoder is larger than a name.

use super::Model;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::quant::{Arithmetic, Decoder, FoundWeight, Role};
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of decoders that are cached: more than the distinct shapes of the weights in a layer.
const MOST: usize = 16;

pub(crate) struct Decoders<'m, 'a> {
    model: &'m Model<'a>,
    values: DecodedValues,
    /// The decoders that were made last, each with a weight that it decodes.
    recent: VecDeque<(&'m FoundWeight, Arc<Decoder>)>,
}

/// Kind of values that decoders return.
pub(crate) enum DecodedValues {
    Rounded {
        /// The type of the values; `None` for the default of each weight.
        target: Option<Dtype>,
        arithmetic: Arithmetic,
        /// True if the decoders count the values that are not exact.
        is_watched: bool,
    },
    /// Exact values in rows: see [`Decoder::of_rows`].
    Rows,
}

impl<'m, 'a> Decoders<'m, 'a> {
    pub(crate) fn new(model: &'m Model<'a>, values: DecodedValues) -> Self {
        Self { model, values, recent: VecDeque::with_capacity(MOST) }
    }

    pub(crate) fn get(&mut self, weight: &'m FoundWeight) -> Result<Arc<Decoder>> {
        if let Some((_, decoder)) = self.recent.iter().find(|(known, _)| self.are_alike(known, weight)) {
            return Ok(Arc::clone(decoder));
        }
        let decoder = Arc::new(match self.values {
            DecodedValues::Rows => self.model.decoder_of_rows(weight)?,
            DecodedValues::Rounded { target, arithmetic, is_watched } => {
                let target = target.unwrap_or_else(|| self.model.target_of(weight));
                let make = |target, arithmetic| self.model.decoder(weight, target, arithmetic);
                let decoder = make(target, arithmetic)?;
                if is_watched { decoder.watch(make(Dtype::Float64, Arithmetic::Exact)?) } else { decoder }
            }
        });
        self.recent.truncate(MOST - 1);
        self.recent.push_front((weight, Arc::clone(&decoder)));
        Ok(decoder)
    }

    /// True if two weights differ only in their names and bytes.
    fn are_alike(&self, one: &FoundWeight, other: &FoundWeight) -> bool {
        let part = |&(role, at): &(Role, usize)| (role, self.model.tensors[at].dtype, self.model.tensors[at].shape);
        let FoundWeight { name: _, module: _, layout, parameters, shape, parts } = one;
        std::ptr::eq(*layout, other.layout)
            && *shape == other.shape
            && *parameters == other.parameters
            && parts.iter().map(part).eq(other.parts.iter().map(part))
    }
}
