//! The group index: the group of each column, where columns are quantized in the order of their activations (GPTQ's
//! `desc_act`); of each row where the transpose is stored in blocks (ONNX Runtime's `g_idx`).

use super::super::layout::Zeros;
use super::{DecodeSteps, Decoder};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use std::ops::Range;

impl Decoder {
    /// Refuses a group index that names nonexistent groups, as [`Decoder::decode`] does for the columns that it
    /// decodes, or that contradicts the config. `bytes` are the bytes of the part [`Decoder::group_index_part`].
    pub fn check_group_index(&self, bytes: &[u8]) -> Result<()> {
        let Some(steps) = self.steps() else { return Ok(()) };
        let geometry = &steps.geometry;
        let Some(slot) = geometry.group_index else { return Ok(()) };
        let index = StoredIntegers { bytes, dtype: slot.dtype };
        let is_unused = steps.is_unused(&index);
        (0..index.len()).try_for_each(|column| match index.get(column) {
            Some(-1) if is_unused => Ok(()),
            _ => steps.group_of(&index, column).map(drop),
        })?;
        if is_unused || geometry.group.is_none() || self.layout.has_row_index() {
            return Ok(());
        }
        let size = geometry.block[1];
        let in_order = |column: usize| column as u64 / size;
        let group = |column: usize| index.get(column).unwrap_or_default() as u64;
        let Some(column) = (0..index.len()).find(|column| group(*column) != in_order(*column)) else { return Ok(()) };
        if steps.is_in_order {
            let message = format!(
                "the group index puts column {column} into group {}, and the config says desc_act false, which puts it \
                 into group {}",
                group(column),
                in_order(column)
            );
            let remedy = "if the group index is right, set \"desc_act\" to true in the config";
            return Err(Error::new(message).remedy(remedy));
        }
        // Engines that sort the columns by their groups rely on the size of each group.
        let mut counts = vec![0_u64; geometry.grid[1] as usize];
        (0..index.len()).for_each(|column| counts[group(column) as usize] += 1);
        let expected = |group: usize| size.min(geometry.columns - group as u64 * size);
        let wrong = counts.iter().enumerate().find(|(group, count)| **count != expected(*group));
        wrong.map_or(Ok(()), |(group, count)| {
            let message = format!(
                "the group index puts {count} columns into group {group}, and the config says group_size {size}, which \
                 puts {} into it",
                expected(group)
            );
            Err(Error::new(message))
        })
    }

    /// The index of the part with the group of each column, if there is one.
    #[must_use]
    pub fn group_index_part(&self) -> Option<usize> {
        self.steps()?.geometry.group_index.map(|slot| slot.index)
    }
}

impl DecodeSteps {
    /// Returns the groups of some columns; `None` if groups are contiguous.
    pub(in crate::quant) fn group_index(&self, parts: &[&[u8]], columns: Range<usize>) -> Result<Option<Vec<u32>>> {
        self.groups_of(parts, columns, false)
    }

    /// Returns the groups of some rows of a matrix; `None` if groups are contiguous.
    pub(in crate::quant) fn row_index(&self, parts: &[&[u8]], rows: Range<usize>) -> Result<Option<Vec<u32>>> {
        self.groups_of(parts, rows, true)
    }

    fn groups_of(&self, parts: &[&[u8]], lines: Range<usize>, are_rows: bool) -> Result<Option<Vec<u32>>> {
        let slot = self.geometry.group_index.filter(|_| self.layout.has_row_index() == are_rows);
        let Some(slot) = slot else { return Ok(None) };
        let index = StoredIntegers { bytes: parts[slot.index], dtype: slot.dtype };
        if self.is_unused(&index) {
            return Ok(None);
        }
        lines.map(|line| self.group_of(&index, line)).collect::<Result<Vec<u32>>>().map(Some)
    }

    /// True if the columns are in order: compressed-tensors then writes -1 for each.
    fn is_unused(&self, index: &StoredIntegers) -> bool {
        let Self { geometry, layout, .. } = self;
        let are_contiguous = geometry.columns.div_ceil(geometry.block[1]) == geometry.grid[1];
        layout.zeros == Zeros::PackedDown && index.get(0) == Some(-1) && are_contiguous
    }

    fn group_of(&self, index: &StoredIntegers, at: usize) -> Result<u32> {
        let [below, beside] = self.geometry.grid;
        let (what, groups) = if self.layout.has_row_index() { ("row", below) } else { ("column", beside) };
        let group = index.get(at).unwrap_or_default();
        let number = u32::try_from(group).ok().filter(|number| u64::from(*number) < groups);
        number.ok_or_else(|| {
            Error::new(format!("the group index puts {what} {at} into group {group}, and there are {groups}"))
        })
    }
}

/// Stored numbers of int32 or int64, such as the group of each column or row.
pub(in crate::quant) struct StoredIntegers<'a> {
    pub(in crate::quant) bytes: &'a [u8],
    pub(in crate::quant) dtype: Dtype,
}

impl StoredIntegers<'_> {
    pub(in crate::quant) fn len(&self) -> usize {
        self.bytes.len() / (self.dtype.bits() / 8) as usize
    }

    pub(in crate::quant) fn get(&self, at: usize) -> Option<i64> {
        match self.dtype {
            Dtype::Int64 => self.bytes.as_chunks().0.get(at).map(|bytes| i64::from_le_bytes(*bytes)),
            _ => self.bytes.as_chunks().0.get(at).map(|bytes| i32::from_le_bytes(*bytes).into()),
        }
    }
}
