//! `--finish`: completes a folder and reports on it.

use super::results::already_complete;
use super::{print_json, tell, threads};
use crate::cli::FileArgs;
use crate::error::Result;
use crate::job::{self, Finished};
use crate::report::Report;
use serde_json::{Map, Value};
use std::path::Path;
use std::time::Instant;

/// Completes a folder that parts were written into, and reports on all of them. `command` is the subcommand's name.
pub(super) fn run(command: &str, path: &Path, args: &FileArgs) -> Result<()> {
    let start = Instant::now();
    let finished = job::finish(path, !args.no_sync, threads(args.threads))?;
    let time = Some(start.elapsed());
    let (is_published, report) = match &finished {
        &Finished::Already { bytes, shards } => {
            let (files, options) = (Vec::new(), Value::Object(Map::new()));
            let (operator, bytes_in, before, is_published) = (command, bytes, shards, false);
            (
                false,
                Report {
                    operator,
                    input: path,
                    output: path,
                    options,
                    config: None,
                    bytes_in,
                    files,
                    before,
                    time,
                    is_published,
                },
            )
        }
        Finished::Now { operator, options, input, bytes_in, files } => {
            let (options, bytes_in, files, before) = (options.clone(), *bytes_in, files.clone(), files.len());
            (
                true,
                Report {
                    operator,
                    input,
                    output: path,
                    options,
                    config: None,
                    bytes_in,
                    files,
                    before,
                    time,
                    is_published: true,
                },
            )
        }
    };
    if args.json {
        print_json(&report)?;
    }
    if !args.quiet {
        let what = "is a whole checkpoint, and no unfinished conversion is in it";
        // Nothing shows whether there were parts that were put together.
        tell(&if is_published { report.summary() } else { format!("{} {what}", already_complete(path)) });
    }
    Ok(())
}
