//! The tensors of a conversion: tables with a row for each, and a map.

use super::cell::{Cell, DecibelBars, ratio};
use super::map::{MapSeries, MapWeight, MapWords, Measure, Unit, map};
use super::table::{Column, Order, RowWords, TableRow, section};
use super::words::{self, escape, percent};
use super::{ExponentSpread, Report};
use crate::kernel::{Condition, Counts, Loss};
use crate::lora::DeltaFigures;
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

/// A tensor, and its file.
type FileTensor<'a> = (&'a FileReport, &'a TensorReport);

type TensorColumn<'a> = Column<'a, FileTensor<'a>>;

impl<'a> TensorColumn<'a> {
    fn of(title: &'static str, note: &str, order: Order, cell: impl Fn(&TensorReport) -> Option<Cell> + 'a) -> Self {
        Self::new(title, note, order, move |(_, tensor)| cell(tensor))
    }

    fn text(title: &'static str, cell: impl Fn(&TensorReport) -> String + 'a) -> Self {
        Self::of(title, "", Order::Text, move |tensor| Some(Cell::text(cell(tensor))))
    }

    /// Creates a column with the position of an element that `find` chooses.
    fn position(title: &'static str, find: impl Fn(&TensorReport) -> Option<u64> + 'a) -> Self {
        Self::of(title, "position", Order::Smallest, move |tensor| {
            let element = find(tensor)?;
            Some(Cell::number(tensor.place(element)?, element as f64))
        })
    }

    /// Creates a column with a share of the elements.
    fn share(title: &'static str, count: impl Fn(&Counts) -> u64 + 'a) -> Self {
        Self::of(title, "of values", Order::Largest, move |tensor| {
            Some(Cell::share(count(counts(tensor)?), tensor.elements()))
        })
    }

    /// Creates a column about weights that were quantized.
    fn quantized(title: &'static str, note: &str, cell: impl Fn(&QuantizedAccuracy) -> Option<Cell> + 'a) -> Self {
        Self::of(title, note, Order::Largest, move |tensor| cell(tensor.quantized_accuracy()?))
    }
}

/// Returns the tables. Quantized weights have one of their own: their errors are those of codes, which say nothing about
/// the errors of a cast, so that bars of both would be misread.
pub(super) fn tables(report: &Report, spreads: &[ExponentSpread]) -> String {
    let words = |heading| RowWords {
        heading,
        first: "the ones with the most noise or the largest share of lost values",
        hide: |copied| {
            let noun = if copied == 1 { "the tensor that was" } else { "the tensors that were" };
            format!("Hide {noun} copied")
        },
    };
    let (weights, others): (Vec<_>, Vec<_>) =
        noisiest_first(report).into_iter().partition(|TableRow { item: (_, tensor), .. }| tensor.quantized.is_some());
    let section_of = |rows: Vec<TableRow<FileTensor>>, heading| {
        let is_sorted = rows.iter().any(|row| noise(row.item.1).is_some());
        section(columns(report, &rows, spreads), rows, words(heading), is_sorted.then_some(SQNR))
    };
    if weights.is_empty() {
        return section_of(others, ("Tensors", "tensors"));
    }
    let mut text = section_of(weights, ("Quantized weights", "weights"));
    if !others.is_empty() {
        text += &section_of(others, ("Other tensors", "tensors"));
    }
    text
}

/// Returns the map of the weights of a report, or of several with their names; empty if none has a figure. `has_rows` is
/// true if the page's table has a row for each tensor.
pub(super) fn weight_map(reports: &[(&str, &Report)], has_rows: bool) -> String {
    let is_quantized = reports.iter().all(|(_, report)| report.is_quantized());
    let measures = [
        Measure { title: "SQNR", unit: Unit::Decibels },
        Measure { title: "relative error", unit: Unit::Percent },
        Measure { title: "largest error", unit: Unit::Difference },
        Measure { title: if is_quantized { "clipped" } else { "lost" }, unit: Unit::Percent },
        Measure { title: "changed", unit: Unit::Percent },
        Measure { title: KEPT, unit: Unit::Part },
        Measure { title: "delta SNR", unit: Unit::Decibels },
    ];
    // Norms and biases that were kept have no figures, and would take half of the rows.
    let is_drawn = |tensor: &TensorReport| tensor.is_converted || tensor.shape.len() > 1;
    let series = reports.iter().map(|(name, report)| MapSeries {
        name,
        weights: report
            .tensors()
            .enumerate()
            .filter(|(_, tensor)| is_drawn(tensor))
            .map(|(place, tensor)| MapWeight {
                name: &tensor.name,
                row: has_rows.then_some(place),
                figures: map_figures(tensor),
                note: map_note(tensor),
            })
            .collect(),
    });
    let words = MapWords { lossless: "no loss", unmeasured: "kept, or not measured" };
    map(&measures, &series.collect::<Vec<_>>(), words)
}

/// Returns why a tensor has no figures, in a few words.
fn map_note(tensor: &TensorReport) -> String {
    match tensor.kept {
        Some(kept) => format!("kept: {}", json!(kept).as_str().unwrap_or_default().replace('_', " ")),
        None if !tensor.is_converted => "copied".to_owned(),
        None => String::new(),
    }
}

/// Returns the figures of a tensor in the order of the measures.
fn map_figures(tensor: &TensorReport) -> Vec<Option<f64>> {
    let decibels = noise(tensor).map(|decibels| if decibels < f64::MAX { decibels } else { f64::INFINITY });
    let share = |count: u64| Some(count as f64 / tensor.elements().max(1) as f64 * 100.0);
    let (largest, lost, changed) = if let Some(accuracy) = tensor.quantized_accuracy() {
        (Some(accuracy.max_abs_error), share(accuracy.clipped), accuracy.changed.and_then(share))
    } else {
        let largest = accuracy_of(tensor).map(|accuracy| accuracy.max_abs_error);
        (largest, lost(tensor).filter(|_| tensor.is_converted).map(|lost| ratio(lost) * 100.0), None)
    };
    let delta = tensor.delta.as_deref();
    let (kept, delta_snr) = (delta.map(|delta| delta.kept), delta.and_then(|delta| delta.delta_snr));
    vec![decibels, decibels.map(relative_error), largest, lost, changed, kept, delta_snr]
}

/// Returns the length of the error relative to the length of the values, in percent.
pub(super) fn relative_error(decibels: f64) -> f64 {
    10_f64.powf(-decibels / 20.0) * 100.0
}

fn rows(report: &Report) -> impl Iterator<Item = FileTensor<'_>> {
    report.files.iter().flat_map(|file| file.tensors.iter().map(move |tensor| (file, tensor)))
}

/// Returns rows with their positions in the file. Without accuracy, rows with the largest share of lost values come
/// first.
fn noisiest_first<'a>(report: &'a Report) -> Vec<TableRow<FileTensor<'a>>> {
    let row = |(place, item): (usize, FileTensor<'a>)| TableRow { place, item, is_minor: !item.1.is_converted };
    let mut sorted: Vec<_> = rows(report).enumerate().map(row).collect();
    sorted.sort_by(|TableRow { item: (_, left), .. }, TableRow { item: (_, right), .. }| {
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

/// Title of the column by which the rows are in order at first.
const SQNR: &str = "SQNR";

/// Title of the share of the delta of adapters that is kept.
const KEPT: &str = "delta kept";

/// Returns the columns of a table with these rows, the most important ones first.
fn columns<'a>(
    report: &'a Report,
    rows: &[TableRow<FileTensor<'a>>],
    spreads: &'a [ExponentSpread],
) -> Vec<TensorColumn<'a>> {
    let tensors = || rows.iter().map(|TableRow { item: (_, tensor), .. }| *tensor);
    // Tensors without noise are far away from the others.
    let bars = DecibelBars::of(tensors().filter_map(noise).filter(|noise| *noise < f64::MAX));
    let worst = tensors().filter_map(lost).max_by(|a, b| ratio(*a).total_cmp(&ratio(*b)));
    let worst = worst.filter(|(lost, _)| *lost > 0);
    let of_worst = worst.map_or(String::new(), |(lost, all)| format!("full bar: {}", percent(lost, all)));
    let drawn: HashMap<&str, usize> = spreads.iter().enumerate().map(|(at, spread)| (&*spread.name, at)).collect();
    let mut columns = vec![
        TensorColumn::text("tensor", move |tensor| name(tensor, drawn.get(&*tensor.name))),
        TensorColumn::text("became", types),
        TensorColumn::of(SQNR, &DecibelBars::note(bars.as_ref()), Order::Smallest, move |tensor| {
            sqnr(tensor, bars.as_ref())
        }),
        TensorColumn::of("lost", &of_worst, Order::Largest, move |tensor| {
            let (lost, all) = lost(tensor)?;
            Some(Cell::share(lost, all).with_loss(worst.map_or(0.0, |worst| ratio((lost, all)) / ratio(worst))))
        }),
    ];
    let total: Counts = tensors().filter_map(counts).copied().sum();
    for loss in LOST {
        let title = match loss {
            Loss::Nan => "NaN",
            Loss::NanLost => "NaN lost",
            _ => loss.name(),
        };
        columns.extend(of_condition(&total, title, Condition::Lost(loss)));
    }
    columns.extend(of_condition(&total, "input NaN", Condition::InputNan));
    columns.extend(of_condition(&total, "input Inf", Condition::InputInfinite));
    columns.extend(of_deltas());
    columns.extend(of_weights());
    columns.extend(of_error("max error", "|y − x|", |accuracy| (accuracy.max_abs_error, accuracy.max_abs_error_at)));
    let relative = |accuracy: &Accuracy| (accuracy.max_rel_error, accuracy.max_rel_error_at);
    columns.extend(of_error("max rel. error", "|y − x| / |x|", relative));
    columns.extend([TensorColumn::of("cosine", "", Order::Smallest, |tensor| {
        let cosine = accuracy_of(tensor)?.cosine.filter(|cosine| !cosine.is_nan())?;
        Some(Cell::cosine(cosine))
    })]);
    if report.counts_all_inexact() {
        columns.push(TensorColumn::share("rounded", rounded));
    }
    columns.extend([
        TensorColumn::text("shape", |tensor| shorten(&format!("{:?}", tensor.shape))),
        TensorColumn::of("values", "", Order::Largest, |tensor| Some(Cell::count(tensor.elements()))),
        TensorColumn::of("before", "bytes", Order::Largest, |tensor| Some(Cell::bytes(tensor.bytes_in))),
        TensorColumn::of("after", "bytes", Order::Largest, |tensor| Some(Cell::bytes(tensor.bytes_out))),
    ]);
    if report.files.len() > 1 {
        columns.push(Column::new("file", "", Order::Text, |(file, _): FileTensor| {
            Some(Cell::text(escape(&shorten(&file.file))))
        }));
    }
    columns
}

/// Returns the columns about the deltas of adapters.
fn of_deltas<'a>() -> [TensorColumn<'a>; 3] {
    let of = |title, note, order, cell: fn(&DeltaFigures) -> Option<Cell>| {
        TensorColumn::of(title, note, order, move |tensor| cell(tensor.delta.as_deref()?))
    };
    [
        of(KEPT, "of 1", Order::Smallest, |delta| Some(Cell::number(format!("{:.2}", delta.kept), delta.kept))),
        of("delta SNR", "dB", Order::Smallest, |delta| {
            delta.delta_snr.map(|snr| Cell::number(format!("{snr:.2}"), snr))
        }),
        of("delta", "% of weight", Order::Smallest, |delta| Some(Cell::error(100.0 * delta.delta_norm))),
    ]
}

/// Returns the columns about weights that were quantized.
fn of_weights<'a>() -> [TensorColumn<'a>; 7] {
    let origin_of = |tensor: &TensorReport| json!(origin(tensor)).as_str().unwrap_or_default().to_owned();
    let bits = |bits: f64| Some(Cell::number(format!("{bits:.2}"), bits));
    [
        TensorColumn::text("codes", origin_of),
        TensorColumn::quantized("changed", "values", |accuracy| count(accuracy.changed?)),
        TensorColumn::quantized("bits", "per weight", move |accuracy| bits(accuracy.bits_per_weight)),
        TensorColumn::quantized("largest error", "|y − x|", |accuracy| error(accuracy.max_abs_error)),
        TensorColumn::quantized("clipped", "values", |accuracy| count(accuracy.clipped)),
        TensorColumn::quantized("underflowed", "groups", |accuracy| count(accuracy.underflowed_groups)),
        TensorColumn::of("became infinite", "values", Order::Largest, |tensor| {
            count(tensor.quantized.as_ref().map_or(0, |_| tensor.count_of(Condition::Lost(Loss::Infinite))))
        }),
    ]
}

/// Returns the columns of a largest error, and of the element that has it.
fn of_error<'a>(title: &'static str, note: &str, of: fn(&Accuracy) -> (f64, Option<u64>)) -> [TensorColumn<'a>; 2] {
    let find = move |tensor: &TensorReport| tensor.accuracy.as_deref().map(of).filter(|found| found.0 > 0.0)?.1;
    let largest = move |tensor: &TensorReport| error(of(accuracy_of(tensor)?).0);
    [TensorColumn::of(title, note, Order::Largest, largest), TensorColumn::position("at", find)]
}

/// Returns the columns of a condition: the share of the values that met it, and the first of them if known.
fn of_condition<'a>(total: &Counts, title: &'static str, condition: Condition) -> Vec<TensorColumn<'a>> {
    let mut columns = Vec::new();
    if total[condition] > 0 {
        columns.push(TensorColumn::share(title, move |counts| counts[condition]));
    }
    columns.push(TensorColumn::position("first at", move |tensor| tensor.first(condition)));
    columns
}

/// Returns the accuracy of a tensor of which elements were compared.
fn accuracy_of(tensor: &TensorReport) -> Option<&Accuracy> {
    tensor.accuracy.as_deref().filter(|accuracy| accuracy.compared > 0)
}

/// Returns the counts of losses, except of quantized weights.
fn counts(tensor: &TensorReport) -> Option<&Counts> {
    tensor.counts.as_deref().filter(|_| tensor.quantized.is_none())
}

/// Returns the origin of a weight's codes, if it was quantized before or searched for codes.
fn origin(tensor: &TensorReport) -> Option<CodesOrigin> {
    tensor.quantized.as_ref()?.codes
}

/// Makes a cell with a number, none if it is 0.
fn count(number: u64) -> Option<Cell> {
    (number > 0).then(|| Cell::count(number))
}

fn error(error: f64) -> Option<Cell> {
    (!error.is_nan()).then(|| Cell::error(error))
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
fn sqnr(tensor: &TensorReport, bars: Option<&DecibelBars>) -> Option<Cell> {
    let exact = || Cell::number("exact".to_owned(), f64::INFINITY).with_bar(1.0);
    if let Some(accuracy) = tensor.quantized_accuracy() {
        let noisy = || accuracy.sqnr_db.map(|db| Cell::decibels(db, bars));
        return if accuracy.is_exact { Some(exact()) } else { noisy() };
    }
    let accuracy = accuracy_of(tensor)?;
    match accuracy.sqnr_db {
        _ if accuracy.is_exact => Some(exact()),
        Some(f64::INFINITY) => Some(Cell::number("no noise".to_owned(), f64::MAX).with_bar(1.0)),
        Some(db) if db.is_nan() => None,
        Some(db) => Some(Cell::decibels(db, bars)),
        None => None,
    }
}

/// Returns the ratio of signal to noise; infinite without noise.
fn noise(tensor: &TensorReport) -> Option<f64> {
    sqnr(tensor, None)?.key
}

/// Returns the number of lost values, and of all values; `None` if unknown, or if there are no values.
fn lost(tensor: &TensorReport) -> Option<(u64, u64)> {
    let (counts, all) = (counts(tensor)?, tensor.elements());
    (all > 0).then(|| (LOST.into_iter().map(|loss| counts[loss]).sum(), all))
}

/// Returns the number of values that changed, and are not lost.
pub(super) fn rounded(counts: &Counts) -> u64 {
    counts[Loss::Inexact].saturating_sub(LOST.into_iter().map(|loss| counts[loss]).sum())
}
