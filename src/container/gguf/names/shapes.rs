//! The shapes of assembled tensors.

use crate::blocks::{Assembly, RowOrder};

/// Returns the shape of the tensor that is made of sources with these shapes; `None` if they do not fit.
pub(super) fn assembled_shape(assembly: &Assembly, sources: &[&[u64]]) -> Option<Vec<u64>> {
    let (first, others) = sources.split_first()?;
    if *assembly == (Assembly { is_less_one: assembly.is_less_one, ..Assembly::default() }) {
        return others.is_empty().then(|| first.to_vec());
    }
    let (stack, mut rows, mut columns) = matrices(first, assembly.rows_are_elements)?;
    if assembly.first_is_transposed {
        (rows, columns) = (columns, rows);
    }
    match (assembly.order, others) {
        (RowOrder::Stored, []) => {}
        (RowOrder::Heads(heads), []) => {
            let is_even = rows.checked_div(heads)? % 2 == 0;
            (is_even && rows.is_multiple_of(heads)).then_some(())?;
        }
        (RowOrder::Alternating | RowOrder::Concatenated, [second]) => {
            let (other_stack, other_rows, other_columns) = matrices(second, assembly.rows_are_elements)?;
            let fits = other_stack == stack && other_columns == columns;
            let alternates = assembly.order == RowOrder::Alternating;
            (fits && (!alternates || rows == other_rows)).then_some(())?;
            rows = rows.checked_add(other_rows)?;
        }
        _ => return None,
    }
    if assembly.is_transposed {
        (rows, columns) = (columns, rows);
    }
    let matrix = if assembly.rows_are_elements { vec![rows] } else { vec![rows, columns] };
    Some([stack, &matrix].concat())
}

/// Returns the shape of a stack of matrices whose rows follow each other; `None` if the rows are too many.
pub(super) fn flattened(shape: &[u64]) -> Option<Vec<u64>> {
    let (columns, rows) = shape.split_last()?;
    let rows = rows.iter().try_fold(1u64, |product, length| product.checked_mul(*length))?;
    Some(vec![rows, *columns])
}

/// Divides a shape into that of a stack, rows and columns.
fn matrices(shape: &[u64], rows_are_elements: bool) -> Option<(&[u64], u64, u64)> {
    let (last, leading) = shape.split_last()?;
    if rows_are_elements {
        return Some((leading, *last, 1));
    }
    let (rows, stack) = leading.split_last()?;
    Some((stack, *rows, *last))
}
