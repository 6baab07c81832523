//! Recognition of quantized weights: the tensors of a checkpoint that form each weight, and its layout.
//!
//! [`probe`] examines names, dtypes and shapes of all tensors, and configs and descriptions. All of them have to agree:
//! a contradiction is an error that names both sides. It is a pure function except for the few tensors whose content it
//! needs, which it reads through [`CheckpointInfo::read`].

mod block;
mod claims;
mod comfy;
mod descriptions;
mod found;
mod groups;
mod leftover;
mod modules;
mod names;
mod statements;
mod weigh;

pub use found::{CheckpointInfo, FoundWeight, Problem, Recognized, StoredTensor};

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::method::{check_decoded, may_be_undecoded};
use crate::text::{counted, shorten};
use claims::Claims;
use comfy::Layers;
use names::{Pair, pairs};
pub use names::{is_activation_scale, is_named_as_part, scale_names};
use std::collections::HashSet;
use weigh::Finder;

/// Finds the quantized weights of a checkpoint and all contradictions, which [`Recognized::check`] refuses.
pub fn probe(source: &CheckpointInfo) -> Recognized {
    let mut found = Recognized::default();
    let claims = Claims::read(source).and_then(|claims| check_decoded(source.tensors).map(|()| claims));
    found.is_undecoded = claims.is_err();
    let (claims, layers) = match claims.and_then(|claims| Ok((claims, Layers::read(source)?))) {
        Ok(read) => read,
        Err(error) => {
            found.problems.push(Problem { tensors: Vec::new(), error });
            found.plain = (0..source.tensors.len()).collect();
            return found;
        }
    };
    found.method.clone_from(&claims.method);
    let places = source.tensors.iter().enumerate().map(|(index, tensor)| (tensor.name, index)).collect();
    let finder = Finder { source, places, claims, layers };
    let mut is_used = vec![false; source.tensors.len()];
    let mut names = HashSet::new();
    for (codes, tensor) in source.tensors.iter().enumerate() {
        let pairs: Vec<Pair> = pairs(tensor.name, &finder.places);
        let mut pairs = pairs.into_iter().filter(|pair| can_be_codes(tensor, pair));
        let Some(pair) = pairs.next() else { continue };
        let other = pairs.next();
        let weight = match &other {
            Some(other) => {
                let [one, two] = [pair.scale, other.scale].map(|scale| shorten(source.tensors[scale].name));
                Err(Error::new(format!("'{one}' and '{two}' are both its scales")).in_tensor(tensor.name))
            }
            None => finder.weigh(codes, &pair).and_then(|weight| {
                let is_taken = weight.name != tensor.name && finder.places.contains_key(&*weight.name);
                if is_taken || !names.insert(weight.name.clone()) {
                    let message = format!("it would be decoded to '{}', which exists already", shorten(&weight.name));
                    return Err(Error::new(message).in_tensor(tensor.name));
                }
                Ok(weight)
            }),
        };
        match weight {
            Ok(weight) => {
                weight.parts.iter().for_each(|(_, index)| is_used[*index] = true);
                found.weights.push(weight);
            }
            Err(error) => {
                let rows = pair.family.rows.iter();
                let parts = rows.flat_map(|(_, names)| finder.parts(pair.stem, names)).map(|(_, index)| index);
                let parts = parts.chain(other.map(|other| other.scale));
                let tensors: Vec<usize> =
                    parts.filter(|index| !std::mem::replace(&mut is_used[*index], true)).collect();
                found.orphans.extend(&tensors);
                found.add(Problem { tensors, error });
            }
        }
    }
    found.weights.shrink_to_fit();
    leftover::sort(&finder, &is_used, &mut found);
    found
}

/// True if a tensor of this dtype can be the codes for a scale, or is named as codes.
fn can_be_codes(tensor: &StoredTensor, pair: &Pair) -> bool {
    let is_plain_name = matches!(pair.family.codes, "" | ".weight");
    let dtypes = pair.family.rows.iter().flat_map(|(layout, _)| layout.codes.dtypes);
    !is_plain_name || dtypes.clone().any(|dtype| tensor.dtype == Some(*dtype))
}

/// True if a tensor of this dtype can be codes, or words of codes, of a quantized weight: parts that differ from plain
/// values.
pub fn can_be_part(dtype: Option<Dtype>) -> bool {
    dtype.is_none_or(|dtype| (1..=8).contains(&dtype.bits()) && dtype != Dtype::Bool || dtype == Dtype::Int32)
}

/// True if a tensor of this name and dtype can be a part of a quantized weight, decoded by tcast or not, so that its
/// config has to be read.
pub fn may_be_quantized(name: &str, dtype: Option<Dtype>) -> bool {
    can_be_part(dtype) || may_be_undecoded(name, dtype)
}

impl Recognized {
    /// Refuses contradictions. The error is the first of the [`Recognized::problems`], with the number of further
    /// problems.
    pub fn check(mut self) -> Result<Self> {
        match self.problems.len() {
            0 => Ok(self),
            count => {
                let first = self.problems.swap_remove(0).error;
                let more = (count > 1).then(|| format!("{} more like this", counted(count as u64 - 1, "problem")));
                Err(Error::with_details(first, more.into_iter().collect()))
            }
        }
    }
}
