//! The matrices of an adapter, and the deltas that they make, as float64.

use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::kernel::half::{bfloat16, float16};
use crate::kernel::{Isa, Kernel, Loop, Rules, Storage};
use std::ops::Range;
use std::sync::Arc;
use tcast_slice::StoredBytes;
use zerocopy::IntoBytes;

/// The elements of a tensor of an adapter.
#[derive(Clone)]
enum MatrixElements {
    /// In a file, as float64, float32, float16 or bfloat16, from this byte on.
    Stored { file: Arc<Checkpoint>, index: usize, start: usize, dtype: Dtype },
    /// Decoded, or computed from other tensors.
    Computed(Arc<[f64]>),
}

/// A matrix of elements of a tensor: element `(row, column)` is at `offset + row * step_of_row + column * step_of_column`.
#[derive(Clone)]
pub(super) struct Matrix {
    elements: MatrixElements,
    pub rows: u64,
    pub columns: u64,
    offset: u64,
    steps: [u64; 2],
}

impl Matrix {
    /// The elements of a file from a byte on, of a type that [`is_plain`] accepts.
    pub(super) fn stored(
        file: &Arc<Checkpoint>,
        (index, start): (usize, usize),
        dtype: Dtype,
        [rows, columns]: [u64; 2],
    ) -> Self {
        let elements = MatrixElements::Stored { file: Arc::clone(file), index, start, dtype };
        Self { elements, rows, columns, offset: 0, steps: [columns, 1] }
    }

    pub(super) fn computed(values: Vec<f64>, [rows, columns]: [u64; 2]) -> Self {
        Self { elements: MatrixElements::Computed(values.into()), rows, columns, offset: 0, steps: [columns, 1] }
    }

    /// Returns the same elements, read as another matrix.
    pub(super) fn viewed(&self, [rows, columns]: [u64; 2], offset: u64, steps: [u64; 2]) -> Self {
        Self { elements: self.elements.clone(), rows, columns, offset: self.offset + offset, steps }
    }

    /// Returns the same elements in row-major order, as a matrix of another shape.
    pub(super) fn reshaped(&self, shape: [u64; 2]) -> Self {
        self.viewed(shape, 0, [shape[1], 1])
    }

    pub(super) fn transposed(&self) -> Self {
        self.viewed([self.columns, self.rows], 0, [self.steps[1], self.steps[0]])
    }

    /// Returns some of its rows.
    pub(super) fn rows_from(&self, first: u64, count: u64) -> Self {
        self.viewed([count, self.columns], first * self.steps[0], self.steps)
    }

    /// Reads some columns of a row.
    #[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
    #[inline(always)]
    pub(super) fn read(&self, row: u64, columns: Range<u64>, out: &mut [f64]) {
        let first = (self.offset + row * self.steps[0] + columns.start * self.steps[1]) as usize;
        let step = self.steps[1] as usize;
        match &self.elements {
            MatrixElements::Computed(values) => {
                out.iter_mut().enumerate().for_each(|(at, value)| *value = values[first + at * step]);
            }
            MatrixElements::Stored { file, index, start, dtype } => {
                read_plain(*dtype, &file.shards[0].files[*index][*start..], first, step, out);
            }
        }
    }

    /// Returns all elements in row-major order.
    pub(super) fn all(&self) -> Vec<f64> {
        let mut values = vec![0.0; (self.rows * self.columns) as usize];
        for (row, out) in (0..self.rows).zip(values.chunks_exact_mut(self.columns.max(1) as usize)) {
            self.read(row, 0..self.columns, out);
        }
        values
    }

    /// True if something is true of all pieces of its elements in row-major order, each with the range that it takes.
    pub(super) fn all_pieces(&self, mut is_true: impl FnMut(Range<usize>, &[f64]) -> Result<bool>) -> Result<bool> {
        /// Elements that are read at a time.
        const STEP: u64 = 1 << 16;
        let (all, mut values) = (self.reshaped([1, self.rows * self.columns]), Vec::new());
        for start in (0..all.columns).step_by(STEP as usize) {
            let end = all.columns.min(start + STEP);
            values.resize((end - start) as usize, 0.0);
            all.read(0, start..end, &mut values);
            if !is_true(start as usize..end as usize, &values)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Computes the product with another matrix.
    pub(super) fn times(&self, other: &Self) -> Self {
        let mut product = vec![0.0; (self.rows * other.columns) as usize];
        multiply(self, other, 0..self.rows, 0..other.columns, 1.0, &mut product);
        Self::computed(product, [self.rows, other.columns])
    }

    /// Returns the only element of a scalar.
    pub(super) fn scalar(&self) -> f64 {
        let mut value = [0.0];
        self.read(0, 0..1, &mut value);
        value[0]
    }

    /// Returns the type of its elements in their file.
    pub(super) fn dtype(&self) -> Option<Dtype> {
        if let MatrixElements::Stored { dtype, .. } = &self.elements { Some(*dtype) } else { None }
    }

    /// Returns the file that its elements are in.
    pub(super) fn file(&self) -> Option<&Checkpoint> {
        if let MatrixElements::Stored { file, .. } = &self.elements { Some(file) } else { None }
    }
}

/// True if matrices read elements of this type where they are.
pub(super) fn is_plain(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float64 | Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16)
}

/// Reads elements of a plain type from one on, each `step` elements behind the one before.
#[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
#[inline(always)]
pub(super) fn read_plain(dtype: Dtype, bytes: &[u8], first: usize, step: usize, out: &mut [f64]) {
    match dtype {
        Dtype::Float64 => gather(bytes, first, step, out, f64::from_le_bytes),
        Dtype::Float32 => gather(bytes, first, step, out, |it| f32::from_le_bytes(it).into()),
        Dtype::Float16 => gather(bytes, first, step, out, |it| float16(u16::from_le_bytes(it)).into()),
        _ => gather(bytes, first, step, out, |it| bfloat16(u16::from_le_bytes(it)).into()),
    }
}

#[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
#[inline(always)]
fn gather<const N: usize>(bytes: &[u8], first: usize, step: usize, out: &mut [f64], widen: impl Fn([u8; N]) -> f64) {
    let (elements, _) = bytes.as_chunks::<N>();
    if step == 1 {
        let source = &elements[first..first + out.len()];
        for (value, element) in out.iter_mut().zip(source) {
            *value = widen(*element);
        }
    } else {
        for (at, value) in out.iter_mut().enumerate() {
            *value = widen(elements[first + at * step]);
        }
    }
}

/// A delta before its scale.
#[derive(Clone)]
pub(super) enum Delta {
    /// Stored as a whole.
    Whole(Matrix),
    /// The product of two matrices; the terms of each sum are added in the order of the inner dimension.
    Product(Matrix, Matrix),
    /// The products of the elements at the same place (`LoHa`).
    Elementwise(Box<[Delta; 2]>),
    /// The Kronecker product (`LoKr`).
    Kronecker(Box<[Delta; 2]>),
}

impl Delta {
    pub(super) fn shape(&self) -> [u64; 2] {
        match self {
            Self::Whole(matrix) => [matrix.rows, matrix.columns],
            Self::Product(left, right) => [left.rows, right.columns],
            Self::Elementwise(both) => both[0].shape(),
            Self::Kronecker(both) => {
                let [first, second] = [both[0].shape(), both[1].shape()];
                [first[0].saturating_mul(second[0]), first[1].saturating_mul(second[1])]
            }
        }
    }

    pub(super) fn transposed(&self) -> Self {
        let both = |both: &[Self; 2]| Box::new([both[0].transposed(), both[1].transposed()]);
        match self {
            Self::Whole(matrix) => Self::Whole(matrix.transposed()),
            Self::Product(left, right) => Self::Product(right.transposed(), left.transposed()),
            Self::Elementwise(parts) => Self::Elementwise(both(parts)),
            Self::Kronecker(parts) => Self::Kronecker(both(parts)),
        }
    }

    /// Adds some rows and columns, each element times a factor, to values in row-major order.
    pub(super) fn add(&self, factor: f64, rows: Range<u64>, columns: Range<u64>, values: &mut [f64]) {
        if let Self::Product(left, right) = self {
            return multiply(left, right, rows, columns, factor, values);
        }
        let mut computed = vec![0.0; values.len()];
        self.fill(rows, columns, &mut computed);
        values.iter_mut().zip(&computed).for_each(|(value, delta)| *value += factor * delta);
    }

    /// Computes some rows and columns, in row-major order.
    pub(super) fn fill(&self, rows: Range<u64>, columns: Range<u64>, out: &mut [f64]) {
        let width = (columns.end - columns.start) as usize;
        if width == 0 || rows.is_empty() {
            return;
        }
        match self {
            Self::Whole(matrix) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                    matrix.read(row, columns.clone(), out);
                }
            }
            Self::Product(left, right) => {
                out.fill(0.0);
                multiply(left, right, rows, columns, 1.0, out);
            }
            Self::Elementwise(both) => {
                let mut other = vec![0.0; out.len()];
                both[0].fill(rows.clone(), columns.clone(), out);
                both[1].fill(rows, columns, &mut other);
                out.iter_mut().zip(&other).for_each(|(value, other)| *value *= other);
            }
            Self::Kronecker(both) => {
                let ([_, outer_columns], [inner_rows, inner_columns]) = (both[0].shape(), both[1].shape());
                let (mut start, mut out) = (rows.start, out);
                let (mut outer, mut inner) = (vec![0.0; outer_columns as usize], Vec::new());
                while start < rows.end {
                    // The rows of one row of the outer matrix.
                    let (block, first) = (start / inner_rows, start % inner_rows);
                    let count = (inner_rows - first).min(rows.end - start);
                    both[0].fill(block..block + 1, 0..outer_columns, &mut outer);
                    inner.resize((count * inner_columns) as usize, 0.0);
                    both[1].fill(first..first + count, 0..inner_columns, &mut inner);
                    let (now, rest) = out.split_at_mut(count as usize * width);
                    for (out, inner) in now.chunks_exact_mut(width).zip(inner.chunks_exact(inner_columns as usize)) {
                        for (value, column) in out.iter_mut().zip(columns.clone()) {
                            *value =
                                outer[(column / inner_columns) as usize] * inner[(column % inner_columns) as usize];
                        }
                    }
                    (start, out) = (start + count, rest);
                }
            }
        }
    }

    /// Returns the files that it is read from.
    pub(super) fn files(&self) -> Vec<&Checkpoint> {
        match self {
            Self::Whole(matrix) => matrix.file().into_iter().collect(),
            Self::Product(left, right) => left.file().into_iter().chain(right.file()).collect(),
            Self::Elementwise(both) | Self::Kronecker(both) => both.iter().flat_map(Self::files).collect(),
        }
    }
}

/// Number of float64 values in a vector of the widest instruction set.
pub(super) const LANES: usize = 8;

/// Number of rows whose sums are computed together.
const ROWS: usize = 4;

/// Adds some rows and columns of a product, times a factor, to `out`.
fn multiply(left: &Matrix, right: &Matrix, rows: Range<u64>, columns: Range<u64>, factor: f64, out: &mut [f64]) {
    if columns.is_empty() {
        return;
    }
    let inner = left.columns as usize;
    let mut left_rows = vec![0.0; (rows.end - rows.start) as usize * inner];
    for (row, out) in rows.zip(left_rows.chunks_exact_mut(inner.max(1))) {
        left.read(row, 0..left.columns, out);
    }
    let isa = Isa::chosen();
    if isa == Isa::Avx512 {
        isa.run(MultiplyRows::<2> { left: &left_rows, right, columns, factor, out });
    } else {
        isa.run(MultiplyRows::<1> { left: &left_rows, right, columns, factor, out });
    }
}

/// Multiplies rows with a matrix, tile by tile: the sums of some rows and of this number of vectors stay in registers.
struct MultiplyRows<'m, const VECTORS: usize> {
    left: &'m [f64],
    right: &'m Matrix,
    columns: Range<u64>,
    factor: f64,
    out: &'m mut [f64],
}

impl<const VECTORS: usize> Loop for MultiplyRows<'_, VECTORS> {
    type Result = ();

    #[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
    #[inline(always)]
    fn run(self) {
        let Self { left, right, columns, factor, out } = self;
        let (all, width) = ((columns.end - columns.start) as usize, LANES * VECTORS);
        let mut tile = MergeTile { lines: vec![[[0.0; LANES]; VECTORS]; right.rows as usize], factor };
        let mut padded = Vec::new();
        for start in (0..all).step_by(width) {
            let (count, from) = (width.min(all - start), columns.start + start as u64);
            for (row, line) in (0..right.rows).zip(&mut tile.lines) {
                right.read(row, from..from + count as u64, &mut line.as_flattened_mut()[..count]);
            }
            if count == width {
                tile.add(left, start, all, out);
                continue;
            }
            padded.resize(out.len() / all * width, 0.0);
            for (padded, out) in padded.chunks_exact_mut(width).zip(out.chunks_exact(all)) {
                padded[..count].copy_from_slice(&out[start..]);
            }
            tile.add(left, 0, width, &mut padded);
            for (padded, out) in padded.chunks_exact(width).zip(out.chunks_exact_mut(all)) {
                out[start..].copy_from_slice(&padded[..count]);
            }
        }
    }
}

/// Some columns of the right matrix, line by line.
struct MergeTile<const VECTORS: usize> {
    lines: Vec<[[f64; LANES]; VECTORS]>,
    factor: f64,
}

impl<const VECTORS: usize> MergeTile<VECTORS> {
    /// Adds to the columns from `start` on of all rows, which have this width.
    #[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
    #[inline(always)]
    fn add(&self, left: &[f64], start: usize, width: usize, out: &mut [f64]) {
        let inner = self.lines.len();
        let whole = out.len() / width / ROWS * ROWS;
        let (blocks, last) = out.split_at_mut(whole * width);
        for (at, out) in blocks.chunks_exact_mut(ROWS * width).enumerate() {
            self.add_rows::<ROWS>(&left[at * ROWS * inner..][..ROWS * inner], start, width, out);
        }
        for (at, out) in last.chunks_exact_mut(width).enumerate() {
            self.add_rows::<1>(&left[(whole + at) * inner..][..inner], start, width, out);
        }
    }

    #[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
    #[allow(clippy::needless_range_loop, reason = "indices of constant ranges keep the sums in registers")]
    #[inline(always)]
    fn add_rows<const ROWS: usize>(&self, left: &[f64], start: usize, width: usize, out: &mut [f64]) {
        let inner = self.lines.len();
        let mut sums = [[[0.0; LANES]; VECTORS]; ROWS];
        let rows: [&[f64]; ROWS] = std::array::from_fn(|row| &left[row * inner..(row + 1) * inner]);
        for (at, line) in self.lines.iter().enumerate() {
            for row in 0..ROWS {
                let value = rows[row][at];
                for vector in 0..VECTORS {
                    for lane in 0..LANES {
                        sums[row][vector][lane] += value * line[vector][lane];
                    }
                }
            }
        }
        for row in 0..ROWS {
            let (vectors, _) = out[row * width + start..].as_chunks_mut::<LANES>();
            let out = vectors.first_chunk_mut::<VECTORS>().expect("a whole tile");
            for vector in 0..VECTORS {
                for lane in 0..LANES {
                    out[vector][lane] += self.factor * sums[row][vector][lane];
                }
            }
        }
    }
}

/// Widens floats of a plain type.
struct WidenPlain<'w> {
    dtype: Dtype,
    bytes: &'w [u8],
    values: &'w mut [f64],
}

impl Loop for WidenPlain<'_> {
    type Result = ();

    #[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
    #[inline(always)]
    fn run(self) {
        read_plain(self.dtype, self.bytes, 0, 1, self.values);
    }
}

/// Writes values as elements of a type, rounded to nearest. `None` if values do not become such elements.
#[must_use]
pub(crate) fn narrow(values: &[f64], dtype: Dtype, bytes: &mut Vec<u8>) -> Option<()> {
    bytes.resize(values.len() * dtype.bits() as usize / 8, 0);
    let own = Storage { big_endian: cfg!(target_endian = "big"), ..Storage::packed(Dtype::Float64) };
    let kernel = Kernel::cast(own, Storage::packed(dtype), &Rules::default())?;
    kernel.run(values.as_bytes(), bytes, values.len()).ok().map(|_| ())
}

/// Rounds values to a plain type.
pub(super) fn round(values: &mut [f64], dtype: Dtype) {
    let mut bytes = Vec::new();
    narrow(values, dtype, &mut bytes).expect("floats become floats");
    widen_to(dtype, &bytes, values);
}

/// Widens floats to float64.
pub(crate) fn widen(dtype: Dtype, bytes: &[u8], values: &mut Vec<f64>) {
    values.resize(bytes.len() / (dtype.bits() as usize / 8), 0.0);
    widen_to(dtype, bytes, values);
}

/// Widens as many floats to float64.
pub(crate) fn widen_to(dtype: Dtype, bytes: &[u8], values: &mut [f64]) {
    if is_plain(dtype) {
        return Isa::chosen().run(WidenPlain { dtype, bytes, values });
    }
    let stored = StoredBytes::new(bytes, Storage::packed(dtype), values.len()).expect("the elements were counted");
    tcast_slice::cast(&stored, values).expect("floats of whole bytes are never malformed");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random;

    #[test]
    fn tiles_add_the_terms_in_the_order_of_the_rank_on_every_instruction_set() {
        let special = [f64::NAN, f64::INFINITY, -0.0, 5e-324, f64::MAX, 1.0 / 3.0];
        let mut next = random(1);
        let mut values = |count: usize, are_special: bool| -> Vec<f64> {
            let value = |bits: u64| match special.get((bits >> 58) as usize).filter(|_| are_special) {
                Some(special) => *special,
                None => (bits >> 11) as f64 / (1_u64 << 53) as f64 - 0.5,
            };
            (0..count).map(|_| value(next())).collect()
        };
        let sizes = [(1, 1, 1), (3, 16, 31), (4, 3, 32), (5, 5, 33), (9, 1, 7), (8, 17, 40), (6, 0, 9), (11, 4, 70)];
        for ((rows, inner, width), are_special) in sizes.into_iter().flat_map(|size| [(size, false), (size, true)]) {
            let (left, right) = (values(rows * inner, are_special), values(inner * (width + 2), are_special));
            let before = values(rows * width, are_special);
            let matrix = Matrix::computed(right.clone(), [inner as u64, width as u64 + 2]);
            for factor in [1.0, 0.75] {
                let wanted: Vec<f64> = (0..rows * width)
                    .map(|at| {
                        let (row, column) = (at / width, at % width + 1);
                        let term = |k: usize| left[row * inner + k] * right[k * (width + 2) + column];
                        let sum = (0..inner).fold(0.0, |sum, k| sum + term(k));
                        before[at] + factor * sum
                    })
                    .collect();
                let columns = 1..width as u64 + 1;
                for isa in Isa::available() {
                    let [mut wide, mut slim] = [before.clone(), before.clone()];
                    let (left, right) = (&left[..], &matrix);
                    isa.run(MultiplyRows::<2> { left, right, columns: columns.clone(), factor, out: &mut wide });
                    isa.run(MultiplyRows::<1> { left, right, columns: columns.clone(), factor, out: &mut slim });
                    for found in [wide, slim] {
                        let is_same = |(one, other): (&f64, &f64)| {
                            one.to_bits() == other.to_bits() || one.is_nan() && other.is_nan()
                        };
                        assert!(found.iter().zip(&wanted).all(is_same), "{isa:?} {rows} {inner} {width} {factor}");
                    }
                }
            }
        }
    }
}
