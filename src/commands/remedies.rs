//! Remedies for errors, in terms of the program's flags and commands, and exit codes. Modules below `commands` give
//! [`Advice`] as facts.

use super::downloads::{download, from_hub};
use super::resume::{go_back, go_on};
use super::unmatched::{near, propose};
use crate::error::{Advice, Error, ErrorKind, Kind, Opt};
use crate::io::open::is_absent;
use crate::text::{first_few, flag_with, is, quoted};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;

/// Context of errors of `diff`: exit code 1 says that both inputs could be read and are not equal.
#[derive(Debug)]
pub(super) struct Trouble;

impl Trouble {
    pub(super) const EXIT_CODE: u8 = 2;
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot compare")
    }
}

/// Returns the exit code for an error, by its context or its kind.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Trouble>() { Trouble::EXIT_CODE } else { error.downcast_ref().map_or(1, code_of) }
}

fn code_of(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Usage => 2,
        ErrorKind::Loss => 3,
        ErrorKind::Exists => 4,
        _ => 1,
    }
}

/// Separates alternatives.
const OR: &str = ", or ";

/// Maximum number of names in a message.
const MOST_NAMES: usize = 8;

/// Lists the tensors that exist in place of one that does not.
fn others(name: &str, names: &[String]) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match &near(name, &names)[..] {
        [] => format!("there {}: {}", is(names.len() as u64), first_few(names, MOST_NAMES)),
        near => format!("similar: {}", first_few(near, MOST_NAMES)),
    }
}

/// Returns the flag that chooses a tensor.
fn one_of(names: &[String]) -> String {
    // Only this form accepts a name that begins with a dash.
    let joint = if names.iter().any(|name| name.starts_with('-')) { '=' } else { ' ' };
    format!("--tensor{joint}NAME, one of {}", first_few(names, MOST_NAMES))
}

/// Returns the remedy for an error, if there is one.
#[must_use]
pub fn remedy(error: &Error) -> Option<String> {
    Some(lines(error).0).filter(|text| !text.is_empty())
}

/// Returns the alternatives to a command that is the remedy.
#[must_use]
pub fn alternative(error: &Error) -> Option<String> {
    if let Kind::Interrupted(work) = error.cause() {
        return go_back(work);
    }
    Some(lines(error).1).filter(|text| !text.is_empty()).map(|others| format!("or {others}"))
}

/// Returns the alternatives in words, on two lines: a command stands alone, to be pasted.
fn lines(error: &Error) -> (String, String) {
    let advice = error.advice();
    let is_command = matches!(advice, [Advice::Run { say, .. }, ..] if **say == *"{}" || say.starts_with("{} --"));
    let (first, others) = advice.split_at(if is_command { 1 } else { advice.len() });
    (joined(first, of_kind(error)), joined(others, None))
}

/// Joins alternatives. An option after another one with the same verb omits it; after a verb and a flag alone, a comma would
/// disturb.
fn joined(advice: &[Advice], last: Option<String>) -> String {
    let (mut joined, mut before) = (String::new(), None);
    for advice in advice {
        let (text, mut or) = (word(advice), OR);
        let own = match advice {
            Advice::With { say, .. } if !say.starts_with('{') => {
                say.split_once(' ').map(|(verb, rest)| (verb, rest == "{}"))
            }
            _ => None,
        };
        let mut rest = &*text;
        if let (Some((verb, is_short)), Some((own, _))) = (before, own)
            && verb == own
        {
            rest = &text[own.len() + 1..];
            or = if is_short { " or " } else { OR };
        }
        joined += if joined.is_empty() { "" } else { or };
        joined += rest;
        before = own;
    }
    joined += if joined.is_empty() || last.is_none() { "" } else { OR };
    joined + &last.unwrap_or_default()
}

/// Words advice with flags and commands.
fn word(advice: &Advice) -> String {
    let command = |operator: &str, input: &Path, options: &[(Opt, OsString)]| {
        let words = [format!("tcast {operator}"), argument(input), flags(options)];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    };
    match advice {
        Advice::Download(address) if address.contains("://") => download(address),
        Advice::Download(name) => format!("if it is a model on Hugging Face: {}", from_hub(name, None)),
        advice => advice.worded(flags, command),
    }
}

/// Returns the flag of an option.
pub(super) fn flag(option: Opt) -> String {
    match option {
        Opt::OUTPUT => "-o".to_owned(),
        Opt::THREADS => "-j".to_owned(),
        option => format!("--{}", option.name().replace('_', "-")),
    }
}

/// Returns the flags of options with their values; only the first flag, without its value, if they are too long to paste.
fn flags(options: &[(Opt, OsString)]) -> String {
    /// Maximum length.
    const MOST: usize = 2048;
    let word = |(option, value): &(Opt, OsString)| match (*option, value.to_string_lossy()) {
        (option, value) if value.is_empty() => flag(option),
        (Opt::OUTPUT | Opt::CONFIG | Opt::LORA, _) => format!("{} {}", flag(*option), argument(value.as_ref())),
        (Opt::EXCLUDE | Opt::INCLUDE | Opt::RENAME | Opt::RULE, value) if !stands_for_another(&value) => {
            flag_with(&flag(*option), &value)
        }
        (option, value) => format!("{} {value}", flag(option)),
    };
    let text = options.iter().map(word).collect::<Vec<_>>().join(" ");
    if text.len() <= MOST { text } else { flag(options[0].0) } // only patterns are long
}

/// Quotes a path, unless it stands for another one, or for standard output.
fn argument(path: &Path) -> String {
    match path.to_str() {
        Some(text) if text.is_empty() || text == "-" || stands_for_another(text) => text.to_owned(),
        _ => quoted(path),
    }
}

/// True for a word in capitals, such as `TYPE` or `MODEL.gguf`, that stands for a value.
fn stands_for_another(word: &str) -> bool {
    let (stem, extension) = word.split_once('.').unwrap_or((word, ""));
    !stem.is_empty()
        && stem.bytes().all(|byte| byte.is_ascii_uppercase())
        && extension.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Returns the remedy that follows from what the program knows about errors of a kind.
fn of_kind(error: &Error) -> Option<String> {
    match error.cause() {
        Kind::Several(errors) if errors.iter().all(is_about_output) => Some(
            "add --skip-existing to keep these outputs and convert the other inputs, or --force to replace them"
                .to_owned(),
        ),
        Kind::Interrupted(work) => Some(go_on(work)),
        Kind::Unmatched { option, pattern, names } => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            pattern.parse().ok().map(|pattern| propose(&flag(*option), &pattern, "", &names))
        }
        Kind::NoTensor { name, names } => Some(others(name, names)),
        Kind::SeveralTensors(names) => Some(one_of(names)),
        Kind::System if error.path() == Some(Path::new("-")) && is_about_absence(error) => {
            Some("tcast does not read standard input: write it to a file, and name that".to_owned())
        }
        _ => None,
    }
}

/// True if an error only says that an output exists, which could be replaced.
fn is_about_output(error: &Error) -> bool {
    error.advice().iter().any(|advice| advice.sets(Opt::FORCE)) && error.kind() == ErrorKind::Exists
}

/// True if the system found no file of the name. Errors of standard output have the same path as a missing `-`.
fn is_about_absence(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(is_absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)] // in its quotes
    fn all_codes_are_left_out_by_flags_that_a_shell_takes() {
        let leave = |globs: &[String]| Error::new("holds codes").leaving_out(globs, false);
        let wanted = r"copy the weights as they are with --exclude '*.x[*]y.w' --exclude 'it'\''s; ls.w'";
        assert_eq!(remedy(&leave(&["*.x[*]y.w".to_owned(), "it's; ls.w".to_owned()])).unwrap(), wanted);
        let many: Vec<String> = (0..1000).map(|number| format!("name{number}")).collect();
        assert_eq!(remedy(&leave(&many)).unwrap(), "copy the weights as they are with --exclude");
    }

    #[test]
    #[cfg(unix)] // in its quotes
    fn a_command_stands_alone_and_its_alternatives_follow() {
        let error = Error::new("holds codes").decoding("it's".as_ref());
        assert_eq!(remedy(&error).unwrap(), r"tcast dequantize 'it'\''s'");
        assert_eq!(alternative(&error), None);
        let error = error.leaving_out(&["x".to_owned()], false).forcing_codes();
        let others =
            "or copy the weights as they are with --exclude 'x', or --force-codes treats all of its tensors as values";
        assert_eq!(alternative(&error).unwrap(), others);
        let error = Error::new("is in blocks").in_blocks().in_file("x.gguf".as_ref());
        assert_eq!(remedy(&error).unwrap(), "to get their values: tcast dequantize 'x.gguf' --to float32");
    }

    #[test]
    #[cfg(unix)] // in its quotes
    fn alternatives_with_the_same_verb_have_it_once() {
        let error = Error::new("x").unstorable().unconvertible().in_tensor("a*");
        let wanted =
            "choose a scheme with --scheme, or another layout with --layout, or copy it as it is with --exclude 'a[*]'";
        assert_eq!(remedy(&error).unwrap(), wanted);
        let wanted = "choose a scheme with `scheme`; choose another layout with `layout`; copy it as it is with `exclude` (a[*])";
        assert_eq!(error.advice().iter().map(Advice::to_string).collect::<Vec<_>>().join("; "), wanted);
        let output =
            Error::new("y").with_value(Opt::OUTPUT, "-x", "name {}").with_value(Opt::OUTPUT, "FILE", "name {}");
        assert_eq!(remedy(&output).unwrap(), "name -o './-x' or -o FILE");
    }

    #[test]
    fn every_option_is_a_flag_of_a_subcommand() {
        let program = crate::cli::command();
        let is_flag = |option: &Opt| {
            let is_it = |argument: &clap::Arg| match flag(*option).as_str() {
                short if !short.starts_with("--") => argument.get_short() == short.chars().nth(1),
                long => argument.get_long() == Some(&long[2..]),
            };
            program.get_subcommands().any(|subcommand| subcommand.get_arguments().any(is_it))
        };
        let unknown: Vec<&Opt> = Opt::ALL.iter().filter(|option| !is_flag(option)).collect();
        assert!(unknown.is_empty() && Opt::ALL.len() > 30, "{unknown:?}");
    }

    #[test]
    fn only_a_missing_input_is_answered_with_a_word_on_standard_input() {
        let of = |kind: io::ErrorKind, what: &str| remedy(&Error::io(what, &kind.into()).in_file(Path::new("-")));
        assert!(of(io::ErrorKind::NotFound, "cannot read").is_some_and(|text| text.contains("standard input")));
        assert_eq!(of(io::ErrorKind::BrokenPipe, "cannot write"), None);
    }

    #[test]
    fn context_decides_on_the_exit_code_and_keeps_the_error() {
        let error = anyhow::Error::from(Error::new("no")).context("reading").context(Trouble);
        assert_eq!((exit_code(&error), error.is::<Error>()), (2, true));
        assert_eq!(exit_code(&anyhow::Error::from(Error::usage("no")).context("reading")), 2);
        assert_eq!(exit_code(&anyhow::anyhow!("no error of ours")), 1);
    }

    #[test]
    fn several_errors_have_the_exit_code_that_they_have_in_common() {
        let (usage, exists) = (|| Error::usage("x"), || Error::new("y").existing("name another file with {}"));
        for (errors, code) in [
            (vec![usage(), usage()], 2),
            (vec![exists(), exists()], 4),
            (vec![usage(), exists()], 1),
            (vec![Error::new("z")], 1),
        ] {
            assert_eq!(exit_code(&Error::new("several").of(Kind::Several(errors.into())).into()), code);
        }
    }
}
