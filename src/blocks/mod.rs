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

pub use assembly::{Assembly, RowOrder, ValueChange};
pub use encode::EncodeRefusal;
pub use explain::{BlockValue, CodeNumbers};
pub use importance::ImportanceMatrix;

use crate::dtype::Dtype;
use decode::{
    BlockCodec, BlockLayout, Codec, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Q1_0,
    Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Q8K, Tq1_0, Tq2_0,
};
use encode::{BlockEncode, BlockEncoder, GridBlock};
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
    /// The type of the scales in a block.
    pub scale: Dtype,
    /// The type of numbers that codes are, if there is one.
    pub codes: Option<Dtype>,
    /// True if a tensor of blocks has a scale of its own, too.
    pub has_global_scale: bool,
    /// The codec of blocks, if the elements are no plain numbers.
    codec: Option<&'static dyn Codec>,
    /// The encoder of blocks, if there is one.
    encoder: Option<BlockEncoder>,
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

/// The base of all rows.
const NO_BLOCKS: BlockFormat = BlockFormat {
    id: 0,
    name: "",
    elements: 1,
    bytes: 0,
    dtype: None,
    scale: Dtype::Float16,
    codes: None,
    has_global_scale: false,
    codec: None,
    encoder: None,
};

const fn plain(id: u32, name: &'static str, bytes: u64, dtype: Dtype) -> BlockFormat {
    let dtype = Some(dtype);
    BlockFormat { id, name, elements: 1, bytes, dtype, ..NO_BLOCKS }
}

/// Returns the row of blocks of type `B`, with `E` elements in `G` groups.
const fn blocks<B: BlockLayout<E, G>, const E: usize, const G: usize>(
    id: u32,
    name: &'static str,
    bytes: usize,
) -> BlockFormat {
    assert!(size_of::<B>() == bytes, "the fields of the type have another size");
    let codec: &BlockCodec<B, E, G> = &BlockCodec(PhantomData);
    let (elements, bytes) = (E as u64, bytes as u64);
    BlockFormat {
        id,
        name,
        elements,
        bytes,
        scale: B::SCALE,
        codes: B::CODES,
        has_global_scale: B::HAS_GLOBAL_SCALE,
        codec: Some(codec),
        ..NO_BLOCKS
    }
}

/// Returns the row of blocks that can also be encoded.
const fn with_encoder<B: BlockEncode<E, G>, const E: usize, const G: usize>(
    id: u32,
    name: &'static str,
    bytes: usize,
) -> BlockFormat {
    BlockFormat { encoder: Some(BlockEncoder::new::<B, E, G>()), ..blocks::<B, E, G>(id, name, bytes) }
}

/// Returns the row of blocks that can also be recovered from the values that they decode to.
const fn with_search<B: GridBlock<E, G>, const E: usize, const G: usize>(
    id: u32,
    name: &'static str,
    bytes: usize,
) -> BlockFormat {
    BlockFormat { encoder: Some(BlockEncoder::with_search::<B, E, G>()), ..blocks::<B, E, G>(id, name, bytes) }
}

/// All formats. `Q8_K` and `Q8_1` exist only in the memory of ggml, but files could hold `Q8_K`.
pub static FORMATS: &[BlockFormat] = &[
    plain(0, "F32", 4, Dtype::Float32),
    plain(1, "F16", 2, Dtype::Float16),
    with_search::<Q4_0, 32, 1>(2, "Q4_0", 18),
    with_encoder::<Q4_1, 32, 1>(3, "Q4_1", 20),
    with_search::<Q5_0, 32, 1>(6, "Q5_0", 22),
    with_encoder::<Q5_1, 32, 1>(7, "Q5_1", 24),
    with_search::<Q8_0, 32, 1>(8, "Q8_0", 34),
    with_encoder::<Q2K, 256, 16>(10, "Q2_K", 84),
    with_encoder::<Q3K, 256, 16>(11, "Q3_K", 110),
    with_encoder::<Q4K, 256, 8>(12, "Q4_K", 144),
    with_encoder::<Q5K, 256, 8>(13, "Q5_K", 176),
    with_encoder::<Q6K, 256, 16>(14, "Q6_K", 210),
    blocks::<Q8K, 256, 1>(15, "Q8_K", 292),
    blocks::<Iq2Xxs, 256, 8>(16, "IQ2_XXS", 66),
    blocks::<Iq2Xs, 256, 16>(17, "IQ2_XS", 74),
    blocks::<Iq3Xxs, 256, 8>(18, "IQ3_XXS", 98),
    blocks::<Iq1S, 256, 8>(19, "IQ1_S", 50),
    with_search::<Iq4Nl, 32, 1>(20, "IQ4_NL", 18),
    blocks::<Iq3S, 256, 8>(21, "IQ3_S", 110),
    blocks::<Iq2S, 256, 16>(22, "IQ2_S", 82),
    with_encoder::<Iq4Xs, 256, 8>(23, "IQ4_XS", 136),
    plain(24, "I8", 1, Dtype::Int8),
    plain(25, "I16", 2, Dtype::Int16),
    plain(26, "I32", 4, Dtype::Int32),
    plain(27, "I64", 8, Dtype::Int64),
    plain(28, "F64", 8, Dtype::Float64),
    blocks::<Iq1M, 256, 16>(29, "IQ1_M", 56),
    plain(30, "BF16", 2, Dtype::Bfloat16),
    with_search::<Tq1_0, 256, 1>(34, "TQ1_0", 54),
    with_search::<Tq2_0, 256, 1>(35, "TQ2_0", 66),
    with_search::<Mxfp4, 32, 1>(39, "MXFP4", 17),
    with_search::<Nvfp4, 64, 4>(40, "NVFP4", 36),
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
