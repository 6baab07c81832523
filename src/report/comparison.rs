//! Several schemes for the same model: a table, and a JSON document.

use super::{Report, TensorReport, counts_of, schema, serialize_with};
use crate::measure::quantized::{CodesOrigin, QuantizedAccuracy};
use crate::quant::Scheme;
use crate::select::KeptReason;
use crate::text::{columns, counted, path_text, shorten, size};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// The result of a scheme for a model that was quantized in memory only.
pub(crate) struct MeasuredScheme {
    pub scheme: &'static Scheme,
    /// The name of the layout in which its weights are stored.
    pub layout: &'static str,
    pub report: Report,
    /// The names of weights that must have the same scheme.
    pub loaded_together: Vec<Vec<String>>,
}

/// Several schemes for the same model.
pub(crate) struct SchemeComparison {
    pub input: PathBuf,
    pub time: Duration,
    pub schemes: Vec<MeasuredScheme>,
}

/// Figures of all weights of a scheme.
pub(crate) struct SchemeFigures<'r> {
    /// Number of weights that are quantized.
    pub weights: u64,
    /// Number of weights whose shape does not fit, and of those that engines fuse with them.
    pub unfit: u64,
    pub bits_per_weight: f64,
    /// The bytes of the whole model.
    pub bytes: u64,
    /// The mean of the weights that have noise; `None` if there is none.
    pub mean_sqnr_db: Option<f64>,
    /// The lowest of all weights, and the weight that has it.
    pub lowest: Option<(f64, &'r str)>,
    pub mean_relative_squared_error: f64,
    /// Number of weights of each origin, of a model that is quantized.
    pub codes: Vec<(CodesOrigin, u64)>,
}

impl MeasuredScheme {
    pub(crate) fn weights(&self) -> impl Iterator<Item = (&TensorReport, &QuantizedAccuracy)> {
        self.report.tensors().filter_map(|tensor| Some((tensor, tensor.quantized_accuracy()?)))
    }

    pub(crate) fn figures(&self) -> SchemeFigures<'_> {
        let count = self.weights().count() as f64;
        let elements = || self.weights().map(|(tensor, _)| tensor.elements() as f64);
        let bits = self.weights().map(|(tensor, accuracy)| tensor.elements() as f64 * accuracy.bits_per_weight);
        let ratios = || self.weights().filter_map(|(tensor, accuracy)| Some((accuracy.sqnr_db?, &*tensor.name)));
        let noisy = ratios().count() as f64;
        let errors = self.weights().filter_map(|(_, accuracy)| accuracy.relative_squared_error);
        let is_unfit = |kept: KeptReason| [KeptReason::Shape, KeptReason::Fused].contains(&kept);
        SchemeFigures {
            weights: count as u64,
            unfit: self.report.tensors().filter(|tensor| tensor.kept.is_some_and(is_unfit)).count() as u64,
            bits_per_weight: bits.sum::<f64>() / elements().sum::<f64>(),
            bytes: self.report.bytes_out(),
            mean_sqnr_db: (noisy > 0.0).then(|| ratios().map(|(ratio, _)| ratio).sum::<f64>() / noisy),
            lowest: ratios().min_by(|a, b| a.0.total_cmp(&b.0)),
            mean_relative_squared_error: errors.sum::<f64>() / count,
            codes: counts_of(self.weights().filter_map(|(tensor, _)| tensor.quantized.as_ref()?.codes)),
        }
    }

    /// Returns its row of the table; the cell about the origin of codes is empty for a model that is not quantized.
    fn cells(&self) -> [String; 10] {
        let decibels = |ratio: Option<f64>| ratio.map_or_else(|| "exact".to_owned(), |ratio| format!("{ratio:.2} dB"));
        let figures = self.figures();
        [
            self.scheme.name.to_owned(),
            self.layout.to_owned(),
            format!("{:.2}", figures.bits_per_weight),
            size(figures.bytes),
            decibels(figures.mean_sqnr_db),
            decibels(figures.lowest.map(|(ratio, _)| ratio)),
            format!("{:.2e}", figures.mean_relative_squared_error),
            figures.unfit.to_string(),
            figures.moved(),
            figures.lowest.map(|(_, name)| shorten(name)).unwrap_or_default(),
        ]
    }
}

impl SchemeFigures<'_> {
    /// Describes how the codes of a quantized model are moved.
    pub(super) fn moved(&self) -> String {
        let word = |origin| match origin {
            CodesOrigin::Exact => "exact",
            CodesOrigin::Rescaled => "rescaled",
            CodesOrigin::RoundedOffsets => "with rounded offsets",
            CodesOrigin::Requantized => "requantized",
            CodesOrigin::Recovered | CodesOrigin::Equivalent => "recovered",
            CodesOrigin::Quantized => "quantized",
        };
        let counts = self.codes.iter().map(|(origin, count)| format!("{count} {}", word(*origin)));
        counts.collect::<Vec<_>>().join(", ")
    }
}

/// The headings of the table.
const HEADINGS: [&str; 10] =
    ["scheme", "layout", "bits", "size", "mean SQNR", "lowest SQNR", "squared error", "unfit", "codes", "worst weight"];

impl SchemeComparison {
    /// Returns a table with a line for each scheme. The lines fit a terminal of this many columns.
    pub(crate) fn table(&self, terminal: Option<usize>) -> String {
        let mut rows: Vec<[String; 10]> = self.schemes.iter().map(MeasuredScheme::cells).collect();
        let has_codes = rows.iter().any(|row| !row[8].is_empty());
        let mut headings = HEADINGS.map(str::to_owned);
        if !has_codes {
            headings[8].clear();
        }
        rows.insert(0, headings);
        let lines = columns(&rows, &[2, 3, 4, 5, 6, 7], terminal);
        lines.map(|line| line.strip_prefix("  ").map_or(line.clone(), str::to_owned)).collect::<Vec<_>>().join("\n")
    }

    /// Describes what was done.
    pub(crate) fn summary(&self) -> String {
        let schemes = counted(self.schemes.len() as u64, "scheme");
        let weights = self.schemes.iter().map(|scheme| scheme.weights().count()).max().unwrap_or_default();
        let bytes = self.schemes.first().map_or(0, |first| first.report.bytes_in);
        format!(
            "compared {schemes} on {} of {}, {}, in {:.2} s; nothing was written",
            counted(weights as u64, "weight"),
            path_text(&self.input),
            size(bytes),
            self.time.as_secs_f64()
        )
    }

    fn head(&self) -> Value {
        let document = json!({
            "operator": self.schemes.first().map(|first| &first.report.operator),
            "input": self.input.to_string_lossy(),
            "bytes_in": self.schemes.first().map(|first| first.report.bytes_in),
            "seconds": self.time.as_secs_f64(),
            "compared": null,
        });
        schema::document(schema::COMPARISON, document)
    }
}

/// Writes the document scheme by scheme and tensor by tensor.
impl Serialize for SchemeComparison {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_with(&self.head(), "compared", self.schemes.iter(), serializer)
    }
}

impl Serialize for MeasuredScheme {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let figures = self.figures();
        let mut head = json!({
            "scheme": self.scheme.name,
            "layout": self.layout,
            "options": self.report.options,
            "weights": figures.weights,
            "unfit": figures.unfit,
            "bits_per_weight": figures.bits_per_weight,
            "bytes": figures.bytes,
            "mean_sqnr_db": figures.mean_sqnr_db,
            "lowest_sqnr_db": figures.lowest.map(|(ratio, _)| ratio),
            "worst": figures.lowest.map(|(_, name)| name),
            "mean_relative_squared_error": figures.mean_relative_squared_error,
            "tensors": null,
        });
        if !figures.codes.is_empty() {
            let codes = figures.codes.iter().map(|(origin, count)| (json!(origin), count));
            let codes = codes.filter_map(|(origin, count)| Some((origin.as_str()?.to_owned(), json!(count))));
            head["codes"] = Value::Object(codes.collect());
        }
        let tensors = self.report.tensors().map(TensorReport::json);
        serialize_with(&head, "tensors", tensors, serializer)
    }
}
