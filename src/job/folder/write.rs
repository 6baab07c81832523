//! Writes a folder of shards, or compares it with the existing one.

use crate::container::checkpoint::{self, Checkpoint};
use crate::container::{Container, NewTensor, ReadOptions, Tensor};
use crate::engine::{self, RunOptions};
use crate::error::{Error, Kind, OTHER_FOLDER, Opt, Result};
use crate::io::map::MappedFile;
use crate::io::output::{Destination, check_space};
use crate::io::sink::ExistingFile;
use crate::job::complete::{CompleteFile, NewFile};
use crate::job::outcome::FileReport;
use crate::job::output::{OutputPlace, PlannedOutput};
use crate::job::{Job, Measures, Written};
use crate::measure::hash;
use crate::plan::{Plan, Step};
use crate::progress::{Note, Observer, Silent};
use crate::staging::{self, Manifest, ManifestShard, Staging};
use crate::text::shorten;
use crate::threads::overlapped;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes the shards, or this run's part of them. Shards of earlier runs count as written. If the run covers all shards,
/// the folder is then complete. If it fails, complete shards are kept.
pub(in crate::job) fn write(output: PlannedOutput, job: &Job, observer: &dyn Observer) -> Result<Written> {
    let PlannedOutput { source, path, place, container, plans, chosen, .. } = output;
    let OutputPlace::Folder { start, manifest, is_there } = place else {
        return Err(Error::new("is not a folder").in_file(&path));
    };
    if is_there {
        let modules = if job.format().is_none() { source.modules.len() } else { 0 };
        return compare(&path, &manifest, (plans, modules), &chosen, job, observer);
    }
    let all = plans.len();
    let mut staging = Staging::open(&path, *manifest, start, job.sync, source.side_folder())?;
    let (files, before) = match convert(&mut staging, (container, plans), &chosen, job, observer) {
        Ok(done) => done,
        Err(error) => {
            staging.fail(&error).iter().for_each(|kept| observer.notice(Note::Kept(kept)));
            return Err(error);
        }
    };
    let finished = staging.finished();
    if files.iter().any(|file| file.meets(&job.fail_on)) {
        // The caller has the whole report and shows the losses.
        let _ = staging.fail(&Error::new("a loss").of(Kind::Loss));
    } else if job.partition.is_none() {
        staging.finish()?;
    }
    Ok(Written { files, before, finished, all, was_complete: false })
}

/// Converts again without writing, and compares with the existing folder. A difference is an error. The last plans are of
/// `modules`.
fn compare(
    path: &Path,
    manifest: &Manifest,
    (mut plans, modules): (Vec<Plan>, usize),
    chosen: &[usize],
    job: &Job,
    observer: &dyn Observer,
) -> Result<Written> {
    let other = match (job.format(), staging::difference(path, manifest)?) {
        // A model in GGUF files has no other files that could tell more about the difference.
        (Some(_), Some(other)) => Some(other),
        (format, other) => {
            let model = match format {
                None => path.to_owned(),
                Some(_) => path.join(&manifest.shards[0].file), // which leads to the other parts
            };
            let there = checkpoint::probe(&model, &ReadOptions::on(job.threads))?;
            let of_model = plans.len() - modules;
            other_tensor(&there, &plans[..of_model], format.is_some()).or(other)
        }
    };
    if let Some(other) = other {
        let what = format!("the output exists already, and is not what this command writes: {other}");
        return Err(Error::new(what).existing(OTHER_FOLDER).in_file(path));
    }
    let progress = observer.checkpoint(chosen.iter().map(|&at| plans[at].source_bytes()).sum());
    let mut files = Vec::new();
    for &at in chosen {
        let (name, plan) = (&manifest.shards[at].file, &mut plans[at]);
        let file = MappedFile::open(&path.join(name))?;
        let progress = progress.shard(format!("comparing {}", shorten(name)), plan.source_bytes());
        let outcomes = engine::run(plan, &ExistingFile(&file), &job.run_options(true, &*progress))?;
        plan.literals = Vec::new();
        let mut report = FileReport::new(name.clone(), plan, Some(outcomes));
        if job.measures.hash {
            report.add_hashes(hash::of(plan, (&file, None), job.threads, &Silent)?);
        }
        file.check_unchanged()?;
        files.push(report);
    }
    staging::remove_rest(path);
    let (before, all) = (files.len(), plans.len());
    Ok(Written { files, before, finished: all, all, was_complete: true })
}

/// Describes a tensor in an existing folder that differs from the tensor to write there. A GGUF has other tensors too: the
/// computed ones, which are compared with its header.
fn other_tensor(there: &Checkpoint, plans: &[Plan], is_gguf: bool) -> Option<String> {
    let mut found: BTreeMap<&str, &Tensor> = there.tensors().map(|(_, tensor)| (&*tensor.name, tensor)).collect();
    for NewTensor { name, dtype, shape, .. } in plans.iter().flat_map(|plan| &plan.steps).flat_map(Step::stored_tensors)
    {
        let tensor = found.remove(&*name);
        let name = shorten(&name);
        let Some(tensor) = tensor else { return Some(format!("tensor '{name}' is missing")) };
        if tensor.elements.stored_dtype() != dtype {
            return Some(format!("tensor '{name}' is {} there, and would be {dtype}", tensor.type_name()));
        }
        if *tensor.shape != *shape {
            return Some(format!("tensor '{name}' has the shape {:?} there", tensor.shape));
        }
    }
    let more = found.keys().next().filter(|_| !is_gguf);
    more.map(|name| format!("tensor '{}' would not be there", shorten(name)))
}

/// Converts the requested shards; returns their reports, and the number of shards that were complete before.
fn convert(
    staging: &mut Staging,
    (container, plans): (&'static dyn Container, Vec<Plan>),
    chosen: &[usize],
    job: &Job,
    observer: &dyn Observer,
) -> Result<(Vec<FileReport>, usize)> {
    let shards = staging.manifest().shards.clone();
    let mut done: Vec<Option<FileReport>> = Vec::new();
    for &at in chosen {
        done.push(recorded(staging, &shards[at], job, observer)?);
    }
    let missing: Vec<usize> = chosen.iter().zip(&done).filter(|(_, done)| done.is_none()).map(|(&at, _)| at).collect();
    let folder = staging.folder().to_owned();
    let needed = missing.iter().map(|&at| plans[at].len).sum();
    check_space(&folder, needed).map_err(|error| error.in_file(&folder))?;
    let progress = observer.checkpoint(missing.iter().map(|&at| plans[at].source_bytes()).sum());
    let before = chosen.len() - missing.len();
    let place = |at: usize| Ok((at, staging.place(&shards[at].file)?));
    let places = missing.into_iter().map(place).collect::<Result<Vec<_>>>()?;
    let has_failed = AtomicBool::new(false);
    let mut plans: Vec<Option<Plan>> = plans.into_iter().map(Some).collect();
    // While a shard is flushed, the next one is converted.
    let convert = |(at, place): (usize, Destination)| {
        let (name, all, plan) =
            (&shards[at].file, shards.len(), plans[at].take().expect("each shard is converted once"));
        let progress = progress.shard(format!("{}/{all} {}", at + 1, shorten(name)), plan.source_bytes());
        let output = place.create()?.flushed_early(job.sync).summed();
        // Ends early after another error, which is then reported.
        let options = RunOptions { cancel: &[job.cancel, &has_failed], ..job.run_options(true, &*progress) };
        let mut file = CompleteFile::write(job, NewFile { plan, name: name.clone(), container, output }, &options)?;
        file.settle(job, &Silent)?;
        Ok(file)
    };
    let publish = |file: CompleteFile| {
        let published = publish(file, staging, job.sync);
        published.inspect_err(|_| has_failed.store(true, Ordering::Relaxed))
    };
    let mut published = overlapped(places.into_iter(), convert, publish)?.into_iter();
    let files = done.into_iter().filter_map(|done| done.or_else(|| published.next())).collect();
    Ok((files, before))
}

/// Returns the report of a shard that an earlier run has completed; `None` if it has to be converted, perhaps again.
fn recorded(
    staging: &Staging,
    shard: &ManifestShard,
    job: &Job,
    observer: &dyn Observer,
) -> Result<Option<FileReport>> {
    // Shards that were converted without the requested measurements are converted again.
    let Measures { accuracy, hash } = job.measures;
    let is_measured = |report: &FileReport| {
        let mut tensors = report.tensors.iter();
        tensors.all(|tensor| (!hash || tensor.is_hashed()) && (!accuracy || tensor.is_measured()))
    };
    let is_ended = staging.is_ended();
    let Some(report) = staging.done(shard).filter(|report| is_ended || is_measured(report)) else { return Ok(None) };
    match staging.verify(shard, job.threads) {
        Ok(()) => Ok(Some(report)),
        Err(error) if is_ended => Err(error.of(Kind::Unfinished).with(Opt::FORCE, "start again with {}")),
        Err(error) => {
            observer.notice(Note::DoneAgain(&error));
            Ok(None)
        }
    }
}

/// Gives a shard its name and records it, unless the job refuses one of its values.
fn publish(shard: CompleteFile, staging: &mut Staging, sync: bool) -> Result<FileReport> {
    let CompleteFile { output, report, is_refused, .. } = shard;
    if !is_refused {
        let sum = output.sum();
        output.take_name(sync, None)?;
        staging.record(&report.file, sum, &report)?;
    }
    Ok(report)
}
