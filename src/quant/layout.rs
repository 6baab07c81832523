//! What a row of the table of layouts says: how a library stores a quantized weight, and in which steps it computes the
//! values.

use super::rules::Encoding;
use crate::dtype::Dtype;
use crate::text::shorten;

/// What a tensor is to a quantized weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The narrow numbers that stand for the values.
    Codes,
    /// What codes are multiplied with: a number for each group of elements.
    Scale,
    /// The scale of the scales: a number for the tensor.
    GlobalScale,
    /// For each group the code that means 0.
    ZeroPoint,
    /// For each column the group that it belongs to: activation order.
    GroupIndex,
    /// The values of the 16 codes of bitsandbytes.
    CodeMap,
    /// Where scales are codes themselves (bitsandbytes): the scale of 256 of them.
    NestedScale,
    /// Likewise, the values of their 256 codes.
    NestedMap,
    /// The shape of the weight. Its content goes into [`super::Parameters::shape`].
    Shape,
    /// JSON in bytes that says more about the weight: bitsandbytes' `quant_state`, `ComfyUI`'s `comfy_quant`.
    Description,
    /// The scale of activations, which no value of the weight depends on.
    Activation,
}

impl Role {
    /// What the part is called in messages.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Codes => "codes",
            Self::Scale => "scales",
            Self::GlobalScale => "global scale",
            Self::ZeroPoint => "zero points",
            Self::GroupIndex => "group index",
            Self::CodeMap => "map of codes",
            Self::NestedScale => "scales of the scales",
            Self::NestedMap => "map of the scales",
            Self::Shape => "shape",
            Self::Description => "description",
            Self::Activation => "activation scale",
        }
    }
}

/// How the parts of one weight are called: each a common stem and a suffix. Those of the roles that the layout needs are
/// always there, others where they have something to say.
pub type Names = &'static [(Role, &'static str)];

/// The elements that share a scale, in the weight as it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// All of a matrix.
    Tensor,
    /// A row.
    Channel,
    /// A rectangle of so many rows and columns; those at the edges may be partial.
    Block([u64; 2]),
    /// So many neighbours in a row.
    Neighbours(u64),
}

impl Group {
    /// Which kind it is.
    #[must_use]
    pub fn kind(self) -> GroupKind {
        match self {
            Self::Tensor => GroupKind::Tensor,
            Self::Channel => GroupKind::Channel,
            Self::Block(_) => GroupKind::Block,
            Self::Neighbours(_) => GroupKind::Neighbours,
        }
    }
}

/// A [`Group`] without its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// All of a matrix.
    Tensor,
    /// A row.
    Channel,
    /// A rectangle.
    Block,
    /// Neighbours in a row.
    Neighbours,
}

/// Which groups a layout has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Always this.
    Fixed(Group),
    /// One of these kinds: what [`super::Parameters::group`] says, or else what the shapes allow, where blocks are
    /// 128 x 128 or nothing.
    Any(&'static [GroupKind]),
}

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeValues {
    /// A number of the dtype of the stored tensor: a float of 8 bits, or int8.
    Stored,
    /// A float of fewer than 8 bits.
    Float(Dtype),
    /// As [`CodeValues::Float`], and negative zero reads as positive (`ModelOpt`'s NVFP4).
    FloatWithoutNegativeZero(Dtype),
    /// An unsigned integer of [`super::Parameters::bits`] bits, less the zero point.
    Unsigned,
    /// An entry of [`Role::CodeMap`].
    Map,
}

/// Where the codes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Each row a stream of bits, the low bits of a byte first, filled up to a multiple of so many bytes.
    Rows(u64),
    /// As `Rows(1)`, and the high four bits of a byte are the first of two codes (`ComfyUI`'s NVFP4).
    RowsHighFirst,
    /// One stream through all rows, the high four bits of a byte first (bitsandbytes).
    Flat,
    /// The rows of the transpose, as blocks of 32 codes in 16 bytes: [.., columns, rows / 32, 16] (gpt-oss).
    TransposedBlocks,
    /// Down each column of the transpose a stream of bits in int32 words, low bits first: [columns * bits / 32, rows]
    /// (GPTQ). Codes of 3 bits may lie in two words.
    TransposedWords,
    /// Eight codes of a row of the transpose in an int32 word, of which the first is that of column 0, and
    /// the others those of columns 2, 4, 6, 1, 3, 5, 7: [columns, rows / 8] (AWQ, version `gemm`).
    AwqWords,
}

/// How codes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeStorage {
    /// What a code means.
    pub values: CodeValues,
    /// Where it lies.
    pub packing: Packing,
    /// The dtypes of the stored tensor.
    pub dtypes: &'static [Dtype],
    /// Rows and columns are filled up to a multiple of this (`ComfyUI`): a weight of another shape needs
    /// [`super::Parameters::shape`].
    pub padding: u64,
}

/// How scales of 8 bits that are exponents are read: byte b is 2^(b-127), but for the first and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exponents {
    /// 0 is 2^-127, 255 infinity: what shifting the byte into a float's exponent gives (compressed-tensors, `ModelOpt`).
    Infinity,
    /// 0 is 2^-127; 255 is NaN where the dtype is `float8e8m0`, and infinity where it is `uint8` (transformers).
    ByDtype,
    /// 0 is 0, 255 infinity (comfy-kitchen).
    Zero,
    /// All 256 bytes are powers of two: 255 is 2^128, although no float32 (ldexp, gpt-oss).
    Ldexp,
}

/// In which order scales lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleOrder {
    /// Row-major, a row for each row of groups.
    Rows,
    /// Row-major, a row for each column of groups: of the transpose (GPTQ, AWQ, gpt-oss).
    Transposed,
    /// In tiles of 128 x 4, row-major; within a tile, (r, c) is byte 16 * (r % 32) + 4 * (r / 32) + c, and what is
    /// missing is filled up (cuBLAS; `ComfyUI`).
    Swizzled,
    /// One for each so many codes of [`Packing::Flat`], which are themselves codes where there is a
    /// [`Role::NestedScale`] (bitsandbytes).
    Flat,
}

/// How the global scale changes the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combination {
    /// There is none.
    Nothing,
    /// They are multiplied.
    Multiplier,
    /// The scale is divided by it.
    Divisor,
    /// There is none, and values are divided by 127 in the end (bitsandbytes' int8, whose scale is the largest value).
    Over127,
}

/// Where zero points are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// Nowhere: codes are numbers.
    None,
    /// As many as scales and of the codes' dtype, where the part exists; else 0.
    Plain,
    /// Packed as the codes of [`Packing::Rows`], but down each column; where the part is missing, half of the range.
    PackedDown,
    /// Packed along the rows of the transpose: [groups, rows * bits / 32] (GPTQ). See
    /// [`super::Parameters::zeros_are_one_less`].
    PackedTransposed,
    /// As codes of [`Packing::AwqWords`]: [groups, rows / 8].
    Awq,
}

/// The type that a step of the arithmetic rounds to. Products are made of exact factors, so that a step rounds once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// float32.
    Float32,
    /// bfloat16, whatever is wanted.
    Bfloat16,
    /// The type of the stored scales.
    Scale,
    /// The type that the weight is decoded to.
    Target,
    /// float32, and then the type that the weight had before it was quantized, [`super::Parameters::weight_dtype`].
    Weight,
}

/// How one library stores quantized weights.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its name here.
    pub name: &'static str,
    /// Whose it is, as their config or documentation calls it.
    pub library: &'static str,
    /// How the parts are called.
    pub names: &'static [Names],
    /// How the codes are stored.
    pub codes: CodeStorage,
    /// Which elements share a scale.
    pub groups: Groups,
    /// The dtypes of the scales.
    pub scale_dtypes: &'static [Dtype],
    /// How scales that are exponents are read.
    pub exponents: Exponents,
    /// In which order scales lie.
    pub scale_order: ScaleOrder,
    /// How the global scale changes them.
    pub global: Combination,
    /// Where zero points are.
    pub zeros: Zeros,
    /// What scales, the global scale and their product are rounded to: float32 or the target.
    pub scale_precision: Precision,
    /// What the product of code and scale is rounded to, before it becomes the target.
    pub product_precision: Precision,
    /// How codes and scales are made of values; `None` where tcast only reads the layout.
    pub encoding: Option<Encoding>,
}

impl Layout {
    /// What the part of a role is called, of the weight whose codes have this name.
    pub(super) fn part_beside(&self, role: Role, codes: &str) -> Option<String> {
        let suffix = |names: Names, role| names.iter().find(|(known, _)| *known == role).map(|(_, suffix)| *suffix);
        let name = |names: &Names| {
            Some(format!("{}{}", codes.strip_suffix(suffix(names, Role::Codes)?)?, suffix(names, role)?))
        };
        self.names.iter().find_map(name)
    }

    /// A part that is not there, with the name that it would have.
    pub(super) fn describe_missing(&self, role: Role, codes: &str) -> String {
        let name =
            self.part_beside(role, codes).filter(|_| !codes.is_empty()).map(|name| format!(" '{}'", shorten(&name)));
        format!("{}{}", role.describe(), name.unwrap_or_default())
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tensor => f.write_str("a tensor"),
            Self::Channel => f.write_str("a row"),
            Self::Block([rows, columns]) => write!(f, "a block of {rows} x {columns}"),
            Self::Neighbours(count) => write!(f, "a group of {count}"),
        }
    }
}
