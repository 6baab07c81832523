//! Tensor files: reading the contents of a file, and laying out a new one.
//!
//! A file format is a folder in this folder and a line in [`CONTAINERS`]. Reading looks only at headers and trusts
//! nothing in them: every length is checked against the file before it is used. Writing lays out a file before any data
//! exists, from names, dtypes and shapes.

#[allow(clippy::must_use_candidate, reason = "for users of the crate only")]
pub mod checkpoint;
mod code;
mod foreign;
mod gather;
pub(crate) mod gguf;
mod input;
mod json;
mod layout;
pub(crate) mod names;
mod npy;
mod npz;
pub(crate) mod onnx;
mod pytorch;
mod reader;
mod safetensors;
mod shape;
mod tensor;
mod text;
mod zip;

#[cfg(feature = "cli")]
pub(crate) use code::FoundCode;
pub(crate) use gguf::{ARCHITECTURE, ComputedTensor, GgufKey, keys_of_part, model_of_part, part_names};
pub use input::{Contents, Input, open, probe};
pub(crate) use input::{is_deflated, probe_with};
pub(crate) use json::{Members, as_json, members};
pub(crate) use npz::deflate;
pub(crate) use pytorch::PickleFacts;
#[cfg(feature = "cli")]
pub(crate) use pytorch::RootInfo;
pub use reader::Reader;
pub(crate) use reader::unpack;
pub use safetensors::read_header_twice;
use shape::is_countable;
pub(crate) use shape::{indices, position};
pub(crate) use tensor::sum_of;
pub use tensor::{Elements, Form, Tensor};
pub(crate) use text::TextExtent;
pub use text::TextForm;
pub use {
    layout::{
        FileLayout, HeaderEntries, NewMetadata, NewTensor, NewTensors, PendingCrc, Placement, Rereading, WrittenTensor,
    },
    reader::{Stream, Streamed},
    shape::{element_count, row_major},
    tensor::{Checksum, Data},
    text::TextError,
};

use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::io::map::MappedFile;
use layout::too_long;
use std::path::Path;

/// Every container; the first that recognises a file's first bytes reads it.
pub static CONTAINERS: &[&dyn Container] = &[
    &npy::Npy,
    &pytorch::PyTorch,
    &npz::Npz,
    &safetensors::Safetensors,
    &gguf::Gguf,
    &onnx::Onnx,
    &onnx::model::OnnxModel,
];

/// The format of the shards of a checkpoint.
pub static SHARDS: &dyn Container = &safetensors::Safetensors;

/// The format of models in blocks.
pub(crate) static GGUF: &dyn Container = &gguf::Gguf;

/// Options of reading a file.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions<'a> {
    /// Maximum number of threads for headers that take long.
    pub threads: usize,
    /// The keys that lead to the tensors of a PyTorch checkpoint, joined by dots; `.` for all tensors. `None` if the file
    /// decides.
    pub root: Option<&'a str>,
    /// The rank whose tensors are taken if all ranks have a whole one, and these differ. `None` if they must be equal.
    pub take_rank: Option<u64>,
}

impl ReadOptions<'_> {
    /// Options that leave all other decisions to the file.
    #[must_use]
    pub fn on(threads: usize) -> Self {
        Self { threads, root: None, take_rank: None }
    }
}

/// A file format that holds tensors: one of [`CONTAINERS`].
pub trait Container: Sync {
    /// Properties of every file of the format.
    fn format_info(&self) -> FormatInfo;

    /// Name of the stored form of a type in the format's own terms; `None` if the format cannot store the type.
    fn stores(&self, dtype: Dtype) -> Option<String>;

    /// Form in which the format stores the elements of a type. The width of texts is 0, because it depends on the texts.
    fn form(&self, dtype: Dtype) -> Form {
        Form::packed(dtype)
    }

    /// True if a file that starts with these bytes has this format.
    fn recognises(&self, bytes: &[u8]) -> bool;

    /// Reads the headers of a whole file.
    ///
    /// # Errors
    /// When the bytes violate the format, or the file has no tensors under the root of the options.
    fn read(&self, file: &MappedFile, options: &ReadOptions) -> Result<Contents>;

    /// Lays out a file that will hold `tensors` in this order, and writes its header on up to `threads` threads.
    ///
    /// # Errors
    /// When the format cannot hold them.
    fn lay_out(&self, tensors: &dyn NewTensors, metadata: &NewMetadata, threads: usize) -> Result<FileLayout>;

    /// Reads a finished file with a library that other programs use, and compares the header with the tensors of the plan.
    ///
    /// # Errors
    /// When the library refuses the file, or reads other tensors: then this program has a defect, or the disk has.
    fn reread(&self, _file: &[u8], _tensors: Rereading) -> Result<()> {
        Ok(())
    }

    /// Returns the error for a type that the format cannot hold; `are_several` is true if the output has other tensors
    /// too.
    fn refusal(&self, dtype: Dtype, are_several: bool) -> Error {
        let error = Error::new(format!(".{} cannot hold {dtype}", self.format_info().extension));
        with_formats(error, are_several, &|other| other.stores(dtype).is_some())
    }
}

impl dyn Container + '_ {
    /// True if this is the other format.
    pub(crate) fn is(&self, other: &dyn Container) -> bool {
        self.format_info().extension == other.format_info().extension
    }
}

/// Returns the only tensor, for a format that holds exactly one.
fn only_tensor<'a>(tensors: &'a dyn NewTensors, extension: &str) -> Result<NewTensor<'a>> {
    if tensors.count() == 1 {
        return Ok(tensors.get(0));
    }
    let error = Error::new(format!("a .{extension} file holds one tensor, there are {}", tensors.count()));
    Err(with_formats(error, true, &|other| {
        tensors.iter().all(|tensor| tensor.opaque.is_some() || other.stores(tensor.dtype).is_some())
    }))
}

/// Properties of every file of a format.
#[derive(Clone, Copy, Debug)]
pub struct FormatInfo {
    /// The file name extension, without the dot.
    pub extension: &'static str,
    /// Other extensions of such files, which files of other formats may have too.
    pub other_extensions: &'static [&'static str],
    /// A file holds exactly one tensor.
    pub holds_one: bool,
    /// Tensors have names.
    pub has_names: bool,
    /// Tensors can be in column-major order.
    pub has_fortran_order: bool,
    /// Metadata that a file can hold.
    pub metadata: Metadata,
    /// The files of the format that tcast makes.
    pub writing: WrittenFiles,
    /// Names of the shards, if a checkpoint can be a folder of files of this format.
    pub shards: Option<ShardNames>,
}

/// The files of a format that tcast makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenFiles {
    /// Files of any tensors.
    Any,
    /// Only changed files of the format, because they hold more than tensors.
    Changed,
    /// Files on request only, because they describe a model with more than tensors, so a planner decides their contents.
    /// Other outputs are in the format of shards.
    OnRequest,
    /// None: outputs are in the format of shards.
    Never,
}

/// Names of the shards in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardNames {
    /// The extension.
    pub extension: &'static str,
    /// A text that the name contains before the extension.
    pub part_of_stem: &'static str,
}

impl ShardNames {
    /// True if a name is the name of a shard, in upper or lower case.
    pub(crate) fn is_shard(&self, name: &str) -> bool {
        has_extension(self.extension, name) && name.contains(self.part_of_stem)
    }

    /// True if a name is the name of an index: `model.safetensors.index.json`, or `model.safetensors.index.fp16.json` for a
    /// variant.
    pub(crate) fn is_index(&self, name: &str) -> bool {
        name.contains(&format!(".{}.index.", self.extension))
            && Path::new(name).extension().is_some_and(|end| end == "json")
    }
}

fn has_extension(extension: &str, name: &str) -> bool {
    name.to_ascii_lowercase().strip_suffix(extension).is_some_and(|stem| stem.ends_with('.'))
}

impl FormatInfo {
    /// The properties of a format of tensors with names in row-major order, and of nothing else, that tcast makes.
    const fn of(extension: &'static str) -> Self {
        Self {
            extension,
            other_extensions: &[],
            holds_one: false,
            has_names: true,
            has_fortran_order: false,
            metadata: Metadata::None,
            writing: WrittenFiles::Any,
            shards: None,
        }
    }

    /// True if tcast makes files of the format from any tensors.
    pub(crate) fn can_be_made(&self) -> bool {
        self.writing == WrittenFiles::Any
    }

    /// True if a file can only be made from another file of the format.
    pub(crate) fn is_changed_only(&self) -> bool {
        self.writing == WrittenFiles::Changed
    }

    /// True if an output has this format because its input has it, unless a name or a request says otherwise.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.writing, WrittenFiles::Any | WrittenFiles::Changed)
    }
}

/// Metadata that a format can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// None.
    None,
    /// Names and values.
    Plain,
    /// Names and values, including this pair, which readers require and which has no meaning in other formats.
    Marked(&'static str, &'static str),
}

impl Metadata {
    /// Returns the name of the pair that readers require.
    pub(crate) fn mark(self) -> Option<&'static str> {
        if let Self::Marked(name, _) = self { Some(name) } else { None }
    }
}

/// A key of the metadata of a file, and its new value or `None` to remove it.
pub(crate) type MetadataChange = (String, Option<String>);

/// Returns the container for a file name's extension.
#[must_use]
pub fn by_extension(path: &Path) -> Option<&'static dyn Container> {
    // A file named `.npz` has no extension in the sense of `Path`, although the name is meant as one.
    let dotted = || path.file_name()?.to_str()?.strip_prefix('.');
    let extension = path.extension().map_or_else(dotted, |extension| extension.to_str())?.to_ascii_lowercase();
    let is_meant = |info: FormatInfo| info.extension == extension || info.other_extensions.contains(&&*extension);
    CONTAINERS.iter().find(|container| is_meant(container.format_info())).copied()
}

/// `.npy, .npz or .pb`: the extensions of all containers.
pub(crate) fn known_formats() -> String {
    formats(|_| true)
}

/// Returns the extensions of the formats that satisfy `are_meant`; empty if there are none.
pub(crate) fn formats(are_meant: impl Fn(&dyn Container) -> bool) -> String {
    let meant = CONTAINERS.iter().filter(|container| are_meant(**container));
    let extensions: Vec<String> = meant.map(|container| format!(".{}", container.format_info().extension)).collect();
    match extensions.split_last() {
        Some((last, others @ [_, ..])) => format!("{} or {last}", others.join(", ")),
        _ => extensions.concat(),
    }
}

/// Adds to an error the formats that can hold the tensors, one or several, if there are any.
fn with_formats(error: Error, are_several: bool, can_hold: &dyn Fn(&dyn Container) -> bool) -> Error {
    let able = formats(|other| {
        let info = other.format_info();
        can_hold(other) && info.can_be_made() && !(are_several && info.holds_one)
    });
    if able.is_empty() { error } else { error.with(Opt::OUTPUT, format!("name an output that ends in {able}")) }
}
