//! `tcast quantize --target-bits`: chooses a scheme for each weight.

use super::super::arguments::no_effect;
use super::super::messages::{note, print_line, print_message, print_result};
use super::super::resume;
use super::super::run::job_of_shards;
use super::checks::{check_has_codes, layout_name};
use crate::cli::QuantizeArgs;
use crate::convert::{Budget, Unreachable, measure};
use crate::error::{Error, Opt, Result};
use crate::job::PlannedOutput;
use crate::operator::Operator;
use crate::options::{RecordedOptions, Task};
use crate::plan::{CodesSource, Quantization, Step, matchable_names};
use crate::progress::Observer;
use crate::read::Model;
use crate::text::{brief, counted, quoted};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Refuses several schemes without a number of bits, and options that do not go together with one.
pub(super) fn check(args: &QuantizeArgs) -> Result<()> {
    let QuantizeArgs { options, scheme: schemes, .. } = args;
    let listed =
        || schemes.iter().map(|scheme| scheme.map_or("keep", |scheme| scheme.name)).collect::<Vec<_>>().join(",");
    let is_choice = schemes.len() > 1;
    let target = args.target_bits;
    if options.scheme.is_none() && (target.is_some() || !schemes.is_empty()) {
        let error = Error::usage("no scheme is named to quantize to");
        let scheme = if target.is_some() { "nvfp4,fp8,keep" } else { "fp8" };
        return Err(error.with_value(Opt::SCHEME, scheme, "choose {}"));
    }
    match target {
        None if is_choice => {
            let error = Error::usage(format!(
                "--scheme {} lists several schemes, and tcast needs --target-bits to choose",
                listed()
            ));
            let say = "add {}, the bits per weight that the choice may have";
            return Err(error.with(Opt::SCHEME, "name one scheme").with_value(Opt::TARGET_BITS, "BITS", say));
        }
        None => return Ok(()),
        Some(_) => {}
    }
    if !is_choice {
        let error =
            Error::usage(format!("--target-bits chooses among several schemes, but --scheme names only {}", listed()));
        return Err(error.with_value(Opt::SCHEME, "nvfp4,fp8,keep", "add other schemes, or keep: {}"));
    }
    if options.recover {
        return Err(no_effect("--recover", "--target-bits chooses by the errors of new codes and scales"));
    }
    if options.only_exact {
        return Err(no_effect("--only-exact", "--target-bits chooses among values that change"));
    }
    if !options.tensors.rename.is_empty() {
        let error = Error::usage("--rename: the rules that --target-bits finds are for the names of the input");
        let options = [(Opt::RULE, "*=keep"), (Opt::RENAME, "OLD=NEW")];
        return Err(error.run("cast", Some("".as_ref()), &options, "rename the tensors of the result, with {}"));
    }
    args.candidates().into_iter().try_for_each(|scheme| check_has_codes("--target-bits", scheme))
}

/// Measures all schemes, and chooses one for each weight.
pub(super) fn choose(args: &QuantizeArgs, target: f64, model: &Model, observer: &dyn Observer) -> Result<Budget> {
    let (candidates, task) = (args.options_of_candidates(), Task::Quantize(&args.options));
    let job = job_of_shards(task, &args.file, &args.shards, &args.reports);
    let measured = measure(model, &candidates, &job, observer)?;
    let names = matchable_names(model, layout_name(&args.options))?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let keeps = args.scheme.contains(&None);
    let chosen = Budget::choose(&measured, (target, keeps), &args.options, (model, &names));
    let in_file = |error: Error| error.in_file(&model.source.path);
    chosen.map_err(|why| match why {
        Unreachable::Failed(error) => error,
        Unreachable::TooFewBits(smallest) => {
            // Rounded up, so that it can be reached.
            let smallest = (smallest * 100.0).ceil() / 100.0;
            let what =
                format!("--target-bits {target} cannot be reached: these schemes need {smallest:.2} bits per weight");
            in_file(Error::new(what))
                .with_value(Opt::TARGET_BITS, format!("{smallest:.2}"), "choose {}")
                .with(Opt::SCHEME, "add a scheme with fewer bits")
        }
        Unreachable::NothingQuantized => {
            let what = format!("with --target-bits {target}, every weight can stay as it is");
            in_file(Error::new(what)).remedy("choose fewer bits, or leave keep out of the schemes")
        }
    })
}

/// Checks that the rules give each weight the scheme that was chosen for it.
pub(super) fn check_plan(chosen: &Budget, outputs: &[PlannedOutput]) -> Result<()> {
    let weights = outputs.iter().flat_map(PlannedOutput::steps).filter_map(Step::quantization);
    let scheme = |weight: &Quantization| (weight.scheme, matches!(weight.codes, CodesSource::Copied));
    let planned: BTreeMap<&str, (&str, bool)> = weights.map(|weight| (&*weight.name, scheme(weight))).collect();
    let chosen = &chosen.chosen;
    // A weight that is kept has no scheme, or that of its blocks, which are copied.
    let is_other = |name: &&&str| match (chosen.get(**name), planned.get(**name)) {
        (Some(chosen), planned) => planned.is_none_or(|(planned, _)| chosen != planned),
        (None, planned) => planned.is_some_and(|(_, is_copied)| !is_copied),
    };
    let names: BTreeSet<&str> = planned.keys().copied().chain(chosen.keys().map(String::as_str)).collect();
    let Some(name) = names.iter().find(is_other) else { return Ok(()) };
    let error = Error::new("another rule gives it another scheme than the one that was chosen").in_tensor(name);
    Err(error.with(Opt::RULE, "name it in a {} of its own, before the others"))
}

/// Returns the command that makes the choice without measuring.
fn command(chosen: &Budget, args: &QuantizeArgs, output: &Path) -> Option<String> {
    let options = RecordedOptions::of(&chosen.options);
    let command = resume::command(Operator::Quantize.name(), args.model.as_deref()?, &options)?;
    Some(format!("{command} -o {}", quoted(output)))
}

/// Describes the choice.
fn summary(chosen: &Budget) -> String {
    let figures = &chosen.figures;
    let counts = figures.weights.iter().map(|(scheme, count)| format!("{scheme} for {}", counted(*count, "weight")));
    format!(
        "chose {}: {:.2} bits per weight; the relative squared errors sum to {}, and cannot sum to less than {}",
        counts.collect::<Vec<_>>().join(", "),
        figures.bits_per_weight,
        brief(figures.relative_squared_errors),
        brief(figures.lower_bound)
    )
}

/// Prints only the choice: the command that makes it, on standard output.
pub(super) fn print_choice(chosen: &Budget, args: &QuantizeArgs, output: &Path) -> Result<()> {
    if let Some(command) = command(chosen, args, output) {
        print_result(&command)?;
    }
    if !args.file.quiet {
        print_message(&summary(chosen));
    }
    Ok(())
}

/// Reports the choice after the output is written.
pub(super) fn note_choice(chosen: &Budget, args: &QuantizeArgs, output: &Path) {
    print_message(&summary(chosen));
    if let Some(command) = command(chosen, args, output) {
        note("this command makes the same choice without measuring:");
        print_line(&format!("  {command}"));
    }
}
