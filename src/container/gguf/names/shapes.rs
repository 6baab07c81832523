//! The shapes of assembled tensors.

use super::table::Dimensions;
use super::values::unmapped;
use crate::blocks::{Assembly, RowOrder};
use crate::error::Result;

/// Returns the shape of the tensor that is made of sources with these shapes; `None` if they do not fit.
pub(super) fn assembled_shape(assembly: &Assembly, sources: &[&[u64]]) -> Option<Vec<u64>> {
    let (first, others) = sources.split_first()?;
    if *assembly == (Assembly { change: assembly.change, ..Assembly::default() }) {
        return others.is_empty().then(|| first.to_vec());
    }
    let matrices: Option<Vec<_>> = sources.iter().map(|shape| matrices(shape, assembly.rows_are_elements)).collect();
    let (stacks, sizes): (Vec<&[u64]>, Vec<[u64; 2]>) = matrices?.into_iter().unzip();
    let stack = stacks[0];
    let [rows, columns] = assembly.size(&sizes).filter(|_| stacks.iter().all(|other| *other == stack))?;
    let matrix = if assembly.rows_are_elements { vec![rows] } else { vec![rows, columns] };
    Some([stack, &matrix].concat())
}

/// Returns the shape of a stack of matrices whose rows follow each other; `None` if the rows are too many.
pub(super) fn flattened(shape: &[u64]) -> Option<Vec<u64>> {
    let (columns, rows) = shape.split_last()?;
    let rows = rows.iter().try_fold(1u64, |product, length| product.checked_mul(*length))?;
    Some(vec![rows, *columns])
}

/// Divides a shape into the shape of a stack, and the rows and columns of its matrices.
fn matrices(shape: &[u64], rows_are_elements: bool) -> Option<(&[u64], [u64; 2])> {
    let (last, leading) = shape.split_last()?;
    if rows_are_elements {
        return Some((leading, [*last, 1]));
    }
    let (rows, stack) = leading.split_last()?;
    Some((stack, [*rows, *last]))
}

/// Returns the number of rows of a head, which has pairs of rows. `key` names the number of heads.
pub(super) fn head_size(shape: &[u64], heads: u64, is_bias: bool, key: &str) -> Result<u64> {
    let has_dimensions = shape.len() == if is_bias { 1 } else { 2 };
    let rows = shape.first().copied().unwrap_or_default();
    let size = rows.checked_div(heads).unwrap_or_default();
    if !has_dimensions || size == 0 || size % 2 != 0 || size * heads != rows {
        let message = format!("the shape {shape:?} is not that of {heads} heads with pairs of rows ('{key}')");
        return Err(unmapped(message));
    }
    Ok(size)
}

impl Dimensions {
    /// Returns the shape in GGUF; `None` if the tensor has other dimensions.
    pub(super) fn of_gguf(self, shape: &[u64], groups: u64) -> Option<Vec<u64>> {
        match (self, shape) {
            (Self::Same | Self::Row, _) | (Self::Four, [1, _, _, _]) => Some(shape.to_vec()),
            (Self::Channels, [channels, 1, size]) => Some(vec![*channels, *size]),
            (Self::Filters, [channels, 1, size] | [channels, size]) => Some(vec![1, *channels, 1, *size]),
            (Self::Column, [heads]) => Some(vec![*heads, 1]),
            (Self::Groups, [len]) => Some(vec![groups, len.checked_div(groups).filter(|size| size * groups == *len)?]),
            _ => None,
        }
    }

    /// Returns the shape in Hugging Face. A tensor with other dimensions than in GGUF has its own.
    pub(super) fn of_hugging_face(self, shape: &[u64]) -> Vec<u64> {
        match (self, shape) {
            (Self::Row, [_]) => [&[1], shape].concat(),
            (Self::Channels, [channels, size]) => vec![*channels, 1, *size],
            (Self::Filters, [1, rest @ ..]) if rest.len() == 3 => rest.to_vec(),
            (Self::Four, [.., _]) if shape.len() < 4 => [&[1; 4][shape.len()..], shape].concat(),
            (Self::Column, [heads, 1]) => vec![*heads],
            (Self::Groups, [groups, size]) => groups.checked_mul(*size).map_or_else(|| shape.to_vec(), |len| vec![len]),
            _ => shape.to_vec(),
        }
    }
}

/// The way back from the shape of an assembled tensor to the shapes of its sources.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShapeDivision {
    /// The dimensions of one source, with a number of groups.
    Dimensions(Dimensions, u64),
    /// A matrix that has the rows of two sources as [`RowOrder::Projections`] says.
    Projections,
    /// A stack of matrices, in which each of two sources has half of the rows.
    Halves,
    /// A flattened stack of this many matrices, with these numbers of rows from each source.
    Of { stack: u64, first: u64, second: u64 },
}

impl ShapeDivision {
    /// Returns the shape of a source of an assembled tensor; `None` if the tensor has another shape.
    pub(super) fn source_shape(self, assembly: &Assembly, result: &[u64], at: usize) -> Option<Vec<u64>> {
        let (stack, [mut rows, mut columns]) = match self {
            Self::Dimensions(dimensions, groups) => {
                return assembled_shape(assembly, &[&dimensions.of_gguf(result, groups)?]);
            }
            Self::Projections => {
                let ([rows, columns], RowOrder::Projections { heads, key, value }) = (result, assembly.order) else {
                    return None;
                };
                let parts = [heads * (2 * key + value), heads * value];
                return (*rows == parts[0] + parts[1]).then(|| vec![parts[at], *columns]);
            }
            Self::Halves => matrices(result, assembly.rows_are_elements)?,
            Self::Of { .. } => matrices(result, false)?,
        };
        if assembly.is_transposed {
            (rows, columns) = (columns, rows);
        }
        let is_of_two = matches!(assembly.order, RowOrder::Alternating | RowOrder::Concatenated);
        let flattened;
        let stack = match (self, stack) {
            (Self::Of { stack: count, first, second }, []) => {
                let all = first.checked_add(second)?.checked_mul(count)?;
                (all == rows && first != 0 && second != 0).then_some(())?;
                rows = if at == 0 { first } else { second };
                flattened = [count];
                &flattened[..]
            }
            (Self::Halves, [_]) => {
                (!is_of_two || rows.is_multiple_of(2)).then_some(())?;
                rows = if is_of_two { rows / 2 } else { rows };
                stack
            }
            _ => return None,
        };
        if at == 0 && assembly.first_is_transposed {
            (rows, columns) = (columns, rows);
        }
        let matrix = if assembly.rows_are_elements { vec![rows] } else { vec![rows, columns] };
        Some([stack, &matrix].concat())
    }
}
