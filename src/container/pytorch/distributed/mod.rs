//! Folders in which the processes of a training wrote one checkpoint together: of torch.distributed.checkpoint ([`dcp`]), or
//! with a file for each rank ([`ranks`]), or with pieces in `.safetensors` files ([`shards`]).
//!
//! The tensors of such a folder consist of pieces in several files ([`pieces`]), which are read as one input: its first file
//! describes the folder.

mod attributes;
mod dcp;
mod mesh;
mod pieces;
mod ranks;
mod roots;
mod shards;

use super::code::PickleFacts;
use super::types::TorchType;
use super::values::PickleValue;
use super::view::{View, in_elements, view};
use super::{PyTorch, TorchFile, check_storages};
use crate::container::tensor::TensorError;
use crate::container::{Contents, Data, Elements, Input, ReadOptions, Tensor, element_count, has_extension};
use crate::error::{Error, Result};
use crate::io::listing::{Entry, entries};
use crate::io::map::MappedFile;
use crate::io::open::{is_missing, unreadable};
use crate::text::shorten;
use pieces::{Assembled, Piece, Span, check_cover};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const METADATA: &str = ".metadata";
/// Maximum number of ranks.
const MOST_RANKS: u64 = 1 << 16;
/// Maximum number of pieces that a part of a tensor consists of.
const MOST_PIECES: usize = 1 << 20;

/// True for the names of files that are parts of such a folder, and not files beside a model.
pub(in crate::container) fn is_part_of_folder(name: &str) -> bool {
    let is_of_rank = |kind: &&str| name.strip_prefix(kind).is_some_and(|rest| rest.starts_with("_world_size_"));
    let is_rank = has_extension("pt", name) && ["model", "optim", "extra_state"].iter().any(is_of_rank);
    name == METADATA || is_of_dcp(name) || is_rank || name == ranks::CONFIG
}

fn is_of_dcp(name: &str) -> bool {
    has_extension("distcp", name)
}

/// True for the names of `.safetensors` files that hold pieces of tensors.
pub(in crate::container) fn is_shard_of_pieces(name: &str) -> bool {
    shards::parse(name).is_some()
}

/// Opens a folder that processes wrote together; `None` if it is none.
///
/// # Errors
/// When the folder is incomplete, or a file cannot be read.
pub(in crate::container) fn open_folder(folder: &Path, options: &ReadOptions) -> Result<Option<Input>> {
    let mut names: Vec<String> = entries(folder).map_err(unreadable(folder))?.iter().map(Entry::text).collect();
    names.sort_unstable();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if let Some(error) = refusal(&names) {
        return Err(error.in_file(folder));
    }
    if has(METADATA) && names.iter().any(|name| is_of_dcp(name)) {
        let metadata = MappedFile::open(&folder.join(METADATA))?;
        let mut files = FolderFiles::new(folder, 1);
        let opened = dcp::read(&metadata, &mut files, options.root);
        let opened = opened.map_err(|error| error.in_file(metadata.path()))?;
        return Ok(Some(opened.into_input(std::iter::once(metadata).chain(files.files))));
    }
    if names.iter().any(|name| shards::parse(name).is_some()) {
        let mut files = FolderFiles::new(folder, 0);
        let opened = shards::read(folder, &names, &mut files, options)?;
        return Ok(Some(opened.into_input(files.files.into_iter())));
    }
    if names.iter().any(|name| ranks::parse(name).is_some()) {
        let mut files = FolderFiles::new(folder, 0);
        let opened = ranks::read(folder, &names, &mut files, options)?;
        return Ok(Some(opened.into_input(files.files.into_iter())));
    }
    Ok(None)
}

/// Searches the archives of a folder that were not read. Returns suspicious names of code.
///
/// # Errors
/// When an archive cannot be searched.
pub(in crate::container) fn search_unread(facts: &PickleFacts, folder: &Path) -> Result<BTreeSet<String>> {
    let mut files = FolderFiles::new(folder, 0);
    let mut found = PickleFacts::default();
    for (name, place) in &facts.unread {
        let number = files.open(name)?;
        let bytes = usize::try_from(place.start)
            .ok()
            .zip(usize::try_from(place.end).ok())
            .and_then(|(start, end)| files.get(number).get(start..end));
        let in_file = |error: Error| error.in_file(&folder.join(name));
        let bytes = bytes.ok_or_else(|| in_file(Error::new("ends before the place of a pickle")))?;
        found.merge(&TorchFile::in_archive(bytes).map_err(in_file)?.facts)?;
    }
    Ok(found.suspicious)
}

/// Returns the error for a folder that processes wrote in a way that is not read, by the names in it.
fn refusal(names: &[String]) -> Option<Error> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let find = |is_meant: &dyn Fn(&str) -> bool| names.iter().map(String::as_str).find(|name| is_meant(name));
    let is_of_zero = |name: &str| name.contains("zero_pp_rank_") && name.ends_with("_model_states.pt");
    if has("common.pt") && has("metadata.json") && find(&is_of_dcp).is_some() {
        let what = "is a checkpoint of Megatron (torch_dist), whose tensors have other names and shapes than those of \
                    Hugging Face: layers are stacked, and heads are merged";
        return Some(Error::new(what).remedy("convert it with Megatron Bridge, which knows the model"));
    }
    if let Some(part) = find(&is_of_zero) {
        let what = format!(
            "holds the partitions of DeepSpeed ZeRO-3, such as {}: their pieces have neither names nor shapes, and tcast \
             does not join them",
            shorten(part)
        );
        return Some(Error::new(what).remedy("join them with zero_to_fp32.py, which DeepSpeed wrote beside them"));
    }
    if find(&is_of_dcp).is_some() && !has(METADATA) {
        let own = find(&|name| name.starts_with("__") && name.ends_with(METADATA));
        let error = Error::new(match own {
            Some(own) => format!(
                "holds a checkpoint that each process saved on its own (use_collectives=False), such as {}: nothing says \
                 how the tensors continue in the others",
                shorten(own)
            ),
            None => "holds a checkpoint of torch.distributed.checkpoint without its .metadata: it was not saved \
                     completely"
                .to_owned(),
        });
        return Some(error.remedy("save it again, or download the whole folder"));
    }
    None
}

/// The contents of a folder.
#[derive(Default)]
struct Opened {
    tensors: Vec<Tensor>,
    unreadable: Vec<Error>,
    facts: PickleFacts,
}

impl Opened {
    fn into_input(self, files: impl Iterator<Item = MappedFile>) -> Input {
        let Self { tensors, unreadable, facts } = self;
        // Formats with metadata give their mark to the output.
        let (metadata, pickle) = (Some(Vec::new()), Some(Box::new(facts)));
        let contents = Contents { tensors, metadata, unreadable, pickle, ..Contents::default() };
        Input::of_folder(&PyTorch, contents, files.collect())
    }
}

/// Files of a folder with tensors.
struct FolderFiles {
    folder: PathBuf,
    numbers: HashMap<String, u32>,
    /// The number of the first.
    first: u32,
    files: Vec<MappedFile>,
}

impl FolderFiles {
    fn new(folder: &Path, first: u32) -> Self {
        Self { folder: folder.to_owned(), numbers: HashMap::new(), first, files: Vec::new() }
    }

    /// Opens a file, unless it is open. Returns its number.
    fn open(&mut self, name: &str) -> Result<u32> {
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

    fn get(&self, number: u32) -> &[u8] {
        &self.files[(number - self.first) as usize]
    }

    /// Returns the name of a file for messages.
    fn name(&self, number: u32) -> String {
        let name = self.files[(number - self.first) as usize].path().file_name().unwrap_or_default();
        shorten(&name.to_string_lossy())
    }
}

/// Reads an archive of `torch.save`, all but its storages.
fn read_archive(bytes: &[u8]) -> Result<TorchFile<'_>> {
    let file = TorchFile::in_archive(bytes)?;
    check_storages(&file.pickle.values)?;
    file.pickle.values.check_keys()?;
    Ok(file)
}

/// Returns the tensor that an archive consists of.
fn only_tensor(archive: &TorchFile) -> Result<View> {
    match archive.pickle.root {
        PickleValue::Tensor(tensor) => view_of(archive, tensor),
        _ => Err(Error::new("is not a tensor")),
    }
}

/// Returns a tensor of an archive.
fn view_of(archive: &TorchFile, tensor: u32) -> Result<View> {
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
fn pieces_of(view: &View, runs: &[Vec<Range<u64>>], file: u32, base: usize) -> Result<Vec<Piece>> {
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
    Ok(pieces.into_iter().map(|(spans, start)| Piece { spans: spans.into(), file, start }).collect())
}

/// Returns the ranges of a part that is a box.
fn ranges_of(offsets: &[u64], sizes: &[u64]) -> Vec<Vec<Range<u64>>> {
    let range = |(start, len): (&u64, &u64)| std::iter::once(*start..start.saturating_add(*len)).collect();
    offsets.iter().zip(sizes).map(range).collect()
}

/// A tensor of several pieces.
struct Whole<'n> {
    name: &'n str,
    torch_type: &'static TorchType,
    /// In elements of torch.
    shape: Vec<u64>,
    /// Describes the pieces.
    how: String,
}

impl Whole<'_> {
    /// Joins the pieces, which must cover the tensor. `where_is` describes a file.
    fn assemble(self, mut pieces: Vec<Piece>, where_is: &dyn Fn(u32) -> String) -> Result<Tensor> {
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
