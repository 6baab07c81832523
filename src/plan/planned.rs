//! The request for a plan, and the plan of an input before its outputs are laid out.

use super::codes::Codes;
use super::step::{Operation, Step};
use crate::container::onnx::model::ModelGraph;
use crate::container::{ComputedTensor, Container, Form, GgufKey, Input, MetadataChange};
use crate::conversion::Conversion;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::{Condition, Rules, Storage};
use crate::lora::{AdapterSummary, Merges};
use crate::operator::Operator;
use crate::options::{ModelOptions, StochasticRounding};
use crate::progress::Note;
use crate::select::Selection;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Conversion to plan for the tensors of some files that belong together.
#[non_exhaustive]
pub struct Request<'a> {
    /// Operator for the chosen tensors.
    pub operator: Operator,
    /// Choice of tensors, and their new types.
    pub selection: &'a Selection,
    /// Type of untyped elements.
    pub from: Option<Dtype>,
    /// The format of the outputs.
    pub container: &'a dyn Container,
    /// Tensors of codes, which no cast may treat as values.
    pub codes: Option<&'a Codes<'a>>,
    /// The conditions that the caller refuses. In each tensor, the first element that meets one is recorded.
    pub fail_on: &'a [Condition],
    /// Options for ONNX models.
    pub model: ModelOptions,
    /// The attribute of new `MatMulNBits` nodes that chooses the arithmetic of their kernels.
    pub accuracy_level: Option<u8>,
    /// The name of the file next to a model that can hold its elements; `None` if there can be none.
    pub data_file: Option<&'a str>,
    /// The changes that adapters make.
    pub(crate) merges: Option<&'a Merges>,
    /// The rounding of merged values; `None` rounds them to nearest.
    pub(crate) rounding: Option<StochasticRounding>,
    /// Number of threads that search for codes, and that write a long header.
    pub threads: usize,
}

impl<'a> Request<'a> {
    /// Requests the operator on the selected tensors, and nothing else.
    #[must_use]
    pub fn new(operator: Operator, selection: &'a Selection, container: &'a dyn Container) -> Self {
        Self {
            operator,
            selection,
            from: None,
            container,
            codes: None,
            fail_on: &[],
            model: ModelOptions::default(),
            accuracy_level: None,
            data_file: None,
            merges: None,
            rounding: None,
            threads: 1,
        }
    }
}

/// The plan of an input before its outputs are laid out: the steps, in the order of the tensors of the outputs, and
/// what the outputs contain besides.
pub(crate) struct Planned<'a> {
    pub(super) inputs: &'a [Input],
    /// The ONNX model that is changed, if the output is one.
    pub(super) graph: Option<Arc<ModelGraph<'a>>>,
    pub(crate) steps: Vec<Step<'a>>,
    pub(super) conversions: Conversions,
    /// Metadata of the files to change: the key, and the new value or `None` to remove it.
    pub(super) metadata: HashMap<String, Option<String>>,
    /// Metadata that the caller sets: the key, and the new value or `None` to remove it.
    pub(super) set: Vec<MetadataChange>,
    /// Keys of a new GGUF file with their values.
    pub(super) keys: Vec<GgufKey>,
    /// Tensors of a new GGUF file that the input does not have.
    pub(super) computed: Vec<ComputedTensor>,
    /// Files next to the shards with their new text; `None` if a file is left out.
    pub(crate) side_files: Vec<(&'static str, Option<String>)>,
    pub(crate) findings: PlanFindings,
}

/// Findings of a planner for users, besides the steps.
#[derive(Default)]
pub(crate) struct PlanFindings {
    pub(crate) notes: Vec<Note<'static>>,
    /// The `quantization_config` that engines need to load a quantized output.
    pub(crate) config: Option<Value>,
    /// The names of tensors that engines of the layout do not load, and that are left out.
    pub(crate) dropped: Vec<String>,
    /// The adapters that are merged.
    pub(crate) adapters: Vec<AdapterSummary>,
    /// The names of weights that must have the same scheme, because engines load them as one module.
    #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program chooses schemes for these sets"))]
    pub(crate) loaded_together: Vec<Vec<String>>,
}

/// The conversions of a plan: one of each kind, shared by all tensors.
pub(super) struct Conversions {
    operator: Operator,
    /// The conditions that the caller refuses.
    watched: Vec<Condition>,
    /// Each with true if its operator is applied, and false for a copy.
    made: Vec<(bool, Arc<Conversion>)>,
}

impl Conversions {
    pub(super) fn new(request: &Request) -> Self {
        Self { operator: request.operator, watched: request.fail_on.to_vec(), made: Vec::new() }
    }

    /// Makes the conversion of a step end in the form in which the output stores its result.
    pub(super) fn complete(&mut self, step: &mut Step, form: Form) -> Result<()> {
        if let Operation::Convert(conversion) = &mut step.how
            && conversion.to != form
        {
            let completed = self.get(conversion.from, form, step.kept.is_none());
            *conversion = completed.map_err(|error| error.in_tensor(&step.results[0].name))?;
        }
        Ok(())
    }

    /// Returns the conversion of merged values, which are float64.
    pub(super) fn of_merged(&self, to: Form) -> Result<Conversion> {
        let from = Form::Numbers(Storage::packed(Dtype::Float64));
        let rules = if let Operator::Cast(attributes) = self.operator { attributes.rules() } else { Rules::default() };
        let conversion = if from == to { Conversion::copy(from, to) } else { Conversion::cast(from, to, rules) };
        let conversion = conversion.filter(|_| to.dtype().bits() >= 8);
        let refused = || Error::new(format!("merged values cannot become {}", to.dtype()));
        let conversion = conversion.ok_or_else(refused)?;
        Ok(if self.watched.is_empty() { conversion } else { conversion.watch(&self.watched) })
    }

    pub(super) fn get(&mut self, from: Form, to: Form, is_converted: bool) -> Result<Arc<Conversion>> {
        let is_same =
            |made: &&(bool, Arc<Conversion>)| made.0 == is_converted && made.1.from == from && made.1.to == to;
        if let Some((_, same)) = self.made.iter().find(is_same) {
            return Ok(Arc::clone(same));
        }
        let conversion = match self.operator {
            Operator::Cast(attributes) if is_converted => Conversion::cast(from, to, attributes.rules()),
            // The planner of GGUF files stores some tensors in another type of floats.
            Operator::Quantize if is_converted => Conversion::cast(from, to, Rules::default()),
            Operator::Promote(attributes) if is_converted => {
                let rules = attributes.rules();
                Conversion::to_complex(from, to, rules).or_else(|| Conversion::cast(from, to, rules))
            }
            _ => Conversion::copy(from, to),
        };
        let refused = || Error::new(format!("{} cannot become {}", from.dtype(), to.dtype()));
        let conversion = conversion.ok_or_else(refused)?;
        let is_watched = is_converted && !self.watched.is_empty();
        let conversion = Arc::new(if is_watched { conversion.watch(&self.watched) } else { conversion });
        self.made.push((is_converted, Arc::clone(&conversion)));
        Ok(conversion)
    }
}
