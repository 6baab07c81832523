//! `tcast promote`: tensors of several files, or of one, get the type that they have in common.

use super::convert::deflated;
use super::folder::{self, Measures, Settings};
use super::{check_standard_output, print, print_json, say_which, tell, threads, warn_of_abandoned};
use crate::cli::PromoteArgs;
use crate::container::checkpoint::{self, Checkpoint};
use crate::container::{self, Container, Tensor};
use crate::dtype::Dtype;
use crate::engine;
use crate::error::{Error, Result, counted, path_text, shorten};
use crate::io::identity::Files;
use crate::io::output::{Destination, NewFolder, is_standard_output};
use crate::kernel::{Counts, Loss};
use crate::operator::promote::{self, Attributes, Decision};
use crate::operator::{Operator, cast};
use crate::plan::{self, Plan, Request, Spread};
use crate::progress;
use crate::report::{FileReport, TensorReport};
use crate::select::Selection;
use crate::staging::Start;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The version of the JSON document; it changes when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// A tensor that takes part, and the file that it is in.
struct Part<'a> {
    file: usize,
    tensor: &'a Tensor,
    /// As messages name it.
    name: String,
    dtype: Dtype,
}

pub(super) fn run(args: &PromoteArgs) -> Result<()> {
    let start = Instant::now();
    promote::check_u64_target(args.u64_target).map_err(Error::into_usage)?;
    let inputs: Vec<Checkpoint> = args.inputs.iter().map(|path| checkpoint::open(path)).collect::<Result<_>>()?;
    plan::check_from(inputs.iter().flat_map(Checkpoint::tensors).map(|(_, tensor)| tensor), args.from)?;
    let parts = parts(args, &inputs)?;
    let attributes =
        Attributes { is_unsafe: args.r#unsafe, pytorch_scalar: args.pytorch_scalar, u64_target: args.u64_target };
    let named: Vec<promote::Input> = parts
        .iter()
        .map(|part| promote::Input { name: &part.name, dtype: part.dtype, is_scalar: part.tensor.shape.is_empty() })
        .collect();
    let decision = promote::promote(&named, &attributes)?;
    if args.saturate.is_some() && !decision.dtype.is_float8() && decision.dtype != Dtype::Float8E8M0 {
        let error = Error::usage(format!("--saturate is for float8 types, and the common one is {}", decision.dtype));
        return Err(error.remedy("leave --saturate out"));
    }
    if args.dry_run {
        let nothing = Written { outputs: Vec::new(), skipped: Vec::new() };
        return if args.json {
            print_json(&document(args, &parts, decision, &nothing))
        } else {
            print(decision.dtype.name())
        };
    }
    let written = write(args, &inputs, decision)?;
    if args.json {
        print_json(&document(args, &parts, decision, &written))?;
    }
    if !args.quiet {
        tell(&summary(decision, &written, start.elapsed()));
    }
    Ok(())
}

/// The names of the tensors of an input that take part; none where it has one only, which always does.
fn only(args: &PromoteArgs, input: &Checkpoint) -> Vec<String> {
    if input.tensors().count() == 1 { Vec::new() } else { args.tensor.clone() }
}

/// The tensors that take part: the only one of an input, or those named.
fn parts<'a>(args: &PromoteArgs, inputs: &'a [Checkpoint]) -> Result<Vec<Part<'a>>> {
    let mut parts = Vec::new();
    let mut found = HashSet::new();
    for ((file, input), path) in inputs.iter().enumerate().zip(&args.inputs) {
        let only = only(args, input);
        let before = parts.len();
        for (shard, tensor) in input.tensors() {
            let name = shard.name_of(tensor);
            if !only.is_empty() && !only.iter().any(|only| only == name) {
                continue;
            }
            let in_tensor = |error: Error| error.in_tensor(&tensor.name).in_file(shard.path());
            let dtype = plan::source_form(tensor, args.from).map_err(in_tensor)?.dtype();
            found.insert(name);
            let name = if inputs.len() == 1 { shorten(name) } else { shorten(&path_text(path)) };
            parts.push(Part { file, tensor, name, dtype });
        }
        if input.tensors().count() != 1 && (only.is_empty() || parts.len() == before) {
            return Err(say_which(input).in_file(path));
        }
    }
    match args.tensor.iter().find(|name| !found.contains(name.as_str())) {
        Some(missing) => Err(Error::new(format!("--tensor: there is no tensor '{}'", shorten(missing)))),
        None => Ok(parts),
    }
}

/// What became of one input.
struct Output<'a> {
    from: PathBuf,
    to: PathBuf,
    bytes_in: u64,
    /// One, or the shards of a folder.
    files: Vec<FileReport<'a>>,
}

/// What is there now.
struct Written<'a> {
    outputs: Vec<Output<'a>>,
    /// What was there before, and was left alone.
    skipped: Vec<PathBuf>,
}

/// Plans all outputs, writes all, and then gives them their names.
fn write<'a>(args: &PromoteArgs, inputs: &'a [Checkpoint], decision: Decision) -> Result<Written<'a>> {
    let Some(output) = &args.output else { return Err(Error::usage("name the output with -o")) };
    check_standard_output(output, args.json)?;
    let mut run = Files::default();
    inputs.iter().try_for_each(|input| input.files().map(|files| run.read(files)))?;
    if let Some(folder) = inputs.iter().find(|input| input.folder.is_some()) {
        if inputs.len() > 1 {
            let error = Error::usage("a folder of shards is promoted alone").in_file(&folder.path);
            return Err(error.remedy("name the tensors in it with --tensor"));
        }
        if output.is_dir() || container::by_extension(output).is_none() && !is_standard_output(output) {
            return match write_folder(args, folder, output, decision, &mut run) {
                Err(error) if args.skip_existing && error.is_existing() => {
                    Ok(Written { outputs: Vec::new(), skipped: vec![output.clone()] })
                }
                written => written.map(|output| Written { outputs: vec![output], skipped: Vec::new() }),
            };
        }
    }
    let folder = Folder::new(output, args.inputs.len() == 1)?;
    let (mut planned, mut skipped) = (Vec::new(), Vec::new());
    for input in inputs {
        let to = folder.place(&input.path);
        let target = container::by_extension(&to).unwrap_or(input.shards[0].container);
        let destination = match Destination::among(&mut run, &to, args.force) {
            Err(error) if args.skip_existing && error.is_existing() => {
                skipped.push(to);
                continue;
            }
            destination => destination?,
        };
        let mut plan = plans(args, input, decision, target, Spread::One)?.swap_remove(0);
        plan.is_deflated = destination.keeps() && container::is_deflated(&input.shards[0], target);
        planned.push((destination, input, to, plan));
    }
    let needed = planned.iter().map(|(.., plan)| plan.room()).sum();
    if let Some((destination, ..)) = planned.first() {
        destination.check_room(needed)?;
        if destination.keeps() && !args.quiet {
            warn_of_abandoned(destination.folder());
        }
    }
    let bytes = planned.iter().map(|(.., plan)| plan.source_bytes()).sum();
    let progress = progress::shown("", bytes, args.quiet);
    let mut done = Vec::new();
    for (destination, input, to, mut plan) in planned {
        let file = destination.create()?;
        let stored = plan.is_deflated.then(|| file.beside()).transpose()?;
        let target = stored.as_ref().unwrap_or(&file);
        let outcomes = engine::run(&plan, target, threads(args.threads), false, &*progress)?;
        plan.literals = Vec::new();
        let report = FileReport::new(to.to_string_lossy().into_owned(), &plan, Some(outcomes));
        done.push((
            file,
            stored,
            Output { from: input.path.clone(), to, bytes_in: input.bytes(), files: vec![report] },
        ));
    }
    drop(progress);
    for (file, stored, output) in &mut done {
        if let Some(stored) = stored.take()
            && let Some(report) = output.files.pop()
        {
            let report = deflated(report, &stored, file, args.quiet).map_err(|error| error.in_file(&output.to))?;
            output.files.push(report);
        }
    }
    let mut outputs = Vec::new();
    for (file, _, output) in done {
        file.publish(!args.no_sync, Some("some outputs were complete"))?;
        outputs.push(output);
    }
    if let Some(made) = folder.made {
        made.keep();
    }
    Ok(Written { outputs, skipped })
}

/// A whole checkpoint, of which some tensors get another type.
fn write_folder<'a>(
    args: &PromoteArgs,
    input: &'a Checkpoint,
    to: &Path,
    decision: Decision,
    run: &mut Files,
) -> Result<Output<'a>> {
    let spread = Spread::AsInputs;
    let plans = plans(args, input, decision, container::SHARDS, spread)?;
    let options = json!({ "to": decision.dtype, "tensor": args.tensor, "from": args.from, "saturate": args.saturate });
    let start = if args.force { Start::Replace } else { Start::Anew };
    let folder = folder::Folder::new(input, to, &plans, spread, ("promote", options), start, run)?;
    if !args.quiet {
        folder.warn_of_left_out();
    }
    let threads = threads(args.threads);
    let settings =
        Settings { sync: !args.no_sync, quiet: args.quiet, measures: Measures::default(), fail_on: &[], threads };
    let files = folder.write(plans, None, &settings)?.files;
    Ok(Output { from: input.path.clone(), to: to.to_owned(), bytes_in: input.bytes(), files })
}

fn plans<'a>(
    args: &PromoteArgs,
    input: &'a Checkpoint,
    decision: Decision,
    container: &dyn Container,
    spread: Spread,
) -> Result<Vec<Plan<'a>>> {
    let only = only(args, input);
    let selection = Selection { to: Some(decision.dtype), all: true, only, ..Selection::default() };
    let from = args.from.filter(|_| plan::check_from(input.tensors().map(|(_, tensor)| tensor), args.from).is_ok());
    let attributes = cast::Attributes { saturate: args.saturate, ..cast::Attributes::default() };
    let request = Request {
        operator: Operator::Promote(attributes),
        selection: &selection,
        from,
        container,
        codes: None,
        weights: None,
        fail_on: &[],
    };
    plan::build(&request, &input.shards, spread, &|_| {}).map_err(|error| error.in_file(&input.path))
}

/// Where outputs go.
struct Folder {
    path: PathBuf,
    is_file: bool,
    /// The folder, where it was not there before.
    made: Option<NewFolder>,
}

impl Folder {
    /// A file name is meant where there is one input and the path says a format.
    fn new(path: &Path, is_one: bool) -> Result<Self> {
        let is_stream = is_standard_output(path);
        if is_stream && !is_one {
            let error = Error::usage("several outputs cannot go to standard output").in_file(path);
            return Err(error.remedy("name a folder with -o"));
        }
        let is_file = is_stream || is_one && !path.is_dir() && container::by_extension(path).is_some();
        let is_new = !is_file && !path.exists();
        if !is_new && !is_file && !path.is_dir() {
            return Err(Error::new("is no folder, and the outputs go into one").in_file(path));
        }
        let made = if is_new { Some(NewFolder::create(path)?) } else { None };
        Ok(Self { path: path.to_owned(), is_file, made })
    }

    fn place(&self, input: &Path) -> PathBuf {
        if self.is_file { self.path.clone() } else { self.path.join(input.file_name().unwrap_or_default()) }
    }
}

/// What was decided, why, and what each input could lose; then what the outputs lost.
fn document(args: &PromoteArgs, parts: &[Part], decision: Decision, written: &Written) -> Value {
    let inputs = parts.iter().map(|part| {
        json!({
            "file": args.inputs[part.file].to_string_lossy(),
            "tensor": part.tensor.name,
            "dtype": part.dtype.name(),
            "shape": part.tensor.shape,
            "is_scalar": part.tensor.shape.is_empty(),
            "can_lose": !decision.dtype.holds(part.dtype),
        })
    });
    let mut document = json!({
        "schema": SCHEMA,
        "tcast": env!("CARGO_PKG_VERSION"),
        "operator": "promote",
        "dry_run": args.dry_run,
        "dtype": decision.dtype.name(),
        "rule": decision.rule.name(),
        "unsafe": args.r#unsafe,
        "pytorch_scalar": args.pytorch_scalar,
        "u64_target": args.u64_target.name(),
        "inputs": inputs.collect::<Vec<_>>(),
    });
    if !args.dry_run {
        let outputs = written.outputs.iter().map(|output| {
            json!({
                "input": output.from.to_string_lossy(),
                "output": output.to.to_string_lossy(),
                "bytes_in": output.bytes_in,
                "bytes_out": output.files.iter().map(|file| file.bytes).sum::<u64>(),
                "tensors": output.files.iter().flat_map(|file| &file.tensors).map(TensorReport::json).collect::<Vec<_>>(),
                "counts": output.files.iter().map(FileReport::counts).sum::<Counts>(),
            })
        });
        document["outputs"] = outputs.collect();
        let skipped = written.skipped.iter().map(|path| path.to_string_lossy());
        document["skipped"] = json!(skipped.collect::<Vec<_>>());
    }
    document
}

/// What became what, and, tensor by tensor, how many values changed.
fn summary(decision: Decision, written: &Written, time: Duration) -> String {
    let Written { outputs, skipped } = written;
    let tensors = || outputs.iter().flat_map(|output| &output.files).flat_map(|file| &file.tensors);
    let converted = tensors().filter(|tensor| tensor.is_converted).count();
    let (all, seconds) = (tensors().count(), time.as_secs_f64());
    let mut text = format!(
        "promote {converted} of {} to {}: {}, in {seconds:.2} s",
        counted(all as u64, "tensor"),
        decision.dtype,
        decision.rule.name()
    );
    for output in outputs {
        let _ = write!(text, "\n{} -> {}", path_text(&output.from), path_text(&output.to));
        for tensor in output.files.iter().flat_map(|file| &file.tensors) {
            let counts = tensor.counts.as_deref().copied().unwrap_or_default();
            for loss in Loss::ALL.into_iter().filter(|loss| counts[*loss] > 0) {
                let (count, all) = (counts[loss], counted(tensor.elements(), "value"));
                let _ = write!(text, "\n  {}: {count} of {all} {}", shorten(&tensor.name), loss.describe());
            }
        }
    }
    for path in skipped {
        let _ = write!(text, "\nskipped: {} exists", path_text(path));
    }
    text
}
