//! An input file: its format and its contents.

use super::tensor::{Data, Elements, Tensor};
use super::{CONTAINERS, Container, GGUF, PickleFacts, ReadOptions, WrittenFiles, by_extension, known_formats, npz};
use crate::error::{Blocker, Error, Result};
use crate::io::map::MappedFile;
use crate::text::shorten;
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
        return Err(in_file(Error::new(TAR).remedy(NOT_TAR)));
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
    check_name(path, container.format_info().extension)?; // not before: a zip archive may hold other contents
    let files = std::iter::once(file).chain(contents.beside.drain(..)).collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Input { container, contents, files, stem })
}

/// What a search for code found in a file.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum FoundCode {
    /// Names that are not known to be harmless.
    Names(Vec<String>),
    /// A part that was not searched, and may contain code.
    Unsearched(String),
}

#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "only the program searches"))]
impl FoundCode {
    /// Searches a file that was read.
    pub(crate) fn in_input(input: &Input) -> Option<Self> {
        let Contents { pickle, ignored, unreadable, tensors, .. } = &input.contents;
        if let Some(facts) = pickle {
            if !facts.suspicious.is_empty() {
                return Some(Self::Names(facts.suspicious.clone()));
            }
        } else if let Some(error) = unreadable.first().filter(|_| input.container.is(&npz::Npz)) {
            return Some(Self::Unsearched(error.to_string()));
        }
        if let Some(name) = ignored.first().filter(|_| pickle.is_some() || input.container.is(&npz::Npz)) {
            return Some(Self::Unsearched(format!("its member '{}' is not an array", shorten(name))));
        }
        // The types are shortened in the middle.
        let may_hold = |tensor: &&Tensor| {
            tensor.elements == Elements::Opaque && (tensor.stored.contains('O') || tensor.stored.contains("..."))
        };
        if let Some(tensor) = tensors.iter().find(may_hold) {
            return Some(Self::Unsearched(format!("its array '{}' may hold pickled objects", shorten(&tensor.name))));
        }
        if pickle.is_some() { None } else { Self::as_pickle(&input.files[0]) }
    }

    /// Searches any file.
    pub(crate) fn in_file(path: &Path) -> Option<Self> {
        let file = match MappedFile::open(path) {
            Ok(file) => file,
            Err(error) => return Some(Self::Unsearched(error.message().to_owned())),
        };
        if file.is_empty() {
            return None;
        }
        let options = ReadOptions { threads: 1, root: Some(".") };
        match probe_with(&options, path) {
            Ok(input) => Self::in_input(&input),
            Err(error) => {
                let holds = |container: &&&dyn Container| container.recognises(&file);
                let is_archive = CONTAINERS
                    .iter()
                    .find(holds)
                    .is_some_and(|container| ["pt", "npz", "npy"].contains(&container.format_info().extension));
                if is_archive || is_tar(&file) || PACKED.iter().any(|magic| file.starts_with(magic)) {
                    return Some(Self::Unsearched(error.message().to_owned()));
                }
                Self::as_pickle(&file)
            }
        }
    }

    fn as_pickle(bytes: &[u8]) -> Option<Self> {
        match super::pytorch::search_as_pickle(bytes) {
            Ok((names, _)) if !names.is_empty() => Some(Self::Names(names)),
            Ok((_, None)) => None,
            Ok((_, Some(error))) | Err(error) => Some(Self::Unsearched(error.message().to_owned())),
        }
    }
}

/// Starts of compressed files and archives: gzip, zlib, bzip2, xz, lzma, lz4, zstd, 7z, zip.
const PACKED: [&[u8]; 12] = [
    b"\x1f\x8b",
    b"\x78\x01",
    b"\x78\x5e",
    b"\x78\x9c",
    b"\x78\xda",
    b"BZh",
    b"\xfd7zXZ",
    b"\x5d\x00\x00",
    b"\x04\x22\x4d\x18",
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf",
    b"PK",
];

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
                Err(_) => error.with_blocker(Blocker::Extension { file: path.to_owned(), name }),
            })
        }
        _ => Ok(()),
    }
}

const TAR: &str = "is a tar archive, as PyTorch wrote them before 0.1.10, which tcast does not read";
const NOT_TAR: &str = "if it is a checkpoint, load it with PyTorch and save it again";

/// True if a file begins with a tar header, whose checksum is right: PyTorch and others read such a file as a tar archive,
/// even if it is also a file of another format.
fn is_tar(bytes: &[u8]) -> bool {
    const CHECKSUM: Range<usize> = 148..156;
    let Some(header) = bytes.first_chunk::<512>() else { return false };
    let field = &header[CHECKSUM];
    let octal = || {
        let digits = field.split(|byte| *byte == 0).next()?.trim_ascii();
        i64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
    };
    let checksum = match field {
        // A number in base 256.
        [0x80, rest @ ..] => Some(rest.iter().fold(0, |sum, byte| sum << 8 | i64::from(*byte))),
        _ => octal(),
    };
    let bytes = || header.iter().enumerate().filter(|(at, _)| !CHECKSUM.contains(at)).map(|(_, byte)| *byte);
    let blanks = 8 * i64::from(b' ');
    let unsigned = blanks + bytes().map(i64::from).sum::<i64>();
    let signed = blanks + bytes().map(|byte| i64::from(byte as i8)).sum::<i64>();
    checksum.is_some_and(|checksum| checksum == unsigned || checksum == signed)
}

/// Remedy for an input that is a pickle.
const PICKLE: &str = "load it where you trust it and save it again, with safetensors.torch.save_file or numpy.save";

/// Recognizes files that people mistake for tensor files by their first bytes. Returns the error.
fn foreign_format(bytes: &[u8], path: &Path) -> Option<Error> {
    const GZIP: &str = "is compressed with gzip";
    const OTHER_PICKLE: &str = "is a Python pickle, and not one of torch.save; tcast does not read it";
    const LFS: &str = "is a git-lfs pointer, not the file itself";
    const FORMATS: &[(&[u8], &str, &str)] = &[
        (b"\x80\x02", OTHER_PICKLE, PICKLE),
        (b"\x80\x03", OTHER_PICKLE, PICKLE),
        (b"\x80\x04", OTHER_PICKLE, PICKLE),
        (b"\x80\x05", OTHER_PICKLE, PICKLE),
        (b"\x89HDF", "is an HDF5 file, which tcast does not read", "read it with h5py and save it with numpy.save"),
        (b"\x1f\x8b", GZIP, "gunzip it first"),
        (b"version https://git-lfs", LFS, ""),
        (b"<!DOCTYPE", "is an HTML page, not a tensor file", "download the file itself"),
        (b"<html", "is an HTML page, not a tensor file", "download the file itself"),
        (b"{", "is JSON, not a tensor file", "give the .safetensors file that it describes"),
    ];
    if bytes.get(257..262) == Some(b"ustar") {
        return Some(Error::new(TAR).remedy(NOT_TAR));
    }
    // A safetensors header of 640 bytes begins like a pickle, except for the zeros of its length.
    let is_length = bytes.get(2..8) == Some(&[0; 6]);
    let (_, what, remedy) = FORMATS.iter().find(|(magic, ..)| bytes.starts_with(magic) && !is_length)?;
    let error = Error::new(*what);
    Some(match *what {
        LFS => error.with_blocker(Blocker::Pointer(path.to_owned())),
        GZIP if path.extension().is_some_and(|extension| extension == "gz") => {
            error.with_blocker(Blocker::Compressed(path.to_owned()))
        }
        _ => error.remedy(*remedy),
    })
}
