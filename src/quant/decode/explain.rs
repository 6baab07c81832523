//! Contents of a quantized weight, for commands that show them: its grid, and the code and scale of single values.

use super::super::layout::{CodeValues, Combination, Group, Layout, Packing, Role, Zeros};
use super::super::recognize::{FoundWeight, StoredTensor};
use super::buffers::global_scale;
use super::geometry::DecodeGeometry;
use super::lanes::{LARGEST_NVFP4, round_to_levels};
use super::linear::extend_signs;
use super::rows::widen;
use super::scales::GroupRange;
use super::tally::bits;
use super::{Decoder, Method};
use crate::blocks::{BlockFormat, CodeNumbers};
use crate::dtype::Dtype;
use crate::error::Result;
use std::fmt;
use std::ops::Range;

/// The kind of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeKind {
    Dtype(Dtype),
    /// Unsigned integers of this many bits, whose middle value represents 0.
    Centered(u32),
    /// Unsigned integers of this many bits, from which the zero points are subtracted.
    Shifted(u32),
    /// Unsigned integers of this many bits, to whose products offsets are added.
    Offset(u32),
    /// Indices into a table of 16 values.
    Map,
    /// Indices of this many bits into the levels of a group.
    Levels(u32),
    /// The codes of a block format.
    Blocks(&'static BlockFormat),
}

impl fmt::Display for CodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dtype(dtype) => dtype.fmt(f),
            Self::Centered(bits) => write!(f, "int{bits}"),
            Self::Shifted(bits) | Self::Offset(bits) => write!(f, "uint{bits}"),
            Self::Map => f.write_str("map of 4 bits"),
            Self::Levels(bits) => write!(f, "levels of {bits} bits"),
            Self::Blocks(format) => f.write_str(format.name),
        }
    }
}

/// The values that a weight can have: the kind of its codes, and of its scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub codes: CodeKind,
    /// The elements that share a scale; `None` if only the group index determines them.
    pub group: Option<Group>,
    /// True if each column names its group.
    pub is_indexed: bool,
    pub scale: Dtype,
    pub global_scale: Option<Dtype>,
    pub has_zero_points: bool,
}

/// Writes a grid as in `float8e4m3fn, 128 x 128`.
impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.codes)?;
        match self.group {
            Some(Group::Tensor) => f.write_str(", tensor")?,
            Some(Group::Channel) => f.write_str(", channel")?,
            Some(Group::Block([rows, columns])) => write!(f, ", {rows} x {columns}")?,
            Some(Group::Neighbours(columns)) => write!(f, ", 1 x {columns}")?,
            None => {}
        }
        if self.is_indexed { f.write_str(", indexed") } else { Ok(()) }
    }
}

impl Grid {
    /// Returns the grid of a block format, whose name says all; the tensor can have a scale.
    fn of_blocks(format: &'static BlockFormat, has_global_scale: bool) -> Self {
        Self {
            codes: CodeKind::Blocks(format),
            group: None,
            is_indexed: false,
            scale: format.scale,
            global_scale: has_global_scale.then_some(Dtype::Float32),
            has_zero_points: false,
        }
    }

    /// Returns the grid of other layouts whose values are those of a block format; `None` if no layout has them.
    fn like(format: &'static BlockFormat) -> Option<Self> {
        let CodeNumbers { group, code_bits, numbers, has_offsets, .. } = format.grid()?;
        let middle = f32::from(1_u8 << (code_bits - 1));
        let is_centered = numbers.iter().zip(0_u8..).all(|(number, code)| *number == f32::from(code) - middle);
        let codes = match format.codes {
            Some(dtype) => CodeKind::Dtype(dtype),
            None if has_offsets => CodeKind::Offset(code_bits),
            None if is_centered => CodeKind::Centered(code_bits),
            None => return None,
        };
        let group = Some(Group::Neighbours(group as u64));
        Some(Self { codes, group, ..Self::of_blocks(format, format.has_global_scale) })
    }

    fn new(layout: &Layout, geometry: &DecodeGeometry) -> Self {
        let codes = match layout.codes.values {
            CodeValues::Stored => CodeKind::Dtype(geometry.codes.dtype),
            CodeValues::Float(dtype) | CodeValues::FloatWithoutNegativeZero(dtype) | CodeValues::Signed(dtype) => {
                CodeKind::Dtype(dtype)
            }
            CodeValues::Levels => CodeKind::Levels(geometry.bits),
            CodeValues::Unsigned if layout.zeros == Zeros::Added => CodeKind::Levels(geometry.bits),
            CodeValues::Unsigned if matches!(layout.zeros, Zeros::Offset | Zeros::Fused) => {
                CodeKind::Offset(geometry.bits)
            }
            CodeValues::Unsigned if geometry.zero.is_none() => CodeKind::Centered(geometry.bits),
            CodeValues::Unsigned => CodeKind::Shifted(geometry.bits),
            CodeValues::Map => CodeKind::Map,
            CodeValues::Blocks => unreachable!("blocks have no geometry"),
        };
        Self {
            codes,
            group: geometry.group,
            is_indexed: geometry.group_index.is_some(),
            scale: geometry.scale.dtype,
            global_scale: geometry.global.map(|slot| slot.dtype),
            has_zero_points: geometry.zero.is_some() && !layout.zeros.are_stored_offsets(),
        }
    }
}

impl FoundWeight {
    /// Returns the grid of values that the weight can have.
    pub fn grid(&self, tensors: &[StoredTensor]) -> Result<Grid> {
        if let Some(blocks) = &self.parameters.blocks {
            let has_global_scale = self.parts.iter().any(|(role, _)| *role == Role::GlobalScale);
            return Ok(Grid::of_blocks(blocks.formats[0], has_global_scale));
        }
        Ok(Grid::new(self.layout, &DecodeGeometry::new(self.layout, &self.parameters, &self.parts(tensors))?))
    }
}

/// A value of a quantized weight, and the numbers that it is computed from.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The bits of the code, and their number.
    pub code: u32,
    pub code_bits: u32,
    /// The number that the code represents, including the zero point.
    pub number: f32,
    /// The code that represents 0.
    pub zero_point: Option<f32>,
    /// The factor of the number, after the zero point is subtracted.
    pub scale: f64,
    /// The number subtracted at the end.
    pub offset: Option<f64>,
    /// The scale of the scale, and true if the scale is divided by it.
    pub global_scale: Option<(f32, bool)>,
    /// The bits of the decoded value.
    pub value: u32,
}

impl Decoder {
    /// Returns the grid of values that the weight can have.
    #[must_use]
    pub fn grid(&self) -> Grid {
        match &self.method {
            Method::Steps(steps) => Grid::new(steps.layout, &steps.geometry),
            Method::Blocks(blocks) => Grid::of_blocks(blocks.format(), blocks.factor.is_some()),
        }
    }

    /// Like [`Decoder::grid`], with two differences. A weight in blocks has the grid of a layout with separate scales, if
    /// one has the same values. A grid has no zero points or offsets if all of them stand for the middle of the range, as
    /// symmetric GPTQ stores them. `parts` are the bytes that [`Decoder::decode`] takes.
    #[must_use]
    pub fn plain_grid(&self, parts: &[&[u8]]) -> Grid {
        let grid = self.grid();
        let steps = match &self.method {
            Method::Steps(steps) => steps,
            Method::Blocks(blocks) => {
                return blocks.only_source().and_then(|(_, format)| Grid::like(format)).unwrap_or(grid);
            }
        };
        let geometry = &steps.geometry;
        let (CodeKind::Shifted(bits) | CodeKind::Offset(bits), Some(slot)) = (grid.codes, geometry.zero) else {
            return grid;
        };
        let middle = (1_u32 << (bits - 1)) as f32;
        let [below, beside] = geometry.grid.map(|count| count as usize);
        let (mut zeros, mut scales) = (vec![[0; 4]; beside], vec![[0; 4]; beside]);
        let mut raw = vec![0; 4 * beside];
        for row in 0..(self.rows() / geometry.rows) as usize * below {
            let place = GroupRange { matrix: row / below, below: row % below, groups: 0..beside };
            steps.zeros.fetch(geometry, parts[slot.index], &place, &mut zeros);
            if grid.codes == CodeKind::Offset(bits) {
                steps.scales.fetch(geometry, &place, parts, &mut raw, &mut scales);
            }
            let is_middle = |(zero, scale): (&[u8; 4], &[u8; 4])| match grid.codes {
                CodeKind::Offset(_) => f32::from_le_bytes(*zero) == -middle * f32::from_le_bytes(*scale),
                _ => f32::from_le_bytes(*zero) == middle,
            };
            if !zeros.iter().zip(&scales).all(is_middle) {
                return grid;
            }
        }
        Grid { codes: CodeKind::Centered(bits), has_zero_points: false, ..grid }
    }

    /// Explains the values of some columns of a row, from the bytes that [`Decoder::decode`] takes.
    pub fn explain(&self, row: u64, columns: Range<u64>, parts: &[&[u8]]) -> Result<Vec<Explanation>> {
        let first = row * self.columns();
        let decoded = self.around(first + columns.start..first + columns.end);
        let target_bytes = self.target().bits() as usize / 8;
        let mut values = vec![0; (decoded.end - decoded.start) as usize * target_bytes];
        self.decode_values(decoded.clone(), parts, &mut values)?;
        let [before, after] = [decoded.start, decoded.end].map(|at| (at - first) as usize);
        let value = |column: u64| bits(&values[(column as usize - before) * target_bytes..][..target_bytes]);
        let steps = match &self.method {
            Method::Steps(steps) => steps,
            Method::Blocks(blocks) => {
                let explain = |column| Explanation { value: value(column), ..blocks.explain(row, column, parts) };
                return Ok(columns.map(explain).collect());
            }
        };
        let geometry = &steps.geometry;
        let (matrix, within) = ((row / geometry.rows) as usize, (row % geometry.rows) as usize);
        // 1. Codes, and the numbers that they represent.
        let packing = steps.layout.codes.packing;
        let window = geometry.window(packing, parts, [matrix, within], before..after);
        let code_bytes = window.bits.div_ceil(8);
        let mut codes = vec![0; (after - before) * code_bytes];
        packing.unpack(&window, &mut codes);
        let mut signed = codes.clone();
        extend_signs(&mut signed, steps.code_dtype);
        let mut numbers = vec![[0; 4]; after - before];
        widen(steps, &signed, &geometry.map(parts), &mut numbers);
        // 2. Groups.
        let index = steps.group_index(parts, before..columns.end as usize)?;
        let row_index = steps.row_index(parts, within..within + 1)?;
        let below = row_index.map_or(within / geometry.block[0] as usize, |index| index[0] as usize);
        let global = global_scale(steps, parts, [matrix, within], &mut [0; 4]);
        let global = match steps.combination {
            Combination::Multiplier | Combination::Levels => Some((global, false)),
            Combination::OverLargest => Some((global / LARGEST_NVFP4, false)),
            Combination::Divisor => Some((global, true)),
            Combination::Nothing | Combination::Over127 => None,
        };
        // 3. Centered codes are already shifted by widening.
        let has_no_zeros = steps.layout.zeros == Zeros::Added || steps.zeros.order == Zeros::None;
        let is_centered = steps.layout.codes.values == CodeValues::Unsigned && has_no_zeros;
        let centre = is_centered.then(|| (1 << (geometry.bits - 1)) as f32);
        let middle = (steps.zeros.order == Zeros::Scaled).then(|| steps.zeros.middle(geometry));
        let has_offsets = steps.zeros.order.are_stored_offsets();
        let explain = |column: u64| {
            let at = column as usize - before;
            let group = match &index {
                Some(index) => index[at] as usize,
                None if packing == Packing::Flat => {
                    (row * geometry.columns + column) as usize / geometry.block[1] as usize
                }
                None => (column / geometry.block[1]) as usize,
            };
            let place = GroupRange { matrix, below, groups: group..group + 1 };
            let (mut scale, zero) = steps.groups(&place, parts, 0.0).next().expect("a group");
            let zero = geometry.zero.map(|_| zero);
            let mut number = [numbers[at]];
            if let (Combination::Levels, Some((row, _))) = (steps.combination, global) {
                let product = f32::from_le_bytes(number[0]) * scale as f32;
                round_to_levels(&[product.to_le_bytes()], &mut number);
                scale = row.into();
            }
            let [number] = number.map(f32::from_le_bytes);
            Explanation {
                code: bits(&codes[at * code_bytes..][..code_bytes]),
                code_bits: geometry.bits,
                number: centre.map_or(number, |centre| number + centre),
                zero_point: zero.filter(|_| !has_offsets).or(centre).or(middle),
                scale,
                // Offsets are added.
                offset: zero.filter(|_| has_offsets).map(|offset| -f64::from(offset)),
                global_scale: global.filter(|_| steps.combination != Combination::Levels),
                value: value(column),
            }
        };
        Ok(columns.map(explain).collect())
    }
}
