//! `tcast dequantize`: finds the quantized weights, and then runs a conversion like any other.

use super::messages::warn;
use super::observer::Console;
use super::results::Task;
use super::run::{convert, job_of_shards};
use super::{check_hash, check_matched, finish, no_effect, open_model, threads};
use crate::cli::DequantizeArgs;
use crate::convert::{FileConversion, check_target};
use crate::error::{Error, Result};
use crate::operator::Operator;
use crate::quant::FoundWeight;
use crate::read::LogicalCheckpoint;
use crate::text::{counted, shorten};
use std::time::Instant;

pub(super) fn run(args: &DequantizeArgs) -> Result<()> {
    let start = Instant::now();
    if let Some(folder) = &args.shards.finish {
        return finish::run(Operator::Dequantize.name(), folder, &args.file);
    }
    check(args)?;
    let (options, quiet) = (&args.options, args.file.quiet);
    let console = Console { is_quiet: quiet };
    let source = &open_model(args.model.as_ref(), &options.tensors, threads(args.file.threads), &console)?;
    let model = LogicalCheckpoint::open(source)?;
    if model.is_model() && options.keep_activation_scales {
        let error =
            Error::usage("is an ONNX model, for which an option has no effect").without("keep_activation_scales");
        return Err(error.in_file(&source.path));
    }
    let left: Vec<String> = model.nodes_with_codes().collect();
    let wanted = options.tensors.selection();
    let plain = model.plain_weights();
    let weights = model.found.weights.iter().chain(&plain).map(|weight| &*weight.name);
    let names: Vec<&str> = weights.chain(source.left_out.iter().map(String::as_str)).collect();
    check_matched(&wanted, &names, options.tensors.allow_unmatched, quiet)
        .map_err(|error| error.in_file(&source.path))?;
    let job = job_of_shards(Operator::Dequantize, &args.file, &args.shards, &args.reports);
    let conversion = FileConversion::dequantize(&job, &model, options)?;
    let decisions = &conversion.inputs[0].decisions;
    let divided = decisions.divided_sets.first().map(|names| describe_divided(names, decisions.divided_sets.len()));
    let padded = describe_padding(model.found.weights.iter().filter(|weight| wanted.selects(&weight.name)));
    drop(model);
    if let (false, [first, ..]) = (quiet, &decisions.left_out_scales[..]) {
        let (count, first) = (decisions.left_out_scales.len() as u64, shorten(first));
        let scales = counted(count, "scale");
        warn(&format!("left out {scales} of activations, such as '{first}': --keep-activation-scales keeps them"));
    }
    let task = Task {
        conversion,
        inputs: args.model.as_slice(),
        file: &args.file,
        notes: divided.into_iter().chain(padded).chain(left).collect(),
        report: args.reports.report.as_deref(),
    };
    convert(task, &console, start)
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

pub(super) fn check(args: &DequantizeArgs) -> Result<()> {
    if args.options.tensors.from.is_some() {
        return Err(no_effect("--from", "the layout says what the codes are"));
    }
    check_hash(&args.reports, &args.file)?;
    check_target(&args.options)
}
