//! Output of a command: messages on standard error, and results on standard output.

use super::remedies::{alternative, remedy};
use crate::error::Error;
use crate::text::{stderr_columns, stdout_columns, visible, wrapped, write_json};
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::io::{BufWriter, Write};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const REMEDY: Style = AnsiColor::Cyan.on_default();

/// Prints a message on standard error, and ignores errors. In a terminal, its lines end at words.
pub(super) fn print_message(message: &str) {
    print_line(&wrapped(message, stderr_columns()));
}

/// Prints a line like [`print_message`], but without line breaks: a command with a line break could not be pasted.
pub(super) fn print_line(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

fn print_labelled(style: Style, label: &str, message: &str) {
    let message = wrapped(&format!("tcast: {label} {message}"), stderr_columns());
    print_line(&message.replacen(label, &format!("{style}{label}{style:#}"), 1));
}

pub(super) fn print_error(error: &Error) {
    print_failure(&error.to_string());
    error.details().iter().for_each(|detail| print_message(&format!("  {}", visible(detail))));
    if let Some(remedy) = remedy(error) {
        print_remedy(&remedy);
    }
    if let Some(alternative) = alternative(error) {
        print_alternative(&alternative);
    }
}

pub(super) fn print_remedy(text: &str) {
    print_line(&format!("  {REMEDY}{}{REMEDY:#}", visible(text)));
}

/// Prints an alternative to a remedy.
pub(super) fn print_alternative(text: &str) {
    print_line(&format!("  {}", visible(text)));
}

/// Prints the message of an error.
pub(super) fn print_failure(message: &str) {
    print_labelled(ERROR, "error:", message);
}

pub(super) fn warn(message: &str) {
    print_labelled(WARNING, "warning:", &visible(message));
}

pub(super) fn note(message: &str) {
    print_labelled(REMEDY, "note:", &visible(message));
}

/// Prints a result on standard output. A reader that has closed the pipe is not an error. In a terminal, lines end at words.
pub(super) fn print(text: &str) -> Result<(), Error> {
    printed(writeln!(anstream::stdout().lock(), "{}", wrapped(text, stdout_columns())))
}

/// Prints a result like [`print()`], but without line breaks: a command with a line break could not be pasted.
pub(super) fn print_result(line: &str) -> Result<(), Error> {
    printed(writeln!(anstream::stdout().lock(), "{line}"))
}

/// Prints a JSON document like [`print()`].
pub(super) fn print_json(document: &impl Serialize) -> Result<(), Error> {
    let mut output = BufWriter::new(anstream::stdout().lock());
    printed(write_json(&mut output, document).and_then(|()| writeln!(output)).and_then(|()| output.flush()))
}

/// Fails if a result could not be printed. A reader that has closed the pipe is not an error.
pub(super) fn printed(result: std::io::Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write to standard output", &error))
        }
        _ => Ok(()),
    }
}
