//! `tcast quantize`: chooses the weights to quantize; the rest is a conversion like any other.

use super::engine_notes::engine_notes;
use super::messages::warn;
use super::observer::Console;
use super::results::Task;
use super::run::{convert, job_of_shards};
use super::unmatched::propose;
use super::{check_hash, check_matched, finish, into_gguf, no_effect, open_model, threads};
use crate::cli::QuantizeArgs;
use crate::container::by_extension;
use crate::convert::{FileConversion, open_to_quantize, plan_quantization};
use crate::error::{Error, Kind, Result};
use crate::operator::Operator;
use crate::options::{Defect, QuantizeOptions};
use crate::plan::{Misfit, QuantizePlan, layout_of, matchable_names};
use crate::quant::{
    Arithmetic, COMFYUI, FoundWeight, GGUF, Group, MLX, MLX_GROUPS, SCHEMES, ScaleChoice, Scheme, Unfit,
};
use crate::read::LogicalCheckpoint;
use crate::select::loaded::is_of_diffusion;
use crate::select::policy::Policy;
use crate::text::{counted, shorten};
use std::path::Path;
use std::slice;
use std::time::Instant;

pub(super) fn run(args: &QuantizeArgs) -> Result<()> {
    let start = Instant::now();
    if let Some(folder) = &args.shards.finish {
        return finish::run(Operator::Quantize.name(), folder, &args.file);
    }
    check(args)?;
    let (options, console) = (&args.options, Console { is_quiet: args.file.quiet });
    let source = &open_model(args.model.as_ref(), &options.tensors, threads(args.file.threads), &console)?;
    let model = open_to_quantize(source, options)?;
    check_model(options, &model)?;
    check_patterns(args, &model)?;
    let job = job_of_shards(Operator::Quantize, &args.file, &args.shards, &args.reports);
    let plan = plan_quantization(&model, options, &job, &console)?;
    warn_about_scales(args, &plan.recoding.left_out);
    let is_model = model.is_model();
    let task = Task {
        notes: if is_model { notes_on_misfits(options, &plan) } else { notes(options, &plan, &model) },
        conversion: FileConversion::quantize(&job, &model, options, plan),
        inputs: args.model.as_slice(),
        file: &args.file,
        report: args.reports.report.as_deref(),
    };
    let written = convert(task, slice::from_ref(source), start);
    written.map_err(|error| with_fused(error, &model, layout_name(options)))
}

/// Returns the layout in effect.
fn layout_name(options: &QuantizeOptions) -> &'static str {
    options.layout_in_effect().expect("clap requires a scheme or a layout")
}

/// Completes the error for a weight that could be left out with the weights that engines fuse with it: they can only be
/// left out together. Plain weights are then copied, and quantized ones, which the error names by one of their parts,
/// are decoded.
fn with_fused(error: Error, model: &LogicalCheckpoint, layout: &str) -> Error {
    let is_excludable = matches!(error.kind(), Kind::Unconvertible);
    let Some(tensor) = error.tensor().filter(|_| is_excludable) else { return error };
    let is_part = |weight: &&FoundWeight| weight.parts.iter().any(|(_, at)| model.tensors[*at].name == tensor);
    let coded = model.found.weights.iter().find(is_part);
    let name = coded.map_or(tensor, |weight| &*weight.name);
    let policy = Policy { is_diffusion: layout == COMFYUI, ..Policy::default() };
    if coded.is_none() && policy.loaded_together(name).is_none() {
        return error;
    }
    let names = names(model, layout).unwrap_or_default();
    let globs = policy.globs_together(name, names.iter().map(String::as_str));
    error.of(if coded.is_some() { Kind::Decodable(globs.into()) } else { Kind::Excludable(globs.into()) })
}

fn names(model: &LogicalCheckpoint, layout: &str) -> Result<Vec<String>> {
    if model.is_model() {
        Ok(model.source.names().map(str::to_owned).collect())
    } else {
        matchable_names(model, layout)
    }
}

fn check(args: &QuantizeArgs) -> Result<()> {
    let options = &args.options;
    if options.tensors.from.is_some() {
        return Err(no_effect("--from", "weights are float32, bfloat16 or float16"));
    }
    check_hash(&args.reports, &args.file)?;
    if args.activations && options.input_global_scale.is_none() {
        let error = Error::usage(
            "--activations: engines quantize activations to 4 bits with a scale that is measured while the model runs, \
             and no weight holds it",
        );
        return Err(error.remedy("add --input-global-scale VALUE if you know it, or leave --activations out"));
    }
    let named = options.scheme.map_or("a layout without --scheme", |scheme| scheme.name);
    if options.input_global_scale.is_some()
        && !options.schemes().any(|scheme| scheme.name == "nvfp4")
        && options.scheme.is_some()
    {
        return Err(no_effect("--input-global-scale", format!("{named} has no scale of activations")));
    }
    if options.group_size.is_some() && !options.schemes().any(Scheme::has_group_size) {
        return Err(no_effect("--group-size", format!("the groups of {named} have one size")));
    }
    if let Some(size) = options.group_size.filter(|size| layout_name(options) == MLX && !MLX_GROUPS.contains(size)) {
        let error = Error::usage(format!("--group-size {size}: MLX has groups of 32, 64 and 128 values"));
        return Err(error.remedy("choose --group-size 32, 64 or 128"));
    }
    if options.search == ScaleChoice::Mse && !options.schemes().any(Scheme::has_search) {
        return Err(no_effect("--search mse", format!("{named} has no choice of scales")));
    }
    let layout = layout_name(options);
    let output = args.file.output.as_deref().filter(|output| output.extension().is_some_and(|end| end == GGUF.name));
    if let (Some(output), false) = (output, options.is_gguf()) {
        let error = Error::usage(format!("the layout {layout} is not stored in .gguf files")).in_file(output);
        return Err(error.remedy(into_gguf::remedy(options, args.model.as_deref())));
    }
    check_gguf(options, args.model.as_deref())?;
    // Without a scheme, weights of fp8-block stay unchanged.
    let stays = || options.scheme.is_none() && layout == "compressed-tensors";
    if options.partial_blocks && !stays() && !options.schemes().any(|scheme| scheme.has_partial_blocks(layout)) {
        return Err(no_effect("--partial-blocks", "only fp8-block in compressed-tensors has partial blocks"));
    }
    Ok(())
}

/// Refuses options that a GGUF file has no use for, and options that only a GGUF file has a use for.
fn check_gguf(options: &QuantizeOptions, input: Option<&Path>) -> Result<()> {
    if !options.is_gguf() {
        let given = options.imatrix.is_some().then_some("imatrix").or(options.gguf.first_given());
        return given.map_or(Ok(()), |option| {
            let layout = layout_name(options);
            let error = Error::usage(format!("the layout {layout} is not gguf: an option has no effect"));
            let can_be_gguf = options.schemes().all(|scheme| scheme.layout_names().any(|name| name == GGUF.name));
            let error =
                if can_be_gguf { error.remedy(format!("add {}", into_gguf::layout(options, input))) } else { error };
            Err(error.without(option))
        });
    }
    let of_grids = [
        (options.group_size.is_some(), "--group-size"),
        (options.search != ScaleChoice::default(), "--search"),
        (options.arithmetic != Arithmetic::default(), "--arithmetic"),
        (options.partial_blocks, "--partial-blocks"),
        (options.input_global_scale.is_some(), "--input-global-scale"),
    ];
    if let Some((_, option)) = of_grids.into_iter().find(|(is_given, _)| *is_given) {
        return Err(no_effect(option, "the blocks of GGUF files have one form, and ggml's arithmetic"));
    }
    if options.fail_on.contains(&Defect::Clipped) {
        let why = "tcast counts no such values in the blocks of GGUF files; --min-sqnr refuses a bad result";
        return Err(no_effect("--fail-on clipped", why));
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
        args.model.as_deref().and_then(by_extension).is_some_and(|found| found.format_info().is_changed_only());
    if is_model { Ok(()) } else { check_layout(&args.options, args.model.as_deref()) }
}

/// Refuses a layout that one of the schemes does not have.
fn check_layout(options: &QuantizeOptions, input: Option<&Path>) -> Result<()> {
    for scheme in options.schemes().filter(|scheme| !scheme.layout_names().any(|name| name == layout_name(options))) {
        layout_of(scheme, Some(layout_name(options))).map_err(|error| {
            let is_in_all = |name: &str| options.schemes().all(|other| other.layout_names().any(|own| own == name));
            let known = scheme.layout_names().filter(|name| is_in_all(name));
            // A GGUF has options that no other layout has.
            let known = known.filter(|_| options.gguf.first_given().is_none() && options.imatrix.is_none());
            let known = known.map(|name| match name {
                _ if name == GGUF.name => into_gguf::layout(options, input),
                _ => format!("--layout {name}"),
            });
            let is_other = options.is_gguf() && options.rule.is_empty();
            let known = known.chain(is_other.then(|| into_gguf::flags(options, input)));
            match &known.collect::<Vec<String>>()[..] {
                [] => {
                    let mut schemes: Vec<&str> = options.schemes().map(|scheme| scheme.name).collect();
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
fn check_model(options: &QuantizeOptions, model: &LogicalCheckpoint) -> Result<()> {
    let in_file = |error: Error| error.in_file(&model.source.path);
    if !model.found.weights.is_empty() && options.recover {
        let error = Error::usage("is quantized: --recover finds the codes and scales of plain weights");
        return Err(in_file(error).remedy("leave --recover out"));
    }
    let no_effect = [
        (options.search != ScaleChoice::Amax, "search"),
        (options.input_global_scale.is_some(), "input_global_scale"),
        (options.only_exact, "only_exact"),
        (options.recover, "recover"),
    ];
    if let Some((_, option)) = no_effect.into_iter().find(|(is_given, _)| *is_given && model.is_model()) {
        return Err(in_file(Error::usage("is an ONNX model, for which an option has no effect").without(option)));
    }
    if !model.is_model() {
        check_layout(options, Some(&model.source.path))?;
    }
    if !model.found.weights.is_empty() {
        return Ok(());
    }
    if options.scheme.is_none() {
        let error = Error::usage("is not quantized: only the layout of a quantized model can change without a scheme");
        let remedy = if options.is_gguf() {
            into_gguf::remedy(options, Some(&model.source.path))
        } else {
            "choose a scheme with --scheme".to_owned()
        };
        return Err(in_file(error).remedy(remedy));
    }
    if options.only_exact && !options.recover && !options.is_gguf() {
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
fn notes(options: &QuantizeOptions, plan: &QuantizePlan, model: &LogicalCheckpoint) -> Vec<String> {
    let mut notes = notes_on_misfits(options, plan);
    if options.layout.is_none() && model.source.names().any(is_of_diffusion) {
        notes.extend(options.scheme.and_then(of_diffusion));
    }
    if let Some(first) = plan.embeddings.first() {
        notes.push(format!("few engines load quantized embeddings, such as {}", shorten(first)));
    }
    if let Some(first) = plan.decoded_stacks.first() {
        let stacks = counted(plan.decoded_stacks.len() as u64, "stack");
        let what = format!("decoded: {stacks} of experts, '{}' is one", shorten(first));
        notes.push(format!("{what}; tcast divides and quantizes them without --names file"));
    }
    notes.extend(engine_notes(plan));
    if options.input_global_scale.is_some() {
        notes
            .push("all activations have the same global scale; engines lose accuracy where it does not fit".to_owned());
    }
    if let Some(size) = options.group_size.filter(|size| ![32, 64, 128].contains(size)) {
        notes.push(format!("vLLM has fast kernels for groups of 32, 64 and 128 values, not of {size}"));
    }
    notes
}

/// Returns notes about weights that other options would quantize.
fn notes_on_misfits(options: &QuantizeOptions, plan: &QuantizePlan) -> Vec<String> {
    /// Maximum number of shapes that are described.
    const FEW: usize = 3;
    let mut notes: Vec<String> = plan.misfits.iter().take(FEW).map(|misfit| of_misfit(options, misfit)).collect();
    if let Some(more) = plan.misfits.len().checked_sub(FEW).filter(|more| *more > 0) {
        notes.push(format!("weights of {more} other shapes are not quantized either; --dry-run lists them"));
    }
    notes
}

/// Returns the note about the layout for diffusion models, if another one is the default of the scheme.
fn of_diffusion(scheme: &Scheme) -> Option<String> {
    let what = "the tensors are named as in a diffusion model, and ComfyUI loads such models";
    match scheme.in_layout(Some(COMFYUI)) {
        _ if [COMFYUI, GGUF.name].contains(&scheme.default_layout()) => None,
        Some(_) => Some(format!("{what} with --layout {COMFYUI}")),
        None => Some(format!("{what} in other schemes, such as --scheme fp8 --layout {COMFYUI}")),
    }
}

/// Describes why weights of a shape are kept, and the options that would quantize them.
fn of_misfit(options: &QuantizeOptions, misfit: &Misfit) -> String {
    let Misfit { why, scheme, shape, first, count } = misfit;
    let layout = layout_name(options);
    let has_columns = |size: &u64| shape.last().is_some_and(|columns| columns.is_multiple_of(*size));
    let size = [64, 32].into_iter().find(|size| options.group_size.unwrap_or(128) > *size && has_columns(size));
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

fn check_patterns(args: &QuantizeArgs, model: &LogicalCheckpoint) -> Result<()> {
    if args.options.is_gguf() {
        return Ok(()); // patterns also match the names that tensors get, which only the plan knows
    }
    let (options, allow_unmatched) = (&args.options, args.options.tensors.allow_unmatched);
    let names = names(model, layout_name(options))?;
    let names: Vec<&str> = names.iter().chain(&model.source.left_out).map(String::as_str).collect();
    let path = &model.source.path;
    check_matched(&options.tensors.selection(), &names, allow_unmatched, args.file.quiet)
        .map_err(|error| error.in_file(path))?;
    if let Some(rule) = options.rule.iter().find(|rule| !allow_unmatched && !rule.matches_one(&names)) {
        let error = Error::usage(format!("--rule '{rule}' matches no tensor")).in_file(path);
        let target = format!("={}", rule.scheme().map_or("keep", |scheme| scheme.name));
        return Err(error.remedy(propose("--rule", rule.pattern(), &target, &names)));
    }
    Ok(())
}
