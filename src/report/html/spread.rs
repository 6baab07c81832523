//! Draws the exponents of a tensor before and after, as bars one above the other.

use super::Report;
use super::words::{name, with_thousands};
use crate::dtype::{Class, Dtype, FloatEdges};
use crate::measure::distribution::Histogram;
use crate::text::power;
use std::fmt::Write as _;

/// Number of bars that fit side by side on a phone.
const BINS: i32 = 40;
/// Number of numbers that may always share a bar with all beyond them, however many others there are.
const FEW: u64 = 2;
/// Maximum number of labels below the bars.
const LABELS: usize = 7;

/// Exponents of a tensor before and after.
pub struct ExponentSpread {
    /// The tensor's name in the output.
    pub name: String,
    /// The exponents of the input's values.
    pub before: Histogram,
    /// The exponents of the output's values.
    pub after: Histogram,
}

/// Exponents that share a bar, both ends included.
struct SpreadBar {
    low: i32,
    high: i32,
    before: u64,
    after: u64,
}

/// Returns the section of all spreads; empty if there are none.
pub(super) fn spreads(report: &Report, spreads: &[ExponentSpread]) -> String {
    if spreads.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        r#"<section>
<h2>Exponents before and after</h2>
<p class="key"><span class="before">before</span> <span class="after">after</span> Numbers by their binary exponent;
zeros, infinities and NaN have none. For floats, the line below the bars says how the type after holds such numbers.</p>
<div class="spreads">
"#,
    );
    for (at, spread) in spreads.iter().enumerate() {
        let to = report.tensors().find(|tensor| *tensor.name == *spread.name).map(|tensor| tensor.to);
        let _ = write!(text, "<figure id=\"spread-{at}\">\n<figcaption>{}", title(spread, to));
        text.push_str("</figcaption>\n");
        let reach = to.and_then(DtypeRange::of);
        match bins(spread, reach.as_ref()) {
            bins if bins.is_empty() => text.push_str("<p>There are no finite numbers but zero.</p>\n"),
            bins => draw(&mut text, &bins, reach.as_ref()),
        }
        text.push_str("</figure>\n");
    }
    text.push_str("</div>\n</section>\n");
    text
}

fn title(spread: &ExponentSpread, to: Option<Dtype>) -> String {
    let name = name(&spread.name);
    let to = to.map(|to| format!(" as {to}")).unwrap_or_default();
    let [before, after] = [&spread.before, &spread.after].map(|histogram| with_thousands(histogram.total()));
    format!(r#"<span class="name">{name}</span><small>{before} numbers before, {after} after{to}</small>"#)
}

/// Returns bars of equal width, from the smallest exponents to the largest. If there are too many exponents for a bar
/// each, the first and the last bar take the thin tails: at most one number in a thousand, so that an outlier does not
/// squeeze the others.
fn bins(spread: &ExponentSpread, reach: Option<&DtypeRange>) -> Vec<SpreadBar> {
    let both: Histogram = spread.before.iter().chain(spread.after.iter()).collect();
    let Some(((lowest, _), (highest, _))) = both.iter().next().zip(both.iter().next_back()) else { return Vec::new() };
    let few = if highest - lowest < BINS { 0 } else { FEW.max(both.total() / 1000).min(both.total() / 8) };
    let low = (lowest..=highest).take_while(|low| both.within(lowest..*low + 1) <= few).last().unwrap_or(lowest);
    let high =
        (low..=highest).rev().take_while(|high| both.within(*high..highest + 1) <= few).last().unwrap_or(highest);
    let count = |step: i32| high.div_euclid(step) - low.div_euclid(step) + 1;
    let step = (1..=high - low + 1).find(|step| count(*step) <= BINS).unwrap_or(1);
    let mut bounds = Vec::new();
    for at in 0..count(step) {
        let start = (low.div_euclid(step) + at) * step;
        let from = if start <= low { lowest } else { start };
        let to = if start + step > high { highest } else { start + step - 1 };
        bounds.push(from);
        // A tail has one bar for each way in which the type represents its numbers.
        let edges = reach.iter().flat_map(|DtypeRange(_, edges)| [edges.subnormal, edges.normal, edges.beyond]);
        bounds.extend(edges.filter(|edge| to - from >= step && from < *edge && *edge <= to));
    }
    bounds.push(highest + 1);
    let bin = |bounds: &[i32]| {
        let within = |histogram: &Histogram| histogram.within(bounds[0]..bounds[1]);
        SpreadBar { low: bounds[0], high: bounds[1] - 1, before: within(&spread.before), after: within(&spread.after) }
    };
    bounds.windows(2).map(bin).collect()
}

/// A type, and the exponents at which its kinds of numbers begin.
struct DtypeRange(Dtype, FloatEdges);

impl DtypeRange {
    fn of(dtype: Dtype) -> Option<Self> {
        if let Class::Float(format) = dtype.class() { Some(Self(dtype, format.edges())) } else { None }
    }

    /// Returns a word for the kind of numbers in a bar, and its meaning.
    fn kind(&self, bin: &SpreadBar) -> (&'static str, String) {
        let Self(dtype, FloatEdges { subnormal, normal, beyond }) = *self;
        match bin {
            _ if bin.high < subnormal => {
                ("zero", format!("too small for {dtype}: its smallest is {}", power(subnormal + 1)))
            }
            _ if bin.high < normal => ("subnormal", format!("fewer digits in {dtype}: below {}", power(normal))),
            _ if bin.low < beyond => ("normal", format!("all digits of {dtype}")),
            _ => ("beyond", format!("too large for {dtype}: its numbers are below {}", power(beyond))),
        }
    }
}

fn draw(text: &mut String, bins: &[SpreadBar], reach: Option<&DtypeRange>) {
    let most = bins.iter().map(|bin| bin.before.max(bin.after)).max().unwrap_or(1) as f64;
    let height = |count: u64| count as f64 / most * 100.0;
    text.push_str("<div class=\"bars\" aria-hidden=\"true\">");
    for bin in bins {
        let SpreadBar { before, after, .. } = *bin;
        let (range, shown) = (bin.range(), [before, after].map(with_thousands));
        let _ = write!(text, r#"<div title="{range}: {} before, {} after">"#, shown[0], shown[1]);
        for (tag, count) in [("i", before), ("b", after)] {
            if count > 0 {
                let _ = write!(text, r#"<{tag} style="height:{:.1}%"></{tag}>"#, height(count));
            }
        }
        text.push_str("</div>");
    }
    text.push_str("</div>\n");
    match reach {
        Some(reach) => draw_reach(text, bins, reach),
        None => draw_labels(text, bins),
    }
    text.push_str("<details><summary>As numbers</summary>\n<table><thead><tr><th scope=\"col\">exponent</th><th scope=\"col\">before</th><th scope=\"col\">after</th></tr></thead>\n<tbody>\n");
    for bin in bins {
        let (before, after) = (with_thousands(bin.before), with_thousands(bin.after));
        let _ = writeln!(text, "<tr><th scope=\"row\">{}</th><td>{before}</td><td>{after}</td></tr>", bin.range());
    }
    text.push_str("</tbody></table>\n</details>\n");
}

/// Draws the kinds of such numbers in the type below the bars: a line with the bars' labels, and a legend.
fn draw_reach(text: &mut String, bins: &[SpreadBar], reach: &DtypeRange) {
    let kind = |bin: &SpreadBar| reach.kind(bin);
    let (mut line, mut kinds) = (String::new(), String::new());
    for group in bins.chunk_by(|a, b| kind(a).0 == kind(b).0) {
        let ((class, what), wide) = (kind(&group[0]), group.len());
        let _ = write!(line, r#"<span class="{class}" style="flex:{wide}" title="{what}"></span>"#);
        let _ = write!(kinds, r#"<li class="{class}"><b>{class}</b> {what}</li>"#);
    }
    let _ = writeln!(text, "<div class=\"reach\" aria-hidden=\"true\">{line}</div>");
    draw_labels(text, bins);
    let _ = writeln!(text, "<ul class=\"kinds\">{kinds}</ul>");
}

fn draw_labels(text: &mut String, bins: &[SpreadBar]) {
    text.push_str("<div class=\"labels\" aria-hidden=\"true\">");
    let wide = |bin: &SpreadBar| bin.high - bin.low;
    let middle = &bins[bins.len() / 2];
    let last = bins.len() - 1;
    let is_tail = |at: usize| wide(&bins[at]) > wide(middle) && at != bins.len() / 2;
    let step = bins.len().div_ceil(LABELS);
    for at in (0..bins.len()).step_by(step) {
        let flex = step.min(bins.len() - at);
        // The last tail has its label below it, at the right edge; the one before makes space.
        let is_last = at + step > last && is_tail(last);
        let label = match &bins[at] {
            _ if is_last => format!("≥2<sup>{}</sup>", bins[last].low),
            bin if at == 0 && is_tail(0) => format!("≤2<sup>{}</sup>", bin.high),
            bin => format!("2<sup>{}</sup>", bin.low),
        };
        let class = if is_last { " class=\"last\"" } else { "" };
        let _ = write!(text, r#"<span{class} style="flex:{flex}">{label}</span>"#);
    }
    text.push_str("</div>\n");
}

impl SpreadBar {
    fn range(&self) -> String {
        if self.low == self.high { power(self.low) } else { format!("{} to {}", power(self.low), power(self.high)) }
    }
}
