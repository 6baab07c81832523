//! Files that another program holds open. Windows then neither replaces, moves nor removes them; other systems do.

#[cfg(windows)]
use crate::error::is_in_use;
use std::io;
use std::path::Path;

/// Calls `make`. On Windows, calls it again for two seconds while another program may hold the file: virus scanners and
/// indexers open each new file for a moment.
#[cfg(windows)]
pub(crate) fn retried<T>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    use std::time::Duration;
    const FIRST: Duration = Duration::from_millis(2);
    const TRIES: u32 = 10; // 2 ms, 4 ms ... 1 s
    for wait in (0..TRIES).map(|number| FIRST * 2_u32.pow(number)) {
        match make() {
            Err(error) if is_in_use(&error) || error.kind() == io::ErrorKind::PermissionDenied => {
                std::thread::sleep(wait);
            }
            done => return done,
        }
    }
    make()
}

#[cfg(not(windows))]
pub(crate) fn retried<T>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    make()
}

/// Fails if another program holds an existing file so that it could not be replaced or moved.
#[cfg(windows)]
pub(crate) fn check_not_in_use(path: &Path) -> io::Result<()> {
    use std::os::windows::fs::OpenOptionsExt;
    const DELETE: u32 = 0x0001_0000; // the access of a rename
    match retried(|| std::fs::File::options().access_mode(DELETE).open(path)) {
        Err(error) if is_in_use(&error) => Err(error),
        _ => Ok(()), // any other error appears during the work
    }
}

#[cfg(not(windows))]
#[allow(clippy::unnecessary_wraps, reason = "it can fail on Windows")]
pub(crate) fn check_not_in_use(_: &Path) -> io::Result<()> {
    Ok(())
}
