//! Tensors with the same number of elements, read side by side.

use super::{LogicalTensor, Share};
use crate::container::sum_of;
use crate::error::Result;
use crate::progress::Reading;
use crate::threads::in_order;
use crc32fast::Hasher;
use std::ops::{ControlFlow, Range};

/// Tensors that are read side by side: by several threads if all are divisible or decoded, otherwise piece by piece.
pub(crate) struct Zip<'a, const N: usize> {
    pub sources: [LogicalTensor<'a>; N],
    /// Elements of each.
    pub count: u64,
    reading: Reading<'a>,
    /// Progress reported for each. A second reading of the tensors is not reported again.
    shares: [Share; N],
}

/// The same elements of each tensor, counted in the order of reading.
pub(crate) struct Piece<'a, const N: usize> {
    /// Index of the first of these elements.
    pub start: u64,
    pub count: usize,
    pub bytes: [&'a [u8]; N],
}

impl<'a, const N: usize> Piece<'a, N> {
    /// Divides the piece into blocks of at most `most` elements, a number that makes whole bytes.
    pub(crate) fn blocks<'z>(
        &self,
        zip: &'z [LogicalTensor<'a>; N],
        most: usize,
    ) -> impl Iterator<Item = Piece<'a, N>> + use<'a, 'z, N> {
        let Self { start: first, count: all, bytes } = *self;
        (0..all).step_by(most).map(move |start| {
            let count = most.min(all - start);
            let part = |at: usize| {
                let place = |element| zip[at].bytes(element as u64);
                &bytes[at][place(start)..place(start + count)]
            };
            Piece { start: first + start as u64, count, bytes: std::array::from_fn(part) }
        })
    }
}

impl<'a, const N: usize> Zip<'a, N> {
    /// Creates a reader of tensors with `count` elements each, as in [`LogicalTensor::elements`].
    pub(crate) fn new(sources: [LogicalTensor<'a>; N], count: u64, reading: Reading<'a>) -> Self {
        let shares = sources.each_ref().map(|source| Share::new(source.stored_len(), count));
        Self { sources, count, reading, shares }
    }

    pub(crate) fn advance(&mut self, elements: u64) {
        self.reading.progress.advance(self.shares.iter_mut().map(|share| share.up_to(elements)).sum());
    }

    /// Passes pieces of `piece` elements (of quantized weights: about `piece`) to `look`, with a state for each thread,
    /// and its results to `merge`, in the order of the elements, until `merge` breaks. Returns the states. The error is
    /// the first one, regardless of the number of threads.
    pub(crate) fn read<S: Send, T: Send>(
        &mut self,
        piece: u64,
        state: impl Fn() -> S + Sync,
        look: impl Fn(&mut S, &Piece<N>) -> Result<T> + Sync,
        merge: impl FnMut(T) -> ControlFlow<()> + Send,
    ) -> Result<Vec<S>> {
        let weights = self.sources.iter().filter_map(LogicalTensor::weight);
        let piece = weights.fold(piece, |piece, weight| weight.decoder.piece(piece));
        let (count, reading) = (self.count, self.reading);
        let look = |state: &mut S, piece: &Piece<N>| {
            reading.check_cancelled()?;
            look(state, piece)
        };
        let ranges = (0..count).step_by(piece as usize).map(|start| start..count.min(start + piece));
        if self.sources.iter().all(LogicalTensor::is_divisible) {
            let threads = (reading.threads as u64).min(count.div_ceil(piece));
            self.read_in_parallel(threads, ranges, state, look, merge)
        } else {
            let mut state = state();
            self.read_in_turn(ranges, |piece| look(&mut state, piece), merge)?;
            Ok(vec![state])
        }
    }

    fn read_in_parallel<S: Send, T: Send>(
        &mut self,
        threads: u64,
        ranges: impl Iterator<Item = Range<u64>> + Send,
        state: impl Fn() -> S + Sync,
        look: impl Fn(&mut S, &Piece<N>) -> Result<T> + Sync,
        mut merge: impl FnMut(T) -> ControlFlow<()> + Send,
    ) -> Result<Vec<S>> {
        let sources = self.sources;
        let state = || (state(), [const { Vec::new() }; N]);
        let read = |(state, buffers): &mut (S, [Vec<u8>; N]), Range { start, end }: Range<u64>| {
            let mut bytes: [&[u8]; N] = [&[]; N];
            let mut sums = [const { None }; N];
            for (at, (source, buffer)) in sources.iter().zip(buffers).enumerate() {
                bytes[at] = match source {
                    LogicalTensor::Weight(weight) => weight.decode(start..end, buffer)?,
                    LogicalTensor::Stored(stored) => {
                        let range = stored.bytes(start)..stored.bytes(end);
                        stored.read(range, buffer).map_err(|error| stored.error(error))?
                    }
                };
                sums[at] = source.checksum().map(|_| sum_of(bytes[at]));
            }
            let found = look(state, &Piece { start, count: (end - start) as usize, bytes })?;
            Ok((end, sums, found))
        };
        let mut whole = [(); N].map(|()| Hasher::new());
        let mut is_over = false;
        let states = in_order(threads, ranges, state, read, |(end, sums, found)| {
            self.advance(end);
            for (whole, sum) in whole.iter_mut().zip(&sums) {
                if let Some(sum) = sum {
                    whole.combine(sum);
                }
            }
            let flow = merge(found);
            is_over = flow.is_break();
            flow
        })?;
        if !is_over {
            for (source, sum) in sources.iter().zip(&whole) {
                source
                    .checksum()
                    .map_or(Ok(()), |checksum| checksum.check(sum))
                    .map_err(|error| source.error(error))?;
            }
        }
        Ok(states.into_iter().map(|(state, _)| state).collect())
    }

    fn read_in_turn<T>(
        &mut self,
        ranges: impl Iterator<Item = Range<u64>>,
        mut look: impl FnMut(&Piece<N>) -> Result<T>,
        mut merge: impl FnMut(T) -> ControlFlow<()>,
    ) -> Result<()> {
        let sources = self.sources;
        let mut readers = Vec::with_capacity(N);
        for source in &sources {
            readers.push(match source {
                LogicalTensor::Stored(stored) => Some(stored.open()?),
                LogicalTensor::Weight(_) => None,
            });
        }
        let mut buffers = [const { Vec::new() }; N];
        for Range { start, end } in ranges {
            let mut bytes: [&[u8]; N] = [&[]; N];
            for (at, ((source, reader), buffer)) in sources.iter().zip(&mut readers).zip(&mut buffers).enumerate() {
                bytes[at] = match (source, reader) {
                    (LogicalTensor::Stored(stored), Some(reader)) => {
                        buffer.resize(stored.bytes(end - start), 0);
                        reader.fill(buffer).map_err(|error| stored.error(error))?;
                        buffer
                    }
                    (LogicalTensor::Weight(weight), _) => weight.decode(start..end, buffer)?,
                    (LogicalTensor::Stored(_), None) => unreachable!("it was opened"),
                };
            }
            let found = look(&Piece { start, count: (end - start) as usize, bytes })?;
            self.advance(end);
            if merge(found).is_break() {
                return Ok(());
            }
        }
        let mut ends = sources.iter().zip(readers).filter_map(|(source, reader)| Some((source, reader?)));
        ends.try_for_each(|(source, reader)| reader.finish().map_err(|error| source.error(error)))
    }
}
