//! The page about several schemes for the same model: a table with a row for each, and a map with a switch.

use super::super::comparison::{MeasuredScheme, SchemeComparison, SchemeFigures};
use super::cell::Cell;
use super::table::{Column, Order, TableRow, write_table};
use super::tensors::weight_map;
use super::words::{broken, escape};
use super::{LEGEND, filled};
use crate::text::{path_text, shorten};

/// A scheme, and its figures.
type SchemeRow<'r> = (&'r MeasuredScheme, &'r SchemeFigures<'r>);

/// Returns the results of several schemes as one self-contained HTML page.
pub(crate) fn comparison_page(comparison: &SchemeComparison) -> String {
    let title = comparison.input.file_name().unwrap_or(comparison.input.as_os_str());
    let title = format!("quantization schemes: {}", path_text(title));
    let header = format!(
        "<header>\n<h1>Quantization schemes</h1>\n<p class=\"path\"><span>{}</span></p>\n<p>{}</p>\n</header>\n",
        escape(&path_text(&comparison.input)),
        escape(&comparison.summary())
    );
    let reports: Vec<_> = comparison.schemes.iter().map(|measured| (measured.scheme.name, &measured.report)).collect();
    filled(&title, &header, &[table(comparison), weight_map(&reports, false)].concat(), LEGEND)
}

fn table(comparison: &SchemeComparison) -> String {
    let figures: Vec<SchemeFigures> = comparison.schemes.iter().map(MeasuredScheme::figures).collect();
    let row = |(place, item)| TableRow { place, item, is_minor: false };
    let rows: Vec<TableRow<SchemeRow>> = comparison.schemes.iter().zip(&figures).enumerate().map(row).collect();
    let mut text = String::from("<section>\n<h2 id=\"schemes\">Schemes</h2>\n");
    write_table(&mut text, columns(), &rows, "schemes", None);
    text.push_str("</section>\n");
    text
}

fn columns<'r>() -> Vec<Column<'r, SchemeRow<'r>>> {
    let decibels = |ratio: Option<f64>| match ratio {
        Some(ratio) => Cell::number(format!("{ratio:.2}"), ratio),
        None => Cell::number("exact".to_owned(), f64::INFINITY),
    };
    let column = |title, note, order, cell: fn(&SchemeFigures) -> Cell| {
        Column::new(title, note, order, move |(_, figures): SchemeRow<'r>| Some(cell(figures)))
    };
    vec![
        Column::new("scheme", "", Order::Text, |(measured, _): SchemeRow<'r>| {
            Some(Cell::text(measured.scheme.name.into()))
        }),
        Column::new("layout", "", Order::Text, |(measured, _): SchemeRow<'r>| Some(Cell::text(measured.layout.into()))),
        column("bits", "per weight", Order::Smallest, |figures| {
            Cell::number(format!("{:.2}", figures.bits_per_weight), figures.bits_per_weight)
        }),
        column("size", "of the model", Order::Smallest, |figures| Cell::bytes(figures.bytes)),
        Column::new("mean SQNR", "dB", Order::Largest, move |(_, it): SchemeRow<'r>| Some(decibels(it.mean_sqnr_db))),
        Column::new("lowest SQNR", "dB", Order::Largest, move |(_, it): SchemeRow<'r>| {
            Some(decibels(it.lowest.map(|(ratio, _)| ratio)))
        }),
        column("squared error", "relative, mean", Order::Smallest, |figures| {
            let error = figures.mean_relative_squared_error;
            Cell::number(format!("{error:.2e}"), error)
        }),
        column("unfit", "weights", Order::Largest, |figures| Cell::count(figures.unfit)),
        column("codes", "", Order::Text, |figures| Cell::text(figures.moved())),
        column("worst weight", "", Order::Text, |figures| {
            Cell::text(figures.lowest.map(|(_, name)| broken(&shorten(name))).unwrap_or_default())
        }),
    ]
}
