//! What helps against an error, in the flags of the program, and its exit code. Modules below `commands` only say what is
//! wrong, by a [`Kind`].

use crate::error::{Error, Kind, Wanted};
use crate::text::quoted;

/// The exit code for an error.
#[must_use]
pub fn exit_code(error: &Error) -> u8 {
    match error.kind() {
        Kind::Usage | Kind::Unnamed(_) => 2,
        Kind::Loss => 3,
        Kind::Exists(_) => 4,
        Kind::Several(errors) => {
            let mut codes = errors.iter().map(exit_code);
            let first = codes.next().unwrap_or(1);
            if codes.all(|code| code == first) { first } else { 1 }
        }
        _ => 1,
    }
}

/// What helps, if anything does.
#[must_use]
pub fn remedy(error: &Error) -> Option<String> {
    let flags = match error.kind() {
        Kind::Exists(Wanted::Folder) | Kind::Unfinished { can_resume: false } => {
            "add --force to replace it, or name another folder with -o".to_owned()
        }
        Kind::Exists(_) => "add --force to replace it, or name another file with -o".to_owned(),
        Kind::Unfinished { can_resume: true } => "add --resume to go on with it, or --force to start anew".to_owned(),
        Kind::Stale => "start anew with --force".to_owned(),
        Kind::Taken(wanted) => elsewhere(wanted),
        Kind::Unnamed(wanted) => named(wanted),
        Kind::NoRoom => "free some space, or name an output on another disk with -o".to_owned(),
        _ => String::new(),
    };
    let remedies = [error.remedy_text().unwrap_or_default(), &flags];
    let remedies: Vec<&str> = remedies.into_iter().filter(|remedy| !remedy.is_empty()).collect();
    (!remedies.is_empty()).then(|| remedies.join(", or "))
}

/// How another output is named.
fn elsewhere(wanted: &Wanted) -> String {
    match wanted {
        Wanted::File => "name another file with -o".to_owned(),
        Wanted::Folder => "name another folder with -o".to_owned(),
        Wanted::FolderOrBeside => {
            "name another folder with -o, or leave -o out: then the type is in the names of the outputs".to_owned()
        }
        Wanted::FileOrFolder => "name the output, or a folder for several outputs, with -o".to_owned(),
        Wanted::Stream => "write to standard output with -o -, and redirect that".to_owned(),
        Wanted::At(path) => format!("name an output elsewhere: -o {}", quoted(path)),
        _ => "name another output with -o".to_owned(),
    }
}

/// How an output is named.
fn named(wanted: &Wanted) -> String {
    match wanted {
        Wanted::File => "name a file with -o".to_owned(),
        Wanted::Folder => "name a folder with -o".to_owned(),
        Wanted::Stream => "name the output: -o FILE, or -o - for standard output".to_owned(),
        Wanted::At(path) => format!("for a folder of that name: -o {}", quoted(path)),
        _ => "name the output with -o".to_owned(),
    }
}
