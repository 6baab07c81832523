//! The quantized weights of an input, and what is to become of them: for jobs that decode.

use crate::container::Form;
use crate::container::checkpoint::{CONFIG, Checkpoint, read_side_file};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::output::directory_of;
use crate::plan::{QuantizedWeight, TensorIndex, Weights, source_form};
use crate::quant::{
    self, Arithmetic, CheckpointInfo, Decoder, FoundWeight, Modules, Recognized, Role, StoredTensor, comfy_metadata_of,
    config_of, hf_quant_config_of, recognize,
};
use crate::read::SourceTensor;
use crate::select::Selection;
use std::collections::HashSet;
use std::sync::Arc;

/// `ModelOpt`'s and GPTQ's descriptions of a quantized checkpoint, beside its config.
const HF_QUANT_CONFIG: &str = "hf_quant_config.json";
const QUANTIZE_CONFIG: &str = "quantize_config.json";

/// A checkpoint whose quantized weights are known.
pub(crate) struct Quantized<'a> {
    source: &'a Checkpoint,
    tensors: Vec<StoredTensor<'a>>,
    /// Where each of them is.
    places: Vec<TensorIndex>,
    config: Option<String>,
    hf_quant_config: Option<String>,
    quantize_config: Option<String>,
    found: Recognized,
}

/// What a job needs to decode weights.
pub(crate) struct Decoding {
    pub(super) weights: Weights,
    /// Files beside the shards that get another text, or are left out.
    pub(super) side_files: Vec<(&'static str, Option<String>)>,
    /// Scales of activations that are left out.
    pub(crate) left_out: Vec<String>,
}

impl<'a> Quantized<'a> {
    /// Finds the quantized weights of a checkpoint.
    ///
    /// # Errors
    /// When a config cannot be read, or what it, names, types and shapes say contradicts.
    pub(crate) fn find(source: &'a Checkpoint) -> Result<Self> {
        let (mut tensors, mut places) = (Vec::new(), Vec::new());
        for (at, shard) in source.shards.iter().enumerate() {
            for (number, tensor) in shard.contents.tensors.iter().enumerate() {
                let dtype = source_form(tensor, None).ok().map(Form::dtype);
                tensors.push(StoredTensor { name: shard.name_of(tensor), dtype, shape: &tensor.shape });
                places.push((at, number));
            }
        }
        let folder = source.folder.as_deref().unwrap_or_else(|| directory_of(&source.path));
        let [config, hf_quant_config, quantize_config] =
            [CONFIG, HF_QUANT_CONFIG, QUANTIZE_CONFIG].map(|name| read_side_file(folder, name));
        let (config, hf_quant_config, quantize_config) = (config?, hf_quant_config?, quantize_config?);
        let pairs = source.shards.iter().flat_map(|shard| shard.contents.metadata.iter().flatten());
        let metadata: Vec<&str> =
            pairs.filter(|(key, _)| key == CheckpointInfo::METADATA).map(|(_, value)| value.as_str()).collect();
        let found = recognize(&CheckpointInfo {
            tensors: &tensors,
            config: config.as_deref(),
            hf_quant_config: hf_quant_config.as_deref(),
            quantize_config: quantize_config.as_deref(),
            metadata: &metadata,
            read: &|tensor| read_small(source, places[tensor]),
        });
        let found = found.map_err(|error| error.in_file(&source.path))?;
        Ok(Self { source, tensors, places, config, hf_quant_config, quantize_config, found })
    }

    /// The type that weights are decoded to where nothing else is asked for.
    pub(crate) fn default_target(&self) -> Dtype {
        quant::default_target(self.config.as_deref())
    }

    /// What the weights are called when they are decoded.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.found.weights.iter().map(|weight| &*weight.name)
    }

    /// Decides how the weights that are selected are decoded.
    ///
    /// # Errors
    /// When there are none, a weight cannot be decoded, or its config cannot say that others stay quantized.
    pub(crate) fn decode(
        &self,
        selection: &Selection,
        target: Dtype,
        arithmetic: Arithmetic,
        keep_activation_scales: bool,
    ) -> Result<Decoding> {
        let in_file = |error: Error| error.in_file(&self.source.path);
        let (decoded, left): (Vec<&FoundWeight>, Vec<&FoundWeight>) =
            self.found.weights.iter().partition(|weight| selection.selects(&weight.name));
        if self.found.weights.is_empty() {
            return Err(in_file(Error::new("holds no quantized weights")));
        }
        let mut weights = Weights::default();
        let mut left_out = Vec::new();
        for weight in &decoded {
            let mut parts = Vec::new();
            for &(role, at) in &weight.parts {
                match role {
                    Role::Shape | Role::Description => weights.leave_out(self.places[at]),
                    Role::Activation if keep_activation_scales => {}
                    Role::Activation => {
                        weights.leave_out(self.places[at]);
                        left_out.push(self.tensors[at].name.to_owned());
                    }
                    _ => parts.push((role, at)),
                }
            }
            parts.sort_by_key(|(role, _)| *role != Role::Codes); // the weight takes their place
            let weight = FoundWeight { parts, ..(*weight).clone() };
            let described = weight.parts(&self.tensors);
            let made = Decoder::new(weight.layout, &weight.parameters, &described, target, arithmetic);
            let parts = weight.parts.iter().map(|(_, at)| self.places[*at]).collect();
            weights.add(QuantizedWeight { name: weight.name, parts, decoder: Arc::new(made.map_err(in_file)?) });
        }
        if left.is_empty() {
            for &at in &self.found.markers {
                weights.leave_out(self.places[at]);
            }
            let caches = self.found.activation_scales.iter().filter(|_| !keep_activation_scales);
            let of_weights: HashSet<usize> =
                decoded.iter().flat_map(|weight| &weight.parts).map(|(_, at)| *at).collect();
            for &at in caches.filter(|at| !of_weights.contains(at)) {
                weights.leave_out(self.places[at]);
                left_out.push(self.tensors[at].name.to_owned());
            }
        }
        let [decoded, left] =
            [&decoded, &left].map(|weights| weights.iter().map(|weight| &*weight.module).collect::<HashSet<_>>());
        let modules = Modules { decoded: &decoded, left: &left };
        let side_files = self.side_files(&modules, target).map_err(in_file)?;
        let metadata = self.source.shards.iter().flat_map(|shard| shard.contents.metadata.iter().flatten());
        for (_, text) in metadata.filter(|(key, _)| key == CheckpointInfo::METADATA) {
            weights.change_metadata(CheckpointInfo::METADATA, comfy_metadata_of(text, &modules));
        }
        Ok(Decoding { weights, side_files, left_out })
    }

    /// What the files beside the shards say when weights were decoded.
    fn side_files(&self, modules: &Modules, target: Dtype) -> Result<Vec<(&'static str, Option<String>)>> {
        let mut files = Vec::new();
        if let Some(config) = &self.config {
            files.push((CONFIG, Some(config_of(config, self.found.method.as_deref(), modules, target)?)));
        }
        if let Some(text) = &self.hf_quant_config {
            files.push((HF_QUANT_CONFIG, hf_quant_config_of(text, modules)?));
        }
        if self.quantize_config.is_some() && modules.left.is_empty() {
            files.push((QUANTIZE_CONFIG, None));
        }
        Ok(files)
    }
}

/// All bytes of a tensor that describes others.
fn read_small(source: &Checkpoint, (shard, number): TensorIndex) -> Result<Vec<u8>> {
    /// Descriptions are JSON of a few hundred bytes, or two numbers.
    const MOST: u64 = 1 << 20;
    let shard = &source.shards[shard];
    let tensor = &shard.contents.tensors[number];
    let stored = SourceTensor { files: &shard.files, tensor, elements: tensor.elements, is_transposed: false };
    let bytes = tensor.elements.bytes(tensor.count).filter(|bytes| *bytes <= MOST);
    let bytes = bytes.ok_or_else(|| stored.error(Error::new("is too large for what describes a weight")))?;
    let mut read = vec![0; bytes as usize];
    stored.open()?.fill(&mut read).map_err(|error| stored.error(error))?;
    Ok(read)
}
