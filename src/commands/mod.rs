//! The subcommands, and their shared code. `messages` prints, `remedies` turns errors into commands to paste and exit
//! codes, `usage` reports usage errors with the corrections of `correct`, and `interrupts` handles signals.

mod bitcast;
mod cast;
mod complete;
mod correct;
mod dequantize;
mod diff;
mod downloads;
mod engine_notes;
mod finish;
mod foreign;
mod inspect;
mod interrupts;
mod into_gguf;
mod messages;
mod observer;
mod omitted;
mod promote;
mod quantize;
mod refusal;
mod remedies;
mod report_file;
mod results;
mod resume;
mod run;
mod schemes;
mod typed;
mod unmatched;
mod usage;

pub use complete::{VARIABLE as COMPLETE, complete};
pub use interrupts::{end_interrupts, remove_temporaries_on_interrupt};
#[doc(hidden)] // for tests
pub use remedies::{alternative, exit_code, remedy};
pub use usage::usage;

use messages::{print_error, print_failure, warn};
use observer::Console;
use remedies::Trouble;

use crate::cli::{Cli, Command, FileArgs, ReportArgs, ViewArgs};
use crate::container::ReadOptions;
use crate::container::checkpoint::Checkpoint;
use crate::error::Error;
use crate::io::identity::Files;
use crate::io::output::{is_standard_output, standard_output};
use crate::io::temporaries::Run;
use crate::job::{self, OpenOptions, Publish};
use crate::kernel::Isa;
use crate::options::TensorOptions;
use crate::select::Selection;
use crate::text::{counted, first_few, is, path_text, shorten, visible};
use crate::threads::cores;
use anyhow::Context;
use clap::ColorChoice;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let _run = Run::begin();
    let is_diff = matches!(cli.command, Command::Diff(_));
    interrupts::set_exit_code(if is_diff { Trouble::EXIT_CODE } else { 1 });
    choose_isa()?;
    match &cli.command {
        Command::Cast(args) => cast::run(args)?,
        Command::Dequantize(args) => dequantize::run(args)?,
        Command::Quantize(args) => quantize::run(args)?,
        Command::Bitcast(args) => bitcast::run(args)?,
        Command::Promote(args) => promote::run(args)?,
        Command::Inspect(args) => inspect::run(args)?,
        Command::Diff(args) => return diff::run(args).context(Trouble),
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports an error, and returns its exit code.
#[must_use]
pub fn fail(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref() {
        Some(error) => print_error(error),
        None => print_failure(&visible(&format!("{error:#}"))),
    }
    ExitCode::from(exit_code(error))
}

/// Enables or disables colors in everything that is printed.
pub fn choose_color(choice: ColorChoice) {
    match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// Makes kernels use the instruction set that the environment names, if any.
fn choose_isa() -> Result<(), Error> {
    let Some(name) = std::env::var_os("TCAST_ISA").filter(|name| !name.is_empty()) else { return Ok(()) };
    let available = Isa::available();
    let Some(isa) = available.iter().find(|isa| name == isa.name()) else {
        let names: Vec<&str> = available.iter().map(|isa| isa.name()).collect();
        let name = shorten(&path_text(name));
        let error = Error::usage(format!("TCAST_ISA: this machine has no instruction set '{name}'"));
        return Err(error.remedy(format!("set it to one of {}, or not at all", names.join(", "))));
    };
    if isa.choose() {
        return Ok(());
    }
    Err(Error::usage(format!("TCAST_ISA: this process computes on '{}' already", Isa::chosen().name())))
}

/// Refuses two results on standard output.
fn check_standard_output(output: &Path, json: bool) -> Result<(), Error> {
    if json && is_standard_output(output) {
        return Err(Error::usage("--json and the output cannot both go to standard output").in_file(output));
    }
    Ok(())
}

/// Refuses to print results on standard output if it is redirected to a file of the inputs.
fn check_printing<'a>(sources: impl IntoIterator<Item = &'a Checkpoint>) -> Result<(), Error> {
    let mut files = Files::default();
    files.read(sources.into_iter().flat_map(Checkpoint::read_files));
    files.check_printing(&standard_output(Path::new("-"))?)
}

fn open_model(
    model: &[PathBuf],
    tensors: &TensorOptions,
    threads: usize,
    observer: &Console,
) -> Result<Checkpoint, Error> {
    let options =
        OpenOptions { tensors, divides_stacks: true, has_modules: false, publish: Publish::Together, threads };
    let mut opened = job::open(model, &options, observer, |error, _| error)?;
    Ok(opened.pop().expect("clap requires a model"))
}

/// Refuses patterns that match no tensor, or warns of them if that is allowed.
fn check_matched(selection: &Selection, names: &[&str], is_allowed: bool, quiet: bool) -> Result<(), Error> {
    for error in unmatched::unmatched(selection, names) {
        if !is_allowed {
            return Err(error);
        }
        if !quiet {
            warn(&error.to_string());
        }
    }
    Ok(())
}

/// Maximum number of names in a message.
const MOST_NAMES: usize = 8;

fn missing_tensor(sources: &[Checkpoint], name: &str) -> Error {
    missing_among(&sources.iter().flat_map(Checkpoint::names).collect::<Vec<_>>(), name)
}

fn missing_among(names: &[&str], name: &str) -> Error {
    let others = match &unmatched::near(name, names)[..] {
        [] => format!("there {}: {}", is(names.len() as u64), first_few(names, MOST_NAMES)),
        near => format!("similar: {}", first_few(near, MOST_NAMES)),
    };
    Error::new(format!("there is no tensor '{}'", shorten(name))).remedy(others)
}

/// Returns the error for an input that does not have exactly one tensor, if one is needed.
fn say_which(source: &Checkpoint) -> Error {
    let unreadable: usize = source.shards.iter().map(|shard| shard.contents.unreadable.len()).sum();
    let count = source.names().count() + unreadable;
    let error = Error::usage(format!("contains {}; choose one", counted(count as u64, "tensor")));
    // Only this form accepts a name that begins with a dash.
    let joint = if source.names().any(|name| name.starts_with('-')) { '=' } else { ' ' };
    error.remedy(format!("--tensor{joint}NAME, one of {}", first_few(source.names(), MOST_NAMES)))
}

/// Returns the number of threads: as requested, or the number of cores.
fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(cores, Into::into)
}

/// Returns how `inspect` and `diff` read their inputs.
fn read_options(view: &ViewArgs) -> ReadOptions<'_> {
    ReadOptions { threads: threads(view.threads), root: view.root.as_deref() }
}

/// Returns the first of these options that is given.
fn first_given<const N: usize>(options: [(&'static str, bool); N]) -> Option<&'static str> {
    options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
}

/// Creates the error for an option without an effect, which may be followed by its value.
fn no_effect(option: &str, why: impl Display) -> Error {
    let flag = option.split(' ').next().unwrap_or(option);
    Error::usage(format!("{option} has no effect: {why}")).remedy(format!("leave {flag} out"))
}

/// Refuses `--hash` without a report to put hashes into.
fn check_hash(asked: &ReportArgs, args: &FileArgs) -> Result<(), Error> {
    if asked.hash && !args.json && asked.report.is_none() {
        return Err(Error::usage("--hash is for a report").remedy("add --json or --report FILE"));
    }
    Ok(())
}
