//! The arguments of `tcast inspect`.

use super::shared::{INPUT_NOTE, ViewArgs, some_inputs, with_note};
use crate::dtype::Dtype;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// The arguments of `tcast inspect`.
#[derive(Args, Debug)]
#[command(
    long_about = "List the contents of a file or a folder of shards: names, types, shapes and sizes of the tensors, how they \
are stored, totals for each type, and the metadata.

A quantized weight, which is stored as codes and scales, is one row: the type of its codes, the values that share a scale, \
the shape of the weight, the bytes of all its parts, the layout, and bits per weight. tcast also lists parts that are missing \
or belong to no weight. --stats decodes such weights to the type that config.json names, else to bfloat16, as their library and \
tcast dequantize do.

With --include, --exclude or --tensor, tcast lists neither shards nor metadata. The JSON of several inputs is one document, \
with the document of each in the list inputs.

tcast reads only headers, unless you ask for --stats. The histogram shows how the values are distributed over powers of \
two, and which of them a narrow type would lose.",
    after_help = "Example: tcast inspect model.safetensors --stats
--help has more examples.",
    after_long_help = "Examples:
  tcast inspect model.safetensors
      lists the tensors
  tcast inspect model.safetensors --stats --include \"*mlp*\"
      statistics and histograms of some of them
  tcast inspect model.safetensors --tensor model.norm.weight --stats
      statistics of one tensor
  tcast inspect x.npy arrays.npz --json
      lists the tensors of two files as JSON
  tcast inspect .
      lists the index, the shards and the tensors of a folder
  tcast inspect llama-fp8 --parts
      shows the codes and scales of the quantized weights
  tcast inspect suspicious.pt --fail-on code
      lists the names of code in a checkpoint of PyTorch; exits with 3 if one may
      do harm

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 3 code that --fail-on forbids,
  130 interrupted."
)]
pub struct InspectArgs {
    /// Inputs to examine.
    #[arg(required = true, value_name = "INPUT", help = some_inputs(), long_help = with_note(&some_inputs(), INPUT_NOTE))]
    pub inputs: Vec<PathBuf>,

    /// Show statistics and a histogram of exponents
    #[arg(long)]
    pub stats: bool,

    /// Show the tensors that make each quantized weight
    #[arg(long)]
    pub parts: bool,

    /// Read opaque bytes (V1, u1, U8) as this type, for --stats
    ///
    /// For elements whose type the file does not name. The type must have the same width.
    #[arg(long, value_name = "DTYPE", requires = "stats")]
    pub from: Option<Dtype>,

    /// Only the tensor of this name; repeatable
    ///
    /// The name of a part of a quantized weight stands for the weight.
    #[arg(long, value_name = "NAME")]
    pub tensor: Vec<String>,

    /// Exit with 3 on names of code that may do harm: code
    ///
    /// These are the names in a checkpoint of PyTorch that are not known to be harmless. tcast never runs such code.
    /// Programs that unpickle the file would.
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    pub fail_on: Vec<InspectCondition>,

    /// Selection and presentation of tensors.
    #[command(flatten)]
    pub view: ViewArgs,

    /// Print no progress and no warnings
    #[arg(short, long)]
    pub quiet: bool,
}

/// A condition that `--fail-on` forbids in an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InspectCondition {
    /// Names of code that is not known to be harmless
    Code,
}
