//! The arguments of `tcast quantize`.

use super::shards::of_finish;
use super::{FileArgs, ModelArgs, ReportArgs, ShardArgs};
use crate::job::{Defect, SchemeRule};
use crate::quant::{Arithmetic, SCHEMES, ScaleChoice, Scheme};
use crate::select::{Pattern, Rename};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;

/// The arguments of `tcast quantize`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Args, Debug)]
#[command(
    mut_args(of_finish),
    mut_arg("from", |from| from.hide(true)), // weights are floats
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
        help = "A .safetensors file, a folder of shards, or an ONNX model",
        long_help = "A .safetensors file, or a folder of shards with or without an index, of float32, bfloat16 or \
                     float16 weights, with a config.json that describes the model. Or an ONNX model (.onnx)."
    )]
    pub model: Option<PathBuf>,

    /// fp8, fp8-block, int8, int4, nvfp4, mxfp4 and others
    ///
    /// Without a scheme, --layout changes the layout of a quantized model and keeps its values.
    #[arg(
        long,
        value_name = "SCHEME",
        required_unless_present_any = ["finish", "layout"],
        value_parser = scheme_parser(),
        hide_possible_values = true,
        ignore_case = true
    )]
    pub scheme: Option<&'static Scheme>,

    /// Storage format: modelopt, comfyui and others
    #[arg(long, value_name = "LAYOUT", value_parser = layout_parser(), hide_possible_values = true, ignore_case = true)]
    pub layout: Option<&'static str>,

    /// Values that share a scale [default: 128]
    ///
    /// For int4, int4-asym and int8a16; the groups of the other schemes have one size.
    #[arg(long, value_name = "N", value_parser = group_size)]
    pub group_size: Option<u64>,

    /// Rounding of scales and codes
    #[arg(long, value_enum, default_value = "library", hide_short_help = true)]
    pub arithmetic: Arithmetic,

    /// Choice of the scale of a group in nvfp4, mxfp4, int4 and int4-asym
    #[arg(long, value_enum, default_value = "amax", hide_short_help = true)]
    pub search: ScaleChoice,

    /// Also quantize weights whose last blocks are partial
    ///
    /// transformers and SGLang do not load such weights.
    #[arg(long, hide_short_help = true)]
    pub partial_blocks: bool,

    /// Find the codes and scales of decoded weights
    ///
    /// A weight gets those that it was decoded from if they decode to the same bits; other weights are quantized as usual.
    /// tcast reads each recovered weight once more. The report lists them.
    #[arg(long, requires = "scheme")]
    pub recover: bool,

    /// Fail, and write nothing, if a value could change
    ///
    /// That includes all weights that would be quantized again. For a model that is quantized already, and for
    /// --recover. Without --scheme, it is always on.
    #[arg(long, hide_short_help = true)]
    pub only_exact: bool,

    /// Quantize the floats of a model that is quantized in a way that tcast does not decode
    ///
    /// For a model whose config.json is wrong: all of its tensors are taken for values.
    #[arg(long, hide_short_help = true)]
    pub force_codes: bool,

    /// With nvfp4, let engines quantize activations to 4 bits too; needs --input-global-scale
    #[arg(long, hide_short_help = true)]
    pub activations: bool,

    /// With nvfp4, the global scale of all activations: 2688 / their measured largest magnitude
    #[arg(long, value_name = "VALUE", value_parser = scale, hide_short_help = true)]
    pub input_global_scale: Option<f32>,

    /// Quantize only weights whose name matches; repeatable
    #[arg(long, value_name = "GLOB", help_heading = "Which weights")]
    pub include: Vec<Pattern>,

    /// Skip weights whose name matches; repeatable
    #[arg(long, value_name = "GLOB", help_heading = "Which weights")]
    pub exclude: Vec<Pattern>,

    /// Another scheme, or keep, for some weights
    ///
    /// Repeatable; the first match wins, and takes precedence over --scheme and over what tcast copies by default.
    #[arg(long, value_name = "GLOB=SCHEME", help_heading = "Which weights")]
    pub rule: Vec<SchemeRule>,

    /// Do not fail if a pattern matches no tensor
    #[arg(long, help_heading = "Which weights", hide_short_help = true)]
    pub allow_unmatched: bool,

    /// Another name for a tensor in the output; repeatable
    #[arg(long, value_name = "OLD=NEW", help_heading = "Which weights", hide_short_help = true)]
    pub rename: Vec<Rename>,

    /// Fail, and write nothing, if a weight has one of these; repeatable, or separated by commas
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        value_delimiter = ',',
        help_heading = "Reports",
        hide_short_help = true
    )]
    pub fail_on: Vec<Defect>,

    /// Fail, and write nothing, if a weight has a lower signal-to-noise ratio, in decibels
    #[arg(long, value_name = "DB", value_parser = decibels, help_heading = "Reports", hide_short_help = true)]
    pub min_sqnr: Option<f64>,

    /// Report options.
    #[command(flatten, next_help_heading = "Reports")]
    pub reports: ReportArgs,

    /// Options for ONNX models.
    #[command(flatten)]
    pub model_options: ModelArgs,

    /// Options for writing checkpoints.
    #[command(flatten)]
    pub shards: ShardArgs,

    /// Where the result goes.
    #[command(flatten)]
    pub file: FileArgs,
}

impl QuantizeArgs {
    /// Returns the schemes of the rules, and the scheme of all other weights.
    pub(crate) fn schemes(&self) -> impl Iterator<Item = &'static Scheme> {
        self.rule.iter().filter_map(SchemeRule::scheme).chain(self.scheme)
    }

    /// Returns the chosen layout, or the default of the scheme.
    pub(crate) fn layout_name(&self) -> &'static str {
        let default = self.scheme.map(|scheme| scheme.layouts[0].name);
        self.layout.or(default).expect("clap requires a scheme or a layout")
    }
}

fn group_size(text: &str) -> Result<u64, String> {
    let size = text.parse().ok().filter(|size: &u64| (8..=65536).contains(size) && size.is_multiple_of(8));
    size.ok_or_else(|| "not a multiple of 8 from 8 to 65536".to_owned())
}

fn scale(text: &str) -> Result<f32, String> {
    let is_usable = |scale: &f32| scale.is_normal() && *scale > 0.0 && (1.0 / scale).is_normal();
    text.parse().ok().filter(is_usable).ok_or_else(|| "not a positive float32".to_owned())
}

fn decibels(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|decibels: &f64| !decibels.is_nan()).ok_or_else(|| "not a number of decibels".to_owned())
}

fn scheme_parser() -> impl TypedValueParser<Value = &'static Scheme> {
    let value = |scheme: &Scheme| PossibleValue::new(scheme.name).aliases(scheme.aliases.to_vec()).help(scheme.summary);
    PossibleValuesParser::new(SCHEMES.iter().map(value))
        .map(|name| Scheme::find(&name).expect("it is a possible value"))
}

/// Parses a layout in any case, and returns it as [`SCHEMES`] spells it.
fn layout_parser() -> impl TypedValueParser<Value = &'static str> {
    let named = |typed: &str| layouts().into_iter().find(|name| name.eq_ignore_ascii_case(typed));
    PossibleValuesParser::new(layouts()).map(move |typed| named(&typed).expect("it is a possible value"))
}

/// Returns the names of all layouts, in the order of the schemes.
fn layouts() -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for layout in SCHEMES.iter().flat_map(|scheme| scheme.layouts) {
        if !names.contains(&layout.name) {
            names.push(layout.name);
        }
    }
    names
}

/// Lists the schemes with their layouts, and examples.
fn examples() -> String {
    let scheme = |scheme: &Scheme| {
        let aliases = match scheme.aliases {
            [] => String::new(),
            aliases => format!(" ({})", aliases.join(", ")),
        };
        let layouts: Vec<&str> = scheme.layouts.iter().map(|layout| layout.name).collect();
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
  tcast quantize llama --scheme fp8 --dry-run
      shows each weight, what it becomes, and what is copied

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 3 a weight that --fail-on or
  --min-sqnr forbids, 4 the output exists, 130 interrupted.";
