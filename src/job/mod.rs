//! A job: inputs become outputs, each a file or a folder of shards.
//!
//! inputs -> [`open`] -> [`prepare`]: a destination and a plan for each output, with all checks that need no conversion
//! -> [`Prepared::run`]: convert, write, publish -> the result of each.
//!
//! A job prints nothing itself: results and errors go back to the caller, and notices to an [`Observer`].

mod check;
mod description;
mod fail_on;
mod file;
mod folder;
mod outcome;
mod place;
#[cfg(feature = "cli")]
mod preview;
mod recognized;

pub use description::IfExists;
pub(crate) use description::{Job, JobInput, Measures, Publish};
pub(crate) use fail_on::FailOn;
#[cfg(feature = "cli")]
pub(crate) use folder::{Finished, finish};
pub use outcome::{FileReport, TensorReport};
#[cfg(feature = "cli")]
pub(crate) use outcome::{PartReport, QuantizedReport};
#[cfg(feature = "cli")]
pub(crate) use preview::{output_path, plan};

use crate::container::ReadOptions;
use crate::container::checkpoint::{self, Checkpoint, has_written_shards};
use crate::error::{Error, Kind, Result};
use crate::io::identity::Files;
use crate::io::output;
use crate::io::temporaries::NewFolder;
use crate::options::TensorOptions;
use crate::plan::{PlanFindings, check_task};
use crate::progress::{Note, Observer};
use crate::text::is;
use file::FileOutput;
use folder::FolderOutput;
use place::Route;
use std::path::{Path, PathBuf};

#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) struct Written {
    /// The output, or the requested shards.
    pub(crate) files: Vec<FileReport>,
    /// Number of files that were complete before.
    pub(crate) before: usize,
    /// Number of complete shards of the folder; `all` is the final number.
    pub(crate) finished: usize,
    pub(crate) all: usize,
    /// True if everything was complete, and nothing was written.
    pub(crate) was_complete: bool,
}

impl Written {
    fn file(report: FileReport, finished: usize) -> Self {
        Self { files: vec![report], before: 0, finished, all: 1, was_complete: false }
    }
}

/// The way in which inputs are opened.
pub(crate) struct OpenOptions<'a> {
    pub(crate) tensors: &'a TensorOptions,
    /// True if experts that MLX stacks are treated one by one.
    pub(crate) divides_stacks: bool,
    /// True if modules of sentence-transformers are converted like the model.
    pub(crate) has_modules: bool,
    /// Outputs that are published together stop at the first error; otherwise all errors are collected.
    pub(crate) publish: Publish,
    pub(crate) threads: usize,
}

/// Opens files and folders of shards. `explain` adds the caller's information about an input to an error.
pub(crate) fn open(
    inputs: &[PathBuf],
    &OpenOptions { tensors, divides_stacks, has_modules, publish, threads }: &OpenOptions,
    observer: &dyn Observer,
    explain: impl Fn(Error, &Path) -> Error,
) -> Result<Vec<Checkpoint>> {
    if inputs.len() > 1 {
        raise_file_limit();
    }
    let sources = all_of(inputs, publish, observer, |input| {
        let naming = &tensors.naming;
        let opened = naming.probe(input, threads).and_then(|mut source| {
            source.leave_out(|name| tensors.exclude.iter().any(|pattern| pattern.matches(name)));
            source.left_out.iter().for_each(|name| observer.notice(Note::Unreadable(name)));
            let source = checkpoint::check(source)?;
            naming.check(&source)?;
            let mut source = naming.apply(source)?;
            if has_modules {
                source.open_modules(&ReadOptions::on(threads))?;
            }
            if divides_stacks { source.with_single_experts(naming.names) } else { Ok(source) }
        });
        opened.map_err(|error| explain(error, input))
    })?;
    let disagreements = sources.iter().flat_map(|source| &source.disagreements);
    disagreements.for_each(|disagreement| observer.notice(Note::Disagreement(disagreement)));
    for shard in sources.iter().flat_map(|source| &source.shards) {
        if let Some(facts) = &shard.contents.pickle {
            observer.notice(Note::Pickle(shard.path(), facts));
        }
    }
    Ok(sources)
}

/// Determines the place and the contents of each output, with all checks that are possible before anything is written.
/// Refuses an output that exists, is an input, or cannot be at its place, types that do not fit, and a disk without
/// enough space.
pub(crate) fn prepare<'a>(job: &Job, inputs: &[JobInput<'_, 'a>], observer: &dyn Observer) -> Result<Prepared<'a>> {
    check_task(job.task, job.format().is_some(), observer)?;
    let folder = place::folder_of_outputs(job, inputs)?;
    let is_only = inputs.len() == 1;
    let made = match folder {
        Some(folder) if !job.dry_run && !folder.exists() => {
            output::check_folder(folder)?;
            Some(NewFolder::create(folder)?) // removed again if nothing is written into it
        }
        _ => None,
    };
    let mut files = Files::default();
    inputs.iter().try_for_each(|input| input.source.files().map(|paths| files.read(paths)))?;
    let mut findings = PlanFindings::default();
    let routes = all_of(inputs, job.publish, observer, |&input| {
        let output = place::output_path(job, input.source, folder, is_only)?;
        Ok(Route { input, output, is_named: folder.is_none() && job.output.is_some(), is_module: false })
    })?;
    let outputs = all_of(routes, job.publish, observer, |route| {
        let work = match JobWork::new(job, &route, &mut files, observer) {
            Err(error) if job.existing == IfExists::Skip && error.is_existing() && is_output(&route.output) => {
                JobWork::Skip
            }
            work => {
                let (work, found) = work?;
                findings = found;
                work
            }
        };
        Ok(JobOutput { source: route.input.source, path: route.output, work })
    })?;
    if job.publish == Publish::Together {
        file::check_space_of_all(outputs.iter().filter_map(|output| output.work.file()))?;
    }
    Ok(Prepared { outputs, files, findings, _made: made })
}

/// An input, the path of its output, and the work to do.
struct JobOutput<'a> {
    source: &'a Checkpoint,
    path: PathBuf,
    work: JobWork<'a>,
}

/// The work for an input, after all checks that headers and names allow.
enum JobWork<'a> {
    /// No work: the output exists.
    Skip,
    File(FileOutput<'a>),
    Folder(FolderOutput<'a>),
}

impl<'a> JobWork<'a> {
    fn new(
        job: &Job,
        route: &Route<'_, 'a>,
        files: &mut Files,
        observer: &dyn Observer,
    ) -> Result<(Self, PlanFindings)> {
        if place::is_folder(job, route)? {
            let (folder, findings) = FolderOutput::new(job, route, files, observer)?;
            Ok((Self::Folder(folder), findings))
        } else {
            let (file, findings) = FileOutput::new(job, route, files, observer)?;
            Ok((Self::File(file), findings))
        }
    }

    fn file(&self) -> Option<&FileOutput<'a>> {
        if let Self::File(file) = self { Some(file) } else { None }
    }
}

/// Message of an interrupt after the first of several outputs.
const SOME: &str = "some outputs were complete";

/// True if an existing path is an output, and not just a folder of its name.
fn is_output(path: &Path) -> bool {
    !path.is_dir() || has_written_shards(path)
}

/// Returns `None` if another run has created the output in the meantime, and it should be kept.
fn skipped<T>(job: &Job, written: Result<T>) -> Result<Option<T>> {
    match written {
        Err(error) if job.existing == IfExists::Skip && error.is_existing() => Ok(None),
        written => written.map(Some),
    }
}

/// A job that is ready to run.
pub(crate) struct Prepared<'a> {
    outputs: Vec<JobOutput<'a>>,
    #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program writes its report among them"))]
    pub(crate) files: Files,
    /// Findings of the plan of the last output.
    pub(crate) findings: PlanFindings,
    _made: Option<NewFolder>,
}

impl<'a> Prepared<'a> {
    /// Converts, writes and publishes. `each` receives every input with its output and the result: `None` if the output
    /// exists and is kept. Returns the error of `each` or, if outputs are published together, the first error.
    pub(crate) fn run(
        self,
        job: &Job,
        observer: &dyn Observer,
        mut each: impl FnMut(&'a Checkpoint, &Path, Result<Option<Written>>) -> Result<()>,
    ) -> Result<()> {
        let is_only = self.outputs.len() == 1;
        let is_folder = is_only && matches!(self.outputs[0].work, JobWork::Folder(_)); // which is published as one
        if job.publish == Publish::Together && !is_folder {
            return self.run_together(job, observer, each);
        }
        for JobOutput { source, path, work } in self.outputs {
            let written = match work {
                JobWork::Skip => Ok(None),
                JobWork::File(file) => {
                    let kept = if is_only { "the output was complete" } else { SOME };
                    skipped(job, file.run(job, &path, kept, observer))
                }
                JobWork::Folder(folder) => skipped(job, folder.run(job, observer)),
            };
            each(source, &path, written)?;
        }
        Ok(())
    }

    /// Runs the job so that no output takes its name before all are complete.
    fn run_together(
        self,
        job: &Job,
        observer: &dyn Observer,
        mut each: impl FnMut(&'a Checkpoint, &Path, Result<Option<Written>>) -> Result<()>,
    ) -> Result<()> {
        let files = || self.outputs.iter().filter_map(|output| output.work.file());
        let progress = observer.progress("", files().map(FileOutput::source_bytes).sum());
        let mut done = Vec::new();
        for JobOutput { source, path, work } in self.outputs {
            let whole = match work {
                JobWork::File(file) => Some(file.write(job, &path, &*progress, observer)?),
                JobWork::Skip => None,
                JobWork::Folder(_) => return Err(Error::new("a folder is published alone").in_file(&path)),
            };
            done.push((source, path, whole));
        }
        drop(progress);
        done.iter_mut().filter_map(|(.., whole)| whole.as_mut()).try_for_each(|whole| whole.settle(job, observer))?;
        let mut published = Vec::new();
        for (source, path, whole) in done {
            let written = whole.map(|whole| skipped(job, whole.publish(job, SOME))).transpose()?.flatten();
            published.push((source, path, written));
        }
        published.into_iter().try_for_each(|(source, path, written)| each(source, &path, Ok(written)))
    }
}

/// Raises the limit of open files as far as possible: every input stays open, so that the file that is read is the file
/// that was checked.
pub(crate) fn raise_file_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }); // a lower limit may suffice
    }
}

/// Calls `what` for each input. If outputs are published one by one, collects all errors, and fails if there are any;
/// otherwise stops at the first.
fn all_of<T, U>(
    inputs: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    publish: Publish,
    observer: &dyn Observer,
    mut what: impl FnMut(T) -> Result<U>,
) -> Result<Vec<U>> {
    let inputs = inputs.into_iter();
    let all = inputs.len();
    if all == 1 || publish == Publish::Together {
        return inputs.map(what).collect();
    }
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for input in inputs {
        match what(input) {
            Ok(result) => done.push(result),
            Err(error) => {
                observer.notice(Note::Refused(&error));
                refused.push(error);
            }
        }
    }
    if refused.is_empty() {
        return Ok(done);
    }
    let count = refused.len();
    let what = format!("{count} of {all} inputs {} refused, nothing was written", is(count as u64));
    Err(summed_up(what, refused))
}

pub(crate) fn summed_up(message: String, errors: Vec<Error>) -> Error {
    Error::new(message).of(Kind::Several(errors.into()))
}
