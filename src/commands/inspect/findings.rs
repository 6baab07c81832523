//! Finds what `tcast inspect --fail-on` forbids: values, and contradictions between the files of a checkpoint.

use super::pickle::check_code;
use super::row::InspectedTensor;
use crate::cli::InspectCondition;
use crate::container::checkpoint::{CONFIG, Checkpoint};
use crate::error::{Error, Kind, Result};
use crate::measure::distribution::Distribution;
use crate::read::Model;
use crate::text::{counted, shorten};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// Something that a condition forbids.
#[derive(Serialize)]
pub(super) struct Finding {
    condition: &'static str,
    /// The name of a tensor or a file.
    name: String,
    what: String,
}

impl Finding {
    fn new(condition: InspectCondition, name: &str, what: impl Into<String>) -> Self {
        Self { condition: condition.name(), name: name.to_owned(), what: what.into() }
    }
}

/// Finds what the conditions forbid in a checkpoint. `stats` are the statistics of the entries, if a condition needs them.
pub(super) fn findings(
    conditions: &[InspectCondition],
    model: &Model,
    entries: &[InspectedTensor],
    stats: &[Result<Option<Distribution>>],
) -> Vec<Finding> {
    let mut found = Vec::new();
    let problems = || {
        let errors = model.found.problems.iter().map(|problem| &problem.error);
        errors.map(|error| (error.tensor().unwrap_or(CONFIG).to_owned(), error.message().to_owned()))
    };
    for &condition in conditions {
        let finding = |(name, what): (String, String)| Finding::new(condition, &name, what);
        match condition {
            InspectCondition::Code => found.extend(code(model.source).map(finding)),
            InspectCondition::Index => found.extend(model.source.index_differences().into_iter().map(finding)),
            InspectCondition::Duplicate => found.extend(duplicates(model.source).into_iter().map(finding)),
            InspectCondition::Parts => found.extend(problems().map(finding)),
            _ => {
                found.extend(entries.iter().zip(stats).filter_map(|(entry, stats)| {
                    let what = match stats.as_ref().ok()? {
                        Some(stats) => of_values(condition, stats)?,
                        None if entry.has_unknown_type() => "its type is unknown: its values are not checked".into(),
                        None => return None,
                    };
                    Some(Finding::new(condition, entry.tensor.name(), what))
                }));
                // Codes without a known layout say nothing about values.
                let unchecked = problems().map(|(name, why)| (name, format!("its values are not checked: {why}")));
                found.extend(unchecked.map(finding));
            }
        }
    }
    found
}

/// Describes the values of a tensor that a condition forbids.
fn of_values(condition: InspectCondition, stats: &Distribution) -> Option<String> {
    let of = |count: u64| (count > 0).then(|| format!("{count} of {}", counted(stats.count, "value")));
    match condition {
        InspectCondition::Nan => of(stats.nan),
        InspectCondition::Infinite => of(stats.plus_infinite + stats.minus_infinite),
        InspectCondition::Zero => {
            (stats.count > 0 && stats.zeros == stats.count).then(|| "all values are 0".to_owned())
        }
        InspectCondition::Huge(most) => {
            let largest = json!(stats.abs_max);
            let is_huge = largest.as_f64().is_some_and(|largest| largest > most);
            is_huge.then(|| format!("the largest magnitude is {largest}"))
        }
        _ => None,
    }
}

/// Returns the tensors that several shards hold.
fn duplicates(source: &Checkpoint) -> Vec<(String, String)> {
    let mut homes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (shard, tensor) in source.tensors() {
        homes.entry(shard.name_of(tensor)).or_default().push(source.shard_name(shard));
    }
    let several = homes.into_iter().filter(|(_, files)| files.len() > 1);
    several.map(|(name, files)| (name.to_owned(), format!("is in {}", files.join(" and in ")))).collect()
}

/// Returns the file with code that may do harm.
fn code(source: &Checkpoint) -> Option<(String, String)> {
    let error = check_code(source).err()?;
    Some((error.path().unwrap_or(&source.path).to_string_lossy().into_owned(), error.message().to_owned()))
}

/// Returns the error for findings in an input, which lists their names.
pub(super) fn refusal(findings: &[Finding], input: &Path) -> Option<Error> {
    if findings.is_empty() {
        return None;
    }
    let line = |Finding { condition, name, what }: &Finding| format!("{condition}: {}: {what}", shorten(name));
    let error = Error::new(counted(findings.len() as u64, "finding")).of(Kind::Loss).in_file(input);
    Some(error.with_details(findings.iter().map(line).collect()))
}
