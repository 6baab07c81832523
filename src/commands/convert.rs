//! What `cast` and `bitcast` share: a file or a folder of shards becomes another one.

use super::folder::{self, Folder, Measures, Settings, Written};
use super::report_file::ReportFile;
use super::{check_matched, check_standard_output, print, tell, threads, warn, warn_of_abandoned};
use crate::cli::{FileArgs, Part, SelectionArgs};
use crate::container::checkpoint::{self, Checkpoint, beside, description, quantization};
use crate::container::{self, Container, Facts, Metadata};
use crate::dtype::Dtype;
use crate::engine;
use crate::error::{Error, Result, as_glob, json_text, quoted, quoted_word, shorten, size, visible};
use crate::hash;
use crate::io::identity::Files;
use crate::io::output::{self, Destination, descriptor, directory_of, is_standard_output};
use crate::kernel::{Form, Loss};
use crate::operator::Operator;
use crate::plan::{self, Plan, Request, Spread};
use crate::progress;
use crate::report::{FileReport, Report, skipped};
use crate::scaled::{Codes, can_be_codes};
use crate::select::Selection;
use crate::staging::Start;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A conversion as the arguments have it.
pub(super) struct Job<'a> {
    pub(super) operator: Operator,
    pub(super) input: &'a Path,
    pub(super) to: Option<Dtype>,
    pub(super) file: &'a FileArgs,
    pub(super) selection: Selection,
    /// A pattern may match nothing.
    pub(super) allow_unmatched: bool,
    /// Bytes of tensors in a shard, where shards are to be made anew.
    pub(super) max_shard_size: Option<u64>,
    /// The part of the work that is to be done now.
    pub(super) part: Option<Part>,
    /// Go on with what was begun.
    pub(super) resume: bool,
    /// Cast codes that have scales as if they were values.
    pub(super) force_codes: bool,
    /// Losses that must not happen.
    pub(super) fail_on: Vec<Loss>,
    pub(super) measures: Measures,
    /// Where the report is written as well.
    pub(super) report: Option<&'a Path>,
    /// Further options for the report.
    pub(super) options: Value,
}

impl Job<'_> {
    /// Whether values have to be looked at, also where nothing is written.
    fn is_measured(&self) -> bool {
        self.measures.figures || !self.fail_on.is_empty()
    }
}

/// Plans, runs and reports.
pub(super) fn run(job: &Job) -> Result<()> {
    let args = job.file;
    let start = Instant::now();
    let source = checkpoint::open(job.input)?;
    if !args.quiet {
        source.disagreements.iter().for_each(|disagreement| warn(&disagreement.text));
    }
    let names: Vec<&str> = source.names().collect();
    check_matched(&job.selection, &names, job.allow_unmatched, args.quiet).map_err(|error| error.in_file(job.input))?;
    let output = output_path(job, &source)?;
    let mut run = Files::default();
    run.read(source.files()?);
    let report_file = job.report.map(|path| ReportFile::new(path, args.force, &output, &mut run)).transpose()?;
    let is_folder = is_folder(job, &source, &output);
    let write = if is_folder { to_folder } else { to_file };
    let Written { files, before, finished, all } = match write(job, &source, &output, &mut run) {
        Err(error) if args.skip_existing && error.is_existing() => return skip(job, &output),
        written => written?,
    };
    let time = (!args.dry_run).then(|| start.elapsed());
    let operator = job.operator.name();
    let bytes_in = match job.part {
        Some(_) => files.iter().flat_map(|file| &file.tensors).map(|tensor| tensor.bytes_in).sum(),
        None => source.bytes(),
    };
    let report =
        Report { operator, input: job.input, output: &output, options: options(job), bytes_in, files, before, time };
    if let Some(file) = report_file {
        file.write(&report, &source, args)?;
    }
    if args.json {
        print(&json_text(&report.json()))?;
    } else if args.dry_run {
        print(&report.table())?;
    }
    if !args.quiet {
        tell(&report.summary());
        if args.dry_run
            && !is_standard_output(&output)
            && let Some(available) = output::available(output.parent().unwrap_or(&output))
        {
            let needed = report.files.iter().map(|file| file.bytes).sum();
            tell(&format!("{} of disk space are needed, {} are available", size(needed), size(available)));
        }
        if job.part.is_some() && !args.dry_run {
            let when = if finished == all { "all are" } else { "when all are" };
            tell(&format!("{finished} of {all} shards are done; {when}: tcast cast --finish {}", quoted(&output)));
        }
    }
    Ok(())
}

/// Leaves an output that exists as it is, and says so.
fn skip(job: &Job, output: &Path) -> Result<()> {
    if job.file.json {
        print(&skipped(job.operator.name(), job.input, output).to_string())?;
    }
    if !job.file.quiet {
        tell(&format!("skipped: {} exists", visible(&output.to_string_lossy())));
    }
    Ok(())
}

/// Whether a folder of shards is to be written.
fn is_folder(job: &Job, source: &Checkpoint, output: &Path) -> bool {
    let is_file = is_standard_output(output) || !output.is_dir() && container::by_extension(output).is_some();
    job.max_shard_size.is_some() || source.folder.is_some() && !is_file
}

fn to_folder<'a>(job: &Job, source: &'a Checkpoint, output: &Path, run: &mut Files) -> Result<Written<'a>> {
    let args = job.file;
    if is_standard_output(output) || container::by_extension(output).is_some() && !output.is_dir() {
        let error = Error::usage("--max-shard-size writes a folder of shards").in_file(output);
        return Err(error.remedy("name a folder with -o"));
    }
    let spread = job.max_shard_size.map_or(Spread::AsInputs, Spread::UpTo);
    let plans = plans(job, source, container::SHARDS, spread)?;
    let start = match (job.part, job.resume, args.force) {
        (Some(_), ..) => Start::Part,
        (None, true, _) => Start::Resume,
        (None, false, true) => Start::Replace,
        (None, false, false) => Start::Anew,
    };
    let folder = Folder::new(source, output, &plans, spread, (job.operator.name(), options(job)), start, run)?;
    if !args.quiet {
        folder.warn_of_left_out();
    }
    let threads = threads(args.threads);
    let settings = Settings { sync: !args.no_sync, quiet: args.quiet, measures: job.measures, threads };
    if args.dry_run {
        let files = if job.is_measured() {
            folder.measure(source, &plans, job.part, &settings)?
        } else {
            folder.dry_run(&plans, job.part)
        };
        return Ok(Written { files, before: 0, finished: 0, all: plans.len() });
    }
    folder.write(source, plans, job.part, &settings)
}

fn to_file<'a>(job: &Job, source: &'a Checkpoint, output: &Path, run: &mut Files) -> Result<Written<'a>> {
    let args = job.file;
    if let Some(flag) = job.part.map(|_| "--part").or(job.resume.then_some("--resume")) {
        let error =
            Error::usage(format!("{flag} is for folders of shards, and the output is one file")).in_file(output);
        return Err(error.remedy("leave it out, or name a folder with -o"));
    }
    let given = source.shards[0].container;
    let target = match container::by_extension(output) {
        _ if args.output.is_none() => given,
        Some(target) => target,
        None if output.extension().is_none() || output.extension() == job.input.extension() => given,
        None => {
            let error = Error::new("tcast writes no format of this extension").in_file(output);
            return Err(error.remedy(format!("name an output that ends in {}", container::known_formats())));
        }
    };
    let destination = Destination::among(run, output, args.force)?;
    if job.measures.hash && !destination.keeps() {
        let error = Error::new("cannot be read again for its hashes: it is not a file").in_file(output);
        return Err(error.remedy("leave --hash out, or name a file with -o"));
    }
    let mut plan = plans(job, source, target, Spread::One)?.swap_remove(0);
    destination.check_room(plan.len)?;
    let name = output.to_string_lossy().into_owned();
    if args.dry_run && !job.is_measured() {
        return Ok(Written { files: vec![FileReport::new(name, &plan, None)], before: 0, finished: 0, all: 1 });
    }
    if destination.keeps() && !args.quiet && !args.dry_run {
        warn_of_abandoned(destination.folder());
    }
    let destination = if args.dry_run { Destination::nowhere() } else { destination };
    let file = destination.create()?;
    let progress = progress::shown("", plan.source_bytes(), args.quiet);
    let outcomes = engine::run(&plan, &source.shards, &file, threads(args.threads), job.measures.figures, &*progress)?;
    drop(progress);
    plan.literals = Vec::new(); // of many tensors these take as much memory as the report will
    let mut report = FileReport::new(name, &plan, Some(outcomes));
    if job.measures.hash {
        let progress = progress::shown("hashing", plan.source_bytes() + plan.tensor_bytes(), args.quiet);
        let hashes = hash::of(&plan, &source.shards, &file.read_again()?, threads(args.threads), &*progress)?;
        report = report.with_hashes(hashes);
    }
    file.publish(!args.no_sync, Some("the output was complete"))?;
    Ok(Written { files: vec![report], before: 0, finished: 1, all: 1 })
}

/// Plans, with a bar where texts have to be read for it, and warns of what will be lost.
fn plans<'a>(job: &Job, source: &'a Checkpoint, container: &dyn Container, spread: Spread) -> Result<Vec<Plan<'a>>> {
    let measuring = progress::shown("measuring the texts", source.bytes(), job.file.quiet);
    let is_cast = matches!(job.operator, Operator::Cast(_));
    let codes = if is_cast && !job.force_codes { Some(codes(source)?) } else { None };
    let (selection, from) = (&job.selection, job.file.from);
    let fail_on = &job.fail_on[..];
    let request = Request { operator: job.operator, selection, from, container, codes: codes.as_ref(), fail_on };
    let plans = plan::apply(&request, &source.shards, spread, &|bytes| measuring.advance(bytes))
        .map_err(|error| error.in_file(job.input))?;
    drop(measuring);
    if !job.file.quiet {
        warn_of_losses(source, container, selection);
        warn_of_scales(&plans, codes.as_ref(), selection);
    }
    Ok(plans)
}

/// The tensors that are codes and no values. Files beside the input are looked at only where there can be some.
///
/// # Errors
/// When one of these cannot be read.
fn codes(source: &Checkpoint) -> Result<Codes> {
    let dtype = |tensor: &container::Tensor| plan::source_form(tensor, None).ok().map(Form::dtype);
    let tensors: Vec<_> = source.tensors().map(|(shard, tensor)| (shard.name_of(tensor), dtype(tensor))).collect();
    let (beside, quantization) = match &source.folder {
        _ if !tensors.iter().any(|(_, dtype)| can_be_codes(*dtype)) => (Vec::new(), None),
        Some(folder) => (Vec::new(), quantization(folder)?),
        None => beside(&source.path)?,
    };
    Ok(Codes::find(&tensors, &beside, quantization.as_deref()))
}

/// Warns of what does not reach the output.
fn warn_of_losses(source: &Checkpoint, target: &dyn Container, selection: &Selection) {
    let Facts { extension, has_names, metadata, .. } = target.facts();
    if !has_names && !selection.renames.is_empty() {
        warn(&format!("--rename does nothing: a .{extension} file gives its tensor no name"));
    }
    for input in &source.shards {
        for name in &input.contents.ignored {
            warn(&format!("'{}' is no array and is left out", shorten(name)));
        }
        // A mark means nothing elsewhere, and is no loss.
        let pairs = input.contents.metadata.iter().flatten();
        let is_mark =
            |name: &str| matches!(input.container.facts().metadata, Metadata::Marked(mark, _) if mark == name);
        if metadata == Metadata::None && pairs.into_iter().any(|(name, _)| !is_mark(name)) {
            warn(&format!("the metadata is left out: a .{extension} file has no place for it"));
        }
    }
}

/// Warns of scales that lose precision while their codes stay what they are.
fn warn_of_scales(plans: &[Plan], codes: Option<&Codes>, selection: &Selection) {
    let Some(codes) = codes else { return };
    let tensors = plans.iter().flat_map(|plan| &plan.tensors).filter(|tensor| tensor.is_converted);
    let cast: Vec<&str> = tensors.map(|tensor| &*tensor.source.name).filter(|name| codes.is_scale(name)).collect();
    if let Some(first) = cast.iter().find(|name| selection.rule(name).is_none()) {
        let (count, ending) = (cast.len(), first.rsplit('.').next().unwrap_or_default());
        let exclude = format!("--exclude {}", quoted_word(&format!("*{}", as_glob(ending))));
        warn(&format!("{count} scales of codes are cast too, '{}' is one: {exclude} keeps them", shorten(first)));
    }
}

/// The output as named, or beside the input with the type in its name.
fn output_path(job: &Job, source: &Checkpoint) -> Result<PathBuf> {
    if let Some(output) = &job.file.output {
        check_standard_output(output, job.file.json && !job.file.dry_run)?;
        return Ok(output.clone());
    }
    let Some(to) = job.to else {
        return Err(Error::usage("without --to the output has no name of its own: name it with -o"));
    };
    match &source.folder {
        Some(folder) => folder::with_type(folder, to.name()),
        None if job.max_shard_size.is_some() => folder::with_type(&job.input.with_extension(""), to.name()),
        None => beside_input(job.input, with_type(job.input, to.name())),
    }
}

/// An output beside the input, where the folder is one that users keep files in, and no loader would take the output for a
/// part of the checkpoint that the input is.
fn beside_input(input: &Path, output: PathBuf) -> Result<PathBuf> {
    const SYSTEM: [&str; 3] = ["/dev", "/proc", "/sys"];
    let folder = directory_of(input);
    let whole = fs::canonicalize(folder).unwrap_or_default();
    let is_of_system = SYSTEM.iter().any(|system| whole.starts_with(system)) && !whole.starts_with("/dev/shm");
    if is_of_system || descriptor(input).is_some() {
        let error = Error::usage("the folder of the input is no place for the output").in_file(input);
        return Err(error.remedy("name the output: -o FILE, or -o - for standard output"));
    }
    let is_shard = output.extension() == Some(container::SHARDS.facts().extension.as_ref());
    let Some(other) = description(folder).filter(|_| is_shard) else { return Ok(output) };
    let name = output.file_name().unwrap_or_default();
    let elsewhere = match folder.file_name() {
        Some(_) => folder.with_file_name(name),
        None => folder.join("..").join(name),
    };
    let message =
        format!("{} describes the folder, and a second .safetensors file would make it ambiguous", shorten(&other));
    Err(Error::new(message).in_file(input).remedy(format!("name an output elsewhere: -o {}", quoted(&elsewhere))))
}

/// `model.safetensors` -> `model.TYPE.safetensors`.
fn with_type(input: &Path, dtype: &str) -> PathBuf {
    let mut name: OsString = input.file_stem().unwrap_or_default().to_owned();
    name.push(".");
    name.push(dtype);
    if let Some(extension) = input.extension() {
        name.push(".");
        name.push(extension);
    }
    input.with_file_name(name)
}

/// What the arguments say of which tensors are converted.
pub(super) fn selection(to: Option<Dtype>, args: &SelectionArgs) -> Selection {
    let SelectionArgs { include, exclude, rule, rename, .. } = args;
    Selection {
        to,
        include: include.clone(),
        exclude: exclude.clone(),
        rules: rule.clone(),
        renames: rename.clone(),
        ..Selection::default()
    }
}

/// What decided about the output, for the report.
fn options(job: &Job) -> Value {
    let Selection { include, exclude, rules, renames, .. } = &job.selection;
    let mut options = json!({
        "to": job.to.map(Dtype::name),
        "from": job.file.from.map(Dtype::name),
        "include": texts(include),
        "exclude": texts(exclude),
        "rules": texts(rules),
        "renames": texts(renames),
    });
    if let (Some(options), Value::Object(more)) = (options.as_object_mut(), &job.options) {
        options.extend(more.clone());
    }
    options
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}
