//! Measures, and the levels of color that stand for their figures.

use super::super::words::significant;
use serde_json::{Value, json};

/// Number of levels, which the page's style has, too.
const LEVELS: usize = 16;
/// Number of labels below the legend.
const TICKS: usize = 5;

/// A weight on the map.
pub(in super::super) struct MapWeight<'a> {
    pub(in super::super) name: &'a str,
    /// The place of its row in the page's table, if it has one.
    pub(in super::super) row: Option<usize>,
    /// A figure for each measure. No loss is infinity in decibels, and 0 in other units.
    pub(in super::super) figures: Vec<Option<f64>>,
    /// The reason why it has no figures: `kept`.
    pub(in super::super) note: String,
}

/// A figure that the colors of the map can stand for.
#[derive(Clone, Copy)]
pub(in super::super) struct Measure {
    pub(in super::super) title: &'static str,
    pub(in super::super) unit: Unit,
}

/// Unit of a measure, which decides about its scale.
#[derive(Clone, Copy, PartialEq)]
pub(in super::super) enum Unit {
    /// Decibels, less is worse.
    Decibels,
    /// A share of 100, more is worse.
    Percent,
    /// A difference of values, more is worse; the scale is logarithmic.
    Difference,
    /// A part of 1, less is worse. It is an estimate, which can be more than 1.
    Part,
}

impl Unit {
    /// Returns the position of a figure on the scale: larger is better, and infinite is without loss.
    fn position(self, figure: f64) -> f64 {
        match self {
            Self::Decibels => figure,
            Self::Part => {
                if figure < 1.0 {
                    figure
                } else {
                    f64::INFINITY
                }
            }
            _ if figure <= 0.0 => f64::INFINITY,
            Self::Percent => -figure,
            Self::Difference => -figure.log10(),
        }
    }

    /// Returns the figure at a position.
    fn figure(self, position: f64) -> f64 {
        match self {
            Self::Decibels | Self::Part => position,
            Self::Percent => -position,
            Self::Difference => 10_f64.powf(-position),
        }
    }
}

/// A level of color: a letter, the worst one first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(u8);

impl Level {
    /// Of a figure without loss.
    pub(super) const LOSSLESS: Self = Self(b'x');
    /// Of a weight without a figure.
    pub(super) const NONE: Self = Self(b'z');

    /// Returns the levels of figures with loss.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..LEVELS as u8).map(|level| Self(b'a' + level))
    }

    /// Returns the class in the page's style.
    pub(super) fn class(self) -> char {
        char::from(self.0)
    }
}

/// Of this number of figures, the best one can be far away from all others, like that of a weight that hardly changed.
const OUTLIERS: usize = 20;

/// Returns the ends of a scale, the worst one first, and whether figures are beyond the best end; infinite ends if no
/// position is finite. One position in 20 may be beyond the best end, so that outliers do not squeeze the others.
pub(in super::super) fn ends(positions: impl Iterator<Item = f64>) -> ([f64; 2], bool) {
    let mut positions: Vec<f64> = positions.filter(|position| position.is_finite()).collect();
    positions.sort_unstable_by(f64::total_cmp);
    let Some(last) = positions.len().checked_sub(1) else { return ([f64::INFINITY, f64::NEG_INFINITY], false) };
    let best = positions[last - positions.len() / OUTLIERS];
    ([positions[0], best], best < positions[last])
}

/// The figures of a measure between the worst and the best one.
pub(super) struct ColorScale {
    measure: Measure,
    /// Index of the measure's figures.
    at: usize,
    /// Positions of the worst and the best figure.
    ends: [f64; 2],
    /// True if figures are beyond the best end.
    is_open: bool,
}

impl ColorScale {
    /// Creates a scale for these figures. Figures that hardly differ have a scale that shows this.
    pub(super) fn new(measure: Measure, at: usize, figures: impl Iterator<Item = f64>) -> Self {
        let (ends, is_open) = ends(figures.map(|figure| measure.unit.position(figure)));
        let mut scale = Self { measure, at, ends, is_open };
        let [worst, best] = scale.ends;
        let least = match measure.unit {
            Unit::Decibels => 1.0,
            Unit::Part => 0.1,
            Unit::Percent => worst.abs() / 10.0,
            Unit::Difference => 0.5,
        };
        if scale.shows_loss() && best - worst < least {
            let middle = worst.midpoint(best);
            scale.ends = [middle - least / 2.0, middle + least / 2.0];
        }
        scale
    }

    /// True if a figure shows a loss.
    pub(super) fn shows_loss(&self) -> bool {
        self.ends[0] <= self.ends[1]
    }

    /// Returns the figure of a weight for this measure.
    pub(super) fn figure_of(&self, weight: &MapWeight) -> Option<f64> {
        weight.figures[self.at].filter(|figure| !figure.is_nan())
    }

    pub(super) fn title(&self) -> &'static str {
        self.measure.title
    }

    /// Returns what weights are sorted by, the worst first.
    pub(super) fn rank(&self, figure: f64) -> f64 {
        self.measure.unit.position(figure)
    }

    pub(super) fn level(&self, figure: f64) -> Level {
        let ([worst, best], position) = (self.ends, self.measure.unit.position(figure));
        if position == f64::INFINITY {
            return Level::LOSSLESS;
        }
        let part = (position - worst) / (best - worst) * LEVELS as f64;
        Level(b'a' + (part as u8).min(LEVELS as u8 - 1))
    }

    /// Formats a figure, without its unit.
    pub(super) fn text(&self, figure: f64) -> String {
        match self.measure.unit {
            Unit::Decibels if figure.is_finite() => format!("{figure:.2}"),
            Unit::Part => format!("{figure:.2}"),
            Unit::Percent => significant(figure, 3),
            Unit::Decibels | Unit::Difference => significant(figure, 4),
        }
    }

    /// Returns labels at equal distances, from the worst to the best level, with the unit; empty ones if no figure shows a
    /// loss.
    pub(super) fn ticks(&self) -> [String; TICKS] {
        let [worst, best] = self.ends;
        std::array::from_fn(|at| {
            let figure = self.measure.unit.figure(worst + (best - worst) * at as f64 / (TICKS - 1) as f64);
            if !self.shows_loss() {
                return String::new();
            }
            let text = match self.measure.unit {
                Unit::Decibels => format!("{figure:.1}{}", self.unit()),
                Unit::Percent => significant(figure.max(0.0), 2) + self.unit(),
                Unit::Difference => significant(figure, 2),
                Unit::Part => format!("{figure:.2}"),
            };
            match self.measure.unit {
                _ if !self.is_open || at + 1 < TICKS => text,
                Unit::Decibels | Unit::Part => format!("≥\u{a0}{text}"),
                Unit::Percent | Unit::Difference => format!("≤\u{a0}{text}"),
            }
        })
    }

    /// Returns what follows a figure.
    fn unit(&self) -> &'static str {
        match self.measure.unit {
            Unit::Decibels => "\u{a0}dB",
            Unit::Percent => "%",
            Unit::Difference | Unit::Part => "",
        }
    }

    /// Returns what the script needs to know about the measure.
    pub(super) fn json(&self) -> Value {
        let is_low_worse = matches!(self.measure.unit, Unit::Decibels | Unit::Part);
        json!({ "title": self.title(), "unit": self.unit(), "low": is_low_worse })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(unit: Unit, figures: &[f64]) -> ColorScale {
        ColorScale::new(Measure { title: "", unit }, 0, figures.iter().copied())
    }

    #[test]
    fn the_worst_figure_has_the_first_level() {
        let decibels = [10.0, 42.0, f64::INFINITY, f64::NEG_INFINITY];
        let of = |unit, figures: &[f64]| -> String {
            let scale = scale(unit, figures);
            figures.iter().map(|figure| scale.level(*figure).class()).collect()
        };
        assert_eq!(of(Unit::Decibels, &decibels), "apxa");
        assert_eq!(of(Unit::Percent, &[100.0, 50.0, 1.0, 0.0]), "aipx");
        assert_eq!(of(Unit::Difference, &[1.0, 0.001, 1e-6, 0.0, f64::INFINITY]), "aipxa");
    }

    #[test]
    fn figures_that_hardly_differ_have_hardly_different_colors() {
        let scale = scale(Unit::Decibels, &[20.50, 20.53]);
        assert_eq!(scale.level(20.50).class(), 'h');
        assert_eq!(scale.level(20.53).class(), 'i');
        assert_eq!(scale.ticks()[0], "20.0\u{a0}dB");
    }

    #[test]
    fn a_few_weights_that_hardly_changed_do_not_squeeze_the_others() {
        let figures: Vec<f64> = (0..39).map(|at| 19.0 + f64::from(at) / 13.0).chain([171.0]).collect();
        let scale = scale(Unit::Decibels, &figures);
        assert_eq!([19.0, 20.5, 171.0].map(|figure| scale.level(figure).class()), ['a', 'i', 'p']);
        assert_eq!(scale.ticks().last().unwrap(), "≥\u{a0}21.8\u{a0}dB");
    }
}
