//! Embeddings and output heads: one weight in memory, if config.json says so, of which a file can hold copies.

use super::names::BaseNames;
use crate::error::{Error, Result};
use crate::select::KeptReason;
use crate::select::experts::ModelFacts;
use crate::select::policy::Policy;
use crate::text::shorten;

/// The embeddings and the output heads of a base.
pub(super) struct TiedWeights {
    /// The indices of the stored tensors.
    tables: Vec<usize>,
    heads: Vec<usize>,
    /// True if config.json ties them; `None` if it says nothing, and the class of the model decides.
    are_tied: Option<bool>,
}

impl TiedWeights {
    /// Finds them by their names.
    pub(super) fn new(base: &BaseNames, facts: &ModelFacts) -> Self {
        let policy = Policy { layers: facts.layers, is_diffusion: false, heads: facts.heads() };
        let (mut tables, mut heads) = (Vec::new(), Vec::new());
        for (at, tensor) in base.tensors.iter().enumerate().filter(|(_, tensor)| tensor.weight.is_none()) {
            match policy.reason(tensor.name(), false) {
                Some(KeptReason::Embedding) => tables.push(at),
                Some(KeptReason::Head) => heads.push(at),
                _ => {}
            }
        }
        Self { tables, heads, are_tied: facts.ties_head }
    }

    /// True if a tensor is the embeddings, and the output head too, which has no tensor.
    pub(super) fn is_head_too(&self, at: usize, base: &BaseNames) -> bool {
        let is_table = |name: &str| name.ends_with("embed_tokens.weight") || name.ends_with("wte.weight");
        self.heads.is_empty() && self.are_tied != Some(false) && is_table(base.tensors[at].name())
    }

    /// Returns the copies of a tensor: what adds to it in memory adds to them. Others have values of their own, and then
    /// transformers does not tie them.
    pub(super) fn copies(&self, at: usize, base: &BaseNames) -> Result<Vec<usize>> {
        let all = || self.tables.iter().chain(&self.heads).copied();
        if self.are_tied == Some(false) || self.heads.is_empty() || !all().any(|own| own == at) {
            return Ok(Vec::new());
        }
        let tensor = |at: usize| Some((base.tensors[at], base.tensors[at].stored()?.mapped()?));
        let is_copy = |other: usize| {
            let (Some((own, bytes)), Some((other, others))) = (tensor(at), tensor(other)) else { return Ok(false) };
            Ok((own.dtype(), own.shape()) == (other.dtype(), other.shape()) && bytes.is_equal(&others)?)
        };
        let mut copies = Vec::new();
        for other in all().filter(|other| *other != at) {
            if is_copy(other)? {
                copies.push(other);
            }
        }
        match copies.first().filter(|_| self.are_tied.is_none()) {
            Some(copy) => {
                let (name, copy) = (base.tensors[at].name(), shorten(base.tensors[*copy].name()));
                let what =
                    format!("has the values of '{copy}', and config.json does not say whether they are one weight");
                Err(Error::new(what).in_tensor(name).remedy("set tie_word_embeddings in config.json"))
            }
            None => Ok(copies),
        }
    }
}
