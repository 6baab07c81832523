//! The subcommands, and what they share: messages, exit codes, interrupts.
#![allow(clippy::exit, reason = "an interrupt ends the process from a thread of its own")]

mod cast;

use crate::cli::{Cli, Command};
use crate::error::{Error, visible};
use crate::io::output;
use anstyle::{AnsiColor, Style};
use std::io::Write;
use std::process::ExitCode;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const REMEDY: Style = AnsiColor::Cyan.on_default();

/// Runs the command and tells what went wrong, if anything did.
#[must_use]
pub fn run(cli: &Cli) -> ExitCode {
    let result = match &cli.command {
        Command::Cast(args) => cast::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("tcast: {ERROR}error:{ERROR:#} {error}"));
            if let Some(remedy) = error.remedy_text() {
                tell(&format!("  {REMEDY}{}{REMEDY:#}", visible(remedy)));
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints help and version on standard output, and a mistake in the arguments in the program's own style.
#[must_use]
pub fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && error.kind() != clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        tell(format!("tcast: {}", error.render().ansi()).trim_end());
    } else {
        let _ = error.print(); // a closed pipe is no failure
    }
    ExitCode::from(error.exit_code() as u8)
}

fn warn(message: &str) {
    tell(&format!("tcast: {WARNING}warning:{WARNING:#} {}", visible(message)));
}

/// Prints a message on standard error; that nobody can read it is no failure.
fn tell(message: &str) {
    let _ = writeln!(anstream::stderr(), "{message}");
}

/// Prints a result on standard output; a reader that has gone away is no failure.
fn print(text: &str) -> Result<(), Error> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write to standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Makes SIGINT and SIGTERM remove what is half written and end the process with exit code 130.
pub fn remove_temporaries_on_interrupt() {
    #[cfg(unix)]
    if let Ok(mut signals) =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])
    {
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                output::remove_temporaries();
                tell("\ntcast: interrupted, no output was written");
                std::process::exit(130);
            }
        });
    }
}
