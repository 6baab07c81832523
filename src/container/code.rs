//! Searches files of any format for code that Python's pickle would run.

use super::foreign::{is_tar, text_of};
use super::input::{Contents, Input, probe_with};
use super::pytorch::Unpickled;
use super::tensor::{Elements, Tensor};
use super::{CONTAINERS, Container, ReadOptions, Reader, npy, npz, pytorch, zip};
use crate::error::Error;
use crate::io::listing::entries;
use crate::io::map::MappedFile;
use crate::io::output::directory_of;
use crate::text::shorten;
use std::io::Read;
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
                return Some(Self::Names(facts.suspicious.iter().cloned().collect()));
            }
            if let Some(error) = unreadable.first().filter(|_| input.is_distributed()) {
                return Some(Self::Unsearched(error.to_string()));
            }
            match pytorch::search_unread(facts, directory_of(input.path())) {
                Ok(names) if names.is_empty() => {}
                Ok(names) => return Some(Self::Names(names.into_iter().collect())),
                Err(error) => return Some(Self::Unsearched(error.to_string())),
            }
        } else if let Some(error) = unreadable.first().filter(|_| input.container.is(&npz::Npz)) {
            return Some(Self::Unsearched(error.to_string()));
        }
        if let Some(name) = ignored.first().filter(|_| pickle.is_some() || input.container.is(&npz::Npz)) {
            return Some(Self::Unsearched(format!("its member '{}' is not an array", shorten(name))));
        }
        let may_hold = |tensor: &&Tensor| {
            let is_plain = || {
                let mut array = Reader::open(tensor, &input.files)?;
                npy::is_plain(tensor.count, &mut |buffer| array.fill(buffer))
            };
            tensor.elements == Elements::Opaque && !is_plain().unwrap_or(false)
        };
        if let Some(tensor) = tensors.iter().filter(|_| input.container.is(&npz::Npz)).find(may_hold) {
            return Some(Self::Unsearched(format!("its array '{}' may hold pickled objects", shorten(&tensor.name))));
        }
        if pickle.is_some() { None } else { Self::as_pickle(&input.files[0], input.path()) }
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
        let options = ReadOptions { root: Some("."), ..ReadOptions::on(1) };
        match probe_with(&options, path) {
            Ok(input) => Self::in_input(&input),
            Err(error) => {
                let holds = |container: &&&dyn Container| container.recognises(&file);
                let is_archive = CONTAINERS
                    .iter()
                    .find(holds)
                    .is_some_and(|container| ["pt", "npz", "npy"].contains(&container.format_info().extension));
                let mut rest = &*file;
                let mut take = |buffer: &mut [u8]| rest.read_exact(buffer).map_err(|_| Error::new("the file ends"));
                let is_plain = npy::is_plain(file.len() as u64, &mut take).unwrap_or(false);
                if is_archive && !is_plain || is_tar(&file) || PACKED.iter().any(|magic| file.starts_with(magic)) {
                    return Some(Self::Unsearched(error.message().to_owned()));
                }
                Self::as_pickle(&file, path)
            }
        }
    }

    fn as_pickle(bytes: &[u8], path: &Path) -> Option<Self> {
        if !zip::is_zip(bytes) && zip::may_be_zip(bytes) {
            return Some(Self::Unsearched("a zip archive may end it".to_owned()));
        }
        match pytorch::search_as_pickle(bytes) {
            Ok(Unpickled { names, has_calls: false, error: None })
                if text_of(bytes).is_some() && !names.iter().any(|name| is_module_beside(name, path)) =>
            {
                None
            }
            Ok(Unpickled { names, .. }) if !names.is_empty() => Some(Self::Names(names.into_iter().collect())),
            Ok(Unpickled { error: None, .. }) => None,
            Ok(Unpickled { error: Some(error), .. }) | Err(error) => Some(Self::Unsearched(error.message().to_owned())),
        }
    }
}

/// True if a folder of a file may have the module of a name: Python imports modules from there. Lines of a text are names of
/// modules that nobody has.
fn is_module_beside(name: &str, file: &Path) -> bool {
    let module = name.split('.').next().unwrap_or_default();
    let is_it = |entry: &Path| {
        let name = entry.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        !module.is_empty() && name.split('.').next() == Some(module)
    };
    file.ancestors().skip(1).any(|folder| {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        entries(folder).is_ok_and(|entries| entries.iter().any(|entry| is_it(&entry.path)))
    })
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
    b"\x5d\x00",
    b"\x04\x22\x4d\x18",
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf",
    b"PK",
];
