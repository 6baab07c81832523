//! Moves a matrix of an ONNX model between the operators that store it: `DequantizeLinear` as [inputs, outputs], and
//! `MatMulNBits` as its transpose.
//!
//! Both compute (code - zero point) * scale and round once, so the same integers and scales give the same bits. A move
//! adds the difference of the middles of both ranges to codes and zero points: int8 starts at -128, and the codes of
//! `MatMulNBits` start at 0.

use super::super::decode::linear::extend_signs;
use super::super::decode::scales::GroupRange;
use super::super::decode::{Decoder, Method};
use super::super::encode::{EncodeTally, Encoder, PartWriter, Unfit};
use super::super::layout::{CodeValues, Role};
use crate::dtype::{Class, Dtype};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Rows of the source that are transposed at a time.
const TILE: usize = 64;

/// Moves codes and scales to the transpose of a matrix.
pub struct Transposer {
    decoder: Arc<Decoder>,
    encoder: Arc<Encoder>,
    /// The number that is added to codes and zero points.
    shift: i32,
}

/// Reason why a weight of an ONNX model stays with its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransposeObstacle {
    /// Nodes other than `MatMul` use its values, or a graph returns them.
    OtherUses,
    /// Its codes have several scales in several nodes.
    SeveralScales,
    /// It is not a matrix with a scale for parts of its columns; this is its shape.
    Groups(Vec<u64>),
    /// A scale belongs to this many inputs, and the new ones to this many.
    Blocks {
        /// The old number.
        old: u64,
        /// The new number, which does not divide the old one.
        new: u64,
    },
    /// Its codes are of this type, and the new ones have fewer bits or are no integers.
    Codes(Dtype),
    /// This zero point is not the middle of the range, and the scheme has no zero points.
    ZeroPoint(i32),
    /// Its zero points are floats, which are multiplied by the scale before they are subtracted.
    ScaledZeroPoints,
    /// It has a group index.
    GroupIndex,
    /// A scale is NaN or infinite.
    NotFinite,
    /// The new layout cannot store it.
    Unfit(Unfit),
}

impl fmt::Display for TransposeObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherUses => f.write_str("its values are not weights of MatMul alone"),
            Self::SeveralScales => f.write_str("several nodes decode its codes with different scales"),
            Self::Groups(shape) => {
                write!(f, "its shape {shape:?} and its scales are not those of a matrix with blocks of inputs")
            }
            Self::Blocks { old, new } => write!(f, "its blocks are of {old} inputs, and new ones would be of {new}"),
            Self::Codes(dtype) => write!(f, "its codes of {dtype} do not fit those of the scheme"),
            Self::ZeroPoint(zero) => write!(f, "it has the zero point {zero}, and the scheme has none"),
            Self::ScaledZeroPoints => f.write_str("its zero points are not integers"),
            Self::GroupIndex => f.write_str("it has a group index"),
            Self::NotFinite => f.write_str("a scale is NaN or infinite"),
            Self::Unfit(why) => why.fmt(f),
        }
    }
}

/// Columns of the source whose groups are checked at a time.
const COLUMNS: usize = 1024;

/// The groups of some columns of the source.
struct ColumnGroups {
    /// The first group of a row, and the number of groups.
    first: usize,
    width: usize,
    /// The scale and the new zero point of each, row by row.
    all: Vec<(f32, i32)>,
}

impl Transposer {
    /// Creates the move of a weight whose zero points are integers; `parts` are the bytes of its parts, in the order of
    /// the decoder.
    pub fn new(decoder: &Arc<Decoder>, encoder: &Arc<Encoder>, parts: &[&[u8]]) -> Result<Self, TransposeObstacle> {
        let Method::Steps(steps) = &decoder.method else { unreachable!("models have no blocks of ggml") };
        let geometry = &steps.geometry;
        let no_groups = || TransposeObstacle::Groups(geometry.shape.clone());
        if [geometry.matrices, geometry.rows, geometry.columns] != [1, encoder.columns(), encoder.rows()] {
            return Err(no_groups());
        }
        // Each new group lies in an old one.
        let [height, width] = [encoder.block_height(), encoder.block_width()].map(|length| length as u64);
        let lies_in = |new: u64, old: u64, all: u64| old >= all || old.is_multiple_of(new);
        let old = geometry.block;
        if !lies_in(width, old[0], geometry.rows) || !lies_in(height, old[1], geometry.columns) {
            // New groups extend along the inputs only.
            let (new, inputs) = if height == 1 { (width, 0) } else { (height, 1) };
            let is_along_inputs = old[1 - inputs] == 1;
            let blocks = TransposeObstacle::Blocks { old: old[inputs], new };
            return Err(if is_along_inputs { blocks } else { no_groups() });
        }
        let (stored, new_bits) = (steps.code_dtype, encoder.blocks().1);
        let classes = [stored, encoder.parts()[0].dtype].map(Dtype::class);
        let [Class::Int { signed }, Class::Int { signed: new_signed }] = classes else {
            return Err(TransposeObstacle::Codes(stored));
        };
        if geometry.bits > new_bits {
            return Err(TransposeObstacle::Codes(stored));
        }
        let middle = |signed: bool, bits: u32| if signed { 0 } else { 1 << (bits - 1) };
        let shift = middle(new_signed, new_bits) - middle(signed, geometry.bits);
        let new_middle = middle(new_signed, new_bits);
        let has_zeros = encoder.parts().iter().any(|part| part.role == Role::ZeroPoint);
        let made = Self { shift, decoder: Arc::clone(decoder), encoder: Arc::clone(encoder) };
        for start in (0..geometry.columns as usize).step_by(COLUMNS) {
            let columns = start..(start + COLUMNS).min(geometry.columns as usize);
            for (scale, zero) in made.groups(columns, parts).all {
                if !scale.is_finite() {
                    return Err(TransposeObstacle::NotFinite);
                }
                if !has_zeros && zero != new_middle {
                    return Err(TransposeObstacle::ZeroPoint(zero - shift));
                }
            }
        }
        Ok(made)
    }

    /// Reads the groups of some columns of the source, with their new zero points.
    fn groups(&self, columns: Range<usize>, parts: &[&[u8]]) -> ColumnGroups {
        let Method::Steps(steps) = &self.decoder.method else { unreachable!("checked by `new`") };
        let geometry = &steps.geometry;
        let beside = geometry.block[1] as usize;
        let groups = columns.start / beside..columns.end.div_ceil(beside);
        let is_centered = geometry.zero.is_none() && steps.layout.codes.values == CodeValues::Unsigned;
        let default = if is_centered { (1_u32 << (geometry.bits - 1)) as f32 } else { 0.0 };
        let mut all = Vec::with_capacity(geometry.grid[0] as usize * groups.len());
        for below in 0..geometry.grid[0] as usize {
            let place = GroupRange { matrix: 0, below, groups: groups.clone() };
            all.extend(
                steps.groups(&place, parts, default).map(|(scale, zero)| (scale as f32, zero as i32 + self.shift)),
            );
        }
        ColumnGroups { first: groups.start, width: groups.len(), all }
    }

    /// Moves a range of rows; `parts` are the whole stored bytes of the source. See [`Encoder::encode`] for the rest.
    pub fn transpose(&self, rows: Range<u64>, parts: &[&[u8]], outputs: &mut [&mut [u8]], tally: &mut EncodeTally) {
        let Method::Steps(steps) = &self.decoder.method else { unreachable!("checked by `new`") };
        let geometry = &steps.geometry;
        let mut writer = PartWriter::new(&self.encoder, &rows, outputs, 1.0);
        tally.values += (rows.end - rows.start) * self.encoder.columns();
        let (rows, columns) = (rows.start as usize..rows.end as usize, self.encoder.columns() as usize);
        let [height, width] = [self.encoder.block_height(), self.encoder.block_width()];
        let groups = self.groups(rows.clone(), parts);
        let [below, beside] = geometry.block.map(|length| length as usize);
        for row in (rows.start.next_multiple_of(height)..rows.end).step_by(height) {
            let group = |column: usize| groups.all[column / below * groups.width + row / beside - groups.first];
            let line = (0..columns).step_by(width).map(|column| {
                let (scale, zero) = group(column);
                (scale.to_bits(), zero as f32)
            });
            writer.store_scales(0, row, 0, line);
        }
        // Unpacking begins at a multiple of 32.
        let first = rows.start / 32 * 32;
        let skipped = rows.start - first;
        let len = rows.end - first;
        let mask = u8::MAX >> (8 - self.encoder.blocks().1);
        let mut lines = vec![0; TILE * len];
        let mut codes = vec![0; rows.len() * columns];
        for start in (0..columns).step_by(TILE) {
            let count = TILE.min(columns - start);
            for (row, line) in (start..start + count).zip(lines.chunks_exact_mut(len)) {
                let packing = steps.layout.codes.packing;
                packing.unpack(&geometry.window(packing, parts, [0, row], first..rows.end), line);
                extend_signs(line, steps.code_dtype);
            }
            for (row, codes) in codes.chunks_exact_mut(columns).enumerate() {
                let column = lines[skipped + row..].iter().step_by(len);
                for (code, old) in codes[start..start + count].iter_mut().zip(column) {
                    *code = old.wrapping_add(self.shift as u8) & mask;
                }
            }
        }
        for (row, codes) in rows.zip(codes.chunks_exact(columns)) {
            writer.store_codes(0, row, 0..columns, codes);
        }
    }
}
