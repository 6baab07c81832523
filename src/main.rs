//! The `tcast` program: parse, run, exit code.

use std::process::ExitCode;
use tcast::cli::{self, Cli};
use tcast::commands;

fn main() -> ExitCode {
    if let Some(shell) = std::env::var_os(commands::COMPLETE) {
        return commands::complete(&shell);
    }
    let arguments = cli::join_saturate(std::env::args_os());
    commands::choose_color(cli::color(&arguments));
    match Cli::parsed(&arguments).and_then(Cli::checked) {
        Ok(cli) => {
            if let Err(error) = commands::remove_temporaries_on_interrupt() {
                return commands::fail(&error.into());
            }
            let code = commands::run(&cli.with_inputs_expanded()).unwrap_or_else(|error| commands::fail(&error));
            commands::end_interrupts();
            code
        }
        Err(error) => commands::usage(error, &arguments),
    }
}
