//! A table that the page's script sorts: a row for each tensor.

use super::cell::{Cell, write_cell};
use super::words::with_thousands;
use std::fmt::Write as _;

/// Maximum number of rows: a browser takes seconds to show more.
const MOST: usize = 10_000;

/// A column of a table whose rows are about `T`.
pub(super) struct Column<'a, T> {
    pub(super) title: &'static str,
    /// A smaller note below the title.
    pub(super) note: String,
    pub(super) order: Order,
    pub(super) cell: Box<dyn Fn(T) -> Option<Cell> + 'a>,
}

impl<'a, T> Column<'a, T> {
    pub(super) fn new(title: &'static str, note: &str, order: Order, cell: impl Fn(T) -> Option<Cell> + 'a) -> Self {
        Self { title, note: note.to_owned(), order, cell: Box::new(cell) }
    }
}

/// Order of rows when a column's heading is first pressed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    /// As text, with numbers in it compared as numbers.
    Text,
    /// Small numbers first.
    Smallest,
    /// Large numbers first.
    Largest,
}

/// A row of a table.
pub(super) struct TableRow<T> {
    /// Its place in the order of the file, by which maps and links find it.
    pub(super) place: usize,
    pub(super) item: T,
    /// True if a checkbox of the page hides it.
    pub(super) is_minor: bool,
}

/// The words about the rows of a table.
pub(super) struct RowWords {
    /// Describes the rows that are in the table, if there are more than it can have.
    pub(super) first: &'static str,
    /// Returns the label of the checkbox that hides some rows, before their number.
    pub(super) hide: fn(usize) -> String,
}

/// Returns the section with a table of tensors. `sorted` is the column by which the rows are in order.
pub(super) fn section<T: Copy>(
    columns: &[Column<T>],
    mut rows: Vec<TableRow<T>>,
    words: &RowWords,
    sorted: Option<usize>,
) -> String {
    let all = rows.len();
    rows.truncate(MOST);
    let minor = rows.iter().filter(|row| row.is_minor).count();
    let mut text = String::from("<section>\n<h2 id=\"tensors\">Tensors</h2>\n");
    if all > MOST {
        let ([shown, all], first) = ([MOST, all].map(|count| with_thousands(count as u64)), words.first);
        let _ = writeln!(text, "<p>The table has {shown} of {all} tensors, {first}. A report in JSON has all.</p>");
    }
    if minor > 0 {
        let (hide, minor) = ((words.hide)(minor), with_thousands(minor as u64));
        let _ = writeln!(text, r#"<input type="checkbox" id="hide"> <label for="hide">{hide} ({minor})</label>"#);
    }
    write_table(&mut text, columns, &rows, sorted);
    text.push_str("</section>\n");
    text
}

/// Writes a table with its rows in this order. `sorted` is the column by which they are in order.
pub(super) fn write_table<T: Copy>(
    text: &mut String,
    columns: &[Column<T>],
    rows: &[TableRow<T>],
    sorted: Option<usize>,
) {
    let _ = write!(
        text,
        r#"<div class="box" tabindex="0" role="region" aria-labelledby="tensors">
<table class="tensors" style="--columns:{}">
<thead><tr>"#,
        widths(columns, rows)
    );
    for (at, Column { title, note, order, .. }) in columns.iter().enumerate() {
        let class = match order {
            Order::Text => r#" class="text""#,
            Order::Smallest => "",
            Order::Largest => r#" class="largest""#,
        };
        let note = if note.is_empty() { String::new() } else { format!("<small>{note}</small>") };
        let sorted = match order {
            _ if sorted != Some(at) => "",
            Order::Largest => r#" aria-sort="descending""#,
            Order::Text | Order::Smallest => r#" aria-sort="ascending""#,
        };
        let _ = write!(text, r#"<th scope="col"{class}{sorted}>{title}{note}</th>"#);
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for TableRow { place, item, is_minor } in rows {
        let class = if *is_minor { r#" class="copied""# } else { "" };
        let _ = write!(text, r#"<tr data-place="{place}"{class}>"#);
        for (at, column) in columns.iter().enumerate() {
            let cell = (column.cell)(*item).unwrap_or_default();
            write_cell(text, at == 0, column.order == Order::Text, &cell);
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table>\n</div>\n");
}

/// Returns widths of the columns, for the browser: to find them itself, it would lay out every row before showing one.
fn widths<T: Copy>(columns: &[Column<T>], rows: &[TableRow<T>]) -> String {
    let mut text = String::from("var(--name)");
    for (at, Column { title, note, cell, .. }) in columns.iter().enumerate().skip(1) {
        let cells = || rows.iter().filter_map(|row| cell(row.item));
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

/// The second column, for which the page's style has a rule.
const BECAME: usize = 1;
