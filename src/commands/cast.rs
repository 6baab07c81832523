//! `tcast cast`: reads its attributes, and then runs a conversion like any other.

use super::results::Task;
use super::run::{convert, job_of_shards, options, selection, value_name, value_names};
use super::{check_hash, finish};
use crate::cli::CastArgs;
use crate::dtype::Class;
use crate::error::{Error, Result};
use crate::job::{Job, Measures};
use crate::kernel::{Condition, Loss, OutOfRange};
use crate::operator::Operator;
use crate::operator::cast::{CastAttributes, Opset};
use crate::select::{Rule, Selection};
use serde_json::{Value, json};

pub(super) fn run(args: &CastArgs) -> Result<()> {
    if let Some(folder) = &args.shards.finish {
        return finish::run("cast", folder, &args.file);
    }
    check_hash(&args.reports, &args.file)?;
    if args.stats && args.file.quiet && !args.file.json && args.reports.report.is_none() {
        return Err(Error::usage("--quiet hides the figures of --stats").remedy("add --json or --report FILE"));
    }
    let attributes = attributes(args);
    attributes.check()?;
    check_effects(args)?;
    let selection = Selection { all: args.all, protect: args.protect, ..selection(args.to, &args.selection) };
    let options = options(args.to, &args.file, &selection, attributes_in_effect(args, attributes));
    let job = Job {
        force_codes: args.force_codes,
        model: args.model.options(),
        fail_on: fail_on(args).into(),
        measures: Measures { accuracy: args.stats || args.reports.report.is_some(), hash: args.reports.hash },
        ..job_of_shards(Operator::Cast(attributes), args.to, (&args.file, &args.shards, &args.reports), options)
    };
    let task = Task::new(job, &args.inputs, &args.file, selection);
    convert(&Task { report: args.reports.report.as_deref(), ..task }, args.selection.allow_unmatched)
}

/// Refuses a policy for integers without an integer target. Other targets ignore the attributes of Cast, as in ONNX.
fn check_effects(args: &CastArgs) -> Result<()> {
    let mut targets = args.to.into_iter().chain(args.selection.rule.iter().filter_map(Rule::target));
    if args.values.out_of_range.is_none() || targets.any(|to| matches!(to.class(), Class::Int { .. })) {
        return Ok(());
    }
    let error = Error::usage("--out-of-range is for integer targets, and there is none");
    Err(error.remedy("leave --out-of-range out"))
}

/// Returns the conditions that no value may meet.
fn fail_on(args: &CastArgs) -> Vec<Condition> {
    let mut conditions = args.values.fail_on.clone();
    if conditions.contains(&Condition::Lost(Loss::Nan)) {
        conditions.push(Condition::Lost(Loss::NanLost));
    }
    conditions
}

fn attributes(args: &CastArgs) -> CastAttributes {
    let values = &args.values;
    CastAttributes {
        saturate: values.saturate.or(values.no_saturate.then_some(false)),
        round_mode: values.round_mode,
        out_of_range: values.out_of_range.unwrap_or(OutOfRange::Wrap),
        opset: values.opset,
    }
}

/// Returns the attributes in effect, including defaults.
fn attributes_in_effect(args: &CastArgs, attributes: CastAttributes) -> Value {
    let rules = attributes.rules();
    json!({
        "saturate": rules.saturate,
        "round_mode": value_name(&rules.round_mode),
        "out_of_range": value_name(&rules.out_of_range),
        "opset": attributes.opset.map(Opset::number),
        "all": args.all,
        "protect": args.protect,
        "force_codes": args.force_codes,
        "min_elements": args.model.min_elements,
        "external_data": args.model.external_data,
        "raise_opset": args.model.raise_opset,
        "fail_on": value_names(&args.values.fail_on),
        "max_shard_size": args.shards.max_bytes(),
    })
}
