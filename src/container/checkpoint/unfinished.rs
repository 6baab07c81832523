//! A folder with an unfinished conversion in it is no checkpoint, whatever else is there.

use crate::error::{Error, Result, flag_with, quoted};
use crate::io::open::{Links, read_regular};
use crate::io::output::WORK;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// What counts of a manifest: see the room `staging`, which writes it.
#[derive(Deserialize)]
struct Begun {
    operator: String,
    input: String,
    options: Map<String, Value>,
    shards: Vec<IgnoredAny>,
}

/// Refuses a folder with an unfinished conversion in it, with the command that finishes it.
///
/// # Errors
/// When that is so, or the system does not say.
pub(super) fn refuse(folder: &Path) -> Result<()> {
    let work = folder.join(WORK);
    match fs::symlink_metadata(&work) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(Error::io("cannot read", &error).in_file(&work)),
        Ok(_) => {
            let error = Error::new(format!("an unfinished conversion is in it, in {WORK}")).in_file(folder);
            Err(error.remedy(remedy(folder, &work)))
        }
    }
}

/// How the conversion is finished. What is in the work folder is as little to be trusted as any file: of the command, it
/// gives words in quotes only, behind flags that are ours.
fn remedy(folder: &Path, work: &Path) -> String {
    /// Manifests of the largest models have a few MiB.
    const MOST: u64 = 256 << 20;
    let output = quoted(folder);
    let finish = format!("tcast cast --finish {output}");
    if fs::symlink_metadata(work.join("end.json")).is_ok() {
        return finish;
    }
    let manifest = read_regular(&work.join("manifest.json"), MOST, Links::Refuse).ok();
    let Some(begun) = manifest.and_then(|text| serde_json::from_slice::<Begun>(&text).ok()) else {
        let again = "run the tcast command that began it again with --force";
        // Files of an older checkpoint may be in there.
        let is_empty =
            matches!(fs::symlink_metadata(work.join("old")), Err(error) if error.kind() == ErrorKind::NotFound);
        return if is_empty { format!("{again}, or rm -r {}", quoted(work)) } else { again.to_owned() };
    };
    let done = fs::read_dir(work.join("done")).into_iter().flatten().flatten();
    if done.filter(|entry| entry.file_name().to_string_lossy().ends_with(".json")).count() >= begun.shards.len() {
        return finish;
    }
    match command(&begun) {
        Some(command) => format!("{command} -o {output} --resume"),
        None => format!("run the tcast command that began it again with --force, or rm -r {}", quoted(work)),
    }
}

/// The command that began it, without the output; only `cast` goes on.
fn command(begun: &Begun) -> Option<String> {
    if begun.operator != "cast" {
        return None;
    }
    let mut words = vec![format!("tcast cast {}", quoted(begun.input.as_ref()))];
    for (name, value) in &begun.options {
        let flag = format!("--{}", name.replace('_', "-"));
        if !flag.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') {
            return None;
        }
        let word = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match (name.as_str(), value) {
            // What holds when the flag is not given.
            (_, Value::Null | Value::Bool(false)) if name != "saturate" => {}
            ("saturate", Value::Bool(true)) => {}
            ("saturate", Value::Bool(false)) => words.push("--no-saturate".to_owned()),
            ("round_mode", Value::String(mode)) if mode == "up" => {}
            ("out_of_range", Value::String(rule)) if rule == "wrap" => {}
            ("fail_on", Value::Array(items)) if items.is_empty() => {}
            ("fail_on", Value::Array(items)) => {
                let losses: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
                words.push(flag_with("--fail-on", &losses.join(",")));
            }
            (_, Value::Bool(_)) => words.push(flag),
            ("max_shard_size", bytes) => words.push(flag_with(&flag, &format!("{bytes}B"))),
            (_, Value::Array(items)) => {
                let flag = if name == "include" || name == "exclude" { &*flag } else { flag.trim_end_matches('s') };
                words.extend(items.iter().map(|item| flag_with(flag, &word(item))));
            }
            (_, value) => words.push(flag_with(&flag, &word(value))),
        }
    }
    Some(words.join(" "))
}
