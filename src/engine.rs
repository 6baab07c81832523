//! Runs a plan: threads take pieces of the output file from one counter, convert and write them at their place.
//!
//! The output is divided, not the tensors: a piece is about a MiB, of one large tensor or of many
//! small ones that lie side by side, and is written with one call. Its place is known before it is made, so
//! threads need no order among them, and the bytes are the same for any number of threads. Tensors whose elements
//! come one after the other (compressed ones, text) are a piece each.
//!
//! What was tried, as ratios of whole runs side by side (`benches/speed.py`, page cache warm, ext4):
//!
//! * The disk's room set aside for the output before the first write: 0.85 to 0.97 of the time without.
//! * `pread` into reused buffers in place of the mapping, pieces of 256 KiB to 4 MiB, pages released behind the cursor,
//!   prefetch by the processor: all within 0.9 to 1.1.
//! * `copy_file_range` for tensors that are copied, piece by piece: 1.1 to 1.2, more than the write out of the mapping.
//! * `MADV_HUGEPAGE` for the input: the system maps it by huge pages where the page cache has them, with or without.
//! * A disk of 200 MB a second, and a cold cache: the time of reading the input, with any number of threads.

use crate::container::sum_of;
use crate::conversion::run_kernel;
use crate::error::{Error, Result};
use crate::io::sink::Sink;
use crate::kernel::{Counts, Firsts};
use crate::measure::accuracy::{Comparer, Tally};
use crate::plan::{Plan, Step};
use crate::progress::Progress;
use crate::read::{Mapped, Share};
use crate::threads::in_order;
use crc32fast::Hasher;
use std::ops::{ControlFlow, Range};

pub use crate::measure::accuracy::Accuracy;

/// Bytes of input or output, whichever are more, that a thread takes at a time: enough to make a system call
/// for each of them cheap, few enough to stay in the second-level cache.
const PIECE: u64 = 1 << 20;

/// Elements per piece are a multiple of this, so that packed types start on whole bytes and kernel blocks.
const ALIGNMENT: u64 = 1024;

/// What became of a tensor.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What happened to its values.
    pub counts: Box<Counts>,
    /// The first of its elements that were NaN or infinite before, or met what the plan watches.
    pub firsts: Firsts,
    /// How far they are from what they were, if that was asked for, and it was converted from numbers to numbers.
    pub figures: Option<Box<Accuracy>>,
}

/// Converts everything and writes it to `output`; returns, in the order of the plan's steps, what became of each tensor.
/// With `figures`, every result is compared with its source while both are at hand.
///
/// # Errors
/// When the output cannot be written, a source is damaged or changes meanwhile, an element is malformed, or a value breaks a rule of the
/// cast. Of several such errors the first in the output is given, whatever the number of threads.
///
/// # Panics
/// When a thread of it has panicked.
pub fn run(
    plan: &Plan,
    output: &dyn Sink,
    threads: usize,
    figures: bool,
    progress: &dyn Progress,
) -> Result<Vec<Outcome>> {
    if !output.is_seekable() && plan.steps.iter().flat_map(|step| &step.results).any(|result| result.seal.is_some()) {
        return Err(Error::new("checksums stand before the data in this format, and a pipe takes bytes in order only")
            .in_file(output.path())
            .remedy("name a file with -o, or an output that ends in .safetensors"));
    }
    output.reserve(plan.len)?;
    let work_len = plan.len + plan.source_bytes();
    // Only a file takes its pieces in any order.
    let threads = if output.is_seekable() { threads as u64 } else { 1 }.min(work_len / PIECE + 1);
    let worker = || Worker {
        plan,
        output,
        progress,
        figures,
        buffer: Vec::new(),
        runs: Vec::new(),
        ahead: None,
        known: (0, Firsts::default()),
    };
    let work = |worker: &mut Worker, piece: Vec<Part>| match piece[..] {
        [Part { item: Item::Step(at), .. }] if plan.steps[at].direct().is_none() => Ok(vec![worker.stream(at)?]),
        _ => worker.assemble(&piece),
    };
    let mut found: Vec<Found> = plan.steps.iter().map(|_| Found::default()).collect();
    in_order(threads, Pieces::new(plan), worker, work, |piece| {
        piece.into_iter().for_each(|(at, next)| found[at].append(next));
        ControlFlow::Continue(())
    })?;
    for (step, found) in plan.steps.iter().zip(&found) {
        settle_checksums(step, &found.sums, output)?;
    }
    plan.check_unchanged()?;
    let outcomes = plan.steps.iter().zip(found).map(|(step, Found { counts, firsts, tally, .. })| {
        let figures = comparer(step, figures).map(|_| Box::new(tally.unwrap_or_default().figures()));
        Outcome { counts: counts.unwrap_or_default(), firsts, figures }
    });
    Ok(outcomes.collect())
}

/// What compares the results of a step with their sources, where there is something to compare.
fn comparer(step: &Step, is_wanted: bool) -> Option<Comparer> {
    let conversion = &step.conversion;
    if is_wanted && step.is_converted { Comparer::new(conversion.from, conversion.to) } else { None }
}

/// What lies in the output: a literal, or the results of a step.
#[derive(Clone, Copy)]
enum Item {
    Literal(usize),
    Step(usize),
}

impl Item {
    fn offset(self, plan: &Plan) -> u64 {
        match self {
            Self::Literal(at) => plan.literals[at].0,
            Self::Step(at) => plan.steps[at].target().start,
        }
    }

    /// Elements, of a literal its bytes.
    fn count(self, plan: &Plan) -> u64 {
        match self {
            Self::Literal(at) => plan.literals[at].1.len() as u64,
            Self::Step(at) => plan.steps[at].source().count,
        }
    }
}

/// Some elements of a step, or bytes of a literal.
#[derive(Clone, Copy)]
struct Part {
    item: Item,
    start: u64,
    end: u64,
}

impl Part {
    fn count(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// The bytes of its elements in the source.
    fn source(&self, step: &Step) -> Range<usize> {
        let at = |element| step.conversion.from.bytes(element).expect("the plan has counted all bytes") as usize;
        at(self.start)..at(self.end)
    }

    /// The bytes of its elements in the output.
    fn target(&self, plan: &Plan) -> Range<u64> {
        let offset = self.item.offset(plan);
        let at = |element| match self.item {
            Item::Literal(_) => offset + element,
            Item::Step(at) => {
                offset + plan.steps[at].conversion.to.bytes(element).expect("the plan has counted all bytes")
            }
        };
        at(self.start)..at(self.end)
    }
}

/// Divides the output into pieces, in the order of their places: each is parts that lie side by side.
struct Pieces<'a> {
    plan: &'a Plan<'a>,
    order: Vec<Item>,
    next: usize,
    element: u64,
}

impl<'a> Pieces<'a> {
    fn new(plan: &'a Plan<'a>) -> Self {
        let literals = (0..plan.literals.len()).map(Item::Literal);
        let mut order: Vec<Item> = literals.chain((0..plan.steps.len()).map(Item::Step)).collect();
        order.retain(|item| item.count(plan) > 0);
        order.sort_by_key(|item| item.offset(plan));
        Self { plan, order, next: 0, element: 0 }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Vec<Part>;

    fn next(&mut self) -> Option<Vec<Part>> {
        let mut parts = Vec::new();
        let mut room = PIECE;
        while let Some(&item) = self.order.get(self.next) {
            let count = item.count(self.plan);
            let left = count - self.element;
            // The wider side decides; an element of fewer than 8 bits may take a whole byte.
            let bits = match item {
                Item::Literal(_) => 8,
                Item::Step(at) => {
                    let step = &self.plan.steps[at];
                    if step.direct().is_none() {
                        if parts.is_empty() {
                            parts.push(Part { item, start: 0, end: count });
                            self.next += 1;
                        }
                        break;
                    }
                    let (from, to) = step.dtypes();
                    u64::from(from.bits().max(to.bits()).max(8))
                }
            };
            let fitting = room * 8 / bits / ALIGNMENT * ALIGNMENT;
            if left > fitting && fitting == 0 && !parts.is_empty() {
                break; // the piece is full
            }
            let count = left.min(fitting.max(ALIGNMENT));
            parts.push(Part { item, start: self.element, end: self.element + count });
            room = room.saturating_sub((count * bits).div_ceil(8));
            self.element += count;
            if count == left {
                self.next += 1;
                self.element = 0;
            }
            if room == 0 {
                break;
            }
        }
        (!parts.is_empty()).then_some(parts)
    }
}

/// What is known of the elements of a step that were converted.
#[derive(Default)]
struct Found {
    counts: Option<Box<Counts>>,
    firsts: Firsts,
    tally: Option<Box<Tally>>,
    /// The checksums of the bytes of its sources, then of its results; empty where none has one.
    sums: Vec<Hasher>,
}

impl Found {
    /// Takes what was found of the elements that follow.
    fn append(&mut self, next: Self) {
        if let Some(counts) = next.counts {
            **self.counts.get_or_insert_default() += *counts;
        }
        self.firsts.merge(next.firsts);
        if let Some(tally) = &next.tally {
            self.tally.get_or_insert_default().append(tally);
        }
        if self.sums.is_empty() {
            self.sums = next.sums;
        } else {
            self.sums.iter_mut().zip(&next.sums).for_each(|(sum, next)| sum.combine(next));
        }
    }
}

/// Whether a file holds a checksum of a source or a result.
fn has_checksum(step: &Step) -> bool {
    let mut mapped = step.sources.iter().filter_map(|source| source.mapped());
    mapped.any(|mapped| mapped.checksum.is_some()) || step.results.iter().any(|result| result.seal.is_some())
}

/// Compares the checksums of a step's sources with theirs, and writes those of its results.
fn settle_checksums(step: &Step, sums: &[Hasher], output: &dyn Sink) -> Result<()> {
    let empty = Hasher::new(); // a tensor without elements is in no piece
    let sum = |at: usize| sums.get(at).unwrap_or(&empty);
    for (at, source) in step.sources.iter().enumerate() {
        // A reader of the whole tensor has checked it.
        if let (Some(checksum), true) = (source.mapped().and_then(|mapped| mapped.checksum), step.direct().is_some()) {
            checksum.check(sum(at)).map_err(|error| step.error(error))?;
        }
    }
    for (at, result) in step.results.iter().enumerate() {
        let Some(seal) = &result.seal else { continue };
        let mut whole = seal.before.clone();
        whole.combine(sum(step.sources.len() + at));
        let bytes = whole.finalize().to_le_bytes();
        for offset in seal.offsets {
            output.write_at(offset, &bytes)?;
        }
    }
    Ok(())
}

/// A thread's state.
struct Worker<'a> {
    plan: &'a Plan<'a>,
    output: &'a dyn Sink,
    progress: &'a dyn Progress,
    /// Whether results are compared with their sources.
    figures: bool,
    buffer: Vec<u8>,
    /// What is in the buffer: where each run of bytes goes, and how long it is.
    runs: Vec<(u64, usize)>,
    /// Bytes of a file that are in memory.
    ahead: Option<Mapped<'a>>,
    /// The first elements that this thread has found in a step: what it is given later comes behind them.
    known: (usize, Firsts),
}

impl<'a> Worker<'a> {
    /// Converts the parts of a piece and writes what lies side by side with one call.
    fn assemble(&mut self, parts: &[Part]) -> Result<Vec<(usize, Found)>> {
        let mut all = Vec::new();
        let mut read = 0;
        self.runs.clear();
        for part in parts {
            let target = part.target(self.plan);
            let at = match part.item {
                Item::Literal(at) => {
                    let room = self.room(&target)?;
                    self.buffer[room]
                        .copy_from_slice(&self.plan.literals[at].1[part.start as usize..part.end as usize]);
                    continue;
                }
                Item::Step(at) => at,
            };
            let step = &self.plan.steps[at];
            let (kernel, mapped) = step.direct().expect("others are streamed");
            let source = self.source(&mapped, part.source(step), parts.len() > 1);
            let source = source.map_err(|error| step.error(error))?;
            read += source.len() as u64;
            let mut found = Found::default();
            // Straight from the page cache of one file to that of the other.
            let is_plain = kernel.is_plain_copy() && parts.len() == 1;
            let room = if is_plain { 0..0 } else { self.room(&target)? };
            if !is_plain {
                let result = &mut self.buffer[room.clone()];
                let counts = run_kernel(
                    kernel,
                    &step.conversion,
                    step.sources[0].named(),
                    part.start,
                    source,
                    result,
                    part.count(),
                )
                .map_err(|error| step.error(error))?;
                if self.known.0 != at {
                    self.known = (at, Firsts::default());
                }
                found.firsts = step.conversion.firsts(kernel, &counts, &self.known.1, part.start, source, part.count());
                self.known.1.merge(found.firsts.clone());
                found.counts = Some(Box::new(counts));
            }
            let result = if is_plain { source } else { &self.buffer[room] };
            if let Some(mut comparer) = comparer(step, self.figures) {
                found.tally = Some(Box::new(comparer.tally(part.start, source, result, part.count())));
            }
            if has_checksum(step) {
                found.sums = vec![sum_of(source), sum_of(result)];
            }
            if is_plain {
                // The system reads the source here: it may have been cut short.
                let in_source = |error: Error| error.in_file(mapped.file.path());
                self.output.write_at(target.start, source).map_err(in_source)?;
            }
            all.push((at, found));
        }
        let mut filled = 0;
        for &(offset, len) in &self.runs {
            self.output.write_at(offset, &self.buffer[filled..filled + len])?;
            filled += len;
        }
        self.progress.advance(read);
        Ok(all)
    }

    /// Some bytes of a source. Of tiny tensors, which lie side by side in the source too, those that follow are read from
    /// the disk along with them.
    fn source(&mut self, mapped: &Mapped<'a>, range: Range<usize>, are_tiny: bool) -> Result<&'a [u8]> {
        let range = mapped.range.start + range.start..mapped.range.start + range.end;
        let contains = |ahead: &Mapped| {
            std::ptr::eq(ahead.file, mapped.file) && ahead.range.start <= range.start && range.end <= ahead.range.end
        };
        if !self.ahead.as_ref().is_some_and(contains) {
            let len = if are_tiny { range.len().max(PIECE as usize) } else { range.len() };
            let ahead = range.start..mapped.file.len().min(range.start + len);
            mapped.file.prefetch(ahead.clone())?;
            self.ahead = Some(Mapped { range: ahead, ..mapped.clone() });
        }
        Ok(&mapped.file[range])
    }

    /// Room in the buffer for bytes that go to this place in the output.
    fn room(&mut self, target: &Range<u64>) -> Result<Range<usize>> {
        let (filled, len) = (self.runs.iter().map(|(_, len)| len).sum::<usize>(), (target.end - target.start) as usize);
        match self.runs.last_mut() {
            Some((offset, before)) if *offset + *before as u64 == target.start => *before += len,
            _ => self.runs.push((target.start, len)),
        }
        if let Some(more) = (filled + len).checked_sub(self.buffer.len()) {
            self.buffer.try_reserve(more).map_err(|_| Error::new("out of memory").into_io())?;
            self.buffer.resize(filled + len, 0);
        }
        Ok(filled..filled + len)
    }

    /// Converts a tensor whose elements come one after the other.
    fn stream(&mut self, at: usize) -> Result<(usize, Found)> {
        let step = &self.plan.steps[at];
        let source = &step.sources[0];
        let mut offset = step.target().start;
        let mut hasher = Hasher::new();
        let mut share = Share::new(source.stored_len(), source.tensor.count);
        let (mut comparer, mut done) = (comparer(step, self.figures), 0);
        let mut tally = comparer.as_ref().map(|_| Box::<Tally>::default());
        let is_sealed = step.results[0].seal.is_some();
        let mut sink = |source: &[u8], bytes: &[u8], elements: u64| {
            if let (Some(comparer), Some(tally)) = (&mut comparer, &mut tally) {
                tally.append(&comparer.tally(done, source, bytes, (elements - done) as usize));
            }
            done = elements;
            self.output.write_at(offset, bytes)?;
            offset += bytes.len() as u64;
            if is_sealed {
                hasher.update(bytes);
            }
            self.progress.advance(share.up_to(elements));
            Ok(())
        };
        let reader = source.open();
        let found = reader.and_then(|reader| step.conversion.run(source.named(), reader, &mut sink));
        let found = found.map_err(|error| step.error(error))?;
        let sums = vec![Hasher::new(), hasher];
        Ok((at, Found { counts: Some(Box::new(found.counts)), firsts: found.firsts, tally, sums }))
    }
}
