//! What `cast` and `bitcast` share: a file or a folder of shards becomes another one.

use super::folder::{self, Folder, Measures, Settings, Written};
use super::report_file::ReportFile;
use super::{
    check_matched, check_standard_output, note, print, print_json, tell, tell_error, threads, warn, warn_of_abandoned,
};
use crate::cli::{FileArgs, Part, SelectionArgs};
use crate::container::checkpoint::{self, Checkpoint, beside, description, quantization};
use crate::container::{self, Container, Facts, Form, Metadata};
use crate::dtype::Dtype;
use crate::engine;
use crate::error::{Error, Result, as_glob, counted, flag_with, path_text, quoted, shorten, size};
use crate::io::identity::Files;
use crate::io::output::{self, Destination, Output, descriptor, directory_of, is_standard_output};
use crate::io::temporaries::NewFolder;
use crate::kernel::Condition;
use crate::measure::hash;
use crate::operator::Operator;
use crate::plan::{self, Plan, Request, Spread, Step};
use crate::progress;
use crate::report::{FileReport, Report, failed, several, skipped};
use crate::scaled::{Codes, can_be_codes};
use crate::select::Selection;
use crate::staging::Start;
use serde_json::{Value, json};
use std::cell::LazyCell;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A conversion as the arguments have it.
pub(super) struct Job<'a> {
    pub(super) operator: Operator,
    pub(super) inputs: &'a [PathBuf],
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
    /// What must not happen to a value.
    pub(super) fail_on: Vec<Condition>,
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

/// An input, and where its output goes.
struct Conversion<'a> {
    input: &'a Path,
    source: &'a Checkpoint,
    output: PathBuf,
    /// Whether the output was named, so that its extension says the format.
    is_named: bool,
}

/// What is to be done, after all that headers and names tell was refused.
#[allow(clippy::large_enum_variant, reason = "there is one for each input, not for each tensor")]
enum Ready<'a> {
    /// Nothing: the output exists.
    Skip,
    /// The destination is missing in a dry run only, where the folder for outputs is not there yet.
    File(Option<Destination>, Plan<'a>, &'static dyn Container),
    Folder(Folder, Vec<Plan<'a>>),
}

impl Ready<'_> {
    /// The type of the first weight that becomes plain float8 in a .safetensors file.
    fn plain_float8(&self) -> Option<Dtype> {
        let is_shard = |container: &dyn Container| container.facts().extension == container::SHARDS.facts().extension;
        let plans = match self {
            Self::File(_, plan, container) if is_shard(*container) => std::slice::from_ref(plan),
            Self::Folder(_, plans) => plans,
            Self::Skip | Self::File(..) => &[],
        };
        let tensors = plans.iter().flat_map(|plan| &plan.steps).filter(|tensor| tensor.is_converted);
        let is_weight = |tensor: &Step| tensor.source().shape.len() >= 2 && tensor.dtypes().0.is_floating();
        let mut weights = tensors.filter(|tensor| is_weight(tensor)).map(|tensor| tensor.dtypes().1);
        weights.find(|to| to.is_float8())
    }
}

/// Plans, runs and reports. Of several inputs all are planned before the first is written, and one that fails then does
/// not keep the others from being converted.
pub(super) fn run(job: &Job) -> Result<()> {
    let (args, start) = (job.file, Instant::now());
    let is_several = job.inputs.len() > 1;
    if is_several {
        raise_file_limit();
    }
    let sources =
        all_of(job.inputs, |input| checkpoint::open(input).map_err(|error| may_be_output(error, job, input)))?;
    if !args.quiet {
        sources.iter().flat_map(|source| &source.disagreements).for_each(|disagreement| warn(&disagreement.text));
    }
    let names: Vec<&str> = sources.iter().flat_map(Checkpoint::names).collect();
    let matched = check_matched(&job.selection, &names, job.allow_unmatched, args.quiet);
    matched.map_err(|error| if is_several { error } else { error.in_file(&job.inputs[0]) })?;
    let folder = output_folder(job, &sources)?;
    let _made = match folder {
        Some(folder) if !args.dry_run && !folder.exists() => {
            output::check_folder(folder)?;
            Some(NewFolder::create(folder)?) // which goes again if nothing is written into it
        }
        _ => None,
    };
    let mut run = Files::default();
    sources.iter().try_for_each(|source| source.files().map(|files| run.read(files)))?;
    let conversions = all_of(&sources, |source| {
        let output = output_path(job, source, folder)?;
        Ok(Conversion { input: &source.path, source, output, is_named: folder.is_none() && args.output.is_some() })
    })?;
    let ready = all_of(&conversions, |one| match prepare(job, one, &mut run) {
        Err(error) if args.skip_existing && error.is_existing() => Ok(Ready::Skip),
        ready => ready,
    })?;
    let has_work = ready.iter().any(|ready| !matches!(ready, Ready::Skip));
    let outputs: Vec<&Path> = conversions.iter().map(|one| &*one.output).collect();
    let report_file = job
        .report
        .filter(|_| has_work)
        .map(|path| ReportFile::new(path, may_replace_report(job, &ready), &outputs, &mut run));
    let report_file = report_file.transpose()?;
    let has_codes = !matches!(job.operator, Operator::Cast(_)) || job.force_codes;
    let plain_float8 = if has_codes || args.quiet { None } else { ready.iter().find_map(Ready::plain_float8) };
    let mut several = Several { plain_float8, ..Several::default() };
    for (one, ready) in conversions.iter().zip(ready) {
        let begin = if is_several { Instant::now() } else { start };
        let written = match execute(job, one, ready) {
            Ok(Some(written)) => written,
            Ok(None) => {
                several.documents.push(skipped(job.operator.name(), one.input, &one.output));
                several.skipped += 1;
                if !args.quiet {
                    tell(&format!("skipped: {} exists", path_text(&one.output)));
                }
                continue;
            }
            Err(error) if !is_several => return Err(error),
            Err(error) => {
                tell_error(&error);
                several.documents.push(failed(job.operator.name(), one.input, &one.output, &error));
                several.failures.push(error);
                continue;
            }
        };
        let (finished, all, was_complete) = (written.finished, written.all, written.was_complete);
        let report = report_of(job, one, written, begin);
        if let Some(error) = report.refusal(&job.fail_on) {
            if !is_several {
                if args.json {
                    print_json(&report)?;
                }
                return Err(error);
            }
            tell_error(&error);
            several.documents.push(json!(report));
            several.failures.push(error);
            continue;
        }
        if is_several {
            several.add(job, &report, was_complete)?;
            continue;
        }
        if let Some(file) = report_file {
            file.write(&report, one.source, args)?;
        }
        if was_complete {
            if args.json {
                print_json(&report)?;
            }
            if !args.quiet {
                tell(&folder::already_complete(&one.output));
            }
            return Ok(());
        }
        return show(job, one, &report, (finished, all), plain_float8);
    }
    several.finish(job, start, report_file)
}

/// Whether a report may take the place of another one: `--resume` makes it anew, and so does a part that was done before.
/// The report of a part that was not is that of somebody else.
fn may_replace_report(job: &Job, ready: &[Ready]) -> bool {
    let is_done = |ready: &Ready| matches!(ready, Ready::Folder(folder, plans) if folder.is_done(plans, job.part));
    job.file.force || job.resume || job.part.is_some() && ready.iter().all(is_done)
}

/// Allows as many open files as the system does: every input stays open, so that what was checked is what is read.
fn raise_file_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }); // a lower limit may do
    }
}

/// Does something with each input. One that is refused is said to be; of several all, and nothing is done then.
fn all_of<'a, T, U>(inputs: &'a [T], mut what: impl FnMut(&'a T) -> Result<U>) -> Result<Vec<U>> {
    if let [only] = inputs {
        return what(only).map(|done| vec![done]);
    }
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for input in inputs {
        match what(input) {
            Ok(result) => done.push(result),
            Err(error) => {
                tell_error(&error);
                refused.push(error);
            }
        }
    }
    match &refused[..] {
        [] => Ok(done),
        _ => Err(summed_up(
            format!("{} of {} inputs are refused, nothing was written", refused.len(), inputs.len()),
            &refused,
        )),
    }
}

/// One error for several: with their exit code where they have one, else 1.
fn summed_up(message: String, errors: &[Error]) -> Error {
    let error = Error::new(message);
    match errors {
        [first, rest @ ..] if rest.iter().all(|other| other.exit_code() == first.exit_code()) => {
            error.with_exit_code(first.exit_code())
        }
        _ => error,
    }
}

/// The error of an input that is not there, which may be meant as the output.
fn may_be_output(error: Error, job: &Job, input: &Path) -> Error {
    let is_last = job.inputs.len() > 1 && job.inputs.last().is_some_and(|last| last == input);
    let is_meant = is_last && job.file.output.is_none() && container::by_extension(input).is_some();
    if is_meant && !input.exists() {
        return error.remedy(format!("-o {}, if it is the output", quoted(input)));
    }
    error
}

/// The folder that outputs go into under their inputs' names: of several inputs the one that is named, of one file a
/// folder that is there, or a name that ends in a slash.
fn output_folder<'a>(job: &Job<'a>, sources: &[Checkpoint]) -> Result<Option<&'a Path>> {
    let Some(output) = job.file.output.as_deref() else { return Ok(None) };
    if let [source] = sources {
        let is_named_so = output.as_os_str().as_encoded_bytes().ends_with(b"/");
        let is_folder = source.folder.is_none() && job.max_shard_size.is_none() && (output.is_dir() || is_named_so);
        return Ok(is_folder.then_some(output));
    }
    if output.exists() && !output.is_dir() || is_standard_output(output) {
        let error = Error::usage("is no folder, and the outputs of several inputs go into one").in_file(output);
        return Err(error.remedy("name a folder with -o"));
    }
    let is_known = !is_named_as_folder(output) && container::by_extension(output).is_some();
    if is_known || is_named_as_file(output) {
        let error = Error::usage("is named as a file, and the outputs of several inputs go into a folder");
        return Err(error
            .in_file(output)
            .remedy(format!("for a folder of that name: -o {}", quoted(&output.join("")))));
    }
    Ok(Some(output))
}

/// Plans an output, and refuses what can be refused.
fn prepare<'a>(job: &Job, one: &Conversion<'a>, run: &mut Files) -> Result<Ready<'a>> {
    let Conversion { source, output, .. } = one;
    let is_file = is_standard_output(output) || !output.is_dir() && container::by_extension(output).is_some();
    let is_folder = job.max_shard_size.is_some() || source.folder.is_some() && !is_file;
    if is_folder && one.is_named && is_named_as_file(output) {
        return Err(unknown_format(output));
    }
    if is_folder { prepare_folder(job, one, run) } else { prepare_file(job, one, run) }
}

/// Whether a new output is named as files are that hold weights, not as a folder; the dot of `llama-3.1` says neither.
fn is_named_as_file(output: &Path) -> bool {
    const FILES: [&str; 24] = [
        "7z", "bin", "bz2", "ckpt", "csv", "gguf", "ggml", "gz", "h5", "hdf5", "json", "keras", "mat", "msgpack",
        "onnx", "pickle", "pkl", "pt", "pth", "tar", "tflite", "txt", "xz", "zip",
    ];
    let extension = output.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    !is_named_as_folder(output) && extension.is_some_and(|extension| FILES.contains(&&*extension))
}

/// Whether an output is a folder, or named as one with a slash at its end.
fn is_named_as_folder(output: &Path) -> bool {
    output.as_os_str().as_encoded_bytes().ends_with(b"/") || output.is_dir()
}

fn unknown_format(output: &Path) -> Error {
    let error = Error::new("tcast writes no format of this extension").in_file(output);
    error.remedy(format!("name an output that ends in {}", container::known_formats()))
}

fn prepare_folder<'a>(job: &Job, one: &Conversion<'a>, run: &mut Files) -> Result<Ready<'a>> {
    let &Conversion { source, ref output, .. } = one;
    if is_standard_output(output) || container::by_extension(output).is_some() && !output.is_dir() {
        let error = Error::usage("--max-shard-size writes a folder of shards").in_file(output);
        return Err(error.remedy("name a folder with -o"));
    }
    let spread = job.max_shard_size.map_or(Spread::AsInputs, Spread::UpTo);
    let (plans, ()) = plans(job, one, container::SHARDS, spread, || Ok(()))?;
    let start = match (job.part, job.resume, job.file.force) {
        (Some(_), ..) => Start::Part,
        (None, true, _) => Start::Resume,
        (None, false, true) => Start::Replace,
        (None, false, false) => Start::Anew,
    };
    let folder = Folder::new(source, output, &plans, spread, (job.operator.name(), options(job)), start, run)?;
    if !job.file.quiet {
        folder.warn_of_left_out();
    }
    Ok(Ready::Folder(folder, plans))
}

fn prepare_file<'a>(job: &Job, one: &Conversion<'a>, run: &mut Files) -> Result<Ready<'a>> {
    let Conversion { input, source, output, is_named } = one;
    if let Some(flag) = job.part.map(|_| "--part").or(job.resume.then_some("--resume")) {
        let error =
            Error::usage(format!("{flag} is for folders of shards, and the output is one file")).in_file(output);
        return Err(error.remedy("leave it out, or name a folder with -o"));
    }
    let given = source.shards[0].container;
    let target = match container::by_extension(output) {
        _ if !is_named => given,
        Some(target) => target,
        None if output.extension().is_none() || output.extension() == input.extension() => given,
        None => return Err(unknown_format(output)),
    };
    let find_place = || {
        if !is_named {
            check_own_place(job, output, run)?;
        }
        if job.file.dry_run
            && !output.parent().is_none_or(|folder| folder == Path::new("") || folder.exists())
            && !is_named
        {
            run.write(output).map_err(|error| error.remedy("name another folder with -o"))?;
            return Ok(None);
        }
        let destination = Destination::among(run, output, job.file.force)?;
        if job.measures.hash && !destination.keeps() {
            let error = Error::new("cannot be read again for its hashes: it is not a file").in_file(output);
            return Err(error.remedy("leave --hash out, or name a file with -o"));
        }
        if !job.fail_on.is_empty() && !job.file.dry_run && !destination.keeps() {
            let error =
                Error::new("cannot be taken back, and --fail-on decides at the end: it is not a file").in_file(output);
            return Err(error.remedy("leave --fail-on out, or name a file with -o"));
        }
        Ok(Some(destination))
    };
    let (mut plans, destination) = plans(job, one, target, Spread::One, find_place)?;
    let mut plan = plans.swap_remove(0);
    // What keeps nothing cannot be read again.
    let keeps = destination.as_ref().is_none_or(Destination::keeps);
    plan.is_deflated = keeps && container::is_deflated(&source.shards[0], target);
    if let Some(destination) = &destination {
        destination.check_room(plan.room())?;
    }
    Ok(Ready::File(destination, plan, target))
}

/// Refuses an output that has the name of its input, in the folder of outputs or with the type in it, where that is taken.
fn check_own_place(job: &Job, output: &Path, run: &Files) -> Result<()> {
    let elsewhere = if job.file.output.is_some() {
        "name another folder with -o, or leave -o out: then the type is in the names of the outputs"
    } else {
        "name the output, or a folder for several outputs, with -o"
    };
    run.check_unread(output).map_err(|error| error.remedy(elsewhere))?;
    let apart = "convert one of these inputs in a run of its own, with another -o";
    run.check_unwritten(output).map_err(|error| error.remedy(apart))
}

/// Does what is planned; `None` where the output exists.
fn execute<'a>(job: &Job, one: &Conversion<'a>, ready: Ready<'a>) -> Result<Option<Written<'a>>> {
    let args = job.file;
    let threads = threads(args.threads);
    let (measures, fail_on) = (job.measures, &job.fail_on[..]);
    let settings = Settings { sync: !args.no_sync, quiet: args.quiet, measures, fail_on, threads };
    let written = match ready {
        Ready::Skip => return Ok(None),
        Ready::File(destination, plan, _) => write_file(job, one, destination, plan, threads),
        Ready::Folder(folder, plans) if args.dry_run => {
            let files = if job.is_measured() {
                folder.measure(&plans, job.part, &settings)?
            } else {
                folder.dry_run(&plans, job.part)
            };
            Ok(Written { files, before: 0, finished: 0, all: plans.len(), was_complete: false })
        }
        Ready::Folder(folder, plans) => folder.write(plans, job.part, &settings),
    };
    match written {
        Err(error) if args.skip_existing && error.is_existing() => Ok(None), // another run has made it meanwhile
        written => written.map(Some),
    }
}

fn write_file<'a>(
    job: &Job,
    one: &Conversion<'a>,
    destination: Option<Destination>,
    mut plan: Plan<'a>,
    threads: usize,
) -> Result<Written<'a>> {
    let args = job.file;
    let name = one.output.to_string_lossy().into_owned();
    if args.dry_run && !job.is_measured() {
        return Ok(Written {
            files: vec![FileReport::new(name, &plan, None)],
            before: 0,
            finished: 0,
            all: 1,
            was_complete: false,
        });
    }
    let destination = destination.filter(|_| !args.dry_run).unwrap_or_else(Destination::nowhere);
    if destination.keeps() && !args.quiet {
        warn_of_abandoned(destination.folder());
    }
    let file = destination.create()?;
    let progress = progress::shown("", plan.source_bytes(), args.quiet);
    // An archive that is to be deflated is first written as it was laid out.
    let stored = (plan.is_deflated && !args.dry_run).then(|| file.beside()).transpose()?;
    let target = stored.as_ref().unwrap_or(&file);
    let outcomes = engine::run(&plan, target, threads, job.measures.figures, &*progress)?;
    drop(progress);
    plan.literals = Vec::new(); // of many tensors these take as much memory as the report will
    let mut report = FileReport::new(name, &plan, Some(outcomes));
    if report.meets(&job.fail_on) {
        return Ok(Written { files: vec![report], before: 0, finished: 0, all: 1, was_complete: false });
    }
    if job.measures.hash {
        let progress = progress::shown("hashing", plan.source_bytes() + plan.tensor_bytes(), args.quiet);
        let hashes = hash::of(&plan, &target.read_again()?, threads, &*progress)?;
        report = report.with_hashes(hashes);
    }
    if let Some(stored) = stored {
        report = deflated(report, &stored, &file, args.quiet).map_err(|error| error.in_file(&one.output))?;
    }
    let kept = if job.inputs.len() > 1 { "some outputs were complete" } else { "the output was complete" };
    file.publish(!args.no_sync, Some(kept))?;
    Ok(Written { files: vec![report], before: 0, finished: 1, all: 1, was_complete: false })
}

/// Deflates an archive of stored members into the output, and gives the report with the lengths since.
pub(super) fn deflated<'a>(
    report: FileReport<'a>,
    stored: &Output,
    output: &Output,
    quiet: bool,
) -> Result<FileReport<'a>> {
    let progress = progress::shown("deflating", report.bytes, quiet);
    let lengths = container::deflate(&stored.read_again()?, output, &|bytes| progress.advance(bytes))?;
    Ok(report.deflated(lengths))
}

fn report_of<'a>(job: &'a Job, one: &'a Conversion<'a>, written: Written<'a>, begin: Instant) -> Report<'a> {
    let Written { files, before, .. } = written;
    let bytes_in = match job.part {
        Some(_) => files.iter().flat_map(|file| &file.tensors).map(|tensor| tensor.bytes_in).sum(),
        None => one.source.bytes(),
    };
    let time = (!job.file.dry_run).then(|| begin.elapsed());
    let (operator, options) = (job.operator.name(), options(job));
    let is_published = time.is_some() && !files.iter().any(|file| file.meets(&job.fail_on));
    Report { operator, input: one.input, output: &one.output, options, bytes_in, files, before, time, is_published }
}

/// Reports on the only input.
fn show(
    job: &Job,
    one: &Conversion,
    report: &Report,
    (finished, all): (usize, usize),
    plain_float8: Option<Dtype>,
) -> Result<()> {
    let (args, output) = (job.file, &one.output);
    if args.json {
        print_json(&report)?;
    } else if args.dry_run {
        print(&report.table())?;
    }
    if !args.quiet {
        tell(&report.summary());
        if args.dry_run {
            tell_room(output, report.room());
        }
        plain_float8.into_iter().for_each(tell_of_plain_float8);
        if job.part.is_some() && !args.dry_run {
            let when = if finished == all { "all are" } else { "when all are" };
            let all = counted(all as u64, "shard");
            tell(&format!("{finished} of {all} are done; {when}: tcast cast --finish {}", quoted(output)));
        }
    }
    Ok(())
}

/// Says who can use float8 weights that have no scales.
fn tell_of_plain_float8(to: Dtype) {
    let more = match to {
        Dtype::Float8E4M3FN | Dtype::Float8E5M2 => "ComfyUI and other tools that read plain float8 load such a file. ",
        _ => "",
    };
    note(&format!("the float8 weights have no scales. {more}vLLM and transformers need scales beside the weights."));
}

fn tell_room(output: &Path, needed: u64) {
    if !is_standard_output(output)
        && let Some(available) = output::available(output.parent().unwrap_or(output))
    {
        tell(&format!("{} of disk space are needed, {} are available", size(needed), size(available)));
    }
}

/// What became of several inputs so far.
#[derive(Default)]
struct Several {
    documents: Vec<Value>,
    done: usize,
    /// Those of which nothing was left to be done.
    complete: usize,
    skipped: usize,
    failures: Vec<Error>,
    /// The type of weights of one of them that become float8 without scales.
    plain_float8: Option<Dtype>,
    bytes_in: u64,
    bytes_out: u64,
    /// Bytes that they take on the disk while they are written.
    room: u64,
}

impl Several {
    /// Reports on one that is converted, which it may have been before.
    fn add(&mut self, job: &Job, report: &Report, was_complete: bool) -> Result<()> {
        if job.file.json || job.report.is_some() {
            self.documents.push(json!(report));
        }
        if was_complete {
            self.complete += 1;
            if !job.file.quiet {
                tell(&folder::already_complete(report.output));
            }
            return Ok(());
        }
        self.done += 1;
        self.bytes_in += report.bytes_in;
        self.bytes_out += report.bytes_out();
        self.room += report.room();
        if job.file.dry_run && !job.file.json {
            print(&report.table())?;
        }
        if !job.file.quiet {
            tell(&report.line());
        }
        Ok(())
    }

    /// Reports on all of them.
    fn finish(mut self, job: &Job, start: Instant, report_file: Option<ReportFile>) -> Result<()> {
        let (args, operator) = (job.file, job.operator.name());
        if job.inputs.len() == 1 {
            return if args.json { print_json(&self.documents.remove(0)) } else { Ok(()) }; // it was skipped
        }
        let time = (!args.dry_run).then(|| start.elapsed());
        let document = several(operator, &self.documents, (self.bytes_in, self.bytes_out), time);
        if let Some(file) = report_file {
            file.write_json(&document, args)?;
        }
        if args.json {
            print_json(&document)?;
        }
        let failed = self.failures.len();
        if !args.quiet {
            let (before, after) = (size(self.bytes_in), size(self.bytes_out));
            let would = if args.dry_run { "would " } else { "" };
            let mut text =
                format!("{would}{operator} {} of {} inputs, {before} -> {after}", self.done, job.inputs.len());
            if let Some(time) = time {
                let _ = write!(text, " in {:.2} s", time.as_secs_f64());
            }
            if self.complete > 0 {
                let _ = write!(text, ", {} already complete", self.complete);
            }
            if self.skipped > 0 {
                let _ = write!(text, ", {} skipped", self.skipped);
            }
            tell(&text);
            if let (true, Some(output)) = (args.dry_run, &args.output) {
                tell_room(output, self.room);
            }
            self.plain_float8.filter(|_| self.done > 0).into_iter().for_each(tell_of_plain_float8);
        }
        if failed == 0 {
            return Ok(());
        }
        Err(summed_up(format!("{failed} of {} inputs failed", job.inputs.len()), &self.failures))
    }
}

/// Plans, with a bar where texts have to be read for it, and warns of what will be lost. `check` comes after the types
/// are refused that cannot be converted, and before the texts are read.
fn plans<'a, T>(
    job: &Job,
    one: &Conversion<'a>,
    container: &dyn Container,
    spread: Spread,
    check: impl FnOnce() -> Result<T>,
) -> Result<(Vec<Plan<'a>>, T)> {
    let source = one.source;
    let is_cast = matches!(job.operator, Operator::Cast(_));
    let codes = if is_cast && !job.force_codes { Some(codes(source)?) } else { None };
    let (selection, from) = (&job.selection, job.file.from);
    let fail_on = &job.fail_on[..];
    let request =
        Request { operator: job.operator, selection, from, container, codes: codes.as_ref(), weights: None, fail_on };
    let in_file = |error: Error| error.in_file(one.input);
    plan::check(&request, &source.shards).map_err(in_file)?;
    check_renames(source, container, selection).map_err(in_file)?;
    let checked = check()?;
    // Only where there are texts: a bar is drawn as soon as it is there.
    let measuring = LazyCell::new(|| progress::shown("measuring the texts", source.bytes(), job.file.quiet));
    let plans = plan::build(&request, &source.shards, spread, &|bytes| measuring.advance(bytes)).map_err(in_file)?;
    drop(measuring);
    check_own_name(job, &plans).map_err(in_file)?;
    if !job.file.quiet {
        warn_of_losses(source, container);
        warn_of_scales(&plans, codes.as_ref(), selection);
    }
    Ok((plans, checked))
}

/// Refuses to name an output after a type that none of its tensors gets.
fn check_own_name(job: &Job, plans: &[Plan]) -> Result<()> {
    const FEW: usize = 5;
    let tensors = || plans.iter().flat_map(|plan| &plan.steps);
    let Some(to) = job.to.filter(|_| job.file.output.is_none() && tensors().next().is_some()) else { return Ok(()) };
    if tensors().any(|tensor| tensor.dtypes().1 == to) {
        return Ok(());
    }
    let copied = || tensors().filter(|tensor| !tensor.is_converted);
    let names: Vec<String> = copied().take(FEW).map(|tensor| format!("'{}'", shorten(tensor.source_name()))).collect();
    let more = match copied().count().saturating_sub(FEW) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let copied = if names.is_empty() { String::new() } else { format!("; copied: {}{more}", names.join(", ")) };
    let error = Error::usage(format!("no tensor becomes {}, so the output has no name of its own{copied}", to.name()));
    Err(error.remedy("name the output with -o"))
}

/// Refuses a name for a tensor in a format that has no place for it.
fn check_renames(source: &Checkpoint, target: &dyn Container, selection: &Selection) -> Result<()> {
    let Facts { extension, has_names, .. } = target.facts();
    let is_renamed = |name| selection.renames.iter().any(|rename| rename.old == name);
    let Some(name) = source.names().find(|name| !has_names && is_renamed(*name)) else { return Ok(()) };
    let error = Error::usage(format!("--rename has no effect: a .{extension} file has no place for a name"));
    Err(error
        .in_tensor(name)
        .remedy(format!("leave --rename out, or name an output that ends in {}", container::formats_with_names())))
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
fn warn_of_losses(source: &Checkpoint, target: &dyn Container) {
    let Facts { extension, metadata, .. } = target.facts();
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
    let tensors = plans.iter().flat_map(|plan| &plan.steps).filter(|tensor| tensor.is_converted);
    let cast: Vec<&str> = tensors.map(Step::source_name).filter(|name| codes.is_scale(name)).collect();
    if let Some(first) = cast.iter().find(|name| selection.rule(name).is_none()) {
        let (count, ending) = (cast.len(), first.rsplit('.').next().unwrap_or_default());
        let exclude = flag_with("--exclude", &format!("*{}", as_glob(ending)));
        let name = shorten(first);
        warn(&match count {
            1 => format!("a scale of codes is cast too, '{name}': {exclude} keeps it"),
            _ => format!("{count} scales of codes are cast too, '{name}' is one: {exclude} keeps them"),
        });
    }
}

/// The output as named, or beside the input with the type in its name.
fn output_path(job: &Job, source: &Checkpoint, folder: Option<&Path>) -> Result<PathBuf> {
    if let Some(folder) = folder {
        return name_in(folder, job, source);
    }
    if let Some(output) = &job.file.output {
        check_standard_output(output, job.file.json && !job.file.dry_run)?;
        return Ok(output.clone());
    }
    let Some(to) = job.to else {
        return Err(Error::usage("without --to the output has no name of its own: name it with -o"));
    };
    match &source.folder {
        Some(folder) => folder::with_type(folder, to.name()),
        None if job.max_shard_size.is_some() => folder::with_type(&source.path.with_extension(""), to.name()),
        None => beside_input(&source.path, with_type(&source.path, to.name())),
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
    check_joins_none(folder, &output).map_err(|error| error.in_file(input))?;
    Ok(output)
}

/// Refuses a file that a loader would take for a part of the checkpoint in its folder.
fn check_joins_none(folder: &Path, output: &Path) -> Result<()> {
    let is_shard = output.extension() == Some(container::SHARDS.facts().extension.as_ref());
    let Some(other) = description(folder).filter(|_| is_shard && !output.exists()) else { return Ok(()) };
    let name = output.file_name().unwrap_or_default();
    let elsewhere = match folder.file_name() {
        Some(_) => folder.with_file_name(name),
        None => folder.join("..").join(name),
    };
    let message =
        format!("{} describes the folder, and a second .safetensors file would make it ambiguous", shorten(&other));
    Err(Error::new(message).remedy(format!("name an output elsewhere: -o {}", quoted(&elsewhere))))
}

/// An input's own name in the folder of outputs.
fn name_in(folder: &Path, job: &Job, source: &Checkpoint) -> Result<PathBuf> {
    let nameless = || Error::usage("has no name for its output").in_file(&source.path).remedy("give it by its name");
    let name = match &source.folder {
        Some(input) => folder::named(input)?.file_name().map(OsString::from),
        None if job.max_shard_size.is_some() => source.path.file_stem().map(OsString::from),
        None => source.path.file_name().map(OsString::from),
    };
    let output = folder.join(name.ok_or_else(nameless)?);
    check_joins_none(folder, &output).map_err(|error| error.in_file(&source.path))?;
    Ok(output)
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
