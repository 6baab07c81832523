//! A program that is held at a known point: a test there does not depend on how fast the machine is.

use super::skip;
use crate::common::Outcome;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// A library loaded before the system's. The thread that makes call number `HOLD_AT` of the function `HOLD` waits until
/// the folder `HOLD_IN` has a file `go`; other threads carry on. Of `open64`, calls for files named `HOLD_FILE` count. `BLIND` makes all memory look present, as it does where
/// pages go away a moment later.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void hold(const char *function) {
    static int calls;
    char path[4096];
    const char *wanted = getenv("HOLD"), *folder = getenv("HOLD_IN");
    if (!wanted || strcmp(wanted, function) || __sync_add_and_fetch(&calls, 1) != atoi(getenv("HOLD_AT"))) return;
    snprintf(path, sizeof path, "%s/held", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    snprintf(path, sizeof path, "%s/go", folder);
    while (access(path, F_OK)) usleep(1000);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
    static ssize_t (*next)(int, const void *, size_t, off64_t);
    if (!next) next = dlsym(RTLD_NEXT, "pwrite64");
    hold("pwrite64");
    return next(file, bytes, count, at);
}

// With FSYNC_AT, the flush of a file fails for that time, as that of a disk does that has no room or is broken.
int fsync(int file) {
    static int (*next)(int), calls;
    struct stat found;
    const char *at = getenv("FSYNC_AT");
    if (!next) next = dlsym(RTLD_NEXT, "fsync");
    if (fstat(file, &found) || !S_ISREG(found.st_mode)) return next(file);
    hold("fsync");
    if (at && __sync_add_and_fetch(&calls, 1) == atoi(at)) {
        errno = EIO;
        return -1;
    }
    return next(file);
}

int madvise(void *start, size_t length, int advice) {
    static int (*next)(void *, size_t, int);
    if (!next) next = dlsym(RTLD_NEXT, "madvise");
    hold("madvise");
    return getenv("BLIND") ? 0 : next(start, length, advice);
}

// With NO_UNNAMED no file system has files without names.
int open64(const char *path, int flags, ...) {
    static int (*next)(const char *, int, ...);
    if (!next) next = dlsym(RTLD_NEXT, "open64");
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    const char *file = getenv("HOLD_FILE"), *last = strrchr(path, '/');
    if (file && !strcmp(last ? last + 1 : path, file)) hold("open64");
    if (getenv("NO_UNNAMED") && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return next(path, flags, mode);
}

// With NO_LINKS none has links.
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    static int (*next)(int, const char *, int, const char *, int);
    if (!next) next = dlsym(RTLD_NEXT, "linkat");
    if (getenv("NO_LINKS")) {
        errno = EPERM;
        return -1;
    }
    return next(from_folder, from, to_folder, to, flags);
}

// The close of a file that was open for writing fails for the CLOSE_AT'th time, as NFS does where a quota is used up.
int close(int file) {
    static int (*next)(int), calls;
    struct stat found;
    const char *at = getenv("CLOSE_AT");
    if (!next) next = dlsym(RTLD_NEXT, "close");
    int is_written = at && (fcntl(file, F_GETFL) & O_ACCMODE) != O_RDONLY && !fstat(file, &found) && S_ISREG(found.st_mode);
    int result = next(file);
    if (is_written && __sync_add_and_fetch(&calls, 1) == atoi(at)) {
        errno = EDQUOT;
        return -1;
    }
    return result;
}
"#;

/// The library, built once; `None` where it cannot be built, which is reported.
fn library(what: &str) -> Option<&'static Path> {
    static BUILT: OnceLock<Result<TempDir, String>> = OnceLock::new();
    let build = || {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hold.c"), LIBRARY).unwrap();
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-o", "hold.so", "hold.c", "-ldl"]).current_dir(folder.path());
        match command.output() {
            Ok(output) if output.status.success() => Ok(folder),
            other => Err(format!("cc builds no library: {other:?}")),
        }
    };
    match BUILT.get_or_init(build) {
        Ok(folder) => Some(folder.path()),
        Err(why) => {
            skip(what, why);
            None
        }
    }
}

/// Has a command run with some calls replaced: see [`LIBRARY`] for the variables. `None` where the library cannot be built.
pub(super) fn replace_calls(mut command: Command, variables: &[(&str, &str)]) -> Option<Command> {
    let library = library("calls that fail")?;
    command.env("LD_PRELOAD", library.join("hold.so")).envs(variables.iter().copied());
    Some(command)
}

/// A run of which a thread is held in a call.
pub(super) struct Held {
    child: Child,
    folder: TempDir,
}

/// Starts a run and waits until it makes a call, `pwrite64`, `madvise`, `open64` or `fsync` of a file, for the time `at` (from 1). `None` where the
/// library cannot be built.
#[track_caller]
pub(super) fn hold(mut command: Command, call: &str, at: usize) -> Option<Held> {
    let library = library(&format!("a run that is held at {call} {at}"))?;
    let folder = tempfile::tempdir().unwrap();
    command.env("LD_PRELOAD", library.join("hold.so")).env("HOLD_IN", folder.path());
    command.env("HOLD", call).env("HOLD_AT", at.to_string());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !folder.path().join("held").exists() {
        if let Some(status) = child.try_wait().unwrap() {
            panic!("{status} before {call} {at}: {:?}", Outcome::of(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(Held { child, folder })
}

impl Held {
    /// Lets the run go on, and waits for its end.
    pub(super) fn release(self) -> Outcome {
        std::fs::write(self.folder.path().join("go"), b"").unwrap();
        Outcome::of(&self.child.wait_with_output().unwrap())
    }

    /// Sends a signal while the thread is held, and waits for the end of the run.
    pub(super) fn signal(self, signal: &str) -> Outcome {
        assert!(Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status().unwrap().success());
        Outcome::of(&self.child.wait_with_output().unwrap())
    }
}
