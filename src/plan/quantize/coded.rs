//! Weights that are quantized already: maps their rows to new weights, and checks if codes and scales can be moved
//! without changing a value.

use super::mlx;
use super::planner::{Choice, GPT_OSS, Planner, RuleUse, SchemeTarget, WeightCandidate};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::plan::quantization::CodesSource;
use crate::plan::weight_rows::WeightValues;
use crate::quant::{
    Arithmetic, CodeKind, CodeType, Fidelity, FoundWeight, Grid, Group, Modules, RowMap, SCHEMES, Scheme, SharedTables,
    Transcoder, config_of,
};
use crate::read::{Decoders, Model};
use crate::select::KeptReason;
use crate::select::experts::{experts, gpt_oss_experts};
use crate::select::policy::module_of;
use crate::text::shorten;
use crate::threads::each;
use std::sync::Arc;

/// Maximum number of names in a message.
const FEW: usize = 5;

/// Refuses quantized weights whose parts cannot be read in any order.
pub(super) fn check_is_readable(model: &Model) -> Result<()> {
    let Some(weight) = model.found.weights.iter().find(|weight| !model.is_readable(weight)) else { return Ok(()) };
    let error = Error::new("quantized weights are read from .safetensors files only").in_tensor(&weight.name);
    Err(error.in_file(&model.source.path))
}

/// Returns the scheme that has the same codes and groups in a layout; `None` if there is none.
fn same_grid(grid: &Grid, layout: &str) -> Option<SchemeTarget> {
    let is_same_codes = |codes: CodeType| match (grid.codes, codes) {
        (CodeKind::Dtype(Dtype::Int8), CodeType::Int { bits: 8, symmetric }) => {
            symmetric != (grid.has_zero_points || layout == mlx::NAME)
        }
        (CodeKind::Dtype(Dtype::Int4), CodeType::Int { bits: 4, symmetric }) => symmetric != grid.has_zero_points,
        (CodeKind::Dtype(dtype), CodeType::Float(own)) => dtype == own,
        (CodeKind::Centered(bits), CodeType::Int { bits: own, symmetric: true })
        | (CodeKind::Shifted(bits) | CodeKind::Offset(bits), CodeType::Int { bits: own, symmetric: false }) => {
            bits == own
        }
        // Zero points become offsets.
        (CodeKind::Centered(bits), CodeType::Int { bits: own, symmetric: false }) => layout == mlx::NAME && bits == own,
        _ => false,
    };
    let plain = |group: Group| if let Group::Block([1, size]) = group { Group::Neighbours(size) } else { group };
    let group = plain(grid.group?);
    let has_exponents = |scale: Option<Dtype>| matches!(scale, Some(Dtype::Float8E8M0 | Dtype::Uint8));
    let fit = |scheme: &'static Scheme| {
        let stored = scheme.in_layout(Some(layout)).filter(|stored| is_same_codes(stored.grid.codes))?;
        let is_same = plain(stored.grid.group) == group;
        let is_sized = match group {
            Group::Neighbours(_) | Group::Channel => scheme.has_group_size() && stored.row.has_group(group),
            _ => false,
        };
        let mut layout = *stored;
        if !is_same && is_sized {
            layout.grid.group = group;
        }
        // Prefers schemes whose scales are of the same kind, then schemes with the same groups in their first layout.
        let rank = (
            has_exponents(stored.grid.scale) == has_exponents(Some(grid.scale)),
            scheme.layouts.first().is_some_and(|first| plain(first.grid.group) == group),
        );
        (is_same || is_sized).then_some((rank, SchemeTarget { scheme, layout, encoder: None }))
    };
    // Takes the first of several schemes with the same rank.
    SCHEMES.iter().rev().filter_map(fit).max_by_key(|(rank, _)| *rank).map(|(_, target)| target)
}

impl<'p, 'a> Planner<'p, 'a> {
    /// Returns the scheme and grid for a weight with this grid in the new layout.
    pub(super) fn same_grid(&self, grid: &Grid) -> Result<SchemeTarget> {
        same_grid(grid, self.layout).ok_or_else(|| {
            let message = format!("no scheme of the layout {} has its codes and groups ({grid})", self.layout);
            Error::new(message).unstorable()
        })
    }

    /// Returns the candidates for a quantized weight: the weight, or the experts in a bank.
    pub(super) fn coded_candidates(
        &self,
        found: &'p FoundWeight,
        rules: &mut [RuleUse],
        decoders: &mut Decoders<'p, 'a>,
    ) -> Result<Vec<WeightCandidate<'p, 'a>>> {
        if self.layout == GPT_OSS {
            return Err(Error::new("is quantized already, and tcast writes the layout gpt-oss from plain models only"));
        }
        let is_plain = found.has_plain_blocks();
        // The values of a plain weight are encoded in their own type, like all plain weights.
        let decoder = if is_plain {
            Arc::new(self.model.decoder(found, self.model.own_type(found), Arithmetic::Library)?)
        } else {
            decoders.get(found)?
        };
        let dtype = decoder.target();
        self.model.check_parts(&decoder, found)?;
        let (name, shape) = (&found.name, decoder.shape().to_vec());
        let bank = if found.layout.interleaves_experts {
            gpt_oss_experts(name, &shape)
        } else {
            experts(self.facts, name, &shape)
        };
        // Without a scheme, the grid decides, and determining it requires the zero points. Plain weights then stay plain.
        let grid = match self.options.scheme {
            Some(_) => Some(decoder.grid()),
            None if is_plain => None,
            None => Some(decoder.plain_grid(&self.model.part_bytes(found)?)),
        };
        let Choice { decision: chosen, rule } = self.choice_for(name, bank.as_ref(), grid.as_ref())?;
        let is_named = rule.is_some() || matches!(chosen, Err(KeptReason::LeftOut));
        if let Some(rule) = rule {
            rules[rule].names_weight = true;
        }
        // Without a scheme, the policy keeps no quantized weight: all stay quantized.
        let has_few_bits = chosen.as_ref().is_ok_and(|target| target.layout.grid.codes.bits() <= 4);
        let is_kept_by_policy = !is_named && (is_plain || self.options.scheme.is_some());
        let reason = if is_kept_by_policy { self.reason(name, has_few_bits) } else { None };
        let decision = reason.map_or(chosen, Err);
        let is_matrix = shape.len() == 2 && module_of(name).is_some();
        let decision = if bank.is_some() || is_matrix { decision } else { decision.and(Err(KeptReason::NoMatrix)) };
        let candidate = WeightCandidate {
            at: found.codes(),
            name: name.clone(),
            input_weight: Some(found),
            values: WeightValues::Coded(decoder, RowMap::ALL),
            changes: None,
            shape,
            dtype,
            decision,
            is_named,
            exact: None,
            codes: CodesSource::COMPUTED,
        };
        self.divided(candidate, bank)
    }

    /// Moves codes and scales of quantized weights if possible; the values of the others are quantized again. Fails if a
    /// value would change and must not.
    pub(super) fn resolve(&self, weights: &mut [WeightCandidate]) -> Result<()> {
        // Weights that share a scalar scale are moved together, or not at all.
        let mut sets = self.scale_sets(weights);
        let is_coded = |at: &usize| weights[*at].coded().is_some();
        sets.retain(|set| set.iter().any(is_coded));
        let mut moves: Vec<Option<Result<Arc<Transcoder>, Unmoved>>> = vec![None; weights.len()];
        let (all, tables) = (&*weights, SharedTables::default());
        let transcoders = each(self.threads, sets.len(), |at| self.transcoders(all, &sets[at], &tables));
        for (set, transcoders) in sets.into_iter().zip(transcoders) {
            match transcoders.map_err(|error| error.in_file(&self.model.source.path))? {
                SetMove::Moved(found) => {
                    set.into_iter().zip(found).for_each(|(at, found)| moves[at] = Some(Ok(Arc::new(found))));
                }
                SetMove::Unmoved(why) => set.into_iter().filter(is_coded).for_each(|at| moves[at] = Some(Err(why))),
            }
        }
        if self.changes_layout_only() {
            let mut unmoved =
                weights.iter().zip(&moves).filter(|(_, moved)| matches!(moved, Some(Err(Unmoved::NoGrid))));
            let again = match unmoved.find_map(|(weight, _)| weight.decision.as_ref().ok()) {
                Some(target) => {
                    format!("choose a scheme to quantize these weights again, such as {}", target.scheme.name)
                }
                None => "choose a scheme to quantize these weights again".to_owned(),
            };
            let special = moves.iter().filter(|moved| matches!(moved, Some(Err(Unmoved::NotFinite)))).count();
            let allowed = [Fidelity::Exact, Fidelity::Rescaled, Fidelity::RoundedOffsets];
            Self::check_is_exact(weights, &moves, &allowed).map_err(|error| match special {
                0 => error.remedy(again),
                _ if special == moves.iter().flatten().count() => error,
                _ => error.with(
                    Opt::SCHEME,
                    "choose a scheme, and leave out the weights whose scale is not finite: these are decoded",
                ),
            })?;
        }
        if self.options.only_exact && !self.options.recover {
            let exact = Self::check_is_exact(weights, &moves, &[Fidelity::Exact]);
            exact.map_err(|error| error.without(Opt::ONLY_EXACT))?;
        }
        for (weight, moved) in weights.iter_mut().zip(moves) {
            if let (Some(Ok(transcoder)), Ok(target)) = (moved, &mut weight.decision) {
                target.encoder.clone_from(&weight.exact);
                weight.codes = CodesSource::Moved(transcoder);
            }
        }
        Ok(())
    }

    /// Returns the size of the groups with which a weight would keep its codes in the chosen scheme, if it loses them only
    /// because the default has another size.
    pub(super) fn groups_of_input(&self, weights: &[WeightCandidate]) -> Option<u64> {
        let is_encoded_again = |weight: &&WeightCandidate| {
            weight.input_weight.is_some_and(|found| !found.has_plain_blocks())
                && weight.decision.is_ok()
                && weight.changes.is_none()
                && matches!(weight.codes, CodesSource::Values { .. })
        };
        let weight = weights.iter().find(is_encoded_again).filter(|_| self.options.group_size.is_none())?;
        let (target, (decoder, _)) = (weight.decision.as_ref().ok()?, weight.coded()?);
        let grid = decoder.plain_grid(&self.model.part_bytes(weight.input_weight?).ok()?);
        let own = same_grid(&grid, self.layout)?;
        match own.layout.grid.group {
            Group::Neighbours(size) if own.scheme == target.scheme && own.layout != target.layout => Some(size),
            _ => None,
        }
    }

    /// Refuses weights that are not moved, or whose values would change more than allowed.
    fn check_is_exact(
        weights: &[WeightCandidate],
        moves: &[Option<Result<Arc<Transcoder>, Unmoved>>],
        allowed: &[Fidelity],
    ) -> Result<()> {
        let is_plain = |weight: &WeightCandidate| weight.input_weight.is_some_and(FoundWeight::has_plain_blocks);
        let changes = |(weight, moved): (&WeightCandidate, &Option<Result<Arc<Transcoder>, Unmoved>>)| {
            let why = match (&weight.decision, moved) {
                _ if weight.changes.is_some() => return None, // it changes anyway
                // The values of plain weights stay the same, in another order.
                (Err(_), _) if is_plain(weight) => return None,
                (Ok(_), _) if is_plain(weight) => "is not quantized in the input".to_owned(),
                (Ok(_), Some(Ok(found))) if allowed.contains(&found.fidelity()) => return None,
                (Ok(_), Some(Ok(found))) if found.fidelity() == Fidelity::RoundedOffsets => {
                    "its offsets would be rounded".to_owned()
                }
                (Ok(_), Some(Ok(_))) => "its global scale has no exact reciprocal".to_owned(),
                (Ok(target), Some(Err(Unmoved::NoGrid))) => {
                    let obstacle = obstacle(weight, target);
                    format!("its codes and scales cannot be moved to {}{obstacle}", target.scheme.name)
                }
                (Ok(_), Some(Err(Unmoved::NotFinite))) => "a scale is NaN or infinite".to_owned(),
                (Ok(_), Some(Err(Unmoved::UnequalGlobals))) => {
                    "its global scale differs from those of the weights that engines fuse with it".to_owned()
                }
                (Ok(_), None) => "is not quantized in the input".to_owned(),
                (Err(reason), _) if weight.input_weight.is_some() => {
                    format!("would be decoded ({})", reason.describe())
                }
                (Err(_), _) => return None,
            };
            Some(format!("{}: {why}", shorten(&weight.name)))
        };
        let details = weights.iter().zip(moves).filter_map(changes).collect();
        refuse_some("not every weight can keep its codes and scales: no output was written", details)
    }

    /// True if only the layout of the model changes, and not its quantization.
    fn changes_layout_only(&self) -> bool {
        self.options.scheme.is_none() && self.options.rule.is_empty()
    }

    /// True if no quantized weight may be decoded.
    pub(super) fn keeps_values(&self) -> bool {
        self.changes_layout_only() || self.options.only_exact && !self.options.recover
    }

    /// Returns the text of config.json without the description of the input's quantization.
    pub(super) fn plain_config(&self, text: &str) -> Result<String> {
        let target = self.model.is_quantized().then(|| self.model.default_target());
        if target.is_none() && !self.model.found.is_undecoded && self.model.source.base.is_none() {
            return Ok(text.to_owned());
        }
        let decoded = self.model.found.weights.iter().map(|weight| &*weight.module).collect();
        let modules = Modules { decoded, ..Modules::default() };
        config_of(text, self.model.found.method.as_deref(), &modules, target)
    }

    /// Makes a transcoder for each weight of a set that shares a scale, or returns the reason why none is moved.
    fn transcoders(&self, weights: &[WeightCandidate], set: &[usize], tables: &SharedTables) -> Result<SetMove> {
        let mut found = Vec::with_capacity(set.len());
        for at in set {
            let weight = &weights[*at];
            let (Some((decoder, rows)), Some(exact), Some(input)) =
                (weight.coded(), &weight.exact, weight.input_weight)
            else {
                return Ok(SetMove::Unmoved(Unmoved::NoGrid));
            };
            let parts = self.model.part_bytes(input)?;
            let new = Transcoder::new(Arc::clone(decoder), rows, Arc::clone(exact), &parts, tables)?;
            let Some(transcoder) = new else { return Ok(SetMove::Unmoved(Unmoved::NoGrid)) };
            found.push((transcoder, parts));
        }
        let exponents = found.iter().filter(|(transcoder, _)| transcoder.needs_exponent());
        let exponent = exponents.filter_map(|(transcoder, parts)| transcoder.largest_exponent(parts)).max();
        if !found.iter_mut().all(|(transcoder, parts)| transcoder.settle(exponent, parts).is_some()) {
            let keeps_values = self.keeps_values();
            let has_special = || found.iter().any(|(transcoder, parts)| transcoder.has_special_scale(parts));
            let is_special = keeps_values && has_special();
            return Ok(SetMove::Unmoved(if is_special { Unmoved::NotFinite } else { Unmoved::NoGrid }));
        }
        let transcoders: Vec<Transcoder> = found.into_iter().map(|(transcoder, _)| transcoder).collect();
        // Engines read one global scale for the whole set, and would multiply some codes by another weight's scale.
        let is_shared = transcoders.windows(2).all(|pair| pair[0].global().to_bits() == pair[1].global().to_bits());
        Ok(if is_shared { SetMove::Moved(transcoders) } else { SetMove::Unmoved(Unmoved::UnequalGlobals) })
    }
}

/// The move of weights that share a scale.
enum SetMove {
    /// A transcoder for each.
    Moved(Vec<Transcoder>),
    Unmoved(Unmoved),
}

/// Reason why codes and scales of a weight are not moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unmoved {
    /// The new layout has no codes and scales for all values of the weight, or of a weight that shares its scale.
    /// Quantizing it again may still keep its values, which only the result shows.
    NoGrid,
    /// A scale of the weight, or of a weight that shares its scale, is NaN or infinite, and nothing may be quantized
    /// again.
    NotFinite,
    /// Weights that engines fuse have different global scales.
    UnequalGlobals,
}

/// Describes why a scheme has no codes and scales for a weight, as far as that is known.
fn obstacle(weight: &WeightCandidate, target: &SchemeTarget) -> &'static str {
    let Some((decoder, _)) = weight.coded() else { return "" };
    let (grid, new) = (decoder.grid(), &target.layout.grid);
    let has_zero_points = matches!(new.codes, CodeType::Int { symmetric: false, .. });
    let has_block_scales = |group: Group| matches!(group, Group::Block([height, _]) if height > 1);
    match grid.group.map(has_block_scales) {
        _ if grid.global_scale.is_some() && target.layout.encoding().scale.global.is_none() => {
            ", which has no global scale"
        }
        _ if matches!(grid.codes, CodeKind::Offset(_)) && target.layout.name != mlx::NAME => ", which has no offsets",
        _ if grid.has_zero_points && !has_zero_points => ", which has no zero points",
        Some(true) if !has_block_scales(new.group) => ", which has no scales of blocks",
        Some(false) if has_block_scales(new.group) => ", whose scales are of blocks",
        _ => "",
    }
}

/// Fails if there are details, with the first few of them.
pub(super) fn refuse_some(message: &str, mut details: Vec<String>) -> Result<()> {
    if details.is_empty() {
        return Ok(());
    }
    let count = details.len();
    if count > FEW {
        details.truncate(FEW);
        details.push(format!("and {} more", count - FEW));
    }
    Err(Error::new(message).with_details(details))
}
