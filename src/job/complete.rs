//! A file that a job has written, alone or as a shard of a folder, before it takes its name.

use super::outcome::FileReport;
use super::{Job, Written};
use crate::container::{self, Container};
use crate::engine::{self, Detail, RunOptions};
use crate::error::Result;
use crate::io::output::Output;
use crate::io::sink::Sink;
use crate::measure::hash;
use crate::plan::Plan;
use crate::progress::Observer;

/// A file to be written.
pub(super) struct NewFile<'a> {
    pub(super) plan: Plan<'a>,
    /// Its name in reports.
    pub(super) name: String,
    pub(super) container: &'static dyn Container,
    pub(super) output: Output,
}

/// A complete file that has no name yet.
pub(super) struct CompleteFile<'a> {
    pub(super) output: Output,
    /// The archive to be deflated into the file.
    stored: Option<Output>,
    /// The plan, if tensors are to be hashed.
    plan: Option<Plan<'a>>,
    pub(super) report: FileReport,
    /// True if the job refuses one of its values.
    pub(super) is_refused: bool,
}

impl<'a> CompleteFile<'a> {
    /// Converts all tensors of the plan, and checks the header of the file.
    pub(super) fn write(job: &Job, file: NewFile<'a>, options: &RunOptions) -> Result<Self> {
        let NewFile { mut plan, name, container, output } = file;
        let keeps = output.keeps();
        // An archive that will be deflated is first written without compression.
        let stored = (plan.is_deflated && keeps).then(|| output.beside()).transpose()?;
        let target = stored.as_ref().unwrap_or(&output);
        let outcomes = engine::run(&plan, target, options)?;
        (plan.literals, plan.copies) = (Vec::new(), Vec::new()); // for many tensors these take as much memory as the report will
        if keeps {
            plan.check_written(container, target)?;
        }
        let (report, plan) = match options.detail {
            Detail::Nothing => (FileReport::without_tensors(name, &plan), None),
            _ if job.measures.hash && keeps => (FileReport::new(name, &plan, Some(outcomes)), Some(plan)),
            Detail::Counts | Detail::Accuracy => (FileReport::taking(name, plan, Some(outcomes)), None),
        };
        let is_refused = report.meets(&job.fail_on);
        Ok(Self { output, stored, plan, report, is_refused })
    }

    /// Hashes and deflates the file, if required.
    pub(super) fn settle(&mut self, job: &Job, observer: &dyn Observer) -> Result<()> {
        if self.is_refused {
            return Ok(());
        }
        let stored = self.stored.take();
        if let Some(plan) = self.plan.take() {
            let progress = observer.progress("hashing", plan.source_bytes() + plan.tensor_bytes());
            let written = stored.as_ref().unwrap_or(&self.output).read_again()?;
            let data = self.output.rest().map(Output::read_again).transpose()?;
            self.report.add_hashes(hash::of(&plan, (&written, data.as_ref()), job.threads, &*progress)?);
        }
        if let Some(stored) = stored {
            let progress = observer.progress("deflating", self.report.bytes);
            let deflate = |written| container::deflate(&written, &self.output, &|bytes| progress.advance(bytes));
            let lengths = stored.read_again().and_then(deflate).map_err(|error| error.in_file(self.output.path()))?;
            self.report.deflated(lengths);
        }
        Ok(())
    }

    /// Gives the file its name, unless one of its values is refused. From then on, the message of an interrupt includes
    /// `kept`.
    pub(super) fn publish(self, job: &Job, kept: &str) -> Result<Written> {
        if !self.is_refused {
            self.output.take_name(job.sync, Some(kept))?;
        }
        let finished = usize::from(!self.is_refused);
        Ok(Written { files: vec![self.report], before: 0, finished, all: 1, was_complete: false })
    }
}
