//! Weights that are quantized: which rows of a stored tensor they are, and with which they share a scale.

use super::source::stored_dtype;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::{Encoder, Extremes, Scheme};
use crate::read::SourceTensor;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A weight that is to be quantized. It is all of a stored tensor, or some of its rows.
#[derive(Clone)]
pub struct PlainWeight {
    /// Its name, `x.weight`.
    pub name: String,
    /// The row of the stored tensor that is its first.
    pub first_row: u64,
    /// What makes codes and scales of it.
    pub encoder: Arc<Encoder>,
    /// What was asked for.
    pub scheme: &'static Scheme,
    /// The weights whose largest magnitude its scale depends on, by the number that
    /// [`Weights::share`](super::Weights::share) gave.
    pub shared: Option<usize>,
}

impl PlainWeight {
    pub(super) fn rows<'a>(&self, source: SourceTensor<'a>) -> WeightRows<'a> {
        WeightRows { source, first_row: self.first_row, encoder: Arc::clone(&self.encoder) }
    }
}

/// How a step makes codes and scales.
pub(crate) struct Quantization<'a> {
    /// The name of the weight in the output: `x.weight`.
    pub name: String,
    /// The values.
    pub rows: WeightRows<'a>,
    /// What was asked for.
    pub scheme: &'static Scheme,
    /// Where the scale depends on the largest magnitude of whole tensors.
    pub extremes: Option<Arc<SharedExtremes<'a>>>,
}

impl Quantization<'_> {
    /// The names of the parts, in the order of the encoder.
    pub(crate) fn part_names(&self) -> impl Iterator<Item = String> {
        let stem = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        self.rows.encoder.parts().iter().map(move |part| format!("{stem}{}", part.suffix))
    }
}

/// The values of a weight in the tensor that holds it.
#[derive(Clone)]
pub(crate) struct WeightRows<'a> {
    pub source: SourceTensor<'a>,
    /// The row of the tensor that is the first of the weight.
    pub first_row: u64,
    pub encoder: Arc<Encoder>,
}

impl<'a> WeightRows<'a> {
    /// The bytes of some rows, read from the disk.
    ///
    /// # Errors
    /// When the file cannot be read there.
    pub(crate) fn read(&self, rows: Range<u64>) -> Result<&'a [u8]> {
        let mapped = self.source.mapped().expect("the plan takes tensors that are mapped");
        let [start, end] =
            [rows.start, rows.end].map(|row| ((self.first_row + row) * self.encoder.row_bytes()) as usize);
        mapped.read(start..end).map_err(|error| self.source.error(error))
    }

    /// Bytes of all values.
    pub(crate) fn bytes(&self) -> u64 {
        self.encoder.rows() * self.encoder.row_bytes()
    }

    /// The type of the values.
    pub(crate) fn dtype(&self) -> Dtype {
        stored_dtype(self.source.tensor)
    }

    /// Refuses an element that is infinite or no number, counted from the first of the weight.
    pub(crate) fn special(&self, element: u64) -> Error {
        let columns = self.encoder.shape().last().copied().unwrap_or(1);
        let indices = self.source.indices(self.first_row * columns + element);
        let error =
            Error::new(format!("element {indices:?} is infinite or NaN, which codes and scales cannot stand for"));
        self.source.error(error)
    }
}

/// The largest magnitude of all weights that share a scale. It is looked for once, before the first of them is encoded.
pub(crate) struct SharedExtremes<'a> {
    pub members: Vec<WeightRows<'a>>,
    found: OnceLock<Extremes>,
}

impl<'a> SharedExtremes<'a> {
    pub(super) fn new(members: Vec<WeightRows<'a>>) -> Self {
        Self { members, found: OnceLock::new() }
    }

    /// What was found, if it was looked for.
    pub(crate) fn get(&self) -> Option<&Extremes> {
        self.found.get()
    }

    /// Takes what was found.
    pub(crate) fn set(&self, extremes: Extremes) {
        let _ = self.found.set(extremes); // the same for every run of it
    }
}
