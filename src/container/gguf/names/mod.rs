//! The tensors of a GGUF as Hugging Face names them, and the reverse.
//!
//! Nothing is guessed: an unknown architecture or tensor is an error, and so is a missing weight.

mod complete;
mod located;
mod parts;
mod shapes;
mod table;
#[cfg(test)]
mod tests;
mod to_gguf;
mod values;

use crate::blocks::Assembly;
use crate::error::{Error, Result};
use complete::{StoredNames, check_complete, missing, with_mrope};
use located::Located;
pub(crate) use parts::{OtherPart, language_name, other_part};
use shapes::{assembled_shape, flattened, head_size};
use table::{BIAS, GENERATED, HeadCount, MODEL_TYPES, ModelType, RowValues, WEIGHT};
pub(crate) use to_gguf::{GgufSource, GgufTensor, check_known, to_gguf};
pub(crate) use values::MetadataValue;
use values::{ExpertCount, LinearHeads, ModelNumbers, unmapped};

/// The remedy for a `config.json` of another model.
pub(crate) const ORIGINAL_MODEL: &str = "choose the folder of the model that the file was made from";

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
    /// One or two stored tensors whose values change their places, or change.
    Assembled { tensors: Vec<usize>, assembly: Assembly },
}

/// Maps all tensors of a GGUF, in their order, to tensors of Hugging Face. `model_type` is taken from `config.json`, if
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
    let architecture =
        model_type.architectures().find(|known| *known == architecture).unwrap_or(model_type.architecture);
    let stored = tensors.iter().enumerate().map(|(index, (name, _))| (*name, index)).collect();
    let numbers = ModelNumbers { place: "the metadata", value: metadata };
    let mut mapping =
        NameMapping { model_type, architecture, numbers, tensors, stored, experts: ExpertCount::default() };
    let located = mapping.locate()?;
    if !model_type.has_sections && mapping.numbers.has(&mapping.key("rope.dimension_sections")) {
        return Err(with_mrope(model_type));
    }
    let layers = mapping.numbers.need(&mapping.key("block_count"))?;
    // A wrong number of layers explains more than the tensors that are missing because of it.
    if let Some((index, outside)) = located.iter().find(|(_, located)| located.layer >= Some(layers)) {
        let key = mapping.key("block_count");
        let layer = outside.layer.unwrap_or_default();
        return Err(unmapped(format!("belongs to layer {layer}, but '{key}' is {layers}")).in_tensor(tensors[*index].0));
    }
    check_complete(model_type, layers, &mapping.stored)?;
    mapping.experts = ExpertCount::find(&mapping.numbers, &[&mapping.key("expert_count")])?;
    let mut mapped = Vec::with_capacity(tensors.len());
    for (index, located) in &located {
        mapping.map(*index, located, &mut mapped).map_err(|error| error.in_tensor(tensors[*index].0))?;
    }
    Ok(mapped)
}

/// Returns the row of the table for a model.
fn choose_type(architecture: &str, model_type: Option<&str>, tensors: &[(&str, &[u64])]) -> Result<&'static ModelType> {
    let types: Vec<_> =
        MODEL_TYPES.iter().filter(|row| row.architectures().any(|known| known == architecture)).collect();
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
        Error::new(what).remedy(ORIGINAL_MODEL)
    })
}

fn unknown_architecture(architecture: &str) -> Error {
    let mut names: Vec<_> = MODEL_TYPES.iter().flat_map(ModelType::architectures).collect();
    names.dedup();
    let names = names.join(", ");
    unmapped(format!("tcast has no Hugging Face names for the architecture '{architecture}', only for {names}"))
}

/// A model whose tensors are being named.
struct NameMapping<'a> {
    model_type: &'static ModelType,
    architecture: &'static str,
    numbers: ModelNumbers<'a>,
    tensors: &'a [(&'a str, &'a [u64])],
    stored: StoredNames<'a>,
    experts: ExpertCount,
}

impl NameMapping<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
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

    /// Adds the tensors of Hugging Face that a stored tensor becomes.
    fn map(&mut self, index: usize, located: &Located, mapped: &mut Vec<MappedTensor>) -> Result<()> {
        let (_, shape) = self.tensors[index];
        let weight = Located { suffix: WEIGHT, ..*located };
        if !located.row.is_tensor() && !self.stored.contains_key(weight.stored().as_str()) {
            return Err(missing(&weight, self.model_type, &format!(", but '{}' is there", located.stored())));
        }
        if located.is_of_experts() {
            self.experts.check(shape.first().copied().unwrap_or_default(), self.tensors[index].0)?;
        }
        match &located.row.values {
            RowValues::Experts => return self.split(index, located, shape, mapped),
            RowValues::Assembled(_) | RowValues::Flattened(_) | RowValues::LinearHeads(_) if located.at != 0 => {
                return Ok(());
            }
            _ => {}
        }
        let linear = located.row.is_of_linear_attention().then(|| self.linear_heads()).transpose()?;
        let assembly = located.assembly(self.model_type, linear, |count| self.heads(index, located, count))?;
        let (shape, source) = match assembly {
            None => {
                let shape = match located.dimensions() {
                    _ if located.is_scale() => shape.to_vec(),
                    dimensions => dimensions.of_hugging_face(shape),
                };
                (shape, MappedSource::Stored { tensor: index, matrix: None })
            }
            Some(assembly) => {
                let names = (0..located.row.stored.len()).map(|at| Located { at, ..*located }.stored());
                // All of them exist: the check for missing tensors was before.
                let tensors: Vec<usize> = names.filter_map(|name| self.stored.get(name.as_str()).copied()).collect();
                let shapes: Vec<&[u64]> = tensors.iter().map(|tensor| self.tensors[*tensor].1).collect();
                let shape = assembled_shape(&assembly, &shapes).and_then(|shape| match located.row.values {
                    RowValues::Flattened(_) => flattened(&shape),
                    _ => Some(located.dimensions().of_hugging_face(&shape)),
                });
                let is_stack = matches!(located.row.values, RowValues::Assembled(_) | RowValues::Flattened(_));
                let fits = !is_stack
                    || !located.row.is_tensor()
                    || shapes[0].len() == if assembly.rows_are_elements { 2 } else { 3 };
                let shape = shape.filter(|_| fits).ok_or_else(|| {
                    let name = located.name(self.model_type);
                    unmapped(format!("the shapes {shapes:?} do not form Hugging Face's '{name}'"))
                })?;
                (shape, MappedSource::Assembled { tensors, assembly })
            }
        };
        mapped.push(MappedTensor { name: located.name(self.model_type), shape, source });
        Ok(())
    }

    /// Returns the heads of linear attention. The metadata has the rows of all value heads.
    fn linear_heads(&self) -> Result<LinearHeads> {
        let keys = ["ssm.group_count", "ssm.time_step_rank", "ssm.state_size", "ssm.inner_size"];
        let [keys, values, key_size, rows] = keys.map(|key| self.numbers.need(&self.key(key)));
        let (values, rows) = (values?, rows?);
        let size = rows.checked_div(values).filter(|size| size * values == rows).unwrap_or_default();
        LinearHeads::of([keys?, values, key_size?, size], self.numbers.place)
    }

    /// Returns the number of heads whose rows are permuted. It is checked with all that depends on it, because a wrong
    /// number mixes rows of different heads.
    fn heads(&self, index: usize, located: &Located, count: HeadCount) -> Result<u64> {
        let [queries_key, keys_key] = ["attention.head_count", "attention.head_count_kv"].map(|key| self.key(key));
        let queries = self.numbers.need(&queries_key)?;
        let shape = self.tensors[index].1;
        // Queries and keys have heads of one size.
        let other = self.stored.get(format!("blk.{}.attn_q.weight", located.layer.unwrap_or_default()).as_str());
        let other_rows = other.and_then(|other| self.tensors[*other].1.first()).copied().unwrap_or_default();
        let keys = match (self.numbers.value)(&keys_key) {
            // The number of each layer, which follows from the rows.
            Some(MetadataValue::List) => {
                let rows = shape.first().copied().unwrap_or_default();
                other_rows.checked_div(queries).and_then(|size| rows.checked_div(size)).unwrap_or_default()
            }
            _ => self.numbers.find(&keys_key)?.unwrap_or(queries),
        };
        let (heads, key) = if count == HeadCount::Queries { (queries, queries_key) } else { (keys, keys_key) };
        let size = head_size(shape, heads, located.suffix == BIAS, &key)?;
        if other_rows.checked_div(queries) != Some(size) {
            let heads = format!("heads of {} / {heads} rows", shape[0]);
            return Err(unmapped(format!("{heads} do not fit queries of {other_rows} / {queries} rows")));
        }
        Ok(heads)
    }

    /// Adds a tensor for each expert of a stack. The scale of a matrix has one element.
    fn split(&self, index: usize, located: &Located, shape: &[u64], mapped: &mut Vec<MappedTensor>) -> Result<()> {
        let is_scale = located.is_scale();
        if shape.len() != if is_scale { 1 } else { 3 } {
            let wanted = if is_scale { "a scale for each expert" } else { "a stack of matrices" };
            return Err(unmapped(format!("the shape {shape:?} is not that of {wanted}")));
        }
        let name = located.name(self.model_type);
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
