//! Errors of conversions between slices.

use crate::dtype::Dtype;
use crate::kernel::Malformed;
use std::fmt;

/// Error of a conversion between slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CastError {
    /// The slices have different lengths.
    Lengths {
        /// Number of elements in the source.
        source: usize,
        /// Number of elements in the target.
        target: usize,
    },
    /// ONNX Cast has no such pair of types.
    Unsupported {
        /// Type of the source.
        source: Dtype,
        /// Type of the target.
        target: Dtype,
    },
    /// A byte that holds one float4 or float6 has other bits set.
    Malformed {
        /// Index of the element.
        index: usize,
    },
    /// A value is beyond the target's range, and the rules are
    /// [`OutOfRange::Error`](crate::kernel::OutOfRange::Error).
    OutOfRange {
        /// Index of the element.
        index: usize,
        /// Type of the target.
        target: Dtype,
    },
}

impl fmt::Display for CastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lengths { source, target } => {
                write!(f, "the source has {source} elements and the target has {target}")
            }
            Self::Unsupported { source, target } => write!(f, "ONNX Cast cannot convert {source} to {target}"),
            Self::Malformed { index } => write!(f, "element {index}: {Malformed}"),
            Self::OutOfRange { index, target } => write!(f, "element {index} is out of range for {target}"),
        }
    }
}

impl std::error::Error for CastError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Malformed { .. } => Some(&Malformed),
            _ => None,
        }
    }
}
