//! Finds the weights that share a scale, and passes the decisions to the plan.

use super::{Planner, SchemeTarget, WeightCandidate, WeightCandidates};
use crate::error::Result;
use crate::plan::few::Few;
use crate::plan::quantization::{CodesSource, Quantization};
use crate::plan::weight_rows::{SharedExtremes, WeightRows};
use crate::plan::{Decisions, Step};
use crate::quant::{Arithmetic, Encoder, WeightEncoder};
use crate::read::LogicalCheckpoint;
use crate::select::policy::fused_sets;
use std::sync::Arc;

impl<'a> Planner<'_, 'a> {
    /// Returns the sets of weights that engines fuse and whose scale is a single number, followed by every other weight
    /// alone.
    pub(super) fn scale_sets(&self, weights: &[WeightCandidate]) -> Vec<Vec<usize>> {
        let is_scalar = |at: &usize| weights[*at].encoder().is_some_and(Encoder::needs_extremes);
        let mut sets = fused_sets(&self.policy, weights.iter().map(|weight| self.module(weight)));
        sets.retain(|set| set.iter().all(is_scalar));
        let mut is_in_set = vec![false; weights.len()];
        sets.iter().flatten().for_each(|at| is_in_set[*at] = true);
        sets.extend((0..weights.len()).filter(|at| !is_in_set[*at]).map(|at| vec![at]));
        sets
    }

    /// Makes the steps for all weights, and keeps or leaves out all other tensors.
    pub(super) fn decisions(&self, candidates: WeightCandidates<'a>) -> Result<Decisions<'a>> {
        let mut decisions = Decisions::default();
        for (place, reason) in candidates.others {
            decisions.keep(place, reason);
        }
        for place in candidates.dropped {
            decisions.leave_out(place);
        }
        let mut candidates = candidates.weights;
        let rows: Vec<Option<WeightRows>> = candidates.iter().map(|candidate| self.rows(candidate)).collect();
        for set in self.scale_sets(&candidates) {
            let members = || set.iter().filter_map(|at| rows[*at].as_ref());
            let is_computed = |at: &usize| matches!(candidates[*at].codes, CodesSource::Values { .. });
            if !members().next().is_some_and(|rows| rows.encoder.needs_extremes()) || !set.iter().all(is_computed) {
                continue;
            }
            let shared = Arc::new(SharedExtremes::new(members().cloned().collect()));
            for at in set {
                if let CodesSource::Values { extremes, .. } = &mut candidates[at].codes {
                    *extremes = Some(Arc::clone(&shared));
                }
            }
        }
        for (candidate, rows) in candidates.into_iter().zip(rows) {
            let WeightCandidate { place, name, input_weight, decision, codes, .. } = candidate;
            match (decision, rows, input_weight) {
                (Ok(SchemeTarget { scheme, .. }), Some(rows), _) => {
                    let found = input_weight.map(|weight| &self.logical.found.weights[weight]);
                    let parts = found.map(LogicalCheckpoint::value_parts).unwrap_or_default();
                    parts.iter().skip(1).for_each(|(_, at)| decisions.leave_out(self.logical.places[*at]));
                    decisions.replace(place, Step::encode(Quantization { name, rows, scheme: scheme.name, codes }));
                }
                (Err(reason), _, None) => decisions.keep(place, reason),
                // A quantized weight of the old layout cannot stay next to the config of the new one.
                (decision, _, Some(weight)) => {
                    let found = &self.logical.found.weights[weight];
                    let decoder = self.logical.decoder(found, self.logical.own_type(found), Arithmetic::Library)?;
                    // Numbers in another order, or with 1 added, are copied as far as users know.
                    let kept = decision.err().filter(|_| found.has_plain_blocks());
                    decisions.decode(self.logical, found, Arc::new(decoder), kept);
                }
                (Ok(_), None, None) => unreachable!("weights that do not fit are kept"),
            }
        }
        Ok(decisions)
    }

    /// Returns the rows of a weight that is quantized.
    pub(super) fn rows(&self, candidate: &WeightCandidate) -> Option<WeightRows<'a>> {
        let encoder = WeightEncoder::Grid(Arc::clone(candidate.decision.as_ref().ok()?.encoder.as_ref()?));
        let sources = match candidate.input_weight {
            Some(weight) => self.logical.value_sources(&self.logical.found.weights[weight]).collect(),
            None => Few::One(self.logical.stored(self.logical.places.binary_search(&candidate.place).ok()?)),
        };
        Some(WeightRows { sources, values: candidate.values.clone(), encoder })
    }
}
