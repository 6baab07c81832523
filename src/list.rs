//! One call that lists the tensors of a file or of a folder of shards.

use crate::container::{ReadOptions, checkpoint};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::read::{Model, ModelTensor};
use crate::threads::cores;
use std::path::Path;

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

/// Lists the tensors of a tensor file, an ONNX model or a folder of shards, in the order in which they are stored. It reads
/// headers and configs, and none of the elements.
///
/// ```
/// let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/checkpoints/llama-fp8");
/// for tensor in tcast::tensors(model)? {
///     println!("{} {:?} {}", tensor.name, tensor.shape, tensor.layout.unwrap_or("plain"));
/// }
/// # Ok::<(), tcast::error::Error>(())
/// ```
///
/// # Errors
/// When the path cannot be read, or is neither a tensor file nor a folder of shards.
pub fn tensors(path: impl AsRef<Path>) -> Result<Vec<TensorInfo>> {
    let mut source = checkpoint::open(path.as_ref(), &ReadOptions::on(cores()))?;
    let _ = source.divide_stacks(); // tensors without a name on Hugging Face are listed as the file has them
    let model = Model::probe(&source);
    let info = |(at, tensor): (usize, ModelTensor)| {
        let (dtype, layout) = match tensor {
            ModelTensor::Stored(_, stored) => (stored.elements.dtype(), None),
            ModelTensor::Weight(_, weight) => (model.tensors[at].dtype, Some(weight.layout.name)),
        };
        let (name, shape, bytes) = (tensor.name().to_owned(), tensor.shape().to_vec(), tensor.stored_len());
        TensorInfo { name, dtype, shape, layout, bytes }
    };
    Ok(model.model_tensors(&model.found.activation_scales).map(info).collect())
}
