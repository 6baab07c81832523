//! The versions of the JSON documents. A version changes when a field of its document changes its meaning or is removed.

use serde_json::{Value, json};

/// Version of the report of `cast` and the other conversions.
pub(crate) const REPORT: u32 = 1;
/// Version of the document of `promote`.
#[cfg(feature = "cli")]
pub(crate) const PROMOTION: u32 = 1;
/// Version of the document of `inspect`.
#[cfg(feature = "cli")]
pub(crate) const INSPECTION: u32 = 1;
/// Version of the document of `diff`.
#[cfg(feature = "cli")]
pub(crate) const DIFFERENCES: u32 = 1;
/// Version of the document of `diff --report`.
#[cfg(feature = "cli")]
pub(crate) const REPORT_CHECK: u32 = 1;
/// Version of the document of `bitcast` with `--hex` or `--bits`.
#[cfg(feature = "cli")]
pub(crate) const ELEMENTS: u32 = 1;
/// Version of the document of `quantize --compare`.
#[cfg(feature = "cli")]
pub(crate) const COMPARISON: u32 = 1;

/// Adds its version and the version of tcast to a document.
pub(crate) fn document(version: u32, mut document: Value) -> Value {
    document["schema"] = json!(version);
    document["tcast"] = json!(env!("CARGO_PKG_VERSION"));
    document
}
