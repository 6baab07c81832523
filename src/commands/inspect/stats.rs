//! Statistics of a tensor, as text and as JSON.

use crate::container::{indices, position};
use crate::measure::distribution::Distribution;
use crate::measure::number::Number;
use crate::text::brief;
use serde_json::{Value, json};
use std::fmt::Write as _;

pub(super) fn stats_json(stats: &Distribution, shape: &[u64]) -> Value {
    let index = |at: Option<u64>| at.map(|at| indices(at, shape, false));
    let number = |number: Option<Number>| match number {
        Some(Number::Float(value)) => json!(value),
        Some(Number::Integer(value)) => i64::try_from(value).map_or_else(|_| json!(value as u64), Value::from),
        None => Value::Null,
    };
    let exponents = stats.exponents.iter().map(|(exponent, count)| json!([exponent, count]));
    json!({
        "min": number(stats.min),
        "max": number(stats.max),
        "abs_max": number(stats.abs_max),
        "mean": stats.mean,
        "zeros": stats.zeros,
        "subnormals": stats.subnormals,
        "nan": stats.nan,
        "plus_infinite": stats.plus_infinite,
        "minus_infinite": stats.minus_infinite,
        "first_nan_at": stats.first_nan,
        "first_nan_index": index(stats.first_nan),
        "first_infinite_at": stats.first_infinite,
        "first_infinite_index": index(stats.first_infinite),
        "exponents": exponents.collect::<Vec<_>>(),
    })
}

/// Formats statistics in lines of 80 columns.
pub(super) fn line_of(stats: &Distribution, shape: &[u64]) -> String {
    let number = |number: Option<Number>| match number {
        Some(Number::Float(value)) => brief(value),
        Some(Number::Integer(value)) => value.to_string(),
        None => "-".to_owned(),
    };
    let mut text = format!(
        "  min {}  max {}  absmax {}  mean {}\n  zeros {}",
        number(stats.min),
        number(stats.max),
        number(stats.abs_max),
        stats.mean.map_or("-".to_owned(), brief),
        stats.zeros
    );
    let rest = [
        ("subnormal", stats.subnormals),
        ("NaN", stats.nan),
        ("Inf", stats.plus_infinite),
        ("-Inf", stats.minus_infinite),
    ];
    for (name, count) in rest.into_iter().filter(|(_, count)| *count > 0) {
        let _ = write!(text, "  {name} {count}");
    }
    let firsts = [("NaN", stats.first_nan), ("Inf", stats.first_infinite)];
    let firsts = firsts.map(|(name, at)| at.map(|at| format!("first {name} at {}", position(at, shape, false))));
    let firsts: Vec<String> = firsts.into_iter().flatten().collect();
    if firsts.is_empty() { text } else { text + "\n  " + &firsts.join("  ") }
}
