//! Numbers for people to read.

/// Formats a part of a whole in percent.
pub(crate) fn share(part: u64, whole: u64) -> String {
    let percent = part as f64 / whole as f64 * 100.0;
    match part {
        0 => "0%".to_owned(),
        _ if percent < 0.01 => "< 0.01%".to_owned(),
        _ => format!("{percent:.2}%"),
    }
}

/// Formats a power of two: `2^-3`.
pub(crate) fn power(exponent: i32) -> String {
    format!("2^{exponent}")
}

/// Formats a number with at most six significant digits; very large and small numbers have four and an exponent.
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
