//! Destination of an output, checked before any work.

use super::identity::Files;
use super::in_use::check_not_in_use;
use super::open::unwritable;
use super::path::{directory_of, ends_in_separator, follow_links, steps};
use crate::error::{ELSEWHERE, Error, OTHER_FILE, Opt, Result};
use crate::text::{make_folder, quoted, size};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Destination of an output, checked before any work.
#[derive(Clone, Debug)]
pub struct Destination {
    /// Path as given.
    pub(super) path: PathBuf,
    /// Path with symbolic links followed.
    pub(super) file: PathBuf,
    pub(super) replace: bool,
    pub(super) kind: OutputKind,
}

/// Kind of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputKind {
    /// A file that appears when it is complete.
    File,
    /// A device or a pipe, which is opened and written to.
    Device,
    /// Standard output, which others may write to before and afterwards.
    Stream,
}

impl Destination {
    /// Checks that a new output can be made at `path`.
    ///
    /// # Errors
    /// When the output exists, is a directory or one of the `inputs`, or its directory is missing.
    pub fn new(path: &Path, inputs: &[&Path]) -> Result<Self> {
        Self::among(&mut Files::of_inputs(inputs), path, false)
    }

    /// Checks an output like [`Destination::new`]; `replace` allows an existing file at `path`, and the output must also differ from all other files of a run.
    pub(crate) fn among(files: &mut Files, path: &Path, replace: bool) -> Result<Self> {
        let refuse = |message: &str, remedy: &str| Err(Error::new(message).in_file(path).with(Opt::OUTPUT, remedy));
        if ends_in_separator(path) {
            return refuse("the output is named as a directory", "name a file in it");
        }
        if is_null(path) {
            return Ok(Self::at(path, OutputKind::Device));
        }
        match descriptor(path) {
            Some(1) => {
                files
                    .write_open(path, &standard_output(path)?)
                    .map_err(|error| error.with(Opt::OUTPUT, "name another file"))?;
                return Ok(Self::at(path, OutputKind::Stream));
            }
            Some(_) if fs::metadata(path).is_ok_and(|existing| existing.is_file()) => {
                let error = Error::new("is a file that is open already, and has no name to take").in_file(path);
                return Err(error.with_value(Opt::OUTPUT, "-", "write to standard output with {}, and redirect that"));
            }
            _ => {}
        }
        let file = follow_links(path);
        let existing = match fs::metadata(&file) {
            Ok(existing) => Some(existing),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unwritable(path)(error)),
        };
        if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
            return refuse("the output is a directory", "name a file in it");
        }
        files.write(path).map_err(|error| error.with(Opt::OUTPUT, "name another file"))?; // before any advice to replace it
        if existing.as_ref().is_some_and(fs::Metadata::is_file) && !replace {
            return Err(exists(path));
        }
        check_folder(&file).map_err(|error| error.in_file(path))?;
        check_not_in_use(&file).map_err(|error| Error::cannot("replace", &error).in_file(path))?;
        let kind =
            if existing.is_some_and(|existing| !existing.is_file()) { OutputKind::Device } else { OutputKind::File };
        Ok(Self { path: path.to_owned(), file, replace, kind })
    }

    /// Returns the path as given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if written data stay there: a device or a pipe keeps nothing.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.kind == OutputKind::File
    }

    /// Returns the folder of the output, if [`Destination::keeps`].
    pub(crate) fn folder(&self) -> &Path {
        directory_of(&self.file)
    }

    /// Returns a destination that discards everything, for conversions that are only measured.
    pub(crate) fn nowhere() -> Self {
        Self::at(Path::new(if cfg!(windows) { "NUL" } else { "/dev/null" }), OutputKind::Device)
    }

    /// Returns the destination of a file in a folder that tcast owns; it replaces anything of its name, even a link.
    pub(crate) fn within(path: &Path) -> Self {
        Self::at(path, OutputKind::File)
    }

    fn at(path: &Path, kind: OutputKind) -> Self {
        Self { path: path.to_owned(), file: path.to_owned(), replace: true, kind }
    }

    /// Refuses an output of `len` bytes that does not fit on the disk.
    ///
    /// # Errors
    /// When the file system says that fewer bytes are available.
    pub fn check_space(&self, len: u64) -> Result<()> {
        if !self.keeps() {
            return Ok(());
        }
        check_space(self.folder(), len).map_err(|error| error.in_file(&self.path))
    }
}

/// Returns the file that a path leads to, if it is in another folder than the path.
pub(crate) fn elsewhere(path: &Path) -> Option<PathBuf> {
    let file = follow_links(path);
    let [linked, given] = [&file, path].map(|file| fs::canonicalize(directory_of(file)).ok());
    (linked != given).then_some(file)
}

pub(super) fn exists(path: &Path) -> Error {
    Error::new("the output exists already").existing(OTHER_FILE).in_file(path)
}

/// Refuses `len` bytes that do not fit on the disk of a folder.
pub(crate) fn check_space(folder: &Path, len: u64) -> Result<()> {
    match available(folder) {
        Some(available) if available < len => {
            let (needed, available) = (size(len), size(available));
            let error = Error::new(format!("not enough disk space: {needed} are needed, {available} are available"));
            Err(error.no_space())
        }
        _ => Ok(()), // if the file system does not say, writing shows it
    }
}

/// Refuses an output in a folder that does not exist.
pub(crate) fn check_folder(output: &Path) -> Result<()> {
    // For a path that ends in a slash, this is still the folder of its last name.
    let folder = directory_of(output);
    if folder.is_dir() {
        return Ok(());
    }
    let taken = |message: &str| Error::new(message).in_file(output);
    if let Some((_, address)) = output.to_str().and_then(|text| text.split_once("://")) {
        let name = Path::new(address).file_name().map_or("output".into(), PathBuf::from);
        let error = taken("is an address, and tcast writes only files of this machine");
        return Err(error.with_value(Opt::OUTPUT, name, ELSEWHERE));
    }
    if let Some(home) = in_home(output) {
        let error = taken("the output's directory does not exist: a shell expands ~ only outside of quotes");
        return Err(error.with_value(Opt::OUTPUT, home, ELSEWHERE));
    }
    if let Some(file) = folder.ancestors().find(|path| fs::symlink_metadata(path).is_ok()).filter(|path| !path.is_dir())
    {
        let error = taken(&format!("{} is not a directory", quoted(file)));
        return Err(error.with(Opt::OUTPUT, "name another output with {}"));
    }
    Err(taken("the output's directory does not exist").remedy(make_folder(folder)))
}

/// Expands `~/x` like a shell, if no folder is named `~`.
pub(crate) fn in_home(path: &Path) -> Option<PathBuf> {
    let inner = path.strip_prefix("~").ok().filter(|_| !Path::new("~").exists())?;
    let home = std::env::home_dir().filter(|home| home.is_dir())?;
    Some(home.join(inner))
}

/// Returns the bytes available on the disk of a folder, or of its nearest existing parent. `None` if the file system
/// does not say, such as /proc and some network file systems, which report a total size of 0.
pub(crate) fn available(folder: &Path) -> Option<u64> {
    let here = Path::new(".");
    let existing =
        folder.ancestors().map(|path| if path == Path::new("") { here } else { path }).find(|path| path.is_dir());
    let space = fs4::statvfs(existing.unwrap_or(here)).ok()?;
    (space.total_space() > 0).then(|| space.available_space())
}

/// Returns the file descriptor of this process that a path names: `-`, `/dev/stdout` and the like.
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

/// True if a path names the device of Windows that discards everything, which is in every folder.
fn is_null(path: &Path) -> bool {
    cfg!(windows) && path.file_name().is_some_and(|name| name.eq_ignore_ascii_case("nul"))
}

/// True if a path names standard output; `./-` is a file.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    descriptor(path) == Some(1)
}

/// Returns a new handle to standard output.
pub(crate) fn standard_output(path: &Path) -> Result<File> {
    #[cfg(unix)]
    let copied = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned();
    #[cfg(windows)]
    let copied = std::os::windows::io::AsHandle::as_handle(&io::stdout()).try_clone_to_owned();
    copied.map(File::from).map_err(unwritable(path))
}
