//! The description of a job.

use super::fail_on::FailOn;
use crate::container::{Container, GGUF, by_extension};
use crate::engine::{Detail, RunOptions};
use crate::operator::Operator;
use crate::options::Task;
use crate::plan::Partition;
use crate::progress::{Cancel, Never, Progress};
use std::path::Path;

/// A task for some inputs.
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(crate) struct Job<'a> {
    pub(crate) task: Task<'a>,
    /// Path of the outputs; if `None`, they are written next to their inputs.
    pub(crate) output: Option<&'a Path>,
    /// The word in the names of outputs that are written next to their inputs, instead of the task's.
    pub(crate) label: Option<&'a str>,
    pub(crate) existing: IfExists,
    pub(crate) publish: Publish,
    /// Write nothing.
    pub(crate) dry_run: bool,
    /// Flush each output to the disk before it takes its name.
    pub(crate) sync: bool,
    pub(crate) threads: usize,
    /// The share of the shards to write in this run.
    pub(crate) partition: Option<Partition>,
    /// Continue an interrupted run.
    pub(crate) resume: bool,
    /// The changes to values that make the job fail.
    pub(crate) fail_on: FailOn,
    pub(crate) measures: Measures,
    /// True if the caller uses the result of each tensor of a file; otherwise the report need not list the tensors.
    pub(crate) shows_tensors: bool,
    /// Source of cancellation.
    pub(crate) cancel: &'a dyn Cancel,
}

impl<'a> Job<'a> {
    /// Returns a job that writes its outputs next to the inputs, and replaces nothing.
    pub(crate) fn new(task: Task<'a>, threads: usize) -> Self {
        Self {
            task,
            output: None,
            label: None,
            existing: IfExists::Refuse,
            publish: Publish::Each,
            dry_run: false,
            sync: true,
            threads,
            partition: None,
            resume: false,
            fail_on: FailOn::of(task),
            measures: Measures::default(),
            shows_tensors: true,
            cancel: &Never,
        }
    }

    pub(crate) fn operator(&self) -> Operator {
        self.task.operator()
    }

    /// Returns the format of the outputs, if the task asks for one.
    pub(crate) fn format(&self) -> Option<&'static dyn Container> {
        let is_gguf = match self.task {
            Task::Cast(_) => self.output.and_then(by_extension).is_some_and(|format| format.is(GGUF)),
            Task::Quantize(options) => options.is_gguf(),
            Task::BitCast(_) | Task::Promote(_) | Task::Dequantize(_) => false,
        };
        is_gguf.then_some(GGUF)
    }

    /// True if the user named this output, so that its extension determines the format.
    pub(super) fn names(&self, output: &Path) -> bool {
        self.output == Some(output)
    }

    /// True if the report depends on results, which a dry run therefore computes too.
    pub(super) fn reports_results(&self) -> bool {
        self.measures.accuracy || !self.fail_on.is_empty()
    }

    /// True if the report of a file needs to list its tensors.
    pub(super) fn lists_tensors(&self) -> bool {
        self.shows_tensors || self.measures.hash || !self.fail_on.is_empty()
    }

    /// Returns how the job runs a plan whose report lists its tensors or not.
    pub(super) fn run_options<'r>(&'r self, is_listed: bool, progress: &'r dyn Progress) -> RunOptions<'r> {
        let detail = match self.measures.accuracy {
            _ if !is_listed => Detail::Nothing,
            true => Detail::Accuracy,
            false => Detail::Counts,
        };
        RunOptions { threads: self.threads, detail, progress, cancel: self.cancel }
    }
}

/// Action if an output already exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    /// Refuse to write it.
    Refuse,
    /// Replace it.
    Replace,
    /// Leave it as it is.
    Skip,
}

/// Time at which outputs take their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Each as soon as it is complete. If an input fails, the others are still converted.
    Each,
    /// All at once when all are complete, because they belong together. The first error ends the job.
    Together,
}

/// Measurements in addition to the counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measures {
    /// The errors of the results compared with their sources.
    pub(crate) accuracy: bool,
    /// The SHA-256 of sources and results.
    pub(crate) hash: bool,
}
