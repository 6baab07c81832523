//! A table with a row for each tensor, which the page's script sorts and searches.
//!
//! The table is in a `<noscript>` element. A browser that runs scripts reads it as one text, which takes no time; `page.js`
//! draws the rows that come into view. A browser without scripts, and one that reads the file otherwise, has all rows.

use super::cell::{Cell, write_cell};
use super::words::with_thousands;
use std::fmt::Write as _;

/// Maximum number of rows: with more, the file of a page has more than 50 MB.
const MOST: usize = 100_000;
/// Maximum number of columns, for which the page's style has a rule each.
const MOST_COLUMNS: usize = 40;

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
#[derive(Clone, Copy)]
pub(super) struct RowWords {
    /// The heading above the table, and its id.
    pub(super) heading: (&'static str, &'static str),
    /// Describes the rows that are in the table, if there are more than it can have.
    pub(super) first: &'static str,
    /// Returns the label of the checkbox that hides some rows, before their number.
    pub(super) hide: fn(usize) -> String,
}

/// Returns the section with a table of tensors. `sorted` is the title of the column by which the rows are in order.
pub(super) fn section<T: Copy>(
    columns: Vec<Column<T>>,
    mut rows: Vec<TableRow<T>>,
    words: RowWords,
    sorted: Option<&str>,
) -> String {
    let all = rows.len();
    rows.truncate(MOST);
    let minor = rows.iter().filter(|row| row.is_minor).count();
    let (heading, id) = words.heading;
    let mut text = format!("<section>\n<h2 id=\"{id}\">{heading}</h2>\n");
    if all > MOST {
        let ([shown, all], first) = ([MOST, all].map(|count| with_thousands(count as u64)), words.first);
        let _ = writeln!(text, "<p>The table has {shown} of {all} tensors, {first}. A report in JSON has all.</p>");
    }
    if minor > 0 {
        let (hide, minor) = ((words.hide)(minor), with_thousands(minor as u64));
        let _ = writeln!(text, r#"<input type="checkbox" id="hide"> <label for="hide">{hide} ({minor})</label>"#);
    }
    write_table(&mut text, columns, &rows, id, sorted);
    text.push_str("</section>\n");
    text
}

/// Writes a table with its rows in this order, without the columns that have no figure. `id` is the id of its heading,
/// `sorted` the title of the column by which the rows are in order.
pub(super) fn write_table<T: Copy>(
    text: &mut String,
    mut columns: Vec<Column<T>>,
    rows: &[TableRow<T>],
    id: &str,
    sorted: Option<&str>,
) {
    let mut at = 0;
    columns.retain(|column| {
        at += 1;
        at <= 2 || rows.iter().any(|row| (column.cell)(row.item).is_some_and(|cell| !cell.html.is_empty()))
    });
    debug_assert!(columns.len() <= MOST_COLUMNS, "the style has rules for {MOST_COLUMNS} columns");
    let _ = write!(
        text,
        r#"<div class="box" tabindex="0" role="region" aria-labelledby="{id}"><noscript>
<table class="tensors" style="--columns:{}{}">
<thead><tr>"#,
        widths(&columns, rows),
        titles(&columns)
    );
    for Column { title, note, order, .. } in &columns {
        let class = match order {
            Order::Text => r#" class="text""#,
            Order::Smallest => "",
            Order::Largest => r#" class="largest""#,
        };
        let note = if note.is_empty() { String::new() } else { format!("<small>{note}</small>") };
        let sorted = match order {
            _ if sorted != Some(title) => "",
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
    text.push_str("</tbody>\n</table>\n</noscript></div>\n");
}

/// Returns the titles of the columns as values for the style, which writes them before the figures on a narrow screen.
fn titles<T>(columns: &[Column<T>]) -> String {
    columns.iter().zip(1..).skip(2).fold(String::new(), |mut text, (column, at)| {
        let _ = write!(text, ";--t{at}:'{}'", column.title);
        text
    })
}

/// Returns the rules of the style that write the titles.
pub(super) fn title_rules() -> String {
    let mut rules = String::from("@media screen and (max-width: 600px) {\n");
    for at in 3..=MOST_COLUMNS {
        let _ = writeln!(rules, ".tensors td:nth-child({at})::before {{ content: var(--t{at}); }}");
    }
    rules + "}\n"
}

/// Returns widths of the columns, for the browser: to find them itself, it would lay out every row before showing one.
fn widths<T: Copy>(columns: &[Column<T>], rows: &[TableRow<T>]) -> String {
    let mut text = String::from("var(--name)");
    for Column { title, note, cell, .. } in columns.iter().skip(1) {
        let (mut wide, mut has_bar) = (0, false);
        for cell in rows.iter().filter_map(|row| cell(row.item)) {
            wide = wide.max(cell.html.chars().count() + usize::from(cell.html.contains('%')));
            has_bar |= cell.bar.is_some();
        }
        let bar = if has_bar { " + var(--bar)" } else { "" };
        // The title has an arrow after it was pressed; the note is smaller.
        let head = (title.chars().count() + 2).max(note.chars().count() * 4 / 5 + 1);
        let _ = write!(text, " calc(max({wide}ch{bar}, {head}ch) + var(--gap))");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: RowWords =
        RowWords { heading: ("Tensors", "tensors"), first: "the first ones", hide: |_| String::new() };

    fn number(title: &'static str, cell: fn(u64) -> Option<Cell>) -> Column<'static, u64> {
        Column::new(title, "", Order::Smallest, cell)
    }

    fn rows(count: usize) -> Vec<TableRow<u64>> {
        (0..count).map(|place| TableRow { place, item: place as u64, is_minor: false }).collect()
    }

    #[test]
    fn of_very_many_tensors_the_first_have_rows() {
        let text = section(vec![number("n", |n| Some(Cell::count(n)))], rows(MOST + 1), WORDS, None);
        let note = "<p>The table has 100,000 of 100,001 tensors, the first ones. A report in JSON has all.</p>";
        assert!(text.contains(note));
        assert_eq!(text.matches("<tr data-place").count(), MOST);
        assert!(text.contains(">99,999</th>") && !text.contains(">100,000</th>"));
    }

    #[test]
    fn a_column_without_figures_is_left_out() {
        let columns = || {
            let of_five = |n| (n == 5).then(|| Cell::count(n));
            vec![number("a", |_| None), number("b", |_| None), number("c", |_| None), number("d", of_five)]
        };
        let titles = |count| -> Vec<String> {
            let text = section(columns(), rows(count), WORDS, None);
            let heads = text.split("<th scope=\"col\">").skip(1);
            heads.map(|rest| rest.split('<').next().unwrap().to_owned()).collect()
        };
        assert_eq!(titles(6), ["a", "b", "d"]);
        assert_eq!(titles(5), ["a", "b"]);
    }
}
