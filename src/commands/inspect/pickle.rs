//! Checkpoints of PyTorch in the output of `tcast inspect`: the entries of the root, and the names of code.

use crate::commands::notes::warn_of_code;
use crate::container::checkpoint::Checkpoint;
use crate::container::{FoundCode, Input, PickleFacts};
use crate::error::{Error, Kind, Result};
use crate::io::listing::entries;
use crate::io::open::unreadable;
use crate::text::{columns, counted, first_few, shorten, size, stdout_columns};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn facts(source: &Checkpoint) -> impl Iterator<Item = (&Input, &PickleFacts)> {
    source.shards.iter().filter_map(|input| Some((input, input.contents.pickle.as_deref()?)))
}

/// Returns the lines about a file.
pub(super) fn text(facts: &PickleFacts) -> String {
    // Some folders have no pickle.
    let has_pickle = facts.form != "hf";
    let text = format!("pickle: {}, protocol {}\n", facts.form, facts.protocol);
    let mut text = if has_pickle { text } else { String::new() };
    if !facts.roots.is_empty() {
        let rows = facts.roots.iter().map(|root| {
            let mark = if root.is_read { "" } else { "not read" };
            [shorten(&root.key), counted(root.tensors, "tensor"), size(root.bytes), mark.to_owned()]
        });
        text += "root\n";
        text.extend(columns(&rows.collect::<Vec<_>>(), &[2], stdout_columns()).map(|line| line + "\n"));
    }
    if !facts.objects.is_empty() {
        let (count, names) = (counted(facts.objects.len() as u64, "object"), first_few(&facts.objects, 5));
        let _ = writeln!(text, "pickled, not read: {count}: {names}");
    }
    for name in &facts.arrays {
        let _ = writeln!(text, "array of numpy, not read: {}", shorten(name));
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
    if !facts.objects.is_empty() {
        file["pickle"]["objects"] = json!(facts.objects);
    }
    if !facts.arrays.is_empty() {
        file["pickle"]["arrays"] = json!(facts.arrays);
    }
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

/// Refuses code that may do harm, and what was not searched: in the files with tensors, and in all other files of a folder.
pub(super) fn check_code(source: &Checkpoint) -> Result<()> {
    let refusal = |path: &Path, found: FoundCode| {
        let what = match found {
            FoundCode::Names(names) => {
                format!("names code that is not known to be harmless: {}", first_few(&names, 5))
            }
            FoundCode::Unsearched(why) => format!("is not searched for code in full: {why}"),
        };
        Err(Error::new(what).in_file(path).of(Kind::Loss))
    };
    for input in &source.shards {
        if let Some(found) = FoundCode::in_input(input) {
            return refusal(input.path(), found);
        }
    }
    let Some(folder) = &source.folder else { return Ok(()) };
    let is_searched = |input: &Input, path: &Path| {
        let mut unread = input.contents.pickle.iter().flat_map(|facts| &facts.unread);
        let is_beside = path.parent() == input.path().parent();
        input.path() == path
            || input.is_distributed() && input.files.iter().any(|file| file.path() == path)
            || is_beside && unread.any(|(name, _)| path.file_name() == Some(OsStr::new(name)))
    };
    let is_shard = |path: &Path| source.shards.iter().any(|input| is_searched(input, path));
    // Git compresses what is in this folder.
    let objects = folder.join(".git/objects");
    let mut folders = vec![folder.clone()];
    while let Some(folder) = folders.pop() {
        let entries = entries(&folder).map_err(unreadable(&folder))?.into_iter();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path).collect();
        paths.sort();
        for path in paths.into_iter().filter(|path| !is_shard(path)) {
            if !path.is_dir() {
                if let Some(found) = FoundCode::in_file(&path) {
                    return refusal(&path, found);
                }
            } else if path.is_symlink() {
                return refusal(&path, FoundCode::Unsearched("it is a link to a folder".to_owned()));
            } else if path != objects {
                folders.push(path);
            }
        }
    }
    Ok(())
}
