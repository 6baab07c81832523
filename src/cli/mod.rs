//! The command line: flags and their help, nothing else.

mod bitcast;
mod cast;
mod dequantize;
mod diff;
mod inspect;
mod promote;
mod quantize;
mod shared;

pub use crate::plan::Partition;
pub use bitcast::{BitcastArgs, ElementRange, Position};
pub use cast::CastArgs;
pub use dequantize::DequantizeArgs;
pub use diff::{DiffArgs, ToleranceArg};
pub use inspect::{InspectArgs, InspectCondition};
pub use promote::PromoteArgs;
pub use quantize::QuantizeArgs;
pub use shared::{FileArgs, ReportArgs, ShardArgs, ViewArgs};

use crate::text::TEMPORARY_FOLDER;
use clap::builder::{BoolishValueParser, TypedValueParser};
use clap::{ArgMatches, Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

/// Overview of the program, for users who give no arguments.
pub const OVERVIEW: &str = "\
Convert tensor files between number formats, bit for bit as ONNX Cast does

  tcast cast model.safetensors --to float8e4m3fn  to another type
  tcast dequantize llama-fp8                      values of quantized weights
  tcast quantize llama --scheme fp8               codes and scales for engines
  tcast bitcast x.npy --bits                      bits, printed or reinterpreted
  tcast promote x.npy w.npy -o common             to a common type
  tcast inspect model.safetensors --stats         contents and statistics
  tcast diff before.npy after.npy                 how two files differ

Files are .npy, .npz, .safetensors, .gguf, .pt, .onnx, .pb, folders of shards.
The flags of a command: tcast cast -h; everything about it: tcast cast --help";

const EXAMPLES: &str = "Examples:
  tcast cast model.safetensors --to float8e4m3fn
  tcast dequantize llama-fp8
  tcast quantize llama --scheme fp8
  tcast diff before.npy after.npy
  tcast cast --help";

/// Convert tensor files between number formats, bit for bit as ONNX Cast does
#[derive(Debug, Parser)]
#[command(name = "tcast", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}

Environment:
  TCAST_ISA=NAME  Use this instruction set: baseline, avx2 or avx512
                  [default: the best of the processor]
  {:<14}  Where tcast unpacks a compressed tensor to transpose it", format!("{TEMPORARY_FOLDER}=FOLDER")))]
pub struct Cli {
    /// Colors in messages
    ///
    /// Without it, `NO_COLOR`, `CLICOLOR_FORCE` and the terminal decide.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_short_help = true,
        display_order = 1000
    )]
    pub color: ColorChoice,

    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the arguments of the program.
    ///
    /// # Errors
    /// When they do not fit together.
    pub fn parsed(arguments: &[OsString]) -> Result<Self, clap::Error> {
        let mut cli = Self::try_parse_from(arguments)?;
        if let Command::Quantize(args) = &mut cli.command {
            args.choose_scheme();
        }
        Ok(cli)
    }

    /// Refuses arguments whose mistake only shows when the files are known.
    ///
    /// # Errors
    /// When a type has no flag.
    pub fn checked(self) -> Result<Self, clap::Error> {
        match &self.command {
            Command::Cast(args) => args.check_type(command).and_then(|()| args.check_words(command)).map(|()| self),
            _ => Ok(self),
        }
    }

    /// Replaces each input that is a pattern, such as `*.npy`, by the files that match it. Only Windows shells leave
    /// that to the program. A pattern that matches nothing stays, and is reported as a missing file.
    #[must_use]
    pub fn with_inputs_expanded(mut self) -> Self {
        let inputs = match &mut self.command {
            Command::Cast(args) => &mut args.inputs,
            Command::Bitcast(args) => &mut args.inputs,
            Command::Promote(args) => &mut args.inputs,
            Command::Inspect(args) => &mut args.inputs,
            Command::Dequantize(_) | Command::Quantize(_) | Command::Diff(_) => return self,
        };
        *inputs = std::mem::take(inputs).into_iter().flat_map(matching).collect();
        self
    }
}

#[cfg(not(windows))]
fn matching(path: PathBuf) -> Vec<PathBuf> {
    vec![path]
}

/// Returns the files that match a path as a pattern of `*` and `?`, which names on Windows cannot contain, in the order
/// of their names.
#[cfg(windows)]
fn matching(path: PathBuf) -> Vec<PathBuf> {
    let Some(text) = path.to_str().filter(|text| text.contains(['*', '?'])) else { return vec![path] };
    let pattern = text.replace('[', "[[]"); // it is only a character of a name
    let options = glob::MatchOptions { case_sensitive: false, require_literal_leading_dot: true, ..Default::default() };
    let found: Vec<PathBuf> = glob::glob_with(&pattern, options).into_iter().flatten().flatten().collect();
    if found.is_empty() { vec![path] } else { found }
}

/// Joins a value to the `--saturate` before it, if it can be nothing else: the value of this flag is optional, so clap
/// requires an `=`.
pub fn join_saturate(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    let mut only_files = false;
    for argument in arguments {
        let is_value = || BoolishValueParser::new().parse_ref(&clap::Command::new("tcast"), None, &argument).is_ok();
        match joined.last_mut() {
            Some(last) if last == "--saturate" && !only_files && is_value() => {
                last.push("=");
                last.push(argument);
            }
            _ => {
                only_files |= argument == "--";
                joined.push(argument);
            }
        }
    }
    joined
}

/// Returns the value of `--color`, which must be known before usage errors are printed.
#[must_use]
pub fn color(arguments: &[OsString]) -> ColorChoice {
    let arguments = arguments.iter().take_while(|argument| *argument != "--");
    let mut texts = arguments.map(|argument| argument.to_string_lossy()).peekable();
    let mut choice = None;
    while let Some(text) = texts.next() {
        let value = match text.strip_prefix("--color=") {
            Some(value) => Some(value.to_owned()),
            None if text == "--color" => texts.peek().map(|value| value.clone().into_owned()),
            None => None,
        };
        choice = value.and_then(|value| ColorChoice::from_str(&value, false).ok()).or(choice);
    }
    choice.unwrap_or(ColorChoice::Auto)
}

/// Subcommand.
// A comment in place of `about` would remove the long description of the arguments.
#[allow(missing_docs, reason = "the help describes them")]
#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(about = "Convert the values of a file or a folder of shards to another type")]
    Cast(OnDemand<CastArgs>),
    #[command(about = "Decode quantized weights: values instead of codes and scales")]
    Dequantize(OnDemand<DequantizeArgs>),
    #[command(about = "Quantize weights: codes and scales that engines load")]
    Quantize(OnDemand<QuantizeArgs>),
    #[command(about = "Reinterpret the bits of elements as another type, or print them")]
    Bitcast(OnDemand<BitcastArgs>),
    #[command(about = "Convert tensors to their common type")]
    Promote(OnDemand<PromoteArgs>),
    #[command(about = "List the contents of a file or a folder of shards")]
    Inspect(OnDemand<InspectArgs>),
    #[command(about = "Show how two files or folders of shards differ")]
    Diff(OnDemand<DiffArgs>),
}

/// Arguments of a subcommand, which clap describes when a command line names it: to describe those of all subcommands
/// takes more than half of the instructions of a start.
#[derive(Debug)]
pub struct OnDemand<T>(pub Box<T>);

impl<T: Args> Args for OnDemand<T> {
    fn augment_args(command: clap::Command) -> clap::Command {
        // The help of the program shows the text of the subcommand, which the comment of `T` would replace.
        command.defer(|command| {
            let about = command.get_about().cloned().unwrap_or_default();
            T::augment_args(command).about(about)
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl<T: FromArgMatches> FromArgMatches for OnDemand<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(|args| Self(Box::new(args)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T> Deref for OnDemand<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for OnDemand<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Returns the description of the command line with the arguments of all subcommands, but without what clap adds when it
/// builds the whole, such as `help`. It is for lookups: clap cannot build it again.
#[must_use]
pub fn command() -> clap::Command {
    let mut command = Cli::command();
    command.get_subcommands_mut().for_each(clap::Command::build);
    command
}
