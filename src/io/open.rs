//! Files that describe other files or unfinished work: opened without waiting, and read only up to a limit.

use crate::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// True if the error says that nothing has the name. Nothing can exist below a file, whose path Windows may call
/// invalid.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    let is_invalid = cfg!(windows) && error.kind() == io::ErrorKind::InvalidFilename;
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) || is_invalid
}

/// True if something has this path, including a link that leads nowhere.
pub(crate) fn exists(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// True if nothing has this path, not even a link that leads nowhere.
pub(crate) fn is_missing(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns a function that describes an error of the system while reading a file or a folder.
pub(crate) fn unreadable(path: &Path) -> impl Fn(io::Error) -> Error + Copy {
    move |error| Error::io("cannot read", &error).in_file(path)
}

/// Returns a function that describes an error of the system while writing a file or a folder.
pub(crate) fn unwritable(path: &Path) -> impl Fn(io::Error) -> Error + Copy {
    move |error| Error::cannot("write", &error).in_file(path)
}

/// Treatment of a symbolic link in place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// Its target is opened: caches use links.
    Follow,
    /// It is an error: tcast made no link there.
    Refuse,
}

/// Returns options to open an input without waiting for a pipe; on Windows, no other program can write to it meanwhile.
pub(crate) fn input_options(links: Links) -> OpenOptions {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    {
        let flags = libc::O_NONBLOCK | if links == Links::Refuse { libc::O_NOFOLLOW } else { 0 };
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
    }
    #[cfg(windows)]
    {
        const SHARE_READ_AND_DELETE: u32 = 1 | 4;
        std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, SHARE_READ_AND_DELETE);
    }
    let _ = links;
    options
}

/// Opens a regular file for reading, without waiting for a pipe or reading a device.
pub(crate) fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    let refuse = |what: &str| Err(io::Error::other(what));
    let options = input_options(links);
    if links == Links::Refuse && std::fs::symlink_metadata(path)?.is_symlink() {
        return refuse("it is a symbolic link, which is not followed");
    }
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { refuse("it is not a regular file") }
}

pub(crate) fn read_regular(path: &Path, most: u64, links: Links) -> io::Result<Vec<u8>> {
    let file = open_regular(path, links)?;
    let mut content = Vec::new();
    // Growing step by step would take twice the memory.
    content.try_reserve_exact(file.metadata()?.len().min(most) as usize)?;
    file.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        return Err(io::Error::other("it is longer than any file of its kind"));
    }
    Ok(content)
}

/// Reads a text of at most this many bytes from a file, or from the target of a link.
pub(crate) fn read_text(path: &Path, most: u64) -> Result<String, Error> {
    let bytes = read_regular(path, most, Links::Follow).map_err(unreadable(path))?;
    String::from_utf8(bytes).map_err(|_| Error::new("is not UTF-8 text").in_file(path))
}
