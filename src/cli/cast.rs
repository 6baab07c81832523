//! The arguments of `tcast cast`.

use super::shared::{
    FileArgs, INPUT_NOTE, REPORT, ReportArgs, SEVERAL_NOTE, ShardArgs, indented, listed, of_finish, some_inputs,
    with_note, with_values,
};
use crate::dtype::{Class, Dtype};
use crate::options::{CastOptions, Defect};
use crate::select::protected;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, Command};
use std::path::PathBuf;

/// The arguments of `tcast cast`.
#[derive(Args, Debug)]
#[command(
    mut_args(of_cast),
    mut_args(of_finish),
    long_about = "Convert the values of tensor files, or of folders of shards, to another type.

Each value is rounded once, to nearest even, from its exact source value. The summary counts values that \
saturated, became infinite or NaN, were flushed to zero or wrapped. The output is complete or absent, and its bytes depend \
only on the input and the options.",
    override_usage = "tcast cast [OPTIONS] <INPUT>... --to <DTYPE>
       tcast cast [OPTIONS] <INPUT> -o <OUT>
       tcast cast --finish <OUT>",
    after_help = "Example: tcast cast model.safetensors --to float8e4m3fn
--help has all flags and types, whole checkpoints, and more examples.",
    after_long_help = format!("Types:
{}

{CHOICES}", indented(&types()))
)]
pub struct CastArgs {
    /// Inputs to convert.
    #[arg(required_unless_present = "finish", value_name = "INPUT", help = some_inputs(),
          long_help = with_note(&some_inputs(), &format!("{INPUT_NOTE} {SEVERAL_NOTE}")))]
    pub inputs: Vec<PathBuf>,

    /// Options of the operation.
    #[command(flatten)]
    pub options: CastOptions,

    /// The same as --saturate=false
    #[arg(long, conflicts_with = "saturate", hide_short_help = true, help_heading = "Values")]
    pub no_saturate: bool,

    /// Report options.
    #[command(flatten, next_help_heading = "Accuracy and reports")]
    pub reports: ReportArgs,

    /// Options for writing checkpoints.
    #[command(flatten)]
    pub shards: ShardArgs,

    /// Output options.
    #[command(flatten)]
    pub file: FileArgs,
}

const CHOICES: &str = "Choosing tensors:
  --include and --exclude select tensors by name. For a selected tensor, the
  first --rule that matches sets the type, also of integers; otherwise --to does.
  The others are copied. --only and --drop leave tensors out of the output.
  The tensor of a .npy file has the name of the file: w.npy holds w.
  In a GLOB, * matches any characters, also / and ., ? matches one, [a-z] one of
  a set, {a,b} one of several texts, and [*] a star.

Checkpoints:
  A folder with model.safetensors.index.json, or with .safetensors files alone,
  becomes a folder with the same shards, an index and copies of the other files.
  Shards that the index does not name are left out, with a warning.
  config.json names the type that most weights then have, among the types that
  torch computes in. Until everything is complete, the folder contains only
  .tcast/. Weights that are quantized with scales are stored as codes, not as
  values: tcast dequantize decodes them, and tcast refuses to cast them unless
  you give --rule, --exclude or --force-codes.

Examples:
  tcast cast model.safetensors --to float8e4m3fn
      writes model.float8e4m3fn.safetensors; integers and bools in it stay
  tcast cast model.safetensors --to bf16 -o half.safetensors
      names the output
  tcast cast x.npy w.npy --to bf16 -o half
      writes half/x.npy and half/w.npy; tcast checks all inputs before it writes,
      and continues with the others if one fails
  tcast cast model.safetensors --to e4m3 --exclude \"*norm*\" --rule \"*emb*=bf16\"
      keeps the norms and sets another type for the embeddings
  tcast cast x.npy --to int8 --out-of-range saturate
      clamps values that int8 cannot hold; otherwise their low bits are kept
  tcast cast x.npy --to string -o x.pb
      writes the shortest text that reads back as the same value
  tcast cast arrays.npz --to bf16 -o arrays.safetensors --rename w=head
      changes the file format, and a tensor's name
  tcast cast llama --drop \"model.layers.3.*\" -o shorter
      leaves tensors out; the index and lists of modules in the config follow
  tcast cast llama --rename \"model.*=language_model.model.*\" -o renamed
      changes the prefix of all these names
  tcast cast llama --add model.safetensors -o whole
      adds the tensors of the file that llama lacks
  tcast cast tiny.gguf --set general.name=tuned -o tuned.gguf
      changes a key, and copies everything else
  tcast cast model.onnx --to f16 -o small.onnx
      stores the weights of a model as float16; Cast nodes give them their type back
  tcast cast codes.npy --from float8e5m2 --to float32 -o x.safetensors
      reads opaque bytes as float8
  tcast cast model.safetensors --to float8e4m3fnuz --opset 24
      by Cast-24, where Inf becomes the largest number; by Cast-23, the default,
      it becomes NaN
  tcast cast model.safetensors --to f16 --dry-run
      shows the new types and sizes, and writes nothing
  tcast cast model.safetensors --to e4m3 --report cast.html
      writes a page with the error of each tensor
  tcast cast llama --to f8e4m3fn --protect
      casts a whole checkpoint to llama-float8e4m3fn/ and keeps norms, embeddings
      and similar tensors
  tcast cast llama --to f16 -o llama.safetensors
      merges the shards into one file
  tcast cast model.pt -o weights.safetensors
      changes the format alone
  tcast cast model.safetensors --to f16 --max-shard-size 5GB -o llama-f16
      splits a file into shards
  tcast cast llama --to f16 -o llama-f16 --resume
      continues where an interrupted run of the same command ended
  tcast cast llama --to f16 -o llama-f16 --part 2/3
      one of three jobs that share the work; when all are done:
      tcast cast --finish llama-f16

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 3 a loss that --fail-on forbids,
  4 the output exists, 130 interrupted.";

const REPORT_NOTE: &str = "The report includes the accuracy of --stats. An .html report is a page for a browser.";

const TYPE_NOTE: &str =
    "With an output in another format, and no type, only the format changes. See Types below for the names.";

/// Lists the types that a cast supports, from the table.
fn types() -> String {
    let of = |wanted: fn(Dtype) -> bool| listed(Dtype::all().filter(move |dtype| wanted(*dtype)));
    let is_target = |dtype: Dtype| dtype.onnx_number().is_some() && dtype.class() != Class::Complex;
    format!(
        "{}. tcast also accepts the names of ONNX, numpy, torch, safetensors and OpenVINO, and short ones such as bf16 and \
         e4m3; i8 counts bits, and numpy's <i8 bytes. It copies complex tensors. ONNX lacks {} of ml_dtypes: tcast casts from these, but not to them.",
        of(is_target),
        of(|dtype| dtype.onnx_number().is_none())
    )
}

fn protect_help() -> String {
    let patterns = protected().collect::<Vec<_>>().join(", ");
    format!(
        "Keep norms, embeddings, output heads, routers, biases and tensors of fewer than two dimensions as they are, \
         except those that a --rule names. tcast finds them by these patterns: {patterns}"
    )
}

impl CastArgs {
    /// Returns the options, with both ways to say that values do not saturate.
    pub(crate) fn options(&self) -> CastOptions {
        let mut options = self.options.clone();
        options.attributes.saturate = options.attributes.saturate.or(self.no_saturate.then_some(false));
        options
    }

    /// Refuses a type among the inputs, with an error for `command`. A cast to another format needs no type, so clap does
    /// not miss the flag.
    pub(super) fn check_type(&self, command: fn() -> Command) -> Result<(), clap::Error> {
        let is_type =
            |input: &PathBuf| input.to_str().is_some_and(|word| word.parse::<Dtype>().is_ok()) && !input.exists();
        if self.options().targets().next().is_some() || !self.inputs.iter().any(is_type) {
            return Ok(());
        }
        let mut error = clap::Error::new(ErrorKind::MissingRequiredArgument).with_cmd(&command());
        error.insert(ContextKind::InvalidArg, ContextValue::Strings(vec!["--to <DTYPE>".to_owned()]));
        Err(error)
    }

    /// Refuses a second pattern or defect after a flag that takes one, and the second word of a name with a space, with an
    /// error for `command`.
    pub(super) fn check_words(&self, command: fn() -> Command) -> Result<(), clap::Error> {
        let has_patterns = !self.options.tensors.include.is_empty()
            || !self.options.tensors.exclude.is_empty()
            || !self.options.rule.is_empty();
        let is_pattern = |input: &PathBuf| has_patterns && input.to_string_lossy().contains('*') && !input.exists();
        let is_defect = |input: &PathBuf| {
            let is_name = input.to_str().is_some_and(Defect::is_name);
            is_name && !self.options.fail_on.is_empty() && !input.exists()
        };
        let is_joint = |pair: &[PathBuf]| {
            let joint = format!("{} {}", pair[0].display(), pair[1].display());
            pair.iter().all(|input| !input.exists()) && PathBuf::from(joint).exists()
        };
        let joint = || self.inputs.windows(2).find(|pair| is_joint(pair)).map(|pair| &pair[1]);
        let Some(word) = self.inputs.iter().find(|input| is_pattern(input) || is_defect(input)).or_else(joint) else {
            return Ok(());
        };
        let mut error = clap::Error::new(ErrorKind::UnknownArgument).with_cmd(&command());
        error.insert(ContextKind::InvalidArg, ContextValue::String(word.to_string_lossy().into_owned()));
        Err(error)
    }
}

/// Adds what only this command says about its options.
fn of_cast(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "to" => {
            let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
            arg.required_unless_present_any(["rule", "finish", "output"]).long_help(with_note(&text, TYPE_NOTE))
        }
        "protect" => arg.long_help(protect_help()),
        "report" => arg.long_help(with_note(REPORT, REPORT_NOTE)),
        "round_mode" => with_values(arg, "Rounding to float8e8m0 [default: up]"),
        "out_of_range" => with_values(
            arg,
            "Result for a float or a text that an integer type cannot hold [default: wrap]; an integer always keeps its \
             low bits",
        ),
        "fail_on" => with_values(
            arg,
            "Write nothing and exit with 3 if one of these happens; repeatable, or separated by commas. tcast \
             converts all tensors first, and lists every one that has such values",
        ),
        _ => arg,
    }
}
