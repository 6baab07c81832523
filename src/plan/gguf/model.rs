//! The tensors of a new GGUF file, and the tensors of the input that they are made of.
//!
//! The input is a GGUF, whose tensors keep their names; a language model with the names of Hugging Face, and the keys of
//! another GGUF or those made from its folder; or a diffusion model, which keeps its names without their prefix.

use super::super::gathered::GatheredRows;
use super::donor::Donor;
use super::keys::{KeySource, facts_of};
use super::rope;
use crate::blocks::{BlockFormat, ValueChange};
use crate::container::gguf::metadata::{Config, FolderMetadata, MetadataFacts, of_folder};
use crate::container::gguf::names::{
    GgufSource, GgufTensor, MetadataValue, check_known, language_name, other_part, to_gguf,
};
use crate::container::gguf::{list_length, number_or_first};
use crate::container::{ARCHITECTURE, ComputedTensor, GgufKey};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::options::{GgufOptions, Naming};
use crate::progress::GgufNote;
use crate::quant::FoundWeight;
use crate::quant::gguf::diffusion::{self, DiffusionRefusal, prefix_of};
use crate::quant::gguf::language::{self, LanguageModel};
use crate::quant::gguf::{Architecture, GgufScheme, TypeChoice, Undetected, table_shape};
use crate::read::Model;
use crate::text::shorten;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Architectures whose embeddings lose the rows of tokens that the tokenizer does not have.
const CUT_TO_TOKENS: [&str; 2] = ["gemma3", "gemma4"];

/// The model that a new file describes.
pub(super) struct GgufModel<'m> {
    pub tensors: Vec<NewWeight<'m>>,
    /// Tensors that the input does not have.
    pub computed: Vec<ComputedTensor>,
    /// Its keys, without those about its types.
    pub keys: Vec<GgufKey>,
    pub rules: TypeRules<'m>,
    pub notes: Vec<GgufNote>,
}

/// A tensor with its name and shape in the input, and later in the new file.
pub(super) struct NewWeight<'m> {
    pub name: String,
    /// Row-major.
    pub shape: Vec<u64>,
    pub origin: WeightOrigin<'m>,
    /// The type of its values; `None` if tcast does not know it.
    pub dtype: Option<Dtype>,
    /// The type if it is not quantized; `None` for the type that it has.
    pub unquantized: Option<&'static BlockFormat>,
}

/// The origin of the values of a tensor, by indices of stored tensors.
#[derive(Clone)]
pub(super) enum WeightOrigin<'m> {
    Stored(usize),
    /// A weight that is quantized in the input.
    Coded(&'m FoundWeight),
    /// The rows of one or several tensors in another order.
    Gathered {
        sources: Vec<usize>,
        rows: Arc<GatheredRows>,
        /// The change that is undone.
        change: ValueChange,
    },
}

/// The rules by which the types of tensors are chosen.
pub(super) enum TypeRules<'m> {
    /// The rules of llama.cpp, for a model with these facts.
    Language(LanguageModel<'m>),
    /// The rules of `ComfyUI-GGUF`, for an architecture.
    Diffusion(&'static Architecture),
}

impl TypeRules<'_> {
    /// Chooses the type of each tensor.
    pub(super) fn choose(&self, scheme: &GgufScheme, tensors: &[(&str, &[u64])]) -> Result<Vec<TypeChoice>> {
        match self {
            Self::Language(model) => {
                // The rules count weights in the order of the file.
                let mut order: Vec<usize> = (0..tensors.len()).collect();
                order.sort_by_key(|at| language::place(tensors[*at].0));
                let ordered: Vec<(&str, &[u64])> = order.iter().map(|at| tensors[*at]).collect();
                let choices = language::choose(scheme, model, &ordered)?;
                let mut by_place: Vec<(usize, TypeChoice)> = order.into_iter().zip(choices).collect();
                by_place.sort_unstable_by_key(|(at, _)| *at);
                Ok(by_place.into_iter().map(|(_, choice)| choice).collect())
            }
            Self::Diffusion(architecture) => architecture.choose(scheme, tensors).map_err(|refusal| {
                let why = match refusal {
                    DiffusionRefusal::NeedsImportance => "needs an importance matrix, which only language models have",
                    DiffusionRefusal::IqType => "is a type that ComfyUI does not load",
                };
                Error::usage(format!("the scheme {} {why}", scheme.name))
                    .with(Opt::SCHEME, "choose q4_k_m or another scheme")
            }),
        }
    }

    /// Returns the type that is stored for a wanted one, in rows of this many columns.
    pub(super) fn fit(&self, wanted: &'static BlockFormat, columns: u64) -> TypeChoice {
        match self {
            Self::Language(_) => language::fit(wanted, columns),
            Self::Diffusion(_) => diffusion::fit(wanted, columns),
        }
    }
}

impl NewWeight<'_> {
    /// Returns its new name, and its name in the input.
    pub(super) fn names<'n>(&'n self, input: &'n Model) -> [&'n str; 2] {
        [&self.name, self.source_name(input)]
    }

    /// Returns its name in the input, if one tensor has its values; otherwise its new name.
    pub(super) fn source_name<'n>(&'n self, input: &'n Model) -> &'n str {
        match &self.origin {
            WeightOrigin::Stored(at) => input.tensors[*at].name,
            WeightOrigin::Coded(weight) => &weight.name,
            WeightOrigin::Gathered { sources, .. } if sources.len() == 1 => input.tensors[sources[0]].name,
            WeightOrigin::Gathered { .. } => &self.name,
        }
    }
}

/// Returns the tensors of the input with their names and shapes there, without scales and other parts of weights.
pub(super) fn tensors_of<'m>(input: &'m Model) -> Result<Vec<NewWeight<'m>>> {
    let mut tensors = Vec::new();
    for tensor in input.model_tensors(&[]) {
        let (name, shape) = (tensor.name().to_owned(), tensor.shape().to_vec());
        let (origin, dtype) = match tensor.weight {
            Some(weight) => (WeightOrigin::Coded(weight), Some(Dtype::Float32)),
            None if input.stored(tensor.at).is_plain() => (WeightOrigin::Stored(tensor.at), tensor.dtype()),
            None => {
                let error = Error::new("GGUF files are made from .safetensors and .gguf files").in_tensor(&name);
                return Err(error.remedy("cast the input to .safetensors first"));
            }
        };
        tensors.push(NewWeight { name, shape, origin, dtype, unquantized: None });
    }
    Ok(tensors)
}

impl<'m> GgufModel<'m> {
    /// Returns llama.cpp's number for the type that most weights have; `None` if there is none.
    pub(super) fn file_type(&self) -> Option<u32> {
        let mut counts: HashMap<&str, u64> = HashMap::new();
        for tensor in self.tensors.iter().filter(|tensor| tensor.shape.len() > 1) {
            let stored = match &tensor.origin {
                WeightOrigin::Coded(weight) => weight.parameters.blocks.as_ref().map(|blocks| blocks.formats[0]),
                WeightOrigin::Stored(_) | WeightOrigin::Gathered { .. } => tensor.dtype.and_then(BlockFormat::plain),
            };
            if let Some(format) = tensor.unquantized.or(stored) {
                *counts.entry(format.name).or_default() += tensor.shape.iter().product::<u64>();
            }
        }
        let (name, _) = counts.into_iter().max_by_key(|(name, count)| (*count, *name))?;
        GgufScheme::find(name)?.file_type
    }

    pub(super) fn new(input: &'m Model, options: &GgufOptions) -> Result<Self> {
        let source = input.source;
        if source.is_gguf() {
            if source.naming == Naming::HuggingFace {
                let error = Error::usage("a GGUF file has its own names, and not those of Hugging Face");
                return Err(error.without(Opt::NAMES));
            }
            if options.metadata_from.is_some() {
                return Err(Error::usage("is a GGUF file, which has metadata").without(Opt::METADATA_FROM));
            }
            if options.pre_tokenizer.is_some() {
                return Err(Error::usage("is a GGUF file, which has metadata").without(Opt::PRE_TOKENIZER));
            }
            return Self::of_gguf(input, options);
        }
        if input.is_onnx_model() {
            return Err(Error::new("is an ONNX model, from which no GGUF file is made"));
        }
        if source.update_of_other_model().is_some() {
            let error = Error::new("is an adapter, and a GGUF file needs the whole model").in_file(&source.path);
            let say = "merge it into its model: name the model in its place, and add {}; llama.cpp's convert_lora_to_gguf.py \
                       makes a GGUF of the adapter alone";
            return Err(error.with_value(Opt::LORA, &source.path, say));
        }
        let config = input.config()?.and_then(Config::of);
        let given = options.pre_tokenizer.as_deref();
        match (&options.metadata_from, config) {
            (Some(_), _) if options.architecture.is_some() => {
                Err(Error::usage("the metadata of a GGUF names its architecture").without(Opt::ARCHITECTURE))
            }
            (Some(_), _) if given.is_some() => {
                Err(Error::usage("the metadata of a GGUF names its pre-tokenizer").without(Opt::PRE_TOKENIZER))
            }
            (Some(donor), Some(config)) => Self::of_donor(input, &config, &Donor::open(donor)?),
            (Some(donor), None) => {
                Donor::open(donor)?;
                Err(Error::new("has no config.json that names the type of the model"))
            }
            (None, Some(config)) if options.architecture.is_none() && check_known(config.model_type()).is_ok() => {
                Self::of_folder(input, &config, given)
            }
            _ if given.is_some() => {
                let error = Error::usage("is not a language model of a known type, which has a pre-tokenizer");
                Err(error.without(Opt::PRE_TOKENIZER))
            }
            _ => Self::of_diffusion_model(input, options),
        }
    }

    /// The model of a GGUF, with its keys.
    fn of_gguf(input: &'m Model, options: &GgufOptions) -> Result<Self> {
        let source = KeySource(&input.source.shards[0]);
        let architecture = match &options.architecture {
            Some(_) if source.architecture().is_ok() => {
                return Err(Error::usage("is a GGUF file, which names its architecture").without(Opt::ARCHITECTURE));
            }
            Some(name) => {
                let names: Vec<&str> = input.tensors.iter().map(|tensor| tensor.name).collect();
                let prefix = prefix_of(&names).unwrap_or_default();
                architecture_of(name, &names.iter().map(|name| name.strip_prefix(prefix).unwrap_or(name)).collect())?
                    .name
            }
            None => source.architecture()?,
        };
        let diffusion = Architecture::find(architecture);
        let reshaped = source.reshaped();
        let mut tensors = tensors_of(input)?;
        for NewWeight { name, shape, .. } in &mut tensors {
            let is_reshaped = reshaped.contains(&**name);
            let stored = diffusion.and_then(|architecture| architecture.reshaped(shape));
            let count: u64 = shape.iter().product();
            // The table has rows of 256, or of a block of 32.
            let row = [256, 32].into_iter().find(|row| count.is_multiple_of(*row) && shape.len() < 5);
            *shape = match (stored, diffusion) {
                (Some(stored), _) if is_reshaped => stored.to_vec(),
                _ if is_reshaped && row.is_some() => row.map_or_else(Vec::new, |row| vec![count / row, row]),
                (_, Some(architecture)) => architecture.table_shape(name, shape).to_vec(),
                (_, None) => table_shape(shape, 1).to_vec(),
            };
        }
        let rules = match diffusion {
            Some(architecture) => TypeRules::Diffusion(architecture),
            None => TypeRules::Language(source.facts(architecture)),
        };
        let mut keys = source.keys()?;
        if options.architecture.is_some() {
            keys.retain(|key| key.name != ARCHITECTURE);
            keys.insert(0, GgufKey::text(ARCHITECTURE, architecture));
        }
        Ok(Self { tensors, computed: Vec::new(), keys, rules, notes: Vec::new() })
    }

    /// A language model of Hugging Face, with the keys of another GGUF of it.
    fn of_donor(input: &'m Model, config: &Config, donor: &Donor) -> Result<Self> {
        let number = |key: &str| config.stored_number(key);
        let named = NamedModel::new(input, config, &number)?;
        let (source, architecture) = (donor.source(), named.architecture);
        source.check_architecture(architecture)?;
        source.check_sizes(architecture, &number)?;
        let (tensors, mut notes) = named.into_weights(source.tokens().unwrap_or_default())?;
        let shapes: HashMap<&str, &[u64]> = tensors.iter().map(|new| (&*new.name, &*new.shape)).collect();
        donor.check_tensors(&shapes)?;
        let computed = donor.rope_tensors(&config.to_value(), architecture, &mut notes)?;
        notes.extend(donor.left_out(&shapes, &computed));
        let rules = TypeRules::Language(source.facts(architecture));
        Ok(Self { tensors, computed, keys: source.keys()?, rules, notes })
    }

    /// A language model of Hugging Face, with the keys of its folder and the pre-tokenizer that is given.
    fn of_folder(input: &'m Model, config: &Config, pre_tokenizer: Option<&str>) -> Result<Self> {
        let named = NamedModel::new(input, config, &|key| config.known_number(key))?;
        let architecture = named.architecture;
        let FolderMetadata { keys, tokenizer } = named.metadata(input, config, pre_tokenizer)?;
        let (tensors, mut notes) = named.into_weights(tokenizer.tokens)?;
        let computed = rope::computed(&config.to_value(), architecture)?;
        let factors =
            |tensor: &ComputedTensor| GgufNote::Factors { name: tensor.name, donor: None, is_described: true };
        notes.extend(computed.iter().map(factors));
        let facts = facts_of_keys(architecture, &keys);
        let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
        let is_untied = config.flag("tie_word_embeddings") == Some(false);
        if is_untied && has(language::EMBEDDING) && !has(language::OUTPUT) {
            notes.push(GgufNote::NoHead);
        }
        notes.insert(0, GgufNote::Made(MetadataFacts { architecture, layers: facts.layers, tokenizer }));
        Ok(Self { tensors, computed, keys, rules: TypeRules::Language(facts), notes })
    }
}

/// A language model of Hugging Face, with the names of GGUF.
struct NamedModel<'m> {
    /// The tensors of the language model alone.
    old: Vec<NewWeight<'m>>,
    architecture: &'static str,
    /// The tensors of the new file. Their sources are indices in `old`.
    tensors: Vec<GgufTensor>,
}

impl<'m> NamedModel<'m> {
    /// Names the tensors of a model. `number` returns the value of a key of the config.
    fn new(input: &'m Model, config: &Config, number: &dyn Fn(&str) -> Option<MetadataValue>) -> Result<Self> {
        let mut old = tensors_of(input)?;
        old.retain(|tensor| other_part(&tensor.name, number).is_none());
        let own: Vec<Cow<str>> = old.iter().map(|tensor| language_name(&tensor.name)).collect();
        let named: Vec<(&str, &[u64])> = own.iter().zip(&old).map(|(name, tensor)| (&**name, &*tensor.shape)).collect();
        // The names of the file are of no help here.
        let refused = |error: Error| {
            if error.advice().iter().any(|advice| advice.sets(Opt::NAMES)) { error.unadvised() } else { error }
        };
        let (architecture, tensors) = to_gguf(config.model_type(), number, &named).map_err(refused)?;
        Ok(Self { old, architecture, tensors })
    }

    /// Returns the tensors of the new file, without the rows of tokens that a tokenizer of this many tokens does not have.
    /// With 0 tokens, no rows are left out.
    fn into_weights(self, tokens: u64) -> Result<(Vec<NewWeight<'m>>, Vec<GgufNote>)> {
        let Self { old, architecture, tensors: named } = self;
        let (mut tensors, mut notes) = (Vec::with_capacity(named.len()), Vec::new());
        for tensor in named {
            let first = tensor.source.tensors()[0];
            let dtype = old[first].dtype;
            let mut shape = tensor.shape.clone();
            let origin = match &tensor.source {
                GgufSource::Stored(_) => old[first].origin.clone(),
                source => {
                    let stored = source.tensors().iter().map(|at| match old[*at].origin {
                        WeightOrigin::Stored(at) => Ok(at),
                        _ => Err(Error::new("is quantized: tcast cannot reorder the rows of a quantized weight")
                            .in_tensor(&old[*at].name)
                            .in_blocks()),
                    });
                    let sources = stored.collect::<Result<Vec<usize>>>()?;
                    let len = old[first].shape.iter().product();
                    let width = dtype.map_or(4, |dtype| dtype.bits() as usize / 8);
                    let rows = Arc::new(GatheredRows::new(&tensor.source, &tensor.shape, len, width));
                    WeightOrigin::Gathered { sources, rows, change: tensor.source.change() }
                }
            };
            // Cuts the rows of other tokens, as llama.cpp's converter does for gemma3.
            if let Some(rows) = shape.first_mut().filter(|rows| is_cut(architecture, &tensor.name, **rows, tokens)) {
                notes.push(GgufNote::RowsLeftOut { table: tensor.name.clone(), rows: *rows - tokens, tokens });
                *rows = tokens;
            }
            let shape = table_shape(&shape, 1).to_vec();
            let is_float32 = language::is_float32(&tensor.name, shape.len()) && dtype.is_some_and(Dtype::is_floating);
            let unquantized = if is_float32 { BlockFormat::plain(Dtype::Float32) } else { None };
            tensors.push(NewWeight { name: tensor.name, shape, origin, dtype, unquantized });
        }
        Ok((tensors, notes))
    }

    /// Makes the keys from the folder. Refuses a tokenizer with another number of tokens than the model has rows, which
    /// llama.cpp does not load.
    fn metadata(&self, input: &Model, config: &Config, pre_tokenizer: Option<&str>) -> Result<FolderMetadata> {
        let architecture = self.architecture;
        let shapes: Vec<(&str, &[u64])> = self.tensors.iter().map(|tensor| (&*tensor.name, &*tensor.shape)).collect();
        let made = of_folder(input.source.config_folder(), config, architecture, &shapes, pre_tokenizer)?;
        let tokens = made.tokenizer.tokens;
        for name in language::OF_TOKENS {
            let shape = shapes.iter().find(|(known, _)| *known == name).map(|(_, shape)| *shape);
            let rows = shape.and_then(|shape| shape.first().copied()).unwrap_or(tokens);
            if rows != tokens && !is_cut(architecture, name, rows, tokens) {
                let what = format!("has a tokenizer of {tokens} tokens, and {name} has {rows} rows");
                return Err(Error::new(what).with_metadata());
            }
        }
        self.check_sizes(&made.keys)?;
        Ok(made)
    }

    /// Refuses keys with other sizes than the tensors have, with which llama.cpp does not load them.
    fn check_sizes(&self, keys: &[GgufKey]) -> Result<()> {
        let number = |key: &str| {
            let name = format!("{}.{key}", self.architecture);
            // A list has a number for each layer.
            let value = &keys.iter().find(|known| known.name == name)?.value;
            number_or_first(value).filter(|_| list_length(value).is_none())
        };
        let wrong = |what: String| {
            let error = Error::new(format!("its config.json does not describe its tensors: {what}"));
            Err(error.remedy("download config.json and the tensors of the same model"))
        };
        let sizes = [("embedding_length", language::EMBEDDING), ("feed_forward_length", "ffn_down.weight")];
        for (key, end) in sizes {
            let columns = |tensor: &&GgufTensor| match (tensor.name.strip_suffix(end), &tensor.shape[..]) {
                (Some(start), &[_, columns]) if start.is_empty() || start.starts_with("blk.") => Some(columns),
                _ => None,
            };
            let Some(length) = number(key) else { continue };
            let other = self.tensors.iter().find(|tensor| columns(tensor).is_some_and(|columns| columns != length));
            if let Some(GgufTensor { name, shape, .. }) = other {
                return wrong(format!("{name} has the shape {shape:?}, and {key} is {length}"));
            }
        }
        let has_experts = || self.tensors.iter().any(|tensor| tensor.name.contains("_exps."));
        match number("expert_count") {
            Some(experts @ 1..) if !has_experts() => wrong(format!("expert_count is {experts}, and there are none")),
            _ => Ok(()),
        }
    }
}

/// Returns the architecture that the user names, if a model with these tensors can be of it.
pub(super) fn architecture_of(name: &str, tensors: &HashSet<&str>) -> Result<&'static Architecture> {
    let architecture = Architecture::find(name).ok_or_else(|| {
        let (name, known) = (shorten(name), known_names());
        Error::usage(format!("tcast has no rules for the architecture '{name}', only for {known}"))
    })?;
    let wrong = |what: String| Error::usage(what).without(Opt::ARCHITECTURE);
    architecture.check(tensors).map_err(|why| match why {
        Undetected::Diffusers(_) => undetected(why),
        Undetected::Other(other) => wrong(format!("the tensors are those of {}, not of {name}", other.name)),
        Undetected::Unknown => {
            let missing = architecture.key_names().join(" and ");
            wrong(format!("the model is not of the architecture {name}, which has tensors such as {missing}"))
        }
    })?;
    Ok(architecture)
}

/// Returns the error for a model whose architecture was not detected.
pub(super) fn undetected(why: Undetected) -> Error {
    match why {
        Undetected::Diffusers(architecture) | Undetected::Other(architecture) => {
            let what = format!(
                "is a model of {} in the layout of Diffusers, whose names no reader of GGUF knows",
                architecture.name
            );
            Error::new(what).remedy("convert the original checkpoint of the model")
        }
        Undetected::Unknown => {
            let what = format!("not a recognized diffusion model ({}), and there is no GGUF metadata", known_names());
            Error::new(what).with_keys()
        }
    }
}

fn known_names() -> String {
    Architecture::names().collect::<Vec<_>>().join(", ")
}

/// True for a table that loses the rows of tokens that the tokenizer does not have.
fn is_cut(architecture: &str, name: &str, rows: u64, tokens: u64) -> bool {
    CUT_TO_TOKENS.contains(&architecture) && name == language::EMBEDDING && (1..rows).contains(&tokens)
}

/// Returns the facts about a language model that its types depend on.
fn facts_of_keys(architecture: &'static str, keys: &[GgufKey]) -> LanguageModel<'static> {
    facts_of(architecture, &|key: &str| number_or_first(&keys.iter().find(|known| known.name == key)?.value))
}

/// Describes the metadata that a GGUF file gets from the folder of a language model, or the first thing that it lacks;
/// `None` for other inputs. Reads no tensors.
#[cfg(feature = "cli")]
pub(crate) fn folder_metadata(input: &Model) -> Option<Result<MetadataFacts>> {
    if input.source.folder.is_none() || input.source.is_gguf() || input.is_onnx_model() {
        return None;
    }
    let config = input.config().ok().flatten().and_then(Config::of)?;
    Some(metadata_facts(input, &config))
}

#[cfg(feature = "cli")]
fn metadata_facts(input: &Model, config: &Config) -> Result<MetadataFacts> {
    if check_known(config.model_type()).is_err() {
        let what = format!("tcast has no GGUF names for the model type '{}'", shorten(config.model_type()));
        return Err(Error::new(what).not_in_gguf());
    }
    let named = NamedModel::new(input, config, &|key| config.known_number(key))?;
    let architecture = named.architecture;
    let made = named.metadata(input, config, None)?;
    rope::computed(&config.to_value(), architecture)?;
    let layers = facts_of_keys(architecture, &made.keys).layers;
    Ok(MetadataFacts { architecture, layers, tokenizer: made.tokenizer })
}
