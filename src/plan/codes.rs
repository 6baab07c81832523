//! Tensors of codes in a checkpoint whose weights are quantized. Codes mean nothing without their scales. Casting only
//! some of the tensors would ruin the model silently.

use super::plain::known_dtype;
use crate::container::checkpoint::{Checkpoint, beside};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Opt, Result};
use crate::quant::{
    FoundWeight, Role, can_be_part, is_activation_scale, is_named_as_part, may_be_quantized, scale_names,
};
use crate::read::Model;
use crate::select::{Candidate, KeptReason, Selection, patterns_of};
use crate::text::shorten;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// The tensors of a checkpoint that a cast must not treat as values.
#[derive(Default)]
pub struct Codes<'a> {
    /// The error of any conversion if tcast does not decode the quantization, because any tensor may then hold codes or
    /// scales.
    undecoded: Option<Error>,
    reasons: HashMap<&'a str, String>,
    /// Scales that are floats, with the name and the dtype of the codes that need them unchanged.
    scales: HashMap<&'a str, Option<(&'a str, Option<Dtype>)>>,
    /// The name of the scale of each tensor of codes.
    scale_of: HashMap<&'a str, String>,
    /// All tensors that belong to quantized weights, including tensors that do not affect values.
    parts: HashSet<&'a str>,
    /// The checkpoint, to make patterns that match only these tensors; `None` if the operator takes no patterns.
    source: Option<&'a Checkpoint>,
    /// The checkpoint to decode instead.
    model: Option<PathBuf>,
}

/// True if a tensor of this type can hold codes. Weights of wider floats with a scale are values: the scale is for
/// activations, or they were unpacked.
fn can_be_codes(dtype: Option<Dtype>) -> bool {
    !dtype.is_some_and(|dtype| dtype.bits() > 8 && dtype.is_floating())
}

/// Returns the error for a quantization that tcast does not decode.
fn undecoded(why: &Error) -> Error {
    let error = Error::new(why.message()).advised(why.advice());
    why.path().into_iter().fold(error, Error::in_file).forcing_codes()
}

impl<'a> Codes<'a> {
    /// True if a tensor can hold codes or, in a shard, be a part of codes in another shard. Otherwise there are only
    /// [undecoded](Self::undecoded_of) ones.
    pub(crate) fn may_be_in(source: &Checkpoint) -> bool {
        let is_shard = source.folder.is_none();
        source.tensors().any(|(shard, tensor)| {
            let name = shard.name_of(tensor);
            may_be_quantized(name, known_dtype(tensor, None)) || is_shard && is_named_as_part(name)
        })
    }

    /// Finds the codes of a checkpoint.
    ///
    /// # Errors
    /// When one of the files next to it cannot be read.
    pub fn find(source: &'a Checkpoint) -> Result<Self> {
        let model = Model::probe(source);
        if Self::may_be_in(source) { Self::of(&model) } else { Ok(Self::undecoded_of(&model)) }
    }

    /// Finds the codes of a checkpoint whose weights were recognized.
    ///
    /// # Errors
    /// When one of the files next to it cannot be read.
    pub(crate) fn of(model: &Model<'a>) -> Result<Self> {
        if model.found.is_undecoded {
            return Ok(Self::undecoded_of(model));
        }
        let source = model.source;
        let mut found = Self { source: Some(source), ..Self::default() };
        let is_shard = source.folder.is_none();
        let others = if is_shard { beside(&source.path)? } else { Vec::new() };
        let quantization = source.quantization()?;
        let name = |at: usize| model.tensors[at].name;
        let is_code = |at: &usize| can_be_codes(model.tensors[*at].dtype);
        let codes_at = |at: usize| (name(at), model.tensors[at].dtype);
        model.found.weights.iter().for_each(|weight| found.add_weight(model, weight));
        if model.found.weights.iter().any(|weight| weight.parameters.blocks.is_some()) {
            found.source = None; // no output can hold blocks, so there is no use in leaving them out
        }
        for at in &model.found.markers {
            found.add(name(*at), "holds no values: it says how weights are quantized".to_owned());
        }
        found.parts.extend(model.found.activation_scales.iter().map(|at| name(*at)));
        for problem in &model.found.problems {
            found.parts.extend(problem.tensors.iter().map(|at| name(*at)));
            // The codes of a weight that cannot be decoded come first.
            if let Some(codes) = problem.tensors.first().filter(|codes| !source.is_onnx_model() && is_code(codes)) {
                found.scale_of.insert(name(*codes), problem.tensors.get(1).map_or("", |at| name(*at)).to_owned());
            }
            let codes = problem.tensors.first().filter(|_| problem.tensors.len() > 1);
            for at in &problem.tensors {
                if is_code(at) || Some(at) == codes {
                    found.add(name(*at), problem.error.message().to_owned());
                } else if let Some(codes) = codes {
                    found.scales.insert(name(*at), Some(codes_at(*codes)));
                }
            }
        }
        // Scales in other shards or of an unknown layout, and configs that tcast does not understand.
        let unknown = model.found.problems.iter().find(|problem| problem.tensors.is_empty());
        let own: HashSet<&str> = model.tensors.iter().map(|tensor| tensor.name).collect();
        let names: HashSet<&str> = own.iter().copied().chain(others.iter().map(String::as_str)).collect();
        let parts: HashSet<usize> =
            model.found.weights.iter().flat_map(|weight| &weight.parts).map(|part| part.1).collect();
        for (at, tensor) in model.tensors.iter().enumerate() {
            let is_elsewhere = !others.is_empty() && quantization.is_some() && !parts.contains(&at);
            if is_elsewhere && is_activation_scale(tensor.name) {
                found.parts.insert(tensor.name);
            } else if is_elsewhere && !is_code(&at) && is_named_as_part(tensor.name) {
                found.add(tensor.name, "holds scales of codes that are in another shard".to_owned());
            }
        }
        for (at, tensor) in model.tensors.iter().enumerate().filter(|(_, tensor)| can_be_part(tensor.dtype)) {
            if found.reasons.contains_key(tensor.name) {
                continue;
            }
            if let Some(scale) = scale_names(tensor.name).find(|scale| names.contains(scale.as_str())) {
                found.add(tensor.name, format!("holds codes whose scales are in '{}'", shorten(&scale)));
                if let Some(own) = own.get(scale.as_str()) {
                    found.scales.insert(own, Some(codes_at(at)));
                }
                found.scale_of.insert(tensor.name, scale);
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
        found.parts.extend(found.reasons.keys().chain(found.scales.keys()));
        let is_readable = || model.readable_weights().next().is_some();
        found.model = if others.is_empty() {
            (model.found.problems.is_empty() && is_readable()).then(|| source.path.clone())
        } else {
            Some(source.config_folder().to_owned())
        };
        Ok(found)
    }

    /// Adds the parts of a weight that tcast decodes.
    fn add_weight(&mut self, model: &Model<'a>, weight: &FoundWeight) {
        if weight.has_plain_blocks() {
            return;
        }
        let name = |at: usize| model.tensors[at].name;
        let codes_at = |at: usize| (name(at), model.tensors[at].dtype);
        let scale = weight.part(Role::Scale).map_or("", name);
        // Scales of an ONNX model are tensors of its graph, which a cast converts like others.
        let is_onnx = weight.layout.nodes.is_some();
        for &(role, at) in &weight.parts {
            if let (Role::Codes, Some(blocks)) = (role, &weight.parameters.blocks) {
                self.add(name(at), format!("holds codes and scales, in blocks of {}", blocks.formats[0].name));
            } else if role == Role::Codes {
                self.add(name(at), format!("holds codes whose scales are in '{}'", shorten(scale)));
                if !is_onnx {
                    self.scale_of.insert(name(at), scale.to_owned());
                }
            } else if role == Role::Activation {
                self.parts.insert(name(at));
            } else if !can_be_codes(model.tensors[at].dtype) {
                let codes = weight.part(Role::Codes).filter(|_| !is_onnx);
                self.scales.insert(name(at), codes.map(codes_at));
            } else {
                let why = format!("holds the {} of '{}'", role.describe(), shorten(&weight.name));
                self.add(name(at), why);
            }
        }
    }

    /// Finds only [`Codes::undecoded`]. Moving bits ruins no codes, but tensors of an undecoded quantization have
    /// unknown roles.
    pub(crate) fn undecoded_of(model: &Model<'a>) -> Self {
        let problem = model.found.problems.last().filter(|_| model.found.is_undecoded);
        Self { undecoded: problem.map(|problem| undecoded(&problem.error)), ..Self::default() }
    }

    /// Adapts the codes to an operator that takes no patterns of names.
    pub(crate) fn without_patterns(self) -> Self {
        Self { source: None, ..self }
    }

    fn add(&mut self, name: &'a str, why: String) {
        self.reasons.entry(name).or_insert(why);
    }

    /// Returns the error for any conversion, if tcast does not decode the quantization.
    pub(crate) fn undecoded(&self) -> Option<Error> {
        self.undecoded.as_ref().map(undecoded)
    }

    /// Returns the error for a cast of a tensor; `None` if it holds values.
    pub(crate) fn refusal(&self, name: &str, selection: &Selection) -> Option<Error> {
        if let Some(why) = self.reasons.get(name) {
            return Some(
                self.error(format!("{why}; casting them as plain values would corrupt the weights"), selection),
            );
        }
        // No option leaves out these codes by name: they stay because they are not floats, or have the type already.
        let (codes, dtype) = self.scales.get(name)?.as_ref()?;
        let candidate = Candidate { name: codes, dtype: *dtype, rank: 2, is_alone: false };
        let stay = match selection.target(&candidate) {
            Ok(target) => Some(target) == *dtype,
            Err(reason) => reason == KeptReason::NotFloating,
        };
        stay.then(|| {
            let codes = shorten(codes);
            self.error(format!("holds scales of the codes '{codes}'; a cast would change what they mean"), selection)
        })
    }

    /// Returns the error if a cast leaves this tensor of codes as it is, for another reason than its name. With
    /// `has_cast`, it changes other tensors: half of the model would be cast. Otherwise, the output would have the name
    /// of a type and still be quantized.
    pub(crate) fn left_by_cast(
        &self,
        name: &str,
        kept: KeptReason,
        has_cast: bool,
        selection: &Selection,
    ) -> Option<Error> {
        let is_left = kept == KeptReason::NotFloating || has_cast && kept == KeptReason::Already;
        let scale = self.scale_of.get(name).filter(|_| is_left)?;
        // A user who names the codes or their scale knows about them.
        if [name, scale].into_iter().any(|name| selection.rule(name).is_some() || !selection.selects(name)) {
            return None;
        }
        let why = self.reasons.get(name)?;
        let what = if has_cast {
            "a cast would change other tensors and leave them"
        } else {
            "a cast leaves them as they are"
        };
        Some(self.error(format!("{why}; {what}"), selection))
    }

    fn error(&self, message: String, selection: &Selection) -> Error {
        // Other tensors of a narrow type would have no scales, and contradict the tensors that have scales.
        let is_wide = selection.to.is_none_or(|to| to.bits() > 8);
        let error = Error::new(message).of(Kind::Codes);
        let error = self.model.iter().fold(error, |error, model| error.decoding(model));
        let Some(source) = self.source else { return error };
        let names: Vec<&str> = source.names().filter(|_| is_wide).collect();
        match &patterns_of(&names, |name| self.parts.contains(name))[..] {
            [] => error.with(Opt::FORCE_CODES, "cast the codes of quantized weights as numbers with {}"),
            globs => error
                .with_patterns(Opt::EXCLUDE, globs, "leave the quantized weights as they are with {}")
                .with(Opt::FORCE_CODES, "cast their codes as numbers with {}"),
        }
    }

    /// True if any tensor holds the scales of others.
    pub(crate) fn have_scales(&self) -> bool {
        !self.scales.is_empty()
    }

    /// True if a tensor holds the scales of others.
    pub(crate) fn is_scale(&self, name: &str) -> bool {
        self.scales.contains_key(name)
    }
}
