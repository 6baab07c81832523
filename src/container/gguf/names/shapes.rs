//! The shapes of assembled tensors.

use crate::blocks::Assembly;

/// Returns the shape of the tensor that is made of sources with these shapes; `None` if they do not fit.
pub(super) fn assembled_shape(assembly: &Assembly, sources: &[&[u64]]) -> Option<Vec<u64>> {
    let (first, others) = sources.split_first()?;
    if *assembly == (Assembly { is_less_one: assembly.is_less_one, ..Assembly::default() }) {
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

/// Divides a shape into that of a stack, and the rows and columns of its matrices.
fn matrices(shape: &[u64], rows_are_elements: bool) -> Option<(&[u64], [u64; 2])> {
    let (last, leading) = shape.split_last()?;
    if rows_are_elements {
        return Some((leading, [*last, 1]));
    }
    let (rows, stack) = leading.split_last()?;
    Some((stack, [*rows, *last]))
}
