//! `tcast cast`: the attributes, then as every conversion.

use super::convert::{Job, run as convert, selection};
use super::folder::{self, Measures};
use crate::cli::CastArgs;
use crate::error::{Error, Result};
use crate::operator::Operator;
use crate::operator::cast::{Attributes, Opset};
use crate::select::Selection;
use clap::ValueEnum;
use serde_json::{Value, json};

pub(super) fn run(args: &CastArgs) -> Result<()> {
    if let Some(folder) = &args.shards.finish {
        return folder::finish(folder, &args.file);
    }
    let Some(input) = &args.input else { return Err(Error::usage("name an input")) };
    if args.hash && !args.file.json && args.report.is_none() {
        return Err(Error::usage("--hash is for a report").remedy("add --json or --report FILE"));
    }
    let attributes = attributes(args);
    attributes.check()?;
    convert(&Job {
        operator: Operator::Cast(attributes),
        input,
        to: args.to,
        file: &args.file,
        selection: Selection { all: args.all, protect: args.protect, ..selection(args.to, &args.selection) },
        allow_unmatched: args.selection.allow_unmatched,
        max_shard_size: args.shards.max_shard_size.map(|size| size.0),
        part: args.shards.part,
        resume: args.shards.resume,
        force_codes: args.force_codes,
        fail_on: args.values.fail_on.clone(),
        measures: Measures { figures: args.stats || args.report.is_some(), hash: args.hash },
        report: args.report.as_deref(),
        options: options(args, attributes),
    })
}

fn attributes(args: &CastArgs) -> Attributes {
    let values = &args.values;
    Attributes {
        saturate: values.saturate.or(values.no_saturate.then_some(false)),
        round_mode: values.round_mode,
        out_of_range: values.out_of_range,
        opset: values.opset,
    }
}

/// The attributes in effect, with the defaults of what was not given.
fn options(args: &CastArgs, attributes: Attributes) -> Value {
    let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
    let rules = attributes.rules();
    json!({
        "saturate": rules.saturate,
        "round_mode": name(rules.round_mode.to_possible_value()),
        "out_of_range": name(rules.out_of_range.to_possible_value()),
        "opset": attributes.opset.map(Opset::number),
        "all": args.all,
        "protect": args.protect,
        "force_codes": args.force_codes,
        "fail_on": args.values.fail_on.iter().map(|loss| loss.name()).collect::<Vec<_>>(),
        "max_shard_size": args.shards.max_shard_size.map(|size| size.0),
    })
}
