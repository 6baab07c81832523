//! The tensors of a GGUF as Hugging Face names them.
//!
//! Nothing is guessed: an unknown architecture or tensor is an error, and so is a missing weight.

mod complete;
mod located;
mod shapes;
mod table;
#[cfg(test)]
mod tests;

use crate::blocks::{Assembly, RowOrder};
use crate::error::{Error, Kind, Result};
use complete::{StoredNames, check_complete, missing};
use located::Located;
use shapes::{assembled_shape, flattened};
use table::{BIAS, GENERATED, HeadCount, MODEL_TYPES, ModelType, RowValues, WEIGHT};

/// A tensor of a model as Hugging Face names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedTensor {
    pub name: String,
    /// Row-major.
    pub shape: Vec<u64>,
    pub source: MappedSource,
}

/// The stored tensors that a mapped tensor is made of, by their indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MappedSource {
    /// The values of a stored tensor. With `(n, count)` as the matrix, part n of count equal parts, which are adjacent.
    Stored { tensor: usize, matrix: Option<(u64, u64)> },
    /// One or two stored tensors whose values change their places, or change by one.
    Assembled { tensors: Vec<usize>, assembly: Assembly },
}

/// A value of the metadata of a GGUF, as far as names depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataValue {
    Integer(u64),
    /// An array, a text, or a number that is no such integer.
    Other,
}

/// Maximum number of experts in a layer. It bounds the number of names, and is eight times llama.cpp's maximum.
const MAX_EXPERTS: u64 = 4096;

/// Maps all tensors of a GGUF, in their order, to those of Hugging Face. `model_type` is taken from `config.json`, if
/// there is one; otherwise the tensors decide. `metadata` returns the value of a key. `tensors` has names, which are
/// unique, and row-major shapes.
///
/// A tensor of two stored tensors has the place of the one that is named first in the table. Tensors that llama.cpp
/// generates are left out. The scales of NVFP4 weights are renamed along with their weights.
pub(crate) fn to_hugging_face(
    architecture: &str,
    model_type: Option<&str>,
    metadata: &dyn Fn(&str) -> Option<MetadataValue>,
    tensors: &[(&str, &[u64])],
) -> Result<Vec<MappedTensor>> {
    let model_type = choose_type(architecture, model_type, tensors)?;
    let stored = tensors.iter().enumerate().map(|(index, (name, _))| (*name, index)).collect();
    let mut mapping = NameMapping { model_type, metadata, tensors, stored, experts: None };
    let located = mapping.locate()?;
    if mapping.value("rope.dimension_sections").is_some() {
        return Err(unmapped(format!("the rows of heads in {architecture} models with M-RoPE have another order")));
    }
    let layers = mapping.integer("block_count")?;
    let layers = layers.ok_or_else(|| unmapped(format!("the metadata has no '{}'", mapping.key("block_count"))))?;
    // A wrong number of layers explains more than the tensors that are missing because of it.
    if let Some((index, outside)) = located.iter().find(|(_, located)| located.layer >= Some(layers)) {
        let key = mapping.key("block_count");
        let layer = outside.layer.unwrap_or_default();
        return Err(unmapped(format!("belongs to layer {layer}, but '{key}' is {layers}")).in_tensor(tensors[*index].0));
    }
    check_complete(model_type, layers, &mapping.stored)?;
    mapping.experts = mapping.integer("expert_count")?.filter(|count| *count != 0).map(|count| {
        let key = mapping.key("expert_count");
        (count, format!("'{key}' is {count}"))
    });
    let mut mapped = Vec::with_capacity(tensors.len());
    for (index, located) in &located {
        mapping.map(*index, located, &mut mapped).map_err(|error| error.in_tensor(tensors[*index].0))?;
    }
    Ok(mapped)
}

/// Returns the row of the table for a model.
fn choose_type(architecture: &str, model_type: Option<&str>, tensors: &[(&str, &[u64])]) -> Result<&'static ModelType> {
    let types: Vec<_> = MODEL_TYPES.iter().filter(|row| row.architecture == architecture).collect();
    let Some(name) = model_type else {
        // The first of those that know the most names.
        let unknown = |row: &&&ModelType| tensors.iter().filter(|(name, _)| Located::find(row, name).is_none()).count();
        let best = if types.len() > 1 { types.iter().min_by_key(unknown) } else { types.first() };
        return best.copied().ok_or_else(|| unknown_architecture(architecture));
    };
    if types.is_empty() {
        return Err(unknown_architecture(architecture));
    }
    types.iter().copied().find(|row| row.name == name).ok_or_else(|| {
        let names: Vec<_> = types.iter().map(|row| row.name).collect();
        let fitting = names.join(", ");
        let what = format!("the model type '{name}' does not fit the GGUF architecture '{architecture}' of {fitting}");
        Error::new(what).remedy("choose the folder of the model that the file was made from")
    })
}

fn unknown_architecture(architecture: &str) -> Error {
    let mut names: Vec<_> = MODEL_TYPES.iter().map(|row| row.architecture).collect();
    names.dedup();
    let names = names.join(", ");
    unmapped(format!("tcast has no Hugging Face names for the architecture '{architecture}', only for {names}"))
}

fn unmapped(message: String) -> Error {
    Error::new(message).of(Kind::Unmapped)
}

/// A model whose tensors are being named.
struct NameMapping<'a> {
    model_type: &'static ModelType,
    metadata: &'a dyn Fn(&str) -> Option<MetadataValue>,
    tensors: &'a [(&'a str, &'a [u64])],
    stored: StoredNames<'a>,
    /// The number of experts as soon as it is known, and in words where it comes from.
    experts: Option<(u64, String)>,
}

impl NameMapping<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.model_type.architecture)
    }

    fn value(&self, key: &str) -> Option<MetadataValue> {
        (self.metadata)(&self.key(key))
    }

    fn integer(&self, key: &str) -> Result<Option<u64>> {
        match self.value(key) {
            Some(MetadataValue::Integer(value)) => Ok(Some(value)),
            Some(MetadataValue::Other) => {
                Err(unmapped(format!("'{}' of the metadata is not a single integer", self.key(key))))
            }
            None => Ok(None),
        }
    }

    /// Finds all tensors but the generated ones in the table.
    fn locate(&self) -> Result<Vec<(usize, Located)>> {
        let tensors = self.tensors.iter().enumerate().filter(|(_, (name, _))| !GENERATED.contains(name));
        let locate = |(index, (name, _)): (usize, &(&str, _))| {
            let unknown = || unmapped(format!("has no name in Hugging Face's {}", self.model_type.name));
            let located = Located::find(self.model_type, name).ok_or_else(|| unknown().in_tensor(name))?;
            Ok((index, located))
        };
        tensors.map(locate).collect()
    }

    /// Adds what a stored tensor becomes.
    fn map(&mut self, index: usize, located: &Located, mapped: &mut Vec<MappedTensor>) -> Result<()> {
        let (_, shape) = self.tensors[index];
        let weight = Located { suffix: WEIGHT, ..*located };
        if !located.row.is_tensor() && !self.stored.contains_key(weight.stored().as_str()) {
            return Err(missing(&weight, self.model_type, &format!(", but '{}' is there", located.stored())));
        }
        if located.is_of_experts() {
            self.check_experts(index)?;
        }
        match &located.row.values {
            RowValues::Experts => return Self::split(index, located, shape, mapped),
            RowValues::Assembled(_) | RowValues::Flattened(_) if located.at != 0 => return Ok(()),
            _ => {}
        }
        let (shape, source) = match self.assembly(index, located)? {
            None => (shape.to_vec(), MappedSource::Stored { tensor: index, matrix: None }),
            Some(assembly) => {
                let names = (0..located.row.stored.len()).map(|at| Located { at, ..*located }.stored());
                // All of them exist: the check for missing tensors was before.
                let tensors: Vec<usize> = names.filter_map(|name| self.stored.get(name.as_str()).copied()).collect();
                let shapes: Vec<&[u64]> = tensors.iter().map(|tensor| self.tensors[*tensor].1).collect();
                let shape = match located.row.values {
                    RowValues::Flattened(_) => assembled_shape(&assembly, &shapes).and_then(|shape| flattened(&shape)),
                    _ => assembled_shape(&assembly, &shapes),
                };
                let fits =
                    !located.row.is_tensor() || shapes[0].len() == if assembly.rows_are_elements { 2 } else { 3 };
                let shape = shape.filter(|_| fits).ok_or_else(|| {
                    let name = located.name();
                    unmapped(format!("the shapes {shapes:?} do not form Hugging Face's '{name}'"))
                })?;
                (shape, MappedSource::Assembled { tensors, assembly })
            }
        };
        mapped.push(MappedTensor { name: located.name(), shape, source });
        Ok(())
    }

    /// Returns how a tensor is assembled; `None` if it is a stored tensor as it is.
    fn assembly(&self, index: usize, located: &Located) -> Result<Option<Assembly>> {
        if located.is_scale() {
            return Ok(None);
        }
        Ok(match located.row.values {
            RowValues::Heads(count) if self.model_type.permutes_heads => {
                let order = RowOrder::Heads(self.heads(index, located, count)?);
                Some(Assembly { order, rows_are_elements: located.suffix == BIAS, ..Assembly::default() })
            }
            RowValues::Norm if self.model_type.adds_one_to_norms && located.suffix == WEIGHT => {
                Some(Assembly { is_less_one: true, ..Assembly::default() })
            }
            RowValues::Assembled(assembly) | RowValues::Flattened(assembly) => Some(assembly),
            _ => None,
        })
    }

    /// Returns the number of heads whose rows are permuted. It is checked with all that depends on it, because a wrong
    /// number mixes rows of different heads.
    fn heads(&self, index: usize, located: &Located, count: HeadCount) -> Result<u64> {
        let (queries_key, keys_key) = ("attention.head_count", "attention.head_count_kv");
        let queries = self.integer(queries_key)?.ok_or_else(|| {
            unmapped(format!("the metadata has no '{}', on which the order of the rows depends", self.key(queries_key)))
        })?;
        let keys = self.integer(keys_key)?.unwrap_or(queries);
        let (heads, key) = if count == HeadCount::Queries { (queries, queries_key) } else { (keys, keys_key) };
        let shape = self.tensors[index].1;
        let has_dimensions = shape.len() == if located.suffix == BIAS { 1 } else { 2 };
        let rows = shape.first().copied().unwrap_or_default();
        let size = rows.checked_div(heads).unwrap_or_default();
        if !has_dimensions || size == 0 || size % 2 != 0 || size * heads != rows {
            let key = self.key(key);
            return Err(unmapped(format!(
                "the shape {shape:?} is not that of {heads} heads with pairs of rows ('{key}')"
            )));
        }
        // Queries and keys have heads of one size.
        let other = self.stored.get(format!("blk.{}.attn_q.weight", located.layer.unwrap_or_default()).as_str());
        let other_rows = other.and_then(|other| self.tensors[*other].1.first()).copied().unwrap_or_default();
        if other_rows.checked_div(queries) != Some(size) {
            let message = format!("heads of {rows} / {heads} rows do not fit queries of {other_rows} / {queries} rows");
            return Err(unmapped(message));
        }
        Ok(heads)
    }

    /// Checks that all layers have the same number of experts.
    fn check_experts(&mut self, index: usize) -> Result<()> {
        let (name, shape) = self.tensors[index];
        let count = shape.first().copied().unwrap_or_default();
        let (expected, origin) = self.experts.get_or_insert_with(|| (count, format!("'{name}' has {count}")));
        if count != *expected {
            return Err(unmapped(format!("has {count} experts, but {origin}")));
        }
        if count == 0 || count > MAX_EXPERTS {
            return Err(unmapped(format!("has {count} experts; the supported number is 1 to {MAX_EXPERTS}")));
        }
        Ok(())
    }

    /// Adds a tensor for each expert of a stack. The scale of a matrix has one element.
    fn split(index: usize, located: &Located, shape: &[u64], mapped: &mut Vec<MappedTensor>) -> Result<()> {
        let is_scale = located.is_scale();
        if shape.len() != if is_scale { 1 } else { 3 } {
            let wanted = if is_scale { "a scale for each expert" } else { "a stack of matrices" };
            return Err(unmapped(format!("the shape {shape:?} is not that of {wanted}")));
        }
        let name = located.name();
        for expert in 0..shape[0] {
            mapped.push(MappedTensor {
                name: name.replace('*', &expert.to_string()),
                shape: if is_scale { vec![1] } else { shape[1..].to_vec() },
                source: MappedSource::Stored { tensor: index, matrix: Some((expert, shape[0])) },
            });
        }
        Ok(())
    }
}
