//! Memory-mapped inputs: the file's pages are the buffer, so a tensor is never copied.
//!
//! Another process can change a file while it is mapped. There is a guard for each case:
//! * truncated before the pages are prefetched: [`MappedFile::prefetch`] fails;
//! * truncated after that, or a failing disk: the system sends a SIGBUS, which `note_faults` makes reportable;
//! * written to, or truncated within its last page, which then reads as zeros: [`MappedFile::check_unchanged`] checks the
//!   open file, and the file of its name. Windows lets no other program write to a file that is read.
#![allow(unsafe_code, reason = "mapping a file is unsafe: another process could change the bytes")]

#[cfg(target_os = "linux")]
use super::cache_state::CacheState;
use super::open::{Links, input_options, unreadable};
use crate::error::{Error, Kind, Result};
use crate::text::size;
use memmap2::Mmap;
use std::fs::{File, Metadata};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

/// Allocates memory for `count` items. For a large allocation it asks Linux for large pages, because 512 small ones
/// take four times as long to create, which counts when there are a hundred thousand tensors. Memory that is not needed
/// is still never touched.
pub(crate) fn large_buffer<T>(count: usize) -> Vec<T> {
    let buffer: Vec<T> = Vec::with_capacity(count);
    #[cfg(target_os = "linux")]
    {
        const LARGE_PAGE: usize = 2 << 20;
        let bytes = buffer.capacity() * size_of::<T>();
        let before = buffer.as_ptr().cast::<u8>().align_offset(LARGE_PAGE).min(bytes);
        let whole = (bytes - before) / LARGE_PAGE * LARGE_PAGE;
        if whole > LARGE_PAGE {
            let start = buffer.as_ptr().cast::<u8>().wrapping_add(before).cast_mut();
            // SAFETY: the range is within memory of the vector. The advice does not change what memory holds, and a refusal
            // changes nothing.
            unsafe { libc::madvise(start.cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
    buffer
}

/// Address ranges of mapped files, and the paths that they were opened by.
static MAPPED: Mutex<Vec<(Range<usize>, PathBuf)>> = Mutex::new(Vec::new());

/// A file mapped read-only.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
    stamp: Stamp,
    /// The open file, to check later whether it was changed.
    kept: Option<OpenFile>,
}

/// State of a file when it was mapped; any change of its bytes changes this.
#[derive(Debug)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    /// The system sets this time at every change of bytes, attributes and names, and no program can reset it.
    #[cfg(unix)]
    changed: (i64, i64),
    #[cfg(unix)]
    links: u64,
    #[cfg(unix)]
    identity: (u64, u64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        Self {
            len: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            #[cfg(unix)]
            links: metadata.nlink(),
            #[cfg(unix)]
            identity: (metadata.dev(), metadata.ino()),
        }
    }

    fn is_same_file(&self, now: &Self) -> bool {
        #[cfg(unix)]
        return self.identity == now.identity;
        #[cfg(not(unix))]
        return self.len == now.len && self.modified == now.modified;
    }

    /// True if the bytes may have changed. Adding or removing a file's name changes its times too, and is harmless.
    fn is_changed(&self, now: &Self, has_its_name: bool) -> bool {
        #[cfg(unix)]
        if has_its_name && self.links == now.links && self.changed != now.changed {
            return true;
        }
        let _ = has_its_name;
        self.len != now.len || self.modified != now.modified
    }
}

/// A file that stays open. A process may have only a few of them, and a checkpoint has up to thousands of shards:
/// beyond a share of the limit, only the name is kept.
#[derive(Debug)]
struct OpenFile(File);

/// Number of files that are kept open now.
static KEPT: AtomicUsize = AtomicUsize::new(0);

impl OpenFile {
    fn new(file: File) -> Option<Self> {
        #[cfg(unix)]
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        #[cfg(not(unix))]
        let limit = u64::MAX;
        let most = usize::try_from(limit / 4).unwrap_or(usize::MAX);
        let more = |kept: usize| (kept < most).then_some(kept + 1);
        KEPT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(file))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened or mapped, or is not a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = unreadable(path);
        // Before opening, because opening a device can have side effects.
        check_kind(&std::fs::metadata(path).map_err(failed)?, path)?;
        Self::opened(input_options(Links::Follow).open(path).map_err(failed)?, path)
    }

    pub(crate) fn opened(file: File, path: &Path) -> Result<Self> {
        let failed = unreadable(path);
        check_kind(&file.metadata().map_err(failed)?, path)?;
        let mut mapped = Self::map(&file, path).map_err(failed)?;
        mapped.kept = OpenFile::new(file);
        Ok(mapped)
    }

    /// Maps an open file, which keeps its bytes even without a name.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn of(file: &File) -> std::io::Result<Self> {
        Self::map(file, Path::new(""))
    }

    fn map(file: &File, path: &Path) -> std::io::Result<Self> {
        let (path, stamp) = (path.to_owned(), Stamp::of(&file.metadata()?));
        if stamp.len == 0 {
            return Ok(Self { path, map: None, stamp, kept: None });
        }
        if isize::try_from(stamp.len).is_err() {
            let what = format!("its {} are more than a {}-bit program can map", size(stamp.len), usize::BITS);
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, what));
        }
        // SAFETY: the bytes are only ever read as plain bytes, so a change by another process can give wrong
        // values but no invalid ones; see above for how it is noticed. The output is a temporary file until then.
        let map = unsafe { Mmap::map(file) }?;
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::Sequential); // only a hint: a refusal changes nothing
        let start = map.as_ptr().addr();
        mapped().push((start..start + map.len(), path.clone()));
        Ok(Self { path, map: Some(map), stamp, kept: None })
    }

    /// Returns the path that the file was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the system read a range before it is used. If its last byte is cached, a page fault for each step maps the
    /// pages around it, which takes Linux less time than `MADV_POPULATE_READ`, which examines each page.
    ///
    /// # Errors
    /// When the file no longer has these bytes, as far as the system can tell (Linux), or the disk cannot read them (Linux
    /// 5.14 and later).
    pub fn prefetch(&self, range: Range<usize>) -> Result<()> {
        #[cfg(target_os = "linux")]
        if let (Some(map), false) = (&self.map, range.is_empty()) {
            /// Bytes that a page fault maps (fault-around), unless Linux is configured differently.
            const MAPPED_AROUND: usize = 1 << 16;
            self.read_ahead(map, &range);
            let is_cut_short = match self.kept.as_ref().map(|OpenFile(file)| CacheState::of(file, range.end - 1)) {
                Some(CacheState::Cached) => {
                    range.clone().step_by(MAPPED_AROUND).for_each(|at| _ = std::hint::black_box(map[at]));
                    false
                }
                Some(CacheState::BeyondEnd) => true,
                _ => {
                    let populated = map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len());
                    populated.is_err_and(|error| is_fault(&error))
                }
            };
            if is_cut_short {
                return Err(cut_short().in_file(&self.path));
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
        Ok(())
    }

    /// Makes the disk read the bytes after a large range, unless they are cached, to work while the range is processed.
    #[cfg(target_os = "linux")]
    fn read_ahead(&self, map: &Mmap, range: &Range<usize>) {
        /// Minimum length: a smaller range does not mean that the bytes after it will be read.
        const LARGE: usize = 1 << 18;
        const AHEAD: usize = 4 << 20;
        /// Maximum length of a request: the system ignores bytes beyond the longest request of the disk.
        const REQUEST: usize = 1 << 19;
        let (start, end) = (range.end, map.len().min(range.end.saturating_add(AHEAD)));
        let Some(OpenFile(file)) = &self.kept else { return };
        if range.len() >= LARGE && start < end && CacheState::of(file, end - 1) == CacheState::Absent {
            for at in (start..end).step_by(REQUEST) {
                let _ = map.advise_range(memmap2::Advice::WillNeed, at, REQUEST.min(end - at)); // only a hint
            }
        }
    }

    /// Refuses a file that was changed since it was mapped: bytes may have been read before or after the change. A file
    /// that is removed or renamed keeps its bytes.
    ///
    /// # Errors
    /// When its length or one of its times has changed, another file has its name, or this cannot be determined.
    pub fn check_unchanged(&self) -> Result<()> {
        if cfg!(windows) {
            return Ok(()); // while it is open, no other program can write to it
        }
        let named = match std::fs::metadata(&self.path) {
            Err(_) if self.path == Path::new("") => return Ok(()), // a temporary file of this run
            named => named.ok().map(|metadata| Stamp::of(&metadata)),
        };
        let failed = unreadable(&self.path);
        let kept = self.kept.as_ref().map(|kept| kept.0.metadata()).transpose().map_err(failed)?;
        let kept = kept.map(|metadata| Stamp::of(&metadata));
        if named.is_none() && kept.is_none() {
            let what = "the file was removed or renamed during the work, and nothing else shows that its bytes stayed";
            let error = Error::new(what).in_file(&self.path);
            return Err(error.remedy("allow more open files (ulimit -n), or leave the inputs where they are"));
        }
        let is_other = named.as_ref().is_some_and(|named| !self.stamp.is_same_file(named));
        let mut now = named.iter().chain(&kept);
        if is_other || now.any(|now| self.stamp.is_changed(now, named.is_some())) {
            let error = Error::new("the file was changed, or another took its name, during the work");
            return Err(error.in_file(&self.path).remedy("start again when nothing writes to it"));
        }
        Ok(())
    }
}

/// Refuses anything but a regular file.
fn check_kind(metadata: &Metadata, path: &Path) -> Result<()> {
    if metadata.is_dir() {
        let error = Error::new("is a directory, not a tensor file").in_file(path);
        return Err(error.remedy("give one of the files in it"));
    }
    if !metadata.is_file() {
        return Err(Error::new("is not a regular file: an input must be a file that can be mapped").in_file(path));
    }
    Ok(())
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if let Some(map) = &self.map {
            let start = map.as_ptr().addr();
            mapped().retain(|(range, _)| range.start != start);
        }
    }
}

fn mapped() -> std::sync::MutexGuard<'static, Vec<(Range<usize>, PathBuf)>> {
    MAPPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// True if the system's error says that reading the page would cause a SIGBUS.
pub(super) fn is_fault(error: &std::io::Error) -> bool {
    /// Error number everywhere except on Windows, where a mapped file cannot be truncated.
    const EFAULT: i32 = 14;
    cfg!(unix) && error.raw_os_error() == Some(EFAULT)
}

/// Returns the error for bytes that existed when the file was opened and cannot be read.
pub(crate) fn cut_short() -> Error {
    Error::new("the file was cut short, or could not be read, during the work").of(Kind::System)
}

/// Address whose access caused a SIGBUS.
#[cfg(all(unix, feature = "cli"))]
static FAULT: AtomicUsize = AtomicUsize::new(0);

/// Makes a SIGBUS record its address and do nothing else: the thread faults again and again, until the code that waits
/// for the signal ends the process. This must be called before anything waits for it. It replaces the standard
/// library's handler, which would end the process at the second fault.
#[cfg(all(unix, feature = "cli"))]
pub(crate) fn note_faults() -> std::io::Result<()> {
    extern "C" fn note(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system hands a valid siginfo to a handler installed with SA_SIGINFO; for a SIGBUS it has an
        // address. An atomic store is all that happens, and that is allowed in a handler.
        let address = unsafe { (*info).si_addr() };
        FAULT.store(address.addr(), Ordering::Release);
    }
    // SAFETY: all zeros are a valid sigaction (no flags, an empty mask), and `note` has the type that SA_SIGINFO asks for.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Returns the error for a SIGBUS.
#[cfg(all(unix, feature = "cli"))]
pub(crate) fn fault() -> Error {
    let address = FAULT.load(Ordering::Acquire);
    match mapped().iter().find(|(range, _)| range.contains(&address)) {
        Some((_, path)) if path != Path::new("") => cut_short().in_file(path),
        _ => Error::new("memory could not be read (SIGBUS)"),
    }
}

impl Deref for MappedFile {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::fs::{Advice, fadvise};
    use std::time::{Duration, Instant};

    #[test]
    fn a_buffer_in_large_pages_holds_what_other_buffers_do() {
        for count in [0, 1, 1 << 18, 1 << 20, (1 << 20) + 77] {
            let mut buffer = large_buffer(count);
            let pointer = buffer.as_ptr();
            buffer.extend(0..count);
            assert!(buffer.as_ptr() == pointer && buffer.into_iter().eq(0..count));
        }
    }

    #[test]
    fn bytes_that_a_shortened_file_lost_are_an_error() {
        let [len, left] = [1 << 20, 1 << 18]; // whole pages on every machine
        for folder in [std::env::current_exe().unwrap().parent().unwrap(), &std::env::temp_dir()] {
            let file = tempfile::NamedTempFile::new_in(folder).unwrap();
            std::fs::write(file.path(), vec![7; len]).unwrap();
            let mapped = MappedFile::open(file.path()).unwrap();
            mapped.prefetch(0..len).unwrap();
            file.as_file().set_len(1 << 18).unwrap();
            mapped.prefetch(0..left).unwrap();
            for range in [0..len, len - 1..len, left..left + 4096] {
                assert!(mapped.prefetch(range).unwrap_err().to_string().contains("was cut short"));
            }
        }
    }

    #[test]
    fn what_follows_a_large_range_is_read_ahead() {
        const LEN: usize = 8 << 20;
        // Next to the compiled program, because a temporary folder may be in memory.
        let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let path = folder.path().join("in");
        std::fs::write(&path, vec![7; LEN]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        let forget = || fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let last_ahead = (1 << 20) + (4 << 20) - 1;
        forget();
        if CacheState::of(&file, last_ahead) != CacheState::Absent {
            return; // the file system does not say what is cached, such as one in memory
        }
        let mapped = MappedFile::open(&path).unwrap();
        forget();
        mapped.prefetch(0..1 << 20).unwrap();
        let begin = Instant::now();
        while CacheState::of(&file, last_ahead) != CacheState::Cached {
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing was read ahead");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
