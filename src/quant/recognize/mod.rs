//! Recognition of quantized weights: the tensors of a checkpoint that form each weight, and its layout.
//!
//! [`probe`] examines names, dtypes and shapes of all tensors, and configs and descriptions. All of them have to agree:
//! a contradiction is an error that names both sides. It is a pure function except for the few tensors whose content it
//! needs, which it reads through [`CheckpointInfo::read`].

mod checkpoint;
mod config;
mod leftover;
mod names;
mod weight;

pub use checkpoint::{CheckpointInfo, FoundWeight, Problem, Recognized, StoredTensor, described};
pub use config::check_renamed;

use super::config::CheckpointConfig;
use super::libraries::{LayerDescriptions, TensorDescriptions, check_decoded, may_be_undecoded};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::text::shorten;
use leftover::WeightFacts;
pub(crate) use names::decoded_name;
use names::{Pair, pairs};
pub use names::{is_activation_scale, is_named_as_part, scale_names};
use std::collections::HashSet;
use weight::Evidence;

/// Finds the quantized weights of a checkpoint and all contradictions, which [`Recognized::check`] refuses.
pub fn probe(source: &CheckpointInfo) -> Recognized {
    let mut weights = Vec::new();
    let recognized = recognize(source, |weight| weights.push(weight));
    weights.shrink_to_fit();
    Recognized { weights, ..recognized }
}

/// Finds all contradictions of a checkpoint, without keeping its weights.
pub(crate) fn contradictions(source: &CheckpointInfo) -> Vec<Problem> {
    recognize(source, |_| ()).problems
}

/// Finds everything but [`Recognized::weights`], and calls a function with each weight.
fn recognize(source: &CheckpointInfo, mut each: impl FnMut(FoundWeight)) -> Recognized {
    let mut recognized = Recognized::default();
    let config = CheckpointConfig::read(source).and_then(|config| check_decoded(source.tensors).map(|()| config));
    recognized.is_undecoded = config.is_err();
    let (config, layers) = match config.and_then(|config| Ok((config, LayerDescriptions::read(source)?))) {
        Ok(read) => read,
        Err(error) => {
            recognized.problems.push(Problem { tensors: Vec::new(), error });
            recognized.plain = (0..source.tensors.len()).collect();
            return recognized;
        }
    };
    recognized.method.clone_from(&config.method);
    let indices = source.tensors.iter().enumerate().map(|(index, tensor)| (tensor.name, index)).collect();
    let evidence = Evidence { source, indices, config, layers, tensors: TensorDescriptions::read(source) };
    let mut is_used = vec![false; source.tensors.len()];
    let (mut names, mut weights) = (HashSet::new(), WeightFacts::default());
    for (codes, tensor) in source.tensors.iter().enumerate() {
        let mut pairs = pairs(tensor.name, &evidence.indices);
        pairs.retain(|pair| can_be_codes(tensor, pair));
        let weight = match &pairs[..] {
            [] => continue,
            [pair] => evidence.weight(codes, pair).and_then(|weight| {
                let is_taken = weight.name != tensor.name && evidence.indices.contains_key(&*weight.name);
                if is_taken || !names.insert(weight.name.clone()) {
                    let name = shorten(&weight.name);
                    return Err(Error::new(format!("it would be decoded to '{name}', which exists already")));
                }
                Ok(weight)
            }),
            [pair, other, ..] => {
                let [one, two] = [pair, other].map(|pair| shorten(source.tensors[pair.scale].name));
                Err(Error::new(format!("'{one}' and '{two}' are both its scales")))
            }
        };
        match weight {
            Ok(weight) => {
                weight.parts.iter().for_each(|(_, index)| is_used[*index] = true);
                weights.add(&evidence, &weight);
                each(weight);
            }
            Err(error) => {
                let rows = pairs[0].family.rows.iter();
                let parts = rows.flat_map(|(_, names)| evidence.parts(pairs[0].stem, names)).map(|(_, index)| index);
                let parts = parts.chain(pairs.get(1).map(|other| other.scale));
                let tensors: Vec<usize> =
                    parts.filter(|index| !std::mem::replace(&mut is_used[*index], true)).collect();
                recognized.orphans.extend(&tensors);
                recognized.add(Problem { tensors, error: error.in_tensor(tensor.name) });
            }
        }
    }
    leftover::sort(&evidence, &is_used, weights, &mut recognized);
    recognized
}

/// True if a tensor of this dtype can be the codes for a scale, or is named as codes.
fn can_be_codes(tensor: &StoredTensor, pair: &Pair) -> bool {
    let is_plain_name = matches!(pair.family.codes, "" | ".weight");
    let mut dtypes = pair.family.rows.iter().flat_map(|(layout, _)| layout.codes.dtypes);
    !is_plain_name || dtypes.any(|dtype| tensor.dtype == Some(*dtype))
}

/// True if a tensor of this dtype can be codes, or words of codes, of a quantized weight: parts that differ from plain
/// values.
pub fn can_be_part(dtype: Option<Dtype>) -> bool {
    dtype.is_none_or(|dtype| {
        (1..=8).contains(&dtype.bits()) && dtype != Dtype::Bool || matches!(dtype, Dtype::Int32 | Dtype::Uint32)
    })
}

/// True if a tensor of this name and dtype can be a part of a quantized weight, decoded by tcast or not, so that its
/// config has to be read.
pub fn may_be_quantized(name: &str, dtype: Option<Dtype>) -> bool {
    can_be_part(dtype) || may_be_undecoded(name, dtype)
}
