//! Another GGUF of a language model, which describes the new one.

use super::keys::{self, KeySource};
use super::rope;
use crate::container::gguf::part_paths;
use crate::container::{self, ComputedTensor, Elements, Input, Tensor};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::progress::GgufNote;
use crate::quant::gguf::language;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Largest relative difference between factors that two programs compute by the same rule.
const TOLERANCE: f32 = 1e-4;

/// A GGUF that gives its metadata to a new file, with its other parts.
pub(super) struct Donor {
    /// The first of them has the keys.
    parts: Vec<Input>,
    /// The number of parts that were not found. Their tensors are unknown.
    missing: usize,
}

impl Donor {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut donor = Self { parts: vec![keys::open(path)?], missing: 0 };
        for part in part_paths(&donor.parts[0]).iter().skip(1) {
            if part.is_file() {
                donor.parts.push(container::probe(part)?);
            } else {
                donor.missing += 1;
            }
        }
        Ok(donor)
    }

    /// The file with the keys.
    pub(super) fn source(&self) -> KeySource<'_> {
        KeySource(&self.parts[0])
    }

    fn tensors(&self) -> impl Iterator<Item = (&Input, &Tensor)> {
        self.parts.iter().flat_map(|part| part.contents.tensors.iter().map(move |tensor| (part, tensor)))
    }

    /// Refuses the metadata of a model with tensors of other shapes, or with another number of tokens. llama.cpp
    /// compares the shapes with the metadata, and does not load such a file.
    pub(super) fn check_tensors(&self, new: &HashMap<&str, &[u64]>) -> Result<()> {
        let tokens = self.source().tokens().filter(|tokens| *tokens > 0);
        for name in language::OF_TOKENS {
            let rows = new.get(name).and_then(|shape| shape.first());
            if let (Some(tokens), Some(rows)) = (tokens, rows.filter(|rows| Some(**rows) != tokens)) {
                return Err(self.source().other_model(&format!("has {tokens} tokens, and the model {rows}")));
            }
        }
        let is_long = |length: &&u64| **length != 1;
        for (_, tensor) in self.tensors() {
            let Some(shape) = new.get(&*tensor.name) else { continue };
            if !tensor.shape.iter().filter(is_long).eq(shape.iter().filter(is_long)) {
                let (name, own) = (&tensor.name, &tensor.shape);
                return Err(self.source().other_model(&format!("has {name} {own:?}, and the model {shape:?}")));
            }
        }
        Ok(())
    }

    /// Returns the factors of rotary embeddings that the new file needs. The factors of the donor count, if they are those
    /// of the config up to roundings.
    pub(super) fn rope_tensors(
        &self,
        config: &Value,
        architecture: &str,
        notes: &mut Vec<GgufNote>,
    ) -> Result<Vec<ComputedTensor>> {
        let computed = rope::computed(config, architecture)?;
        let mut all = Vec::new();
        for name in rope::NAMES {
            let wanted = computed.iter().find(|tensor| tensor.name == name).map(|tensor| &tensor.values);
            let own = self.factors(name)?;
            if let (Some(wanted), Some(own)) = (wanted, &own)
                && !are_near(wanted, own)
            {
                let what = format!("has other factors in {name} than config.json describes");
                return Err(self.source().other_model(&what));
            }
            let (donor, is_described) = (own.as_ref().map(|_| self.path()), wanted.is_some());
            let Some(values) = own.or(wanted.cloned()) else { continue };
            notes.push(GgufNote::Factors { name, donor, is_described });
            all.push(ComputedTensor { name, values });
        }
        Ok(all)
    }

    /// Returns the values of a vector of float32; `None` if the donor does not have it.
    fn factors(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some((part, tensor)) = self.tensors().find(|(_, tensor)| &*tensor.name == name) else { return Ok(None) };
        let is_float32 = tensor.elements.dtype() == Some(Dtype::Float32) && tensor.shape.len() == 1;
        let Some((file, range)) = tensor.mapped_range().filter(|_| is_float32) else {
            return Err(self.source().other_model(&format!("has {name} in a form that llama.cpp does not load")));
        };
        let values = part.files[file][range].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        Ok(Some(values.collect()))
    }

    /// Describes the tensors that the new file does not have.
    pub(super) fn left_out(&self, new: &HashMap<&str, &[u64]>, computed: &[ComputedTensor]) -> Vec<GgufNote> {
        let new: HashSet<&str> = new.keys().copied().chain(computed.iter().map(|tensor| tensor.name)).collect();
        let quantized: HashSet<&str> = self
            .tensors()
            .filter(|(_, tensor)| matches!(tensor.elements, Elements::Blocks(_)))
            .filter_map(|(_, tensor)| tensor.name.strip_suffix(".weight"))
            .collect();
        // Scales of quantized weights go with the weights.
        let is_scale = |name: &str| {
            let stem = name.strip_suffix(".scale").or_else(|| name.strip_suffix(".input_scale"));
            stem.is_some_and(|stem| quantized.contains(stem))
        };
        let unreadable =
            self.parts.iter().flat_map(|part| part.contents.unreadable.iter().filter_map(|error| error.tensor()));
        let all = self.tensors().map(|(_, tensor)| &*tensor.name).chain(unreadable);
        let lost = all.filter(|name| !new.contains(name) && !is_scale(name)).map(str::to_owned);
        let lost: Vec<String> = lost.collect();
        let lost = (!lost.is_empty()).then(|| GgufNote::DonorTensorsLeftOut(self.path(), lost));
        let missing = (self.missing > 0).then(|| GgufNote::DonorPartsMissing(self.path(), self.missing));
        lost.into_iter().chain(missing).collect()
    }

    fn path(&self) -> PathBuf {
        self.parts[0].path().to_owned()
    }
}

/// True if two lists have the same values up to roundings.
fn are_near(one: &[f32], other: &[f32]) -> bool {
    let is_near = |(one, other): (&f32, &f32)| (one - other).abs() <= TOLERANCE * one.abs();
    one.len() == other.len() && one.iter().zip(other).all(is_near)
}
