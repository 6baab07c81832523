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

struct Column<'a> {
    title: &'static str,
    /// A smaller note below the title.
    note: String,
    order: Order,
    cell: CellOf<'a>,
}

type CellOf<'a> = Box<dyn Fn(&FileReport, &TensorReport) -> Cell + 'a>;

fn column<'a>(title: &'static str, note: &str, order: Order, cell: CellOf<'a>) -> Column<'a> {
    Column { title, note: note.to_owned(), order, cell }
}

/// Makes a column with the position of an element that `find` chooses.
fn position<'a>(title: &'static str, find: impl Fn(&TensorReport) -> Option<u64> + 'a) -> Column<'a> {
    let cell = move |tensor: &TensorReport| {
        let element = find(tensor)?;
        Some(Cell::number(tensor.place(element)?, element as f64))
    };
    column(title, "position", Order::Smallest, Box::new(move |_, tensor| cell(tensor).unwrap_or_default()))
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
    for (place, (file, tensor)) in rows {
        let class = if tensor.is_converted { "" } else { r#" class="copied""# };
        let _ = write!(text, r#"<tr data-place="{place}"{class}>"#);
        for (at, column) in columns.iter().enumerate() {
            write_cell(&mut text, at == 0, column.order == Order::Text, &(column.cell)(file, tensor));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table>\n</div>\n</section>\n");
    text
}

fn rows<'a>(report: &'a Report) -> impl Iterator<Item = (&'a FileReport<'a>, &'a TensorReport<'a>)> {
    report.files.iter().flat_map(|file| file.tensors.iter().map(move |tensor| (file, tensor)))
}

/// Returns rows with their positions in the file. Without accuracy, rows with the largest share of lost values come
/// first.
fn noisiest_first<'a>(report: &'a Report) -> Vec<(usize, (&'a FileReport<'a>, &'a TensorReport<'a>))> {
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
        let cells = || rows(report).map(|(file, tensor)| cell(file, tensor));
        let wide =
            cells().map(|cell| cell.html.chars().count() + usize::from(cell.html.contains('%'))).max().unwrap_or(0);
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
    let text = |title, cell| column(title, "", Order::Text, cell);
    let mut columns = vec![
        text("tensor", Box::new(move |_, tensor| name(tensor, drawn.get(&*tensor.name)))),
        text("became", Box::new(|_, tensor| types(tensor))),
        column("SQNR", &of_clearest, Order::Smallest, sqnr_of(clearest)),
        column(
            "lost",
            &of_worst,
            Order::Largest,
            Box::new(move |_, tensor| {
                let Some((lost, all)) = lost(tensor) else { return Cell::default() };
                // Every nonzero bar is visible.
                let bar = worst.filter(|_| lost > 0).map(|worst| (ratio((lost, all)) / ratio(worst)).max(0.02));
                Cell::share(lost, all).with_bar(bar.unwrap_or(0.0))
            }),
        ),
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
    columns.extend([
        column("cosine", "", Order::Smallest, of_accuracy(cosine)),
        column("inexact", "of values", Order::Largest, of_counts(|counts| counts[Loss::Inexact])),
        text("shape", Box::new(|_, tensor| Cell::text(shorten(&format!("{:?}", tensor.shape))))),
        column(
            "values",
            "",
            Order::Largest,
            Box::new(|_, tensor| Cell::number(with_thousands(tensor.elements()), tensor.elements() as f64)),
        ),
        column("before", "bytes", Order::Largest, Box::new(|_, tensor| bytes(tensor.bytes_in))),
        column("after", "bytes", Order::Largest, Box::new(|_, tensor| bytes(tensor.bytes_out))),
    ]);
    if report.files.len() > 1 {
        columns.push(text("file", Box::new(|file, _| Cell::text(escape(&shorten(&file.file))))));
    }
    columns
}

/// Returns the columns about weights that were quantized.
fn of_weights<'a>(report: &Report) -> Vec<Column<'a>> {
    let mut columns = Vec::new();
    if report.tensors().any(|tensor| origin(tensor).is_some()) {
        let changed = |accuracy: &QuantizedAccuracy| accuracy.changed.map(count).unwrap_or_default();
        columns.extend([
            column(
                "codes",
                "",
                Order::Text,
                Box::new(|_, tensor| Cell::text(json!(origin(tensor)).as_str().unwrap_or_default().to_owned())),
            ),
            column("changed", "values", Order::Largest, of_quantized(changed)),
        ]);
    }
    if report.tensors().any(|tensor| tensor.quantized_accuracy().is_some()) {
        columns.extend([
            column(
                "bits",
                "per weight",
                Order::Largest,
                of_quantized(|accuracy| {
                    Cell::number(format!("{:.2}", accuracy.bits_per_weight), accuracy.bits_per_weight)
                }),
            ),
            column("largest error", "|y − x|", Order::Largest, of_quantized(|accuracy| error(accuracy.max_abs_error))),
            column("clipped", "values", Order::Largest, of_quantized(|accuracy| count(accuracy.clipped))),
            column(
                "underflowed",
                "groups",
                Order::Largest,
                of_quantized(|accuracy| count(accuracy.underflowed_groups)),
            ),
        ]);
    }
    columns
}

/// Makes a cell from the accuracy, if a tensor has it.
fn of_accuracy<'a>(cell: impl Fn(&Accuracy) -> Cell + 'a) -> CellOf<'a> {
    Box::new(move |_, tensor| {
        let accuracy = tensor.accuracy.as_deref().filter(|accuracy| accuracy.compared > 0);
        accuracy.map(&cell).unwrap_or_default()
    })
}

/// Returns the columns of a largest error, and of the element that has it.
fn of_error<'a>(title: &'static str, note: &str, of: fn(&Accuracy) -> (f64, Option<u64>)) -> [Column<'a>; 2] {
    let find = move |tensor: &TensorReport| tensor.accuracy.as_deref().map(of).filter(|found| found.0 > 0.0)?.1;
    let largest = of_accuracy(move |accuracy| error(of(accuracy).0));
    [column(title, note, Order::Largest, largest), position("at", find)]
}

/// Makes a cell with the ratio of signal to noise, also for a weight that was quantized.
fn sqnr_of<'a>(clearest: f64) -> CellOf<'a> {
    let others = of_accuracy(move |accuracy| sqnr(accuracy, clearest));
    Box::new(move |file, tensor| match tensor.quantized_accuracy() {
        Some(QuantizedAccuracy { is_exact: true, .. }) => Cell::number("exact".to_owned(), f64::INFINITY),
        Some(accuracy) => accuracy.sqnr_db.map(|db| Cell::number(format!("{db:.2}"), db)).unwrap_or_default(),
        None => others(file, tensor),
    })
}

/// Makes a cell about a weight that was quantized.
fn of_quantized<'a>(cell: impl Fn(&QuantizedAccuracy) -> Cell + 'a) -> CellOf<'a> {
    Box::new(move |_, tensor| tensor.quantized_accuracy().map(&cell).unwrap_or_default())
}

/// Returns the origin of a weight's codes, if it was quantized before or searched for codes.
fn origin(tensor: &TensorReport) -> Option<CodesOrigin> {
    tensor.quantized.as_ref()?.codes
}

/// Makes a cell with a number, empty if it is 0.
fn count(number: u64) -> Cell {
    if number == 0 { Cell::default() } else { Cell::number(with_thousands(number), number as f64) }
}

/// Makes a cell that shows a share of the elements.
fn of_counts<'a>(count: impl Fn(&Counts) -> u64 + 'a) -> CellOf<'a> {
    Box::new(move |_, tensor| {
        let counts = tensor.counts.as_ref().filter(|_| tensor.quantized.is_none());
        counts.map(|counts| Cell::share(count(counts), tensor.elements())).unwrap_or_default()
    })
}

fn name(tensor: &TensorReport, spread: Option<&usize>) -> Cell {
    let mut html = words::name(tensor);
    if let Some(at) = spread {
        html = format!(r##"<a href="#spread-{at}">{html}</a>"##);
    }
    if let Some(old) = &tensor.renamed_from {
        let _ = write!(html, "<small>was {}</small>", words::broken(old));
    }
    Cell::text(html)
}

fn types(tensor: &TensorReport) -> Cell {
    let from = escape(&tensor.type_name());
    Cell::text(match tensor.kept {
        _ if tensor.is_converted => format!("{from} → {}", tensor.new_type_name()),
        Some(KeptReason::Already) => format!("already {from}"),
        _ => format!("{from}, copied"),
    })
}

fn sqnr(accuracy: &Accuracy, clearest: f64) -> Cell {
    match accuracy.sqnr_db {
        _ if accuracy.is_exact => Cell::number("exact".to_owned(), f64::INFINITY).with_bar(1.0),
        Some(f64::INFINITY) => Cell::number("no noise".to_owned(), f64::MAX).with_bar(1.0),
        Some(db) if db.is_nan() => Cell::default(),
        Some(db) => Cell::number(if db.is_finite() { format!("{db:.2}") } else { significant(db, 4) }, db)
            .with_bar(if db > 0.0 { db / clearest } else { 0.0 }),
        None => Cell::default(),
    }
}

/// Returns the ratio of signal to noise; infinite without noise.
fn noise(tensor: &TensorReport) -> Option<f64> {
    if let Some(accuracy) = tensor.quantized_accuracy() {
        return Some(accuracy.sqnr_db.unwrap_or(f64::INFINITY));
    }
    sqnr(tensor.accuracy.as_deref().filter(|accuracy| accuracy.compared > 0)?, 1.0).key
}

/// Returns the number of lost values, and of all values; `None` if unknown, or if there are no values.
fn lost(tensor: &TensorReport) -> Option<(u64, u64)> {
    let (counts, all) = (tensor.counts.as_ref().filter(|_| tensor.quantized.is_none())?, tensor.elements());
    (all > 0).then(|| (LOST.into_iter().map(|loss| counts[loss]).sum(), all))
}

fn error(error: f64) -> Cell {
    if error.is_nan() { Cell::default() } else { Cell::number(significant(error, 4), error) }
}

/// Returns the columns of a condition: the share of the values that met it, and the first of them if known.
fn of_condition<'a>(report: &Report, title: &'static str, condition: Condition) -> Vec<Column<'a>> {
    let mut columns = Vec::new();
    if report.total()[condition] > 0 {
        columns.push(column(title, "of values", Order::Largest, of_counts(move |counts| counts[condition])));
    }
    if report.tensors().any(|tensor| tensor.firsts.of(condition).is_some()) {
        columns.push(position("first at", move |tensor| Some(tensor.firsts.of(condition)?.at)));
    }
    columns
}

fn cosine(accuracy: &Accuracy) -> Cell {
    let shown = |cosine| Cell::number(format!("{cosine:.6}"), cosine);
    accuracy.cosine.filter(|cosine| !cosine.is_nan()).map(shown).unwrap_or_default()
}

fn bytes(count: u64) -> Cell {
    Cell::number(words::bytes(count), count as f64)
}
