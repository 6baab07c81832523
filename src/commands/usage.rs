//! Help, version and usage errors: clap's, in the style and with the words of this program.

use super::fail;
use super::messages::{print_message, printed};
use crate::cli::OVERVIEW;
use crate::error::Error;
use crate::text::{quoted, visible};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::process::ExitCode;

/// Words of other tools for our flags and subcommands.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("convert", "cast"),
    ("requantize", "quantize"),
    ("compress", "quantize"),
    ("view", "bitcast"),
    ("hex", "bitcast"),
    ("info", "inspect"),
    ("list", "inspect"),
    ("ls", "inspect"),
    ("show", "inspect"),
    ("stats", "inspect"),
    ("compare", "diff"),
    ("--dtype", "--to"),
    ("--type", "--to"),
];

/// Prints help and version on standard output, and usage errors in the program's own style.
#[must_use]
pub fn usage(mut error: clap::Error) -> ExitCode {
    if let Some(mistake) = stray_file(&error) {
        return fail(&mistake.into());
    }
    suggest(&mut error);
    // Typed words are shown, but must not be commands to the terminal.
    let words = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(word) => Some((kind, ContextValue::String(visible(word)))),
        _ => None,
    });
    for (kind, word) in words.collect::<Vec<_>>() {
        error.insert(kind, word);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        print_message(OVERVIEW); // nothing was asked for, so nothing goes to standard output
    } else if error.use_stderr() {
        print_message(format!("tcast: {}", error.render().ansi()).trim_end());
    } else if let Err(full) = printed(error.print()) {
        return fail(&full.into());
    }
    ExitCode::from(error.exit_code() as u8)
}

/// The error for a file name in a position without one.
fn stray_file(error: &clap::Error) -> Option<Error> {
    let names_a_file = |word: &str| !word.starts_with('-') && crate::container::by_extension(word.as_ref()).is_some();
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) if names_a_file(word) => Some(word),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => word(ContextKind::InvalidSubcommand).map(|file| {
            let remedy = format!("tcast cast {} --to DTYPE", quoted(file.as_ref()));
            Error::usage(format!("'{file}' is not a subcommand")).remedy(remedy)
        }),
        _ => None,
    }
}

/// Makes a message about an unknown word name ours.
fn suggest(error: &mut clap::Error) {
    let our = |word: &ContextValue| {
        let found = OTHER_WORDS.iter().find(|(other, _)| matches!(word, ContextValue::String(word) if word == other));
        found.map(|(_, our)| (*our).to_owned())
    };
    if let Some(command) = error.get(ContextKind::InvalidSubcommand).and_then(our) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![command]));
    } else if let Some(flag) = error.get(ContextKind::InvalidArg).and_then(our) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(flag));
    }
    // clap proposes to pass an unknown flag as a value: our values do not begin with a dash.
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().starts_with("to pass '"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
}
