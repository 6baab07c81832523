//! Findings about the converted elements of steps.

use crate::kernel::{Condition, Counts, First, Firsts, Loss};
use crate::lora::SurvivalTally;
use crate::measure::accuracy::AccuracyTally;
use crate::measure::pairs::NumberPairs;
use crate::plan::Step;
use crate::quant::EncodeTally;
use crate::read::SourceTensor;
use crc32fast::Hasher;

/// Returns the comparer of a step's results with their sources, if this is possible and requested.
pub(super) fn comparer(step: &Step, detail: Detail) -> Option<NumberPairs> {
    let conversion = step.conversion()?;
    if detail == Detail::Accuracy && step.is_converted() {
        NumberPairs::of_cast(conversion.from, conversion.to)
    } else {
        None
    }
}

/// Detail of the outcome of each tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing, which is faster if there are many small tensors.
    Nothing,
    /// Counts of the losses of its values.
    Counts,
    /// Also the accuracy: every result is compared with its source while both are in the cache.
    Accuracy,
}

/// Outcome of the conversion of a tensor, or of some of its elements. There may be a million, so rare findings are boxed
/// and common ones are stored inline.
#[derive(Default)]
pub struct Outcome {
    /// Counts of the losses of its values, and of source values that are not finite.
    pub counts: Counts,
    /// First elements that were NaN or infinite in the source, or met a condition that the plan watches.
    pub firsts: Firsts,
    /// Accuracy of the results, if requested, for conversions from numbers to numbers.
    pub(crate) tally: Option<Box<AccuracyTally>>,
    /// Accuracy of the weight, if it was quantized.
    pub(crate) encoded: Option<Box<EncodeTally>>,
    /// Figures about the rest of the delta of adapters.
    pub(crate) survival: Option<Box<SurvivalTally>>,
    /// Checksums of the bytes of its sources, then of its results; empty if none has a checksum.
    pub(super) sums: Box<[Hasher]>,
}

impl Outcome {
    /// Returns the outcome of values that became codes: codes can turn them into infinities.
    pub(super) fn of_codes(tally: EncodeTally) -> Self {
        let mut found = Self::default();
        found.counts[Loss::Infinite] = tally.infinite.count;
        if let Some(at) = tally.infinite.first {
            found.firsts.add(Condition::Lost(Loss::Infinite), First { at, values: Default::default() });
        }
        Self { encoded: Some(Box::new(tally)), ..found }
    }

    /// Adds the outcome of the elements that follow.
    pub(super) fn append(&mut self, next: Self) {
        self.counts += next.counts;
        self.firsts.merge(next.firsts);
        if let Some(tally) = &next.tally {
            self.tally.get_or_insert_default().append(tally);
        }
        if let Some(encoded) = &next.encoded {
            **self.encoded.get_or_insert_default() += encoded;
        }
        if let Some(survival) = &next.survival {
            self.survival.get_or_insert_default().append(survival);
        }
        if self.sums.is_empty() {
            self.sums = next.sums;
        } else {
            self.sums.iter_mut().zip(&next.sums).for_each(|(sum, next)| sum.combine(next));
        }
    }
}

/// True if a file holds a checksum of a source or a result.
pub(super) fn has_checksum(step: &Step) -> bool {
    let mut mapped = step.sources.iter().filter_map(SourceTensor::mapped);
    mapped.any(|mapped| mapped.checksum.is_some()) || step.results.iter().any(|result| result.crc().is_some())
}
