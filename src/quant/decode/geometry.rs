//! Positions of the codes, scales and zero points of a stored weight, derived from the shapes of its parts. The shapes
//! are checked against each other before a byte is read. `encode/geometry.rs` is the counterpart for weights that are
//! written.

use super::super::layout::{CodeValues, Combination, Group, Layout, Packing, Role, ScaleOrder, Zeros};
use super::super::parts::{Parameters, Part, Parts, Slot};
use super::codes::CodeWindow;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::quant::rotation::is_rotation;
use std::ops::Range;

/// The shape of a weight, and the position of each row in its parts. Rows and columns refer to one matrix of the
/// weight.
#[derive(Clone, Debug, Default)]
pub(in crate::quant) struct DecodeGeometry {
    pub(in crate::quant) shape: Vec<u64>,
    /// The number of matrices, from the leading dimensions.
    pub(in crate::quant) matrices: u64,
    pub(in crate::quant) rows: u64,
    pub(in crate::quant) columns: u64,
    /// Width of a code.
    pub(in crate::quant) bits: u32,
    /// Bytes from one stored row of codes to the next, and from one matrix to the next.
    pub(in crate::quant) stride: u64,
    pub(in crate::quant) matrix_bytes: u64,
    /// The elements that share a scale; `None` if only the group index determines them.
    pub(in crate::quant) group: Option<Group>,
    /// Rows and columns of a group.
    pub(in crate::quant) block: [u64; 2],
    /// Number of groups in a matrix, vertically and horizontally.
    pub(in crate::quant) grid: [u64; 2],
    /// Order of the scales.
    pub(in crate::quant) scale_order: ScaleOrder,
    /// Scales per matrix; 0 if all matrices share them.
    pub(in crate::quant) matrix_scales: u64,
    /// Global scales per matrix; 0 if all matrices share one.
    pub(in crate::quant) matrix_globals: u64,
    /// Elements from one row of tiles of a swizzled scale to the next.
    pub(in crate::quant) swizzled_columns: u64,
    pub(in crate::quant) codes: Slot,
    pub(in crate::quant) scale: Slot,
    pub(in crate::quant) global: Option<Slot>,
    /// Zero points, or offsets.
    pub(in crate::quant) zero: Option<Slot>,
    pub(in crate::quant) group_index: Option<Slot>,
    pub(in crate::quant) map: Option<Slot>,
    pub(in crate::quant) nested: Option<[Slot; 2]>,
    /// Number of scales that share a nested scale.
    pub(in crate::quant) nested_group: u64,
}

impl DecodeGeometry {
    pub(in crate::quant) fn new(layout: &'static Layout, parameters: &Parameters, parts: &[Part]) -> Result<Self> {
        let parts = Parts { layout, parts };
        if layout.codes.packing == Packing::Stream {
            return Self::linear(&parts, parameters);
        }
        parts.check_shapes(parameters.shape.as_deref())?;
        let (slot, codes) = parts.typed(parts.need(Role::Codes)?, layout.codes.dtypes)?;
        let bits = parts.code_bits(parameters, codes.dtype)?;
        let mut geometry = Self { codes: slot, bits, ..Self::of_codes(&parts, parameters, &codes, bits)? };
        let (slot, mut scale) = parts.typed(parts.need(Role::Scale)?, layout.scale_dtypes)?;
        scale.shape = parts.group_shape(scale.shape);
        (geometry.scale, geometry.scale_order) = (slot, layout.scale_order);
        let (what, indexed) =
            if layout.has_row_index() { ("row", geometry.rows) } else { ("column", geometry.columns) };
        geometry.group_index = match parts.find(Role::GroupIndex)? {
            Some(_) if !matches!(layout.zeros, Zeros::PackedDown | Zeros::PackedTransposed | Zeros::Scaled) => {
                return Err(
                    parts.error(format!("it has a group index, which the layout {} does not know", layout.name))
                );
            }
            Some(found) => {
                let (slot, part) = parts.typed(found, &[Dtype::Int32, Dtype::Int64])?;
                if part.shape != [indexed] {
                    return Err(parts.mismatch(&part, &[indexed], &format!("one group for each {what}")));
                }
                Some(slot)
            }
            None => None,
        };
        geometry.set_groups(&parts, parameters, &scale)?;
        geometry.set_scales(&parts, &codes, &scale)?;
        geometry.set_global(&parts)?;
        geometry.set_zeros(&parts)?;
        geometry.nested_group = parameters.nested_group.unwrap_or(256);
        geometry.set_maps(&parts)?;
        let columns = geometry.columns;
        if let Some(size) = parameters.rotation
            && (!is_rotation(size) || !columns.is_multiple_of(size))
        {
            return Err(parts.error(format!("{columns} columns cannot be rotated in groups of {size}")));
        }
        Ok(geometry)
    }

    /// Returns the codes of some columns of a row of a matrix. The first column is a multiple of 32.
    #[inline(always)]
    pub(in crate::quant) fn window<'a>(
        &self,
        packing: Packing,
        parts: &[&'a [u8]],
        [matrix, row]: [usize; 2],
        columns: Range<usize>,
    ) -> CodeWindow<'a> {
        let matrix_bytes = self.matrix_bytes as usize;
        let (start, row) = match packing {
            Packing::Stream => (0, matrix * self.rows as usize + row),
            _ => (matrix * matrix_bytes, row),
        };
        CodeWindow {
            bytes: &parts[self.codes.index][start..start + matrix_bytes],
            stride: self.stride as usize,
            bits: self.bits as usize,
            row,
            column: columns.start,
            columns: columns.len(),
            width: self.columns as usize,
        }
    }

    /// Returns the numbers of the codes of a map; zeros if there is none.
    pub(super) fn map(&self, parts: &[&[u8]]) -> [[u8; 4]; 16] {
        let map = self.map.and_then(|slot| parts[slot.index].as_chunks().0.first_chunk().copied());
        map.unwrap_or_default()
    }

    /// The lengths that count matrices, before the last two. A weight that is one stream is one matrix.
    fn leading(&self) -> &[u64] {
        let count = if self.scale_order == ScaleOrder::Flat { 0 } else { self.shape.len().saturating_sub(2) };
        &self.shape[..count]
    }

    pub(in crate::quant) fn all_rows(&self) -> u64 {
        self.matrices * self.rows
    }

    /// Determines the elements that share a scale, from the config or from unambiguous shapes.
    fn set_groups(&mut self, parts: &Parts, parameters: &Parameters, scale: &Part) -> Result<()> {
        let blocks = |group: Group| group.lengths([self.rows.max(1), self.columns.max(1)]);
        let group = match (parts.layout.fixed_group(), parameters.group) {
            (Some(fixed), Some(given)) if blocks(fixed) != blocks(given) => {
                let layout = parts.layout.name;
                return Err(
                    parts.error(format!("the layout {layout} has a scale for {fixed}, and the config for {given}"))
                );
            }
            (Some(fixed), _) => Some(fixed),
            (None, Some(given)) if parts.layout.has_group_like(given) => Some(given),
            (None, Some(given)) => {
                return Err(parts.error(format!("the layout {} has no scales for {given}", parts.layout.name)));
            }
            (None, None) if self.group_index.is_some() => None,
            (None, None) => Some(self.derive_group(parts, scale)?),
        };
        let block = group.map_or([1, 1], blocks);
        if block.contains(&0) {
            return Err(parts.error("it has a scale for a group of 0 elements".to_owned()));
        }
        // Only if the config does not give the number of columns that share a scale.
        let indexed = self.group_index.filter(|_| group.is_none()).and(match parts.layout.scale_order {
            ScaleOrder::Transposed => scale.shape.first(),
            _ => scale.shape.last(),
        });
        let beside = indexed.copied().unwrap_or(self.columns.div_ceil(block[1]));
        (self.group, self.block, self.grid) = (group, block, [self.rows.div_ceil(block[0]), beside]);
        Ok(())
    }

    fn derive_group(&self, parts: &Parts, scale: &Part) -> Result<Group> {
        let (rows, columns) = (self.rows, self.columns);
        let inner = scale.shape.strip_prefix(self.leading()).unwrap_or(scale.shape);
        let [below, beside] = match (inner, parts.layout.scale_order) {
            (_, ScaleOrder::Flat) => [0, 0],
            ([] | [1], _) => [1, 1],
            ([below], _) => [*below, 1],
            ([beside, below], ScaleOrder::Transposed) | ([below, beside] | [below, 1, beside, 1], _) => {
                [*below, *beside]
            }
            _ => [0, 0],
        };
        let divides = beside != 0 && columns.is_multiple_of(beside);
        let fitting = |group: &Group| match group {
            Group::Tensor => ([below, beside] == [1, 1]).then_some(Group::Tensor),
            Group::Channel => (below == rows && beside == 1).then_some(Group::Channel),
            Group::Neighbours(_) => (below == rows && divides).then(|| Group::Neighbours(columns / beside)),
            Group::Block(_) => {
                let are_usual = below == rows.div_ceil(128) && beside == columns.div_ceil(128);
                are_usual.then_some(Group::Block([128, 128]))
            }
        };
        parts.layout.groups.iter().find_map(fitting).ok_or_else(|| {
            let (shape, name, scales) = (&self.shape, scale.show(), scale.shape);
            parts.error(format!(
                "the config does not say which elements share a scale, and the shape {scales:?} of '{name}' does not show it for a weight of {shape:?}"
            ))
        })
    }

    fn set_scales(&mut self, parts: &Parts, codes: &Part, scale: &Part) -> Result<()> {
        let [below, beside] = self.grid;
        let leading = self.leading();
        let of_matrix = |inner: &[u64]| scale.shape == [leading, inner].concat();
        let is_scalar = self.scale.count == 1 && [below, beside] == [1, 1];
        let (is_right, expected) = match parts.layout.scale_order {
            ScaleOrder::Rows => {
                let is_column = beside == 1 && of_matrix(&[below]);
                let is_number = [below, beside] == [1, 1] && !leading.is_empty() && of_matrix(&[]);
                let is_right =
                    of_matrix(&[below, beside]) || of_matrix(&[below, 1, beside, 1]) || is_column || is_number;
                (is_right || is_scalar || is_list(parts, scale, &[below, beside]), vec![below, beside])
            }
            ScaleOrder::Transposed => {
                (of_matrix(&[beside, below]) || is_list(parts, scale, &[beside, below]), vec![beside, below])
            }
            ScaleOrder::Swizzled => {
                let padding = parts.layout.codes.padding;
                let beside = self.columns.next_multiple_of(padding).div_ceil(self.block[1]);
                let tiles = [self.rows.next_multiple_of(padding).next_multiple_of(128), beside.next_multiple_of(4)];
                (scale.shape == tiles && leading.is_empty(), tiles.to_vec())
            }
            ScaleOrder::Flat => {
                let count = (self.all_rows() * self.columns).div_ceil(self.block[1]);
                (self.scale.count == count, vec![count])
            }
        };
        if !is_right {
            let expected = [leading, &expected].concat();
            let group = match self.block {
                [rows, columns] if self.group.is_some() => format!(" in groups of {rows} x {columns}"),
                _ => String::new(),
            };
            let why = format!("'{}', a weight of {:?}{group},", codes.show(), self.shape);
            return Err(parts.mismatch(scale, &expected, &why));
        }
        self.swizzled_columns = if parts.layout.scale_order == ScaleOrder::Swizzled { expected[1] } else { 0 };
        self.matrix_scales = if is_scalar { 0 } else { below * beside };
        Ok(())
    }

    fn set_global(&mut self, parts: &Parts) -> Result<()> {
        if parts.layout.global == Combination::Levels {
            let (slot, part) = parts.typed(parts.need(Role::RowScale)?, &[Dtype::Float32])?;
            let expected = [self.leading(), &[self.rows]].concat();
            if part.shape != expected && part.shape != [&expected[..], &[1]].concat() {
                return Err(parts.mismatch(&part, &expected, "one scale for each row"));
            }
            self.global = Some(slot);
            return Ok(());
        }
        if !parts.layout.global.is_global() {
            return Ok(());
        }
        let found = match parts.layout.global {
            Combination::OverLargest => parts.find(Role::GlobalScale)?,
            _ => Some(parts.need(Role::GlobalScale)?),
        };
        let Some(found) = found else { return Ok(()) };
        let (slot, part) = parts.typed(found, &[Dtype::Float32, Dtype::Bfloat16, Dtype::Float16])?;
        let per_matrix = [&[][..], &[1], &[1, 1]].iter().any(|inner| part.shape == [self.leading(), *inner].concat());
        if slot.count != 1 && !per_matrix {
            return Err(parts.mismatch(&part, &[1], "one global scale for the tensor"));
        }
        self.matrix_globals = u64::from(slot.count != 1);
        self.global = Some(slot);
        Ok(())
    }

    fn set_zeros(&mut self, parts: &Parts) -> Result<()> {
        let [below, beside] = self.grid;
        let words = |count: u64| (count * u64::from(self.bits)).div_ceil(32);
        let dtype_of_scales = [self.scale.dtype];
        let (dtypes, expected): (&[Dtype], _) = match parts.layout.zeros {
            Zeros::Added => (&[Dtype::Float32, Dtype::Bfloat16, Dtype::Float16], [beside, below]),
            Zeros::Offset | Zeros::Fused => (&dtype_of_scales, [below, beside]),
            Zeros::None | Zeros::Stream => (&[], [0, 0]), // streams have their own geometry
            Zeros::Plain => (&[Dtype::Int8, Dtype::Float8E4M3FN], [below, beside]),
            Zeros::PackedDown => (&[Dtype::Int32], [words(below), beside]),
            Zeros::PackedTransposed | Zeros::Awq => (&[Dtype::Int32], [beside, words(below)]),
            Zeros::PackedBlocks => {
                let bytes = |count: u64| (count * u64::from(self.bits)).div_ceil(8);
                let is_transposed = parts.layout.scale_order == ScaleOrder::Transposed;
                let lines = if is_transposed { [beside, bytes(below)] } else { [below, bytes(beside)] };
                (&[Dtype::Uint8], lines)
            }
            Zeros::Scaled => (&dtype_of_scales, [beside, below]),
        };
        let role = if parts.layout.zeros.are_stored_offsets() { Role::Offset } else { Role::ZeroPoint };
        let is_needed =
            matches!(parts.layout.zeros, Zeros::PackedTransposed | Zeros::Awq | Zeros::Offset | Zeros::Fused);
        let found = if is_needed { Some(parts.need(role)?) } else { parts.find(role)? };
        let Some(found) = found else { return Ok(()) };
        if parts.layout.zeros == Zeros::None {
            return Err(
                parts.error(format!("it has zero points, which the layout {} does not know", parts.layout.name))
            );
        }
        let (slot, part) = parts.typed(found, dtypes)?;
        let is_plain = parts.layout.zeros == Zeros::Plain && slot.count == self.scale.count;
        let expected = [self.leading(), &expected].concat();
        if parts.group_shape(part.shape) != expected && !is_plain && !is_list(parts, &part, &expected) {
            return Err(parts.mismatch(&part, &expected, &format!("a weight of {:?}", self.shape)));
        }
        self.zero = Some(slot);
        Ok(())
    }

    fn set_maps(&mut self, parts: &Parts) -> Result<()> {
        match parts.layout.codes.values {
            CodeValues::Map => {}
            CodeValues::Levels if self.bits == 4 && parts.find(Role::CodeMap)?.is_some() => {}
            _ => return Ok(()),
        }
        let numbers = |role: Role, count: u64| {
            let (slot, part) = parts.typed(parts.need(role)?, &[Dtype::Float32])?;
            if slot.count != count {
                return Err(parts.mismatch(&part, &[count], &format!("a weight of {:?}", self.shape)));
            }
            Ok(slot)
        };
        self.map = Some(numbers(Role::CodeMap, 16)?);
        if parts.layout.codes.values == CodeValues::Levels {
            return Ok(());
        }
        if self.scale.dtype == Dtype::Uint8 {
            if self.nested_group == 0 {
                return Err(parts.error("its nested_blocksize is 0".to_owned()));
            }
            let nested = self.scale.count.div_ceil(self.nested_group);
            self.nested = Some([numbers(Role::NestedScale, nested)?, numbers(Role::NestedMap, 256)?]);
        } else if parts.find(Role::NestedScale)?.is_some() {
            return Err(parts.error("its scales are float32, and have scales of their own".to_owned()));
        }
        Ok(())
    }
}

/// True if a part of a model's graph is a list of as many elements as an array of this shape.
fn is_list(parts: &Parts, part: &Part, shape: &[u64]) -> bool {
    parts.layout.nodes.is_some() && part.shape == [shape.iter().product::<u64>()]
}
