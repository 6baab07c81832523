//! The importance of the columns of weights, from a file of `llama-imatrix`.

use crate::blocks::ImportanceMatrix;
use crate::container::gguf::first_text;
use crate::container::{self, Input};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::io::map::MappedFile;
use crate::quant::gguf::language;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An importance matrix, and the facts about it that a new file records.
pub(super) struct ImportanceFile {
    pub path: PathBuf,
    matrix: ImportanceMatrix,
    /// The first text from which it was computed.
    pub dataset: Option<String>,
    /// Number of chunks of this text.
    pub chunks: Option<u32>,
}

impl ImportanceFile {
    /// Reads a GGUF file with an importance matrix, or a file in the older format.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let in_file = |error: Error| error.in_file(path);
        let file = MappedFile::open(path)?;
        let starts_like_gguf = file.get(..4).is_some_and(|bytes| container::GGUF.recognises(bytes));
        if !starts_like_gguf {
            file.prefetch(0..file.len())?;
            let matrix = ImportanceMatrix::from_legacy(&file).map_err(|error| {
                in_file(error)
                    .with(Opt::IMATRIX, "name an importance matrix of llama-imatrix, which has columns for each weight")
            })?;
            return Ok(Self { path: path.to_owned(), matrix, dataset: None, chunks: None });
        }
        let input = container::open(path)?;
        Self::of(&input).map_err(in_file)
    }

    fn of(input: &Input) -> Result<Self> {
        let contents = &input.contents;
        if contents.value("general.type") != Some(ImportanceMatrix::TYPE) {
            let error = Error::new("is a GGUF file without an importance matrix");
            return Err(error.with(Opt::IMATRIX, "name the output of llama-imatrix"));
        }
        let has = |key: &&&str| contents.keys.iter().any(|(name, _)| name == **key);
        if let Some(key) = ImportanceMatrix::KEYS.iter().find(|key| !has(key)) {
            return Err(Error::new(format!("is an importance matrix without the key {key}")));
        }
        let mut tensors = Vec::new();
        for tensor in &contents.tensors {
            let bytes = match tensor.mapped_range() {
                Some((_, range)) if tensor.elements.dtype() == Some(Dtype::Float32) => {
                    input.files[0].prefetch(range.clone())?;
                    Some(&input.files[0][range])
                }
                _ => None,
            };
            tensors.push((&*tensor.name, bytes));
        }
        let matrix = ImportanceMatrix::from_tensors(tensors)?;
        let [datasets, chunks, _] = ImportanceMatrix::KEYS;
        let datasets = contents.keys.iter().find(|(name, _)| name == datasets);
        let dataset = datasets.and_then(|(_, range)| first_text(&input.files[0][range.clone()])).map(str::to_owned);
        let chunks = contents.value(chunks).and_then(|count| count.parse().ok());
        Ok(Self { path: input.path().to_owned(), matrix, dataset, chunks })
    }

    /// Returns the names of the tensors, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.matrix.names()
    }

    /// Returns the weights of all columns of a tensor; `None` if there are none. Those of embeddings may have another
    /// length, and do not count then, as in llama-quantize.
    pub(super) fn of_tensor(&self, name: &str, shape: &[u64]) -> Result<Option<Arc<[f32]>>> {
        let (columns, matrices) = match shape {
            [leading @ .., _, columns] => (*columns, leading.iter().product()),
            [columns] => (*columns, 1),
            [] => return Ok(None),
        };
        match self.matrix.weights(name, columns, matrices) {
            Ok(Some(weights)) if weights.iter().any(|weight| *weight < 0.0) => {
                let error = Error::new("the importance matrix has negative weights").in_tensor(name);
                Err(error.in_file(&self.path))
            }
            Ok(weights) => Ok(weights.map(Arc::from)),
            Err(_) if language::is_embedding(name) => Ok(None),
            Err(error) => Err(error.in_file(&self.path)),
        }
    }
}
