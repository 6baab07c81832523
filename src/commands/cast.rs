//! `tcast cast`: arguments -> plan -> run -> report.

use super::{print, tell, warn};
use crate::cli::CastArgs;
use crate::container;
use crate::error::{Error, Result};
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
    let input = MappedFile::open(&args.input)?;
    let (source, contents) = container::read(input.path(), &input)?;
    let output = output_path(args)?;
    let target = match container::by_extension(&output) {
        Some(target) => target,
        None if output.extension().is_none() || output.extension() == args.input.extension() => source,
        None => {
            let error = Error::new("tcast writes no format of this extension").in_file(&output);
            return Err(error.remedy("name an output that ends in .npy or .safetensors"));
        }
    };
    let stem = args.input.file_stem().unwrap_or_default().to_string_lossy();
    let name = source.holds_one().then_some(&*stem);
    let selection = selection(args);
    if !args.quiet {
        let names: Vec<&str> = contents.tensors.iter().map(|tensor| name.unwrap_or(&tensor.name)).collect();
        for message in selection.unmatched(&names) {
            warn(&message);
        }
    }
    let destination = Destination::new(&output, args.force, &[input.path()])?;
    let plan = plan::cast(&contents, target, &selection, &attributes, args.from, name)
        .map_err(|error| error.in_file(input.path()))?;
    destination.check_room(plan.len)?;
    let bytes_in = input.len() as u64;
    let options = options(args, attributes);
    let mut report = Report { plan: &plan, input: &args.input, output: &output, options, bytes_in, done: None };
    if args.dry_run {
        let text = if args.json { report.json().to_string() } else { report.table() };
        print(&text)?;
    } else {
        let start = Instant::now();
        let file = destination.create()?;
        let progress: Box<dyn Progress> = if args.quiet { Box::new(Silent) } else { Box::new(Bar::new(bytes_in)) };
        let counts = crate::engine::run(&plan, &input, &file, threads(args), &*progress)
            .map_err(|error| error.in_file(input.path()))?;
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

/// The output as named, or beside the input with the type before the extension.
fn output_path(args: &CastArgs) -> Result<PathBuf> {
    if let Some(output) = &args.output {
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
    let crate::cli::SelectionArgs { all, include, exclude, rule } = &args.selection;
    Selection { to: args.to, include: include.clone(), exclude: exclude.clone(), rules: rule.clone(), all: *all }
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
    json!({
        "to": args.to.map(crate::dtype::Dtype::name),
        "from": args.from.map(crate::dtype::Dtype::name),
        "saturate": rules.saturate,
        "round_mode": name(rules.round_mode.to_possible_value()),
        "out_of_range": name(rules.out_of_range.to_possible_value()),
        "opset": attributes.opset.map(Opset::number),
        "all": args.selection.all,
    })
}

fn threads(args: &CastArgs) -> usize {
    args.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, Into::into), Into::into)
}
