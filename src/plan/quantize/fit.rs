//! Makes the encoders, also for ONNX models, and keeps weights that do not fit, or that engines fuse with such weights.

use super::misfit::rule_refusal;
use super::mlx;
use super::planner::{Planner, SchemeTarget, WeightCandidate};
use crate::container::checkpoint::stack_of;
use crate::container::onnx::model::WeightUse;
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::options::QuantizeOptions;
use crate::plan::weight_rows::WeightValues;
use crate::progress::Misfit;
use crate::quant::{
    Arithmetic, CodeNodes, CodeType, Decoder, EncodeOptions, Encoder, FoundWeight, Group, LinearAxis, Rotation,
    RotationUse, ScaleChoice, Scheme, SchemeLayout, TargetGrid, Unfit, Zeros, codes_in_words,
};
use crate::select::KeptReason;
use crate::select::policy::{expert_sets, fused_sets};
use crate::text::{as_glob, as_numbered_glob, first_few};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Encoders, or the reason why there is none, by the properties that determine them: scheme, grid, shape and dtype of a
/// weight, whether it is multiplied in full precision, and the columns that are rotated together.
type EncoderCache<'k> =
    HashMap<(&'static str, TargetGrid, &'k [u64], Dtype, bool, Option<u64>), Result<Arc<Encoder>, Unfit>>;

/// Weight that a rule names and that does not fit the groups of its scheme.
struct NamedMisfit {
    name: String,
    scheme: &'static Scheme,
    why: Unfit,
}

impl Planner<'_, '_> {
    /// Makes the encoders. Keeps weights whose shape does not fit, and returns them. Refuses such a weight if a rule
    /// names it, or if it must stay quantized.
    pub(super) fn fit(&self, weights: &mut [WeightCandidate]) -> Result<Vec<Misfit>> {
        let mut encoders = EncoderCache::new();
        let (mut misfits, mut named) = (Vec::<Misfit>::new(), Vec::<NamedMisfit>::new());
        for WeightCandidate { name, shape, dtype, decision, is_named, input_weight, values, exact, .. } in &mut *weights
        {
            let Ok(target) = decision else { continue };
            let is_coded = input_weight.is_some();
            let coded = match &*values {
                WeightValues::Coded(decoder, _) => input_weight.map(|found| (found, &**decoder)),
                _ => None,
            };
            match self.encoders(target, (shape, *dtype), coded, &mut encoders) {
                Ok((encoder, of_codes)) => (target.encoder, *exact) = (Some(encoder), of_codes),
                Err(why) if *is_named && !is_coded => {
                    named.push(NamedMisfit { name: name.clone(), scheme: target.scheme, why });
                }
                Err(why) if is_coded && (*is_named || self.options.scheme.is_none()) => {
                    let scheme = target.scheme.name;
                    let error = Error::new(format!("cannot be stored as {scheme} in {}: {why}", self.layout));
                    let is_edge = matches!(why, Unfit::Rows { .. } | Unfit::Columns { .. });
                    let error = error.in_tensor(name);
                    return Err(if is_edge && target.scheme.has_partial_blocks(self.layout) {
                        error.with(Opt::PARTIAL_BLOCKS, "add {}; transformers and SGLang do not load such weights")
                    } else {
                        self.excludable(error, true, &[as_glob(name)])
                    });
                }
                Err(why) => {
                    Misfit::count(&mut misfits, &why, target.scheme, name, shape);
                    *decision = Err(KeptReason::Shape);
                }
            }
        }
        match named.first() {
            Some(first) => {
                let error = rule_refusal(first.scheme, &first.why).in_tensor(&first.name);
                Err(self.advise(error, &named, weights))
            }
            None => Ok(misfits),
        }
    }

    /// Makes the encoder for a weight and, if it is quantized, one for scales of the old type if they fit. Weights of one kind
    /// share them.
    fn encoders<'s>(
        &self,
        target: &SchemeTarget,
        (shape, dtype): (&'s [u64], Dtype),
        coded: Option<(&FoundWeight, &Decoder)>,
        encoders: &mut EncoderCache<'s>,
    ) -> Result<(Arc<Encoder>, Option<Arc<Encoder>>), Unfit> {
        let SchemeLayout { row: layout, grid, .. } = target.layout;
        let is_always = layout.rotation == RotationUse::Always && self.options.scheme.is_none();
        if is_always && coded.is_some_and(|(_, decoder)| decoder.rotation().is_none()) {
            return Err(Unfit::Grid);
        }
        let has_full_precision = coded.is_some_and(|(found, _)| found.parameters.has_full_precision);
        let rotation = self.rotation(target, coded.map(|(_, decoder)| decoder));
        let own = self.encoding();
        let is_exact = coded.is_some_and(|(found, _)| !found.has_plain_blocks());
        let arithmetic = if is_exact { Arithmetic::Exact } else { own.arithmetic };
        let options = EncodeOptions { arithmetic, rotation, has_full_precision, ..own };
        let mut new = |scale| {
            let key = (target.scheme.name, TargetGrid { scale, ..grid }, shape, dtype, has_full_precision, rotation);
            let new = || self.encoder(target, scale, shape, dtype, options).map(Arc::new);
            encoders.entry(key).or_insert_with(new).clone()
        };
        let Some((found, decoder)) = coded else { return Ok((new(grid.scale)?, None)) };
        // Moved scales keep their type, if the layout stores it.
        let old = decoder.grid().scale;
        let scale = match grid.scale {
            None if old.is_weight() => old,
            None => Dtype::Float32,
            Some(Dtype::Float32) if layout.kept_scales == Some(old) => old,
            Some(scale) => scale,
        };
        let exact = new(Some(scale)).ok();
        Ok((new(grid.scale.or(Some(self.model.own_type(found))))?, exact))
    }

    /// Adds the advice for weights that a rule names and that do not fit.
    fn advise(&self, error: Error, misfits: &[NamedMisfit], weights: &[WeightCandidate]) -> Error {
        let mut names: BTreeSet<&str> = misfits.iter().map(|misfit| &*misfit.name).collect();
        // Weights that engines load together can only be left out together.
        let sets: HashSet<_> = names.iter().filter_map(|name| self.policy.loaded_together(name)).collect();
        let is_with_them = |name: &&str| self.policy.loaded_together(name).is_some_and(|set| sets.contains(&set));
        names.extend(weights.iter().map(|weight| &*weight.name).filter(is_with_them));
        let mut globs = Vec::new();
        for name in &names {
            let is_of_glob = |other: &&WeightCandidate| as_numbered_glob(&other.name) == as_numbered_glob(name);
            let are_all = weights.iter().filter(is_of_glob).all(|other| names.contains(&*other.name));
            let glob = if are_all { as_numbered_glob(name) } else { as_glob(name) };
            if !globs.contains(&glob) {
                globs.push(glob);
            }
        }
        let fits = |size: &u64| {
            let multiple_of = |misfit: &NamedMisfit| match misfit.why {
                Unfit::Columns { columns, multiple } if misfit.scheme.has_group_size() => {
                    multiple > *size && columns.is_multiple_of(*size)
                }
                _ => false,
            };
            misfits.iter().all(multiple_of)
        };
        match [64, 32].into_iter().find(fits) {
            Some(size) => error.with_groups(size),
            None => error.leaving_out(&globs, false),
        }
    }

    /// Returns the columns that are rotated together if the layout has a rotation. A quantized weight stays as it is unless
    /// the options name a rotation, so that its codes can be moved.
    pub(super) fn rotation(&self, target: &SchemeTarget, decoder: Option<&Decoder>) -> Option<u64> {
        let own = decoder.and_then(Decoder::rotation);
        let is_optional = target.layout.row.rotation == RotationUse::Optional;
        match self.options.rotation {
            Some(rotation) => rotation.columns(),
            None if own.is_some() || decoder.is_some() && is_optional => own,
            None => Rotation::default().columns(),
        }
    }

    /// Makes the encoder for weights of this shape, with stored scales of this dtype; fails if engines would not load the
    /// result. Weights whose columns do not fit the rotation of `options` stay unrotated if the layout allows it.
    pub(super) fn encoder(
        &self,
        target: &SchemeTarget,
        scale: Option<Dtype>,
        shape: &[u64],
        dtype: Dtype,
        options: EncodeOptions,
    ) -> Result<Encoder, Unfit> {
        let (layout, grid) = (target.layout.row, TargetGrid { scale, ..target.layout.grid });
        if let [.., rows, columns] = *shape {
            let multiples = match (grid.group, grid.codes) {
                (Group::Block(block), _) if !self.options.partial_blocks => block,
                // vLLM reads whole words of zero points. It does not load the other widths.
                (_, CodeType::Int { bits: bits @ (4 | 8), symmetric: false }) if layout.zeros != Zeros::Offset => {
                    [codes_in_words(bits), 1]
                }
                _ => [1, 1],
            };
            if !columns.is_multiple_of(multiples[1]) {
                return Err(Unfit::Columns { columns, multiple: multiples[1] });
            }
            if !rows.is_multiple_of(multiples[0]) {
                return Err(Unfit::Rows { rows, multiple: multiples[0] });
            }
        }
        let columns = shape.last().copied().unwrap_or_default();
        let rotation = layout.rotation.of_rows(options.rotation, columns);
        let options = EncodeOptions { rotation, ..options };
        let new = |options| Encoder::new(layout, &grid, shape, dtype, options);
        match new(options) {
            // --search applies only to schemes whose scales can be searched.
            Err(Unfit::Search) => new(EncodeOptions { scale: ScaleChoice::Amax, ..options }),
            made => made,
        }
    }

    /// Returns the sets of weights that engines fuse, or load as the experts of a module.
    pub(super) fn loaded_together(&self, weights: &[WeightCandidate]) -> Vec<Vec<usize>> {
        if self.layout == mlx::NAME {
            return self.stacks(weights);
        }
        let fused = fused_sets(&self.policy, weights.iter().map(|weight| self.module(weight)));
        let experts = expert_sets(&self.policy, weights.iter().map(|weight| self.new_name(&weight.name)));
        fused.into_iter().chain(experts).collect()
    }

    /// Returns the sets of weights that MLX stacks.
    fn stacks(&self, weights: &[WeightCandidate]) -> Vec<Vec<usize>> {
        let mut stacks: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, weight) in weights.iter().enumerate() {
            if let Some(stack) = stack_of(self.module(weight)) {
                stacks.entry(stack).or_default().push(at);
            }
        }
        stacks.into_values().collect()
    }

    /// Keeps modules that engines fuse if their schemes would differ. Refuses options that request such a difference.
    pub(super) fn check_fused(&self, weights: &mut [WeightCandidate]) -> Result<()> {
        let sets = self.loaded_together(weights);
        for (place, set) in sets.iter().enumerate() {
            // A shared scale is stored in the type of the weights, so their types must be equal too.
            let scheme =
                |at: usize| weights[at].decision.as_ref().ok().map(|target| (target.scheme.name, weights[at].dtype));
            let is_mixed = |set: &[usize]| set.iter().any(|at| scheme(*at) != scheme(set[0]));
            let is_explicit = |set: &[usize]| set.iter().any(|at| weights[*at].is_named);
            if !is_mixed(set) {
                continue;
            }
            if is_explicit(set) {
                let names = first_few(set.iter().map(|at| &weights[*at].name), 3);
                let message = format!(
                    "engines fuse {names}: they can only be quantized together, from the same type to the same scheme, or \
                     kept together"
                );
                let error = Error::new(message).remedy("choose all of them");
                let explicit = sets[place..].iter().filter(|set| is_mixed(set) && is_explicit(set));
                let explicit: HashSet<usize> = explicit.flatten().copied().collect();
                let quantized = (0..weights.len()).filter(|at| weights[*at].decision.is_ok());
                let (left_out, others): (Vec<usize>, Vec<usize>) = quantized.partition(|at| explicit.contains(at));
                let numbered = |at: &usize| as_numbered_glob(&weights[*at].name);
                let others: HashSet<String> = others.iter().map(numbered).collect();
                // A pattern for all layers, unless it matches weights that can stay quantized.
                let glob = |at: &usize| {
                    let glob = numbered(at);
                    if others.contains(&glob) { as_glob(&weights[*at].name) } else { glob }
                };
                let globs: BTreeSet<String> = left_out.iter().map(glob).collect();
                let are_coded = set.iter().any(|at| weights[*at].coded().is_some());
                // If no weight were quantized, that would be an error too.
                let is_only_remedy = others.is_empty() || are_coded && self.keeps_values();
                let globs: Vec<String> = globs.into_iter().collect();
                return Err(if is_only_remedy { error } else { self.excludable(error, are_coded, &globs) });
            }
            for at in set {
                if weights[*at].decision.is_ok() {
                    weights[*at].decision = Err(KeptReason::Fused);
                }
            }
        }
        Ok(())
    }
}

/// Returns the encoder of a weight of this shape and type for a layout, with groups of a size that the layout has or of
/// this one.
pub(super) fn encoder_of_model(
    stored: &SchemeLayout,
    usage: WeightUse,
    (shape, dtype): (&[u64], Dtype),
    group: Option<Group>,
    options: &QuantizeOptions,
) -> Result<Encoder, Unfit> {
    let grid = stored.grid;
    // ONNX Runtime's tools use blocks only in matrices.
    let is_matrix = shape.len() == 2 && usage != WeightUse::Kernel;
    let has_blocks = matches!(grid.group, Group::Neighbours(_));
    if shape.len() < 2 || has_blocks && !is_matrix {
        return Err(Unfit::Dimensions(shape.to_vec()));
    }
    let encoding = EncodeOptions { arithmetic: options.arithmetic.of_decoder(), ..EncodeOptions::default() };
    let block_size = match (grid.group, group) {
        (Group::Neighbours(size), None) | (Group::Neighbours(_), Some(Group::Neighbours(size))) => size,
        (Group::Neighbours(_), Some(_)) => return Err(Unfit::Grid),
        _ => 0,
    };
    if stored.row.nodes != Some(CodeNodes::Decoding) && (block_size < 16 || !block_size.is_power_of_two()) {
        return Err(Unfit::Grid);
    }
    if stored.row.nodes == Some(CodeNodes::Product) {
        if usage != WeightUse::Product {
            return Err(Unfit::Operator);
        }
        let grid = TargetGrid { group: Group::Neighbours(block_size), ..grid };
        return Encoder::new(stored.row, &grid, &[shape[1], shape[0]], dtype, encoding);
    }
    let axis = match usage {
        _ if block_size > 0 => usize::from(matches!(usage, WeightUse::OutputsFirst | WeightUse::Table)),
        WeightUse::Product | WeightUse::OutputsLast => shape.len() - 1,
        WeightUse::OutputsFirst | WeightUse::Kernel | WeightUse::Table => 0,
    };
    Encoder::linear(stored.row, &grid, shape, LinearAxis { axis, block_size }, dtype, encoding)
}
