//! `tcast quantize`: chooses the weights to quantize; the rest is a conversion like any other.

use super::engine_notes::engine_notes;
use super::messages::warn;
use super::observer::Console;
use super::results::Task;
use super::run::{job_of_shards, options, value_name, value_names, write_recoded};
use super::unmatched::propose;
use super::{check_hash, check_matched, finish, no_effect, open_model, threads};
use crate::cli::QuantizeArgs;
use crate::container::by_extension;
use crate::container::checkpoint::Checkpoint;
use crate::error::{Error, Kind, Result};
use crate::job::{FailOn, Job, Misfit, QuantizeRequest, Quantizing, SchemeRule, layout_of};
use crate::operator::Operator;
use crate::plan::ModelOptions;
use crate::quant::{COMFYUI, EncodeOptions, FoundWeight, Group, ONNX, SCHEMES, ScaleChoice, Scheme, Unfit};
use crate::read::LogicalCheckpoint;
use crate::select::Selection;
use crate::select::policy::{Policy, is_of_diffusion};
use crate::text::{counted, shorten};
use serde_json::{Value, json};
use std::time::Instant;

pub(super) fn run(args: &QuantizeArgs) -> Result<()> {
    let start = Instant::now();
    if let Some(folder) = &args.shards.finish {
        return finish::run(Operator::Quantize.name(), folder, &args.file);
    }
    check(args)?;
    let console = Console { is_quiet: args.file.quiet };
    let source = &open_model(args.model.as_ref(), threads(args.file.threads), &console)?;
    let model = open(args, source)?;
    check_model(args, &model)?;
    let selection = Selection { include: args.include.clone(), exclude: args.exclude.clone(), ..Selection::default() };
    check_patterns(args, &selection, &model)?;
    let request = request(args, &selection);
    let quantizing = if model.is_model() {
        let min_elements = args.model_options.min_elements.unwrap_or(ModelOptions::MIN_ELEMENTS);
        Quantizing::of_model(&model, &request, min_elements)?
    } else {
        Quantizing::new(&model, &request, &console)?
    };
    warn_about_scales(args, &quantizing.recoding.left_out);
    let chosen = Selection { renames: args.rename.clone(), ..selection.clone() };
    let job = Job {
        label: Some(args.scheme.map_or(args.layout_name(), |scheme| scheme.name)),
        model: args.model_options.options(),
        force_codes: args.force_codes,
        fail_on: FailOn { defects: args.fail_on.clone(), min_sqnr_db: args.min_sqnr, ..FailOn::default() },
        ..job_of_shards(
            Operator::Quantize,
            None,
            (&args.file, &args.shards, &args.reports),
            options(None, &args.file, &chosen, options_in_effect(args, model.is_model())),
        )
    };
    // --include and --exclude choose the weights to quantize; every other tensor is copied.
    let selection = Selection { renames: args.rename.clone(), ..Selection::default() };
    let task = Task {
        report: args.reports.report.as_deref(),
        config: quantizing.config.block.as_ref(),
        notes: if model.is_model() { notes_on_misfits(args, &quantizing) } else { notes(args, &quantizing, &model) },
        ..Task::new(job, args.model.as_slice(), &args.file, selection)
    };
    let is_diffusion = args.layout_name() == COMFYUI;
    let written = write_recoded(&task, source, quantizing.recoding, start);
    written.map_err(|error| with_fused(error, &model, is_diffusion))
}

fn open<'a>(args: &QuantizeArgs, source: &'a Checkpoint) -> Result<LogicalCheckpoint<'a>> {
    let probed = LogicalCheckpoint::probe(source);
    match probed.found.is_undecoded {
        true if args.force_codes => Ok(probed.into_values()),
        true => LogicalCheckpoint::open(source).map_err(|error| error.of(Kind::Undecoded)),
        false => LogicalCheckpoint::open(source),
    }
}

fn request<'a>(args: &'a QuantizeArgs, selection: &'a Selection) -> QuantizeRequest<'a> {
    QuantizeRequest {
        scheme: args.scheme,
        layout: args.layout,
        group_size: args.group_size,
        options: EncodeOptions {
            arithmetic: args.arithmetic,
            scale: args.search,
            input_global_scale: args.input_global_scale,
            ..EncodeOptions::default()
        },
        selection,
        rules: &args.rule,
        renames: &args.rename,
        with_partial_blocks: args.partial_blocks,
        only_exact: args.only_exact,
        recovers: args.recover,
        // The weights of new shards are not known yet.
        partition: args.shards.part.filter(|_| args.shards.max_shard_size.is_none()),
        threads: threads(args.file.threads),
    }
}

/// Returns the options in effect, including defaults.
fn options_in_effect(args: &QuantizeArgs, is_model: bool) -> Value {
    json!({
        "scheme": args.scheme.map(|scheme| scheme.name),
        "layout": if is_model { ONNX.name } else { args.layout_name() },
        "only_exact": args.only_exact,
        "recover": args.recover,
        "input_global_scale": args.input_global_scale,
        "group_size": args.group_size,
        "arithmetic": value_name(&args.arithmetic),
        "search": value_name(&args.search),
        "partial_blocks": args.partial_blocks,
        "force_codes": args.force_codes,
        "rules": args.rule.iter().map(SchemeRule::to_string).collect::<Vec<_>>(),
        "fail_on": value_names(&args.fail_on),
        "min_sqnr": args.min_sqnr,
        "min_elements": args.model_options.min_elements,
        "external_data": args.model_options.external_data,
        "raise_opset": args.model_options.raise_opset,
        "max_shard_size": args.shards.max_bytes(),
    })
}

/// Completes the error for a weight that could be left out with the weights that engines fuse with it: they can only be
/// left out together. Plain weights are then copied, and quantized ones, which the error names by one of their parts,
/// are decoded.
fn with_fused(error: Error, model: &LogicalCheckpoint, is_diffusion: bool) -> Error {
    let is_excludable = matches!(error.kind(), Kind::Unconvertible);
    let Some(tensor) = error.tensor().filter(|_| is_excludable) else { return error };
    let is_part = |weight: &&FoundWeight| weight.parts.iter().any(|(_, at)| model.tensors[*at].name == tensor);
    let coded = model.found.weights.iter().find(is_part);
    let name = coded.map_or(tensor, |weight| &*weight.name);
    let policy = Policy { is_diffusion, ..Policy::default() };
    if coded.is_none() && policy.loaded_together(name).is_none() {
        return error;
    }
    let names = names(model).unwrap_or_default();
    let globs = policy.globs_together(name, names.iter().map(String::as_str));
    error.of(if coded.is_some() { Kind::Decodable(globs.into()) } else { Kind::Excludable(globs.into()) })
}

fn names(model: &LogicalCheckpoint) -> Result<Vec<String>> {
    if model.is_model() { Ok(model.source.names().map(str::to_owned).collect()) } else { Quantizing::names(model) }
}

fn check(args: &QuantizeArgs) -> Result<()> {
    if args.file.from.is_some() {
        return Err(no_effect("--from", "weights are float32, bfloat16 or float16"));
    }
    check_hash(&args.reports, &args.file)?;
    if args.activations && args.input_global_scale.is_none() {
        let error = Error::usage(
            "--activations: engines quantize activations to 4 bits with a scale that is measured while the model runs, \
             and no weight holds it",
        );
        return Err(error.remedy("add --input-global-scale VALUE if you know it, or leave --activations out"));
    }
    let named = args.scheme.map_or("a layout without --scheme", |scheme| scheme.name);
    if args.input_global_scale.is_some()
        && !args.schemes().any(|scheme| scheme.name == "nvfp4")
        && args.scheme.is_some()
    {
        return Err(no_effect("--input-global-scale", format!("{named} has no scale of activations")));
    }
    if args.group_size.is_some() && !args.schemes().any(Scheme::has_group_size) {
        return Err(no_effect("--group-size", format!("the groups of {named} have one size")));
    }
    if args.search == ScaleChoice::Mse && !args.schemes().any(Scheme::has_search) {
        return Err(no_effect("--search mse", format!("{named} has no choice of scales")));
    }
    let layout = args.layout_name();
    // Without a scheme, weights of fp8-block stay unchanged.
    let stays = || args.scheme.is_none() && layout == "compressed-tensors";
    if args.partial_blocks && !stays() && !args.schemes().any(|scheme| scheme.has_partial_blocks(layout)) {
        return Err(no_effect("--partial-blocks", "only fp8-block in compressed-tensors has partial blocks"));
    }
    Ok(())
}

/// Refuses options that no model can have together; an ONNX model has no layouts.
pub(super) fn check_options(args: &QuantizeArgs) -> Result<()> {
    if args.shards.finish.is_some() {
        return Ok(());
    }
    check(args)?;
    let is_model =
        args.model.as_deref().and_then(by_extension).is_some_and(|found| found.format_info().is_changed_only);
    if is_model { Ok(()) } else { check_layout(args) }
}

/// Refuses a layout that one of the schemes does not have.
fn check_layout(args: &QuantizeArgs) -> Result<()> {
    for scheme in args.schemes() {
        layout_of(scheme, Some(args.layout_name())).map_err(|error| {
            let is_in_all = |name: &str| args.schemes().all(|other| other.in_layout(Some(name)).is_some());
            let known = scheme.layouts.iter().map(|layout| layout.name).filter(|name| is_in_all(name));
            let known = known.map(|name| format!("--layout {name}"));
            match &known.collect::<Vec<String>>()[..] {
                [] => {
                    let mut schemes: Vec<&str> = args.schemes().map(|scheme| scheme.name).collect();
                    schemes.dedup();
                    error.remedy(format!("choose other schemes: no layout has all of {}", schemes.join(", ")))
                }
                known => error.remedy(format!("choose {}", known.join(" or "))),
            }
        })?;
    }
    Ok(())
}

/// Refuses options that a model has no use for, depending on whether it is quantized.
fn check_model(args: &QuantizeArgs, model: &LogicalCheckpoint) -> Result<()> {
    let in_file = |error: Error| error.in_file(&model.source.path);
    if !model.found.weights.is_empty() && args.recover {
        let error = Error::usage("is quantized: --recover finds the codes and scales of plain weights");
        return Err(in_file(error).remedy("leave --recover out"));
    }
    let no_effect = [
        (args.search != ScaleChoice::Amax, "search"),
        (args.input_global_scale.is_some(), "input_global_scale"),
        (args.only_exact, "only_exact"),
        (args.recover, "recover"),
    ];
    if let Some((_, option)) = no_effect.into_iter().find(|(is_given, _)| *is_given && model.is_model()) {
        return Err(in_file(Error::usage("is an ONNX model, for which an option has no effect").without(option)));
    }
    if !model.is_model() {
        check_layout(args)?;
    }
    if !model.found.weights.is_empty() {
        return Ok(());
    }
    if args.scheme.is_none() {
        let error = Error::usage("is not quantized: only the layout of a quantized model can change without a scheme");
        return Err(in_file(error).remedy("choose a scheme with --scheme"));
    }
    if args.only_exact && !args.recover {
        let error = Error::usage("is not quantized: --only-exact has no effect without --recover");
        return Err(in_file(error).remedy("leave --only-exact out"));
    }
    Ok(())
}

/// Warns about scales of activations that are left out.
fn warn_about_scales(args: &QuantizeArgs, left_out: &[String]) {
    if let (Some(first), false) = (left_out.first(), args.file.quiet) {
        let scales = counted(left_out.len() as u64, "scale");
        warn(&format!("left out: {scales} of activations, '{}' is one", shorten(first)));
    }
}

/// Returns notes about weights that engines may not load, and weights that other options would quantize.
fn notes(args: &QuantizeArgs, quantizing: &Quantizing, model: &LogicalCheckpoint) -> Vec<String> {
    let mut notes = notes_on_misfits(args, quantizing);
    if args.layout.is_none() && model.source.names().any(is_of_diffusion) {
        notes.extend(args.scheme.and_then(of_diffusion));
    }
    if let Some(first) = quantizing.embeddings.first() {
        notes.push(format!("few engines load quantized embeddings, such as {}", shorten(first)));
    }
    notes.extend(engine_notes(quantizing));
    if args.input_global_scale.is_some() {
        notes
            .push("all activations have the same global scale; engines lose accuracy where it does not fit".to_owned());
    }
    if let Some(size) = args.group_size.filter(|size| ![32, 64, 128].contains(size)) {
        notes.push(format!("vLLM has fast kernels for groups of 32, 64 and 128 values, not of {size}"));
    }
    notes
}

/// Returns notes about weights that other options would quantize.
fn notes_on_misfits(args: &QuantizeArgs, quantizing: &Quantizing) -> Vec<String> {
    /// Maximum number of shapes that are described.
    const FEW: usize = 3;
    let mut notes: Vec<String> = quantizing.misfits.iter().take(FEW).map(|misfit| of_misfit(args, misfit)).collect();
    if let Some(more) = quantizing.misfits.len().checked_sub(FEW).filter(|more| *more > 0) {
        notes.push(format!("weights of {more} other shapes are not quantized either; --dry-run lists them"));
    }
    notes
}

/// Returns the note about the layout for diffusion models, if another one is the default of the scheme.
fn of_diffusion(scheme: &Scheme) -> Option<String> {
    let what = "the tensors are named as in a diffusion model, and ComfyUI loads such models";
    match scheme.in_layout(Some(COMFYUI)) {
        _ if scheme.layouts[0].name == COMFYUI => None,
        Some(_) => Some(format!("{what} with --layout {COMFYUI}")),
        None => Some(format!("{what} in other schemes, such as --scheme fp8 --layout {COMFYUI}")),
    }
}

/// Describes why weights of a shape are kept, and the options that would quantize them.
fn of_misfit(args: &QuantizeArgs, misfit: &Misfit) -> String {
    let Misfit { why, scheme, shape, first, count } = misfit;
    let layout = args.layout_name();
    let has_columns = |size: &u64| shape.last().is_some_and(|columns| columns.is_multiple_of(*size));
    let size = [64, 32].into_iter().find(|size| args.group_size.unwrap_or(128) > *size && has_columns(size));
    let fits_all = |scheme: &&Scheme| {
        let stored = scheme.in_layout(Some(layout));
        stored.is_some_and(|stored| matches!(stored.grid.group, Group::Channel | Group::Tensor))
    };
    let remedy = match (why, size) {
        (Unfit::Empty, _) => String::new(),
        (Unfit::Columns { .. }, Some(size)) if scheme.has_group_size() => format!("; --group-size {size} fits them"),
        _ if scheme.has_partial_blocks(layout) => "; --partial-blocks quantizes them".to_owned(),
        _ => {
            SCHEMES.iter().find(fits_all).map_or(String::new(), |scheme| format!("; --scheme {} fits any", scheme.name))
        }
    };
    let first = shorten(first);
    match count {
        1 => format!("{first} of shape {shape:?} is not quantized: {why}{remedy}"),
        _ => format!("{count} weights of shape {shape:?} are not quantized, such as {first}: {why}{remedy}"),
    }
}

fn check_patterns(args: &QuantizeArgs, selection: &Selection, model: &LogicalCheckpoint) -> Result<()> {
    let names = names(model)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let path = &model.source.path;
    check_matched(selection, &names, args.allow_unmatched, args.file.quiet).map_err(|error| error.in_file(path))?;
    if let Some(rule) = args.rule.iter().find(|rule| !args.allow_unmatched && !rule.matches_one(&names)) {
        let error = Error::usage(format!("--rule '{rule}' matches no tensor")).in_file(path);
        let target = format!("={}", rule.scheme().map_or("keep", |scheme| scheme.name));
        return Err(error.remedy(propose("--rule", rule.pattern(), &target, &names)));
    }
    Ok(())
}
