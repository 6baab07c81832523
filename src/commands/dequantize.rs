//! `tcast dequantize`: finds the quantized weights, and then runs a conversion like any other.

use super::messages::warn;
use super::observer::Console;
use super::results::Task;
use super::run::{job_of_shards, options, value_name, value_names, write_recoded};
use super::{check_hash, check_matched, finish, no_effect, open_model, threads};
use crate::cli::DequantizeArgs;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::job::{DecodeOptions, Job, Recoding};
use crate::kernel::{Condition, Loss};
use crate::operator::Operator;
use crate::plan::ModelOptions;
use crate::quant::FoundWeight;
use crate::read::LogicalCheckpoint;
use crate::select::Selection;
use crate::text::{counted, shorten};
use serde_json::json;
use std::time::Instant;

pub(super) fn run(args: &DequantizeArgs) -> Result<()> {
    let start = Instant::now();
    if let Some(folder) = &args.shards.finish {
        return finish::run(Operator::Dequantize.name(), folder, &args.file);
    }
    check(args)?;
    let console = Console { is_quiet: args.file.quiet };
    let source = &open_model(args.model.as_ref(), threads(args.file.threads), &console)?;
    let model = LogicalCheckpoint::open(source)?;
    if model.is_model() && args.keep_activation_scales {
        let error =
            Error::usage("is an ONNX model, for which an option has no effect").without("keep_activation_scales");
        return Err(error.in_file(&source.path));
    }
    let target = args.to.or_else(|| (!model.is_model()).then(|| model.default_target()));
    let label = target.or_else(|| model.found.weights.first().map(|weight| model.target_of(weight)));
    let left: Vec<String> = model.nodes_with_codes().collect();
    let renames = args.rename.clone();
    let wanted =
        Selection { include: args.include.clone(), exclude: args.exclude.clone(), renames, ..Selection::default() };
    let names: Vec<&str> = model.found.weights.iter().map(|weight| &*weight.name).collect();
    check_matched(&wanted, &names, args.allow_unmatched, args.file.quiet)
        .map_err(|error| error.in_file(&source.path))?;
    let decoding = DecodeOptions {
        target,
        arithmetic: args.arithmetic,
        keeps_activation_scales: args.keep_activation_scales,
        counts_inexact: args.fail_on.contains(&Condition::Lost(Loss::Inexact)),
    };
    let recoding = Recoding::decode(&model, &wanted, decoding)?;
    let divided = recoding.divided.first().map(|names| describe_divided(names, recoding.divided.len()));
    let padded = describe_padding(model.found.weights.iter().filter(|weight| wanted.selects(&weight.name)));
    drop(model);
    if !args.file.quiet && !recoding.left_out.is_empty() {
        let (count, first) = (recoding.left_out.len() as u64, shorten(&recoding.left_out[0]));
        let scales = counted(count, "scale");
        warn(&format!("left out: {scales} of activations, '{first}' is one: --keep-activation-scales keeps them"));
    }
    let more = json!({
        "arithmetic": value_name(&args.arithmetic),
        "keep_activation_scales": args.keep_activation_scales,
        "fail_on": value_names(&args.fail_on),
        "external_data": args.external_data,
        "max_shard_size": args.shards.max_bytes(),
    });
    let job = Job {
        label: label.map(Dtype::name),
        model: ModelOptions { external_data: args.external_data, ..ModelOptions::default() },
        fail_on: args.fail_on.clone().into(),
        ..job_of_shards(
            Operator::Dequantize,
            target,
            (&args.file, &args.shards, &args.reports),
            options(target, &args.file, &wanted, more),
        )
    };
    // Tensors that are not weights are copied.
    let selection = Selection { renames: args.rename.clone(), ..Selection::default() };
    let task = Task {
        notes: divided.into_iter().chain(padded).chain(left).collect(),
        report: args.reports.report.as_deref(),
        ..Task::new(job, args.model.as_slice(), &args.file, selection)
    };
    write_recoded(&task, source, recoding, start)
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
    if args.file.from.is_some() {
        return Err(no_effect("--from", "the layout says what the codes are"));
    }
    check_hash(&args.reports, &args.file)?;
    if let Some(to) = args.to.filter(|to| !to.is_weight()) {
        let error = Error::usage(format!("--to {to}: weights are decoded to bfloat16, float16 or float32"));
        return Err(error.remedy("decode to one of these; tcast cast converts the result"));
    }
    Ok(())
}
