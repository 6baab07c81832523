//! Naming of complete files, in one step if the file system has one.
//!
//! On Linux a file can be created without a name (`O_TMPFILE`) and linked when it is complete: whatever kills the run,
//! even SIGKILL or a power failure, nothing is left. Elsewhere it has a temporary name until then.

use super::in_use;
use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf, Prefix};
use tempfile::{PathPersistError, TempPath};

/// Creates an unnamed file in a folder; `None` if the system has no such files, or could not name them later.
#[cfg(target_os = "linux")]
pub(super) fn create_unnamed(folder: &Path) -> io::Result<Option<File>> {
    use std::os::unix::fs::OpenOptionsExt;
    const UNKNOWN: [i32; 4] = [libc::EOPNOTSUPP, libc::EISDIR, libc::EINVAL, libc::ENOSYS];
    let file = match File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o666).open(folder) {
        Err(error) if error.raw_os_error().is_some_and(|number| UNKNOWN.contains(&number)) => return Ok(None),
        file => file?,
    };
    let is_there = fs::metadata(descriptor(&file)).is_ok(); // not without /proc
    Ok(is_there.then_some(file))
}

#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps, reason = "it can fail on Linux")]
pub(super) fn create_unnamed(_: &Path) -> io::Result<Option<File>> {
    Ok(None)
}

/// Returns the path of an open file that has no name.
#[cfg(target_os = "linux")]
fn descriptor(file: &File) -> std::path::PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Gives an unnamed file a name, which must be free.
#[cfg(target_os = "linux")]
pub(super) fn link(file: &File, to: &Path) -> io::Result<()> {
    use nix::fcntl::{AT_FDCWD, AtFlags};
    Ok(nix::unistd::linkat(AT_FDCWD, &descriptor(file), AT_FDCWD, to, AtFlags::AT_SYMLINK_FOLLOW)?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn link(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// True if the error of a refused link could mean that the file system has no links.
pub(super) fn has_no_links(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, NotADirectory, NotFound, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let others = [AlreadyExists, NotADirectory, NotFound, QuotaExceeded, ReadOnlyFilesystem, StorageFull];
    !others.contains(&error.kind())
}

/// Gives a file its name; if `replace`, another file may have it. If that fails, the file is removed.
pub(super) fn rename(file: TempPath, to: &Path, replace: bool) -> io::Result<()> {
    let to = &*of_any_length(to)?;
    if replace {
        return persist(file, to);
    }
    match retried_with(file, |file| file.persist_noclobber(to)) {
        Ok(()) => Ok(()),
        Err(refused) if has_no_links(&refused.error) => rename_over_placeholder(refused.path, to),
        Err(refused) => Err(refused.error),
    }
}

/// Gives a file a name that another file may have.
fn persist(file: TempPath, to: &Path) -> io::Result<()> {
    retried_with(file, |file| file.persist(to)).map_err(|refused| {
        // Windows also denies access to a file that another program holds.
        let is_held = cfg!(windows) && refused.error.kind() == io::ErrorKind::PermissionDenied;
        match in_use::check_not_in_use(to) {
            Err(error) if is_held => error,
            _ => refused.error,
        }
    })
}

/// Like [`in_use::retried`], for an operation that consumes the file unless it fails.
fn retried_with(
    file: TempPath,
    make: impl Fn(TempPath) -> Result<(), PathPersistError>,
) -> Result<(), PathPersistError> {
    let mut file = Some(file);
    let done = in_use::retried(|| {
        make(file.take().expect("a failure gives it back")).map_err(|refused| {
            file = Some(refused.path);
            refused.error
        })
    });
    done.map_err(|error| PathPersistError { error, path: file.expect("a failure gives it back") })
}

/// Returns a path in the form in which Windows does not limit its length to 260 characters: absolute, after `\\?\`. The
/// standard library uses this form; system functions that others call need it.
pub(super) fn of_any_length(path: &Path) -> io::Result<Cow<'_, Path>> {
    if !cfg!(windows) {
        return Ok(path.into());
    }
    let path = std::path::absolute(path)?;
    let mut parts = path.components();
    let Some(Component::Prefix(prefix)) = parts.next() else { return Ok(path.into()) };
    let mut long = match prefix.kind() {
        Prefix::Disk(_) => OsString::from(r"\\?\"),
        Prefix::UNC(..) => OsString::from(r"\\?\UNC"),
        _ => return Ok(path.into()),
    };
    // The server of a network follows two backslashes, of which one stays.
    let prefix = prefix.as_os_str().to_string_lossy();
    long.push(if prefix.starts_with(r"\\") { &prefix[1..] } else { &prefix });
    long.push(parts.as_path());
    Ok(PathBuf::from(long).into())
}

/// Gives a file its name where the system has no rename that spares an existing file, and no links (vfat, some FUSE
/// file systems): an empty new file takes the name first. For that moment the output exists and is empty.
fn rename_over_placeholder(file: TempPath, to: &Path) -> io::Result<()> {
    close(File::create_new(to)?)?;
    persist(file, to).inspect_err(|_| drop(fs::remove_file(to)))
}

/// Closes a file: NFS and FUSE may report only then that a quota or a disk was full, and written data are lost.
#[cfg_attr(not(unix), allow(clippy::unnecessary_wraps, reason = "it can fail on Unix"))]
pub(super) fn close(file: File) -> io::Result<()> {
    #[cfg(unix)]
    match nix::unistd::close(file) {
        Ok(()) | Err(nix::errno::Errno::EINTR) => {} // it is closed all the same
        Err(error) => return Err(error.into()),
    }
    #[cfg(not(unix))]
    drop(file);
    Ok(())
}

/// Flushes a folder, so that names in it survive a crash. If the folder may not be read, or its file system does not
/// support this, it is left to the system.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_gets_its_name_where_there_are_no_links() {
        let folder = tempfile::tempdir().unwrap();
        let temporary = || {
            let path = folder.path().join("temporary");
            fs::write(&path, "whole").unwrap();
            TempPath::try_from_path(path).unwrap()
        };
        let to = folder.path().join("out");
        rename_over_placeholder(temporary(), &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"whole");
        // A file that appeared meanwhile stays, and nothing else does.
        fs::write(&to, "mine").unwrap();
        assert_eq!(rename_over_placeholder(temporary(), &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&to).unwrap(), b"mine");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
