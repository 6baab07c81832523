//! The rotation of rows of values before they are encoded, and after they are decoded (`ComfyUI`'s `ConvRot`).
//!
//! Groups of 4^n columns are multiplied by the n-fold Kronecker power of [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1],
//! [-1, 1, 1, 1]], divided by 2^n. That matrix is symmetric and its own inverse, so multiplying again gives the values
//! (comfy-kitchen, `tensor/int8_utils.py`). The library sums in float32, in an order that depends on the machine; here
//! sums are in float64.

/// The columns of a row that are rotated together, in layouts with a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Rows stay as they are.
    Off,
    /// Groups of this many columns: 16, 64, 256 or 1024.
    Columns(u64),
}

impl Default for Rotation {
    fn default() -> Self {
        Self::Columns(256)
    }
}

impl Rotation {
    /// Returns the columns that are rotated together.
    #[must_use]
    pub fn columns(self) -> Option<u64> {
        if let Self::Columns(size) = self { Some(size) } else { None }
    }
}

impl std::fmt::Display for Rotation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => f.write_str("none"),
            Self::Columns(size) => write!(f, "{size}"),
        }
    }
}

impl serde::Serialize for Rotation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// True if groups of this many columns can be rotated.
pub(super) fn is_rotation(size: u64) -> bool {
    matches!(size, 4 | 16 | 64 | 256 | 1024)
}

/// Rotates each group of `size` values, which are float64 in little endian bytes.
#[inline(always)]
pub(super) fn rotate(values: &mut [[u8; 8]], size: usize) {
    let scale = 1.0 / (size as f64).sqrt(); // a power of two
    for group in values.chunks_exact_mut(size) {
        for four in group.as_chunks_mut::<4>().0 {
            *four = butterfly(*four, 1.0);
        }
        let mut step = 4;
        while step < size {
            // The last step also divides.
            let factor = if 4 * step == size { scale } else { 1.0 };
            for block in group.chunks_exact_mut(4 * step) {
                let (first, second) = block.split_at_mut(2 * step);
                let ((a, b), (c, d)) = (first.split_at_mut(step), second.split_at_mut(step));
                for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
                    [*a, *b, *c, *d] = butterfly([*a, *b, *c, *d], factor);
                }
            }
            step *= 4;
        }
        if size == 4 {
            for value in group {
                *value = (f64::from_le_bytes(*value) * scale).to_le_bytes();
            }
        }
    }
}

/// Multiplies four values by the matrix of size 4, and by a factor.
#[inline(always)]
fn butterfly(values: [[u8; 8]; 4], factor: f64) -> [[u8; 8]; 4] {
    let [a, b, c, d] = values.map(f64::from_le_bytes);
    [a + b + c - d, a + b - c + d, a - b + c + d, b + c + d - a].map(|sum| (sum * factor).to_le_bytes())
}

/// Rotates float32 values, with `wide` as a buffer of the same length.
#[inline(always)]
pub(super) fn rotate_float32s(values: &mut [[u8; 4]], wide: &mut [[u8; 8]], size: usize) {
    for (wide, value) in wide.iter_mut().zip(&*values) {
        *wide = f64::from(f32::from_le_bytes(*value)).to_le_bytes();
    }
    rotate(wide, size);
    for (value, wide) in values.iter_mut().zip(&*wide) {
        *value = (f64::from_le_bytes(*wide) as f32).to_le_bytes();
    }
}
