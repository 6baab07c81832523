//! Finds the weights that share a scale, and hands the decisions to the plan.

use super::{Planner, StoredAs, WeightCandidates};
use crate::plan::{PlainWeight, TensorIndex, Weights};
use crate::select::policy::{fused_sets, module_of};

impl Planner<'_> {
    /// The decisions in the form that the plan needs.
    pub(super) fn weights(&self, found: WeightCandidates) -> Weights {
        let mut weights = Weights::default();
        for (place, reason) in found.others {
            weights.keep(place, reason);
        }
        let mut by_place: Vec<(TensorIndex, Vec<PlainWeight>)> = Vec::new();
        let mut places: Vec<Option<(usize, usize)>> = Vec::new();
        for weight in &found.weights {
            match &weight.stored {
                Err(reason) => {
                    weights.keep(weight.place, *reason);
                    places.push(None);
                }
                Ok(StoredAs { scheme, encoder, .. }) => {
                    let encoder = encoder.clone().expect("weights that do not fit are kept");
                    let plain = PlainWeight {
                        name: weight.name.clone(),
                        first_row: weight.first_row,
                        encoder,
                        scheme,
                        shared: None,
                    };
                    match by_place.last_mut().filter(|(place, _)| *place == weight.place) {
                        Some((_, weights)) => weights.push(plain),
                        None => by_place.push((weight.place, vec![plain])),
                    }
                    let at = by_place.len() - 1;
                    places.push(Some((at, by_place[at].1.len() - 1)));
                }
            }
        }
        let modules = found.weights.iter().map(|weight| module_of(self.new_name(&weight.name)).unwrap_or_default());
        let mut sets = fused_sets(&self.policy, modules);
        let mut is_in_set = vec![false; places.len()];
        sets.iter().flatten().for_each(|at| is_in_set[*at] = true);
        sets.extend((0..places.len()).filter(|at| !is_in_set[*at]).map(|at| vec![at]));
        for set in sets {
            let members: Vec<(usize, usize)> = set.iter().filter_map(|at| places[*at]).collect();
            let Some(&(at, number)) = members.first() else { continue };
            if !by_place[at].1[number].encoder.needs_extremes() {
                continue;
            }
            let member = |&(at, number): &(usize, usize)| (by_place[at].0, by_place[at].1[number].clone());
            let shared = weights.share(members.iter().map(member).collect());
            for (at, number) in members {
                by_place[at].1[number].shared = Some(shared);
            }
        }
        for (place, plain) in by_place {
            weights.quantize(place, plain);
        }
        weights
    }
}
