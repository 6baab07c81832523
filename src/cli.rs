//! The command line: flags and their help, nothing else.

use crate::dtype::Dtype;
use crate::kernel::{OutOfRange, RoundMode};
use crate::operator::cast::Opset;
use crate::select::{Pattern, Rename, Rule};
use clap::{Args, Parser, Subcommand, ValueEnum, builder::BoolishValueParser};
use std::path::PathBuf;

/// Convert tensor files between number formats, bit for bit as ONNX Cast defines it, and look at their bits.
#[derive(Debug, Parser)]
#[command(name = "tcast", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Examples:
  tcast cast model.safetensors --to float8e4m3fn
  tcast cast x.npy --to bf16 -o x.safetensors
  tcast bitcast x.npy --bits
  tcast inspect model.safetensors
  tcast cast --help")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Convert the values of a file to another type
    Cast(Box<CastArgs>),
    /// Reinterpret the bits of a file's elements, or print them
    Bitcast(Box<BitcastArgs>),
    /// Convert tensors to the type that they have in common
    Promote(PromoteArgs),
    /// List what is in a file or a folder of shards
    Inspect(InspectArgs),
}

/// The arguments of `tcast cast`.
#[derive(Args, Debug)]
#[command(
    long_about = "Convert the values of a .npy, .npz, .safetensors or ONNX .pb file to another type.

Each value is rounded once, to nearest even, from its exact source value; what saturated, became infinite or \
NaN, was flushed to zero or wrapped is counted and told. The output appears whole or not at all, and its bytes \
depend on the input and the options only.",
    override_usage = "tcast cast [OPTIONS] <INPUT> --to <DTYPE>",
    after_help = "Example: tcast cast model.safetensors --to float8e4m3fn (--help has more, and all types)",
    after_long_help = "Types:
  bool, int2, int4, int8, int16, int32, int64, uint2, uint4, uint8, uint16, uint32, uint64,
  float4e2m1, float6e2m3, float6e3m2, float8e4m3fn, float8e4m3fnuz, float8e5m2, float8e5m2fnuz,
  float8e8m0, float16, bfloat16, float32, float64, string; ONNX's, numpy's, torch's, safetensors'
  and OpenVINO's names for them; short ones such as bf16 and e4m3. Complex tensors are only copied.
  ml_dtypes' int1, uint1, float8_e3m4, float8_e4m3 and float8_e4m3b11fnuz are read and cast from,
  but not to: ONNX lacks them.

Which tensors: --exclude leaves out, --include leaves out the others; of the rest the first --rule
that matches decides, integers too, then --to. No tensor is dropped: what is left out is copied. A
.npy file gives its tensor no name, so its own does: w.npy holds w.

Examples:
  tcast cast model.safetensors --to float8e4m3fn
      writes model.float8e4m3fn.safetensors; integers and bools in it stay as they are
  tcast cast model.safetensors --to bf16 -o half.safetensors
      names the output
  tcast cast model.safetensors --to e4m3 --exclude '*norm*' --rule '*embed*=bf16'
      keeps the norms and gives the embeddings another type
  tcast cast x.npy --to int8 --out-of-range saturate
      clamps what int8 cannot hold; otherwise its low bits are kept
  tcast cast x.npy --to string -o x.pb
      writes the shortest digits that read back to the same values; text is read as well
  tcast cast arrays.npz --to bf16 -o arrays.safetensors --rename w=lm_head.weight
      changes the file format, and a tensor's name
  tcast cast codes.npy --from float8e5m2 --to float32 -o x.safetensors
      says what opaque bytes mean
  tcast cast model.safetensors --to float8e4m3fnuz --opset 24
      by Cast-24, where Inf becomes the largest number; by Cast-23, the default, it becomes NaN
  tcast cast model.safetensors --to f16 --dry-run
      shows what would become what, and the sizes

Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 130 interrupted."
)]
pub struct CastArgs {
    /// The file to convert: .npy, .npz, .safetensors, or an ONNX tensor (.pb)
    pub input: PathBuf,

    /// The type to convert to: float8e4m3fn, bf16, int8, string, ...
    #[arg(long, value_name = "DTYPE", required_unless_present = "rule")]
    pub to: Option<Dtype>,

    /// Convert integer and bool tensors to a float type too
    #[arg(long, help_heading = "Which tensors")]
    pub all: bool,

    /// How values are converted.
    #[command(flatten)]
    pub values: ValueArgs,

    /// Which tensors are converted.
    #[command(flatten)]
    pub selection: SelectionArgs,

    /// Where the result goes.
    #[command(flatten)]
    pub file: FileArgs,
}

/// The arguments of `tcast bitcast`.
#[derive(Args, Debug)]
#[command(
    long_about = "Reinterpret the bits of a file's elements as another type of the same width, or print them.

With --to, a file is written: the bits are the same, to the last one of a NaN, and so is the shape. With --hex \
or --bits, the elements are printed instead, and --to only says as what.",
    override_usage = "tcast bitcast [OPTIONS] <INPUT> --to <DTYPE>
       tcast bitcast [OPTIONS] <INPUT> --hex
       tcast bitcast [OPTIONS] <INPUT> --bits",
    after_help = "Example: tcast bitcast x.npy --bits (--help has more)",
    after_long_help = "Types of equal width:
  bool, 8-bit integers and float8 types; float16, bfloat16 and 16-bit integers; float32 and 32-bit
  integers; float64, 64-bit integers and complex64; 4-bit types; 2-bit types. No text, no float6.

Examples:
  tcast bitcast x.npy --to int32
      writes x.int32.npy
  tcast bitcast x.npy --hex
      prints every element's bits as hexadecimal digits
  tcast bitcast x.npy --bits --range 100..104
      prints elements 100 to 103: sign, exponent and mantissa, and what they stand for
  tcast bitcast model.safetensors --hex --tensor model.norm.weight
      prints one tensor of several
  tcast bitcast codes.npy --bits --from float8e4m3fn --range 0..16
      says what opaque bytes mean
  tcast bitcast x.npy --bits --to int32 --json
      prints the bits as those of another type, as JSON

Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 130 interrupted."
)]
pub struct BitcastArgs {
    /// The file to read: .npy, .npz, .safetensors, or an ONNX tensor (.pb)
    pub input: PathBuf,

    /// The type that the bits are to be of
    #[arg(long, value_name = "DTYPE", required_unless_present_any = ["rule", "hex", "bits"])]
    pub to: Option<Dtype>,

    /// Print the bits as hexadecimal digits, most significant first
    #[arg(long, conflicts_with_all = ["bits", "include", "exclude", "rule", "rename", "output", "force", "dry_run",
                                      "no_sync"])]
    pub hex: bool,

    /// Print sign, exponent and mantissa of each element, and what they stand for
    #[arg(long, conflicts_with_all = ["include", "exclude", "rule", "rename", "output", "force", "dry_run", "no_sync"])]
    pub bits: bool,

    /// With --hex and --bits: the tensor to print, where the file has several
    #[arg(long, value_name = "NAME")]
    pub tensor: Option<String>,

    /// With --hex and --bits: elements A to B, B left out, in the order of rows; either can be missing
    #[arg(long, value_name = "A..B")]
    pub range: Option<ElementRange>,

    /// Which tensors are converted.
    #[command(flatten)]
    pub selection: SelectionArgs,

    /// Where the result goes.
    #[command(flatten)]
    pub file: FileArgs,
}

/// The arguments of `tcast promote`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Args, Debug)]
#[command(
    long_about = "Convert tensors to the type that they have in common, as OpenVINO's ConvertPromoteTypes-14 decides it.

Bool gives way to numbers and integers to floats; of two integers or two floats the wider is taken. What could lose \
values, or would be wider than all inputs, is refused, with the way out; --unsafe allows it, and what was lost is told. \
Only types and ranks decide, never values, and the order of the inputs does not matter.",
    override_usage = "tcast promote [OPTIONS] <INPUT>... -o <DIR>
       tcast promote [OPTIONS] <INPUT> --tensor <NAME>... -o <FILE>
       tcast promote [OPTIONS] <INPUT>... --dry-run",
    after_help = "Example: tcast promote a.npy b.npy -o common (--help has more)",
    after_long_help = "Examples:
  tcast promote x.npy w.npy -o common
      writes common/x.npy and common/w.npy
  tcast promote x.npy w.npy --dry-run
      prints the common type, and nothing else
  tcast promote model.safetensors --tensor model.norm.weight --tensor model.rope_theta -n
      the common type of two tensors of a file; with -o FILE, the others are copied
  tcast promote x.npy codes.npy --from float8e4m3fn --unsafe -o common
      allows what could lose values
  tcast promote x.npy w.npy --dry-run --json
      says which rule decided, and what each input could lose

Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 130 interrupted."
)]
pub struct PromoteArgs {
    /// The files whose tensors are to get one type: .npy, .npz, .safetensors, or ONNX tensors (.pb)
    #[arg(required = true)]
    pub inputs: Vec<PathBuf>,

    /// Allow a type that cannot hold all values of an input, or is wider than every input
    #[arg(long)]
    pub r#unsafe: bool,

    /// Tensors of rank 0 take the type of the others, as in torch
    #[arg(long)]
    pub pytorch_scalar: bool,

    /// The type for uint64 with a signed integer; it takes --unsafe, and has no effect elsewhere
    #[arg(long, value_name = "DTYPE", default_value = "float32")]
    pub u64_target: Dtype,

    /// The tensor to convert, where a file has several; repeatable, the others are copied
    #[arg(long, value_name = "NAME")]
    pub tensor: Vec<String>,

    /// Clamp what is beyond a float8 type's range; false: make it infinite or NaN [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new())]
    pub saturate: Option<bool>,

    /// Where to write: a folder, which gets a file of each input's name; of one input, a file
    #[arg(short, long, value_name = "PATH", required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,

    /// Replace existing outputs
    #[arg(short, long)]
    pub force: bool,

    /// What the stored bytes mean, where the file cannot say (V1, u1, U8)
    #[arg(long, value_name = "DTYPE")]
    pub from: Option<Dtype>,

    /// Print the common type; write nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Print the report as JSON on standard output
    #[arg(long)]
    pub json: bool,

    /// Do not flush the outputs to the disk before they take their names
    #[arg(long)]
    pub no_sync: bool,

    /// No progress, no summary; errors stay
    #[arg(short, long)]
    pub quiet: bool,

    /// Threads to use [default: the cores there are]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// The arguments of `tcast inspect`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Args, Debug)]
#[command(
    long_about = "List what is in a file or a folder of shards: names, types, shapes and sizes of the tensors, how they \
are stored, totals of each type, and the metadata.

Only headers are read, unless --stats asks for figures of the values. The histogram shows where the values lie \
among the powers of two, and which of them narrow formats would lose.",
    after_help = "Example: tcast inspect model.safetensors (--help has more)",
    after_long_help = "Examples:
  tcast inspect model.safetensors
      lists the tensors
  tcast inspect model.safetensors --stats --include '*mlp*'
      figures and histogram of some of them
  tcast inspect arrays.npz --json
      the same as JSON
  tcast inspect .
      a folder of shards: the index, the shards, and all their tensors

Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 130 interrupted."
)]
pub struct InspectArgs {
    /// The file to list: .npy, .npz, .safetensors, an ONNX tensor (.pb), or a folder of .safetensors shards
    pub input: PathBuf,

    /// Figures of the values, and a histogram of their exponents
    #[arg(long)]
    pub stats: bool,

    /// What the stored bytes mean, where the file cannot say (V1, u1, U8), for --stats
    #[arg(long, value_name = "DTYPE", requires = "stats")]
    pub from: Option<Dtype>,

    /// Only tensors whose name matches; repeatable
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<Pattern>,

    /// Not tensors whose name matches; repeatable
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<Pattern>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// No progress, no warnings
    #[arg(short, long)]
    pub quiet: bool,

    /// Threads to use [default: the cores there are]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// `A..B`, `A..`, `..B`: some elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementRange {
    /// The first.
    pub start: u64,
    /// The one behind the last; `None` for all that there are.
    pub end: Option<u64>,
}

impl std::str::FromStr for ElementRange {
    type Err = String;

    /// # Errors
    /// When it is no range.
    fn from_str(text: &str) -> Result<Self, String> {
        let (start, end) = text.split_once("..").ok_or("a range is A..B, A.. or ..B")?;
        let number = |text: &str, missing| match text {
            "" => Ok(missing),
            _ => text.parse().map(Some).map_err(|_| format!("'{text}' is no number of elements")),
        };
        let (start, end) = (number(start, None)?.unwrap_or(0), number(end, None)?);
        if end.is_some_and(|end| end < start) {
            return Err("the range ends before it starts".to_owned());
        }
        Ok(Self { start, end })
    }
}

/// Where a result goes and how the work is done; what `cast` and `bitcast` share.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Args, Debug)]
#[command(next_help_heading = "Input and output")]
pub struct FileArgs {
    /// Where to write; the extension chooses the format [default: INPUT's name with the type in it]
    #[arg(short, long, value_name = "PATH")]
    pub output: Option<PathBuf>,

    /// Replace an existing output
    #[arg(short, long)]
    pub force: bool,

    /// What the stored bytes mean, where the file cannot say (V1, u1, U8)
    #[arg(long, value_name = "DTYPE")]
    pub from: Option<Dtype>,

    /// Show what would become what, and the sizes; write nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Print the report as JSON on standard output
    #[arg(long)]
    pub json: bool,

    /// Do not flush the output to the disk before it takes its name
    #[arg(long)]
    pub no_sync: bool,

    /// No progress, no summary, no warnings; errors stay
    #[arg(short, long)]
    pub quiet: bool,

    /// Threads to use [default: the cores there are]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// How values are converted.
#[derive(Args, Debug)]
#[command(next_help_heading = "Values")]
pub struct ValueArgs {
    /// Clamp what is beyond a float8 type's range; false: make it infinite or NaN [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new())]
    pub saturate: Option<bool>,

    /// The same as --saturate=false
    #[arg(long, conflicts_with = "saturate")]
    pub no_saturate: bool,

    /// Where float8e8m0 rounds to [default: up]
    #[arg(long, value_name = "MODE")]
    pub round_mode: Option<RoundMode>,

    /// What a float that an integer type cannot hold becomes
    #[arg(long, value_name = "POLICY", default_value = "wrap")]
    pub out_of_range: OutOfRange,

    /// Cast as that opset's Cast, 1 to 28 [default: all types and attributes, by the rules of Cast-23]
    #[arg(long, value_name = "N")]
    pub opset: Option<Opset>,
}

/// Which tensors are converted.
#[derive(Args, Debug)]
#[command(next_help_heading = "Which tensors")]
pub struct SelectionArgs {
    /// Only tensors whose name matches; repeatable, the others are copied
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<Pattern>,

    /// Not tensors whose name matches; repeatable
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<Pattern>,

    /// Another type for some tensors, integers too, or GLOB=keep; repeatable, the first match wins, before --to
    #[arg(long, value_name = "GLOB=DTYPE")]
    pub rule: Vec<Rule>,

    /// Another name for a tensor in the output; repeatable
    #[arg(long, value_name = "OLD=NEW")]
    pub rename: Vec<Rename>,
}

impl ValueEnum for RoundMode {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Up, Self::Down, Self::Nearest]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            Self::Up => clap::builder::PossibleValue::new("up").help("the next power of two"),
            Self::Down => clap::builder::PossibleValue::new("down").help("the power of two below"),
            Self::Nearest => clap::builder::PossibleValue::new("nearest").help("the nearest, a tie upwards"),
        })
    }
}

impl ValueEnum for OutOfRange {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Wrap, Self::Saturate, Self::Error]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            Self::Wrap => clap::builder::PossibleValue::new("wrap").help("the low bits; NaN and Inf give 0"),
            Self::Saturate => clap::builder::PossibleValue::new("saturate").help("the nearest end; NaN gives 0"),
            Self::Error => clap::builder::PossibleValue::new("error").help("refuse; nothing is written"),
        })
    }
}
