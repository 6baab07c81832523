//! Notes about engines that do not run a quantized model, as documented or shown by a trial.
//!
//! The results of trials are those of [`crate::select::tried`]. They depend on names and on the layout, so files that the
//! libraries themselves write are affected too.

use crate::dtype::Dtype;
use crate::progress::QuantizedForms;
use crate::quant::{Precision, Scheme, SchemeLayout};
use crate::select::tried::{Loader, TrialResult, column};
use std::collections::BTreeSet;

/// Schemes and layouts that may load where another one does not, the best first.
const OTHERS: &[(&str, &str)] = &[
    ("fp8", "compressed-tensors"),
    ("fp8-block", "huggingface"),
    ("int8a16", "compressed-tensors"),
    ("int4", "compressed-tensors"),
];

/// Returns notes about weights that engines may not load or run.
pub(super) fn engine_notes(forms: &QuantizedForms) -> Vec<String> {
    let stored: Vec<(&str, &SchemeLayout)> = (forms.stored.iter())
        .filter_map(|&(scheme, name)| Some((scheme, Scheme::find(scheme)?.in_layout(Some(name))?)))
        .collect();
    let mut notes = Vec::new();
    for &(scheme, layout) in &stored {
        notes.extend(layout.limits.map(str::to_owned).filter(|limits| !notes.contains(limits)));
        notes.extend(of_dtype(scheme, layout, forms.computes_in));
    }
    if let [whole, language, ..] = &forms.kinds[..]
        && whole != language
        && stored.iter().any(|(_, layout)| layout.row.renames_parts)
    {
        notes.push(format!(
            "mlx-vlm has other names for modules of '{whole}', and transposed convolutions: tcast keeps those of Hugging Face"
        ));
    }
    let before = notes.len();
    for &(scheme, layout) in &forms.stored {
        notes.extend(column(scheme, layout).and_then(|column| of_trials(forms, scheme, layout, column)));
    }
    if notes.len() == before {
        notes.extend(of_several(forms));
    }
    notes
}

/// Returns the note about layouts that transformers decodes to bfloat16, whatever the model computes in.
fn of_dtype(scheme: &str, layout: &SchemeLayout, computes_in: Option<Dtype>) -> Option<String> {
    let is_bfloat16 = layout.row.product_precision == Precision::Bfloat16;
    let dtype = computes_in.filter(|dtype| is_bfloat16 && *dtype != Dtype::Bfloat16)?;
    Some(format!(
        "{} decodes {scheme} to bfloat16, and fails to compute with it in {dtype}: load the model with \
         dtype=torch.bfloat16",
        Loader::transformers()?.name
    ))
}

/// Returns the kind of model that a loader takes badly in a column, and how. Of a model that consists of several, the whole
/// must have been tried, and its language model counts too.
fn tried<'p>(
    loader: Loader,
    forms: &'p QuantizedForms,
    column: &str,
    has_experts: bool,
) -> Option<(&'p str, TrialResult)> {
    let outcome = |kind: &str| Some(loader.trials(kind, has_experts)?.outcome(column, has_experts));
    let whole = forms.kinds.first()?;
    let of_parts = forms.kinds.iter().filter_map(|kind| Some((kind.as_str(), outcome(kind)?)));
    let bad = of_parts
        .into_iter()
        .find(|(_, outcome)| matches!(outcome, TrialResult::Fails { .. } | TrialResult::Wrong { .. }));
    let of_any = || match loader.trials("*", has_experts)?.outcome(column, has_experts) {
        TrialResult::Untried => None,
        of_any => Some((whole.as_str(), of_any)),
    };
    Some(bad.or_else(of_any).unwrap_or_else(|| (whole.as_str(), outcome(whole).unwrap_or(TrialResult::Untried))))
}

/// Returns the note about a scheme in which a loader does not take this kind of model, or was not tried with it.
fn of_trials(forms: &QuantizedForms, scheme: &str, layout: &str, column: &str) -> Option<String> {
    let loader = Loader::of(column)?;
    let has_experts = forms.experts.iter().any(|(own, _)| *own == scheme);
    let (kind, outcome) = tried(loader, forms, column, has_experts)?;
    let name = loader.name;
    let (what, decodes) = match outcome {
        TrialResult::Right => return None,
        TrialResult::Untried => return Some(format!("no test loads {scheme} of '{kind}' into {name}")),
        TrialResult::Fails { decodes: true } => {
            (format!("{name} loads {scheme} of '{kind}' only with {}", decoding(layout)), true)
        }
        TrialResult::Wrong { decodes: true } => {
            (format!("{name} loads {scheme} of '{kind}' with wrong values, except with {}", decoding(layout)), true)
        }
        TrialResult::Fails { .. } => (format!("{name} does not load {scheme} of '{kind}'"), false),
        TrialResult::Wrong { .. } => {
            (format!("{name} loads {scheme} of '{kind}' without an error, and computes wrong results"), false)
        }
    };
    let is_right = |&(scheme, layout): &(&str, &str)| {
        let column = self::column(scheme, layout);
        column
            .and_then(|column| tried(loader, forms, column, has_experts))
            .is_some_and(|(_, it)| it == TrialResult::Right)
    };
    let own: Vec<(&str, &str)> = Scheme::find(scheme)?.layout_names().map(|other| (scheme, other)).collect();
    let same = own.iter().find(|other| is_right(other)).map(|(_, layout)| format!("--layout {layout}"));
    let other = || OTHERS.iter().find(|other| is_right(other)).map(|(scheme, _)| format!("--scheme {scheme}"));
    let instead =
        same.or_else(other).map(|flags| format!("; it loads {flags}{}", if decodes { " without it" } else { "" }));
    let is_plain = || tried(loader, forms, "plain", has_experts).is_some_and(|(_, it)| it == TrialResult::Right);
    let from_values = || (!decodes && is_plain()).then(|| "; it loads what tcast dequantize makes of it".to_owned());
    Some(what + &instead.or_else(from_values).unwrap_or_default())
}

/// Returns the note about modules of several schemes, or that are kept, which a loader does not find in this kind of model.
fn of_several(forms: &QuantizedForms) -> Option<String> {
    let of_format = |stored: &BTreeSet<(&str, &str)>| stored.iter().any(|(_, layout)| *layout == "compressed-tensors");
    if !of_format(&forms.stored) {
        return None;
    }
    let loader = Loader::transformers()?;
    let has_experts = !forms.experts.is_empty();
    let note = |column: &str, what: &str, remedy: &str| match tried(loader, forms, column, has_experts)? {
        (kind, TrialResult::Fails { decodes } | TrialResult::Wrong { decodes }) => {
            let end = if decodes { format!(", except with {}", decoding("compressed-tensors")) } else { String::new() };
            Some(format!("{} does not load '{kind}' with {what}{end}{remedy}", loader.name))
        }
        _ => None,
    };
    if forms.stored.len() > 1 {
        return note("mixed", "several schemes", ": choose one scheme for all");
    }
    forms.has_kept_layers.then(|| note("kept", "layers that are kept", "")).flatten()
}

/// Returns the argument with which transformers decodes all weights while it loads them.
fn decoding(layout: &str) -> &'static str {
    match layout {
        "compressed-tensors" => "quantization_config=CompressedTensorsConfig(dequantize=True)",
        _ => "quantization_config=FineGrainedFP8Config(dequantize=True)",
    }
}
