//! Shared code of all commands that convert: makes a job from the arguments, and a report from the results.

use super::observer::Console;
use super::report_file::ReportFile;
use super::results::{Several, Task, show, show_skipped};
use super::{check_matched, check_standard_output, threads};
use crate::cli::{FileArgs, ReportArgs, SelectionArgs, ShardArgs};
use crate::container;
use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::job::{self, IfExists, Job, JobInput, Measures, Prepared, Recoding};
use crate::operator::Operator;
use crate::plan::ModelOptions;
use crate::select::Selection;
use crate::text::quoted;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Returns the job for the arguments that all conversions share; `report` is the file for the report, if any.
pub(super) fn job<'a>(
    operator: Operator,
    to: Option<Dtype>,
    (file, report): (&'a FileArgs, Option<&Path>),
    options: Value,
) -> Job<'a> {
    Job {
        output: file.output.as_deref(),
        to,
        existing: match (file.force, file.skip_existing) {
            (true, _) => IfExists::Replace,
            (false, true) => IfExists::Skip,
            (false, false) => IfExists::Refuse,
        },
        dry_run: file.dry_run,
        sync: !file.no_sync,
        shows_tensors: !file.quiet || file.json || file.dry_run || report.is_some(),
        threads: threads(file.threads),
        options,
        ..Job::new(operator)
    }
}

/// Returns the job for the arguments of commands that also write folders of shards and reports.
pub(super) fn job_of_shards<'a>(
    operator: Operator,
    to: Option<Dtype>,
    (file, shards, reports): (&'a FileArgs, &ShardArgs, &ReportArgs),
    options: Value,
) -> Job<'a> {
    Job {
        max_shard_size: shards.max_bytes(),
        partition: shards.part,
        resume: shards.resume,
        measures: Measures { accuracy: false, hash: reports.hash },
        ..job(operator, to, (file, reports.report.as_deref()), options)
    }
}

/// Plans, runs and reports. All inputs are planned before the first is written; if one fails after that, the others are
/// still converted. With `allow_unmatched`, patterns may match nothing.
pub(super) fn convert(task: &Task, allow_unmatched: bool) -> Result<()> {
    let (job, args, start) = (&task.job, task.file, Instant::now());
    let console = Console { is_quiet: args.quiet };
    let open = |error, input: &Path| may_be_output(error, task, input);
    // Never dropped: the process ends soon, and the system takes back memory faster than tensor by tensor.
    let sources = ManuallyDrop::new(job::open(task.inputs, job.publish, job.threads, &console, open)?);
    // Without patterns, the names are not needed, and there may be a million of them.
    let has_patterns = task.selection.has_patterns();
    let names: Vec<&str> = sources.iter().filter(|_| has_patterns).flat_map(Checkpoint::names).collect();
    let matched = check_matched(&task.selection, &names, allow_unmatched, args.quiet);
    let is_several = sources.len() > 1;
    matched.map_err(|error| if is_several { error } else { error.in_file(&task.inputs[0]) })?;
    let input = |source| {
        let recoding = Recoding::rename(source, &task.selection.renames)?;
        Ok(JobInput { source, selection: &task.selection, from: args.from, recoding })
    };
    let inputs = sources.iter().map(input).collect::<Result<_>>()?;
    write(task, prepare(task, inputs)?, start)
}

/// Plans, runs and reports on an input whose weights are decoded or quantized.
pub(super) fn write_recoded<'a>(
    task: &Task,
    source: &'a Checkpoint,
    recoding: Recoding<'a>,
    start: Instant,
) -> Result<()> {
    let input = JobInput { source, selection: &task.selection, from: None, recoding: Some(recoding) };
    write(task, prepare(task, vec![input])?, start)
}

fn prepare<'a>(task: &Task, inputs: Vec<JobInput<'a, '_>>) -> Result<Prepared<'a>> {
    let (job, args) = (&task.job, task.file);
    check_model_options(&job.model, &inputs)?;
    if let (Some(output), [_]) = (job.output, &inputs[..]) {
        check_standard_output(output, args.json && !args.dry_run)?;
    }
    job::prepare(job, inputs, &Console { is_quiet: args.quiet })
}

/// Refuses options for ONNX models if no input is one.
fn check_model_options(given: &ModelOptions, inputs: &[JobInput]) -> Result<()> {
    match given.first_given() {
        Some(option) if !inputs.iter().any(|input| input.source.is_model()) => {
            Err(Error::usage("no input is an ONNX model: an option has no effect").without(option))
        }
        _ => Ok(()),
    }
}

/// Runs a prepared conversion, and reports on it.
fn write(task: &Task, mut prepared: Prepared, start: Instant) -> Result<()> {
    let (job, args) = (&task.job, task.file);
    let console = Console { is_quiet: args.quiet };
    let is_several = prepared.outputs().nth(1).is_some();
    let report_file = task.report.filter(|_| prepared.has_work()).map(|path| {
        // `--resume` replaces it, and so does a part that was done before. A report of another part stays.
        let replace = args.force || job.resume || job.partition.is_some() && prepared.is_done();
        let outputs: Vec<PathBuf> = prepared.outputs().map(Path::to_owned).collect();
        ReportFile::new(path, (replace, job.partition.is_some()), &outputs, &mut prepared.files)
    });
    let mut report_file = report_file.transpose()?;
    let unscaled = if args.quiet { None } else { prepared.unscaled(job) };
    if !is_several {
        return prepared.run(job, &console, |source, output, written| {
            let Some(written) = written? else { return show_skipped(task, source, output) };
            show(task, (source, output, written), start, report_file.take(), unscaled)
        });
    }
    let mut several = Several::new(unscaled);
    let mut begin = start;
    prepared.run(job, &console, |source, output, written| {
        let done = several.add(task, (source, output, written), begin);
        begin = Instant::now();
        done
    })?;
    several.finish(task, start, report_file)
}

/// Adds a remedy to the error for a missing input that may be meant as the output.
fn may_be_output(error: Error, task: &Task, input: &Path) -> Error {
    let is_last = task.inputs.len() > 1 && task.inputs.last().is_some_and(|last| last == input);
    let is_folder = || task.inputs[0].is_dir() && input.extension().is_none();
    let is_meant = is_last && task.file.output.is_none() && (container::by_extension(input).is_some() || is_folder());
    if is_meant && !input.exists() {
        return error.remedy(format!("-o {}, if it is the output", quoted(input)));
    }
    error
}

/// Returns the selection of tensors, according to the arguments.
pub(super) fn selection(to: Option<Dtype>, args: &SelectionArgs) -> Selection {
    let SelectionArgs { include, exclude, rule, rename, .. } = args;
    Selection {
        to,
        include: include.clone(),
        exclude: exclude.clone(),
        rules: rule.clone(),
        renames: rename.clone(),
        ..Selection::default()
    }
}

/// Returns everything that influences the bytes of the outputs: for the report, and for later runs that continue.
/// `more` are the options of the subcommand.
pub(super) fn options(to: Option<Dtype>, file: &FileArgs, selection: &Selection, more: Value) -> Value {
    let Selection { include, exclude, rules, renames, .. } = selection;
    let mut options = json!({
        "to": to.map(Dtype::name),
        "from": file.from.map(Dtype::name),
        "include": texts(include),
        "exclude": texts(exclude),
        "rules": texts(rules),
        "renames": texts(renames),
    });
    if let (Some(options), Value::Object(more)) = (options.as_object_mut(), more) {
        options.extend(more);
    }
    options
}

/// Returns the word for a value on the command line.
pub(super) fn value_name<T: ValueEnum>(value: &T) -> String {
    let value = value.to_possible_value().expect("it was on the command line, or is a default");
    value.get_name().to_owned()
}

pub(super) fn value_names<T: ValueEnum>(values: &[T]) -> Vec<String> {
    values.iter().map(value_name).collect()
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}
