//! Finds the codes and scales of plain weights that were decoded from the scheme to which they are quantized.
//!
//! The decision covers whole weights, and all weights that share a scale, so it is made before anything is written.
//! Weights that were never quantized fail within the first of their groups; others are read once more. A run that
//! writes some of the shards searches only the weights in these shards, and weights that share a scale with them.

use super::coded::refuse_some;
use super::planner::{Planner, SchemeTarget, WeightCandidate};
use crate::dtype::Dtype;
use crate::error::{Opt, Result};
use crate::plan::partition::{chosen_shards, shard_sizes};
use crate::plan::quantization::{CodesSource, Unrecovered};
use crate::plan::weight_rows::{WeightRows, in_pieces};
use crate::progress::Observer;
use crate::quant::{Encoder, Extremes, Recoverer, ScaleMatch, SharedScale};
use crate::text::shorten;
use std::collections::HashMap;
use std::sync::Arc;

/// Weights that try the same candidate at a time.
struct RecoverySet<'a> {
    members: Vec<Member<'a>>,
    /// The remaining candidates, the next one last: the index of the recoverer, and the scale that all members share.
    left: Vec<(usize, SharedScale)>,
    found: Option<(usize, SharedScale)>,
    /// True if a scale was found that another weight of the family does not share.
    is_refused: bool,
    /// Relation of the recovered scales to the values.
    matched: ScaleMatch,
}

struct Member<'a> {
    /// Its index among all weights.
    weight: usize,
    rows: WeightRows<'a>,
    /// One for each type that its values may have had before they were quantized.
    recoverers: Vec<Arc<Recoverer>>,
    /// The furthest element at which a search failed, in row-major order.
    misfit: Option<u64>,
}

impl<'a> Planner<'_, 'a> {
    /// Finds the codes and scales of plain weights to quantize, if that is requested. Fails if a weight must be recovered
    /// and is not.
    pub(super) fn recover(&self, weights: &mut [WeightCandidate], observer: &dyn Observer) -> Result<()> {
        if !self.options.recover {
            return Ok(());
        }
        // Weights that share a scalar scale first try a common one.
        let families = self.scale_sets(weights);
        let mut recoverers = HashMap::new();
        let mut members = |family: &Vec<usize>| -> Option<Vec<Member>> {
            family.iter().map(|at| self.member(*at, &weights[*at], &mut recoverers)).collect()
        };
        let mut sets: Vec<RecoverySet> = families.iter().filter_map(&mut members).map(RecoverySet::new).collect();
        let chosen = chosen_shards(&shard_sizes(self.model.source), self.partition);
        let is_chosen = |member: &Member| chosen.contains(&self.model.places[weights[member.weight].at].0);
        sets.retain(|set| set.determines_parts() || set.members.iter().any(is_chosen));
        self.search(&mut sets, observer)?;
        // Some libraries do not share the scale, so each weight is tried alone.
        let (alone, mut done): (Vec<RecoverySet>, Vec<RecoverySet>) =
            sets.into_iter().partition(|set| set.found.is_none() && set.members.len() > 1);
        let sizes: Vec<usize> = alone.iter().map(|set| set.members.len()).collect();
        let each = alone.into_iter().flat_map(|set| set.members);
        let mut alone: Vec<RecoverySet> = each.map(|member| RecoverySet::new(vec![member])).collect();
        self.search(&mut alone, observer)?;
        let mut rest = &mut alone[..];
        for size in sizes {
            let (family, others) = rest.split_at_mut(size);
            // Weights of a family are recovered together or not at all.
            if family.iter().any(|set| set.found.is_none()) {
                for set in family {
                    set.is_refused = set.found.take().is_some();
                }
            }
            rest = others;
        }
        done.append(&mut alone);
        for RecoverySet { members, found, is_refused, matched, .. } in done {
            for Member { weight, recoverers, misfit, .. } in members {
                let unrecovered = |why| CodesSource::Values { extremes: None, unrecovered: Some(why) };
                weights[weight].codes = match found {
                    Some((number, scale)) => {
                        let recoverer = Arc::clone(&recoverers[number]);
                        if let Ok(target) = &mut weights[weight].decision {
                            target.encoder = Some(Arc::clone(recoverer.encoder()));
                        }
                        CodesSource::Recovered(recoverer, scale, matched)
                    }
                    None if is_refused => unrecovered(Unrecovered::NotShared),
                    None => unrecovered(Unrecovered::NotFound(misfit)),
                };
            }
        }
        if self.options.only_exact { check_is_recovered(weights) } else { Ok(()) }
    }

    /// Returns a weight to search, if it is quantized from plain values. Weights with the same encoder share
    /// recoverers.
    fn member(
        &self,
        weight: usize,
        candidate: &WeightCandidate,
        recoverers: &mut HashMap<*const Encoder, Vec<Arc<Recoverer>>>,
    ) -> Option<Member<'a>> {
        let (Ok(target), None, None) = (&candidate.decision, candidate.input_weight, &candidate.changes) else {
            return None;
        };
        // The plan refuses tensors that are not mapped.
        let rows = self.rows(candidate).filter(|rows| rows.sources[0].is_plain())?;
        let encoder = target.encoder.as_ref()?;
        let recoverers =
            recoverers.entry(Arc::as_ptr(encoder)).or_insert_with(|| self.recoverers(candidate, target, encoder));
        Some(Member { weight, rows, recoverers: recoverers.clone(), misfit: None })
    }

    /// Makes a recoverer for each type that the values of a weight may have had before they were quantized.
    fn recoverers(
        &self,
        candidate: &WeightCandidate,
        target: &SchemeTarget,
        encoder: &Arc<Encoder>,
    ) -> Vec<Arc<Recoverer>> {
        if encoder.rotation().is_some() {
            return Vec::new();
        }
        let options = self.encoding();
        let recoverer = |encoder, origin| Arc::new(Recoverer::new(encoder, origin, options.arithmetic));
        // Values of narrower weights may have been decoded to a wider type; their scales are then narrow too.
        let narrower: &[Dtype] = match candidate.dtype {
            Dtype::Bfloat16 => &[],
            Dtype::Float16 => &[Dtype::Bfloat16],
            _ => &[Dtype::Bfloat16, Dtype::Float16],
        };
        let of_narrower = |&origin: &Dtype| {
            let scale = target.layout.grid.scale.or(Some(origin));
            let narrow = self.encoder(target, scale, &candidate.shape, candidate.dtype, options);
            Some(recoverer(Arc::new(narrow.ok()?), origin))
        };
        narrower.iter().filter_map(of_narrower).chain([recoverer(Arc::clone(encoder), candidate.dtype)]).collect()
    }

    fn search(&self, sets: &mut [RecoverySet], observer: &dyn Observer) -> Result<()> {
        self.look_ahead(sets, observer)?;
        // Each round tries one candidate of each set; most weights have a single one.
        loop {
            let tried: Vec<Option<(usize, SharedScale)>> = sets.iter_mut().map(RecoverySet::next).collect();
            if tried.iter().all(Option::is_none) {
                return Ok(());
            }
            let mut misfits: Vec<(usize, usize, u64)> = Vec::new();
            let mut matched = vec![ScaleMatch::Derived; sets.len()];
            let weights = weights(sets, |set| tried[set].is_some());
            let check = |(set, member): (usize, usize), rows, source: &[u8], _: &mut Vec<u8>| {
                let (number, shared) = tried[set].expect("only such sets are searched");
                sets[set].members[member].recoverers[number].check(rows, source, &shared)
            };
            in_pieces(self.threads, ("recovering", observer), &weights, check, |(set, member), found| match found {
                Ok(ScaleMatch::Derived) => {}
                Ok(ScaleMatch::Equivalent) => matched[set] = ScaleMatch::Equivalent,
                Err(_) if misfits.iter().any(|(known, ..)| *known == set) => {}
                Err(element) => misfits.push((set, member, element)),
            })?;
            for (set, matched) in sets.iter_mut().zip(matched).filter(|(set, _)| set.found.is_none()) {
                set.matched = matched;
            }
            for (set, tried) in sets.iter_mut().zip(tried) {
                set.found = set.found.or(tried);
            }
            for (set, member, element) in misfits {
                let set = &mut sets[set];
                let misfit = &mut set.members[member].misfit;
                *misfit = Some(misfit.map_or(element, |known| known.max(element)));
                set.found = None;
            }
        }
    }

    /// Lists the candidates. Finds the largest magnitude of weights that need it, unless their first values rule out
    /// that they are codes times scales.
    fn look_ahead(&self, sets: &mut [RecoverySet], observer: &dyn Observer) -> Result<()> {
        let mut buffer = Vec::new();
        let mut needs_extremes = Vec::with_capacity(sets.len());
        for set in &*sets {
            let mut may_fit = set.needs_extremes();
            for member in &set.members {
                if may_fit {
                    let rows = 0..member.rows.encoder.row_alignment().min(member.rows.encoder.rows());
                    may_fit = member.recoverers[0].may_fit(member.rows.read(rows, &mut buffer)?);
                }
            }
            needs_extremes.push(may_fit);
        }
        let mut found = vec![Extremes::default(); sets.len()];
        let weights = weights(sets, |set| needs_extremes[set]);
        let look = |(set, member): (usize, usize), _, source: &[u8], _: &mut Vec<u8>| {
            Ok(Extremes::of(sets[set].members[member].rows.dtype(), source, 0))
        };
        in_pieces(self.threads, ("first pass", observer), &weights, look, |(set, _), next| {
            if let Ok(next) = next {
                found[set].merge(&next);
            }
        })?;
        for ((set, found), may_fit) in sets.iter_mut().zip(found).zip(needs_extremes) {
            if !set.needs_extremes() || may_fit && found.largest.is_finite() {
                set.prepare(found.largest as f32); // of values of 32 bits and fewer
            }
        }
        Ok(())
    }
}

impl<'a> RecoverySet<'a> {
    fn new(members: Vec<Member<'a>>) -> Self {
        Self { members, left: Vec::new(), found: None, is_refused: false, matched: ScaleMatch::Derived }
    }

    fn needs_extremes(&self) -> bool {
        self.members[0].rows.encoder.needs_extremes()
    }

    /// True if the types or shapes of its parts depend on the result of the search: every run needs these, for the
    /// index.
    fn determines_parts(&self) -> bool {
        let mut pairs = self.members.iter().flat_map(|member| member.recoverers.windows(2));
        pairs.any(|pair| pair[0].encoder().parts() != pair[1].encoder().parts())
    }

    /// Lists the candidates, given the largest magnitude of all members.
    fn prepare(&mut self, largest: f32) {
        for (number, recoverer) in self.members[0].recoverers.iter().enumerate() {
            self.left.extend(recoverer.shared_scales(largest).into_iter().map(|shared| (number, shared)));
        }
        self.left.reverse();
    }

    /// Returns the next candidate; `None` if the search is over.
    fn next(&mut self) -> Option<(usize, SharedScale)> {
        if self.found.is_some() { None } else { self.left.pop() }
    }
}

/// Returns the weights of some sets, each with the index of its set and its own index there.
fn weights<'s, 'a>(
    sets: &'s [RecoverySet<'a>],
    is_open: impl Fn(usize) -> bool,
) -> Vec<((usize, usize), &'s WeightRows<'a>)> {
    let open = sets.iter().enumerate().filter(|(set, _)| is_open(*set));
    let of_set = |(set, it): (usize, &'s RecoverySet<'a>)| {
        it.members.iter().enumerate().map(move |(member, it)| ((set, member), &it.rows))
    };
    open.flat_map(of_set).collect()
}

fn check_is_recovered(weights: &[WeightCandidate]) -> Result<()> {
    let failed = weights.iter().filter_map(|weight| match weight.codes {
        CodesSource::Values { unrecovered: Some(Unrecovered::NotFound(element)), .. } => {
            let columns = weight.shape.last().copied().unwrap_or(1).max(1);
            let place =
                element.map(|element| format!(", from element {:?} on", [element / columns, element % columns]));
            let scheme = weight.decision.as_ref().map_or("", |target| target.scheme.name);
            let (name, place) = (shorten(&weight.name), place.unwrap_or_default());
            Some(format!("{name}: no codes and scales of {scheme} decode to its values{place}"))
        }
        CodesSource::Values { unrecovered: Some(Unrecovered::NotShared), .. } => Some(format!(
            "{}: its values can be recovered, but not those of a weight that shares its scale",
            shorten(&weight.name)
        )),
        _ => None,
    });
    refuse_unrecovered(failed.collect())
}

/// Fails if there are weights that must be recovered and are not; `failed` describes each.
pub(in crate::plan) fn refuse_unrecovered(failed: Vec<String>) -> Result<()> {
    let error = "some weights cannot be recovered, which is not allowed: no output was written";
    refuse_some(error, failed).map_err(|error| error.without(Opt::ONLY_EXACT))
}
