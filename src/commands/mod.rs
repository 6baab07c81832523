//! The subcommands, and their shared code. `messages` prints, `remedies` turns errors into commands to paste and exit
//! codes, `usage` reports usage errors with the corrections of `correct`, and `interrupts` handles signals.

mod arguments;
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
mod notes;
mod observer;
mod omitted;
mod promote;
mod quantize;
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
pub use remedies::{alternative, exit_code, remedy};
pub use usage::usage;

use messages::{print_error, print_failure};
use remedies::Trouble;

use crate::cli::{Cli, Command};
use crate::error::Error;
use crate::io::temporaries::Run;
use crate::kernel::Isa;
use crate::text::{path_text, shorten, visible};
use anyhow::Context;
use clap::ColorChoice;
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
