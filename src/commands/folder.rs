//! A checkpoint is written into a folder: shards, index and side files, by one run or by parts.

use super::{print_json, tell, threads, warn};
use crate::cli::{FileArgs, Part};
use crate::container::checkpoint::{
    self, CONFIG, Checkpoint, INDEX, SideFiles, StoredPath, config, index_text, is_index, is_shard_name, shard_names,
    weight_map, with_dtype,
};
use crate::container::{Input, Tensor};
use crate::engine;
use crate::error::{Error, Result, path_text, quoted, shorten};
use crate::io::identity::{Files, is_within};
use crate::io::map::MappedFile;
use crate::io::output::{Destination, check_room};
use crate::io::sink::{Existing, Summed};
use crate::kernel::Condition;
use crate::measure::hash;
use crate::plan::{Plan, Spread, Step, source_form};
use crate::progress::{Shards, Silent};
use crate::report::{FileReport, Report};
use crate::staging::{self, Manifest, Shard, Source, Staging, Start};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is found out besides the counts.
#[derive(Clone, Copy, Default)]
pub(super) struct Measures {
    /// How far results are from their sources.
    pub(super) figures: bool,
    /// SHA-256 of both.
    pub(super) hash: bool,
}

/// How the work is done.
pub(super) struct Settings<'a> {
    /// Everything is on the disk before it takes its name.
    pub(super) sync: bool,
    pub(super) quiet: bool,
    pub(super) measures: Measures,
    /// What must not happen to a value.
    pub(super) fail_on: &'a [Condition],
    pub(super) threads: usize,
}

/// A folder that is to be written, checked before any work.
pub(super) struct Folder {
    path: PathBuf,
    start: Start,
    manifest: Manifest,
    /// Where the side files are.
    source: Option<PathBuf>,
    left_out: Vec<PathBuf>,
    /// Whether something is there already, which may be what is to be written.
    is_there: bool,
}

impl Folder {
    /// Decides what will be in the folder. `operation` is the operator's name with its options.
    ///
    /// # Errors
    /// When there is something in it, it is the input's own or lies in that, or a file of the input cannot be read.
    pub(super) fn new(
        source: &Checkpoint,
        path: &Path,
        plans: &[Plan],
        spread: Spread,
        (operator, options): (&str, Value),
        start: Start,
        run: &mut Files,
    ) -> Result<Self> {
        if let Some(folder) = &source.folder {
            check_apart(path, folder)?;
        }
        let index_name = source.index.as_ref().map_or(INDEX, |index| &index.name);
        let names = match spread {
            Spread::AsInputs => source.shards.iter().map(|shard| source.shard_name(shard)).collect(),
            Spread::One | Spread::UpTo(_) => shard_names(index_name, plans.len()),
        };
        let has_index = plans.len() > 1 || spread == Spread::AsInputs && source.index.is_some();
        let side_files = match &source.folder {
            Some(folder) => SideFiles::of(folder)?,
            None => SideFiles::default(),
        };
        let shards: Vec<Shard> =
            names.into_iter().zip(plans).map(|(file, plan)| Shard { file, bytes: plan.len }).collect();
        let index = has_index.then(|| index_name.to_owned());
        let index_text = index.clone().into_iter().map(|name| (name, index_of(source, plans, &shards)));
        let config = config_of(source, plans)?.map(|text| (CONFIG.to_owned(), text));
        let side_file = |name: String| Source::of(&source.folder.as_deref().unwrap_or(path).join(&name), name, None);
        let replaced = if start == Start::Replace { replaced(path, &shards)? } else { Vec::new() };
        let manifest = Manifest {
            tcast: env!("CARGO_PKG_VERSION").to_owned(),
            operator: operator.to_owned(),
            options,
            input: source.path.to_string_lossy().into_owned(),
            input_at: StoredPath::absolute(&source.path),
            inputs: source.shards.iter().map(fingerprint).collect::<Result<_>>()?,
            side_files: side_files.kept.into_iter().map(side_file).collect::<Result<_>>()?,
            texts: index_text.chain(config).collect(),
            shards,
            index,
            replaced,
        };
        let is_there = staging::check(path, start, &manifest)?;
        check_files(path, &manifest, run).map_err(|error| error.remedy("name another folder with -o"))?;
        let folder = source.folder.clone();
        Ok(Self { path: path.to_owned(), source: folder, start, left_out: side_files.left_out, manifest, is_there })
    }

    /// Names what is in the folder of the input and will not be in the output.
    pub(super) fn warn_of_left_out(&self) {
        const FEW: usize = 5;
        if self.left_out.is_empty() {
            return;
        }
        let some: Vec<String> = self.left_out.iter().take(FEW).map(|path| shorten(&path_text(path))).collect();
        let more = self.left_out.len() - some.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        warn(&format!("left out, for they are weights of other kinds or no plain files: {}{more}", some.join(", ")));
    }

    /// Whether earlier runs have done all of it, or of one part.
    pub(super) fn is_done(&self, plans: &[Plan], part: Option<Part>) -> bool {
        let chosen = chosen(plans, part).into_iter().map(|at| &self.manifest.shards[at]);
        self.is_there || staging::are_done(&self.path, chosen)
    }

    /// What would be written, or by one part.
    pub(super) fn dry_run<'a>(&self, plans: &[Plan<'a>], part: Option<Part>) -> Vec<FileReport<'a>> {
        let report = |at: usize| FileReport::new(self.manifest.shards[at].file.clone(), &plans[at], None);
        chosen(plans, part).into_iter().map(report).collect()
    }

    /// What would be written, and what would happen to the values.
    ///
    /// # Errors
    /// When a shard cannot be read or converted.
    pub(super) fn measure<'a>(
        &self,
        plans: &[Plan<'a>],
        part: Option<Part>,
        settings: &Settings,
    ) -> Result<Vec<FileReport<'a>>> {
        let chosen = chosen(plans, part);
        let progress = Shards::new(chosen.iter().map(|&at| plans[at].source_bytes()).sum(), settings.quiet);
        let measure = |at: usize| {
            let (plan, name) = (&plans[at], &self.manifest.shards[at].file);
            let progress = progress.shard(format!("{}/{} {}", at + 1, plans.len(), shorten(name)), plan.source_bytes());
            let nowhere = Destination::nowhere().create()?;
            let figures = settings.measures.figures;
            let outcomes = engine::run(plan, &nowhere, settings.threads, figures, &*progress)?;
            Ok(FileReport::new(name.clone(), plan, Some(outcomes)))
        };
        chosen.into_iter().map(measure).collect()
    }

    /// Writes the shards, or those of one part, and what was written before counts as well. Unless parts are missing,
    /// the folder is whole then.
    ///
    /// # Errors
    /// When the disk has no room, or a shard cannot be read, converted or written: what is whole is kept then.
    pub(super) fn write<'a>(
        self,
        plans: Vec<Plan<'a>>,
        part: Option<Part>,
        settings: &Settings,
    ) -> Result<Written<'a>> {
        let chosen = chosen(&plans, part);
        if self.is_there {
            return self.compare(plans, &chosen, settings);
        }
        let shards = self.manifest.shards.clone();
        let folder = self.source.as_deref();
        let staging = Staging::open(&self.path, self.manifest, self.start, settings.sync, folder)?;
        let mut work = Work { staging, plans, shards, settings };
        let (files, before) = match work.convert(&chosen) {
            Ok(done) => done,
            Err(error) => {
                work.staging.fail(&error).iter().for_each(|kept| tell(&format!("tcast: {kept}")));
                return Err(error);
            }
        };
        let (finished, all) = (work.staging.finished(), work.plans.len());
        if files.iter().any(|file| file.meets(settings.fail_on)) {
            // The caller, which has the whole report, shows what was found.
            let _ = work.staging.fail(&Error::new("a loss").into_loss());
            return Ok(Written { files, before, finished, all, was_complete: false });
        }
        if part.is_none() {
            work.staging.finish()?;
        }
        Ok(Written { files, before, finished, all, was_complete: false })
    }

    /// Does the work once more without writing, and compares: a finished conversion is not an error, and anything else is
    /// not taken for one.
    fn compare<'a>(self, mut plans: Vec<Plan<'a>>, chosen: &[usize], settings: &Settings) -> Result<Written<'a>> {
        let explain = |error: Error| {
            let error = error.in_file(&self.path);
            error.remedy("add --force to replace it, or name another folder with -o")
        };
        let there = checkpoint::survey(&self.path)?;
        let other = match other_tensor(&there, &plans) {
            None => staging::difference(&self.path, &self.manifest)?,
            other => other,
        };
        if let Some(other) = other {
            let what = format!("the output exists already, and is not what this command writes: {other}");
            return Err(explain(Error::new(what).into_existing()));
        }
        let total = chosen.iter().map(|&at| plans[at].source_bytes()).sum();
        let progress = Shards::new(total, settings.quiet);
        let mut files = Vec::new();
        for &at in chosen {
            let (name, plan) = (&self.manifest.shards[at].file, &mut plans[at]);
            let file = MappedFile::open(&self.path.join(name))?;
            let progress = progress.shard(format!("comparing {}", shorten(name)), plan.source_bytes());
            let Settings { threads, measures, .. } = *settings;
            let outcomes = engine::run(plan, &Existing(&file), threads, measures.figures, &*progress)
                .map_err(|error| if error.is_existing() { explain(error) } else { error })?;
            plan.literals = Vec::new();
            let mut report = FileReport::new(name.clone(), plan, Some(outcomes));
            if measures.hash {
                report = report.with_hashes(hash::of(plan, &file, threads, &Silent)?);
            }
            file.check_unchanged()?;
            files.push(report);
        }
        staging::remove_rest(&self.path);
        let (before, all) = (files.len(), plans.len());
        Ok(Written { files, before, finished: all, all, was_complete: true })
    }
}

/// A tensor that is not in a folder as it would be written there, in words.
fn other_tensor(there: &Checkpoint, plans: &[Plan]) -> Option<String> {
    let mut found: BTreeMap<&str, &Tensor> = there.tensors().map(|(_, tensor)| (&*tensor.name, tensor)).collect();
    for planned in plans.iter().flat_map(|plan| &plan.steps) {
        let name = shorten(planned.name());
        let Some(tensor) = found.remove(planned.name()) else { return Some(format!("tensor '{name}' is missing")) };
        let is = source_form(tensor, None).map_or("opaque", |form| form.dtype().name());
        let wanted = planned.dtypes().1.name();
        if is != wanted {
            return Some(format!("tensor '{name}' is {is} there, and would be {wanted}"));
        }
        if tensor.shape != planned.shape() {
            return Some(format!("tensor '{name}' has the shape {:?} there", tensor.shape));
        }
    }
    found.keys().next().map(|name| format!("tensor '{}' would not be there", shorten(name)))
}

/// What is in the folder now.
pub(super) struct Written<'a> {
    /// The shards that were asked for.
    pub(super) files: Vec<FileReport<'a>>,
    /// How many of them were whole before.
    pub(super) before: usize,
    /// How many shards of the folder are whole now, and how many there are to be.
    pub(super) finished: usize,
    pub(super) all: usize,
    /// Whether all was there, and nothing was written.
    pub(super) was_complete: bool,
}

/// A conversion under way.
struct Work<'a, 'b> {
    staging: Staging,
    plans: Vec<Plan<'a>>,
    shards: Vec<Shard>,
    settings: &'b Settings<'b>,
}

impl<'a> Work<'a, '_> {
    /// The shards that were asked for, and how many of them were whole before.
    fn convert(&mut self, chosen: &[usize]) -> Result<(Vec<FileReport<'a>>, usize)> {
        // What was done without the measures that are asked for now is done again.
        let Measures { figures, hash } = self.settings.measures;
        let is_measured = |report: &FileReport| {
            let mut tensors = report.tensors.iter();
            tensors.all(|tensor| (!hash || tensor.sha256_out.is_some()) && (!figures || tensor.is_measured()))
        };
        let mut done: Vec<Option<FileReport>> = Vec::new();
        for shard in chosen.iter().map(|&at| &self.shards[at]) {
            let is_ended = self.staging.is_ended();
            let recorded = self.staging.done(shard).filter(|report| is_ended || is_measured(report));
            let verified = if recorded.is_some() { self.staging.verify(shard, self.settings.threads) } else { Ok(()) };
            match verified {
                Ok(()) => done.push(recorded),
                Err(error) if is_ended => return Err(error.remedy("start anew with --force")),
                Err(error) => {
                    if !self.settings.quiet {
                        warn(&format!("{error}; it is done again"));
                    }
                    done.push(None);
                }
            }
        }
        let missing = || chosen.iter().zip(&done).filter(|(_, done)| done.is_none()).map(|(&at, _)| at);
        let folder = self.staging.folder().to_owned();
        check_room(&folder, missing().map(|at| self.plans[at].len).sum()).map_err(|error| error.in_file(&folder))?;
        let total = missing().map(|at| self.plans[at].source_bytes()).sum();
        let progress = Shards::new(total, self.settings.quiet);
        let before = chosen.len() - missing().count();
        let mut files = Vec::new();
        for (&at, done) in chosen.iter().zip(done) {
            files.push(match done {
                Some(report) => report,
                None => self.convert_shard(at, &progress)?,
            });
        }
        Ok((files, before))
    }

    fn convert_shard(&mut self, at: usize, progress: &Shards) -> Result<FileReport<'a>> {
        let (all, name) = (self.plans.len(), &self.shards[at].file);
        let plan = &mut self.plans[at];
        let output = self.staging.place(name).create()?;
        let what = format!("{}/{all} {}", at + 1, shorten(name));
        let progress = progress.shard(what, plan.source_bytes());
        let Settings { threads, measures, fail_on, .. } = *self.settings;
        let summed = Summed::new(&output);
        let outcomes = engine::run(plan, &summed, threads, measures.figures, &*progress)?;
        let sum = summed.sum();
        plan.literals = Vec::new(); // of many tensors these take as much memory as the report will
        let mut report = FileReport::new(name.clone(), plan, Some(outcomes));
        if report.meets(fail_on) {
            return Ok(report);
        }
        if measures.hash {
            let written = output.read_again()?;
            report = report.with_hashes(hash::of(plan, &written, threads, &Silent)?);
        }
        output.publish(self.settings.sync, None)?;
        self.staging.record(name, sum, &report)?;
        Ok(report)
    }
}

/// Puts a folder together that parts were written into, and reports on all of them.
pub(super) fn finish(path: &Path, args: &FileArgs) -> Result<()> {
    let start = Instant::now();
    if !staging::is_unfinished(path)?
        && let Ok(there) = checkpoint::open(path)
        && there.folder.is_some()
    {
        if args.json {
            let (operator, options, bytes_in) = ("cast", Value::Object(Map::new()), there.bytes());
            let (files, before, time) = (Vec::new(), there.shards.len(), Some(start.elapsed()));
            let report = Report {
                operator,
                input: path,
                output: path,
                options,
                bytes_in,
                files,
                before,
                time,
                is_published: false,
            };
            print_json(&report)?;
        }
        if !args.quiet {
            // Nothing tells whether there were parts that were put together.
            let what = "is a whole checkpoint, and no unfinished conversion is in it";
            tell(&format!("{} {what}", already_complete(path)));
        }
        staging::remove_rest(path);
        return Ok(());
    }
    let staging = Staging::reopen(path, !args.no_sync)?;
    for shard in &staging.manifest().shards {
        if staging.done::<IgnoredAny>(shard).is_some() {
            let remedy = "run the command of its part, or of all, again: it does this shard once more; then --finish";
            staging.verify(shard, threads(args.threads)).map_err(|error| error.remedy(remedy))?;
        }
    }
    let manifest = staging.manifest();
    let (operator, options) = (manifest.operator.clone(), manifest.options.clone());
    let input = PathBuf::from(&manifest.input);
    let bytes_in = manifest.inputs.iter().map(|source| source.bytes).sum();
    let files: Vec<FileReport> = manifest.shards.iter().filter_map(|shard| staging.done(shard)).collect();
    staging.finish()?;
    let time = Some(start.elapsed());
    let before = files.len();
    let (operator, input, is_published) = (&*operator, &*input, true);
    let report = Report { operator, input, output: path, options, bytes_in, files, before, time, is_published };
    if args.json {
        print_json(&report)?;
    }
    if !args.quiet {
        tell(&report.summary());
    }
    Ok(())
}

/// A folder by its own name, also where it is given as `.` or the like.
pub(super) fn named(folder: &Path) -> Result<PathBuf> {
    match folder.file_name() {
        Some(_) => Ok(folder.to_owned()),
        None => fs::canonicalize(folder).map_err(|error| Error::io("cannot read", &error).in_file(folder)),
    }
}

/// What to say where nothing is left to be done.
pub(super) fn already_complete(path: &Path) -> String {
    format!("already complete: {}", path_text(path))
}

/// `llama` -> `llama-TYPE`, beside it; the folder's own name where it is given as `.` or the like.
pub(super) fn with_type(folder: &Path, dtype: &str) -> Result<PathBuf> {
    let named = named(folder)?;
    let Some(name) = named.file_name() else {
        return Err(Error::usage("the folder has no name for the output: name one with -o").in_file(folder));
    };
    let mut name = name.to_owned();
    name.push("-");
    name.push(dtype);
    Ok(named.with_file_name(name))
}

/// Refuses an output that is the folder of the input or lies in it: side files would become their own copies.
fn check_apart(output: &Path, input: &Path) -> Result<()> {
    if !is_within(output, input) {
        return Ok(());
    }
    let what = if is_within(input, output) { "is the folder of the input" } else { "lies in the folder of the input" };
    Err(Error::new(format!("the output {what}")).in_file(output).remedy("name a folder elsewhere with -o"))
}

/// The shards that are to be written now.
fn chosen(plans: &[Plan], part: Option<Part>) -> Vec<usize> {
    match part {
        // Of more parts than shards, the last have nothing to do.
        Some(part) => {
            let [of, before] = [part.of, part.number - 1].map(|count| count.min(plans.len() as u64) as usize);
            shares(plans, of).into_iter().nth(before).unwrap_or_default()
        }
        None => (0..plans.len()).collect(),
    }
}

/// Which shards each of `parts` jobs does: the largest first, each to the job with the least to do, so that all end at
/// about the same time. It depends on sizes only, so that every job comes to the same answer.
fn shares(plans: &[Plan], parts: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..plans.len()).collect();
    let bytes = |at: usize| plans[at].source_bytes() + plans[at].len;
    order.sort_by_key(|&at| (std::cmp::Reverse(bytes(at)), at));
    let mut shares = vec![(0, Vec::new()); parts];
    for at in order {
        let least = shares.iter_mut().min_by_key(|(sum, _)| *sum).expect("there is a part");
        least.0 += bytes(at);
        least.1.push(at);
    }
    let in_order = |(_, mut share): (u64, Vec<usize>)| {
        share.sort_unstable();
        share
    };
    shares.into_iter().map(in_order).collect()
}

/// The text of the index.
fn index_of(source: &Checkpoint, plans: &[Plan], shards: &[Shard]) -> String {
    let mut weight_map = BTreeMap::new();
    for (plan, shard) in plans.iter().zip(shards) {
        weight_map.extend(plan.names().map(|name| (name, shard.file.as_str())));
    }
    let metadata = source.index.as_ref().map(|index| index.metadata.clone()).unwrap_or_default();
    let bytes = plans.iter().map(Plan::tensor_bytes).sum();
    let elements = plans.iter().flat_map(|plan| &plan.steps).map(Step::count).sum();
    index_text(&metadata, &weight_map, bytes, elements)
}

/// The config with the type that most weights have now, where that changes it.
///
/// # Errors
/// When there is one and it cannot be read.
fn config_of(source: &Checkpoint, plans: &[Plan]) -> Result<Option<String>> {
    let config = source.folder.as_deref().map(config).transpose()?.flatten();
    let Some(config) = config else { return Ok(None) };
    let mut elements: BTreeMap<&'static str, u64> = BTreeMap::new();
    for tensor in plans.iter().flat_map(|plan| &plan.steps) {
        *elements.entry(tensor.dtypes().1.name()).or_default() += tensor.count();
    }
    Ok(with_dtype(&config, &elements))
}

/// A file of the input, as later runs must find it.
fn fingerprint(shard: &Input) -> Result<Source> {
    let name = shard.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    Source::of(shard.path(), name, Some(shard.header()))
}

/// Refuses a folder that another output of the run is, or in which a file of the input would be replaced or removed.
fn check_files(folder: &Path, manifest: &Manifest, run: &mut Files) -> Result<()> {
    run.write(folder)?;
    manifest.files().chain(&manifest.replaced).try_for_each(|name| run.check_unread(&folder.join(name)))
}

/// What is in a folder of the checkpoint that another one is to replace: its indexes and their shards. Weights that are
/// not known to be of it are not touched, and would be taken for those of the new one.
fn replaced(folder: &Path, shards: &[Shard]) -> Result<Vec<String>> {
    let failed = |error: io::Error| Error::io("cannot read", &error).in_file(folder);
    let entries = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(failed)?,
    };
    let mut there = Vec::new();
    for entry in entries {
        there.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned()); // none of ours is no text
    }
    let mut replaced: Vec<String> = there.iter().filter(|name| is_index(name)).cloned().collect();
    let mut named = Vec::new();
    for index in &replaced {
        let map = weight_map(&folder.join(index));
        let remedy = format!("rm {}, or name another folder with -o", quoted(&folder.join(index)));
        named.extend(map.map_err(|error| error.remedy(remedy))?.into_values().map(|shard| shard.to_string()));
    }
    for name in there.into_iter().filter(|name| is_shard_name(name)) {
        if !named.contains(&name) && !shards.iter().any(|shard| shard.file == name) {
            let path = folder.join(&name);
            let remedy = format!("rm {}, or name another folder with -o", quoted(&path));
            let error =
                Error::new("is no shard of the checkpoint that is to be replaced, and would stay").in_file(&path);
            return Err(error.remedy(remedy));
        }
        replaced.push(name);
    }
    replaced.sort();
    Ok(replaced)
}
