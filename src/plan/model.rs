//! Choice of the tensors of an ONNX model that are stored in narrower types, and the reasons for keeping others.

use super::Request;
use crate::container::onnx::model::{ModelGraph, TensorRole};
use crate::container::{Input, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::operator::Operator;
use crate::select::KeptReason;
use crate::text::quoted;
use std::path::Path;

/// Reads the graph of the model that is changed. Fails if there are several inputs, the operator does not write ONNX
/// models, or tensors would get new names.
pub(super) fn graph<'a>(request: &Request, inputs: &'a [Input]) -> Result<ModelGraph<'a>> {
    let [input] = inputs else { return Err(Error::new("an ONNX model is made from one model")) };
    if !matches!(request.operator, Operator::Cast(_) | Operator::Dequantize | Operator::Quantize) {
        let error = Error::new(format!("{} does not write ONNX models", request.operator.name()));
        return Err(error.of(Kind::OfModel));
    }
    if let Some(rename) = request.selection.renames.first() {
        let error = Error::usage("cannot be renamed: the nodes of the model refer to it by its name");
        return Err(error.in_tensor(&rename.old).without("rename"));
    }
    ModelGraph::of(input)
}

/// Returns the reason why a tensor of a model keeps its type, if it does.
pub(super) fn kept(
    request: &Request,
    role: Option<TensorRole>,
    path: &Path,
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
        let error =
            Error::new(format!("a Cast node would compute with {to} instead of {from}: the model keeps floats"));
        let scheme = match to.bits() {
            8 => "int8",
            4 => "int4",
            _ => return Err(error.remedy("choose a floating type")),
        };
        return Err(error.remedy(format!(
            "choose a floating type, or quantize the weights with scales: tcast quantize {} --scheme {scheme}",
            quoted(path)
        )));
    }
    let reason = reason.or((to == from).then_some(KeptReason::Already));
    let reason = reason.or((to.bits() >= from.bits()).then_some(KeptReason::NotNarrower));
    Ok(reason.or((!is_named && tensor.count < request.model.min_elements).then_some(KeptReason::Small)))
}
