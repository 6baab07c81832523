//! Words of commands to paste into a shell. On Windows, both cmd.exe and PowerShell accept them; elsewhere, POSIX shells do.

pub(super) mod command;

use super::is_shown;
use std::path::Path;

/// Kind of shell that commands are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shell {
    Posix,
    Windows,
}

/// Kind of shell on this system.
const HERE: Shell = if cfg!(windows) { Shell::Windows } else { Shell::Posix };

/// Environment variable that names the folder for temporary files.
pub(crate) const TEMPORARY_FOLDER: &str = if cfg!(windows) { "TMP" } else { "TMPDIR" };

/// Quotes a path for the shell, whatever bytes it has.
pub(crate) fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes();
    // With its folder in front, it is not an option.
    if bytes.starts_with(b"-") { HERE.quote(&[b"./", bytes].concat()) } else { HERE.quote(bytes) }
}

/// Returns a flag with its quoted value; for clap, a value that begins with a dash follows an equals sign.
#[must_use]
pub fn flag_with(flag: &str, value: &str) -> String {
    let joint = if value.starts_with('-') { '=' } else { ' ' };
    format!("{flag}{joint}{}", HERE.quote(value.as_bytes()))
}

impl Shell {
    fn quote(self, bytes: &[u8]) -> String {
        match self {
            Self::Posix => posix_quotes(bytes),
            Self::Windows => windows_quotes(bytes),
        }
    }
}

fn posix_quotes(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.chars().all(is_shown)
    {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut quoted = String::from("$'");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '\\' => quoted.extend(['\\', c]),
                _ if is_shown(c) => quoted.push(c),
                _ => quoted += &octal(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        quoted += &octal(chunk.invalid());
    }
    quoted + "'"
}

fn octal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |digits, byte| digits + &format!("\\{byte:03o}"))
}

/// Encloses text in double quotes, the only ones that cmd.exe and PowerShell share. No file of Windows has a quote in
/// its name; in a pattern, `?` stands for a quote, and for characters that cannot be typed. `$` and the backtick are
/// escaped for PowerShell, which would evaluate them; cmd.exe takes the escape literally, and finds no such name.
fn windows_quotes(bytes: &[u8]) -> String {
    let mut quoted = String::from("\"");
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '$' | '`' => quoted.extend(['`', c]),
            '"' | '\u{201c}'..='\u{201e}' => quoted.push('?'), // PowerShell takes typographic quotes for the plain one
            _ if !is_shown(c) => quoted.push('?'),
            _ => quoted.push(c),
        }
    }
    // A backslash would escape the quote that ends the word.
    let ending = quoted.len() - quoted.trim_end_matches('\\').len();
    quoted + &"\\".repeat(ending) + "\""
}

#[cfg(test)]
mod tests {
    use super::{Shell, posix_quotes};

    #[test]
    fn a_posix_shell_takes_what_is_quoted_for_the_same_bytes() {
        for (name, text) in [
            (&b"it em"[..], "'it em'"),
            (b"it's; touch PWN", r"'it'\''s; touch PWN'"),
            (b"a\n'\\b", r"$'a\012\'\\b'"),
            ("x\u{202e}y".as_bytes(), r"$'x\342\200\256y'"),
            (b"b\xff\x80", r"$'b\377\200'"),
        ] {
            assert_eq!(posix_quotes(name), text);
        }
    }

    #[test]
    fn no_shell_of_windows_runs_anything_in_what_is_quoted() {
        for (name, text) in [
            (r"C:\my files\x.npy", r#""C:\my files\x.npy""#),
            (r"out\", r#""out\\""#),
            ("$(calc)`n", "\"`$(calc)``n\""),
            ("a\" & calc & \"b", "\"a? & calc & ?b\""),
            ("a\u{201d}; calc", "\"a?; calc\""),
            ("a\n\u{202e}b", "\"a??b\""),
            ("it's", "\"it's\""),
        ] {
            assert_eq!(Shell::Windows.quote(name.as_bytes()), text);
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_name_that_begins_with_a_dash_is_no_flag() {
        assert_eq!(super::quoted("-f".as_ref()), "'./-f'");
        assert_eq!(super::flag_with("--rule", "a*=keep"), "--rule 'a*=keep'");
        assert_eq!(super::flag_with("--rule", "-a*=keep"), "--rule='-a*=keep'");
    }
}
