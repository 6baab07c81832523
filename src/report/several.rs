//! JSON documents of several inputs, and of inputs that were not converted.

use super::schema;
use crate::error::Error;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

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
