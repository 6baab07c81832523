//! Block formats: the types of ggml, which GGUF files store.
//!
//! A block holds the codes and scales of a few adjacent elements of a row, and a row is a whole number of blocks. A format
//! is a row of [`FORMATS`]: its number in files, its name, and the size of a block. Plain numbers are blocks of one
//! element. Names, numbers and sizes are those of ggml 0.26.0 (`ggml.h`, `ggml-common.h`).

mod assembly;

pub use assembly::{Assembly, RowOrder};

use crate::dtype::Dtype;

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
}

impl BlockFormat {
    /// Returns the format with a number; `None` if ggml has none.
    #[must_use]
    pub fn by_id(id: u32) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.id == id)
    }

    /// Returns the bytes of a number of elements; `None` if they are no whole blocks, or too many.
    #[must_use]
    pub fn size(&self, elements: u64) -> Option<u64> {
        elements.is_multiple_of(self.elements).then(|| (elements / self.elements).checked_mul(self.bytes))?
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
    BlockFormat { id, name, elements: 1, bytes, dtype: Some(dtype) }
}

const fn blocks(id: u32, name: &'static str, elements: u64, bytes: u64) -> BlockFormat {
    BlockFormat { id, name, elements, bytes, dtype: None }
}

/// All formats. `Q8_K` and `Q8_1` exist only in the memory of ggml, but files could hold `Q8_K`.
pub static FORMATS: &[BlockFormat] = &[
    plain(0, "F32", 4, Dtype::Float32),
    plain(1, "F16", 2, Dtype::Float16),
    blocks(2, "Q4_0", 32, 18),
    blocks(3, "Q4_1", 32, 20),
    blocks(6, "Q5_0", 32, 22),
    blocks(7, "Q5_1", 32, 24),
    blocks(8, "Q8_0", 32, 34),
    blocks(10, "Q2_K", 256, 84),
    blocks(11, "Q3_K", 256, 110),
    blocks(12, "Q4_K", 256, 144),
    blocks(13, "Q5_K", 256, 176),
    blocks(14, "Q6_K", 256, 210),
    blocks(15, "Q8_K", 256, 292),
    blocks(16, "IQ2_XXS", 256, 66),
    blocks(17, "IQ2_XS", 256, 74),
    blocks(18, "IQ3_XXS", 256, 98),
    blocks(19, "IQ1_S", 256, 50),
    blocks(20, "IQ4_NL", 32, 18),
    blocks(21, "IQ3_S", 256, 110),
    blocks(22, "IQ2_S", 256, 82),
    blocks(23, "IQ4_XS", 256, 136),
    plain(24, "I8", 1, Dtype::Int8),
    plain(25, "I16", 2, Dtype::Int16),
    plain(26, "I32", 4, Dtype::Int32),
    plain(27, "I64", 8, Dtype::Int64),
    plain(28, "F64", 8, Dtype::Float64),
    blocks(29, "IQ1_M", 256, 56),
    plain(30, "BF16", 2, Dtype::Bfloat16),
    blocks(34, "TQ1_0", 256, 54),
    blocks(35, "TQ2_0", 256, 66),
    blocks(39, "MXFP4", 32, 17),
    blocks(40, "NVFP4", 64, 36),
    blocks(41, "Q1_0", 128, 18),
    blocks(42, "Q2_0", 64, 18),
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
