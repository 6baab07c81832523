//! Tensor files: what is in one, and where everything lies in a new one.
//!
//! A file format is a file in this folder and a line in [`CONTAINERS`]. Reading looks at headers only and
//! trusts nothing in them: every length is checked against the file before it is used. Writing lays a file out
//! before any data exists, from names, dtypes and shapes.

#[doc(hidden)] // for the program and the tests
pub mod checkpoint;
mod deflate;
mod form;
mod json;
mod npy;
mod npz;
mod onnx;
mod reader;
mod safetensors;
mod text;
mod zip;

pub(crate) use deflate::deflate;
pub(crate) use form::TextExtent;
pub use form::{Form, TextForm};
pub(crate) use json::{as_json, members};
pub use reader::Reader;
#[doc(hidden)] // what containers are made of
pub use {reader::Stream, reader::Streamed, text::TextError};

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::text::{quoted, shorten};
use format::Format;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Every container; the first that recognises a file's first bytes reads it.
pub static CONTAINERS: &[&dyn Container] = &[&npy::Npy, &npz::Npz, &safetensors::Safetensors, &onnx::Onnx];

/// The format of the shards of a checkpoint.
#[doc(hidden)] // for tests
pub static SHARDS: &dyn Container = &safetensors::Safetensors;

/// A file format that holds tensors: one of [`CONTAINERS`].
pub trait Container: Format {
    /// What can be said of every file of the format.
    fn format_info(&self) -> FormatInfo;

    /// How a type is stored, in the words of the format; `None` when it cannot be.
    fn stores(&self, dtype: Dtype) -> Option<String>;
}

/// What a container does with bytes. No other crate can name it, so all containers are in this one.
mod format {
    use super::{Contents, FileLayout, MappedFile, NewTensor, Result};

    pub trait Format: Sync {
        /// Whether a file that starts with these bytes is of this format.
        fn recognises(&self, bytes: &[u8]) -> bool;

        /// Reads the headers of a whole file.
        ///
        /// # Errors
        /// When the bytes break the format, or hold what has no dtype in the table.
        fn read(&self, file: &MappedFile) -> Result<Contents>;

        /// Lays out a file that will hold `tensors` in this order.
        ///
        /// # Errors
        /// When the format cannot hold them.
        fn lay_out(&self, tensors: &[&NewTensor], metadata: Option<&[(String, String)]>) -> Result<FileLayout>;
    }
}

impl dyn Container + '_ {
    /// What to say of a type that the format cannot hold.
    pub(crate) fn refusal(&self, dtype: Dtype) -> Error {
        cannot_hold(self.format_info().extension, dtype)
    }

    /// The tensor of a format that holds one.
    ///
    /// # Errors
    /// When there is none, or there are more.
    fn only<'a, 't>(&self, tensors: &[&'a NewTensor<'t>]) -> Result<&'a NewTensor<'t>> {
        if let [tensor] = tensors {
            return Ok(tensor);
        }
        let several = CONTAINERS.iter().map(|container| container.format_info()).filter(|facts| !facts.holds_one);
        let several: Vec<&str> = several.map(|facts| facts.extension).collect();
        let extension = self.format_info().extension;
        Err(Error::new(format!("a .{extension} file holds one tensor, there are {}", tensors.len()))
            .remedy(format!("name an output that ends in {}", one_of(&several))))
    }
}

/// Whether an output is deflated once it is laid out and written: an archive of arrays, made from one with a deflated
/// member.
#[must_use]
pub(crate) fn is_deflated(input: &Input, target: &dyn Container) -> bool {
    let is_archive = |container: &dyn Container| container.format_info().extension == npz::Npz.format_info().extension;
    let is_streamed = |tensor: &Tensor| matches!(tensor.data, Data::Streamed(_));
    is_archive(target) && is_archive(input.container) && input.contents.tensors.iter().any(is_streamed)
}

/// What can be said of every file of a format.
#[derive(Clone, Copy, Debug)]
pub struct FormatInfo {
    /// The file name extension, without dot.
    pub extension: &'static str,
    /// A file holds one tensor and never more.
    pub holds_one: bool,
    /// Tensors have names.
    pub has_names: bool,
    /// Tensors can lie in column-major order.
    pub has_fortran_order: bool,
    /// Names and values besides the tensors.
    pub metadata: Metadata,
}

/// What a format has of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// There is no place for any.
    None,
    /// Names and values.
    Plain,
    /// Names and values, among them this pair, which readers want and which means nothing elsewhere.
    Marked(&'static str, &'static str),
}

/// An input: a file, what is in it, and the files that it refers to.
pub struct Input {
    /// The format of the file.
    pub container: &'static dyn Container,
    /// What is in it.
    pub contents: Contents,
    /// The file itself, then those that it keeps tensors in.
    pub files: Vec<MappedFile>,
    /// The name of the file without its extension, for a tensor that has no name.
    stem: String,
}

impl Input {
    /// Where the file is, as it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.files[0].path()
    }

    /// Length of the file, and of those that it refers to, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }

    /// Whether there are no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Refuses what was read if a file is not any more what it was.
    ///
    /// # Errors
    /// As [`MappedFile::check_unchanged`].
    pub fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(MappedFile::check_unchanged)
    }

    /// The bytes before the first tensor's; of a file whose tensors are no plain bytes, the first few.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        const FEW: usize = 1 << 16;
        let starts = self.contents.tensors.iter().map(|tensor| match &tensor.data {
            Data::Mapped { file: 0, range, .. } => range.start,
            _ => FEW,
        });
        &self.files[0][..starts.min().unwrap_or(FEW).min(self.files[0].len())]
    }

    /// What a tensor is called: by its file, where that holds one and gives it no name.
    #[must_use]
    pub fn name_of<'a>(&'a self, tensor: &'a Tensor) -> &'a str {
        let is_nameless = tensor.name.is_empty() && self.container.format_info().holds_one;
        if is_nameless { &self.stem } else { &tensor.name }
    }
}

/// What a file holds.
#[derive(Debug, Default)]
pub struct Contents {
    /// In the order of the file's own list.
    pub tensors: Vec<Tensor>,
    /// Names and values, in the order of the file; `None` where the file has no such section.
    pub metadata: Option<Vec<(String, String)>>,
    /// Further files that tensors lie in.
    pub beside: Vec<MappedFile>,
    /// What is in the file and is no tensor, by name.
    pub ignored: Vec<String>,
    /// Tensors that cannot be read, and why: of a file that is sound as a whole.
    pub unreadable: Vec<Error>,
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Empty where the file gives none.
    pub name: String,
    /// Lengths of the dimensions, the outermost first.
    pub shape: Vec<u64>,
    /// Elements, which is the product of the shape; of [`Elements::Opaque`] the bytes.
    pub count: u64,
    /// What the elements are.
    pub elements: Elements,
    /// Column-major order; only where that differs from row-major.
    pub fortran_order: bool,
    /// Where its bytes are.
    #[doc(hidden)]
    pub data: Data,
    /// How the file says what it holds, in the words of the format.
    pub stored: Cow<'static, str>,
}

impl Tensor {
    /// What to say where its type is not supported.
    pub(crate) fn refusal(&self) -> Error {
        let code = self.stored.trim_start_matches(['<', '>', '|', '=']);
        let meaning = match code.strip_suffix(|c: char| c.is_ascii_digit()).unwrap_or(code) {
            "O" => " (Python objects in a pickle, which can run code and is never opened)",
            _ if code.starts_with("M8") || code.starts_with("m8") => " (dates)",
            _ => "",
        };
        Error::new(format!("unsupported dtype '{}'{meaning}", shorten(&self.stored)))
    }
}

/// What the elements of a stored tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Of a known type.
    Typed(Form),
    /// This many opaque bytes each: the file does not say what they mean.
    Untyped(u32),
    /// Of a type that tcast does not know: the bytes can only be copied, within the format.
    Opaque,
}

impl Elements {
    /// Bytes that `count` elements take. `None` when the number does not fit in 64 bits, or depends on the texts.
    #[must_use]
    pub fn bytes(self, count: u64) -> Option<u64> {
        match self {
            Self::Typed(form) => form.bytes(count),
            Self::Untyped(bytes) => count.checked_mul(bytes.into()),
            Self::Opaque => Some(count),
        }
    }
}

/// Where the bytes of a stored tensor are.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub enum Data {
    /// In a file as they are.
    Mapped {
        /// Which of [`Input::files`].
        file: usize,
        /// Where in it.
        range: Range<usize>,
        /// What they must sum up to.
        checksum: Option<Box<Checksum>>,
    },
    /// Behind a compression or an encoding: they come one after the other only.
    Streamed(Arc<dyn Streamed>),
}

impl Data {
    /// Bytes that it takes in its file.
    #[must_use]
    pub fn stored_len(&self) -> u64 {
        match self {
            Self::Mapped { range, .. } => range.len() as u64,
            Self::Streamed(streamed) => streamed.stored_len(),
        }
    }
}

/// A CRC-32 over a tensor's bytes and some before them.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Checksum {
    /// The sum of the bytes before the tensor's.
    pub before: crc32fast::Hasher,
    /// The sum of all.
    pub expected: u32,
}

impl Checksum {
    /// Compares with the sum of the tensor's own bytes.
    ///
    /// # Errors
    /// When they differ: the file was damaged.
    pub fn check(&self, bytes: &crc32fast::Hasher) -> Result<()> {
        let mut sum = self.before.clone();
        sum.combine(bytes);
        if sum.finalize() == self.expected { Ok(()) } else { Err(Error::new("is damaged: its checksum is wrong")) }
    }
}

/// The CRC-32 of some bytes, that sums of others can be combined with.
#[must_use]
pub(crate) fn sum_of(bytes: &[u8]) -> crc32fast::Hasher {
    let mut sum = crc32fast::Hasher::new();
    sum.update(bytes);
    sum
}

/// A tensor of a file that is to be written.
#[derive(Debug)]
#[doc(hidden)]
pub struct NewTensor<'a> {
    /// Its name; a format without names drops it.
    pub name: Cow<'a, str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Lengths of the dimensions, the outermost first.
    pub shape: &'a [u64],
    /// Elements, which is the product of the shape.
    pub count: u64,
    /// Whether its elements will come in column-major order.
    pub fortran_order: bool,
    /// Of text, how long the texts are.
    pub text: Option<Box<TextExtent>>,
    /// How the format names a type that is not supported; the elements are its bytes then.
    pub opaque: Option<&'a str>,
}

/// Where everything goes in a new file: literal bytes and tensors without gaps.
#[derive(Debug)]
#[doc(hidden)]
pub struct FileLayout {
    /// Headers and the like with their offsets, in order.
    pub literals: Vec<(u64, Vec<u8>)>,
    /// For each tensor, where it goes.
    pub places: Vec<Placement>,
    /// Length of the file.
    pub len: u64,
}

/// Where a tensor goes in a new file, and how.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Placement {
    /// How its elements are stored.
    pub form: Form,
    /// Where its bytes lie.
    pub range: Range<u64>,
    /// A checksum of them that is to be written as well.
    pub crc: Option<Box<PendingCrc>>,
}

/// A CRC-32 that is known when a tensor is written, and belongs into the file.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct PendingCrc {
    /// The sum of the bytes before the tensor's.
    pub before: crc32fast::Hasher,
    /// Where the sum of all is to be written, as 4 bytes, the lowest first.
    pub offsets: [u64; 2],
}

/// Opens a file all of whose tensors can be read.
///
/// # Errors
/// As [`probe`], and when a tensor is unreadable.
pub fn open(path: &Path) -> Result<Input> {
    let mut input = probe(path)?;
    if input.contents.unreadable.is_empty() {
        return Ok(input);
    }
    Err(input.contents.unreadable.swap_remove(0).in_file(path))
}

/// Opens a file and reads its headers. The content decides what it is; the extension only where the content is
/// broken, or says nothing: an ONNX tensor begins like no other file and like many.
///
/// # Errors
/// When the file cannot be read, no container knows the bytes, the one that does finds them broken, or the file's
/// name says that it is something else.
pub fn probe(path: &Path) -> Result<Input> {
    let file = MappedFile::open(path)?;
    let in_file = |error: Error| error.in_file(path);
    if file.is_empty() {
        return Err(in_file(Error::new("the file is empty")));
    }
    let by_content = CONTAINERS.iter().find(|container| container.recognises(&file));
    let container = match (by_content, foreign_format(&file)) {
        (Some(container), _) => {
            check_name(path, container.format_info().extension)?;
            *container
        }
        (None, Some((what, remedy))) => return Err(in_file(Error::new(what).remedy(remedy))),
        (None, None) => {
            by_extension(path).or_else(|| is_onnx_model(path).then_some(&onnx::Onnx as _)).ok_or_else(|| {
                in_file(
                    Error::new(format!("is no tensor file that tcast knows by its content: {}", known_formats()))
                        .remedy("an ONNX tensor has no mark of its own: name the file something.pb"),
                )
            })?
        }
    };
    let mut contents = container.read(&file).map_err(in_file)?;
    let files = std::iter::once(file).chain(contents.beside.drain(..)).collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Input { container, contents, files, stem })
}

/// Refuses a file that is named as another format: somebody mixed something up.
fn check_name(path: &Path, extension: &str) -> Result<()> {
    match by_extension(path).map(|named| named.format_info().extension) {
        Some(named) if named != extension => {
            let message = format!("is a .{extension} file by its content, and named as a .{named} file");
            let name = path.with_extension(extension);
            Err(Error::new(message).in_file(path).remedy(format!("mv {} {}", quoted(path), quoted(&name))))
        }
        _ => Ok(()),
    }
}

/// The container that a file name's extension asks for.
#[must_use]
pub fn by_extension(path: &Path) -> Option<&'static dyn Container> {
    // A file named `.npz` has no extension, though that is what is meant by it.
    let dotted = || path.file_name()?.to_str()?.strip_prefix('.');
    let extension = path.extension().map_or_else(dotted, |extension| extension.to_str())?.to_ascii_lowercase();
    CONTAINERS.iter().find(|container| container.format_info().extension == extension).copied()
}

/// `.npy, .npz or .pb`: the extensions of all containers.
#[must_use]
pub(crate) fn known_formats() -> String {
    one_of(&CONTAINERS.iter().map(|container| container.format_info().extension).collect::<Vec<_>>())
}

/// Those that hold the names of tensors.
#[must_use]
pub(crate) fn formats_with_names() -> String {
    let facts = CONTAINERS.iter().map(|container| container.format_info()).filter(|facts| facts.has_names);
    one_of(&facts.map(|facts| facts.extension).collect::<Vec<_>>())
}

/// `.npy, .npz or .pb`
fn one_of(extensions: &[&str]) -> String {
    let (last, others) = extensions.split_last().unwrap_or((&"", &[]));
    let others: Vec<String> = others.iter().map(|extension| format!(".{extension}")).collect();
    if others.is_empty() { format!(".{last}") } else { format!("{} or .{last}", others.join(", ")) }
}

/// Whole models are read as far as it takes to say what they are.
fn is_onnx_model(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

/// What helps where an input is a pickle.
const PICKLE: &str = "load it where you trust it and save it again, with safetensors.torch.save_file or numpy.save";

/// Files that people mistake for tensor files, by their first bytes: what each is, and what helps.
fn foreign_format(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const FORMATS: &[(&[u8], &str, &str)] = &[
        (b"\x80\x02", "is a Python pickle (an old PyTorch checkpoint), which can run code and is never opened", PICKLE),
        (b"\x80\x04", "is a Python pickle, which can run code and is never opened", PICKLE),
        (b"\x80\x05", "is a Python pickle, which can run code and is never opened", PICKLE),
        (b"GGUF", "is a GGUF file, which tcast does not read", "read it with gguf.GGUFReader and save the tensors"),
        (b"\x89HDF", "is an HDF5 file, which tcast does not read", "read it with h5py and save it with numpy.save"),
        (b"\x1f\x8b", "is compressed with gzip", "gunzip it first"),
        (b"version https://git-lfs", "is a git-lfs pointer, not the file itself", "git lfs pull"),
        (b"<!DOCTYPE", "is an HTML page, not a tensor file", "download the file itself"),
        (b"<html", "is an HTML page, not a tensor file", "download the file itself"),
        (b"{", "is JSON, not a tensor file", "give the .safetensors file that it describes"),
    ];
    // A safetensors header of 640 bytes begins as a pickle does, but for the zeros of its length.
    let is_length = bytes.get(2..8) == Some(&[0; 6]);
    FORMATS.iter().find(|(magic, ..)| bytes.starts_with(magic) && !is_length).map(|(_, what, remedy)| (*what, *remedy))
}

/// The number of elements of a shape. `None` when the lengths that are not zero multiply to more than 64 bits hold: other
/// readers refuse such a shape, though a zero makes the tensor empty.
#[must_use]
#[doc(hidden)] // for tests
pub fn element_count(shape: &[u64]) -> Option<u64> {
    let extent =
        shape.iter().filter(|&&length| length > 0).try_fold(1_u64, |count, &length| count.checked_mul(length))?;
    Some(if shape.contains(&0) { 0 } else { extent })
}

/// `[1, 2]` of an index into the elements as they lie in the file.
#[must_use]
pub(crate) fn position(index: u64, shape: &[u64], fortran_order: bool) -> String {
    format!("{:?}", indices(index, shape, fortran_order))
}

/// The index in each dimension, of an index into the elements as they lie in the file.
#[must_use]
pub(crate) fn indices(mut index: u64, shape: &[u64], fortran_order: bool) -> Vec<u64> {
    let mut indices = vec![0; shape.len()];
    let mut dimensions: Vec<usize> = (0..shape.len()).collect();
    if !fortran_order {
        dimensions.reverse(); // the last one changes fastest
    }
    for dimension in dimensions {
        indices[dimension] = index % shape[dimension];
        index /= shape[dimension];
    }
    indices
}

/// The place in row-major order of an element that has this one in column-major order.
#[must_use]
#[doc(hidden)] // for tests
pub fn row_major(index: u64, shape: &[u64]) -> u64 {
    indices(index, shape, true).iter().zip(shape).fold(0, |place, (index, length)| place * length + index)
}

/// The refusal of a type that a format cannot hold, with those that can.
fn cannot_hold(extension: &str, dtype: Dtype) -> Error {
    let able = CONTAINERS.iter().filter(|container| container.stores(dtype).is_some());
    let able: Vec<&str> = able.map(|container| container.format_info().extension).collect();
    Error::new(format!(".{extension} cannot hold {dtype}"))
        .remedy(format!("name an output that ends in {}", one_of(&able)))
}

fn too_long() -> Error {
    Error::new("the output would be longer than a file can be")
}
