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

use crate::container::{Checksum, Data, Input, Reader, sum_of};
use crate::conversion::run_kernel;
use crate::error::{Error, Result};
use crate::figures::{Comparer, InOrder};
use crate::io::sink::Sink;
use crate::kernel::{Counts, Firsts};
use crate::plan::{Plan, PlannedTensor, Share};
use crate::progress::Progress;
use crate::threads::on_threads;
use crc32fast::Hasher;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

pub use crate::figures::Figures;

/// Bytes of input or output, whichever are more, that a thread takes at a time: enough to make a system call
/// for each of them cheap, few enough to stay in the second-level cache.
const PIECE: u64 = 1 << 20;

/// Elements per piece are a multiple of this, so that packed types start on whole bytes and kernel blocks.
const STEP: u64 = 1024;

/// What became of a tensor.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What happened to its values.
    pub counts: Box<Counts>,
    /// The first of its elements that were NaN or infinite before, or met what the plan watches.
    pub firsts: Firsts,
    /// How far they are from what they were, if that was asked for, and it was converted from numbers to numbers.
    pub figures: Option<Box<Figures>>,
}

/// Converts everything and writes it to `output`; gives, in the order of the plan's tensors, what became of each. With
/// `figures`, every result is compared with its source while both are at hand.
///
/// # Errors
/// When the output cannot be written, a source is damaged or changes meanwhile, an element is malformed, or a value breaks a rule of the
/// cast. Of several such errors the first in the output is given, whatever the number of threads.
///
/// # Panics
/// When a thread of it has panicked.
pub fn run(
    plan: &Plan,
    inputs: &[Input],
    output: &dyn Sink,
    threads: usize,
    figures: bool,
    progress: &dyn Progress,
) -> Result<Vec<Outcome>> {
    if !output.is_seekable() && plan.tensors.iter().any(|tensor| tensor.seal.is_some()) {
        return Err(Error::new("checksums stand before the data in this format, and a pipe takes bytes in order only")
            .in_file(output.path())
            .remedy("name a file with -o, or an output that ends in .safetensors"));
    }
    output.reserve(plan.len)?;
    let cursor = Mutex::new(Cursor::new(plan));
    let work_len = plan.len + plan.tensors.iter().map(|tensor| tensor.source.data.stored_len()).sum::<u64>();
    // Only a file takes its pieces in any order.
    let threads = if output.is_seekable() { threads as u64 } else { 1 }.min(work_len / PIECE + 1);
    let found: Vec<Mutex<Found>> = plan.tensors.iter().map(|_| Mutex::default()).collect();
    let worker = || -> Result<Sums, Failure> {
        let (buffer, ahead, sums) = (Vec::new(), ((0, 0), 0..0), Sums::default());
        let mut worker = Worker { plan, inputs, output, progress, found: &found, figures, buffer, ahead, sums };
        let mut parts = Vec::new();
        while lock(&cursor).take(&mut parts) {
            let outcome = match parts[..] {
                [Part { item: Item::Tensor(index), .. }] if plan.tensors[index].direct().is_none() => {
                    worker.stream(parts[0], index)
                }
                _ => worker.assemble(&parts),
            };
            outcome.inspect_err(|_| lock(&cursor).stop())?;
        }
        Ok(worker.sums)
    };
    let mut sums = Sums::default();
    let mut failures = Vec::new();
    for result in on_threads(threads, worker) {
        match result {
            Ok(done) => sums.add(done),
            Err(failure) => failures.push(failure),
        }
    }
    // Pieces are handed out in order, and those under way are finished: the first failure is always among them.
    let first = failures.into_iter().min_by_key(|failure| (failure.0.item.offset(plan), failure.0.start));
    first.map_or(Ok(()), |failure| Err(failure.1))?;
    sums.settle(plan, inputs, output)?;
    plan.check_unchanged(inputs)?;
    let outcomes = plan.tensors.iter().zip(found).map(|(tensor, found)| {
        let Found { counts, firsts, figures: values } = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let figures = comparer(tensor, figures).map(|_| Box::new(values.unwrap_or_default().figures()));
        Outcome { counts: counts.unwrap_or_default(), firsts, figures }
    });
    Ok(outcomes.collect())
}

/// What compares the results of a tensor with their sources, where there is something to compare.
fn comparer(tensor: &PlannedTensor, is_wanted: bool) -> Option<Comparer> {
    let conversion = &tensor.conversion;
    if is_wanted && tensor.is_converted { Comparer::new(conversion.from, conversion.to) } else { None }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where it failed, and why.
type Failure = Box<(Part, Error)>;

/// What lies in the output: a literal or a tensor of the plan.
#[derive(Clone, Copy)]
enum Item {
    Literal(usize),
    Tensor(usize),
}

impl Item {
    fn offset(self, plan: &Plan) -> u64 {
        match self {
            Self::Literal(index) => plan.literals[index].0,
            Self::Tensor(index) => plan.tensors[index].target.start,
        }
    }

    /// Elements, of a literal its bytes.
    fn count(self, plan: &Plan) -> u64 {
        match self {
            Self::Literal(index) => plan.literals[index].1.len() as u64,
            Self::Tensor(index) => plan.tensors[index].source.count,
        }
    }
}

/// Some elements of one tensor, or bytes of a literal.
#[derive(Clone, Copy)]
struct Part {
    item: Item,
    start: u64,
    end: u64,
}

impl Part {
    fn source(&self, tensor: &PlannedTensor, range: &Range<usize>) -> Range<usize> {
        let at = |element| range.start + bytes_before(tensor, element, false) as usize;
        at(self.start)..at(self.end)
    }

    fn target(&self, plan: &Plan) -> Range<u64> {
        let offset = self.item.offset(plan);
        let at = |element| match self.item {
            Item::Literal(_) => offset + element,
            Item::Tensor(index) => offset + bytes_before(&plan.tensors[index], element, true),
        };
        at(self.start)..at(self.end)
    }
}

fn bytes_before(tensor: &PlannedTensor, element: u64, in_target: bool) -> u64 {
    let form = if in_target { &tensor.conversion.to } else { &tensor.conversion.from };
    form.bytes(element).expect("the plan has counted the bytes of all elements")
}

/// What is still to be done.
struct Cursor<'a> {
    plan: &'a Plan<'a>,
    /// Everything in the order of its place.
    order: Vec<Item>,
    next: usize,
    element: u64,
}

impl<'a> Cursor<'a> {
    fn new(plan: &'a Plan<'a>) -> Self {
        let literals = (0..plan.literals.len()).map(Item::Literal);
        let mut order: Vec<Item> = literals.chain((0..plan.tensors.len()).map(Item::Tensor)).collect();
        order.retain(|item| item.count(plan) > 0);
        order.sort_by_key(|item| item.offset(plan));
        Self { plan, order, next: 0, element: 0 }
    }

    /// Takes the next piece, as parts that lie side by side in the output. False when nothing is left.
    fn take(&mut self, parts: &mut Vec<Part>) -> bool {
        parts.clear();
        let mut room = PIECE;
        while let Some(&item) = self.order.get(self.next) {
            let count = item.count(self.plan);
            let left = count - self.element;
            // The wider side decides; an element of fewer than 8 bits may take a whole byte.
            let bits = match item {
                Item::Literal(_) => 8,
                Item::Tensor(index) => {
                    let tensor = &self.plan.tensors[index];
                    if tensor.direct().is_none() {
                        if parts.is_empty() {
                            parts.push(Part { item, start: 0, end: count });
                            self.next += 1;
                        }
                        break;
                    }
                    let bits = tensor.conversion.from.dtype().bits().max(tensor.conversion.to.dtype().bits());
                    u64::from(bits.max(8))
                }
            };
            let fitting = room * 8 / bits / STEP * STEP;
            if left > fitting && fitting == 0 && !parts.is_empty() {
                break; // the piece is full
            }
            let count = left.min(fitting.max(STEP));
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
        !parts.is_empty()
    }

    fn stop(&mut self) {
        self.next = self.order.len();
    }
}

/// What is known of a tensor's values so far.
#[derive(Default)]
struct Found {
    counts: Option<Box<Counts>>,
    firsts: Firsts,
    figures: Option<Box<InOrder>>,
}

/// Sums over parts of tensors that have a checksum.
#[derive(Default)]
struct Sums {
    sources: Vec<Sum>,
    targets: Vec<Sum>,
}

/// The checksum of the part of a tensor that begins with element `start`.
struct Sum {
    tensor: usize,
    start: u64,
    hasher: Hasher,
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.sources.extend(other.sources);
        self.targets.extend(other.targets);
    }

    /// Compares the sources' checksums with theirs, and writes those of the results.
    fn settle(self, plan: &Plan, inputs: &[Input], output: &dyn Sink) -> Result<()> {
        if plan.tensors.iter().all(|tensor| tensor.seal.is_none() && source_checksum(tensor).is_none()) {
            return Ok(());
        }
        let sources = combine(self.sources, plan.tensors.len());
        let mut targets = combine(self.targets, plan.tensors.len());
        for ((tensor, source), target) in plan.tensors.iter().zip(&sources).zip(&mut targets) {
            if let (Some(checksum), Some(_)) = (source_checksum(tensor), tensor.direct()) {
                checksum.check(source).map_err(|error| in_source(error, tensor, inputs))?;
            }
            if let Some(seal) = &tensor.seal {
                let mut sum = seal.before.clone();
                sum.combine(target);
                let bytes = sum.finalize().to_le_bytes();
                for offset in seal.offsets {
                    output.write_at(offset, &bytes)?;
                }
            }
        }
        Ok(())
    }
}

/// The sum of each tensor, of the sums of its parts.
fn combine(mut parts: Vec<Sum>, tensors: usize) -> Vec<Hasher> {
    parts.sort_by_key(|part| (part.tensor, part.start));
    let mut sums = vec![Hasher::new(); tensors];
    for part in parts {
        sums[part.tensor].combine(&part.hasher);
    }
    sums
}

/// An error of a tensor's elements, with the file that they are in.
fn in_source(error: Error, tensor: &PlannedTensor, inputs: &[Input]) -> Error {
    error.in_tensor(&tensor.name).in_file(inputs[tensor.input].path())
}

fn source_checksum<'a>(tensor: &PlannedTensor<'a>) -> Option<&'a Checksum> {
    match &tensor.source.data {
        Data::Mapped { checksum, .. } => checksum.as_deref(),
        Data::Streamed(_) => None,
    }
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

struct Worker<'a> {
    plan: &'a Plan<'a>,
    inputs: &'a [Input],
    output: &'a dyn Sink,
    progress: &'a dyn Progress,
    /// Of each tensor.
    found: &'a [Mutex<Found>],
    /// Whether results are compared with their sources.
    figures: bool,
    buffer: Vec<u8>,
    /// An input, a file of it, and which of its bytes are there.
    ahead: ((usize, usize), Range<usize>),
    sums: Sums,
}

impl Worker<'_> {
    /// Converts parts that lie side by side and writes them with one call.
    fn assemble(&mut self, parts: &[Part]) -> Result<(), Failure> {
        let mut filled = 0;
        let mut read = 0;
        for &part in parts {
            let target = part.target(self.plan);
            let len = (target.end - target.start) as usize;
            if self.buffer.len() < filled + len {
                let more = filled + len - self.buffer.len();
                let failed = |_| Failure::new((part, Error::new("out of memory").into_io()));
                self.buffer.try_reserve(more).map_err(failed)?;
                self.buffer.resize(filled + len, 0);
            }
            let result = &mut self.buffer[filled..filled + len];
            filled += len;
            let tensor = match part.item {
                Item::Literal(index) => {
                    let (start, end) = (part.start as usize, part.end as usize);
                    result.copy_from_slice(&self.plan.literals[index].1[start..end]);
                    continue;
                }
                Item::Tensor(tensor) => tensor,
            };
            let planned = &self.plan.tensors[tensor];
            let (kernel, index, range) = planned.direct().expect("others are streamed");
            let source = part.source(planned, range);
            read += source.len() as u64;
            let file = &self.inputs[planned.input].files[index];
            // Tiny tensors, which lie side by side in the source too, need no call each.
            let len = if parts.len() > 1 { source.len().max(PIECE as usize) } else { source.len() };
            let ahead = source.start..file.len().min(source.start + len);
            if self.ahead.0 != (planned.input, index) || !contains(&self.ahead.1, &source) {
                file.prefetch(ahead.clone()).map_err(|error| Failure::new((part, error)))?;
                self.ahead = ((planned.input, index), ahead);
            }
            let source = &file[source];
            if source_checksum(planned).is_some() {
                self.sums.sources.push(Sum { tensor, start: part.start, hasher: sum_of(source) });
            }
            let is_plain = kernel.is_plain_copy() && parts.len() == 1;
            if !is_plain {
                let (elements, count) = (planned.elements(), (part.end - part.start) as usize);
                let lost = run_kernel(kernel, &planned.conversion, elements, part.start, source, result, count)
                    .map_err(|error| Failure::new((part, in_source(error, planned, self.inputs))))?;
                let known = {
                    let mut found = lock(&self.found[tensor]);
                    **found.counts.get_or_insert_default() += lost;
                    found.firsts.clone()
                };
                let firsts = planned.conversion.firsts(kernel, &lost, &known, part.start, source, count);
                if !firsts.is_empty() {
                    lock(&self.found[tensor]).firsts.merge(firsts);
                }
            }
            if let Some(mut comparer) = comparer(planned, self.figures) {
                let result = if is_plain { source } else { &*result };
                let tally = comparer.tally(part.start, source, result, (part.end - part.start) as usize);
                let mut found = lock(&self.found[tensor]);
                found.figures.get_or_insert_default().add(part.start, part.end, tally);
            }
            if planned.seal.is_some() {
                let hasher = sum_of(if is_plain { source } else { result });
                self.sums.targets.push(Sum { tensor, start: part.start, hasher });
            }
            if is_plain {
                // Straight from the page cache of one file to that of the other.
                self.write(part, target.start, source)?;
                self.progress.advance(read);
                return Ok(());
            }
        }
        self.write(parts[0], parts[0].target(self.plan).start, &self.buffer[..filled])?;
        self.progress.advance(read);
        Ok(())
    }

    fn write(&self, part: Part, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let in_source = |error: Error| match part.item {
            Item::Literal(_) => error,
            Item::Tensor(index) => error.in_file(self.inputs[self.plan.tensors[index].input].path()),
        };
        self.output.write_at(offset, bytes).map_err(|error| Failure::new((part, in_source(error))))
    }

    /// Converts a tensor whose elements come one after the other.
    fn stream(&mut self, part: Part, tensor: usize) -> Result<(), Failure> {
        let planned = &self.plan.tensors[tensor];
        let mut offset = planned.target.start;
        let mut hasher = Hasher::new();
        let mut share = Share::new(planned.source);
        let (mut comparer, mut done) = (comparer(planned, self.figures), 0);
        let mut sink = |source: &[u8], bytes: &[u8], elements: u64| {
            if let Some(comparer) = &mut comparer {
                let tally = comparer.tally(done, source, bytes, (elements - done) as usize);
                lock(&self.found[tensor]).figures.get_or_insert_default().add(done, elements, tally);
            }
            done = elements;
            self.output.write_at(offset, bytes)?;
            offset += bytes.len() as u64;
            if planned.seal.is_some() {
                hasher.update(bytes);
            }
            self.progress.advance(share.up_to(elements));
            Ok(())
        };
        let reader = Reader::open(planned.source, &self.inputs[planned.input].files, planned.is_transposed());
        let done = reader.and_then(|reader| planned.conversion.run(planned.elements(), reader, &mut sink));
        let done = done.map_err(|error| Failure::new((part, in_source(error, planned, self.inputs))))?;
        let mut found = lock(&self.found[tensor]);
        **found.counts.get_or_insert_default() += done.counts;
        found.firsts = done.firsts;
        drop(found);
        self.sums.targets.push(Sum { tensor, start: 0, hasher });
        Ok(())
    }
}
