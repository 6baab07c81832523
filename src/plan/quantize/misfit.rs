//! Weights that are kept because their shape does not fit the groups of the scheme, and errors about kept weights.

use super::planner::{Planner, SchemeTarget, WeightCandidates};
use crate::dtype::Dtype;
use crate::error::{Error, Opt};
use crate::options::QuantizeOptions;
use crate::progress::{Misfit, UseNote};
use crate::quant::{Scheme, Unfit};
use crate::select::KeptReason;
use crate::select::experts::bank_of;
use crate::text::{as_numbered_glob, counted, shorten};
use std::fmt::Display;

/// Returns the reason for not quantizing values of a type, if there is one.
pub(super) fn kept_for_dtype(dtype: Option<Dtype>) -> Option<KeptReason> {
    match dtype {
        Some(dtype) if dtype.is_weight() => None,
        Some(dtype) if dtype.is_floating() => Some(KeptReason::OtherFloat),
        _ => Some(KeptReason::NotFloating),
    }
}

/// Describes a type that is not one of weights.
pub(in crate::plan) fn not_a_weight(dtype: Option<Dtype>) -> String {
    format!("its dtype is {}, not float32, bfloat16 or float16", dtype.map_or("unknown", Dtype::name))
}

/// Returns the error of a rule for a tensor that cannot be quantized to its scheme.
pub(super) fn rule_refusal(scheme: &Scheme, why: impl Display) -> Error {
    Error::new(format!("a rule quantizes it to {}, and {why}", scheme.name))
}

/// Returns the error of a rule for a tensor that is not a weight matrix.
pub(super) fn no_weight(target: &SchemeTarget, shape: &[u64], dtype: Dtype) -> Error {
    let why = match shape {
        _ if !dtype.is_weight() => not_a_weight(Some(dtype)),
        [_, _] => "its name does not end in .weight, as the names of weight matrices do".to_owned(),
        _ => format!("its shape {shape:?} is not that of a weight matrix"),
    };
    let error = rule_refusal(target.scheme, why);
    if dtype.is_weight() {
        error.with(Opt::RULE, "leave the rule out, or name weight matrices with it")
    } else {
        error.unconvertible()
    }
}

/// Returns the note about weights that do not fit.
pub(super) fn note(misfits: Vec<Misfit>, options: &QuantizeOptions) -> UseNote {
    UseNote::Misfits { misfits, layout: options.layout_in_effect().unwrap_or_default(), group_size: options.group_size }
}

/// Returns an error with the reasons why all weights are kept.
pub(super) fn nothing_to_quantize(candidates: &WeightCandidates, misfits: &[Misfit]) -> Error {
    let reasons = candidates.weights.iter().filter_map(|weight| weight.decision.as_ref().err().copied());
    let error = nothing_of_model(reasons.chain(candidates.others.iter().map(|(_, reason)| *reason)), misfits);
    // Weights without elements fit no scheme.
    if misfits.iter().all(|misfit| misfit.why == Unfit::Empty) { error } else { error.unstorable() }
}

/// Returns an error with the number of tensors that are kept for each reason.
pub(super) fn nothing_of_model(reasons: impl Iterator<Item = KeptReason>, misfits: &[Misfit]) -> Error {
    let mut counts: Vec<(KeptReason, u64)> = Vec::new();
    for reason in reasons {
        match counts.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => counts.push((reason, 1)),
        }
    }
    let details = counts.iter().map(|(reason, count)| {
        let example = match (reason, misfits.first()) {
            (KeptReason::Shape, Some(Misfit { first, shape, why, .. })) => {
                format!(", such as {} {shape:?}: {why}", shorten(first))
            }
            _ => String::new(),
        };
        format!("{}: {}{example}", counted(*count, "tensor"), reason.describe())
    });
    Error::new("no weight would be quantized").with_details(details.collect())
}

impl Planner<'_, '_> {
    /// Adds the advice to leave out weights, given by patterns: plain weights are then copied. Quantized weights are decoded,
    /// unless no value may change.
    pub(super) fn excludable(&self, error: Error, are_coded: bool, globs: &[String]) -> Error {
        if are_coded && self.keeps_values() { error.unstorable() } else { error.leaving_out(globs, are_coded) }
    }

    /// Adds this advice for a bank of experts, which can only be left out as a whole.
    pub(super) fn whole_bank(&self, error: Error, are_coded: bool, name: &str) -> Error {
        let bank = bank_of(name).map_or(name, |(bank, _)| bank);
        self.excludable(error, are_coded, &[as_numbered_glob(bank) + ".*"])
    }
}
