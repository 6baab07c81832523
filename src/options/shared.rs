//! Options that several operations have, and the way in which they are serialized.

#[cfg(feature = "cli")]
use super::parsers;
use crate::container::ReadOptions;
use crate::container::checkpoint::{self, Checkpoint, Naming};
use crate::dtype::Dtype;
use crate::error;
use crate::select::{Pattern, Rename, Selection};
use serde::{Serialize, Serializer};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Choice of tensors by their names, which patterns match.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[non_exhaustive]
pub struct TensorOptions {
    /// Only tensors whose name matches; repeatable
    ///
    /// The others are copied.
    #[serde(serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GLOB"))]
    pub include: Vec<Pattern>,

    /// Skip tensors whose name matches; repeatable
    #[serde(serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GLOB"))]
    pub exclude: Vec<Pattern>,

    /// Do not fail if a pattern matches no tensor
    ///
    /// A warning names it.
    #[serde(skip)]
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true))]
    pub allow_unmatched: bool,

    /// Another name for a tensor in the output; repeatable
    ///
    /// A * in OLD matches any characters, and the * in NEW stands for them: 'model.language_model.*=model.*'. The first
    /// match wins. '_orig_mod.*=*' and 'module.*=*' remove prefixes that torch.compile and data parallelism add. The parts
    /// of a quantized weight and the lists of its config follow.
    #[allow(clippy::doc_markdown, reason = "the help shows the text as it is")]
    #[serde(rename = "renames", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "OLD=NEW", hide_short_help = true))]
    pub rename: Vec<Rename>,

    /// Names of the tensors of a GGUF model.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub naming: NamingOptions,

    /// Read opaque bytes (V1, u1, U8) as this type
    ///
    /// For elements whose type the file does not name. The type must have the same width.
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "DTYPE", help_heading = "Input and output", display_order = 500)
    )]
    pub from: Option<Dtype>,
}

impl TensorOptions {
    /// Returns the selection of the tensors, with their new names and without new types.
    pub(crate) fn selection(&self) -> Selection {
        let Self { include, exclude, rename, .. } = self.clone();
        Selection { include, exclude, renames: rename, ..Selection::default() }
    }

    /// True if the patterns leave out a tensor that has all of these names.
    pub(crate) fn leaves_out(&self, names: &[&str]) -> bool {
        let matches_any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches_one(names));
        !self.include.is_empty() && !matches_any(&self.include) || matches_any(&self.exclude)
    }
}

/// Help of `--root`.
#[cfg(feature = "cli")]
pub(crate) const ROOT: &str =
    "PyTorch checkpoints: only the tensors under these keys, joined by dots; . for all tensors";
#[cfg(feature = "cli")]
pub(crate) const ROOT_NOTE: &str =
    "PyTorch checkpoints: only the tensors under these keys, joined by dots; . for all tensors

Without it, tcast takes the tensors of the only dict under a usual key: state_dict, model, params, ...";

/// Help of `--take-rank`.
#[cfg(feature = "cli")]
pub(crate) const TAKE_RANK: &str =
    "Files of ranks: where ranks have other values of a whole tensor, take those of this rank";
#[cfg(feature = "cli")]
pub(crate) const TAKE_RANK_NOTE: &str =
    "Files of ranks: where ranks have other values of a whole tensor, take those of this rank

Statistics of BatchNorm can differ for good reasons. Without it, tcast refuses a difference. Divided tensors are never \
taken from one rank.";

/// Names of the tensors of a GGUF model, and the root of a PyTorch checkpoint.
// A heading of the struct would also apply to the arguments that follow it in a command.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[non_exhaustive]
pub struct NamingOptions {
    /// GGUF and MLX models: the names of tensors, as in the file or as on Hugging Face
    ///
    /// Names of Hugging Face come with its shapes: experts are separate, and rows of attention are in its order. A GGUF
    /// becomes a checkpoint folder. By default, a GGUF keeps its names, and the experts of MLX are separate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, help_heading = "GGUF models", hide_short_help = true))]
    pub names: Option<Naming>,

    /// GGUF models and folders of torch.distributed: the folder of the original model, for config.json, the tokenizer and
    /// other files of the output
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "path_as_text")]
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "FOLDER", help_heading = "GGUF models", hide_short_help = true)
    )]
    pub config: Option<PathBuf>,

    /// The root of a PyTorch checkpoint: see [`ReadOptions`].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "KEY", help = ROOT, long_help = ROOT_NOTE, hide_short_help = true))]
    pub root: Option<String>,

    /// The rank whose tensors are taken if all have a whole one: see [`ReadOptions`].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "RANK", help = TAKE_RANK, long_help = TAKE_RANK_NOTE, hide_short_help = true))]
    pub take_rank: Option<u64>,
}

impl NamingOptions {
    /// Opens a checkpoint, with the tensors of its root.
    pub(crate) fn probe(&self, path: &Path, threads: usize) -> error::Result<Checkpoint> {
        checkpoint::probe(path, &ReadOptions { threads, root: self.root.as_deref(), take_rank: self.take_rank })
    }

    /// Refuses names of Hugging Face for a model that has them already.
    pub(crate) fn check(&self, source: &Checkpoint) -> error::Result<()> {
        if self.names != Some(Naming::HuggingFace) || source.has_other_names() {
            return Ok(());
        }
        let error =
            error::Error::usage("has its own names: only the tensors of GGUF and MLX models get those of Hugging Face");
        Err(error.in_file(&source.path).without(error::Opt::NAMES))
    }

    /// Gives the tensors of a model their names.
    pub(crate) fn apply(&self, source: Checkpoint) -> error::Result<Checkpoint> {
        source.with_root(self.root.as_deref(), self.take_rank)?.named(self.names, self.config.as_deref())
    }
}

/// Options for GGUF files that are made.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "GGUF models"))]
#[non_exhaustive]
pub struct GgufOptions {
    /// GGUF outputs: another GGUF of the same language model, whose metadata and tokenizer the output gets
    ///
    /// Without it, they are made from the folder. Any type of the model will do.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "path_as_text")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GGUF", hide_short_help = true))]
    pub metadata_from: Option<PathBuf>,

    /// GGUF outputs: the architecture of a diffusion model, if its tensors do not show it: flux, wan, sdxl
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME", hide_short_help = true))]
    pub architecture: Option<String>,

    /// GGUF outputs: llama.cpp's name of the pre-tokenizer of a language model, if its tokenizer is not known: qwen2
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME", hide_short_help = true))]
    pub pre_tokenizer: Option<String>,
}

impl GgufOptions {
    /// Returns the first option that is given.
    pub(crate) fn first_given(&self) -> Option<error::Opt> {
        let options = [
            (self.metadata_from.is_some(), error::Opt::METADATA_FROM),
            (self.architecture.is_some(), error::Opt::ARCHITECTURE),
            (self.pre_tokenizer.is_some(), error::Opt::PRE_TOKENIZER),
        ];
        options.into_iter().find(|(is_given, _)| *is_given).map(|(_, option)| option)
    }
}

/// Serializes a path that need not be text.
#[allow(clippy::ref_option, reason = "serde passes the field")]
pub(super) fn path_as_text<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(serializer)
}

/// Options for ONNX models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "ONNX models"))]
#[non_exhaustive]
pub struct ModelOptions {
    /// ONNX models: keep tensors of fewer elements
    ///
    /// Each tensor stored in another type needs a node of about 100 bytes. A --rule applies to tensors of any size.
    #[serde(serialize_with = "unless_default")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "COUNT",
            value_parser = parsers::count,
            default_value_t = Self::default().min_elements,
            hide_short_help = true
        )
    )]
    pub min_elements: u64,

    /// ONNX models: store the elements of initializers in a file next to the model, OUT.data
    ///
    /// A model of more than 2047 MiB always has such a file, because protobuf messages are limited to 2 GiB.
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true))]
    pub external_data: bool,

    /// ONNX models: import a later opset if a type needs it and no operator of the model changes
    ///
    /// bfloat16 and integers with a scale for each channel need opset 13, the float8 types and scales of float16 and
    /// bfloat16 19, blocks and types of 4 bits 21. The error names the operator that prevents it, if there is one.
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true))]
    pub raise_opset: bool,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self { min_elements: 1024, external_data: false, raise_opset: false }
    }
}

impl ModelOptions {
    /// Returns the first option that differs from its default.
    pub(crate) fn first_given(&self) -> Option<error::Opt> {
        let default = Self::default();
        let options = [
            (self.min_elements != default.min_elements, error::Opt::MIN_ELEMENTS),
            (self.external_data, error::Opt::EXTERNAL_DATA),
            (self.raise_opset, error::Opt::RAISE_OPSET),
        ];
        options.into_iter().find(|(is_given, _)| *is_given).map(|(_, option)| option)
    }
}

/// Options for folders of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[non_exhaustive]
pub struct ShardOptions {
    /// Write shards that each hold at most SIZE of tensors: 5GB, 500MB, 2GiB
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "SIZE", hide_short_help = true, help_heading = "Folders of shards")
    )]
    pub max_shard_size: Option<Size>,
}

impl ShardOptions {
    /// Returns the size in bytes, if one is given.
    pub(crate) fn max_bytes(self) -> Option<u64> {
        self.max_shard_size.map(|Size(bytes)| bytes)
    }
}

/// A number of bytes: `5GB`, `500MB`, `2GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size(pub u64);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, u64); 9] = [
            ("KIB", 1 << 10),
            ("MIB", 1 << 20),
            ("GIB", 1 << 30),
            ("TIB", 1 << 40),
            ("KB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("TB", 1_000_000_000_000),
            ("B", 1),
        ];
        let upper = text.trim().to_ascii_uppercase();
        let found = UNITS.iter().find_map(|(unit, factor)| Some((upper.strip_suffix(unit)?, factor)));
        let size = found.and_then(|(number, factor)| number.trim_end().parse::<u64>().ok()?.checked_mul(*factor));
        match size {
            Some(0) | None if text.parse().is_ok_and(|number: u64| number > 0) => {
                Err(format!("'{text}' has no unit: {text}GB, {text}MB, or {text}B for bytes"))
            }
            Some(0) | None => Err("a size is a whole number with a unit: 5GB, 500MB, 2GiB".to_owned()),
            Some(size) => Ok(Self(size)),
        }
    }
}

pub(super) fn texts<T: Display, S: Serializer>(items: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(items.iter().map(T::to_string))
}

/// Serializes the minimum number of elements, or nothing if it is the default.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field")]
fn unless_default<S: Serializer>(min_elements: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    let is_given = *min_elements != ModelOptions::default().min_elements;
    is_given.then_some(*min_elements).serialize(serializer)
}
