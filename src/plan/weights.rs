//! The weights of a model that a plan decodes or quantizes.

use super::quantized::{TargetWeight, TensorIndex};
use crate::quant::Decoder;
use crate::select::{KeptReason, Rename};
use std::collections::HashMap;
use std::sync::Arc;

/// The weights to decode or to quantize, by the stored tensors that hold them.
#[derive(Default)]
pub struct Weights {
    pub(super) tensors: HashMap<TensorIndex, Fate>,
    /// The weights that share a scale; [`Weights::share`] returns the index of a set.
    pub(super) shared: Vec<Vec<(TensorIndex, TargetWeight)>>,
    /// Metadata of the files to change: the key, and the new value or `None` to remove it.
    pub(super) metadata: HashMap<String, Option<String>>,
    /// The new names of tensors, in place of the names in the selection.
    pub(super) renames: Option<Vec<Rename>>,
}

/// A quantized weight to decode.
pub struct QuantizedWeight {
    /// The name of the decoded tensor.
    pub name: String,
    /// Its parts, in the order of the decoder. The decoded tensor takes the place of the first.
    pub parts: Vec<TensorIndex>,
    /// Its decoder.
    pub decoder: Arc<Decoder>,
}

/// Decision about a stored tensor.
pub(super) enum Fate {
    LeftOut,
    /// Decode the weights whose first part it is.
    Decoded(Vec<QuantizedWeight>),
    /// Quantize the weights that it holds one after another.
    Quantized(Vec<TargetWeight>),
    /// Copy it.
    Kept(KeptReason),
}

impl Weights {
    /// Reserves memory for this many more stored tensors.
    pub(crate) fn reserve(&mut self, tensors: usize) {
        self.tensors.reserve(tensors);
    }

    /// Adds a weight to decode.
    ///
    /// # Panics
    /// When it has no parts.
    pub fn add(&mut self, weight: QuantizedWeight) {
        self.tensors.extend(weight.parts[1..].iter().map(|part| (*part, Fate::LeftOut)));
        match self.tensors.entry(weight.parts[0]).or_insert(Fate::LeftOut) {
            Fate::Decoded(weights) => weights.push(weight),
            other => *other = Fate::Decoded(vec![weight]),
        }
    }

    /// Adds the weights to quantize that a tensor holds, in the order of their rows.
    pub fn quantize(&mut self, tensor: TensorIndex, weights: Vec<TargetWeight>) {
        self.tensors.insert(tensor, Fate::Quantized(weights));
    }

    /// Makes some weights share a scale; returns the number for [`TargetWeight::shared`].
    pub fn share(&mut self, weights: Vec<(TensorIndex, TargetWeight)>) -> usize {
        self.shared.push(weights);
        self.shared.len() - 1
    }

    /// Copies a tensor, and records why.
    pub(crate) fn keep(&mut self, tensor: TensorIndex, reason: KeptReason) {
        self.tensors.insert(tensor, Fate::Kept(reason));
    }

    /// Drops a tensor that decoded weights do not need.
    pub fn leave_out(&mut self, tensor: TensorIndex) {
        self.tensors.insert(tensor, Fate::LeftOut);
    }

    /// Gives tensors these names, regardless of the selection.
    pub(crate) fn rename(&mut self, renames: Vec<Rename>) {
        self.renames = Some(renames);
    }

    /// True if a metadata value is changed or removed.
    pub(crate) fn changes(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    /// Changes a metadata value, or removes it.
    pub fn change_metadata(&mut self, key: &str, value: Option<String>) {
        self.metadata.insert(key.to_owned(), value);
    }
}
