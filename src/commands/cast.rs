//! `tcast cast`: checks its options, and then runs a conversion like any other.

use super::arguments::{check_hash, wanting_report};
use super::finish;
use super::messages::note;
use super::observer::Console;
use super::run::{JobRequest, convert, job_of_shards, open};
use super::typed::{carried, free};
use crate::cli::CastArgs;
use crate::container::checkpoint::Checkpoint;
use crate::container::{self, WrittenFiles, by_extension};
use crate::dtype::{Class, Dtype};
use crate::error::{Advice, Error, Kind, Opt, Result};
use crate::job::Job;
use crate::options::{CastOptions, Naming, Task};
use crate::read::Model;
use std::path::PathBuf;
use std::time::Instant;

pub(super) fn run(args: &CastArgs) -> Result<()> {
    let start = Instant::now();
    if let Some(folder) = &args.shards.finish {
        return finish::run("cast", folder, &args.file);
    }
    check_hash(&args.reports, &args.file)?;
    let (options, report) = (args.options(), args.reports.report.as_deref());
    if options.stats && args.file.quiet && !args.file.json && report.is_none() {
        return Err(wanting_report(Error::usage("--quiet hides the figures of --stats")));
    }
    options.attributes.check()?;
    check_effects(&options)?;
    let job = &job_of_shards(Task::Cast(&options), &args.file, &args.shards, &args.reports);
    let sources = open(&args.inputs, job, &args.file, &options.selection())?;
    check_choice(&options, job, &sources)?;
    check_change(&options, job, &sources)?;
    if !args.file.quiet {
        note_saturate(&options);
    }
    let models: Vec<Model> = sources.iter().map(Model::of_values).collect();
    let request = JobRequest { job, models: &models, paths: &args.inputs, file: &args.file, report, budget: None };
    let written = convert(request, &Console { is_quiet: args.file.quiet }, start, |_| Ok(()));
    written.map_err(|error| with_command(error, args))
}

/// Adds the command that decodes the model, with the type and the output of the cast, to the error for its codes, or the
/// command that merges adapters into them.
fn with_command(error: Error, args: &CastArgs) -> Error {
    let [input] = &args.inputs[..] else { return error };
    // Without a type, the values are to stay what they are.
    let to = args.options.to.unwrap_or(Dtype::Float32);
    let (output, naming) = (args.file.output.as_ref(), &args.options.tensors.naming);
    let is_gguf = |output: &PathBuf| by_extension(output).is_some_and(|format| format.is(container::GGUF));
    let (operator, options, carried, others) = match (error.cause(), error.advice()) {
        // What a cast to a GGUF does not merge, quantizing to one does not either.
        (Kind::UnusedAdapter, _) if !output.is_some_and(is_gguf) => {
            let decode = "decode the weights with the same arguments of tcast dequantize";
            let options = output.map(|output| (Opt::OUTPUT, output.into()));
            let carried = carried("quantize", &["output"]);
            ("quantize", options.into_iter().collect(), carried, vec![Advice::Say(decode.into())])
        }
        (Kind::Codes, [Advice::Run { input: model, .. }, others @ ..]) if to.is_weight() && model == input => {
            // A format for one array has another one for several.
            let holds_one =
                |output: &PathBuf| by_extension(output).is_some_and(|format| format.format_info().holds_one);
            let output = output
                .map(|output| if holds_one(output) { free(&output.with_extension("npz")) } else { output.clone() });
            let options = [
                Some((Opt::TO, to.name().into())),
                (naming.names == Some(Naming::HuggingFace)).then(|| (Opt::NAMES, "huggingface".into())),
                naming.config.as_ref().map(|config| (Opt::CONFIG, config.into())),
                output.map(|output| (Opt::OUTPUT, output.into())),
            ];
            // No output but a GGUF holds the blocks that patterns would leave as they are.
            let chosen = if is_gguf(input) { &["include", "exclude"][..] } else { &[] };
            let carried = carried("dequantize", &[&["to", "names", "config", "output"], chosen].concat());
            ("dequantize", options.into_iter().flatten().collect(), carried, others.to_vec())
        }
        _ => return error,
    };
    // A command without a flag that changes tensors would do something else.
    let Some(carried) = carried else { return error };
    let command = Advice::Run { operator, input: input.clone(), options, say: format!("{{}}{carried}").into() };
    error.advised([command].into_iter().chain(others).collect::<Vec<_>>())
}

/// Refuses patterns that choose tensors to cast without a type. Without one, they leave out tensors that cannot be read, and
/// choose tensors of a GGUF file.
fn check_choice(options: &CastOptions, job: &Job, sources: &[Checkpoint]) -> Result<()> {
    let given = [("--include", "--only", &options.tensors.include), ("--exclude", "--drop", &options.tensors.exclude)];
    let is_cast = options.to.is_some() || !options.rule.is_empty() || job.format().is_some();
    let has_effect = is_cast || sources.iter().any(|source| !source.left_out.is_empty());
    match given.iter().find(|(_, _, patterns)| !patterns.is_empty()).filter(|_| !has_effect) {
        Some((flag, instead, _)) => {
            let error = Error::usage(format!("{flag} chooses tensors to cast, and no type is given"));
            let of_output = format!("{instead} in place of {flag} chooses tensors of the output");
            Err(error.remedy(format!("add --to DTYPE; {of_output}")))
        }
        None => Ok(()),
    }
}

/// Notes that an attribute for float8 types, which scripts also give for others, does not clamp integers.
fn note_saturate(options: &CastOptions) {
    let (mut targets, attributes) = (options.targets(), &options.attributes);
    let is_given = attributes.saturate == Some(true) && attributes.out_of_range.is_none();
    let is_integer = |to: Dtype| matches!(to.class(), Class::Int { .. });
    if is_given && !options.targets().any(Dtype::is_float8) && targets.any(is_integer) {
        note("--saturate is for float8 types: --out-of-range saturate clamps to the range of an integer type");
    }
}

/// Refuses a cast without a type that would only copy a file.
fn check_change(options: &CastOptions, job: &Job, sources: &[Checkpoint]) -> Result<()> {
    let is_changed = options.targets().next().is_some()
        || !options.rule.is_empty()
        || !options.tensors.rename.is_empty()
        || options.contents.changes_contents()
        || options.shards.max_shard_size.is_some();
    let is_same = |source: &&Checkpoint| {
        let format = job.output.and_then(by_extension).unwrap_or(source.format_of_output()).format_info();
        source.folder.is_none()
            && format.writing != WrittenFiles::Never
            && format.extension == source.shards[0].container.format_info().extension
    };
    match sources.iter().find(is_same).filter(|_| !is_changed) {
        Some(source) => {
            let error =
                Error::usage("the output would be a copy: it has the format of the input, and no type is given");
            Err(error
                .in_file(&source.path)
                .with_value(Opt::TO, "DTYPE", "add {}")
                .with(Opt::OUTPUT, "name an output in another format"))
        }
        None => Ok(()),
    }
}

/// Refuses an attribute of Cast that no target has a use for.
fn check_effects(options: &CastOptions) -> Result<()> {
    /// A flag, whether it is given, the targets that use it, and whether a type is one of them.
    type Use = (&'static str, bool, &'static str, fn(Dtype) -> bool);
    let attributes = &options.attributes;
    // ONNX gives `saturate` to casts to any type.
    let uses: [Use; 2] = [
        ("--round-mode", attributes.round_mode.is_some(), "float8e8m0", |to| to == Dtype::Float8E8M0),
        ("--out-of-range", attributes.out_of_range.is_some(), "integer targets", |to| {
            matches!(to.class(), Class::Int { .. })
        }),
    ];
    let is_useless = |is_given: bool, is_for: fn(Dtype) -> bool| is_given && !options.targets().any(is_for);
    match uses.into_iter().find(|(_, is_given, _, is_for)| is_useless(*is_given, *is_for)) {
        Some((flag, _, targets, _)) => {
            let error = Error::usage(format!("{flag} is for {targets}, and there is none"));
            Err(error.remedy(format!("leave {flag} out")))
        }
        None => Ok(()),
    }
}
