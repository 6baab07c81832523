//! The arguments of `tcast quantize`.

use super::shared::{FileArgs, ReportArgs, ShardArgs, of_finish, with_note};
use crate::options::QuantizeOptions;
use crate::options::parsers::{self, SchemeOrKeep};
use crate::quant::{MATMULNBITS, SCHEMES, Scheme};
use clap::{Arg, Args};
use std::path::PathBuf;

/// The arguments of `tcast quantize`.
#[derive(Args, Clone, Debug)]
#[command(
    mut_args(of_weights),
    mut_args(of_finish),
    long_about = "Quantize the weights of a model: write codes and scales, and a config.json that engines load.

tcast chooses the weights by their names, as vLLM, SGLang, transformers and TensorRT-LLM need them: embeddings, output \
heads, norms, biases, routers, multi-token prediction and vision towers are copied, and so are weights whose shape does \
not fit. tcast writes the same bytes as the library of the layout. It needs no calibration and no GPU, and as much memory for a \
large model as for a small one.

In an ONNX model, tcast quantizes the weights of MatMul, Gemm and Conv nodes to fp8, int8, int4 or int4-asym, and inserts \
DequantizeLinear nodes that give them their type back. With --layout matmulnbits, MatMul nodes become MatMulNBits of ONNX \
Runtime, with integers of 2, 4 or 8 bits, and with --include-embeddings Gather nodes become GatherBlockQuantized. tcast finds the weights by the nodes, not by their names.",
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

    /// fp8, fp8-block, int8, int4, nvfp4, q4_k_m and others
    ///
    /// Without a scheme, --layout changes the layout of a quantized model and keeps its values, and --lora keeps its scheme
    /// and layout. --target-bits chooses among several schemes, separated by commas.
    #[arg(
        long,
        value_name = "SCHEME",
        value_delimiter = ',',
        value_parser = parsers::scheme_or_keep(),
        hide_possible_values = true,
        ignore_case = true
    )]
    #[allow(clippy::doc_markdown, reason = "the help shows the text as it is")]
    pub scheme: Vec<SchemeOrKeep>,

    /// Measure several schemes, and write nothing
    ///
    /// Example: --compare nvfp4,mxfp4,int4. Prints the bits per weight, the size of the model and the errors of each scheme. tcast reads each weight once.
    #[arg(
        long,
        value_name = "SCHEMES",
        value_delimiter = ',',
        value_parser = parsers::scheme(),
        hide_possible_values = true,
        ignore_case = true,
        conflicts_with_all = ["scheme", "target_bits"]
    )]
    pub compare: Vec<&'static Scheme>,

    /// Choose a scheme, or keep, for each weight
    ///
    /// The sum of the relative squared errors becomes as small as it can be with this many bits per weight, including
    /// scales. Example: --target-bits 5 --scheme nvfp4,fp8,keep
    #[arg(long, value_name = "BITS", value_parser = parsers::bits)]
    #[allow(clippy::doc_markdown, reason = "the help shows the text as it is")]
    pub target_bits: Option<f64>,

    /// Options of the operation.
    #[command(flatten)]
    pub options: QuantizeOptions,

    /// With nvfp4, fail unless --input-global-scale is given
    ///
    /// Engines quantize activations to 4 bits only with that scale, which tcast cannot measure. The flag does not change the
    /// output.
    #[arg(long, help_heading = None::<&'static str>, hide_short_help = true)]
    pub activations: bool,

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

impl QuantizeArgs {
    /// Puts the first scheme into the options: with several, it is the scheme of the weights that no rule names. Several
    /// schemes of one output are stored in a layout that has all of them, if there is one.
    pub(super) fn choose_scheme(&mut self) {
        let schemes = self.candidates();
        self.options.scheme = schemes.first().copied();
        if self.options.layout.is_none() && self.compare.is_empty() {
            let is_in_all = |name: &&str| schemes.iter().all(|scheme| scheme.layout_names().any(|own| own == *name));
            let common = self.options.scheme.into_iter().flat_map(Scheme::layout_names).find(is_in_all);
            let is_default = |layout: &&str| schemes.iter().all(|scheme| scheme.default_layout() == *layout);
            self.options.layout = common.filter(|layout| !is_default(layout));
        }
    }

    /// Returns all schemes that the arguments name.
    pub(crate) fn schemes(&self) -> impl Iterator<Item = &'static Scheme> {
        self.options.schemes().chain(self.candidates())
    }

    /// Returns the schemes that are compared, or among which tcast chooses, each once.
    pub(crate) fn candidates(&self) -> Vec<&'static Scheme> {
        let mut schemes = Vec::new();
        for scheme in self.scheme.iter().copied().flatten().chain(self.compare.iter().copied()) {
            if !schemes.contains(&scheme) {
                schemes.push(scheme);
            }
        }
        schemes
    }

    /// Returns the options for each of [`Self::candidates`].
    pub(crate) fn options_of_candidates(&self) -> Vec<QuantizeOptions> {
        self.candidates().into_iter().map(|scheme| self.options.for_scheme(scheme)).collect()
    }
}

/// Adds what only this command says about its options.
fn of_weights(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "scheme" => arg.required_unless_present_any(["finish", "layout", "compare", "target_bits", "lora"]),
        "include" => arg.help("Quantize only weights whose name matches; repeatable"),
        "exclude" => arg.help("Skip weights whose name matches; repeatable"),
        "from" => arg.hide(true), // weights are floats
        "output" => {
            let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
            arg.long_help(with_note(&text, "The default is an output next to MODEL, with the scheme in its name."))
        }
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
        let of_model = scheme.in_model(Some(MATMULNBITS)).map(|layout| layout.name);
        let layouts: Vec<&str> = scheme.layout_names().chain(of_model).collect();
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
  tcast quantize tiny-llama --scheme q8_0
      a GGUF for llama.cpp, with the tokenizer and metadata of the folder
  tcast quantize tiny.gguf --scheme q5_1 -o small.gguf
      a GGUF with another type; diffusion models in safetensors work too
  tcast quantize llama --compare nvfp4,mxfp4,int4,fp8
      measures the error of each scheme, and writes nothing
  tcast quantize llama --target-bits 5 --scheme nvfp4,fp8,keep -o mixed
      chooses a scheme for each weight
  tcast quantize llama --scheme fp8 --dry-run
      shows each weight, what it becomes, and what is copied

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 3 a weight that --fail-on,
  --min-sqnr or, in a GGUF file, --only-exact forbids, 4 the output exists,
  130 interrupted.";
