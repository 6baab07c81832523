//! A map of a model: kinds of modules down, layers across, and the color of a weight is its figure.
//!
//! The map is a table with a figure in each cell, so a screen reader reads it, and it prints without the script. The script
//! `map.js` switches the measure, the series and the scale, and shows the weight below the pointer. All numbers, texts and levels of
//! color come from here; the script only chooses between them.

mod place;
mod scale;

use super::words::{broken, escape};
use crate::text::shorten;
use place::{MapLayout, Stack};
use scale::{ColorScale, Level};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;

pub(super) use scale::{MapWeight, Measure, Unit, ends};

/// Maximum number of layers whose cells are wide enough for their figures, and on a narrow screen.
const FEW: [usize; 2] = [16, 5];

/// Figures of the weights of a model, such as those of one quantization scheme. Several series share a map, with a switch.
pub(super) struct MapSeries<'a> {
    pub(super) name: &'a str,
    pub(super) weights: Vec<MapWeight<'a>>,
}

/// Words of the legend for what has no color.
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
    measures: Vec<MeasureScales>,
    weights: Vec<(&'a str, Entries<'a>)>,
}

/// The scales of a measure. Figures of one series can all be worse than those of another: on the scale of all, each of
/// the two would have one color, and on a scale of its own, each shows its own worst weights.
struct MeasureScales {
    /// The scale of each series.
    own: Vec<ColorScale>,
    of_all: ColorScale,
}

impl MeasureScales {
    fn new(measure: Measure, at: usize, series: &[MapSeries]) -> Self {
        let figures = |series: &MapSeries| series.weights.iter().filter_map(|weight| weight.figures[at]).collect();
        let figures: Vec<Vec<f64>> = series.iter().map(figures).collect();
        let scale = |figures: &mut dyn Iterator<Item = f64>| ColorScale::new(measure, at, figures);
        Self {
            own: figures.iter().map(|figures| scale(&mut figures.iter().copied())).collect(),
            of_all: scale(&mut figures.iter().flatten().copied()),
        }
    }

    /// Returns what the script needs. The scale of all is the last one.
    fn json(&self) -> Value {
        let ticks = self.own.iter().chain([&self.of_all]).map(ColorScale::ticks);
        let mut measure = self.of_all.json();
        measure["ticks"] = json!(ticks.collect::<Vec<_>>());
        measure
    }

    /// Returns the letters of the levels of a figure, on the scale of its series and on the scale of all, and its text.
    fn figure(&self, series: usize, figure: f64) -> String {
        let [own, of_all] = [&self.own[series], &self.of_all].map(|scale| scale.level(figure).class());
        format!("{own}{of_all}{}", self.of_all.text(figure))
    }
}

/// Returns the section with the map. The first measure and the first series are shown first. At first,
/// each series has a scale of its own. Empty if no figure shows a loss.
pub(super) fn map(measures: &[Measure], series: &[MapSeries], words: MapWords) -> String {
    let scales = measures.iter().enumerate().map(|(at, measure)| MeasureScales::new(*measure, at, series));
    // A measure that shows no loss would make a map of one color.
    let measures: Vec<MeasureScales> = scales.filter(|scales| scales.of_all.shows_loss()).collect();
    if measures.is_empty() {
        return String::new();
    }
    let map = Map { words, measures, weights: by_name(series) };
    let names: Vec<&str> = series.iter().map(|series| series.name).collect();
    let mut text = format!(
        r#"<section class="map" data-measures="{}" data-series="{}">
<h2 id="map">Map</h2>
"#,
        escape(&json!(map.measures.iter().map(MeasureScales::json).collect::<Vec<_>>()).to_string()),
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
        let scale = &self.measures[0].own[0];
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
        let scale = &self.measures[0].own[0];
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

    /// Returns the figures of a weight in all series, each after the letters of its levels; without any, the reason.
    fn figures(&self, entries: &Entries) -> String {
        let of_series = |(at, entry): (usize, Option<&MapWeight>)| match entry {
            None => String::new(),
            Some(weight) if weight.figures.iter().all(Option::is_none) => {
                format!("{}{}", Level::NONE.class(), weight.note.replace(['|', ',', '\n'], " "))
            }
            Some(weight) => {
                let figure = |scales: &MeasureScales| match scales.of_all.figure_of(weight) {
                    None => Level::NONE.class().to_string(),
                    Some(figure) => scales.figure(at, figure),
                };
                joined(self.measures.iter().map(figure), ",")
            }
        };
        joined(entries.iter().copied().enumerate().map(of_series), "|")
    }
}

fn open_table(text: &mut String, columns: usize, caption: &str) {
    let class = match columns {
        _ if columns <= FEW[1] => r#" class="few fewest""#,
        _ if columns <= FEW[0] => r#" class="few""#,
        _ => "",
    };
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
    fn each_series_has_a_scale_and_all_have_one_together() {
        let [first, second] = [[("l.0.a", 10.0), ("l.1.a", 18.0)], [("l.1.a", 42.0), ("l.2.a", f64::NAN)]];
        let text = drawn(&[series("int4", &first), series("<fp8>", &second)]);
        assert!(text.contains("data-series=\"[&quot;int4&quot;,&quot;&lt;fp8&gt;&quot;]\""), "{text}");
        for cell in [
            r#"<td class="a" data-v="aa10.00|" data-names="l.0.a" data-rows="7">10.00</td>"#,
            r#"<td class="p" data-v="pe18.00|ip42.00" data-names="l.1.a" data-rows="7">18.00</td>"#,
            r#"<td class="z" data-v="|zkept: head" data-names="l.2.a" data-rows="7">–</td>"#,
        ] {
            assert!(text.contains(cell), "{text}");
        }
        assert!(text.contains("<span>10.0\u{a0}dB</span><span>12.0\u{a0}dB</span>"), "{text}");
        let ticks = text.split("&quot;ticks&quot;:[[").nth(1).unwrap().split("]]").next().unwrap();
        let ends: Vec<&str> = ticks.split("],[").map(|scale| scale.rsplit("&quot;").nth(1).unwrap()).collect();
        assert_eq!(ends, ["18.0\u{a0}dB", "42.5\u{a0}dB", "42.0\u{a0}dB"]);
    }

    #[test]
    fn experts_show_the_worst() {
        let experts = [("l.0.experts.0.up", 30.0), ("l.0.experts.1.up", 20.0), ("l.0.experts.2.up", f64::INFINITY)];
        let text = drawn(&[series("", &experts)]);
        let cell = "<td class=\"a\" data-v=\"pp30.00\naa20.00\nxx∞\" \
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
