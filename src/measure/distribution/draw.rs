//! A histogram drawn for a terminal, with the ranges of the narrow formats next to it.

use super::histogram::Histogram;
use crate::dtype::{Class, Dtype, FloatEdges, FloatFormat};
use crate::text::{power, share};
use anstyle::{AnsiColor, Style};
use std::fmt::Write as _;

/// Formats that are drawn, with names that fit above a line.
const FORMATS: [(Dtype, &str); 4] =
    [(Dtype::Float16, "f16"), (Dtype::Float8E4M3FN, "e4m3"), (Dtype::Float8E5M2, "e5m2"), (Dtype::Float4E2M1, "e2m1")];

/// Number of rows above which exponents are merged.
const ROWS: i32 = 24;

/// Width of a format's column.
const LINE: usize = 5;

/// Draws one bar for each exponent, the largest on top, in lines of at most `width` characters if that is enough for a
/// bar. Columns next to the bars show, for each narrow format, what happens to such numbers; a table below has the
/// totals. The text is empty if the histogram is.
///
/// If there are more than 24 exponents, exponents beyond all formats are merged, and if necessary the others in pairs.
/// A number that is exactly half of a format's smallest, and so becomes zero, is drawn like a larger one: the histogram
/// cannot distinguish them.
pub fn draw(histogram: &Histogram, width: usize, color: bool) -> String {
    let rows = rows(histogram);
    let reaches = FORMATS.map(|(dtype, _)| FormatRange::of(dtype));
    let total = histogram.total();
    let label_width = rows.iter().map(|row| row.label.len()).max().unwrap_or(0);
    let most = rows.iter().map(|row| row.count).max().unwrap_or(0);
    let count_width = most.to_string().len();
    let fixed = label_width + 1 + 1 + count_width + 1 + SHARE + 1 + LINE * FORMATS.len();
    let bar_width = width.saturating_sub(fixed).max(1);
    let mut text = String::new();
    if rows.is_empty() {
        return text;
    }
    let _ = write!(text, "{:1$}", "", fixed + bar_width - LINE * FORMATS.len());
    for (_, name) in FORMATS {
        let _ = write!(text, "{name:>LINE$}");
    }
    for HistogramRow { label, low, high, count } in &rows {
        let bar = bar(*count, most, bar_width);
        let (count, share) = if *count > 0 { (count.to_string(), share(*count, total)) } else { Default::default() };
        let _ = write!(text, "\n{label:>label_width$} {bar:bar_width$} {count:>count_width$} {share:>SHARE$} ");
        for reach in &reaches {
            let (mark, style) = reach.mark(*low, *high);
            let style = if color { style } else { Style::new() };
            let _ = write!(text, "{:1$}{style}{mark}{style:#}", "", LINE - 1);
        }
    }
    text.push_str("\n\n┃ normal  ┊ subnormal  0 becomes zero  ▲ beyond the largest  ╻╿╵ part of a row\n\n");
    text.push_str("              smallest  normal from  largest  becomes zero  subnormal    beyond");
    for ((dtype, _), reach) in FORMATS.iter().zip(&reaches) {
        let FloatEdges { subnormal, normal, .. } = reach.edges;
        let smallest = power(subnormal + 1);
        let zero = share(histogram.within(i32::MIN..subnormal), total);
        let subnormal = share(histogram.within(subnormal..normal), total);
        let normal = power(normal);
        let beyond = reach.beyond(histogram, total);
        let _ = write!(
            text,
            "\n{dtype:12}  {smallest:>8}  {normal:>11}  {:>7}  {zero:>12}  {subnormal:>9}  {beyond:>8}",
            reach.largest
        );
    }
    text
}

/// Exponents that share a bar, both ends included.
struct HistogramRow {
    label: String,
    low: i32,
    high: i32,
    count: u64,
}

impl HistogramRow {
    fn new(histogram: &Histogram, label: String, low: i32, high: i32) -> Self {
        Self { label, low, high, count: histogram.within(low..high + 1) }
    }
}

/// Returns the rows, from the largest exponent to the smallest.
fn rows(histogram: &Histogram) -> Vec<HistogramRow> {
    let Some(((low, _), (high, _))) = histogram.iter().next().zip(histogram.iter().next_back()) else {
        return Vec::new();
    };
    if high - low < ROWS {
        return (low..=high).rev().map(|both| HistogramRow::new(histogram, power(both), both, both)).collect();
    }
    // Below all formats every number becomes zero, and above them none is representable: nothing to distinguish.
    let reaches = || FORMATS.iter().map(|(dtype, _)| FormatRange::of(*dtype));
    let bottom = reaches().map(|reach| reach.edges.subnormal).min().unwrap_or(low);
    let top = reaches().map(|reach| reach.edges.beyond - 1).max().unwrap_or(high);
    let (first, last) = (low.max(bottom), high.min(top));
    let step = if last - first < ROWS { 1 } else { 2 };
    let mut rows = Vec::new();
    if low < bottom {
        rows.push(HistogramRow::new(histogram, format!("< {}", power(bottom)), low, bottom - 1));
    }
    let mut from = first;
    while from <= last {
        // Pairs begin with an even exponent.
        let to = last.min(from + step - 1 - from.rem_euclid(step));
        let label = if from == to { power(from) } else { format!("{}..{to}", power(from)) };
        rows.push(HistogramRow::new(histogram, label, from, to));
        from = to + 1;
    }
    if high > top {
        rows.push(HistogramRow::new(histogram, format!(">= {}", power(top + 1)), top + 1, high));
    }
    rows.reverse();
    rows
}

struct FormatRange {
    edges: FloatEdges,
    /// Largest number, which does not reach the end of its binade.
    largest: f64,
}

impl FormatRange {
    fn of(dtype: Dtype) -> Self {
        let Class::Float(format) = dtype.class() else { unreachable!("all that are drawn are floats") };
        let FloatFormat { mantissa_bits, .. } = format;
        let edges = format.edges();
        let mantissa = 1 << mantissa_bits | format.max_finite() & ((1 << mantissa_bits) - 1);
        Self { edges, largest: mantissa as f64 * f64::powi(2.0, edges.beyond - 1 - mantissa_bits as i32) }
    }

    /// Returns the mark for numbers with these exponents; mixed cases are drawn in halves.
    fn mark(&self, low: i32, high: i32) -> (char, Style) {
        let [green, yellow, red] = [AnsiColor::Green, AnsiColor::Yellow, AnsiColor::Red].map(AnsiColor::on_default);
        let FloatEdges { subnormal, normal, beyond } = self.edges;
        match (low, high) {
            _ if low >= beyond => ('▲', red),
            _ if high >= beyond - 1 => ('╻', yellow),
            _ if low >= normal => ('┃', green),
            _ if high >= normal => ('╿', yellow),
            _ if low >= subnormal => ('┊', yellow),
            _ if high >= subnormal => ('╵', yellow),
            _ => ('0', red),
        }
    }

    /// Returns the share of numbers beyond the largest; an upper bound if some numbers have the same exponent as the
    /// largest.
    fn beyond(&self, histogram: &Histogram, total: u64) -> String {
        let least = histogram.within(self.edges.beyond..i32::MAX);
        let most = histogram.within(self.edges.beyond - 1..i32::MAX);
        let share = share(most, total);
        if least == most || share.starts_with('<') { share } else { format!("<= {share}") }
    }
}

/// Width of a share.
const SHARE: usize = 7;

/// Draws a bar in eighths of a character; every nonzero bar is visible.
fn bar(count: u64, most: u64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (u128::from(count) * width as u128 * 8 / u128::from(most.max(1))) as usize;
    let eighths = eighths.max(usize::from(count > 0));
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}
