//! The versions of the JSON documents. A version changes when a field of its document changes its meaning or is removed.

#[cfg(feature = "cli")]
mod program;
#[cfg(feature = "cli")]
pub(crate) use program::{COMPARISON, DIFFERENCES, ELEMENTS, INSPECTION, PROMOTION, REPORT_CHECK};

use serde_json::{Value, json};

/// Version of the report of `cast` and the other conversions.
pub(crate) const REPORT: u32 = 1;

/// Adds its version and the version of tcast to a document.
pub(crate) fn document(version: u32, mut document: Value) -> Value {
    document["schema"] = json!(version);
    document["tcast"] = json!(env!("CARGO_PKG_VERSION"));
    document
}
