//! Weights of ONNX models that are quantized already: their codes and scales move to the operator of another layout.

use super::fit::encoder_of_model;
use crate::container::onnx::model::{Dequantization, ModelGraph, TensorRole, WeightUse};
use crate::error::{Error, Opt, Result};
use crate::options::QuantizeOptions;
use crate::plan::Step;
use crate::plan::quantization::CodesSource;
use crate::plan::steps::Steps;
use crate::plan::weight_rows::{WeightRows, WeightValues};
use crate::quant::{
    CodeNodes, FoundWeight, Group, Role, RowMap, Scheme, SchemeLayout, TransposeObstacle, Transposer, WeightEncoder,
    Zeros,
};
use crate::read::Model;
use crate::select::KeptReason;
use crate::text::counted;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The weights that move, and those that could not.
#[derive(Default)]
pub(super) struct TransposedWeights<'a> {
    /// By the index of their codes.
    moved: HashMap<usize, Step<'a>>,
    /// Their scales and zero points.
    parts: HashSet<usize>,
    /// Scales and zero points that other nodes use too, and that stay.
    needed: HashSet<usize>,
    obstacles: Vec<Obstacle>,
}

/// Weights that do not move, for one reason.
struct Obstacle {
    why: TransposeObstacle,
    scheme: &'static Scheme,
    layout: &'static SchemeLayout,
    /// The name of the first.
    first: String,
    count: u64,
}

impl Obstacle {
    /// Returns what is wrong as an error about the first weight of a model.
    fn error(&self, model: &Path) -> Error {
        let others = match self.count - 1 {
            0 => String::new(),
            others => format!(", like {}", counted(others, "other weight")),
        };
        let error = Error::new(format!("keeps its codes and nodes{others}: {}", self.why)).in_tensor(&self.first);
        self.advise(error, model)
    }

    /// Adds the choice with which the codes would move, or else the model to decode.
    fn advise(&self, error: Error, model: &Path) -> Error {
        match self.why {
            TransposeObstacle::ZeroPoint(_) => {
                let asymmetric = Scheme::find(&format!("{}-asym", self.scheme.name));
                if let Some(scheme) = asymmetric.filter(|scheme| scheme.in_model(Some(self.layout.name)).is_some()) {
                    return error.with_value(
                        Opt::SCHEME,
                        scheme.name,
                        format!("choose the scheme {}, which has zero points", scheme.name),
                    );
                }
            }
            TransposeObstacle::Blocks { old: size, .. } if self.layout.has_group_size() => {
                let has_any = self.layout.row.nodes == Some(CodeNodes::Decoding);
                if has_any || size >= 16 && size.is_power_of_two() {
                    return error.with_groups(size);
                }
            }
            _ => {}
        }
        error.decoding(model)
    }
}

impl<'a> TransposedWeights<'a> {
    /// Finds the weights that the options choose, and that nodes of the other kind decode or compute with. Fails if one
    /// that a rule names cannot move.
    pub(super) fn find(model: &Model<'a>, options: &QuantizeOptions, graph: &ModelGraph) -> Result<Self> {
        let (mut found, mut folded) = (Self::default(), Vec::new());
        for weight in &model.found.weights {
            let names = [model.tensors[weight.codes()].name, &weight.name];
            let rule = options.rule.iter().find(|rule| rule.pattern.matches_one(&names));
            let scheme = rule.map_or(options.scheme, |rule| rule.scheme);
            let Some(scheme) = scheme.filter(|_| !options.tensors.leaves_out(&names)) else { continue };
            let Some(layout) = scheme.in_model(options.layout) else { continue };
            let kinds = [weight.layout.nodes, layout.row.nodes];
            let other = [CodeNodes::Decoding, CodeNodes::Product].map(Some);
            if kinds != other && kinds != [other[1], other[0]] {
                continue;
            }
            let decoded = graph.dequantizations_of(weight.codes());
            match transposed(model, (graph, decoded), weight, (scheme, layout), options)? {
                Ok(step) => {
                    found.parts.extend(weight.parts.iter().filter(|(role, _)| *role != Role::Codes).map(|part| part.1));
                    folded.extend(decoded);
                    found.moved.insert(weight.codes(), step);
                }
                // Such as biases, whose codes are of 32 bits.
                Err(TransposeObstacle::OtherUses) if weight.shape.len() < 2 => {}
                Err(why) => {
                    let obstacle = Obstacle { why, scheme, layout, first: weight.name.clone(), count: 1 };
                    if rule.is_some() {
                        return Err(obstacle.error(&model.source.path));
                    }
                    // Without a rule, all have the same scheme.
                    match found.obstacles.iter_mut().find(|known| known.why == obstacle.why) {
                        Some(known) => known.count += 1,
                        None => found.obstacles.push(obstacle),
                    }
                }
            }
        }
        found.needed = graph.parts_of_others(&folded);
        Ok(found)
    }

    /// True if no weight moves.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns what keeps the others in a model from moving.
    pub(super) fn errors(&self, model: &Path) -> impl Iterator<Item = Error> {
        self.obstacles.iter().map(move |obstacle| obstacle.error(model))
    }

    /// Adds the advice for the first of them to an error, or the model to decode.
    pub(super) fn advise(&self, error: Error, model: &Path) -> Error {
        match self.obstacles.first() {
            Some(obstacle) => obstacle.advise(error, model),
            None => error.decoding(model),
        }
    }

    /// Makes the step for a tensor if it is part of a weight that moves. Returns true if it is.
    pub(super) fn emit(&mut self, at: usize, steps: &mut Steps<'_, 'a>) -> Result<bool> {
        if let Some(step) = self.moved.remove(&at) {
            steps.weight(step)?;
        } else if self.needed.contains(&at) {
            steps.plain((0, at), Some(KeptReason::Role(TensorRole::Scale)))?;
        } else if !self.parts.contains(&at) {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Returns the move of a weight to a layout, or the reason why its codes and scales stay.
fn transposed<'a>(
    model: &Model<'a>,
    (graph, folded): (&ModelGraph, &[Dequantization]),
    weight: &FoundWeight,
    (scheme, layout): (&'static Scheme, &'static SchemeLayout),
    options: &QuantizeOptions,
) -> Result<Result<Step<'a>, TransposeObstacle>> {
    let [folded] = folded else { return Ok(Err(TransposeObstacle::SeveralScales)) };
    let becomes_product = layout.row.nodes == Some(CodeNodes::Product);
    if becomes_product && graph.decoded_use(folded) != Some(WeightUse::Product) {
        return Ok(Err(TransposeObstacle::OtherUses));
    }
    if weight.part(Role::GroupIndex).is_some() {
        return Ok(Err(TransposeObstacle::GroupIndex));
    }
    if weight.layout.zeros == Zeros::Scaled {
        return Ok(Err(TransposeObstacle::ScaledZeroPoints));
    }
    let decoder = Arc::new(model.decoder_of_rows(weight)?);
    let own = match decoder.grid().group {
        Some(Group::Block([size, 1]) | Group::Neighbours(size)) => Some(size),
        _ => None,
    };
    // The default replaces blocks of a size for which ONNX Runtime has no kernels, such as whole columns.
    let own = own.filter(|size| !becomes_product || size.is_power_of_two() && (16..=256).contains(size));
    let group = options.group_size.or(own.map(Group::Neighbours));
    let dtype = model.target_of(weight);
    let encoder = encoder_of_model(layout, WeightUse::Product, (&weight.shape, dtype), group, options);
    let encoder = match encoder {
        Ok(encoder) => Arc::new(encoder),
        Err(why) => return Ok(Err(TransposeObstacle::Unfit(why))),
    };
    let parts = model.part_bytes(weight)?;
    let transposer = match Transposer::new(&decoder, &encoder, &parts) {
        Ok(transposer) => Arc::new(transposer),
        Err(why) => return Ok(Err(why)),
    };
    let rows = WeightRows {
        sources: model.value_sources(weight).collect(),
        values: WeightValues::Coded(decoder, RowMap::ALL),
        changes: None,
        encoder: WeightEncoder::Grid(encoder),
    };
    let (place, name) = ((0, weight.codes()), (weight.name.clone(), scheme.name));
    Ok(Ok(Step::encode(place, name, rows, CodesSource::Transposed(transposer), None)))
}
