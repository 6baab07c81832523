//! Commands to paste into a shell.

use super::{HERE, Shell, quoted};
#[cfg(feature = "cli")]
use std::ffi::OsStr;
use std::path::Path;

#[cfg(feature = "cli")]
/// Program that downloads a file; PowerShell has a different command named curl.
pub(crate) const CURL: &str = if cfg!(windows) { "curl.exe" } else { "curl" };

#[cfg(feature = "cli")]
/// Joins words to a command, and quotes only words that need it.
pub(crate) fn command_line(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || HERE.plain().contains(byte);
    let word = |word: &OsStr| match word.to_str().filter(|text| !text.is_empty() && text.bytes().all(|b| is_plain(&b)))
    {
        Some(text) => text.to_owned(),
        None => HERE.quote(word.as_encoded_bytes()),
    };
    words.into_iter().map(|text| word(text.as_ref())).collect::<Vec<_>>().join(" ")
}

/// Returns a pattern for files as a word that the shell expands.
pub(crate) fn expanded(pattern: &Path) -> String {
    let is_safe = |c: char| c.is_alphanumeric() || "*?-_./=:,+@%~".contains(c);
    let text = pattern.to_string_lossy();
    let text = if text.starts_with('-') { format!("./{text}") } else { text.into_owned() };
    let escape = |c: char| if is_safe(c) { c.to_string() } else { format!("\\{c}") };
    text.chars().map(escape).collect()
}

/// Returns the command that removes files.
pub(crate) fn remove_files(paths: &[impl AsRef<Path>]) -> String {
    let (command, between) = match HERE {
        Shell::Posix => ("rm", " "),
        Shell::Windows => ("del", ", "), // cmd.exe takes the comma for a space
    };
    format!("{command} {}", paths.iter().map(|path| quoted(path.as_ref())).collect::<Vec<_>>().join(between))
}

/// Returns the command that removes a folder with everything in it.
pub(crate) fn remove_folder(path: &Path) -> String {
    match HERE {
        Shell::Posix => format!("rm -r {}", quoted(path)),
        Shell::Windows => format!("cmd /c rmdir /s /q {}", quoted(path)), // rmdir of PowerShell has other flags
    }
}

/// Returns the command that makes a folder and its parents.
pub(crate) fn make_folder(path: &Path) -> String {
    match HERE {
        Shell::Posix => format!("mkdir -p {}", quoted(path)),
        Shell::Windows => format!("mkdir {}", quoted(path)),
    }
}

/// Returns the command that moves a file to another name or folder, and replaces none.
pub(crate) fn move_file(from: &Path, to: &Path) -> String {
    let command = match HERE {
        Shell::Posix => "mv -n",
        Shell::Windows => "move", // cmd.exe asks first
    };
    format!("{command} {} {}", quoted(from), quoted(to))
}

/// Returns the commands that replace a link by a copy of its target, by way of a free name.
pub(crate) fn replace_by_copy(link: &Path, copy: &Path) -> String {
    let [link, copy] = [link, copy].map(quoted);
    match HERE {
        Shell::Posix => format!("cp {link} {copy} && mv {copy} {link}"),
        Shell::Windows => format!("copy {link} {copy}, then del {link}, and then move {copy} {link}"),
    }
}

#[cfg(feature = "cli")]
impl Shell {
    /// Returns the characters, in addition to letters and digits, that need no quotes.
    fn plain(self) -> &'static [u8] {
        match self {
            Self::Posix => b"-_./=:,+@%",
            Self::Windows => b"-_./\\:+",
        }
    }
}
