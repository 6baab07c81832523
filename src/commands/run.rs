//! Shared code of all commands that convert: makes a job from the arguments, and runs it.

use super::arguments::{check_matched, check_printing, check_standard_output};
use super::messages::note;
use super::observer::Console;
use super::report_file::ReportFile;
use super::results::{Several, Shown, show, show_skipped};
use crate::cli::{FileArgs, ReportArgs, ShardArgs};
use crate::container;
use crate::container::checkpoint::{Checkpoint, Naming};
use crate::convert::Settings;
use crate::error::{Advice, Error, Opt, Result};
use crate::io::identity::Files;
use crate::job::{self, IfExists, Job, Measures, PlannedOutput};
use crate::options::{ModelOptions, Task};
use crate::progress::Observer;
use crate::read::Model;
use crate::select::Selection;
use serde_json::Value;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Returns the settings for the arguments that all conversions share.
pub(super) fn settings(file: &FileArgs) -> Settings<'static> {
    let existing = match (file.force, file.skip_existing) {
        (true, _) => IfExists::Replace,
        (false, true) => IfExists::Skip,
        (false, false) => IfExists::Refuse,
    };
    let threads = file.threads.and_then(|threads| NonZeroUsize::new(threads.into()));
    Settings { existing, sync: !file.no_sync, threads, ..Settings::default() }
}

/// Returns the job for the arguments that all conversions share.
pub(super) fn job<'a>(task: Task<'a>, file: &'a FileArgs) -> Job<'a> {
    let shows_tensors = !file.quiet || file.json || file.dry_run;
    Job { dry_run: file.dry_run, shows_tensors, ..settings(file).job(task, file.output.as_deref()) }
}

/// Returns the job for the arguments of commands that also write folders of shards and reports.
pub(super) fn job_of_shards<'a>(
    task: Task<'a>,
    file: &'a FileArgs,
    shards: &ShardArgs,
    reports: &ReportArgs,
) -> Job<'a> {
    let job = job(task, file);
    let accuracy = matches!(task, Task::Cast(options) if options.stats || reports.report.is_some());
    Job {
        partition: shards.part,
        resume: shards.resume,
        measures: Measures { accuracy, hash: reports.hash },
        shows_tensors: job.shows_tensors || reports.report.is_some(),
        ..job
    }
}

/// Opens inputs, and refuses patterns that match no tensor.
pub(super) fn open(
    inputs: &[PathBuf],
    job: &Job,
    file: &FileArgs,
    selection: &Selection,
) -> Result<ManuallyDrop<Vec<Checkpoint>>> {
    let console = Console { is_quiet: file.quiet };
    let explain = |error, input: &Path| may_be_output(error, inputs, file, input);
    // Never dropped: the process ends soon, and the system takes back memory faster than tensor by tensor.
    let sources = ManuallyDrop::new(job::open(inputs, job.task, (job.publish, job.threads), &console, explain)?);
    // Without patterns, the names are not needed, and there may be a million of them.
    let has_patterns = selection.has_patterns();
    let names: Vec<&str> = sources.iter().filter(|_| has_patterns).flat_map(Checkpoint::all_names).collect();
    let is_allowed = job.task.tensors().allow_unmatched;
    check_matched(selection, &names, is_allowed, file.quiet).map_err(|error| match inputs {
        [input] => error.in_file(input),
        _ => error,
    })?;
    Ok(sources)
}

/// A conversion to run: a job for some inputs, and the arguments that say how its results are shown.
pub(super) struct JobRequest<'r, 'a> {
    pub(super) job: &'r Job<'r>,
    pub(super) models: &'r [Model<'a>],
    /// The paths of the inputs, as they were given.
    pub(super) paths: &'r [PathBuf],
    pub(super) file: &'r FileArgs,
    pub(super) report: Option<&'r Path>,
    /// Figures of the choice of schemes within a number of bits.
    pub(super) budget: Option<Value>,
}

/// Plans, runs and reports. All inputs are planned before the first is written; if one fails after that, the others are
/// still converted. `check` checks the plans.
pub(super) fn convert(
    JobRequest { job, models, paths, file, report, budget }: JobRequest,
    observer: &dyn Observer,
    start: Instant,
    check: impl FnOnce(&[PlannedOutput]) -> Result<()>,
) -> Result<()> {
    let sources: Vec<&Checkpoint> = models.iter().map(|model| model.source).collect();
    check_has_model(&job.task.model_options(), &sources)?;
    if file.json || file.dry_run {
        check_printing(sources.iter().copied())?;
    }
    if let (Some(output), [_]) = (job.output, &sources[..]) {
        check_standard_output(output, file.json && !file.dry_run)?;
    }
    let mut files = Files::default();
    let mut outputs = job::prepare(job, models, &mut files, observer)?;
    check(&outputs)?;
    let lacks_config = |source: &Checkpoint| source.naming == Naming::HuggingFace && source.base.is_none();
    if !file.quiet && outputs.iter().any(|output| output.is_folder() && lacks_config(output.source)) {
        note("the output has no config.json: --config FOLDER takes it from the original model");
    }
    let report_file = report.filter(|_| outputs.iter().any(PlannedOutput::has_work)).map(|path| {
        // `--resume` replaces it, and so does a part that was done before. A report of another part stays.
        let replace = file.force || job.resume || job.partition.is_some() && outputs.iter().all(PlannedOutput::is_done);
        let paths: Vec<PathBuf> = outputs.iter().map(|output| output.path.clone()).collect();
        ReportFile::new(path, replace, job.partition.is_some(), &paths, &mut files)
    });
    let mut report_file = report_file.transpose()?;
    let unscaled = if file.quiet { None } else { outputs.iter().find_map(|output| output.unscaled(job)) };
    let findings = outputs.last_mut().map(|output| std::mem::take(&mut output.findings)).unwrap_or_default();
    let run = &Shown { job, inputs: paths, file, findings, budget };
    if sources.len() == 1 {
        return job::write(job, outputs, observer, |source, output, written| {
            let Some(written) = written? else { return show_skipped(run, source, output) };
            show(run, source, output, written, start, report_file.take(), unscaled)
        });
    }
    let mut several = Several::new(unscaled, report.is_some());
    let mut begin = start;
    job::write(job, outputs, observer, |source, output, written| {
        let done = several.add(run, source, output, written, begin);
        begin = Instant::now();
        done
    })?;
    several.finish(run, start, report_file)
}

/// Refuses options for ONNX models if no input is one.
fn check_has_model(given: &ModelOptions, sources: &[&Checkpoint]) -> Result<()> {
    match given.first_given() {
        Some(option) if !sources.iter().any(|source| source.is_onnx_model()) => {
            Err(Error::usage("no input is an ONNX model: an option has no effect").without(option))
        }
        _ => Ok(()),
    }
}

/// Adds a remedy to the error for a missing input that may be meant as the output.
fn may_be_output(error: Error, inputs: &[PathBuf], file: &FileArgs, input: &Path) -> Error {
    let is_last = inputs.len() > 1 && inputs.last().is_some_and(|last| last == input);
    let is_folder = || inputs[0].is_dir() && input.extension().is_none();
    let is_meant = is_last && file.output.is_none() && (container::by_extension(input).is_some() || is_folder());
    if is_meant && !input.exists() {
        let options = vec![(Opt::OUTPUT, input.into())];
        let meant = Advice::With { options, say: "{}, if it is the output".into() };
        let advice: Vec<Advice> = [meant].into_iter().chain(error.advice().iter().cloned()).collect();
        return error.advised(advice);
    }
    error
}
