//! `tcast cast`: arguments -> plan -> run -> report.

use super::{print, tell, warn};
use crate::cli::CastArgs;
use crate::container::{self, Container, Facts, Input, Metadata};
use crate::error::{Error, Result, shorten};
use crate::io::map::MappedFile;
use crate::io::output::Destination;
use crate::operator::cast::{Attributes, Opset};
use crate::plan;
use crate::progress::{Bar, Progress, Silent};
use crate::report::Report;
use crate::select::Selection;
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(super) fn run(args: &CastArgs) -> Result<()> {
    let attributes = attributes(args);
    attributes.check()?;
    let start = Instant::now();
    let input = container::open(&args.input)?;
    let output = output_path(args)?;
    let target = match container::by_extension(&output) {
        _ if args.output.is_none() => input.container,
        Some(target) => target,
        None if output.extension().is_none() || output.extension() == args.input.extension() => input.container,
        None => {
            let error = Error::new("tcast writes no format of this extension").in_file(&output);
            return Err(error.remedy(format!("name an output that ends in {}", container::known_formats())));
        }
    };
    let selection = selection(args);
    let inputs: Vec<&Path> = input.files.iter().map(MappedFile::path).collect();
    let destination = Destination::new(&output, args.force, &inputs)?;
    let bytes_in = input.files.iter().map(|file| file.len() as u64).sum();
    let bar =
        |what| -> Box<dyn Progress> { if args.quiet { Box::new(Silent) } else { Box::new(Bar::new(what, bytes_in)) } };
    let measuring = bar("measuring the texts");
    let plan = plan::cast(&input, target, &selection, &attributes, args.from, &|bytes| measuring.advance(bytes))
        .map_err(|error| error.in_file(&args.input))?;
    drop(measuring);
    if !args.quiet {
        warn_of_losses(&input, target, &selection);
    }
    destination.check_room(plan.len)?;
    let options = options(args, attributes);
    let mut report = Report { plan: &plan, input: &args.input, output: &output, options, bytes_in, done: None };
    if args.dry_run {
        let text = if args.json { report.json().to_string() } else { report.table() };
        print(&text)?;
    } else {
        let file = destination.create()?;
        let progress = bar("");
        let counts = crate::engine::run(&plan, &input.files, &file, threads(args), &*progress)
            .map_err(|error| error.in_file(&args.input))?;
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
fn output_path(args: &CastArgs) -> Result<PathBuf> {
    if let Some(output) = &args.output {
        if output == Path::new("-") {
            let error = Error::usage("- does not stand for standard output here").in_file(output);
            return Err(error.remedy("write -o /dev/stdout, or -o ./- for a file of that name"));
        }
        if args.json && !args.dry_run && output == Path::new("/dev/stdout") {
            return Err(Error::usage("--json and the output cannot both go to standard output").in_file(output));
        }
        return Ok(output.clone());
    }
    let Some(to) = args.to else {
        return Err(Error::usage("without --to the output has no name of its own: name it with -o"));
    };
    Ok(with_type(&args.input, to.name()))
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

fn selection(args: &CastArgs) -> Selection {
    let crate::cli::SelectionArgs { all, include, exclude, rule, rename } = &args.selection;
    Selection {
        to: args.to,
        include: include.clone(),
        exclude: exclude.clone(),
        rules: rule.clone(),
        all: *all,
        renames: rename.clone(),
    }
}

fn attributes(args: &CastArgs) -> Attributes {
    let values = &args.values;
    Attributes {
        saturate: values.saturate.or(values.no_saturate.then_some(false)),
        round_mode: values.round_mode,
        out_of_range: values.out_of_range,
        opset: values.opset,
    }
}

fn options(args: &CastArgs, attributes: Attributes) -> serde_json::Value {
    use clap::ValueEnum;
    let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
    let rules = attributes.rules(); // with the defaults of what was not given
    let selection = &args.selection;
    json!({
        "to": args.to.map(crate::dtype::Dtype::name),
        "from": args.from.map(crate::dtype::Dtype::name),
        "saturate": rules.saturate,
        "round_mode": name(rules.round_mode.to_possible_value()),
        "out_of_range": name(rules.out_of_range.to_possible_value()),
        "opset": attributes.opset.map(Opset::number),
        "all": selection.all,
        "include": texts(&selection.include),
        "exclude": texts(&selection.exclude),
        "rules": texts(&selection.rule),
        "renames": texts(&selection.rename),
    })
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}

fn threads(args: &CastArgs) -> usize {
    args.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, Into::into), Into::into)
}
