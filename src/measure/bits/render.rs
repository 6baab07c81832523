//! Rows for people and values for scripts.

use super::{BitField, Meaning, ValueKind, halves, hex, meaning, parts, per_row};
use crate::dtype::{Class, Dtype};
use anstyle::{AnsiColor, Style as Color};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Output style of rows.
#[derive(Clone, Copy, Debug)]
pub struct RenderStyle {
    /// True for people: with colors, and in columns. For scripts, rows have neither.
    pub is_terminal: bool,
    /// Digits of the last index.
    pub index_width: usize,
    /// Columns of the terminal.
    pub width: usize,
}

const DIM: Color = Color::new().dimmed();

/// Formats a row of `--hex`: the index of the first element, and the codes.
///
/// On a terminal, their values follow between bars, like the text of `hexdump -C`, if full rows of the type fit; only a
/// row of unusually long integers then has none.
pub fn hex_row(dtype: Dtype, first_index: u64, elements: &[u128], style: &RenderStyle) -> String {
    let codes = join(elements.iter().map(|&code| hex(dtype, code)), " ");
    let row = format!("{}  ", index(first_index, style));
    if !style.is_terminal {
        return row + &codes;
    }
    let values = join(elements.iter().map(|&code| brief(dtype, code)), " ");
    // A short last row is padded, so that its values are aligned with the others.
    let full = |width: usize| per_row(dtype) * (width + 1) - 1;
    let codes_width = full(hex(dtype, 0).len());
    // A short row shows values only if full ones do.
    let values_width = full(brief_width(dtype)).max(values.len());
    let columns = style.index_width + 2 + codes_width + 3 + values_width + 1;
    if columns <= style.width { format!("{row}{codes:codes_width$}  |{values}|") } else { row + &codes }
}

/// Maximum number of characters of a brief float, and of common integers.
const FITTING: usize = 8;

/// Returns the width of brief values of a type, except large integers and extreme float64s.
fn brief_width(dtype: Dtype) -> usize {
    match dtype.class() {
        Class::Complex => FITTING + "+".len() + FITTING + "i".len(),
        Class::Float(_) if dtype.bits() == 4 => "-1.5".len(),
        Class::Float(_) if dtype.bits() == 6 => "-0.0625".len(),
        Class::Bool | Class::Int { .. } => statement_width(dtype).min(FITTING),
        _ => FITTING,
    }
}

/// Formats a value, with floats of about 8 characters, to fit next to the codes. `--bits` has all digits.
fn brief(dtype: Dtype, code: u128) -> String {
    if let Some(halves) = halves(dtype, code) {
        let [real, imaginary] = halves.map(|(dtype, code)| brief(dtype, code));
        let plus = if imaginary.starts_with('-') { "" } else { "+" };
        return format!("{real}{plus}{imaginary}i");
    }
    let value = meaning(dtype, code).value;
    let number = if dtype.is_floating() && value.len() > FITTING { value.parse::<f64>().ok() } else { None };
    let Some(number) = number.filter(|number| number.is_finite()) else { return value };
    if (1e-3..1e6).contains(&number.abs()) {
        let whole = number.abs().max(1.0).log10() as usize;
        let digits = format!("{number:.*}", 5_usize.saturating_sub(whole));
        return digits.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    format!("{number:.1e}")
}

/// Formats a row of `--bits`: the index, the fields of the code, the value, its exact form, and its kind.
///
/// On a terminal, sign, exponent and mantissa have different colors, and the kinds are aligned in a column.
pub fn bits_row(dtype: Dtype, element_index: u64, code: u128, style: &RenderStyle) -> String {
    let (parts, meaning) = (parts(dtype, code), meaning(dtype, code));
    let what = statement(dtype, code, &meaning);
    let kind = match halves(dtype, code) {
        Some(halves) => join(halves.into_iter().map(|(dtype, code)| super::meaning(dtype, code).kind.name()), ", "),
        None => meaning.kind.name().to_owned(),
    };
    let index = index(element_index, style);
    if !style.is_terminal {
        let digits = join(parts.into_iter().map(|(_, digits)| digits), " ");
        return format!("{index}  {digits}  {what}  {kind}");
    }
    let before = style.index_width + 2 + parts.iter().map(|(_, digits)| digits.len() + 1).sum::<usize>() + 1;
    let digits = join(parts.into_iter().map(|(part, digits)| colored(part, &digits, style)), " ");
    // The column is narrowed if lines would not fit, unless this one does not fit anyway.
    let free = style.width.saturating_sub(before + 2 + kind.len().max(ValueKind::Subnormal.name().len()));
    let column = statement_width(dtype);
    let column = if what.len() <= free { column.min(free) } else { column };
    format!("{index}  {digits}  {what:column$}  {kind}")
}

/// Returns `{"index": 0, "bits": "3fc00000"}`.
pub fn hex_json(dtype: Dtype, index: u64, code: u128) -> Value {
    json!({ "index": index, "bits": hex(dtype, code) })
}

/// Returns [`hex_json`] with everything that a row of `--bits` has. A complex number has `real` and `imaginary` instead
/// of `parts`.
pub fn bits_json(dtype: Dtype, index: u64, code: u128) -> Value {
    let mut value = number_json(dtype, code);
    value["index"] = json!(index);
    value
}

fn number_json(dtype: Dtype, code: u128) -> Value {
    let Meaning { kind, value, exact, payload } = meaning(dtype, code);
    let mut document = json!({ "bits": hex(dtype, code), "kind": kind.name(), "value": value });
    if let Some(exact) = exact {
        document["exact"] = json!(exact);
    }
    if let Some(payload) = payload {
        document["payload"] = json!(payload);
    }
    if let Some([real, imaginary]) = halves(dtype, code) {
        document["real"] = number_json(real.0, real.1);
        document["imaginary"] = number_json(imaginary.0, imaginary.1);
    } else {
        document["parts"] = json!(BTreeMap::from_iter(parts(dtype, code)));
    }
    document
}

pub(super) fn index(index: u64, style: &RenderStyle) -> String {
    let width = style.index_width;
    if style.is_terminal { format!("{DIM}{index:width$}{DIM:#}") } else { index.to_string() }
}

/// Formats the value, and its exact form or payload.
fn statement(dtype: Dtype, code: u128, meaning: &Meaning) -> String {
    let value = &meaning.value;
    match (&meaning.exact, meaning.payload) {
        (Some(exact), _) => format!("{value} = {exact}"),
        (_, Some(payload)) => format!("{value}, payload {payload:#x}"),
        _ if dtype == Dtype::Bool && code > 1 => format!("{value} ({code} counts as true)"),
        _ => value.clone(),
    }
}

/// Returns the length of statements, except floats with many zeros after the point, too rare and too long to shift all
/// others.
fn statement_width(dtype: Dtype) -> usize {
    match dtype.class() {
        Class::Bool => "false".len(),
        // The longer of the lowest and the highest number.
        Class::Int { signed } => meaning(dtype, if signed { 1 << (dtype.bits() - 1) } else { u128::MAX }).value.len(),
        Class::Float(_) if dtype.bits() < 8 => "-1.625 = -13*2^-3".len(),
        Class::Float(_) if dtype.bits() == 8 => "-0.0000076293945 = -1*2^-17".len(),
        Class::Float(_) | Class::Scale if dtype.bits() <= 32 => "-0.0062831868 = -13493041*2^-31".len(),
        _ => "-0.003141592653589793 = -3622009729038561*2^-60".len(),
    }
}

/// Formats digits in the color of their field, if there are colors.
pub(super) fn colored(part: BitField, digits: &str, style: &RenderStyle) -> String {
    let color = color(part);
    if style.is_terminal { format!("{color}{digits}{color:#}") } else { digits.to_owned() }
}

/// Returns a color that is legible on dark and light backgrounds.
fn color(part: BitField) -> Color {
    match part {
        BitField::Sign => AnsiColor::Red.on_default(),
        BitField::Exponent => AnsiColor::Green.on_default(),
        BitField::Mantissa => AnsiColor::Cyan.on_default(),
        BitField::Integer => Color::new(),
    }
}

fn join(texts: impl Iterator<Item = impl Into<String>>, between: &str) -> String {
    texts.map(Into::into).collect::<Vec<String>>().join(between)
}
