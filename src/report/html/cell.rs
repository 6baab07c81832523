//! A cell of a table.

use super::words::{bytes, percent, significant, with_thousands};
use std::fmt::Write as _;

/// A cell, which is shown as a dash if it is empty, and then comes last in every order.
#[derive(Default)]
pub(super) struct Cell {
    pub(super) html: String,
    /// The tooltip.
    title: String,
    /// The number to sort by.
    pub(super) key: Option<f64>,
    /// Length of its bar, from 0 to 1.
    pub(super) bar: Option<f64>,
}

impl Cell {
    pub(super) fn text(html: String) -> Self {
        Self { html, ..Self::default() }
    }

    pub(super) fn number(html: String, key: f64) -> Self {
        Self { html, key: Some(key), ..Self::default() }
    }

    /// Makes a cell with a whole number.
    pub(super) fn count(number: u64) -> Self {
        Self::number(with_thousands(number), number as f64)
    }

    /// Makes a cell with a number of bytes.
    pub(super) fn bytes(count: u64) -> Self {
        Self::number(bytes(count), count as f64)
    }

    /// Makes a cell with an error of four significant digits.
    pub(super) fn error(error: f64) -> Self {
        Self::number(significant(error, 4), error)
    }

    pub(super) fn cosine(cosine: f64) -> Self {
        Self::number(format!("{cosine:.6}"), cosine)
    }

    /// Makes a cell with a ratio of signal to noise. The bar of the largest ratio is full.
    pub(super) fn decibels(decibels: f64, largest: f64) -> Self {
        let text = if decibels.is_finite() { format!("{decibels:.2}") } else { significant(decibels, 4) };
        Self::number(text, decibels).with_bar(if decibels > 0.0 { decibels / largest } else { 0.0 })
    }

    /// Makes a cell with a part of a whole in percent, and both numbers as its tooltip; empty if the whole is 0.
    pub(super) fn share(part: u64, whole: u64) -> Self {
        if whole == 0 {
            return Self::default();
        }
        let title = format!("{} of {}", with_thousands(part), with_thousands(whole));
        Self { title, ..Self::number(percent(part, whole), ratio((part, whole))) }
    }

    pub(super) fn with_bar(self, bar: f64) -> Self {
        Self { bar: Some(bar.clamp(0.0, 1.0)), ..self }
    }
}

/// Writes a cell of the body; the first of a row is its head.
pub(super) fn write_cell(text: &mut String, is_head: bool, is_text: bool, cell: &Cell) {
    let tag = if is_head { "th" } else { "td" };
    text.push('<');
    text.push_str(tag);
    if is_head {
        text.push_str(r#" scope="row""#);
    } else if is_text {
        text.push_str(r#" class="text""#);
    }
    if let Some(key) = cell.key {
        let _ = match key {
            f64::INFINITY => write!(text, r#" data-key="Infinity""#),
            f64::NEG_INFINITY => write!(text, r#" data-key="-Infinity""#),
            key => write!(text, r#" data-key="{key}""#),
        };
    }
    if !cell.title.is_empty() {
        let _ = write!(text, r#" title="{}""#, cell.title);
    }
    if let Some(bar) = cell.bar {
        let _ = write!(text, r#" style="--share:{bar:.3}""#);
    }
    let html = if cell.html.is_empty() { "–" } else { &cell.html };
    let _ = write!(text, ">{html}</{tag}>");
}

pub(super) fn ratio((part, whole): (u64, u64)) -> f64 {
    part as f64 / whole as f64
}
