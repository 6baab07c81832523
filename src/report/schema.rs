//! The versions of the JSON documents. A version changes when a field of its document changes its meaning or is removed.

/// What `cast` and the other conversions report.
pub(crate) const REPORT: u32 = 1;
/// What `promote` prints.
pub(crate) const PROMOTION: u32 = 1;
/// What `inspect` prints.
pub(crate) const INSPECTION: u32 = 1;
/// What `diff` prints.
pub(crate) const DIFFERENCES: u32 = 1;
/// What `diff --report` prints.
pub(crate) const REPORT_CHECK: u32 = 1;
/// What `bitcast` prints with `--hex` or `--bits`.
pub(crate) const ELEMENTS: u32 = 1;
