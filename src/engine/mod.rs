//! Runs a plan: threads take pieces of the output file from one counter, convert them and write them at their offsets.
//!
//! The output is divided, not the tensors: a piece is about a MiB of one large tensor or of many small adjacent ones,
//! and is written with one call. Its offset is known before it is made, so threads need no order, and the bytes are the
//! same for any number of threads. Tensors that can only be read in sequence (compressed ones, text) are one piece
//! each.
//!
//! `docs/experiments.md` lists alternative ways to read and to write, and their speed.

mod extremes;
mod findings;
#[cfg(feature = "cli")]
mod measure;
mod pieces;
mod queue;
mod worker;

use crate::error::{Error, Opt, Result};
use crate::io::sink::Sink;
use crate::plan::{Plan, Step};
use crate::progress::{Cancel, Never, Progress, Silent, cancelled};
use crate::threads::{cores, in_order};
use crc32fast::Hasher;
use extremes::{FirstPass, WorkItem};
use findings::{comparer, has_checksum};
use pieces::{Item, PIECE, PiecePart, Pieces};
use queue::WriteQueue;
use std::ops::ControlFlow;
use worker::Worker;

pub use findings::{Detail, Outcome};
#[cfg(feature = "cli")]
pub(crate) use measure::Measurement;

/// Options of [`run`].
pub struct RunOptions<'a> {
    /// Number of threads.
    pub threads: usize,
    /// Detail of the outcomes.
    pub detail: Detail,
    /// Receives the number of input bytes that are done.
    pub progress: &'a dyn Progress,
    /// Ends the work early, with an error.
    pub cancel: &'a dyn Cancel,
}

impl Default for RunOptions<'_> {
    fn default() -> Self {
        Self { threads: cores(), detail: Detail::Counts, progress: &Silent, cancel: &Never }
    }
}

/// Converts everything and writes it to `output`; returns the outcome of each tensor, in the order of the plan's steps,
/// unless `detail` is [`Detail::Nothing`].
///
/// # Errors
/// When the output cannot be written, a source is damaged or changes meanwhile, an element is malformed, or a value
/// breaks a rule of the cast. Of several such errors, the first in the output is returned, whatever the number of
/// threads.
///
/// # Panics
/// When one of its threads panics.
pub fn run(
    plan: &Plan,
    output: &dyn Sink,
    &RunOptions { threads, detail, progress, cancel }: &RunOptions,
) -> Result<Vec<Outcome>> {
    let check = || {
        if cancel.is_cancelled() { Err(cancelled().in_file(output.path())) } else { Ok(()) }
    };
    if !output.is_seekable() {
        check_order(plan).map_err(|error| error.in_file(output.path()))?;
    }
    output.reserve(plan.len)?;
    let is_long = plan.len / PIECE > threads as u64; // then not every tensor must be examined
    let work_len = if is_long { plan.len } else { plan.len + plan.source_bytes() };
    // Only a file accepts pieces in any order.
    let threads = if output.is_seekable() { threads as u64 } else { 1 }.min(work_len / PIECE + 1);
    let first_pass = FirstPass::new(plan.steps.iter());
    let queue = WriteQueue::new(output);
    let worker = || Worker::new(plan, &queue, detail, progress);
    let work = |worker: &mut Worker, item: WorkItem<Vec<PiecePart>>| {
        check()?;
        let piece = match item {
            WorkItem::Scan(rows) => {
                return first_pass.scan(rows, &mut worker.values, progress).map(|()| Vec::new());
            }
            WorkItem::Convert(piece) => piece,
        };
        steps_in(plan, &piece).try_for_each(|step| first_pass.wait(step))?;
        match piece[..] {
            [PiecePart { item: Item::Step(at), .. }] if !plan.steps[at].is_divisible() => {
                worker.stream(at, &check).map(|findings| vec![findings])
            }
            _ => worker.assemble(&piece),
        }
    };
    let is_kept = detail != Detail::Nothing || plan.steps.iter().any(has_checksum);
    let mut outcomes: Vec<Outcome> = Vec::new();
    outcomes.resize_with(if is_kept { plan.steps.len() } else { 0 }, Outcome::default);
    let pieces = Pieces::new(plan, detail != Detail::Accuracy, !is_kept);
    let needed = |piece: &Vec<PiecePart>| steps_in(plan, piece).filter_map(|step| first_pass.needed(step)).max();
    in_order(threads, first_pass.work_items(pieces, needed, threads), worker, work, |piece| {
        for (at, next) in piece.into_iter().filter(|_| is_kept) {
            outcomes[at].append(next);
        }
        ControlFlow::Continue(())
    })?;
    for (step, outcome) in plan.steps.iter().zip(&mut outcomes) {
        settle_checksums(step, &outcome.sums, output)?;
        if comparer(step, detail).is_some() {
            outcome.tally.get_or_insert_default(); // a tensor without elements is in no piece
        }
    }
    plan.check_unchanged()?;
    check()?;
    Ok(if detail == Detail::Nothing { Vec::new() } else { outcomes })
}

/// Returns the steps of a piece; of joined steps, the first.
fn steps_in<'s, 'a>(plan: &'s Plan<'a>, piece: &'s [PiecePart]) -> impl Iterator<Item = &'s Step<'a>> {
    piece.iter().filter_map(|part| if let Item::Step(at) = part.item { Some(&plan.steps[at]) } else { None })
}

/// Refuses outputs that cannot be written from the first byte to the last, which pipes require.
fn check_order(plan: &Plan) -> Result<()> {
    if plan.steps.iter().flat_map(|step| step.results.iter()).any(|result| result.crc().is_some()) {
        let error = Error::new("checksums stand before the data in this format, and a pipe takes bytes in order only");
        return Err(error.with(Opt::OUTPUT, "name a file, or an output that ends in .safetensors"));
    }
    if plan.steps.iter().any(|step| step.quantization().is_some()) {
        let error = Error::new("codes and scales are written side by side, and a pipe takes bytes in order only");
        return Err(error.with(Opt::OUTPUT, "name a file"));
    }
    Ok(())
}

/// Checks the checksums of a step's sources, and writes the checksums of its results.
fn settle_checksums(step: &Step, sums: &[Hasher], output: &dyn Sink) -> Result<()> {
    let empty = Hasher::new(); // a tensor without elements is in no piece
    let sum = |at: usize| sums.get(at).unwrap_or(&empty);
    for (at, source) in step.sources.iter().enumerate() {
        // A reader of the whole tensor has already checked it; parts of quantized weights have no checksum.
        if let (Some(checksum), true) = (source.mapped().and_then(|mapped| mapped.checksum), step.is_divisible()) {
            checksum.check(sum(at)).map_err(|error| step.error(error))?;
        }
    }
    for (at, result) in step.results.iter().enumerate() {
        let Some(crc) = result.crc() else { continue };
        let mut whole = crc.before.clone();
        whole.combine(sum(step.sources.len() + at));
        let bytes = whole.finalize().to_le_bytes();
        for offset in crc.offsets {
            output.put(offset, &bytes)?;
        }
    }
    Ok(())
}
