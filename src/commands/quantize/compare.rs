//! `tcast quantize --compare`: measures several schemes, and writes nothing.

use super::super::arguments::{first_given, no_effect};
use super::super::messages::{print, print_json, print_message};
use super::super::observer::Console;
use super::super::report_file::ReportFile;
use super::super::run::job_of_shards;
use super::checks::{check_gguf, check_has_codes, check_model};
use crate::cli::QuantizeArgs;
use crate::convert::measure;
use crate::error::{Error, Opt, Result};
use crate::io::identity::Files;
use crate::options::{QuantizeOptions, Task};
use crate::read::Model;
use crate::report::{SchemeComparison, comparison_page};
use crate::text::stdout_columns;
use std::time::Instant;

/// Refuses options about an output, because there is none.
pub(super) fn check(args: &QuantizeArgs) -> Result<()> {
    let QuantizeArgs { options, file, shards, reports, .. } = args;
    let of_output = [
        ("-o", file.output.is_some()),
        ("--force", file.force),
        ("--skip-existing", file.skip_existing),
        ("--dry-run", file.dry_run),
        ("--no-sync", file.no_sync && reports.report.is_none()),
        ("--resume", shards.resume),
        ("--part", shards.part.is_some()),
        ("--max-shard-size", options.shards.max_shard_size.is_some()),
        ("--hash", reports.hash),
        ("--fail-on", !options.fail_on.is_empty()),
        ("--min-sqnr", options.min_sqnr.is_some()),
        ("--only-exact", options.only_exact),
    ];
    let is_comparison = !args.compare.is_empty();
    if let Some(option) = first_given(of_output).filter(|_| is_comparison) {
        return Err(no_effect(option, "--compare writes no model"));
    }
    if is_comparison && options.recover {
        return Err(no_effect("--recover", "--compare measures the errors of new codes and scales"));
    }
    args.compare.iter().try_for_each(|scheme| check_has_codes("--compare", scheme))
}

/// Measures the schemes and prints the results.
pub(super) fn run(args: &QuantizeArgs, model: &Model, start: Instant) -> Result<()> {
    let all = args.options_of_candidates();
    for options in &all {
        check_gguf(options, args.model.as_deref())?;
        check_model(options, model, &options.schemes().collect::<Vec<_>>())?;
    }
    check_used(&args.options, &all)?;
    let report_file = args.reports.report.as_deref();
    let mut files = Files::default();
    files.read(model.source.files()?);
    let report_file =
        report_file.map(|path| ReportFile::new(path, args.file.force, false, &[], &mut files)).transpose()?;
    let job = job_of_shards(Task::Quantize(&args.options), &args.file, &args.shards, &args.reports);
    let schemes = measure(model, &all, &job, &Console { is_quiet: args.file.quiet })?;
    let comparison = SchemeComparison { input: model.source.path.clone(), time: start.elapsed(), schemes };
    if let Some(file) = report_file {
        file.write(!args.file.no_sync, false, || Ok(comparison_page(&comparison)), || &comparison)?;
    }
    if args.file.json {
        print_json(&comparison)?;
    } else {
        print(&comparison.table(stdout_columns()))?;
    }
    if !args.file.quiet {
        print_message(&comparison.summary());
    }
    Ok(())
}

/// Refuses options for GGUF files if no scheme is stored in one, and options for grids if all are.
fn check_used(options: &QuantizeOptions, all: &[QuantizeOptions]) -> Result<()> {
    let of_gguf = options.imatrix.is_some().then_some(Opt::IMATRIX).or(options.gguf.first_given());
    match of_gguf.filter(|_| !all.iter().any(QuantizeOptions::is_gguf)) {
        Some(option) => {
            let error = Error::usage("no scheme is stored in a GGUF file: an option has no effect");
            Err(error.without(option))
        }
        None if all.iter().all(QuantizeOptions::is_gguf) => {
            check_gguf(&QuantizeOptions { scheme: all[0].scheme, ..options.clone() }, None)
        }
        None => Ok(()),
    }
}
