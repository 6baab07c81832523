//! Elements in another file, next to the file of the message.

use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::io::output::directory_of;
use crate::text::{quoted, shorten};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Component, Path};

/// Rule for following symbolic links to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkRule {
    Never,
    /// Follows links that stay in the folder of the file, or in the folder that the file's own link leads to: in caches
    /// of Hugging Face, a model and its data are links into one folder.
    Beside,
}

/// The files with the external data of a file, each opened once.
pub(super) struct Externals<'a> {
    /// The file that refers to them.
    owner: &'a Path,
    links: LinkRule,
    /// The index of each file, by its location.
    known: HashMap<String, usize>,
    files: Vec<MappedFile>,
}

impl<'a> Externals<'a> {
    pub(super) fn new(owner: &'a Path, links: LinkRule) -> Self {
        Self { owner, links, known: HashMap::new(), files: Vec::new() }
    }

    /// Locates the `wanted` bytes that the entries of `external_data` describe: returns the index in `Input::files`,
    /// and the range. The entry `checksum` is ignored, because no library checks it.
    pub(super) fn find(&mut self, entries: &[(String, String)], wanted: u64) -> Result<(usize, Range<usize>)> {
        let external = External::new(entries)?;
        let file = if let Some(known) = self.known.get(&external.location) {
            *known
        } else {
            self.files.push(external.open(self.owner, self.links)?);
            self.known.insert(external.location.clone(), self.files.len());
            self.files.len()
        };
        let wanted = (self.links == LinkRule::Beside).then_some(wanted);
        external.range(self.files[file - 1].len() as u64, wanted).map(|range| (file, range))
    }

    /// The path of a file, by its index in `Input::files`.
    pub(super) fn path(&self, file: usize) -> &Path {
        self.files[file - 1].path()
    }

    pub(super) fn into_files(self) -> Vec<MappedFile> {
        self.files
    }
}

/// Location of elements in another file.
struct External {
    location: String,
    offset: u64,
    length: Option<u64>,
}

impl External {
    fn new(entries: &[(String, String)]) -> Result<Self> {
        let mut keys = HashSet::new();
        if let Some((twice, _)) = entries.iter().find(|(key, _)| !keys.insert(key)) {
            return Err(Error::new(format!("its external data has the key '{}' twice", shorten(twice))));
        }
        let value = |key: &str| entries.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        let number = |key: &str| -> Result<Option<u64>> {
            let Some(text) = value(key) else { return Ok(None) };
            let number = text.parse().ok().filter(|_| !text.starts_with('+'));
            number.map(Some).ok_or_else(|| Error::new(format!("its external data has {key} '{}'", shorten(text))))
        };
        let location = value("location").ok_or_else(|| Error::new("its external data has no location"))?;
        Ok(Self { location: location.to_owned(), offset: number("offset")?.unwrap_or(0), length: number("length")? })
    }

    /// Opens the file, which must be in the folder of its owner: neither `..` nor a link may lead out of it.
    fn open(&self, owner: &Path, links: LinkRule) -> Result<MappedFile> {
        let refuse = |what: &str| Error::new(format!("its external data '{}' {what}", shorten(&self.location)));
        let location = Path::new(&self.location);
        let is_inside = location.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        // On Unix, these are characters of a name.
        let has_separator = cfg!(not(unix)) && self.location.contains(['\\', ':']);
        if !is_inside || has_separator || self.location.is_empty() || self.location.contains('\0') {
            let of = if links == LinkRule::Never { "tensor" } else { "model" };
            return Err(refuse(&format!("is not in the {of}'s folder, and is never read")));
        }
        // The components of a path omit the ending that marks a folder.
        if matches!(self.location.rsplit('/').next(), Some("" | ".")) {
            return Err(refuse("is not a file"));
        }
        let folder = directory_of(owner);
        let path = owner.parent().unwrap_or(Path::new("")).join(location);
        let failed = |error: io::Error| {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            let error = Error::io(&format!("cannot read its external data '{}'", shorten(&self.location)), &error);
            if is_missing {
                error.remedy(format!("copy or download the other file too: {} refers to it", quoted(owner)))
            } else {
                error
            }
        };
        let file = match open_beneath(folder, location).map_err(failed)? {
            Some(file) => file,
            None if links == LinkRule::Never => return Err(refuse("is a symbolic link, and is never followed")),
            None => follow(owner, &path).map_err(failed)?.ok_or_else(|| {
                refuse("is a symbolic link that leads out of the model's folder, and is not followed")
            })?,
        };
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(refuse("is not a file"));
        }
        MappedFile::opened(file, &path)
    }

    /// Returns the range of the bytes in a file of `len` bytes. Without a length, it has `wanted` bytes, or reaches the
    /// end of the file.
    fn range(&self, len: u64, wanted: Option<u64>) -> Result<Range<usize>> {
        let length = self.length.or(wanted);
        let end = length.map_or(Some(len), |length| self.offset.checked_add(length));
        if let Some(end) = end.filter(|&end| self.offset <= end && end <= len) {
            return Ok(self.offset as usize..end as usize);
        }
        let length = length.map_or(String::new(), |length| format!(" and is {length} bytes long"));
        let (offset, name) = (self.offset, shorten(&self.location));
        Err(Error::new(format!("its external data starts at {offset}{length}; '{name}' has {len} bytes")))
    }
}

/// Opens the target of a link if it is in the folder of `owner`, or in the folder that `owner` itself leads to.
fn follow(owner: &Path, link: &Path) -> io::Result<Option<File>> {
    let target = fs::canonicalize(link)?;
    for folder in [fs::canonicalize(directory_of(owner))?, directory_of(&fs::canonicalize(owner)?).to_owned()] {
        if let Ok(location) = target.strip_prefix(&folder) {
            return open_beneath(&folder, location);
        }
    }
    Ok(None)
}

/// Opens a file below a folder; `None` if there is a link on the way. Folders are opened one by one and none is named
/// twice, so that no other program can replace a checked folder by a link.
#[cfg(unix)]
fn open_beneath(folder: &Path, location: &Path) -> io::Result<Option<File>> {
    use rustix::fs::{AtFlags, FileType, Mode, OFlags, open, openat, statat};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK; // so that opening a pipe does not wait
    // Traversing a folder needs fewer permissions than reading it.
    #[cfg(target_os = "linux")]
    let is_folder = OFlags::DIRECTORY | OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    let is_folder = OFlags::DIRECTORY;
    let mut at = open(folder, flags | is_folder, Mode::empty())?;
    let mut parts = location.components().filter(|part| *part != Component::CurDir).peekable();
    while let Some(part) = parts.next() {
        let kind = if parts.peek().is_some() { is_folder } else { OFlags::empty() };
        at = match openat(&at, part.as_os_str(), flags | kind | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(next) => next,
            // Systems have different error numbers for a link that is not followed.
            Err(error) => {
                let found = statat(&at, part.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)?;
                let is_link = FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
                return if is_link { Ok(None) } else { Err(error.into()) };
            }
        };
    }
    Ok(Some(at.into()))
}

/// Opens a file below a folder, on systems where folders cannot be opened: the path is checked before and after.
#[cfg(not(unix))]
fn open_beneath(folder: &Path, location: &Path) -> io::Result<Option<File>> {
    use crate::io::open::{Links, input_options};
    let has_link = || {
        let mut path = folder.to_owned();
        location.components().try_fold(false, |found, part| {
            path.push(part);
            Ok::<_, io::Error>(found || path.symlink_metadata()?.is_symlink())
        })
    };
    if has_link()? {
        return Ok(None);
    }
    let file = input_options(Links::Follow).open(folder.join(location))?;
    Ok((!has_link()?).then_some(file))
}
