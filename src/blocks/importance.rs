//! Importance matrices: files with the mean squares of the inputs of each weight, which llama.cpp's `llama-imatrix`
//! writes, and which [`BlockFormat::encode`](super::BlockFormat::encode) takes as weights of columns.
//!
//! There are two formats, GGUF and an older one. The rules are those of llama.cpp's `llama-quant.cpp` and `quantize.cpp`.

use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// Ending of the names of tensors with sums of squares.
const SUMS: &str = ".in_sum2";
/// Ending of the names of tensors with numbers of inputs.
const COUNTS: &str = ".counts";

/// The weights of the columns of several tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportanceMatrix {
    /// By the name of a tensor: the columns of its first matrix, then those of its next, and so on.
    weights: BTreeMap<String, Vec<f32>>,
}

impl ImportanceMatrix {
    /// The value of `general.type` in GGUF files with importance matrices.
    pub const TYPE: &str = "imatrix";
    /// Other keys that such a file must have: an array of strings, and two 32-bit integers.
    pub const KEYS: [&str; 3] = ["imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"];

    /// Computes the weights from the tensors of a GGUF file: names, and little endian bytes, or `None` for tensors of
    /// another type than `F32`.
    ///
    /// For a tensor `W`, `W.in_sum2` has the sums of squares of each column, and `W.counts` has the number of inputs, or
    /// one number for each expert. An expert without inputs has the weight 1 in all columns. Other tensors are ignored.
    ///
    /// # Errors
    /// If a tensor has another type, only one of the two tensors exists, their lengths do not match, or there are none.
    pub fn from_tensors<'a>(tensors: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>) -> Result<Self> {
        let (mut sums, mut counts) = (BTreeMap::new(), BTreeMap::new());
        for (name, data) in tensors {
            let (tensor, numbers_of) = if let Some(tensor) = name.strip_suffix(SUMS) {
                (tensor, &mut sums)
            } else if let Some(tensor) = name.strip_suffix(COUNTS) {
                (tensor, &mut counts)
            } else {
                continue;
            };
            let data = data.ok_or_else(|| Error::new("importance matrices have the type F32").in_tensor(name))?;
            numbers_of.insert(tensor, numbers(data));
        }
        if let Some(tensor) = counts.keys().find(|tensor| !sums.contains_key(*tensor)) {
            return Err(missing(tensor, SUMS));
        }
        let mut weights = BTreeMap::new();
        for (tensor, mut sums) in sums {
            let counts = counts.get(tensor).ok_or_else(|| missing(tensor, COUNTS))?;
            if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
                let what = format!("{} sums of squares do not belong to {} counts", sums.len(), counts.len());
                return Err(Error::new(what).in_tensor(tensor));
            }
            let columns = sums.len() / counts.len();
            for (sums, count) in sums.chunks_mut(columns).zip(counts) {
                let count = count.round();
                for sum in sums {
                    *sum = if count > 0.0 { *sum / count } else { 1.0 };
                }
            }
            weights.insert(tensor.to_owned(), sums);
        }
        Self::of(weights)
    }

    /// Computes the weights from a file in the older format: the number of tensors, and for each the length of its name,
    /// its name, a number of calls, a number of values, and the values. All integers are 32 bits, and all numbers little
    /// endian. The rest of the file is ignored. A value is divided by the number of calls unless that is 0.
    ///
    /// # Errors
    /// If the file ends early, contains a negative length, or contains no tensor.
    pub fn from_legacy(file: &[u8]) -> Result<Self> {
        let mut reader = LegacyReader { rest: file };
        let mut weights = BTreeMap::new();
        for _ in 0..reader.integer()?.max(0) {
            let length = reader.length()?;
            let name = reader.bytes(length)?;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let name = str::from_utf8(name).map_err(|_| Error::new("the name of a tensor is not UTF-8"))?;
            let calls = reader.integer()?;
            let count = reader.length()?;
            let bytes = count.checked_mul(4).ok_or_else(ends_early)?;
            let mut values = numbers(reader.bytes(bytes)?);
            if values.is_empty() {
                return Err(Error::new("the importance matrix has no values").in_tensor(name));
            }
            if calls > 0 {
                for value in &mut values {
                    *value /= calls as f32;
                }
            }
            weights.insert(name.to_owned(), values);
        }
        Self::of(weights)
    }

    fn of(weights: BTreeMap<String, Vec<f32>>) -> Result<Self> {
        if weights.is_empty() {
            return Err(Error::new("the importance matrix has no tensors"));
        }
        Ok(Self { weights })
    }

    /// Returns the names of tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.weights.keys().map(String::as_str)
    }

    /// Returns the weights of a tensor with a number of matrices of `columns` columns each; `None` if there are none.
    /// Matrix i has the weights from `i * columns` on.
    ///
    /// # Errors
    /// If there are weights for another number of columns, or a weight is infinite or NaN.
    pub fn weights(&self, tensor: &str, columns: u64, matrices: u64) -> Result<Option<&[f32]>> {
        let Some(weights) = self.weights.get(tensor) else { return Ok(None) };
        if columns.checked_mul(matrices) != Some(weights.len() as u64) {
            let what =
                format!("the importance matrix has {} weights for {matrices} x {columns} columns", weights.len());
            return Err(Error::new(what).in_tensor(tensor));
        }
        if let Some(column) = weights.iter().position(|weight| !weight.is_finite()) {
            let what = format!("weight {column} of the importance matrix is {}", weights[column]);
            return Err(Error::new(what).in_tensor(tensor));
        }
        Ok(Some(weights))
    }
}

fn missing(tensor: &str, ending: &str) -> Error {
    Error::new(format!("the importance matrix has no tensor '{tensor}{ending}'"))
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// A reader of the older format.
struct LegacyReader<'a> {
    rest: &'a [u8],
}

impl<'a> LegacyReader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or_else(ends_early)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn integer(&mut self) -> Result<i32> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(ends_early)?;
        self.rest = rest;
        Ok(i32::from_le_bytes(*bytes))
    }

    fn length(&mut self) -> Result<usize> {
        usize::try_from(self.integer()?).map_err(|_| Error::new("the importance matrix contains a negative length"))
    }
}

fn ends_early() -> Error {
    Error::new("the importance matrix ends early")
}
