//! Numbers to blocks, with the bytes of ggml's `ggml_quantize_chunk`.
//!
//! The reference is ggml 0.26.0 (`ggml-quants.c`), compiled for x86-64 without fused multiplications. Every operation is
//! rounded once to float32, in the order of that source, so all instruction sets give the same bytes.

mod asymmetric;
mod float;
mod iq4;
mod k_quants;
mod lanes;
mod legacy;
mod pack;
mod recover;
mod scales;
mod superblocks;
mod symmetric;
mod ternary;
mod weights;

pub(super) use recover::GridBlock;

use super::BlockFormat;
use super::decode::BlockLayout;
use crate::dtype::Dtype;
use crate::kernel::{Isa, Loop};
use lanes::{GroupLane, WIDTH};
use std::error::Error;
use std::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// The reason why values have no encoding. ggml stops at the same values, or writes arbitrary codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EncodeRefusal {
    /// A value is infinite or NaN.
    Value {
        /// Its index.
        element: usize,
        /// The value.
        value: f32,
    },
    /// A weight of the importance matrix is infinite or NaN.
    Importance {
        /// Its index.
        column: usize,
        /// The weight.
        weight: f32,
    },
    /// A scale or an offset is too large for its stored type, or NaN.
    Scale {
        /// The index of the first element of the block.
        element: usize,
    },
}

impl fmt::Display for EncodeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { element, value } => write!(f, "element {element} is {value}"),
            Self::Importance { column, weight } => write!(f, "the importance of column {column} is {weight}"),
            Self::Scale { element } => write!(f, "the block that starts at element {element} has no finite scale"),
        }
    }
}

impl Error for EncodeRefusal {}

impl EncodeRefusal {
    /// Returns the refusal of values that follow this many others.
    #[must_use]
    pub fn after(self, before: usize) -> Self {
        match self {
            Self::Value { element, value } => Self::Value { element: before + element, value },
            Self::Scale { element } => Self::Scale { element: before + element },
            Self::Importance { .. } => self,
        }
    }
}

impl BlockFormat {
    /// True if [`BlockFormat::encode`] writes this format.
    #[must_use]
    pub fn can_encode(&self) -> bool {
        self.encoder.is_some()
    }

    /// True if an importance matrix changes what [`BlockFormat::encode`] writes.
    #[must_use]
    pub fn uses_importance(&self) -> bool {
        self.encoder.is_some_and(|encoder| encoder.uses_importance)
    }

    /// Encodes whole rows of `columns` values, with the bytes of ggml. Rows can be encoded together or one by one.
    ///
    /// `importance` has a weight for each column, which formats without a search ignore.
    ///
    /// # Errors
    /// If a value or a weight is infinite or NaN, or a scale is too large for its stored type. `out` then holds anything.
    ///
    /// # Panics
    /// When the format cannot be encoded, `values` are no whole rows, a row is no whole number of blocks, or `importance` or
    /// `out` has another length.
    pub fn encode(
        &self,
        isa: Isa,
        values: &[f32],
        columns: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<(), EncodeRefusal> {
        let elements = self.elements as usize;
        assert!(
            columns > 0 && columns.is_multiple_of(elements) && values.len().is_multiple_of(columns),
            "{} values are no rows of {columns} in {}",
            values.len(),
            self.name
        );
        assert_eq!(out.len(), values.len() / elements * self.bytes as usize, "the output has another length");
        if let Some(weights) = importance {
            assert_eq!(weights.len(), columns, "the importance matrix has another length");
            if let Some(column) = lanes::first_not_finite(isa, weights) {
                return Err(EncodeRefusal::Importance { column, weight: weights[column] });
            }
        }
        let encoder = self.encoder.unwrap_or_else(|| panic!("{} cannot be encoded", self.name));
        let importance = importance.filter(|_| encoder.uses_importance);
        (encoder.encode)(isa, values, columns, importance, out)
    }
}

/// Encodes rows as [`BlockFormat::encode`], with arguments that match.
type EncodeBlocks = fn(Isa, &[f32], usize, Option<&[f32]>, &mut [u8]) -> Result<(), EncodeRefusal>;

/// Finds a block that decodes to values after rounding to a type. Returns false if there is none.
type FindBlock = fn(Isa, &[f32], Dtype, &mut [u8]) -> bool;

/// The encoder of a type of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockEncoder {
    uses_importance: bool,
    encode: EncodeBlocks,
    /// The search for blocks that decode to given values, if there is one.
    find: Option<FindBlock>,
}

impl BlockEncoder {
    /// Returns the encoder of blocks of type `B`, with `E` elements in `G` groups.
    pub(super) const fn new<B: BlockEncode<E, G>, const E: usize, const G: usize>() -> Self {
        let uses_importance = !matches!(B::IMPORTANCE, Importance::Ignored);
        Self { uses_importance, encode: encode_rows::<B, E, G>, find: None }
    }

    /// Returns the encoder of blocks that can also be searched.
    pub(super) const fn with_search<B: GridBlock<E, G>, const E: usize, const G: usize>() -> Self {
        Self { find: Some(recover::find_block::<B, E, G>), ..Self::new::<B, E, G>() }
    }
}

/// The use that a format makes of an importance matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Importance {
    Ignored,
    /// The weights of columns.
    Columns,
    /// The weights of columns, and the mean squares of rows.
    WithRowMeans,
}

/// A block that can be encoded.
pub(super) trait BlockEncode<const E: usize, const G: usize>: BlockLayout<E, G> + IntoBytes + Sized {
    const IMPORTANCE: Importance = Importance::Ignored;

    /// Encodes one block for each block of the piece.
    fn encode(isa: Isa, piece: &BlockPiece<'_, E>, blocks: &mut [Self]);

    /// False if a scale or an offset is infinite or NaN.
    fn is_finite(&self) -> bool;
}

/// Values of 1 to [`WIDTH`] blocks.
pub(super) struct BlockPiece<'a, const E: usize> {
    values: &'a [[f32; E]],
    /// The weights of the columns of each block, with an importance matrix. Blocks beyond the last repeat the first.
    importance: Option<[&'a [f32; E]; WIDTH]>,
    /// The mean square of the row of each block, for [`Importance::WithRowMeans`].
    row_means: GroupLane,
}

/// A block that is encoded without a search.
trait SetValues<const E: usize> {
    /// Encodes values. It is inlined into a loop.
    fn set_values(&mut self, values: &[f32; E]);
}

/// The loop that encodes blocks without a search.
struct EncodeEach<'a, B, const E: usize> {
    values: &'a [[f32; E]],
    blocks: &'a mut [B],
}

impl<B: SetValues<E>, const E: usize> Loop for EncodeEach<'_, B, E> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        for (values, block) in self.values.iter().zip(self.blocks) {
            block.set_values(values);
        }
    }
}

/// The result of a search in a batch of groups.
trait GroupFit {
    /// Writes the codes of a group.
    fn codes(&self, group: usize, values: &[f32], codes: &mut [u8]);
}

/// Encodes rows in blocks of type `B`: see [`EncodeBlocks`].
fn encode_rows<B: BlockEncode<E, G>, const E: usize, const G: usize>(
    isa: Isa,
    values: &[f32],
    columns: usize,
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), EncodeRefusal> {
    let row_means = match importance {
        Some(_) if B::IMPORTANCE == Importance::WithRowMeans => {
            let mut sums = weights::squares_of_rows(isa, values, columns);
            for sum in &mut sums {
                *sum /= columns as f32;
            }
            sums
        }
        _ => Vec::new(),
    };
    let importance = importance.map(|weights| weights.as_chunks::<E>().0);
    let blocks = <[B]>::mut_from_bytes(out).expect("a whole number of blocks");
    let pieces = values.as_chunks::<E>().0.chunks(WIDTH).zip(blocks.chunks_mut(WIDTH));
    for ((values, blocks), first) in pieces.zip((0..).step_by(WIDTH)) {
        if let Some(element) = lanes::first_not_finite(isa, values.as_flattened()) {
            let value = values.as_flattened()[element];
            return Err(EncodeRefusal::Value { element: first * E + element, value });
        }
        let mut piece = BlockPiece { values, importance: None, row_means: [0.0; WIDTH] };
        if let Some(weights) = importance {
            let mut all = [&weights[first % weights.len()]; WIDTH];
            for at in 0..values.len() {
                all[at] = &weights[(first + at) % weights.len()];
                piece.row_means[at] = row_means.get((first + at) / weights.len()).copied().unwrap_or(0.0);
            }
            piece.importance = Some(all);
        }
        B::encode(isa, &piece, blocks);
        if let Some(at) = blocks.iter().position(|block| !block.is_finite()) {
            return Err(EncodeRefusal::Scale { element: (first + at) * E });
        }
    }
    Ok(())
}
