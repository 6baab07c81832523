//! Finds the tensors that are weights and could be quantized, and applies the options and the policy to each.

use super::misfit::{kept_for_dtype, no_weight};
use super::mlx;
use super::planner::{Choice, GPT_OSS, Planner, RuleUse, SchemeTarget, WeightCandidate, WeightCandidates, layout_of};
use crate::container::Form;
use crate::error::{Error, Result};
use crate::plan::quantization::CodesSource;
use crate::plan::source_form;
use crate::plan::weight_rows::WeightValues;
use crate::quant::{Grid, RowMap, Scheme};
use crate::read::{DecodedValues, Decoders, Model, ModelTensor};
use crate::select::KeptReason;
use crate::select::experts::{Expert, ModelFacts, bank_of, experts, unsplit_bank};
use crate::select::policy::module_of;
use crate::text::shorten;
use std::sync::Arc;

impl<'p, 'a> Planner<'p, 'a> {
    /// Finds the candidates by names, dtypes and ranks.
    pub(super) fn candidates(&self) -> Result<WeightCandidates<'p, 'a>> {
        let mut candidates = WeightCandidates { weights: Vec::new(), others: Vec::new(), dropped: Vec::new() };
        let mut decoders = Decoders::new(self.model, DecodedValues::Rows);
        let mut rules: Vec<RuleUse> = self.options.rule.iter().map(|_| RuleUse::default()).collect();
        let mut last = None;
        for tensor in self.model.model_tensors(&[]) {
            let at = tensor.at;
            let added = match tensor.weight {
                // Of weights with the same codes, the first stands for all.
                Some(_) if last == Some(at) => continue,
                Some(weight) => self
                    .coded_candidates(weight, &mut rules, &mut decoders)
                    .map(|weights| candidates.weights.extend(weights)),
                None => self.add_plain(tensor, &mut rules, &mut candidates),
            };
            let path = || self.model.stored(at).files[0].path();
            added.map_err(|error| error.in_tensor(self.model.tensors[at].name).in_file(path()))?;
            last = Some(at);
        }
        match rules.into_iter().find_map(|rule| rule.error.filter(|_| !rule.names_weight)) {
            Some(error) => Err(error),
            None => Ok(candidates),
        }
    }

    /// Adds a tensor that is not quantized: as a weight, as the weights of a bank, or as another tensor.
    fn add_plain(
        &self,
        tensor: ModelTensor,
        rules: &mut [RuleUse],
        candidates: &mut WeightCandidates<'p, 'a>,
    ) -> Result<()> {
        let (at, stored) = (tensor.at, self.model.stored(tensor.at));
        let (name, shape) = (tensor.name(), tensor.shape());
        if mlx::leaves_out(self.layout, self.new_name(name), self.facts) {
            candidates.dropped.push(at);
            return Ok(());
        }
        let Ok(dtype) = source_form(stored.tensor, None).map(Form::dtype) else {
            candidates.others.push((at, KeptReason::NotFloating));
            return Ok(());
        };
        let whole = self.gpt_oss_bank(name, shape)?;
        let bank = if whole.is_some() { None } else { experts(self.facts, name, shape) };
        let Choice { decision: chosen, rule } = self.choice_for(name, bank.as_ref(), None)?;
        let is_named = rule.is_some() || matches!(chosen, Err(KeptReason::LeftOut));
        let reason = self.reason(name, chosen.as_ref().is_ok_and(|target| target.layout.grid.codes.bits() <= 4));
        let is_matrix = shape.len() == 2 && module_of(name).is_some();
        let is_unsplit = unsplit_bank(name).is_some() && shape.len() == 3;
        let cannot = if let Some(reason) = kept_for_dtype(Some(dtype)) {
            Some(reason)
        } else if whole.is_some() {
            None
        } else if self.layout == GPT_OSS {
            Some(reason.unwrap_or(KeptReason::NoExpert))
        } else if is_matrix || bank.is_some() {
            None
        } else if is_unsplit {
            Some(KeptReason::Bank)
        } else {
            Some(reason.unwrap_or(KeptReason::NoMatrix))
        };
        if let (Some(rule), Ok(target)) = (rule, &chosen) {
            let RuleUse { names_weight, error } = &mut rules[rule];
            *names_weight |= cannot.is_none();
            error
                .get_or_insert_with(|| no_weight(target, shape, dtype).in_tensor(name).in_file(stored.files[0].path()));
        }
        let decision = match (cannot, reason, chosen) {
            (Some(reason), _, _) => Err(reason),
            (None, Some(reason), Ok(_) | Err(KeptReason::Unquantized)) if !is_named => Err(reason),
            (None, _, chosen) => chosen,
        };
        let values = whole.map_or(WeightValues::Rows(0), |shape| WeightValues::transposed(&shape, dtype));
        let candidate = WeightCandidate {
            at,
            name: name.to_owned(),
            input_weight: None,
            values,
            changes: None,
            shape: whole.map_or(shape.to_vec(), Vec::from),
            dtype,
            decision,
            is_named,
            exact: None,
            codes: CodesSource::COMPUTED,
        };
        if whole.is_none() && bank.is_none() && !is_matrix && !is_unsplit {
            candidates.others.push((at, candidate.decision.err().unwrap_or(KeptReason::NoMatrix)));
        } else {
            candidates.weights.extend(self.divided(candidate, bank)?);
        }
        Ok(())
    }

    /// Divides a bank that is quantized into its experts, which engines load one by one.
    pub(super) fn divided(
        &self,
        whole: WeightCandidate<'p, 'a>,
        bank: Option<Result<Vec<Expert>>>,
    ) -> Result<Vec<WeightCandidate<'p, 'a>>> {
        let Some(bank) = bank.filter(|_| whole.decision.is_ok()) else { return Ok(vec![whole]) };
        let are_coded = whole.input_weight.is_some();
        let refuse = |error: Error| self.whole_bank(error, are_coded, &whole.name);
        let experts = bank.map_err(refuse)?;
        if self.policy.is_diffusion {
            return Err(refuse(Error::new("is a bank of experts, which the layout cannot store")));
        }
        let bias = format!("{}_bias", whole.name);
        if are_coded && self.model.tensors.iter().any(|tensor| tensor.name == bias) {
            let message = format!(
                "is a bank of experts that engines load one by one, and its bias '{}' is a bank as well, which tcast does \
                 not divide",
                shorten(&bias)
            );
            let remedy = "decode the model first: other weights of it can then be quantized, without its experts";
            return Err(Error::new(message).remedy(remedy));
        }
        let of_expert = |expert: &Expert| WeightCandidate {
            name: expert.name.clone(),
            shape: expert.shape.to_vec(),
            values: match &whole.values {
                WeightValues::Coded(decoder, _) => {
                    WeightValues::Coded(Arc::clone(decoder), RowMap { first: expert.first_row, step: expert.step })
                }
                WeightValues::Rows(_) | WeightValues::Gathered { .. } => WeightValues::Rows(expert.first_row),
            },
            ..whole.clone()
        };
        Ok(experts.iter().map(of_expert).collect())
    }

    /// Returns the reason why engines need a weight unquantized, according to its name in the output.
    pub(super) fn reason(&self, name: &str, has_four_bits: bool) -> Option<KeptReason> {
        let is_of_mlx = self.layout == mlx::NAME;
        let reason = self.policy.reason(self.new_name(name), has_four_bits || is_of_mlx)?;
        let is_quantized = is_of_mlx && mlx::quantizes(reason, self.facts.kind.as_deref());
        (!is_quantized).then_some(reason)
    }

    /// Returns what the options request for a weight, or for all experts of a bank. Refuses options that treat the
    /// experts of a bank differently, because engines load them as one module.
    pub(super) fn choice_for(
        &self,
        name: &str,
        bank: Option<&Result<Vec<Expert>>>,
        coded: Option<&Grid>,
    ) -> Result<Choice> {
        let Some(Ok([first, others @ ..])) = bank.map(Result::as_deref) else {
            return self.choice(&[name], coded);
        };
        let chosen = self.choice(&[name, &first.name], coded)?;
        for expert in others {
            let own = self.choice(&[name, &expert.name], coded)?;
            if (own.rule, own.decision.is_ok()) != (chosen.rule, chosen.decision.is_ok()) {
                let message = format!(
                    "engines load its experts together, and the options treat '{}' differently",
                    shorten(&expert.name)
                );
                return Err(self.whole_bank(Error::new(message), coded.is_some(), name));
            }
        }
        Ok(chosen)
    }

    /// Returns what the options request for a weight with these names.
    pub(super) fn choice(&self, names: &[&str], coded: Option<&Grid>) -> Result<Choice> {
        if self.options.tensors.leaves_out(names) {
            return Ok(Choice { decision: Err(KeptReason::LeftOut), rule: None });
        }
        let rule = self.options.rule.iter().position(|rule| rule.pattern.matches_one(names));
        let decision = match rule.map(|rule| self.options.rule[rule].scheme) {
            Some(None) => Err(KeptReason::LeftOut),
            Some(Some(scheme)) => Ok(self.target(scheme)?),
            // The model leaves them unquantized on purpose.
            None if coded.is_none() && self.model.is_quantized() => Err(KeptReason::Unquantized),
            None => match (self.options.scheme, coded) {
                (Some(scheme), _) => {
                    let target = self.target(scheme)?;
                    Ok(self.scheme_of_mlx(names[0]).unwrap_or(target))
                }
                (None, None) => Err(KeptReason::Unquantized),
                (None, Some(grid)) => Ok(self.same_grid(grid)?),
            },
        };
        Ok(Choice { decision, rule })
    }

    /// Returns the target for a scheme, with the group size that the options request.
    fn target(&self, scheme: &'static Scheme) -> Result<SchemeTarget> {
        let mut layout = *layout_of(scheme, Some(self.layout))?;
        if let (Some(group), true) = (self.options.group_size, layout.has_group_size()) {
            layout.grid.group = group;
        }
        Ok(SchemeTarget { scheme, layout, encoder: None })
    }

    /// Returns the shape of a bank with [out, in] as the last dimensions; plain models of gpt-oss store each matrix
    /// transposed. `None` if the tensor is not a bank. Fails if the model is not gpt-oss: its banks may be stored in
    /// another way.
    pub(super) fn gpt_oss_bank(&self, name: &str, shape: &[u64]) -> Result<Option<[u64; 3]>> {
        let (Some((_, "gate_up_proj" | "down_proj")), &[experts, rows, columns]) = (bank_of(name), shape) else {
            return Ok(None);
        };
        if self.layout != GPT_OSS {
            return Ok(None);
        }
        if self.facts.kind.as_deref().is_some_and(|kind| kind.starts_with("gpt_oss")) {
            return Ok(Some([experts, columns, rows]));
        }
        let message = "only models of gpt-oss are stored in the layout gpt-oss: model_type in config.json is another";
        Err(Error::new(message).unstorable())
    }
}

/// Returns the names that patterns can match: the names of the experts in banks, and of all tensors but those that the
/// layout leaves out.
pub(crate) fn matchable_names(source: &Model, layout: &str) -> Result<Vec<String>> {
    if source.is_onnx_model() {
        let weights = source.found.weights.iter().map(|weight| &*weight.name);
        return Ok(source.source.names().chain(weights).map(str::to_owned).collect());
    }
    let facts = ModelFacts::read(source.config()?);
    let mut names: Vec<String> = Vec::new();
    for tensor in source.model_tensors(&[]) {
        let (name, shape) = (tensor.name(), tensor.shape());
        if tensor.weight.is_none() && mlx::leaves_out(layout, name, &facts) {
            continue;
        }
        names.push(name.to_owned());
        if let Some(Ok(bank)) = experts(&facts, name, shape) {
            names.extend(bank.into_iter().map(|expert| expert.name));
        }
    }
    Ok(names)
}
