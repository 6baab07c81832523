//! Inputs, memory-mapped: the file's pages are the buffer, so a tensor is never copied into memory of ours.
#![allow(unsafe_code, reason = "mapping a file is unsafe: another process could change the bytes")]

use crate::error::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A file mapped read-only.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened or mapped, or is not a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| Error::io("cannot read", &error).in_file(path);
        let metadata = std::fs::metadata(path).map_err(failed)?; // before opening, which waits for ever on a pipe
        if metadata.is_dir() {
            let error = Error::new("is a directory, not a tensor file").in_file(path);
            return Err(error.remedy("give one of the files in it"));
        }
        if !metadata.is_file() {
            return Err(Error::new("is not a regular file: an input must be a file that can be mapped").in_file(path));
        }
        Ok(Self { path: path.to_owned(), ..Self::of(&File::open(path).map_err(failed)?).map_err(failed)? })
    }

    /// Maps an open file, which keeps its bytes even where it has no name any more.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn of(file: &File) -> std::io::Result<Self> {
        let path = PathBuf::new();
        if file.metadata()?.len() == 0 {
            return Ok(Self { path, map: None });
        }
        // SAFETY: the bytes are only ever read as plain bytes, so a change by another process can give wrong
        // values but no invalid ones. A file cut short while it is mapped is noticed by `prefetch`, or ends the
        // process with SIGBUS; the output is a temporary file then, never a half-written one under its own name.
        let map = unsafe { Mmap::map(file) }?;
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::Sequential); // only a hint: a refusal changes nothing
        Ok(Self { path, map: Some(map) })
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has the system read a range before it is used: one call instead of a page fault for every few pages.
    ///
    /// # Errors
    /// When the file no longer has these bytes, as far as the system can tell (Linux 5.14 and newer).
    pub fn prefetch(&self, range: std::ops::Range<usize>) -> Result<()> {
        /// What Linux answers where reading the page would end in a SIGBUS.
        #[cfg(target_os = "linux")]
        const EFAULT: i32 = 14;
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map
            && let Err(error) = map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len())
            && error.raw_os_error() == Some(EFAULT)
        {
            return Err(Error::new("the file was cut short, or could not be read, during the work")
                .into_io()
                .in_file(&self.path));
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
        Ok(())
    }
}

impl Deref for MappedFile {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}
