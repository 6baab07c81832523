//! The arguments of `tcast bitcast`.

use super::shared::{FileArgs, INPUT_NOTE, SEVERAL_NOTE, indented, listed, some_inputs, with_note};
use crate::dtype::Dtype;
use crate::operator::bitcast;
use crate::options::BitcastOptions;
use clap::Args;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The arguments of `tcast bitcast`.
#[derive(Args, Debug)]
#[command(
    mut_arg("to", |to| to.required_unless_present_any(["rule", "hex", "bits"])),
    long_about = "Reinterpret the bits of elements as another type of the same width, or print them.

With --to, tcast writes an output for each input, with the same shape and the same bits, including the payloads of NaNs. \
With --hex or --bits, it prints the elements of one input instead, as the type that --to names.

A quantized weight is stored as codes and scales. For each of its values, --bits prints the bits and the number of the code, \
zero point, scale and global scale, and the value that tcast dequantize writes. With --to or --from, it prints the codes \
like any other tensor.",
    override_usage = "tcast bitcast [OPTIONS] <INPUT>... --to <DTYPE>
       tcast bitcast [OPTIONS] <INPUT> --hex
       tcast bitcast [OPTIONS] <INPUT> --bits",
    after_help = "Example: tcast bitcast x.npy --bits
--help has all flags and more examples.",
    after_long_help = format!("Types of equal width:
{}

{EXAMPLES}", same_widths())
)]
pub struct BitcastArgs {
    /// Inputs to convert or print.
    #[arg(required = true, value_name = "INPUT", help = some_inputs(),
          long_help = with_note(&some_inputs(), &format!("{INPUT_NOTE} {SEVERAL_NOTE}")))]
    pub inputs: Vec<PathBuf>,

    /// Print the bits as hexadecimal digits
    ///
    /// The first digit is the most significant one.
    #[arg(long, help_heading = PRINTING,
          conflicts_with_all = ["bits", "include", "exclude", "rule", "rename", "output", "force", "skip_existing", "dry_run",
                                "no_sync"])]
    pub hex: bool,

    /// Print sign, exponent, mantissa and the value
    ///
    /// Each line contains one element, its exact value, and the kind of number.
    #[arg(long, help_heading = PRINTING,
          conflicts_with_all = ["include", "exclude", "rule", "rename", "output", "force", "skip_existing", "dry_run",
                                "no_sync"])]
    pub bits: bool,

    /// The tensor to print, if the file has several
    ///
    /// For --hex and --bits.
    #[arg(long, value_name = "NAME", help_heading = PRINTING)]
    pub tensor: Option<String>,

    /// Elements to print: 100..104, 100.., 17,203
    ///
    /// For --hex and --bits: the elements from A up to but not including B, in row-major order. One number is an index over
    /// all elements, from 0. Several numbers are coordinates, as statistics show them: 17,203 is [17, 203], and
    /// 17,203..17,210 is seven elements. A alone is one element.
    #[arg(long, value_name = "A..B", help_heading = PRINTING)]
    pub range: Option<ElementRange>,

    /// Options of the operation.
    #[command(flatten)]
    pub options: BitcastOptions,

    /// Output options.
    #[command(flatten)]
    pub file: FileArgs,
}

/// Heading of the options that print elements.
const PRINTING: &str = "Printing elements";

const EXAMPLES: &str = "Examples:
  tcast bitcast x.npy --to int32
      writes x.int32.npy
  tcast bitcast x.npy --hex
      prints the bits of every element as hexadecimal digits
  tcast bitcast x.npy --bits --range 100..104
      prints sign, exponent, mantissa and value of elements 100 to 103
  tcast bitcast model.safetensors --hex --tensor model.norm.weight
      prints one tensor of several
  tcast bitcast codes.npy --bits --from float8e4m3fn --range 0..16
      reads opaque bytes as float8
  tcast bitcast x.npy --bits --to int32 --json
      prints the bits as bits of another type, as JSON

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 4 the output exists,
  130 interrupted.";

/// Lists the types that share their width with others, a paragraph for each width.
fn same_widths() -> String {
    let widths: BTreeSet<u32> = Dtype::all().filter(|dtype| bitcast::takes(*dtype)).map(Dtype::bits).collect();
    let of = |width: u32| Dtype::all().filter(move |dtype| bitcast::takes(*dtype) && dtype.bits() == width);
    let widths = widths.into_iter().filter(|width| of(*width).count() > 1);
    widths.map(|width| indented(&format!("{width} bits: {}", listed(of(width))))).collect::<Vec<_>>().join("\n")
}

/// `A..B`, `A..`, `..B` or `A`: some elements, or one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementRange {
    /// The first; `None` for the start of the tensor.
    pub start: Option<Position>,
    /// The end, exclusive; `None` for the end of the tensor.
    pub end: Option<Position>,
    /// True if only the first is meant.
    pub is_single: bool,
}

/// The position of an element: `203`, or `17,203` and `[17, 203]` as in statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// Among all elements in row-major order, from 0.
    Index(u64),
    /// In each dimension.
    Coordinates(Vec<u64>),
}

impl std::str::FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.trim();
        let bare = bare.strip_prefix('[').and_then(|bare| bare.strip_suffix(']')).unwrap_or(bare);
        let numbers: Result<Vec<u64>, _> = bare.split(',').map(|number| number.trim().parse()).collect();
        match numbers.map_err(|_| {
            format!(
                "'{}' is not an element: an index is 203, coordinates are 17,203, and 0..5 is a range",
                text.escape_debug()
            )
        })?[..]
        {
            [index] => Ok(Self::Index(index)),
            ref coordinates => Ok(Self::Coordinates(coordinates.to_vec())),
        }
    }
}

impl std::str::FromStr for ElementRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let position = |text: &str| if text.trim().is_empty() { Ok(None) } else { text.parse().map(Some) };
        let Some((start, end)) = text.split_once("..") else {
            return Ok(Self { start: Some(text.parse()?), end: None, is_single: true });
        };
        let range = Self { start: position(start)?, end: position(end)?, is_single: false };
        match (&range.start, &range.end) {
            (Some(Position::Index(start)), Some(Position::Index(end))) if end < start => {
                Err("the range ends before it starts".to_owned())
            }
            _ => Ok(range),
        }
    }
}
