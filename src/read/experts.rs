//! The experts of a checkpoint in another form: stacks divided into single experts, and the names of single experts that are
//! to be stacked.

use super::Model;
use crate::container::checkpoint::{CONFIG, Checkpoint, ExpertForm, ExpertNames, layer_of_expert};
use crate::container::{Data, Tensor};
use crate::error::{Error, Opt, Result};
use crate::quant::{FoundWeight, Group};
use crate::select::experts::{ModelFacts, bank_of, check_stack};
use crate::text::shorten;
use std::collections::HashMap;
use std::sync::Arc;

/// A stack of experts, and its place in their names.
struct NamedStack<'a> {
    /// The module of the experts, such as `x.experts`.
    bank: &'a str,
    /// The weights of an expert whose rows follow one another.
    weights: &'static [&'static str],
    /// The end of the name of an expert's tensor, from `weight` on.
    end: String,
}

impl Checkpoint {
    /// Gives the tensors the names that they have with experts in this form, and divides the stacks if these are single.
    /// Returns false if no experts are in the other form.
    ///
    /// # Errors
    /// When the kind of the model is unknown, or a tensor of experts has no such form.
    pub(crate) fn set_experts(&mut self, form: ExpertForm) -> Result<bool> {
        let is_other = |tensor: &Tensor| match form {
            ExpertForm::Stacked => layer_of_expert(&tensor.name).is_some(),
            ExpertForm::Single => bank_of(&tensor.name).is_some_and(|(_, own)| split_stack(own).is_some()),
        };
        if !self.tensors().any(|(_, tensor)| is_other(tensor)) {
            return Ok(false);
        }
        if self.is_gguf() || self.is_onnx_model() {
            return Err(Error::usage("the experts of GGUF and ONNX models have one form").without(Opt::EXPERTS));
        }
        let facts = ModelFacts::read(self.side_file(CONFIG)?);
        let names = facts.expert_names()?;
        if form == ExpertForm::Single {
            let divided = divided(self, &facts, names)?;
            for (shard, tensors) in self.shards.iter_mut().zip(divided) {
                shard.contents.tensors = tensors;
            }
        }
        self.move_modules(names, form);
        self.experts = Some(form);
        Ok(true)
    }
}

/// Splits the name of a stack in its module into the name of the weight and the end of a part of it.
fn split_stack(own: &str) -> Option<(&str, &str)> {
    let stacks = ["gate_up_proj", "gate_proj", "up_proj", "down_proj"];
    let stack = stacks.into_iter().find(|stack| own.starts_with(stack))?;
    Some(own.split_at(stack.len()))
}

/// Returns the tensors of each shard, with the tensors of single experts in place of stacks. Where stacks of a layer follow one
/// another, the tensors of their experts are in the order of their names, as transformers writes them.
fn divided(source: &Checkpoint, facts: &ModelFacts, names: &ExpertNames) -> Result<Vec<Vec<Tensor>>> {
    let model = Model::probe(source);
    let mut parts: HashMap<usize, (&FoundWeight, String)> = HashMap::new();
    for weight in model.found.weights.iter().filter(|weight| bank_of(&weight.name).is_some()) {
        for (at, end) in ends_of_parts(&model, weight).map_err(|error| error.in_tensor(&weight.name))? {
            parts.insert(at, (weight, end));
        }
    }
    let (mut shards, mut at, mut experts) = (Vec::with_capacity(source.shards.len()), 0, 0_u64);
    for shard in &source.shards {
        let mut tensors: Vec<Tensor> = Vec::with_capacity(shard.contents.tensors.len());
        let mut run: Option<(&str, usize)> = None; // the bank of experts that are not sorted yet, and the first tensor
        for tensor in &shard.contents.tensors {
            let in_tensor = |error: Error| error.in_tensor(&tensor.name).in_file(shard.path());
            let stack = stack(tensor, parts.get(&at), facts, names).map_err(in_tensor)?;
            at += 1;
            let bank = stack.as_ref().map(|stack| stack.bank);
            if let Some((_, first)) = run.take_if(|(own, _)| bank != Some(own)) {
                tensors[first..].sort_by(|one, other| one.name.cmp(&other.name));
            }
            match stack {
                Some(stack) => {
                    run = run.or(Some((stack.bank, tensors.len())));
                    experts = experts.saturating_add(tensor.shape[0].saturating_mul(stack.weights.len() as u64));
                    source.check_count(experts)?;
                    tensors.extend(stack.experts(tensor).map_err(in_tensor)?);
                }
                None => tensors.push(tensor.clone()),
            }
        }
        if let Some((_, first)) = run {
            tensors[first..].sort_by(|one, other| one.name.cmp(&other.name));
        }
        shards.push(tensors);
    }
    Ok(shards)
}

/// Describes a stack; `None` for another tensor. `part` is the quantized weight that it is a part of, with the end of the name
/// of an expert's part.
fn stack<'a>(
    tensor: &'a Tensor,
    part: Option<&(&FoundWeight, String)>,
    facts: &ModelFacts,
    names: &ExpertNames,
) -> Result<Option<NamedStack<'a>>> {
    let Some((bank, own)) = bank_of(&tensor.name) else { return Ok(None) };
    let Some((stack, end)) = split_stack(own) else { return Ok(None) };
    let weights = names.in_stack(stack).ok_or_else(|| Error::new("is a stack of experts of unknown weights"))?;
    let (shape, end) = match part {
        Some((weight, end)) => (&*weight.shape, end.clone()),
        None if end.is_empty() => (&*tensor.shape, "weight".to_owned()),
        None => return Err(undivided("single experts have no such part")),
    };
    check_stack(facts, stack, shape)?;
    Ok(Some(NamedStack { bank, weights, end }))
}

fn undivided(why: &str) -> Error {
    let error = Error::new(format!("is a stack of experts that cannot be divided: {why}"));
    error.remedy("decode the model first, or leave its experts as they are")
}

/// Returns the parts of a quantized stack, each with the end of its name for a single expert. Fails if the codes and scales of
/// an expert are not ranges of them.
fn ends_of_parts(model: &Model, weight: &FoundWeight) -> Result<Vec<(usize, String)>> {
    let weights = bank_of(&weight.name).map_or(1, |(_, own)| 1 + u64::from(own.starts_with("gate_up_proj")));
    let &[count, rows, _] = &weight.shape[..] else { return Err(undivided("it does not have three dimensions")) };
    let group = match weight.grid(&model.tensors)?.group {
        Some(Group::Block([rows, _])) => rows,
        Some(Group::Neighbours(_)) => 1,
        _ => return Err(undivided("a scale is for all rows of an expert")),
    };
    if weights > 1 && !(rows / weights).is_multiple_of(group) {
        let what = format!("a weight of an expert has {} rows, and a scale is for {group}", rows / weights);
        return Err(undivided(&what));
    }
    let ends = weight.parts.iter().map(|(role, at)| {
        let stored = &model.tensors[*at];
        let is_matrix = stored.shape.len() == 3 && stored.shape[0] == count;
        let is_known = |suffix: &&str| is_matrix && weight.layout.has_stacks(*role, suffix);
        let suffix = stored.name.strip_prefix(&*weight.name).filter(is_known);
        suffix.filter(|_| bank_of(stored.name).is_some()).map(|suffix| (*at, format!("weight{suffix}"))).ok_or_else(
            || undivided(&format!("tcast does not know the name of '{}' for single experts", shorten(stored.name))),
        )
    });
    ends.collect()
}

impl NamedStack<'_> {
    /// Returns the tensors of the experts.
    fn experts(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        let (count, weights) = (tensor.shape[0], self.weights.len() as u64);
        let all = count.saturating_mul(weights);
        let Data::Mapped { range, checksum: None, .. } = &tensor.data else {
            return Err(undivided("its elements are not stored as they are"));
        };
        let [_, rows, others @ ..] = &*tensor.shape else { return Err(undivided("it is no matrix of each expert")) };
        let is_whole = all > 0 && rows.is_multiple_of(weights) && (range.len() as u64).is_multiple_of(all);
        if !is_whole || range.is_empty() || tensor.fortran_order {
            return Err(undivided("its experts are not equal parts of its bytes"));
        }
        let shape: Arc<[u64]> = [&[rows / weights], others].concat().into();
        let expert = |number: u64| {
            let own = self.weights[(number % weights) as usize];
            let name = format!("{}.{}.{own}.{}", self.bank, number / weights, self.end);
            Tensor { name: name.into(), shape: shape.clone(), ..tensor.part(number, all) }
        };
        Ok((0..all).map(expert).collect())
    }
}
