//! Decodes weights whose codes and scales are in the same blocks (GGUF), and assembles tensors of a model from one or two
//! of them.
//!
//! [`BlockDecoder`] knows the place of each row. `rows` decodes: adjacent blocks at once, rows in another order one by one,
//! and transposed matrices in tiles. `explain` counts special values and explains single ones.

mod explain;
mod rows;

use super::super::layout::Role;
use super::super::parts::{BlockParameters, Parameters, Parts};
use super::Arithmetic;
use super::casts::cast;
use crate::blocks::{Assembly, BlockFormat, RowOrder, ValueChange};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::kernel::Kernel;
use std::ops::Range;

/// Decoder of a weight in blocks.
pub(in crate::quant) struct BlockDecoder {
    pub(in crate::quant) shape: Vec<u64>,
    pub(in crate::quant) matrices: u64,
    /// Rows and columns of a matrix of the weight.
    pub(in crate::quant) rows: u64,
    pub(in crate::quant) columns: u64,
    sources: Vec<BlockPart>,
    assembly: Assembly,
    /// The part with the scale of the tensor, and true if it has one for each matrix.
    pub(super) factor: Option<(usize, bool)>,
    pub(super) target: Dtype,
    /// The type in which values are computed: float32 as in ggml, float64 for exact values and for numbers of float64.
    lane: Dtype,
    /// Conversion from the lane to the target.
    encode: Kernel,
}

/// A stored tensor of blocks.
struct BlockPart {
    /// Its index among the parts.
    part: usize,
    format: &'static BlockFormat,
    /// Rows and columns of a matrix.
    rows: u64,
    columns: u64,
    row_bytes: u64,
}

impl BlockPart {
    /// Returns the number of matrices in a stored tensor, and the tensor; `None` if it has no whole blocks. `count` is the
    /// number of elements of the weight.
    fn new(
        part: usize,
        shape: &[u64],
        format: &'static BlockFormat,
        assembly: &Assembly,
        count: u64,
    ) -> Option<(u64, Self)> {
        let (leading, rows, columns) = match shape {
            [leading @ .., rows] if assembly.rows_are_elements => (leading, *rows, 1),
            [columns] => (&[][..], 1, *columns),
            [leading @ .., rows, columns] => (leading, *rows, *columns),
            [] => return None,
        };
        let source = |rows, columns| Some(Self { part, format, rows, columns, row_bytes: format.size(columns)? });
        if columns.is_multiple_of(format.elements) {
            return Some((leading.iter().product(), source(rows, columns)?));
        }
        // A shape other than the stored one can have rows that are not whole blocks.
        let is_whole = *assembly == Assembly::default() && count.is_multiple_of(format.elements);
        let source = source(count / format.elements, format.elements).filter(|_| is_whole)?;
        Some((1, source))
    }
}

/// A format, blocks of it, and the scale of their tensor.
pub(in crate::quant) type StoredBlocks<'a> = (&'static BlockFormat, &'a [u8], Option<f32>);

/// A row of an assembled matrix, before it is transposed: a row or a column of a matrix of a source.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SourceLine {
    source: usize,
    matrix: u64,
    line: u64,
    is_column: bool,
}

impl BlockDecoder {
    pub(super) fn new(
        parts: &Parts,
        parameters: &Parameters,
        blocks: &BlockParameters,
        target: Dtype,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        parts.check_shapes(parameters.shape.as_deref())?;
        let (codes, other) = (parts.need(Role::Codes)?, parts.find(Role::OtherCodes)?);
        let shape = parameters.shape.clone().unwrap_or_else(|| codes.1.shape.to_vec());
        let unfit = || parts.error(format!("its parts do not make a weight of {shape:?}"));
        let (count, assembly) = (shape.iter().product(), blocks.assembly);
        let stored = std::iter::once(codes).chain(other).zip(&blocks.formats);
        let sources: Option<Vec<(u64, BlockPart)>> = stored
            .map(|((slot, part), format)| BlockPart::new(slot.index, part.shape, format, &assembly, count))
            .collect();
        let (matrices, sources): (Vec<u64>, Vec<BlockPart>) = sources.ok_or_else(unfit)?.into_iter().unzip();
        let sizes: Vec<[u64; 2]> = sources.iter().map(|source| [source.rows, source.columns]).collect();
        let size = assembly.size(&sizes).filter(|_| sources.len() == 1 || !assembly.orders_columns());
        let [rows, columns] = size.ok_or_else(unfit)?;
        let matrices = matrices.iter().all(|count| *count == matrices[0]).then_some(matrices[0]).ok_or_else(unfit)?;
        if matrices.checked_mul(rows).and_then(|all| all.checked_mul(columns)) != Some(count) {
            return Err(unfit());
        }
        let factor = match parts.find(Role::GlobalScale)? {
            None => None,
            Some(found) => {
                let (slot, part) = parts.typed(found, &[Dtype::Float32])?;
                if slot.count != 1 && slot.count != matrices {
                    return Err(parts.mismatch(&part, &[1], "one scale for the tensor"));
                }
                Some((slot.index, slot.count != 1))
            }
        };
        let no_target = || parts.error(format!("weights cannot be decoded to {target}"));
        let is_wide = sources.iter().any(|source| source.format.dtype == Some(Dtype::Float64));
        let lane = if arithmetic == Arithmetic::Exact || is_wide { Dtype::Float64 } else { Dtype::Float32 };
        let is_float = target.is_weight() || target == Dtype::Float64;
        let encode = cast(lane, target).filter(|_| is_float).ok_or_else(no_target)?;
        Ok(Self { shape, matrices, rows, columns, sources, assembly, factor, target, lane, encode })
    }

    /// The format of the blocks.
    pub(super) fn format(&self) -> &'static BlockFormat {
        self.sources[0].format
    }

    /// True if the tensor has a scale, or could have one: llama.cpp has scales of NVFP4 tensors only.
    pub(super) fn has_global_scale(&self) -> bool {
        self.factor.is_some() || self.format().has_global_scale
    }

    /// The only tensor of blocks, if the weight is not assembled from parts of others.
    pub(in crate::quant) fn only_source(&self) -> Option<(usize, &'static BlockFormat)> {
        let Assembly { first_is_transposed, order, is_transposed, change, rows_are_elements: _ } = self.assembly;
        let is_in_rows = matches!(order, RowOrder::Stored | RowOrder::Heads(_) | RowOrder::Groups { .. });
        let is_plain = is_in_rows && !first_is_transposed && !is_transposed && change == ValueChange::None;
        is_plain.then(|| (self.sources[0].part, self.sources[0].format))
    }

    /// True if the weight is one stored tensor, in the order of its values.
    pub(super) fn is_stored_in_order(&self) -> bool {
        self.assembly == Assembly::default()
    }

    /// The number of rows that are best decoded together.
    pub(super) fn row_alignment(&self) -> u64 {
        let has_tiles = self.assembly.is_transposed || self.assembly.first_is_transposed;
        if has_tiles { self.sources[0].format.elements } else { 1 }
    }

    /// The bytes that these values need of each of `parts`, if only some of the bytes are needed.
    pub(super) fn set_ranges(&self, values: Range<u64>, ranges: &mut [Range<u64>]) {
        let Assembly { order, is_transposed, first_is_transposed, .. } = self.assembly;
        let source = &self.sources[0];
        let (rows, blocks) = (values.start / self.columns..values.end.div_ceil(self.columns), source.format);
        ranges[source.part] = match order {
            _ if is_transposed || first_is_transposed => return,
            RowOrder::Stored => {
                let first = values.start / blocks.elements * blocks.bytes;
                first..values.end.div_ceil(blocks.elements) * blocks.bytes
            }
            RowOrder::Heads(heads) => {
                let height = self.rows / heads;
                rows.start / height * height * source.row_bytes
                    ..rows.end.next_multiple_of(height).min(self.rows * self.matrices) * source.row_bytes
            }
            RowOrder::Alternating | RowOrder::Concatenated | RowOrder::Groups { .. } | RowOrder::Projections { .. } => {
                return;
            }
        };
    }

    /// Returns the line that holds a row of the assembled matrices, before they are transposed.
    fn line(&self, row: u64) -> SourceLine {
        let Assembly { first_is_transposed, is_transposed, .. } = self.assembly;
        if self.assembly.orders_columns() {
            return SourceLine { source: 0, matrix: row / self.rows, line: row % self.rows, is_column: false };
        }
        let height = if is_transposed { self.columns } else { self.rows };
        let (matrix, row) = (row / height, row % height);
        let (source, line) = self.in_order(row, height);
        SourceLine { source, matrix, line, is_column: first_is_transposed && source == 0 }
    }

    /// Returns the source that a row of an assembled matrix of this height comes from, and its row there.
    fn in_order(&self, row: u64, height: u64) -> (usize, u64) {
        match self.assembly.order {
            RowOrder::Stored => (0, row),
            RowOrder::Groups { start, .. } if row < start => (0, row),
            RowOrder::Groups { start, groups, each } => {
                let size = (height - start) / (groups * each);
                let (block, within) = ((row - start) / size, (row - start) % size);
                (0, start + (block % each * groups + block / each) * size + within)
            }
            RowOrder::Projections { heads, key, value } => {
                let size = 2 * (key + value);
                let (head, within) = (row / size, row % size);
                if within < key {
                    (0, head * key + within)
                } else if within < 2 * key {
                    (0, (heads + head) * key + within - key)
                } else if within < 2 * key + value {
                    (0, 2 * heads * key + head * value + within - 2 * key)
                } else {
                    (1, head * value + within - 2 * key - value)
                }
            }
            RowOrder::Heads(heads) => {
                let (size, half) = (height / heads, height / heads / 2);
                let (head, within) = (row / size, row % size);
                (0, head * size + within % half * 2 + within / half)
            }
            RowOrder::Alternating => ((row % 2) as usize, row / 2),
            RowOrder::Concatenated => {
                let first = height - self.sources[1].rows;
                if row < first { (0, row) } else { (1, row - first) }
            }
        }
    }

    /// Returns the format of the blocks around some columns of a line, which may go on in the lines that follow, the
    /// blocks, and the scale of the tensor.
    fn blocks<'p>(&self, line: SourceLine, columns: Range<u64>, parts: &[&'p [u8]]) -> StoredBlocks<'p> {
        let SourceLine { source, matrix, line, .. } = line;
        let BlockPart { part, format, rows, row_bytes, .. } = self.sources[source];
        let row = (matrix * rows + line) * row_bytes;
        let [start, end] = [columns.start / format.elements, columns.end.div_ceil(format.elements)]
            .map(|block| (row + block * format.bytes) as usize);
        (format, &parts[part][start..end], self.factor(matrix, parts))
    }

    /// Returns the stored blocks around some columns of a row, counted through all matrices, if
    /// [`BlockDecoder::only_source`] holds it.
    pub(in crate::quant) fn stored_row<'p>(
        &self,
        row: u64,
        columns: Range<u64>,
        parts: &[&'p [u8]],
    ) -> StoredBlocks<'p> {
        self.blocks(self.line(row), columns, parts)
    }

    /// Returns the scale of the tensor.
    pub(in crate::quant) fn factor(&self, matrix: u64, parts: &[&[u8]]) -> Option<f32> {
        let (part, is_of_matrix) = self.factor?;
        let at = if is_of_matrix { matrix as usize } else { 0 };
        Some(f32::from_le_bytes(parts[part].as_chunks().0[at]))
    }
}
