//! Outputs that appear whole or not at all.
//!
//! Bytes go to an unnamed file, or to a temporary one next to the output, which takes the output's name only when it is
//! complete and flushed. Devices and pipes have no name to take and are written in place; standard output, whatever it
//! is connected to, is a stream.

use super::destination::{OutputKind, exists};
use super::map::{MappedFile, cut_short, is_fault};
use super::naming::{self, close};
use super::open::{unreadable, unwritable};
use super::sink::{Appended, Sink};
use super::temporaries::{self, Named};
use crate::error::{Error, Result};
use crc32fast::Hasher;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

pub use super::destination::Destination;
pub(crate) use super::destination::{
    available, check_folder, check_space, descriptor, elsewhere, in_home, is_standard_output, standard_output,
};
pub(crate) use super::naming::sync_folder;
pub(crate) use super::path::{directory_of, ends_in_separator};
pub(crate) use super::temporaries::{
    NewFolder, WORK, create_folders, is_own, keep_at_interrupt, remove_leftovers, uninterrupted,
};

impl Destination {
    /// Opens the output for writing.
    ///
    /// # Errors
    /// When the temporary file, or the device, cannot be opened.
    pub fn create(self) -> Result<Output> {
        let failed = unwritable(&self.path);
        let (file, temporary, is_seekable) = match self.kind {
            OutputKind::Stream => (standard_output(&self.path)?, None, false),
            OutputKind::Device => {
                let file = File::options().write(true).open(&self.file).map_err(failed)?;
                let is_seekable = io::Seek::stream_position(&mut &file).is_ok();
                (file, None, is_seekable)
            }
            OutputKind::File => {
                let unnamed = naming::create_unnamed(self.folder()).map_err(failed)?;
                let named = || Named::create(self.folder()).map(|(file, named)| (file, Temporary::Named(named)));
                let (file, temporary) =
                    unnamed.map_or_else(named, |file| Ok((file, Temporary::Unnamed))).map_err(failed)?;
                (file, Some(temporary), true)
            }
        };
        Ok(Output { file, temporary, destination: self, is_seekable, is_flushed_early: false, sums: None, rest: None })
    }

    /// Makes a whole output, which `write` writes from front to back.
    pub(crate) fn write(self, sync: bool, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let output = self.create()?;
        let mut buffered = BufWriter::with_capacity(1 << 20, Appended { output: &output, end: 0 });
        let written = write(&mut buffered).and_then(|()| buffered.flush());
        drop(buffered);
        written.map_err(|error| error.downcast().unwrap_or_else(|error| Error::cannot("write", &error)))?;
        output.take_name(sync, None)
    }

    fn refused(&self, error: io::Error) -> Error {
        let is_taken = self.kind == OutputKind::File && error.kind() == io::ErrorKind::AlreadyExists;
        if is_taken { exists(&self.path) } else { unwritable(&self.path)(error) }
    }
}

/// Temporary file of an output until it is complete.
#[derive(Debug)]
enum Temporary {
    Unnamed,
    Named(Named),
}

/// An output that is being written.
#[derive(Debug)]
pub struct Output {
    file: File,
    /// `None` if there is no name to take.
    temporary: Option<Temporary>,
    destination: Destination,
    is_seekable: bool,
    /// True if the disk starts to write as soon as it can.
    is_flushed_early: bool,
    /// Checksums of the pieces written so far, with their offsets; `None` if no checksum is needed.
    sums: Option<Mutex<Vec<(u64, Hasher)>>>,
    /// Second file of the output, and the offset at which it begins.
    rest: Option<(u64, Box<Output>)>,
}

impl Output {
    /// Makes the system write everything to the disk as soon as it receives it, because the output will be flushed: reading,
    /// converting and writing overlap, and little is left for the flush.
    pub(crate) fn flushed_early(self, is_flushed_early: bool) -> Self {
        Self { is_flushed_early, ..self }
    }

    /// Computes a checksum of everything that is written. Every byte must be written once.
    pub(crate) fn summed(self) -> Self {
        Self { sums: Some(Mutex::default()), ..self }
    }

    /// Divides the output into two files: bytes at offset `start` and later go to the second.
    pub(crate) fn continued(self, start: u64, rest: Self) -> Self {
        Self { rest: Some((start, Box::new(rest))), ..self }
    }

    /// Returns the second file of the output.
    pub(crate) fn rest(&self) -> Option<&Self> {
        self.rest.as_ref().map(|(_, rest)| &**rest)
    }

    /// True if written data stay there, as in [`Destination::keeps`].
    pub(crate) fn keeps(&self) -> bool {
        self.destination.keeps()
    }

    /// Creates another file in the same folder, for bytes on their way to this one. It is removed when dropped.
    pub(crate) fn beside(&self) -> Result<Self> {
        self.destination.clone().create()
    }

    /// Computes the CRC-32 of everything written, if the output is [`Self::summed`].
    pub(crate) fn sum(&self) -> u32 {
        let mut sum = Hasher::new();
        if let Some(sums) = &self.sums {
            let mut pieces = lock(sums);
            pieces.sort_unstable_by_key(|(offset, _)| *offset);
            pieces.iter().for_each(|(_, piece)| sum.combine(piece));
        }
        sum.finalize()
    }

    /// Maps the written data to read them again, if [`Destination::keeps`].
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_again(&self) -> Result<MappedFile> {
        MappedFile::of(&self.file).map_err(unreadable(self.path()))
    }

    /// Gives the complete output its name.
    ///
    /// # Errors
    /// When closing or renaming fails; nothing is left then.
    pub fn publish(self) -> Result<()> {
        self.take_name(false, None)
    }

    /// Publishes the output; with `sync`, data and name are on the disk afterwards. An interrupt finds both files of an
    /// output or neither, and reports `kept` once they have their names. The second file comes first, because the first
    /// refers to it.
    pub(crate) fn take_name(mut self, sync: bool, kept: Option<&str>) -> Result<()> {
        let place = self.destination.clone();
        let failed = |error: io::Error| place.refused(error);
        let rest = match self.rest.take() {
            Some((_, rest)) => Some((rest.destination.clone(), rest.named(sync)?)),
            None => None,
        };
        let named = match &self.temporary {
            None => return close(self.file).map_err(failed),
            Some(Temporary::Unnamed) if rest.is_none() => self.link(sync, kept).map_err(failed)?,
            Some(_) => Some(self.named(sync)?),
        };
        if let Some(named) = named {
            let mut temporaries = temporaries::lock();
            let mut rename = |named: Named, place: &Destination| {
                let renamed = naming::rename(named.take(&mut temporaries), &place.file, place.replace);
                renamed.map_err(|error| place.refused(error)) // another program may have made one since the plan
            };
            let mut new = None;
            if let Some((place, named)) = rest {
                new = Some(place.file.clone()).filter(|file| !file.exists());
                rename(named, &place)?;
            }
            rename(named, &place).inspect_err(|_| {
                let _ = new.map(fs::remove_file);
            })?;
            temporaries.keep(kept);
        }
        if sync { sync_folder(place.folder()).map_err(failed) } else { Ok(()) }
    }

    /// Links an unnamed file to its name. Gives it a temporary name if the name is taken by a file that is replaced, or the
    /// system refuses the link after all.
    fn link(self, sync: bool, kept: Option<&str>) -> io::Result<Option<Named>> {
        let Self { file, destination: place, .. } = self;
        if sync {
            file.sync_all()?;
        }
        // Closing a duplicate reports a full disk before the name is given.
        close(file.try_clone()?)?;
        let mut temporaries = temporaries::lock();
        match naming::link(&file, &place.file) {
            Ok(()) => {
                close(file).inspect_err(|_| drop(fs::remove_file(&place.file)))?;
                temporaries.keep(kept);
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && place.replace => {}
            Err(error) if naming::has_no_links(&error) => {}
            Err(error) => return Err(error),
        }
        drop(temporaries);
        Named::of(file, place.folder(), sync).map(Some)
    }

    /// Gives the complete file a temporary name; with `sync`, its data are on the disk.
    fn named(self, sync: bool) -> Result<Named> {
        let Self { file, temporary, destination, .. } = self;
        let flushed = if sync { file.sync_all() } else { Ok(()) };
        let named = flushed.and_then(|()| match temporary {
            Some(Temporary::Named(named)) => close(file).map(|()| named), // Windows renames no open file
            Some(Temporary::Unnamed) => Named::of(file, destination.folder(), sync),
            None => Err(io::ErrorKind::Unsupported.into()), // a device
        });
        named.map_err(|error| destination.refused(error))
    }
}

impl Sink for Output {
    fn path(&self) -> &Path {
        self.destination.path()
    }

    fn is_seekable(&self) -> bool {
        self.is_seekable
    }

    /// Makes the disk reserve `len` bytes: a full disk is noticed before the work, the file is contiguous although
    /// threads write it out of order, and writes are faster. A system that cannot reserve space is not an error.
    fn reserve(&self, mut len: u64) -> Result<()> {
        if self.temporary.is_none() {
            return Ok(());
        }
        if let Some((start, rest)) = &self.rest {
            rest.reserve(len - start)?;
            len = *start;
        }
        let Err(error) = fs4::FileExt::allocate(&self.file, len) else { return Ok(()) };
        match error.kind() {
            // ZFS reserves more than necessary: the available space decides.
            io::ErrorKind::StorageFull => self.destination.check_space(len),
            io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Err(unwritable(self.path())(error)),
            _ => Ok(()),
        }
    }

    fn prepare(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if let Some(sums) = &self.sums {
            let mut sum = Hasher::new();
            sum.update(bytes);
            lock(sums).push((offset, sum));
        }
        Ok(())
    }

    /// An error of a mapping that the bytes come from does not name the file.
    fn write_at(&self, offset: u64, mut bytes: &[u8]) -> Result<()> {
        if let Some((start, rest)) = &self.rest {
            let later;
            (bytes, later) = bytes.split_at(start.saturating_sub(offset).min(bytes.len() as u64) as usize);
            if !later.is_empty() {
                rest.write_at(offset + bytes.len() as u64 - start, later)?;
            }
        }
        let takes_offsets = self.is_seekable && !(cfg!(windows) && self.temporary.is_none()); // NUL takes none
        let written =
            if takes_offsets { write_all_at(&self.file, offset, bytes) } else { (&self.file).write_all(bytes) };
        written.map_err(|error| if is_fault(&error) { cut_short() } else { unwritable(self.path())(error) })?;
        if self.is_flushed_early && self.temporary.is_some() {
            start_flush(&self.file, offset, bytes.len() as u64);
        }
        Ok(())
    }
}

fn lock(sums: &Mutex<Vec<(u64, Hasher)>>) -> std::sync::MutexGuard<'_, Vec<(u64, Hasher)>> {
    sums.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(unix)]
fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Asks the system to write a range to the disk, and does not wait. The pages at its ends may still get other bytes, so they
/// are left for the flush.
fn start_flush(file: &File, offset: u64, len: u64) {
    // Linux starts to write pages that it is asked to drop, and keeps pages that are not on the disk yet.
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Advice, fadvise};
        const PAGE: u64 = 1 << 12;
        let start = offset.next_multiple_of(PAGE);
        let whole = ((offset + len) / PAGE * PAGE).saturating_sub(start);
        if let Some(whole) = std::num::NonZeroU64::new(whole) {
            let _ = fadvise(file, start, Some(whole), Advice::DontNeed); // only a hint
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, len);
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
    use crate::error::ErrorKind;
    use crate::io::identity::Files;

    #[test]
    fn an_interrupt_finds_both_files_of_a_pair_or_neither() {
        let folder = tempfile::tempdir().unwrap();
        let [model, data] = ["m.onnx", "m.onnx.data"].map(|name| folder.path().join(name));
        let read = |path: &Path| fs::read(path).unwrap_or_default();
        for round in 0..100_u8 {
            let [output, beside] = [&model, &data].map(|path| {
                let output = Destination::among(&mut Files::default(), path, true).unwrap().create().unwrap();
                output.write_at(0, &[round]).unwrap();
                output
            });
            std::thread::scope(|scope| {
                let publishing = scope.spawn(|| output.continued(1, beside).take_name(false, Some("both")));
                let mut is_over = false;
                while !is_over {
                    is_over = publishing.is_finished();
                    // An interrupt takes this lock before it looks at the files.
                    let _temporaries = temporaries::lock();
                    assert_eq!(read(&model), read(&data));
                }
            });
            assert_eq!((read(&model), read(&data)), (vec![round], vec![round]));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn data_of_a_model_that_cannot_have_its_name_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let [model, data] = ["m.onnx", "m.onnx.data"].map(|name| folder.path().join(name));
        let [output, beside] = [&model, &data].map(|path| Destination::new(path, &[]).unwrap().create().unwrap());
        fs::write(&model, "mine").unwrap();
        let error = output.continued(1, beside).take_name(true, Some("both")).unwrap_err();
        assert!(error.kind() == ErrorKind::Exists && error.to_string().contains("m.onnx: "), "{error}");
        assert_eq!(fs::read(&model).unwrap(), b"mine");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_output_that_is_flushed_early_holds_what_was_written_in_any_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let output = Destination::new(&path, &[]).unwrap().create().unwrap().flushed_early(true);
        let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        output.reserve(bytes.len() as u64).unwrap();
        for piece in [900_000..1_200_000, 0..10, 10..5000, 5000..900_000] {
            output.write_at(piece.start as u64, &bytes[piece]).unwrap();
        }
        assert_eq!(*output.read_again().unwrap(), bytes[..]);
        output.take_name(true, None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn an_output_that_another_run_has_made_meanwhile_is_left_alone_and_named_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let output = Destination::new(&path, &[]).unwrap().create().unwrap();
        output.write_at(0, b"late").unwrap();
        fs::write(&path, "mine").unwrap();
        let error = output.publish().unwrap_err();
        assert!(
            error.kind() == ErrorKind::Exists && error.to_string().ends_with("out: the output exists already"),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }
}
