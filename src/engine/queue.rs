//! Writing of results. One thread writes at a time, because file systems serialize writes to a file. A thread that finds
//! another one writing leaves its results to it, and converts the next piece meanwhile. Pieces that are only copied do
//! not come here: a thread writes each from where it is mapped.

use crate::error::{Error, Kind, Opt, Result};
use crate::io::sink::Sink;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum number of results that wait. If writing is slower than converting, more would not help.
const WAITING: usize = 2;

/// Results of a piece.
#[derive(Default)]
pub(super) struct PieceResults {
    /// Bytes of all runs, and possibly more.
    pub(super) bytes: Vec<u8>,
    /// Number of bytes of all runs.
    filled: usize,
    /// Offset in the output and length of each run of bytes.
    runs: Vec<(u64, usize)>,
}

impl PieceResults {
    /// Adds bytes for this range of the output; returns their place.
    pub(super) fn reserve(&mut self, target: &Range<u64>) -> Result<Range<usize>> {
        let len = (target.end - target.start) as usize;
        let place = self.filled..self.filled + len;
        match self.runs.last_mut() {
            Some((offset, before)) if *offset + *before as u64 == target.start => *before += len,
            _ => self.runs.push((target.start, len)),
        }
        if let Some(more) = place.end.checked_sub(self.bytes.len()) {
            self.bytes.try_reserve(more).map_err(|_| {
                Error::new("out of memory")
                    .of(Kind::System)
                    .with(Opt::THREADS, "use fewer threads with {}")
                    .remedy("end programs that take much memory")
            })?;
            self.bytes.resize(place.end, 0);
        }
        self.filled = place.end;
        Ok(place)
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.filled = 0;
    }

    /// Calls a function with the offset and the bytes of each run.
    fn each_run(&self, mut run: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut filled = 0;
        self.runs.iter().try_for_each(|(offset, len)| {
            let bytes = filled..filled + len;
            filled += len;
            run(*offset, &self.bytes[bytes])
        })
    }
}

/// Results that wait for the thread that writes.
pub(super) struct WriteQueue<'a> {
    pub(super) output: &'a dyn Sink,
    state: Mutex<QueueState>,
    /// Signals that fewer results wait, or that no thread writes any longer.
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    is_writing: bool,
    waiting: VecDeque<PieceResults>,
    /// Written results, for reuse.
    spare: Vec<PieceResults>,
}

impl<'a> WriteQueue<'a> {
    pub(super) fn new(output: &'a dyn Sink) -> Self {
        Self { output, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Writes results, or leaves that to the thread that is writing. Returns empty results for the next piece.
    ///
    /// # Errors
    /// When these results, or others that wait, cannot be written.
    pub(super) fn write(&self, results: PieceResults) -> Result<PieceResults> {
        results.each_run(|offset, bytes| self.output.prepare(offset, bytes))?;
        let full = |state: &mut QueueState| state.is_writing && state.waiting.len() == WAITING;
        let state = self.changed.wait_while(self.state(), full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_writing {
            state.waiting.push_back(results);
            return Ok(state.spare.pop().unwrap_or_default());
        }
        state.is_writing = true;
        drop(state);
        let writing = Writing(self);
        let mut next = Some(results);
        while let Some(mut results) = next {
            results.each_run(|offset, bytes| self.output.write_at(offset, bytes))?;
            results.clear();
            let mut state = self.state();
            state.spare.push(results);
            next = state.waiting.pop_front();
            state.is_writing = next.is_some();
            self.changed.notify_all();
        }
        // From then on, another thread may be the one that writes.
        std::mem::forget(writing);
        Ok(self.state().spare.pop().unwrap_or_default())
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of a thread that writes. If it fails or panics, others do not wait for it.
struct Writing<'a>(&'a WriteQueue<'a>);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.state().is_writing = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// Fails when two threads write at a time, and at one offset.
    struct Exclusive {
        is_busy: AtomicBool,
        bytes: Mutex<Vec<u8>>,
        fails_at: u64,
    }

    impl Sink for Exclusive {
        fn path(&self) -> &Path {
            Path::new("out")
        }

        fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
            assert!(!self.is_busy.swap(true, Ordering::SeqCst), "two threads write");
            self.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            std::thread::yield_now();
            self.is_busy.store(false, Ordering::SeqCst);
            if offset == self.fails_at { Err(Error::new("full")) } else { Ok(()) }
        }
    }

    /// Returns the bytes, and the number of threads that failed.
    fn written(fails_at: u64) -> (Vec<u8>, usize) {
        const PIECES: usize = 500;
        let sink = Exclusive { is_busy: AtomicBool::new(false), bytes: Mutex::new(vec![0; 4 * PIECES]), fails_at };
        let (queue, next, failed) = (WriteQueue::new(&sink), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    let mut results = PieceResults::default();
                    loop {
                        let at = next.fetch_add(1, Ordering::SeqCst);
                        if at >= PIECES {
                            break;
                        }
                        // Three runs, of which the last has two parts.
                        for (target, byte) in [(3 * at, 1), (3 * PIECES + at, 2), (3 * at + 1, 3), (3 * at + 2, 4)] {
                            let place = results.reserve(&(target as u64..target as u64 + 1)).unwrap();
                            results.bytes[place].fill(byte);
                        }
                        let Ok(empty) = queue.write(std::mem::take(&mut results)) else {
                            failed.fetch_add(1, Ordering::SeqCst);
                            break;
                        };
                        results = empty;
                    }
                });
            }
        });
        assert!(queue.state().waiting.is_empty() && !queue.state().is_writing);
        (sink.bytes.into_inner().unwrap(), failed.into_inner())
    }

    #[test]
    fn every_result_is_written_by_one_thread_at_a_time() {
        let (bytes, failed) = written(u64::MAX);
        let (long, short) = bytes.split_at(1500);
        assert!(long.chunks(3).all(|run| run == [1, 3, 4]) && short.iter().all(|byte| *byte == 2));
        assert_eq!(failed, 0);
    }

    #[test]
    fn results_without_memory_are_an_error_of_their_kind() {
        let error = PieceResults::default().reserve(&(0..1 << 62)).unwrap_err();
        assert!(error.kind() == crate::error::ErrorKind::Io && error.to_string() == "out of memory");
    }

    #[test]
    fn a_failure_reaches_one_thread_and_the_others_go_on() {
        let (bytes, failed) = written(300);
        assert_eq!(failed, 1);
        let missing: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == 0).collect();
        assert_eq!(missing, [301, 302, 1600], "the other runs of that piece");
    }
}
