//! The result of a comparison: what `tcast diff --json` prints.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::measure::accuracy::Accuracy;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The result for two tensors, or for one without a counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffStatus {
    /// Type, shape and bits are equal.
    Equal,
    /// All values and the types are equal, but not the bits.
    BitsDiffer,
    /// There is a tolerance that no value exceeds; or all values are equal, but not the types.
    WithinTolerance,
    /// Some values differ by more than the tolerance.
    ValuesDiffer,
    /// All values are equal, but not the types; or one holds text and the other numbers.
    TypesDiffer,
    /// The shapes differ.
    ShapesDiffer,
    /// B lacks the tensor.
    OnlyInA,
    /// A lacks the tensor.
    OnlyInB,
    /// One of the tensors cannot be read.
    Unreadable,
}

impl DiffStatus {
    pub(super) const ALL: [Self; 9] = [
        Self::Equal,
        Self::BitsDiffer,
        Self::WithinTolerance,
        Self::ValuesDiffer,
        Self::TypesDiffer,
        Self::ShapesDiffer,
        Self::OnlyInA,
        Self::OnlyInB,
        Self::Unreadable,
    ];

    /// True if the tensors are equal, or equal within the tolerance.
    #[must_use]
    pub fn is_equal(self) -> bool {
        matches!(self, Self::Equal | Self::WithinTolerance)
    }
}

/// The result of comparing two tensors.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The result in a word.
    pub status: DiffStatus,
    /// Number of elements that differ by more than the tolerance; if none does, of elements with different bits. `None`
    /// for an unreadable tensor.
    pub differing: Option<u64>,
    /// First of these elements.
    pub first_difference: Option<Box<FirstDifference>>,
    /// Errors of B compared with A, if numbers differ.
    pub figures: Option<Box<DiffFigures>>,
}

impl Comparison {
    /// Creates a result without details.
    pub(super) fn of(status: DiffStatus) -> Self {
        let differing = (status != DiffStatus::Unreadable).then_some(0);
        Self { status, differing, first_difference: None, figures: None }
    }
}

/// An element that differs, as text.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct FirstDifference {
    /// Its coordinates.
    pub index: Vec<u64>,
    /// Value in A; for opaque bytes, the bytes.
    pub a: String,
    /// Value in B.
    pub b: String,
    /// Bits in A in hexadecimal; text has none.
    pub bits_a: Option<String>,
    /// Bits in B.
    pub bits_b: Option<String>,
}

/// Errors of a tensor.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct DiffFigures {
    /// Accuracy of B compared with A. Sums of squares of 64-bit integers use the nearest float64.
    #[serde(flatten)]
    pub accuracy: Accuracy,
    /// Coordinates of the element with the largest absolute error.
    pub max_abs_error_index: Option<Vec<u64>>,
    /// Coordinates of the element with the largest relative error.
    pub max_rel_error_index: Option<Vec<u64>>,
}

/// A tensor of A, of B, or of both.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct TensorDiff {
    /// Name in A, or in B if A lacks it.
    pub name: String,
    /// Name in B, if different.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_b: Option<String>,
    /// Lengths of the dimensions in A.
    pub shape_a: Option<Vec<u64>>,
    /// Lengths of the dimensions in B.
    pub shape_b: Option<Vec<u64>>,
    /// Type in A, or the type that a quantized weight is decoded to; `None` if unknown.
    pub dtype_a: Option<Dtype>,
    /// Type in B.
    pub dtype_b: Option<Dtype>,
    /// Layout of a quantized weight of A.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout_a: Option<&'static str>,
    /// Layout of a quantized weight of B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout_b: Option<&'static str>,
    /// The result.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// The reason why a tensor is unreadable.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "message")]
    pub error: Option<Box<Error>>,
    /// Names of types in A and B that tcast does not support.
    #[serde(skip)]
    #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
    pub(crate) unsupported: [Option<Box<str>>; 2],
}

#[allow(clippy::ref_option, reason = "as serde calls it")]
fn message<S: Serializer>(error: &Option<Box<Error>>, serializer: S) -> Result<S::Ok, S::Error> {
    error.as_ref().map(ToString::to_string).serialize(serializer)
}

/// The result of comparing two inputs: what `tcast diff --json` prints.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct DiffReport {
    /// The first input.
    #[serde(serialize_with = "path_text")]
    pub a: PathBuf,
    /// The second input.
    #[serde(serialize_with = "path_text")]
    pub b: PathBuf,
    /// Maximum absolute difference, if given.
    pub tolerance: Option<f64>,
    /// Maximum relative difference, if given.
    pub rtol: Option<f64>,
    /// True if all tensors are equal, or equal within the tolerance.
    pub is_equal: bool,
    /// Number of tensors with each status.
    pub counts: BTreeMap<DiffStatus, usize>,
    /// The compared tensors in the order of A, then the tensors that only B has.
    pub tensors: Vec<TensorDiff>,
}

fn path_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}
