//! The number of elements of a shape, and the coordinates of an element.

/// Returns the number of elements of a shape. `None` if the product of the nonzero lengths does not fit in 64 bits:
/// other readers refuse such a shape, although a zero makes the tensor empty.
#[must_use]
pub fn element_count(shape: &[u64]) -> Option<u64> {
    let extent =
        shape.iter().filter(|&&length| length > 0).try_fold(1_u64, |count, &length| count.checked_mul(length))?;
    Some(if shape.contains(&0) { 0 } else { extent })
}

/// True if every product of lengths fits 64 bits, with 128 bits for each element, even if one of the lengths is 0.
pub(super) fn is_countable(shape: &[u64]) -> bool {
    shape.iter().try_fold(128_u64, |bits, &length| bits.checked_mul(length.max(1))).is_some()
}

/// Formats the coordinates of an element, `[1, 2]`, given its index in the order of the file.
pub(crate) fn position(index: u64, shape: &[u64], fortran_order: bool) -> String {
    format!("{:?}", indices(index, shape, fortran_order))
}

/// Returns the coordinates of an element, given its index in the order of the file.
pub(crate) fn indices(mut index: u64, shape: &[u64], fortran_order: bool) -> Vec<u64> {
    let mut indices = vec![0; shape.len()];
    let mut dimensions: Vec<usize> = (0..shape.len()).collect();
    if !fortran_order {
        dimensions.reverse(); // the last one changes fastest
    }
    for dimension in dimensions {
        indices[dimension] = index % shape[dimension];
        index /= shape[dimension];
    }
    indices
}

/// Converts the index of an element in column-major order to its index in row-major order.
#[must_use]
pub fn row_major(index: u64, shape: &[u64]) -> u64 {
    indices(index, shape, true).iter().zip(shape).fold(0, |place, (index, length)| place * length + index)
}
