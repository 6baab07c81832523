//! The description of a job.

use super::fail_on::FailOn;
use crate::container::Container;
use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::engine::{Detail, RunOptions};
use crate::operator::Operator;
use crate::options::{ModelOptions, RecordedOptions};
use crate::plan::{Decisions, Partition};
use crate::progress::{Cancel, Never, Progress};
use crate::select::Selection;
use std::path::Path;

/// A conversion of some inputs.
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Job<'a> {
    pub(crate) operator: Operator,
    /// Path of the outputs; if `None`, they are written next to their inputs.
    pub(crate) output: Option<&'a Path>,
    /// The dtype in the names of outputs that are written next to their inputs.
    pub(crate) to: Option<Dtype>,
    /// The word in these names instead of a dtype.
    pub(crate) label: Option<&'a str>,
    /// The format of the outputs, if the operation asks for one.
    pub(crate) format: Option<&'static dyn Container>,
    pub(crate) existing: IfExists,
    pub(crate) publish: Publish,
    /// Write nothing.
    pub(crate) dry_run: bool,
    /// Flush each output to the disk before it takes its name.
    pub(crate) sync: bool,
    pub(crate) threads: usize,
    /// Maximum bytes of tensors in a shard; if given, tensors are distributed over new shards.
    pub(crate) max_shard_size: Option<u64>,
    /// The share of the shards to write in this run.
    pub(crate) partition: Option<Partition>,
    /// Continue an interrupted run.
    pub(crate) resume: bool,
    /// Cast codes of quantized weights as if they were values.
    pub(crate) force_codes: bool,
    /// Options for ONNX models.
    pub(crate) model: ModelOptions,
    /// The changes to values that make the job fail.
    pub(crate) fail_on: FailOn,
    pub(crate) measures: Measures,
    /// True if the caller uses the result of each tensor of a file; otherwise the report need not list the tensors.
    pub(crate) shows_tensors: bool,
    /// All options that affect the bytes of the output. A run can continue another one only if these are the same.
    pub(crate) options: RecordedOptions,
    /// Source of cancellation.
    pub(crate) cancel: &'a dyn Cancel,
}

impl Job<'_> {
    /// Returns a job that writes its outputs next to the inputs, and replaces nothing.
    pub(crate) fn new(operator: Operator, threads: usize) -> Self {
        Self {
            operator,
            output: None,
            to: None,
            label: None,
            format: None,
            existing: IfExists::Refuse,
            publish: Publish::Each,
            dry_run: false,
            sync: true,
            threads,
            max_shard_size: None,
            partition: None,
            resume: false,
            force_codes: false,
            model: ModelOptions::default(),
            fail_on: FailOn::default(),
            measures: Measures::default(),
            shows_tensors: true,
            options: RecordedOptions::default(),
            cancel: &Never,
        }
    }

    /// True if the report depends on results, which a dry run therefore computes too.
    pub(super) fn reports_results(&self) -> bool {
        self.measures.accuracy || !self.fail_on.is_empty()
    }

    /// True if the report of a file needs to list its tensors.
    pub(super) fn lists_tensors(&self) -> bool {
        self.shows_tensors || self.measures.hash || !self.fail_on.is_empty()
    }

    /// Returns how the job runs its plans.
    pub(super) fn run_options<'r>(&'r self, progress: &'r dyn Progress) -> RunOptions<'r> {
        let detail = if self.measures.accuracy { Detail::Accuracy } else { Detail::Counts };
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

/// An input, and the choices for its tensors.
pub(crate) struct JobInput<'a> {
    pub(crate) source: &'a Checkpoint,
    pub(crate) selection: Selection,
    /// The dtype of untyped elements.
    pub(crate) from: Option<Dtype>,
    pub(crate) decisions: Decisions<'a>,
}
