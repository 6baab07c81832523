//! The arguments of `tcast diff`.

use super::shared::{INPUT_NOTE, ViewArgs, one_input, with_note};
use crate::container::checkpoint::Naming;
use crate::dtype::Dtype;
use clap::Args;
use std::path::PathBuf;

/// The arguments of `tcast diff`.
#[derive(Args, Debug)]
#[command(
    long_about = "Compare the tensors of two files or folders of shards, in any formats, types and shards.

tcast matches tensors by name. Two files of one tensor each are compared even if the names differ. tcast does not compare \
metadata, nor how tensors are stored: byte order, row-major or column-major, packed or not.

Two tensors are equal if type, shape and bits match. tcast compares values of different types exactly, without rounding. \
NaN equals NaN and 0 equals -0 as values, but not as bits; with --tolerance or --rtol, only values count. If values differ, \
tcast shows the errors of B relative to A: the largest absolute and relative error, and the signal-to-noise ratio (SQNR). The \
first difference is the first in storage order. If one of the tensors is column-major, it is the first in row-major order.

A weight that is stored as codes and scales is one tensor, and tcast compares its values. If the other tensor is bfloat16, \
float16 or float32, tcast decodes the weight to that type as tcast dequantize does. Otherwise, for example if two quantized \
weights have different layouts, it rounds the exact products once to float32. Scales of activations are compared if both \
sides have them.",
    override_usage = "tcast diff [OPTIONS] <A> <B>
       tcast diff [OPTIONS] --report <FILE> <OUT>",
    after_help = "Example: tcast diff before.npy after.npy --tolerance 1e-3
--help describes what is compared, and has more examples.",
    after_long_help = "Examples:
  tcast diff x.npy x.npy
      finds no difference, and exits with 0
  tcast diff model.safetensors model.safetensors --include \"*norm*\" --json
      compares some of the tensors, and prints JSON
  tcast diff llama llama --tolerance 1e-3
      compares two folders of shards; small differences count as equal
  tcast diff codes.npy codes.npy --from float8e4m3fn
      reads opaque bytes as float8
  tcast diff llama llama-fp8
      shows the errors of a quantized checkpoint
  tcast diff tiny.gguf tiny-llama --names huggingface --tolerance 0.02
      compares a GGUF model with the model that it was made from

Reports:
  tcast diff llama llama-fp8 --report diff.html
      shows on a page how much each weight has changed, and on a map of the layers
  tcast cast model.safetensors --to f16 --hash --report r.json
      records the SHA-256 of every tensor
  tcast diff --report r.json model.float16.safetensors
      checks that names, types, shapes and SHA-256 of all tensors are unchanged

JSON:
  schema (1), tcast (its version), a, b, tolerance and rtol (null if not given),
  is_equal, counts (how many tensors have each status), and tensors. Each tensor has:
    name, and in_b: the name in B, if it differs
    status: equal, bits_differ, within_tolerance, values_differ, types_differ (all
      values are equal, or one side is text), shapes_differ, only_in_a, only_in_b,
      or unreadable, with an error
    shape_a, shape_b, dtype_a, dtype_b; for a quantized weight, the type that it is
      decoded to, and layout_a and layout_b
    differing: how many elements differ by more than the tolerance; if none does,
      how many differ in bits
    first_difference: null, or index, a, b, bits_a and bits_b
    figures: null, or the figures of cast --stats, with B as the result
  If A is checked with --report, the document has schema, tcast, a, report (the path of the report),
  is_equal, and tensors. Each has its name, and in wrong the difference from the
  report, or null.

Exit codes:
  0 equal, or within the tolerance, 1 different, 2 an error or wrong usage,
  130 interrupted."
)]
pub struct DiffArgs {
    /// Inputs to examine.
    #[arg(help = one_input(), long_help = with_note(&one_input(), INPUT_NOTE))]
    pub a: PathBuf,

    /// The file or folder to compare with A
    #[arg(required_unless_present = "report")]
    pub b: Option<PathBuf>,

    /// Write the comparison to a file: .html or .json
    ///
    /// An .html report is a page for a browser, with a map of the differences by layer. A .json report is what --json prints.
    /// Without B, tcast reads the file: it is a report of cast --hash --report, and tcast lists the tensors of A that changed
    /// since the report was written. See Reports below.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Replace an existing report
    #[arg(short, long, requires = "report")]
    pub force: bool,

    /// Values with |A - B| <= T count as equal
    ///
    /// NaN and Inf must be equal.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub tolerance: Option<ToleranceArg>,

    /// Values with |A - B| <= T + R * |A| count as equal
    ///
    /// T is the value of --tolerance, or 0. NaN and Inf must be equal.
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub rtol: Option<ToleranceArg>,

    /// GGUF and MLX models: the names of tensors, as in the file or as on Hugging Face
    ///
    /// With huggingface, a GGUF model can be compared with the model that it was made from. The experts of MLX are
    /// compared one by one, except with --names file.
    #[arg(long, value_enum, hide_short_help = true)]
    pub names: Option<Naming>,

    /// Compare the experts of a layer one by one, also where a tensor stacks them
    ///
    /// A model that transformers 5 has saved with stacks can so be compared with a release that has single experts.
    #[arg(long, value_name = "FORM", value_parser = ["single"], hide_short_help = true)]
    pub experts: Option<String>,

    /// Read opaque bytes (V1, u1, U8) as this type
    ///
    /// For elements whose type the file does not name. The type must have the same width.
    #[arg(long, value_name = "DTYPE")]
    pub from: Option<Dtype>,

    /// Selection and presentation of tensors.
    #[command(flatten)]
    pub view: ViewArgs,

    /// Print nothing; set only the exit code
    ///
    /// --json still prints its output.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Maximum difference of values: finite, and not below 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToleranceArg(pub f64);

impl std::fmt::Display for ToleranceArg {
    /// Writes the number with an exponent instead of many zeros.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(format!("{:?}", self.0).trim_end_matches(".0"))
    }
}

impl std::str::FromStr for ToleranceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.map(Self).ok_or_else(|| "a tolerance is a number, 0 or more: 1e-3".to_owned())
    }
}
