//! Names of the parts of weights in all layouts.

use crate::quant::layout::suffix;
use crate::quant::libraries::layouts;
use crate::quant::{Layout, Names, Role};
use crate::text::is_number;
use std::array;
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
    for (layout, names) in layouts().flat_map(|layout| layout.names.iter().map(move |names| (layout, *names))) {
        let [codes, scale] = [Role::Codes, Role::Scale].map(|role| suffix(names, role).unwrap_or_default());
        match families.iter_mut().find(|family| (family.codes, family.scale) == (codes, scale)) {
            Some(family) => family.rows.push((layout, names)),
            None => families.push(Family { codes, scale, rows: vec![(layout, names)] }),
        }
    }
    // `x.weight` with `x.weight_scale_inv` also looks like a tensor `x.weight` with the suffix `_scale_inv`.
    families.sort_by_key(|family| std::cmp::Reverse(family.codes.len()));
    families
});

impl Family {
    /// Returns the name of the scales of these codes, if the codes have the suffix of the family.
    pub(super) fn scale_of(&self, codes: &str) -> Option<String> {
        Some(format!("{}{}", codes.strip_suffix(self.codes)?, self.scale))
    }

    /// Returns the name of the codes of these scales, if the scales have the suffix of the family.
    pub(super) fn codes_of(&self, scale: &str) -> Option<String> {
        Some(format!("{}{}", scale.strip_suffix(self.scale)?, self.codes))
    }
}

/// Codes and scale that belong together according to their names.
pub(super) struct Pair<'a> {
    pub(super) stem: &'a str,
    pub(super) family: &'static Family,
    pub(super) scale: usize,
}

/// Returns the scale tensors whose names match these codes. A valid checkpoint has exactly one.
pub(super) fn pairs<'a>(name: &'a str, places: &HashMap<&str, usize>) -> Vec<Pair<'a>> {
    let mut pairs = Vec::<Pair>::new();
    for family in FAMILIES.iter() {
        let Some(stem) = name.strip_suffix(family.codes) else { continue };
        let Some(&scale) = places.get(&*format!("{stem}{}", family.scale)) else { continue };
        if !pairs.iter().any(|other| other.scale == scale) {
            pairs.push(Pair { stem, family, scale });
        }
    }
    pairs
}

/// Returns the names that the scales of a tensor may have if it holds codes, in known layouts and in others.
pub fn scale_names(name: &str) -> impl Iterator<Item = String> {
    FAMILIES.iter().filter_map(|family| family.scale_of(name)).chain(std::iter::once(format!("{name}_scale")))
}

/// Returns the name of the decoded tensor, given the name of its codes in a layout.
pub(crate) fn decoded_name(layout: &Layout, codes: &str) -> String {
    let suffixes = layout.names.iter().filter_map(|names| suffix(names, Role::Codes));
    let stems = suffixes.filter_map(|suffix| Some((codes.strip_suffix(suffix)?, suffix)));
    let longest = stems.max_by_key(|(_, suffix)| suffix.len());
    longest.map_or_else(|| codes.to_owned(), |(stem, suffix)| decoded(stem, suffix).0)
}

/// Returns the names of the decoded tensor and of its module.
pub(super) fn decoded(stem: &str, codes: &str) -> (String, String) {
    match codes {
        "" | "_blocks" | ".blocks" => (stem.to_owned(), stem.strip_suffix(".weight").unwrap_or(stem).to_owned()),
        // torchao stores a parameter `x` of a module as `_x_qdata`.
        "_qdata" => {
            let name = stem.rsplit_once("._").map(|(module, parameter)| format!("{module}.{parameter}"));
            let name = name.unwrap_or_else(|| stem.to_owned());
            let module = name.strip_suffix(".weight").unwrap_or(&name).to_owned();
            (name, module)
        }
        _ => (format!("{stem}.weight"), stem.to_owned()),
    }
}

/// Suffixes of parts of layouts that other tensors have too.
const COMMON: &[&str] = &["", ".weight", ".scale", ".scales", "_scales", ".blocks", "_blocks", "_scale", "_zero_point"];

/// Suffixes that only scales of activations and related tensors have.
static ACTIVATIONS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let others = [".output_zero_point", ".prob_scale", ".prob_output_scale", ".k_zero_point", ".v_zero_point"];
    let caches = [".q_scale", ".k_scale", ".v_scale", ".kv_scale"];
    let parts = layouts().flat_map(|layout| layout.names).copied().flatten();
    let of_layouts = parts.filter(|(role, _)| *role == Role::Activation).map(|(_, suffix)| *suffix);
    let mut all: Vec<&str> = of_layouts.chain(others).chain(caches).collect();
    all.sort_unstable();
    all.dedup();
    all
});

/// The suffix of a part, and the suffix of its codes; `None` for codes.
type PartSuffix = (&'static str, Option<&'static str>);

/// Suffixes that only parts of quantized weights have, listed by their last byte, because a million names may be compared
/// with them.
static PARTS: LazyLock<[Vec<PartSuffix>; 256]> = LazyLock::new(|| {
    // The suffixes of torchao are longer than in the table. The others are parts of undecoded layouts.
    let mut all = vec![
        ("._weight_scale", Some("._weight_qdata")),
        ("._weight_zero_point", Some("._weight_qdata")),
        ("_weight_scale", Some("")),
        ("_weight_scale_2", Some("")),
        (".weight._shift", Some(".weight._data")),
        (".weight_zero_point", Some(".weight_packed")),
    ];
    for names in layouts().flat_map(|layout| layout.names) {
        for (role, end) in names.iter().filter(|(role, end)| *role != Role::Activation && !COMMON.contains(end)) {
            if !all.iter().any(|(other, _)| other == end) {
                all.push((end, suffix(names, Role::Codes).filter(|_| *role != Role::Codes)));
            }
        }
    }
    let last_byte = |end: &str| end.bytes().last().map(usize::from);
    array::from_fn(|byte| all.iter().filter(|(end, _)| last_byte(end) == Some(byte)).copied().collect())
});

/// True if a tensor has the name of a scale of activations.
pub fn is_activation_scale(name: &str) -> bool {
    ACTIVATIONS.iter().any(|end| name.ends_with(end))
}

/// Kind of a tensor that belongs to no weight, according to its name.
pub(super) enum Stray {
    Codes,
    /// Part of the codes with this name.
    PartOf(String),
}

/// Returns the kind of a tensor that belongs to no weight; `None` if its name does not show it.
pub(super) fn stray(name: &str) -> Option<Stray> {
    let parts = &PARTS[usize::from(*name.as_bytes().last()?)];
    let (stem, codes) = parts.iter().find_map(|(end, codes)| Some((name.strip_suffix(end)?, codes)))?;
    Some(codes.map_or(Stray::Codes, |codes| Stray::PartOf(format!("{stem}{codes}"))))
}

/// True if only parts of quantized weights have such a name.
pub fn is_named_as_part(name: &str) -> bool {
    stray(name).is_some()
}

/// Removes the numbers from a name: the rest is common to all layers.
pub(super) fn kind(name: &str) -> String {
    name.split('.').map(|part| if is_number(part) { "" } else { part }).collect::<Vec<_>>().join(".")
}
