//! The page of a comparison: a map of the differences, and a table with a row for each tensor.

use super::cell::{Cell, DecibelBars, ratio};
use super::map::{MapSeries, MapWeight, MapWords, Measure, Unit, map};
use super::table::{Column, Order, RowWords, TableRow, section};
use super::tensors::relative_error;
use super::words::{broken, escape, percent, significant, with_thousands};
use super::{filled, noisiest, option_list, tile, words};
use crate::measure::compare::{DiffReport, DiffStatus, TensorDiff};
use crate::report::diff::words_of;
use crate::text::{counted, path_text, shorten};
use std::fmt::Write as _;

/// Meaning of the figures of a comparison.
const LEGEND: &str = include_str!("diff_legend.html");

/// Returns a comparison as one self-contained HTML page.
pub(crate) fn diff_page(report: &DiffReport) -> String {
    let name = |path: &std::path::Path| path_text(path.file_name().unwrap_or(path.as_os_str()));
    let title = format!("diff: {}, {}", name(&report.a), name(&report.b));
    filled(&title, &head(report), &(weight_map(report) + &table(report)), LEGEND)
}

/// Returns the header: the paths, and the totals.
fn head(report: &DiffReport) -> String {
    let [a, b] = [&report.a, &report.b].map(|path| escape(&path_text(path)));
    let all = report.tensors.len() as u64;
    let mut text = format!(
        r#"<header>
<h1>Comparison of {}</h1>
<p class="path"><span>{a}</span> <span class="to"><i aria-label="with">→</i> {b}</span></p>
<dl class="tiles">
"#,
        counted(all, "tensor")
    );
    let count = |status: DiffStatus| report.counts[&status] as u64;
    let equal = report.tensors.iter().filter(|tensor| tensor.comparison.status.is_equal()).count() as u64;
    let [in_a, in_b, shapes] = [DiffStatus::OnlyInA, DiffStatus::OnlyInB, DiffStatus::ShapesDiffer].map(count);
    tile(&mut text, "Equal", &with_thousands(equal), &format!("of {}", with_thousands(all)));
    let both = with_thousands(all - equal - in_a - in_b);
    tile(&mut text, "Different", &both, &format!("{} with another shape", with_thousands(shapes)));
    let one = format!("{} only in A, {} only in B", with_thousands(in_a), with_thousands(in_b));
    tile(&mut text, "In one model only", &with_thousands(in_a + in_b), &one);
    if let Some((tensor, decibels)) =
        noisiest(report.tensors.iter().filter_map(|tensor| Some((tensor, decibels(tensor)?))))
    {
        let change = format!("{}%", significant(relative_error(decibels), 3));
        tile(
            &mut text,
            "Largest change",
            &change,
            &format!(r#"<span class="name">{}</span>"#, words::name(&tensor.name)),
        );
    }
    text.push_str("</dl>\n");
    let options = [("tolerance", report.tolerance), ("rtol", report.rtol)].into_iter();
    text += &option_list(options.filter_map(|(name, value)| Some((name.to_owned(), format!("{:?}", value?)))));
    text.push_str("</header>\n");
    text
}

fn weight_map(report: &DiffReport) -> String {
    let measures = [
        Measure { title: "SQNR", unit: Unit::Decibels },
        Measure { title: "relative change", unit: Unit::Percent },
        Measure { title: "largest difference", unit: Unit::Difference },
        Measure { title: "values that differ", unit: Unit::Percent },
    ];
    // Equal norms and biases would take half of the rows.
    let is_drawn = |tensor: &TensorDiff| !tensor.comparison.status.is_equal() || shape(tensor).len() > 1;
    let drawn = report.tensors.iter().enumerate().filter(|(_, tensor)| is_drawn(tensor));
    let weights = drawn.map(|(place, tensor)| MapWeight {
        name: &tensor.name,
        row: Some(place),
        figures: vec![
            decibels(tensor),
            decibels(tensor).map(relative_error),
            largest(tensor),
            differing(tensor).map(|(count, all)| if all > 0 { ratio((count, all)) * 100.0 } else { 0.0 }),
        ],
        note: words_of(tensor.comparison.status).to_owned(),
    });
    let words = MapWords { lossless: "equal", unmeasured: "not compared" };
    map(&measures, &[MapSeries { name: "", weights: weights.collect() }], words)
}

fn table(report: &DiffReport) -> String {
    let row = |(place, item): (usize, _)| TableRow { place, item, is_minor: is_equal(item) };
    let mut rows: Vec<TableRow<&TensorDiff>> = report.tensors.iter().enumerate().map(row).collect();
    // Tensors that cannot be compared come first, and equal ones last.
    rows.sort_by(|TableRow { item: a, .. }, TableRow { item: b, .. }| {
        let noise = |tensor: &TensorDiff| decibels(tensor).unwrap_or(f64::NEG_INFINITY);
        is_equal(a).cmp(&is_equal(b)).then(noise(a).total_cmp(&noise(b)))
    });
    let words = RowWords {
        heading: ("Tensors", "tensors"),
        first: "the ones that differ most",
        hide: |_| "Hide equal tensors".to_owned(),
    };
    section(columns(report), rows, words, None)
}

/// Returns the columns, the most important ones first.
fn columns<'a>(report: &'a DiffReport) -> Vec<Column<'a, &'a TensorDiff>> {
    let accuracy = |tensor: &'a TensorDiff| tensor.comparison.figures.as_deref().map(|figures| &figures.accuracy);
    let finite = || report.tensors.iter().filter_map(decibels).filter(|decibels| decibels.is_finite());
    let bars = DecibelBars::of(finite());
    let most = relative_error(finite().fold(f64::INFINITY, f64::min));
    let text = |title, cell: fn(&TensorDiff) -> String| {
        Column::new(title, "", Order::Text, move |tensor: &'a TensorDiff| Some(Cell::text(cell(tensor))))
    };
    let place = |index: &Option<Vec<u64>>| index.as_ref().map(|index| Cell::text(format!("{index:?}")));
    vec![
        text("tensor", name),
        text("result", |tensor| words_of(tensor.comparison.status).to_owned()),
        Column::new("SQNR", &DecibelBars::note(bars.as_ref()), Order::Smallest, move |tensor| {
            decibels(tensor).filter(|_| !is_equal(tensor)).map(|decibels| Cell::decibels(decibels, bars.as_ref()))
        }),
        Column::new("relative change", "of the whole tensor", Order::Largest, move |tensor| {
            let change = relative_error(decibels(tensor).filter(|_| !is_equal(tensor))?);
            Some(Cell::number(significant(change, 3) + "%", change).with_loss(change / most))
        }),
        Column::new("differ", "of values", Order::Largest, |tensor| {
            let (count, all) = differing(tensor).filter(|(count, _)| *count > 0)?;
            Some(Cell::number(percent(count, all), ratio((count, all))))
        }),
        Column::new("max difference", "|B − A|", Order::Largest, |tensor| {
            largest(tensor).filter(|largest| *largest > 0.0).map(Cell::error)
        }),
        Column::new("at", "position", Order::Text, move |tensor: &TensorDiff| {
            place(&tensor.comparison.figures.as_ref()?.max_abs_error_index)
        }),
        Column::new("max rel. difference", "|B − A| / |A|", Order::Largest, move |tensor| {
            Some(Cell::error(accuracy(tensor)?.max_rel_error))
        }),
        Column::new("cosine", "", Order::Smallest, move |tensor| accuracy(tensor)?.cosine.map(Cell::cosine)),
        text("first difference", first_difference),
        text("types", |tensor| two(tensor.type_names().map(|name| name.map(shorten)))),
        text("shape", |tensor| {
            two([&tensor.shape_a, &tensor.shape_b].map(|shape| shape.as_ref().map(|shape| format!("{shape:?}"))))
        }),
        Column::new("values", "", Order::Largest, |tensor| Some(Cell::count(elements(tensor)))),
    ]
}

fn name(tensor: &TensorDiff) -> String {
    let mut html = words::name(&tensor.name);
    if let Some(other) = &tensor.in_b {
        let _ = write!(html, "<small>in B: {}</small>", broken(other));
    }
    html
}

fn first_difference(tensor: &TensorDiff) -> String {
    match (&tensor.comparison.first_difference, &tensor.error) {
        (Some(first), _) => {
            format!("{:?}: {} → {}", first.index, escape(&shorten(&first.a)), escape(&shorten(&first.b)))
        }
        (None, Some(error)) => escape(&shorten(&error.to_string())),
        (None, None) => String::new(),
    }
}

/// Formats what both sides have: once if it is the same.
fn two(sides: [Option<String>; 2]) -> String {
    match sides {
        [Some(a), Some(b)] if a != b => format!("{} → {}", escape(&a), escape(&b)),
        [a, b] => escape(&a.or(b).unwrap_or_default()),
    }
}

fn is_equal(tensor: &TensorDiff) -> bool {
    tensor.comparison.status.is_equal()
}

/// True if the elements of both sides were compared as numbers.
fn is_compared(tensor: &TensorDiff) -> bool {
    use DiffStatus::{OnlyInA, OnlyInB, ShapesDiffer, TypesDiffer, Unreadable};
    match tensor.comparison.status {
        OnlyInA | OnlyInB | ShapesDiffer | Unreadable => false,
        TypesDiffer => !tensor.holds_text(),
        _ => true,
    }
}

/// Returns the ratio of A to the difference in decibels: infinite if no value differs, or if all values of A are zero
/// minus infinity.
fn decibels(tensor: &TensorDiff) -> Option<f64> {
    match &tensor.comparison.figures {
        Some(figures) if figures.accuracy.compared > 0 => {
            Some(figures.accuracy.sqnr_db.unwrap_or(f64::NEG_INFINITY)).filter(|decibels| !decibels.is_nan())
        }
        Some(_) => None,
        None => is_compared(tensor).then_some(f64::INFINITY),
    }
}

/// Returns the largest difference of two values.
fn largest(tensor: &TensorDiff) -> Option<f64> {
    match &tensor.comparison.figures {
        Some(figures) => Some(figures.accuracy.max_abs_error),
        None => is_compared(tensor).then_some(0.0),
    }
}

/// Returns the number of values that differ, and of all.
fn differing(tensor: &TensorDiff) -> Option<(u64, u64)> {
    Some((tensor.comparison.differing?, elements(tensor))).filter(|_| is_compared(tensor))
}

fn shape(tensor: &TensorDiff) -> &[u64] {
    tensor.shape_a.as_ref().or(tensor.shape_b.as_ref()).map_or(&[], Vec::as_slice)
}

fn elements(tensor: &TensorDiff) -> u64 {
    shape(tensor).iter().fold(1, |count: u64, length| count.saturating_mul(*length))
}
