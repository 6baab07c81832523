//! The versions of the JSON documents. A version changes when a field of its document changes its meaning or is removed.

/// Version of the report of `cast` and the other conversions.
pub(crate) const REPORT: u32 = 1;
/// Version of the document of `promote`.
pub(crate) const PROMOTION: u32 = 1;
/// Version of the document of `inspect`.
pub(crate) const INSPECTION: u32 = 1;
/// Version of the document of `diff`.
pub(crate) const DIFFERENCES: u32 = 1;
/// Version of the document of `diff --report`.
pub(crate) const REPORT_CHECK: u32 = 1;
/// Version of the document of `bitcast` with `--hex` or `--bits`.
pub(crate) const ELEMENTS: u32 = 1;
