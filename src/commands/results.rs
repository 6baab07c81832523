//! Results of a conversion for its inputs, as text and as JSON.

use super::messages::{note, print, print_error, print_json, print_line, print_message};
use super::notes;
use super::report_file::ReportFile;
use crate::cli::FileArgs;
use crate::container::ReadOptions;
use crate::container::checkpoint::{self, CONFIG, Checkpoint};
use crate::convert::reported;
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result};
use crate::io::output::{self, is_standard_output};
use crate::job::{self, Job, Written};
use crate::plan::PlanFindings;
use crate::read::Model;
use crate::report::{Report, Surroundings, mapping, several, unconverted};
use crate::text::{command_line, path_text, quoted, size, stderr_columns, stdout_columns};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Returns the terminal of standard error, and the flags that a summary refers to.
pub(super) fn surroundings() -> Surroundings {
    Surroundings {
        columns: stderr_columns(),
        all_rows: "--dry-run",
        all_tensors: "--json",
        integers: "--all",
        smallest: "--min-elements",
    }
}

/// A job that has been planned, and how its results are shown.
pub(super) struct Shown<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) inputs: &'a [PathBuf],
    pub(super) file: &'a FileArgs,
    pub(super) findings: PlanFindings,
    /// Figures of the choice of schemes within a number of bits.
    pub(super) budget: Option<Value>,
}

impl Shown<'_> {
    fn report(&self, source: &Checkpoint, output: &Path, written: Written, begin: Instant) -> Report {
        let report = reported(self.job, &self.findings, (source, output), Some(written), begin);
        Report { budget: self.budget.clone(), ..report }
    }

    fn operator(&self) -> &'static str {
        self.job.operator().name()
    }

    fn print_message(&self, message: &str) {
        if !self.file.quiet {
            print_message(message);
        }
    }

    fn print_skipped(&self, output: &Path) {
        self.print_message(&format!("skipped: {} exists", path_text(output)));
    }
}

/// Reports that the output of the only input exists, and is kept.
pub(super) fn show_skipped(run: &Shown, source: &Checkpoint, output: &Path) -> Result<()> {
    run.print_skipped(output);
    if run.file.json {
        print_json(&unconverted(run.operator(), &source.path, output, None))?;
    }
    Ok(())
}

/// Reports on the only input. Fails if values in it are refused.
pub(super) fn show(
    run: &Shown,
    source: &Checkpoint,
    output: &Path,
    written: Written,
    begin: Instant,
    report_file: Option<ReportFile>,
    unscaled: Option<Dtype>,
) -> Result<()> {
    let (args, job) = (run.file, run.job);
    let Written { finished, all, was_complete, .. } = written;
    // Never dropped, like the inputs.
    let report = ManuallyDrop::new(run.report(source, output, written, begin));
    let refusal = report.refusal(&job.fail_on);
    if let Some(file) = report_file
        && let Err(error) = file.write_report(&report, source, job.task.from(), args)
    {
        if refusal.is_none() {
            return Err(error);
        }
        print_error(&error); // the refusal decides about the exit code
    }
    if args.json {
        print_json(&*report)?;
    } else if args.dry_run && !was_complete && refusal.is_none() {
        print(&report.table(stdout_columns()))?;
        if !report.adapters.is_empty() {
            print(mapping(&report.adapters).trim_end())?;
        }
    }
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    if args.quiet {
        return Ok(());
    }
    if was_complete {
        print_message(&already_complete(output));
        return Ok(());
    }
    print_message(&report.summary(surroundings()));
    if args.dry_run {
        print_space(output, report.space());
    }
    if let Some(to) = unscaled {
        note_unscaled(to, report.flushes_most(), run.inputs);
    }
    run.findings.notes.iter().for_each(notes::show);
    if run.findings.config.is_some() && !args.dry_run && job.partition.is_none() && !output.join(CONFIG).exists() {
        note_config(output, args);
    }
    if job.partition.is_some() && !args.dry_run {
        print_finish(job, output, finished, all);
    }
    Ok(())
}

/// Prints the note about a quantized model without a config.json, and the command that prints what it contains.
fn note_config(output: &Path, args: &FileArgs) {
    let is_clear = |found: Checkpoint| Model::open(&found).is_ok();
    let is_decodable = checkpoint::probe(output, &ReadOptions::on(1)).is_ok_and(is_clear);
    let readers = if is_decodable { "engines" } else { "engines and tcast dequantize" };
    let what = if output.is_dir() {
        format!("there is no config.json: {readers} need one, with the quantization_config")
    } else {
        format!("{readers} need the quantization_config in the config.json beside the file")
    };
    if args.json {
        return note(&what);
    }
    note(&format!("{what}. This command prints it, and writes nothing:"));
    let more = if args.force { &["--dry-run", "--json"][..] } else { &["--force", "--dry-run", "--json"] };
    let words = std::env::args_os().skip(1).chain(more.iter().map(OsString::from));
    print_line(&format!("  {}", command_line([OsString::from("tcast")].into_iter().chain(words))));
}

/// Prints the number of finished shards of a folder, and the command that completes it.
fn print_finish(job: &Job, output: &Path, finished: usize, all: usize) {
    let when = if finished == all { "next" } else { "when all are done" };
    print_line(&format!(
        "shards done: {finished} of {all}; {when}: tcast {} --finish {}",
        job.operator().name(),
        quoted(output)
    ));
}

/// Returns the message if there is nothing left to do.
pub(super) fn already_complete(path: &Path) -> String {
    format!("already complete: {}", path_text(path))
}

/// Prints a note about tools that can use weights without scales, and the command that writes scales.
fn note_unscaled(to: Dtype, flushes_most: bool, inputs: &[PathBuf]) {
    if !to.is_float8() {
        let scheme = match (to.class(), to.bits()) {
            (Class::Int { .. }, 9..) if !flushes_most => return, // they may be whole numbers
            (Class::Int { .. }, 5..) => "int8",
            (Class::Int { .. }, _) => "int4",
            (_, 6) => "mxfp6",
            _ => "nvfp4",
        };
        let most = if flushes_most { ", and most values became 0" } else { "" };
        let command = match inputs {
            [model] if model.is_dir() => format!("tcast quantize {} --scheme {scheme}", quoted(model)),
            _ => "tcast quantize".to_owned(),
        };
        return note(&format!("the {to} weights have no scales{most}. With scales: {command}"));
    }
    let more = match to {
        Dtype::Float8E4M3FN | Dtype::Float8E5M2 => "ComfyUI and other tools that read plain float8 load such a file. ",
        _ => "",
    };
    note(&format!(
        "the float8 weights have no scales. {more}vLLM and transformers need scales, which tcast quantize writes."
    ));
}

fn print_space(output: &Path, needed: u64) {
    if !is_standard_output(output)
        && let Some(available) = output::available(output.parent().unwrap_or(output))
    {
        print_message(&format!("{} of disk space are needed, {} are available", size(needed), size(available)));
    }
}

/// Results for several inputs so far.
#[derive(Default)]
pub(super) struct Several {
    documents: Vec<Value>,
    done: usize,
    /// Number of inputs that were already complete.
    complete: usize,
    skipped: usize,
    failures: Vec<Error>,
    /// True if a file gets the report too.
    has_report_file: bool,
    /// Type of weights in one of the inputs that become narrow without scales.
    unscaled: Option<Dtype>,
    /// True if most values of one of the outputs became zero.
    flushes_most: bool,
    bytes_in: u64,
    bytes_out: u64,
    /// Bytes that the outputs take on the disk while they are written.
    space: u64,
}

impl Several {
    pub(super) fn new(unscaled: Option<Dtype>, has_report_file: bool) -> Self {
        Self { has_report_file, unscaled, ..Self::default() }
    }

    pub(super) fn add(
        &mut self,
        run: &Shown,
        source: &Checkpoint,
        output: &Path,
        written: Result<Option<Written>>,
        begin: Instant,
    ) -> Result<()> {
        let operator = run.operator();
        match written {
            Ok(Some(written)) => {
                let Written { finished, all, was_complete, .. } = written;
                let report = run.report(source, output, written, begin);
                if let Some(refusal) = report.refusal(&run.job.fail_on) {
                    self.fail(refusal, json!(report));
                    return Ok(());
                }
                self.add_converted(run, &report, was_complete)?;
                if run.job.partition.is_some() && !was_complete && !run.file.dry_run && !run.file.quiet {
                    print_finish(run.job, output, finished, all);
                }
            }
            Ok(None) => {
                self.documents.push(unconverted(operator, &source.path, output, None));
                self.skipped += 1;
                run.print_skipped(output);
            }
            Err(error) => {
                let document = unconverted(operator, &source.path, output, Some(&error));
                self.fail(error, document);
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: Error, document: Value) {
        print_error(&error);
        self.documents.push(document);
        self.failures.push(error);
    }

    /// Reports on an input that was converted, possibly by an earlier run.
    fn add_converted(&mut self, run: &Shown, report: &Report, was_complete: bool) -> Result<()> {
        if run.file.json || self.has_report_file {
            self.documents.push(json!(report));
        }
        if was_complete {
            self.complete += 1;
            run.print_message(&already_complete(&report.output));
            return Ok(());
        }
        self.done += 1;
        self.flushes_most |= report.flushes_most();
        self.bytes_in += report.bytes_in;
        self.bytes_out += report.bytes_out();
        self.space += report.space();
        if run.file.dry_run && !run.file.json {
            print(&report.table(stdout_columns()))?;
        }
        run.print_message(&report.line(surroundings()));
        Ok(())
    }

    /// Reports on all inputs. Fails if one has failed.
    pub(super) fn finish(self, run: &Shown, start: Instant, report_file: Option<ReportFile>) -> Result<()> {
        let (args, operator) = (run.file, run.operator());
        let time = (!args.dry_run).then(|| start.elapsed());
        let document = several(operator, &self.documents, (self.bytes_in, self.bytes_out), time);
        let is_published = !args.dry_run && self.done > 0;
        let reported = report_file.map_or(Ok(()), |file| file.write_json(&document, !args.no_sync, is_published));
        if args.json {
            print_json(&document)?;
        }
        let failed = self.failures.len();
        if !args.quiet {
            let (before, after) = (size(self.bytes_in), size(self.bytes_out));
            let would = if args.dry_run { "would " } else { "" };
            let mut text =
                format!("{would}{operator} {} of {} inputs, {before} -> {after}", self.done, run.inputs.len());
            if let Some(time) = time {
                let _ = write!(text, " in {:.2} s", time.as_secs_f64());
            }
            if self.complete > 0 {
                let _ = write!(text, ", {} already complete", self.complete);
            }
            if self.skipped > 0 {
                let _ = write!(text, ", {} skipped", self.skipped);
            }
            print_message(&text);
            if let (true, Some(output)) = (args.dry_run, &args.output) {
                print_space(output, self.space);
            }
            if let Some(to) = self.unscaled.filter(|_| self.done > 0) {
                note_unscaled(to, self.flushes_most, run.inputs);
            }
        }
        if failed == 0 {
            return reported;
        }
        if let Err(error) = reported {
            print_error(&error); // the failures decide about the exit code
        }
        Err(job::summed_up(format!("{failed} of {} inputs failed", run.inputs.len()), self.failures))
    }
}
