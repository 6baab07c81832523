//! The plan for an ONNX model whose weights are stored in narrower types.

use super::draft::DraftStep;
use super::{Conversions, Operation, Plan, Request, Step};
use crate::container::Input;
use crate::container::onnx::model::{
    Break, Change, Dequantization, ModelLayout, Obstacle, QuantizedTensor, Study, TensorChange,
};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::operator::cast::VERSIONS;
use crate::quant::LinearAxis;
use crate::read::MappedBytes;
use crate::select::{KeptReason, Rule};
use crate::text::{shorten, size};
use std::borrow::Cow;

/// Maximum bytes of a model. protobuf libraries read fewer than 2 GiB, and 1 MiB is left free.
const MAX_MODEL: u64 = (1 << 31) - (1 << 20);

pub(super) fn build<'a>(
    request: &Request,
    input: &'a Input,
    study: &Study,
    drafts: Vec<DraftStep<'a>>,
    conversions: &mut Conversions,
) -> Result<Plan<'a>> {
    let (tensors, quantized) = changes(input, study, &drafts);
    let mut notes = rules_without_effect(request, &drafts);
    let (opset, ir_version) = versions(request, input, study, &drafts, &mut notes)?;
    let mut change = Change { tensors, quantized, opset, ir_version, data_file: None };
    let layout = lay_out(request, input, study, &mut change, &mut notes)?;
    // Several weights with the same codes follow each other, and so do their places.
    let mut last = (usize::MAX, 0);
    let steps = drafts.into_iter().map(|DraftStep { place: (_, at), step, .. }| {
        last = (at, if last.0 == at { last.1 + 1 } else { 0 });
        place(step, last, study, &layout, conversions)
    });
    let steps = steps.collect::<Result<_>>()?;
    let ModelLayout { layout, copies, data_start, .. } = layout;
    let copied = |(offset, range)| (offset, MappedBytes { file: &input.files[0], range, checksum: None });
    Ok(Plan {
        steps,
        literals: layout.literals,
        copies: copies.into_iter().map(copied).collect(),
        len: layout.len,
        data_start,
        notes,
        is_deflated: false,
    })
}

/// Returns a note for each rule that names only tensors that the model keeps.
fn rules_without_effect(request: &Request, drafts: &[DraftStep]) -> Vec<String> {
    let said = |rule: &Rule| {
        rule.target()?;
        let steps = drafts.iter().map(|draft| &draft.step);
        let mut named = steps.filter(|step| rule.pattern.matches(step.name())).peekable();
        let reason = named.peek()?.kept?;
        let is_kept = |step: &Step| matches!(step.kept, Some(KeptReason::Role(_) | KeptReason::NotFloating));
        let rule = shorten(rule.pattern.text());
        named
            .all(is_kept)
            .then(|| format!("the rule '{rule}' has no effect: the model keeps its tensors ({})", reason.describe()))
    };
    request.selection.rules.iter().filter_map(said).collect()
}

/// Lays out the model, with a second file for its elements if it is too long or the request asks for one.
fn lay_out<'c>(
    request: &Request<'c>,
    input: &Input,
    study: &Study,
    change: &mut Change<'c>,
    notes: &mut Vec<String>,
) -> Result<ModelLayout> {
    let whole = study.lay_out(input, change)?;
    let len = whole.layout.len;
    let is_long = len > MAX_MODEL;
    if !is_long && !request.model.external_data {
        return Ok(whole);
    }
    let needed = || {
        let error = Error::new(format!("a model of {}; protobuf messages are limited to 2 GiB", size(len)));
        if is_long { error } else { Error::new("the elements go to a file beside the model") }
    };
    let named = request.model.data_file.filter(|name| !name.contains(".."));
    let remedy = "name an output file, in UTF-8 and without '..'";
    change.data_file = Some(named.ok_or_else(|| needed().remedy(remedy))?);
    if is_long && !request.model.external_data {
        let len = size(len);
        notes.push(format!("the elements of large tensors go to a second file: a model of {len} is too long"));
    }
    let divided = study.lay_out(input, change)?;
    let model_len = divided.data_start.unwrap_or(divided.layout.len);
    if model_len > MAX_MODEL {
        let what = "without its initializers, and protobuf messages are limited to 2 GiB";
        return Err(Error::new(format!("a model of {} {what}", size(model_len))));
    }
    Ok(divided)
}

/// Gives the results of a step their places. Tensors of one index and several numbers have the same codes.
fn place<'a>(
    mut step: Step<'a>,
    (at, number): (usize, usize),
    study: &Study,
    ModelLayout { layout, places, .. }: &ModelLayout,
    conversions: &mut Conversions,
) -> Result<Step<'a>> {
    let place = places[at].map(|first| &layout.places[first + number..]);
    match &mut step.how {
        Operation::Convert(conversion) => {
            if let Some([place, ..]) = place
                && conversion.to != place.form
            {
                let completed = conversions.get(conversion.from, place.form, step.kept.is_none());
                *conversion = completed.map_err(|error| error.in_tensor(&step.results[0].name))?;
            }
            if let Ok(to) = step.new_dtype() {
                step.results[0].name = Cow::Owned(study.stored_name(&step.results[0].name, to));
            }
        }
        Operation::Decode(decoder) => {
            let (own, to) = (step.sources[1].elements.stored_dtype(), decoder.target());
            if own != to {
                let error = Error::new(format!("the nodes of the model compute with {own}, and not with {to}"));
                let remedy = "name an output that ends in .safetensors";
                return Err(error.in_tensor(step.name()).remedy(remedy).without("to"));
            }
        }
        Operation::Encode(weight) => {
            let parts = weight.rows.encoder.parts();
            let stored = study.stored_name(&step.sources[0].tensor.name, parts[0].dtype);
            for (result, part) in step.results.iter_mut().zip(parts) {
                result.name = Cow::Owned(format!("{stored}{}", part.suffix));
            }
        }
    }
    step.stays = place.is_none();
    let unchanged = 0..step.sources[0].stored_len();
    for (number, result) in step.results.iter_mut().enumerate() {
        result.range = place.map_or(unchanged.clone(), |places| places[number].range.clone());
    }
    Ok(step)
}

fn changes<'c>(input: &Input, study: &Study, drafts: &'c [DraftStep]) -> (Vec<TensorChange>, Vec<QuantizedTensor<'c>>) {
    let mut quantized = Vec::new();
    let mut tensors = vec![TensorChange::Goes; input.contents.tensors.len()];
    for &DraftStep { place: (_, at), ref step, .. } in drafts {
        if matches!(tensors[at], TensorChange::Decoded(..)) {
            continue;
        }
        tensors[at] = match (&step.how, step.new_dtype()) {
            (_, Err(_)) => TensorChange::Stays,
            (Operation::Decode(_), Ok(to)) => {
                let is_it = |found: &Dequantization| found.codes == at;
                let number = study.dequantizations.iter().position(is_it).expect("the graph says what is decoded");
                TensorChange::Decoded(number, to)
            }
            (Operation::Encode(weight), Ok(_)) => {
                let encoder = &weight.rows.encoder;
                let parts = encoder.parts().iter().map(|part| (part.dtype, &part.shape[..])).collect();
                let LinearAxis { axis, block_size } = encoder.axis().expect("the encoder is one for models");
                quantized.push(QuantizedTensor { parts, axis, block_size });
                TensorChange::Quantized(quantized.len() - 1)
            }
            (Operation::Convert(_), Ok(to)) => TensorChange::Cast(to),
        };
    }
    (tensors, quantized)
}

/// Returns the opset and the IR version that the model needs, if it has older ones.
fn versions(
    request: &Request,
    input: &Input,
    study: &Study,
    drafts: &[DraftStep],
    notes: &mut Vec<String>,
) -> Result<(Option<u64>, Option<u64>)> {
    let since = |dtype: Dtype| VERSIONS.iter().find(|version| version.added.contains(&dtype)).map_or(0, |it| it.since);
    let steps = || drafts.iter().map(|draft| &draft.step);
    let converted = || {
        let cast = steps().filter(|step| matches!(step.how, Operation::Convert(_)) && step.is_converted());
        cast.map(Step::dtypes)
    };
    // The opset to import instead, the type or scale that needs it, and the imported opset.
    let mut raised: Option<(u64, String, u64)> = None;
    let mut require = |what: String, wanted: u64, remedy: Option<&str>| {
        if raised.as_ref().is_some_and(|(known, ..)| *known >= wanted) {
            return Ok(());
        }
        match study.obstacle(&input.files[0], wanted) {
            None => Ok(()),
            Some(Obstacle::Opset { imported, broken: None }) if request.model.raise_opset => {
                raised = Some((wanted, what, imported));
                Ok(())
            }
            Some(obstacle) => Err(refused(&what, wanted, obstacle, remedy)),
        }
    };
    let types = converted().flat_map(|(from, to)| [from, to]);
    if let Some(dtype) = types.max_by_key(|dtype| since(*dtype)) {
        require(dtype.to_string(), since(dtype).into(), OTHER_TYPE)?;
    }
    for step in steps() {
        let (Operation::Encode(weight), (scales, codes)) = (&step.how, step.dtypes()) else { continue };
        let is_blocked = weight.rows.encoder.axis().is_some_and(|axis| axis.block_size > 0);
        let (what, wanted) = match codes {
            codes if is_blocked || codes.bits() < 8 => (codes.to_string(), 21),
            codes if codes.is_float8() => (codes.to_string(), 19),
            _ if scales != Dtype::Float32 => (format!("a scale of {scales}"), 19),
            _ => (codes.to_string(), 13),
        };
        if let Some(obstacle) = study.old_ir() {
            return Err(refused(&what, 0, obstacle, None));
        }
        require(what, wanted, None)?;
    }
    if let Some((opset, what, imported)) = &raised {
        notes.push(format!("the model now imports opset {opset} instead of {imported}, for {what}"));
    }
    let mut ir_version = None;
    for to in converted().map(|(_, to)| to).chain(steps().filter_map(|step| step.new_dtype().ok())) {
        match study.ir_version_for(to) {
            Ok(wanted) => ir_version = ir_version.max(wanted),
            Err(obstacle) => {
                let is_quantized = steps().any(|step| matches!(step.how, Operation::Encode(_)));
                return Err(refused(to.name(), 0, obstacle, OTHER_TYPE.filter(|_| !is_quantized)));
            }
        }
    }
    if let Some(version) = ir_version {
        notes.push(format!("the model now has IR version {version}, which its types need"));
    }
    Ok((raised.map(|(opset, ..)| opset), ir_version))
}

/// Remedy if users choose the type, as in a cast. The types of a scheme are fixed.
const OTHER_TYPE: Option<&str> = Some("float16 needs no later version");

/// Returns the error for a type or scale that needs later versions than the model has; `remedy` helps without another
/// version.
fn refused(needy: &str, wanted: u64, obstacle: Obstacle, remedy: Option<&str>) -> Error {
    const OWN_DOMAIN: &str = "if the operator is not one of ONNX, its nodes need a domain of their own";
    const CONVERTER: &str = "onnx.version_converter converts models to later opsets";
    const INLINER: &str = "onnx.inliner.inline_local_functions puts the nodes of functions into the graph";
    let with_remedy = |error: Error| match remedy {
        Some(remedy) => error.remedy(remedy),
        None => error,
    };
    match obstacle {
        Obstacle::Opset { imported, broken } => {
            let what = format!("{needy} needs opset {wanted}, and the model imports {imported}");
            match broken {
                None => Error::new(what).of(Kind::OldOpset),
                Some((node, operator, why)) => {
                    let (why, advice) = match why {
                        Break::From(first) => (format!("means something else from opset {first} on"), CONVERTER),
                        Break::Unknown => ("is of an operator that tcast does not know".to_owned(), OWN_DOMAIN),
                    };
                    Error::new(format!("{what}: node '{node}' ({operator}) {why}"))
                        .remedy(remedy.into_iter().chain([advice]).collect::<Vec<_>>().join("; "))
                }
            }
        }
        Obstacle::Functions { imported } => {
            let what = format!(
                "{needy} needs opset {wanted}, and the model imports {imported}: its functions import opsets of their own, \
                 so tcast does not raise it"
            );
            Error::new(what).remedy(remedy.into_iter().chain([INLINER]).collect::<Vec<_>>().join("; "))
        }
        Obstacle::NoOpset => {
            Error::new("the model imports no operators of the default domain, and Cast is one of them")
                .remedy("name an output that ends in .safetensors")
        }
        Obstacle::OldIr { version } => with_remedy(Error::new(format!(
            "{needy} needs a later IR version than {version}, in which callers could override the initializers"
        ))),
    }
}
