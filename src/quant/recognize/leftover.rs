//! The tensors that belong to no weight: values, markers, scales of activations, and parts of incomplete weights.

use super::block::Claim;
use super::found::{Problem, Recognized};
use super::modules::Listed;
use super::names::{FAMILIES, Stray, decoded, is_activation_scale, kind, stray};
use super::weigh::Finder;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::quant::{Layout, Names, Role, find};
use crate::text::shorten;
use std::collections::HashSet;

/// Maximum number of recorded problems.
const MOST: usize = 1000;

impl Recognized {
    pub(super) fn add(&mut self, problem: Problem) {
        if self.problems.len() < MOST {
            self.problems.push(problem);
        }
    }
}

/// Sorts all unused tensors into the lists.
pub(super) fn sort(finder: &Finder, is_used: &[bool], found: &mut Recognized) {
    let tensors = finder.source.tensors;
    let activations = found.weights.iter().flat_map(|weight| &weight.parts).filter(|part| part.0 == Role::Activation);
    found.activation_scales = activations.map(|(_, index)| *index).collect();
    let codes = found.weights.iter().flat_map(|weight| &weight.parts).filter(|part| part.0 == Role::Codes);
    let codes: HashSet<(String, Option<Dtype>)> =
        codes.map(|(_, index)| (kind(tensors[*index].name), tensors[*index].dtype)).collect();
    let dtypes: HashSet<Option<Dtype>> = codes.iter().map(|(_, dtype)| *dtype).collect();
    let is_quantized = finder.claims.method.is_some() || !found.weights.is_empty() || !found.orphans.is_empty();
    for (index, tensor) in tensors.iter().enumerate().filter(|(index, _)| !is_used[*index]) {
        let name = tensor.name;
        let is_narrow = tensor.dtype.is_some_and(is_code);
        let error = if finder.layers.markers.contains(&index) {
            found.markers.push(index);
            continue;
        } else if is_quantized && is_activation_scale(name) {
            found.activation_scales.push(index);
            continue;
        } else if let Some(stray) = stray(name).or_else(|| stray_by_dtype(name, tensor.dtype)) {
            match stray {
                Stray::Codes => missing_scale(name, None),
                Stray::PartOf(codes) => match finder.places.get(&*codes) {
                    // The description of the codes is right; only their scale is missing.
                    Some(&index) if name.ends_with(".comfy_quant") && tensors[index].dtype.is_some_and(is_code) => {
                        missing_scale(tensors[index].name, finder.layers.claim(finder.source, name).as_ref())
                    }
                    _ => orphan(finder, name, codes).in_tensor(name),
                },
            }
        } else if let Some(stem) = name.strip_suffix(".pre_quant_scale") {
            let message = format!("multiplies the input of '{}', and would be lost", shorten(stem));
            Error::new(message).in_tensor(name)
        } else if tensor.shape.len() >= 2 && is_narrow {
            let (_, module) = decoded(name.strip_suffix(".weight").unwrap_or(name), "");
            let said = finder.claims.on(&module);
            let is_named = |layout: &Layout| {
                let mut parts = layout.names.iter().copied().flatten();
                name.ends_with(".weight") || parts.any(|(role, end)| *role == Role::Codes && name.ends_with(end))
            };
            let is_claimed = said.claims.iter().any(|claim| {
                let mut layouts = claim.layouts.iter().filter_map(|name| find(name)).filter(|layout| is_named(layout));
                layouts.any(|layout| layout.codes.dtypes.iter().any(|dtype| Some(*dtype) == tensor.dtype))
            });
            let is_float = tensor.dtype.is_some_and(Dtype::is_floating);
            let is_alike = codes.contains(&(kind(name), tensor.dtype));
            let is_only = is_float && dtypes.contains(&tensor.dtype);
            let is_codes = match said.ignored {
                Some(Listed::Firmly(_) | Listed::Loosely(_)) => false,
                // ComfyUI describes each layer that is quantized, and loads others as they are stored.
                None => is_claimed || finder.layers.is_empty() && (is_alike || is_only),
            };
            if !is_codes {
                found.plain.push(index);
                continue;
            }
            missing_scale(name, said.claims.first().copied())
        } else {
            found.plain.push(index);
            continue;
        };
        found.orphans.push(index);
        found.add(Problem { tensors: vec![index], error });
    }
    let modules: HashSet<&str> = found.weights.iter().map(|weight| &*weight.module).collect();
    let orphans: HashSet<usize> = found.orphans.iter().copied().collect();
    let is_missing = |layer: &&String| {
        let weight = finder.places.get(&*format!("{layer}.weight"));
        !modules.contains(&***layer) && !weight.is_some_and(|index| orphans.contains(index))
    };
    if let Some(layer) = finder.layers.names().filter(is_missing).min() {
        let message = format!("ComfyUI's description is of '{}', and there are no codes with scales", shorten(layer));
        found.add(Problem { tensors: Vec::new(), error: Error::new(message) });
    }
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

fn missing_scale(name: &str, claim: Option<&Claim>) -> Error {
    let said = claim.map(|claim| format!(": {}", claim.said)).unwrap_or_default();
    let is_said = |(layout, _): &(&Layout, Names)| claim.is_none_or(|claim| claim.layouts.contains(&layout.name));
    // The longest names come first.
    let mut families = FAMILIES.iter().filter(|family| family.rows.iter().any(is_said));
    let scale = families.find_map(|family| Some(format!("{}{}", name.strip_suffix(family.codes)?, family.scale)));
    let expected = scale.map(|scale| format!(" ('{}')", shorten(&scale))).unwrap_or_default();
    Error::new(format!("holds codes, and their scales{expected} are missing{said}")).in_tensor(name)
}

/// Returns the error for a tensor without matching codes. These are expected under the name `codes`, or under their
/// name in the layout that the config names.
fn orphan(finder: &Finder, name: &str, codes: String) -> Error {
    let said = finder.claims.on(codes.strip_suffix(".weight").unwrap_or(&codes));
    let is_said = |(layout, _): &(&Layout, Names)| said.claims.iter().any(|claim| claim.layouts.contains(&layout.name));
    let mut families = FAMILIES.iter().filter(|family| family.rows.iter().any(is_said));
    let claimed = families.find_map(|family| Some(format!("{}{}", name.strip_suffix(family.scale)?, family.codes)));
    let codes = claimed.filter(|_| !finder.places.contains_key(&*codes)).unwrap_or(codes);
    let shown = shorten(&codes);
    Error::new(match finder.places.get(&*codes).map(|index| finder.source.tensors[*index].dtype) {
        None => format!("belongs to codes '{shown}', which are missing"),
        Some(Some(dtype)) => format!("belongs to '{shown}', which is {dtype} and not codes that it fits"),
        Some(None) => format!("belongs to '{shown}', whose dtype tcast does not know"),
    })
}
