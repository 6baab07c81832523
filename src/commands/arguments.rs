//! Checks of arguments and inputs that several subcommands share.

use super::messages::warn;
use super::observer::Console;
use super::unmatched;
use crate::cli::{FileArgs, ReportArgs, ViewArgs};
use crate::container::ReadOptions;
use crate::container::checkpoint::Checkpoint;
use crate::error::{Error, Opt};
use crate::io::identity::Files;
use crate::io::output::{is_standard_output, standard_output};
use crate::job::{self, Publish};
use crate::options::Task;
use crate::progress::{Never, Progress, Reading};
use crate::select::Selection;
use crate::threads::cores;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Refuses two results on standard output.
pub(super) fn check_standard_output(output: &Path, json: bool) -> Result<(), Error> {
    if json && is_standard_output(output) {
        return Err(Error::usage("--json and the output cannot both go to standard output").in_file(output));
    }
    Ok(())
}

/// Refuses to print results on standard output if it is redirected to a file of the inputs.
pub(super) fn check_printing<'a>(sources: impl IntoIterator<Item = &'a Checkpoint>) -> Result<(), Error> {
    let mut files = Files::default();
    files.read(sources.into_iter().flat_map(Checkpoint::read_files));
    files.check_printing(&standard_output(Path::new("-"))?)
}

pub(super) fn open_model(
    model: &[PathBuf],
    task: Task,
    threads: usize,
    observer: &Console,
) -> Result<Checkpoint, Error> {
    let mut opened = job::open(model, task, (Publish::Together, threads), observer, |error, _| error)?;
    Ok(opened.pop().expect("clap requires a model"))
}

/// Refuses patterns that match no tensor, or warns of them if that is allowed.
pub(super) fn check_matched(selection: &Selection, names: &[&str], is_allowed: bool, quiet: bool) -> Result<(), Error> {
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

/// Returns the number of threads: as requested, or the number of cores.
pub(super) fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(cores, Into::into)
}

/// Returns how `inspect` and `diff` read their inputs.
pub(super) fn read_options(view: &ViewArgs) -> ReadOptions<'_> {
    ReadOptions { threads: threads(view.threads), root: view.root.as_deref(), take_rank: view.take_rank }
}

/// Returns how `inspect` and `diff` read values.
pub(super) fn reading<'a>(view: &ViewArgs, progress: &'a dyn Progress) -> Reading<'a> {
    Reading { threads: threads(view.threads), progress, cancel: &Never }
}

/// Returns the first of these options that is given.
pub(super) fn first_given<O, const N: usize>(options: [(O, bool); N]) -> Option<O> {
    options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
}

/// Creates the error for an option without an effect, which may be followed by its value.
pub(super) fn no_effect(option: &str, why: impl Display) -> Error {
    let flag = option.split(' ').next().unwrap_or(option);
    Error::usage(format!("{option} has no effect: {why}")).remedy(format!("leave {flag} out"))
}

/// Adds the advice to ask for a report.
pub(super) fn wanting_report(error: Error) -> Error {
    error.with(Opt::JSON, "add {}").with_value(Opt::REPORT, "FILE", "add {}")
}

/// Refuses `--hash` without a report to put hashes into.
pub(super) fn check_hash(asked: &ReportArgs, args: &FileArgs) -> Result<(), Error> {
    if asked.hash && !args.json && asked.report.is_none() {
        return Err(wanting_report(Error::usage("--hash is for a report")));
    }
    Ok(())
}
