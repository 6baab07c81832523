//! Weights to quantize: the rows of a stored tensor that hold each, and the weights it shares a scale with.

use super::source::stored_dtype;
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::quant::{Encoder, Extremes, Scheme};
use crate::read::SourceTensor;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A weight to quantize: a whole stored tensor, or some of its rows.
#[derive(Clone)]
pub struct PlainWeight {
    /// Its name, `x.weight`.
    pub name: String,
    /// Its first row in the stored tensor.
    pub first_row: u64,
    /// Its encoder.
    pub encoder: Arc<Encoder>,
    /// The scheme that the user asked for.
    pub scheme: &'static Scheme,
    /// The set of weights whose largest magnitude determines its scale, by the number that
    /// [`Weights::share`](super::Weights::share) returned.
    pub shared: Option<usize>,
}

impl PlainWeight {
    pub(super) fn rows<'a>(&self, source: SourceTensor<'a>) -> WeightRows<'a> {
        WeightRows { source, first_row: self.first_row, encoder: Arc::clone(&self.encoder) }
    }
}

/// How a step quantizes a weight.
pub(crate) struct Quantization<'a> {
    /// The name of the weight in the output: `x.weight`.
    pub name: String,
    /// The values.
    pub rows: WeightRows<'a>,
    /// The scheme that the user asked for.
    pub scheme: &'static Scheme,
    /// The largest magnitude of whole tensors, if the scale depends on it.
    pub extremes: Option<Arc<SharedExtremes<'a>>>,
}

impl Quantization<'_> {
    /// The names of the parts, in the order of [`Encoder::parts`].
    pub(crate) fn part_names(&self) -> impl Iterator<Item = String> {
        let stem = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        self.rows.encoder.parts().iter().map(move |part| format!("{stem}{}", part.suffix))
    }
}

/// The values of a weight in the tensor that holds it.
#[derive(Clone)]
pub(crate) struct WeightRows<'a> {
    pub source: SourceTensor<'a>,
    /// The first row of the weight in the tensor.
    pub first_row: u64,
    pub encoder: Arc<Encoder>,
}

impl<'a> WeightRows<'a> {
    /// The bytes of some rows of the weight, after reading them from the disk.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(crate) fn read(&self, rows: Range<u64>) -> Result<&'a [u8]> {
        let mapped = self.source.mapped().expect("the plan takes tensors that are mapped");
        let [start, end] =
            [rows.start, rows.end].map(|row| ((self.first_row + row) * self.encoder.row_bytes()) as usize);
        mapped.read(start..end).map_err(|error| self.source.error(error))
    }

    /// The length of all values in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.encoder.rows() * self.encoder.row_bytes()
    }

    /// The dtype of the values.
    pub(crate) fn dtype(&self) -> Dtype {
        stored_dtype(self.source.tensor)
    }

    /// The error for an infinite or NaN element, given by its index in the weight.
    pub(crate) fn special(&self, element: u64) -> Error {
        let columns = self.encoder.shape().last().copied().unwrap_or(1);
        let indices = self.source.indices(self.first_row * columns + element);
        let error =
            Error::new(format!("element {indices:?} is infinite or NaN, which codes and scales cannot represent"));
        self.source.error(error.of(Kind::Unconvertible))
    }
}

/// The largest magnitude of all weights that share a scale. One pass finds it before the first of them is encoded.
pub(crate) struct SharedExtremes<'a> {
    pub members: Vec<WeightRows<'a>>,
    found: OnceLock<Extremes>,
}

impl<'a> SharedExtremes<'a> {
    pub(super) fn new(members: Vec<WeightRows<'a>>) -> Self {
        Self { members, found: OnceLock::new() }
    }

    /// The extremes, if the first pass is over.
    pub(crate) fn get(&self) -> Option<&Extremes> {
        self.found.get()
    }

    /// Stores what the first pass found.
    pub(crate) fn set(&self, extremes: Extremes) {
        let _ = self.found.set(extremes); // every pass finds the same
    }
}
