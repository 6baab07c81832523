//! The arguments of `tcast promote`.

use super::with_note;
use crate::container::known_formats;
use crate::dtype::Dtype;
use clap::{Args, builder::BoolishValueParser};
use std::path::PathBuf;

/// The arguments of `tcast promote`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Args, Debug)]
#[command(
    long_about = "Convert tensors to the type that they have in common, as OpenVINO's ConvertPromoteTypes-14 decides it.

Bool gives way to numbers and integers to floats; of two integers or two floats, the wider type wins. tcast refuses a type \
that could lose values or is wider than all inputs, and names the flags that allow it; with --unsafe, it converts and \
reports the losses. Only types and ranks decide, never values, and the order of the inputs does not matter.",
    override_usage = "tcast promote [OPTIONS] <INPUT>... -o <DIR>
       tcast promote [OPTIONS] <INPUT> --tensor <NAME>... -o <FILE>
       tcast promote [OPTIONS] <INPUT>... --dry-run",
    after_help = "Example: tcast promote x.npy w.npy -o common
--help has all flags and more examples.",
    after_long_help = "Examples:
  tcast promote x.npy w.npy -o common
      writes common/x.npy and common/w.npy
  tcast promote x.npy w.npy --dry-run
      prints the common type, and nothing else
  tcast promote arrays.npz --tensor w --tensor zeros -n
      the common type of two tensors of a file; with -o FILE, the others are copied
  tcast promote x.npy codes.npy --from float8e4m3fn --unsafe -o common
      allows what could lose values
  tcast promote x.npy w.npy --dry-run --json
      says which rule decided, and what each input could lose

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 4 an output exists,
  130 interrupted."
)]
pub struct PromoteArgs {
    /// What gets the common type.
    #[arg(required = true, value_name = "INPUT", help = format!("{} files", known_formats()),
          long_help = with_note(&format!("{} files", known_formats()), "Their tensors get one type. With --tensor also \
                                one folder of .safetensors shards."))]
    pub inputs: Vec<PathBuf>,

    /// Allow a type that loses values, or is wider
    ///
    /// Without it, a type that cannot hold all values of an input, or is wider than every input, is refused.
    #[arg(long, help_heading = "The common type")]
    pub r#unsafe: bool,

    /// Rank 0 takes the type of the others, as in torch
    #[arg(long, help_heading = "The common type")]
    pub pytorch_scalar: bool,

    /// The type for uint64 with a signed integer, which --unsafe allows
    #[arg(
        long,
        requires = "unsafe",
        value_name = "DTYPE",
        default_value = "float32",
        hide_short_help = true,
        help_heading = "The common type"
    )]
    pub u64_target: Dtype,

    /// Which tensor, where a file has several; repeatable
    ///
    /// The others are copied.
    #[arg(long, value_name = "NAME")]
    pub tensor: Vec<String>,

    /// Clamp what is beyond a float8 type's range; false: make it infinite or NaN [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), hide_possible_values = true, hide_short_help = true,
          help_heading = "The common type")]
    pub saturate: Option<bool>,

    /// The folder to write to; with one input, the file
    ///
    /// Each input has a file of its name in the folder.
    #[arg(short, long, value_name = "PATH", required_unless_present = "dry_run", help_heading = "Input and output")]
    pub output: Option<PathBuf>,

    /// Replace existing outputs
    #[arg(short, long, help_heading = "Input and output")]
    pub force: bool,

    /// Keep outputs that exist, and exit with 0
    #[arg(long, conflicts_with = "force", hide_short_help = true, help_heading = "Input and output")]
    pub skip_existing: bool,

    /// What opaque bytes (V1, u1, U8) mean
    ///
    /// Only if the file cannot say; the width stays.
    #[arg(long, value_name = "DTYPE", help_heading = "Input and output")]
    pub from: Option<Dtype>,

    /// Print the common type; write nothing
    #[arg(short = 'n', long, help_heading = "Input and output")]
    pub dry_run: bool,

    /// Print the report as JSON on standard output
    #[arg(long, help_heading = "Input and output")]
    pub json: bool,

    /// Do not flush the outputs to the disk before they take their names
    #[arg(long, hide_short_help = true, help_heading = "Input and output")]
    pub no_sync: bool,

    /// No progress, no summary; errors stay
    #[arg(short, long, hide_short_help = true, help_heading = "Input and output")]
    pub quiet: bool,

    /// Threads to use [default: the number of cores]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024),
          hide_short_help = true, help_heading = "Input and output")]
    pub threads: Option<u16>,
}
