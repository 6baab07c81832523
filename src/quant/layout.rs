//! A row of the table of layouts: the storage of a quantized weight in a library, and the steps that compute its
//! values.

use super::rules::Encoding;
use crate::dtype::Dtype;
use crate::text::shorten;

/// The role of a tensor in a quantized weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Narrow numbers that represent the values.
    Codes,
    /// The codes of the second of two tensors that a weight is assembled from (GGUF).
    OtherCodes,
    /// The factor of the codes: a number for each group of elements.
    Scale,
    /// The scale of the scales: a number for the tensor.
    GlobalScale,
    /// The code that represents 0, for each group.
    ZeroPoint,
    /// The scale of each row, which multiplies integers (`ComfyUI`).
    RowScale,
    /// The number added to the products of each group (MLX, `ComfyUI`).
    Offset,
    /// The group of each column: activation order.
    GroupIndex,
    /// The values of the 16 codes of bitsandbytes, or the levels of `ComfyUI`.
    CodeMap,
    /// The scales of scales that are codes themselves (bitsandbytes), one for each 256 scales.
    NestedScale,
    /// The values of the 256 codes of such scales.
    NestedMap,
    /// The shape of the weight; it becomes [`super::Parameters::shape`].
    Shape,
    /// JSON in bytes with more about the weight: bitsandbytes' `quant_state`, `ComfyUI`'s `comfy_quant`.
    Description,
    /// The scale of activations; no value of the weight depends on it.
    Activation,
}

impl Role {
    /// The name of the part in messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Codes => "codes",
            Self::OtherCodes => "other codes",
            Self::Scale => "scales",
            Self::GlobalScale => "global scale",
            Self::RowScale => "scales of rows",
            Self::ZeroPoint => "zero points",
            Self::Offset => "offsets",
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

/// The names of one weight's parts: a common stem and a suffix for each. The parts that the layout needs always exist,
/// other parts only if necessary.
pub type Names = &'static [(Role, &'static str)];

/// Returns the suffix of the part with a role.
pub(super) fn suffix(names: Names, wanted: Role) -> Option<&'static str> {
    names.iter().find(|(role, _)| *role == wanted).map(|(_, suffix)| *suffix)
}

/// The elements of the decoded weight that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// A whole matrix.
    Tensor,
    /// A row.
    Channel,
    /// A rectangle of rows and columns; rectangles at the edges may be partial.
    Block([u64; 2]),
    /// This many adjacent elements of a row.
    Neighbours(u64),
}

impl Group {
    /// Returns the group for a size along a row, as given in a config. A size that is not positive stands for the whole
    /// row.
    pub(super) fn of_size(size: i64) -> Self {
        if size > 0 { Self::Neighbours(size as u64) } else { Self::Channel }
    }

    /// Returns the rows and columns of the group in a matrix of this shape.
    pub(super) fn lengths(self, [rows, columns]: [u64; 2]) -> [u64; 2] {
        match self {
            Self::Tensor => [rows, columns],
            Self::Channel => [1, columns],
            Self::Block(block) => block,
            Self::Neighbours(count) => [1, count],
        }
    }

    /// In the row of a layout: neighbours of any number.
    pub const ANY_NEIGHBOURS: Self = Self::Neighbours(0);

    /// In the row of a layout: rectangles of any size.
    pub const ANY_BLOCK: Self = Self::Block([0, 0]);

    /// True if the groups differ in nothing but their size.
    pub fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// The value that a code represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeValues {
    /// A number of the dtype of the stored tensor: a float of 8 bits or int8; ONNX has more types.
    Stored,
    /// A float of fewer than 8 bits.
    Float(Dtype),
    /// [`CodeValues::Float`], where negative zero reads as positive (`ModelOpt`'s NVFP4).
    FloatWithoutNegativeZero(Dtype),
    /// A signed integer of fewer than 8 bits.
    Signed(Dtype),
    /// An unsigned integer of [`super::Parameters::bits`] bits, minus the zero point.
    Unsigned,
    /// An entry of [`Role::CodeMap`], or without one an unsigned integer minus half of its range (`ComfyUI`).
    Levels,
    /// An entry of [`Role::CodeMap`].
    Map,
    /// A number of the format in [`super::Parameters::blocks`], whose blocks hold codes and scales (GGUF).
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Each row is a stream of bits, low bits of a byte first, padded to a multiple of this many bytes.
    Rows(u64),
    /// The same as blocks of the codes of a group: [.., rows, groups, bytes]. The last block is padded.
    Blocks,
    /// Like `Rows(1)`, but the high four bits of a byte are the first of two codes (`ComfyUI`'s NVFP4).
    RowsHighFirst,
    /// Each row is the low four bits of all codes as in `Rows(1)`, and then their upper two bits, if they have them.
    Planes,
    /// One stream through all rows, the high four bits of a byte first (bitsandbytes).
    Flat,
    /// One stream through all rows, low bits of a byte first (ONNX).
    Stream,
    /// One stream through all rows, of `codes_in_bytes` codes in a row of bytes. Of codes of 3, 5, 6 and 7 bits, the
    /// first have the low bits of a byte each, and the rest of the bits hold the others (SDNQ). Codes of 8 bits have the
    /// shape of the weight, whose groups can be a dimension.
    Units,
    /// The rows of the transpose, as blocks of the codes of a group, low bits first: [.., columns, groups, bytes]
    /// (gpt-oss, ONNX Runtime). The last block is padded.
    TransposedBlocks,
    /// Each column of the transpose is a stream of bits in int32 words, low bits first: [columns * bits / 32, rows]
    /// (GPTQ). Codes of 3 bits may span two words.
    TransposedWords,
    /// Eight codes of a row of the transpose in an int32 word; the first is for column 0, and the others for columns 2,
    /// 4, 6, 1, 3, 5, 7: [columns, rows / 8] (AWQ, version `gemm`).
    AwqWords,
}

/// Returns the smallest number of codes of this width that fill whole words of 32 bits: 8 of 4 bits, 32 of 3 bits.
pub fn codes_in_words(bits: u32) -> u64 {
    32 >> bits.trailing_zeros()
}

/// Returns the smallest number of codes of this width that fill whole bytes: 2 of 4 bits, 8 of 3 bits.
pub(super) fn codes_in_bytes(bits: u32) -> u64 {
    8 >> bits.trailing_zeros()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeStorage {
    pub values: CodeValues,
    pub packing: Packing,
    pub dtypes: &'static [Dtype],
    /// Rows and columns are padded to a multiple of this (`ComfyUI`): a weight of another shape needs
    /// [`super::Parameters::shape`].
    pub padding: u64,
}

/// Interpretation of 8-bit scales that are exponents: byte b is 2^(b-127), except for the first and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exponents {
    /// 0 is 2^-127, 255 is infinity: the result of shifting the byte into a float's exponent (compressed-tensors,
    /// `ModelOpt`).
    Infinity,
    /// 0 is 2^-127; 255 is NaN if the dtype is `float8e8m0`, and infinity if it is `uint8` (transformers).
    ByDtype,
    /// 0 is 0, 255 is infinity (comfy-kitchen).
    Zero,
    /// All 256 bytes are powers of two: 255 is 2^128, which float32 does not hold (ldexp, gpt-oss).
    Ldexp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleOrder {
    /// Row-major, a row for each row of groups.
    #[default]
    Rows,
    /// Row-major, a row for each column of groups, as in the transpose (GPTQ, AWQ, gpt-oss).
    Transposed,
    /// In tiles of 128 x 4, row-major; within a tile, (r, c) is byte 16 * (r % 32) + 4 * (r / 32) + c. Incomplete tiles
    /// are padded (cuBLAS; `ComfyUI`).
    Swizzled,
    /// One for every group of codes of [`Packing::Flat`]; with a [`Role::NestedScale`], scales are codes themselves
    /// (bitsandbytes).
    Flat,
}

/// Effect of the global scale on the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combination {
    /// There is no global scale.
    Nothing,
    /// The scale is multiplied by it.
    Multiplier,
    /// The scale is divided by it.
    Divisor,
    /// The scale is multiplied by the global scale / 2688, if there is one (MLX). 2688 is the largest NVFP4 value, 6 * 448.
    OverLargest,
    /// There is no global scale; values are divided by 127 at the end (bitsandbytes' int8, whose scale is the largest
    /// value).
    Over127,
    /// The product of code and scale is rounded to an integer of at most 127, and multiplied by the scale of its row
    /// ([`Role::RowScale`]). The result is rounded to the target before it is rotated (`ComfyUI`).
    Levels,
}

impl Combination {
    /// True if there is a global scale.
    pub fn is_global(self) -> bool {
        matches!(self, Self::Multiplier | Self::Divisor | Self::OverLargest)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// No zero points: codes are numbers.
    None,
    /// As many as scales, in the codes' dtype, if the part exists; otherwise 0.
    Plain,
    /// Packed like the codes of [`Packing::Rows`], but along each column; half of the range if the part is missing.
    PackedDown,
    /// Packed along the rows of the transpose: [groups, rows * bits / 32] (GPTQ). See
    /// [`super::Parameters::zeros_are_one_less`].
    PackedTransposed,
    /// Packed like codes of [`Packing::AwqWords`]: [groups, rows / 8].
    Awq,
    /// Not zero points but [`Role::Offset`]: as many as scales, in their dtype. The library rounds the product to this
    /// dtype before it adds the offset, and the sum (MLX).
    Offset,
    /// Like `Offset`, but the product is not rounded before the offset is added (SDNQ).
    Fused,
    /// Like `Offset`, but in the order of the transpose, [groups, rows], if the part exists, and codes are centered. The
    /// types of products are those of the layout (`ComfyUI`).
    Added,
    /// As many as scales, in one stream of the codes' dtype, if the part exists; otherwise 0, or half of the range of
    /// [`CodeValues::Unsigned`] (ONNX).
    Stream,
    /// Packed along the columns of [`Packing::TransposedBlocks`], or the rows of [`Packing::Blocks`], low bits of a byte
    /// first: [columns, bytes]; half of the range if the part is missing (ONNX Runtime).
    PackedBlocks,
    /// As many as scales, in their order and dtype; half of the range if the part is missing. The products of codes and of
    /// zero points with scales are float32, and so is their difference (ONNX Runtime).
    Scaled,
}

impl Zeros {
    /// True if numbers are added to the products.
    pub(super) fn are_offsets(self) -> bool {
        self.are_stored_offsets() || self == Self::Scaled
    }

    /// True if they are a part of the weight.
    pub(super) fn are_stored_offsets(self) -> bool {
        matches!(self, Self::Offset | Self::Fused | Self::Added)
    }
}

/// The use of a rotation by a layout: see the module `rotation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationUse {
    Never,
    /// If the description of a weight says so.
    Optional,
    Always,
}

impl RotationUse {
    /// Returns the columns that are rotated together in rows of this length, if `size` are wanted.
    pub(crate) fn of_rows(self, size: Option<u64>, columns: u64) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::Optional => size.filter(|size| columns.is_multiple_of(*size)),
            Self::Always => size,
        }
    }
}

/// The type that a step of the arithmetic rounds to. Products have exact factors, so a step rounds once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    Float32,
    /// bfloat16, for every target.
    Bfloat16,
    /// The type of the stored scales.
    Scale,
    /// The type that the weight is decoded to.
    Target,
    /// float32, then the original type of the weight, [`super::Parameters::weight_dtype`].
    Weight,
    /// The type of the stored scales if the weight is decoded to it, and otherwise float32.
    Promoted,
}

/// The nodes of a graph that read the codes of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeNodes {
    /// They decode the weight, for nodes that compute with its values.
    Decoding,
    /// They multiply by the weight.
    Product,
    /// They take rows of a table.
    Table,
}

/// Storage of quantized weights in one library.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Layout {
    /// Its name in tcast.
    pub name: &'static str,
    /// The library, and the name of the layout in its config or documentation.
    pub library: &'static str,
    /// The classes of tensors that torchao names in the metadata of files.
    pub tensor_classes: &'static [&'static str],
    /// Its names in configs, with the name to write first; in descriptions of `ComfyUI`, a name for each dtype of codes.
    pub formats: &'static [&'static str],
    /// True if only a config identifies it, because the config gives the width of codes or declares zero points.
    pub needs_config: bool,
    pub names: &'static [Names],
    pub codes: CodeStorage,
    /// The elements that can share a scale. Of several groups, a weight has the one in [`super::Parameters::group`], or
    /// the one that the shapes imply; blocks are then 128 x 128.
    pub groups: &'static [Group],
    pub scale_dtypes: &'static [Dtype],
    /// Interpretation of scales that are exponents.
    pub exponents: Exponents,
    pub scale_order: ScaleOrder,
    /// Effect of the global scale on the scales.
    pub global: Combination,
    pub zeros: Zeros,
    pub rotation: RotationUse,
    /// Columns that kernels of the library multiply together: a multiple of it is needed.
    pub column_multiple: u64,
    /// The type that scales, the global scale and their product are rounded to: float32 or the target.
    pub scale_precision: Precision,
    /// The type that the product of code and scale is rounded to, before it is converted to the target.
    pub product_precision: Precision,
    /// Conversion of values to codes and scales; `None` if tcast only reads the layout.
    pub encoding: Option<Encoding>,
    /// A part that every weight has, besides codes and scales: without it, padding would be decoded as values.
    pub needs: Option<Role>,
    /// True if layouts of other libraries have the same names with `.weight_scale`, so that only a config identifies it.
    pub shares_names: bool,
    /// True if it is for diffusion models.
    pub is_diffusion: bool,
    /// True if groups at the edges of a weight may be partial, whatever their size, of those that tcast writes too.
    pub partial_groups: bool,
    /// A type of scales, besides the one it is written with, in which moved scales stay.
    pub kept_scales: Option<Dtype>,
    /// The nodes of a model's graph that read the parts, if these are tensors of a graph. Scales and zero points may then
    /// be lists of the same length.
    pub nodes: Option<CodeNodes>,
    /// True if the library stacks the experts of a layer in one tensor, and divides no stack when it loads.
    pub stacks_experts: bool,
    /// True if the library has other names for the parts of a model that consists of several.
    pub renames_parts: bool,
    /// True if a bank of experts holds the rows of two modules in turn.
    pub interleaves_experts: bool,
    /// The layout of the same parts without the transposition of the library: [.., out, in].
    pub untransposed: Option<&'static Layout>,
    /// The value of the metadata key `format` in files that the library loads.
    pub mark: &'static str,
}

impl Layout {
    /// Returns the group of all weights, if it is always the same.
    pub fn fixed_group(&self) -> Option<Group> {
        match *self.groups {
            [Group::ANY_NEIGHBOURS | Group::ANY_BLOCK] => None,
            [only] => Some(only),
            _ => None,
        }
    }

    /// True if weights can have this group.
    pub fn has_group(&self, group: Group) -> bool {
        let any = [Group::ANY_NEIGHBOURS, Group::ANY_BLOCK];
        self.groups.iter().any(|own| *own == group || any.contains(own) && own.is_like(group))
    }

    /// True if weights can have a group like this one, of some size.
    pub(super) fn has_group_like(&self, group: Group) -> bool {
        self.groups.iter().any(|own| own.is_like(group))
    }

    /// True if the library of another layout decodes the same codes and scales, of this dtype, to the same bits.
    pub fn rounds_like(&self, other: &Self, scale: Dtype) -> bool {
        let of_scale = |precision| match precision {
            Precision::Scale if scale == Dtype::Float32 => Precision::Float32,
            precision => precision,
        };
        let precisions = |layout: &Self| [layout.scale_precision, layout.product_precision].map(of_scale);
        // A sum with an offset is rounded once more.
        let has_offsets = |layout: &Self| layout.zeros == Zeros::Offset;
        precisions(self) == precisions(other) && has_offsets(self) == has_offsets(other)
    }

    /// True if a group index has the groups of rows.
    pub(super) fn has_row_index(&self) -> bool {
        self.codes.packing == Packing::TransposedBlocks
    }

    /// True if only a tensor `scaled_fp8` in the file identifies it (older models of `ComfyUI`).
    pub(super) fn has_marker(&self) -> bool {
        self.is_diffusion && self.formats.is_empty()
    }

    /// Returns the name of the part with a role, given the name of the codes.
    pub(super) fn part_name(&self, role: Role, codes: &str) -> Option<String> {
        let name = |names: &Names| {
            Some(format!("{}{}", codes.strip_suffix(suffix(names, Role::Codes)?)?, suffix(names, role)?))
        };
        self.names.iter().find_map(name)
    }

    /// True if the library knows a part both of a stack of experts, as `x.experts.gate_up_proj` and a suffix, and of a single
    /// expert, as `x.experts.0.gate_proj.weight` and the same suffix.
    pub(crate) fn has_stacks(&self, role: Role, end: &str) -> bool {
        let has = |codes: &str| {
            let of_codes = |names: &&Names| suffix(names, Role::Codes) == Some(codes);
            let mut own = self.names.iter().filter(of_codes).filter_map(|names| suffix(names, role));
            own.any(|own| own.strip_prefix(codes) == Some(end))
        };
        self.nodes.is_none() && has("") && has(".weight")
    }

    /// Describes a missing part, with its expected name.
    pub(super) fn describe_missing(&self, role: Role, codes: &str) -> String {
        let name =
            self.part_name(role, codes).filter(|_| !codes.is_empty()).map(|name| format!(" '{}'", shorten(&name)));
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

/// Compares texts in a constant, where `==` does not work yet.
pub(super) const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}
