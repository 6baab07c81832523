//! `tcast promote`: converts tensors of several files, or of one, to a common type.

use super::arguments::{check_printing, check_standard_output, missing_tensor, say_which, threads};
use super::messages::{print, print_json, print_message};
use super::observer::Console;
use super::run::job;
use crate::cli::PromoteArgs;
use crate::container::Tensor;
use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{Advice, Error, Kind, Opt, Result};
use crate::io::identity::Files;
use crate::job::{self, FileReport, Job, OpenOptions, Publish, TensorReport};
use crate::kernel::{Counts, Loss};
use crate::operator::promote::{self, Decision};
use crate::options::{PromoteOptions, Task};
use crate::plan;
use crate::read::Model;
use crate::report::schema;
use crate::text::{counted, path_text, shorten};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::{Duration, Instant};

/// A tensor that takes part, and its file.
struct Operand<'a> {
    file: usize,
    tensor: &'a Tensor,
    /// Name of the tensor, or of its file.
    tensor_name: &'a str,
    /// Name in messages.
    name: String,
    dtype: Dtype,
}

pub(super) fn run(args: &PromoteArgs) -> Result<()> {
    let start = Instant::now();
    promote::check_u64_target(args.options.attributes.u64_target)?;
    let inputs = job::open(
        &args.inputs,
        &OpenOptions {
            tensors: &args.options.tensors(),
            contents: None,
            divides_stacks: false,
            has_modules: false,
            publish: Publish::Together,
            threads: threads(args.file.threads),
        },
        &Console { is_quiet: args.file.quiet },
        |error, _| error,
    )?;
    check_inputs(args, &inputs)?;
    if args.file.json || args.file.dry_run {
        check_printing(&inputs)?;
    }
    let operands = operands(args, &inputs)?;
    let decision = decide(args, &operands)?;
    if args.file.dry_run {
        return if args.file.json {
            print_json(&document(args, &operands, decision, &[]))
        } else {
            print(decision.dtype.name())
        };
    }
    let promoted = write(args, &inputs, decision)?;
    if args.file.json {
        print_json(&document(args, &operands, decision, &promoted))?;
    }
    if !args.file.quiet {
        print_message(&summary(decision, &promoted, start.elapsed()));
    }
    Ok(())
}

/// Refuses a type for elements whose type is known, and several inputs if one is a folder.
fn check_inputs(args: &PromoteArgs, inputs: &[Checkpoint]) -> Result<()> {
    plan::check_from(inputs.iter().flat_map(Checkpoint::tensors).map(|(_, tensor)| tensor), args.options.from)?;
    let folder = inputs.iter().find(|input| input.folder.is_some());
    if let (Some(folder), 2.., false) = (folder, inputs.len(), args.file.dry_run) {
        let error = Error::usage("a folder of shards is promoted alone").in_file(&folder.path);
        return Err(error.with(Opt::TENSOR, "leave the other inputs out, and name the tensors of the folder with {}"));
    }
    Ok(())
}

/// Finds the common type, and refuses an option that it has no use for.
fn decide(args: &PromoteArgs, operands: &[Operand]) -> Result<Decision> {
    let inputs = operands.iter().map(|operand| promote::PromoteInput {
        name: &operand.name,
        dtype: operand.dtype,
        is_scalar: operand.tensor.shape.is_empty(),
    });
    let decision = promote::promote(&inputs.collect::<Vec<_>>(), &args.options.attributes)?;
    if args.options.saturate.is_some() && !decision.dtype.is_float8() && decision.dtype != Dtype::Float8E8M0 {
        let error = Error::usage(format!("--saturate is for float8 types, and the common one is {}", decision.dtype));
        return Err(error.without(Opt::SATURATE));
    }
    Ok(decision)
}

/// Returns the tensors that take part: the only one of an input, or the named ones.
fn operands<'a>(args: &PromoteArgs, inputs: &'a [Checkpoint]) -> Result<Vec<Operand<'a>>> {
    let mut operands = Vec::new();
    let mut found = HashSet::new();
    for ((file, input), path) in inputs.iter().enumerate().zip(&args.inputs) {
        let only = args.options.only(input);
        let before = operands.len();
        for (shard, tensor) in input.tensors() {
            let tensor_name = shard.name_of(tensor);
            if !only.is_empty() && !only.iter().any(|only| only == tensor_name) {
                continue;
            }
            let in_tensor = |error: Error| error.in_tensor(&tensor.name).in_file(shard.path());
            let dtype = plan::source_form(tensor, args.options.from).map_err(in_tensor)?.dtype();
            found.insert(tensor_name);
            let name = if inputs.len() == 1 { shorten(tensor_name) } else { shorten(&path_text(path)) };
            operands.push(Operand { file, tensor, tensor_name, name, dtype });
        }
        if input.tensors().count() != 1 && only.is_empty() {
            return Err(say_which(input).in_file(path));
        }
        if let (Some(name), true) = (only.first(), operands.len() == before) {
            return Err(missing_tensor(slice::from_ref(input), name).in_file(path));
        }
    }
    match args.options.tensor.iter().find(|name| !found.contains(name.as_str())) {
        Some(missing) => {
            let error = missing_tensor(inputs, missing);
            Err(if let [only] = &args.inputs[..] { error.in_file(only) } else { error })
        }
        None => Ok(operands),
    }
}

/// Result for one input.
struct PromotedInput<'a> {
    from: &'a Path,
    to: PathBuf,
    bytes_in: u64,
    /// One file, or the shards of a folder; `None` if the output existed and was kept.
    files: Option<Vec<FileReport>>,
}

/// Plans all outputs, writes them, and then gives them their names.
fn write<'a>(args: &PromoteArgs, inputs: &'a [Checkpoint], decision: Decision) -> Result<Vec<PromotedInput<'a>>> {
    let Some(output) = &args.file.output else { return Err(Error::usage("name the output with -o")) };
    check_standard_output(output, args.file.json)?;
    let options = PromoteOptions { to: Some(decision.dtype), ..args.options.clone() };
    let job = Job { publish: Publish::Together, ..job(Task::Promote(&options), &args.file) };
    let models: Vec<Model> = inputs.iter().map(Model::of_values).collect();
    let console = Console { is_quiet: args.file.quiet };
    let (mut promoted, mut files) = (Vec::new(), Files::default());
    let outputs = job::prepare(&job, &models, &mut files, &console).map_err(explain_codes)?;
    job::write(&job, outputs, &console, |source, to, written| {
        let files = written?.map(|written| written.files);
        promoted.push(PromotedInput { from: &source.path, to: to.to_owned(), bytes_in: source.bytes(), files });
        Ok(())
    })?;
    Ok(promoted)
}

/// Adds a remedy for codes to an error, because no option of this command leaves them out.
fn explain_codes(error: Error) -> Error {
    let dequantize = error.advice().iter().find(|advice| matches!(advice, Advice::Run { .. })).cloned();
    match (error.cause(), dequantize) {
        (Kind::Codes, Some(dequantize)) => error.advised([dequantize]),
        (Kind::Codes, None) => {
            let options = [(Opt::FORCE_CODES, "")];
            error.unadvised().run("cast", Some("".as_ref()), &options, "{} casts codes as numbers")
        }
        _ => error,
    }
}

/// Returns the decision, its reason, and the possible losses of each input; then the losses in the outputs.
fn document(args: &PromoteArgs, operands: &[Operand], decision: Decision, promoted: &[PromotedInput]) -> Value {
    let inputs = operands.iter().map(|operand| {
        json!({
            "file": args.inputs[operand.file].to_string_lossy(),
            "tensor": operand.tensor_name,
            "dtype": operand.dtype.name(),
            "shape": &*operand.tensor.shape,
            "is_scalar": operand.tensor.shape.is_empty(),
            "can_lose": !decision.dtype.holds(operand.dtype),
        })
    });
    let mut document = json!({
        "schema": schema::PROMOTION,
        "tcast": env!("CARGO_PKG_VERSION"),
        "operator": "promote",
        "dry_run": args.file.dry_run,
        "dtype": decision.dtype.name(),
        "rule": decision.rule.name(),
        "unsafe": args.options.attributes.is_unsafe,
        "pytorch_scalar": args.options.attributes.pytorch_scalar,
        "u64_target": args.options.attributes.u64_target.name(),
        "inputs": inputs.collect::<Vec<_>>(),
    });
    if !args.file.dry_run {
        let outputs = promoted.iter().filter_map(|output| {
            let files = output.files.as_deref()?;
            Some(json!({
                "input": output.from.to_string_lossy(),
                "output": output.to.to_string_lossy(),
                "bytes_in": output.bytes_in,
                "bytes_out": files.iter().map(|file| file.bytes).sum::<u64>(),
                "tensors": files.iter().flat_map(|file| &file.tensors).map(TensorReport::json).collect::<Vec<_>>(),
                "counts": files.iter().map(FileReport::counts).sum::<Counts>(),
            }))
        });
        document["outputs"] = outputs.collect();
        let skipped = skipped(promoted).map(|path| path.to_string_lossy());
        document["skipped"] = json!(skipped.collect::<Vec<_>>());
    }
    document
}

/// Returns the outputs that existed and were kept.
fn skipped<'a>(promoted: &'a [PromotedInput]) -> impl Iterator<Item = &'a Path> {
    promoted.iter().filter(|output| output.files.is_none()).map(|output| &*output.to)
}

/// Describes each conversion, and the losses in each tensor.
fn summary(decision: Decision, promoted: &[PromotedInput], time: Duration) -> String {
    let outputs = || promoted.iter().filter_map(|output| Some((output, output.files.as_deref()?)));
    let tensors = || outputs().flat_map(|(_, files)| files).flat_map(|file| &file.tensors);
    let converted = tensors().filter(|tensor| tensor.is_converted).count();
    let (all, seconds) = (tensors().count(), time.as_secs_f64());
    let mut text = format!(
        "promote {converted} of {} to {}: {}, in {seconds:.2} s",
        counted(all as u64, "tensor"),
        decision.dtype,
        decision.rule.name()
    );
    for (output, files) in outputs() {
        let _ = write!(text, "\n{} -> {}", path_text(output.from), path_text(&output.to));
        for tensor in files.iter().flat_map(|file| &file.tensors) {
            let counts = tensor.counts.as_deref().copied().unwrap_or_default();
            for loss in Loss::ALL.into_iter().filter(|loss| counts[*loss] > 0) {
                let (count, all) = (counts[loss], counted(tensor.elements(), "value"));
                let _ = write!(text, "\n  {}: {count} of {all} {}", shorten(&tensor.name), loss.describe());
            }
        }
    }
    for path in skipped(promoted) {
        let _ = write!(text, "\nskipped: {} exists", path_text(path));
    }
    text
}
