//! The quantized weights of a GGUF model: the type of a tensor says that it consists of blocks.

use super::Model;
use crate::blocks::{Assembly, BlockFormat};
use crate::container::Elements;
use crate::container::checkpoint::AssembledTensor;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::quant::{BlockParameters, FoundWeight, GGUF, Parameters, Problem, Recognized, Role};
use crate::text::shorten;
use std::collections::{HashMap, HashSet};

impl Model<'_> {
    /// Finds the tensors that consist of blocks, with the scales that belong to them, and the tensors that are made of
    /// others.
    pub(super) fn recognize_blocks(&self) -> Recognized {
        let places: HashMap<(usize, usize), usize> = self.places.iter().copied().zip(0..).collect();
        let assembled: HashMap<usize, &AssembledTensor> =
            self.source.assembled.iter().map(|tensor| (places[&tensor.parts[0]], tensor)).collect();
        let sources: HashSet<usize> =
            self.source.assembled.iter().flat_map(|tensor| &tensor.parts).map(|part| places[part]).collect();
        let names: HashMap<&str, usize> = self.tensors.iter().map(|tensor| tensor.name).zip(0..).collect();
        let mut found = Recognized::default();
        for at in 0..self.tensors.len() {
            let weight = match (assembled.get(&at), self.format(at)) {
                (Some(tensor), _) => {
                    let parts: Vec<usize> = tensor.parts.iter().map(|part| places[part]).collect();
                    self.weight_of_blocks(&tensor.name, &tensor.shape, &parts, tensor.assembly, &names)
                }
                (None, Some(_)) if self.is_of_blocks(at) && !sources.contains(&at) => {
                    let stored = self.tensors[at];
                    self.weight_of_blocks(stored.name, stored.shape, &[at], Assembly::default(), &names)
                }
                _ => continue,
            };
            found.weights.push(weight);
        }
        let parts: HashSet<usize> = found.weights.iter().flat_map(|weight| &weight.parts).map(|(_, at)| *at).collect();
        for at in (0..self.tensors.len()).filter(|at| !parts.contains(at)) {
            let name = self.tensors[at].name;
            let scaled = scaled_by(name).filter(|scaled| names.get(&**scaled).is_some_and(|of| self.is_of_blocks(*of)));
            match scaled {
                Some(scaled) => {
                    let scaled = shorten(&scaled);
                    let what =
                        format!("is named as a scale of '{scaled}', to which no known reader of GGUF files applies it");
                    found.orphans.push(at);
                    found.add(Problem { tensors: vec![at], error: Error::new(what).in_tensor(name) });
                }
                None => found.plain.push(at),
            }
        }
        let activations = found.weights.iter().flat_map(|weight| &weight.parts);
        found.activation_scales =
            activations.filter(|(role, _)| *role == Role::Activation).map(|(_, at)| *at).collect();
        found
    }

    /// Returns the names of the weights that can be decoded, and of tensors that are left out.
    pub(crate) fn decodable_names(&self) -> Vec<String> {
        let weights = self.found.weights.iter().map(|weight| weight.name.clone());
        let plain = self.plain_weights().into_iter().map(|weight| weight.name);
        weights.chain(plain).chain(self.source.left_out.iter().cloned()).collect()
    }

    /// Returns the plain tensors of floats as weights, which can be decoded to another type; empty for other models.
    pub(crate) fn plain_weights(&self) -> Vec<FoundWeight> {
        if !self.source.is_gguf() {
            return Vec::new();
        }
        let names = HashMap::new();
        let floats = self.found.plain.iter().filter(|at| self.tensors[**at].dtype.is_some_and(Dtype::is_floating));
        let weight = |&at: &usize| {
            let stored = self.tensors[at];
            self.format(at)
                .map(|_| self.weight_of_blocks(stored.name, stored.shape, &[at], Assembly::default(), &names))
        };
        floats.filter_map(weight).collect()
    }

    fn is_of_blocks(&self, at: usize) -> bool {
        matches!(self.stored(at).elements, Elements::Blocks(_))
    }

    /// Returns the format of a stored tensor; plain numbers have one too.
    fn format(&self, at: usize) -> Option<&'static BlockFormat> {
        match self.stored(at).elements {
            Elements::Blocks(format) => Some(format),
            elements => BlockFormat::plain(elements.dtype()?),
        }
    }

    /// Returns the weight that consists of stored tensors; `names` has the indices of all tensors.
    fn weight_of_blocks(
        &self,
        name: &str,
        shape: &[u64],
        codes: &[usize],
        assembly: Assembly,
        names: &HashMap<&str, usize>,
    ) -> FoundWeight {
        let mut parts: Vec<(Role, usize)> =
            [Role::Codes, Role::OtherCodes].into_iter().zip(codes.iter().copied()).collect();
        let stem = name.strip_suffix(".weight");
        // A scale of the tensor, or of each of its matrices. An NVFP4 weight is wrong without its scale, whatever it is.
        let matrices: u64 = shape[..shape.len().saturating_sub(2)].iter().product();
        let is_scale = |at: usize| {
            let (tensor, count) = (self.tensors[at], self.stored(at).tensor.count);
            let is_usual = tensor.dtype == Some(Dtype::Float32) && (count == 1 || count == matrices);
            is_usual || self.format(codes[0]).is_some_and(|format| format.has_global_scale)
        };
        for &(role, suffix) in GGUF.names[0].iter().filter(|(role, _)| *role != Role::Codes) {
            let part = stem.and_then(|stem| names.get(&*format!("{stem}{suffix}")));
            parts.extend(part.filter(|part| is_scale(**part)).map(|part| (role, *part)));
        }
        let formats = codes.iter().filter_map(|at| self.format(*at)).collect();
        let blocks = BlockParameters { formats, assembly };
        let parameters = Parameters { blocks: Some(blocks), shape: Some(shape.to_vec()), ..Parameters::default() };
        let module = stem.unwrap_or(name).to_owned();
        FoundWeight { name: name.to_owned(), module, layout: &GGUF, parameters, shape: shape.to_vec(), parts }
    }
}

/// Returns the name of the weight to which a scale belongs by its name, if it is not named as in llama.cpp: `x.weight` for
/// `x.weight.scale`, `x.weight_scale` and `x.scale_weight`.
fn scaled_by(name: &str) -> Option<String> {
    let (stem, last) = name.rsplit_once('.').filter(|(_, last)| last.contains("scale"))?;
    if stem.ends_with(".weight") {
        return Some(stem.to_owned());
    }
    let is_known = ["scale", "input_scale"].contains(&last);
    (!is_known).then(|| format!("{stem}.weight"))
}
