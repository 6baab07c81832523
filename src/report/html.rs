//! The report as a page: one file that opens anywhere, loads nothing from the network, and prints.
//!
//! All content is HTML written here; the script only draws, sorts and finds rows. Names come from untrusted files, so
//! they are escaped everywhere, and never appear in the script or the style. `page.html` is the template; its policy
//! lets a browser load nothing, and run only the page's own code.

mod cell;
mod comparison;
mod diff;
mod map;
mod spread;
mod table;
mod tensors;
mod words;

pub(crate) use comparison::comparison_page;
pub(crate) use diff::diff_page;
pub use spread::ExponentSpread;

use super::summary::specials;
use super::{Report, TensorReport};
use crate::kernel::Loss;
use crate::operator::Operator;
use crate::text::{path_text, shorten};
use serde_json::Value;
use std::fmt::Write as _;
use words::{escape, percent, with_thousands};

/// Meaning of the figures of a conversion.
const LEGEND: &str = include_str!("html/legend.html");

/// Returns the report as one self-contained HTML page. The tensors of `spreads` are drawn below the table, in their
/// order; unknown values are shown as a dash. Equal reports make equal pages.
#[must_use]
pub fn page(report: &Report, spreads: &[ExponentSpread]) -> String {
    let title = report.output.file_name().unwrap_or(report.output.as_os_str());
    let main = [
        lost(report),
        tensors::weight_map(&[("", report)], true),
        tensors::tables(report, spreads),
        spread::spreads(report, spreads),
    ];
    filled(&format!("{}: {}", report.operator, path_text(title)), &head(report), &main.concat(), LEGEND)
}

/// Fills the template of a page: its title as text, all else as HTML.
fn filled(title: &str, header: &str, main: &str, legend: &str) -> String {
    let mut page = String::new();
    for part in include_str!("page.html").split("{{") {
        let Some((name, rest)) = part.split_once("}}") else {
            page.push_str(part);
            continue;
        };
        match name {
            "title" => page += &escape(title),
            "style" => {
                page += concat!(include_str!("page.css"), include_str!("html/map.css"));
                page += &table::title_rules();
            }
            "header" => page += header,
            "main" => page += main,
            "legend" => page += legend,
            "version" => page += env!("CARGO_PKG_VERSION"),
            "script" => page += concat!(include_str!("page.js"), include_str!("html/map.js")),
            _ => unreachable!("the template has no other fields"),
        }
        page.push_str(rest);
    }
    page
}

/// Returns the header: the action, the paths, and the totals.
fn head(report: &Report) -> String {
    let (all, converted) = (report.tensors().count(), report.converted().count());
    let [size_in, size_out] = [report.bytes_in, report.bytes_out()].map(words::bytes);
    let mut text = format!("<header>\n<h1>{}", escape(&report.action()));
    let [input, output] = [&report.input, &report.output].map(|path| escape(&path_text(path)));
    let _ = writeln!(
        text,
        r#"</h1>
<p class="path"><span>{input}</span> <span class="to"><i aria-label="to">→</i> {output}</span></p>
<dl class="tiles">"#
    );
    let mut tile = |name: &str, value: &str, note: &str| tile(&mut text, name, value, note);
    let part = report.bytes_out() as f64 / report.bytes_in.max(1) as f64 * 100.0;
    tile("Size", &format!("{size_in} → {size_out}"), &format!("{part:.1}% of what it was"));
    match report.time {
        None => tile("Time", "dry run", "nothing was written"),
        Some(elapsed) => {
            let note = match report.before {
                _ if !report.is_published => "no output was written".to_owned(),
                0 => format!("{}/s", words::bytes(report.bytes_per_second(elapsed))),
                before => format!("{} there before", crate::text::counted(before as u64, "shard")),
            };
            tile("Time", &format!("{:.2} s", elapsed.as_secs_f64()), &note);
        }
    }
    let shards = match report.files.len() {
        0 | 1 => String::new(),
        shards => format!(", in {shards} shards"),
    };
    tile(
        "Tensors",
        &format!("{} converted", with_thousands(converted as u64)),
        &match all - converted {
            0 => format!("none copied{shards}"),
            copied => format!("{} copied{shards}", with_thousands(copied as u64)),
        },
    );
    if let Some((tensor, decibels)) = worst(report) {
        let name = format!(r#"<span class="name">{}</span>"#, words::name(&tensor.name));
        tile("Lowest SQNR", &format!("{decibels:.2} dB"), &name);
    }
    if let Some(totals) = report.delta_totals() {
        let snr = totals.delta_snr.map(|snr| format!("delta SNR {snr:.1} dB")).unwrap_or_default();
        tile("Kept of the delta", &format!("{:.2}", totals.kept), &snr);
    }
    text.push_str("</dl>\n");
    text.push_str(&options(report));
    text.push_str("</header>\n");
    text
}

/// Writes a figure of the header.
fn tile(text: &mut String, name: &str, value: &str, note: &str) {
    let note = if note.is_empty() { String::new() } else { format!("<small>{note}</small>") };
    let _ = writeln!(text, "<div><dt>{name}</dt><dd>{value}{note}</dd></div>");
}

fn worst(report: &Report) -> Option<(&TensorReport, f64)> {
    let sqnr = |tensor: &TensorReport| match tensor.quantized_accuracy() {
        Some(accuracy) => accuracy.sqnr_db,
        None => tensor.accuracy.as_ref()?.sqnr_db,
    };
    noisiest(report.tensors().filter_map(|tensor| Some((tensor, sqnr(tensor)?))))
}

/// Returns the tensor with the lowest ratio of signal to noise, of those that have some of both.
fn noisiest<T>(ratios: impl Iterator<Item = (T, f64)>) -> Option<(T, f64)> {
    ratios.filter(|(_, decibels)| decibels.is_finite()).min_by(|(_, a), (_, b)| a.total_cmp(b))
}

fn options(report: &Report) -> String {
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(", "),
        Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), with_thousands),
        other => other.to_string(),
    };
    let given = report.options.given(&report.operator);
    option_list(given.map(|(name, value)| (name.replace('_', " "), shorten(&shown(value)))))
}

/// Returns the list of options in a header, given their names and values as text; empty if there are none.
fn option_list(options: impl Iterator<Item = (String, String)>) -> String {
    let row =
        |(name, value): (String, String)| format!("<div><dt>{}</dt> <dd>{}</dd></div>", escape(&name), escape(&value));
    let rows: String = options.map(row).collect();
    if rows.is_empty() { rows } else { format!("<dl class=\"options\">{rows}</dl>\n") }
}

/// Describes the losses in all tensors.
fn lost(report: &Report) -> String {
    if report.operator == Operator::BitCast.name() || report.tensors().all(|tensor| tensor.counts.is_none()) {
        return String::new();
    }
    if report.is_quantized() {
        return quantized(report);
    }
    let total = report.total();
    let is_counted = |tensor: &&TensorReport| tensor.counts.is_some() && (tensor.is_converted || tensor.has_new_type());
    let values = report.tensors().filter(is_counted).map(TensorReport::elements).sum();
    let mut text = String::from("<section>\n<h2>What was lost</h2>\n");
    if total.is_lossless() {
        if let Some(outcome) = report.lossless_outcome(&total) {
            let _ = writeln!(text, "<p>{}.</p>", words::capitalized(outcome));
        }
    } else {
        let _ = writeln!(text, "<p>Of {} values that were converted</p>\n<ul class=\"lost\">", with_thousands(values));
        let mut item = |class: &str, count: u64, what: &str| {
            let percent = percent(count, values);
            let count = with_thousands(count);
            let _ = writeln!(text, "<li{class}><b>{percent}</b> {what} <small>{count}</small></li>");
        };
        // The shares are parts of a whole: each value is in one of them.
        let losses = Loss::ALL.into_iter().filter(|loss| *loss != Loss::Inexact);
        let mut rest = values;
        for loss in losses.filter(|loss| total[*loss] > 0) {
            item("", total[loss], loss.describe());
            rest = rest.saturating_sub(total[loss]);
        }
        let mild = r#" class="mild""#;
        if report.counts_all_inexact() {
            let rounded = tensors::rounded(&total);
            item(mild, rounded, "only rounded");
            item(mild, rest.saturating_sub(rounded), "unchanged");
        } else {
            item(mild, rest, "not lost, perhaps rounded");
        }
        text.push_str("</ul>\n");
    }
    if total.input_nan + total.input_infinite > 0 {
        let _ = writeln!(text, "<p>The input already had {}.</p>", specials(&total, with_thousands));
    }
    text.push_str("</section>\n");
    text
}

/// Describes the losses in quantized weights, with the lines of the summary.
fn quantized(report: &Report) -> String {
    let lines = [report.requantized(), report.quantized_values()].concat();
    let mut items = String::new();
    for (_, line) in report.losses() {
        let _ = writeln!(items, "<li>{}</li>", escape(&line));
    }
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let _ = writeln!(items, "<li>{}</li>", escape(line.trim()));
    }
    format!("<section>\n<h2>Losses</h2>\n<ul class=\"lost\">\n{items}</ul>\n</section>\n")
}
