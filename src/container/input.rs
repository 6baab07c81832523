//! An input file: its format and its contents.

use super::foreign::{DIVIDED_TENSORS, distributed_part, divided_tensors, foreign_format, is_tar, tar};
use super::tensor::{Data, Tensor};
use super::{CONTAINERS, Container, GGUF, PickleFacts, ReadOptions, WrittenFiles, by_extension, known_formats, npz};
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::text::move_file;
use std::fs;
use std::ops::Range;
use std::path::Path;

/// True if an output is deflated after it is written: an archive of arrays, made from an archive with a deflated
/// member.
pub(crate) fn is_deflated(input: &Input, target: &dyn Container) -> bool {
    let is_streamed = |tensor: &Tensor| matches!(tensor.data, Data::Streamed(_));
    target.is(&npz::Npz) && input.container.is(&npz::Npz) && input.contents.tensors.iter().any(is_streamed)
}

/// An input: a file, its contents, and the files that it refers to.
pub struct Input {
    /// The format of the file.
    pub container: &'static dyn Container,
    /// The contents of the file.
    pub contents: Contents,
    /// The file itself, then the files with its external tensors.
    pub files: Vec<MappedFile>,
    /// The name of the file without its extension, for a tensor that has no name.
    stem: String,
}

impl Input {
    /// A folder that is one input, whose first file describes the others.
    pub(super) fn of_folder(container: &'static dyn Container, contents: Contents, files: Vec<MappedFile>) -> Self {
        Self { container, contents, files, stem: String::new() }
    }

    /// True if it is a folder that several processes wrote.
    pub(crate) fn is_distributed(&self) -> bool {
        self.contents.pickle.as_ref().is_some_and(|facts| matches!(facts.form, "dcp" | "ranks" | "hf"))
    }

    /// True if it is a GGUF file.
    pub(crate) fn is_gguf(&self) -> bool {
        self.container.is(GGUF)
    }

    /// Requires that all tensors can be read.
    pub(crate) fn require_readable(&mut self) -> Result<()> {
        if self.contents.unreadable.is_empty() {
            return Ok(());
        }
        Err(self.contents.unreadable.swap_remove(0).in_file(self.path()))
    }

    /// The path of the file as given.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.files[0].path()
    }

    /// Length in bytes of the file and of the files that it refers to.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }

    /// True if there are no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that no file was changed since it was read.
    ///
    /// # Errors
    /// As [`MappedFile::check_unchanged`].
    pub fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(MappedFile::check_unchanged)
    }

    /// The bytes before the data of the first tensor; if no tensor is stored as plain bytes, the first 64 KiB.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        const FEW: usize = 1 << 16;
        let starts = self.contents.tensors.iter().map(|tensor| match &tensor.data {
            Data::Mapped { file: 0, range, .. } => range.start,
            _ => FEW,
        });
        &self.files[0][..starts.min().unwrap_or(FEW).min(self.files[0].len())]
    }

    /// The name of a tensor, or of its file if the format holds one tensor without a name.
    #[must_use]
    pub fn name_of<'a>(&'a self, tensor: &'a Tensor) -> &'a str {
        let is_nameless = tensor.name.is_empty() && self.container.format_info().holds_one;
        if is_nameless { &self.stem } else { &tensor.name }
    }
}

/// The contents of a file.
#[derive(Debug, Default)]
pub struct Contents {
    /// Tensors, in the order of the file's own list.
    pub tensors: Vec<Tensor>,
    /// Names and values, in the order of the file; `None` if the file has no such section.
    pub metadata: Option<Vec<(String, String)>>,
    /// Names of lists in the metadata, with their first elements: other formats cannot hold them.
    pub lists: Vec<(String, String)>,
    /// Keys of a GGUF file, and the bytes of their values in the file, with their types.
    pub(crate) keys: Vec<(String, Range<usize>)>,
    /// Other files with tensors of this file.
    pub beside: Vec<MappedFile>,
    /// Names of the contents other than tensors.
    pub ignored: Vec<String>,
    /// Errors of tensors that cannot be read, in a file that is otherwise sound.
    pub unreadable: Vec<Error>,
    /// Indices of the tensors of an ONNX model that outputs do not have, in order.
    pub(crate) dropped: Vec<usize>,
    /// Facts about a checkpoint of PyTorch.
    pub(crate) pickle: Option<Box<PickleFacts>>,
}

impl Contents {
    /// Returns a value of the metadata.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let mut pairs = self.metadata.iter().flatten();
        pairs.find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Opens a file and requires that all its tensors can be read.
///
/// # Errors
/// As [`probe`], and when a tensor is unreadable.
pub fn open(path: &Path) -> Result<Input> {
    let mut input = probe(path)?;
    input.require_readable()?;
    Ok(input)
}

/// Opens a file and reads its headers. The content determines the format. The extension does so only if the content is
/// broken or ambiguous, as in an ONNX tensor.
///
/// # Errors
/// When the file cannot be read, its format is unknown, its content is broken, or its extension belongs to another
/// format.
pub fn probe(path: &Path) -> Result<Input> {
    probe_with(&ReadOptions::on(1), path)
}

/// [`probe`], with options.
pub(crate) fn probe_with(options: &ReadOptions, path: &Path) -> Result<Input> {
    let file = MappedFile::open(path)?;
    let in_file = |error: Error| error.in_file(path);
    if file.is_empty() {
        return Err(in_file(Error::new("the file is empty")));
    }
    if is_tar(&file) {
        return Err(in_file(tar()));
    }
    if let Some(part) = distributed_part(&file, path) {
        return Err(in_file(part));
    }
    let by_content = CONTAINERS.iter().find(|container| container.recognises(&file));
    let container = match (by_content, foreign_format(&file, path)) {
        (Some(container), _) => *container,
        (None, Some(foreign)) => return Err(in_file(foreign)),
        (None, None) => by_extension(path).ok_or_else(|| {
            in_file(
                Error::new(format!("is not a recognized tensor file: {}", known_formats()))
                    .remedy("an ONNX tensor has no mark of its own: name the file something.pb"),
            )
        })?,
    };
    let mut contents = container.read(&file, options).map_err(in_file)?;
    if contents.metadata.iter().flatten().any(|(key, _)| key == DIVIDED_TENSORS) {
        return Err(in_file(divided_tensors(path)));
    }
    check_name(path, container.format_info().extension)?; // not before: a zip archive may hold other contents
    let files = std::iter::once(file).chain(contents.beside.drain(..)).collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Input { container, contents, files, stem })
}

/// Refuses a file with the extension of another format.
fn check_name(path: &Path, extension: &str) -> Result<()> {
    // Programs give the extensions of PyTorch to files of other formats too.
    let named = by_extension(path).map(Container::format_info).filter(|named| named.writing != WrittenFiles::Never);
    match named.map(|named| named.extension) {
        Some(named) if named != extension => {
            let message = format!("is a .{extension} file by its content, and named as a .{named} file");
            let name = path.with_extension(extension);
            let error = Error::new(message).in_file(path);
            Err(match fs::symlink_metadata(&name) {
                Ok(_) => error.remedy(format!("give it a free name that ends in .{extension}")),
                Err(_) => error.remedy(move_file(path, &name)),
            })
        }
        _ => Ok(()),
    }
}
