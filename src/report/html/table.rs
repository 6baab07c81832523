//! The table of all tensors, a row each.

use super::cell::{Cell, ratio, write_cell};
use super::words::{self, escape, percent, significant, with_thousands};
use super::{ExponentSpread, Report};
use crate::kernel::{Condition, Counts, Loss};
use crate::measure::accuracy::Accuracy;
use crate::measure::quantized::{CodesOrigin, QuantizedAccuracy};
use crate::report::{FileReport, TensorReport};
use crate::select::KeptReason;
use crate::text::shorten;
use serde_json::json;
use std::collections::HashMap;
use std::fmt::Write as _;

/// Kinds of loss that are worse than rounding.
const LOST: [Loss; 6] = [Loss::Saturated, Loss::Infinite, Loss::Nan, Loss::NanLost, Loss::Flushed, Loss::Wrapped];

/// Maximum number of rows: a browser takes seconds to show more.
const MOST: usize = 10_000;

/// A tensor, and its file.
type TableRow<'a> = (&'a FileReport<'a>, &'a TensorReport<'a>);

struct Column<'a> {
    title: &'static str,
    /// A smaller note below the title.
    note: String,
    order: Order,
    cell: Box<dyn Fn(TableRow) -> Option<Cell> + 'a>,
}

/// Order of rows when a column's heading is first pressed.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// As text, with numbers in it compared as numbers.
    Text,
    /// Small numbers first.
    Smallest,
    /// Large numbers first.
    Largest,
}

impl<'a> Column<'a> {
    fn new(title: &'static str, note: &str, order: Order, cell: impl Fn(&TensorReport) -> Option<Cell> + 'a) -> Self {
        Self { title, note: note.to_owned(), order, cell: Box::new(move |(_, tensor)| cell(tensor)) }
    }

    fn text(title: &'static str, cell: impl Fn(&TensorReport) -> String + 'a) -> Self {
        Self::new(title, "", Order::Text, move |tensor| Some(Cell::text(cell(tensor))))
    }

    /// Creates a column with the position of an element that `find` chooses.
    fn position(title: &'static str, find: impl Fn(&TensorReport) -> Option<u64> + 'a) -> Self {
        Self::new(title, "position", Order::Smallest, move |tensor| {
            let element = find(tensor)?;
            Some(Cell::number(tensor.place(element)?, element as f64))
        })
    }

    /// Creates a column with a share of the elements.
    fn share(title: &'static str, count: impl Fn(&Counts) -> u64 + 'a) -> Self {
        Self::new(title, "of values", Order::Largest, move |tensor| {
            Some(Cell::share(count(counts(tensor)?), tensor.elements()))
        })
    }

    /// Creates a column about weights that were quantized.
    fn quantized(title: &'static str, note: &str, cell: impl Fn(&QuantizedAccuracy) -> Option<Cell> + 'a) -> Self {
        Self::new(title, note, Order::Largest, move |tensor| cell(tensor.quantized_accuracy()?))
    }
}

pub(super) fn table(report: &Report, spreads: &[ExponentSpread]) -> String {
    let columns = columns(report, spreads);
    let sqnr = report.tensors().any(|tensor| noise(tensor).is_some()).then_some(SQNR);
    let (all, mut rows) = (report.tensors().count(), noisiest_first(report));
    rows.truncate(MOST);
    let copied = rows.iter().filter(|(_, (_, tensor))| !tensor.is_converted).count();
    let mut text = String::from("<section>\n<h2 id=\"tensors\">Tensors</h2>\n");
    if all > MOST {
        let [shown, all] = [MOST, all].map(|count| with_thousands(count as u64));
        let which = "the ones with the most noise or the largest share of lost values";
        let _ = writeln!(text, "<p>The table has {shown} of {all} tensors, {which}. A report in JSON has all.</p>");
    }
    if copied > 0 {
        let noun = if copied == 1 { "the tensor that was" } else { "the tensors that were" };
        let _ = writeln!(
            text,
            r#"<input type="checkbox" id="hide"> <label for="hide">Hide {noun} copied ({})</label>"#,
            with_thousands(copied as u64)
        );
    }
    let _ = write!(
        text,
        r#"<div class="box" tabindex="0" role="region" aria-labelledby="tensors">
<table class="tensors" style="--columns:{}">
<thead><tr>"#,
        widths(report, &columns)
    );
    for (at, Column { title, note, order, .. }) in columns.iter().enumerate() {
        let class = match order {
            Order::Text => r#" class="text""#,
            Order::Smallest => "",
            Order::Largest => r#" class="largest""#,
        };
        let note = if note.is_empty() { String::new() } else { format!("<small>{note}</small>") };
        let sorted = if sqnr == Some(at) { r#" aria-sort="ascending""# } else { "" };
        let _ = write!(text, r#"<th scope="col"{class}{sorted}>{title}{note}</th>"#);
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for (place, row) in rows {
        let class = if row.1.is_converted { "" } else { r#" class="copied""# };
        let _ = write!(text, r#"<tr data-place="{place}"{class}>"#);
        for (at, column) in columns.iter().enumerate() {
            let cell = (column.cell)(row).unwrap_or_default();
            write_cell(&mut text, at == 0, column.order == Order::Text, &cell);
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table>\n</div>\n</section>\n");
    text
}

fn rows<'a>(report: &'a Report) -> impl Iterator<Item = TableRow<'a>> {
    report.files.iter().flat_map(|file| file.tensors.iter().map(move |tensor| (file, tensor)))
}

/// Returns rows with their positions in the file. Without accuracy, rows with the largest share of lost values come
/// first.
fn noisiest_first<'a>(report: &'a Report) -> Vec<(usize, TableRow<'a>)> {
    let mut sorted: Vec<_> = rows(report).enumerate().collect();
    sorted.sort_by(|(_, (_, left)), (_, (_, right))| {
        // NaN, for unknown noise, comes last in the total order.
        let [left_noise, right_noise] = [left, right].map(|tensor| noise(tensor).unwrap_or(f64::NAN));
        let [left_lost, right_lost] = [left, right].map(|tensor| lost(tensor).map_or(0.0, ratio));
        left_noise
            .total_cmp(&right_noise)
            .then(right.is_converted.cmp(&left.is_converted))
            .then(right_lost.total_cmp(&left_lost))
    });
    sorted
}

/// Returns widths of the columns, for the browser: to find them itself, it would lay out every row before showing one.
fn widths(report: &Report, columns: &[Column]) -> String {
    let mut text = String::from("var(--name)");
    for (at, Column { title, note, cell, .. }) in columns.iter().enumerate().skip(1) {
        let cells = || rows(report).filter_map(cell);
        let width = |cell: Cell| cell.html.chars().count() + usize::from(cell.html.contains('%'));
        let wide = cells().map(width).max().unwrap_or(0);
        let bar = if cells().any(|cell| cell.bar.is_some()) { " + var(--bar)" } else { "" };
        // The title has an arrow after it was pressed; the note is smaller.
        let head = (title.chars().count() + 2).max(note.chars().count() * 4 / 5 + 1);
        let width = format!("calc(max({wide}ch{bar}, {head}ch) + var(--gap))");
        // On a narrow screen, this column breaks its lines.
        let _ = if at == BECAME { write!(text, " var(--became, {width})") } else { write!(text, " {width}") };
    }
    text
}

/// Columns with separate rules, which the page's style has too.
const BECAME: usize = 1;
const SQNR: usize = 2;

/// Returns the columns, the most important ones first.
fn columns<'a>(report: &'a Report, spreads: &'a [ExponentSpread]) -> Vec<Column<'a>> {
    let accuracy = report.tensors().filter_map(|tensor| tensor.accuracy.as_ref());
    let clearest = accuracy.filter_map(|accuracy| accuracy.sqnr_db).filter(|db| db.is_finite()).fold(0.0, f64::max);
    let of_clearest = if clearest > 0.0 { format!("dB; full bar: {clearest:.2}") } else { "dB".to_owned() };
    let worst = report.tensors().filter_map(lost).max_by(|a, b| ratio(*a).total_cmp(&ratio(*b)));
    let worst = worst.filter(|(lost, _)| *lost > 0);
    let of_worst = worst.map_or(String::new(), |(lost, all)| format!("full bar: {}", percent(lost, all)));
    let drawn: HashMap<&str, usize> = spreads.iter().enumerate().map(|(at, spread)| (&*spread.name, at)).collect();
    let mut columns = vec![
        Column::text("tensor", move |tensor| name(tensor, drawn.get(&*tensor.name))),
        Column::text("became", types),
        Column::new("SQNR", &of_clearest, Order::Smallest, move |tensor| sqnr(tensor, clearest)),
        Column::new("lost", &of_worst, Order::Largest, move |tensor| {
            let (lost, all) = lost(tensor)?;
            // Every nonzero bar is visible.
            let bar = worst.filter(|_| lost > 0).map(|worst| (ratio((lost, all)) / ratio(worst)).max(0.02));
            Some(Cell::share(lost, all).with_bar(bar.unwrap_or(0.0)))
        }),
    ];
    for loss in LOST {
        let title = match loss {
            Loss::Nan => "NaN",
            Loss::NanLost => "NaN lost",
            _ => loss.name(),
        };
        columns.extend(of_condition(report, title, Condition::Lost(loss)));
    }
    columns.extend(of_condition(report, "input NaN", Condition::InputNan));
    columns.extend(of_condition(report, "input Inf", Condition::InputInfinite));
    columns.extend(of_weights(report));
    columns.extend(of_error("max error", "|y − x|", |accuracy| (accuracy.max_abs_error, accuracy.max_abs_error_at)));
    let relative = |accuracy: &Accuracy| (accuracy.max_rel_error, accuracy.max_rel_error_at);
    columns.extend(of_error("max rel. error", "|y − x| / |x|", relative));
    let bytes = |count| Some(Cell::number(words::bytes(count), count as f64));
    columns.extend([
        Column::new("cosine", "", Order::Smallest, |tensor| {
            let cosine = accuracy_of(tensor)?.cosine.filter(|cosine| !cosine.is_nan())?;
            Some(Cell::number(format!("{cosine:.6}"), cosine))
        }),
        Column::share("inexact", |counts| counts[Loss::Inexact]),
        Column::text("shape", |tensor| shorten(&format!("{:?}", tensor.shape))),
        Column::new("values", "", Order::Largest, |tensor| {
            Some(Cell::number(with_thousands(tensor.elements()), tensor.elements() as f64))
        }),
        Column::new("before", "bytes", Order::Largest, move |tensor| bytes(tensor.bytes_in)),
        Column::new("after", "bytes", Order::Largest, move |tensor| bytes(tensor.bytes_out)),
    ]);
    if report.files.len() > 1 {
        let cell = Box::new(|(file, _): TableRow| Some(Cell::text(escape(&shorten(&file.file)))));
        columns.push(Column { title: "file", note: String::new(), order: Order::Text, cell });
    }
    columns
}

/// Returns the columns about weights that were quantized.
fn of_weights<'a>(report: &Report) -> Vec<Column<'a>> {
    let mut columns = Vec::new();
    if report.tensors().any(|tensor| origin(tensor).is_some()) {
        let origin = |tensor: &TensorReport| json!(origin(tensor)).as_str().unwrap_or_default().to_owned();
        columns.push(Column::text("codes", origin));
        columns.push(Column::quantized("changed", "values", |accuracy| count(accuracy.changed?)));
    }
    if report.tensors().any(|tensor| tensor.quantized_accuracy().is_some()) {
        let bits = |bits: f64| Some(Cell::number(format!("{bits:.2}"), bits));
        columns.extend([
            Column::quantized("bits", "per weight", move |accuracy| bits(accuracy.bits_per_weight)),
            Column::quantized("largest error", "|y − x|", |accuracy| error(accuracy.max_abs_error)),
            Column::quantized("clipped", "values", |accuracy| count(accuracy.clipped)),
            Column::quantized("underflowed", "groups", |accuracy| count(accuracy.underflowed_groups)),
        ]);
    }
    columns
}

/// Returns the columns of a largest error, and of the element that has it.
fn of_error<'a>(title: &'static str, note: &str, of: fn(&Accuracy) -> (f64, Option<u64>)) -> [Column<'a>; 2] {
    let find = move |tensor: &TensorReport| tensor.accuracy.as_deref().map(of).filter(|found| found.0 > 0.0)?.1;
    let largest = move |tensor: &TensorReport| error(of(accuracy_of(tensor)?).0);
    [Column::new(title, note, Order::Largest, largest), Column::position("at", find)]
}

/// Returns the columns of a condition: the share of the values that met it, and the first of them if known.
fn of_condition<'a>(report: &Report, title: &'static str, condition: Condition) -> Vec<Column<'a>> {
    let mut columns = Vec::new();
    if report.total()[condition] > 0 {
        columns.push(Column::share(title, move |counts| counts[condition]));
    }
    if report.tensors().any(|tensor| tensor.firsts.of(condition).is_some()) {
        columns.push(Column::position("first at", move |tensor| Some(tensor.firsts.of(condition)?.at)));
    }
    columns
}

/// Returns the accuracy of a tensor of which elements were compared.
fn accuracy_of<'t>(tensor: &'t TensorReport) -> Option<&'t Accuracy> {
    tensor.accuracy.as_deref().filter(|accuracy| accuracy.compared > 0)
}

/// Returns the counts of losses, except of quantized weights.
fn counts<'t>(tensor: &'t TensorReport) -> Option<&'t Counts> {
    tensor.counts.as_deref().filter(|_| tensor.quantized.is_none())
}

/// Returns the origin of a weight's codes, if it was quantized before or searched for codes.
fn origin(tensor: &TensorReport) -> Option<CodesOrigin> {
    tensor.quantized.as_ref()?.codes
}

/// Makes a cell with a number, none if it is 0.
fn count(number: u64) -> Option<Cell> {
    (number > 0).then(|| Cell::number(with_thousands(number), number as f64))
}

fn error(error: f64) -> Option<Cell> {
    (!error.is_nan()).then(|| Cell::number(significant(error, 4), error))
}

fn name(tensor: &TensorReport, spread: Option<&usize>) -> String {
    let mut html = words::name(&tensor.name);
    if let Some(at) = spread {
        html = format!(r##"<a href="#spread-{at}">{html}</a>"##);
    }
    if let Some(old) = &tensor.renamed_from {
        let _ = write!(html, "<small>was {}</small>", words::broken(old));
    }
    html
}

fn types(tensor: &TensorReport) -> String {
    let from = escape(&tensor.type_name());
    match tensor.kept {
        _ if tensor.is_converted || tensor.has_new_type() => format!("{from} → {}", tensor.new_type_name()),
        Some(KeptReason::Already) => format!("already {from}"),
        _ => format!("{from}, copied"),
    }
}

/// Makes a cell with the ratio of signal to noise, also for a weight that was quantized.
fn sqnr(tensor: &TensorReport, clearest: f64) -> Option<Cell> {
    let exact = Cell::number("exact".to_owned(), f64::INFINITY);
    if let Some(accuracy) = tensor.quantized_accuracy() {
        let noisy = || accuracy.sqnr_db.map(|db| Cell::number(format!("{db:.2}"), db));
        return if accuracy.is_exact { Some(exact) } else { noisy() };
    }
    let accuracy = accuracy_of(tensor)?;
    match accuracy.sqnr_db {
        _ if accuracy.is_exact => Some(exact.with_bar(1.0)),
        Some(f64::INFINITY) => Some(Cell::number("no noise".to_owned(), f64::MAX).with_bar(1.0)),
        Some(db) if db.is_nan() => None,
        Some(db) => {
            let text = if db.is_finite() { format!("{db:.2}") } else { significant(db, 4) };
            Some(Cell::number(text, db).with_bar(if db > 0.0 { db / clearest } else { 0.0 }))
        }
        None => None,
    }
}

/// Returns the ratio of signal to noise; infinite without noise.
fn noise(tensor: &TensorReport) -> Option<f64> {
    sqnr(tensor, 1.0)?.key
}

/// Returns the number of lost values, and of all values; `None` if unknown, or if there are no values.
fn lost(tensor: &TensorReport) -> Option<(u64, u64)> {
    let (counts, all) = (counts(tensor)?, tensor.elements());
    (all > 0).then(|| (LOST.into_iter().map(|loss| counts[loss]).sum(), all))
}
