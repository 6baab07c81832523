//! The plan for an ONNX model whose weights are stored in narrower types.

use super::choose::{Chosen, Origin};
use super::few::Few;
use super::{Conversions, NewStored, Operation, Plan, Request, Step};
use crate::container::Input;
use crate::container::onnx::model::{
    Break, Change, Dequantization, ModelLayout, Obstacle, QuantizedTensor, Study, TensorChange,
};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::operator::cast::VERSIONS;
use crate::quant::{EncodedPart, LinearAxis};
use crate::read::{MappedBytes, SourceTensor};
use crate::select::{KeptReason, Rule};
use crate::text::{shorten, size};
use std::borrow::Cow;

/// Maximum bytes of a model. protobuf libraries read fewer than 2 GiB, and 1 MiB is left free.
const MAX_MODEL: u64 = (1 << 31) - (1 << 20);

pub(super) fn build<'a>(
    request: &Request,
    input: &'a Input,
    study: &Study,
    chosen: Vec<Chosen<'a>>,
    conversions: &mut Conversions,
) -> Result<Plan<'a>> {
    let (tensors, quantized) = changes(input, study, &chosen);
    let mut notes = rules_without_effect(request, &chosen);
    let (opset, ir_version) = versions(request, input, study, &chosen, &mut notes)?;
    let mut change = Change { tensors, quantized, opset, ir_version, data_file: None };
    let layout = lay_out(request, input, study, &mut change, &mut notes)?;
    // Several weights with the same codes follow each other, and so do their places.
    let mut last = (usize::MAX, 0);
    let steps = chosen.into_iter().map(|chosen| {
        let at = chosen.place.1;
        last = (at, if last.0 == at { last.1 + 1 } else { 0 });
        step(chosen, last.1, study, &layout, conversions)
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
fn rules_without_effect(request: &Request, chosen: &[Chosen]) -> Vec<String> {
    let said = |rule: &Rule| {
        rule.target()?;
        let mut named = chosen.iter().filter(|tensor| rule.pattern.matches(&tensor.name)).peekable();
        let reason = named.peek()?.target.err()?;
        let is_kept = |tensor: &Chosen| matches!(tensor.target, Err(KeptReason::Role(_) | KeptReason::NotFloating));
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
    let named = request.data_file.filter(|name| !name.contains(".."));
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

/// Returns the step for a tensor; `number` counts the tensors in one place.
fn step<'a>(
    chosen: Chosen<'a>,
    number: usize,
    study: &Study,
    ModelLayout { layout, places, .. }: &ModelLayout,
    conversions: &mut Conversions,
) -> Result<Step<'a>> {
    let Chosen { place: (_, at), sources, from, target, name, .. } = chosen;
    let place = places[at].map(|place| layout.places[place + number].clone());
    match from {
        Origin::Elements(from) => {
            let to = place.as_ref().map_or(from, |place| place.form);
            let conversion = conversions.get(from, to, target.is_ok());
            let conversion = conversion.map_err(|error| error.in_tensor(&name))?;
            let name = match target {
                Ok(to) => Cow::Owned(study.stored_name(&name, to)),
                Err(_) => name,
            };
            let range = place.as_ref().map_or(0..sources[0].stored_len(), |place| place.range.clone());
            Ok(Step {
                stays: place.is_none(),
                sources,
                results: Few::One(NewStored { name, range, crc: None }),
                how: Operation::Convert(conversion),
                kept: target.err(),
                fortran_order: false,
            })
        }
        Origin::Parts(decoder) => {
            let (own, to) = (sources[1].elements.stored_dtype(), decoder.target());
            if own != to {
                let error = Error::new(format!("the nodes of the model compute with {own}, and not with {to}"));
                let remedy = "name an output that ends in .safetensors";
                return Err(error.in_tensor(&name).remedy(remedy).without("to"));
            }
            let range = place.expect("what is decoded gets a new place").range;
            let results = Few::One(NewStored { name, range, crc: None });
            Ok(converted(sources, results, Operation::Decode(decoder)))
        }
        Origin::Values(weight) => {
            let first = places[at].expect("what is quantized gets new places");
            let parts = weight.rows.encoder.parts();
            let stored = study.stored_name(&sources[0].tensor.name, parts[0].dtype);
            let new = |(number, part): (usize, &EncodedPart)| NewStored {
                name: Cow::Owned(format!("{stored}{}", part.suffix)),
                range: layout.places[first + number].range.clone(),
                crc: None,
            };
            let results = Few::Several(parts.iter().enumerate().map(new).collect());
            Ok(converted(sources, results, Operation::Encode(weight)))
        }
    }
}

/// Returns the step for a tensor whose values are computed.
fn converted<'a>(sources: Few<SourceTensor<'a>>, results: Few<NewStored<'a>>, how: Operation<'a>) -> Step<'a> {
    Step { stays: false, sources, results, how, kept: None, fortran_order: false }
}

fn changes<'c>(input: &Input, study: &Study, chosen: &'c [Chosen]) -> (Vec<TensorChange>, Vec<QuantizedTensor<'c>>) {
    let mut quantized = Vec::new();
    let mut tensors = vec![TensorChange::Goes; input.contents.tensors.len()];
    for chosen in chosen {
        if matches!(tensors[chosen.place.1], TensorChange::Decoded(..)) {
            continue;
        }
        tensors[chosen.place.1] = match (&chosen.from, chosen.target) {
            (_, Err(_)) => TensorChange::Stays,
            (Origin::Parts(_), Ok(to)) => {
                let is_it = |found: &Dequantization| found.codes == chosen.place.1;
                let number = study.dequantizations.iter().position(is_it).expect("the graph says what is decoded");
                TensorChange::Decoded(number, to)
            }
            (Origin::Values(weight), Ok(_)) => {
                let encoder = &weight.rows.encoder;
                let parts = encoder.parts().iter().map(|part| (part.dtype, &part.shape[..])).collect();
                let LinearAxis { axis, block_size } = encoder.axis().expect("the encoder is one for models");
                quantized.push(QuantizedTensor { parts, axis, block_size });
                TensorChange::Quantized(quantized.len() - 1)
            }
            (Origin::Elements(_), Ok(to)) => TensorChange::Cast(to),
        };
    }
    (tensors, quantized)
}

/// Returns the opset and the IR version that the model needs, if it has older ones.
fn versions(
    request: &Request,
    input: &Input,
    study: &Study,
    chosen: &[Chosen],
    notes: &mut Vec<String>,
) -> Result<(Option<u64>, Option<u64>)> {
    let since = |dtype: Dtype| VERSIONS.iter().find(|version| version.added.contains(&dtype)).map_or(0, |it| it.since);
    let is_cast = |chosen: &&Chosen| matches!(chosen.from, Origin::Elements(_));
    let converted = || {
        let cast = chosen.iter().filter(is_cast);
        cast.filter_map(|chosen| chosen.target.ok().map(|to| (source_dtype(chosen), to)))
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
    for chosen in chosen {
        let (Origin::Values(weight), Ok(codes)) = (&chosen.from, chosen.target) else { continue };
        let is_blocked = weight.rows.encoder.axis().is_some_and(|axis| axis.block_size > 0);
        let scales = source_dtype(chosen);
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
    let types = converted().map(|(_, to)| to).chain(chosen.iter().filter_map(|chosen| chosen.target.ok()));
    for to in types {
        match study.ir_version_for(to) {
            Ok(wanted) => ir_version = ir_version.max(wanted),
            Err(obstacle) => {
                let is_quantized = chosen.iter().any(|chosen| matches!(chosen.from, Origin::Values(_)));
                return Err(refused(to.name(), 0, obstacle, OTHER_TYPE.filter(|_| !is_quantized)));
            }
        }
    }
    if let Some(version) = ir_version {
        notes.push(format!("the model now has IR version {version}, which its types need"));
    }
    Ok((raised.map(|(opset, ..)| opset), ir_version))
}

fn source_dtype(chosen: &Chosen) -> Dtype {
    chosen.sources[0].elements.stored_dtype()
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
