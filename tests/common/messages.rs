//! The catalogue of messages: what the program says on standard error in the tests of `tests/cli`, word by word. Each command
//! has a file in `tests/cli/messages`, with a section for each test and an entry for each run:
//!
//! ```text
//! $ tcast cast x.npy --to floot16
//! tcast: error: unknown dtype 'floot16'; similar: float16
//!   tcast cast x.npy --to float16
//! [exit code 2]
//! ```
//!
//! So who changes the words of a message changes the catalogue, and no test. `TCAST_REFRESH=1 cargo test --test cli` writes
//! the sections of the tests that run anew, without entries that are no longer printed.

use super::{Outcome, as_on_linux};
use regex::Regex;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

/// The commands that have a file; the last one is for lines without a command.
const COMMANDS: [&str; 8] = ["cast", "quantize", "dequantize", "promote", "bitcast", "diff", "inspect", "other"];

/// The sections of a file by the name of their test.
type Sections = BTreeMap<String, String>;

fn file(command: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/messages").join(format!("{command}.txt"))
}

fn read(command: &str) -> Sections {
    let text = fs::read_to_string(file(command)).unwrap_or_default();
    let text = as_on_linux(&text.replace("\r\n", "\n")); // as Git writes it on Windows
    let sections = text.split("# test ").skip(1).map(|section| section.split_once("\n\n").expect("a name and entries"));
    sections.map(|(name, entries)| (name.to_owned(), entries.to_owned())).collect()
}

/// The files that `TCAST_REFRESH` writes, by command; at first without the sections of all tests that this process runs.
static REFRESHED: LazyLock<Mutex<BTreeMap<&str, Sections>>> = LazyLock::new(|| {
    let filters: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |test: &str| filters.is_empty() || filters.iter().any(|filter| test.contains(filter.as_str()));
    let others = |command| read(command).into_iter().filter(|(test, _)| !runs(test)).collect();
    Mutex::new(COMMANDS.into_iter().map(|command| (command, others(command))).collect())
});

/// Adds an entry, unless it is the last one again, and writes all files: where the entries of a test move to another file,
/// they leave their old one.
fn refresh(command: &'static str, test: &str, entry: &str) {
    let mut refreshed = REFRESHED.lock().unwrap();
    let section = refreshed.get_mut(command).unwrap().entry(test.to_owned()).or_default();
    if !section.ends_with(entry) {
        section.push_str(entry);
    }
    for (command, sections) in refreshed.iter() {
        let parts = sections.iter().flat_map(|(test, entries)| ["# test ", test, "\n\n", entries]);
        fs::write(file(command), parts.collect::<String>()).unwrap();
    }
}

thread_local! {
    /// How many bytes of its section of each file the runs of this test have compared: it runs in a thread of its own.
    static COMPARED: RefCell<BTreeMap<&'static str, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// Looks for an entry in the rest of its section, unless it is the last one again. Other entries may stand before it: those of
/// runs that other systems skip.
#[track_caller]
fn compare(command: &'static str, test: &str, entry: &str) {
    let section = read(command).remove(test).unwrap_or_default();
    COMPARED.with_borrow_mut(|compared| {
        let compared = compared.entry(command).or_default();
        let (before, rest) = section.split_at(*compared);
        let place = if before.ends_with(entry) { Some(0) } else { rest.find(entry).map(|at| at + entry.len()) };
        let of_line = |other: &&str| other.lines().next() == entry.lines().next();
        let next = rest.split_inclusive("]\n\n").find(of_line).unwrap_or("no such line\n\n");
        let how = "if the second is meant, refresh the file: TCAST_REFRESH=1 cargo test --test cli";
        *compared += place.unwrap_or_else(|| {
            panic!("tests/cli/messages/{command}.txt has under {test}:\n\n{next}and not:\n\n{entry}{how}")
        });
    });
}

/// What was printed without what differs from run to run: temporary folders, the place of this repository, times,
/// and the space on the disk.
fn without_chance(text: &str) -> String {
    static CHANCE: LazyLock<[(Regex, &str); 3]> = LazyLock::new(|| {
        let folder = Regex::new(r#"[^\s'"=(]*/\.tmp\w{6}\b"#).unwrap();
        let time = Regex::new(r"\bin \d+\.\d\d s( \([^()]*/s\))?").unwrap();
        let space = Regex::new(r"[\d.]+ \w+ are available").unwrap();
        [(folder, "/tmp/test"), (time, "in TIME"), (space, "SPACE are available")]
    });
    let text = as_on_linux(text).replace(&as_on_linux(env!("CARGO_MANIFEST_DIR")), "/tcast");
    CHANCE.iter().fold(text, |text, (chance, name)| chance.replace_all(&text, *name).into_owned())
}

impl Outcome {
    /// Checks exit code and standard output to the letter, a word of standard error, and all of it against the catalogue.
    #[track_caller]
    pub fn says(&self, code: i32, stdout: &str, word: &str) {
        assert_eq!((self.code, &*self.stdout), (Some(code), &*as_on_linux(stdout)), "{}", self.stderr);
        self.check_message(word);
    }

    /// Checks a word of standard error, and all of it and the exit code against the catalogue.
    #[track_caller]
    pub fn check_message(&self, word: &str) {
        let Self { line, code, stderr, .. } = self;
        assert!(stderr.contains(&as_on_linux(word)), "$ tcast {line}\n{stderr}does not have: {word}");
        let code = code.expect("no signal ended the run");
        let entry = without_chance(&format!("$ tcast {line}\n{stderr}[exit code {code}]\n\n"));
        let command = COMMANDS.into_iter().find(|command| line.split(' ').next() == Some(command)).unwrap_or("other");
        let test = std::thread::current().name().expect("tests run in threads with their names").to_owned();
        let check = if std::env::var_os("TCAST_REFRESH").is_some() { refresh } else { compare };
        check(command, &test, &entry);
    }
}
