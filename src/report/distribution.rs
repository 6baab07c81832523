//! The distribution of a tensor in words.

use crate::container::position;
use crate::measure::distribution::Distribution;
use crate::measure::number::Number;
use crate::text::brief;
use std::fmt::Write as _;

/// Formats statistics in lines of 80 columns.
pub(crate) fn text(stats: &Distribution, shape: &[u64]) -> String {
    let number = |number: Option<Number>| match number {
        Some(Number::Float(value)) => brief(value),
        Some(Number::Integer(value)) => value.to_string(),
        None => "-".to_owned(),
    };
    let [min, max, abs_max, mean] = [stats.min, stats.max, stats.abs_max, stats.mean.map(Number::Float)].map(number);
    let mut text = format!("  min {min}  max {max}  absmax {abs_max}  mean {mean}\n  zeros {}", stats.zeros);
    let rest = [
        ("subnormal", stats.subnormals),
        ("NaN", stats.nan),
        ("Inf", stats.plus_infinite),
        ("-Inf", stats.minus_infinite),
    ];
    for (name, count) in rest.into_iter().filter(|(_, count)| *count > 0) {
        let _ = write!(text, "  {name} {count}");
    }
    let mut before = "\n  ";
    for (name, first) in [("NaN", stats.first_nan), ("Inf", stats.first_infinite)] {
        if let Some(at) = first {
            let _ = write!(text, "{before}first {name} at {}", position(at, shape, false));
            before = "  ";
        }
    }
    text
}
