//! Advice on values that a job refuses: options, and rules for the tensors that have them.

use super::{Report, TensorReport};
use crate::container::{Container, by_extension};
use crate::error::{Advice, Error, Opt};
use crate::job::FailOn;
use crate::kernel::{Condition, Loss};
use crate::operator::Operator;
use crate::quant::{self, GGUF};
use crate::select::policy::{LoadedSet, Policy};
use crate::select::rule_to_keep;
use crate::text::as_glob;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Maximum number of rules in a remedy, unless the first set has more.
const FEW: usize = 8;

impl Report {
    /// Adds advice to the error for these tensors.
    pub(super) fn advise(&self, mut error: Error, refused: &[&TensorReport], fail_on: &FailOn) -> Error {
        let mut deltas = refused.iter().filter_map(|tensor| tensor.delta.as_deref());
        if deltas.any(|figures| fail_on.refuses_delta(figures).next().is_some()) {
            let say = "choose a wider type with {}, a scheme with more bits, or an unquantized model as the base";
            return error.with(Opt::TO, say);
        }
        let is_met = |wanted: &dyn Fn(&TensorReport, Condition) -> bool| {
            refused.iter().any(|tensor| tensor.met(fail_on).any(|condition| wanted(tensor, condition)))
        };
        let mut clamping = Vec::new();
        if is_met(&|_, condition| condition == Condition::Lost(Loss::Wrapped)) {
            clamping.push((Opt::OUT_OF_RANGE, "saturate".into()));
        }
        let is_clamped = |condition| matches!(condition, Condition::Lost(Loss::Infinite | Loss::Nan));
        if is_met(&|tensor, condition| tensor.quantized.is_none() && tensor.to.is_float8() && is_clamped(condition)) {
            clamping.push((Opt::SATURATE, "".into()));
        }
        if !clamping.is_empty() {
            error = error.advise(Advice::With { options: clamping, say: "clamp such values with {}".into() });
        }
        let format = by_extension(&self.input).map(Container::format_info);
        let is_one_array = format.is_some_and(|format| format.holds_one);
        let rule = |tensor: &TensorReport| {
            let name = tensor.renamed_from.as_deref().unwrap_or(&tensor.name);
            // The tensor of a format without names has the name of its file. Elsewhere, a name can be empty.
            let stem = self.input.file_stem().unwrap_or_default().to_string_lossy();
            let name = if name.is_empty() && format.is_none_or(|format| format.holds_one) { &stem } else { name };
            if self.operator == Operator::Dequantize.name() {
                return (Opt::EXCLUDE, as_glob(name)); // dequantize has no rules
            }
            // One rule for all experts of a layer.
            let layer = name.split_once(".experts.").filter(|_| self.is_quantized());
            let rule = layer.map(|(layer, _)| format!("{}.experts.*=keep", as_glob(layer)));
            (Opt::RULE, rule.unwrap_or_else(|| rule_to_keep(name)))
        };
        let (mut seen, mut shown, mut more) = (HashSet::new(), Vec::new(), "");
        for set in self.together(refused) {
            let mut rules: Vec<(Opt, String)> = set.into_iter().map(rule).collect();
            rules.retain(|one| seen.insert(one.clone()));
            if more.is_empty() && (shown.is_empty() || shown.len() + rules.len() <= FEW) {
                shown.append(&mut rules);
            } else if !rules.is_empty() {
                more = " and one more for each";
            }
        }
        // If no weight were quantized, or no tensor of a format for one were cast, that would be an error too. Weights in
        // blocks cannot stay as they are.
        let mut quantized = self.tensors().filter(|tensor| tensor.quantized.is_some());
        let can_stay = !is_one_array && !refused.iter().any(|tensor| tensor.layout.as_deref() == Some(GGUF.name));
        if can_stay && (!self.is_quantized() || quantized.any(|tensor| !seen.contains(&rule(tensor)))) {
            let is_coded =
                |tensor: &&TensorReport| tensor.quantized.as_ref().is_some_and(|it| it.source_layout.is_some());
            let leave = match (refused.iter().any(is_coded), refused.len()) {
                (false, 1) => "leave the tensor as it is",
                (false, _) => "leave the tensors as they are",
                (true, 1) => "decode the tensor",
                (true, _) => "decode the tensors",
            };
            let options = shown.into_iter().map(|(option, value)| (option, value.into())).collect();
            error = error.advise(Advice::With { options, say: format!("{leave} with {{}}{more}").into() });
        }
        if is_met(&|tensor, condition| !tensor.when_met(condition).is_empty()) {
            error = error.remedy("cast the model to bfloat16 first, which has the range of float32");
        }
        if is_met(&|tensor, condition| matches!(condition, Condition::Lost(_)) && tensor.when_met(condition).is_empty())
        {
            error = error.remedy("choose a wider type");
        }
        if fail_on.changed {
            error = self.advise_on_changes(error);
        } else if self.is_quantized() {
            error = error.with(Opt::SCHEME, "choose a scheme with more bits or smaller groups");
        }
        error
    }

    /// Adds the advice for a run that allows no change: because of an option, or because it has no scheme.
    fn advise_on_changes(&self, error: Error) -> Error {
        let option = |name: &str| self.options.0.get(name).filter(|value| !value.is_null());
        let is_only_exact = option("only_exact").and_then(Value::as_bool).unwrap_or_default();
        let quantize = "quantize the weights again with a scheme, such as {}";
        match (option("scheme").is_some(), is_only_exact) {
            (true, _) => error.without(Opt::ONLY_EXACT),
            (false, false) => error.with_value(Opt::SCHEME, "q8_0", quantize),
            (false, true) => error.with_value(Opt::SCHEME, "q8_0", format!("{quantize}, and allow values to change")),
        }
    }

    /// Returns sets of tensors that can only be kept together: each with the quantized weights that engines fuse with
    /// it.
    fn together<'t>(&'t self, refused: &[&'t TensorReport]) -> Vec<Vec<&'t TensorReport>> {
        let fused = |tensor: &TensorReport| {
            let is_diffusion =
                quant::find(&tensor.quantized.as_ref()?.layout).is_some_and(|layout| layout.is_diffusion);
            Policy { is_diffusion, ..Policy::default() }.loaded_together(&tensor.name)
        };
        let mut sets: HashMap<LoadedSet, Vec<&TensorReport>> = HashMap::new();
        for tensor in self.tensors() {
            if let Some(set) = fused(tensor) {
                sets.entry(set).or_default().push(tensor);
            }
        }
        let take = |tensor: &&'t TensorReport| match fused(tensor) {
            Some(set) => sets.remove(&set), // once
            None => Some(vec![*tensor]),
        };
        refused.iter().filter_map(take).collect()
    }
}
