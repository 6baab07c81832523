//! `--finish`: completes a folder and reports on it.

use super::arguments::threads;
use super::messages::{print_json, print_message};
use super::results::{already_complete, surroundings};
use crate::cli::FileArgs;
use crate::error::Result;
use crate::job::{self, Finished};
use crate::report::Report;
use std::path::Path;
use std::time::Instant;

/// Completes a folder that parts were written into, and reports on all of them. `command` is the subcommand's name.
pub(super) fn run(command: &str, path: &Path, args: &FileArgs) -> Result<()> {
    let start = Instant::now();
    let finished = job::finish(path, !args.no_sync, threads(args.threads))?;
    let empty = Report { time: Some(start.elapsed()), ..Report::empty(command, path, path) };
    let report = match &finished {
        &Finished::Already { bytes, shards } => Report { bytes_in: bytes, before: shards, ..empty },
        Finished::Now { operator, options, input, bytes_in, files } => Report {
            options: options.clone(),
            bytes_in: *bytes_in,
            files: files.clone(),
            before: files.len(),
            is_published: true,
            time: empty.time,
            ..Report::empty(operator, input, path)
        },
    };
    if args.json {
        print_json(&report)?;
    }
    if !args.quiet {
        let what = "is a complete checkpoint, without an unfinished conversion";
        // The folder does not show whether it was put together from parts.
        print_message(&if report.is_published {
            report.summary(surroundings())
        } else {
            format!("{} {what}", already_complete(path))
        });
    }
    Ok(())
}
