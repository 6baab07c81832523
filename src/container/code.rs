//! Searches files of any format for code that Python's pickle would run.

use super::foreign::is_tar;
use super::input::{Contents, Input, probe_with};
use super::tensor::{Elements, Tensor};
use super::{CONTAINERS, Container, ReadOptions, npz, pytorch};
use crate::io::map::MappedFile;
use crate::text::shorten;
use std::path::Path;

/// Result of a search for code in a file.
#[derive(Debug, PartialEq, Eq)]
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
        match pytorch::search_as_pickle(bytes) {
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
