//! A cell of a table.

use super::map::ends;
use super::words::{bytes, percent, significant, with_thousands};
use std::fmt::Write as _;

/// A cell, which the page's style shows as a dash if it is empty, and which then comes last in every order.
#[derive(Default)]
pub(super) struct Cell {
    pub(super) html: String,
    /// The tooltip.
    title: String,
    /// The number to sort by.
    pub(super) key: Option<f64>,
    /// Length of its bar, from 0 to 1.
    pub(super) bar: Option<f64>,
    /// True if a long bar is a large loss.
    is_loss: bool,
}

/// The bars of ratios in decibels. They begin at a floor below the lowest ratio: ratios of the same model are so close
/// to each other that bars from 0 would all look full. An outlier has a full bar, as others have.
#[derive(Clone, Copy)]
pub(super) struct DecibelBars {
    floor: f64,
    full: f64,
}

/// Minimum difference between an empty and a full bar, so that small differences look small: 6 dB are one bit.
const LEAST_RANGE: f64 = 6.0;

impl DecibelBars {
    /// Creates the bars for these ratios; `None` if none is finite.
    pub(super) fn of(ratios: impl Iterator<Item = f64>) -> Option<Self> {
        let ([lowest, full], _) = ends(ratios);
        (lowest <= full).then(|| Self { floor: (lowest - 1.0).min(full - LEAST_RANGE).floor(), full })
    }

    /// Returns the part of a full bar. A ratio without noise has a full one.
    pub(super) fn part(&self, ratio: f64) -> f64 {
        ((ratio - self.floor) / (self.full - self.floor)).clamp(0.0, 1.0)
    }

    /// Describes the ends of the bars.
    pub(super) fn note(bars: Option<&Self>) -> String {
        bars.map_or_else(|| "dB".to_owned(), |Self { floor, full }| format!("dB; bar: {floor} to {full:.2}"))
    }
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

    /// Makes a cell with a ratio of signal to noise.
    pub(super) fn decibels(decibels: f64, bars: Option<&DecibelBars>) -> Self {
        let text = if decibels.is_finite() { format!("{decibels:.2}") } else { significant(decibels, 4) };
        Self::number(text, decibels).with_bar(bars.map_or(1.0, |bars| bars.part(decibels)))
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

    /// Adds the bar of a loss, which is visible unless it is 0.
    pub(super) fn with_loss(self, bar: f64) -> Self {
        Self { is_loss: true, ..self.with_bar(if bar > 0.0 { bar.max(0.02) } else { 0.0 }) }
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
    } else if cell.is_loss {
        text.push_str(r#" class="loss""#);
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
    let _ = write!(text, ">{}</{tag}>", cell.html);
}

pub(super) fn ratio((part, whole): (u64, u64)) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_close_ratios_differ() {
        let bars = DecibelBars::of([31.5, 24.25, 20.5, f64::INFINITY, f64::NEG_INFINITY].into_iter()).unwrap();
        let parts = [31.5, 24.25, 20.5, f64::INFINITY, f64::NEG_INFINITY].map(|ratio| (bars.part(ratio) * 100.0) as u8);
        assert_eq!(parts, [100, 42, 12, 100, 0]);
        assert_eq!(DecibelBars::note(Some(&bars)), "dB; bar: 19 to 31.50");
    }

    #[test]
    fn a_small_difference_looks_small() {
        let bars = DecibelBars::of([40.0, 40.5].into_iter()).unwrap();
        assert_eq!((DecibelBars::note(Some(&bars)), bars.part(40.5)), ("dB; bar: 34 to 40.50".to_owned(), 1.0));
        assert!(bars.part(40.0) > 0.9);
        assert!(DecibelBars::of([f64::INFINITY, f64::NAN].into_iter()).is_none());
        assert_eq!(DecibelBars::note(None), "dB");
    }
}
