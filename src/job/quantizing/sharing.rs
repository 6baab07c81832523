//! Finds the weights that share a scale, and passes the decisions to the plan.

use super::{Planner, StoredAs, Values, WeightCandidate, WeightCandidates, coded};
use crate::error::Result;
use crate::plan::{CodedRows, QuantizedWeight, Recovery, TargetWeight, TensorIndex, WeightValues, Weights};
use crate::quant::Encoder;
use crate::select::policy::fused_sets;
use std::sync::Arc;

impl Planner<'_> {
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

    /// Converts the decisions to the form that the plan needs.
    pub(super) fn weights(
        &self,
        found: WeightCandidates,
        rows: Vec<Option<Arc<CodedRows>>>,
        recovered: Vec<Option<Recovery>>,
    ) -> Result<Weights> {
        let mut weights = Weights::default();
        for (place, reason) in found.others {
            weights.keep(place, reason);
        }
        let mut by_place: Vec<(TensorIndex, Vec<TargetWeight>)> = Vec::new();
        let mut places: Vec<Option<(usize, usize)>> = Vec::new();
        for (weight, (rows, recovery)) in found.weights.iter().zip(rows.into_iter().zip(recovered)) {
            match &weight.stored {
                Err(reason) => {
                    match &weight.values {
                        Values::Stored(_) => weights.keep(weight.place, *reason),
                        // A quantized weight of the old layout cannot stay next to the config of the new one.
                        Values::Coded(coded) => weights.add(QuantizedWeight {
                            name: weight.name.clone(),
                            parts: self.places(coded.weight),
                            decoder: coded::library_decoder(self.source, coded.weight)?,
                        }),
                    }
                    places.push(None);
                }
                Ok(StoredAs { scheme, encoder, .. }) => {
                    let encoder = encoder.clone().expect("weights that do not fit are kept");
                    let values = match (&weight.values, rows) {
                        (Values::Stored(values), _) => values.clone(),
                        (Values::Coded(coded), rows) => {
                            let parts = self.places(coded.weight);
                            parts[1..].iter().for_each(|part| weights.leave_out(*part));
                            WeightValues::Coded(rows.expect("quantized weights are resolved"))
                        }
                    };
                    let name = weight.name.clone();
                    let target = TargetWeight { name, values, encoder, scheme, shared: None, recovery };
                    match by_place.last_mut().filter(|(place, _)| *place == weight.place) {
                        Some((_, weights)) => weights.push(target),
                        None => by_place.push((weight.place, vec![target])),
                    }
                    let at = by_place.len() - 1;
                    places.push(Some((at, by_place[at].1.len() - 1)));
                }
            }
        }
        for set in self.scale_sets(&found.weights) {
            let members: Vec<(usize, usize)> = set.iter().filter_map(|at| places[*at]).collect();
            let Some(&(at, number)) = members.first() else { continue };
            let first = &by_place[at].1[number];
            if !first.encoder.needs_extremes() || first.has_scales() {
                continue;
            }
            let member = |&(at, number): &(usize, usize)| (by_place[at].0, by_place[at].1[number].clone());
            let shared = weights.share(members.iter().map(member).collect());
            for (at, number) in members {
                by_place[at].1[number].shared = Some(shared);
            }
        }
        for (place, targets) in by_place {
            weights.quantize(place, targets);
        }
        Ok(weights)
    }
}
