//! A folder with an unfinished conversion in it is no checkpoint, whatever else is there.

use crate::error::{Error, Result};
use crate::io::open::{Links, read_regular};
use crate::io::output::WORK;
use crate::text::{flag_with, quoted};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
#[cfg(unix)]
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What counts of a manifest: see the room `staging`, which writes it.
#[derive(Deserialize)]
struct Begun {
    operator: String,
    input_at: StoredPath,
    options: Map<String, Value>,
    shards: Vec<IgnoredAny>,
}

/// A path in JSON: text, or its bytes where they are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum StoredPath {
    Text(String),
    Bytes(Vec<u8>),
}

impl StoredPath {
    /// A path that means the same in any folder.
    pub(crate) fn absolute(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match path.into_os_string().into_string() {
            Ok(text) => Self::Text(text),
            Err(other) => Self::Bytes(other.as_encoded_bytes().to_owned()),
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Text(text) => text.into(),
            #[cfg(unix)]
            Self::Bytes(bytes) => PathBuf::from(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes)),
            #[cfg(not(unix))]
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
        }
    }
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
    let output = quoted(folder);
    let finish = format!("tcast cast --finish {output}");
    let end = work.join("end.json");
    if fs::symlink_metadata(&end).is_ok() {
        return if read::<IgnoredAny>(&end).is_some() { finish } else { without_end(folder) };
    }
    let Some(begun) = read::<Begun>(&work.join("manifest.json")) else { return begin_anew(folder) };
    let done = fs::read_dir(work.join("done")).into_iter().flatten().flatten();
    if done.filter(|entry| entry.file_name().to_string_lossy().ends_with(".json")).count() >= begun.shards.len() {
        return finish;
    }
    match command(&begun) {
        Some(command) => format!("{command} -o {output} --resume"),
        None => begin_anew(folder),
    }
}

/// What a file of the work folder holds; `None` where it cannot be read.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    /// As long as a record of all that was done may be.
    const MOST: u64 = 1 << 30;
    serde_json::from_slice(&read_regular(path, MOST, Links::Refuse).ok()?).ok()
}

/// What to do about an unfinished conversion that cannot go on.
pub(crate) fn begin_anew(folder: &Path) -> String {
    let work = folder.join(WORK);
    let again = "run the tcast command that began it again with --force";
    // Files of an older checkpoint may be in there.
    let is_empty = matches!(fs::symlink_metadata(work.join("old")), Err(error) if error.kind() == ErrorKind::NotFound);
    if is_empty { format!("{again}, or rm -r {}", quoted(&work)) } else { again.to_owned() }
}

/// What to do where all is in its place, and the record of that cannot be read.
pub(crate) fn without_end(folder: &Path) -> String {
    let work = quoted(&folder.join(WORK));
    format!("rm -r {work}, and see with tcast inspect {} whether the checkpoint is whole", quoted(folder))
}

/// The command that began it, without the output; only `cast` goes on.
fn command(begun: &Begun) -> Option<String> {
    if begun.operator != "cast" {
        return None;
    }
    let mut words = vec![format!("tcast cast {}", quoted(&begun.input_at.path()))];
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
