//! Outputs that appear whole or not at all.
//!
//! Bytes go to a file without a name, or with a temporary one beside the output, which takes the output's name only
//! when all of them are there and flushed. Devices and pipes have no name to take and are written in place; standard
//! output, whatever it is connected to, is a stream.

use super::identity::Files;
use super::map::{MappedFile, cut_short, is_fault};
use super::naming::{self, close};
use super::path::{follow_links, steps};
use super::temporaries::{self, Named};
use crate::error::{self, Error, Result};
use crate::text::{quoted, size};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

pub use super::naming::sync_folder;
pub(crate) use super::path::directory_of;
pub(crate) use super::temporaries::{
    NewFolder, WORK, create_folders, is_own, keep_at_interrupt, remove_leftovers, uninterrupted,
};

/// Where an output is to go, checked before any work.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The path as it was given.
    path: PathBuf,
    /// With symbolic links followed.
    file: PathBuf,
    replace: bool,
    kind: OutputKind,
}

/// What an output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputKind {
    /// A file that appears when it is whole.
    File,
    /// A device or a pipe, which is opened and written to.
    Device,
    /// Standard output, which others may have written to before and may write to afterwards.
    Stream,
}

impl Destination {
    /// Checks that an output can be made at `path`; `replace` allows an existing file there.
    ///
    /// # Errors
    /// When the output exists, is a directory or one of the `inputs`, or its directory is missing.
    pub fn new(path: &Path, replace: bool, inputs: &[&Path]) -> Result<Self> {
        let mut files = Files::default();
        files.read(inputs);
        Self::among(&mut files, path, replace)
    }

    /// As [`Destination::new`]; among all the files of a run it must be one of its own.
    ///
    /// # Errors
    /// As [`Destination::new`], and when another output is the same file.
    pub(crate) fn among(files: &mut Files, path: &Path, replace: bool) -> Result<Self> {
        let refuse = |message: &str, remedy: &str| Err(Error::new(message).in_file(path).remedy(remedy));
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return refuse("the output is named as a directory", "name a file in it");
        }
        match descriptor(path) {
            Some(1) => {
                files.write_open(path, &standard_output(path)?).map_err(|error| error.remedy("name another file"))?;
                return Ok(Self { path: path.to_owned(), file: path.to_owned(), replace, kind: OutputKind::Stream });
            }
            Some(_) if fs::metadata(path).is_ok_and(|existing| existing.is_file()) => {
                let error = Error::new("is a file that is open already, and has no name to take").in_file(path);
                return Err(error.of(error::Kind::Taken(error::Wanted::Stream)));
            }
            _ => {}
        }
        let file = follow_links(path);
        let existing = match fs::metadata(&file) {
            Ok(existing) => Some(existing),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io("cannot write", &error).in_file(path)),
        };
        if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
            return refuse("the output is a directory", "name a file in it");
        }
        files.write(path).map_err(|error| error.remedy("name another file"))?; // before any advice to replace it
        if existing.as_ref().is_some_and(fs::Metadata::is_file) && !replace {
            return Err(exists(path));
        }
        check_folder(&file).map_err(|error| error.in_file(path))?;
        let kind =
            if existing.is_some_and(|existing| !existing.is_file()) { OutputKind::Device } else { OutputKind::File };
        Ok(Self { path: path.to_owned(), file, replace, kind })
    }

    /// The path as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether what is written stays there: a device or a pipe keeps nothing.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.kind == OutputKind::File
    }

    /// The folder that the output appears in, of what [`Destination::keeps`].
    #[must_use]
    pub(crate) fn folder(&self) -> &Path {
        directory_of(&self.file)
    }

    /// Where everything is thrown away, for conversions that are only to be measured.
    #[must_use]
    pub(crate) fn nowhere() -> Self {
        let path = Path::new(if cfg!(windows) { "NUL" } else { "/dev/null" });
        Self { path: path.to_owned(), file: path.to_owned(), replace: true, kind: OutputKind::Device }
    }

    /// A file in a folder of our own, which replaces what has its name, a link too.
    #[must_use]
    pub(crate) fn within(path: &Path) -> Self {
        Self { path: path.to_owned(), file: path.to_owned(), replace: true, kind: OutputKind::File }
    }

    /// Refuses an output of `len` bytes that the disk has no room for.
    ///
    /// # Errors
    /// When the file system says that fewer bytes are available.
    pub fn check_room(&self, len: u64) -> Result<()> {
        if !self.keeps() {
            return Ok(());
        }
        check_room(self.folder(), len).map_err(|error| error.in_file(&self.path))
    }

    /// Opens the output for writing.
    ///
    /// # Errors
    /// When the temporary file, or the device, cannot be opened.
    pub fn create(self) -> Result<Output> {
        let failed = |error: io::Error| Error::io("cannot write", &error).in_file(&self.path);
        match self.kind {
            OutputKind::Stream => {
                let file = standard_output(&self.path)?;
                return Ok(Output { file, temporary: None, destination: self, is_seekable: false });
            }
            OutputKind::Device => {
                let file = File::options().write(true).open(&self.file).map_err(failed)?;
                let is_seekable = io::Seek::stream_position(&mut &file).is_ok();
                return Ok(Output { file, temporary: None, destination: self, is_seekable });
            }
            OutputKind::File => {}
        }
        let (file, temporary) = match naming::create_unnamed(self.folder()).map_err(failed)? {
            Some(file) => (file, Temporary::Unnamed),
            None => {
                Named::create(self.folder()).map(|(file, named)| (file, Temporary::Named(named))).map_err(failed)?
            }
        };
        Ok(Output { file, temporary: Some(temporary), destination: self, is_seekable: true })
    }
}

fn exists(path: &Path) -> Error {
    Error::new("the output exists already").of(error::Kind::Exists(error::Wanted::File)).in_file(path)
}

/// Refuses `len` bytes that the disk of a folder has no room for.
///
/// # Errors
/// When the file system says that fewer bytes are available.
pub(crate) fn check_room(folder: &Path, len: u64) -> Result<()> {
    match available(folder) {
        Some(available) if available < len => {
            let (needed, available) = (size(len), size(available));
            let error = Error::new(format!("not enough disk space: {needed} are needed, {available} are available"));
            Err(error.of(error::Kind::NoRoom))
        }
        _ => Ok(()), // a file system that does not say is found out by writing
    }
}

/// Refuses an output in a folder that does not exist.
///
/// # Errors
/// When that is so.
pub(crate) fn check_folder(output: &Path) -> Result<()> {
    // What ends in a slash has its own name as the last one all the same.
    let folder = directory_of(output);
    if folder.is_dir() {
        return Ok(());
    }
    let error = Error::new("the output's directory does not exist").in_file(output);
    Err(error.remedy(format!("mkdir -p {}", quoted(folder))))
}

/// Bytes that are available on the disk of a folder, or of the nearest one above that exists.
#[must_use]
pub(crate) fn available(folder: &Path) -> Option<u64> {
    let here = Path::new(".");
    let existing =
        folder.ancestors().map(|path| if path == Path::new("") { here } else { path }).find(|path| path.is_dir());
    fs4::available_space(existing.unwrap_or(here)).ok()
}

/// The number of the open file of this process that a path leads to by its name: `-`, `/dev/stdout` and the like.
#[must_use]
pub(crate) fn descriptor(path: &Path) -> Option<u32> {
    const NAMES: [(&str, u32); 4] = [("-", 1), ("/dev/stdin", 0), ("/dev/stdout", 1), ("/dev/stderr", 2)];
    let own = format!("/proc/{}/fd", std::process::id());
    let folders = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd", &own];
    let by_name = |file: &Path| NAMES.iter().find(|(name, _)| file == Path::new(name)).map(|(_, number)| *number);
    let by_number = |file: &Path| {
        let is_open = file.parent().is_some_and(|folder| folders.iter().any(|known| folder == Path::new(known)));
        file.file_name().filter(|_| is_open)?.to_str()?.parse().ok()
    };
    steps(path).find_map(|file| by_name(&file).or_else(|| by_number(&file)))
}

/// Whether a path stands for standard output; `./-` is a file.
#[must_use]
pub(crate) fn is_standard_output(path: &Path) -> bool {
    descriptor(path) == Some(1)
}

/// Standard output, as often as it is asked for.
fn standard_output(path: &Path) -> Result<File> {
    #[cfg(unix)]
    let copied = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned();
    #[cfg(windows)]
    let copied = std::os::windows::io::AsHandle::as_handle(&io::stdout()).try_clone_to_owned();
    copied.map(File::from).map_err(|error| Error::io("cannot write", &error).in_file(path))
}

/// What an output is until it is whole.
#[derive(Debug)]
enum Temporary {
    Unnamed,
    Named(Named),
}

/// An output that is being written.
#[derive(Debug)]
pub struct Output {
    file: File,
    /// `None` for what has no name to take.
    temporary: Option<Temporary>,
    destination: Destination,
    is_seekable: bool,
}

impl Output {
    /// The path as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.destination.path()
    }

    /// Whether writes may come in any order; a pipe takes them in the order of their offsets.
    #[must_use]
    pub fn is_seekable(&self) -> bool {
        self.is_seekable
    }

    /// Another file in the same folder, for bytes on their way to this one. It goes when it is dropped.
    ///
    /// # Errors
    /// As [`Destination::create`].
    pub(crate) fn beside(&self) -> Result<Self> {
        self.destination.clone().create()
    }

    /// What was written, to be read again; of what [`Destination::keeps`].
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_again(&self) -> Result<MappedFile> {
        MappedFile::of(&self.file).map_err(|error| Error::io("cannot read", &error).in_file(self.path()))
    }

    /// Has the disk set room for `len` bytes aside: a full disk is known before the work, the file lies in one piece though
    /// threads write it here and there, and the writes take less time. What cannot do that is written to without.
    ///
    /// # Errors
    /// When there is no room, or no file may be as long.
    pub fn reserve(&self, len: u64) -> Result<()> {
        if self.temporary.is_none() {
            return Ok(());
        }
        let Err(error) = fs4::FileExt::allocate(&self.file, len) else { return Ok(()) };
        match error.kind() {
            // ZFS wants more than it needs: what is free decides.
            io::ErrorKind::StorageFull => self.destination.check_room(len),
            io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Err(self.failed(&error)),
            _ => Ok(()),
        }
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// When the system cannot write them; or, without the name of the file, cannot read them from where they are mapped.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = if self.is_seekable {
            write_all_at(&self.file, offset, bytes)
        } else {
            io::Write::write_all(&mut &self.file, bytes)
        };
        written.map_err(|error| if is_fault(&error) { cut_short() } else { self.failed(&error) })
    }

    fn failed(&self, error: &io::Error) -> Error {
        let failure = Error::io("cannot write", error).in_file(self.path());
        if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            failure.of(error::Kind::NoRoom)
        } else {
            failure
        }
    }

    /// Gives the whole output its name; with `sync`, the data and the name are on the disk afterwards. An interrupt says
    /// what is `kept` from the moment on when the output has its name.
    ///
    /// # Errors
    /// When flushing, closing or renaming fails; nothing is left behind then.
    pub fn publish(self, sync: bool, kept: Option<&str>) -> Result<()> {
        let Self { file, temporary, destination, .. } = self;
        let failed = |error: io::Error| Error::io("cannot write", &error).in_file(&destination.path);
        let Some(temporary) = temporary else { return close(file).map_err(failed) };
        if sync {
            file.sync_all().map_err(failed)?;
        }
        match temporary {
            Temporary::Named(named) => {
                close(file).map_err(failed)?; // Windows renames no open file
                destination.name(named, kept)
            }
            Temporary::Unnamed => destination.name_unnamed(file, sync, kept),
        }
        .map_err(|error| {
            let is_taken = error.kind() == io::ErrorKind::AlreadyExists;
            if is_taken { exists(&destination.path) } else { failed(error) }
        })?;
        if sync { sync_folder(destination.folder()).map_err(failed) } else { Ok(()) }
    }
}

impl Destination {
    fn name(&self, named: Named, kept: Option<&str>) -> io::Result<()> {
        let mut temporaries = temporaries::lock();
        let path = named.take(&mut temporaries);
        naming::rename(path, &self.file, self.replace)?; // somebody else may have made one since the plan
        temporaries.keep(kept);
        Ok(())
    }

    /// Links a file that has no name. Where that is refused after all, its bytes go to a file that has one.
    fn name_unnamed(&self, mut file: File, sync: bool, kept: Option<&str>) -> io::Result<()> {
        // Closed as well what is still open under another number: a disk that is full is known before the name is given.
        close(file.try_clone()?)?;
        let mut temporaries = temporaries::lock();
        let linked = match naming::link(&file, &self.file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.replace => {
                temporaries::name(self.folder(), |path| naming::link(&file, path)).map(Some)
            }
            linked => linked.map(|()| None),
        };
        match linked {
            Ok(temporary) => {
                let closed = close(file);
                match temporary {
                    Some(path) => closed.and_then(|()| naming::rename(path, &self.file, true))?,
                    None => closed.inspect_err(|_| drop(fs::remove_file(&self.file)))?,
                }
                temporaries.keep(kept);
                Ok(())
            }
            Err(error) if naming::has_no_links(&error) => {
                drop(temporaries);
                let (mut copy, named) = Named::create(self.folder())?;
                io::Seek::rewind(&mut file)?;
                io::copy(&mut file, &mut copy)?;
                if sync {
                    copy.sync_all()?;
                }
                close(copy)?;
                self.name(named, kept)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(unix)]
fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_another_run_has_made_meanwhile_is_left_alone_and_named_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let output = Destination::new(&path, false, &[]).unwrap().create().unwrap();
        output.write_at(0, b"late").unwrap();
        fs::write(&path, "mine").unwrap();
        let error = output.publish(false, None).unwrap_err();
        assert!(error.is_existing() && error.to_string().ends_with("out: the output exists already"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }
}
