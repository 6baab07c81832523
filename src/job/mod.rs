//! A job: inputs become outputs, each a file or a folder of shards.
//!
//! inputs -> [`open`] -> [`prepare`]: a [`PlannedOutput`] each, its place and its plans, with all checks that need no
//! conversion -> [`write`]: convert, write, publish -> the result of each.
//!
//! A job prints nothing itself: results and errors go back to the caller, and notices to an [`Observer`].

mod check;
mod complete;
mod description;
mod fail_on;
mod file;
mod folder;
mod outcome;
mod output;
mod place;
mod recognized;

pub use description::IfExists;
pub(crate) use description::{Job, Measures, Publish};
pub(crate) use fail_on::FailOn;
#[cfg(feature = "cli")]
pub(crate) use folder::{Finished, finish};
pub(crate) use outcome::Written;
pub use outcome::{FileReport, PartReport, QuantizedReport, TensorReport};
pub(crate) use output::PlannedOutput;

#[cfg(feature = "cli")]
use crate::container;
use crate::container::ReadOptions;
use crate::container::checkpoint::{self, Checkpoint, has_written_shards};
use crate::error::{Error, ErrorKind, Kind, Opt, Result};
use crate::io::identity::Files;
use crate::io::output::check_folder;
use crate::lora;
use crate::options::{ExpertForm, Task};
use crate::plan::GgufTask;
#[cfg(feature = "cli")]
use crate::plan::{Plan, PlanFindings, Spread};
use crate::progress::{Note, Observer};
use crate::read::{ContentChoice, Model, add_tensors};
use crate::text::is;
use complete::CompleteFile;
use output::OutputPlace;
use std::path::{Path, PathBuf};

/// Prefixes that torch.compile and the data parallelism of torch add to all names of a model.
const WRAPPERS: [&str; 2] = ["_orig_mod.", "module."];

/// Opens files and folders of shards for a task. `explain` adds the caller's information about an input to an error. Outputs
/// that are published together stop at the first error; otherwise all errors are collected.
pub(crate) fn open(
    inputs: &[PathBuf],
    task: Task,
    (publish, threads): (Publish, usize),
    observer: &dyn Observer,
    explain: impl Fn(Error, &Path) -> Error,
) -> Result<Vec<Checkpoint>> {
    if inputs.len() > 1 {
        raise_file_limit();
    }
    let (tensors, contents) = (&*task.tensors(), task.contents());
    let mut choice = contents.map(|contents| ContentChoice::new(contents, tensors.allow_unmatched));
    let drops = |name: &str| contents.is_some_and(|contents| contents.drop.iter().any(|pattern| pattern.matches(name)));
    let sources = all_of(inputs, publish, observer, |input| {
        let naming = &tensors.naming;
        let opened = naming.probe(input, threads).and_then(|mut source| {
            source.leave_out(|name| drops(name) || tensors.exclude.iter().any(|pattern| pattern.matches(name)));
            source.left_out.iter().for_each(|name| observer.notice(Note::Unreadable(name)));
            let source = checkpoint::check(source)?;
            naming.check(&source)?;
            let mut source = naming.apply(source)?;
            if matches!(task, Task::Cast(_)) {
                source.open_modules(&ReadOptions::on(threads))?; // they are cast like the model
            }
            let mut source = match task {
                Task::Dequantize(_) | Task::Quantize(_) => source.with_single_experts(naming.names)?,
                Task::Cast(_) | Task::BitCast(_) | Task::Promote(_) => source,
            };
            if let Some(form) = contents.and_then(|contents| contents.experts)
                && !source.set_experts(form).map_err(|error| error.in_file(input))?
            {
                let what = match form {
                    ExpertForm::Stacked => "has no experts that are stored one by one",
                    ExpertForm::Single => "has no stacks of experts",
                };
                return Err(Error::usage(what).in_file(input).without(Opt::EXPERTS));
            }
            let source = match &mut choice {
                Some(choice) => choice.apply(source)?,
                None => source,
            };
            match contents {
                Some(contents) => add_tensors(source, contents, &ReadOptions::on(threads)),
                None => Ok(source),
            }
        });
        opened.map_err(|error| explain(error, input))
    })?;
    for (pattern, error) in choice.iter().flat_map(|choice| choice.unmatched(&sources)) {
        if !tensors.allow_unmatched {
            return Err(if let [only] = &sources[..] { error.in_file(&only.path) } else { error });
        }
        observer.notice(Note::Unmatched(pattern));
    }
    for source in sources.iter().filter(|_| contents.is_some() && tensors.rename.is_empty()) {
        let has = |prefix: &&&str| source.names().all(|name| name.starts_with(**prefix));
        if let Some(prefix) = WRAPPERS.iter().find(has).filter(|_| source.tensors().next().is_some()) {
            observer.notice(Note::Wrapped(&source.path, prefix));
        }
    }
    let disagreements = sources.iter().flat_map(|source| &source.disagreements);
    disagreements.for_each(|disagreement| observer.notice(Note::Disagreement(disagreement)));
    for shard in sources.iter().flat_map(|source| &source.shards) {
        if let Some(facts) = &shard.contents.pickle {
            observer.notice(Note::Pickle(shard.path(), facts));
        }
    }
    Ok(sources)
}

/// Determines the place and the contents of the output of each model, with all checks that are possible before anything is
/// written. Refuses an output that exists, is an input, or cannot be at its place, types that do not fit, and a disk without
/// enough space. `files` learns which files the job reads and writes, and holds the folder of the outputs.
pub(crate) fn prepare<'a>(
    job: &Job,
    models: &[Model<'a>],
    files: &mut Files,
    observer: &dyn Observer,
) -> Result<Vec<PlannedOutput<'a>>> {
    let gguf = GgufTask::of(job.task, job.format().is_some())?;
    let sources: Vec<&Checkpoint> = models.iter().map(|model| model.source).collect();
    let folder = place::folder_of_outputs(job, &sources)?;
    if let Some(folder) = folder.filter(|folder| !job.dry_run && !folder.exists()) {
        check_folder(folder)?;
        files.make_folder(folder)?;
    }
    sources.iter().try_for_each(|source| source.files().map(|paths| files.read(paths)))?;
    files.read(job.task.adapters().iter().flat_map(|adapter| lora::files(&adapter.path)));
    files.read(gguf.iter().flat_map(GgufTask::files));
    let is_only = models.len() == 1;
    let paths = all_of(sources, job.publish, observer, |source| place::output_path(job, source, folder, is_only))?;
    let outputs = all_of(models.iter().zip(&paths), job.publish, observer, |(model, path)| {
        let is_folder = place::is_folder(job, model.source, path)?;
        let planned = if is_folder {
            folder::plan(job, gguf.as_ref(), model, path, files, observer)
        } else {
            file::plan(job, gguf.as_ref(), model, path, files, observer)
        };
        match planned {
            // A folder of the name is not the output.
            Err(error) if is_kept(job, &error) && (!path.is_dir() || has_written_shards(path)) => {
                Ok(PlannedOutput::kept(model.source, path))
            }
            planned => planned,
        }
    })?;
    if job.publish == Publish::Together {
        file::check_space_of_all(&outputs)?;
    }
    Ok(outputs)
}

/// Addition to the message of an interrupt after the first of several outputs.
const SOME: &str = "some outputs were complete";

/// Converts, writes and publishes. `each` receives every input with its output and the result: `None` if the output exists
/// and is kept. Returns the error of `each` or, if outputs are published together, the first error.
pub(crate) fn write<'a>(
    job: &Job,
    outputs: Vec<PlannedOutput<'a>>,
    observer: &dyn Observer,
    mut each: impl FnMut(&'a Checkpoint, &Path, Result<Option<Written>>) -> Result<()>,
) -> Result<()> {
    let is_only = outputs.len() == 1;
    // A folder is published as one.
    if job.publish == Publish::Together && !(is_only && outputs[0].is_folder()) {
        let done = write_together(job, outputs, observer)?;
        return done.into_iter().try_for_each(|(source, path, written)| each(source, &path, Ok(written)));
    }
    let kept = if is_only { "the output was complete" } else { SOME };
    for output in outputs {
        let (source, path) = (output.source, output.path.clone());
        let written = match output.place {
            OutputPlace::Taken => {
                each(source, &path, Ok(None))?;
                continue;
            }
            _ if job.dry_run => output.preview(job, observer),
            OutputPlace::Folder { .. } => folder::write(output, job, observer),
            OutputPlace::File { .. } => {
                let progress = observer.progress("", output.source_bytes());
                let file = output.create(job, observer);
                let file = file
                    .and_then(|file| CompleteFile::write(job, file, &job.run_options(job.lists_tensors(), &*progress)));
                drop(progress);
                file.and_then(|mut file| {
                    file.settle(job, observer)?;
                    file.publish(job, kept)
                })
            }
        };
        each(source, &path, unless_kept(job, written))?;
    }
    Ok(())
}

/// Does the same so that no output takes its name before all are complete.
fn write_together<'a>(
    job: &Job,
    outputs: Vec<PlannedOutput<'a>>,
    observer: &dyn Observer,
) -> Result<Vec<(&'a Checkpoint, PathBuf, Option<Written>)>> {
    let progress = observer.progress("", outputs.iter().map(PlannedOutput::source_bytes).sum());
    let mut done = Vec::new();
    for output in outputs {
        let (source, path) = (output.source, output.path.clone());
        let file = match output.place {
            OutputPlace::Taken => None,
            _ => Some(CompleteFile::write(
                job,
                output.create(job, observer)?,
                &job.run_options(job.lists_tensors(), &*progress),
            )?),
        };
        done.push((source, path, file));
    }
    drop(progress);
    for (_, _, file) in &mut done {
        file.iter_mut().try_for_each(|file| file.settle(job, observer))?;
    }
    let publish = |(source, path, file): (_, _, Option<CompleteFile<'a>>)| {
        let written = file.map(|file| unless_kept(job, file.publish(job, SOME))).transpose()?.flatten();
        Ok((source, path, written))
    };
    done.into_iter().map(publish).collect()
}

/// Returns the path of the output of the only input: as named, or by a name of its own.
#[cfg(feature = "cli")]
pub(crate) fn output_path(job: &Job, source: &Checkpoint) -> Result<PathBuf> {
    place::output_path(job, source, None, true)
}

/// Plans an output that has no place, with all checks of its contents.
#[cfg(feature = "cli")]
pub(crate) fn plan<'a>(job: &Job, model: &Model<'a>, observer: &dyn Observer) -> Result<(Vec<Plan<'a>>, PlanFindings)> {
    let (source, path) = (model.source, &*model.source.path);
    let gguf = GgufTask::of(job.task, job.format().is_some())?;
    let form = if place::is_file(job, source) {
        (place::container(job, source, path)?, Spread::One)
    } else {
        (job.format().unwrap_or(container::SHARDS), folder::spread(job, source))
    };
    let (plans, planned) = check::plans(job, gguf.as_ref(), model, Some(path), form, None, observer)?;
    Ok((plans, planned.findings))
}

/// Returns `None` if an output exists, perhaps made by another run in the meantime, and the job keeps it.
fn unless_kept<T>(job: &Job, made: Result<T>) -> Result<Option<T>> {
    match made {
        Err(error) if is_kept(job, &error) => Ok(None),
        made => made.map(Some),
    }
}

fn is_kept(job: &Job, error: &Error) -> bool {
    job.existing == IfExists::Skip && error.kind() == ErrorKind::Exists
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
