//! The choice of a scheme for each weight, within a number of bits per weight.

use crate::error::{Error, Result};
use crate::options::{QuantizeOptions, SchemeRule};
use crate::quant::Scheme;
use crate::read::Model;
use crate::report::{MeasuredScheme, TensorReport};
use crate::select::budget::{self, BudgetChoice, Offer};
use crate::select::patterns_for;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A choice that has been made.
pub(crate) struct Budget {
    /// Options that make it.
    pub options: QuantizeOptions,
    /// The word in the name of the output, such as `6bits`.
    pub label: String,
    pub figures: BudgetFigures,
    /// The scheme of each weight that is quantized.
    pub chosen: BTreeMap<String, String>,
}

/// Figures of a choice.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BudgetFigures {
    pub target_bits: f64,
    /// The bits per weight that are reached, of all weights that one of the schemes could quantize.
    pub bits_per_weight: f64,
    /// The smallest number of bits per weight that can be reached.
    pub smallest_bits: f64,
    /// The sum of the relative squared errors of all weights.
    pub relative_squared_errors: f64,
    /// A sum that no choice with as many bits can be below.
    pub lower_bound: f64,
    /// Number of weights of each scheme, or `keep`.
    pub weights: BTreeMap<String, u64>,
    pub scheme: &'static str,
    pub layout: Option<&'static str>,
    /// The rules of the choice, without the rules of the user.
    pub rules: Vec<String>,
}

/// Reason why there is no choice.
#[derive(Debug)]
pub(crate) enum Unreachable {
    /// All choices have more bits per weight than requested; the smallest number of them.
    TooFewBits(f64),
    /// Every weight would stay as it is stored.
    NothingQuantized,
    /// The rules cannot be written.
    Failed(Error),
}

impl From<Error> for Unreachable {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A weight, and its size and error in each scheme.
struct BudgetWeight<'r> {
    name: &'r str,
    elements: u64,
    /// For each measured scheme, the scheme that the weight gets, and the offer; the last is to keep the weight. `None` if that
    /// is not possible.
    offers: Vec<Option<(Option<&'r str>, Offer)>>,
}

impl Budget {
    /// Chooses one of the measured schemes for each weight, or to keep it if `keeps`. The first scheme is the scheme of
    /// the new options, and rules name the weights with other ones. `names` are the names that patterns can match.
    pub(crate) fn choose(
        measured: &[MeasuredScheme],
        (target, keeps): (f64, bool),
        options: &QuantizeOptions,
        (model, names): (&Model, &[&str]),
    ) -> Result<Self, Unreachable> {
        let weights = weights(measured, keeps, options, model);
        let sum_of = |group: &[usize], scheme: usize| {
            let offers = group.iter().map(|at| Some(weights[*at].offers[scheme]?.1)).collect::<Option<Vec<_>>>()?;
            let bytes = offers.iter().map(|offer| offer.bytes).sum();
            Some((scheme, Offer { bytes, error: offers.iter().map(|offer| offer.error).sum() }))
        };
        // The groups, with the places of the offers that all of their weights have, and the sums of these offers.
        let (mut possible, mut items) = (Vec::new(), Vec::new());
        for group in groups(&weights, measured) {
            let offers = (0..=measured.len()).filter_map(|scheme| sum_of(&group, scheme));
            let (places, offers): (Vec<usize>, Vec<Offer>) = offers.unzip();
            if !places.is_empty() {
                possible.push((group, places));
                items.push(offers);
            }
        }
        let elements: u64 = possible.iter().flat_map(|(group, _)| group).map(|at| weights[*at].elements).sum();
        let bits = |bytes: u64| 8.0 * bytes as f64 / elements.max(1) as f64;
        let least = items.iter().map(|offers| offers.iter().map(|offer| offer.bytes).min().unwrap_or_default()).sum();
        // The product may be rounded to just below a whole number.
        let limit = (target * elements as f64 / 8.0 * (1.0 + 1e-12)) as u64;
        let choice = match budget::choose(&items, limit) {
            Ok(choice) => choice,
            Err(least) => return Err(Unreachable::TooFewBits(bits(least))),
        };
        let mut chosen: BTreeMap<&str, Option<&str>> = BTreeMap::new();
        for ((group, places), offer) in possible.iter().zip(&choice.offers) {
            let scheme = |at: usize| weights[at].offers[places[*offer]].and_then(|(scheme, _)| scheme);
            chosen.extend(group.iter().map(|at| (weights[*at].name, scheme(*at))));
        }
        if chosen.values().all(Option::is_none) {
            return Err(Unreachable::NothingQuantized);
        }
        let by_default = weights.iter().filter_map(|weight| Some((weight.name, weight.offers[0]?.0?))).collect();
        let rules = rules(&chosen, &by_default, names)?;
        let rule = options.rule.iter().chain(&rules).cloned().collect();
        let options = QuantizeOptions { rule, ..options.clone() };
        let options = measured.first().map_or(options.clone(), |first| options.for_scheme(first.scheme));
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for scheme in chosen.values() {
            *counts.entry(scheme.unwrap_or(KEEP).to_owned()).or_default() += 1;
        }
        let BudgetChoice { bytes, error, lower_bound, .. } = choice;
        let figures = BudgetFigures {
            target_bits: target,
            bits_per_weight: bits(bytes),
            smallest_bits: bits(least),
            relative_squared_errors: error,
            lower_bound,
            weights: counts,
            scheme: options.scheme.map_or("", |scheme| scheme.name),
            layout: options.layout_in_effect(),
            rules: rules.iter().map(ToString::to_string).collect(),
        };
        let quantized = chosen.iter().filter_map(|(name, scheme)| Some(((*name).to_owned(), (*scheme)?.to_owned())));
        let chosen = quantized.collect();
        Ok(Self { options, label: format!("{target}bits"), figures, chosen })
    }
}

/// An error that is worse than all others, and whose sums are finite.
const BEYOND_ALL: f64 = 1e100;
/// The word for weights that stay as they are stored.
const KEEP: &str = "keep";

/// Returns the weights that at least one of the schemes quantizes, in the order of the model.
fn weights<'r>(
    measured: &'r [MeasuredScheme],
    keeps: bool,
    options: &QuantizeOptions,
    model: &Model,
) -> Vec<BudgetWeight<'r>> {
    let mut weights: Vec<BudgetWeight> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (scheme, one) in measured.iter().enumerate() {
        for tensor in one.report.tensors() {
            let Some(quantized) = &tensor.quantized else { continue };
            let error = quantized.accuracy.as_ref().and_then(|accuracy| accuracy.relative_squared_error);
            // The error is not finite if all values are 0 and some codes are not.
            let offer = Offer { bytes: tensor.bytes_out, error: error.unwrap_or(BEYOND_ALL) };
            let place = *places.entry(&*tensor.name).or_insert_with(|| {
                let is_free = !options.rule.iter().any(|rule| rule.pattern.matches(&tensor.name));
                let kept = || Offer { bytes: kept_bytes(tensor, options, model), error: 0.0 };
                let mut offers = vec![None; measured.len()];
                offers.push((keeps && is_free).then(|| (None, kept())));
                weights.push(BudgetWeight { name: &tensor.name, elements: tensor.elements(), offers });
                weights.len() - 1
            });
            weights[place].offers[scheme] = Some((Some(&*quantized.scheme), offer));
        }
    }
    weights
}

/// Returns the bytes of a weight that is kept. A quantized weight is decoded then, unless the output is a GGUF file.
fn kept_bytes(tensor: &TensorReport, options: &QuantizeOptions, model: &Model) -> u64 {
    let is_coded = tensor.quantized.as_ref().is_some_and(|quantized| quantized.source_layout.is_some());
    if !is_coded || options.is_gguf() {
        return tensor.bytes_in;
    }
    let found = model.found.weights.iter().find(|weight| *weight.name == *tensor.name);
    let dtype = found.map_or_else(|| model.default_target(), |weight| model.own_type(weight));
    tensor.elements() * u64::from(dtype.bits()) / 8
}

/// Returns the weights that must have the same scheme, and every other weight alone, in the order of the model.
fn groups(weights: &[BudgetWeight], measured: &[MeasuredScheme]) -> Vec<Vec<usize>> {
    let places: HashMap<&str, usize> = weights.iter().zip(0..).map(|(weight, at)| (weight.name, at)).collect();
    // For each weight, one that comes before it in the same group, or itself.
    let mut first: Vec<usize> = (0..weights.len()).collect();
    let root = |first: &[usize], mut at: usize| {
        while first[at] != at {
            at = first[at];
        }
        at
    };
    for set in measured.iter().flat_map(|scheme| &scheme.loaded_together) {
        let mut members = set.iter().filter_map(|name| places.get(&**name).copied());
        let Some(one) = members.next() else { continue };
        for other in members {
            let [a, b] = [one, other].map(|at| root(&first, at));
            first[a.max(b)] = a.min(b);
        }
    }
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for at in 0..weights.len() {
        groups.entry(root(&first, at)).or_default().push(at);
    }
    groups.into_values().collect()
}

/// Returns rules for the weights whose scheme is not the one that they get without a rule.
fn rules(
    chosen: &BTreeMap<&str, Option<&str>>,
    by_default: &HashMap<&str, &str>,
    names: &[&str],
) -> Result<Vec<SchemeRule>> {
    let mut others: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
    for (name, scheme) in chosen {
        if by_default.get(name).copied() != *scheme {
            others.entry(*scheme).or_default().push(name);
        }
    }
    let all: BTreeSet<&str> = names.iter().copied().chain(chosen.keys().copied()).collect();
    let all: Vec<&str> = all.into_iter().collect();
    let mut rules = Vec::new();
    for (scheme, weights) in others.into_iter().rev() {
        let scheme = scheme.and_then(Scheme::find);
        for pattern in patterns_for(&weights, &all) {
            rules.push(SchemeRule { pattern: pattern.parse()?, scheme });
        }
    }
    Ok(rules)
}
