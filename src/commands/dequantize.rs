//! `tcast dequantize`: finds the quantized weights, and then runs a conversion like any other.

use super::observer::Console;
use super::run::{JobRequest, convert, job_of_shards};
use super::schemes::scheme_in;
use super::{check_hash, check_matched, finish, into_gguf, no_effect, open_model, threads};
use crate::cli::DequantizeArgs;
use crate::convert::{check_target, in_effect};
use crate::error::{Error, Kind, Result};
use crate::job::Job;
use crate::operator::Operator;
use crate::options::Task;
use crate::plan::PlanFindings;
use crate::quant::FoundWeight;
use crate::read::LogicalCheckpoint;
use crate::text::{counted, quoted, shorten};
use std::slice;
use std::time::Instant;

pub(super) fn run(args: &DequantizeArgs) -> Result<()> {
    let start = Instant::now();
    if let Some(folder) = &args.shards.finish {
        return finish::run(Operator::Dequantize.name(), folder, &args.file);
    }
    check(args).map_err(|error| with_scheme(error, args))?;
    let console = Console { is_quiet: args.file.quiet };
    let source = &open_model(args.model.as_slice(), &args.options.tensors, threads(args.file.threads), &console)?;
    let model = LogicalCheckpoint::open(source)?;
    check_model(args, &model)?;
    let (options, label) = in_effect(&args.options, &model);
    let job = job_of_shards(Task::Dequantize(&options), &args.file, &args.shards, &args.reports);
    let job = &Job { label: Some(label), ..job };
    let models = slice::from_ref(&model);
    let (paths, report) = (args.model.as_slice(), args.reports.report.as_deref());
    let request = JobRequest { job, models, paths, file: &args.file, report, budget: None };
    let written = convert(request, &console, start, |outputs| Ok(notes(args, &model, &outputs[0].findings)));
    written.map_err(|error| with_command(error, args))
}

/// Adds the command that makes a GGUF file to the error for one as the output.
fn with_command(error: Error, args: &DequantizeArgs) -> Error {
    match (error.kind(), &args.model, &args.file.output) {
        (Kind::NoGguf, Some(model), Some(output)) => {
            let command = into_gguf::decoding(model, args.options.to, output);
            error.remedy(command)
        }
        _ => error,
    }
}

/// Adds the command that quantizes the model again to the error for a type with scales.
fn with_scheme(error: Error, args: &DequantizeArgs) -> Error {
    let scheme = args.options.to.filter(|to| !to.is_weight()).and_then(|to| scheme_in(to.name()));
    let (Some(scheme), Some(model)) = (scheme, &args.model) else { return error };
    let output = args.file.output.as_ref().map(|output| format!(" -o {}", quoted(output))).unwrap_or_default();
    error.remedy(format!("tcast quantize {} --scheme {}{output}", quoted(model), scheme.name))
}

/// Refuses options that no model has a use for.
pub(super) fn check(args: &DequantizeArgs) -> Result<()> {
    if args.options.tensors.from.is_some() {
        return Err(no_effect("--from", "the layout says what the codes are"));
    }
    check_hash(&args.reports, &args.file)?;
    check_target(&args.options)
}

/// Refuses options and patterns that have no effect on the model.
fn check_model(args: &DequantizeArgs, model: &LogicalCheckpoint) -> Result<()> {
    let (options, in_file) = (&args.options, |error: Error| error.in_file(&model.source.path));
    if model.is_model() && options.keep_activation_scales {
        let error = Error::usage("is an ONNX model, for which an option has no effect");
        return Err(in_file(error.without("keep_activation_scales")));
    }
    let plain = model.plain_weights();
    let weights = model.found.weights.iter().chain(&plain).map(|weight| &*weight.name);
    let names: Vec<&str> = weights.chain(model.source.left_out.iter().map(String::as_str)).collect();
    let selection = options.tensors.selection();
    check_matched(&selection, &names, options.tensors.allow_unmatched, args.file.quiet).map_err(in_file)
}

/// Returns notes about weights that engines may refuse, whose shapes are unknown, or that stay quantized.
fn notes(args: &DequantizeArgs, model: &LogicalCheckpoint, findings: &PlanFindings) -> Vec<String> {
    let selection = args.options.tensors.selection();
    let divided = findings.divided_sets.first().map(|names| describe_divided(names, findings.divided_sets.len()));
    let padded = describe_padding(model.found.weights.iter().filter(|weight| selection.selects(&weight.name)));
    divided.into_iter().chain(padded).chain(model.nodes_with_codes()).collect()
}

/// Warns that engines may refuse a set of weights that is divided.
fn describe_divided([decoded, left]: &[String; 2], sets: usize) -> String {
    let more = match sets as u64 - 1 {
        0 => String::new(),
        more => format!(" (and {} like this)", counted(more, "set")),
    };
    let (decoded, left) = (shorten(decoded), shorten(left));
    format!(
        "engines load '{decoded}' and '{left}' as one module, and may refuse it: the first is decoded, and the second \
         stays quantized{more}"
    )
}

/// Names decoded weights that may have more rows and columns than in the model.
fn describe_padding<'a>(decoded: impl Iterator<Item = &'a FoundWeight>) -> Option<String> {
    let mut padded = decoded.filter(|weight| weight.layout.codes.padding > 1);
    let (first, others) = (padded.next()?, padded.count() as u64);
    let more = if others > 0 { format!(" and {}", counted(others, "more weight")) } else { String::new() };
    Some(format!(
        "ComfyUI pads rows and columns of {} weights to multiples of {}, and the file does not contain their shapes \
         before that: '{}'{more} may end with zeros",
        first.layout.name.trim_start_matches("comfy-"),
        first.layout.codes.padding,
        shorten(&first.name)
    ))
}
