//! Options for what an output contains, apart from the types of its tensors.

use super::shared::texts;
use crate::container::checkpoint::ExpertForm;
use crate::container::gguf::is_kind;
use crate::error::{Error, Result};
use crate::io::open::read_text;
use crate::select::Pattern;
use serde::{Serialize, Serializer};
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Choice of the tensors that an output has.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "Contents of the output"))]
#[non_exhaustive]
pub struct ContentOptions {
    /// Write only the tensors whose name matches; repeatable
    ///
    /// The others are left out. The name of a quantized weight stands for all of its parts.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GLOB", hide_short_help = true))]
    pub only: Vec<Pattern>,

    /// Leave out the tensors whose name matches; repeatable
    ///
    /// It applies after --only. The name of a quantized weight stands for all of its parts.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GLOB", hide_short_help = true))]
    pub drop: Vec<Pattern>,

    /// Add the tensors of another file or folder that the model lacks; repeatable
    ///
    /// With a GLOB, only tensors whose name matches. They are converted like the others. Without --max-shard-size, they are
    /// in shards of their own.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "OTHER[:GLOB]", hide_short_help = true))]
    pub add: Vec<Addition>,

    /// Replace tensors of the model by those of another file or folder; repeatable
    ///
    /// With a GLOB, only tensors whose name matches. The shapes must be the same.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "OTHER[:GLOB]", hide_short_help = true))]
    pub replace: Vec<Addition>,

    /// With --replace, accept another shape
    #[serde(skip)]
    #[cfg_attr(feature = "cli", arg(long, requires = "replace", hide_short_help = true))]
    pub allow_reshape: bool,

    /// The form of the experts: stacked, a tensor of each weight for all experts of a layer; or single, tensors for each
    ///
    /// transformers 5 has both, and engines and quantized checkpoints have single experts. The config.json next
    /// to the tensors decides about the names. Other options take the names of single experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "cli", arg(long, value_enum, value_name = "FORM", hide_short_help = true))]
    pub experts: Option<ExpertForm>,

    /// Merge an adapter, such as LoRA, into the weights of the model; repeatable
    ///
    /// The folder or file of an adapter of PEFT, MLX, kohya, diffusers, ComfyUI or llama.cpp. STRENGTH multiplies its delta
    /// [default: 1]. Adapters are added in their order, in float64, and each value is rounded once.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "ADAPTER[=STRENGTH]", hide_short_help = true))]
    #[allow(clippy::doc_markdown, reason = "the help shows the text as it is")]
    pub lora: Vec<AdapterOption>,

    /// Round merged values up or down at random [default: to nearest]
    ///
    /// The probability is the distance from the other neighbour, so that small deltas survive on average, with more noise. The
    /// random numbers depend on SEED [default: 0], the name of the weight and the element, never on threads.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "stochastic[=SEED]", requires = "lora", hide_short_help = true)
    )]
    pub rounding: Option<StochasticRounding>,

    /// Exit with 3 if less of the delta of a weight is kept: 1 is all of it
    ///
    /// The share of the delta that arrives on average in what is written. Nothing is written then.
    #[serde(skip)]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SHARE", requires = "lora", hide_short_help = true))]
    pub min_kept: Option<f64>,

    /// Exit with 3 if the signal-to-noise ratio of the delta of a weight is lower
    ///
    /// In decibels, within the space of the delta. Nothing is written then.
    #[serde(skip)]
    #[cfg_attr(feature = "cli", arg(long, value_name = "DB", requires = "lora", hide_short_help = true))]
    pub min_delta_snr: Option<f64>,

    /// Set a value of the metadata: of safetensors, GGUF or ONNX; repeatable
    ///
    /// KEY=@FILE takes the text of a file. In a GGUF file, an existing key keeps its type, and a list is JSON; a new key is a
    /// text, or has a type: KEY:u32=7.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "KEY=VALUE", hide_short_help = true))]
    pub set: Vec<SetValue>,

    /// Remove a key of the metadata; repeatable
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "KEY", hide_short_help = true))]
    pub unset: Vec<String>,
}

/// `OTHER[:GLOB]`: tensors of another file or folder.
#[derive(Clone, Debug)]
pub struct Addition {
    /// The file or folder.
    pub path: PathBuf,
    /// The tensors that are meant; `None` for all.
    pub pattern: Option<Pattern>,
}

#[doc(hidden)] // for records and messages
impl Display for Addition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = self.pattern.as_ref().map(|pattern| format!(":{pattern}")).unwrap_or_default();
        write!(f, "{}{pattern}", self.path.display())
    }
}

impl FromStr for Addition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // Paths of Windows have a colon.
        match text.rsplit_once(':').filter(|(path, _)| !Path::new(text).exists() && Path::new(path).exists()) {
            Some((path, pattern)) => Ok(Self { path: path.into(), pattern: Some(pattern.parse()?) }),
            None => Ok(Self { path: text.into(), pattern: None }),
        }
    }
}

/// `ADAPTER[=STRENGTH]`: an adapter to merge.
#[derive(Clone, Debug)]
pub struct AdapterOption {
    /// Its folder or file.
    pub path: PathBuf,
    /// The factor of its delta.
    pub strength: f64,
}

#[doc(hidden)] // for records and messages
impl Display for AdapterOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.path.display(), self.strength)
    }
}

impl FromStr for AdapterOption {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let with_strength = text.rsplit_once('=').filter(|_| !Path::new(text).exists());
        let number = with_strength.and_then(|(path, strength)| Some((path, strength.parse::<f64>().ok()?)));
        let (path, strength) = number.unwrap_or((text, 1.0));
        let is_path = |path: &str| !path.is_empty() && Path::new(path).exists();
        if let Some((adapter, _)) = path.rsplit_once(['=', ':']).filter(|(before, _)| is_path(before) && !is_path(path))
        {
            return Err(Error::new(format!("STRENGTH is a number after =, such as {adapter}=0.5")));
        }
        if path.is_empty() {
            return Err(Error::new("an adapter is given as ADAPTER or ADAPTER=STRENGTH"));
        }
        if !strength.is_finite() {
            return Err(Error::new(format!("the strength {strength} is not a finite number")));
        }
        Ok(Self { path: path.into(), strength })
    }
}

/// `stochastic[=SEED]`: merged values are rounded up or down at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StochasticRounding {
    /// The number that chooses the random numbers.
    pub seed: u64,
}

#[doc(hidden)] // for records and messages
impl Display for StochasticRounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stochastic={}", self.seed)
    }
}

impl FromStr for StochasticRounding {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (method, seed) = text.split_once('=').unwrap_or((text, "0"));
        let seed = seed.parse().ok().filter(|_| method == "stochastic");
        seed.map(|seed| Self { seed }).ok_or_else(|| {
            Error::new(format!("it is stochastic, or stochastic=SEED with a seed from 0 to {}", u64::MAX))
        })
    }
}

/// Serializes a value as on the command line.
#[allow(clippy::ref_option, reason = "serde passes the field")]
fn as_text<S: Serializer>(value: &Option<StochasticRounding>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    value.map(|value| value.to_string()).serialize(serializer)
}

/// `KEY=VALUE`: a value of the metadata.
#[derive(Clone, Debug)]
pub struct SetValue {
    /// The key.
    pub key: String,
    /// The name of its type in GGUF files, such as `u32`; `None` for the type that it has, or text.
    pub kind: Option<String>,
    /// The value as text.
    pub value: String,
}

#[doc(hidden)] // for records and messages
impl Display for SetValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.as_ref().map(|kind| format!(":{kind}")).unwrap_or_default();
        write!(f, "{}{kind}={}", self.key, self.value)
    }
}

impl FromStr for SetValue {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        /// Maximum length of a file in bytes; chat templates have a few KiB.
        const MOST: u64 = 1 << 20;
        let (key, value) = text.split_once('=').ok_or_else(|| Error::new("a value is given as KEY=VALUE"))?;
        let (key, kind) = match key.rsplit_once(':').filter(|(_, kind)| is_kind(kind)) {
            Some((key, kind)) => (key, Some(kind.to_owned())),
            None => (key, None),
        };
        if key.is_empty() {
            return Err(Error::new("the key is empty"));
        }
        let value = match value.strip_prefix('@').map(Path::new) {
            Some(path) => read_text(path, MOST)?,
            None => value.to_owned(),
        };
        Ok(Self { key: key.to_owned(), kind, value })
    }
}

#[cfg(feature = "cli")]
impl ContentOptions {
    /// True if the output may have other contents than the input.
    pub(crate) fn changes_contents(&self) -> bool {
        let has_choice = !(self.only.is_empty() && self.drop.is_empty());
        let has_parts = !(self.add.is_empty() && self.replace.is_empty() && self.lora.is_empty());
        has_choice || has_parts || self.experts.is_some() || !(self.set.is_empty() && self.unset.is_empty())
    }
}
