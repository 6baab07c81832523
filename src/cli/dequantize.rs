//! The arguments of `tcast dequantize`.

use super::shared::{FileArgs, ReportArgs, ShardArgs, hanging, of_finish, with_note};
use crate::options::DequantizeOptions;
use crate::quant;
use clap::{Arg, Args};
use std::path::PathBuf;

/// The arguments of `tcast dequantize`.
#[derive(Args, Debug)]
#[command(
    mut_args(of_weights),
    mut_args(of_finish),
    long_about = "Decode quantized weights: write a checkpoint of values instead of codes and scales.

tcast recognizes weights by the names, types and shapes of their tensors and by config.json. It decodes them with the \
arithmetic of the library that defines their layout, copies all other tensors, and removes the quantization from \
config.json. A large model takes as much memory as a small one.

In an ONNX model, tcast computes the DequantizeLinear nodes whose codes, scales and zero points are constants, and puts \
their values in their place. MatMulNBits and GatherBlockQuantized become MatMul and Gather. Other quantized nodes stay.",
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
        help = "A .safetensors, .gguf, .pt or .onnx file, or a folder of shards",
        long_help = "A .safetensors file or a checkpoint of PyTorch, or a folder of shards with or without an index; config.json describes how \
                       the weights are quantized. Or a GGUF model (.gguf; any file of a split one), or an ONNX \
                       model (.onnx) with DequantizeLinear, MatMulNBits or GatherBlockQuantized nodes."
    )]
    pub model: Option<PathBuf>,

    /// Options of the operation.
    #[command(flatten)]
    pub options: DequantizeOptions,

    /// Report options.
    #[command(flatten, next_help_heading = "Reports")]
    pub reports: ReportArgs,

    /// Options for writing checkpoints.
    #[command(flatten)]
    pub shards: ShardArgs,

    /// Output options.
    #[command(flatten)]
    pub file: FileArgs,
}

/// Adds what only this command says about its options.
fn of_weights(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "include" => {
            let text = "Decode only weights whose name matches; repeatable";
            let note = "The others stay quantized, with their scales, and config.json still says so.";
            arg.help(text).long_help(with_note(text, note))
        }
        "exclude" => arg.help("Leave weights quantized if their name matches; repeatable"),
        "allow_unmatched" => arg.help("Do not fail if a pattern matches no weight"),
        "from" => arg.hide(true), // the types of codes are known
        _ => arg,
    }
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
  tcast dequantize tiny.gguf
      writes tiny.bfloat16.safetensors, with the names of the GGUF model
  tcast dequantize tiny.gguf --names huggingface --config tiny-llama -o decoded
      writes a checkpoint with the names of transformers, and the config of tiny-llama
  tcast dequantize quantized.onnx -o plain.onnx
      computes the weights that DequantizeLinear, MatMulNBits and GatherBlockQuantized nodes decode
  tcast dequantize llama-fp8 --dry-run
      shows each weight with its layout and its new type

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 3 a loss that --fail-on forbids,
  4 the output exists, 130 interrupted.";

/// Lists the layouts that can be decoded, one per line, from the table.
fn layouts() -> String {
    let lines = quant::layouts().map(|layout| hanging(&format!("  {:16} ", layout.name), layout.library));
    lines.collect::<Vec<_>>().join("\n")
}
