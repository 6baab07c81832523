//! Report of a conversion: a summary for people, JSON for scripts, and a page.

pub(crate) mod diff;
pub(crate) mod distribution;
mod html;
mod quantized;
mod refusal;
pub(crate) mod schema;
mod summary;

pub use crate::job::{FileReport, TensorReport};
pub use html::{ExponentSpread, page};

use crate::error::Error;
use crate::kernel::{Counts, Loss};
use crate::text::shorten;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

/// Output files, and the outcome for their tensors.
pub struct Report<'a> {
    pub operator: &'a str,
    pub input: &'a Path,
    pub output: &'a Path,
    /// Options that influence values, as JSON.
    pub options: Value,
    /// `quantization_config` that engines look for in config.json, if weights were quantized.
    pub config: Option<&'a Value>,
    pub bytes_in: u64,
    /// The output, or the shards of it.
    pub files: Vec<FileReport<'a>>,
    /// Number of the files that existed before this run.
    pub before: usize,
    /// Duration; `None` for a dry run.
    pub time: Option<Duration>,
    /// True if the output has its name: not after a dry run, if values are refused, or if there was nothing to do.
    pub is_published: bool,
}

/// True if an option of a report has its default value.
pub(crate) fn is_default(option: &str, value: &Value) -> bool {
    match (option, value) {
        ("saturate", value) => *value == Value::Bool(true),
        (_, Value::Null | Value::Bool(false)) => true,
        (_, Value::Array(items)) => items.is_empty(),
        ("round_mode", value) => value == "up",
        ("out_of_range", value) => value == "wrap",
        ("arithmetic", value) => value == "library",
        ("search", value) => value == "amax",
        _ => false,
    }
}

impl TensorReport<'_> {
    /// Returns the name of its original type, or of the layout in which it was quantized.
    fn type_name(&self) -> String {
        let recoded = self.quantized.as_ref().and_then(|quantized| quantized.source_layout.as_deref());
        let name = self.layout.as_deref().or(recoded).or(self.stored.as_deref());
        name.map_or_else(|| self.from.to_string(), shorten)
    }

    fn new_type_name(&self) -> &str {
        self.quantized.as_ref().map_or(self.to.name(), |quantized| &quantized.scheme)
    }

    /// Returns the coordinates of an element as text, if it exists.
    fn place(&self, element: u64) -> Option<String> {
        self.indices(element).map(|indices| format!("{indices:?}"))
    }
}

/// Writes the JSON document tensor by tensor: as values in memory, a million tensors would take gigabytes.
impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.files.iter().enumerate().flat_map(|(at, file)| {
            file.tensors.iter().map(move |tensor| {
                let mut value = tensor.json();
                value["file"] = json!(at);
                value
            })
        });
        serialize_with(&self.head(), "tensors", rows, serializer)
    }
}

/// Writes a JSON document with one field's value replaced by a list, which is written row by row.
pub(crate) fn serialize_with<S: Serializer>(
    document: &Value,
    field: &str,
    rows: impl Iterator<Item = Value>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    struct Sequence<I>(RefCell<Option<I>>);
    impl<I: Iterator<Item = Value>> Serialize for Sequence<I> {
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

impl Report<'_> {
    pub fn tensors(&self) -> impl Iterator<Item = &TensorReport<'_>> {
        self.files.iter().flat_map(|file| &file.tensors)
    }

    fn converted(&self) -> impl Iterator<Item = &TensorReport<'_>> {
        self.tensors().filter(|tensor| tensor.is_converted)
    }

    pub(crate) fn bytes_out(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the bytes that the outputs take on the disk while they are written.
    pub(crate) fn space(&self) -> u64 {
        self.files.iter().map(|file| if file.will_be_deflated { 2 * file.bytes } else { file.bytes }).sum()
    }

    fn total(&self) -> Counts {
        self.files.iter().map(FileReport::counts).sum()
    }

    /// True if most values that were converted became zero.
    pub(crate) fn flushes_most(&self) -> bool {
        let values: u64 = self.converted().map(TensorReport::elements).sum();
        self.total()[Loss::Flushed] > values / 2
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
        if let Some(config) = self.config {
            document["quantization_config"] = config.clone();
        }
        if let Some(time) = &self.time {
            document["seconds"] = json!(time.as_secs_f64());
        }
        if self.time.is_some() || self.is_measured() {
            document["counts"] = json!(self.total());
        }
        schema::document(schema::REPORT, document)
    }

    /// True if values were examined; a dry run does so on request.
    fn is_measured(&self) -> bool {
        self.tensors().any(|tensor| tensor.counts.is_some())
    }
}

/// Returns the JSON document for an input that was not converted, with its error, or because its output existed and was
/// kept.
pub(crate) fn unconverted(operator: &str, input: &Path, output: &Path, error: Option<&Error>) -> Value {
    let (key, value) = error.map_or(("skipped", json!(true)), |error| ("error", json!(error.to_string())));
    let [input, output] = [input, output].map(Path::to_string_lossy);
    schema::document(schema::REPORT, json!({ "operator": operator, "input": input, "output": output, key: value }))
}

/// Returns the JSON document of several inputs, with a document of each.
pub(crate) fn several(operator: &str, inputs: &[Value], (before, after): (u64, u64), time: Option<Duration>) -> Value {
    let is_dry = time.is_none();
    let mut document = schema::document(
        schema::REPORT,
        json!({ "operator": operator, "dry_run": is_dry, "inputs": inputs, "bytes_in": before, "bytes_out": after }),
    );
    if let Some(time) = time {
        document["seconds"] = json!(time.as_secs_f64());
    }
    document
}
