//! ONNX models whose weights are stored in narrower types: the choice of the weights, and the layout of the model.

use super::{Conversions, Operation, Plan, Request, Step};
use crate::container::onnx::model::{
    Change, CodesForm, ModelGraph, ModelLayout, QuantizedTensor, TensorChange, TensorRole,
};
use crate::container::{Input, MetadataChange, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::operator::Operator;
use crate::operator::cast::VERSIONS;
use crate::progress::OnnxNote;
use crate::quant::{CodeNodes, CodeValues, LinearAxis, WeightEncoder};
use crate::read::MappedBytes;
use crate::select::{KeptReason, Rule};
use crate::text::size;
use std::borrow::Cow;
use std::sync::Arc;

/// Maximum bytes of a model. protobuf libraries read fewer than 2 GiB, and 1 MiB is left free.
const MAX_MODEL: u64 = (1 << 31) - (1 << 20);

/// Returns the graph of the model that is changed: `read`, or read now. Fails if there are several inputs, the operator does not write ONNX
/// models, or tensors would get new names.
pub(super) fn graph<'a>(
    request: &Request,
    inputs: &'a [Input],
    read: Option<&Arc<ModelGraph<'a>>>,
) -> Result<Arc<ModelGraph<'a>>> {
    let [input] = inputs else { return Err(Error::new("an ONNX model is made from one model")) };
    if !matches!(request.operator, Operator::Cast(_) | Operator::Dequantize | Operator::Quantize) {
        let error = Error::new(format!("{} does not write ONNX models", request.operator.name()));
        let options = [(Opt::TO, "float32"), (Opt::EXCLUDE, "*"), (Opt::OUTPUT, "FILE.safetensors")];
        return Err(error.run("cast", Some(input.path()), &options, "take its tensors out first: {}"));
    }
    if let Some(rename) = request.selection.renames.first() {
        let error = Error::usage("cannot be renamed: the nodes of the model refer to it by its name");
        return Err(error.in_tensor(&rename.old).without(Opt::RENAME));
    }
    read.map_or_else(|| ModelGraph::of(input).map(Arc::new), |graph| Ok(Arc::clone(graph)))
}

/// Returns the reason why a tensor of a model keeps its type, if it does.
pub(super) fn kept(
    request: &Request,
    role: Option<TensorRole>,
    (tensor, name): (&Tensor, &str),
    from: Dtype,
    to: Dtype,
) -> Result<Option<KeptReason>> {
    let is_named = request.selection.rule(name).is_some();
    let reason = match role {
        Some(TensorRole::Parameter) if is_named => None,
        Some(role) => Some(KeptReason::Role(role)),
        None => None,
    };
    if !from.is_floating() {
        return Ok(Some(KeptReason::NotFloating));
    }
    if !to.is_floating() {
        let error = Error::new("tcast stores weights of ONNX models only as floats");
        return Err(error.with(Opt::TO, "choose a floating type; the quantize command writes integers"));
    }
    let reason = reason.or((to == from).then_some(KeptReason::Already));
    let reason = reason.or((to.bits() >= from.bits()).then_some(KeptReason::NotNarrower));
    Ok(reason.or((!is_named && tensor.count < request.model.min_elements).then_some(KeptReason::Small)))
}

/// Lays out the model with the results of these steps.
pub(super) fn build<'a>(
    request: &Request,
    input: &'a Input,
    graph: &ModelGraph,
    (steps, metadata): (Vec<Step<'a>>, &[MetadataChange]),
    conversions: &mut Conversions,
) -> Result<(Plan<'a>, Vec<OnnxNote>)> {
    let mut notes = rules_without_effect(request, &steps);
    let (opset, ir_version) = versions(request, graph, &steps, &mut notes)?;
    let tensors = changes(request, input.contents.tensors.len(), &steps);
    let mut change = Change { tensors, opset, ir_version, metadata, data_file: None };
    let layout = lay_out(request, input, graph, &mut change, &mut notes)?;
    // Several weights with the same codes follow each other, and so do their places.
    let mut last = (usize::MAX, 0);
    let mut plan = Plan::of(steps);
    for step in &mut plan.steps {
        let at = step.place.1;
        last = (at, if last.0 == at { last.1 + 1 } else { 0 });
        place(step, last, graph, &layout, conversions)?;
    }
    let ModelLayout { layout, copies, data_start, .. } = layout;
    let copied = |(offset, range)| (offset, MappedBytes { file: &input.files[0], range, checksum: None });
    (plan.literals, plan.entries, plan.len) = (layout.literals, layout.entries, layout.len);
    (plan.copies, plan.data_start) = (copies.into_iter().map(copied).collect(), data_start);
    Ok((plan, notes))
}

/// Returns a note for each rule that names only tensors that the model keeps.
fn rules_without_effect(request: &Request, steps: &[Step]) -> Vec<OnnxNote> {
    let said = |rule: &Rule| {
        rule.target()?;
        let mut named = steps.iter().filter(|step| rule.pattern.matches(step.name())).peekable();
        let reason = named.peek()?.kept?;
        let is_kept = |step: &Step| matches!(step.kept, Some(KeptReason::Role(_) | KeptReason::NotFloating));
        named.all(is_kept).then(|| OnnxNote::RuleWithoutEffect(rule.pattern.text().to_owned(), reason))
    };
    request.selection.rules.iter().filter_map(said).collect()
}

/// Lays out the model, with a second file for its elements if it is too long or the request asks for one.
fn lay_out<'c>(
    request: &Request<'c>,
    input: &Input,
    graph: &ModelGraph,
    change: &mut Change<'c>,
    notes: &mut Vec<OnnxNote>,
) -> Result<ModelLayout> {
    let whole = graph.lay_out(input, change)?;
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
    change.data_file = Some(named.ok_or_else(|| needed().with(Opt::OUTPUT, remedy))?);
    if is_long && !request.model.external_data {
        notes.push(OnnxNote::SecondFile(len));
    }
    let divided = graph.lay_out(input, change)?;
    let model_len = divided.data_start.unwrap_or(divided.layout.len);
    if model_len > MAX_MODEL {
        let what = "without its initializers, and protobuf messages are limited to 2 GiB";
        return Err(Error::new(format!("a model of {} {what}", size(model_len))));
    }
    Ok(divided)
}

/// Gives the results of a step their places. Tensors of one index and several numbers have the same codes.
fn place(
    step: &mut Step,
    (at, number): (usize, usize),
    graph: &ModelGraph,
    ModelLayout { layout, places, .. }: &ModelLayout,
    conversions: &mut Conversions,
) -> Result<()> {
    let place = places[at].map(|first| &layout.places[first + number..]);
    if let Some([place, ..]) = place {
        conversions.complete(step, place.form)?;
    }
    match &step.how {
        Operation::Convert(_) => {
            if let Ok(to) = step.new_dtype() {
                step.results[0].name = Cow::Owned(graph.stored_name(&step.results[0].name, to));
            }
        }
        Operation::Decode(decoder) => {
            let (own, to) = (step.sources[1].elements.stored_dtype(), decoder.target());
            if own != to {
                let error = Error::new(format!("the nodes of the model compute with {own}, and not with {to}"));
                let remedy = "name an output that ends in .safetensors";
                return Err(error.in_tensor(step.name()).with(Opt::OUTPUT, remedy).without(Opt::TO));
            }
        }
        Operation::Encode(weight) => {
            let parts = weight.rows.encoder.parts();
            let names = graph.part_names(&weight.name, parts[0].dtype, form(&weight.rows.encoder));
            for (result, name) in step.results.iter_mut().zip(names) {
                result.name = Cow::Owned(name);
            }
        }
    }
    step.stays = place.is_none();
    let unchanged = 0..step.sources[0].stored_len();
    for (number, result) in step.results.iter_mut().enumerate() {
        result.range = place.map_or(unchanged.clone(), |places| places[number].range.clone());
    }
    Ok(())
}

/// Returns the change of each tensor of the model.
fn changes<'c>(request: &Request, count: usize, steps: &'c [Step]) -> Vec<TensorChange<'c>> {
    let mut tensors: Vec<TensorChange> = std::iter::repeat_with(|| TensorChange::Goes).take(count).collect();
    for step in steps {
        tensors[step.place.1] = match (&step.how, step.new_dtype()) {
            (_, Err(_)) => TensorChange::Stays,
            (Operation::Decode(_), Ok(_)) => TensorChange::Decoded,
            (Operation::Encode(weight), Ok(_)) => {
                let encoder = &weight.rows.encoder;
                let parts = encoder.parts().iter().map(|part| (part.dtype, &part.shape[..])).collect();
                let accuracy_level = request.accuracy_level;
                TensorChange::Quantized(QuantizedTensor { parts, form: form(encoder), accuracy_level })
            }
            (Operation::Convert(_), Ok(to)) => TensorChange::Cast(to),
        };
    }
    tensors
}

/// Returns the arrangement of the codes that an encoder for models writes.
fn form(encoder: &WeightEncoder) -> CodesForm {
    let grid = encoder.grid().expect("the encoder is one for models");
    if let Some(LinearAxis { axis, block_size }) = encoder.axis() {
        if grid.layout().nodes == Some(CodeNodes::Table) {
            let unsigned_bits = (grid.layout().codes.values == CodeValues::Unsigned).then(|| grid.blocks().1);
            return CodesForm::Gather { axis, block_size, unsigned_bits };
        }
        return CodesForm::Linear(Some((axis, block_size)));
    }
    let (block_size, bits) = grid.blocks();
    CodesForm::Product { shape: [grid.columns(), grid.rows()], bits, block_size }
}

/// Returns the opset and the IR version that the model needs, if it has older ones.
fn versions(
    request: &Request,
    graph: &ModelGraph,
    steps: &[Step],
    notes: &mut Vec<OnnxNote>,
) -> Result<(Option<u64>, Option<u64>)> {
    /// Remedy if users choose the type, as in a cast. The types of a scheme are fixed.
    const OTHER_TYPE: &str = "float16 needs no later version";
    let since = |dtype: Dtype| VERSIONS.iter().find(|version| version.added.contains(&dtype)).map_or(0, |it| it.since);
    let converted = || steps.iter().filter(|step| step.is_converted());
    // The opset to import instead, the type or scale that needs it, and the imported opset.
    let mut raised: Option<(u64, String, u64)> = None;
    let mut require = |needy: String, wanted: u64, remedy: Option<&str>| {
        if raised.as_ref().is_none_or(|(known, ..)| *known < wanted)
            && let Some(imported) = graph.older_opset((&needy, wanted), remedy, request.model.raise_opset)?
        {
            raised = Some((wanted, needy, imported));
        }
        Ok(())
    };
    let cast = converted().filter(|step| matches!(step.how, Operation::Convert(_)));
    let types = cast.map(Step::dtypes).flat_map(|(from, to)| [from, to]);
    if let Some(dtype) = types.max_by_key(|dtype| since(*dtype)) {
        require(dtype.to_string(), since(dtype).into(), Some(OTHER_TYPE))?;
    }
    let mut is_quantized = false;
    for step in converted() {
        let Some(weight) = step.quantization() else { continue };
        let (scales, codes) = step.dtypes();
        is_quantized = true;
        let axis = weight.rows.encoder.axis();
        let is_blocked = axis.is_some_and(|axis| axis.block_size > 0);
        let (needy, wanted) = match codes {
            _ if axis.is_none() => (codes.to_string(), 0),
            codes if is_blocked || codes.bits() < 8 => (codes.to_string(), 21),
            codes if codes.is_float8() => (codes.to_string(), 19),
            _ if scales != Dtype::Float32 => (format!("a scale of {scales}"), 19),
            _ => (codes.to_string(), 13),
        };
        graph.check_new_initializers(&needy)?;
        require(needy, wanted, None)?;
    }
    let opset = raised.as_ref().map(|(needed, ..)| *needed);
    if let Some((needed, needy, imported)) = raised {
        notes.push(OnnxNote::LaterOpset { imported, needed, needy });
    }
    let mut ir_version = None;
    for step in converted() {
        let later = graph.later_ir(step.dtypes().1);
        let later = later.map_err(|error| if is_quantized { error } else { error.remedy(OTHER_TYPE) })?;
        ir_version = ir_version.max(later);
    }
    if let Some(version) = ir_version {
        notes.push(OnnxNote::LaterIr(version));
    }
    Ok((opset, ir_version))
}
