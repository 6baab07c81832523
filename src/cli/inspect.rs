//! The arguments of `tcast inspect`.

use super::{INPUT_NOTE, one_input, with_note};
use crate::dtype::Dtype;
use crate::select::Pattern;
use clap::Args;
use std::path::PathBuf;

/// The arguments of `tcast inspect`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Args, Debug)]
#[command(
    long_about = "List what is in a file or a folder of shards: names, types, shapes and sizes of the tensors, how they \
are stored, totals of each type, and the metadata.

A quantized weight, which is stored as codes and scales, is one row: the type of its codes and what shares a scale, \
the shape of the weight, the bytes of all its parts, the layout, and bits per weight. Parts that are missing or belong to no \
weight are listed. --stats decodes such weights to the type that config.json names, else to bfloat16, as their library and \
tcast dequantize do.

Only headers are read, unless --stats asks for figures of the values. The histogram shows where the values lie \
among the powers of two, and which of them narrow formats would lose.",
    after_help = "Example: tcast inspect model.safetensors --stats
--help has more examples.",
    after_long_help = "Examples:
  tcast inspect model.safetensors
      lists the tensors
  tcast inspect model.safetensors --stats --include '*mlp*'
      figures and histogram of some of them
  tcast inspect arrays.npz --json
      the same as JSON
  tcast inspect .
      a folder of shards: the index, the shards, and all their tensors
  tcast inspect llama-fp8 --parts
      the quantized weights, with their codes and scales

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 130 interrupted."
)]
pub struct InspectArgs {
    /// What is looked at.
    #[arg(help = one_input(), long_help = with_note(&one_input(), INPUT_NOTE))]
    pub input: PathBuf,

    /// Show statistics and a histogram of exponents
    #[arg(long)]
    pub stats: bool,

    /// Show the tensors that make each quantized weight
    #[arg(long)]
    pub parts: bool,

    /// What opaque bytes (V1, u1, U8) mean, for --stats
    ///
    /// Only if the file cannot say; the width stays.
    #[arg(long, value_name = "DTYPE", requires = "stats")]
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

    /// No progress, no warnings
    #[arg(short, long)]
    pub quiet: bool,

    /// Threads to use [default: the number of cores]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}
