//! Shell completion: candidates for the word at the cursor.
//!
//! `TCAST_COMPLETE=fish tcast -- tcast cast mod` prints the completions of `mod`, one word per line with a tab and a
//! description; the scripts in `completions/` pass them on. `TCAST_COMPLETE=fish tcast` prints the script. clap's
//! engine knows subcommands and flags; their values are completed by the value's name, so that a new flag with a
//! `DTYPE` needs nothing here. The scripts of clap are not used, because they lose the text after an `=` in bash,
//! insert names with blanks as two words, and do nothing at the first Tab in zsh.
//!
//! Nothing here may fail, wait or print anything else: a file that cannot be read has no tensors.

mod line;

use super::messages::print_message;
use crate::cli::Cli;
use crate::container::{ReadOptions, by_extension, checkpoint};
use crate::dtype::Dtype;
use crate::operator::{bitcast, cast, promote};
use crate::plan::is_owned_key;
use crate::quant::SCHEMES;
use crate::text::{as_glob, visible};
use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate as Candidate, PathCompleter, ValueCompleter, complete as engine,
};
use line::CommandLine;
use std::collections::{BTreeSet, HashSet};
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Environment variable with the name of a shell: the program then completes a command line for it instead of running
/// one.
pub const VARIABLE: &str = "TCAST_COMPLETE";

const SCRIPTS: [(&str, &str); 5] = [
    ("bash", include_str!("../../../completions/tcast.bash")),
    ("zsh", include_str!("../../../completions/tcast.zsh")),
    ("fish", include_str!("../../../completions/tcast.fish")),
    ("elvish", include_str!("../../../completions/tcast.elv")),
    ("powershell", include_str!("../../../completions/tcast.ps1")),
];

/// Answers a shell: with its script, or with the completions of the last word after `--`.
#[must_use]
pub fn complete(shell: &OsStr) -> ExitCode {
    let Some((shell, script)) = SCRIPTS.iter().find(|(name, _)| shell == *name) else {
        print_message(&format!("tcast: error: {VARIABLE} names no shell: bash, zsh, fish, elvish or powershell"));
        return ExitCode::from(2);
    };
    let mut words: Vec<OsString> = env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let answer = match (*shell, words.last_mut()) {
        (_, None) => (*script).to_owned(),
        ("bash", _) => {
            let [line, breaks] = [0, 1].map(|at| words.get(at).and_then(|word| word.to_str()).unwrap_or_default());
            let line = CommandLine::parse(line, breaks);
            let found = candidates(line.words.iter().map(OsString::from).collect());
            lines(found.into_iter().filter_map(|(value, help)| Some((line.insertion(&value)?, help))))
        }
        (shell, Some(last)) => {
            let text = last.to_string_lossy().into_owned();
            match shell {
                "fish" => *last = CommandLine::parse(&text, "").words.pop().unwrap_or_default().into(), // fish keeps quotes
                "powershell" => *last = text.strip_prefix('=').unwrap_or(&text).into(),
                _ => {}
            }
            lines(candidates(words))
        }
    };
    let _ = std::io::Write::write_all(&mut std::io::stdout(), answer.as_bytes()); // the reader may be gone
    ExitCode::SUCCESS
}

fn lines(found: impl IntoIterator<Item = (String, String)>) -> String {
    let lines: Vec<String> = found.into_iter().map(|(value, help)| format!("{value}\t{help}\n")).collect();
    lines.concat()
}

/// Returns the completions of the last word, with descriptions.
fn candidates(words: Vec<OsString>) -> Vec<(String, String)> {
    let Some((last, earlier)) = words.split_last() else { return Vec::new() };
    let asks_for_flags = last.to_string_lossy().starts_with('-');
    let mut command = Cli::command();
    command.build(); // else the flags of subcommands would be unknown
    let mut command = with_completers(command, last, earlier);
    let (at, folder) = (earlier.len(), env::current_dir().ok());
    let found = engine(&mut command, words, at, folder.as_deref()).unwrap_or_default();
    let found = found.iter().filter_map(|candidate| {
        // Other values would not fit into a line of the answer, or would look like something else.
        let value = candidate.get_value().to_str().filter(|value| visible(value) == **value)?;
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        Some((value.to_owned(), help.lines().next().unwrap_or_default().replace('\t', " ")))
    });
    let mut found: Vec<_> = found.collect();
    let is_flag = |value: &str| value.starts_with('-');
    // Thirty flags would hide two files.
    if !asks_for_flags && found.iter().any(|(value, _)| !is_flag(value)) {
        found.retain(|(value, _)| !is_flag(value));
    }
    found
}

/// Adds a completer for every value that the engine does not know.
fn with_completers(command: Command, last: &OsStr, earlier: &[OsString]) -> Command {
    command.mut_subcommands(|subcommand| {
        let name = subcommand.get_name().to_owned();
        subcommand.mut_args(|arg| match completer(&name, &arg, last, earlier) {
            Some(completer) => arg.add(completer),
            None => arg,
        })
    })
}

fn completer(subcommand: &str, arg: &Arg, last: &OsStr, earlier: &[OsString]) -> Option<ArgValueCompleter> {
    if arg.is_positional() {
        return Some(ArgValueCompleter::new(files_that(|file| by_extension(file).is_some())));
    }
    let id = arg.get_id().as_str();
    let takes = match (subcommand, id) {
        (_, "from") => |dtype: Dtype| dtype.bits() > 0,
        (_, "u64_target") => |dtype| promote::check_u64_target(dtype).is_ok(),
        ("bitcast", _) => |dtype| bitcast::check(dtype, dtype).is_ok(),
        _ => |dtype| cast::check(Dtype::Float32, dtype, &cast::CastAttributes::default()).is_ok(),
    };
    let earlier = earlier.to_vec();
    match arg.get_value_names()?.first()?.as_str() {
        "DTYPE" => Some(ArgValueCompleter::new(move |current: &OsStr| dtypes(&current.to_string_lossy(), takes))),
        "GLOB=DTYPE" => Some(rules(earlier, move |start| dtypes(start, takes))),
        "GLOB=SCHEME" => Some(rules(earlier, |start| {
            let names = SCHEMES.iter().map(|scheme| scheme.name);
            names.filter(|name| name.starts_with(start)).map(Candidate::new).collect()
        })),
        "NAME" => Some(tensors_of(earlier, str::to_owned)),
        "GLOB" => Some(tensors_of(earlier, as_glob)),
        "KEY=VALUE" => Some(keys_of(earlier, "=")),
        "KEY" if id == "unset" => Some(keys_of(earlier, "")),
        "OTHER[:GLOB]" => Some(ArgValueCompleter::new(other)),
        "OLD=NEW" => Some(tensors_of(earlier, |name| format!("{name}="))),
        "ADAPTER[=STRENGTH]" => Some(ArgValueCompleter::new(files_that(|file| by_extension(file).is_some()))),
        "FILE" if id == "imatrix" => Some(ArgValueCompleter::new(PathCompleter::file())),
        "FILE" => Some(ArgValueCompleter::new(files_that(|file| {
            file.extension().is_some_and(|extension| extension == "json" || extension == "html")
        }))),
        "OUT" => Some(ArgValueCompleter::new(PathCompleter::dir())),
        // The value of such a flag always follows an =, but the engine would also offer it as a separate word.
        "BOOL" if !last.to_string_lossy().contains('=') => Some(ArgValueCompleter::new(|_: &OsStr| Vec::new())),
        "N" if id == "opset" => Some(ArgValueCompleter::new(|current: &OsStr| {
            let versions = cast::VERSIONS.iter().map(|version| version.since.to_string());
            versions.filter(|number| number.starts_with(&*current.to_string_lossy())).map(Candidate::new).collect()
        })),
        _ => None, // choices of one list, any file, or values that only the user knows
    }
}

/// Completes files of a kind, and the folders that lead to them.
fn files_that(are_wanted: fn(&Path) -> bool) -> PathCompleter {
    PathCompleter::file().filter(move |path| path.is_file() && are_wanted(path))
}

/// Completes another file or folder, and after a colon the names of its tensors.
fn other(current: &OsStr) -> Vec<Candidate> {
    let text = current.to_string_lossy();
    match text.rsplit_once(':').filter(|(file, _)| path(OsStr::new(file)).exists()) {
        Some((file, start)) => {
            let found = tensors(start, &[file.into()], as_glob).into_iter();
            found.map(|candidate| candidate.add_prefix(format!("{file}:"))).collect()
        }
        None => files_that(|file| by_extension(file).is_some()).complete(current),
    }
}

/// Completes rules: names of tensors before the `=`, and then targets that start like this, or `keep`.
fn rules(
    earlier: Vec<OsString>,
    targets: impl Fn(&str) -> Vec<Candidate> + Send + Sync + 'static,
) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let current = current.to_string_lossy();
        let Some((glob, target)) = current.rsplit_once('=') else {
            return tensors(&current, inputs(&earlier), |name| format!("{}=", as_glob(name)));
        };
        let keep = "keep".starts_with(target).then(|| Candidate::new("keep"));
        let all = targets(target).into_iter().chain(keep);
        all.map(|candidate| candidate.add_prefix(format!("{glob}="))).collect()
    })
}

/// Returns the names of types that start like this; if none does, other spellings.
fn dtypes(start: &str, takes: fn(Dtype) -> bool) -> Vec<Candidate> {
    let wanted = || Dtype::all().filter(|dtype| takes(*dtype));
    let names = wanted().map(Dtype::name).filter(|name| name.starts_with(start));
    let names: Vec<Candidate> = names.map(Candidate::new).collect();
    if !names.is_empty() {
        return names;
    }
    let others = wanted().flat_map(|dtype| {
        let others = dtype.spellings().filter(|spelling| spelling.starts_with(start));
        others.map(move |spelling| Candidate::new(spelling).help(Some(dtype.name().into())))
    });
    others.collect()
}

/// Completes keys of the metadata of all files and folders named before.
fn keys_of(earlier: Vec<OsString>, end: &'static str) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let named = inputs(&earlier).iter().filter_map(|word| checkpoint::probe(&path(word), &ReadOptions::on(1)).ok());
        let keys: BTreeSet<String> = named
            .flat_map(|found| {
                let container = found.shards.first().map(|shard| shard.container);
                let keys = found.metadata().map(|(key, _)| key);
                let keys = keys.filter(|key| container.is_some_and(|container| !is_owned_key(container, key)));
                keys.map(|key| format!("{key}{end}")).collect::<Vec<_>>()
            })
            .collect();
        let start = current.to_string_lossy();
        keys.into_iter().filter(|key| key.starts_with(&*start)).map(Candidate::new).collect()
    })
}

fn tensors_of(earlier: Vec<OsString>, word: fn(&str) -> String) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| tensors(&current.to_string_lossy(), inputs(&earlier), word))
}

/// Returns the words behind the subcommand.
fn inputs(earlier: &[OsString]) -> &[OsString] {
    earlier.get(2..).unwrap_or_default()
}

/// Returns the words for tensors that start like this, in all of these files and folders.
fn tensors(start: &str, files: &[OsString], word: fn(&str) -> String) -> Vec<Candidate> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for checkpoint in files.iter().filter_map(|word| checkpoint::probe(&path(word), &ReadOptions::on(1)).ok()) {
        for word in checkpoint.names().map(word).filter(|word| word.starts_with(start)) {
            if seen.insert(word.clone()) {
                found.push(Candidate::new(word));
            }
        }
    }
    found
}

/// Returns the path that a word denotes: shells pass words as typed, with `~` for the home directory.
fn path(word: &OsStr) -> PathBuf {
    let path = Path::new(word);
    match (path.strip_prefix("~"), env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}
