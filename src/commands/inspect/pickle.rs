//! Checkpoints of PyTorch in the output of `tcast inspect`: the entries of the root, and the names of code.

use crate::commands::observer::warn_of_code;
use crate::container::checkpoint::Checkpoint;
use crate::container::{Input, PickleFacts};
use crate::error::{Error, Kind, Result};
use crate::text::{columns, counted, first_few, shorten, size, stdout_columns};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

fn facts(source: &Checkpoint) -> impl Iterator<Item = (&Input, &PickleFacts)> {
    source.shards.iter().filter_map(|input| Some((input, input.contents.pickle.as_deref()?)))
}

/// Returns the lines about a file.
pub(super) fn text(facts: &PickleFacts) -> String {
    let mut text = format!("pickle: {}, protocol {}\n", facts.form, facts.protocol);
    if !facts.roots.is_empty() {
        let rows = facts.roots.iter().map(|root| {
            let is_read = facts.chosen.as_ref().is_none_or(|chosen| *chosen == root.key);
            let mark = if is_read { "" } else { "not read" };
            [shorten(&root.key), counted(root.tensors, "tensor"), size(root.bytes), mark.to_owned()]
        });
        text += "root\n";
        text.extend(columns(&rows.collect::<Vec<_>>(), &[2], stdout_columns()).map(|line| line + "\n"));
    }
    if !facts.globals.is_empty() {
        text += "names of code\n";
        for name in facts.globals.keys() {
            let mark = if facts.suspicious.contains(name) { "  may do harm" } else { "" };
            let _ = writeln!(text, "  {}{mark}", shorten(name));
        }
    }
    text
}

/// Adds what is known about a file to its JSON.
pub(super) fn add_json(file: &mut Value, facts: &PickleFacts) {
    file["pickle"] = json!({
        "form": facts.form,
        "protocol": facts.protocol,
        "root": facts.chosen,
        "roots": facts.roots,
    });
}

/// Returns the names of code in all files, with the number of times, and those that may do harm.
pub(super) fn globals(source: &Checkpoint) -> Option<(Value, Value)> {
    facts(source).next()?;
    let mut globals: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in facts(source).flat_map(|(_, facts)| &facts.globals) {
        *globals.entry(name).or_default() += count;
    }
    let suspicious: Vec<&String> = facts(source).flat_map(|(_, facts)| &facts.suspicious).collect();
    Some((json!(globals), json!(suspicious)))
}

/// Warns of names of code that may do harm, in all files.
pub(super) fn warn_of_all_code(source: &Checkpoint) {
    facts(source).for_each(|(input, facts)| warn_of_code(input.path(), facts));
}

/// Refuses code that may do harm.
pub(super) fn check_code(source: &Checkpoint) -> Result<()> {
    let found = facts(source).find(|(_, facts)| !facts.suspicious.is_empty());
    found.map_or(Ok(()), |(input, facts)| {
        let names = first_few(&facts.suspicious, 5);
        Err(Error::new(format!("names code that is not known to be harmless: {names}"))
            .in_file(input.path())
            .of(Kind::Loss))
    })
}
