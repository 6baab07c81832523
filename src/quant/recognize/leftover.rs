//! The tensors that belong to no weight: values, markers, scales of activations, and parts of incomplete weights.

use super::checkpoint::{FoundWeight, Problem, Recognized, StoredTensor};
use super::names::{FAMILIES, Family, Stray, decoded, is_activation_scale, kind, stray};
use super::weight::Evidence;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::quant::config::{ModuleConfig, WeightDescription};
use crate::quant::libraries::LayerDescriptions;
use crate::quant::{Layout, Role};
use crate::text::shorten;
use std::collections::HashSet;
use std::rc::Rc;

/// Facts about the weights of a checkpoint that tell what its other tensors are.
#[derive(Default)]
pub(super) struct WeightFacts {
    /// The kinds of names that codes have, with their dtypes.
    codes: HashSet<(String, Option<Dtype>)>,
    /// The modules, if single layers are described.
    modules: HashSet<String>,
    activation_scales: Vec<usize>,
    has_weights: bool,
}

impl WeightFacts {
    pub(super) fn add(&mut self, evidence: &Evidence, weight: &FoundWeight) {
        self.has_weights = true;
        for (role, index) in &weight.parts {
            let StoredTensor { name, dtype, .. } = evidence.source.tensors[*index];
            match role {
                Role::Codes => self.codes.extend([(kind(name), dtype)]),
                Role::Activation => self.activation_scales.push(*index),
                _ => {}
            }
        }
        if !evidence.layers.is_empty() {
            self.modules.insert(weight.module.clone());
        }
    }
}

/// Sorts all unused tensors into the lists.
pub(super) fn sort(evidence: &Evidence, is_used: &[bool], weights: WeightFacts, recognized: &mut Recognized) {
    let tensors = evidence.source.tensors;
    let WeightFacts { codes, modules, activation_scales, has_weights } = weights;
    recognized.activation_scales = activation_scales;
    let is_quantized = evidence.config.method.is_some() || has_weights || !recognized.orphans.is_empty();
    for (index, tensor) in tensors.iter().enumerate().filter(|(index, _)| !is_used[*index]) {
        if evidence.layers.markers.contains(&index) {
            recognized.markers.push(index);
        } else if is_quantized && is_activation_scale(tensor.name) {
            recognized.activation_scales.push(index);
        } else if let Some(error) = problem(evidence, &codes, tensor) {
            recognized.orphans.push(index);
            recognized.add(Problem { tensors: vec![index], error });
        } else {
            recognized.plain.push(index);
        }
    }
    let orphans: HashSet<usize> = recognized.orphans.iter().copied().collect();
    let is_missing = |layer: &&String| {
        let weight = evidence.indices.get(&*format!("{layer}.weight"));
        !modules.contains(&**layer) && !weight.is_some_and(|index| orphans.contains(index))
    };
    if let Some(layer) = evidence.layers.names().filter(is_missing).min() {
        recognized.add(Problem { tensors: Vec::new(), error: LayerDescriptions::without_codes(layer) });
    }
}

/// Returns the error for a tensor that must belong to a weight; `None` for values. `codes` are the codes of weights.
fn problem(evidence: &Evidence, codes: &HashSet<(String, Option<Dtype>)>, tensor: &StoredTensor) -> Option<Error> {
    let StoredTensor { name, dtype, shape } = *tensor;
    match stray(name).or_else(|| stray_by_dtype(name, dtype)) {
        Some(Stray::Codes) => return Some(missing_scale(name, None)),
        Some(Stray::PartOf(codes)) => {
            // The description of the codes is right; only their scale is missing.
            let described = evidence.indices.get(&*codes).map(|index| evidence.source.tensors[*index]);
            let described = described.filter(|tensor| tensor.dtype.is_some_and(is_code));
            return Some(match (name.strip_suffix(LayerDescriptions::SUFFIX), described) {
                (Some(layer), Some(tensor)) => {
                    let description = evidence.layers.describe(evidence.source, layer).ok().flatten();
                    missing_scale(tensor.name, description.as_ref())
                }
                _ => orphan(evidence, name, codes),
            });
        }
        None => {}
    }
    let changes = [
        (".pre_quant_scale", "multiplies"),
        ("_act_pre_scale", "multiplies"), // torchao
        (".input_rotation", "rotates"),   // Quark
    ];
    if let Some((stem, does)) = changes.iter().find_map(|(end, does)| Some((name.strip_suffix(end)?, does))) {
        let message = format!("{does} the input of '{}', and would be lost", shorten(stem));
        return Some(Error::new(message).in_tensor(name));
    }
    let narrow = dtype.filter(|dtype| is_code(*dtype) && shape.len() >= 2)?;
    let (_, module) = decoded(name.strip_suffix(".weight").unwrap_or(name), "");
    let ModuleConfig { ignored, descriptions } = evidence.config.describe(&module);
    let is_named = |layout: &Layout| {
        let mut parts = layout.names.iter().copied().flatten();
        name.ends_with(".weight") || parts.any(|(role, end)| *role == Role::Codes && name.ends_with(end))
    };
    let mut layouts = descriptions.iter().flat_map(|description| &description.layouts);
    let is_described = layouts.any(|layout| layout.codes.dtypes.contains(&narrow) && is_named(layout));
    // If layers are described, each that is quantized is, and others are loaded as they are stored.
    let is_like_others = || {
        let is_only = narrow.is_floating() && codes.iter().any(|(_, other)| *other == dtype);
        evidence.layers.is_empty() && (is_only || codes.contains(&(kind(name), dtype)))
    };
    let is_ignored = ignored.is_some() || evidence.config.may_ignore(&module);
    let is_codes = !is_ignored && (is_described || is_like_others());
    is_codes.then(|| missing_scale(name, descriptions.first().map(|description| &**description)))
}

/// True if tensors of a dtype can be codes even without other evidence.
fn is_code(dtype: Dtype) -> bool {
    dtype.bits() <= 8 && dtype != Dtype::Bool
}

/// Identifies parts of layouts by their dtype, because other tensors can have the same names.
fn stray_by_dtype(name: &str, dtype: Option<Dtype>) -> Option<Stray> {
    let (end, codes) = match dtype? {
        Dtype::Float8E8M0 => (".scale", ".weight"),
        Dtype::Uint8 if name.ends_with("_blocks") => return Some(Stray::Codes),
        Dtype::Uint8 => ("_scales", "_blocks"),
        _ => return None,
    };
    Some(Stray::PartOf(format!("{}{codes}", name.strip_suffix(end)?)))
}

/// Returns the families of layouts for which a condition holds, the longest names first.
fn families(is_meant: impl Fn(&'static Layout) -> bool) -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().filter(move |family| family.rows.iter().any(|(layout, _)| is_meant(layout)))
}

fn missing_scale(name: &str, description: Option<&WeightDescription>) -> Error {
    let wording = description.map(|description| format!(": {}", description.wording)).unwrap_or_default();
    let is_described = |layout| description.is_none_or(|description| description.layouts.contains(&layout));
    let scale = families(is_described).find_map(|family| family.scale_of(name));
    let expected = scale.map(|scale| format!(" ('{}')", shorten(&scale))).unwrap_or_default();
    Error::new(format!("holds codes, and their scales{expected} are missing{wording}")).in_tensor(name)
}

/// Returns the error for a tensor without matching codes. These are expected under the name `codes`, or under their
/// name in the layout that the config names.
fn orphan(evidence: &Evidence, name: &str, codes: String) -> Error {
    let descriptions = evidence.config.describe(codes.strip_suffix(".weight").unwrap_or(&codes)).descriptions;
    let is_described =
        |layout| descriptions.iter().any(|description: &Rc<WeightDescription>| description.layouts.contains(&layout));
    let described = families(is_described).find_map(|family| family.codes_of(name));
    let codes = described.filter(|_| !evidence.indices.contains_key(&*codes)).unwrap_or(codes);
    let shown = shorten(&codes);
    let message = match evidence.indices.get(&*codes).map(|index| evidence.source.tensors[*index].dtype) {
        None => format!("belongs to codes '{shown}', which are missing"),
        Some(Some(dtype)) => format!("belongs to '{shown}', which is {dtype} and not codes that it fits"),
        Some(None) => format!("belongs to '{shown}', whose dtype tcast does not know"),
    };
    Error::new(message).in_tensor(name)
}
