//! The `tcast` program: parse, run, exit code.

use clap::Parser;
use std::process::ExitCode;
use tcast::{cli::Cli, commands};

fn main() -> ExitCode {
    if let Some(shell) = std::env::var_os(commands::COMPLETE) {
        return commands::complete(&shell);
    }
    if let Err(error) = commands::remove_temporaries_on_interrupt() {
        return commands::fail(&error);
    }
    match Cli::try_parse() {
        Ok(cli) => commands::run(&cli),
        Err(error) => commands::usage(error),
    }
}
