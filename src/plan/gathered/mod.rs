//! Gathers rows of a weight from the tensors that hold its values: of a weight of a GGUF from the tensors of Hugging Face, and
//! of a transposed weight from its stored columns.

#[cfg(test)]
mod tests;

use crate::blocks::{Assembly, RowOrder};
use crate::container::gguf::names::GgufSource;
use crate::error::Result;
use std::ops::Range;

/// Number of stored lines that are taken together, if they are columns of the weight.
const TILE: usize = 32;
/// Such lines of up to this many bytes are read at once with all that is between their elements: a call takes longer than
/// reading a few pages.
const NEAR: usize = 1 << 14;

/// The places of the values of a weight in the stored tensors that it is made of. If the values change
/// ([`GgufSource::change`]), this remains to be done.
///
/// A stored matrix consists of adjacent lines, each of which has elements of one row, or of one column, of a matrix of the
/// weight. A tensor of one dimension is a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatheredRows {
    /// Rows and columns of a matrix of the weight.
    rows: usize,
    columns: usize,
    /// True if each matrix is a separate stored tensor.
    is_stacked: bool,
    /// Number of elements of a stored matrix, which can have more elements than the matrix of the weight.
    matrix_len: usize,
    line_len: usize,
    /// True if a line has elements of a column.
    is_by_columns: bool,
    /// The line of each row, or of each column.
    lines: LineOrder,
    /// The element of a line for each column, or for each row.
    elements: LineOrder,
    /// Bytes of an element.
    width: usize,
}

/// Order in which lines, or elements of lines, are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineOrder {
    Steps {
        start: usize,
        step: usize,
    },
    /// Heads of this many lines: one of the first half, then one of the second, and so on.
    Heads(usize),
    /// From `start` on, blocks of `size` lines: the first block of every group of `each`, then the second, and so on.
    Groups {
        start: usize,
        groups: usize,
        each: usize,
        size: usize,
    },
    /// Heads of `2 * (key + value)` lines: first `key` of all of them, then the next `key`, then the next `value`; or, for the
    /// second source, the last `value`.
    Projections {
        heads: usize,
        key: usize,
        value: usize,
        is_second: bool,
    },
}

impl LineOrder {
    const ALL: Self = Self::Steps { start: 0, step: 1 };

    fn at(self, index: usize) -> usize {
        match self {
            Self::Steps { start, step } => start + index * step,
            Self::Heads(size) => {
                let within = index % size;
                index - within + within % 2 * (size / 2) + within / 2
            }
            Self::Groups { start, .. } if index < start => index,
            Self::Groups { start, groups, each, size } => {
                let (block, within) = ((index - start) / size, (index - start) % size);
                start + (block % groups * each + block / groups) * size + within
            }
            Self::Projections { heads, key, value, is_second } => {
                let (before, index, size) = match index {
                    _ if is_second => (2 * key + value, index, value),
                    _ if index < heads * key => (0, index, key),
                    _ if index < 2 * heads * key => (key, index - heads * key, key),
                    _ => (2 * key, index - 2 * heads * key, value),
                };
                index / size * 2 * (key + value) + before + index % size
            }
        }
    }

    /// Returns the range that contains some lines.
    fn around(self, indices: Range<usize>) -> Range<usize> {
        let bounds = indices.map(|index| self.at(index)).map(|line| (line, line + 1));
        let (start, end) = bounds.reduce(|all, next| (all.0.min(next.0), all.1.max(next.1))).unwrap_or_default();
        start..end
    }
}

impl GatheredRows {
    /// Finds the places of a tensor of this source and shape. `source_len` is the number of elements of the stored tensor, or of each of them, and
    /// `width` the number of bytes of an element: 1, 2, 4 or 8.
    pub(crate) fn new(source: &GgufSource, shape: &[u64], source_len: u64, width: usize) -> Self {
        let (is_stacked, assembly, at) = match *source {
            GgufSource::Stored(_) => (false, Assembly::default(), 0),
            GgufSource::Stacked(_) => (true, Assembly::default(), 0),
            GgufSource::Disassembled { assembly, at, .. } => (false, assembly, at),
        };
        let Assembly { first_is_transposed, order, rows_are_elements, is_transposed, change: _ } = assembly;
        let shape: Vec<usize> = shape.iter().map(|size| *size as usize).collect();
        let (columns, leading) = shape.split_last().map_or((1, &[][..]), |(columns, leading)| (*columns, leading));
        let (mut rows, stack) = match leading.split_last() {
            Some((rows, stack)) if !rows_are_elements => (*rows, stack),
            _ => (1, leading),
        };
        let matrices: usize = stack.iter().product();
        let mut matrix_len = source_len as usize;
        // A row of single elements is a matrix of one column, which its transpose equals in memory.
        let is_turned = rows_are_elements || first_is_transposed && at == 0;
        let is_transposed = rows_are_elements || is_transposed;
        if order == RowOrder::Stored && !is_turned && !is_transposed && !is_stacked {
            rows *= matrices;
        } else if !is_stacked {
            matrix_len = matrix_len.checked_div(matrices).unwrap_or_default();
        }
        // Of the assembled matrix before it is transposed: the lines that come from this tensor, and all lines.
        let (lines, len) = if is_turned { (columns, rows) } else { (rows, columns) };
        let all = matrix_len.checked_div(len).unwrap_or_default();
        let order = match order {
            RowOrder::Stored => LineOrder::ALL,
            RowOrder::Heads(heads) => LineOrder::Heads(all / heads as usize),
            RowOrder::Alternating => LineOrder::Steps { start: at, step: 2 },
            RowOrder::Groups { start, groups, each } => {
                let [start, groups, each] = [start, groups, each].map(|number| number as usize);
                LineOrder::Groups { start, groups, each, size: all.saturating_sub(start) / (groups * each) }
            }
            RowOrder::Projections { heads, key, value } => {
                let [heads, key, value] = [heads, key, value].map(|number| number as usize);
                LineOrder::Projections { heads, key, value, is_second: at == 1 }
            }
            RowOrder::Concatenated => LineOrder::Steps { start: at * all.saturating_sub(lines), step: 1 },
        };
        let (line_len, lines, elements) =
            if is_transposed { (all, LineOrder::ALL, order) } else { (len, order, LineOrder::ALL) };
        Self {
            rows,
            columns,
            is_stacked,
            matrix_len,
            line_len,
            is_by_columns: is_turned != is_transposed,
            lines,
            elements,
            width,
        }
    }

    /// Finds the places of matrices of this shape, which are stored transposed.
    pub(crate) fn transposed(shape: &[u64], width: usize) -> Self {
        let assembly = Assembly { is_transposed: true, ..Assembly::default() };
        let source = GgufSource::Disassembled { tensor: 0, assembly, at: 0 };
        Self::new(&source, shape, shape.iter().product(), width)
    }

    /// True if each row is a whole line of a stored tensor.
    pub(crate) fn has_whole_rows(&self) -> bool {
        !self.is_by_columns && self.elements == LineOrder::ALL && self.columns == self.line_len
    }

    /// Returns the stored tensor that has a row, and the first element of the row there, if rows are whole lines.
    pub(crate) fn stored_row(&self, row: u64) -> (usize, u64) {
        let (matrix, within) = (row as usize / self.rows, row as usize % self.rows);
        let (source, before) = if self.is_stacked { (matrix, 0) } else { (0, matrix * self.matrix_len) };
        (source, (before + self.lines.at(within) * self.line_len) as u64)
    }

    /// Copies rows of the weight, which are counted through all matrices, to `out`. `read` returns some bytes of a stored
    /// tensor, which is given by its number among the tensors of the weight.
    pub(crate) fn read<'a>(
        &self,
        rows: Range<u64>,
        read: &dyn Fn(usize, Range<usize>) -> Result<&'a [u8]>,
        out: &mut [u8],
    ) -> Result<()> {
        match self.width {
            1 => self.gather::<1>(rows, read, out),
            2 => self.gather::<2>(rows, read, out),
            4 => self.gather::<4>(rows, read, out),
            8 => self.gather::<8>(rows, read, out),
            width => unreachable!("elements of {width} bytes"),
        }
    }

    fn gather<'a, const WIDTH: usize>(
        &self,
        rows: Range<u64>,
        read: &dyn Fn(usize, Range<usize>) -> Result<&'a [u8]>,
        out: &mut [u8],
    ) -> Result<()> {
        let mut out = out.as_chunks_mut::<WIDTH>().0;
        let (mut row, end) = (rows.start as usize, rows.end as usize);
        while row < end && !out.is_empty() {
            let (matrix, first) = (row / self.rows, row % self.rows);
            let rows = first..self.rows.min(first + end - row);
            let (source, before) = if self.is_stacked { (matrix, 0) } else { (0, matrix * self.matrix_len) };
            let elements = |range: Range<usize>| {
                let bytes = (before + range.start) * WIDTH..(before + range.end) * WIDTH;
                Ok(read(source, bytes)?.as_chunks().0)
            };
            let (now, rest) = out.split_at_mut(rows.len() * self.columns);
            row += rows.len();
            if self.is_by_columns {
                self.columns_to_rows(rows, &elements, now)?;
            } else {
                self.lines_to_rows(rows, &elements, now)?;
            }
            out = rest;
        }
        Ok(())
    }

    /// Copies rows whose elements are all in one line. Adjacent lines that are needed as a whole are one read.
    fn lines_to_rows<'a, const WIDTH: usize>(
        &self,
        rows: Range<usize>,
        elements: &dyn Fn(Range<usize>) -> Result<&'a [[u8; WIDTH]]>,
        out: &mut [[u8; WIDTH]],
    ) -> Result<()> {
        let within = self.elements.around(0..self.columns);
        let is_in_order = within.len() == self.columns && matches!(self.elements, LineOrder::Steps { .. });
        let is_whole = is_in_order && self.columns == self.line_len;
        let (mut row, mut out) = (rows.start, out);
        while row < rows.end {
            let line = self.lines.at(row);
            let follows = |next: &usize| self.lines.at(*next) == line + *next - row;
            let count = if is_whole { 1 + (row + 1..rows.end).take_while(follows).count() } else { 1 };
            let (now, rest) = out.split_at_mut(count * self.columns);
            let start = line * self.line_len;
            let stored = elements(start + within.start..start + (count - 1) * self.line_len + within.end)?;
            if is_in_order {
                now.copy_from_slice(stored);
            } else {
                for (column, value) in now.iter_mut().enumerate() {
                    *value = stored[self.elements.at(column) - within.start];
                }
            }
            (row, out) = (row + count, rest);
        }
        Ok(())
    }

    /// Copies rows that have an element of each line, in tiles.
    fn columns_to_rows<'a, const WIDTH: usize>(
        &self,
        rows: Range<usize>,
        elements: &dyn Fn(Range<usize>) -> Result<&'a [[u8; WIDTH]]>,
        out: &mut [[u8; WIDTH]],
    ) -> Result<()> {
        let within = self.elements.around(rows.clone());
        let is_near = self.line_len * WIDTH <= NEAR;
        for first in (0..self.columns).step_by(TILE) {
            let columns = first..self.columns.min(first + TILE);
            let place = |line: usize| line * self.line_len + within.start..line * self.line_len + within.end;
            let near = self.lines.around(columns.clone());
            let start = place(near.start).start;
            let all = if is_near { elements(start..place(near.end - 1).end)? } else { &[] };
            let mut lines = [&[][..]; TILE];
            for (line, column) in lines.iter_mut().zip(columns.clone()) {
                let place = place(self.lines.at(column));
                *line = if is_near { &all[place.start - start..place.end - start] } else { elements(place)? };
            }
            for (row, out) in rows.clone().zip(out.chunks_exact_mut(self.columns)) {
                let at = self.elements.at(row) - within.start;
                for (line, value) in lines.iter().zip(&mut out[columns.clone()]) {
                    *value = line[at];
                }
            }
        }
        Ok(())
    }
}
