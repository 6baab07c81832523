//! The tensors of a checkpoint as its model sees them: stored tensors, and quantized weights that several of them form.

use super::{SourceTensor, WeightSource};
use crate::container::checkpoint::{BESIDE_CONFIG, CONFIG, Checkpoint, beside};
use crate::container::onnx::model::ModelGraph;
use crate::container::{Elements, Input};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::advice::give_whole;
use crate::quant::{
    self, Arithmetic, CheckpointInfo, Decoder, FoundWeight, Part, Problem, Recognized, Role, StoredTensor,
    is_named_as_part, may_be_quantized,
};
use std::sync::{Arc, OnceLock};

/// A checkpoint with its quantized weights.
pub(crate) struct Model<'a> {
    /// The checkpoint that stores the tensors.
    pub source: &'a Checkpoint,
    /// All stored tensors; recognition refers to them by their indices here.
    pub tensors: Vec<StoredTensor<'a>>,
    /// The shard of each tensor, and its index there.
    pub places: Vec<(usize, usize)>,
    /// The files of [`BESIDE_CONFIG`] that it has, and their texts, if a tensor can be part of a weight.
    pub beside_config: Vec<(&'static str, &'a str)>,
    pub found: Recognized,
    /// The type that weights are decoded to by default, once the config was read for it.
    default_target: OnceLock<Dtype>,
    /// The graph of an ONNX model, if it could be read.
    pub graph: Option<Arc<ModelGraph<'a>>>,
}

/// A tensor of a model: a stored tensor, which holds values or has an unknown role, or a weight that several of them form.
#[derive(Clone, Copy)]
pub(crate) struct ModelTensor<'a> {
    pub model: &'a Model<'a>,
    /// The index of the stored tensor; of a weight, that of its codes.
    pub at: usize,
    pub weight: Option<&'a FoundWeight>,
}

impl<'a> ModelTensor<'a> {
    pub(crate) fn name(self) -> &'a str {
        self.weight.map_or(self.model.tensors[self.at].name, |weight| &weight.name)
    }

    pub(crate) fn shape(self) -> &'a [u64] {
        self.weight.map_or(self.model.tensors[self.at].shape, |weight| &weight.shape)
    }

    /// Returns the type of its values; `None` if it has codes, or tcast does not know the type.
    pub(crate) fn dtype(self) -> Option<Dtype> {
        self.model.tensors[self.at].dtype.filter(|_| self.weight.is_none())
    }

    /// Returns the stored tensor that holds its values; `None` if it is a weight.
    pub(crate) fn stored(self) -> Option<SourceTensor<'a>> {
        self.weight.is_none().then(|| self.model.stored(self.at))
    }

    pub(crate) fn stored_len(self) -> u64 {
        let len = |at| self.model.stored(at).stored_len();
        self.weight.map_or_else(|| len(self.at), |weight| weight.parts.iter().map(|(_, at)| len(*at)).sum())
    }
}

impl<'a> Model<'a> {
    /// Finds the quantized weights of a checkpoint, and keeps the problems of weights that cannot be decoded.
    pub(crate) fn probe(source: &'a Checkpoint) -> Self {
        let count = source.tensors().count();
        let (mut tensors, mut places) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (at, shard) in source.shards.iter().enumerate() {
            for (number, tensor) in shard.contents.tensors.iter().enumerate() {
                // The bytes of blocks, whose format is in the parameters of a weight.
                let blocks = matches!(tensor.elements, Elements::Blocks(_)).then_some(Dtype::Uint8);
                let (name, dtype) = (shard.name_of(tensor), tensor.elements.dtype().or(blocks));
                tensors.push(StoredTensor { name, dtype, shape: &tensor.shape });
                places.push((at, number));
            }
        }
        let mut model = Self { tensors, places, ..Self::without_tensors(source) };
        if source.is_gguf() {
            model.found = model.recognize_blocks();
            return model;
        }
        if !model.is_onnx_model() && !model.tensors.iter().any(|tensor| may_be_quantized(tensor.name, tensor.dtype)) {
            model.found = Self::undecoded(source).unwrap_or_default();
            model.found.plain = (0..model.tensors.len()).collect();
            return model;
        }
        let is_model = |shard: &&Input| shard.container.format_info().is_changed_only();
        let recognized = match source.shards.iter().find(is_model) {
            Some(input) => model.recognize_model(input),
            None => model.read_side_files().and_then(|()| model.recognize()),
        };
        model.found = match recognized {
            Ok(found) => found,
            Err(error) => Recognized {
                problems: vec![Problem { tensors: Vec::new(), error }],
                plain: (0..model.tensors.len()).collect(),
                ..Recognized::default()
            },
        };
        model
    }

    fn without_tensors(source: &'a Checkpoint) -> Self {
        let (tensors, places, found) = (Vec::new(), Vec::new(), Recognized::default());
        Self { source, tensors, places, beside_config: Vec::new(), found, default_target: OnceLock::new(), graph: None }
    }

    /// Returns a checkpoint for tasks that convert values: its tensors are not listed, because there may be a million.
    /// Still finds a quantization that tcast does not decode.
    pub(crate) fn of_values(source: &'a Checkpoint) -> Self {
        Self { found: Self::undecoded(source).unwrap_or_default(), ..Self::without_tensors(source) }
    }

    /// Treats every tensor as values, regardless of the config.
    pub(crate) fn into_values(self) -> Self {
        let plain = (0..self.tensors.len()).collect();
        Self { found: Recognized { plain, is_undecoded: self.found.is_undecoded, ..Recognized::default() }, ..self }
    }

    /// Returns the result of recognition for the config of a folder of shards, or of one of its shards, if it describes
    /// a quantization that tcast does not decode. Then wide floats may be scales whose codes are elsewhere.
    fn undecoded(source: &'a Checkpoint) -> Option<Recognized> {
        let is_of_model = source.folder.is_some() || beside(&source.path).is_ok_and(|names| !names.is_empty());
        // A config that cannot be read does not matter to plain values.
        let found = is_of_model.then(|| Self::without_tensors(source).recognize().ok())??;
        found.is_undecoded.then_some(found)
    }

    /// Does the same as [`Model::probe`], and also finds parts of weights whose codes are missing, for
    /// commands that show them.
    pub(crate) fn probe_parts(source: &'a Checkpoint) -> Self {
        let mut model = Self::probe(source);
        let is_skipped = model.found.plain.len() == model.tensors.len() && model.found.problems.is_empty();
        if is_skipped && !model.is_onnx_model() && model.tensors.iter().any(|tensor| is_named_as_part(tensor.name)) {
            // A config that cannot be read does not matter without codes.
            model.found = model.recognize().unwrap_or(model.found);
        }
        model
    }

    pub(crate) fn open(source: &'a Checkpoint) -> Result<Self> {
        Self::probe(source).checked()
    }

    /// Refuses a checkpoint with weights that cannot be decoded.
    pub(crate) fn checked(mut self) -> Result<Self> {
        let found = std::mem::take(&mut self.found).check();
        self.found = found.map_err(|error| {
            let at = error.tensor().and_then(|name| self.tensors.iter().position(|tensor| tensor.name == name));
            let path = at.map_or(&*self.source.path, |at| self.source.shards[self.places[at].0].path());
            self.in_whole(error).in_file(path)
        })?;
        Ok(self)
    }

    /// Adds a remedy to the error if the parts that a shard lacks may be in others.
    pub(crate) fn in_whole(&self, error: Error) -> Error {
        let is_alone = self.source.folder.is_none() && error.advice().is_empty();
        match beside(&self.source.path) {
            Ok(others) if is_alone && !others.is_empty() => error.remedy(give_whole(self.source.config_folder())),
            _ => error,
        }
    }

    pub(crate) fn config(&self) -> Result<Option<&str>> {
        self.source.side_file(CONFIG)
    }

    /// The names and the texts of its config and of the files next to it.
    pub(crate) fn configs(&self) -> Result<Vec<(&'static str, &'a str)>> {
        let config = self.source.side_file(CONFIG)?.map(|text| (CONFIG, text));
        Ok(config.into_iter().chain(self.beside_config.iter().copied()).collect())
    }

    fn read_side_files(&mut self) -> Result<()> {
        for name in BESIDE_CONFIG {
            self.beside_config.extend(self.source.side_file(name)?.map(|text| (*name, text)));
        }
        Ok(())
    }

    /// Runs recognition on all tensors, even if none of them has a dtype of codes.
    pub(crate) fn recognize(&self) -> Result<Recognized> {
        let metadata: Vec<(&str, &str)> =
            self.source.metadata().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        Ok(quant::probe(&CheckpointInfo {
            tensors: &self.tensors,
            folder: self.source.config_folder(),
            configs: &self.configs()?,
            metadata: &metadata,
            read: &|tensor| self.stored(tensor).small(),
        }))
    }

    pub(crate) fn bytes(&self, at: usize) -> Result<&'a [u8]> {
        let stored = self.stored(at);
        let Some(mapped) = stored.mapped() else { return Err(stored.error(Error::new("is not stored as it is"))) };
        mapped.read(0..mapped.range.len()).map_err(|error| stored.error(error))
    }

    /// Returns all bytes of a part of a weight. Codes, the largest part, may still have to be read from the disk.
    pub(crate) fn part(&self, role: Role, at: usize) -> Result<&'a [u8]> {
        match self.stored(at).mapped() {
            Some(mapped) if role == Role::Codes => Ok(&mapped.file[mapped.range]),
            _ => self.bytes(at),
        }
    }

    /// Returns the bytes of the parts that the values of a weight depend on, the codes first.
    pub(crate) fn part_bytes<'m>(&'m self, weight: &'m FoundWeight) -> Result<Vec<&'m [u8]>> {
        let held =
            |role: Role| weight.parameters.held.iter().find(|(held, _)| *held == role).map(|(_, bytes)| &**bytes);
        let parts = Self::value_parts(weight).into_iter();
        parts.map(|(role, at)| held(role).map_or_else(|| self.part(role, at), Ok)).collect()
    }

    /// Returns a stored tensor for reading.
    pub(crate) fn stored(&self, at: usize) -> SourceTensor<'a> {
        let (shard, number) = self.places[at];
        let input = &self.source.shards[shard];
        let tensor = &input.contents.tensors[number];
        SourceTensor { files: &input.files, tensor, elements: tensor.elements, is_transposed: false }
    }

    /// True if there are quantized weights.
    pub(crate) fn is_quantized(&self) -> bool {
        self.found.weights.iter().any(|weight| !weight.has_plain_blocks())
    }

    /// Returns the type that weights are decoded to by default.
    pub(crate) fn default_target(&self) -> Dtype {
        *self.default_target.get_or_init(|| quant::default_target(self.source.read_text_of(CONFIG)))
    }

    /// Returns the type that a weight is decoded to by default: in an ONNX model the type of its scale, as in the nodes
    /// of the model.
    pub(crate) fn target_of(&self, weight: &FoundWeight) -> Dtype {
        let scale = weight.part(Role::Scale);
        let own = scale.and_then(|at| self.tensors[at].dtype).filter(|_| weight.layout.nodes.is_some());
        own.unwrap_or_else(|| self.default_target())
    }

    /// Returns the type of a weight's values: the stored type of a weight that is not quantized.
    pub(crate) fn own_type(&self, weight: &FoundWeight) -> Dtype {
        let stored = weight.parts.first().and_then(|(_, at)| self.tensors[*at].dtype);
        stored.filter(|_| weight.has_plain_blocks()).unwrap_or_else(|| self.default_target())
    }

    /// Returns the tensors of the model: weights in place of their codes, without their other parts, and all other stored
    /// tensors, without markers and scales of activations. Those of them that `others` lists are returned too. The parts of a
    /// weight that cannot be read in any order are stored tensors.
    pub(crate) fn model_tensors(&'a self, others: &[usize]) -> impl Iterator<Item = ModelTensor<'a>> + use<'a> {
        let found = &self.found;
        let mut weights: Vec<(usize, &FoundWeight)> =
            self.readable_weights().map(|weight| (weight.codes(), weight)).collect();
        weights.sort_by_key(|(codes, _)| *codes); // stable: weights with the same codes stay in their order
        let mut is_stored = vec![true; self.tensors.len()];
        let parts = self.readable_weights().flat_map(|weight| &weight.parts).map(|(_, at)| at);
        parts.chain(&found.markers).chain(&found.activation_scales).for_each(|at| is_stored[*at] = false);
        for at in others {
            is_stored[*at] = true;
        }
        let mut weights = weights.into_iter().peekable();
        is_stored.into_iter().enumerate().flat_map(move |(at, is_stored)| {
            let of_codes = std::iter::from_fn(|| weights.next_if(|(codes, _)| *codes == at));
            let weights: Vec<Option<&FoundWeight>> = of_codes.map(|(_, weight)| Some(weight)).collect();
            let stored = is_stored.then_some(None);
            stored.into_iter().chain(weights).map(move |weight| ModelTensor { model: self, at, weight })
        })
    }

    pub(crate) fn readable_weights(&self) -> impl Iterator<Item = &FoundWeight> {
        self.found.weights.iter().filter(|weight| self.is_readable(weight))
    }

    /// True if the parts of a weight can be read in any order.
    pub(crate) fn is_readable(&self, weight: &FoundWeight) -> bool {
        let is_held = |role: Role| weight.parameters.held.iter().any(|(held, _)| *held == role);
        weight.parts.iter().all(|&(role, at)| is_held(role) || self.stored(at).is_plain())
    }

    /// True if it is an ONNX model.
    pub(crate) fn is_onnx_model(&self) -> bool {
        self.source.is_onnx_model()
    }

    /// Returns the parts that the values of a weight depend on, the codes first.
    pub(crate) fn value_parts(weight: &FoundWeight) -> Vec<(Role, usize)> {
        let is_needed = |role: Role| !matches!(role, Role::Shape | Role::Description | Role::Activation);
        let mut parts: Vec<_> = weight.parts.iter().copied().filter(|(role, _)| is_needed(*role)).collect();
        parts.sort_by_key(|(role, _)| *role != Role::Codes);
        parts
    }

    pub(crate) fn decoder(&self, weight: &FoundWeight, target: Dtype, arithmetic: Arithmetic) -> Result<Decoder> {
        let decoder =
            Decoder::new(weight.layout, &weight.parameters, &self.described_parts(weight), target, arithmetic);
        decoder.map_err(|error| error.in_file(&self.source.path))
    }

    /// Returns the decoder of the exact values of a weight: see [`Decoder::of_rows`].
    pub(crate) fn decoder_of_rows(&self, weight: &FoundWeight) -> Result<Decoder> {
        let decoder = Decoder::of_rows(weight.layout, &weight.parameters, &self.described_parts(weight));
        decoder.map_err(|error| error.in_file(&self.source.path))
    }

    /// Returns the parts that the values of a weight depend on for reading, the codes first.
    pub(crate) fn value_sources(&self, weight: &FoundWeight) -> impl Iterator<Item = SourceTensor<'a>> {
        Self::value_parts(weight).into_iter().map(|(_, at)| self.stored(at))
    }

    /// Describes the parts that a decoder of a weight reads.
    fn described_parts(&self, weight: &FoundWeight) -> Vec<Part<'a>> {
        quant::described(&Self::value_parts(weight), &self.tensors)
    }

    /// Refuses a group index or zero points of a weight whose content contradicts the config or the other parts.
    pub(crate) fn check_parts(&self, decoder: &Decoder, weight: &FoundWeight) -> Result<()> {
        let parts = Self::value_parts(weight);
        let check = |part: Option<usize>, check: fn(&Decoder, &[u8]) -> Result<()>| {
            let Some((_, at)) = part.map(|part| parts[part]) else { return Ok(()) };
            if !self.stored(at).is_plain() {
                return Ok(()); // nothing will be decoded
            }
            check(decoder, self.bytes(at)?).map_err(|error| self.stored(at).error(error))
        };
        check(decoder.group_index_part(), Decoder::check_group_index)?;
        check(decoder.symmetric_part(), Decoder::check_symmetric)
    }

    /// Returns a weight for reading. Its parts must be mapped.
    pub(crate) fn weight(
        &self,
        weight: &FoundWeight,
        target: Dtype,
        arithmetic: Arithmetic,
    ) -> Result<WeightSource<'a>> {
        let decoder = self.decoder(weight, target, arithmetic)?;
        self.check_parts(&decoder, weight)?;
        Ok(WeightSource { name: weight.name.clone(), parts: self.value_sources(weight).collect(), decoder })
    }
}
