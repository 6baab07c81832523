//! Conversion of a piece by a thread.

use super::findings::{Detail, Outcome, comparer, has_checksum};
use super::pieces::{Item, PIECE, PiecePart, bytes};
use super::queue::{PieceResults, WriteQueue};
use crate::container::sum_of;
use crate::conversion::{Conversion, run_kernel};
use crate::error::{Error, Result};
use crate::kernel::{Condition, Counts, First, Firsts, Kernel, Loss};
use crate::measure::accuracy;
use crate::plan::{FewRows, Operation, Plan, Quantization, Step};
use crate::progress::Progress;
use crate::quant::{Decoder, EncodeTally};
use crate::read::{MappedBytes, Share, read_values};
use crc32fast::Hasher;
use std::ops::Range;

/// The state of a thread.
pub(super) struct Worker<'a> {
    plan: &'a Plan<'a>,
    progress: &'a dyn Progress,
    detail: Detail,
    queue: &'a WriteQueue<'a>,
    results: PieceResults,
    /// Computed values to quantize.
    pub(super) values: Vec<u8>,
    /// Buffers for comparing merged values.
    few: FewRows,
    /// Bytes of a file that have been prefetched.
    ahead: Option<MappedBytes<'a>>,
    /// First elements that this thread has found in a step: its later pieces come after them.
    known: (usize, Firsts),
    /// Largest error that this thread has found in a step, and its position.
    largest_error: (usize, f64, Option<u64>),
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        plan: &'a Plan<'a>,
        queue: &'a WriteQueue<'a>,
        detail: Detail,
        progress: &'a dyn Progress,
    ) -> Self {
        let known = (0, Firsts::default());
        Self {
            plan,
            progress,
            detail,
            queue,
            results: PieceResults::default(),
            values: Vec::new(),
            few: FewRows::default(),
            ahead: None,
            known,
            largest_error: (0, 0.0, None),
        }
    }

    /// Converts the parts of a piece and writes adjacent bytes with one call.
    pub(super) fn assemble(&mut self, parts: &[PiecePart]) -> Result<Vec<(usize, Outcome)>> {
        let mut all = Vec::with_capacity(parts.len());
        let mut read = 0;
        self.results.clear();
        for part in parts {
            let is_alone = parts.len() == 1;
            let at = match part.item {
                Item::Literal(at) => {
                    let bytes = &self.plan.literals[at].1[part.start as usize..part.end as usize];
                    self.emit(&part.target(self.plan), bytes, is_alone)?;
                    continue;
                }
                Item::Entries(at) => {
                    let mut entries = std::mem::take(&mut self.values);
                    entries.clear();
                    self.plan.write_entries(at, &mut entries)?;
                    self.emit(&part.target(self.plan), &entries, is_alone)?;
                    self.values = entries;
                    continue;
                }
                Item::Copy(at) => {
                    read += self.copy(at, part, is_alone)?;
                    continue;
                }
                Item::Step(at) => at,
            };
            let step = &self.plan.steps[at];
            let (found, bytes) = match &step.how {
                Operation::Convert(conversion) => self.convert(at, part, conversion, is_alone),
                Operation::Decode(decoder) => self.decode(step, part, decoder),
                Operation::Encode(weight) => match weight.cast() {
                    Some(conversion) => self.cast(at, part, weight, conversion),
                    None => self.encode(at, part, weight),
                },
            }?;
            read += bytes;
            all.push((at, found));
        }
        self.results = self.queue.write(std::mem::take(&mut self.results))?;
        self.progress.advance(read);
        Ok(all)
    }

    /// Adds room for this range of the output to the results; returns its place.
    fn reserve(&mut self, target: &Range<u64>) -> Result<Range<usize>> {
        self.results.reserve(target).map_err(|error| error.in_file(self.queue.output.path()))
    }

    /// Adds bytes to the results. If they are the whole piece, writes them from where they are instead.
    fn emit(&mut self, target: &Range<u64>, bytes: &[u8], is_alone: bool) -> Result<()> {
        if is_alone {
            return self.queue.output.put(target.start, bytes);
        }
        let place = self.reserve(target)?;
        self.results.bytes[place].copy_from_slice(bytes);
        Ok(())
    }

    /// Copies some bytes of an input; returns their number.
    fn copy(&mut self, at: usize, part: &PiecePart, is_alone: bool) -> Result<u64> {
        let mapped = self.plan.copies[at].1.clone();
        let in_source = |error: Error| error.in_file(mapped.file.path());
        let source = self.source(&mapped, part.start as usize..part.end as usize, !is_alone).map_err(in_source)?;
        // The system may read the source here, which may have been truncated.
        self.emit(&part.target(self.plan), source, is_alone).map_err(in_source)?;
        Ok(source.len() as u64)
    }

    /// Converts some elements; returns the findings, and the number of bytes read.
    fn convert(
        &mut self,
        at: usize,
        part: &PiecePart,
        conversion: &Conversion,
        is_alone: bool,
    ) -> Result<(Outcome, u64)> {
        let (step, target) = (&self.plan.steps[at], part.target(self.plan));
        let (kernel, mapped) = (divisible(conversion), step.sources[0].mapped());
        let place = |element| bytes(conversion.from, element) as usize;
        let (range, mut joined) = (place(part.start)..place(part.end), std::mem::take(&mut self.values));
        let source = match &mapped {
            Some(mapped) => self.source(mapped, range, !is_alone),
            None => step.sources[0].read(range, &mut joined),
        };
        let source = source.map_err(|error| self.blame(at, part, error))?;
        // Written directly from the page cache of one file to the page cache of the other.
        let is_plain = kernel.is_plain_copy() && is_alone;
        let place = if is_plain { 0..0 } else { self.reserve(&target)? };
        let mut found = Outcome::default();
        if !is_plain {
            let (elements, count) = (step.sources[0].named(), part.count());
            let result = &mut self.results.bytes[place.clone()];
            let counts = run_kernel(kernel, conversion, elements, part.start, source, result, count);
            let counts = counts.map_err(|error| self.blame(at, part, error))?;
            found = self.findings(at, conversion, counts, part.start, source, count);
        }
        let result = if is_plain { source } else { &self.results.bytes[place] };
        if let Some(comparer) = comparer(step, self.detail) {
            found.tally = Some(Box::new(comparer.tally(part.start, [source, result], part.count())));
        }
        if has_checksum(step) {
            found.sums = [sum_of(source), sum_of(result)].into();
        }
        if is_plain {
            // Here the system reads the source, which may have been truncated.
            let in_source = |error: Error| match &mapped {
                Some(mapped) => error.in_file(mapped.file.path()),
                None => error,
            };
            self.queue.output.put(target.start, source).map_err(in_source)?;
        }
        let read = source.len() as u64;
        self.values = joined;
        Ok((found, read))
    }

    /// Returns the counts of converted elements, and the first elements that met a watched condition.
    fn findings(
        &mut self,
        at: usize,
        conversion: &Conversion,
        counts: Counts,
        start: u64,
        source: &[u8],
        count: usize,
    ) -> Outcome {
        if self.detail == Detail::Nothing {
            return Outcome::default();
        }
        if self.known.0 != at {
            self.known = (at, Firsts::default());
        }
        let kernel = conversion.kernel().expect("numbers to numbers");
        let firsts = conversion.firsts(kernel, &counts, &self.known.1, start, source, count);
        self.known.1.merge(firsts.clone());
        Outcome { counts, firsts, ..Outcome::default() }
    }

    /// Returns the error of the tensor that fails, among the tensors of a part.
    fn blame(&self, at: usize, part: &PiecePart, error: Error) -> Error {
        let mut start = 0;
        for step in &self.plan.steps[at..] {
            let end = start + step.source().count;
            let elements = part.start.max(start)..part.end.min(end);
            if start >= part.end {
                break;
            }
            if !elements.is_empty()
                && let Operation::Convert(conversion) = &step.how
            {
                let kernel = divisible(conversion);
                let elements = elements.start - start..elements.end - start;
                let place = |form, element| bytes(form, element) as usize;
                let range = place(conversion.from, elements.start)..place(conversion.from, elements.end);
                let mut joined = Vec::new();
                let source = step.sources[0].read(range, &mut joined);
                let count = elements.end - elements.start;
                let mut result = vec![0; place(conversion.to, count)];
                let failed = source.and_then(|source| {
                    let named = step.sources[0].named();
                    run_kernel(kernel, conversion, named, elements.start, source, &mut result, count as usize)
                });
                if let Err(error) = failed {
                    return step.error(error);
                }
            }
            start = end;
        }
        self.plan.steps[at].error(error)
    }

    /// Decodes some values of a quantized weight; returns the same as [`Self::convert`].
    fn decode(&mut self, step: &Step, part: &PiecePart, decoder: &Decoder) -> Result<(Outcome, u64)> {
        let place = self.reserve(&part.target(self.plan))?;
        let result = &mut self.results.bytes[place];
        let parts = read_values(decoder, &step.sources, part.rows());
        let tally = parts.and_then(|parts| decoder.decode_values(part.rows(), &parts, result));
        let tally = tally.map_err(|error| step.error(error))?;
        let mut found = Outcome::default();
        found.counts[Loss::Flushed] = tally.flushed;
        for (condition, seen) in [
            (Condition::InputNan, tally.input_nan),
            (Condition::InputInfinite, tally.input_infinite),
            (Condition::Lost(Loss::Nan), tally.nan),
            (Condition::Lost(Loss::Infinite), tally.infinite),
            (Condition::Lost(Loss::Inexact), tally.inexact),
        ] {
            found.counts[condition] = seen.count;
            if let Some(at) = seen.first {
                found.firsts.add(condition, First { at, values: [String::new(), String::new()] });
            }
        }
        if has_checksum(step) {
            let mut sums = vec![Hasher::new(); step.sources.len()];
            sums.push(sum_of(result));
            found.sums = sums.into();
        }
        let (count, bytes) = (u128::from(step.count().max(1)), u128::from(step.bytes_in()));
        let read = |values: u64| (bytes * u128::from(values) / count) as u64;
        Ok((found, read(part.end) - read(part.start)))
    }

    /// Casts some rows of a weight, which come from several tensors or from codes; returns the same as
    /// [`Self::convert`].
    fn cast(
        &mut self,
        at: usize,
        part: &PiecePart,
        weight: &Quantization,
        conversion: &Conversion,
    ) -> Result<(Outcome, u64)> {
        let (step, columns) = (&self.plan.steps[at], weight.rows.encoder.columns());
        let kernel = conversion.kernel().expect("numbers to numbers");
        let row = bytes(conversion.to, columns);
        let offset = step.target().start;
        let place = self.reserve(&(offset + part.start * row..offset + part.end * row))?;
        let mut values = std::mem::take(&mut self.values);
        let source = weight.rows.read(part.rows(), &mut values)?;
        let (start, count) = (part.start * columns, part.count() * columns as usize);
        let result = &mut self.results.bytes[place.clone()];
        let mut counts = Counts::default();
        let rounded = weight.rounded(start, source, &mut counts);
        let rounded = rounded.as_deref().unwrap_or(source);
        let cast = run_kernel(kernel, conversion, weight.elements(), start, rounded, result, count);
        counts += cast.map_err(|error| step.error(error))?;
        let mut found = self.findings(at, conversion, counts, start, source, count);
        if let Some(comparer) = comparer(step, self.detail) {
            found.tally = Some(Box::new(comparer.tally(start, [source, &self.results.bytes[place.clone()]], count)));
        }
        if self.detail != Detail::Nothing {
            let outputs = &[&mut self.results.bytes[place]][..];
            found.survival = weight.survival(&part.rows(), source, outputs, &mut self.few)?.map(Box::new);
        }
        self.values = values;
        Ok((found, weight.rows.bytes(&part.rows())))
    }

    /// Quantizes some rows of a weight; returns the same as [`Self::convert`].
    fn encode(&mut self, at: usize, part: &PiecePart, weight: &Quantization) -> Result<(Outcome, u64)> {
        let step = &self.plan.steps[at];
        let encoder = &weight.rows.encoder;
        let ranges = encoder.part_ranges(part.rows());
        let mut places = Vec::with_capacity(ranges.len());
        for (range, result) in ranges.into_iter().zip(step.results.iter()) {
            let start = result.range.start;
            places.push(self.reserve(&(start + range.start..start + range.end))?);
        }
        // The places follow each other.
        let first = places.first().map_or(0, |place| place.start);
        let mut outputs = divided(&mut self.results.bytes[first..], places.iter().map(Range::len));
        let mut tally = EncodeTally::default();
        tally.skips_errors = self.detail == Detail::Nothing;
        // Finding the position of an error takes time, and the position of a smaller one does not matter.
        if self.largest_error.0 == at {
            (_, tally.max_error, tally.max_error_at) = self.largest_error;
        }
        weight.encode(part.rows(), &mut self.values, &mut outputs, &mut tally)?;
        self.largest_error = (at, tally.max_error, tally.max_error_at);
        let read = weight.rows.bytes(&part.rows());
        let survival = match self.detail {
            Detail::Nothing => None,
            _ => weight.survival(&part.rows(), &self.values, &outputs, &mut self.few)?.map(Box::new),
        };
        let found = Outcome { survival, ..Outcome::of_codes(tally) };
        Ok((found, if weight.has_first_pass() { read / 2 } else { read }))
    }

    /// Returns some bytes of a source. Tiny tensors are adjacent there too, so the bytes that follow are prefetched
    /// with them.
    fn source(&mut self, mapped: &MappedBytes<'a>, range: Range<usize>, are_tiny: bool) -> Result<&'a [u8]> {
        let range = mapped.range.start + range.start..mapped.range.start + range.end;
        let contains = |ahead: &MappedBytes| {
            std::ptr::eq(ahead.file, mapped.file) && ahead.range.start <= range.start && range.end <= ahead.range.end
        };
        if !self.ahead.as_ref().is_some_and(contains) {
            let len = if are_tiny { range.len().max(PIECE as usize) } else { range.len() };
            let ahead = range.start..mapped.file.len().min(range.start + len);
            mapped.file.prefetch(ahead.clone())?;
            self.ahead = Some(MappedBytes { range: ahead, ..mapped.clone() });
        }
        Ok(&mapped.file[range])
    }

    /// Converts a tensor that can only be read in sequence.
    pub(super) fn stream(&mut self, at: usize, check: &dyn Fn() -> Result<()>) -> Result<(usize, Outcome)> {
        let step = &self.plan.steps[at];
        let (source, conversion) = (&step.sources[0], step.conversion().expect("rows can be decoded alone"));
        let mut offset = step.target().start;
        let mut hasher = Hasher::new();
        let mut share = Share::new(source.stored_len(), source.tensor.count);
        let (comparer, mut done) = (comparer(step, self.detail), 0);
        let mut tally = comparer.as_ref().map(|_| Box::<accuracy::AccuracyTally>::default());
        let has_crc = step.results[0].crc().is_some();
        let mut sink = |source: &[u8], bytes: &[u8], elements: u64| {
            if let (Some(comparer), Some(tally)) = (&comparer, &mut tally) {
                tally.append(&comparer.tally(done, [source, bytes], (elements - done) as usize));
            }
            done = elements;
            check()?;
            self.queue.output.put(offset, bytes)?;
            offset += bytes.len() as u64;
            if has_crc {
                hasher.update(bytes);
            }
            self.progress.advance(share.up_to(elements));
            Ok(())
        };
        let reader = source.open();
        let found = reader.and_then(|reader| conversion.run(source.named(), reader, &mut sink));
        let found = found.map_err(|error| step.error(error))?;
        let sums = [Hasher::new(), hasher].into();
        Ok((at, Outcome { counts: found.counts, firsts: found.firsts, tally, encoded: None, survival: None, sums }))
    }
}

/// Returns the kernel of a conversion of which any part can be made independently.
fn divisible(conversion: &Conversion) -> &Kernel {
    conversion.kernel().expect("other tensors are streamed")
}

/// Divides the beginning of a buffer into parts of these lengths.
pub(super) fn divided(buffer: &mut [u8], lengths: impl Iterator<Item = usize>) -> Vec<&mut [u8]> {
    let mut rest = buffer;
    let split = |len: usize| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(len);
        rest = others;
        part
    };
    lengths.map(split).collect()
}
