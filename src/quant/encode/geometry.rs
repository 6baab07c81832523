//! The tensors that store a weight, and the byte ranges of its rows in them.

use super::super::layout::{
    CodeValues, Combination, Group, Layout, Packing, Role, RotationUse, ScaleOrder, Zeros, codes_in_words,
};
use super::super::rules::ScaleShape;
use super::super::scheme::{CodeType, TargetGrid};
use super::levels::LEVELS;
use crate::blocks::BlockFormat;
use crate::dtype::Dtype;
use std::fmt;
use std::ops::Range;

/// Reason why a grid cannot take a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Its dtype is not float32, bfloat16 or float16.
    Source(Dtype),
    /// It is not a matrix, nor a bank of matrices if the layout stores banks.
    Dimensions(Vec<u64>),
    /// It has no elements.
    Empty,
    /// The length of its rows is not a multiple of the group size.
    Columns {
        /// Values per row.
        columns: u64,
        /// The required divisor.
        multiple: u64,
    },
    /// The number of its rows is not a multiple of the block height.
    Rows {
        rows: u64,
        /// The required divisor.
        multiple: u64,
    },
    /// Its scales cannot be searched: a search takes NVFP4, MXFP4 and integers below 8 bits, in groups that are parts
    /// of a row.
    Search,
    /// The layout cannot store these codes and groups.
    Grid,
    /// The layout stores weights of `MatMul` nodes only, and another node uses this one.
    Operator,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(dtype) => write!(f, "its dtype is {dtype}"),
            Self::Dimensions(shape) => write!(f, "its shape {shape:?} is not that of a matrix"),
            Self::Empty => f.write_str("it has no elements"),
            Self::Columns { columns, multiple } => {
                write!(f, "its rows of {columns} values are not a multiple of {multiple}")
            }
            Self::Rows { rows, multiple } => write!(f, "its {rows} rows are not a multiple of {multiple}"),
            Self::Search => f.write_str(
                "tcast searches the scales of nvfp4, mxfp4 and integers below 8 bits only, in groups of one row",
            ),
            Self::Grid => f.write_str("the layout cannot store these codes and groups"),
            Self::Operator => {
                f.write_str("a node other than MatMul uses it, and the layout replaces MatMul nodes only")
            }
        }
    }
}

/// A tensor that an encoder writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPart {
    pub role: Role,
    /// The suffix of its name after the name of the module.
    pub suffix: &'static str,
    /// Type of the elements; of blocks, the type of their bytes.
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    /// The format of the blocks, in a GGUF file.
    pub format: Option<&'static BlockFormat>,
    /// Its bytes, if they do not depend on the values of the weight.
    pub(super) fixed: Option<Vec<u8>>,
}

impl EncodedPart {
    /// A part of numbers that depend on the values of the weight.
    pub(super) fn new(role: Role, suffix: &'static str, dtype: Dtype, shape: Vec<u64>) -> Self {
        Self { role, suffix, dtype, shape, format: None, fixed: None }
    }

    #[must_use]
    pub fn byte_len(&self) -> u64 {
        let count = self.shape.iter().product();
        self.format.map_or(self.dtype.packed_bytes(count), |format| format.size(count)).unwrap_or(u64::MAX)
    }

    /// Its bytes, if they do not depend on the values of the weight.
    pub(crate) fn fixed(&self) -> Option<&[u8]> {
        self.fixed.as_deref()
    }
}

/// The shape of a weight, and the parts that store it. Rows and columns refer to one matrix of the weight.
#[derive(Clone, Debug)]
pub(super) struct EncodeGeometry {
    pub(super) shape: Vec<u64>,
    /// The number of matrices, from the leading dimensions.
    pub(super) matrices: u64,
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Width of a code.
    pub(super) bits: u32,
    /// Bytes of a stored row of codes.
    pub(super) stride: u64,
    /// Rows and columns of a group.
    pub(super) block: [u64; 2],
    /// Rows and columns of groups in a matrix.
    pub(super) grid: [u64; 2],
    /// True if all groups share one scale.
    pub(super) is_tensor: bool,
    /// True if each column has a scale.
    pub(super) has_column_scales: bool,
    /// True if codes and zero points are a stream through all rows.
    pub(super) is_stream: bool,
    /// The padded rows and columns of a swizzled scale.
    pub(super) swizzled: Option<[u64; 2]>,
    /// Rows of words of packed zero points.
    pub(super) zero_words: Option<u64>,
    /// Bytes of the packed zero points of a row.
    pub(super) zero_bytes: Option<u64>,
    pub(super) parts: Vec<EncodedPart>,
}

/// A row of groups, or some of its rows.
#[derive(Clone, Debug)]
pub(super) struct Band {
    pub(super) matrix: usize,
    pub(super) rows: Range<usize>,
}

impl EncodeGeometry {
    pub(super) fn new(layout: &'static Layout, grid: &TargetGrid, shape: &[u64], source: Dtype) -> Result<Self, Unfit> {
        let encoding = layout.encoding.ok_or(Unfit::Grid)?;
        let padding = layout.codes.padding;
        let [leading @ .., rows, columns] = shape else { return Err(Unfit::Dimensions(shape.to_vec())) };
        if padding > 1 && !leading.is_empty() {
            return Err(Unfit::Dimensions(shape.to_vec()));
        }
        let (rows, columns) = (*rows, *columns);
        check_count(shape)?;
        let bits = grid.codes.bits();
        // 1. Groups.
        let block = grid.group.lengths([rows, columns]);
        check_groups(layout, grid, block, [rows, columns])?;
        // 2. Codes.
        let are_blocks = layout.codes.packing == Packing::TransposedBlocks;
        let stored_rows = rows.next_multiple_of(padding);
        let stored_columns = columns.next_multiple_of(if are_blocks { block[1] } else { padding });
        let (codes_dtype, stride) = code_rows(layout, grid, stored_columns)?;
        let code_shape = match layout.codes.packing {
            _ if are_blocks => {
                let groups = stored_columns / block[1];
                [leading, &[rows, groups, stride / groups.max(1)]].concat()
            }
            _ => [leading, &[stored_rows, stride * 8 / u64::from(codes_dtype.bits())]].concat(),
        };
        // 3. Scales.
        let beside = stored_columns.div_ceil(block[1]);
        let counts = [rows.div_ceil(block[0]), beside];
        let swizzled = (layout.scale_order == ScaleOrder::Swizzled)
            .then(|| [stored_rows.next_multiple_of(128), beside.next_multiple_of(4)]);
        let scale_dtype = grid.scale.unwrap_or(source);
        if !layout.scale_dtypes.contains(&scale_dtype) {
            return Err(Unfit::Grid);
        }
        let [below, _] = counts;
        let is_squeezed = encoding.scale_shape == ScaleShape::Squeezed;
        let scale_shape = match (grid.group, swizzled) {
            (_, Some(tiles)) => tiles.to_vec(),
            (Group::Tensor, None) if encoding.scale_shape == ScaleShape::Matrix => vec![1],
            (Group::Tensor, None) => Vec::new(),
            (Group::Channel, None) if is_squeezed => [leading, &[rows]].concat(),
            (Group::Block(_), None) if is_squeezed => [leading, &[below, 1, beside, 1]].concat(),
            _ => [leading, &[below, beside]].concat(),
        };
        let mut this = Self {
            shape: shape.to_vec(),
            matrices: leading.iter().product(),
            rows,
            columns,
            bits,
            stride,
            block,
            grid: counts,
            is_tensor: grid.group == Group::Tensor,
            has_column_scales: false,
            is_stream: false,
            swizzled,
            zero_words: None,
            zero_bytes: None,
            parts: Vec::new(),
        };
        this.add(layout, Role::Codes, codes_dtype, code_shape, None)?;
        this.add(layout, Role::Scale, scale_dtype, scale_shape, None)?;
        this.add_others(layout, grid)?;
        Ok(this)
    }

    /// Adds the parts other than codes and scales.
    fn add_others(&mut self, layout: &'static Layout, grid: &TargetGrid) -> Result<(), Unfit> {
        let encoding = layout.encoding.ok_or(Unfit::Grid)?;
        if layout.zeros == Zeros::Offset {
            let EncodedPart { dtype, shape, .. } = &self.parts[1];
            return self.add(layout, Role::Offset, *dtype, shape.clone(), None);
        }
        let is_packed = layout.codes.values == CodeValues::Unsigned;
        let [leading @ .., _, _] = &self.shape[..] else { return Err(Unfit::Grid) };
        let leading = leading.to_vec();
        if let CodeType::Int { symmetric: false, .. } = grid.codes {
            if layout.zeros == Zeros::PackedBlocks {
                let bytes = (self.grid[1] * u64::from(self.bits)).div_ceil(8);
                self.zero_bytes = Some(bytes);
                self.add(layout, Role::ZeroPoint, Dtype::Uint8, vec![self.rows, bytes], None)?;
            } else if is_packed {
                let words = (self.rows * u64::from(self.bits)).div_ceil(32);
                self.zero_words = Some(words);
                self.add(layout, Role::ZeroPoint, Dtype::Int32, [&leading[..], &[words, self.grid[1]]].concat(), None)?;
            } else {
                let shape = self.parts[1].shape.clone();
                self.add(layout, Role::ZeroPoint, Dtype::Int8, shape, None)?;
            }
        }
        if is_packed && layout.names[0].iter().any(|(role, _)| *role == Role::Shape) {
            let shape: Vec<u8> = self.shape.iter().flat_map(|length| length.to_le_bytes()).collect();
            self.add(layout, Role::Shape, Dtype::Int64, vec![shape.len() as u64 / 8], Some(shape))?;
        }
        if layout.global == Combination::Levels {
            let rows = [&leading[..], &[self.rows]].concat();
            self.add(layout, Role::RowScale, Dtype::Float32, rows, None)?;
            if self.bits == 4 {
                let table = LEVELS.iter().flat_map(|level| level.to_le_bytes()).collect();
                self.add(layout, Role::CodeMap, Dtype::Float32, vec![LEVELS.len() as u64], Some(table))?;
            }
        }
        if encoding.scale.global.is_some() {
            let shape = if encoding.scale_shape == ScaleShape::Matrix { vec![1] } else { Vec::new() };
            self.add(layout, Role::GlobalScale, Dtype::Float32, shape, None)?;
        }
        if layout.names[0].iter().any(|(role, _)| *role == Role::Description) {
            let at = layout.codes.dtypes.iter().position(|dtype| *dtype == self.parts[0].dtype);
            let format = at.and_then(|at| layout.formats.get(at)).ok_or(Unfit::Grid)?;
            let bytes = format!("{{\"format\":\"{format}\"}}").into_bytes();
            self.add(layout, Role::Description, Dtype::Uint8, vec![bytes.len() as u64], Some(bytes))?;
        }
        Ok(())
    }

    /// Adds the scale of activations if weights have a global scale. It is stored in the same form, as a divisor or a
    /// multiplier.
    pub(super) fn add_input_scale(&mut self, layout: &'static Layout, scale: f32) -> Result<(), Unfit> {
        let Some(global) = self.parts.iter().find(|part| part.role == Role::GlobalScale) else { return Ok(()) };
        let shape = global.shape.clone();
        let stored = if layout.global == Combination::Divisor { scale } else { 1.0 / scale };
        self.add(layout, Role::Activation, Dtype::Float32, shape, Some(stored.to_le_bytes().to_vec()))
    }

    /// Adds multiplication in full precision to the description of `ComfyUI`.
    pub(super) fn describe_full_precision(&mut self) {
        self.describe(",\"full_precision_matrix_mult\":true");
    }

    /// Adds the size of groups, and the columns that are rotated together, to the description of `ComfyUI`.
    pub(super) fn describe_rotation(&mut self, layout: &Layout, rotation: Option<u64>) {
        if layout.groups == [Group::ANY_NEIGHBOURS] {
            self.describe(&format!(",\"group_size\":{}", self.block[1]));
        }
        let said = if layout.rotation == RotationUse::Optional { ",\"convrot\":true" } else { "" };
        if let Some(size) = rotation {
            self.describe(&format!("{said},\"convrot_groupsize\":{size}"));
        }
    }

    /// Adds members to the description of `ComfyUI`.
    fn describe(&mut self, members: &str) {
        let description = self.parts.iter_mut().find(|part| part.role == Role::Description);
        let Some(EncodedPart { fixed: Some(text), shape, .. }) = description else { return };
        text.truncate(text.len() - 1);
        text.extend(members.as_bytes());
        text.push(b'}');
        *shape = vec![text.len() as u64];
    }

    fn add(
        &mut self,
        layout: &'static Layout,
        role: Role,
        dtype: Dtype,
        shape: Vec<u64>,
        fixed: Option<Vec<u8>>,
    ) -> Result<(), Unfit> {
        let mut names = layout.names[0].iter();
        let (_, suffix) = names.find(|(known, _)| *known == role).ok_or(Unfit::Grid)?;
        self.parts.push(EncodedPart { fixed, ..EncodedPart::new(role, suffix, dtype, shape) });
        Ok(())
    }

    pub(super) fn all_rows(&self) -> u64 {
        self.matrices * self.rows
    }

    /// Splits a range of rows into its rows of groups.
    pub(super) fn bands(&self, rows: &Range<u64>) -> impl Iterator<Item = Band> + use<> {
        let (height, below) = (self.rows as usize, self.block[0] as usize);
        let (mut row, end) = (rows.start as usize, rows.end as usize);
        std::iter::from_fn(move || {
            if row == end {
                return None;
            }
            let (matrix, within) = (row / height, row % height);
            let count = (below - within % below).min(height - within).min(end - row);
            row += count;
            Some(Band { matrix, rows: within..within + count })
        })
    }

    /// Returns the position of some columns of a row of a matrix among the elements of a range of rows.
    #[inline(always)]
    pub(super) fn source_range(
        &self,
        rows: &Range<u64>,
        matrix: usize,
        row: usize,
        columns: Range<usize>,
    ) -> Range<usize> {
        let start = (matrix * self.rows as usize + row - rows.start as usize) * self.columns as usize;
        start + columns.start..start + columns.end
    }

    /// Returns the index of an element in the whole weight.
    pub(super) fn element(&self, matrix: usize, row: usize, column: usize) -> u64 {
        (matrix as u64 * self.rows + row as u64) * self.columns + column as u64
    }

    /// Returns the number of rows at whose multiples ranges of rows must start.
    pub(super) fn row_alignment(&self) -> u64 {
        if self.is_stream {
            return self.stream_alignment();
        }
        let mut alignment = if self.is_tensor { 1 } else { self.block[0] };
        if self.swizzled.is_some() {
            alignment = 128;
        }
        if self.zero_words.is_some() {
            alignment = codes_in_words(self.bits); // zero points of a column
        }
        // Rows of groups restart in each matrix. If that breaks the alignment, ranges hold whole matrices.
        if self.matrices > 1 && !self.rows.is_multiple_of(alignment) { self.rows } else { alignment }
    }

    /// Returns the byte range of rows within each part. Bytes that belong to no row come with the first row.
    pub(super) fn part_ranges(&self, rows: &Range<u64>) -> Vec<Range<u64>> {
        // The first row of groups that starts at this row or below it.
        let below = |row: u64, height: u64, count: u64| row / self.rows * count + (row % self.rows).div_ceil(height);
        let [is_first, is_last] = [rows.start == 0, rows.end == self.all_rows()];
        let range = |part: &EncodedPart| {
            let all = part.byte_len();
            let lines = |height: u64, count: u64, line: u64| {
                let [start, end] = [rows.start, rows.end].map(|row| below(row, height, count) * line);
                start..if is_last { all } else { end }
            };
            let width = u64::from(part.dtype.bits() / 8);
            match (part.role, self.swizzled) {
                _ if rows.is_empty() => 0..0,
                (Role::Codes | Role::ZeroPoint, _) if self.is_stream => {
                    let (height, count, line) = match part.role {
                        Role::Codes => (1, self.rows, self.columns),
                        _ => (self.block[0], self.grid[0], self.grid[1]),
                    };
                    let [start, end] = [rows.start, rows.end].map(|row| below(row, height, count) * line);
                    let bits = u64::from(self.bits);
                    start * bits / 8..if is_last { all } else { end * bits / 8 }
                }
                (Role::Codes, _) => lines(1, self.rows, self.stride),
                (Role::Scale, Some([_, columns])) => lines(128, self.rows.div_ceil(128), 128 * columns),
                (Role::ZeroPoint, _) if self.zero_words.is_some() => {
                    let words = self.zero_words.unwrap_or_default();
                    let start = |row: u64| {
                        let words = row / self.rows * words + (row % self.rows * u64::from(self.bits)).div_ceil(32);
                        words * self.grid[1] * width
                    };
                    start(rows.start)..if is_last { all } else { start(rows.end) }
                }
                (Role::RowScale, _) => lines(1, self.rows, width),
                (Role::ZeroPoint, _) if self.zero_bytes.is_some() => {
                    lines(1, self.rows, self.zero_bytes.unwrap_or_default())
                }
                (Role::Scale | Role::ZeroPoint | Role::Offset, _) if !self.is_tensor && !self.has_column_scales => {
                    lines(self.block[0], self.grid[0], self.grid[1] * width)
                }
                _ if is_first => 0..all,
                _ => 0..0,
            }
        };
        self.parts.iter().map(range).collect()
    }
}

/// Refuses shapes with no elements or too many.
pub(super) fn check_count(shape: &[u64]) -> Result<(), Unfit> {
    let count = shape.iter().try_fold(1_u64, |product, length| product.checked_mul(*length));
    match count.filter(|count| *count < 1 << 56) {
        None => Err(Unfit::Dimensions(shape.to_vec())),
        Some(0) => Err(Unfit::Empty),
        Some(_) => Ok(()),
    }
}

/// Refuses groups that do not fit the weight or the layout.
fn check_groups(layout: &Layout, grid: &TargetGrid, block: [u64; 2], [rows, columns]: [u64; 2]) -> Result<(), Unfit> {
    // Segments end where groups end, and must end on a whole byte.
    let is_packed = layout.codes.values == CodeValues::Unsigned;
    let is_odd = is_packed && grid.group != Group::Channel && !block[1].is_multiple_of(8);
    let has_bounds = grid.group == Group::Tensor && matches!(grid.codes, CodeType::Int { symmetric: false, .. });
    // The only group may be of another orientation.
    let is_other = layout.fixed_group().is_none() && !layout.has_group(grid.group);
    if block.contains(&0) || is_odd || has_bounds || is_other {
        return Err(Unfit::Grid);
    }
    let is_partial = layout.encoding.is_some_and(|encoding| encoding.partial_blocks);
    let has_whole_blocks = matches!(grid.group, Group::Block(_)) && !is_partial;
    let has_whole_groups =
        matches!(grid.group, Group::Neighbours(_)) && layout.codes.padding == 1 && !layout.partial_groups;
    if (has_whole_groups || has_whole_blocks) && !columns.is_multiple_of(block[1]) {
        return Err(Unfit::Columns { columns, multiple: block[1] });
    }
    if has_whole_blocks && !rows.is_multiple_of(block[0]) {
        return Err(Unfit::Rows { rows, multiple: block[0] });
    }
    Ok(())
}

/// Returns the dtype of stored codes, and the bytes per stored row.
fn code_rows(layout: &Layout, grid: &TargetGrid, columns: u64) -> Result<(Dtype, u64), Unfit> {
    let word = match layout.codes.packing {
        Packing::Rows(word) => word,
        Packing::RowsHighFirst | Packing::TransposedBlocks | Packing::Planes => 1,
        _ => return Err(Unfit::Grid),
    };
    let dtype = match (grid.codes, layout.codes.values) {
        (CodeType::Float(dtype), CodeValues::Stored) => dtype,
        (CodeType::Int { bits: 8, .. }, CodeValues::Stored) => Dtype::Int8,
        (CodeType::Float(dtype), CodeValues::Float(own) | CodeValues::FloatWithoutNegativeZero(own))
            if dtype == own =>
        {
            layout.codes.dtypes[0]
        }
        (CodeType::Int { bits: 1..=8, .. }, CodeValues::Unsigned)
        | (CodeType::Int { bits: 4 | 6, symmetric: true }, CodeValues::Levels) => layout.codes.dtypes[0],
        (CodeType::Int { bits, symmetric: true }, CodeValues::Signed(own)) if bits == own.bits() => {
            layout.codes.dtypes[0]
        }
        _ => return Err(Unfit::Grid),
    };
    let bits = columns.checked_mul(grid.codes.bits().into()).ok_or(Unfit::Grid)?;
    if layout.codes.dtypes.contains(&dtype) { Ok((dtype, bits.div_ceil(8 * word) * word)) } else { Err(Unfit::Grid) }
}
