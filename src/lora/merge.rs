//! The changes of one weight, in the order of the adapters.

use super::matrix::{Delta, Matrix, round};
use super::names::MergePlace;
use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Reads values of a weight before the merge, given by a range of its elements.
pub(crate) type ReadValues<'r> = &'r dyn Fn(Range<u64>, &mut Vec<f64>) -> Result<()>;

/// All changes of a weight, in order.
pub(crate) struct Merge {
    pub(super) changes: Arc<[WeightChange]>,
    /// The type to which mlx-lm rounds each delta and each sum; `None` if they stay float64.
    fused_in: Option<Dtype>,
    /// True if a step of a plan makes them.
    is_used: AtomicBool,
}

/// A change of a weight, or of a part of it.
pub(super) struct WeightChange {
    pub place: MergePlace,
    pub how: How,
}

#[derive(Clone)]
pub(super) enum How {
    /// `factor` times the delta is added.
    Add { delta: Delta, factor: f64 },
    /// The delta is added, and rows or columns then get new lengths (`DoRA`).
    Decompose(Box<Decompose>),
    /// All elements get new values.
    Replace(Delta),
    /// Some rows get new values: the number of each, and its row in the matrix.
    ReplaceRows(BTreeMap<u64, u64>, Matrix),
}

/// `DoRA`: `v = w + factor * delta`, and `w' = v * (m / |v|)` for each row or column; then `w + share * (w' - w)`.
#[derive(Clone)]
pub(super) struct Decompose {
    pub delta: Delta,
    pub factor: f64,
    pub magnitude: Vec<f64>,
    /// The number of adjacent columns that share a length; `None` if each row has one.
    pub columns_each: Option<u64>,
    /// The share of the change that is applied; `None` for all of it.
    pub share: Option<f64>,
    /// `m / |v|` of each row or column.
    pub ratios: OnceLock<Vec<f64>>,
}

impl Merge {
    pub(super) fn new(changes: Vec<WeightChange>) -> Self {
        Self { changes: changes.into(), fused_in: None, is_used: AtomicBool::new(false) }
    }

    /// Returns the changes as mlx-lm makes them to a weight of this type; `None` if one is no product of two matrices. They
    /// take the place of these changes.
    pub(crate) fn fused(&self, dtype: Dtype) -> Option<Self> {
        let is_product = |change: &WeightChange| match &change.how {
            How::Add { delta: Delta::Product(left, _), .. } => left.dtype().is_some() && !change.place.swaps_halves,
            _ => false,
        };
        if !self.changes.iter().all(is_product) {
            return None;
        }
        self.set_used();
        Some(Self { changes: Arc::clone(&self.changes), fused_in: Some(dtype), is_used: AtomicBool::new(true) })
    }

    /// Records that a step makes the changes: a plan must make all of them.
    pub(crate) fn set_used(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Changes the values of some consecutive elements, which begin at `first`. `read` reads other elements of the weight.
    pub(crate) fn apply(&self, first: u64, values: &mut [f64], read: ReadValues) -> Result<()> {
        self.apply_first(self.changes.len(), first, values, read)
    }

    fn apply_first(&self, count: usize, first: u64, values: &mut [f64], read: ReadValues) -> Result<()> {
        for (at, change) in self.changes[..count].iter().enumerate() {
            let Some(met) = change.place.met(first, values.len()) else { continue };
            if let How::Decompose(decompose) = &change.how
                && decompose.ratios.get().is_none()
            {
                let ratios = self.ratios(at, change, decompose, read)?;
                let _ = decompose.ratios.set(ratios); // every thread finds the same
            }
            let (from, values) = (first.saturating_sub(change.place.start), &mut values[met]);
            match self.fused_in {
                Some(dtype) => change.fuse(from, values, dtype),
                None => change.apply(from, values),
            }
        }
        Ok(())
    }

    /// Computes `m / |v|` of each row or column. Squares are added in row-major order.
    fn ratios(&self, at: usize, change: &WeightChange, decompose: &Decompose, read: ReadValues) -> Result<Vec<f64>> {
        /// Elements that are read at a time.
        const MOST: u64 = 1 << 18;
        let MergePlace { rows, columns, start: before, .. } = change.place;
        let mut squares = vec![0.0_f64; decompose.columns_each.map_or(rows, |each| columns / each) as usize];
        let mut values = Vec::new();
        let step = (MOST / columns.max(1)).max(1);
        for start in (0..rows).step_by(step as usize) {
            let end = rows.min(start + step);
            let first = before + start * columns;
            read(first..before + end * columns, &mut values)?;
            self.apply_first(at, first, &mut values, read)?;
            change.add(&decompose.delta, decompose.factor, start * columns, &mut values);
            for (row, values) in (start..end).zip(values.chunks_exact(columns as usize)) {
                for (column, value) in values.iter().enumerate() {
                    let at = decompose.columns_each.map_or(row, |each| column as u64 / each);
                    squares[at as usize] += value * value;
                }
            }
        }
        let ratio = |(square, magnitude): (&f64, &f64)| magnitude / square.sqrt();
        Ok(squares.iter().zip(&decompose.magnitude).map(ratio).collect())
    }

    /// Returns the files of its adapters.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Checkpoint> {
        self.changes.iter().flat_map(|change| match &change.how {
            How::Add { delta, .. } | How::Replace(delta) => delta.files(),
            How::Decompose(decompose) => decompose.delta.files(),
            How::ReplaceRows(_, rows) => rows.file().into_iter().collect(),
        })
    }
}

impl WeightChange {
    /// Adds a delta as mlx-lm 0.32.2 does (`LoRALinear.fuse`). The left matrix times the scale, and the product, have the
    /// type of the adapter; the delta and the sum have the type of the weight.
    fn fuse(&self, first: u64, values: &mut [f64], dtype: Dtype) {
        let How::Add { delta: Delta::Product(left, right), factor, .. } = &self.how else { return };
        let own = left.dtype().unwrap_or(Dtype::Float64);
        let mut scale = [*factor];
        round(&mut scale, own);
        let mut deltas = vec![0.0; values.len()];
        self.place.in_rows(first, &mut deltas, |rows, within, out| {
            let count = rows.end - rows.start;
            let mut scaled = left.rows_from(rows.start, count).all();
            for value in &mut scaled {
                *value *= scale[0];
            }
            round(&mut scaled, own);
            let scaled = Matrix::computed(scaled, [count, left.columns]);
            Delta::Product(scaled, right.clone()).fill(0..count, within, out);
        });
        round(&mut deltas, own);
        round(&mut deltas, dtype);
        values.iter_mut().zip(&deltas).for_each(|(value, delta)| *value += delta);
        round(values, dtype);
    }

    /// Changes values that begin at an element of its place.
    fn apply(&self, first: u64, values: &mut [f64]) {
        let columns = self.place.columns;
        match &self.how {
            How::Add { delta, factor } => self.add(delta, *factor, first, values),
            How::Decompose(decompose) => {
                let ratios = decompose.ratios.get().expect("they are computed first");
                let before = decompose.share.map(|share| (share, values.to_vec()));
                self.add(&decompose.delta, decompose.factor, first, values);
                for (element, value) in (first..).zip(values.iter_mut()) {
                    let at = decompose.columns_each.map_or(element / columns, |each| element % columns / each);
                    *value *= ratios[at as usize];
                }
                if let Some((share, before)) = before {
                    values.iter_mut().zip(before).for_each(|(value, old)| *value = old + share * (*value - old));
                }
            }
            How::Replace(delta) => {
                self.place.in_rows(first, values, |rows, within, values| delta.fill(rows, within, values));
            }
            How::ReplaceRows(rows, matrix) => {
                let end = first + values.len() as u64;
                for (row, from) in rows.range(first / columns..end.div_ceil(columns)) {
                    let (start, stop) = ((row * columns).max(first), ((row + 1) * columns).min(end));
                    let out = &mut values[(start - first) as usize..(stop - first) as usize];
                    matrix.read(*from, start - row * columns..stop - row * columns, out);
                }
            }
        }
    }

    fn add(&self, delta: &Delta, factor: f64, first: u64, values: &mut [f64]) {
        self.place.in_rows(first, values, |rows, within, values| delta.add(factor, rows, within, values));
    }
}

impl MergePlace {
    /// Returns which of some values, which begin at an element of the weight, are in this place; `None` if none are.
    pub(super) fn met(&self, first: u64, count: usize) -> Option<Range<usize>> {
        let met = self.start.max(first)..(self.start + self.rows * self.columns).min(first + count as u64);
        (!met.is_empty()).then(|| (met.start - first) as usize..(met.end - first) as usize)
    }

    /// Divides values that begin at an element of this place, and may begin and end within rows. `work` gets the rows of
    /// the delta for each part, and the columns.
    fn in_rows(&self, first: u64, values: &mut [f64], work: impl Fn(Range<u64>, Range<u64>, &mut [f64])) {
        let columns = self.columns;
        let (mut at, mut values) = (first, values);
        while !values.is_empty() {
            let (row, column, left) = (at / columns, at % columns, values.len() as u64);
            // The rows of the first half are those of the second half of the delta.
            let half = if self.swaps_halves { self.rows / 2 } else { 0 };
            let (from, most) = if row < half { (row + half, half - row) } else { (row - half, u64::MAX) };
            let (count, within) = if column == 0 && left >= columns {
                ((left / columns).min(most), 0..columns)
            } else {
                (1, column..columns.min(column + left))
            };
            let (now, rest) = values.split_at_mut((count * (within.end - within.start)) as usize);
            at += now.len() as u64;
            work(from..from + count, within, now);
            values = rest;
        }
    }
}
