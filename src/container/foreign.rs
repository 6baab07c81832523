//! Files that people mistake for tensor files, recognized by their names and first bytes.

use crate::error::Error;
use crate::io::output::directory_of;
use crate::text::{quoted, shorten};
use std::ops::Range;
use std::path::Path;

/// Remedy for an input that is a pickle.
const PICKLE: &str = "load it where you trust it and save it again, with safetensors.torch.save_file or numpy.save";
/// Remedy for what a server has sent in place of a file.
const ITSELF: &str = "download the file itself";
const OTHER_PICKLE: &str = "is a Python pickle, and not one of torch.save; tcast does not read it";
const HTML: &str = "is an HTML page, not a tensor file";
const GGML: &str = "is a GGML file, the format of llama.cpp before GGUF, which tcast does not read";
const GGUF_OR_SAFETENSORS: &str = "download the model as a .gguf or .safetensors file";
const DECOMPRESS: &str = "decompress it first";
const GZIP: &str = "is compressed with gzip";

/// The first bytes of a format, an error, and its remedy.
type ForeignFormat = (&'static [u8], &'static str, &'static str);

const FORMATS: &[ForeignFormat] = &[
    (b"\x80\x02", OTHER_PICKLE, PICKLE),
    (b"\x80\x03", OTHER_PICKLE, PICKLE),
    (b"\x80\x04", OTHER_PICKLE, PICKLE),
    (b"\x80\x05", OTHER_PICKLE, PICKLE),
    (b"\x89HDF", "is an HDF5 file, which tcast does not read", "read it with h5py and save it with numpy.save"),
    (b"\x1f\x8b", GZIP, "gunzip it first"),
    (b"BZh", "is compressed with bzip2", DECOMPRESS),
    (b"\xfd7zXZ\0", "is compressed with xz", DECOMPRESS),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", DECOMPRESS),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive", "extract it first"),
    // The magic numbers of GGML are stored as little-endian integers: "ggml", "ggmf", "ggjt" and "ggla".
    (b"lmgg", GGML, GGUF_OR_SAFETENSORS),
    (b"fmgg", GGML, GGUF_OR_SAFETENSORS),
    (b"tjgg", GGML, GGUF_OR_SAFETENSORS),
    (b"algg", GGML, GGUF_OR_SAFETENSORS),
];

/// The first characters of a text in lower case, an error, and its remedy.
const TEXTS: &[ForeignFormat] = &[
    (b"<!doctype html", HTML, ITSELF),
    (b"<html", HTML, ITSELF),
    (b"<?xml", "is an XML document, not a tensor file", ITSELF),
];

/// First lines of the pointers of git-lfs, whose older name is hawser.
const POINTERS: [&str; 2] = ["version https://git-lfs", "version https://hawser"];

/// Metadata of safetensors with the places of pieces in their tensors.
pub(super) const DIVIDED_TENSORS: &str = "DCP_SHARDING_INFO";

/// Returns the error for a file with such metadata: the shapes in its header are those of the pieces.
pub(super) fn divided_tensors(path: &Path) -> Error {
    let error = Error::new("holds pieces of tensors that torch.distributed.checkpoint has divided");
    error.remedy(format!("give the folder of all pieces: {}", quoted(directory_of(path))))
}

/// Returns the error for a part of a distributed checkpoint, which would be read as another format.
pub(super) fn distributed_part(bytes: &[u8], path: &Path) -> Option<Error> {
    let name = path.file_name()?.to_str()?;
    let is_part = path.extension().is_some_and(|extension| extension == "distcp")
        || name == ".metadata" && bytes.starts_with(b"\x80");
    is_part.then(|| {
        let what = "is a part of a folder of torch.distributed.checkpoint";
        Error::new(what).remedy(format!("give the folder: {}", quoted(directory_of(path))))
    })
}

pub(super) fn tar() -> Error {
    Error::new("is a tar archive, as PyTorch wrote them before 0.1.10, which tcast does not read")
        .remedy("if you trust its source, load it with PyTorch and save it again")
}

/// True if a file begins with a tar header, whose checksum is right: PyTorch and others read such a file as a tar archive,
/// even if it is also a file of another format. The checksum may have any spelling that Python reads as a number.
pub(super) fn is_tar(bytes: &[u8]) -> bool {
    const CHECKSUM: Range<usize> = 148..156;
    let Some(header) = bytes.first_chunk::<512>() else { return false };
    let field = &header[CHECKSUM];
    let octal = || {
        let text = field.split(|byte| *byte == 0).next()?.iter().filter(|byte| **byte > b' ' && **byte != b'_');
        let digits = String::from_utf8(text.copied().collect()).ok()?.to_ascii_lowercase().replacen("0o", "0", 1);
        if digits.is_empty() { Some(0) } else { i64::from_str_radix(&digits, 8).ok() }
    };
    let in_base_256 = |first, rest: &[u8]| Some(rest.iter().fold(first, |sum, byte| sum << 8 | i64::from(*byte)));
    let checksum = match field {
        [0x80, rest @ ..] => in_base_256(0, rest),
        [0xff, rest @ ..] => in_base_256(-1, rest),
        _ => octal(),
    };
    let bytes = || header.iter().enumerate().filter(|(at, _)| !CHECKSUM.contains(at)).map(|(_, byte)| *byte);
    let blanks = 8 * i64::from(b' ');
    let unsigned = blanks + bytes().map(i64::from).sum::<i64>();
    let signed = blanks + bytes().map(|byte| i64::from(byte as i8)).sum::<i64>();
    checksum.is_some_and(|checksum| checksum == unsigned || checksum == signed)
}

/// Recognizes the file by its first bytes. Returns the error.
pub(super) fn foreign_format(bytes: &[u8], path: &Path) -> Option<Error> {
    /// Number of bytes that decide.
    const MOST: usize = 256;
    if bytes.get(257..262) == Some(b"ustar") {
        return Some(tar());
    }
    let first = &bytes[..bytes.len().min(MOST)];
    if first.len() >= 8 && first.iter().all(|byte| *byte == 0) {
        return Some(
            Error::new("begins with zeros, as a file that was not downloaded completely").remedy("download it again"),
        );
    }
    // A safetensors header of 640 bytes begins like a pickle, except for the zeros of its length.
    let is_length = bytes.get(2..8) == Some(&[0; 6]);
    if let Some((_, what, remedy)) = FORMATS.iter().find(|(magic, ..)| bytes.starts_with(magic) && !is_length) {
        let error = Error::new(*what);
        return Some(match path.extension() {
            Some(extension) if *what == GZIP && extension == "gz" => {
                error.remedy(format!("gunzip -k {}", quoted(path)))
            }
            _ => error.remedy(*remedy),
        });
    }
    text_of(first).map(|text| foreign_text(text, path))
}

/// Returns the text at the beginning of a file, without white space around it; `None` if the bytes are not text.
pub(super) fn text_of(first: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(first) {
        Ok(text) => text,
        // The last character may continue after the bytes that decide.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&first[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim();
    let is_text = !text.is_empty() && text.chars().all(|c| !c.is_control() || matches!(c, '\t' | '\n' | '\r'));
    is_text.then_some(text)
}

/// Returns the error for a text in place of a tensor file.
fn foreign_text(text: &str, path: &Path) -> Error {
    if POINTERS.iter().any(|pointer| text.starts_with(pointer)) {
        let error = Error::new("is a git-lfs pointer, not the file itself");
        return error.remedy(format!("git -C {} lfs pull", quoted(directory_of(path))));
    }
    let lower = text.to_ascii_lowercase();
    if let Some((_, what, remedy)) = TEXTS.iter().find(|(start, ..)| lower.as_bytes().starts_with(start)) {
        return Error::new(*what).remedy(*remedy);
    }
    if text.starts_with('{') {
        let is_named_so = path.extension().is_some_and(|extension| extension == "json");
        let remedy = if is_named_so { "give the .safetensors file that it describes" } else { ITSELF };
        return Error::new("is JSON, not a tensor file").remedy(remedy);
    }
    let line = text.lines().next().unwrap_or_default();
    Error::new(format!("is text, not a tensor file; it begins with '{}'", shorten(line))).remedy(ITSELF)
}
