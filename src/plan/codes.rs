//! Tensors of codes in a checkpoint whose weights are quantized. Codes mean nothing without their scales. Casting only
//! the codes would ruin the model silently.

use super::source::known_dtype;
use crate::container::checkpoint::{Checkpoint, beside};
use crate::container::{Input, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::quant::{ONNX, Role, can_be_part, is_named_as_part, scale_names};
use crate::read::{LogicalCheckpoint, Membership};
use crate::select::{Candidate, KeptReason, Selection};
use crate::text::{as_glob, shorten};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

/// The tensors of a checkpoint that a cast must not treat as values.
#[derive(Debug, Default)]
pub struct Codes {
    reasons: HashMap<String, String>,
    /// Scales that are floats, with the name and the dtype of the codes that mean nothing without them as they are.
    scales: HashMap<String, Option<(String, Option<Dtype>)>>,
    /// The checkpoint to decode instead.
    model: Option<PathBuf>,
}

/// Whether a tensor of this type can hold codes. Weights of wider floats beside a scale are values: the scale is that of
/// activations, or they were unpacked.
fn can_be_codes(dtype: Option<Dtype>) -> bool {
    !dtype.is_some_and(|dtype| dtype.bits() > 8 && dtype.is_floating())
}

impl Codes {
    /// Finds them. Files beside a checkpoint are read only where it can have codes.
    ///
    /// # Errors
    /// When one of these files cannot be read.
    pub fn of(source: &Checkpoint) -> Result<Self> {
        let mut found = Self::default();
        let is_shard = source.folder.is_none();
        let can_be_of_codes = |(shard, tensor): (&Input, &Tensor)| is_shard && is_named_as_part(shard.name_of(tensor));
        if !source.tensors().any(|tensor| can_be_part(known_dtype(tensor.1, None)) || can_be_of_codes(tensor)) {
            return Ok(found);
        }
        let model = LogicalCheckpoint::probe(source);
        let others = if is_shard { beside(&source.path)? } else { Vec::new() };
        let quantization = source.quantization()?;
        let name = |at: usize| model.tensors[at].name;
        let is_code = |at: &usize| can_be_codes(model.tensors[*at].dtype);
        let codes_at = |at: usize| (name(at).to_owned(), model.tensors[at].dtype);
        for weight in &model.found.weights {
            let part = |wanted| weight.parts.iter().find(|(role, _)| *role == wanted).map(|(_, at)| *at);
            let scale = part(Role::Scale).map_or("", name);
            for &(role, at) in weight.parts.iter().filter(|(role, _)| *role != Role::Activation) {
                if role == Role::Codes {
                    found.add(name(at), format!("holds codes whose scales are in '{}'", shorten(scale)));
                } else if !is_code(&at) {
                    // Scales of an ONNX model are tensors of its graph, which a cast converts like others.
                    let codes = part(Role::Codes).filter(|_| weight.layout.name != ONNX.name);
                    found.scales.insert(name(at).to_owned(), codes.map(codes_at));
                } else {
                    let why = format!("holds the {} of '{}'", role.describe(), shorten(&weight.name));
                    found.add(name(at), why);
                }
            }
        }
        for problem in &model.found.problems {
            // The codes of a weight that cannot be decoded come first.
            let codes = problem.tensors.first().filter(|_| problem.tensors.len() > 1);
            for at in &problem.tensors {
                if is_code(at) || Some(at) == codes {
                    found.add(name(*at), problem.error.message().to_owned());
                } else if let Some(codes) = codes {
                    found.scales.insert(name(*at).to_owned(), Some(codes_at(*codes)));
                }
            }
        }
        // Scales in other shards or of an unknown layout, and configs that tcast does not understand.
        let unknown = model.found.problems.iter().find(|problem| problem.tensors.is_empty());
        let names = model.tensors.iter().map(|tensor| tensor.name).chain(others.iter().map(String::as_str));
        let names: HashSet<&str> = names.collect();
        let parts: HashSet<usize> =
            model.found.weights.iter().flat_map(|weight| &weight.parts).map(|part| part.1).collect();
        for (at, tensor) in model.tensors.iter().enumerate() {
            let is_elsewhere = !others.is_empty() && quantization.is_some() && !parts.contains(&at);
            if is_elsewhere && !is_code(&at) && is_named_as_part(tensor.name) {
                found.add(tensor.name, "holds scales of codes that are in another shard".to_owned());
            }
        }
        for (at, tensor) in model.tensors.iter().enumerate().filter(|(_, tensor)| can_be_part(tensor.dtype)) {
            if found.reasons.contains_key(tensor.name) {
                continue;
            }
            if let Some(scale) = scale_names(tensor.name).find(|scale| names.contains(scale.as_str())) {
                found.add(tensor.name, format!("holds codes whose scales are in '{}'", shorten(&scale)));
                found.scales.insert(scale, Some(codes_at(at)));
            } else if let Some(problem) = unknown {
                let method = quantization.as_ref().map(|method| shorten(method));
                let why = match method {
                    Some(method) => format!("holds codes: the config says that the model is quantized ({method})"),
                    None => format!("may hold codes ({})", problem.error),
                };
                found.add(tensor.name, why);
            }
        }
        found.scales.retain(|name, _| !found.reasons.contains_key(name));
        let is_readable = || model.memberships().iter().any(|membership| matches!(membership, Membership::Codes(_)));
        found.model = if others.is_empty() {
            (model.found.problems.is_empty() && is_readable()).then(|| source.path.clone())
        } else {
            Some(source.config_folder().to_owned())
        };
        Ok(found)
    }

    fn add(&mut self, name: &str, why: String) {
        self.reasons.entry(name.to_owned()).or_insert(why);
    }

    /// The error for a cast of a tensor; `None` if it holds values.
    pub(crate) fn refusal(&self, name: &str, selection: &Selection) -> Option<Error> {
        if let Some(why) = self.reasons.get(name) {
            return Some(self.error(format!("{why}; a cast would take them for values"), self.reasons.keys()));
        }
        // Nobody has left out these codes by name: they stay because they are no floats, or have the type already.
        let (codes, dtype) = self.scales.get(name)?.as_ref()?;
        let candidate = Candidate { name: codes, dtype: *dtype, rank: 2, is_alone: false };
        let stay = match selection.target(&candidate) {
            Ok(target) => Some(target) == *dtype && !can_be_codes(*dtype),
            Err(reason) => reason == KeptReason::NotFloating,
        };
        stay.then(|| {
            let message = format!("holds scales of the codes '{}'; a cast would change what they mean", shorten(codes));
            self.error(message, self.scales.keys())
        })
    }

    fn error<'a>(&self, message: String, names: impl Iterator<Item = &'a String>) -> Error {
        let (globs, model) = (globs(names).into_iter().collect(), self.model.clone().map(PathBuf::into_boxed_path));
        Error::new(message).of(Kind::Codes { globs, model })
    }

    /// Whether any tensor holds the scales of others.
    pub(crate) fn have_scales(&self) -> bool {
        !self.scales.is_empty()
    }

    /// Whether a tensor holds the scales of others.
    pub(crate) fn is_scale(&self, name: &str) -> bool {
        self.scales.contains_key(name)
    }
}

/// Patterns that match all these tensors. A few suffice, because models repeat the last parts of names in every layer.
fn globs<'a>(names: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    // `l.3.q.weight` ends in `q.weight`, and `l.3.weight` in `l.*.weight`.
    let ending = |name: &String| {
        let parts: Vec<&str> = name.split('.').collect();
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let before = parts[..parts.len() - 1].iter().rposition(|part| !is_number(part)).unwrap_or(0);
        let star = |part: &&str| if is_number(part) { "*".to_owned() } else { as_glob(part) };
        let ending = parts[before..].iter().map(star).collect::<Vec<_>>().join(".");
        if before == 0 { ending } else { format!("*.{ending}") }
    };
    let endings: BTreeSet<String> = names.map(ending).collect();
    let weight = |ending: &String| {
        let name = ending.strip_prefix("*.")?.strip_suffix(".weight")?;
        (!name.contains(['*', ','])).then(|| name.to_owned())
    };
    let weights: Vec<String> = endings.iter().filter_map(weight).collect();
    let mut globs: BTreeSet<String> = endings.into_iter().filter(|ending| weight(ending).is_none()).collect();
    globs.extend(match &weights[..] {
        [] => None,
        [only] => Some(format!("*.{only}.weight")),
        several => Some(format!("*.{{{}}}.weight", several.join(","))),
    });
    globs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The patterns that match these codes.
    fn globs(names: &[&str]) -> Vec<String> {
        let mut codes = Codes::default();
        for name in names {
            codes.add(name, "holds codes".to_owned());
        }
        let error = codes.refusal(names[0], &Selection::default()).unwrap();
        assert_eq!(error.to_string(), "holds codes; a cast would take them for values");
        let Kind::Codes { globs, model: None } = error.kind() else { panic!("{error:?}") };
        globs.to_vec()
    }

    #[test]
    fn a_pattern_takes_every_character_of_a_name_as_it_is() {
        assert_eq!(globs(&["it's; ls.w", "l.0.x*y.w"]), ["*.x[*]y.w", "it's; ls.w"]);
        assert_eq!(globs(&["l.0.a,b.weight", "l.0.c.weight"]), ["*.a,b.weight", "*.c.weight"]);
    }

    #[test]
    fn the_patterns_match_all_codes() {
        let names = ["l.0.q.weight", "l.1.q.weight", "l.0.k.weight", "m.3.weight", "head.weight"];
        assert_eq!(globs(&names), ["*.{k,q}.weight", "head.weight", "m.*.weight"]);
    }
}
