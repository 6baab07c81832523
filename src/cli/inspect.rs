//! The arguments of `tcast inspect`.

use super::shared::{INPUT_NOTE, ViewArgs, some_inputs, with_note};
use crate::dtype::Dtype;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command};
use std::ffi::OsStr;
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
two, and which of them a narrow type would lose.

For a language model in a folder of Hugging Face, a line says which metadata tcast cast and tcast quantize would give a GGUF file, \
or names the first thing that is missing and what to add to these commands.",
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
  tcast inspect llama --fail-on nan,infinite,index,parts,duplicate
      checks whether a checkpoint is whole and finite; exits with 3 if not
  tcast inspect style --base llama
      shows which weights an adapter changes
  tcast inspect suspicious.pt --fail-on code
      lists the names of code in a checkpoint of PyTorch; exits with 3 if one may
      do harm

JSON:
  The page docs/report.md lists all fields. gguf_metadata, only for a language
  model in a folder of Hugging Face, has is_complete; then either
    architecture, layers, tokenizer (its kind), tokens (their number),
    pre_tokenizer (null without one) and has_chat_template,
  or
    error: the first thing that is missing, and remedy, or null

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 3 what --fail-on forbids,
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

    /// The model that an adapter is for: show what it changes
    ///
    /// Lists each module with the weight that it changes, its rank and its scale, and the tensors that match no weight.
    #[arg(long, value_name = "MODEL")]
    pub base: Option<PathBuf>,

    /// Only the tensor of this name; repeatable
    ///
    /// The name of a part of a quantized weight stands for the weight.
    #[arg(long, value_name = "NAME")]
    pub tensor: Vec<String>,

    /// Exit with 3 on one of these: nan, index, code, ...
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = ConditionParser, hide_possible_values = true,
          long_help = FAIL_ON)]
    pub fail_on: Vec<InspectCondition>,

    /// Selection and presentation of tensors.
    #[command(flatten)]
    pub view: ViewArgs,

    /// Print no progress and no warnings
    #[arg(short, long)]
    pub quiet: bool,
}

const FAIL_ON: &str = "\
Exit with 3 on one of these: nan, index, code, ...

Repeatable, or separated by commas. tcast lists the names of what it finds. The first four read all values; those of a \
quantized weight are decoded.

- nan, infinite: a value is NaN or Inf
- zero: all values of a tensor are 0
- huge=NUMBER: a finite value has a larger magnitude
- index: the index and the shards differ, or a shard is missing or is in no index
- parts: parts of a quantized weight are missing, or the config contradicts the tensors
- duplicate: several shards hold a tensor of one name
- code: names of code in a checkpoint of PyTorch that are not known to be harmless. tcast never runs such code. Programs \
that unpickle the file would.";

/// A condition that `--fail-on` forbids in an input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InspectCondition {
    /// A value is NaN.
    Nan,
    /// A value is infinite.
    Infinite,
    /// All values of a tensor are 0.
    Zero,
    /// A finite value has a larger magnitude.
    Huge(f64),
    /// The index and the shards differ.
    Index,
    /// Parts of a quantized weight are missing, or the config contradicts the tensors.
    Parts,
    /// Several shards hold a tensor of one name.
    Duplicate,
    /// Names of code that is not known to be harmless.
    Code,
}

impl InspectCondition {
    const ALL: [Self; 8] =
        [Self::Nan, Self::Infinite, Self::Zero, Self::Huge(0.0), Self::Index, Self::Parts, Self::Duplicate, Self::Code];

    /// Returns its name on the command line, without a number.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nan => "nan",
            Self::Infinite => "infinite",
            Self::Zero => "zero",
            Self::Huge(_) => "huge",
            Self::Index => "index",
            Self::Parts => "parts",
            Self::Duplicate => "duplicate",
            Self::Code => "code",
        }
    }

    /// True if it is about values, which must be read.
    #[must_use]
    pub fn needs_values(self) -> bool {
        matches!(self, Self::Nan | Self::Infinite | Self::Zero | Self::Huge(_))
    }
}

/// Parses the name of a condition, or `huge=NUMBER`.
#[derive(Clone)]
struct ConditionParser;

impl TypedValueParser for ConditionParser {
    type Value = InspectCondition;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Self::Value, clap::Error> {
        let text = value.to_str().unwrap_or_default();
        let number = text.strip_prefix("huge=").and_then(|number| number.parse().ok()).filter(|most| *most >= 0.0);
        if let Some(most) = number {
            return Ok(InspectCondition::Huge(most));
        }
        let all = InspectCondition::ALL.map(|condition| match condition {
            InspectCondition::Huge(_) => "huge=NUMBER",
            _ => condition.name(),
        });
        let is_named = |condition: &InspectCondition| condition.name() == text && text != "huge";
        match InspectCondition::ALL.into_iter().find(is_named) {
            Some(found) => Ok(found),
            // The placeholder is not a value.
            None if all.contains(&text) => {
                Err(command.clone().error(ErrorKind::InvalidValue, "huge needs a number: huge=1e4"))
            }
            None => Err(PossibleValuesParser::new(all).parse_ref(command, arg, value).expect_err("it is none of them")),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(InspectCondition::ALL.into_iter().map(|condition| match condition {
            InspectCondition::Huge(_) => PossibleValue::new("huge="),
            _ => PossibleValue::new(condition.name()),
        })))
    }
}
