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

mod pieces;
mod worker;

use crate::error::{Error, Result};
use crate::io::sink::Sink;
use crate::kernel::{Counts, Firsts, Loss};
use crate::measure::accuracy::{self, Comparer};
use crate::plan::{Plan, Step};
use crate::progress::Progress;
use crate::quant::DecodeTally;
use crate::read::SourceTensor;
use crate::threads::in_order;
use crc32fast::Hasher;
use pieces::{Item, PIECE, PiecePart, Pieces};
use std::ops::ControlFlow;
use worker::Worker;

pub use crate::measure::accuracy::Accuracy;

/// What became of a tensor.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What happened to its values.
    pub counts: Box<Counts>,
    /// The first of its elements that were NaN or infinite before, or met what the plan watches.
    pub firsts: Firsts,
    /// How far they are from what they were, if that was asked for, and it was converted from numbers to numbers.
    pub accuracy: Option<Box<Accuracy>>,
}

/// Converts everything and writes it to `output`; returns, in the order of the plan's steps, what became of each tensor.
/// With `with_accuracy`, every result is compared with its source while both are at hand.
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
    with_accuracy: bool,
    progress: &dyn Progress,
) -> Result<Vec<Outcome>> {
    if !output.is_seekable() && plan.steps.iter().flat_map(|step| &step.results).any(|result| result.seal.is_some()) {
        return Err(Error::new("checksums stand before the data in this format, and a pipe takes bytes in order only")
            .in_file(output.path())
            .remedy("name a file, or an output that ends in .safetensors"));
    }
    output.reserve(plan.len)?;
    let work_len = plan.len + plan.source_bytes();
    // Only a file takes its pieces in any order.
    let threads = if output.is_seekable() { threads as u64 } else { 1 }.min(work_len / PIECE + 1);
    let worker = || Worker::new(plan, output, with_accuracy, progress);
    let work = |worker: &mut Worker, piece: Vec<PiecePart>| match piece[..] {
        [PiecePart { item: Item::Step(at), .. }] if plan.steps[at].direct().is_none() => Ok(vec![worker.stream(at)?]),
        _ => worker.assemble(&piece),
    };
    let mut found: Vec<StepFindings> = plan.steps.iter().map(|_| StepFindings::default()).collect();
    in_order(threads, Pieces::new(plan), worker, work, |piece| {
        for (at, next) in piece {
            found[at].append(next);
        }
        ControlFlow::Continue(())
    })?;
    for (step, found) in plan.steps.iter().zip(&found) {
        settle_checksums(step, &found.sums, output)?;
    }
    plan.check_unchanged()?;
    let outcomes = plan.steps.iter().zip(found).map(|(step, StepFindings { counts, firsts, tally, .. })| {
        let accuracy = comparer(step, with_accuracy).map(|_| Box::new(tally.unwrap_or_default().accuracy()));
        Outcome { counts: counts.unwrap_or_default(), firsts, accuracy }
    });
    Ok(outcomes.collect())
}

/// What compares the results of a step with their sources, where there is something to compare.
fn comparer(step: &Step, is_wanted: bool) -> Option<Comparer> {
    let conversion = step.conversion()?;
    if is_wanted && step.is_converted { Comparer::new(conversion.from, conversion.to) } else { None }
}

/// What is known of the elements of a step that were converted.
#[derive(Default)]
struct StepFindings {
    counts: Option<Box<Counts>>,
    firsts: Firsts,
    tally: Option<Box<accuracy::AccuracyTally>>,
    /// The checksums of the bytes of its sources, then of its results; empty where none has one.
    sums: Vec<Hasher>,
}

impl StepFindings {
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

/// What a decoder has counted, as losses: a NaN or infinite code or scale is one of the input.
fn counts_of(tally: &DecodeTally) -> Counts {
    let mut counts = Counts::default();
    counts.input_nan = tally.nan_codes + tally.nan_scales;
    counts.input_infinite = tally.infinite - tally.overflowed;
    counts[Loss::Infinite] = tally.overflowed;
    counts[Loss::Nan] = tally.nan - counts.input_nan;
    counts[Loss::Flushed] = tally.flushed;
    counts
}

/// Whether a file holds a checksum of a source or a result.
fn has_checksum(step: &Step) -> bool {
    let mut mapped = step.sources.iter().filter_map(SourceTensor::mapped);
    mapped.any(|mapped| mapped.checksum.is_some()) || step.results.iter().any(|result| result.seal.is_some())
}

/// Compares the checksums of a step's sources with theirs, and writes those of its results.
fn settle_checksums(step: &Step, sums: &[Hasher], output: &dyn Sink) -> Result<()> {
    let empty = Hasher::new(); // a tensor without elements is in no piece
    let sum = |at: usize| sums.get(at).unwrap_or(&empty);
    for (at, source) in step.sources.iter().enumerate() {
        // A reader of the whole tensor has checked it; parts of quantized weights have none.
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
