//! Weights in memory: from a slice to codes and scales, and back.

use super::parts::is_possible;
use super::{
    Arithmetic, CheckpointInfo, CodeType, Decoder, EncodeOptions, EncodeTally, EncodedPart, Encoder, Extremes,
    FoundWeight, Layout, Parameters, Part, Role, Rotation, Scheme, StoredTensor, probe,
};
use crate::container::checkpoint::CONFIG;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::Storage;
use half::{bf16, f16};
use std::path::Path;
use tcast_slice::{Element, StoredBytes, StoredBytesMut};

/// The type of the values of a weight: `f32`, `f16` or `bf16`. Libraries compute in the type of the weight, so the codes and
/// scales of some layouts depend on it.
pub trait WeightElement: Element + Default {}

impl WeightElement for f32 {}
impl WeightElement for f16 {}
impl WeightElement for bf16 {}

/// A quantized weight in memory.
#[derive(Clone, Debug)]
pub struct EncodedWeight {
    tensors: Vec<EncodedTensor>,
    layout: &'static Layout,
    parameters: Parameters,
    shape: Vec<u64>,
}

/// A tensor of a quantized weight, as a file stores it.
#[derive(Clone, Copy, Debug)]
pub struct StoredPart<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Lengths of the dimensions, outermost first.
    pub shape: &'a [u64],
    /// The elements, little endian.
    pub bytes: &'a [u8],
}

/// A tensor of an [`EncodedWeight`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncodedTensor {
    role: Role,
    /// The end of its name, after the name of the module: `.weight_packed`, `.weight_scale`.
    pub suffix: &'static str,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Lengths of the dimensions, outermost first.
    pub shape: Vec<u64>,
    /// The elements, little endian.
    pub bytes: Vec<u8>,
}

impl Scheme {
    /// Quantizes a weight: `values` in row-major order, with dimensions of `shape`, the columns last. The bytes are those that
    /// the program writes in the default layout of the scheme.
    ///
    /// ```
    /// use tcast::Scheme;
    ///
    /// let values: Vec<f32> = (0..2 * 64).map(|at| (at as f32 - 60.0) / 100.0).collect();
    /// let scheme = Scheme::find("nvfp4").expect("a scheme");
    /// let weight = scheme.encode(&values, &[2, 64])?;
    /// assert_eq!(weight.tensors()[0].bytes.len(), 64); // two codes in a byte
    /// let decoded: Vec<f32> = weight.decode()?;
    /// assert!(values.iter().zip(&decoded).all(|(value, decoded)| (value - decoded).abs() < 0.12));
    /// # Ok::<(), tcast::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the number of values does not fit the shape, the shape does not fit the groups of the scheme, a value is NaN or
    /// Inf, or only GGUF files or ONNX models store the scheme.
    pub fn encode<E: WeightElement>(&self, values: &[E], shape: &[u64]) -> Result<EncodedWeight> {
        let count = shape.iter().try_fold(1, |count: u64, len| count.checked_mul(*len));
        if count != Some(values.len() as u64) {
            return Err(Error::new(format!("{} values do not have the shape {shape:?}", values.len())));
        }
        let Some(stored) = self.in_layout(None) else {
            return Err(Error::new(format!("the scheme {} has no tensors of codes and scales", self.name)));
        };
        let columns = shape.last().copied().unwrap_or_default();
        let rotation = stored.row.rotation.of_rows(Rotation::default().columns(), columns);
        let options = EncodeOptions { rotation, ..EncodeOptions::default() };
        let encoder = Encoder::new(stored.row, &stored.grid, shape, E::DTYPE, options)
            .map_err(|why| Error::new(format!("the scheme {} does not fit the weight: {why}", self.name)))?;
        let mut source = vec![0; size_of_val(values)];
        let copied = StoredBytesMut::new(&mut source, Storage::packed(E::DTYPE), values.len());
        tcast_slice::cast(values, &mut copied.expect("as many bytes")).expect("a copy");
        let extremes = Extremes::of(E::DTYPE, &source, 0);
        if let Some(at) = extremes.first_special {
            return Err(Error::new(format!("value {at} is NaN or infinite, and has no code")));
        }
        let mut parts: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
        let mut outputs: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
        encoder.encode(0..encoder.rows(), &source, &extremes, &mut outputs, &mut EncodeTally::default());
        let tensor = |(part, bytes): (&EncodedPart, Vec<u8>)| {
            let bytes = part.fixed().map_or(bytes, <[u8]>::to_vec);
            EncodedTensor { role: part.role, suffix: part.suffix, dtype: part.dtype, shape: part.shape.clone(), bytes }
        };
        let tensors = encoder.parts().iter().zip(parts).map(tensor).collect();
        let bits = if let CodeType::Int { bits, .. } = stored.grid.codes { Some(bits) } else { None };
        let group = Some(stored.grid.group);
        let parameters = Parameters { shape: Some(shape.to_vec()), bits, group, rotation, ..Parameters::default() };
        Ok(EncodedWeight { tensors, layout: stored.row, parameters, shape: shape.to_vec() })
    }
}

impl EncodedWeight {
    /// Finds the quantized weight that tensors of a file form, as `TensorFiles` does for whole files.
    /// The config is the text of the model's `config.json`, which many layouts need.
    ///
    /// ```
    /// use tcast::{EncodedWeight, StoredPart, dtype::Dtype};
    ///
    /// let scales = [0.5_f32, 2.0].map(f32::to_le_bytes);
    /// let (name, dtype) = ("mlp.up_proj.weight_scale", Dtype::Float32);
    /// let scales = StoredPart { name, dtype, shape: &[2, 1], bytes: scales.as_flattened() };
    /// let (name, dtype) = ("mlp.up_proj.weight", Dtype::Float8E4M3FN);
    /// let codes = StoredPart { name, dtype, shape: &[2, 2], bytes: &[0x38, 0x40, 0xb8, 0xc0] };
    /// let config = r#"{"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
    ///     "config_groups": {"all": {"targets": ["Linear"],
    ///         "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true}}}}}"#;
    /// let weight = EncodedWeight::from_stored(&[codes, scales], Some(config))?;
    /// assert_eq!((weight.layout(), weight.shape()), ("ct-fp8", &[2, 2][..]));
    /// assert_eq!(weight.decode::<f32>()?, [0.5, 1.0, -2.0, -4.0]);
    /// # Ok::<(), tcast::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a tensor has more or fewer bytes than its shape, the tensors form no weight or several, or they contradict each
    /// other or the config. Blocks of GGUF files and weights of ONNX models are not found.
    pub fn from_stored(tensors: &[StoredPart], config: Option<&str>) -> Result<Self> {
        for StoredPart { name, dtype, shape, bytes } in tensors {
            let wanted = is_possible(shape).then(|| dtype.packed_bytes(shape.iter().product())).flatten();
            if wanted != Some(bytes.len() as u64) {
                let what = format!("has {} bytes, which are no {dtype} of the shape {shape:?}", bytes.len());
                return Err(Error::new(what).in_tensor(name));
            }
        }
        let stored =
            tensors.iter().map(|part| StoredTensor { name: part.name, dtype: Some(part.dtype), shape: part.shape });
        let found = probe(&CheckpointInfo {
            tensors: &stored.collect::<Vec<_>>(),
            folder: Path::new(""),
            configs: config.map(|text| (CONFIG, text)).as_slice(),
            metadata: &[],
            read: &|at| Ok(tensors[at].bytes.to_vec()),
        });
        let [FoundWeight { layout, parameters, shape, parts, .. }] = &found.check()?.weights[..] else {
            return Err(Error::new("the tensors are not those of one quantized weight"));
        };
        let tensor = |&(role, at): &(Role, usize)| {
            let StoredPart { name, dtype, shape, bytes } = tensors[at];
            let mut names = layout.names.iter().flat_map(|names| names.iter());
            let suffix = names.find(|(own, suffix)| *own == role && name.ends_with(suffix)).map_or("", |(_, it)| *it);
            EncodedTensor { role, suffix, dtype, shape: shape.to_vec(), bytes: bytes.to_vec() }
        };
        let (tensors, parameters, shape) = (parts.iter().map(tensor).collect(), parameters.clone(), shape.clone());
        Ok(Self { tensors, layout, parameters, shape })
    }

    /// The name of its layout, as in `TensorInfo::layout`.
    #[must_use]
    pub fn layout(&self) -> &'static str {
        self.layout.name
    }

    /// Lengths of the dimensions of its values, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The tensors that store it: codes first, then scales and other parts.
    #[must_use]
    pub fn tensors(&self) -> &[EncodedTensor] {
        &self.tensors
    }

    /// Decodes the values, with the arithmetic of the library that owns the layout.
    ///
    /// # Errors
    /// When the layout cannot be decoded to this type.
    pub fn decode<E: WeightElement>(&self) -> Result<Vec<E>> {
        let mut parts = Vec::with_capacity(self.tensors.len());
        for EncodedTensor { role, suffix, dtype, shape, .. } in &self.tensors {
            parts.push(Part { role: *role, name: suffix, dtype: *dtype, shape });
        }
        let decoder = Decoder::new(self.layout, &self.parameters, &parts, E::DTYPE, Arithmetic::Library)?;
        let bytes: Vec<&[u8]> = self.tensors.iter().map(|tensor| &tensor.bytes[..]).collect();
        let mut stored = vec![0; (decoder.rows() * decoder.row_bytes()) as usize];
        decoder.decode(0..decoder.rows(), &bytes, &mut stored)?;
        let mut values = vec![E::default(); stored.len() / size_of::<E>()];
        let stored = StoredBytes::new(&stored, Storage::packed(E::DTYPE), values.len());
        tcast_slice::cast(&stored.expect("as many bytes"), &mut values).expect("a copy");
        Ok(values)
    }
}
