//! Outputs that appear whole or not at all.
//!
//! Bytes go to a temporary file beside the output, which takes the output's name only when all of them are
//! there and flushed. Every temporary file is listed, so that an interrupt can remove it. Devices and pipes
//! have no name to take and are written in place.

use super::identity::Files;
use super::map::{MappedFile, cut_short, is_fault};
use crate::error::{Error, Result, quoted, size};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tempfile::TempPath;

/// What exists now and is to go at an interrupt. Held while a file is made or takes its final name, so that
/// [`remove_temporaries`], which never lets go of it, sees each of them either whole or not at all.
static TEMPORARIES: Mutex<Temporaries> = Mutex::new(Temporaries { paths: Vec::new(), kept: None });

struct Temporaries {
    /// Files and new folders, each before what is in it.
    paths: Vec<PathBuf>,
    /// What stays, in a sentence for whoever interrupts.
    kept: Option<String>,
}

impl Temporaries {
    /// Leaves a folder where it is.
    fn forget(&mut self, folder: NewFolder) {
        self.paths.retain(|listed| *listed != folder.0);
        std::mem::forget(folder);
    }
}

/// Removes every temporary file, and makes the making of further ones wait for ever: the process is to end. Gives a
/// sentence about what stays.
#[must_use]
#[cfg_attr(not(unix), allow(dead_code, reason = "only signals ask for it"))]
pub(crate) fn remove_temporaries() -> Option<String> {
    let temporaries = lock();
    for path in temporaries.paths.iter().rev() {
        remove(path);
    }
    let kept = temporaries.kept.clone();
    std::mem::forget(temporaries);
    kept
}

/// Says what an interrupt leaves, in a sentence; before the first call that is nothing. The folders are left with it, in
/// the same moment.
pub(crate) fn keep_at_interrupt(what: String, folders: impl IntoIterator<Item = NewFolder>) {
    let mut temporaries = lock();
    for folder in folders {
        temporaries.forget(folder);
    }
    temporaries.kept = Some(what);
}

/// The process ends by itself: an interrupt would come too late, and is not heeded any more.
pub fn end_interrupts() {
    std::mem::forget(lock());
}

/// Makes something where an interrupt may be taking things away: before that, or never.
pub(crate) fn uninterrupted<T>(make: impl FnOnce() -> T) -> T {
    let _temporaries = lock();
    make()
}

fn lock() -> std::sync::MutexGuard<'static, Temporaries> {
    TEMPORARIES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Removes a file, or a folder with nothing in it or with what was made in it.
fn remove(path: &Path) {
    let is_work = path.file_name().is_some_and(|name| name == WORK);
    let _ = fs::remove_file(path).or_else(|_| if is_work { fs::remove_dir_all(path) } else { fs::remove_dir(path) });
}

/// Makes a folder and those above it, unless they are there; not while [`remove_temporaries`] takes them away.
///
/// # Errors
/// When the system cannot.
pub(crate) fn create_folders(path: &Path) -> Result<()> {
    uninterrupted(|| fs::create_dir_all(path))
        .map_err(|error| Error::io("cannot make the folder", &error).in_file(path))
}

/// What the names of temporary files begin and end with.
const PREFIX: &str = ".tcast-";
const SUFFIX: &str = ".tmp";

/// Removes the temporary files in a folder that runs which were killed have left there.
pub(crate) fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_temporary(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The name of the folder in an output folder that work is done in; it goes with all that is in it.
pub(crate) const WORK: &str = ".tcast";
/// The name of the file that lies in an output folder while [`WORK`] is taken away.
pub(crate) const END: &str = ".tcast.json";

/// Whether a name is that of something that this program makes for itself.
#[must_use]
pub(crate) fn is_own(name: &str) -> bool {
    name == WORK || name == END || is_temporary(name)
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// A folder that is made for outputs. Dropped or at an interrupt it goes again, unless it is kept or has something in
/// it; one named [`WORK`] goes with its contents.
#[derive(Debug)]
pub(crate) struct NewFolder(PathBuf);

impl NewFolder {
    /// Makes the folder.
    ///
    /// # Errors
    /// When the system cannot.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let mut temporaries = lock();
        fs::create_dir(path).map_err(|error| Error::io("cannot make the folder", &error).in_file(path))?;
        temporaries.paths.push(path.to_owned());
        Ok(Self(path.to_owned()))
    }

    /// Leaves the folder where it is.
    pub(crate) fn keep(self) {
        lock().forget(self);
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        let mut temporaries = lock();
        remove(&self.0);
        temporaries.paths.retain(|listed| *listed != self.0);
    }
}

/// Where an output is to go, checked before any work.
#[derive(Debug)]
pub struct Destination {
    /// The path as it was given.
    path: PathBuf,
    /// With symbolic links followed.
    file: PathBuf,
    replace: bool,
    in_place: bool,
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
        let refuse = |message: &str| Err(Error::new(message).in_file(path));
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return refuse("the output is named as a directory; name a file in it with -o");
        }
        let file = follow_links(path);
        let existing = match fs::metadata(&file) {
            Ok(existing) => Some(existing),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io("cannot write", &error).in_file(path)),
        };
        if let Some(existing) = &existing {
            if existing.is_dir() {
                return refuse("the output is a directory; name a file in it with -o");
            }
        }
        files.write(path).map_err(|error| error.remedy("name another file"))?; // before any advice to replace it
        if existing.as_ref().is_some_and(fs::Metadata::is_file) && !replace {
            return Err(Error::new("the output exists already")
                .into_existing()
                .in_file(path)
                .remedy("add --force to replace it, or name another file with -o"));
        }
        check_folder(&file).map_err(|error| error.in_file(path))?;
        let in_place = existing.is_some_and(|existing| !existing.is_file());
        Ok(Self { path: path.to_owned(), file, replace, in_place })
    }

    /// The path as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether what is written stays there: a device or a pipe keeps nothing.
    #[must_use]
    pub fn keeps(&self) -> bool {
        !self.in_place
    }

    /// Where everything is thrown away, for conversions that are only to be measured.
    #[must_use]
    pub(crate) fn nowhere() -> Self {
        let path = Path::new(if cfg!(windows) { "NUL" } else { "/dev/null" });
        Self { path: path.to_owned(), file: path.to_owned(), replace: true, in_place: true }
    }

    /// A file in a folder of our own, which replaces what has its name, a link too.
    #[must_use]
    pub(crate) fn within(path: &Path) -> Self {
        Self { path: path.to_owned(), file: path.to_owned(), replace: true, in_place: false }
    }

    /// Refuses an output of `len` bytes that the disk has no room for.
    ///
    /// # Errors
    /// When the file system says that fewer bytes are available.
    pub fn check_room(&self, len: u64) -> Result<()> {
        if self.in_place {
            return Ok(());
        }
        check_room(directory_of(&self.file), len).map_err(|error| error.in_file(&self.path))
    }

    /// Opens the output for writing.
    ///
    /// # Errors
    /// When the temporary file, or the device, cannot be opened.
    pub fn create(self) -> Result<Output> {
        let failed = |error: io::Error| Error::io("cannot write", &error).in_file(&self.path);
        if self.in_place {
            let file = File::options().write(true).open(&self.file).map_err(failed)?;
            let is_seekable = io::Seek::stream_position(&mut &file).is_ok();
            return Ok(Output { file, temporary: None, destination: self, is_seekable });
        }
        let mut temporaries = lock();
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).suffix(SUFFIX);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask
        let (file, temporary) = builder.tempfile_in(directory_of(&self.file)).map_err(failed)?.into_parts();
        temporaries.paths.push(temporary.to_path_buf());
        Ok(Output { file, temporary: Some(Temporary(Some(temporary))), destination: self, is_seekable: true })
    }
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
            Err(error.into_io().remedy("free some space, or name an output on another disk with -o"))
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

/// The file that a path stands for, which need not exist. Devices and pipes keep their path: what
/// `/dev/stdout` links to is not always a name that can be opened.
pub(super) fn follow_links(path: &Path) -> PathBuf {
    let mut file = path.to_owned();
    if fs::metadata(path).is_ok_and(|existing| !existing.is_file()) {
        return file;
    }
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&file) else { break };
        file = directory_of(&file).join(target);
    }
    file
}

/// The folder that a file is in.
pub(crate) fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A listed temporary file; dropped, it is removed from the disk and the list.
#[derive(Debug)]
struct Temporary(Option<TempPath>);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let mut temporaries = lock();
            temporaries.paths.retain(|listed| *listed != *path);
        }
    }
}

/// An output that is being written.
#[derive(Debug)]
pub struct Output {
    file: File,
    /// `None` for devices and pipes.
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
            failure.remedy("free some space, or name a file on another disk with -o")
        } else {
            failure
        }
    }

    /// Gives the whole output its name; with `sync`, the data and the name are on the disk afterwards. An interrupt says
    /// what is `kept` from the moment on when the output has its name.
    ///
    /// # Errors
    /// When flushing or renaming fails; nothing is left behind then.
    pub fn publish(mut self, sync: bool, kept: Option<&str>) -> Result<()> {
        let path = self.destination.path.clone();
        let failed = |error: io::Error| Error::io("cannot write", &error).in_file(&path);
        let Some(mut temporary) = self.temporary.take() else { return Ok(()) };
        if sync {
            self.file.sync_all().map_err(failed)?;
        }
        drop(self.file); // Windows renames no open file
        let Some(temporary_path) = temporary.0.take() else { return Ok(()) };
        let mut temporaries = lock();
        temporaries.paths.retain(|listed| *listed != *temporary_path);
        let file = &self.destination.file;
        let renamed = if self.destination.replace {
            temporary_path.persist(file)
        } else {
            temporary_path.persist_noclobber(file) // somebody else may have made one since the plan
        };
        renamed.map_err(|error| {
            let exists = error.error.kind() == io::ErrorKind::AlreadyExists;
            let error = failed(error.error);
            if exists { error.into_existing() } else { error }
        })?;
        if let Some(kept) = kept {
            temporaries.kept = Some(kept.to_owned());
        }
        drop(temporaries);
        if sync {
            sync_folder(directory_of(file)).map_err(failed)?;
        }
        Ok(())
    }
}

/// Flushes a folder: what has got a name in it keeps it, whatever happens. One that may not be read, and one on a file
/// system that does not know of this, is left to the system.
///
/// # Errors
/// When the disk fails.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(windows) {
        return Ok(()); // folders cannot be opened there
    }
    let folder = if folder == Path::new("") { Path::new(".") } else { folder };
    let is_impossible = |kind| {
        matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
    };
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if is_impossible(error.kind()) => Ok(()),
        flushed => flushed,
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
