//! Report of a conversion: a summary for people, JSON for scripts, and a page.

mod advice;
#[cfg(feature = "cli")]
mod comparison;
#[cfg(feature = "cli")]
pub(crate) mod diff;
#[cfg(feature = "cli")]
pub(crate) mod distribution;
#[cfg(feature = "cli")]
mod html;
#[cfg(feature = "cli")]
mod merged;
#[cfg(feature = "cli")]
mod quantized;
mod refused;
pub(crate) mod schema;
#[cfg(feature = "cli")]
mod several;
#[cfg(feature = "cli")]
mod summary;

pub use crate::job::{FileReport, TensorReport};
#[cfg(feature = "cli")]
pub(crate) use comparison::{MeasuredScheme, SchemeComparison};
#[cfg(feature = "cli")]
pub use html::{ExponentSpread, page};
#[cfg(feature = "cli")]
pub(crate) use html::{comparison_page, diff_page};
#[cfg(feature = "cli")]
pub(crate) use merged::mapping;
#[cfg(feature = "cli")]
pub(crate) use several::{several, unconverted};
#[cfg(feature = "cli")]
pub use summary::Surroundings;

use crate::kernel::{Counts, Loss};
use crate::lora::AdapterSummary;
#[cfg(feature = "cli")]
use crate::operator::Operator;
use crate::options::RecordedOptions;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Report of a conversion: the output files, and the outcome for their tensors. Serialized, it is the JSON document of the
/// program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Name of the operator: `cast`, `dequantize`, `quantize`, `bitcast` or `promote`.
    pub operator: String,
    /// The input.
    pub input: PathBuf,
    /// The output.
    pub output: PathBuf,
    /// Options that influence values.
    pub options: RecordedOptions,
    /// `quantization_config` that engines look for in config.json, if weights were quantized.
    #[doc(hidden)] // its type is not part of the interface
    pub config: Option<Value>,
    /// Figures of the choice of schemes within a number of bits, if there was one.
    #[doc(hidden)]
    pub budget: Option<Value>,
    /// The names of the input's tensors that are not in the output, because engines of its layout do not load them.
    pub left_out: Vec<String>,
    /// The adapters that were merged.
    #[doc(hidden)] // its type is not part of the interface
    pub adapters: Vec<AdapterSummary>,
    /// Number of bytes of the input.
    pub bytes_in: u64,
    /// The output, or the shards of it.
    pub files: Vec<FileReport>,
    /// Number of the files that existed before this run.
    pub before: usize,
    /// Duration; `None` for a dry run.
    pub time: Option<Duration>,
    /// True if the output has its name: not after a dry run, if values are refused, or if there was nothing to do.
    pub is_published: bool,
}

/// Totals of the deltas of adapters: means over all weights, in proportion to the energy of each delta.
#[derive(Serialize)]
struct DeltaTotals {
    kept: f64,
    delta_snr: Option<f64>,
}

#[cfg(feature = "cli")]
impl TensorReport {
    /// Returns the name of its original type, or of the layout in which it was quantized.
    fn type_name(&self) -> String {
        let recoded = self.quantized.as_ref().and_then(|quantized| quantized.source_layout.as_deref());
        let name = self.stored.as_deref().or(self.layout.as_deref()).or(recoded);
        name.map_or_else(|| self.from.to_string(), crate::text::shorten)
    }

    /// True if its elements have another type than in the input, whether it is quantized or not.
    fn has_new_type(&self) -> bool {
        self.from != self.to && self.stored.is_none()
    }

    fn new_type_name(&self) -> &str {
        self.quantized.as_ref().map_or(self.to.name(), |quantized| &quantized.scheme)
    }
}

/// Writes the JSON document tensor by tensor: as values in memory, a million tensors would take gigabytes.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.files.iter().enumerate().flat_map(|(at, file)| {
            file.tensors.iter().map(move |tensor| {
                let mut value = tensor.json();
                if !self.counts_inexact(tensor) {
                    remove_inexact(&mut value);
                }
                value["file"] = json!(at);
                value
            })
        });
        serialize_with(&self.head(), "tensors", rows, serializer)
    }
}

/// Removes the count of inexact values from a part of the document that has counts.
fn remove_inexact(part: &mut Value) {
    if let Some(counts) = part.get_mut("counts").and_then(Value::as_object_mut) {
        counts.remove(Loss::Inexact.name());
    }
}

/// Counts equal items, in the order in which they first occur.
#[cfg(feature = "cli")]
fn counts_of<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<(T, u64)> {
    let mut counts: Vec<(T, u64)> = Vec::new();
    for item in items {
        match counts.iter_mut().find(|(known, _)| *known == item) {
            Some((_, count)) => *count += 1,
            None => counts.push((item, 1)),
        }
    }
    counts
}

/// Writes a JSON document with one field's value replaced by a list, which is written row by row.
pub(crate) fn serialize_with<S: Serializer>(
    document: &Value,
    field: &str,
    rows: impl Iterator<Item = impl Serialize>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    struct Sequence<I>(RefCell<Option<I>>);
    impl<I: Iterator<Item: Serialize>> Serialize for Sequence<I> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(self.0.take().into_iter().flatten())
        }
    }
    let rows = Sequence(RefCell::new(Some(rows)));
    let mut map = serializer.serialize_map(None)?;
    for (key, value) in document.as_object().into_iter().flatten() {
        if key == field {
            map.serialize_entry(key, &rows)?;
        } else {
            map.serialize_entry(key, value)?;
        }
    }
    map.end()
}

impl Report {
    /// Creates the report of a conversion without files.
    #[doc(hidden)] // for tests
    #[must_use]
    pub fn empty(operator: &str, input: &Path, output: &Path) -> Self {
        Self {
            operator: operator.to_owned(),
            input: input.to_owned(),
            output: output.to_owned(),
            options: RecordedOptions::default(),
            config: None,
            budget: None,
            left_out: Vec::new(),
            adapters: Vec::new(),
            bytes_in: 0,
            files: Vec::new(),
            before: 0,
            time: None,
            is_published: false,
        }
    }

    /// Returns the tensors of all files.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorReport> {
        self.files.iter().flat_map(|file| &file.tensors)
    }

    fn converted(&self) -> impl Iterator<Item = &TensorReport> {
        self.tensors().filter(|tensor| tensor.is_converted)
    }

    pub(crate) fn bytes_out(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    fn total(&self) -> Counts {
        self.files.iter().map(FileReport::counts).sum()
    }

    /// True if the counts of a tensor include inexact values. In decoded weights, they are counted only on request.
    fn counts_inexact(&self, tensor: &TensorReport) -> bool {
        let is_requested = || {
            let listed = self.options.0.get("fail_on").and_then(Value::as_array);
            listed.is_some_and(|listed| listed.iter().any(|name| name == Loss::Inexact.name()))
        };
        tensor.layout.is_none() || is_requested()
    }

    /// True if the counts of all tensors include inexact values.
    fn counts_all_inexact(&self) -> bool {
        self.tensors().all(|tensor| self.counts_inexact(tensor))
    }

    /// Returns the JSON document without the tensors.
    fn head(&self) -> Value {
        let converted = self.converted().count();
        let mut document = json!({
            "operator": self.operator,
            "input": self.input.to_string_lossy(),
            "output": self.output.to_string_lossy(),
            "dry_run": self.time.is_none(),
            "published": self.is_published,
            "options": self.options,
            "files": self.files.iter().map(|file| json!({ "file": file.file, "bytes": file.bytes })).collect::<Vec<_>>(),
            "tensors": null,
            "tensors_cast": converted,
            "tensors_copied": self.tensors().count() - converted,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out(),
        });
        if let Some(config) = &self.config {
            document["quantization_config"] = config.clone();
        }
        if let Some(budget) = &self.budget {
            document["budget"] = budget.clone();
        }
        if !self.adapters.is_empty() {
            document["lora"] = self.adapters.iter().map(AdapterSummary::json).collect();
        }
        if let Some(totals) = self.delta_totals() {
            document["lora_total"] = json!(totals);
        }
        if !self.left_out.is_empty() {
            document["left_out"] = json!(self.left_out);
        }
        if let Some(time) = &self.time {
            document["seconds"] = json!(time.as_secs_f64());
        }
        if self.time.is_some() || self.is_measured() {
            document["counts"] = json!(self.total());
            if !self.counts_all_inexact() {
                remove_inexact(&mut document);
            }
        }
        schema::document(schema::REPORT, document)
    }

    /// Returns what is left of the deltas of adapters in all weights; `None` if none was measured.
    fn delta_totals(&self) -> Option<DeltaTotals> {
        let deltas = || self.tensors().filter_map(|tensor| tensor.delta.as_deref());
        let energy: f64 = deltas().map(|figures| figures.delta_energy).sum();
        let kept = deltas().map(|figures| figures.kept * figures.delta_energy).sum::<f64>() / energy;
        // Deltas without a space have no noise in it.
        let measured = deltas().filter_map(|figures| Some([figures.delta_energy, figures.noise_energy?]));
        let [delta, noise] = measured.fold([0.0; 2], |sums, next| [sums[0] + next[0], sums[1] + next[1]]);
        let delta_snr = (noise > 0.0).then(|| 10.0 * (delta / noise).log10());
        deltas().next().map(|_| DeltaTotals { kept, delta_snr })
    }

    /// True if values were examined; a dry run does so on request.
    fn is_measured(&self) -> bool {
        self.tensors().any(|tensor| tensor.counts.is_some())
    }

    /// Describes the values of a conversion without counted losses; `None` if there is nothing to say. Decoded values can be
    /// rounded, which is not counted.
    #[cfg(feature = "cli")]
    fn lossless_outcome(&self, total: &Counts) -> Option<&'static str> {
        let is_decoded = self.operator == Operator::Dequantize.name();
        match is_decoded {
            _ if !total.is_lossless() || self.operator == Operator::BitCast.name() => None,
            false => Some("every value came through unchanged"),
            true => (total.input_nan + total.input_infinite == 0).then_some("every decoded value is finite"),
        }
    }
}
