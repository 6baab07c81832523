//! The arguments of `tcast dequantize`.

use super::shards::of_finish;
use super::{FileArgs, ReportArgs, ShardArgs, hanging};
use crate::dtype::Dtype;
use crate::kernel::Condition;
use crate::quant::{Arithmetic, LAYOUTS};
use crate::select::{Pattern, Rename};
use clap::Args;
use std::path::PathBuf;

/// The arguments of `tcast dequantize`.
#[derive(Args, Debug)]
#[command(
    mut_args(of_finish),
    mut_arg("from", |from| from.hide(true)), // the types of codes are known
    long_about = "Decode quantized weights: write a checkpoint of values instead of codes and scales.

tcast recognizes weights by the names, types and shapes of their tensors and by config.json. It decodes them with the \
arithmetic of the library that defines their layout, copies all other tensors, and removes the quantization from \
config.json. A large model takes as much memory as a small one.

In an ONNX model, tcast computes the DequantizeLinear nodes whose codes, scales and zero points are constants, and puts \
their values in their place. Other quantized nodes stay.",
    override_usage = "tcast dequantize [OPTIONS] <MODEL>
       tcast dequantize --finish <OUT>",
    after_help = "Example: tcast dequantize llama-fp8
--help has all flags, the layouts, and more examples.",
    after_long_help = format!("Layouts:
{}

{EXAMPLES}", layouts())
)]
pub struct DequantizeArgs {
    /// Model to decode.
    #[arg(
        required_unless_present = "finish",
        value_name = "MODEL",
        help = "A .safetensors file, a folder of shards, or an ONNX model",
        long_help = "A .safetensors file, or a folder of shards with or without an index; config.json describes how \
                       the weights are quantized. Or an ONNX model (.onnx) with DequantizeLinear nodes."
    )]
    pub model: Option<PathBuf>,

    /// The type of the values: bf16, f16 or f32 [default: the type in config.json, else bf16]
    ///
    /// The default for ONNX models is the type of the scales, which an output that is a model always has.
    #[arg(long, value_name = "DTYPE")]
    pub to: Option<Dtype>,

    /// Rounding of products of codes and scales
    #[arg(long, value_enum, default_value = "library", hide_short_help = true)]
    pub arithmetic: Arithmetic,

    /// Decode only weights whose name matches; repeatable
    ///
    /// The others stay quantized, with their scales, and config.json still says so.
    #[arg(long, value_name = "GLOB", help_heading = "Which weights")]
    pub include: Vec<Pattern>,

    /// Leave weights quantized whose name matches; repeatable
    #[arg(long, value_name = "GLOB", help_heading = "Which weights")]
    pub exclude: Vec<Pattern>,

    /// Do not fail if a pattern matches no weight
    #[arg(long, help_heading = "Which weights", hide_short_help = true)]
    pub allow_unmatched: bool,

    /// Keep the scales of activations, which no value of a weight depends on
    #[arg(long, help_heading = "Which weights", hide_short_help = true)]
    pub keep_activation_scales: bool,

    /// Another name for a tensor in the output; repeatable
    #[arg(long, value_name = "OLD=NEW", help_heading = "Which weights", hide_short_help = true)]
    pub rename: Vec<Rename>,

    /// Fail, and write nothing, if one of these happens to a value; repeatable, or separated by commas
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        value_delimiter = ',',
        help_heading = "Reports",
        hide_short_help = true
    )]
    pub fail_on: Vec<Condition>,

    /// Report options.
    #[command(flatten, next_help_heading = "Reports")]
    pub reports: ReportArgs,

    /// ONNX models: store the elements of initializers in a file next to the model, OUT.data
    ///
    /// A model of more than 2047 MiB always has such a file, because protobuf messages are limited to 2 GiB.
    #[arg(long, help_heading = "ONNX models", hide_short_help = true)]
    pub external_data: bool,

    /// Options for writing checkpoints.
    #[command(flatten)]
    pub shards: ShardArgs,

    /// Where the result goes.
    #[command(flatten)]
    pub file: FileArgs,
}

const EXAMPLES: &str = "Examples:
  tcast dequantize llama-fp8
      writes llama-fp8-bfloat16/, a checkpoint that needs no quantization support
  tcast dequantize llama-fp8 --to f32 -o llama-f32
      names the type and the output
  tcast dequantize llama-fp8 -o values.safetensors
      merges the shards into one file
  tcast dequantize llama-fp8 --exclude \"*.mlp.*\" -o llama-mixed
      leaves these weights quantized; config.json lists the modules that are not
  tcast dequantize quantized.onnx -o plain.onnx
      computes the DequantizeLinear nodes of weights
  tcast dequantize llama-fp8 --dry-run
      shows each weight, its layout's codes and what it becomes

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 3 a loss that --fail-on forbids,
  4 the output exists, 130 interrupted.";

/// Lists the layouts that can be decoded, one per line, from the table.
fn layouts() -> String {
    let lines = LAYOUTS.iter().map(|layout| hanging(&format!("  {:16} ", layout.name), layout.library));
    lines.collect::<Vec<_>>().join("\n")
}
