//! Finds the weights that share a scale, and makes the steps.

use super::planner::{Planner, SchemeTarget, WeightCandidate, WeightCandidates};
use crate::container::Form;
use crate::error::Result;
use crate::kernel::Storage;
use crate::plan::Step;
use crate::plan::quantization::CodesSource;
use crate::plan::steps::Steps;
use crate::plan::stored::Few;
use crate::plan::weight_rows::{SharedExtremes, WeightRows};
use crate::quant::{Arithmetic, Encoder, WeightEncoder};
use crate::select::policy::fused_sets;
use std::collections::HashSet;
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

    /// Makes the steps for all tensors, in the order of the stored tensors: weights, and tensors that are kept.
    pub(super) fn emit(&self, candidates: WeightCandidates<'_, 'a>, steps: &mut Steps<'_, 'a>) -> Result<()> {
        let WeightCandidates { mut weights, others, dropped: _ } = candidates;
        self.share_extremes(&mut weights);
        let mut weights = weights.into_iter().peekable();
        let mut others = others.into_iter().peekable();
        let found = &self.model.found;
        // Descriptions of codes that are elsewhere.
        let described: HashSet<usize> = match &found.weights[..] {
            [] => found.markers.iter().chain(&found.activation_scales).copied().collect(),
            _ => HashSet::new(),
        };
        for (at, place) in self.model.places.iter().enumerate() {
            while let Some(weight) = weights.next_if(|weight| weight.at == at) {
                self.emit_weight(weight, steps)?;
            }
            if let Some((_, reason)) = others.next_if(|(other, _)| *other == at) {
                steps.plain(*place, Some(reason))?;
            } else if described.contains(&at) {
                steps.plain(*place, None)?;
            }
        }
        Ok(())
    }

    /// Lets weights that share a scale have one largest magnitude.
    fn share_extremes(&self, weights: &mut [WeightCandidate<'_, 'a>]) {
        for set in self.scale_sets(weights) {
            let is_computed = |at: &usize| matches!(weights[*at].codes, CodesSource::Values { .. });
            // In sets of several, all do.
            let needs_extremes = weights[set[0]].encoder().is_some_and(Encoder::needs_extremes);
            if !needs_extremes || !set.iter().all(is_computed) {
                continue;
            }
            let members = set.iter().filter_map(|at| self.rows(&weights[*at]));
            let shared = Arc::new(SharedExtremes::new(members.collect()));
            for at in set {
                if let CodesSource::Values { extremes, .. } = &mut weights[at].codes {
                    *extremes = Some(Arc::clone(&shared));
                }
            }
        }
    }

    /// Makes the step for a weight: quantizes or decodes it, or copies a plain one.
    fn emit_weight(&self, weight: WeightCandidate<'_, 'a>, steps: &mut Steps<'_, 'a>) -> Result<()> {
        let rows = self.rows(&weight);
        let WeightCandidate { at, name, input_weight, decision, codes, .. } = weight;
        let place = self.model.places[at];
        match (decision, rows, input_weight) {
            (Ok(SchemeTarget { scheme, .. }), Some(rows), _) => {
                steps.weight(Step::encode(place, (name, scheme.name), rows, codes, None))
            }
            (Err(reason), _, None) => steps.plain(place, Some(reason)),
            // A quantized weight of the old layout cannot stay next to the config of the new one.
            (decision, _, Some(found)) => {
                let own = self.model.own_type(found);
                if let Some(merge) = steps.merge_of(&found.name) {
                    let to = Form::Numbers(Storage::packed(own));
                    let step = self.model.merging(found, steps, (merge, to), decision.err(), false)?;
                    return steps.weight(step);
                }
                let decoder = self.model.decoder(found, own, Arithmetic::Library)?;
                // Numbers in another order, or with 1 added, are copied as far as users know.
                let kept = decision.err().filter(|_| found.has_plain_blocks());
                steps.weight(self.model.decoding(found, Arc::new(decoder), kept))
            }
            (Ok(_), None, None) => unreachable!("weights that do not fit are kept"),
        }
    }

    /// Returns the rows of a weight that is quantized.
    pub(super) fn rows(&self, candidate: &WeightCandidate) -> Option<WeightRows<'a>> {
        let encoder = WeightEncoder::Grid(Arc::clone(candidate.decision.as_ref().ok()?.encoder.as_ref()?));
        let sources = match candidate.input_weight {
            Some(found) => self.model.value_sources(found).collect(),
            None => Few::One(self.model.stored(candidate.at)),
        };
        let (values, changes) = (candidate.values.clone(), candidate.changes.clone());
        Some(WeightRows { sources, values, changes, encoder })
    }
}
