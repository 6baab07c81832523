//! Two tensors read side by side, in pieces: by several threads where both are mapped and lie in the same order, otherwise
//! one piece after the other.

use super::{Options, Side};
use crate::container::{Checksum, Data, Reader, indices, sum_of};
use crate::error::{Error, Result};
use crate::figures::BLOCK;
use crate::io::map::MappedFile;
use crate::plan::Share;
use crate::progress::Progress;
use crate::threads::on_threads;
use crc32fast::Hasher;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Two tensors of one shape.
pub(super) struct Pair<'a> {
    pub(super) sides: [Side<'a>; 2],
    threads: u64,
    told: Told<'a>,
}

/// Elements of both, of which `start` is the first; counted in the order of the files where that is the same, else in that
/// of rows.
pub(super) struct Piece<'a> {
    pub(super) start: u64,
    pub(super) count: usize,
    pub(super) bytes: [&'a [u8]; 2],
}

impl<'a> Piece<'a> {
    /// Parts of so many elements as kernels and figures take at a time.
    pub(super) fn blocks(&self, sides: &[Side; 2]) -> impl Iterator<Item = Piece<'a>> {
        (0..self.count).step_by(BLOCK).map(|start| {
            let count = BLOCK.min(self.count - start);
            let part = |at: usize| {
                let place = |element| sides[at].bytes(element as u64);
                &self.bytes[at][place(start)..place(start + count)]
            };
            Piece { start: self.start + start as u64, count, bytes: [part(0), part(1)] }
        })
    }
}

/// How far the progress bar is: what is read a second time is not told again.
struct Told<'a> {
    progress: &'a dyn Progress,
    shares: [Share; 2],
    elements: u64,
}

impl Told<'_> {
    fn up_to(&mut self, elements: u64) {
        self.elements = self.elements.max(elements);
        let bytes = self.shares.each_mut().map(|share| share.up_to(self.elements));
        self.progress.advance(bytes.iter().sum());
    }
}

impl<'a> Pair<'a> {
    pub(super) fn new(sides: [Side<'a>; 2], options: &Options<'a>) -> Self {
        let shares = sides.each_ref().map(|side| Share::new(side.tensor));
        let told = Told { progress: options.progress, shares, elements: 0 };
        Self { sides, threads: options.threads as u64, told }
    }

    /// Elements of each.
    pub(super) fn count(&self) -> u64 {
        self.sides[0].tensor.count
    }

    /// The indices of an element.
    pub(super) fn indices(&self, element: u64) -> Vec<u64> {
        indices(element, &self.sides[0].tensor.shape, self.sides[0].fortran_order())
    }

    /// Tells that so many elements are compared.
    pub(super) fn tell(&mut self, elements: u64) {
        self.told.up_to(elements);
    }

    /// Both from the first element on.
    pub(super) fn readers(&self) -> Result<[Reader<'a>; 2]> {
        let open = |side: &Side<'a>| {
            let reader = Reader::open(side.tensor, &side.input.files, side.is_transposed);
            reader.map_err(|error| side.error(error))
        };
        Ok([open(&self.sides[0])?, open(&self.sides[1])?])
    }

    /// Checks, after the last element, that the bytes were sound.
    pub(super) fn finish(&self, readers: [Reader; 2]) -> Result<()> {
        let mut readers = self.sides.iter().zip(readers);
        readers.try_for_each(|(side, reader)| reader.finish().map_err(|error| side.error(error)))
    }

    /// Hands pieces of so many elements to `look`, and what that gives to `merge`, in the order of the elements, until it
    /// wants no more.
    ///
    /// # Errors
    /// When `look` fails or a tensor is damaged; of several errors the first, whatever the number of threads.
    pub(super) fn read<T: Send>(
        &mut self,
        piece: u64,
        look: impl Fn(&Piece) -> Result<T> + Sync,
        merge: impl FnMut(T) -> bool + Send,
    ) -> Result<()> {
        let count = self.count();
        let ranges = (0..count).step_by(piece as usize).map(|start| start..count.min(start + piece));
        let mappings = self.sides.each_ref().map(Mapping::of);
        match mappings {
            [Some(a), Some(b)] => {
                self.threads = self.threads.min(count.div_ceil(piece));
                self.read_at_once(&[a, b], ranges, look, merge)
            }
            _ => self.read_in_turn(ranges, look, merge),
        }
    }

    fn read_in_turn<T>(
        &mut self,
        ranges: impl Iterator<Item = Range<u64>>,
        look: impl Fn(&Piece) -> Result<T>,
        mut merge: impl FnMut(T) -> bool,
    ) -> Result<()> {
        let mut readers = self.readers()?;
        let mut buffers = [Vec::new(), Vec::new()];
        for Range { start, end } in ranges {
            for ((side, reader), buffer) in self.sides.iter().zip(&mut readers).zip(&mut buffers) {
                buffer.resize(side.bytes(end - start), 0);
                reader.fill(buffer).map_err(|error| side.error(error))?;
            }
            let bytes = buffers.each_ref().map(Vec::as_slice);
            let found = look(&Piece { start, count: (end - start) as usize, bytes })?;
            self.tell(end);
            if !merge(found) {
                return Ok(());
            }
        }
        self.finish(readers)
    }

    fn read_at_once<T: Send>(
        &mut self,
        mappings: &[Mapping; 2],
        ranges: impl Iterator<Item = Range<u64>> + Send,
        look: impl Fn(&Piece) -> Result<T> + Sync,
        merge: impl FnMut(T) -> bool + Send,
    ) -> Result<()> {
        let Self { sides, threads, told } = self;
        let work = Mutex::new(Work {
            ranges,
            merge,
            told,
            next: 0,
            waiting: BTreeMap::new(),
            sums: [Hasher::new(), Hasher::new()],
            is_over: false,
            failure: None,
        });
        let read_piece = |range: &Range<u64>| -> Result<Seen<T>> {
            let mut bytes: [&[u8]; 2] = [&[], &[]];
            let mut sums = [None, None];
            for at in 0..2 {
                let (side, mapping) = (&sides[at], &mappings[at]);
                let source = mapping.start + side.bytes(range.start)..mapping.start + side.bytes(range.end);
                mapping.file.prefetch(source.clone()).map_err(|error| side.error(error))?;
                bytes[at] = &mapping.file[source];
                sums[at] = mapping.checksum.map(|_| sum_of(bytes[at]));
            }
            let found = look(&Piece { start: range.start, count: (range.end - range.start) as usize, bytes })?;
            Ok(Seen { found, sums })
        };
        let work_now = || work.lock().unwrap_or_else(PoisonError::into_inner);
        on_threads(*threads, || {
            loop {
                let Some(range) = work_now().take() else { return };
                let seen = read_piece(&range);
                work_now().put(&range, seen);
            }
        });
        let work = work.into_inner().unwrap_or_else(PoisonError::into_inner);
        work.failure.map_or(Ok(()), Err)?;
        if work.is_over {
            return Ok(());
        }
        let mut ends = sides.iter().zip(mappings).zip(&work.sums);
        ends.try_for_each(|((side, mapping), sum)| {
            mapping.checksum.map_or(Ok(()), |checksum| checksum.check(sum)).map_err(|error| side.error(error))
        })
    }
}

/// Where a tensor is that can be read in any order.
struct Mapping<'a> {
    file: &'a MappedFile,
    start: usize,
    checksum: Option<&'a Checksum>,
}

impl<'a> Mapping<'a> {
    fn of(side: &Side<'a>) -> Option<Self> {
        let Data::Mapped { file, range, checksum } = &side.tensor.data else { return None };
        (!side.is_transposed).then(|| Self {
            file: &side.input.files[*file],
            start: range.start,
            checksum: checksum.as_deref(),
        })
    }
}

/// What was found in a piece, and the sums of its bytes where they are to be checked.
struct Seen<T> {
    found: T,
    sums: [Option<Hasher>; 2],
}

/// What threads share: pieces to be read, and those that wait for one before them.
struct Work<'t, 'a, T, R, M> {
    ranges: R,
    merge: M,
    told: &'t mut Told<'a>,
    /// The first element that is not merged.
    next: u64,
    waiting: BTreeMap<u64, (u64, Result<Seen<T>>)>,
    /// Of the bytes that are merged.
    sums: [Hasher; 2],
    /// Whether no more is wanted.
    is_over: bool,
    failure: Option<Error>,
}

impl<T, R: Iterator<Item = Range<u64>>, M: FnMut(T) -> bool> Work<'_, '_, T, R, M> {
    fn take(&mut self) -> Option<Range<u64>> {
        if self.is_over { None } else { self.ranges.next() }
    }

    fn put(&mut self, range: &Range<u64>, seen: Result<Seen<T>>) {
        self.waiting.insert(range.start, (range.end, seen));
        while !self.is_over
            && let Some((end, seen)) = self.waiting.remove(&self.next)
        {
            self.next = end;
            self.told.up_to(end);
            match seen {
                Ok(seen) => {
                    for (sum, more) in self.sums.iter_mut().zip(seen.sums) {
                        if let Some(more) = more {
                            sum.combine(&more);
                        }
                    }
                    self.is_over = !(self.merge)(seen.found);
                }
                Err(error) => {
                    self.failure = Some(error);
                    self.is_over = true;
                }
            }
        }
    }
}
