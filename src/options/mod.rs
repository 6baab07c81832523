//! Options of the operations.
//!
//! Each operation has one struct. The command line flattens it, the library takes it, and a job records it with the
//! options in effect: see [`RecordedOptions`]. Options that change no byte of the output are not recorded.

mod contents;
mod defect;
#[cfg(feature = "cli")]
pub(crate) mod parsers;
mod quantize;
mod recorded;
mod shared;
mod task;

pub use crate::container::checkpoint::{ExpertForm, Naming};
pub use crate::operator::cast::{CastAttributes, Opset};
pub use crate::operator::promote::{PromoteAttributes, PromoteRule};
pub use crate::quant::{Arithmetic, EncodeArithmetic, Group, Rotation, ScaleChoice};
pub use crate::select::{Pattern, Rename, Rule};
pub use contents::{AdapterOption, Addition, ContentOptions, SetValue, StochasticRounding};
pub use defect::Defect;
pub use quantize::{QuantizeOptions, SchemeRule};
pub use recorded::RecordedOptions;
pub use shared::{GgufOptions, ModelOptions, NamingOptions, ShardOptions, Size, TensorOptions};

use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::kernel::{Condition, Loss};
use crate::select::Selection;
use serde::Serialize;
use shared::texts;
#[cfg(feature = "cli")]
pub(crate) use shared::{ROOT, ROOT_NOTE, TAKE_RANK, TAKE_RANK_NOTE};
pub(crate) use task::Task;

/// Options of `cast`: converts values by the rules of ONNX Cast.
#[allow(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[non_exhaustive]
pub struct CastOptions {
    /// The type to convert to: float8e4m3fn, bf16, int8
    #[cfg_attr(feature = "cli", arg(long, value_name = "DTYPE"))]
    pub to: Option<Dtype>,

    /// Convert integers and bools to floats too
    #[cfg_attr(feature = "cli", arg(long, requires = "to", help_heading = "Which tensors"))]
    pub all: bool,

    /// Keep norms, embeddings, heads, routers, biases
    #[cfg_attr(feature = "cli", arg(long, requires = "to", help_heading = "Which tensors"))]
    pub protect: bool,

    /// Cast the codes of weights that are quantized with scales, without their scales
    #[cfg_attr(feature = "cli", arg(long, help_heading = "Which tensors", hide_short_help = true))]
    pub force_codes: bool,

    /// Another type, or keep, for some tensors
    ///
    /// This includes integers. Repeatable; the first match wins, and takes precedence over --to. GLOB=keep leaves the
    /// tensors as they are.
    #[serde(rename = "rules", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GLOB=DTYPE", help_heading = "Which tensors"))]
    pub rule: Vec<Rule>,

    /// Attributes of ONNX Cast.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten, next_help_heading = "Values"))]
    pub attributes: CastAttributes,

    /// Exit with 3 on a loss: saturated, flushed, ...
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "LIST",
            value_delimiter = ',',
            value_parser = Defect::parser(Defect::OF_VALUES),
            requires_if("lost", "lora"),
            hide_possible_values = true,
            help_heading = "Values"
        )
    )]
    pub fail_on: Vec<Defect>,

    /// Compare results with sources: errors, SQNR
    ///
    /// For each tensor: the largest errors and their positions, mean error, SQNR, cosine similarity.
    #[serde(skip)]
    #[cfg_attr(feature = "cli", arg(long, help_heading = "Accuracy and reports"))]
    pub stats: bool,

    /// Options for ONNX models.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub model: ModelOptions,

    /// Options for GGUF files that are made.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub gguf: GgufOptions,

    /// Contents of the output.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub contents: ContentOptions,

    /// Sizes of shards.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub shards: ShardOptions,

    /// Choice of tensors.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten, next_help_heading = "Which tensors"))]
    pub tensors: TensorOptions,
}

impl CastOptions {
    /// Returns options that convert every tensor of floats to `dtype`.
    #[must_use]
    pub fn to(dtype: Dtype) -> Self {
        Self { to: Some(dtype), ..Self::default() }
    }

    pub(crate) fn selection(&self) -> Selection {
        let rules = self.rule.clone();
        Selection { to: self.to, rules, all: self.all, protect: self.protect, ..self.tensors.selection() }
    }

    /// Returns the types that tensors can get.
    #[cfg(feature = "cli")]
    pub(crate) fn targets(&self) -> impl Iterator<Item = Dtype> {
        self.to.into_iter().chain(self.rule.iter().filter_map(Rule::target))
    }
}

/// Options of `dequantize`: decodes quantized weights, and copies all other tensors.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[non_exhaustive]
pub struct DequantizeOptions {
    /// The type of the values: bf16, f16 or f32 [default: the type in config.json, else bf16]
    ///
    /// For an ONNX model, the default is the type of the scales. If the output is a model too, its weights keep that type.
    #[cfg_attr(feature = "cli", arg(long, value_name = "DTYPE"))]
    pub to: Option<Dtype>,

    /// Rounding of products of codes and scales
    #[cfg_attr(feature = "cli", arg(long, value_enum, default_value_t, hide_short_help = true))]
    pub arithmetic: Arithmetic,

    /// Copy the scales of activations, which decoded weights do not need
    #[cfg_attr(feature = "cli", arg(long, help_heading = "Which weights", hide_short_help = true))]
    pub keep_activation_scales: bool,

    /// Fail, and write nothing, if one of these happens; repeatable, or separated by commas
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "WHAT",
            value_delimiter = ',',
            value_parser = Defect::parser(Defect::OF_VALUES),
            requires_if("lost", "lora"),
            help_heading = "Reports",
            hide_short_help = true
        )
    )]
    pub fail_on: Vec<Defect>,

    /// ONNX models: store the elements of initializers in a file next to the model, OUT.data
    ///
    /// A model of more than 2047 MiB always has such a file, because protobuf messages are limited to 2 GiB.
    #[cfg_attr(feature = "cli", arg(long, help_heading = "ONNX models", hide_short_help = true))]
    pub external_data: bool,

    /// Contents of the output.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub contents: ContentOptions,

    /// Sizes of shards.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub shards: ShardOptions,

    /// Choice of weights.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten, next_help_heading = "Which weights"))]
    pub tensors: TensorOptions,
}

impl DequantizeOptions {
    /// Returns options that decode all weights to `dtype`: bfloat16, float16 or float32.
    #[must_use]
    pub fn to(dtype: Dtype) -> Self {
        Self { to: Some(dtype), ..Self::default() }
    }

    /// True if values that the target cannot represent are counted.
    pub(crate) fn counts_inexact(&self) -> bool {
        self.fail_on.contains(&Defect::Value(Condition::Lost(Loss::Inexact)))
    }
}

/// Options of `bitcast`: reinterprets bits.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[non_exhaustive]
pub struct BitcastOptions {
    /// The type to read the bits as
    #[cfg_attr(feature = "cli", arg(long, value_name = "DTYPE"))]
    pub to: Option<Dtype>,

    /// Convert a model that is quantized in a way that tcast does not decode
    #[serde(skip)]
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true))]
    pub force_codes: bool,

    /// Another type, or keep, for some tensors
    ///
    /// Repeatable; the first match wins, and takes precedence over --to. GLOB=keep leaves the tensors as they are.
    #[serde(rename = "rules", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GLOB=DTYPE", help_heading = "Which tensors"))]
    pub rule: Vec<Rule>,

    /// Choice of tensors.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten, next_help_heading = "Which tensors"))]
    pub tensors: TensorOptions,
}

impl BitcastOptions {
    /// Returns options that read the bits of every tensor as `dtype`.
    #[must_use]
    pub fn to(dtype: Dtype) -> Self {
        Self { to: Some(dtype), ..Self::default() }
    }

    pub(crate) fn selection(&self) -> Selection {
        Selection { to: self.to, rules: self.rule.clone(), all: true, ..self.tensors.selection() }
    }
}

/// Options of `promote`: converts tensors to their common type.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[non_exhaustive]
pub struct PromoteOptions {
    /// The attributes of the operator, which decide on the type.
    #[serde(skip)]
    #[cfg_attr(feature = "cli", command(flatten, next_help_heading = "The common type"))]
    pub attributes: PromoteAttributes,

    /// The common type, when it is known.
    #[cfg_attr(feature = "cli", arg(skip))]
    pub(crate) to: Option<Dtype>,

    /// The root of PyTorch checkpoints: see [`ReadOptions`](crate::container::ReadOptions).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "KEY", help = ROOT, long_help = ROOT_NOTE, help_heading = "Which tensors", hide_short_help = true)
    )]
    pub root: Option<String>,

    /// Tensor to use, where a file has several; repeatable
    ///
    /// The others are copied.
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME", help_heading = "Which tensors"))]
    pub tensor: Vec<String>,

    /// Clamp to the range of a float8; false: infinite or NaN instead [default: true]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "BOOL",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "true",
            value_parser = clap::builder::BoolishValueParser::new(),
            hide_possible_values = true,
            hide_short_help = true,
            help_heading = "The common type"
        )
    )]
    pub saturate: Option<bool>,

    /// Read opaque bytes (V1, u1, U8) as this type
    ///
    /// For elements whose type the file does not name. The type must have the same width.
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "DTYPE", help_heading = "Input and output", display_order = 500)
    )]
    pub from: Option<Dtype>,
}

impl PromoteOptions {
    /// Returns the names of an input's tensors that take part; empty if it has only one, which always does.
    pub(crate) fn only(&self, input: &Checkpoint) -> Vec<String> {
        if input.tensors().count() == 1 { Vec::new() } else { self.tensor.clone() }
    }
}
