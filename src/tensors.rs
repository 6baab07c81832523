//! The tensors of a file or of a folder of shards: a list, and their values.

use crate::container::checkpoint::{self, Checkpoint};
use crate::container::{Elements, Form, ReadOptions};
use crate::conversion::NamedElements;
use crate::convert::Settings;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::measure::distribution::{self, Distribution};
use crate::plan::{self, Codes};
use crate::quant::{Arithmetic, FoundWeight};
use crate::read::{LogicalTensor, Model, ModelTensor, SourceTensor, WeightSource};
use crate::select::Selection;
use crate::text::shorten;
use crate::threads::cores;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use tcast_slice::{CastError, Element, StoredBytes};

/// A tensor of a model. A quantized weight with its scales and other parts is one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Name in the model; for the tensor of a file without names, the name of the file without its ending.
    pub name: String,
    /// Type of the elements, or of the codes of a quantized weight; `None` if the file does not name a supported type.
    pub dtype: Option<Dtype>,
    /// Lengths of the dimensions, outermost first. For a quantized weight, the shape of its values.
    pub shape: Vec<u64>,
    /// Layout of a quantized weight, such as `compressed-tensors`; `None` for a plain tensor.
    pub layout: Option<&'static str>,
    /// Number of stored bytes, including scales and other parts.
    pub bytes: u64,
}

/// A tensor file, an ONNX model or a folder of shards that was opened: its headers and configs were read, and none of its
/// elements.
///
/// ```
/// let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/checkpoints/llama-fp8");
/// let files = tcast::TensorFiles::open(model)?;
/// let tensors = files.tensors();
/// for tensor in tensors.list() {
///     println!("{} {:?} {}", tensor.name, tensor.shape, tensor.layout.unwrap_or("plain"));
/// }
/// // Quantized weights are decoded.
/// let row: Vec<f32> = tensors.values("model.layers.0.mlp.down_proj.weight", 0..352)?;
/// # assert!(row.iter().any(|value| *value != 0.0));
/// # Ok::<(), tcast::error::Error>(())
/// ```
pub struct TensorFiles(Checkpoint);

/// The tensors of [`TensorFiles`].
pub struct Tensors<'a> {
    model: Model<'a>,
    by_name: OnceLock<ByName<'a>>,
    /// The stored tensors that are no values.
    codes: OnceLock<Codes<'a>>,
}

/// Weights and tensors by name.
struct ByName<'a> {
    /// Indices of the quantized weights that can be decoded.
    weights: HashMap<String, usize>,
    /// Indices of the stored tensors.
    stored: HashMap<&'a str, usize>,
}

impl TensorFiles {
    /// Opens a file or a folder.
    ///
    /// # Errors
    /// When the path cannot be read, or is neither a tensor file nor a folder of shards.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let mut source = checkpoint::open(path.as_ref(), &ReadOptions::on(cores()))?;
        let _ = source.divide_stacks(); // tensors without a name on Hugging Face are listed as the file has them
        Ok(Self(source))
    }

    /// Finds the quantized weights among the stored tensors.
    #[must_use]
    pub fn tensors(&self) -> Tensors<'_> {
        Tensors { model: Model::probe(&self.0), by_name: OnceLock::new(), codes: OnceLock::new() }
    }
}

impl<'a> Tensors<'a> {
    /// Lists the tensors, in the order in which they are stored.
    #[must_use]
    pub fn list(&self) -> Vec<TensorInfo> {
        let model = &self.model;
        let info = |tensor: ModelTensor| {
            let (dtype, layout) = match tensor.weight {
                None => (model.stored(tensor.at).elements.dtype(), None),
                Some(weight) => (model.tensors[tensor.at].dtype, Some(weight.layout.name)),
            };
            let (name, shape, bytes) = (tensor.name().to_owned(), tensor.shape().to_vec(), tensor.stored_len());
            TensorInfo { name, dtype, shape, layout, bytes }
        };
        model.model_tensors(&model.found.activation_scales).map(info).collect()
    }

    /// Reads elements of a tensor, counted in row-major order, as a type of Rust, `half` or [`slice`](tcast_slice): each
    /// value is rounded once, as [`slice::cast`](tcast_slice::cast) does. Quantized weights are decoded, with the arithmetic
    /// of their library, to `f32`, `f16` or `bf16`. A checksum of the file is checked if all elements are read.
    ///
    /// # Errors
    /// When there is no such tensor, the range is beyond its end, its elements are not numbers or are codes of a weight that
    /// cannot be decoded, or ONNX Cast lacks the conversion.
    pub fn values<E: Element + Default>(&self, name: &str, elements: Range<u64>) -> Result<Vec<E>> {
        let weight;
        let found = self.find(name)?;
        let tensor = match found.weight {
            Some(found) => {
                weight = self.weight::<E>(found)?;
                LogicalTensor::Weight(&weight)
            }
            None => LogicalTensor::Stored(self.stored(found)?),
        };
        let NamedElements { count, .. } = tensor.named();
        if elements.start > elements.end || elements.end > count {
            let message = format!("has {count} elements, and {elements:?} are not all among them");
            return Err(tensor.error(Error::new(message)));
        }
        let Elements::Typed(Form::Numbers(storage)) = tensor.elements() else {
            return Err(tensor.error(Error::new("has no elements that are numbers")));
        };
        if elements.is_empty() {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::new();
        let first = tensor.read(elements.clone(), &mut bytes)?;
        let len = (elements.end - first) as usize;
        let stored = StoredBytes::new(&bytes, storage, len);
        let stored = stored.ok_or_else(|| tensor.error(Error::new("has fewer elements than its shape")))?;
        let mut values = vec![E::default(); len];
        let cast = tcast_slice::cast(&stored, &mut values);
        cast.map_err(|error: CastError| tensor.error(Error::new(error.to_string())))?;
        values.drain(..(elements.start - first) as usize);
        Ok(values)
    }

    /// Computes the distribution of a tensor's values, as `tcast inspect --stats` does: extremes, mean, special values and
    /// exponents. The values of a quantized weight are those that `tcast dequantize` writes. `None` for text, and if the file
    /// does not name the type of the elements. The progress has the stored bytes.
    ///
    /// ```
    /// let files = tcast::TensorFiles::open(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/checkpoints/llama-fp8"))?;
    /// let (tensors, settings) = (files.tensors(), tcast::Settings::default());
    /// for tensor in tensors.list() {
    ///     let Some(figures) = tensors.distribution(&tensor.name, &settings)? else { continue };
    ///     println!("{}: {:?} to {:?}, {} NaN", tensor.name, figures.min, figures.max, figures.nan);
    /// }
    /// # Ok::<(), tcast::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no such tensor, its bytes cannot be read or are malformed, or the work is cancelled.
    pub fn distribution(&self, name: &str, settings: &Settings) -> Result<Option<Distribution>> {
        let tensor = self.find(name)?;
        let form = match tensor.stored().map(|stored| plan::source_form(stored.tensor, None)) {
            None => None,
            Some(Ok(form @ Form::Numbers(_))) => Some(form),
            Some(_) => return Ok(None),
        };
        settings.progress.begin(tensor.stored_len());
        let measured = distribution::of_model(tensor, form, settings.reading());
        measured.map_err(|error| error.in_file(&self.model.source.path))
    }

    fn find(&self, name: &str) -> Result<ModelTensor<'_>> {
        let model = &self.model;
        let ByName { weights, stored } = self.by_name.get_or_init(|| {
            let weights = model.found.weights.iter().enumerate().filter(|(_, weight)| model.is_readable(weight));
            ByName {
                weights: weights.map(|(at, weight)| (weight.name.clone(), at)).collect(),
                stored: model.tensors.iter().enumerate().map(|(at, tensor)| (tensor.name, at)).collect(),
            }
        });
        if let Some(at) = weights.get(name) {
            let weight = &model.found.weights[*at];
            return Ok(ModelTensor { model, at: weight.codes(), weight: Some(weight) });
        }
        let Some(at) = stored.get(name) else {
            let error = Error::new(format!("there is no tensor '{}'", shorten(name)));
            return Err(error.in_file(&model.source.path));
        };
        Ok(ModelTensor { model, at: *at, weight: None })
    }

    /// Returns the stored tensors that are no values.
    fn codes(&self) -> Result<&Codes<'a>> {
        if let Some(known) = self.codes.get() {
            return Ok(known);
        }
        let model = &self.model;
        let codes = if Codes::may_be_in(model.source) { Codes::of(model)? } else { Codes::undecoded_of(model) };
        Ok(self.codes.get_or_init(|| codes))
    }

    fn weight<E: Element>(&self, weight: &FoundWeight) -> Result<WeightSource<'a>> {
        if !E::DTYPE.is_weight() {
            let error = Error::new(format!("is not decoded to {}, but to float32, float16 or bfloat16", E::DTYPE));
            return Err(error.in_tensor(&weight.name).in_file(&self.model.source.path));
        }
        self.model.weight(weight, E::DTYPE, Arithmetic::Library)
    }

    fn stored<'t>(&self, tensor: ModelTensor<'t>) -> Result<SourceTensor<'t>> {
        let codes = self.codes()?;
        if let Some(error) = codes.undecoded() {
            return Err(error.in_file(&self.model.source.path));
        }
        let mut stored = tensor.model.stored(tensor.at);
        stored.is_transposed = stored.tensor.fortran_order;
        match codes.refusal(tensor.name(), &Selection::default()) {
            Some(error) => Err(stored.error(error)),
            None => Ok(stored),
        }
    }
}
