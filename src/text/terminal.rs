//! Text that fits a terminal: tables, long names, and paragraphs.

use std::io;
use std::ops::Range;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns the columns of standard output; `None` if it is not a terminal.
pub(crate) fn stdout_columns() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into())
}

/// Returns the columns of standard error; `None` if it is not a terminal.
pub(crate) fn stderr_columns() -> Option<usize> {
    terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0.into())
}

/// Aligns rows in columns two spaces apart, each after a margin of two; empty columns take no room. `right` lists the
/// columns that are aligned to the right. In a terminal of this many columns, the first cell loses its middle if the
/// row is too long, and if that is not enough, the last cells follow in a second line.
pub(crate) fn columns<'a, const N: usize>(
    rows: &'a [[String; N]],
    right: &'a [usize],
    terminal: Option<usize>,
) -> impl Iterator<Item = String> + 'a {
    let mut widths: [usize; N] = std::array::from_fn(|column| width(rows.iter().map(|row| &*row[column])));
    let second = terminal.map_or(N, |terminal| fit(&mut widths, terminal));
    rows.iter().map(move |row| {
        let cell = |column: usize| {
            let cell = if column == 0 { elided(&row[0], widths[0]) } else { row[column].clone() };
            let blanks = " ".repeat(widths[column] - cell.width());
            if right.contains(&column) { format!("  {blanks}{cell}") } else { format!("  {cell}{blanks}") }
        };
        let line = |columns: Range<usize>| columns.filter(|column| widths[*column] > 0).map(cell).collect::<String>();
        let (first, rest) = (line(0..second), line(second..N));
        match rest.trim_end() {
            "" => first.trim_end().to_owned(),
            rest => format!("{}\n{:INDENT$}{rest}", first.trim_end(), ""),
        }
    })
}

/// Number of columns by which a second line is indented.
const INDENT: usize = 4;

/// Shortens the first column so that rows fit. Returns the column that begins a second line, or the number of columns.
fn fit(widths: &mut [usize], terminal: usize) -> usize {
    /// Minimum columns of a shortened name; with fewer, it could be the name of other layers too.
    const SHORTEST: usize = 34;
    let shortest = widths[0].min(SHORTEST);
    let taken = |columns: &[usize]| columns.iter().filter(|width| **width > 0).map(|width| width + 2).sum::<usize>();
    let fits_behind_name = |end: usize| 2 + shortest + taken(&widths[1..end]) <= terminal;
    let mut second = widths.len();
    if !fits_behind_name(second) {
        let last = widths.iter().rposition(|width| *width > 0).unwrap_or(0).max(1);
        let fits_below = |start: &usize| INDENT + taken(&widths[*start..]) <= terminal;
        let mut fitting = (1..=last).filter(|start| fits_behind_name(*start));
        // If no second line fits, it gets as little as possible.
        second = fitting.clone().find(fits_below).or_else(|| fitting.next_back()).unwrap_or(1);
    }
    let others = 2 + taken(&widths[1..second]);
    widths[0] = widths[0].min(terminal.saturating_sub(others).max(shortest));
    second
}

/// Returns the columns of the widest text.
pub(crate) fn width<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(UnicodeWidthStr::width).max().unwrap_or(0)
}

/// Shortens text to at most this many columns: the middle is left out if necessary.
fn elided(text: &str, columns: usize) -> String {
    const GAP: &str = "...";
    if text.width() <= columns {
        return text.to_owned();
    }
    let fitting = |letters: &mut dyn Iterator<Item = char>, mut room: usize| -> usize {
        let fits = |letter: &char| {
            let left = room.checked_sub(letter.width().unwrap_or(0));
            room = left.unwrap_or(0);
            left.is_some()
        };
        letters.take_while(fits).map(char::len_utf8).sum()
    };
    let room = columns.saturating_sub(GAP.len());
    let head = fitting(&mut text.chars(), room / 2);
    let tail = fitting(&mut text.chars().rev(), room - room / 2);
    format!("{}{GAP}{}", &text[..head], &text[text.len() - tail..])
}

/// Wraps text at words for a terminal of this many columns. Text that a shell should take as one piece is not divided:
/// quoted words, and flags with their values and with the word before them.
pub(crate) fn wrapped(text: &str, terminal: Option<usize>) -> String {
    let Some(columns) = terminal else { return text.to_owned() };
    text.split('\n').map(|line| wrapped_line(line, columns)).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str, columns: usize) -> String {
    if line.width() <= columns {
        return line.to_owned();
    }
    let margin = line.len() - line.trim_start_matches(' ').len();
    let indent = " ".repeat((margin + 2).max(INDENT));
    let (mut text, mut taken) = (String::new(), 0);
    for piece in pieces(line) {
        let word = piece.trim_start_matches(' ');
        // A line break would not help a word that no line can hold.
        if taken + piece.width() > columns && indent.len() + word.width() <= columns {
            text.extend(["\n", &indent, word]);
            taken = indent.len() + word.width();
        } else {
            text += piece;
            taken += piece.width();
        }
    }
    text
}

/// Returns the pieces of a line that are not divided, each with the blanks before it.
fn pieces(line: &str) -> Vec<&str> {
    let is_flag = |text: &str| {
        let mut letters = text.trim_start_matches(' ').trim_start_matches(['(', ',']).chars();
        letters.next() == Some('-') && letters.next().is_some_and(|second| second == '-' || second.is_alphabetic())
    };
    let (mut pieces, mut start, mut word) = (Vec::new(), 0, 0);
    let (mut quote, mut before) = (None, ' ');
    for (at, letter) in line.char_indices() {
        if letter == ' ' && before != ' ' && quote.is_none() {
            if !is_flag(&line[word..at]) && !is_flag(&line[at..]) {
                pieces.push(&line[start..at]);
                start = at;
            }
            word = at;
        } else if quote == Some(letter) {
            quote = None;
        } else if quote.is_none() && matches!(letter, '\'' | '"') && !before.is_alphanumeric() {
            quote = Some(letter); // after a letter, it is an apostrophe
        }
        before = letter;
    }
    pieces.push(&line[start..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table<const N: usize>(rows: &[[&str; N]], right: &[usize], terminal: Option<usize>) -> Vec<String> {
        let rows: Vec<[String; N]> = rows.iter().map(|row| row.map(str::to_owned)).collect();
        columns(&rows, right, terminal).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_cells_and_empty_ones_take_no_room() {
        let rows = [["a", "", "10", ""], ["\u{e9}\u{e9}b", "", "9", "x"]];
        assert_eq!(table(&rows, &[2], None), ["  a    10", "  \u{e9}\u{e9}b   9  x"]);
        // A Chinese letter is as wide as two others.
        assert_eq!(table(&[["\u{4e2d}", "x"], ["abc", "y"]], &[], None), ["  \u{4e2d}   x", "  abc  y"]);
    }

    const ROWS: [[&str; 4]; 2] = [
        ["model.layers.0.block_sparse_moe.experts.0.w1.weight", "bfloat16", "[128, 256]", "64.00 KiB"],
        ["model.norm.weight", "bfloat16", "[128]", "256 B"],
    ];

    #[test]
    fn a_table_is_as_wide_as_its_cells_where_no_terminal_is() {
        let wanted = [
            "  model.layers.0.block_sparse_moe.experts.0.w1.weight  bfloat16  [128, 256]  64.00 KiB",
            "  model.norm.weight                                    bfloat16  [128]           256 B",
        ];
        assert_eq!(table(&ROWS, &[3], None), wanted);
        assert_eq!(table(&ROWS, &[3], Some(86)), wanted);
    }

    #[test]
    fn names_lose_their_middle_in_a_narrow_terminal() {
        let wanted = [
            "  model.layers.0.block....experts.0.w1.weight  bfloat16  [128, 256]  64.00 KiB",
            "  model.norm.weight                            bfloat16  [128]           256 B",
        ];
        assert_eq!(table(&ROWS, &[3], Some(78)), wanted);
    }

    #[test]
    fn the_last_cells_follow_in_a_second_line_if_short_names_are_not_enough() {
        let wanted = [
            "  model.layers.0.block_sparse_moe.experts.0.w1.weight\n      bfloat16  [128, 256]  64.00 KiB",
            "  model.norm.weight\n      bfloat16  [128]           256 B",
        ];
        assert_eq!(table(&ROWS, &[3], Some(60)), wanted);
        // If they are too long for a line, as many as fit stay after the name.
        let stored = "stored ".repeat(9);
        let [name, dtype, shape, size] = ROWS[0];
        let wanted =
            format!("  model.layers.0....erts.0.w1.weight  bfloat16\n      {shape}  {size}  {}", stored.trim_end());
        assert_eq!(table(&[[name, dtype, shape, size, &stored]], &[3], Some(46)), [wanted]);
        // A sentence that no line can hold is left to the next step.
        let sentence = "one two three four five six seven eight";
        assert_eq!(
            table(&[["name", "differs", sentence]], &[], Some(30)),
            [format!("  name  differs\n      {sentence}")]
        );
        assert_eq!(table(&[["name", "differs", ""]], &[], Some(8)), ["  name\n      differs"]);
    }

    #[test]
    fn the_middle_is_left_out_by_columns() {
        assert_eq!(elided("abcdefghij", 10), "abcdefghij");
        assert_eq!(elided("abcdefghij", 9), "abc...hij");
        assert_eq!(elided("abcdefghij", 8), "ab...hij");
        let wide = "\u{4e2d}".repeat(6);
        assert_eq!(elided(&wide, 11), format!("{0}{0}...{0}{0}", "\u{4e2d}"));
        assert_eq!(elided(&wide, 10), format!("{0}...{0}{0}", "\u{4e2d}"));
        assert_eq!(elided("abcdef", 2), "...");
    }

    #[test]
    fn lines_end_at_words() {
        let said = "tcast: note: the float8 weights have no scales, which engines need";
        assert_eq!(wrapped(said, None), said);
        assert_eq!(wrapped(said, Some(80)), said);
        let wanted = "tcast: note: the float8\n    weights have no scales,\n    which engines need";
        assert_eq!(wrapped(said, Some(28)), wanted);
        // Lines before and after keep their ends, and an indented line its margin.
        assert_eq!(wrapped("a\n      b c d\ne", Some(9)), "a\n      b c\n        d\ne");
        // A word that no line can hold is not divided.
        assert_eq!(wrapped("a bbbbbbbbbbbb c", Some(8)), "a bbbbbbbbbbbb\n    c");
    }

    #[test]
    fn what_a_shell_takes_as_one_is_not_divided() {
        assert_eq!(pieces("tcast dequantize 'a b' now"), ["tcast", " dequantize", " 'a b'", " now"]);
        let flags = "scales are cast: --exclude '*.x y' --exclude '*.z' keeps them";
        assert_eq!(pieces(flags), ["scales", " are", " cast: --exclude '*.x y' --exclude '*.z'", " keeps", " them"]);
        assert_eq!(pieces("a -> b, -1 of ComfyUI's 'c d'"), ["a", " ->", " b,", " -1", " of", " ComfyUI's", " 'c d'"]);
    }
}
