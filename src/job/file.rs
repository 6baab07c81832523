//! A file that a job writes: planned, written, deflated, published.

use super::check::plans;
use super::outcome::FileReport;
use super::place::{self, Route};
#[cfg(feature = "cli")]
use super::preview;
use super::{IfExists, Job, Publish, Written};
use crate::container::{self, Container};
use crate::engine::{self, Detail};
use crate::error::{Blocker, Error, Kind, OutputRole, Result, Wanted};
use crate::io::identity::Files;
use crate::io::output::{Destination, Output, elsewhere};
use crate::measure::hash;
use crate::plan::{Plan, PlanFindings, Planned, Spread};
use crate::progress::{Note, Observer, Progress};
use std::path::{Path, PathBuf};

/// A file to write, checked before any work.
pub(super) struct FileOutput<'a> {
    /// `None` only in a dry run, if the folder for outputs does not exist yet.
    destination: Option<Destination>,
    /// The destination of the second file, if any: the elements of an ONNX model.
    data: Option<Destination>,
    pub(super) plan: Plan<'a>,
    container: &'static dyn Container,
}

impl<'a> FileOutput<'a> {
    /// Plans the contents of the file.
    pub(super) fn new(
        job: &Job,
        route: &Route<'_, 'a>,
        files: &mut Files,
        observer: &dyn Observer,
    ) -> Result<(Self, PlanFindings)> {
        check_alone(job, route)?;
        let container = place::container(job, route)?;
        let mut destination = None;
        let check_place = |planned: &Planned| {
            files.read(planned.files.iter().cloned());
            destination = find_place(job, route, files)?;
            Ok(())
        };
        let (mut plans, planned) = plans(job, route, (container, Spread::One), observer, check_place)?;
        let mut plan = plans.swap_remove(0);
        // A pipe or device cannot be read again.
        let keeps = destination.as_ref().is_none_or(Destination::keeps);
        plan.is_deflated = keeps && container::is_deflated(&route.input.source.shards[0], container);
        let data = match (plan.data_start, place::data_file(&route.output)) {
            (Some(_), Some(path)) => find_data_place(job, &path, destination.as_ref(), files)?,
            _ => None,
        };
        if let (Publish::Each, Some(destination)) = (job.publish, &destination) {
            destination.check_space(plan.space())?;
        }
        Ok((Self { destination, data, plan, container }, planned.findings))
    }

    pub(super) fn source_bytes(&self) -> u64 {
        self.plan.source_bytes()
    }

    /// Returns the type of the first weight that becomes narrow in a .safetensors file, without a scale.
    #[cfg(feature = "cli")]
    pub(super) fn unscaled(&self) -> Option<crate::dtype::Dtype> {
        if self.container.is(container::SHARDS) { preview::unscaled(&self.plan) } else { None }
    }

    /// Converts, writes and publishes the file. From then on, the message of an interrupt includes `kept`.
    pub(super) fn run(self, job: &Job, output: &Path, kept: &str, observer: &dyn Observer) -> Result<Written> {
        if job.dry_run && !job.reports_results() {
            let report = FileReport::new(output.to_string_lossy().into_owned(), &self.plan, None);
            return Ok(Written::file(report, 0));
        }
        let progress = observer.progress("", self.source_bytes());
        let mut whole = self.write(job, output, &*progress, observer)?;
        drop(progress);
        whole.settle(job, observer)?;
        whole.publish(job, kept)
    }

    /// Converts all tensors. In a dry run, the result is measured and discarded.
    pub(super) fn write(
        mut self,
        job: &Job,
        output: &Path,
        progress: &dyn Progress,
        observer: &dyn Observer,
    ) -> Result<WholeFile<'a>> {
        let destination = self.destination.filter(|_| !job.dry_run).unwrap_or_else(Destination::nowhere);
        let keeps = destination.keeps();
        if keeps {
            observer.notice(Note::Begins(destination.folder()));
        }
        let create = |place: Destination| Ok(place.create()?.flushed_early(job.sync));
        let mut file = create(destination)?;
        if let (Some(data), Some(start)) = (self.data.filter(|_| !job.dry_run), self.plan.data_start) {
            file = file.continued(start, create(data)?);
        }
        // An archive that will be deflated is first written without compression.
        let stored = (self.plan.is_deflated && !job.dry_run).then(|| file.beside()).transpose()?;
        let target = stored.as_ref().unwrap_or(&file);
        let lists_tensors = job.lists_tensors();
        let mut options = job.run_options(progress);
        if !lists_tensors {
            options.detail = Detail::Nothing;
        }
        let outcomes = engine::run(&self.plan, target, &options)?;
        (self.plan.literals, self.plan.copies) = (Vec::new(), Vec::new()); // for many tensors these take as much memory as the report will
        if keeps {
            self.plan.check_written(self.container, target)?;
        }
        let name = output.to_string_lossy().into_owned();
        let report = if lists_tensors {
            FileReport::new(name, &self.plan, Some(outcomes))
        } else {
            FileReport::without_tensors(name, &self.plan)
        };
        let is_refused = report.meets(&job.fail_on);
        let plan = Some(self.plan).filter(|_| job.measures.hash && !is_refused);
        Ok(WholeFile { path: output.to_owned(), file, stored, plan, report, is_refused })
    }
}

/// Refuses outputs that do not fit on the disk together. All of them go to one folder.
pub(super) fn check_space_of_all<'b>(files: impl Iterator<Item = &'b FileOutput<'b>>) -> Result<()> {
    let files: Vec<_> = files.collect();
    let needed = files.iter().map(|file| file.plan.space()).sum();
    files.first().and_then(|file| file.destination.as_ref()).map_or(Ok(()), |first| first.check_space(needed))
}

/// A complete file that has no name yet.
pub(super) struct WholeFile<'a> {
    path: PathBuf,
    file: Output,
    /// The archive to be deflated into the file.
    stored: Option<Output>,
    /// The plan, if tensors are to be hashed.
    plan: Option<Plan<'a>>,
    report: FileReport,
    /// True if the job refuses one of its values.
    is_refused: bool,
}

impl WholeFile<'_> {
    /// Hashes and deflates the file, if required.
    pub(super) fn settle(&mut self, job: &Job, observer: &dyn Observer) -> Result<()> {
        if self.is_refused {
            return Ok(());
        }
        let stored = self.stored.take();
        if let Some(plan) = self.plan.take() {
            let progress = observer.progress("hashing", plan.source_bytes() + plan.tensor_bytes());
            let written = stored.as_ref().unwrap_or(&self.file).read_again()?;
            let data = self.file.rest().map(Output::read_again).transpose()?;
            self.report.add_hashes(hash::of(&plan, (&written, data.as_ref()), job.threads, &*progress)?);
        }
        if let Some(stored) = stored {
            let progress = observer.progress("deflating", self.report.bytes);
            let deflate = |written| container::deflate(&written, &self.file, &|bytes| progress.advance(bytes));
            let lengths = stored.read_again().and_then(deflate).map_err(|error| error.in_file(&self.path))?;
            self.report.deflated(lengths);
        }
        Ok(())
    }

    /// Gives the file its name, unless one of its values is refused. From then on, the message of an interrupt includes
    /// `kept`.
    pub(super) fn publish(self, job: &Job, kept: &str) -> Result<Written> {
        if self.is_refused {
            return Ok(Written::file(self.report, 0));
        }
        self.file.take_name(job.sync, Some(kept))?;
        Ok(Written::file(self.report, 1))
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
fn check_alone(job: &Job, route: &Route) -> Result<()> {
    let Route { input, output, .. } = route;
    let (option, what) = match (job.partition, job.resume) {
        (Some(_), _) => ("part", "only folders of shards are written in parts, and the output is one file"),
        (None, true) => ("resume", "only folders of shards can be continued, and the output is one file"),
        (None, false) => return Ok(()),
    };
    let error = Error::new(what).without(option).in_file(output);
    // Without a size, only the tensors of a folder are divided.
    Err(match place::container(job, route)?.format_info().extension {
        _ if input.source.folder.is_some() => error.of(Kind::Unnamed(Wanted::FOLDER)),
        "safetensors" => error.of(Kind::Undivided),
        _ => error.of(Kind::Usage),
    })
}

/// Returns the destination of the output, if it is possible; `None` in a dry run whose folder does not exist yet.
fn find_place(job: &Job, route: &Route, files: &mut Files) -> Result<Option<Destination>> {
    let Route { output, is_named, .. } = route;
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
