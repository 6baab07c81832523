//! How the exponents of a tensor were spread before and after, as bars one above the other.

use super::Report;
use super::words::{broken, counted};
use crate::dtype::{Class, Dtype};
use crate::stats::Histogram;
use std::fmt::Write as _;

/// Bars that fit beside each other on a phone.
const BINS: i32 = 40;
/// Labels below the bars, at the most.
const LABELS: usize = 7;

/// How the exponents of a tensor were spread before and after.
pub struct Spread {
    /// The tensor's name in the output.
    pub name: String,
    /// Of the input's values.
    pub before: Histogram,
    /// Of the output's.
    pub after: Histogram,
}

/// Exponents that share a bar, both ends included.
struct Bin {
    low: i32,
    high: i32,
    before: u64,
    after: u64,
}

/// The section of all spreads; none where there are none.
pub(super) fn spreads(report: &Report, spreads: &[Spread]) -> String {
    if spreads.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        r#"<section>
<h2>Exponents before and after</h2>
<p class="key"><span class="before">before</span> <span class="after">after</span> Numbers by their binary exponent;
zeros, infinities and NaN have none. Below the bars: what the type after has for such numbers.</p>
<div class="spreads">
"#,
    );
    for (at, spread) in spreads.iter().enumerate() {
        let to = report.tensors().find(|tensor| tensor.name == spread.name).map(|tensor| tensor.to);
        let _ = write!(text, "<figure id=\"spread-{at}\">\n<figcaption>{}", title(spread, to));
        text.push_str("</figcaption>\n");
        match bins(spread) {
            bins if bins.is_empty() => text.push_str("<p>There are no finite numbers but zero.</p>\n"),
            bins => draw(&mut text, &bins, to),
        }
        text.push_str("</figure>\n");
    }
    text.push_str("</div>\n</section>\n");
    text
}

fn title(spread: &Spread, to: Option<Dtype>) -> String {
    let name = if spread.name.is_empty() { "<i>unnamed</i>".to_owned() } else { broken(&spread.name) };
    let to = to.map(|to| format!(" as {to}")).unwrap_or_default();
    let [before, after] = [&spread.before, &spread.after].map(|histogram| counted(histogram.total()));
    format!(r#"<span class="name">{name}</span><small>{before} numbers before, {after} after{to}</small>"#)
}

/// From the smallest exponents to the largest, of equal width but for the first, which takes the thin tail.
fn bins(spread: &Spread) -> Vec<Bin> {
    let both: Histogram = spread.before.iter().chain(spread.after.iter()).collect();
    let Some(((lowest, _), (high, _))) = both.iter().next().zip(both.iter().next_back()) else { return Vec::new() };
    // One number in a thousand at the most is put into the first bin for being small.
    let thin = |exponent: &i32| both.within(lowest..*exponent + 1) <= both.total() / 1000;
    let low = (lowest..=high).take_while(thin).last().unwrap_or(lowest);
    let count = |step: i32| high.div_euclid(step) - low.div_euclid(step) + 1;
    let step = (1..=high - low + 1).find(|step| count(*step) <= BINS).unwrap_or(1);
    let starts = (0..count(step)).map(|bin| (low.div_euclid(step) + bin) * step);
    let bin = |start: i32| {
        let (from, to) = (if start <= low { lowest } else { start }, high.min(start + step - 1));
        let within = |histogram: &Histogram| histogram.within(from..to + 1);
        Bin { low: from, high: to, before: within(&spread.before), after: within(&spread.after) }
    };
    starts.map(bin).collect()
}

fn draw(text: &mut String, bins: &[Bin], to: Option<Dtype>) {
    let most = bins.iter().map(|bin| bin.before.max(bin.after)).max().unwrap_or(1) as f64;
    let height = |count: u64| count as f64 / most * 100.0;
    text.push_str("<div class=\"bars\" aria-hidden=\"true\">");
    for bin in bins {
        let Bin { before, after, .. } = *bin;
        let (range, shown) = (bin.range(), [before, after].map(counted));
        let _ = write!(text, r#"<div title="{range}: {} before, {} after">"#, shown[0], shown[1]);
        for (tag, count) in [("i", before), ("b", after)] {
            if count > 0 {
                let _ = write!(text, r#"<{tag} style="height:{:.1}%"></{tag}>"#, height(count));
            }
        }
        text.push_str("</div>");
    }
    text.push_str("</div>\n");
    if let Some(to) = to {
        draw_reach(text, bins, to);
    }
    draw_labels(text, bins);
    text.push_str("<details><summary>As numbers</summary>\n<table><thead><tr><th scope=\"col\">exponent</th><th scope=\"col\">before</th><th scope=\"col\">after</th></tr></thead>\n<tbody>\n");
    for bin in bins {
        let (before, after) = (counted(bin.before), counted(bin.after));
        let _ = writeln!(text, "<tr><th scope=\"row\">{}</th><td>{before}</td><td>{after}</td></tr>", bin.range());
    }
    text.push_str("</tbody></table>\n</details>\n");
}

/// Below the bars, what a float type has for such numbers.
fn draw_reach(text: &mut String, bins: &[Bin], dtype: Dtype) {
    let Class::Float(format) = dtype.class() else { return };
    let (smallest, normal) = (format.min_subnormal_exponent(), format.min_normal_exponent());
    let highest = (format.max_finite() >> format.mantissa_bits) as i32 - format.bias;
    // What is above half of the smallest number still comes to it.
    let kind = |bin: &Bin| match bin {
        _ if bin.high < smallest - 1 => {
            ("zero", format!("too small for {dtype}, whose smallest is {}", power(smallest)))
        }
        _ if bin.high < normal => ("subnormal", format!("fewer digits in {dtype}, below {}", power(normal))),
        _ if bin.low <= highest => ("normal", format!("all digits of {dtype}")),
        _ => ("beyond", format!("too large for {dtype}, whose largest is below {}", power(highest + 1))),
    };
    text.push_str("<div class=\"reach\">");
    for group in bins.chunk_by(|a, b| kind(a).0 == kind(b).0) {
        let ((class, what), wide) = (kind(&group[0]), group.len());
        let _ = write!(text, r#"<span class="{class}" style="flex:{wide}" title="{what}">{class}</span>"#);
    }
    text.push_str("</div>\n");
}

fn draw_labels(text: &mut String, bins: &[Bin]) {
    text.push_str("<div class=\"labels\" aria-hidden=\"true\">");
    for group in bins.chunks(bins.len().div_ceil(LABELS)) {
        let (first, wide) = (&group[0], group.len());
        let is_tail =
            bins.get(1).is_some_and(|next| first.high < next.low && first.high - first.low > next.high - next.low);
        let label =
            if is_tail { format!("≤2<sup>{}</sup>", first.high) } else { format!("2<sup>{}</sup>", first.low) };
        let _ = write!(text, r#"<span style="flex:{wide}">{label}</span>"#);
    }
    text.push_str("</div>\n");
}

impl Bin {
    fn range(&self) -> String {
        if self.low == self.high { power(self.low) } else { format!("{} to {}", power(self.low), power(self.high)) }
    }
}

fn power(exponent: i32) -> String {
    format!("2^{exponent}")
}
