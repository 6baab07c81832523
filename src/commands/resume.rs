//! Commands that continue an unfinished conversion.

use crate::cli;
use crate::options::RecordedOptions;
use crate::staging::{InterruptedWork, WorkState};
use crate::text::{flag_with, quoted, remove_folder};
use clap::Command;
use serde_json::Value;
use std::path::Path;

/// Returns the remedy for an unfinished conversion. Its records are as untrusted as any file: they only give quoted
/// words of the command, after existing subcommands and flags.
pub(super) fn go_on(folder: &Path) -> String {
    let InterruptedWork { folder, work, has_older, keeps_older, state } = &InterruptedWork::of(folder);
    let begin_anew = || {
        let again = "run the tcast command that began it again with --force";
        if *has_older || *keeps_older { again.to_owned() } else { format!("{again}, or {}", remove_folder(work)) }
    };
    match state {
        WorkState::Done(operator) => {
            let name = subcommand(operator).map_or("cast".to_owned(), |found| found.get_name().to_owned());
            format!("tcast {name} --finish {}", quoted(folder))
        }
        WorkState::Begun { operator, input, options } => match command(operator, input, options) {
            Some(command) => format!("{command} -o {} --resume", quoted(folder)),
            None => begin_anew(),
        },
        WorkState::Unreadable => begin_anew(),
        WorkState::Placed => {
            format!(
                "{}, and see with tcast inspect {} whether the checkpoint is whole",
                remove_folder(work),
                quoted(folder)
            )
        }
    }
}

/// Returns the command that drops the conversion, if an older checkpoint is still in its place.
pub(super) fn go_back(folder: &Path) -> Option<String> {
    let InterruptedWork { work, keeps_older, .. } = &InterruptedWork::of(folder);
    keeps_older.then(|| format!("or drop it, and keep the checkpoint that is there: {}", remove_folder(work)))
}

/// Returns the subcommand with this name, if it can continue unfinished work.
fn subcommand(operator: &str) -> Option<Command> {
    cli::command().find_subcommand(operator).filter(|found| has_flag(found, "resume")).cloned()
}

fn has_flag(subcommand: &Command, name: &str) -> bool {
    subcommand.get_arguments().any(|argument| argument.get_long() == Some(name))
}

/// Returns the command of a conversion with these options, without the output.
pub(super) fn command(operator: &str, input: &Path, options: &RecordedOptions) -> Option<String> {
    let subcommand = subcommand(operator)?;
    let mut words = vec![format!("tcast {} {}", subcommand.get_name(), quoted(input))];
    for (name, value) in options.given(operator) {
        // Rules and renames have one flag each.
        let argument = |name: &str| subcommand.get_arguments().find(|argument| argument.get_id() == name);
        let argument = argument(name).or_else(|| argument(name.trim_end_matches('s')))?;
        let flag = format!("--{}", argument.get_long()?);
        let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match (value, argument.get_value_delimiter()) {
            (Value::Bool(false), _) => words.push(flag.replace("--", "--no-")),
            (Value::Bool(true), _) => words.push(flag),
            (Value::Array(items), Some(delimiter)) => {
                let items: Vec<String> = items.iter().map(word).collect();
                words.push(flag_with(&flag, &items.join(&delimiter.to_string())));
            }
            (Value::Array(items), None) => words.extend(items.iter().map(|item| flag_with(&flag, &word(item)))),
            (bytes, _) if name == "max_shard_size" => words.push(flag_with(&flag, &format!("{bytes}B"))),
            (value, _) => words.push(flag_with(&flag, &word(value))),
        }
    }
    Some(words.join(" "))
}
