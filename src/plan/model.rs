//! Choice of the tensors of an ONNX model that are stored in narrower types, and the reasons for keeping others.

use super::Request;
use crate::container::onnx::model::{ModelGraph, TensorRole};
use crate::container::{Input, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::operator::Operator;
use crate::select::KeptReason;

/// Options for models.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions<'a> {
    /// Tensors of fewer elements keep their type, because a Cast node takes bytes too.
    pub min_elements: u64,
    /// Store the elements of large tensors in a file next to the model; otherwise only if the model would be too long.
    pub external_data: bool,
    /// Import a later set of operators if a type needs it and no operator of the model changes.
    pub raise_opset: bool,
    /// The name of the file next to the model; `None` if there can be none.
    pub data_file: Option<&'a str>,
}

impl Default for ModelOptions<'_> {
    fn default() -> Self {
        Self { min_elements: Self::MIN_ELEMENTS, external_data: false, raise_opset: false, data_file: None }
    }
}

impl ModelOptions<'_> {
    /// The default of [`ModelOptions::min_elements`].
    pub const MIN_ELEMENTS: u64 = 1024;

    /// Returns the name of the first option that differs from its default, in `snake_case`.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        let options = [
            (self.min_elements != Self::MIN_ELEMENTS, "min_elements"),
            (self.external_data, "external_data"),
            (self.raise_opset, "raise_opset"),
        ];
        options.into_iter().find(|(is_given, _)| *is_given).map(|(_, option)| option)
    }
}

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
        return Err(error.remedy("choose a floating type"));
    }
    let reason = reason.or((to == from).then_some(KeptReason::Already));
    let reason = reason.or((to.bits() >= from.bits()).then_some(KeptReason::NotNarrower));
    Ok(reason.or((!is_named && tensor.count < request.model.min_elements).then_some(KeptReason::Small)))
}
