//! The subcommands, and what they share: messages, exit codes, interrupts.
#![allow(clippy::exit, reason = "an interrupt ends the process from a thread of its own")]

mod bitcast;
mod cast;
mod check;
mod complete;
mod convert;
mod dequantize;
mod diff;
mod finish;
mod inspect;
mod observer;
mod promote;
mod quantize;
mod remedies;
mod report_file;
mod results;
mod resume;
mod unmatched;

pub use complete::{VARIABLE as COMPLETE, complete};
#[doc(hidden)] // for tests
pub use remedies::{alternative, exit_code, remedy};

use observer::Console;
use remedies::Trouble;

use crate::cli::{Cli, Command, FileArgs, OVERVIEW, ReportArgs};
use crate::container::checkpoint::Checkpoint;
use crate::error::Error;
use crate::io::output::is_standard_output;
use crate::io::temporaries::{self, Run};
use crate::job;
use crate::kernel::Isa;
use crate::select::Selection;
use crate::text::{counted, path_text, quoted, shorten, size, visible, write_json};
use crate::threads::cores;
use anstyle::{AnsiColor, Style};
use anyhow::Context;
use clap::ColorChoice;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde::Serialize;
#[cfg(unix)]
use std::io::IsTerminal;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, Ordering};

/// The exit code if an input that is cut short ends the process.
static CUT_SHORT: AtomicU8 = AtomicU8::new(1);

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const REMEDY: Style = AnsiColor::Cyan.on_default();

/// Runs the command.
///
/// # Errors
/// Those of the command, which [`fail`] reports.
pub fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let _run = Run::begin();
    let is_diff = matches!(cli.command, Command::Diff(_));
    CUT_SHORT.store(if is_diff { Trouble::EXIT_CODE } else { 1 }, Ordering::Relaxed);
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

/// The process ends by itself: from here on, interrupts are ignored.
pub fn end_interrupts() {
    temporaries::end_interrupts();
}

/// Reports an error, and returns its exit code.
#[must_use]
pub fn fail(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref() {
        Some(error) => tell_error(error),
        None => tell(&format!("tcast: {ERROR}error:{ERROR:#} {}", visible(&format!("{error:#}")))),
    }
    ExitCode::from(exit_code(error))
}

fn tell_error(error: &Error) {
    tell(&format!("tcast: {ERROR}error:{ERROR:#} {error}"));
    error.details().iter().for_each(|detail| tell(&format!("  {}", visible(detail))));
    if let Some(remedy) = remedy(error) {
        tell(&format!("  {REMEDY}{}{REMEDY:#}", visible(&remedy)));
    }
    if let Some(alternative) = alternative(error) {
        tell(&format!("  {}", visible(&alternative)));
    }
}

/// Enables or disables colours in everything that is printed.
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

/// Words of other tools for our flags and subcommands.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("convert", "cast"),
    ("requantize", "quantize"),
    ("compress", "quantize"),
    ("view", "bitcast"),
    ("hex", "bitcast"),
    ("info", "inspect"),
    ("list", "inspect"),
    ("ls", "inspect"),
    ("show", "inspect"),
    ("stats", "inspect"),
    ("compare", "diff"),
    ("--dtype", "--to"),
    ("--type", "--to"),
];

/// Prints help and version on standard output, and usage errors in the program's own style.
#[must_use]
pub fn usage(mut error: clap::Error) -> ExitCode {
    if let Some(mistake) = stray_file(&error) {
        return fail(&mistake.into());
    }
    suggest(&mut error);
    // Typed words are shown, but must not be commands to the terminal.
    let words = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(word) => Some((kind, ContextValue::String(visible(word)))),
        _ => None,
    });
    for (kind, word) in words.collect::<Vec<_>>() {
        error.insert(kind, word);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        tell(OVERVIEW); // nothing was asked for, so nothing goes to standard output
    } else if error.use_stderr() {
        tell(format!("tcast: {}", error.render().ansi()).trim_end());
    } else {
        let _ = error.print(); // a closed pipe is no failure
    }
    ExitCode::from(error.exit_code() as u8)
}

/// The error for a file name in a position without one.
fn stray_file(error: &clap::Error) -> Option<Error> {
    let names_a_file = |word: &str| !word.starts_with('-') && crate::container::by_extension(word.as_ref()).is_some();
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) if names_a_file(word) => Some(word),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => word(ContextKind::InvalidSubcommand).map(|file| {
            let remedy = format!("tcast cast {} --to DTYPE", quoted(file.as_ref()));
            Error::usage(format!("'{file}' is not a subcommand")).remedy(remedy)
        }),
        _ => None,
    }
}

/// Makes a message about an unknown word name ours.
fn suggest(error: &mut clap::Error) {
    let our = |word: &ContextValue| {
        let found = OTHER_WORDS.iter().find(|(other, _)| matches!(word, ContextValue::String(word) if word == other));
        found.map(|(_, our)| (*our).to_owned())
    };
    if let Some(command) = error.get(ContextKind::InvalidSubcommand).and_then(our) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![command]));
    } else if let Some(flag) = error.get(ContextKind::InvalidArg).and_then(our) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(flag));
    }
    // clap proposes to pass an unknown flag as a value: our values do not begin with a dash.
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().starts_with("to pass '"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
}

fn warn(message: &str) {
    tell(&format!("tcast: {WARNING}warning:{WARNING:#} {}", visible(message)));
}

fn note(message: &str) {
    tell(&format!("tcast: {REMEDY}note:{REMEDY:#} {}", visible(message)));
}

/// Refuses two results on standard output.
fn check_standard_output(output: &Path, json: bool) -> Result<(), Error> {
    if json && is_standard_output(output) {
        return Err(Error::usage("--json and the output cannot both go to standard output").in_file(output));
    }
    Ok(())
}

/// Warns of abandoned temporary files in the folder of an output.
fn warn_of_abandoned(folder: &Path) {
    const MOST: usize = 20;
    let found = temporaries::abandoned(folder);
    if found.is_empty() {
        return;
    }
    let names: Vec<String> = found.iter().take(MOST).map(|(path, _)| quoted(path)).collect();
    let files = counted(found.len() as u64, "temporary file");
    let bytes = size(found.iter().map(|(_, len)| len).sum());
    warn(&format!("{files} of runs that were killed, {bytes} in all, can be removed"));
    tell(&format!("  {REMEDY}rm {}{REMEDY:#}", visible(&names.join(" "))));
}

/// Prints a message on standard error; it is no failure if nobody can read it.
fn tell(message: &str) {
    let _ = writeln!(anstream::stderr(), "{message}");
}

/// Opens the model of a command that takes one.
fn open_model(model: Option<&PathBuf>, threads: usize, observer: &Console) -> Result<Checkpoint, Error> {
    let inputs = model.map(std::slice::from_ref).unwrap_or_default();
    let mut opened = job::open(inputs, job::Publish::Together, threads, observer, |error, _| error)?;
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

/// The names of an input's tensors, as many as a message can hold.
fn some_names(source: &Checkpoint) -> String {
    let some: Vec<String> = source.names().take(8).map(shorten).collect();
    let more = if source.names().count() > some.len() { ", ..." } else { "" };
    format!("{}{more}", some.join(", "))
}

/// The error if an input does not have exactly one tensor, and one is needed.
fn say_which(source: &Checkpoint) -> Error {
    let unreadable: usize = source.shards.iter().map(|shard| shard.contents.unreadable.len()).sum();
    let count = source.names().count() + unreadable;
    let error = Error::usage(format!("holds {}: say which", counted(count as u64, "tensor")));
    // Only this form accepts a name that begins with a dash.
    let joint = if source.names().any(|name| name.starts_with('-')) { '=' } else { ' ' };
    error.remedy(format!("--tensor{joint}NAME, one of {}", some_names(source)))
}

/// The number of threads: as requested, or the number of cores.
fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(cores, Into::into)
}

/// Refuses `--hash` without a report to put hashes into.
fn check_hash(asked: &ReportArgs, args: &FileArgs) -> Result<(), Error> {
    if asked.hash && !args.json && asked.report.is_none() {
        return Err(Error::usage("--hash is for a report").remedy("add --json or --report FILE"));
    }
    Ok(())
}

/// Prints a result on standard output; it is no failure if the reader is gone.
fn print(text: &str) -> Result<(), Error> {
    printed(writeln!(anstream::stdout().lock(), "{text}"))
}

/// Prints a JSON document like [`print()`].
fn print_json(document: &impl Serialize) -> Result<(), Error> {
    let mut output = BufWriter::new(anstream::stdout().lock());
    printed(write_json(&mut output, document).and_then(|()| writeln!(output)).and_then(|()| output.flush()))
}

fn printed(result: std::io::Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write to standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Makes the signals that end a process first remove what is half written, and exit with code 130: SIGINT and SIGTERM,
/// and, unless they are ignored, SIGQUIT, SIGUSR1, SIGUSR2, timers, the limit of computing time, and SIGHUP when a
/// terminal closes. A SIGBUS, caused by an input that was cut short, becomes an ordinary error. A file beyond the size
/// limit is then a write error, not a SIGXFSZ.
///
/// # Errors
/// When the system cannot create a thread for it.
pub fn remove_temporaries_on_interrupt() -> Result<(), Error> {
    #[cfg(unix)]
    {
        use crate::io::map;
        use observer::describe;
        use signal_hook::consts::{
            SIGALRM, SIGBUS, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
        };
        let failed = |error: std::io::Error| Error::io("cannot listen to signals", &error);
        map::note_faults().map_err(failed)?;
        signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default()).map_err(failed)?;
        let others = [SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGHUP];
        let ignored = ignored_signals();
        // nohup ignores SIGHUP. Only Linux reveals that without unsafe code; elsewhere this signal is left alone.
        let is_heeded = |signal: &i32| ignored.map_or(*signal != SIGHUP, |mask| mask >> (signal - 1) & 1 == 0);
        let heeded = [SIGINT, SIGTERM, SIGXCPU, SIGBUS].into_iter().chain(others.into_iter().filter(is_heeded));
        let mut signals = signal_hook::iterator::Signals::new(heeded).map_err(failed)?;
        let listen = move || {
            for signal in signals.forever() {
                let Some(interrupt) = temporaries::remove_temporaries() else { continue };
                if signal == SIGBUS {
                    tell_error(&map::fault());
                    if let Some(kept) = &interrupt.kept {
                        tell(&format!("tcast: {}", describe(kept)));
                    }
                    std::process::exit(CUT_SHORT.load(Ordering::Relaxed).into());
                }
                let kept = interrupt.kept.as_ref().map_or("no output was written".to_owned(), describe);
                let line_end = if std::io::stderr().is_terminal() { "\n" } else { "" }; // behind the terminal's own ^C
                tell(&format!("{line_end}tcast: interrupted, {kept}"));
                std::process::exit(130);
            }
        };
        std::thread::Builder::new().spawn(listen).map_err(failed)?;
    }
    Ok(())
}

/// The signals that the process ignores from its start, as a mask; `None` if the system does not say.
#[cfg(unix)]
fn ignored_signals() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}
