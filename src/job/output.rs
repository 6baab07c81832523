//! An output of a job: its place, and the plans of its files.

use super::complete::{CompleteFile, NewFile};
use super::outcome::FileReport;
use super::{Job, Written};
use crate::container::checkpoint::Checkpoint;
use crate::container::{self, Container};
#[cfg(feature = "cli")]
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result};
use crate::io::output::Destination;
#[cfg(feature = "cli")]
use crate::operator::Operator;
#[cfg(feature = "cli")]
use crate::plan::Step;
use crate::plan::{Plan, PlanFindings};
use crate::progress::{Note, Observer, ShardProgress};
#[cfg(feature = "cli")]
use crate::staging;
use crate::staging::{Manifest, Start};
use crate::text::shorten;
use std::path::{Path, PathBuf};

/// An output that is ready to be written, after all checks that headers and names allow.
pub(crate) struct PlannedOutput<'a> {
    pub(crate) source: &'a Checkpoint,
    pub(crate) path: PathBuf,
    pub(super) place: OutputPlace,
    /// The format of its files.
    pub(super) container: &'static dyn Container,
    /// The plan of each file; the plans of modules are the last.
    pub(super) plans: Vec<Plan<'a>>,
    /// The files that this run writes.
    pub(super) chosen: Vec<usize>,
    pub(crate) findings: PlanFindings,
}

/// The place of an output.
pub(super) enum OutputPlace {
    /// The output exists, and is kept.
    Taken,
    File {
        /// `None` only in a dry run, if the folder for outputs does not exist yet.
        destination: Option<Destination>,
        /// The destination of the second file, if any: the elements of an ONNX model.
        data: Option<Destination>,
    },
    Folder {
        start: Start,
        manifest: Box<Manifest>,
        /// True if something exists already, which may be the result of the same job.
        is_there: bool,
    },
}

impl<'a> PlannedOutput<'a> {
    /// Returns an output that exists and is kept.
    pub(super) fn kept(source: &'a Checkpoint, path: &Path) -> Self {
        let (path, place, container) = (path.to_owned(), OutputPlace::Taken, container::SHARDS);
        Self {
            source,
            path,
            place,
            container,
            plans: Vec::new(),
            chosen: Vec::new(),
            findings: PlanFindings::default(),
        }
    }

    pub(crate) fn is_folder(&self) -> bool {
        matches!(self.place, OutputPlace::Folder { .. })
    }

    /// Returns the number of input bytes that this run converts.
    pub(super) fn source_bytes(&self) -> u64 {
        self.chosen.iter().map(|&at| self.plans[at].source_bytes()).sum()
    }

    /// Returns the name of a file in reports.
    fn name(&self, at: usize) -> String {
        match &self.place {
            OutputPlace::Taken | OutputPlace::File { .. } => self.path.to_string_lossy().into_owned(),
            OutputPlace::Folder { manifest, .. } => manifest.shards[at].file.clone(),
        }
    }

    /// Reports the files that this run would write. If the job reports results, converts them without writing.
    pub(super) fn preview(mut self, job: &Job, observer: &dyn Observer) -> Result<Written> {
        let (mut files, all) = (Vec::new(), self.plans.len());
        let progress: Option<Box<dyn ShardProgress>> = job.reports_results().then(|| {
            let bytes = self.source_bytes();
            if self.is_folder() {
                observer.checkpoint(bytes)
            } else {
                Box::new(observer.progress("", bytes)) as Box<dyn ShardProgress>
            }
        });
        let mut chosen = std::mem::take(&mut self.chosen).into_iter().peekable(); // in ascending order
        for (at, plan) in std::mem::take(&mut self.plans).into_iter().enumerate() {
            if chosen.next_if_eq(&at).is_none() {
                continue;
            }
            let name = self.name(at);
            let Some(progress) = &progress else {
                files.push(FileReport::new(name, &plan, None));
                continue;
            };
            let progress = progress.shard(format!("{}/{all} {}", at + 1, shorten(&name)), plan.source_bytes());
            let (container, output) = (self.container, Destination::nowhere().create()?);
            let file = NewFile { plan, name, container, output };
            files.push(CompleteFile::write(job, file, &job.run_options(true, &*progress))?.report);
        }
        Ok(Written { files, before: 0, finished: 0, all, was_complete: false })
    }

    /// Creates the file of the output, which must be a file.
    pub(super) fn create(mut self, job: &Job, observer: &dyn Observer) -> Result<NewFile<'a>> {
        let name = self.name(0);
        let OutputPlace::File { destination: Some(destination), data } = self.place else {
            return Err(Error::new("a folder is published alone").in_file(&self.path));
        };
        let plan = self.plans.swap_remove(0);
        if destination.keeps() {
            observer.notice(Note::Begins(destination.folder()));
        }
        let create = |place: Destination| Ok(place.create()?.flushed_early(job.sync));
        let mut output = create(destination)?;
        if let (Some(data), Some(start)) = (data, plan.data_start) {
            output = output.continued(start, create(data)?);
        }
        Ok(NewFile { plan, name, container: self.container, output })
    }
}

/// Facts about an output before it is written, for the program.
#[cfg(feature = "cli")]
impl<'a> PlannedOutput<'a> {
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step<'a>> {
        self.plans.iter().flat_map(|plan| &plan.steps)
    }

    /// True if it is not kept as it is.
    pub(crate) fn has_work(&self) -> bool {
        !matches!(self.place, OutputPlace::Taken)
    }

    /// True if earlier runs have written everything that this run should write.
    pub(crate) fn is_done(&self) -> bool {
        let OutputPlace::Folder { manifest, is_there, .. } = &self.place else { return false };
        *is_there || staging::are_done(&self.path, self.chosen.iter().map(|&at| &manifest.shards[at]))
    }

    /// Returns the new type of the first weight that a cast makes an integer, or a float of at most 8 bits, in a .safetensors
    /// file: engines expect scales then.
    pub(crate) fn unscaled(&self, job: &Job) -> Option<Dtype> {
        let is_cast = matches!(job.operator(), Operator::Cast(_)) && !job.task.forces_codes();
        if !is_cast || !self.container.is(container::SHARDS) {
            return None;
        }
        let is_weight =
            |step: &&Step| step.is_converted() && step.source().shape.len() >= 2 && step.dtypes().0.is_floating();
        let mut weights = self.steps().filter(is_weight).map(|step| step.dtypes().1);
        weights.find(|to| match to.class() {
            Class::Int { .. } => true,
            _ => to.is_floating() && to.bits() <= 8,
        })
    }
}
