//! `tcast quantize`: chooses the weights to quantize; the rest is a conversion like any other. `compare` measures several
//! schemes instead, and `budget` chooses among them.

mod budget;
mod checks;
mod compare;

use super::arguments::{check_hash, check_matched, check_printing, no_effect, open_model, threads};
use super::finish;
use super::observer::{Console, OneBar};
use super::run::{JobRequest, convert, job_of_shards};
use super::unmatched::{hidden_rule, propose};
use crate::cli::QuantizeArgs;
use crate::container::by_extension;
use crate::convert::{in_own_layout, open_to_quantize};
use crate::error::{Error, Kind, Opt, Result};
use crate::job::{self, Job};
use crate::operator::Operator;
use crate::options::{SchemeRule, Task};
use crate::plan::matchable_names;
use crate::progress::Observer;
use crate::quant::{COMFYUI, FoundWeight};
use crate::read::Model;
use crate::select::policy::Policy;
use checks::{check_layout, check_model, layout_name};
use serde_json::json;
use std::slice;
use std::time::Instant;

pub(super) fn run(args: &QuantizeArgs) -> Result<()> {
    let start = Instant::now();
    if let Some(folder) = &args.shards.finish {
        return finish::run(Operator::Quantize.name(), folder, &args.file);
    }
    check(args)?;
    let console = Console { is_quiet: args.file.quiet };
    let task = Task::Quantize(&args.options);
    let source = &open_model(args.model.as_slice(), task, threads(args.file.threads), &console)?;
    let model = open_to_quantize(source, &args.options)?;
    let options = in_own_layout(&args.options, &model).map_err(|error| {
        if model.found.weights.is_empty() {
            return error.with_value(Opt::SCHEME, "SCHEME", "add {} to quantize it");
        }
        let error = error.with_value(Opt::LAYOUT, "LAYOUT", "add {} to keep its scheme in this layout");
        error.with_value(Opt::SCHEME, "SCHEME", "add {} to quantize it again")
    })?;
    let args = &QuantizeArgs { options, ..args.clone() };
    checks::check(args)?;
    check_patterns(args, &model)?;
    if args.file.dry_run || !args.compare.is_empty() {
        check_printing([source])?;
    }
    if !args.compare.is_empty() {
        return compare::run(args, &model, start);
    }
    check_model(&args.options, &model, &args.schemes().collect::<Vec<_>>())?;
    let bar = OneBar::new(&console, source.bytes());
    let chosen = args.target_bits.map(|target| budget::choose(args, target, &model, &bar)).transpose()?;
    let options = chosen.as_ref().map_or(&args.options, |chosen| &chosen.options);
    let job = job_of_shards(Task::Quantize(options), &args.file, &args.shards, &args.reports);
    let job = &Job { label: chosen.as_ref().map(|chosen| &*chosen.label), ..job };
    let mut output = chosen.as_ref().map(|chosen| (chosen, job::output_path(job, source)));
    if let Some((chosen, output)) = output.take_if(|_| args.file.dry_run && !args.file.json) {
        return budget::print_choice(chosen, args, &output?);
    }
    let observer: &dyn Observer = if chosen.is_some() { &bar } else { &console };
    let budget = chosen.as_ref().map(|chosen| json!(chosen.figures));
    let (models, paths, report) = (slice::from_ref(&model), args.model.as_slice(), args.reports.report.as_deref());
    let request = JobRequest { job, models, paths, file: &args.file, report, budget };
    let written = convert(request, observer, start, |outputs| {
        let checked = chosen.as_ref().map_or(Ok(()), |chosen| budget::check_plan(chosen, outputs));
        checked.map_err(|error| error.in_file(&source.path))
    });
    written.map_err(|error| with_fused(error, &model, layout_name(options)))?;
    if let Some((chosen, output)) = output.filter(|_| !args.file.quiet) {
        budget::note_choice(chosen, args, &output?);
    }
    Ok(())
}

/// Completes the error for a weight that could be left out with the weights that engines fuse with it: they can only be
/// left out together. Plain weights are then copied, and quantized ones, which the error may name by one of their
/// parts, are decoded.
fn with_fused(error: Error, model: &Model, layout: &str) -> Error {
    let is_excludable = matches!(error.cause(), Kind::Unconvertible);
    let Some(tensor) = error.tensor().filter(|_| is_excludable) else { return error };
    let is_named = |weight: &&FoundWeight| {
        weight.name == tensor || weight.parts.iter().any(|(_, at)| model.tensors[*at].name == tensor)
    };
    let coded = model.found.weights.iter().find(is_named);
    let name = coded.map_or(tensor, |weight| &*weight.name);
    let policy = Policy { is_diffusion: layout == COMFYUI, ..Policy::default() };
    if coded.is_none() && policy.loaded_together(name).is_none() {
        return error;
    }
    let names = matchable_names(model, layout).unwrap_or_default();
    let globs = policy.globs_together(name, names.iter().map(String::as_str));
    let are_coded = coded.is_some();
    error.unadvised().leaving_out(&globs, are_coded)
}

/// Refuses options that do not go together, as far as that is clear without the model.
fn check(args: &QuantizeArgs) -> Result<()> {
    if args.options.tensors.from.is_some() {
        return Err(no_effect("--from", "weights are float32, bfloat16 or float16"));
    }
    check_hash(&args.reports, &args.file)?;
    budget::check(args)?;
    compare::check(args)?;
    // Otherwise, the layout is that of the model.
    if args.options.layout_in_effect().is_some() { checks::check(args) } else { Ok(()) }
}

/// Refuses options that no model can have together; an ONNX model has no layouts.
pub(super) fn check_options(args: &QuantizeArgs) -> Result<()> {
    if args.shards.finish.is_some() {
        return Ok(());
    }
    check(args)?;
    let is_model =
        args.model.as_deref().and_then(by_extension).is_some_and(|found| found.format_info().is_changed_only());
    if is_model || !args.compare.is_empty() || args.options.layout_in_effect().is_none() {
        return Ok(());
    }
    check_layout(&args.options, &args.schemes().collect::<Vec<_>>(), args.model.as_deref())
}

fn check_patterns(args: &QuantizeArgs, model: &Model) -> Result<()> {
    let (options, allow_unmatched) = (&args.options, args.options.tensors.allow_unmatched);
    if options.is_gguf() {
        return Ok(()); // patterns also match the names that tensors get, which only the plan knows
    }
    let selection = options.tensors.selection();
    if !selection.has_patterns() && options.rule.is_empty() {
        return Ok(()); // there may be a million names
    }
    let names = matchable_names(model, layout_name(options))?;
    let names: Vec<&str> = names.iter().chain(&model.source.left_out).map(String::as_str).collect();
    let path = &model.source.path;
    check_matched(&selection, &names, allow_unmatched, args.file.quiet).map_err(|error| error.in_file(path))?;
    let is_left_out = |rule: &&SchemeRule| {
        let mut matched = names.iter().filter(|name| rule.pattern.matches(name)).peekable();
        matched.peek().is_some() && matched.all(|name| options.tensors.leaves_out(&[*name]))
    };
    if let Some(rule) = options.rule.iter().filter(|_| !allow_unmatched).find(is_left_out) {
        return Err(hidden_rule(&rule.to_string()).in_file(path));
    }
    if let Some(rule) = options.rule.iter().find(|rule| !allow_unmatched && !rule.pattern.matches_one(&names)) {
        let error = Error::usage(format!("--rule '{rule}' matches no tensor")).in_file(path);
        let target = format!("={}", rule.scheme.map_or("keep", |scheme| scheme.name));
        return Err(error.remedy(propose("--rule", &rule.pattern, &target, &names)));
    }
    Ok(())
}
