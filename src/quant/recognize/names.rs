//! Names of the parts of weights in all layouts.

use crate::quant::{LAYOUTS, Layout, Names, Role};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Layouts whose codes and scales have the same names.
pub(super) struct Family {
    /// The suffix of codes.
    pub(super) codes: &'static str,
    /// The suffix of scales, which replaces the suffix of codes.
    pub(super) scale: &'static str,
    pub(super) rows: Vec<(&'static Layout, Names)>,
}

pub(super) static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(|| {
    let mut families = Vec::<Family>::new();
    for (layout, names) in LAYOUTS.iter().flat_map(|layout| layout.names.iter().map(move |names| (layout, *names))) {
        let suffix = |wanted: Role| names.iter().find(|(role, _)| *role == wanted).map_or("", |(_, suffix)| *suffix);
        let (codes, scale) = (suffix(Role::Codes), suffix(Role::Scale));
        match families.iter_mut().find(|family| (family.codes, family.scale) == (codes, scale)) {
            Some(family) => family.rows.push((layout, names)),
            None => families.push(Family { codes, scale, rows: vec![(layout, names)] }),
        }
    }
    // `x.weight` with `x.weight_scale_inv` also looks like a tensor `x.weight` with the suffix `_scale_inv`.
    families.sort_by_key(|family| std::cmp::Reverse(family.codes.len()));
    families
});

/// Codes and scale that belong together according to their names.
pub(super) struct Pair<'a> {
    pub(super) stem: &'a str,
    pub(super) family: &'static Family,
    pub(super) scale: usize,
}

/// Returns the scale tensors whose names match these codes. A valid checkpoint has exactly one.
pub(super) fn pairs<'a>(name: &'a str, places: &HashMap<&str, usize>) -> Vec<Pair<'a>> {
    let mut found = Vec::<Pair>::new();
    for family in FAMILIES.iter() {
        let Some(stem) = name.strip_suffix(family.codes) else { continue };
        let Some(&scale) = places.get(&*format!("{stem}{}", family.scale)) else { continue };
        if !found.iter().any(|other| other.scale == scale) {
            found.push(Pair { stem, family, scale });
        }
    }
    found
}

/// Returns the names that the scales of a tensor may have if it holds codes, in known layouts and in others.
pub fn scale_names(name: &str) -> impl Iterator<Item = String> {
    let scale = |family: &Family| Some(format!("{}{}", name.strip_suffix(family.codes)?, family.scale));
    FAMILIES.iter().filter_map(scale).chain(std::iter::once(format!("{name}_scale")))
}

pub(super) fn decoded(stem: &str, codes: &str) -> (String, String) {
    match codes {
        ".weight" | ".weight_packed" | ".qweight" | ".weight._data" => (format!("{stem}.weight"), stem.to_owned()),
        _ => (stem.to_owned(), stem.strip_suffix(".weight").unwrap_or(stem).to_owned()),
    }
}

/// Names of scales of activations, and of related tensors.
const ACTIVATION: &[&str] = &[
    ".input_scale",
    ".input_global_scale",
    ".input_zero_point",
    ".output_scale",
    ".output_zero_point",
    ".activation_scale",
    "_activation_scale",
    ".qscale_act",
    ".scale_input",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".k_zero_point",
    ".v_zero_point",
    ".prob_scale",
    ".prob_output_scale",
    ".kv_scale",
];

/// True if a tensor has the name of a scale of activations.
pub fn is_activation_scale(name: &str) -> bool {
    ACTIVATION.iter().any(|end| name.ends_with(end))
}

/// Suffixes that identify a tensor as a part of a quantized weight, with the suffix of its codes. The latter is empty
/// if the tensor is the codes itself or, for a scale, if its codes have no suffix.
const TELLING: &[(&str, &str)] = &[
    (".weight_packed", ""),
    (".qweight", ""),
    (".weight._data", ""),
    (".weight_scale_inv", ".weight"),
    ("_scale_inv", ""),
    ("_scales_inv", ""),
    (".weight_scale", ".weight"),
    (".weight_scale_2", ".weight"),
    ("_weight_scale", ""),
    ("_weight_scale_2", ""),
    (".weight_global_scale", ".weight_packed"),
    (".weight_zero_point", ".weight_packed"),
    (".weight_g_idx", ".weight_packed"),
    (".weight_shape", ".weight_packed"),
    (".qzeros", ".qweight"),
    (".g_idx", ".qweight"),
    (".qscale_weight", ".weight"),
    (".scale_weight", ".weight"),
    (".comfy_quant", ".weight"),
    (".weight.absmax", ".weight"),
    (".weight.quant_map", ".weight"),
    (".weight.nested_absmax", ".weight"),
    (".weight.nested_quant_map", ".weight"),
    (".weight.quant_state.bitsandbytes__nf4", ".weight"),
    (".weight.quant_state.bitsandbytes__fp4", ".weight"),
    (".SCB", ".weight"),
    (".weight_format", ".weight"),
    (".weight._scale", ".weight._data"),
    (".weight._shift", ".weight._data"),
];

/// Kind of a tensor that belongs to no weight, according to its name.
pub(super) enum Stray {
    Codes,
    /// Part of the codes with this name.
    PartOf(String),
}

/// Returns the kind of a tensor that belongs to no weight; `None` if its name does not show it.
pub(super) fn stray(name: &str) -> Option<Stray> {
    let (end, codes) = TELLING.iter().find(|(end, _)| name.ends_with(end))?;
    let stem = &name[..name.len() - end.len()];
    Some(if codes.is_empty() && !end.contains("scale") {
        Stray::Codes
    } else {
        Stray::PartOf(format!("{stem}{codes}"))
    })
}

/// True if only parts of quantized weights have such a name.
pub fn is_named_as_part(name: &str) -> bool {
    stray(name).is_some()
}

/// Removes the numbers from a name: the rest is common to all layers.
pub(super) fn kind(name: &str) -> String {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.split('.').map(|part| if is_number(&part) { "" } else { part }).collect::<Vec<_>>().join(".")
}
