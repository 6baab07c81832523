//! The one error type: where, which tensor, what is wrong, and the command that mends it; and how messages show
//! names and sizes.

use std::fmt;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something was refused or failed.
///
/// Shown as `PATH: tensor 'NAME': what is wrong`; the remedy, where there is one, is a line of its own.
#[derive(Debug)]
pub struct Error {
    path: Option<PathBuf>,
    tensor: Option<String>,
    message: String,
    remedy: Option<String>,
    exit_code: u8,
    is_io: bool,
}

/// The exit code where the output exists.
const EXISTS: u8 = 4;

impl Error {
    /// `message` in lower case, without full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Self { path: None, tensor: None, message: message.into(), remedy: None, exit_code: 1, is_io: false }
    }

    /// The arguments contradict each other or the input: exit code 2.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(message).into_usage()
    }

    /// The same error, as one of wrong usage.
    #[must_use]
    pub fn into_usage(self) -> Self {
        Self { exit_code: 2, ..self }
    }

    /// A loss happened that the arguments forbid: exit code 3.
    #[must_use]
    pub fn into_loss(self) -> Self {
        Self { exit_code: 3, ..self }
    }

    /// The output exists: exit code 4.
    #[must_use]
    pub fn into_existing(self) -> Self {
        Self { exit_code: EXISTS, ..self }
    }

    /// Whether it says that the output exists.
    #[must_use]
    pub fn is_existing(&self) -> bool {
        self.exit_code == EXISTS
    }

    /// An operating system error while doing `what`.
    #[must_use]
    pub fn io(what: &str, error: &std::io::Error) -> Self {
        Self { is_io: true, ..Self::new(format!("{what}: {}", describe(error))) }
    }

    /// The same error, as one of the system.
    #[must_use]
    pub fn into_io(self) -> Self {
        Self { is_io: true, ..self }
    }

    /// Whether the system refused something, which it may not do the next time.
    #[must_use]
    pub fn is_io(&self) -> bool {
        self.is_io
    }

    /// Names the file, unless one is named already.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        self.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// Names the tensor, unless one is named already; an empty name (the one tensor of a .npy) says nothing.
    #[must_use]
    pub fn in_tensor(mut self, name: &str) -> Self {
        if !name.is_empty() {
            self.tensor.get_or_insert_with(|| name.to_owned());
        }
        self
    }

    /// What to do about it, as a command where one exists.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The remedy, if there is one.
    #[must_use]
    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// 2 for wrong usage, 3 for a loss that is forbidden, 4 for an output that exists, 1 for everything else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", visible(&path.to_string_lossy()))?;
        }
        if let Some(tensor) = &self.tensor {
            write!(f, "tensor '{}': ", shorten(tensor))?;
        }
        f.write_str(&visible(&self.message))
    }
}

impl std::error::Error for Error {}

/// Text with control characters escaped: what files and arguments hold never reaches a terminal as a command.
#[must_use]
#[doc(hidden)] // for tests
pub fn visible(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

/// A path as a shell takes it.
#[must_use]
pub(crate) fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

/// A name as a pattern that matches it, and where it is not very long nothing else.
#[must_use]
pub fn as_glob(name: &str) -> String {
    let escape = |text: &str| globset::escape(text).replace('\\', r"[\]"); // which it leaves out
    let mut places = name.char_indices().map(|(place, _)| place);
    match (places.clone().nth(KEPT), places.clone().nth(2 * KEPT), places.nth_back(KEPT - 1)) {
        (Some(head), Some(_), Some(tail)) => format!("{}*{}", escape(&name[..head]), escape(&name[tail..])),
        _ => escape(name),
    }
}

/// Characters at either end of a name that is too long to be shown.
const KEPT: usize = 100;

/// A name as it can be shown: control characters escaped, the middle of a very long one left out.
#[must_use]
#[doc(hidden)] // for tests
pub fn shorten(name: &str) -> String {
    let count = name.chars().count();
    // Quotes stay as they are: names are not read back from messages.
    let escape = |c: char| if matches!(c, '\'' | '"' | '\\') { c.to_string() } else { c.escape_debug().to_string() };
    if count <= 2 * KEPT {
        return name.chars().map(escape).collect();
    }
    let head: String = name.chars().take(KEPT).map(escape).collect();
    let tail: String = name.chars().skip(count - KEPT).map(escape).collect();
    format!("{head}...{tail}")
}

/// A number of bytes in the unit that fits it.
#[must_use]
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// `1 tensor`, `2 tensors`.
#[must_use]
pub(crate) fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Bytes as hexadecimal digits.
#[must_use]
pub(crate) fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))
}

/// Six significant digits.
#[must_use]
pub(crate) fn brief(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..1e6).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let decimals = (5 - magnitude.log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// The system's words, without its "(os error 28)" and in lower case as all messages here.
fn describe(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{as_glob, brief};

    #[test]
    fn a_pattern_of_a_name_is_as_short_as_can_be_shown() {
        assert_eq!(as_glob(r"a*[b]\{c}"), r"a[*][[]b[]][\][{]c[}]");
        let name = "\u{e9}".repeat(200);
        assert_eq!(as_glob(&name), name);
        let name = format!("{name}?");
        assert_eq!(as_glob(&name), format!("{}*{}[?]", "\u{e9}".repeat(100), "\u{e9}".repeat(99)));
    }

    #[test]
    fn numbers_have_six_digits() {
        let cases = [
            (0.000_123_456_78, "0.000123457"),
            (0.009_876_543_2, "0.00987654"),
            (-0.07, "-0.07"),
            (1.0, "1"),
            (123_456.7, "123457"),
            (1e6, "1.000e6"),
            (-3e38, "-3.000e38"),
            (0.0, "0"),
        ];
        for (value, text) in cases {
            assert_eq!(brief(value), text);
        }
    }
}
