//! What recognition is given, and what it finds.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::{Layout, Parameters, Part, Role};
use std::path::Path;

/// A tensor of a checkpoint as the header of its file describes it.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// The dtype of its elements; `None` where tcast does not know it.
    pub dtype: Option<Dtype>,
    /// Its shape in elements.
    pub shape: &'a [u64],
}

/// What is known of a checkpoint before it is decoded.
pub struct CheckpointInfo<'a> {
    /// The tensors of all its shards. Results refer to them by their places here.
    pub tensors: &'a [StoredTensor<'a>],
    /// The folder that the configs below are in, for messages.
    pub folder: &'a Path,
    /// The text of `config.json`.
    pub config: Option<&'a str>,
    /// The text of `ModelOpt`'s `hf_quant_config.json`.
    pub hf_quant_config: Option<&'a str>,
    /// The text of GPTQ's `quantize_config.json`.
    pub quantize_config: Option<&'a str>,
    /// What the headers of the files have under [`CheckpointInfo::METADATA`] in their metadata: `ComfyUI`'s descriptions.
    pub metadata: &'a [&'a str],
    /// Reads all bytes of the tensor at this place. Only small tensors that describe others are read.
    pub read: &'a dyn Fn(usize) -> Result<Vec<u8>>,
}

impl CheckpointInfo<'_> {
    /// The key of `ComfyUI`'s descriptions in the metadata of a file.
    pub const METADATA: &'static str = "_quantization_metadata";
}

/// A quantized weight.
#[derive(Clone, Debug)]
pub struct FoundWeight {
    /// The name of the decoded tensor: `x.weight` of `x.weight_packed`.
    pub name: String,
    /// The name of its module, as lists in configs have it.
    pub module: String,
    /// How it is stored.
    pub layout: &'static Layout,
    /// What config and descriptions say of it.
    pub parameters: Parameters,
    /// The shape of the decoded tensor.
    pub shape: Vec<u64>,
    /// All tensors that belong to it, also those that no value depends on: what they are, and their places among the
    /// tensors of the [`CheckpointInfo`].
    pub parts: Vec<(Role, usize)>,
}

impl FoundWeight {
    /// The parts as [`crate::quant::Decoder::new`] takes them.
    ///
    /// # Panics
    /// When the tensors are not those that the weight was found in.
    #[must_use]
    pub fn parts<'a>(&self, tensors: &[StoredTensor<'a>]) -> Vec<Part<'a>> {
        let part = |&(role, index): &(Role, usize)| {
            let StoredTensor { name, dtype, shape } = tensors[index];
            dtype.map(|dtype| Part { role, name, dtype, shape })
        };
        self.parts.iter().filter_map(part).collect()
    }
}

/// Something that does not fit.
#[derive(Debug)]
pub struct Problem {
    /// The tensors concerned, by their places; empty where it is the config itself.
    pub tensors: Vec<usize>,
    /// What is wrong.
    pub error: Error,
}

/// What the tensors of a checkpoint are. Each tensor is a part of one weight, or in one of the lists.
#[derive(Debug, Default)]
pub struct Recognized {
    /// How the weights are quantized, in the words of the config; `None` where no config says so.
    pub method: Option<String>,
    /// The quantized weights, in the order of their codes.
    pub weights: Vec<FoundWeight>,
    /// Scales of activations: those of [`FoundWeight::parts`], and those of caches of keys and values.
    pub activation_scales: Vec<usize>,
    /// Tensors that only say how others are stored, besides those in [`FoundWeight::parts`].
    pub markers: Vec<usize>,
    /// Scales and the like without codes, and codes without scales. There is a problem for each of them.
    pub orphans: Vec<usize>,
    /// Everything else: values.
    pub plain: Vec<usize>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}
