//! Writes a folder of shards, or compares it with the existing one.

use super::FolderOutput;
use crate::container::checkpoint::{self, Checkpoint};
use crate::container::{self, NewTensor, ReadOptions, Tensor};
use crate::engine::{self, RunOptions};
use crate::error::{Error, Kind, OutputRole, Result};
use crate::io::map::MappedFile;
use crate::io::output::{Destination, Output, check_space};
use crate::io::sink::ExistingFile;
use crate::job::outcome::FileReport;
use crate::job::{Job, Measures, Written};
use crate::measure::hash;
use crate::plan::{Plan, Step};
use crate::progress::{Note, Observer, Progress, Silent};
use crate::staging::{self, ManifestShard, Staging};
use crate::text::shorten;
use crate::threads::overlapped;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

impl FolderOutput<'_> {
    /// Reports the shards that this run would write. If the job reports results, converts them without writing.
    fn dry_run(&self, job: &Job, observer: &dyn Observer) -> Result<Vec<FileReport>> {
        let Self { plans, chosen, .. } = self;
        if !job.reports_results() {
            let report = |&at: &usize| FileReport::new(self.manifest.shards[at].file.clone(), &plans[at], None);
            return Ok(chosen.iter().map(report).collect());
        }
        let progress = observer.checkpoint(chosen.iter().map(|&at| plans[at].source_bytes()).sum());
        let measure = |&at: &usize| {
            let (plan, name) = (&plans[at], &self.manifest.shards[at].file);
            let progress = progress.shard(format!("{}/{} {}", at + 1, plans.len(), shorten(name)), plan.source_bytes());
            let nowhere = Destination::nowhere().create()?;
            let outcomes = engine::run(plan, &nowhere, &job.run_options(&*progress))?;
            Ok(FileReport::new(name.clone(), plan, Some(outcomes)))
        };
        chosen.iter().map(measure).collect()
    }

    /// Writes the shards, or this run's part of them. Shards of earlier runs count as written. If the run covers all
    /// shards, the folder is then complete. If it fails, complete shards are kept.
    pub(in crate::job) fn run(self, job: &Job, observer: &dyn Observer) -> Result<Written> {
        if job.dry_run {
            let files = self.dry_run(job, observer)?;
            return Ok(Written { files, before: 0, finished: 0, all: self.plans.len(), was_complete: false });
        }
        if self.is_there {
            return self.compare(job, observer);
        }
        let Self { path, start, manifest, source, chosen, mut plans, .. } = self;
        let mut staging = Staging::open(&path, manifest, start, job.sync, source.as_deref())?;
        let (files, before) = match convert(&mut staging, &mut plans, &chosen, job, observer) {
            Ok(done) => done,
            Err(error) => {
                staging.fail(&error).iter().for_each(|kept| observer.notice(Note::Kept(kept)));
                return Err(error);
            }
        };
        let (finished, all) = (staging.finished(), plans.len());
        drop(plans); // for many tensors they take as much memory as the last step
        if files.iter().any(|file| file.meets(&job.fail_on)) {
            // The caller has the whole report and shows the losses.
            let _ = staging.fail(&Error::new("a loss").of(Kind::Loss));
        } else if job.partition.is_none() {
            staging.finish()?;
        }
        Ok(Written { files, before, finished, all, was_complete: false })
    }

    /// Converts again without writing, and compares with the existing output. A difference is an error.
    fn compare(mut self, job: &Job, observer: &dyn Observer) -> Result<Written> {
        let other = match (job.format(), staging::difference(&self.path, &self.manifest)?) {
            // A model in GGUF files has no other files that could tell more about the difference.
            (Some(_), Some(other)) => Some(other),
            (format, other) => {
                let model = match format {
                    None => self.path.clone(),
                    Some(_) => self.path.join(&self.manifest.shards[0].file), // which leads to the other parts
                };
                let there = checkpoint::probe(&model, &ReadOptions::on(job.threads))?;
                let of_model = self.plans.len() - self.modules;
                other_tensor(&there, &self.plans[..of_model], format.is_some()).or(other)
            }
        };
        if let Some(other) = other {
            let what = format!("the output exists already, and is not what this command writes: {other}");
            return Err(Error::new(what).of(Kind::exists(OutputRole::Folder)).in_file(&self.path));
        }
        let progress = observer.checkpoint(self.chosen.iter().map(|&at| self.plans[at].source_bytes()).sum());
        let mut files = Vec::new();
        for &at in &self.chosen {
            let (name, plan) = (&self.manifest.shards[at].file, &mut self.plans[at]);
            let file = MappedFile::open(&self.path.join(name))?;
            let progress = progress.shard(format!("comparing {}", shorten(name)), plan.source_bytes());
            let Job { threads, measures, .. } = *job;
            let outcomes = engine::run(plan, &ExistingFile(&file), &job.run_options(&*progress))?;
            plan.literals = Vec::new();
            let mut report = FileReport::new(name.clone(), plan, Some(outcomes));
            if measures.hash {
                report.add_hashes(hash::of(plan, (&file, None), threads, &Silent)?);
            }
            file.check_unchanged()?;
            files.push(report);
        }
        staging::remove_rest(&self.path);
        let (before, all) = (files.len(), self.plans.len());
        Ok(Written { files, before, finished: all, all, was_complete: true })
    }
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
    plans: &mut [Plan],
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
    // While a shard is flushed, the next one is converted.
    let convert = |(at, place): (usize, Destination)| {
        let (name, all, plan) = (&shards[at].file, shards.len(), &mut plans[at]);
        let progress = progress.shard(format!("{}/{all} {}", at + 1, shorten(name)), plan.source_bytes());
        convert_shard(plan, name, place, job, &*progress, &has_failed)
    };
    let publish = |shard: ConvertedShard| {
        let published = shard.publish(staging, job.sync);
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
        Err(error) if is_ended => Err(error.of(Kind::Stale)),
        Err(error) => {
            observer.notice(Note::DoneAgain(&error));
            Ok(None)
        }
    }
}

/// A shard that is complete, but has no name yet.
struct ConvertedShard {
    report: FileReport,
    /// `None` if the job refuses one of its values.
    output: Option<Output>,
}

/// Converts a shard, with progress. Ends early if `has_failed` is set, because another error is then reported.
fn convert_shard(
    plan: &mut Plan,
    name: &str,
    place: Destination,
    job: &Job,
    progress: &dyn Progress,
    has_failed: &AtomicBool,
) -> Result<ConvertedShard> {
    let output = place.create()?.flushed_early(job.sync).summed();
    let Job { threads, measures, ref fail_on, .. } = *job;
    let options = RunOptions { cancel: &[job.cancel, has_failed], ..job.run_options(progress) };
    let outcomes = engine::run(plan, &output, &options)?;
    plan.literals = Vec::new(); // for many tensors these take as much memory as the report will
    plan.check_written(job.format().unwrap_or(container::SHARDS), &output)?;
    let mut report = FileReport::new(name.to_owned(), plan, Some(outcomes));
    if report.meets(fail_on) {
        return Ok(ConvertedShard { report, output: None });
    }
    if measures.hash {
        let written = output.read_again()?;
        report.add_hashes(hash::of(plan, (&written, None), threads, &Silent)?);
    }
    Ok(ConvertedShard { report, output: Some(output) })
}

impl ConvertedShard {
    /// Gives the shard its name and records it.
    fn publish(self, staging: &mut Staging, sync: bool) -> Result<FileReport> {
        let Self { report, output } = self;
        if let Some(output) = output {
            let sum = output.sum();
            output.take_name(sync, None)?;
            staging.record(&report.file, sum, &report)?;
        }
        Ok(report)
    }
}
