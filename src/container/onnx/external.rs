//! Elements in another file beside the message.

use crate::error::{Error, Result, shorten};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// Where elements lie in another file.
pub(super) struct External {
    location: String,
    offset: u64,
    length: Option<u64>,
}

impl External {
    /// Of the entries of `external_data`. Their `checksum` is a comment: no library checks it.
    pub(super) fn new(entries: &[(String, String)]) -> Result<Self> {
        let value = |key: &str| entries.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        let number = |key: &str| -> Result<Option<u64>> {
            let Some(text) = value(key) else { return Ok(None) };
            let number = text.parse().ok().filter(|_| !text.starts_with('+'));
            number.map(Some).ok_or_else(|| Error::new(format!("its external data has {key} '{}'", shorten(text))))
        };
        let location = value("location").ok_or_else(|| Error::new("its external data has no location"))?;
        Ok(Self { location: location.to_owned(), offset: number("offset")?.unwrap_or(0), length: number("length")? })
    }

    /// The file, which must lie in the folder of the tensor's: nothing leads out of it, no `..` and no link.
    pub(super) fn find(&self, tensor: &Path) -> Result<PathBuf> {
        let refuse = |what: &str| Error::new(format!("its external data '{}' {what}", shorten(&self.location)));
        let location = Path::new(&self.location);
        let is_inside = location.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !is_inside || self.location.is_empty() || self.location.contains(['\\', ':', '\0']) {
            return Err(refuse("is not in the tensor's folder, and is never read"));
        }
        let mut path = tensor.parent().unwrap_or(Path::new("")).to_owned();
        for part in location.components() {
            path.push(part);
            let metadata = path.symlink_metadata();
            let metadata = metadata.map_err(|error| Error::io("cannot read", &error).in_file(&path))?;
            if metadata.is_symlink() {
                return Err(refuse("is a symbolic link, and is never followed"));
            }
        }
        if path.is_file() { Ok(path) } else { Err(refuse("is not a file")) }
    }

    /// Where the bytes lie in a file of `len` bytes.
    pub(super) fn range(&self, len: u64) -> Result<Range<usize>> {
        let end = self.length.map_or(Some(len), |length| self.offset.checked_add(length));
        if let Some(end) = end.filter(|&end| self.offset <= end && end <= len) {
            return Ok(self.offset as usize..end as usize);
        }
        let length = self.length.map_or(String::new(), |length| format!(" and is {length} bytes long"));
        let (offset, name) = (self.offset, shorten(&self.location));
        Err(Error::new(format!("its external data starts at {offset}{length}; '{name}' has {len} bytes")))
    }
}
