//! Block formats: the types of ggml, which GGUF files store.
//!
//! A block holds the codes and scales of a few adjacent elements of a row, and a row is a whole number of blocks. A format
//! is a row of [`FORMATS`]: its number in files, its name, and the size of a block. Plain numbers are blocks of one
//! element. Names, numbers and sizes are those of ggml 0.26.0 (`ggml.h`, `ggml-common.h`).
//!
//! `decode` has a layout for each format, and turns blocks into values; `encode` turns values into blocks; `explain` takes
//! blocks apart.

#![allow(
    clippy::float_cmp,
    clippy::inline_always,
    clippy::needless_bitwise_bool,
    reason = "a loop vectorizes when all of it is inlined and without branches; equality of floats is meant exactly"
)]

mod assembly;
mod decode;
mod encode;
mod explain;
mod importance;

pub use assembly::{Assembly, RowOrder};
pub use encode::EncodeRefusal;
pub use explain::{BlockGrid, BlockValue};
pub use importance::ImportanceMatrix;

use crate::dtype::Dtype;
use crate::kernel::Isa;
use decode::{
    BlockCodec, BlockLayout, Codec, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Q1_0,
    Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Q8K, Tq1_0, Tq2_0,
};
use encode::{BlockEncode, BlockEncoder, BlockFinder, GridBlock, GridFinder, RowEncoder};
use std::marker::PhantomData;

/// A type of ggml.
#[derive(Debug)]
pub struct BlockFormat {
    /// Its number in files.
    pub id: u32,
    /// Its name in ggml, as in `Q4_K`.
    pub name: &'static str,
    /// Number of elements in a block.
    pub elements: u64,
    /// Size of a block in bytes.
    pub bytes: u64,
    /// The type of the elements, if they are plain numbers.
    pub dtype: Option<Dtype>,
    /// The codec of blocks, if the elements are no plain numbers.
    codec: Option<&'static dyn Codec>,
    /// The encoder of blocks, if there is one.
    encoder: Option<&'static dyn RowEncoder>,
    /// The search for blocks that decode to given values, if there is one.
    finder: Option<&'static dyn BlockFinder>,
}

impl BlockFormat {
    /// Returns the format with a number; `None` if ggml has none.
    #[must_use]
    pub fn by_id(id: u32) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.id == id)
    }

    /// Returns the format of plain numbers of a type; `None` if ggml has none.
    #[must_use]
    pub fn plain(dtype: Dtype) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.dtype == Some(dtype))
    }

    /// Returns the bytes of a number of elements; `None` if they are no whole blocks, or too many.
    #[must_use]
    pub fn size(&self, elements: u64) -> Option<u64> {
        elements.is_multiple_of(self.elements).then(|| (elements / self.elements).checked_mul(self.bytes))?
    }

    /// Decodes whole blocks to little endian float32, bfloat16, float16 or float64.
    ///
    /// The first three are the float32 values of ggml, multiplied by `factor` in float32, and rounded once to the target,
    /// to nearest even. float64 values are exact, multiplied by `factor` in float64. A plain number that float32 cannot
    /// hold is rounded to it first; a cast by a [`Kernel`](crate::kernel::Kernel) rounds it once.
    ///
    /// Returns true if a result is infinite or NaN, or is 0 although the value without `factor` is not. There is only one
    /// NaN, which is positive and quiet.
    ///
    /// # Panics
    /// When `blocks` is not a whole number of blocks, `out` has another length than its values, or the target is another
    /// type.
    pub fn decode(&self, isa: Isa, blocks: &[u8], factor: Option<f32>, target: Dtype, out: &mut [u8]) -> bool {
        let is_float = matches!(target, Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16 | Dtype::Float64);
        assert!(is_float, "blocks are not decoded to {target}");
        let elements = self.elements_in(blocks);
        assert_eq!(out.len(), elements * target.bits() as usize / 8, "the output has another length");
        decode::decode(self, isa, blocks, factor, target, out)
    }

    /// Returns the number of elements in whole blocks.
    fn elements_in(&self, blocks: &[u8]) -> usize {
        let bytes = self.bytes as usize;
        assert!(blocks.len().is_multiple_of(bytes), "{} bytes are no whole blocks of {}", blocks.len(), self.name);
        blocks.len() / bytes * self.elements as usize
    }
}

/// Two formats are equal if they are the same row.
impl PartialEq for BlockFormat {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for BlockFormat {}

const fn plain(id: u32, name: &'static str, bytes: u64, dtype: Dtype) -> BlockFormat {
    BlockFormat { id, name, elements: 1, bytes, dtype: Some(dtype), codec: None, encoder: None, finder: None }
}

/// Returns the row of blocks of type `B`, with `E` elements in `G` groups.
const fn blocks<B: BlockLayout<E, G>, const E: usize, const G: usize>(
    id: u32,
    name: &'static str,
    bytes: usize,
) -> BlockFormat {
    assert!(size_of::<B>() == bytes, "the fields of the type have another size");
    let codec: &BlockCodec<B, E, G> = &BlockCodec(PhantomData);
    BlockFormat {
        id,
        name,
        elements: E as u64,
        bytes: bytes as u64,
        dtype: None,
        codec: Some(codec),
        encoder: None,
        finder: None,
    }
}

/// Returns the row of blocks that can also be encoded.
const fn encoded<B: BlockLayout<E, G> + BlockEncode<E>, const E: usize, const G: usize>(
    id: u32,
    name: &'static str,
    bytes: usize,
) -> BlockFormat {
    let encoder: &BlockEncoder<B, E> = &BlockEncoder(PhantomData);
    BlockFormat { encoder: Some(encoder), ..blocks::<B, E, G>(id, name, bytes) }
}

/// Returns the row of blocks that can also be found in the values that they decode to.
const fn found<B: GridBlock<E, G> + BlockEncode<E>, const E: usize, const G: usize>(
    id: u32,
    name: &'static str,
    bytes: usize,
) -> BlockFormat {
    let finder: &GridFinder<B, E, G> = &GridFinder(PhantomData);
    BlockFormat { finder: Some(finder), ..encoded::<B, E, G>(id, name, bytes) }
}

/// All formats. `Q8_K` and `Q8_1` exist only in the memory of ggml, but files could hold `Q8_K`.
pub static FORMATS: &[BlockFormat] = &[
    plain(0, "F32", 4, Dtype::Float32),
    plain(1, "F16", 2, Dtype::Float16),
    found::<Q4_0, 32, 1>(2, "Q4_0", 18),
    encoded::<Q4_1, 32, 1>(3, "Q4_1", 20),
    found::<Q5_0, 32, 1>(6, "Q5_0", 22),
    encoded::<Q5_1, 32, 1>(7, "Q5_1", 24),
    found::<Q8_0, 32, 1>(8, "Q8_0", 34),
    encoded::<Q2K, 256, 16>(10, "Q2_K", 84),
    encoded::<Q3K, 256, 16>(11, "Q3_K", 110),
    encoded::<Q4K, 256, 8>(12, "Q4_K", 144),
    encoded::<Q5K, 256, 8>(13, "Q5_K", 176),
    encoded::<Q6K, 256, 16>(14, "Q6_K", 210),
    blocks::<Q8K, 256, 1>(15, "Q8_K", 292),
    blocks::<Iq2Xxs, 256, 8>(16, "IQ2_XXS", 66),
    blocks::<Iq2Xs, 256, 16>(17, "IQ2_XS", 74),
    blocks::<Iq3Xxs, 256, 8>(18, "IQ3_XXS", 98),
    blocks::<Iq1S, 256, 8>(19, "IQ1_S", 50),
    found::<Iq4Nl, 32, 1>(20, "IQ4_NL", 18),
    blocks::<Iq3S, 256, 8>(21, "IQ3_S", 110),
    blocks::<Iq2S, 256, 16>(22, "IQ2_S", 82),
    encoded::<Iq4Xs, 256, 8>(23, "IQ4_XS", 136),
    plain(24, "I8", 1, Dtype::Int8),
    plain(25, "I16", 2, Dtype::Int16),
    plain(26, "I32", 4, Dtype::Int32),
    plain(27, "I64", 8, Dtype::Int64),
    plain(28, "F64", 8, Dtype::Float64),
    blocks::<Iq1M, 256, 16>(29, "IQ1_M", 56),
    plain(30, "BF16", 2, Dtype::Bfloat16),
    found::<Tq1_0, 256, 1>(34, "TQ1_0", 54),
    found::<Tq2_0, 256, 1>(35, "TQ2_0", 66),
    found::<Mxfp4, 32, 1>(39, "MXFP4", 17),
    found::<Nvfp4, 64, 4>(40, "NVFP4", 36),
    blocks::<Q1_0, 128, 1>(41, "Q1_0", 18),
    blocks::<Q2_0, 64, 1>(42, "Q2_0", 18),
];

/// Formats that ggml removed: the numbers and their names.
pub static REMOVED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];
