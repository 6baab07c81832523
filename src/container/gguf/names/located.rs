//! A tensor of a GGUF in the table of names.

use super::table::{
    Alternatives, BIAS, Dimensions, EXPERTS, HeadCount, LinearPart, ModelType, NameRow, Need, RowValues, SUFFIXES,
    WEIGHT,
};
use super::values::LinearHeads;
use crate::blocks::{Assembly, RowOrder, ValueChange};
use crate::error::Result;

/// The place of a stored tensor in the table of names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    /// `None` for tensors outside of the layers.
    pub layer: Option<u64>,
    pub row: &'static NameRow,
    /// Index in the names of the row.
    pub at: usize,
    /// Suffix of the tensor of a module; empty if the row has the whole name.
    pub suffix: &'static str,
}

impl Located {
    /// Returns the place of a stored tensor; `None` if the model type has no such tensor.
    pub(super) fn find(model_type: &ModelType, name: &str) -> Option<Self> {
        let Some(rest) = name.strip_prefix("blk.") else { return Self::among(model_type.model, None, name) };
        let (number, rest) = rest.split_once('.')?;
        let layer = as_number(number)?;
        all_rows(model_type.layer).find_map(|rows| Self::among(rows, Some(layer), rest))
    }

    fn among(rows: &'static [NameRow], layer: Option<u64>, name: &str) -> Option<Self> {
        rows.iter().find_map(|row| {
            row.stored.iter().enumerate().find_map(|(at, stored)| {
                let rest = name.strip_prefix(stored)?;
                let suffix = if row.is_tensor() { "" } else { SUFFIXES.into_iter().find(|suffix| *suffix == rest)? };
                let is_found = rest == suffix && row.need(suffix) != Need::Never;
                is_found.then_some(Self { layer, row, at, suffix })
            })
        })
    }

    /// Returns the place of a tensor that is named as in Hugging Face, and the number of its expert; `None` if the model
    /// type has no such tensor. Scales have no place, because their names are not Hugging Face's.
    pub(super) fn find_mapped(model_type: &ModelType, name: &str) -> Option<(Self, Option<u64>)> {
        let layered = name.strip_prefix(model_type.layers).and_then(|rest| rest.split_once('.'));
        let Some((number, rest)) = layered else { return Self::among_mapped(model_type.model, None, name) };
        let layer = as_number(number)?;
        all_rows(model_type.layer).find_map(|rows| Self::among_mapped(rows, Some(layer), rest))
    }

    fn among_mapped(rows: &'static [NameRow], layer: Option<u64>, name: &str) -> Option<(Self, Option<u64>)> {
        rows.iter().find_map(|row| {
            let (expert, rest) = match row.name.split_once('*') {
                None => (None, name.strip_prefix(row.name)?),
                Some((before, after)) => {
                    let numbered = name.strip_prefix(before)?;
                    let (number, rest) = numbered.split_at(numbered.find('.')?);
                    (Some(as_number(number)?), rest.strip_prefix(after)?)
                }
            };
            let suffix =
                if row.is_tensor() { "" } else { [WEIGHT, BIAS].into_iter().find(|suffix| *suffix == rest)? };
            let is_found = rest == suffix && row.need(suffix) != Need::Never;
            is_found.then_some((Self { layer, row, at: 0, suffix }, expert))
        })
    }

    /// The first tensor of a row: its weight, unless the row has whole names.
    pub(super) fn first(layer: Option<u64>, row: &'static NameRow) -> Self {
        Self { layer, row, at: 0, suffix: if row.is_tensor() { "" } else { WEIGHT } }
    }

    /// Returns the name in GGUF.
    pub(super) fn stored(&self) -> String {
        let prefix = self.layer.map(|layer| format!("blk.{layer}.")).unwrap_or_default();
        format!("{prefix}{}{}", self.row.stored[self.at], self.suffix)
    }

    /// Returns the name in Hugging Face, in which `*` stands for the number of an expert.
    pub(super) fn name(&self, model_type: &ModelType) -> String {
        let prefix = self.layer.map(|layer| format!("{}{layer}.", model_type.layers)).unwrap_or_default();
        format!("{prefix}{}{}", self.row.name, self.suffix)
    }

    /// Returns the relation to the stored tensors if values change their places, or change by one; `None` if the tensor is a
    /// stored tensor as it is. `heads` returns the number of heads whose rows are permuted, and `linear` has the heads of
    /// linear attention if the row belongs to one.
    pub(super) fn assembly(
        &self,
        model_type: &ModelType,
        linear: Option<LinearHeads>,
        heads: impl FnOnce(HeadCount) -> Result<u64>,
    ) -> Result<Option<Assembly>> {
        if self.is_scale() {
            return Ok(None);
        }
        Ok(match self.row.values {
            RowValues::Heads(count) if model_type.permutes_heads => {
                let order = RowOrder::Heads(heads(count)?);
                Some(Assembly { order, rows_are_elements: self.suffix == BIAS, ..Assembly::default() })
            }
            RowValues::Norm if model_type.adds_one_to_norms && self.suffix == WEIGHT => {
                Some(Assembly { change: ValueChange::LessOne, ..Assembly::default() })
            }
            RowValues::Assembled(assembly) | RowValues::Flattened(assembly) => Some(assembly),
            RowValues::LinearHeads(part) => {
                linear.map(|heads| part.assembly(heads)).filter(|assembly| *assembly != Assembly::default())
            }
            RowValues::Logarithms(_) => Some(Assembly { change: ValueChange::LogOfNegative, ..Assembly::default() }),
            _ => None,
        })
    }

    /// The relation of the dimensions in GGUF to those in Hugging Face.
    pub(super) fn dimensions(&self) -> Dimensions {
        match self.row.values {
            RowValues::Reshaped(dimensions) | RowValues::Logarithms(dimensions) => dimensions,
            RowValues::LinearHeads(LinearPart::Channels) => Dimensions::Channels,
            _ => Dimensions::Same,
        }
    }

    /// True if the first dimension counts experts.
    pub(super) fn is_of_experts(&self) -> bool {
        self.row.stored[self.at].contains(EXPERTS)
    }

    /// True if the tensor is a scale next to a weight.
    pub(super) fn is_scale(&self) -> bool {
        !["", WEIGHT, BIAS].contains(&self.suffix)
    }
}

impl LinearPart {
    /// The assembly of a tensor of linear attention with these heads.
    fn assembly(self, heads: LinearHeads) -> Assembly {
        let LinearHeads { keys, each, key_size, value_size } = heads;
        let has_keys = matches!(self, Self::KeysAndValues | Self::Channels);
        let start = if has_keys { 2 * keys * key_size } else { 0 };
        let order = match self {
            Self::Projections => RowOrder::Projections { heads: keys, key: key_size, value: each * value_size },
            // With one value head for each key head, both orders are equal.
            _ if each == 1 => RowOrder::Stored,
            _ => RowOrder::Groups { start, groups: keys, each },
        };
        let are_columns = self == Self::Columns && each != 1;
        Assembly {
            first_is_transposed: are_columns,
            order,
            rows_are_elements: matches!(self, Self::Elements | Self::Logarithms) && each != 1,
            is_transposed: are_columns,
            change: if self == Self::Logarithms { ValueChange::LogOfNegative } else { ValueChange::None },
        }
    }
}

impl NameRow {
    /// True if the order of its values depends on the heads of linear attention.
    pub(super) fn is_of_linear_attention(&self) -> bool {
        matches!(self.values, RowValues::LinearHeads(_))
    }

    /// Returns the need for the tensor with a suffix.
    pub(super) fn need(&self, suffix: &str) -> Need {
        match suffix {
            "" | WEIGHT => self.weight,
            BIAS => self.bias,
            _ if matches!(self.values, RowValues::Norm) => Need::Never,
            _ => Need::Optional,
        }
    }
}

/// Returns the number in a part of a name; `None` if it is not written in the usual way.
fn as_number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

fn all_rows(layer: &'static [Alternatives]) -> impl Iterator<Item = &'static [NameRow]> {
    layer.iter().copied().flatten().copied()
}
