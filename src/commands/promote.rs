//! `tcast promote`: converts tensors of several files, or of one, to a common type.

use super::arguments::{check_printing, check_standard_output};
use super::messages::{print, print_json, print_message};
use super::observer::Console;
use super::run::settings;
use crate::cli::PromoteArgs;
use crate::convert::PromoteReport;
use crate::error::{Advice, Error, Kind, Opt, Result};
use crate::job::{FileReport, TensorReport};
use crate::kernel::{Counts, Loss};
use crate::report::{Report, schema};
use crate::text::{counted, path_text, shorten};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

pub(super) fn run(args: &PromoteArgs) -> Result<()> {
    let file = &args.file;
    let output = file.output.as_deref().filter(|_| !file.dry_run);
    let console = Console { is_quiet: file.quiet };
    let promoted = settings(file).promoted(&console, &args.inputs, output, &args.options, |sources| {
        if file.json || file.dry_run {
            check_printing(sources)?;
        }
        output.map_or(Ok(()), |output| check_standard_output(output, file.json))
    });
    let promoted = promoted.map_err(explain_codes)?;
    if file.json {
        print_json(&document(args, &promoted))?;
    } else if file.dry_run {
        print(promoted.dtype.name())?;
    }
    if !file.quiet && !file.dry_run {
        print_message(&summary(&promoted));
    }
    Ok(())
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
fn document(args: &PromoteArgs, promoted: &PromoteReport) -> Value {
    let inputs = promoted.inputs.iter().map(|tensor| {
        json!({
            "file": tensor.input.to_string_lossy(),
            "tensor": tensor.name,
            "dtype": tensor.dtype.name(),
            "shape": tensor.shape,
            "is_scalar": tensor.shape.is_empty(),
            "can_lose": tensor.can_lose,
        })
    });
    let mut document = json!({
        "schema": schema::PROMOTION,
        "tcast": env!("CARGO_PKG_VERSION"),
        "operator": "promote",
        "dry_run": args.file.dry_run,
        "dtype": promoted.dtype.name(),
        "rule": promoted.rule.name(),
        "unsafe": args.options.attributes.is_unsafe,
        "pytorch_scalar": args.options.attributes.pytorch_scalar,
        "u64_target": args.options.attributes.u64_target.name(),
        "inputs": inputs.collect::<Vec<_>>(),
    });
    if !args.file.dry_run {
        let outputs = written(promoted).map(|output| {
            json!({
                "input": output.input.to_string_lossy(),
                "output": output.output.to_string_lossy(),
                "bytes_in": output.bytes_in,
                "bytes_out": output.bytes_out(),
                "tensors": output.tensors().map(TensorReport::json).collect::<Vec<_>>(),
                "counts": output.files.iter().map(FileReport::counts).sum::<Counts>(),
            })
        });
        document["outputs"] = outputs.collect();
        let skipped = skipped(promoted).map(|path| path.to_string_lossy());
        document["skipped"] = json!(skipped.collect::<Vec<_>>());
    }
    document
}

fn written(promoted: &PromoteReport) -> impl Iterator<Item = &Report> {
    promoted.outputs.iter().filter(|output| output.is_published)
}

/// Returns the outputs that existed and were kept.
fn skipped(promoted: &PromoteReport) -> impl Iterator<Item = &Path> {
    promoted.outputs.iter().filter(|output| !output.is_published).map(|output| &*output.output)
}

/// Describes each conversion, and the losses in each tensor.
fn summary(promoted: &PromoteReport) -> String {
    let tensors = || written(promoted).flat_map(Report::tensors);
    let converted = tensors().filter(|tensor| tensor.is_converted).count();
    let (all, seconds) = (tensors().count(), promoted.time.as_secs_f64());
    let mut text = format!(
        "promote {converted} of {} to {}: {}, in {seconds:.2} s",
        counted(all as u64, "tensor"),
        promoted.dtype,
        promoted.rule.name()
    );
    for output in written(promoted) {
        let _ = write!(text, "\n{} -> {}", path_text(&output.input), path_text(&output.output));
        for tensor in output.tensors() {
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
