//! Remedies for values that a job refuses: flags of the program, and rules for the tensors that have them.

use crate::container::{Container, by_extension};
use crate::error::Error;
use crate::job::FailOn;
use crate::kernel::{Condition, Loss};
use crate::operator::Operator;
use crate::quant::{self, GGUF};
use crate::report::{Report, TensorReport};
use crate::select::policy::{LoadedSet, Policy};
use crate::select::rule_to_keep;
use crate::text::{as_glob, flag_with};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Maximum number of rules in a remedy, unless the first set has more.
const FEW: usize = 8;

impl Report {
    /// Returns the error for values that a job refuses, with remedies; `None` if there are none.
    pub(super) fn advised_refusal(&self, fail_on: &FailOn) -> Option<Error> {
        let refused = self.refused(fail_on);
        let is_any = !refused.is_empty();
        is_any.then(|| self.refusal(&refused, fail_on).remedy(self.remedy(&refused, fail_on)))
    }

    fn remedy(&self, refused: &[&TensorReport], fail_on: &FailOn) -> String {
        let mut deltas = refused.iter().filter_map(|tensor| tensor.delta.as_deref());
        if deltas.any(|figures| fail_on.refuses_delta(figures).next().is_some()) {
            return "choose a wider type with --to, a scheme with more bits, or an unquantized model as the base"
                .to_owned();
        }
        let is_met = |wanted: &dyn Fn(&TensorReport, Condition) -> bool| {
            refused.iter().any(|tensor| tensor.met(fail_on).any(|condition| wanted(tensor, condition)))
        };
        let mut remedies = Vec::new();
        if is_met(&|_, condition| condition == Condition::Lost(Loss::Wrapped)) {
            remedies.push("clamp such values with --out-of-range saturate".to_owned());
        }
        let is_clamped = |condition| matches!(condition, Condition::Lost(Loss::Infinite | Loss::Nan));
        if is_met(&|tensor, condition| tensor.quantized.is_none() && tensor.to.is_float8() && is_clamped(condition)) {
            remedies.push("clamp such values with --saturate".to_owned());
        }
        let format = by_extension(&self.input).map(Container::format_info);
        let is_one_array = format.is_some_and(|format| format.holds_one);
        let rule = |tensor: &TensorReport| {
            let name = tensor.renamed_from.as_deref().unwrap_or(&tensor.name);
            // The tensor of a format without names has the name of its file. Elsewhere, a name can be empty.
            let stem = self.input.file_stem().unwrap_or_default().to_string_lossy();
            let name = if name.is_empty() && format.is_none_or(|format| format.holds_one) { &stem } else { name };
            if self.operator == Operator::Dequantize.name() {
                return flag_with("--exclude", &as_glob(name)); // dequantize has no rules
            }
            // One rule for all experts of a layer.
            let layer = name.split_once(".experts.").filter(|_| self.is_quantized());
            let rule = layer.map(|(layer, _)| format!("{}.experts.*=keep", as_glob(layer)));
            flag_with("--rule", &rule.unwrap_or_else(|| rule_to_keep(name)))
        };
        let (mut seen, mut shown, mut more) = (HashSet::new(), Vec::new(), "");
        for set in self.together(refused) {
            let mut rules: Vec<String> = set.into_iter().map(rule).collect();
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
            remedies.push(format!("{leave} with {}{more}", shown.join(" ")));
        }
        if is_met(&|tensor, condition| !tensor.when_met(condition).is_empty()) {
            remedies.push("cast the model to bfloat16 first, which has the range of float32".to_owned());
        }
        if is_met(&|tensor, condition| matches!(condition, Condition::Lost(_)) && tensor.when_met(condition).is_empty())
        {
            remedies.push("choose a wider type".to_owned());
        }
        if fail_on.changed {
            remedies.push(self.remedy_for_changes());
        } else if self.is_quantized() {
            remedies.push("choose a scheme with more bits or smaller groups".to_owned());
        }
        remedies.join(", or ")
    }

    /// Returns the remedy of a run that allows no change: because of an option, or because it has no scheme.
    fn remedy_for_changes(&self) -> String {
        let option = |name: &str| self.options.0.get(name).filter(|value| !value.is_null());
        let is_only_exact = option("only_exact").and_then(Value::as_bool).unwrap_or_default();
        let quantize = "quantize the weights again with a scheme, such as --scheme q8_0";
        match (option("scheme").is_some(), is_only_exact) {
            (true, _) => "leave --only-exact out".to_owned(),
            (false, false) => quantize.to_owned(),
            (false, true) => format!("{quantize}, and leave --only-exact out"),
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
