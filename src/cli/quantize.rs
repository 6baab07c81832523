//! The arguments of `tcast quantize`.

use super::shards::of_finish;
use super::{FileArgs, ReportArgs, ShardArgs};
use crate::options::QuantizeOptions;
use crate::quant::{SCHEMES, Scheme};
use clap::{Arg, Args};
use std::path::PathBuf;

/// The arguments of `tcast quantize`.
#[derive(Args, Debug)]
#[command(
    mut_args(of_weights),
    mut_args(of_finish),
    long_about = "Quantize the weights of a model: write codes and scales, and a config.json that engines load.

tcast chooses the weights by their names, as vLLM, SGLang, transformers and TensorRT-LLM need them: embeddings, output \
heads, norms, biases, routers, multi-token prediction and vision towers are copied, and so are weights whose shape does \
not fit. The bytes are those that the library of the layout writes. tcast needs no calibration and no GPU, and as much memory for a \
large model as for a small one.

In an ONNX model, tcast quantizes the weights of MatMul, Gemm and Conv nodes to fp8, int8, int4 or int4-asym, and inserts \
DequantizeLinear nodes that give them their type back. It finds the weights by these nodes, not by their names.",
    override_usage = "tcast quantize [OPTIONS] --scheme <SCHEME> <MODEL>
       tcast quantize --finish <OUT>",
    after_help = "Example: tcast quantize llama --scheme fp8
--help has all flags, the schemes, and more examples.",
    after_long_help = examples()
)]
pub struct QuantizeArgs {
    /// Model to quantize.
    #[arg(
        required_unless_present = "finish",
        value_name = "MODEL",
        help = "A .safetensors, .gguf, .pt or .onnx file, or a folder of shards",
        long_help = "A .safetensors file or a checkpoint of PyTorch, or a folder of shards with or without an index, of float32, bfloat16 or \
                     float16 weights, with a config.json that describes the model. Or a GGUF model (.gguf), or an ONNX model \
                     (.onnx)."
    )]
    pub model: Option<PathBuf>,

    /// Options of the operation.
    #[command(flatten)]
    pub options: QuantizeOptions,

    /// With nvfp4, let engines quantize activations to 4 bits too; needs --input-global-scale
    #[arg(long, hide_short_help = true)]
    pub activations: bool,

    /// Report options.
    #[command(flatten, next_help_heading = "Reports")]
    pub reports: ReportArgs,

    /// Options for writing checkpoints.
    #[command(flatten)]
    pub shards: ShardArgs,

    /// Where the result goes.
    #[command(flatten)]
    pub file: FileArgs,
}

/// Adds what only this command says about its options.
fn of_weights(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "scheme" => arg.required_unless_present_any(["finish", "layout"]),
        "include" => arg.help("Quantize only weights whose name matches; repeatable"),
        "exclude" => arg.help("Skip weights whose name matches; repeatable"),
        "from" => arg.hide(true), // weights are floats
        _ => arg,
    }
}

/// Lists the schemes with their layouts, and examples.
fn examples() -> String {
    let scheme = |scheme: &Scheme| {
        let aliases = match scheme.aliases {
            [] => String::new(),
            aliases => format!(" ({})", aliases.join(", ")),
        };
        let layouts: Vec<&str> = scheme.layout_names().collect();
        format!("  {}{aliases}: {}\n      {}\n", scheme.name, scheme.summary, layouts.join(", "))
    };
    let schemes: String = SCHEMES.iter().map(scheme).collect();
    format!("Schemes, and the layouts that store them, the default first:\n{schemes}\n{EXAMPLES}")
}

const EXAMPLES: &str = "Examples:
  tcast quantize llama --scheme fp8
      writes llama-fp8/, which vLLM, SGLang and transformers load
  tcast quantize llama --scheme nvfp4 --layout modelopt -o llama-nvfp4
      4 bits for TensorRT-LLM; vLLM and SGLang load it too
  tcast quantize llama --scheme fp8-block
      as DeepSeek publishes its models
  tcast quantize llama --scheme int4 --rule \"*.o_proj.*=int8a16\" -o w4a16
      more bits for some weights
  tcast quantize tiny-fp8 --layout modelopt
      the same codes and scales in the layout of another engine
  tcast quantize model.onnx --scheme int8 -o small.onnx
      an ONNX model, for ONNX Runtime and other engines of such models
  tcast quantize tiny-llama --scheme q8_0 --metadata-from tiny.gguf
      a GGUF for llama.cpp, with the tokenizer and metadata of another one
  tcast quantize tiny.gguf --scheme q5_1 -o small.gguf
      a GGUF with another type; diffusion models in safetensors work too
  tcast quantize llama --scheme fp8 --dry-run
      shows each weight, what it becomes, and what is copied

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 3 a weight that --fail-on,
  --min-sqnr or, in a GGUF file, --only-exact forbids, 4 the output exists,
  130 interrupted.";
