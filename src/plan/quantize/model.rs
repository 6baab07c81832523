//! Decides which weights of an ONNX model are quantized, and how. The graph determines their roles; names do not
//! matter.

use super::fit::encoder_of_model;
use super::misfit;
use super::transposed::TransposedWeights;
use crate::container::Tensor;
use crate::container::onnx::model::{ModelGraph, TensorRole, WeightUse};
use crate::error::{Error, Opt, Result};
use crate::options::QuantizeOptions;
use crate::plan::quantization::CodesSource;
use crate::plan::steps::Steps;
use crate::plan::stored::Few;
use crate::plan::weight_rows::{SharedExtremes, WeightRows, WeightValues};
use crate::plan::{PlanFindings, Planned, Request, Step, rewrite};
use crate::progress::{Misfit, Note, UseNote};
use crate::quant::{Encoder, SCHEMES, Scheme, Unfit, WeightEncoder};
use crate::read::Model;
use crate::select::KeptReason;
use crate::text::shorten;
use std::collections::HashMap;
use std::sync::Arc;

/// Refuses a layout or schemes that ONNX models do not have.
pub(crate) fn check_schemes_of_model(options: &QuantizeOptions) -> Result<()> {
    let is_known = |layout: &str| SCHEMES.iter().any(|scheme| scheme.in_model(Some(layout)).is_some());
    if let Some(layout) = options.layout.filter(|layout| !is_known(layout)) {
        let error = Error::usage(format!("the layout {} is not one of ONNX models", shorten(layout)));
        return Err(error.without(Opt::LAYOUT));
    }
    let mut schemes = options.rule.iter().filter_map(|rule| rule.scheme).chain(options.scheme);
    schemes.try_for_each(|scheme| check_scheme(scheme, options.layout))
}

/// Refuses a scheme that ONNX models do not have in the layout of this name.
fn check_scheme(scheme: &'static Scheme, layout: Option<&str>) -> Result<()> {
    scheme.in_model(layout).map(|_| ()).ok_or_else(|| {
        let known = SCHEMES.iter().filter(|scheme| scheme.in_model(layout).is_some());
        let known: Vec<&str> = known.map(|scheme| scheme.name).collect();
        let of_layout = layout.map(|layout| format!("of the layout {layout} ")).unwrap_or_default();
        let error = Error::usage(format!("ONNX models {of_layout}have no scheme {}", scheme.name));
        error.with(Opt::SCHEME, format!("choose one of {}", known.join(", ")))
    })
}

impl<'a> Planned<'a> {
    /// Plans an ONNX model. Fails if no weight would be quantized, ONNX has no such scheme, or a rule names a tensor that
    /// cannot be quantized.
    pub(in crate::plan) fn quantize_model(
        model: &Model<'a>,
        options: &QuantizeOptions,
        request: &Request,
    ) -> Result<Self> {
        let source = model.source;
        check_schemes_of_model(options)?;
        let [input] = &source.shards[..] else { return Err(Error::new("is not one ONNX model")) };
        let selection = options.tensors.selection();
        let graph = rewrite::graph(request, &source.shards, model.graph.as_ref())?;
        let mut steps = Steps::new(request, &source.shards, Some(&graph))?;
        let (mut kept, mut misfits) = (Vec::new(), Vec::new());
        // Weights of one kind share an encoder, because it is larger than most descriptions of a tensor.
        let mut encoders: HashMap<_, Result<Arc<Encoder>, Unfit>> = HashMap::new();
        let mut transposed = TransposedWeights::find(model, options, &graph)?;
        let has_moved = !transposed.is_empty();
        for (at, tensor) in input.contents.tensors.iter().enumerate() {
            if transposed.emit(at, &mut steps)? {
                continue;
            }
            let in_place = |error: Error| error.in_tensor(&tensor.name);
            let rule = options.rule.iter().find(|rule| rule.pattern.matches(&tensor.name));
            let scheme = match rule {
                _ if !selection.selects(&tensor.name) => Err(KeptReason::LeftOut),
                Some(rule) => rule.scheme.ok_or(KeptReason::LeftOut),
                None => options.scheme.ok_or(KeptReason::Unquantized),
            };
            let is_named = rule.is_some() && scheme.is_ok();
            let usage = check(&graph, at, tensor);
            let decided = scheme.and_then(|scheme| match usage? {
                _ if !is_named && tensor.count < options.model.min_elements => Err(KeptReason::Small),
                WeightUse::Table => {
                    let layout = scheme.in_table(options.layout).ok_or(KeptReason::NoWeight)?;
                    let layout = options.include_embeddings.then_some(layout).ok_or(KeptReason::Embedding)?;
                    Ok((scheme, layout, WeightUse::Table))
                }
                usage => Ok((scheme, scheme.in_model(options.layout).ok_or(KeptReason::NoWeight)?, usage)),
            });
            let (scheme, layout, usage) = match decided {
                Ok(decided) => decided,
                Err(reason) if is_named => {
                    let error =
                        Error::new(format!("a rule would quantize it, but it must be kept: {}", reason.describe()));
                    let error = error.with(Opt::RULE, "leave it out of the rule");
                    return Err(in_place(match reason {
                        KeptReason::Embedding => error.with(Opt::INCLUDE_EMBEDDINGS, "add {}"),
                        _ => error,
                    }));
                }
                Err(reason) => {
                    kept.push(reason);
                    steps.plain((0, at), Some(reason))?;
                    continue;
                }
            };
            let kind = (scheme.name, usage, &tensor.shape[..], tensor.elements.dtype());
            let new = || {
                let dtype = tensor.elements.dtype().ok_or(Unfit::Grid)?;
                encoder_of_model(layout, usage, (&tensor.shape, dtype), options.group_size, options).map(Arc::new)
            };
            match encoders.entry(kind).or_insert_with(new).clone() {
                Ok(encoder) => {
                    let needs_extremes = encoder.needs_extremes();
                    let encoder = WeightEncoder::Grid(encoder);
                    let sources = Few::One(model.stored(at));
                    let values = match encoder.axis() {
                        Some(_) => WeightValues::Rows(0),
                        None => WeightValues::transposed(encoder.shape(), encoder.source()),
                    };
                    let rows = WeightRows { sources, values, changes: None, encoder };
                    let extremes = needs_extremes.then(|| Arc::new(SharedExtremes::new([rows.clone()].into())));
                    let codes = CodesSource::Values { extremes, unrecovered: None };
                    let name = (tensor.name.to_string(), scheme.name);
                    steps.weight(Step::encode((0, at), name, rows, codes, None))?;
                }
                Err(why) if is_named => {
                    return Err(in_place(
                        misfit::rule_refusal(scheme, why).with(Opt::RULE, "leave it out of the rule"),
                    ));
                }
                Err(why) => {
                    Misfit::count(&mut misfits, &why, scheme, &tensor.name, &tensor.shape);
                    kept.push(KeptReason::Shape);
                    steps.plain((0, at), Some(KeptReason::Shape))?;
                }
            }
        }
        if kept.len() == input.contents.tensors.len() {
            let error = misfit::nothing_of_model(kept.into_iter(), &misfits);
            return Err(with_stored_codes(error, model, &transposed));
        }
        let mut notes = vec![Note::Use(misfit::note(misfits, options))];
        notes.extend(transposed.errors(&source.path).map(|error| Note::Use(UseNote::NodesStay(error))));
        if has_moved {
            notes.extend(model.found.nodes_that_stay.iter().cloned().map(|nodes| Note::Use(UseNote::CodesStay(nodes))));
        }
        let findings = PlanFindings { notes, ..PlanFindings::default() };
        Ok(Self { findings, ..steps.finish(&options.tensors.rename, true)? })
    }
}

/// Adds why the weights that are quantized already stay to the error that no weight would be quantized.
fn with_stored_codes(error: Error, model: &Model, transposed: &TransposedWeights) -> Error {
    let stay = transposed.errors(&model.source.path).map(|error| error.to_string());
    let stay = stay.chain(model.found.nodes_that_stay.iter().cloned());
    let details = error.details().iter().cloned().chain(stay).collect();
    if !model.is_quantized() {
        return error.with_details(details);
    }
    let quantized = Error::new("the model is quantized already, and no other weight would be quantized");
    transposed.advise(quantized.with_details(details), &model.source.path)
}

/// Returns the use of a tensor by nodes, or the reason why it cannot be quantized.
fn check(graph: &ModelGraph, at: usize, tensor: &Tensor) -> Result<WeightUse, KeptReason> {
    if let Some(reason) = misfit::kept_for_dtype(tensor.elements.dtype()) {
        return Err(reason);
    }
    if let Some(role) = graph.role(at) {
        return Err(KeptReason::Role(role));
    }
    if graph.is_input(at) {
        return Err(KeptReason::Role(TensorRole::GraphInput));
    }
    graph.weight_use(at).ok_or(KeptReason::NoWeight)
}
