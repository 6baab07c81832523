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
use crate::job::{self, OpenOptions, Publish};
use crate::options::{Task, TensorOptions};
use crate::select::Selection;
use crate::text::{counted, first_few, is, shorten};
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
    (tensors, task): (&TensorOptions, Task),
    threads: usize,
    observer: &Console,
) -> Result<Checkpoint, Error> {
    let options = OpenOptions {
        tensors,
        contents: task.contents(),
        divides_stacks: true,
        has_modules: false,
        publish: Publish::Together,
        threads,
    };
    let mut opened = job::open(model, &options, observer, |error, _| error)?;
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

/// Maximum number of names in a message.
const MOST_NAMES: usize = 8;

pub(super) fn missing_tensor(sources: &[Checkpoint], name: &str) -> Error {
    missing_among(&sources.iter().flat_map(Checkpoint::names).collect::<Vec<_>>(), name)
}

pub(super) fn missing_among(names: &[&str], name: &str) -> Error {
    let others = match &unmatched::near(name, names)[..] {
        [] => format!("there {}: {}", is(names.len() as u64), first_few(names, MOST_NAMES)),
        near => format!("similar: {}", first_few(near, MOST_NAMES)),
    };
    Error::new(format!("there is no tensor '{}'", shorten(name))).remedy(others)
}

/// Returns the error for an input that does not have exactly one tensor, if one is needed.
pub(super) fn say_which(source: &Checkpoint) -> Error {
    let unreadable: usize = source.shards.iter().map(|shard| shard.contents.unreadable.len()).sum();
    let count = source.names().count() + unreadable;
    let error = Error::usage(format!("contains {}; choose one", counted(count as u64, "tensor")));
    // Only this form accepts a name that begins with a dash.
    let joint = if source.names().any(|name| name.starts_with('-')) { '=' } else { ' ' };
    error.remedy(format!("--tensor{joint}NAME, one of {}", first_few(source.names(), MOST_NAMES)))
}

/// Returns the number of threads: as requested, or the number of cores.
pub(super) fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(cores, Into::into)
}

/// Returns how `inspect` and `diff` read their inputs.
pub(super) fn read_options(view: &ViewArgs) -> ReadOptions<'_> {
    ReadOptions { threads: threads(view.threads), root: view.root.as_deref(), take_rank: view.take_rank }
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

/// Refuses `--hash` without a report to put hashes into.
pub(super) fn check_hash(asked: &ReportArgs, args: &FileArgs) -> Result<(), Error> {
    if asked.hash && !args.json && asked.report.is_none() {
        return Err(Error::usage("--hash is for a report").with(Opt::JSON, "add {}").with_value(
            Opt::REPORT,
            "FILE",
            "add {}",
        ));
    }
    Ok(())
}
