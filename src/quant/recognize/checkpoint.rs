//! The input of recognition, and its result.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::{Layout, Parameters, Part, Role};
use crate::text::{counted, shorten};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::Path;

/// A tensor of a checkpoint, as described in the header of its file.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'a> {
    pub name: &'a str,
    /// The dtype of its elements; `None` if tcast does not know it.
    pub dtype: Option<Dtype>,
    /// Its shape in elements.
    pub shape: &'a [u64],
}

/// Information about a checkpoint before it is decoded.
pub struct CheckpointInfo<'a> {
    /// The tensors of all its shards. Results refer to them by their indices here.
    pub tensors: &'a [StoredTensor<'a>],
    /// The folder of the configs below, for messages.
    pub folder: &'a Path,
    /// The names and the texts of its `config.json` and of the configs of libraries next to it.
    pub configs: &'a [(&'static str, &'a str)],
    /// The metadata of all files: keys and values.
    pub metadata: &'a [(&'a str, &'a str)],
    /// Reads all bytes of the tensor with this index. Only small tensors that describe others are read.
    pub read: &'a dyn Fn(usize) -> Result<Vec<u8>>,
}

impl CheckpointInfo<'_> {
    /// The key of `ComfyUI`'s descriptions in the metadata of a file.
    pub const METADATA: &'static str = "_quantization_metadata";

    /// Reads a tensor that describes others.
    pub(in crate::quant) fn read_description(&self, index: usize) -> Result<Vec<u8>> {
        /// Maximum length of a description in bytes; real ones have a few hundred.
        const MOST: u64 = 64 << 10;
        let tensor = &self.tensors[index];
        let count = tensor.shape.iter().try_fold(1_u64, |product, length| product.checked_mul(*length));
        let length = count.zip(tensor.dtype).and_then(|(count, dtype)| dtype.packed_bytes(count));
        match length {
            Some(length) if length <= MOST => (self.read)(index),
            _ => Err(Error::new(format!("'{}' is too large to describe another", shorten(tensor.name)))),
        }
    }

    /// Reads a tensor whose bytes are a JSON object.
    pub(in crate::quant) fn read_object(&self, index: usize) -> Result<Map<String, Value>> {
        let name = shorten(self.tensors[index].name);
        if self.tensors[index].dtype != Some(Dtype::Uint8) {
            return Err(Error::new(format!("'{name}' is not uint8, so it cannot be JSON text")));
        }
        let object = serde_json::from_slice(&self.read_description(index)?);
        object.map_err(|_| Error::new(format!("'{name}' does not hold a JSON object")))
    }
}

/// A quantized weight.
#[derive(Clone, Debug)]
pub struct FoundWeight {
    /// The name of the decoded tensor: `x.weight` of `x.weight_packed`.
    pub name: String,
    /// The name of its module, as in the lists of configs.
    pub module: String,
    pub layout: &'static Layout,
    /// Its parameters according to config and descriptions.
    pub parameters: Parameters,
    pub shape: Vec<u64>,
    /// Roles and indices of all tensors that belong to it, including tensors that no value depends on. The indices
    /// refer to [`CheckpointInfo::tensors`].
    pub parts: Vec<(Role, usize)>,
}

/// Describes the tensors with these roles and indices, without those of an unknown dtype.
pub fn described<'a>(parts: &[(Role, usize)], tensors: &[StoredTensor<'a>]) -> Vec<Part<'a>> {
    let part = |&(role, index): &(Role, usize)| {
        let StoredTensor { name, dtype, shape } = tensors[index];
        dtype.map(|dtype| Part { role, name, dtype, shape })
    };
    parts.iter().filter_map(part).collect()
}

impl FoundWeight {
    /// Returns the parts for [`crate::quant::Decoder::new`].
    pub fn parts<'a>(&self, tensors: &[StoredTensor<'a>]) -> Vec<Part<'a>> {
        described(&self.parts, tensors)
    }

    /// Returns the index of its part with this role.
    pub(crate) fn part(&self, role: Role) -> Option<usize> {
        self.parts.iter().find(|(own, _)| *own == role).map(|(_, index)| *index)
    }

    /// Returns the index of its codes.
    pub(crate) fn codes(&self) -> usize {
        self.part(Role::Codes).expect("a weight has codes")
    }

    /// True if it is not quantized, and only made of plain tensors in another order.
    pub fn has_plain_blocks(&self) -> bool {
        self.parameters.blocks.as_ref().is_some_and(|blocks| blocks.formats.iter().all(|format| format.dtype.is_some()))
    }
}

/// A contradiction.
#[derive(Debug)]
pub struct Problem {
    /// Indices of the tensors concerned; empty if the problem is in the config itself.
    pub tensors: Vec<usize>,
    pub error: Error,
}

/// The role of each tensor of a checkpoint: a part of one weight, or in one of the lists.
#[derive(Debug, Default)]
pub struct Recognized {
    /// Quantization method according to the config; `None` if no config describes a quantization.
    pub method: Option<String>,
    /// The quantized weights, in the order of their codes.
    pub weights: Vec<FoundWeight>,
    /// Scales of activations in [`FoundWeight::parts`], and scales of key and value caches.
    pub activation_scales: Vec<usize>,
    /// Tensors that only describe others, and are not in [`FoundWeight::parts`].
    pub markers: Vec<usize>,
    /// Scales and the like without codes, and codes without scales. There is a problem for each.
    pub orphans: Vec<usize>,
    /// All other tensors: values.
    pub plain: Vec<usize>,
    /// In an ONNX model, the operators that compute directly with codes, and the number of nodes of each.
    pub left: Vec<(String, u64)>,
    /// In an ONNX model, descriptions of the nodes that cannot be computed although their codes are stored.
    pub nodes_that_stay: Vec<String>,
    /// The codes of these nodes.
    pub codes_that_stay: Vec<usize>,
    /// In an ONNX model, the names of the values that Cast nodes make from a tensor that no other node uses.
    pub cast_names: HashMap<usize, Vec<String>>,
    /// True if the only problem is that a config or the tensors describe a quantization that tcast does not decode. Then any
    /// tensor may hold codes or scales.
    pub is_undecoded: bool,
    pub problems: Vec<Problem>,
}

impl Recognized {
    /// Adds a problem, unless there are very many.
    pub(crate) fn add(&mut self, problem: Problem) {
        const MOST: usize = 1000;
        if self.problems.len() < MOST {
            self.problems.push(problem);
        }
    }

    /// Refuses contradictions. The error is the first of the [`Recognized::problems`], with the number of further
    /// problems.
    pub fn check(mut self) -> Result<Self> {
        match self.problems.len() {
            0 => Ok(self),
            count => {
                let first = self.problems.swap_remove(0).error;
                let more = (count > 1).then(|| format!("{} more like this", counted(count as u64 - 1, "problem")));
                Err(Error::with_details(first, more.into_iter().collect()))
            }
        }
    }
}
