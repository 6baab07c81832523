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

/// The most columns that are rotated together.
const MOST: usize = 1024;

/// Rotates each group of `size` float64 values.
#[inline(always)]
pub(super) fn rotate_float64s(values: &mut [[u8; 8]], size: usize) {
    let mut buffers = [[0.0; MOST]; 2];
    for group in values.chunks_exact_mut(size) {
        store(rotated(group, &mut buffers, f64::from_le_bytes), group, f64::to_le_bytes);
    }
}

/// Rotates each group of `size` float32 values.
#[inline(always)]
pub(super) fn rotate_float32s(values: &mut [[u8; 4]], size: usize) {
    let mut buffers = [[0.0; MOST]; 2];
    for group in values.chunks_exact_mut(size) {
        store(rotated(group, &mut buffers, |bytes| f64::from(f32::from_le_bytes(bytes))), group, float32);
    }
}

/// Rotates each group of `size` values, and rounds the results to float32.
#[inline(always)]
pub(super) fn rotate_to_float32s<T: Copy>(values: &[T], to: &mut [[u8; 4]], size: usize, widen: impl Fn(T) -> f32) {
    let mut buffers = [[0.0; MOST]; 2];
    for (group, to) in values.chunks_exact(size).zip(to.chunks_exact_mut(size)) {
        store(rotated(group, &mut buffers, |value| f64::from(widen(value))), to, float32);
    }
}

#[inline(always)]
fn float32(value: f64) -> [u8; 4] {
    (value as f32).to_le_bytes()
}

/// Stores the sums of a group, divided.
#[inline(always)]
fn store<T>(sums: &[f64], to: &mut [T], narrow: impl Fn(f64) -> T) {
    let scale = 1.0 / (sums.len() as f64).sqrt(); // a power of two
    for (to, sum) in to.iter_mut().zip(sums) {
        *to = narrow(sum * scale);
    }
}

/// Returns the sums of a group. Each stage goes from one buffer to the other, for a digit of the places in base 4.
#[inline(always)]
fn rotated<'b, T: Copy>(group: &[T], buffers: &'b mut [[f64; MOST]; 2], widen: impl Fn(T) -> f64) -> &'b [f64] {
    let [from, to] = buffers;
    let (mut from, mut to) = (&mut from[..group.len()], &mut to[..group.len()]);
    for (wide, value) in from.iter_mut().zip(group) {
        *wide = widen(*value);
    }
    for _ in 0..group.len().ilog2() / 2 {
        rotate_digit(from, to);
        std::mem::swap(&mut from, &mut to);
    }
    from
}

/// Multiplies each four neighbours by the matrix of size 4. The four sums go to four equal parts of the output, so that the
/// lowest digit of a place in base 4 becomes the highest: after one stage for each digit, all are back in order.
///
/// In place, neighbours that are four apart had no vectors with AVX-512.
#[inline(always)]
fn rotate_digit(from: &[f64], to: &mut [f64]) {
    let (first, second) = to.split_at_mut(from.len() / 2);
    let quarter = from.len() / 4;
    let ((one, two), (three, four)) = (first.split_at_mut(quarter), second.split_at_mut(quarter));
    for ((([a, b, c, d], one), two), (three, four)) in
        from.as_chunks::<4>().0.iter().zip(one).zip(two).zip(three.iter_mut().zip(four))
    {
        *one = a + b + c - d;
        *two = a + b - c + d;
        *three = a - b + c + d;
        *four = b + c + d - a;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Isa, Loop};

    struct RotateFloat64s<'a>(&'a mut [[u8; 8]], usize);

    impl Loop for RotateFloat64s<'_> {
        type Result = ();

        #[inline(always)]
        fn run(self) {
            rotate_float64s(self.0, self.1);
        }
    }

    /// Multiplies by the matrix of size 4 along each digit of the place in base 4, from the lowest to the highest.
    fn plainly_rotated(values: &[f64], size: usize) -> Vec<f64> {
        let mut values = values.to_vec();
        let steps = (0..size.ilog2() / 2).map(|digit| 4_usize.pow(digit));
        for step in steps {
            for at in (0..values.len()).filter(|at| at / step % 4 == 0) {
                let [a, b, c, d] = [0, 1, 2, 3].map(|digit| values[at + digit * step]);
                let sums = [a + b + c - d, a + b - c + d, a - b + c + d, b + c + d - a];
                (0..4).for_each(|digit| values[at + digit * step] = sums[digit]);
            }
        }
        values.iter().map(|value| value / (size as f64).sqrt()).collect()
    }

    #[test]
    fn groups_are_multiplied_along_each_digit_of_a_place() {
        let number = |at: u64| {
            let random = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (random as i64 >> 11) as f64 * 2_f64.powi((random >> 3 & 31) as i32)
        };
        let values: Vec<f64> = (0..2048).map(number).collect();
        for size in [4, 16, 64, 256, 1024] {
            let bits = |values: Vec<f64>| values.into_iter().map(f64::to_le_bytes).collect::<Vec<_>>();
            let expected = bits(plainly_rotated(&values, size));
            for isa in Isa::available() {
                let mut actual = bits(values.clone());
                isa.run(RotateFloat64s(&mut actual, size));
                assert!(actual == expected, "{size} with {isa:?}");
            }
        }
    }
}
