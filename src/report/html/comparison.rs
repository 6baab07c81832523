//! The page about several schemes for the same model.

use super::super::comparison::{Comparison, HEADINGS};
use super::tensors::weight_map;
use super::words::escape;
use super::{LEGEND, filled};
use crate::text::path_text;
use std::fmt::Write as _;

/// Returns the results of several schemes as one self-contained HTML page.
pub(crate) fn comparison_page(comparison: &Comparison) -> String {
    let title = comparison.input.file_name().unwrap_or(comparison.input.as_os_str());
    let title = format!("schemes for {}", path_text(title));
    let header = format!(
        "<header>\n<h1>{}</h1>\n<p class=\"path\"><span>{}</span></p>\n</header>\n",
        escape(&title),
        escape(&comparison.summary())
    );
    let reports: Vec<_> = comparison.schemes.iter().map(|measured| (measured.scheme.name, &measured.report)).collect();
    filled(&title, &header, &[table(comparison), weight_map(&reports)].concat(), LEGEND)
}

/// Returns the table with a row for each scheme.
fn table(comparison: &Comparison) -> String {
    let rows = comparison.rows();
    let columns: Vec<usize> = (0..HEADINGS.len()).filter(|at| rows.iter().any(|row| !row[*at].is_empty())).collect();
    let mut text = String::from("<section>\n<h2>Schemes</h2>\n<table>\n<thead><tr>");
    for &at in &columns {
        let _ = write!(text, "<th scope=\"col\">{}</th>", HEADINGS[at]);
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for row in &rows {
        text.push_str("<tr>");
        for &at in &columns {
            let cell = escape(&row[at]);
            let _ = match at {
                0 => write!(text, "<th scope=\"row\">{cell}</th>"),
                _ => write!(text, "<td>{cell}</td>"),
            };
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table>\n</section>\n");
    text
}
