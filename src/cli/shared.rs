//! Arguments that several subcommands share, and their help.

use crate::container::known_formats;
use crate::dtype::Dtype;
use crate::options::{ROOT, ROOT_NOTE, TAKE_RANK, TAKE_RANK_NOTE};
use crate::plan::Partition;
use crate::select::{Pattern, Selection};
use clap::{Arg, Args};
use std::path::PathBuf;

/// Output options, and options for the work, of all commands that convert.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Input and output")]
pub struct FileArgs {
    /// Where to write; the extension selects the format
    ///
    /// The default is an output next to INPUT, with the type in its name. `-` is standard output. If the reader of a pipe
    /// closes it early, tcast exits with code 1, because the output is incomplete.
    #[arg(short, long, value_name = "PATH")]
    pub output: Option<PathBuf>,

    /// Replace an existing output
    #[arg(short, long)]
    pub force: bool,

    /// Keep an existing output, and exit with 0
    #[arg(long, conflicts_with = "force", hide_short_help = true)]
    pub skip_existing: bool,

    /// Show what would change, and write nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Print the report as JSON on standard output
    #[arg(long)]
    pub json: bool,

    /// Do not flush the output to the disk before it takes its name
    #[arg(long, hide_short_help = true)]
    pub no_sync: bool,

    /// Print no progress, summary or warnings, only errors
    #[arg(short, long, hide_short_help = true)]
    pub quiet: bool,

    /// Threads to use [default: the number of cores]
    #[arg(short = 'j', long, value_name = "N", value_parser = threads,
          hide_short_help = true)]
    pub threads: Option<u16>,
}

fn threads(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=1024).contains(number));
    number.ok_or_else(|| "a number from 1 to 1024; without this flag, tcast uses all cores".to_owned())
}

/// Selection of tensors and presentation of the result; shared by `inspect` and `diff`.
#[derive(Args, Debug)]
pub struct ViewArgs {
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

    /// The root of PyTorch checkpoints.
    #[arg(long, value_name = "KEY", help = ROOT, long_help = ROOT_NOTE, hide_short_help = true)]
    pub root: Option<String>,

    /// The rank whose tensors are taken.
    #[arg(long, value_name = "RANK", help = TAKE_RANK, long_help = TAKE_RANK_NOTE, hide_short_help = true)]
    pub take_rank: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Threads to use [default: the number of cores]
    #[arg(short = 'j', long, value_name = "N", value_parser = threads)]
    pub threads: Option<u16>,
}

impl ViewArgs {
    /// Returns the selection by these patterns.
    #[must_use]
    pub fn selection(&self) -> Selection {
        Selection { include: self.include.clone(), exclude: self.exclude.clone(), ..Selection::default() }
    }
}

pub(super) const REPORT: &str = "Write the report to a file: .html or .json";

/// Report options besides the summary; the command chooses their heading.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// File of the report.
    #[arg(long, value_name = "FILE", help = REPORT)]
    pub report: Option<PathBuf>,

    /// Put SHA-256 of every tensor's bytes, before and after, into the JSON report
    #[arg(long, conflicts_with = "dry_run", hide_short_help = true)]
    pub hash: bool,
}

/// Describes one input.
pub(super) fn one_input() -> String {
    format!("A {} file, or a folder", known_formats())
}

/// Describes several inputs.
pub(super) fn some_inputs() -> String {
    format!("{} files, folders", known_formats())
}

/// Returns a long help that starts like the short one.
pub(super) fn with_note(text: &str, note: &str) -> String {
    format!("{text}\n\n{note}")
}

pub(super) const INPUT_NOTE: &str = "A .onnx file is an ONNX model, and a .pb file an ONNX tensor. A .pt, .pth, .bin or .ckpt file is a \
                          checkpoint of PyTorch; tcast never runs code from it. Shards are .safetensors files or \
                          pytorch_model*.bin files, with or without an index, or the .gguf files of a split model: \
                          name any of them.";

pub(super) const SEVERAL_NOTE: &str =
    "Each of several inputs gets its own output, with its own name in the folder that -o names, or next to the input.";

/// Wraps text in the indented lines of a long help, which clap prints unchanged.
pub(super) fn indented(text: &str) -> String {
    hanging(" ", text)
}

/// Wraps text after a heading; all lines are indented like the first.
pub(super) fn hanging(head: &str, text: &str) -> String {
    const COLUMNS: usize = 80;
    let mut lines = vec![head.to_owned()];
    for word in text.split(' ') {
        if lines.last().is_some_and(|line| line.len() + 1 + word.len() > COLUMNS) {
            lines.push(" ".repeat(head.len()));
        }
        if let Some(line) = lines.last_mut() {
            line.extend([" ", word]);
        }
    }
    lines.join("\n")
}

/// Joins types as a list in a sentence.
pub(super) fn listed(dtypes: impl Iterator<Item = Dtype>) -> String {
    dtypes.map(Dtype::name).collect::<Vec<_>>().join(", ")
}

/// Returns an argument whose long help ends with the meanings of its values. Short help has no room for clap's list.
pub(super) fn with_values(arg: Arg, text: &str) -> Arg {
    let values = arg.get_possible_values();
    let lines =
        values.iter().map(|value| format!("\n- {}: {}", value.get_name(), value.get_help().unwrap_or_default()));
    let text = format!("{text}\n{}", lines.collect::<String>());
    arg.long_help(text)
}

/// Options for writing checkpoints. A command applies `of_finish` to all its arguments.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Folders of shards")]
pub struct ShardArgs {
    /// Continue an interrupted run: finished shards are kept, if input and options are the same
    #[arg(long, conflicts_with = "force", hide_short_help = true)]
    pub resume: bool,

    /// Do the I-th of N parts; others may run at the same time, also on other machines
    #[arg(long, value_name = "I/N", conflicts_with = "force", hide_short_help = true)]
    pub part: Option<Partition>,

    /// Complete the folder that all parts were written into
    #[arg(long, value_name = "OUT", hide_short_help = true)]
    pub finish: Option<PathBuf>,
}

/// Makes an argument of a command conflict with `--finish`, unless it has an effect there too.
pub(super) fn of_finish(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "color" | "finish" | "json" | "no_sync" | "quiet" | "threads" => arg,
        _ => arg.conflicts_with("finish"),
    }
}
