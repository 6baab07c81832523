//! What a job is to do.

use super::cancel::{Cancel, Cancellable, Never};
use super::decoding::Recoding;
use super::outcome::FailOn;
use super::share::Partition;
use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::engine::{self, Outcome};
use crate::error::Result;
use crate::io::sink::Sink;
use crate::operator::Operator;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::select::Selection;
use crate::threads::cores;
use serde_json::Value;
use std::path::Path;

/// What is to be done with some inputs.
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Job<'a> {
    pub(crate) operator: Operator,
    /// Where the outputs go; where it is `None`, beside their inputs.
    pub(crate) output: Option<&'a Path>,
    /// The type in the names of outputs that are beside their inputs.
    pub(crate) to: Option<Dtype>,
    /// What is in these names instead.
    pub(crate) label: Option<&'a str>,
    pub(crate) existing: IfExists,
    pub(crate) publish: Publish,
    /// Write nothing.
    pub(crate) dry_run: bool,
    /// Have everything on the disk before it takes its name.
    pub(crate) sync: bool,
    pub(crate) threads: usize,
    /// Bytes of tensors in a shard, where shards are to be made anew.
    pub(crate) max_shard_size: Option<u64>,
    /// The share of the shards that is to be written now.
    pub(crate) partition: Option<Partition>,
    /// Continue what was begun.
    pub(crate) resume: bool,
    /// Cast codes that have scales as if they were values.
    pub(crate) force_codes: bool,
    /// What must not happen to a value.
    pub(crate) fail_on: FailOn,
    pub(crate) measures: Measures,
    /// All options that decide about the bytes: those of a run that continues another one must be the same.
    pub(crate) options: Value,
    /// Is asked whether to go on.
    pub(crate) cancel: &'a dyn Cancel,
}

impl Job<'_> {
    /// A job that writes its outputs beside the inputs, on all cores, and replaces nothing.
    pub(crate) fn new(operator: Operator) -> Self {
        Self {
            operator,
            output: None,
            to: None,
            label: None,
            existing: IfExists::Refuse,
            publish: Publish::Each,
            dry_run: false,
            sync: true,
            threads: cores(),
            max_shard_size: None,
            partition: None,
            resume: false,
            force_codes: false,
            fail_on: FailOn::default(),
            measures: Measures::default(),
            options: Value::Null,
            cancel: &Never,
        }
    }

    /// Converts what is planned into a sink, unless the job is cancelled meanwhile.
    pub(super) fn convert(&self, plan: &Plan, sink: &dyn Sink, progress: &dyn Progress) -> Result<Vec<Outcome>> {
        let sink = Cancellable { sink, cancel: self.cancel };
        let outcomes = engine::run(plan, &sink, self.threads, self.measures.accuracy, progress)?;
        sink.check()?;
        Ok(outcomes)
    }
}

/// What to do where an output exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfExists {
    Refuse,
    Replace,
    /// Leave it as it is.
    Skip,
}

/// When outputs take their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Each when it is whole. An input that fails does not keep the others from being converted.
    Each,
    /// All when all are whole: they belong together. The first error ends the job.
    Together,
}

/// What is found out besides the counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measures {
    /// How far results are from their sources.
    pub(crate) accuracy: bool,
    /// SHA-256 of both.
    pub(crate) hash: bool,
}

/// An input, and what is to be done with its tensors.
#[derive(Clone, Copy)]
pub(crate) struct JobInput<'a, 's> {
    pub(crate) source: &'a Checkpoint,
    pub(crate) selection: &'s Selection,
    /// What untyped elements are.
    pub(crate) from: Option<Dtype>,
    /// The weights that are decoded or quantized.
    pub(crate) recoding: Option<&'s Recoding>,
}
