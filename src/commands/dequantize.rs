//! `tcast dequantize`: finds the quantized weights, and then runs a conversion like any other.

use super::arguments::{check_hash, check_matched, no_effect, open_model, threads};
use super::observer::Console;
use super::run::{JobRequest, convert, job_of_shards};
use super::schemes::scheme_in;
use super::{finish, into_gguf};
use crate::cli::DequantizeArgs;
use crate::convert::{check_target, in_effect};
use crate::error::{Advice, Error, Opt, Result};
use crate::job::Job;
use crate::operator::Operator;
use crate::options::Task;
use crate::read::Model;
use std::slice;
use std::time::Instant;

pub(super) fn run(args: &DequantizeArgs) -> Result<()> {
    let start = Instant::now();
    if let Some(folder) = &args.shards.finish {
        return finish::run(Operator::Dequantize.name(), folder, &args.file);
    }
    check(args).map_err(|error| with_scheme(error, args))?;
    let console = Console { is_quiet: args.file.quiet };
    let task = Task::Dequantize(&args.options);
    let source = &open_model(args.model.as_slice(), task, threads(args.file.threads), &console)?;
    let model = Model::open(source)?;
    check_model(args, &model)?;
    let (options, label) = in_effect(&args.options, &model);
    let job = job_of_shards(Task::Dequantize(&options), &args.file, &args.shards, &args.reports);
    let job = &Job { label: Some(label), ..job };
    let models = slice::from_ref(&model);
    let (paths, report) = (args.model.as_slice(), args.reports.report.as_deref());
    let request = JobRequest { job, models, paths, file: &args.file, report, budget: None };
    let written = convert(request, &console, start, |_| Ok(()));
    written.map_err(|error| with_command(error, args))
}

/// Adds the command that makes a GGUF file to the error for one as the output.
fn with_command(error: Error, args: &DequantizeArgs) -> Error {
    match (error.advice(), &args.model, &args.file.output) {
        ([Advice::Run { operator: "quantize", .. }], Some(model), Some(output)) => {
            let command = into_gguf::decoding(model, args.options.to, output);
            error.unadvised().remedy(command)
        }
        _ => error,
    }
}

/// Adds the command that quantizes the model again to the error for a type with scales.
fn with_scheme(error: Error, args: &DequantizeArgs) -> Error {
    let scheme = args.options.to.filter(|to| !to.is_weight()).and_then(|to| scheme_in(to.name()));
    let (Some(scheme), Some(model)) = (scheme, &args.model) else { return error };
    let output = args.file.output.iter().map(|output| (Opt::OUTPUT, output.into()));
    let options = [(Opt::SCHEME, scheme.name.into())].into_iter().chain(output).collect();
    error.advised([Advice::Run { operator: "quantize", input: model.clone(), options, say: "{}".into() }])
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
fn check_model(args: &DequantizeArgs, model: &Model) -> Result<()> {
    let (options, in_file) = (&args.options, |error: Error| error.in_file(&model.source.path));
    if model.is_onnx_model() && options.keep_activation_scales {
        let error = Error::usage("is an ONNX model, for which an option has no effect");
        return Err(in_file(error.without(Opt::KEEP_ACTIVATION_SCALES)));
    }
    let selection = options.tensors.selection();
    if !selection.has_patterns() {
        return Ok(()); // there may be a million names
    }
    let names = model.decodable_names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    check_matched(&selection, &names, options.tensors.allow_unmatched, args.file.quiet).map_err(in_file)
}
