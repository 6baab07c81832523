//! The tensors of a Hugging Face model as GGUF names them.

use super::complete::{StoredNames, check_complete, with_mrope};
use super::located::Located;
use super::shapes::{ShapeDivision, head_size};
use super::table::{BIAS, Dimensions, EXPERTS, HeadCount, LinearPart, MODEL_TYPES, ModelType, RowValues};
use super::values::{ExpertCount, LINEAR_HEADS, LinearHeads, MetadataValue, ModelNumbers, unmapped};
use crate::blocks::{Assembly, ValueChange};
use crate::error::{Error, Result};
use crate::text::shorten;
use std::collections::HashMap;

/// A tensor of a model as GGUF names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GgufTensor {
    pub name: String,
    /// Row-major.
    pub shape: Vec<u64>,
    pub source: GgufSource,
}

/// The tensors of Hugging Face that a tensor of a GGUF is made of, by their indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GgufSource {
    Stored(usize),
    /// The matrices of all experts, one after the other.
    Stacked(Vec<usize>),
    /// A source of an assembly whose result is this tensor: the first if `at` is 0, or the second. If the result has fewer
    /// dimensions than the source, it has the rows of all matrices.
    Disassembled {
        tensor: usize,
        assembly: Assembly,
        at: usize,
    },
}

impl GgufSource {
    /// The indices, in the order in which the values follow each other.
    pub(crate) fn tensors(&self) -> &[usize] {
        match self {
            Self::Stored(tensor) | Self::Disassembled { tensor, .. } => std::slice::from_ref(tensor),
            Self::Stacked(tensors) => tensors,
        }
    }

    /// The change of the values of the assembled tensor, which is to be undone.
    pub(crate) fn change(&self) -> ValueChange {
        match self {
            Self::Disassembled { assembly, .. } => assembly.change,
            _ => ValueChange::None,
        }
    }
}

/// Ends of the names of tensors that transformers computes, and that GGUF does not store.
const COMPUTED: [&str; 3] = [".rotary_emb.inv_freq", ".attention.bias", ".masked_bias"];

/// Keys for the number of experts.
const EXPERT_COUNTS: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];

/// Maps all tensors of a model with names of Hugging Face, in their order, to tensors of GGUF, and returns them with the
/// value of `general.architecture`. `config` returns the value of a key of `config.json`, and of `mrope_section` wherever
/// it is; null is no value. `tensors` has names, which are unique, and row-major shapes.
///
/// A stack of experts has the place of the first of them.
pub(crate) fn to_gguf(
    model_type: &str,
    config: &dyn Fn(&str) -> Option<MetadataValue>,
    tensors: &[(&str, &[u64])],
) -> Result<(&'static str, Vec<GgufTensor>)> {
    let model_type = row_of(model_type)?;
    let config = ModelNumbers { place: "config.json", value: config };
    if !model_type.has_sections && config.has("mrope_section") {
        return Err(with_mrope(model_type));
    }
    let (layers, experts) = (config.need("num_hidden_layers")?, ExpertCount::find(&config, &EXPERT_COUNTS)?);
    let mut naming =
        GgufNaming { model_type, config, experts, head_size: None, named: Vec::new(), stacks: HashMap::new() };
    for (index, (name, shape)) in tensors.iter().enumerate() {
        if !COMPUTED.iter().any(|end| name.ends_with(end)) {
            naming.add(index, name, shape, layers).map_err(|error| error.in_tensor(name))?;
        }
    }
    naming.fill_stacks()?;
    let named = naming.named;
    let stored: StoredNames = named.iter().enumerate().map(|(index, tensor)| (tensor.name.as_str(), index)).collect();
    // A checkpoint has either single experts or all of them in a tensor.
    if let Some(twice) = (0..).zip(&named).find(|(index, tensor)| stored[tensor.name.as_str()] != *index) {
        return Err(unmapped("is stored in two forms".to_owned()).in_tensor(&twice.1.name));
    }
    check_complete(model_type, layers, &stored)?;
    let has_experts = named.iter().any(|tensor| tensor.name.contains(EXPERTS));
    let architecture = model_type.with_experts.filter(|_| has_experts).unwrap_or(model_type.architecture);
    Ok((architecture, named))
}

/// Refuses a model type whose names tcast does not have.
pub(crate) fn check_known(model_type: &str) -> Result<()> {
    row_of(model_type).map(drop)
}

fn row_of(model_type: &str) -> Result<&'static ModelType> {
    MODEL_TYPES.iter().find(|row| row.name == model_type).ok_or_else(|| {
        let names: Vec<_> = MODEL_TYPES.iter().map(|row| row.name).collect();
        let name = shorten(model_type);
        let what = format!("tcast has no GGUF names for the model type '{name}', only for {}", names.join(", "));
        Error::new(what).not_in_gguf()
    })
}

fn other_shape(shape: &[u64], name: &str) -> Error {
    unmapped(format!("the shape {shape:?} is not that of llama.cpp's '{name}' in another order"))
}

/// A model whose tensors are being named as in GGUF.
struct GgufNaming<'a> {
    model_type: &'static ModelType,
    config: ModelNumbers<'a>,
    experts: ExpertCount,
    /// Number of rows of each head, as soon as it is known, and the tensor where it comes from. It is known where rows of
    /// heads are permuted.
    head_size: Option<(u64, String)>,
    named: Vec<GgufTensor>,
    /// The experts of each stack by the index of the stack in `named`: their numbers and the indices of their tensors.
    stacks: HashMap<String, (usize, Vec<(u64, usize)>)>,
}

impl GgufNaming<'_> {
    /// Returns the number of heads, and its key.
    fn heads(&self, count: HeadCount) -> Result<(u64, &'static str)> {
        let (queries, keys) = ("num_attention_heads", "num_key_value_heads");
        let key = if count == HeadCount::Keys && self.config.has(keys) { keys } else { queries };
        Ok((self.config.need(key)?, key))
    }

    /// Returns the number of groups of a state space model, if the dimensions of a tensor depend on it.
    fn groups(&self, located: &Located) -> Result<u64> {
        if located.dimensions() == Dimensions::Groups { self.config.need("n_groups") } else { Ok(1) }
    }

    /// Returns the number of heads whose rows are permuted. A wrong number mixes rows of different heads.
    fn permuted_heads(&mut self, located: &Located, shape: &[u64], count: HeadCount) -> Result<u64> {
        let (heads, key) = self.heads(count)?;
        let size = head_size(shape, heads, located.suffix == BIAS, key)?;
        let (first_size, first) = self.head_size.get_or_insert_with(|| (size, located.name(self.model_type)));
        if size != *first_size {
            let message = format!("heads of {size} rows do not fit those of '{first}', which have {first_size}");
            return Err(unmapped(message));
        }
        Ok(heads)
    }

    /// Adds a tensor of Hugging Face under its name in GGUF.
    fn add(&mut self, index: usize, name: &str, shape: &[u64], layers: u64) -> Result<()> {
        let (located, expert) = Located::find_mapped(self.model_type, name)
            .ok_or_else(|| Error::new(format!("has no name in llama.cpp's {}", self.model_type.architecture)))
            .map_err(Error::not_in_gguf)?;
        if let Some(layer) = located.layer.filter(|layer| *layer >= layers) {
            return Err(unmapped(format!("belongs to layer {layer}, but 'num_hidden_layers' is {layers}")));
        }
        match expert {
            Some(expert) => self.add_expert(index, &located, expert, shape),
            None => self.add_tensor(index, &located, shape),
        }
    }

    fn add_expert(&mut self, index: usize, located: &Located, expert: u64, shape: &[u64]) -> Result<()> {
        let name = located.stored();
        let (place, experts) = self.stacks.entry(name.clone()).or_insert_with(|| {
            self.named.push(GgufTensor { name, shape: shape.to_vec(), source: GgufSource::Stacked(Vec::new()) });
            (self.named.len() - 1, Vec::new())
        });
        let first = &self.named[*place].shape;
        if first != shape || shape.len() != 2 {
            return Err(unmapped(format!("the shape {shape:?} is not that of an expert next to one of {first:?}")));
        }
        experts.push((expert, index));
        Ok(())
    }

    /// Completes the stacks, in their order.
    fn fill_stacks(&mut self) -> Result<()> {
        let mut stacks: Vec<_> = std::mem::take(&mut self.stacks).into_values().collect();
        stacks.sort_unstable();
        for (place, mut experts) in stacks {
            experts.sort_unstable();
            let GgufTensor { name, shape, source } = &mut self.named[place];
            if let Some((number, _)) = (0..).zip(&experts).find(|(number, (expert, _))| number != expert) {
                return Err(unmapped(format!("expert {number} is missing")).in_tensor(name));
            }
            let count = experts.len() as u64;
            self.experts.check(count, name).map_err(|error| error.in_tensor(name))?;
            shape.insert(0, count);
            *source = GgufSource::Stacked(experts.into_iter().map(|(_, index)| index).collect());
        }
        Ok(())
    }

    /// Adds a tensor that does not belong to a single expert.
    fn add_tensor(&mut self, index: usize, located: &Located, shape: &[u64]) -> Result<()> {
        let linear = located.row.is_of_linear_attention().then(|| LinearHeads::find(&self.config, LINEAR_HEADS));
        let linear = linear.transpose()?;
        let assembly = located.assembly(self.model_type, linear, |count| self.permuted_heads(located, shape, count))?;
        let Some(assembly) = assembly else {
            let source = GgufSource::Stored(index);
            let name = located.stored();
            let stored = located.dimensions().of_gguf(shape, self.groups(located)?);
            let stored = stored.ok_or_else(|| other_shape(shape, &name))?;
            self.named.push(GgufTensor { name, shape: stored, source });
            return self.check_experts(located, shape);
        };
        let division = match located.row.values {
            RowValues::Flattened(_) => ShapeDivision::Of {
                stack: self.heads(HeadCount::Queries)?.0,
                first: self.config.need("qk_nope_head_dim")?,
                second: self.config.need("v_head_dim")?,
            },
            RowValues::Assembled(_) => ShapeDivision::Halves,
            RowValues::LinearHeads(LinearPart::Projections) => ShapeDivision::Projections,
            _ => ShapeDivision::Dimensions(located.dimensions(), self.groups(located)?),
        };
        for at in 0..located.row.stored.len() {
            let name = Located { at, ..*located }.stored();
            let shape = division.source_shape(&assembly, shape, at).ok_or_else(|| other_shape(shape, &name))?;
            self.check_experts(located, &shape)?;
            self.named.push(GgufTensor {
                name,
                shape,
                source: GgufSource::Disassembled { tensor: index, assembly, at },
            });
        }
        Ok(())
    }

    /// Checks the number of experts of a tensor that has all of them.
    fn check_experts(&mut self, located: &Located, shape: &[u64]) -> Result<()> {
        let count = shape.first().copied().unwrap_or_default();
        if located.is_of_experts() { self.experts.check(count, &located.name(self.model_type)) } else { Ok(()) }
    }
}
