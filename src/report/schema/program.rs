//! Versions of the documents that only the program prints.

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
/// Version of the document of `quantize --compare`.
pub(crate) const COMPARISON: u32 = 1;
