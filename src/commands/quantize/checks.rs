//! Checks of options against schemes, layouts and the model.

use super::super::arguments::{first_given, no_effect};
use super::super::into_gguf;
use super::super::remedies::flag;
use crate::cli::QuantizeArgs;
use crate::error::{Error, Opt, Result};
use crate::options::{Defect, QuantizeOptions};
use crate::plan::{check_schemes_of_model, layout_of};
use crate::quant::{
    COMPRESSED_TENSORS, CodeNodes, CodeType, EncodeArithmetic, GGUF, Group, MATMULNBITS, MLX, Rotation, RotationUse,
    ScaleChoice, Scheme, SchemeLayout,
};
use crate::read::Model;
use crate::text::flag_with;
use std::path::Path;

/// Returns the layout in effect.
pub(super) fn layout_name(options: &QuantizeOptions) -> &'static str {
    options.layout_in_effect().expect("there is a scheme or a layout")
}

/// Refuses options that have no effect on any of the schemes, or that do not go together.
pub(super) fn check(args: &QuantizeArgs) -> Result<()> {
    let options = &args.options;
    if args.activations && options.input_global_scale.is_none() {
        let error = Error::usage(
            "--activations: engines quantize activations to 4 bits with a scale that is measured while the model runs, \
             and no weight holds it",
        );
        let has_scale = args.schemes().any(Scheme::has_activation_scale);
        let error =
            if has_scale { error.with_value(Opt::INPUT_GLOBAL_SCALE, "VALUE", "add {} if you know it") } else { error };
        return Err(error.without(Opt::ACTIVATIONS));
    }
    let named = options.scheme.map_or("a layout without --scheme", |scheme| scheme.name);
    if options.input_global_scale.is_some()
        && !args.schemes().any(Scheme::has_activation_scale)
        && options.scheme.is_some()
    {
        return Err(no_effect("--input-global-scale", format!("{named} has no scale of activations")));
    }
    let layout = layout_name(options);
    let has_group_size = |scheme: &Scheme| {
        let stored = scheme.in_layout(Some(layout)).or_else(|| scheme.in_model(options.layout));
        stored.map_or_else(|| scheme.has_group_size(), SchemeLayout::has_group_size)
    };
    let is_multiplied = |scheme: &Scheme| {
        scheme.in_model(options.layout).is_some_and(|stored| stored.row.nodes == Some(CodeNodes::Product))
    };
    if options.accuracy_level.is_some() && !args.schemes().any(is_multiplied) {
        return Err(no_effect("--accuracy-level", format!("it is for the layout {MATMULNBITS}")));
    }
    if options.include_embeddings && !args.schemes().any(|scheme| scheme.in_table(options.layout).is_some()) {
        let why = format!("it is for int4 and int4-asym in the layout {MATMULNBITS}");
        return Err(no_effect("--include-embeddings", why));
    }
    if options.arithmetic == EncodeArithmetic::Kitchen && !args.schemes().any(|scheme| scheme.has_rotation(layout)) {
        return Err(no_effect("--arithmetic kitchen", format!("{named} is not rotated in the layout {layout}")));
    }
    if options.arithmetic == EncodeArithmetic::Kitchen && !options.contents.lora.is_empty() {
        return Err(no_effect("--arithmetic kitchen", "merged weights are float64"));
    }
    if let Some(rotation) = options.rotation {
        if options.scheme.is_some() && !args.schemes().any(|scheme| scheme.has_rotation(layout)) {
            return Err(no_effect("--rotation", format!("{named} is not rotated in the layout {layout}")));
        }
        let is_always = |scheme: &&Scheme| {
            scheme.in_layout(Some(layout)).is_some_and(|stored| stored.row.rotation == RotationUse::Always)
        };
        if let Some(scheme) = args.schemes().find(is_always).filter(|_| rotation == Rotation::Off) {
            let error =
                Error::usage(format!("--rotation none: {} is always rotated in the layout {layout}", scheme.name));
            return Err(error.without(Opt::ROTATION));
        }
    }
    if options.group_size.is_some() && !args.schemes().any(has_group_size) {
        return Err(no_effect("--group-size", format!("the groups of {named} have one size")));
    }
    let of_mlx = [32, 64, 128].map(Group::Neighbours);
    if let Some(group) = options.group_size.filter(|group| layout_name(options) == MLX && !of_mlx.contains(group)) {
        let size = if let Group::Neighbours(size) = group { size.to_string() } else { "channel".to_owned() };
        let error = Error::usage(format!("--group-size {size}: MLX has groups of 32, 64 and 128 values"));
        return Err(error.with(Opt::GROUP_SIZE, "choose {} 32, 64 or 128"));
    }
    if options.search == ScaleChoice::Mse && !args.schemes().any(Scheme::has_search) {
        return Err(no_effect("--search mse", format!("{named} has no choice of scales")));
    }
    if let (Some(scheme), true) = (options.scheme, options.min_sqnr.is_some() && options.rule.is_empty()) {
        check_has_codes("--min-sqnr", scheme)?;
    }
    let layout = layout_name(options);
    let output = args.file.output.as_deref().filter(|output| output.extension().is_some_and(|end| end == GGUF.name));
    if let (Some(output), false) = (output, options.is_gguf()) {
        let error = Error::usage(format!("the layout {layout} is not stored in .gguf files")).in_file(output);
        return Err(error.remedy(into_gguf::remedy(options, args.model.as_deref())));
    }
    if args.compare.is_empty() {
        check_gguf(options, args.model.as_deref())?;
    }
    // Without a scheme, weights of fp8-block stay unchanged.
    let stays = || options.scheme.is_none() && layout == COMPRESSED_TENSORS;
    if options.partial_blocks && !stays() && !args.schemes().any(|scheme| scheme.has_partial_blocks(layout)) {
        let error = no_effect("--partial-blocks", "only fp8-block in compressed-tensors has partial blocks");
        let can_be_partial = args.schemes().all(|scheme| scheme.has_partial_blocks(COMPRESSED_TENSORS));
        let can_be_partial = can_be_partial && args.schemes().next().is_some();
        return Err(if can_be_partial {
            let error = error.unadvised().with_value(Opt::LAYOUT, COMPRESSED_TENSORS, "choose {}");
            error.without(Opt::PARTIAL_BLOCKS)
        } else {
            error
        });
    }
    Ok(())
}

/// Refuses options that a GGUF file has no use for, and options that only a GGUF file has a use for.
pub(super) fn check_gguf(options: &QuantizeOptions, input: Option<&Path>) -> Result<()> {
    if !options.is_gguf() {
        let given = options.imatrix.is_some().then_some(Opt::IMATRIX).or(options.gguf.first_given());
        return given.map_or(Ok(()), |option| {
            let layout = layout_name(options);
            let flag = flag(option);
            let error = Error::usage(format!("{flag} has no effect with the layout {layout}"));
            let can_be_gguf = options.schemes().all(|scheme| scheme.layout_names().any(|name| name == GGUF.name));
            let error =
                if can_be_gguf { error.remedy(format!("add {}", into_gguf::layout(options, input))) } else { error };
            Err(error.without(option))
        });
    }
    let of_grids = [
        ("--group-size", options.group_size.is_some()),
        ("--search", options.search != ScaleChoice::default()),
        ("--arithmetic", options.arithmetic != EncodeArithmetic::default()),
        ("--partial-blocks", options.partial_blocks),
        ("--input-global-scale", options.input_global_scale.is_some()),
    ];
    if let Some(option) = first_given(of_grids) {
        return Err(no_effect(option, "the blocks of GGUF files have one form, and ggml's arithmetic"));
    }
    if options.fail_on.contains(&Defect::Clipped) {
        let why = "tcast counts no such values in the blocks of GGUF files; --min-sqnr refuses a bad result";
        return Err(no_effect("--fail-on clipped", why));
    }
    if options.fail_on.contains(&Defect::INFINITE) {
        return Err(no_effect("--fail-on infinite", "a GGUF file never has values that became infinite"));
    }
    Ok(())
}

/// Refuses a layout that one of the schemes does not have.
pub(super) fn check_layout(options: &QuantizeOptions, schemes: &[&'static Scheme], input: Option<&Path>) -> Result<()> {
    let is_in_layout = |scheme: &Scheme| scheme.layout_names().any(|name| name == layout_name(options));
    for scheme in schemes.iter().copied().filter(|scheme| !is_in_layout(scheme)) {
        layout_of(scheme, Some(layout_name(options))).map_err(|error| {
            let is_in_all = |name: &str| schemes.iter().all(|other| other.layout_names().any(|own| own == name));
            // Rows of many lengths cannot be rotated.
            let is_usual = |name: &str| {
                let rotation = scheme.in_layout(Some(name)).map(|stored| stored.row.rotation);
                name == scheme.default_layout() || rotation != Some(RotationUse::Always)
            };
            let known = scheme.layout_names().filter(|name| is_in_all(name) && is_usual(name));
            // A GGUF has options that no other layout has.
            let known = known.filter(|_| options.gguf.first_given().is_none() && options.imatrix.is_none());
            let known = known.map(|name| match name {
                _ if name == GGUF.name => into_gguf::layout(options, input),
                _ => format!("--layout {name}"),
            });
            let is_other = options.is_gguf() && options.rule.is_empty();
            let of_mlx = (layout_name(options) == MLX && options.rule.is_empty()).then(|| affine_of(scheme)).flatten();
            let known = of_mlx.map(|scheme| format!("--scheme {}", scheme.name)).into_iter().chain(known);
            let known = known.chain(is_other.then(|| into_gguf::flags(options, input)));
            let plain = options.rule.iter().find(|rule| rule.scheme.is_some_and(is_plain));
            match (&known.collect::<Vec<String>>()[..], plain) {
                ([], Some(rule)) => {
                    let keep = flag_with("--rule", &format!("{}=keep", rule.pattern));
                    Error::usage(format!("--rule '{rule}': {}", error.message()))
                        .remedy(format!("leave the weights in their own type with {keep}"))
                }
                ([], None) => {
                    let mut schemes: Vec<&str> = schemes.iter().map(|scheme| scheme.name).collect();
                    schemes.sort_unstable();
                    schemes.dedup();
                    error.remedy(format!("choose other schemes: no layout has all of {}", schemes.join(", ")))
                }
                (known, _) => error.remedy(format!("choose {}", known.join(" or "))),
            }
        })?;
    }
    Ok(())
}

/// Refuses options that a model has no use for, depending on whether it is quantized.
pub(super) fn check_model(options: &QuantizeOptions, model: &Model, schemes: &[&'static Scheme]) -> Result<()> {
    let in_file = |error: Error| error.in_file(&model.source.path);
    if !model.found.weights.is_empty() && options.recover {
        let error = Error::usage("is quantized: --recover finds the codes and scales of plain weights");
        return Err(in_file(error).without(Opt::RECOVER));
    }
    let of_weights = [
        (Opt::SEARCH, options.search != ScaleChoice::Amax),
        (Opt::INPUT_GLOBAL_SCALE, options.input_global_scale.is_some()),
        (Opt::ONLY_EXACT, options.only_exact),
        (Opt::RECOVER, options.recover),
    ];
    if let Some(option) = first_given(of_weights).filter(|_| model.is_onnx_model()) {
        return Err(in_file(Error::usage("is an ONNX model, for which an option has no effect").without(option)));
    }
    if model.is_onnx_model() {
        check_schemes_of_model(options).map_err(in_file)?;
    } else {
        check_layout(options, schemes, Some(&model.source.path))?;
    }
    if !model.found.weights.is_empty() {
        return Ok(());
    }
    if options.scheme.is_none() {
        let error = Error::usage("is not quantized: only the layout of a quantized model can change without a scheme");
        return Err(in_file(if options.is_gguf() {
            error.remedy(into_gguf::remedy(options, Some(&model.source.path)))
        } else {
            error.with(Opt::SCHEME, "choose a scheme with {}")
        }));
    }
    if options.only_exact && !options.recover && !options.is_gguf() {
        let error = Error::usage("is not quantized: --only-exact has no effect without --recover");
        return Err(in_file(error).without(Opt::ONLY_EXACT));
    }
    Ok(())
}

/// Refuses a scheme of plain numbers.
pub(super) fn check_has_codes(option: &str, scheme: &Scheme) -> Result<()> {
    if !is_plain(scheme) {
        return Ok(());
    }
    let error =
        Error::usage(format!("{option}: {} has no codes and scales, whose errors could be measured", scheme.name));
    Err(error.remedy(if option == "--target-bits" { "name keep instead of it" } else { "leave it out" }))
}

/// True for a scheme of plain numbers.
fn is_plain(scheme: &Scheme) -> bool {
    scheme.gguf.as_ref().is_some_and(|own| own.format.dtype.is_some())
}

/// Returns the scheme of MLX with integers of the same width.
fn affine_of(scheme: &Scheme) -> Option<&'static Scheme> {
    match scheme.layouts.first()?.grid.codes {
        CodeType::Int { bits, .. } => Scheme::find(&format!("affine{bits}")),
        CodeType::Float(_) => None,
    }
}
