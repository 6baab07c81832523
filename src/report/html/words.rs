//! Numbers and names for the page.

use crate::text::{shorten, size};

/// Escapes text for HTML, in an element or in a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Returns a text that begins with a capital letter.
pub(super) fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// Formats a tensor's name, or a note that its format has no names. Lines may break after dots.
pub(super) fn name(name: &str) -> String {
    if name.is_empty() { "<i>unnamed</i>".to_owned() } else { broken(name) }
}

/// Formats a name, with places to break it.
pub(super) fn broken(name: &str) -> String {
    escape(&shorten(name)).replace('.', ".<wbr>").replace('/', "/<wbr>")
}

/// Formats a number of bytes, on one line.
pub(super) fn bytes(count: u64) -> String {
    size(count).replace(' ', "\u{a0}")
}

/// Formats a number with commas between thousands.
pub(super) fn with_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with this many significant digits; tiny and huge ones have an exponent.
pub(super) fn significant(value: f64, digits: i32) -> String {
    let magnitude = value.abs().log10().floor();
    match value {
        _ if value.is_nan() => "NaN".to_owned(),
        _ if value.is_infinite() => if value > 0.0 { "∞" } else { "−∞" }.to_owned(),
        0.0 => "0".to_owned(),
        _ if (-5.0..6.0).contains(&magnitude) => {
            format!("{value:.0$}", (digits - 1 - magnitude as i32).max(0) as usize)
        }
        _ => format!("{value:.0$e}", digits as usize - 1),
    }
}

/// Formats a part of a whole in percent: 0% and 100% only if exact.
pub(super) fn percent(part: u64, whole: u64) -> String {
    let percent = part as f64 / whole as f64 * 100.0;
    match part {
        0 => "0".to_owned(),
        _ if percent < 0.01 => format!("{}%", significant(percent, 2)),
        _ if part < whole && percent >= 99.995 => "> 99.99%".to_owned(),
        _ => format!("{percent:.2}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 16_777_216].map(with_thousands), ["0", "999", "1,000", "16,777,216"]);
    }

    #[test]
    fn digits_that_count_are_shown() {
        let shown = [0.0, 0.000_012_345_6, 0.5, 448.0, 123_456.7, 6.5e37, -1.5, f64::NEG_INFINITY];
        let shown = shown.map(|value| significant(value, 4));
        assert_eq!(shown, ["0", "0.00001235", "0.5000", "448.0", "123457", "6.500e37", "-1.500", "−∞"]);
    }

    #[test]
    fn a_share_is_whole_only_if_all_are_meant() {
        assert_eq!(percent(0, 5), "0");
        assert_eq!(percent(1, 3), "33.33%");
        assert_eq!(percent(1, 1_000_000), "0.00010%");
        assert_eq!(percent(999_999, 1_000_000), "> 99.99%");
        assert_eq!(percent(7, 7), "100.00%");
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(escape("<a b='c\"'>&amp;"), "&lt;a b=&#39;c&quot;&#39;&gt;&amp;amp;");
        assert_eq!(broken("a.<b"), "a.<wbr>&lt;b");
    }
}
