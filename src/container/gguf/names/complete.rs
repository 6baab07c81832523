//! A check that a file has all tensors of a model.

use super::located::Located;
use super::table::{Alternatives, BIAS, ModelType, NameRow, Need};
use super::values::unmapped;
use crate::error::{Error, Result};
use std::collections::HashMap;

/// The names of a file, with the index of each tensor.
pub(super) type StoredNames<'a> = HashMap<&'a str, usize>;

/// Returns an error for the first tensor that a model lacks. Work is limited by the number of tensors, not of layers,
/// because every layer needs a tensor.
pub(super) fn check_complete(model_type: &'static ModelType, layers: u64, stored: &StoredNames) -> Result<()> {
    let mut check = Completeness { model_type, stored, optional: HashMap::new() };
    check.rows(None, model_type.model)?;
    for layer in 0..layers {
        for alternatives in model_type.layer {
            let rows = check.choose(layer, alternatives)?;
            check.rows(Some(layer), rows)?;
        }
    }
    Ok(())
}

/// Returns the error for a model that rotates its heads in sections.
pub(super) fn with_mrope(model_type: &ModelType) -> Error {
    unmapped(format!("the rows of heads in {} models with M-RoPE have another order", model_type.architecture))
}

/// Returns the error for a tensor that a file lacks.
pub(super) fn missing(located: &Located, model_type: &ModelType, why: &str) -> Error {
    let message =
        format!("is missing{why}; in Hugging Face's {} it is '{}'", model_type.name, located.name(model_type));
    unmapped(message).in_tensor(&located.stored())
}

struct Completeness<'a> {
    model_type: &'static ModelType,
    stored: &'a StoredNames<'a>,
    /// The first tensor that may be missing in all layers, and whether the file has it, by the name of its row and suffix.
    optional: HashMap<(&'static str, &'static str), (Located, bool)>,
}

impl Completeness<'_> {
    fn has(&self, located: &Located) -> bool {
        self.stored.contains_key(located.stored().as_str())
    }

    /// Returns the list of rows that a layer has.
    fn choose(&self, layer: u64, alternatives: Alternatives) -> Result<&'static [NameRow]> {
        let firsts = |rows: &'static [NameRow]| rows.iter().map(|row| Located::first(Some(layer), row));
        let mut present =
            alternatives.iter().filter_map(|rows| Some((*rows, firsts(rows).find(|first| self.has(first))?)));
        match (present.next(), present.next()) {
            (Some((_, first)), Some((_, second))) => {
                let message = format!("cannot be in the same layer as '{}'", first.stored());
                Err(unmapped(message).in_tensor(&second.stored()))
            }
            (Some((rows, _)), None) => Ok(rows),
            (None, _) => Ok(alternatives[0]),
        }
    }

    fn rows(&mut self, layer: Option<u64>, rows: &'static [NameRow]) -> Result<()> {
        for row in rows {
            for at in 0..row.stored.len() {
                let tensor = Located { at, ..Located::first(layer, row) };
                if self.tensor(tensor, row.weight)? && !row.is_tensor() {
                    self.tensor(Located { suffix: BIAS, ..tensor }, row.bias)?;
                }
            }
        }
        Ok(())
    }

    /// Checks one tensor, and returns true if the file has it.
    fn tensor(&mut self, tensor: Located, need: Need) -> Result<bool> {
        let has = need != Need::Never && self.has(&tensor);
        if need == Need::Always && !has {
            return Err(missing(&tensor, self.model_type, ""));
        }
        if need == Need::Optional {
            let key = (tensor.row.stored[tensor.at], tensor.suffix);
            let (other, had) = *self.optional.entry(key).or_insert((tensor, has));
            if had != has {
                let (lacking, having) = if has { (other, tensor) } else { (tensor, other) };
                let why = format!(", but '{}' is there", having.stored());
                return Err(missing(&lacking, self.model_type, &why));
            }
        }
        Ok(has)
    }
}
