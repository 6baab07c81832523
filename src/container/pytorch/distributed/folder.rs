//! The common parts of all forms of such folders: their files, the archives in them, and tensors of several pieces.

use super::super::code::PickleFacts;
use super::super::types::TorchType;
use super::super::values::PickleValue;
use super::super::view::{View, in_elements, view};
use super::super::{PyTorch, TorchFile, check_storages};
use super::pieces::{Assembled, Span, TensorPiece, check_cover};
use crate::container::tensor::TensorError;
use crate::container::{Contents, Data, Elements, Input, Tensor, element_count};
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::io::open::is_missing;
use crate::text::shorten;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of ranks.
pub(super) const MOST_RANKS: u64 = 1 << 16;
/// Maximum number of pieces that a part of a tensor consists of.
const MOST_PIECES: usize = 1 << 20;

/// The contents of a folder.
#[derive(Default)]
pub(super) struct Opened {
    pub(super) tensors: Vec<Tensor>,
    pub(super) unreadable: Vec<Error>,
    pub(super) facts: PickleFacts,
}

impl Opened {
    pub(super) fn into_input(self, files: Vec<MappedFile>) -> Input {
        let Self { tensors, unreadable, facts } = self;
        // Formats with metadata give their mark to the output.
        let (metadata, pickle) = (Some(Vec::new()), Some(Box::new(facts)));
        let contents = Contents { tensors, metadata, unreadable, pickle, ..Contents::default() };
        Input::of_folder(&PyTorch, contents, files)
    }
}

/// Files of a folder with tensors.
pub(super) struct FolderFiles {
    folder: PathBuf,
    numbers: HashMap<String, u32>,
    /// The number of the first.
    first: u32,
    pub(super) files: Vec<MappedFile>,
}

impl FolderFiles {
    pub(super) fn new(folder: &Path, first: u32) -> Self {
        Self { folder: folder.to_owned(), numbers: HashMap::new(), first, files: Vec::new() }
    }

    /// Opens a file, unless it is open. Returns its number.
    pub(super) fn open(&mut self, name: &str) -> Result<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let path = self.folder.join(name);
        if is_missing(&path) {
            let what = format!("is in {}, which is missing", shorten(name));
            return Err(Error::new(what).remedy("copy or download the whole folder"));
        }
        let number = self.first + self.files.len() as u32;
        self.files.push(MappedFile::open(&path)?);
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    pub(super) fn get(&self, number: u32) -> &[u8] {
        &self.files[(number - self.first) as usize]
    }

    /// Returns the name of a file for messages.
    pub(super) fn name(&self, number: u32) -> String {
        let name = self.files[(number - self.first) as usize].path().file_name().unwrap_or_default();
        shorten(&name.to_string_lossy())
    }
}

/// Reads an archive of `torch.save`, all but its storages.
pub(super) fn read_archive(bytes: &[u8]) -> Result<TorchFile<'_>> {
    let file = TorchFile::in_archive(bytes)?;
    check_storages(&file.pickle.values)?;
    file.pickle.values.check_keys()?;
    Ok(file)
}

/// Returns the tensor that an archive consists of.
pub(super) fn only_tensor(archive: &TorchFile) -> Result<View> {
    match archive.pickle.root {
        PickleValue::Tensor(tensor) => view_of(archive, tensor),
        _ => Err(Error::new("its archive is not one of a tensor")),
    }
}

/// Returns a tensor of an archive.
pub(super) fn view_of(archive: &TorchFile, tensor: u32) -> Result<View> {
    let TorchFile { pickle, storages, .. } = archive;
    match view(&pickle.values, &pickle.values.tensors[tensor as usize], storages) {
        Ok(view) if view.flipped.is_some() => Err(Error::new("is the conjugate or the negative of what is stored")),
        Ok(view) if view.form.big_endian => Err(Error::new("has big endian elements, which tcast does not join")),
        Ok(view) => Ok(view),
        Err(TensorError::Unreadable(error) | TensorError::Malformed(error)) => Err(error),
    }
}

/// Returns the pieces of a part of a tensor: along each axis, its elements are these ranges of the whole, one after the other.
/// The bytes of the view are counted from `base` in the file.
pub(super) fn pieces_of(view: &View, runs: &[Vec<Range<u64>>], file: u32, base: usize) -> Result<Vec<TensorPiece>> {
    let (width, start) = (view.torch_type.width as usize, base + view.range.start);
    let mut pieces = vec![(Vec::<Span>::new(), start)];
    for (runs, stride) in runs.iter().zip(&view.strides) {
        let mut next = Vec::new();
        if pieces.len().saturating_mul(runs.len()) > MOST_PIECES {
            return Err(Error::new(format!("consists of more than {MOST_PIECES} pieces")));
        }
        for (spans, start) in pieces {
            let mut local = 0;
            for run in runs {
                let len = run.end - run.start;
                let span = Span { start: run.start, len, stride: *stride };
                // Nothing is read from an empty piece.
                let place = if len > 0 { start + (local * stride) as usize * width } else { start };
                next.push(([&spans[..], &[span]].concat(), place));
                local += len;
            }
        }
        pieces = next;
    }
    Ok(pieces.into_iter().map(|(spans, start)| TensorPiece { spans: spans.into(), file, start }).collect())
}

/// Returns the ranges of a part that is a box.
pub(super) fn ranges_of(offsets: &[u64], sizes: &[u64]) -> Vec<Vec<Range<u64>>> {
    let range = |(start, len): (&u64, &u64)| std::iter::once(*start..start.saturating_add(*len)).collect();
    offsets.iter().zip(sizes).map(range).collect()
}

/// A tensor of several pieces.
pub(super) struct Whole<'n> {
    pub(super) name: &'n str,
    pub(super) torch_type: &'static TorchType,
    /// In elements of torch.
    pub(super) shape: Vec<u64>,
    /// Describes the pieces.
    pub(super) how: String,
}

impl Whole<'_> {
    /// Joins the pieces, which must cover the tensor. `where_is` describes a file.
    pub(super) fn assemble(self, mut pieces: Vec<TensorPiece>, where_is: &dyn Fn(u32) -> String) -> Result<Tensor> {
        let Self { name, torch_type, shape, how } = self;
        check_cover(&shape, &mut pieces, where_is)?;
        let form = torch_type.form(false).ok_or_else(|| Error::new(torch_type.refusal()))?;
        let count = element_count(&shape).and_then(|count| count.checked_mul(torch_type.elements()));
        let count = count.filter(|count| *count < 1 << 56);
        let count = count.ok_or_else(|| Error::new(format!("its shape {shape:?} is too large")))?;
        let data = if count == 0 {
            Data::plain(0..0)
        } else {
            let assembled = Assembled::new(torch_type.width as usize, &shape, pieces);
            match assembled.contiguous() {
                Some((file, range)) => Data::Mapped { file, range, checksum: None },
                None => Data::Streamed(Arc::new(assembled)),
            }
        };
        Ok(Tensor {
            name: name.into(),
            shape: in_elements(shape, torch_type).into(),
            count,
            elements: Elements::numbers(form),
            fortran_order: false,
            data,
            stored: format!("{}, {how}", torch_type.name).into(),
        })
    }
}
