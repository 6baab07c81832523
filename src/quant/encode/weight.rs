//! The encoder of a weight, whatever its layout.

use super::super::layout::{Layout, Role};
use super::super::libraries::GGUF;
use super::super::parts::LinearAxis;
use super::blocks::BlockWeightEncoder;
use super::encoder::Encoder;
use super::geometry::EncodedPart;
use crate::dtype::Dtype;
use std::ops::Range;
use std::sync::Arc;

/// Encoder of a weight. Clones share its tables.
#[derive(Clone)]
pub enum WeightEncoder {
    /// Codes and scales are separate parts.
    Grid(Arc<Encoder>),
    /// Blocks hold codes and scales.
    Blocks(Arc<BlockWeightEncoder>),
    /// Plain numbers: a conversion casts them.
    Plain(Arc<PlainWeight>),
}

/// The place of a weight whose computed values become plain numbers.
pub struct PlainWeight {
    part: [EncodedPart; 1],
    source: Dtype,
}

impl PlainWeight {
    /// Describes a weight of this shape. Its values are computed as `source`, and stored as `target`.
    #[must_use]
    pub fn new(shape: &[u64], source: Dtype, target: Dtype) -> Self {
        Self { part: [EncodedPart::new(Role::Codes, "", target, shape.to_vec())], source }
    }
}

impl WeightEncoder {
    /// The encoder of codes and scales as separate parts.
    #[must_use]
    pub fn grid(&self) -> Option<&Arc<Encoder>> {
        if let Self::Grid(encoder) = self { Some(encoder) } else { None }
    }

    /// The layout that it writes.
    #[must_use]
    pub fn layout(&self) -> &'static Layout {
        match self {
            Self::Grid(encoder) => encoder.layout(),
            Self::Blocks(_) | Self::Plain(_) => &GGUF,
        }
    }

    /// The tensors that it writes.
    #[must_use]
    pub fn parts(&self) -> &[EncodedPart] {
        match self {
            Self::Grid(encoder) => encoder.parts(),
            Self::Blocks(encoder) => encoder.parts(),
            Self::Plain(weight) => &weight.part,
        }
    }

    /// The shape of the weight.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        match self {
            Self::Grid(encoder) => encoder.shape(),
            Self::Blocks(encoder) => encoder.shape(),
            Self::Plain(weight) => &weight.part[0].shape,
        }
    }

    /// The number of rows: the product of all dimensions but the last.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.shape().iter().rev().skip(1).product()
    }

    /// The number of values in a row.
    #[must_use]
    pub fn columns(&self) -> u64 {
        self.shape().last().copied().unwrap_or(1)
    }

    /// The type of the source values.
    pub(crate) fn source(&self) -> Dtype {
        match self {
            Self::Grid(encoder) => encoder.source,
            Self::Blocks(encoder) => encoder.source,
            Self::Plain(weight) => weight.source,
        }
    }

    /// Bytes of one row of source values.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.columns() * u64::from(self.source().bits() / 8)
    }

    /// Stored bits per value, counting all parts.
    #[must_use]
    pub fn bits_per_value(&self) -> f64 {
        let bytes: u64 = self.parts().iter().map(EncodedPart::byte_len).sum();
        8.0 * bytes as f64 / (self.rows() * self.columns()) as f64
    }

    /// True if scales depend on the largest magnitude of the whole tensor: see [`Encoder::needs_extremes`].
    #[must_use]
    pub fn needs_extremes(&self) -> bool {
        self.grid().is_some_and(|encoder| encoder.needs_extremes())
    }

    /// True if the scale of each column depends on all of its values.
    #[must_use]
    pub fn has_column_scales(&self) -> bool {
        self.grid().is_some_and(|encoder| encoder.has_column_scales())
    }

    /// The axis of the scales in a tensor of an ONNX model.
    #[must_use]
    pub fn axis(&self) -> Option<LinearAxis> {
        self.grid()?.axis()
    }

    /// The alignment of ranges of rows to encode: see [`Encoder::row_alignment`].
    #[must_use]
    pub fn row_alignment(&self) -> u64 {
        self.grid().map_or(1, |encoder| encoder.row_alignment())
    }

    /// Returns the byte range within each part that encoding these rows writes.
    #[must_use]
    pub fn part_ranges(&self, rows: Range<u64>) -> Vec<Range<u64>> {
        match self {
            Self::Grid(encoder) => encoder.part_ranges(rows),
            Self::Blocks(encoder) => encoder.part_ranges(&rows),
            Self::Plain(weight) => {
                let row = self.columns() * u64::from(weight.part[0].dtype.bits() / 8);
                let range = rows.start * row..rows.end * row;
                Vec::from([range])
            }
        }
    }
}
