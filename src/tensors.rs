//! The tensors of a file or of a folder of shards: a list, and their values.

use crate::container::checkpoint::{self, Checkpoint};
use crate::container::{Elements, Form, ReadOptions};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::Arithmetic;
use crate::read::{LogicalTensor, Model, ModelTensor, SourceTensor};
use crate::text::shorten;
use crate::threads::cores;
use std::ops::Range;
use std::path::Path;
use tcast_slice::{CastError, Element, StoredBytes};

/// A tensor of a model. A quantized weight with its scales and other parts is one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Name in the model; empty for the tensor of a file without names.
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
pub struct Tensors<'a>(Model<'a>);

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
        Tensors(Model::probe(&self.0))
    }
}

impl Tensors<'_> {
    /// Lists the tensors, in the order in which they are stored.
    #[must_use]
    pub fn list(&self) -> Vec<TensorInfo> {
        let model = &self.0;
        let info = |(at, tensor): (usize, ModelTensor)| {
            let (dtype, layout) = match tensor {
                ModelTensor::Stored(_, stored) => (stored.elements.dtype(), None),
                ModelTensor::Weight(_, weight) => (model.tensors[at].dtype, Some(weight.layout.name)),
            };
            let (name, shape, bytes) = (tensor.name().to_owned(), tensor.shape().to_vec(), tensor.stored_len());
            TensorInfo { name, dtype, shape, layout, bytes }
        };
        model.model_tensors(&model.found.activation_scales).map(info).collect()
    }

    /// Reads elements of a tensor, counted in row-major order, as a type of Rust, `half` or [`slice`](tcast_slice): each
    /// value is rounded once, as [`slice::cast`](tcast_slice::cast) does. Quantized weights are decoded, with the arithmetic
    /// of their library, to `f32`, `f16` or `bf16`.
    ///
    /// # Errors
    /// When there is no such tensor, the range is beyond its end, its elements are not numbers, or ONNX Cast lacks the
    /// conversion; for a quantized weight, when it cannot be decoded to this type.
    pub fn values<E: Element + Default>(&self, name: &str, elements: Range<u64>) -> Result<Vec<E>> {
        let model = &self.0;
        let mut tensors = model.model_tensors(&model.found.activation_scales);
        let Some((at, tensor)) = tensors.find(|(_, tensor)| tensor.name() == name) else {
            return Err(Error::new(format!("there is no tensor '{}'", shorten(name))).in_file(&model.source.path));
        };
        let weight;
        let logical = match tensor {
            ModelTensor::Stored(..) => {
                let stored = model.stored(at);
                LogicalTensor::Stored(SourceTensor { is_transposed: stored.tensor.fortran_order, ..stored })
            }
            ModelTensor::Weight(_, found) => {
                if !E::DTYPE.is_weight() {
                    let error = Error::new(format!("is quantized, and is not decoded to {}", E::DTYPE));
                    return Err(error.remedy("read it as f32, f16 or bf16").in_tensor(name));
                }
                weight = model.weight(found, E::DTYPE, Arithmetic::Library)?;
                LogicalTensor::Weight(&weight)
            }
        };
        let count = tensor.shape().iter().product();
        if elements.start > elements.end || elements.end > count {
            return Err(
                logical.error(Error::new(format!("has {count} elements, and {elements:?} are not all among them")))
            );
        }
        let Elements::Typed(Form::Numbers(storage)) = logical.elements() else {
            return Err(logical.error(Error::new("has no elements that are numbers")));
        };
        let mut bytes = Vec::new();
        let first = logical.read(elements.clone(), &mut bytes)?;
        let len = (elements.end - first) as usize;
        let stored = StoredBytes::new(&bytes, storage, len);
        let stored = stored.ok_or_else(|| logical.error(Error::new("has fewer elements than its shape")))?;
        let mut values = vec![E::default(); len];
        let cast = tcast_slice::cast(&stored, &mut values);
        cast.map_err(|error: CastError| logical.error(Error::new(error.to_string())))?;
        values.drain(..(elements.start - first) as usize);
        Ok(values)
    }
}
