//! Measures the errors of several plans for the same input at once, and writes nothing.
//!
//! A thread takes some rows of a weight and encodes them as each plan does, while they are in the cache. So each weight
//! is read once, or twice if one of its scales depends on the largest magnitude of the whole tensor.

use super::Outcome;
use super::extremes::{FirstPass, WorkItem};
use super::pieces::PIECE;
use super::worker::divided;
use crate::container::Tensor;
use crate::error::Result;
use crate::plan::{Plan, Quantization, Step};
use crate::progress::{Cancel, Progress, cancelled};
use crate::quant::EncodeTally;
use crate::threads::in_order;
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

/// Plans whose errors are measured.
pub(crate) struct Measurement<'p, 'a> {
    plans: &'p [&'p Plan<'a>],
    weights: Vec<MeasuredWeight<'p, 'a>>,
}

/// A weight of the input, with the steps of all plans that quantize it.
struct MeasuredWeight<'p, 'a> {
    /// For each step, the indices of the plan and of the step.
    places: Vec<(usize, usize)>,
    steps: Vec<&'p Step<'a>>,
}

/// Some rows of a weight.
struct WeightPiece {
    weight: usize,
    rows: Range<u64>,
    is_last: bool,
}

/// The state of a thread.
#[derive(Default)]
struct Buffers {
    values: Vec<u8>,
    codes: Vec<u8>,
    /// A weight, and for each of its steps the largest error that this thread has found, with its position.
    largest_errors: (usize, Vec<(f64, Option<u64>)>),
}

impl<'p, 'a> Measurement<'p, 'a> {
    /// Finds the weights that these plans quantize. Two steps of different plans belong together if they read the same
    /// values.
    pub(crate) fn new(plans: &'p [&'p Plan<'a>]) -> Self {
        let mut weights: Vec<MeasuredWeight> = Vec::new();
        let mut by_source: HashMap<*const Tensor, Vec<usize>> = HashMap::new();
        for (plan, at, step) in plans
            .iter()
            .enumerate()
            .flat_map(|(plan, all)| (0..).zip(&all.steps).map(move |(at, step)| (plan, at, step)))
        {
            let Some(rows) = step.quantization().map(|weight| &weight.rows) else { continue };
            let alike = by_source.entry(std::ptr::from_ref(step.source())).or_default();
            let is_same = |known: &&usize| {
                let known: &MeasuredWeight = &weights[**known];
                let is_of_plan = known.places.iter().any(|(other, _)| *other == plan);
                !is_of_plan && known.steps[0].quantization().is_some_and(|known| known.rows.has_values_of(rows))
            };
            if let Some(&known) = alike.iter().find(is_same) {
                weights[known].places.push((plan, at));
                weights[known].steps.push(step);
            } else {
                alike.push(weights.len());
                weights.push(MeasuredWeight { places: vec![(plan, at)], steps: vec![step] });
            }
        }
        Self { plans, weights }
    }

    /// Returns the number of input bytes that are measured.
    pub(crate) fn bytes(&self) -> u64 {
        self.weights.iter().map(|weight| weight.steps[0].bytes_in()).sum()
    }

    /// Encodes all weights; returns the outcome of each step of each plan, in their order. Steps that quantize nothing
    /// are not examined.
    ///
    /// # Errors
    /// When a source is damaged or changes meanwhile, or a value has no code. Of several such errors, the first in the
    /// order of the weights is returned, whatever the number of threads.
    pub(crate) fn run(
        &self,
        threads: usize,
        progress: &dyn Progress,
        cancel: &dyn Cancel,
    ) -> Result<Vec<Vec<Outcome>>> {
        let first_pass = FirstPass::new(self.weights.iter().flat_map(|weight| weight.steps.iter().copied()));
        let work = |buffers: &mut Buffers, item: WorkItem<WeightPiece>| {
            if cancel.is_cancelled() {
                return Err(cancelled());
            }
            match item {
                WorkItem::Scan(rows) => first_pass.scan(rows, &mut buffers.values, progress).map(|()| None),
                WorkItem::Convert(piece) => {
                    self.weights[piece.weight].steps.iter().try_for_each(|step| first_pass.wait(step))?;
                    let tallies = self.encode(&piece, buffers, progress)?;
                    Ok(Some((piece, tallies)))
                }
            }
        };
        let outcomes = |plan: &&Plan| plan.steps.iter().map(|_| Outcome::default()).collect();
        let mut outcomes: Vec<Vec<Outcome>> = self.plans.iter().map(outcomes).collect();
        // Pieces arrive in order, so one weight is counted at a time.
        let mut sums: Vec<EncodeTally> = Vec::new();
        let merge = |found: Option<(WeightPiece, Vec<EncodeTally>)>| {
            let Some((piece, tallies)) = found else { return ControlFlow::Continue(()) };
            sums.resize(tallies.len(), EncodeTally::default());
            sums.iter_mut().zip(&tallies).for_each(|(sum, tally)| *sum += tally);
            if piece.is_last {
                for (&(plan, at), sum) in self.weights[piece.weight].places.iter().zip(sums.drain(..)) {
                    outcomes[plan][at] = Outcome::of_codes(sum);
                }
            }
            ControlFlow::Continue(())
        };
        let needed = |piece: &WeightPiece| {
            self.weights[piece.weight].steps.iter().filter_map(|step| first_pass.needed(step)).max()
        };
        let pieces = (0..self.weights.len()).flat_map(|weight| self.pieces(weight));
        in_order(threads as u64, first_pass.work_items(pieces, needed, threads as u64), Buffers::default, work, merge)?;
        self.plans.iter().try_for_each(|plan| plan.check_unchanged())?;
        Ok(outcomes)
    }

    /// Divides a weight into pieces of about [`PIECE`] bytes that each of its encoders can encode.
    fn pieces(&self, weight: usize) -> impl Iterator<Item = WeightPiece> + use<> {
        let weights = || self.weights[weight].steps.iter().filter_map(|step| step.quantization());
        let alignment = weights().map(|weight| weight.rows.encoder.row_alignment()).fold(1, least_common_multiple);
        let pieces = weights().next().map(|first| first.rows.aligned_pieces(PIECE, alignment)).into_iter().flatten();
        let all = weights().next().map_or(0, |first| first.rows.encoder.rows());
        pieces.map(move |rows| WeightPiece { weight, is_last: rows.end == all, rows })
    }

    /// Encodes some rows of a weight as each plan does; returns the errors.
    fn encode(&self, piece: &WeightPiece, buffers: &mut Buffers, progress: &dyn Progress) -> Result<Vec<EncodeTally>> {
        let Buffers { values, codes, largest_errors } = buffers;
        let steps = &self.weights[piece.weight].steps;
        if largest_errors.0 != piece.weight || largest_errors.1.is_empty() {
            *largest_errors = (piece.weight, vec![(0.0, None); steps.len()]);
        }
        let mut tallies = Vec::with_capacity(steps.len());
        for (step, largest) in steps.iter().zip(&mut largest_errors.1) {
            let weight = step.quantization().expect("only such steps are measured");
            let ranges = weight.rows.encoder.part_ranges(piece.rows.clone());
            let lengths = ranges.iter().map(|range| (range.end - range.start) as usize);
            codes.resize(codes.len().max(lengths.clone().sum()), 0);
            let mut outputs = divided(codes, lengths);
            // Finding the position of an error takes time, and the position of a smaller one does not matter.
            let mut tally = EncodeTally::default();
            (tally.max_error, tally.max_error_at) = *largest;
            weight.encode(piece.rows.clone(), values, &mut outputs, &mut tally)?;
            *largest = (tally.max_error, tally.max_error_at);
            tallies.push(tally);
        }
        let weights = || steps.iter().filter_map(|step| step.quantization());
        let bytes = weights().next().map_or(0, |weight| weight.rows.bytes(&piece.rows));
        progress.advance(if weights().any(Quantization::has_first_pass) { bytes / 2 } else { bytes });
        Ok(tallies)
    }
}

fn least_common_multiple(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}
