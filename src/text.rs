//! Text for people, shells and JSON: names, paths, sizes and numbers.

mod shell;
#[cfg(feature = "cli")]
mod terminal;

pub use shell::flag_with;
pub(crate) use shell::{TEMPORARY_FOLDER, quoted};

#[cfg(feature = "cli")]
pub(crate) use shell::command::{CURL, command_line};
pub(crate) use shell::command::{expanded, make_folder, move_file, remove_files, remove_folder, replace_by_copy};
#[cfg(feature = "cli")]
pub(crate) use terminal::{columns, stderr_columns, stdout_columns, width, wrapped};

#[cfg(feature = "cli")]
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;

/// Escapes every misleading character: text from files and arguments never reaches a terminal as a command, and cannot
/// look like something else.
#[must_use]
pub fn visible(text: &str) -> String {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.to_owned(); // true of nearly all names
    }
    text.chars().map(|c| if is_shown(c) { c.to_string() } else { c.escape_debug().to_string() }).collect()
}

/// Escapes a path or file name like [`visible`], with bytes that are not UTF-8 as `\xff`.
pub(crate) fn path_text(path: impl AsRef<OsStr>) -> String {
    let bytes = path.as_ref().as_encoded_bytes();
    let escaped = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| text + &format!("\\x{byte:02x}"));
    bytes.utf8_chunks().map(|chunk| visible(chunk.valid()) + &escaped(chunk.invalid())).collect()
}

/// True if a character is shown unescaped: it controls no terminal, ends no line, keeps the text direction and has a
/// width.
fn is_shown(c: char) -> bool {
    /// Joiners, variation selectors, and letters without a shape, which Unicode counts as printable.
    const UNSEEN: [std::ops::RangeInclusive<char>; 7] = [
        '\u{34f}'..='\u{34f}',
        '\u{115f}'..='\u{1160}',
        '\u{180b}'..='\u{180f}',
        '\u{3164}'..='\u{3164}',
        '\u{fe00}'..='\u{fe0f}',
        '\u{ffa0}'..='\u{ffa0}',
        '\u{e0100}'..='\u{e01ef}',
    ];
    // An accent is printed together with the letter before it.
    let is_printed = || c.escape_debug().len() == 1 || ['a', c].iter().collect::<String>().escape_debug().count() == 2;
    c.is_ascii_graphic() || c == ' ' || is_printed() && !UNSEEN.iter().any(|range| range.contains(&c))
}

/// Serializes a value to JSON, and escapes everything that [`visible`] escapes.
#[cfg(feature = "cli")]
pub(crate) fn json_text(value: &impl serde::Serialize) -> String {
    let mut text = Vec::new();
    write_json(&mut text, value).expect("memory takes all, and keys are strings");
    String::from_utf8(text).expect("JSON is text")
}

/// Writes the JSON of [`json_text`] without holding it: for a million tensors, a report takes hundreds of megabytes.
pub(crate) fn write_json(writer: impl io::Write, value: &impl serde::Serialize) -> io::Result<()> {
    struct Visible;
    impl serde_json::ser::Formatter for Visible {
        fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
            if fragment.chars().all(is_shown) {
                return writer.write_all(fragment.as_bytes());
            }
            for c in fragment.chars() {
                if is_shown(c) {
                    write!(writer, "{c}")?;
                } else {
                    c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
                }
            }
            Ok(())
        }
    }
    value.serialize(&mut serde_json::Serializer::with_formatter(writer, Visible)).map_err(io::Error::from)
}

/// Returns a pattern that matches a name, and nothing else unless the name is very long.
#[must_use]
pub fn as_glob(name: &str) -> String {
    let escape = |text: &str| globset::escape(text).replace('\\', r"[\]"); // globset does not escape it
    let mut places = name.char_indices().map(|(place, _)| place);
    match (places.clone().nth(KEPT), places.clone().nth(2 * KEPT), places.nth_back(KEPT - 1)) {
        (Some(head), Some(_), Some(tail)) => format!("{}*{}", escape(&name[..head]), escape(&name[tail..])),
        _ => escape(name),
    }
}

/// True if a part of a name is a number, such as the number of a layer or an expert.
pub(crate) fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns a pattern that matches a name with any numbers of layers and experts.
pub(crate) fn as_numbered_glob(name: &str) -> String {
    let part = |part: &str| if is_number(part) { "*".to_owned() } else { as_glob(part) };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// Number of characters kept at either end of a name that is too long.
const KEPT: usize = 100;

/// Shortens a name for display: escaped like [`visible`], and without the middle if it is very long.
#[must_use]
pub fn shorten(name: &str) -> String {
    let count = name.chars().count();
    if count <= 2 * KEPT {
        return visible(name);
    }
    let head: String = name.chars().take(KEPT).collect();
    let tail: String = name.chars().skip(count - KEPT).collect();
    format!("{}...{}", visible(&head), visible(&tail))
}

/// Formats a number of bytes in a suitable unit.
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

/// Formats a count and its noun: `1 tensor`, `2 tensors`.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Returns the verb for a number of things.
pub(crate) fn is(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// Joins the first names of a list, and counts the others: `a, b and 3 more`.
pub(crate) fn first_few(names: impl IntoIterator<Item = impl AsRef<str>>, most: usize) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(most).map(|name| shorten(name.as_ref())).collect();
    match names.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Joins names. Names that differ in numbers between dots are one, with `*` and their count.
#[cfg(feature = "cli")]
pub(crate) fn grouped<'n>(names: impl Iterator<Item = &'n str>) -> String {
    /// Maximum number of groups; models have fewer.
    const MOST: usize = 100;
    let mut groups: Vec<(&str, String, u64)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for name in names {
        let pattern =
            name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect::<Vec<_>>().join(".");
        let place = *places.entry(pattern.clone()).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((.., count)) => *count += 1,
            None => groups.push((name, pattern, 1)),
        }
    }
    let shown = groups.into_iter().map(|(first, pattern, count)| match count {
        1 => first.to_owned(),
        _ => format!("{pattern} ({count})"),
    });
    first_few(shown, MOST)
}

pub(crate) fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))
}

/// Formats a part of a whole in percent.
#[cfg(feature = "cli")]
pub(crate) fn share(part: u64, whole: u64) -> String {
    let percent = part as f64 / whole as f64 * 100.0;
    match part {
        0 => "0%".to_owned(),
        _ if percent < 0.01 => "< 0.01%".to_owned(),
        _ => format!("{percent:.2}%"),
    }
}

/// Formats a power of two: `2^-3`.
#[cfg(feature = "cli")]
pub(crate) fn power(exponent: i32) -> String {
    format!("2^{exponent}")
}

/// Formats a number with at most six significant digits; very large and small numbers have four and an exponent.
#[cfg(feature = "cli")]
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

#[cfg(test)]
mod tests {
    use super::{as_glob, brief, grouped, json_text, visible};

    #[test]
    fn names_of_the_same_tensor_in_several_layers_are_one() {
        let names = ["a.0.w", "norm.weight", "a.1.w", "b.7.w", "a.x.w"];
        assert_eq!(grouped(names.into_iter()), "a.*.w (2), norm.weight, b.7.w, a.x.w");
    }

    #[test]
    fn nothing_is_shown_that_is_not_what_it_seems() {
        let hidden = "\n\u{1b}\u{7f}\u{85}\u{9b}\u{ad}\u{61c}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{202e}\u{2066}\u{feff}\
                      \u{3164}\u{fe0f}\u{e0041}";
        for c in hidden.chars() {
            let text = format!("a{c}b");
            assert_eq!(visible(&text), format!("a{}b", c.escape_debug()));
            let json = json_text(&text);
            assert!(json.is_ascii() && !json.contains(c), "{json}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
        for text in ["a 'b' \"c\" \\ ~", "\u{e9}e\u{301}\u{4e2d}\u{1f600}\u{fffd}"] {
            assert_eq!(visible(text), text);
            assert_eq!(json_text(&text), serde_json::to_string(text).unwrap());
        }
    }

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
