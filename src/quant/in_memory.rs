//! Weights in memory: from a slice to codes and scales, and back.

use super::{
    Arithmetic, CodeType, Decoder, EncodeOptions, EncodeTally, EncodedPart, Encoder, Extremes, Layout, Parameters,
    Part, Role, Rotation, Scheme,
};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use half::{bf16, f16};
use tcast_slice::Element;

/// The type of the values of a weight: `f32`, `f16` or `bf16`. Libraries compute in the type of the weight, so the codes and
/// scales of some layouts depend on it.
pub trait WeightElement: Element + sealed::LittleEndian {}

impl WeightElement for f32 {}
impl WeightElement for f16 {}
impl WeightElement for bf16 {}

mod sealed {
    pub trait LittleEndian: Sized {
        fn to_bytes(values: &[Self]) -> Vec<u8>;
        fn from_bytes(bytes: &[u8]) -> Vec<Self>;
    }
}

macro_rules! little_endian {
    ($($element:ty),*) => {
        $(
            impl sealed::LittleEndian for $element {
                fn to_bytes(values: &[Self]) -> Vec<u8> {
                    values.iter().flat_map(|value| value.to_le_bytes()).collect()
                }
                fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                    bytes.as_chunks().0.iter().map(|bytes| Self::from_le_bytes(*bytes)).collect()
                }
            }
        )*
    };
}

little_endian!(f32, f16, bf16);

/// A quantized weight in memory.
#[derive(Clone, Debug)]
pub struct EncodedWeight {
    tensors: Vec<EncodedTensor>,
    layout: &'static Layout,
    parameters: Parameters,
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
        let source = E::to_bytes(values);
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
        Ok(EncodedWeight { tensors, layout: stored.row, parameters })
    }
}

impl EncodedWeight {
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
        let mut values = vec![0; (decoder.rows() * decoder.row_bytes()) as usize];
        decoder.decode(0..decoder.rows(), &bytes, &mut values)?;
        Ok(E::from_bytes(&values))
    }
}
