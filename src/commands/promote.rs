//! `tcast promote`: tensors of several files, or of one, get the type that they have in common.

use super::{print, say_which, tell, threads};
use crate::cli::PromoteArgs;
use crate::container::{self, Input, Tensor};
use crate::dtype::Dtype;
use crate::engine;
use crate::error::{Error, Result, shorten, visible};
use crate::io::map::MappedFile;
use crate::io::output::{Destination, NewFolder};
use crate::kernel::{Counts, Loss};
use crate::operator::promote::{self, Attributes, Decision};
use crate::operator::{Operator, cast};
use crate::plan::{self, Plan};
use crate::progress;
use crate::report::{Report, counts_json};
use crate::select::Selection;
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
    let inputs: Vec<Input> = args.inputs.iter().map(|path| container::open(path)).collect::<Result<_>>()?;
    plan::check_from(inputs.iter().flat_map(|input| &input.contents.tensors), args.from)?;
    let parts = parts(args, &inputs)?;
    let attributes =
        Attributes { is_unsafe: args.r#unsafe, pytorch_scalar: args.pytorch_scalar, u64_target: args.u64_target };
    let named: Vec<promote::Input> = parts
        .iter()
        .map(|part| promote::Input { name: &part.name, dtype: part.dtype, is_scalar: part.tensor.shape.is_empty() })
        .collect();
    let decision = promote::promote(&named, &attributes)?;
    if args.dry_run {
        let document = || document(args, &parts, decision, &[]).to_string();
        return print(&if args.json { document() } else { decision.dtype.to_string() });
    }
    let outputs = write(args, &inputs, decision)?;
    if args.json {
        print(&document(args, &parts, decision, &outputs).to_string())?;
    }
    if !args.quiet {
        tell(&summary(decision, &outputs, start.elapsed()));
    }
    Ok(())
}

/// The names of the tensors of a file that take part; none where it has one only, which always does.
fn only(args: &PromoteArgs, input: &Input) -> Vec<String> {
    if input.contents.tensors.len() == 1 { Vec::new() } else { args.tensor.clone() }
}

/// The tensors that take part: the only one of a file, or those named.
fn parts<'a>(args: &PromoteArgs, inputs: &'a [Input]) -> Result<Vec<Part<'a>>> {
    let mut parts = Vec::new();
    for ((file, input), path) in inputs.iter().enumerate().zip(&args.inputs) {
        let tensors = &input.contents.tensors;
        let only = only(args, input);
        let is_chosen = |tensor: &&Tensor| only.is_empty() || only.iter().any(|name| name == input.name_of(tensor));
        if tensors.len() != 1 && !tensors.iter().any(|tensor| !only.is_empty() && is_chosen(&tensor)) {
            return Err(say_which(input).in_file(path));
        }
        for tensor in tensors.iter().filter(is_chosen) {
            let in_tensor = |error: Error| error.in_tensor(&tensor.name).in_file(path);
            let dtype = plan::source_form(tensor, args.from).map_err(in_tensor)?.dtype();
            let name =
                if inputs.len() == 1 { shorten(input.name_of(tensor)) } else { shorten(&path.to_string_lossy()) };
            parts.push(Part { file, tensor, name, dtype });
        }
    }
    let found: HashSet<&str> = parts.iter().map(|part| inputs[part.file].name_of(part.tensor)).collect();
    match args.tensor.iter().find(|name| !found.contains(name.as_str())) {
        Some(missing) => Err(Error::new(format!("--tensor: there is no tensor '{}'", shorten(missing)))),
        None => Ok(parts),
    }
}

/// One output with its plan and, when it is written, its counts.
struct Output {
    from: PathBuf,
    to: PathBuf,
    bytes_in: u64,
    plan: Plan,
    counts: Vec<Counts>,
}

/// Plans all outputs, writes all, and then gives them their names.
fn write(args: &PromoteArgs, inputs: &[Input], decision: Decision) -> Result<Vec<Output>> {
    let Some(output) = &args.output else { return Err(Error::usage("name the output with -o")) };
    let folder = Folder::new(output, args.inputs.len() == 1)?;
    let operator = operator(args);
    let all: Vec<&Path> = inputs.iter().flat_map(|input| input.files.iter().map(MappedFile::path)).collect();
    let mut planned = Vec::new();
    let mut names = HashSet::new();
    for (input, path) in inputs.iter().zip(&args.inputs) {
        let to = folder.place(path);
        if !names.insert(to.clone()) {
            return Err(Error::new("two inputs have this name, and would have one output").in_file(&to));
        }
        let target = container::by_extension(&to).unwrap_or(input.container);
        let destination = Destination::new(&to, args.force, &all)?;
        let only = only(args, input);
        let selection = Selection { to: Some(decision.dtype), all: true, only, ..Selection::default() };
        let from = args.from.filter(|_| plan::check_from(&input.contents.tensors, args.from).is_ok());
        let plan =
            plan::apply(&operator, input, target, &selection, from, &|_| {}).map_err(|error| error.in_file(path))?;
        let bytes_in = input.files.iter().map(|file| file.len() as u64).sum();
        planned.push((destination, Output { from: path.clone(), to, bytes_in, plan, counts: Vec::new() }));
    }
    let needed = planned.iter().map(|(_, output)| output.plan.len).sum();
    if let Some((destination, _)) = planned.first() {
        destination.check_room(needed)?;
    }
    let bytes = planned.iter().map(|(_, output)| output.bytes_in).sum();
    let progress = progress::shown("", bytes, args.quiet);
    let mut done = Vec::new();
    for ((destination, mut output), input) in planned.into_iter().zip(inputs) {
        let file = destination.create()?;
        output.counts = engine::run(&output.plan, &input.files, &file, threads(args.threads), &*progress)
            .map_err(|error| error.in_file(&output.from))?;
        done.push((file, output));
    }
    drop(progress);
    let mut outputs = Vec::new();
    for (file, output) in done {
        file.publish(!args.no_sync)?;
        outputs.push(output);
    }
    if let Some(made) = folder.made {
        made.keep();
    }
    Ok(outputs)
}

fn operator(args: &PromoteArgs) -> Operator {
    Operator::Promote(cast::Attributes { saturate: args.saturate, ..cast::Attributes::default() })
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
        let is_file = is_one && !path.is_dir() && container::by_extension(path).is_some();
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
fn document(args: &PromoteArgs, parts: &[Part], decision: Decision, outputs: &[Output]) -> Value {
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
        let outputs = outputs.iter().map(|output| {
            let report = Report {
                operator: operator(args),
                plan: &output.plan,
                input: &output.from,
                output: &output.to,
                options: Value::Null,
                bytes_in: output.bytes_in,
                done: None,
            };
            let tensors: Vec<Value> = report.tensors(Some(&output.counts));
            json!({
                "input": output.from.to_string_lossy(),
                "output": output.to.to_string_lossy(),
                "bytes_in": output.bytes_in,
                "bytes_out": output.plan.len,
                "tensors": tensors,
                "counts": counts_json(&engine::total(&output.counts)),
            })
        });
        document["outputs"] = outputs.collect();
    }
    document
}

/// What became what, and, tensor by tensor, how many values changed.
fn summary(decision: Decision, outputs: &[Output], time: Duration) -> String {
    let tensors = || outputs.iter().flat_map(|output| &output.plan.tensors);
    let converted = tensors().filter(|tensor| tensor.is_converted).count();
    let (all, seconds) = (tensors().count(), time.as_secs_f64());
    let mut text = format!(
        "promote {converted} of {all} tensors to {}: {}, in {seconds:.2} s",
        decision.dtype,
        decision.rule.name()
    );
    for output in outputs {
        let (from, to) = (output.from.to_string_lossy(), output.to.to_string_lossy());
        let _ = write!(text, "\n{} -> {}", visible(&from), visible(&to));
        for (tensor, counts) in output.plan.tensors.iter().zip(&output.counts) {
            for loss in Loss::ALL.into_iter().filter(|loss| counts[*loss] > 0) {
                let (count, all) = (counts[loss], tensor.source.count);
                let _ = write!(text, "\n  {}: {count} of {all} values {}", shorten(&tensor.name), loss.describe());
            }
        }
    }
    text
}
