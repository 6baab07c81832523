//! Tensor files: what is in one, and where everything lies in a new one.
//!
//! A file format is a file in this folder and a line in [`CONTAINERS`]. Reading looks at headers only and
//! trusts nothing in them: every length is checked against the file before it is used. Writing lays a file out
//! before any data exists, from names, dtypes and shapes.

mod npy;
mod safetensors;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::Storage;
use std::ops::Range;
use std::path::Path;

/// Every container; the first that recognises a file's first bytes reads it.
pub static CONTAINERS: &[&dyn Container] = &[&npy::Npy, &safetensors::Safetensors];

/// A file format that holds tensors.
pub trait Container: Sync {
    /// The file name extension, without dot.
    fn extension(&self) -> &'static str;

    /// Whether a file holds one tensor without a name, and never more.
    fn holds_one(&self) -> bool;

    /// Whether a file that starts with these bytes is of this format.
    fn recognises(&self, bytes: &[u8]) -> bool;

    /// Reads the headers of a whole file.
    ///
    /// # Errors
    /// When the bytes break the format, or hold what has no dtype in the table.
    fn read(&self, bytes: &[u8]) -> Result<Contents>;

    /// Lays out a file that will hold `tensors` in this order.
    ///
    /// # Errors
    /// When the format cannot hold them.
    fn lay_out(&self, tensors: &[NewTensor], metadata: Option<&[(String, String)]>) -> Result<FileLayout>;
}

/// What a file holds.
#[derive(Debug)]
pub struct Contents {
    /// In the order of the file's own list.
    pub tensors: Vec<Tensor>,
    /// Names and values, in the order of the file; `None` where the file has no such section.
    pub metadata: Option<Vec<(String, String)>>,
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Empty in a format without names.
    pub name: String,
    /// Lengths of the dimensions, the outermost first.
    pub shape: Vec<u64>,
    /// Elements, which is the product of the shape.
    pub count: u64,
    /// What the elements are.
    pub elements: Elements,
    /// Column-major order; only where that differs from row-major.
    pub fortran_order: bool,
    /// Where its bytes lie in the file.
    pub bytes: Range<usize>,
}

/// What the elements of a stored tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Of a known type.
    Typed(Storage),
    /// This many opaque bytes each: the file does not say what they mean.
    Untyped(u32),
}

/// A tensor of a file that is to be written.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// Its name; a format without names drops it.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Lengths of the dimensions, the outermost first.
    pub shape: Vec<u64>,
    /// Elements, which is the product of the shape.
    pub count: u64,
    /// Whether its elements will come in column-major order.
    pub fortran_order: bool,
}

/// Where everything goes in a new file. The tensors' bytes follow the header without gaps.
#[derive(Debug)]
pub struct FileLayout {
    /// The first bytes of the file.
    pub header: Vec<u8>,
    /// For each tensor, how its elements are stored and where its bytes lie in the file.
    pub places: Vec<(Storage, Range<u64>)>,
    /// Length of the file.
    pub len: u64,
}

/// Reads a file's headers. The content decides what it is; the extension only where the content is broken.
///
/// # Errors
/// When no container knows the bytes, or the one that does finds them broken.
pub fn read(path: &Path, bytes: &[u8]) -> Result<(&'static dyn Container, Contents)> {
    if bytes.is_empty() {
        return Err(Error::new("the file is empty").in_file(path));
    }
    let by_content = CONTAINERS.iter().find(|container| container.recognises(bytes));
    let container = match (by_content, foreign_format(bytes)) {
        (Some(container), _) => *container,
        (None, Some((what, remedy))) => return Err(Error::new(what).in_file(path).remedy(remedy)),
        (None, None) => by_extension(path).ok_or_else(|| {
            Error::new("is no tensor file that tcast knows: neither .npy nor .safetensors by its content").in_file(path)
        })?,
    };
    let contents = container.read(bytes).map_err(|error| error.in_file(path))?;
    Ok((container, contents))
}

/// The container that a file name's extension asks for.
#[must_use]
pub fn by_extension(path: &Path) -> Option<&'static dyn Container> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    CONTAINERS.iter().find(|container| container.extension() == extension).copied()
}

/// Files that people mistake for tensor files, by their first bytes: what each is, and what helps.
fn foreign_format(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const PICKLE: &str = "load it where you trust it and save it again, with safetensors.torch.save_file or numpy.save";
    const FORMATS: &[(&[u8], &str, &str)] = &[
        (b"PK\x03\x04", "is a zip archive (.npz, or a PyTorch checkpoint), which tcast does not read", PICKLE),
        (b"\x80\x02", "is a Python pickle (an old PyTorch checkpoint), which can run code and is never opened", PICKLE),
        (b"\x80\x04", "is a Python pickle, which can run code and is never opened", PICKLE),
        (b"\x80\x05", "is a Python pickle, which can run code and is never opened", PICKLE),
        (b"GGUF", "is a GGUF file, which tcast does not read", "convert it with the tools of llama.cpp"),
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

/// The number of elements of a shape. `None` when it does not fit in 64 bits; a zero anywhere makes it 0.
#[must_use]
pub fn element_count(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_u64, |count, &length| count.checked_mul(length))
}
