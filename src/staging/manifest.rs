//! What is being done in a folder, so that only the same work goes on there.

use super::Start;
use crate::container::checkpoint::{is_inside, is_plain};
use crate::error::{Error, Result, shorten};
use crate::io::output::WORK;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// What a checkpoint is made of, and how.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The version that began it: another one could round otherwise.
    pub tcast: String,
    /// The name of the operator.
    pub operator: String,
    /// Every option that decides about the bytes.
    pub options: Value,
    /// The folder or file that is read, as the run that began it called it; another machine may call it otherwise.
    pub input: String,
    /// The files that are read.
    pub inputs: Vec<Source>,
    /// The shards that are written.
    pub shards: Vec<Shard>,
    /// The index, if there is one.
    pub index: Option<String>,
    /// Paths of the side files in the folder.
    pub side_files: Vec<String>,
    /// Files of an older checkpoint in the folder that go when this one takes its place.
    pub replaced: Vec<String>,
}

/// A file that is read, as it was when the work began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// When it was last changed: seconds since 1970, with nine decimals.
    pub modified: String,
    /// SHA-256 of what stands before the tensors, as hexadecimal digits.
    pub header: String,
}

/// A file that is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Its name.
    pub file: String,
    /// Its length.
    pub bytes: u64,
}

impl Manifest {
    /// Where the work that was begun differs from what is to be done now, in words.
    fn difference(&self, now: &Self) -> Option<String> {
        let differ = |what: &str, before: &str, now: &str| {
            (before != now).then(|| format!("{what} was {}, and is {} now", shorten(before), shorten(now)))
        };
        differ("tcast", &self.tcast, &now.tcast)
            .or_else(|| differ("the subcommand", &self.operator, &now.operator))
            .or_else(|| self.other_option(now))
            .or_else(|| self.other_input(now))
            .or_else(|| (self.shards != now.shards).then(|| "the shards to write are others".to_owned()))
    }

    fn other_option(&self, now: &Self) -> Option<String> {
        let (before, now) = (self.options.as_object()?, now.options.as_object()?);
        let get = |options: &serde_json::Map<String, Value>, name: &str| match options.get(name) {
            None | Some(Value::Null) => "not given".to_owned(),
            Some(value) => value.to_string(),
        };
        let names = before.keys().chain(now.keys());
        let mut differing = names.filter(|name| get(before, name) != get(now, name));
        differing.next().map(|name| {
            let is_list = before.get(name).is_some_and(Value::is_array);
            let flag = name.replace('_', "-");
            let flag = flag.strip_suffix('s').filter(|_| is_list).unwrap_or(&flag); // rules: each was a --rule
            format!("--{flag} was {}, and is {} now", shorten(&get(before, name)), shorten(&get(now, name)))
        })
    }

    fn other_input(&self, now: &Self) -> Option<String> {
        if let Some((before, now)) = self.inputs.iter().zip(&now.inputs).find(|(before, now)| before != now) {
            let file = shorten(&before.file);
            return Some(if before.file != now.file {
                format!("the input had {file}, and has {} there now", shorten(&now.file))
            } else if before.bytes != now.bytes {
                format!("{file} had {} bytes, and has {} now", before.bytes, now.bytes)
            } else if before.header != now.header {
                format!("{file} has another header now")
            } else {
                format!("{file} was changed since (modified {}, now {})", before.modified, now.modified)
            });
        }
        let (before, now) = (self.inputs.len(), now.inputs.len());
        (before != now).then(|| format!("the input had {before} files, and has {now} now"))
    }

    /// Refuses to go on with what was begun otherwise.
    pub(super) fn check_same(&self, now: &Self, start: Start) -> Result<()> {
        let Some(difference) = self.difference(now) else { return Ok(()) };
        let remedy = if start == Start::Part {
            "give all parts the same input and options, or begin anew in another folder"
        } else {
            "give the same input and options, or start anew with --force"
        };
        Err(Error::new(format!("the conversion in it was begun otherwise: {difference}")).remedy(remedy))
    }

    /// Refuses names that lead out of the folder: the manifest is a file as any other.
    pub(super) fn check_names(&self) -> Result<()> {
        let plain = self.shards.iter().map(|shard| &shard.file).chain(&self.index).chain(&self.replaced);
        let stray = plain.filter(|name| !is_plain(name) || *name == WORK);
        let mut stray = stray.chain(self.side_files.iter().filter(|path| !is_inside(Path::new(path))));
        let refuse = |name: &String| Err(Error::new(format!("names '{}', which is not in the folder", shorten(name))));
        stray.next().map_or(Ok(()), refuse)
    }
}
