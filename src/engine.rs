//! Runs a plan: threads take pieces of the output file from one counter, convert and write them at their place.
//!
//! The output is divided, not the tensors: a piece is about a MiB, of one large tensor or of many
//! small ones that lie side by side, and is written with one call. Its place is known before it is made, so
//! threads need no order among them, and the bytes are the same for any number of threads.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::io::output::Output;
use crate::kernel::{Counts, Kernel, Storage};
use crate::operator::cast::Attributes;
use crate::plan::{Plan, PlannedTensor};
use crate::progress::Progress;
use std::ops::Range;
use std::sync::Mutex;

/// Bytes of input or output, whichever are more, that a thread takes at a time: enough to make a system call
/// for each of them cheap, few enough to stay in the second-level cache.
const PIECE: u64 = 1 << 20;

/// Elements per piece are a multiple of this, so that packed types start on whole bytes and kernel blocks.
const STEP: u64 = 1024;

/// Converts everything and writes it to `output`, in the order of the plan's tensors the counts of each.
///
/// # Errors
/// When the output cannot be written, a byte of a source is malformed, or a value breaks a rule of the cast.
/// Of several such errors the first in the output is given, whatever the number of threads.
///
/// # Panics
/// When a thread of it has panicked.
pub fn run(
    plan: &Plan,
    input: &MappedFile,
    output: &Output,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Counts>> {
    output.write_at(0, &plan.header)?;
    let mut order: Vec<usize> = (0..plan.tensors.len()).collect();
    order.sort_by_key(|&index| plan.tensors[index].target.start);
    let cursor = Mutex::new(Cursor { plan, order, next: 0, element: 0 });
    // Only a file takes its pieces in any order.
    let threads = if output.is_seekable() { threads as u64 } else { 1 }.min(plan.len / PIECE + 1);
    let worker = || -> Result<Vec<Counts>, Failure> {
        let mut counts = vec![Counts::default(); plan.tensors.len()];
        let mut parts = Vec::new();
        let mut buffer = Vec::new();
        while lock(&cursor).take(&mut parts) {
            work(plan, &parts, input, output, &mut buffer, &mut counts).inspect_err(|_| lock(&cursor).stop())?;
            progress.advance(parts.iter().map(|part| part.source(&plan.tensors[part.tensor]).len() as u64).sum());
        }
        Ok(counts)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        // Where the system gives no more threads, those there are do the work.
        let others: Vec<_> =
            (1..threads).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, worker).ok()).collect();
        let mine = worker();
        let joined = others.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
        std::iter::once(mine).chain(joined).collect()
    });
    let mut total = vec![Counts::default(); plan.tensors.len()];
    let mut failures = Vec::new();
    for result in results {
        match result {
            Ok(counts) => {
                for (sum, counts) in total.iter_mut().zip(counts) {
                    *sum += counts;
                }
            }
            Err(failure) => failures.push(failure),
        }
    }
    // Pieces are handed out in order, and those under way are finished: the first failure is always among them.
    let first =
        failures.into_iter().min_by_key(|failure| (plan.tensors[failure.0.tensor].target.start, failure.0.start));
    first.map_or(Ok(total), |failure| Err(failure.1))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Where it failed, and why.
type Failure = Box<(Part, Error)>;

/// Some elements of one tensor.
#[derive(Clone, Copy)]
struct Part {
    tensor: usize,
    start: u64,
    end: u64,
}

impl Part {
    fn source(&self, tensor: &PlannedTensor) -> Range<usize> {
        let at = |element| tensor.source.start + bytes_before(tensor, element, false) as usize;
        at(self.start)..at(self.end)
    }

    fn target(&self, tensor: &PlannedTensor) -> Range<u64> {
        let at = |element| tensor.target.start + bytes_before(tensor, element, true);
        at(self.start)..at(self.end)
    }
}

fn bytes_before(tensor: &PlannedTensor, element: u64, in_target: bool) -> u64 {
    let storage = if in_target { &tensor.to } else { &tensor.from };
    storage.bytes(element).expect("the plan has counted the bytes of all elements")
}

/// What is still to be done.
struct Cursor<'a> {
    plan: &'a Plan,
    /// The tensors in the order of their places.
    order: Vec<usize>,
    next: usize,
    element: u64,
}

impl Cursor<'_> {
    /// Takes the next piece, as parts that lie side by side in the output. False when nothing is left.
    fn take(&mut self, parts: &mut Vec<Part>) -> bool {
        parts.clear();
        let mut room = PIECE;
        while let Some(&index) = self.order.get(self.next) {
            let tensor = &self.plan.tensors[index];
            let left = tensor.count - self.element;
            // The wider side decides; an element of fewer than 8 bits may take a whole byte.
            let bits = u64::from(tensor.from.dtype.bits().max(tensor.to.dtype.bits()).max(8));
            let fitting = room * 8 / bits / STEP * STEP;
            if left > fitting && fitting == 0 && !parts.is_empty() {
                break; // the piece is full
            }
            let count = left.min(fitting.max(STEP));
            if count > 0 {
                parts.push(Part { tensor: index, start: self.element, end: self.element + count });
            }
            room = room.saturating_sub((count * bits).div_ceil(8));
            self.element += count;
            if self.element == tensor.count {
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

/// Converts one piece and writes it.
fn work(
    plan: &Plan,
    parts: &[Part],
    input: &MappedFile,
    output: &Output,
    buffer: &mut Vec<u8>,
    counts: &mut [Counts],
) -> Result<(), Failure> {
    let first = parts[0];
    let base = first.target(&plan.tensors[first.tensor]).start;
    let mut filled = 0;
    for &part in parts {
        let tensor = &plan.tensors[part.tensor];
        let source = part.source(tensor);
        let target = part.target(tensor);
        input.prefetch(source.clone()).map_err(|error| Failure::new((part, error)))?;
        let source = &input[source];
        if tensor.kernel.is_plain_copy() && parts.len() == 1 {
            // Straight from the page cache of one file to that of the other.
            return output.write_at(target.start, source).map_err(|error| Failure::new((part, error)));
        }
        let len = (target.end - target.start) as usize;
        if buffer.len() < filled + len {
            buffer.resize(filled + len, 0);
        }
        let result = &mut buffer[filled..filled + len];
        let count = (part.end - part.start) as usize;
        let refused = tensor.kernel.refuses();
        match tensor.kernel.run(source, result, count) {
            Ok(lost) if refused.is_none_or(|loss| lost[loss] == 0) => counts[part.tensor] += lost,
            outcome => return Err(Failure::new((part, explain(tensor, part, source, outcome.is_err())))),
        }
        filled += len;
    }
    output.write_at(base, &buffer[..filled]).map_err(|error| Failure::new((first, error)))
}

/// The error of a part in which some element is malformed or breaks a rule: says which is the first.
fn explain(tensor: &PlannedTensor, part: Part, source: &[u8], is_malformed: bool) -> Error {
    let is_bad = |outcome: Result<Counts, _>| match outcome {
        Ok(lost) => tensor.kernel.refuses().is_some_and(|loss| lost[loss] > 0),
        Err(_) => true,
    };
    // A part starts on a whole byte, so any prefix of it can be tried, and a prefix is bad when an element in it
    // is: the first bad element is the last one of the shortest bad prefix.
    let count = (part.end - part.start) as usize;
    let mut scratch = vec![0; tensor.to.bytes(part.end - part.start).unwrap_or_default() as usize];
    let (mut good, mut bad) = (0, count);
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if is_bad(tensor.kernel.run(source, &mut scratch, middle)) { bad = middle } else { good = middle }
    }
    let index = part.start + good as u64;
    let place = position(index, &tensor.shape, tensor.fortran_order);
    let error = if is_malformed {
        Error::new(format!("element {place}: a byte that holds one {} has bits above it", tensor.from.dtype))
    } else {
        let value = value(tensor.from, source, good);
        Error::new(format!("element {place}: {value:?} is out of range for {}", tensor.to.dtype))
            .remedy("choose --out-of-range saturate or --out-of-range wrap to convert such values")
    };
    error.in_tensor(&tensor.name)
}

/// The value of one element of a numeric type, for a message.
fn value(storage: Storage, source: &[u8], index: usize) -> f64 {
    let to_float64 = Kernel::cast(storage, Storage::packed(Dtype::Float64), &Attributes::default().rules());
    let mut values = vec![0; (index + 1) * 8];
    match to_float64.map(|kernel| kernel.run(source, &mut values, index + 1)) {
        Some(Ok(_)) => values.last_chunk().map_or(f64::NAN, |bytes| f64::from_le_bytes(*bytes)),
        _ => f64::NAN,
    }
}

/// `[1, 2]` of an index into the elements as they lie in the file.
fn position(mut index: u64, shape: &[u64], fortran_order: bool) -> String {
    let mut indices = vec![0; shape.len()];
    let mut dimensions: Vec<usize> = (0..shape.len()).collect();
    if !fortran_order {
        dimensions.reverse(); // the last one changes fastest
    }
    for dimension in dimensions {
        indices[dimension] = index % shape[dimension];
        index /= shape[dimension];
    }
    format!("{indices:?}")
}

/// The sum of all tensors' counts.
#[must_use]
pub fn total(counts: &[Counts]) -> Counts {
    counts.iter().fold(Counts::default(), |mut sum, counts| {
        sum += *counts;
        sum
    })
}
