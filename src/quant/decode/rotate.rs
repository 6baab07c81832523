//! The rotation of `ComfyUI`'s `ConvRot`.
//!
//! A rotated weight was multiplied, in groups of 4^n columns, by the n-fold Kronecker power of [[1, 1, 1, -1], [1, 1,
//! -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], divided by 2^n. That matrix is symmetric and its own inverse, so multiplying
//! again gives the weight (comfy-kitchen, `tensor/int8_utils.py`). The library sums in float32, in an order that
//! depends on the machine; here sums are in float64.

/// Rotates each group of `size` values, which are float64 in little endian bytes.
pub(super) fn rotate(values: &mut [[u8; 8]], size: usize) {
    let scale = 1.0 / (size as f64).sqrt(); // a power of two
    for group in values.chunks_exact_mut(size) {
        let mut step = 1;
        while step < size {
            for start in (0..size).step_by(4 * step) {
                for at in start..start + step {
                    let [a, b, c, d] = [0, 1, 2, 3].map(|part| f64::from_le_bytes(group[at + part * step]));
                    group[at] = (a + b + c - d).to_le_bytes();
                    group[at + step] = (a + b - c + d).to_le_bytes();
                    group[at + 2 * step] = (a - b + c + d).to_le_bytes();
                    group[at + 3 * step] = (b + c + d - a).to_le_bytes();
                }
            }
            step *= 4;
        }
        for value in group {
            *value = (f64::from_le_bytes(*value) * scale).to_le_bytes();
        }
    }
}

/// Rotates float32 values, with `wide` as a buffer of the same length.
pub(super) fn rotate_float32s(values: &mut [[u8; 4]], wide: &mut [[u8; 8]], size: usize) {
    wide.iter_mut().zip(&*values).for_each(|(wide, value)| {
        *wide = f64::from(f32::from_le_bytes(*value)).to_le_bytes();
    });
    rotate(wide, size);
    values.iter_mut().zip(&*wide).for_each(|(value, wide)| {
        *value = (f64::from_le_bytes(*wide) as f32).to_le_bytes();
    });
}
