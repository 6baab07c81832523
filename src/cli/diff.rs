//! The arguments of `tcast diff`.

use super::{INPUT_NOTE, one_input, with_note};
use crate::dtype::Dtype;
use crate::select::Pattern;
use clap::Args;
use std::path::PathBuf;

/// The arguments of `tcast diff`.
#[derive(Args, Debug)]
#[command(
    long_about = "Say how the tensors of two files or folders of shards differ, in whatever formats, types and shards they \
are.

Tensors are matched by name; two files of one tensor each are compared whatever the names. Metadata is not compared, \
nor how tensors are stored: byte order, row-major or column-major, packed or not.

A tensor is equal where type, shape and bits are. Values of different types are compared exactly, as no rounding makes \
equal what is not. NaN equals NaN, and 0 equals -0: such tensors have equal values and other bits, which is a difference, \
unless there is a --tolerance or --rtol. Where values differ, the errors are those of B against A: the largest absolute and \
relative error, and the ratio of signal to noise (SQNR). The first difference is the first as the elements lie in the \
files, or in rows, where one of them is column-major.

A weight that is stored as codes and scales is one tensor, and its values are compared. Beside a tensor of bfloat16, \
float16 or float32, they are the values of that type that its own library computes, as tcast dequantize writes them; beside \
anything else, two quantized weights of different layouts for instance, the exact products rounded once to float32. Scales \
of activations are compared if both sides have them.",
    override_usage = "tcast diff [OPTIONS] <A> <B>
       tcast diff [OPTIONS] --report <FILE> <OUT>",
    after_help = "Example: tcast diff before.npy after.npy --tolerance 1e-3
--help says what is compared, and has more examples.",
    after_long_help = "Examples:
  tcast diff x.npy x.npy
      reads both, finds no difference, exits with 0
  tcast diff model.safetensors model.safetensors --include '*norm*' --json
      some of the tensors, as JSON
  tcast diff llama llama --tolerance 1e-3
      two folders of shards, and what counts as equal
  tcast diff codes.npy codes.npy --from float8e4m3fn
      says what opaque bytes mean
  tcast diff llama llama-fp8
      how far a quantized checkpoint is from its source

Reports:
  tcast cast model.safetensors --to f16 --hash --report r.json
      keeps what was written
  tcast diff --report r.json model.float16.safetensors
      tells whether it is still that: names, types, shapes, and the SHA-256 of
      every tensor

JSON:
  schema 1, tcast (its version), a, b, tolerance, rtol (null if none), is_equal,
  counts (how many tensors have each status), and tensors, each with name (in_b: its
  name there, if that is another), status, shape_a, shape_b, dtype_a, dtype_b
  (of a quantized weight what it is decoded to; layout_a and layout_b say how it is
  stored),
  differing (elements that differ by more than the tolerance; where none does,
  those whose bits differ), first_difference (null, or index, a, b, bits_a,
  bits_b) and figures (null, or those of cast --stats, with B as the result;
  max_abs_error_at and max_rel_error_at count elements as they lie, and
  max_abs_error_index and max_rel_error_index are their indices). The status is equal, bits_differ,
  within_tolerance, values_differ, types_differ (all values are equal, or one
  side is text), shapes_differ, only_in_a, only_in_b, or unreadable, with an
  error.

Exit codes:
  0 equal, or within the tolerance, 1 not so, 2 trouble or wrong usage,
  130 interrupted."
)]
pub struct DiffArgs {
    /// What is looked at.
    #[arg(help = one_input(), long_help = with_note(&one_input(), INPUT_NOTE))]
    pub a: PathBuf,

    /// What it is compared with
    #[arg(required_unless_present = "report")]
    pub b: Option<PathBuf>,

    /// Compare A with the report of cast --hash --report
    ///
    /// Every tensor must be what was written then; see Reports below.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["b", "tolerance", "rtol", "from", "include", "exclude"])]
    pub report: Option<PathBuf>,

    /// Values with |A - B| <= T count as equal
    ///
    /// Absolute, not relative. NaN and Inf must be equal.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub tolerance: Option<ToleranceArg>,

    /// Values with |A - B| <= T + R * |A| count as equal
    ///
    /// T is that of --tolerance, or 0. NaN and Inf must be equal.
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub rtol: Option<ToleranceArg>,

    /// What opaque bytes (V1, u1, U8) mean
    ///
    /// Only if the file cannot say; the width stays.
    #[arg(long, value_name = "DTYPE")]
    pub from: Option<Dtype>,

    /// Only tensors whose name matches; repeatable
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<Pattern>,

    /// Skip tensors whose name matches; repeatable
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<Pattern>,

    /// Do not fail if a pattern matches no tensor
    ///
    /// A warning names it.
    #[arg(long, hide_short_help = true)]
    pub allow_unmatched: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print nothing; set only the exit code
    ///
    /// Except the output of --json.
    #[arg(short, long)]
    pub quiet: bool,

    /// Threads to use [default: the number of cores]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// How much values may differ: finite, and not below 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToleranceArg(pub f64);

impl std::fmt::Display for ToleranceArg {
    /// With an exponent instead of many zeros.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(format!("{:?}", self.0).trim_end_matches(".0"))
    }
}

impl std::str::FromStr for ToleranceArg {
    type Err = String;

    /// # Errors
    /// When it is not such a number.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.map(Self).ok_or_else(|| "a tolerance is a number, 0 or more: 1e-3".to_owned())
    }
}
