//! The names of a model's tensors: from its file, or from Hugging Face, whose checkpoints also have other shapes and
//! orders of rows.

use super::{CONFIG, Checkpoint};
use crate::blocks::Assembly;
use crate::container::gguf::names::{MappedSource, MappedTensor, MetadataValue, ORIGINAL_MODEL, to_hugging_face};
use crate::container::gguf::sizes::{SizeDifference, size_difference};
use crate::container::json::{as_json, members};
use crate::container::{Input, Tensor};
use crate::error::{Error, Opt, Result};
use crate::io::advice::give_described;
use crate::io::output::directory_of;
use crate::text::{path_text, shorten};
use serde_json::Value;
use std::path::Path;

/// Kind of the names of tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Naming {
    /// The names in the file
    #[default]
    File,
    /// The names of Hugging Face's transformers
    #[cfg_attr(feature = "cli", value(name = "huggingface"))]
    HuggingFace,
}

/// A tensor of the model that is made of stored tensors, whose values change their order.
pub struct AssembledTensor {
    pub name: String,
    pub shape: Vec<u64>,
    /// The shard of each stored tensor, and its index there.
    pub parts: Vec<(usize, usize)>,
    pub assembly: Assembly,
}

impl Checkpoint {
    /// Refuses a root or a rank for inputs that have none.
    ///
    /// # Errors
    /// When no file is a checkpoint of PyTorch, or has ranks.
    pub(crate) fn with_root(self, root: Option<&str>, take_rank: Option<u64>) -> Result<Self> {
        if take_rank.is_some() && !self.has_ranks() {
            let error = Error::usage("is not a folder with a file for each rank, and only these have ranks");
            return Err(error.in_file(&self.path).without(Opt::TAKE_RANK));
        }
        if root.is_some() && self.shards.iter().all(|shard| shard.contents.pickle.is_none()) {
            let error = Error::usage("is not a checkpoint of PyTorch, and only these have a root");
            return Err(error.in_file(&self.path).without(Opt::ROOT));
        }
        Ok(self)
    }

    /// Gives the tensors of a model these names. Without a request, the tensors of a GGUF keep their names. `base` is the
    /// folder of the original model.
    ///
    /// # Errors
    /// When the architecture is not known, a tensor has no such name or is missing, or the folder cannot be read.
    pub(crate) fn named(mut self, names: Option<Naming>, base: Option<&Path>) -> Result<Self> {
        let is_gguf = self.is_gguf();
        if let Some(base) = base {
            if !self.is_distributed() && (!is_gguf || names != Some(Naming::HuggingFace)) {
                let message = "the config of another folder works only with a distributed checkpoint, or with a GGUF input and \
                               names of Hugging Face";
                return Err(Error::usage(message).in_file(&self.path).without(Opt::CONFIG));
            }
            if !base.join(CONFIG).is_file() {
                let error = Error::new("is not a folder with a config.json").in_file(base);
                let is_config = base.is_file() && base.file_name().is_some_and(|name| name == CONFIG);
                return Err(if is_config { error.remedy(give_described(directory_of(base))) } else { error });
            }
            self.base = Some(base.to_owned());
        }
        if is_gguf && names == Some(Naming::HuggingFace) {
            self.naming = Naming::HuggingFace;
            self.use_names_of_hugging_face()?;
        }
        Ok(self)
    }

    /// True if Hugging Face may have other names for tensors of this model.
    pub(crate) fn has_other_names(&self) -> bool {
        self.is_gguf() || self.is_of_mlx()
    }

    /// Divides the stacks of experts of MLX, unless the names of the file are requested. Other tensors of MLX have the names
    /// of Hugging Face already.
    ///
    /// # Errors
    /// When Hugging Face has no name for a tensor.
    pub(crate) fn with_single_experts(mut self, names: Option<Naming>) -> Result<Self> {
        if names != Some(Naming::File) {
            self.divide_stacks()?;
        }
        Ok(self)
    }

    fn use_names_of_hugging_face(&mut self) -> Result<()> {
        self.shards.iter_mut().try_for_each(Input::require_readable)?;
        let config = match &self.base {
            Some(_) => self.side_file(CONFIG)?,
            None => None,
        };
        let model_type = config.and_then(model_type);
        let Some(first) = self.shards.first() else { return Ok(()) };
        let in_file = |error: Error| error.in_file(&self.path);
        let Some(architecture) = first.contents.value("general.architecture") else {
            let what = "does not name its architecture, which determines the names of Hugging Face";
            return Err(in_file(Error::new(what).keeping_names()));
        };
        let places: Vec<(usize, usize)> = (self.shards.iter().enumerate())
            .flat_map(|(shard, input)| (0..input.contents.tensors.len()).map(move |at| (shard, at)))
            .collect();
        let tensor = |at: usize| &self.shards[places[at].0].contents.tensors[places[at].1];
        let tensors: Vec<(&str, &[u64])> =
            (0..places.len()).map(|at| (&*tensor(at).name, &*tensor(at).shape)).collect();
        let is_list = |key: &str| first.contents.lists.iter().any(|(name, _)| name == key);
        let number = |key: &str| match first.contents.value(key) {
            Some(value) => Some(value.parse().map_or(MetadataValue::Other, MetadataValue::Integer)),
            None => is_list(key).then_some(MetadataValue::List),
        };
        let mapped = to_hugging_face(architecture, model_type.as_deref(), &number, &tensors).map_err(in_file)?;
        if let (Some(base), Some(config)) = (&self.base, config) {
            check_sizes((&base.join(CONFIG), config), (&self.path, architecture), &number)?;
        }
        let mut shards: Vec<Vec<Tensor>> = self.shards.iter().map(|_| Vec::new()).collect();
        let mut assembled = Vec::new();
        for MappedTensor { name, shape, source } in mapped {
            match source {
                MappedSource::Stored { tensor: at, matrix } => {
                    let whole = tensor(at);
                    let stored = matrix.map_or_else(|| whole.clone(), |(number, count)| whole.part(number, count));
                    shards[places[at].0].push(Tensor { name: name.into(), shape: shape.into(), ..stored });
                }
                MappedSource::Assembled { tensors, assembly } => {
                    let parts = tensors.into_iter().map(|at| {
                        let shard = &mut shards[places[at].0];
                        shard.push(tensor(at).clone());
                        (places[at].0, shard.len() - 1)
                    });
                    assembled.push(AssembledTensor { name, shape, parts: parts.collect(), assembly });
                }
            }
        }
        for (shard, tensors) in self.shards.iter_mut().zip(shards) {
            shard.contents.tensors = tensors;
        }
        self.assembled = assembled;
        Ok(())
    }
}

/// Refuses a config whose sizes differ from those in the metadata of a GGUF.
fn check_sizes(
    (path, config): (&Path, &str),
    (gguf, architecture): (&Path, &str),
    number: &dyn Fn(&str) -> Option<MetadataValue>,
) -> Result<()> {
    let Ok(config) = serde_json::from_str::<Value>(&as_json(config)) else { return Ok(()) };
    let inner = config.get("text_config").unwrap_or(&Value::Null);
    let of_config =
        |name: &str| MetadataValue::of_config(inner, name).or_else(|| MetadataValue::of_config(&config, name));
    match size_difference(architecture, &of_config, number) {
        Some(SizeDifference { config: (name, of_config), gguf: (key, of_gguf) }) => {
            let gguf = shorten(&path_text(gguf));
            let what = format!("describes another model: it has {name} {of_config}, and {gguf} has {key} {of_gguf}");
            Err(Error::new(what).in_file(path).remedy(ORIGINAL_MODEL))
        }
        None => Ok(()),
    }
}

/// Returns the `model_type` of a config; of the language model if the config describes several models.
pub(crate) fn model_type(config: &str) -> Option<String> {
    let json = as_json(config);
    let outer = members(&json)?;
    let inner = outer.get("text_config").and_then(|inner| members(inner.get())).unwrap_or_default();
    serde_json::from_str(inner.get("model_type").or_else(|| outer.get("model_type"))?.get()).ok()
}
