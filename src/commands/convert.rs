//! What `cast` and `bitcast` share: a file becomes another file.

use super::{print, tell, threads, warn};
use crate::cli::{FileArgs, SelectionArgs};
use crate::container::{self, Container, Facts, Input, Metadata};
use crate::dtype::Dtype;
use crate::error::{Error, Result, shorten};
use crate::io::map::MappedFile;
use crate::io::output::Destination;
use crate::operator::Operator;
use crate::plan;
use crate::progress;
use crate::report::Report;
use crate::select::Selection;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A conversion as the arguments have it.
pub(super) struct Job<'a> {
    pub(super) operator: Operator,
    pub(super) input: &'a Path,
    pub(super) to: Option<Dtype>,
    pub(super) file: &'a FileArgs,
    pub(super) selection: &'a SelectionArgs,
    /// Convert integers and bools to a floating `to` as well.
    pub(super) all: bool,
    /// Further options for the report.
    pub(super) options: Value,
}

/// Plans, runs and reports.
pub(super) fn run(job: &Job) -> Result<()> {
    let args = job.file;
    let start = Instant::now();
    let input = container::open(job.input)?;
    let output = output_path(job)?;
    let target = match container::by_extension(&output) {
        _ if args.output.is_none() => input.container,
        Some(target) => target,
        None if output.extension().is_none() || output.extension() == job.input.extension() => input.container,
        None => {
            let error = Error::new("tcast writes no format of this extension").in_file(&output);
            return Err(error.remedy(format!("name an output that ends in {}", container::known_formats())));
        }
    };
    let selection = selection(job);
    let inputs: Vec<&Path> = input.files.iter().map(MappedFile::path).collect();
    let destination = Destination::new(&output, args.force, &inputs)?;
    let bytes_in = input.files.iter().map(|file| file.len() as u64).sum();
    let measuring = progress::shown("measuring the texts", bytes_in, args.quiet);
    let plan = plan::apply(&job.operator, &input, target, &selection, args.from, &|bytes| measuring.advance(bytes))
        .map_err(|error| error.in_file(job.input))?;
    drop(measuring);
    if !args.quiet {
        warn_of_losses(&input, target, &selection);
    }
    destination.check_room(plan.len)?;
    let (operator, options) = (job.operator, options(job));
    let mut report = Report { operator, plan: &plan, input: job.input, output: &output, options, bytes_in, done: None };
    if args.dry_run {
        let text = if args.json { report.json().to_string() } else { report.table() };
        print(&text)?;
    } else {
        let file = destination.create()?;
        let progress = progress::shown("", bytes_in, args.quiet);
        let counts = crate::engine::run(&plan, &input.files, &file, threads(args.threads), &*progress)
            .map_err(|error| error.in_file(job.input))?;
        drop(progress);
        file.publish(!args.no_sync)?;
        report.done = Some((counts, start.elapsed()));
        if args.json {
            print(&report.json().to_string())?;
        }
    }
    if !args.quiet {
        tell(&report.summary());
    }
    Ok(())
}

/// Warns of patterns that match nothing, and of what does not reach the output.
fn warn_of_losses(input: &Input, target: &dyn Container, selection: &Selection) {
    let names: Vec<&str> = input.contents.tensors.iter().map(|tensor| input.name_of(tensor)).collect();
    for message in selection.unmatched(&names) {
        warn(&message);
    }
    for name in &input.contents.ignored {
        warn(&format!("'{}' is no array and is left out", shorten(name)));
    }
    let Facts { extension, has_names, metadata, .. } = target.facts();
    if !has_names && !selection.renames.is_empty() {
        warn(&format!("--rename does nothing: a .{extension} file gives its tensor no name"));
    }
    // A mark means nothing elsewhere, and is no loss.
    let pairs = input.contents.metadata.iter().flatten();
    let is_mark = |name: &str| matches!(input.container.facts().metadata, Metadata::Marked(mark, _) if mark == name);
    if metadata == Metadata::None && pairs.into_iter().any(|(name, _)| !is_mark(name)) {
        warn(&format!("the metadata is left out: a .{extension} file has no place for it"));
    }
}

/// The output as named, or beside the input with the type before the extension.
fn output_path(job: &Job) -> Result<PathBuf> {
    if let Some(output) = &job.file.output {
        if output == Path::new("-") {
            let error = Error::usage("- does not stand for standard output here").in_file(output);
            return Err(error.remedy("write -o /dev/stdout, or -o ./- for a file of that name"));
        }
        if job.file.json && !job.file.dry_run && output == Path::new("/dev/stdout") {
            return Err(Error::usage("--json and the output cannot both go to standard output").in_file(output));
        }
        return Ok(output.clone());
    }
    let Some(to) = job.to else {
        return Err(Error::usage("without --to the output has no name of its own: name it with -o"));
    };
    Ok(with_type(job.input, to.name()))
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

fn selection(job: &Job) -> Selection {
    let SelectionArgs { include, exclude, rule, rename } = job.selection;
    Selection {
        to: job.to,
        include: include.clone(),
        exclude: exclude.clone(),
        rules: rule.clone(),
        all: job.all,
        renames: rename.clone(),
        ..Selection::default()
    }
}

/// What decided about the output, for the report.
fn options(job: &Job) -> Value {
    let SelectionArgs { include, exclude, rule, rename } = job.selection;
    let mut options = json!({
        "to": job.to.map(Dtype::name),
        "from": job.file.from.map(Dtype::name),
        "include": texts(include),
        "exclude": texts(exclude),
        "rules": texts(rule),
        "renames": texts(rename),
    });
    if let (Some(options), Value::Object(more)) = (options.as_object_mut(), &job.options) {
        options.extend(more.clone());
    }
    options
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}
