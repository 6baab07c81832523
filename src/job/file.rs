//! A file that a job writes, alone or as a shard of a folder: its place, and how it is converted, completed and published.

use super::check::plans;
use super::outcome::FileReport;
use super::output::{Place, PlannedOutput};
use super::{IfExists, Job, Publish, Written, place};
use crate::container::checkpoint::Checkpoint;
use crate::container::{self, Container};
use crate::engine::{self, Detail, RunOptions};
use crate::error::{Blocker, Error, Kind, OutputRole, Result, Wanted};
use crate::io::identity::Files;
use crate::io::output::{Destination, Output, elsewhere};
use crate::io::sink::Sink;
use crate::measure::hash;
use crate::plan::{GgufTask, Plan, Spread};
use crate::progress::Observer;
use crate::read::LogicalCheckpoint;
use std::path::Path;

/// Finds the place of a file, and plans its contents.
pub(super) fn plan<'a>(
    job: &Job,
    gguf: Option<&GgufTask>,
    model: &LogicalCheckpoint<'a>,
    output: &Path,
    files: &mut Files,
    observer: &dyn Observer,
) -> Result<PlannedOutput<'a>> {
    let source = model.source;
    check_alone(job, source, output)?;
    let container = place::container(job, source, output)?;
    let destination = find_place(job, output, files)?;
    let (mut plans, planned) = plans(job, gguf, model, Some(output), (container, Spread::One), observer)?;
    let plan = &mut plans[0];
    // A pipe or device cannot be read again.
    let keeps = destination.as_ref().is_none_or(Destination::keeps);
    plan.is_deflated = keeps && container::is_deflated(&source.shards[0], container);
    let data = match (plan.data_start, place::data_file(output)) {
        (Some(_), Some(path)) => find_data_place(job, &path, destination.as_ref(), files)?,
        _ => None,
    };
    if let (Publish::Each, Some(destination)) = (job.publish, &destination) {
        destination.check_space(plan.space())?;
    }
    let (path, place, findings) = (output.to_owned(), Place::File { destination, data }, planned.findings);
    Ok(PlannedOutput { source, path, place, container, plans, chosen: vec![0], findings })
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
    /// Converts all tensors of a plan into a file, which has this name in reports, and checks its header.
    pub(super) fn write(
        job: &Job,
        mut plan: Plan<'a>,
        name: String,
        (container, output): (&dyn Container, Output),
        options: &RunOptions,
    ) -> Result<Self> {
        let keeps = output.keeps();
        // An archive that will be deflated is first written without compression.
        let stored = (plan.is_deflated && keeps).then(|| output.beside()).transpose()?;
        let target = stored.as_ref().unwrap_or(&output);
        let outcomes = engine::run(&plan, target, options)?;
        (plan.literals, plan.copies) = (Vec::new(), Vec::new()); // for many tensors these take as much memory as the report will
        if keeps {
            plan.check_written(container, target)?;
        }
        let report = match options.detail {
            Detail::Nothing => FileReport::without_tensors(name, &plan),
            Detail::Counts | Detail::Accuracy => FileReport::new(name, &plan, Some(outcomes)),
        };
        let is_refused = report.meets(&job.fail_on);
        let plan = Some(plan).filter(|_| job.measures.hash && keeps && !is_refused);
        Ok(Self { output, stored, plan, report, is_refused })
    }

    /// Hashes and deflates the file, if required.
    pub(super) fn settled(mut self, job: &Job, observer: &dyn Observer) -> Result<Self> {
        if self.is_refused {
            return Ok(self);
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
        Ok(self)
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

/// Refuses outputs that do not fit on the disk together. All of them go to one folder.
pub(super) fn check_space_of_all(outputs: &[PlannedOutput]) -> Result<()> {
    let files = || outputs.iter().filter(|output| matches!(output.place, Place::File { .. }));
    let needed = files().flat_map(|file| &file.plans).map(Plan::space).sum();
    match files().next().map(|file| &file.place) {
        Some(Place::File { destination: Some(first), .. }) => first.check_space(needed),
        _ => Ok(()),
    }
}

/// Returns the destination of the second file, next to the first.
fn find_data_place(
    job: &Job,
    path: &Path,
    first: Option<&Destination>,
    files: &mut Files,
) -> Result<Option<Destination>> {
    let Some(first) = first else { return Ok(None) };
    let refuse = |path: &Path| {
        let error = Error::new("the elements of the model go to a file beside it, and it is not a file itself");
        Err(error.in_file(path).remedy("name a file"))
    };
    if !first.keeps() {
        return refuse(first.path());
    }
    let leads_elsewhere = |path: &Path| {
        let what = "is a link to another folder, and the elements of the model go to a file beside the model";
        Error::new(what).in_file(path)
    };
    if let Some(file) = elsewhere(first.path()) {
        return Err(leads_elsewhere(first.path()).of(Kind::Taken(Wanted::At(file))));
    }
    if elsewhere(path).is_some() {
        return Err(leads_elsewhere(path).with_blocker(Blocker::File(path.to_owned())).of(Kind::Taken(Wanted::FILE)));
    }
    let data = Destination::among(files, path, job.existing == IfExists::Replace).map_err(|error| {
        if job.existing != IfExists::Skip || !error.is_existing() {
            return error;
        }
        let error = Error::new("exists already, but the model that would refer to it does not").in_file(path);
        error.remedy("remove it").of(Kind::Taken(Wanted::FILE))
    })?;
    if data.keeps() { Ok(Some(data)) } else { refuse(path) }
}

/// Refuses options that are only for folders of shards.
fn check_alone(job: &Job, source: &Checkpoint, output: &Path) -> Result<()> {
    let (option, what) = match (job.partition, job.resume) {
        (Some(_), _) => ("part", "only folders of shards are written in parts, and the output is one file"),
        (None, true) => ("resume", "only folders of shards can be continued, and the output is one file"),
        (None, false) => return Ok(()),
    };
    let error = Error::new(what).without(option).in_file(output);
    // Without a size, only the tensors of a folder are divided.
    Err(match place::container(job, source, output)?.format_info().extension {
        _ if source.folder.is_some() => error.of(Kind::Unnamed(Wanted::FOLDER)),
        "safetensors" => error.of(Kind::Undivided),
        _ => error.of(Kind::Usage),
    })
}

/// Returns the destination of the output, if it is possible; `None` in a dry run whose folder does not exist yet.
fn find_place(job: &Job, output: &Path, files: &mut Files) -> Result<Option<Destination>> {
    let is_named = job.names(output);
    if !is_named {
        place::check_own_place(job, output, files)?;
    }
    let has_folder = output.parent().is_none_or(|folder| folder == Path::new("") || folder.exists());
    if job.dry_run && !has_folder && !is_named {
        files.write(output).map_err(|error| error.of(Kind::Taken(Wanted::FOLDER)))?;
        return Ok(None);
    }
    let destination = Destination::among(files, output, job.existing == IfExists::Replace);
    let destination = destination.map_err(|error| match error.kind() {
        Kind::Exists { .. } if !is_named && job.output.is_some() => error.of(Kind::exists(OutputRole::Folder)),
        _ => error,
    })?;
    if job.measures.hash && !destination.keeps() {
        let error = Error::new("cannot be read again for its hashes: it is not a file").in_file(output);
        return Err(error.remedy("name a file").without("hash"));
    }
    if !job.fail_on.is_empty() && !job.dry_run && !destination.keeps() {
        let what = "is not a file, so the output cannot be undone if a value is refused at the end";
        let error = Error::new(what).in_file(output).remedy("name a file");
        // A GGUF file never has values that became infinite, whatever the options are.
        return Err(if job.format().is_some() { error } else { error.without("fail_on") });
    }
    Ok(Some(destination))
}
