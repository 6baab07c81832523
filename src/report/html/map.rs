//! A map of a model: kinds of modules down, layers across, and the colour of a weight is its figure.
//!
//! The map is a table with a figure in each cell, so a screen reader reads it, and it prints without the script. The script
//! `map.js` switches the measure and the series, and shows the weight below the pointer. All numbers, texts and levels of
//! colour come from here; the script only chooses between them.

mod place;
mod scale;

use super::words::{broken, escape};
use crate::text::shorten;
use place::{MapLayout, Stack};
use scale::{ColourScale, Level};
use serde_json::json;
use std::collections::HashMap;
use std::fmt::Write as _;

pub(super) use scale::{Measure, Unit};

/// Maximum number of layers whose cells are wide enough for their figures.
const FEW: usize = 16;

/// A weight on the map.
pub(super) struct MapWeight<'a> {
    pub(super) name: &'a str,
    /// The place of its row in the page's table, if it has one.
    pub(super) row: Option<usize>,
    /// A figure for each measure. No loss is infinity in decibels, and 0 in other units.
    pub(super) figures: Vec<Option<f64>>,
    /// The reason why it has no figures: `kept`.
    pub(super) note: String,
}

/// Figures of the weights of a model, such as those of one quantization scheme. Several series share a map, with a switch.
pub(super) struct MapSeries<'a> {
    pub(super) name: &'a str,
    pub(super) weights: Vec<MapWeight<'a>>,
}

/// Words of the legend for what has no colour.
#[derive(Clone, Copy)]
pub(super) struct MapWords {
    /// For a figure without loss: `no loss`.
    pub(super) lossless: &'static str,
    /// For a weight without figures: `kept`.
    pub(super) unmeasured: &'static str,
}

/// A weight with its entry in each series.
type Entries<'a> = Vec<Option<&'a MapWeight<'a>>>;

/// A map that is being written.
struct Map<'a> {
    words: MapWords,
    scales: Vec<ColourScale>,
    weights: Vec<(&'a str, Entries<'a>)>,
}

/// Returns the section with the map. The first measure and the first series are shown first. The colours of a measure have
/// the same meaning in all series. Empty if no figure shows a loss.
pub(super) fn map(measures: &[Measure], series: &[MapSeries], words: MapWords) -> String {
    let scale = |(at, measure): (usize, &Measure)| {
        let figures = series.iter().flat_map(|series| &series.weights).filter_map(|weight| weight.figures[at]);
        ColourScale::new(*measure, at, figures)
    };
    // A measure that shows no loss would make a map of one colour.
    let scales: Vec<ColourScale> = measures.iter().enumerate().map(scale).filter(ColourScale::shows_loss).collect();
    if scales.is_empty() {
        return String::new();
    }
    let map = Map { words, scales, weights: by_name(series) };
    let names: Vec<&str> = series.iter().map(|series| series.name).collect();
    let mut text = format!(
        r#"<section class="map" data-measures="{}" data-series="{}">
<h2 id="map">Map</h2>
"#,
        escape(&json!(map.scales.iter().map(ColourScale::json).collect::<Vec<_>>()).to_string()),
        escape(&json!(names).to_string()),
    );
    map.write_legend(&mut text);
    text.push_str("<div class=\"box\" tabindex=\"0\" role=\"region\" aria-labelledby=\"map\">\n");
    let layout = MapLayout::of(map.weights.iter().map(|(name, _)| *name));
    for stack in &layout.stacks {
        map.write_stack(&mut text, stack);
    }
    map.write_others(&mut text, &layout.others, !layout.stacks.is_empty());
    text.push_str("</div>\n</section>\n");
    text
}

/// Matches the weights of all series by name, in the order in which they first occur.
fn by_name<'a>(series: &'a [MapSeries]) -> Vec<(&'a str, Entries<'a>)> {
    let mut weights: Vec<(&str, Entries)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (at, MapSeries { weights: of_series, .. }) in series.iter().enumerate() {
        for weight in of_series {
            let place = *places.entry(weight.name).or_insert_with(|| {
                weights.push((weight.name, vec![None; series.len()]));
                weights.len() - 1
            });
            weights[place].1[at] = Some(weight);
        }
    }
    weights
}

impl Map<'_> {
    fn write_legend(&self, text: &mut String) {
        let scale = &self.scales[0];
        let _ = write!(
            text,
            "<p class=\"legend\"><b>{}</b> <span class=\"bar\"><span class=\"scale\" aria-hidden=\"true\">",
            scale.title()
        );
        for level in Level::all() {
            let _ = write!(text, r#"<i class="{}"></i>"#, level.class());
        }
        text.push_str("</span> <span class=\"ticks\">");
        for tick in scale.ticks() {
            let _ = write!(text, "<span>{tick}</span>");
        }
        text.push_str("</span></span>");
        for (level, meaning) in [(Level::LOSSLESS, self.words.lossless), (Level::NONE, self.words.unmeasured)] {
            let _ = write!(text, r#" <span class="key"><i class="{}"></i>{meaning}</span>"#, level.class());
        }
        text.push_str("</p>\n");
    }

    /// Writes the table of a stack of layers.
    fn write_stack(&self, text: &mut String, stack: &Stack) {
        let layers = stack.layers.len();
        open_table(text, layers, &stack.name);
        let step = layers.div_ceil(20).next_multiple_of(if layers > 40 { 10 } else { 1 });
        text.push_str("<thead><tr><td></td>");
        for (at, layer) in stack.layers.iter().enumerate() {
            // Other numbers find no room, and are there for screen readers.
            let class = if at.is_multiple_of(step) { r#" class="tick""# } else { "" };
            let _ = write!(text, r#"<th scope="col"{class}>{layer}</th>"#);
        }
        text.push_str("</tr></thead>\n<tbody>\n");
        for (kind, cells) in &stack.kinds {
            let _ = write!(text, r#"<tr><th scope="row">{}</th>"#, broken(kind));
            for weights in cells {
                if weights.is_empty() {
                    text.push_str("<td></td>");
                } else {
                    self.write_cell(text, weights);
                }
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</tbody></table>\n");
    }

    /// Writes the table of weights that are in no layer, a row for each block.
    fn write_others(&self, text: &mut String, blocks: &[(String, Vec<usize>)], has_stacks: bool) {
        let Some(widest) = blocks.iter().map(|(_, weights)| weights.len()).max() else { return };
        open_table(text, widest, if has_stacks { "outside of the layers" } else { "weights by block" });
        text.push_str("<tbody>\n");
        for (block, weights) in blocks {
            let _ = write!(text, r#"<tr><th scope="row">{}</th>"#, broken(block));
            for at in weights {
                self.write_cell(text, &[*at]);
            }
            if weights.len() < widest {
                let _ = write!(text, r#"<td colspan="{}"></td>"#, widest - weights.len());
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</tbody></table>\n");
    }

    /// Writes the cell of some weights, which shows the worst. Its attributes contain what the script needs: names, rows of
    /// the table, and for each weight the figures of all series.
    fn write_cell(&self, text: &mut String, weights: &[usize]) {
        let weights: Vec<_> = weights.iter().map(|at| &self.weights[*at]).collect();
        let scale = &self.scales[0];
        let figures = weights.iter().filter_map(|(_, entries)| scale.figure_of(entries[0]?));
        let worst = figures.min_by(|a, b| scale.rank(*a).total_cmp(&scale.rank(*b)));
        let shown = worst.map_or_else(|| "–".to_owned(), |worst| scale.text(worst));
        let row = |entries: &Entries| entries.iter().flatten().find_map(|weight| weight.row);
        let _ = write!(
            text,
            r#"<td class="{}" data-v="{}" data-names="{}" data-rows="{}">{shown}</td>"#,
            worst.map_or(Level::NONE, |worst| scale.level(worst)).class(),
            escape(&joined(weights.iter().map(|(_, entries)| self.figures(entries)), "\n")),
            escape(&joined(weights.iter().map(|(name, _)| shorten(name)), "\n")),
            joined(weights.iter().map(|(_, entries)| row(entries).map(|row| row.to_string()).unwrap_or_default()), " "),
        );
    }

    /// Returns the figures of a weight in all series, each after the letter of its level; without any, the reason.
    fn figures(&self, entries: &Entries) -> String {
        let figure = |scale: &ColourScale, weight: &MapWeight| match scale.figure_of(weight) {
            None => Level::NONE.class().to_string(),
            Some(figure) => format!("{}{}", scale.level(figure).class(), scale.text(figure)),
        };
        let of_series = |entry: Option<&MapWeight>| match entry {
            None => String::new(),
            Some(weight) if weight.figures.iter().all(Option::is_none) => {
                format!("{}{}", Level::NONE.class(), weight.note.replace(['|', ',', '\n'], " "))
            }
            Some(weight) => joined(self.scales.iter().map(|scale| figure(scale, weight)), ","),
        };
        joined(entries.iter().copied().map(of_series), "|")
    }
}

fn open_table(text: &mut String, columns: usize, caption: &str) {
    let class = if columns <= FEW { r#" class="few""# } else { "" };
    let _ = write!(text, "<table{class} style=\"--columns:{columns}\">\n<caption>{}</caption>\n", broken(caption));
}

fn joined(words: impl Iterator<Item = String>, separator: &str) -> String {
    words.collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series<'a>(name: &'a str, weights: &[(&'a str, f64)]) -> MapSeries<'a> {
        let weight = |(name, decibels): &(&'a str, f64)| MapWeight {
            name,
            row: Some(7),
            figures: vec![Some(*decibels).filter(|decibels| !decibels.is_nan())],
            note: "kept: head".to_owned(),
        };
        MapSeries { name, weights: weights.iter().map(weight).collect() }
    }

    fn drawn(series: &[MapSeries]) -> String {
        let words = MapWords { lossless: "no loss", unmeasured: "kept" };
        map(&[Measure { title: "SQNR", unit: Unit::Decibels }], series, words)
    }

    #[test]
    fn series_share_a_scale_and_weights_are_matched_by_name() {
        let [first, second] = [[("l.0.a", 10.0), ("l.1.a", 18.0)], [("l.1.a", 42.0), ("l.2.a", f64::NAN)]];
        let text = drawn(&[series("int4", &first), series("<fp8>", &second)]);
        assert!(text.contains("data-series=\"[&quot;int4&quot;,&quot;&lt;fp8&gt;&quot;]\""), "{text}");
        for cell in [
            r#"<td class="a" data-v="a10.00|" data-names="l.0.a" data-rows="7">10.00</td>"#,
            r#"<td class="e" data-v="e18.00|p42.00" data-names="l.1.a" data-rows="7">18.00</td>"#,
            r#"<td class="z" data-v="|zkept: head" data-names="l.2.a" data-rows="7">–</td>"#,
        ] {
            assert!(text.contains(cell), "{text}");
        }
        assert!(text.contains("<span>10.0\u{a0}dB</span><span>18.0\u{a0}dB</span>"), "{text}");
    }

    #[test]
    fn experts_show_the_worst() {
        let experts = [("l.0.experts.0.up", 30.0), ("l.0.experts.1.up", 20.0), ("l.0.experts.2.up", f64::INFINITY)];
        let text = drawn(&[series("", &experts)]);
        let cell = "<td class=\"a\" data-v=\"p30.00\na20.00\nx∞\" \
                    data-names=\"l.0.experts.0.up\nl.0.experts.1.up\nl.0.experts.2.up\" data-rows=\"7 7 7\">20.00</td>";
        assert!(text.contains(cell), "{text}");
    }

    #[test]
    fn nothing_lost_is_no_map() {
        assert_eq!(drawn(&[series("", &[("l.0.a", f64::INFINITY), ("l.1.a", f64::NAN)])]), "");
        assert_eq!(drawn(&[]), "");
    }

    #[test]
    fn many_layers_have_few_labels() {
        let names: Vec<String> = (0..200).map(|layer| format!("l.{layer}.a")).collect();
        let weights: Vec<(&str, f64)> = names.iter().zip(1..).map(|(name, at)| (&**name, f64::from(at))).collect();
        let text = drawn(&[series("", &weights)]);
        assert_eq!(text.matches("<th scope=\"col\"").count(), 200);
        assert_eq!(text.matches("class=\"tick\"").count(), 20);
    }
}
