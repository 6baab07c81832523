//! Groups of values as levels: a code chooses one of 16 or 63 levels of its group, which are integers of 8 bits, and each
//! row has a scale (comfy-kitchen, `tensor/asym_w4a8.py`).
//!
//! The sums of the library are float32, in an order that depends on the machine; here they are float64, rounded once.

use super::super::layout::Group;
use super::super::scheme::{CodeType, TargetGrid};
use crate::kernel::Minifloat;

/// The levels of 4 bits that comfy-kitchen uses unless it fits others to a tensor: `_FROZEN_LUT`.
pub(super) const LEVELS: [f32; 16] = [
    -0.980_602, -0.794_529, -0.638_165, -0.500_986, -0.377_321, -0.263_187, -0.155_210, -0.050_720, 0.052_541,
    0.156_985, 0.265_284, 0.379_533, 0.502_636, 0.638_953, 0.794_876, 0.980_671,
];

/// The largest of the 63 levels of 6 bits, which are evenly spaced.
const MOST: f32 = 31.0;

/// Number of levels of 6 bits.
const EVEN: usize = 63;

/// The smallest scale of a group or a row, and the smallest sum of squares.
const LEAST: f32 = 1e-8;

/// The largest scale of a group.
const MOST_E4M3: f32 = 448.0;

/// The levels of a weight, for the encoder.
pub(super) struct Levels {
    pub(super) table: Vec<f32>,
    /// Number of values in a group.
    pub(super) group: usize,
    pub(super) e4m3: Minifloat,
}

/// A group while its scale is chosen.
#[derive(Clone, Default)]
struct Chosen {
    /// The E4M3 code of its scale.
    code: u8,
    indices: Vec<u8>,
    error: f32,
}

impl Levels {
    /// Returns the levels of a grid, whose scales are `e4m3`; `None` if it has none.
    pub(super) fn new(grid: &TargetGrid, e4m3: Minifloat) -> Option<Self> {
        let Group::Neighbours(group) = grid.group else { return None };
        let table = match grid.codes {
            CodeType::Int { bits: 4, .. } => LEVELS.to_vec(),
            // Kernels read six bits of 16 values at a time.
            CodeType::Int { bits: 6, .. } if group.is_multiple_of(16) => (0..EVEN).map(|at| at as f32 - MOST).collect(),
            _ => return None,
        };
        Some(Self { table, group: group as usize, e4m3 })
    }

    pub(super) fn is_even(&self) -> bool {
        self.table.len() == EVEN
    }

    /// Returns the levels of a group with this scale, as integers.
    #[inline(always)]
    pub(super) fn grid(&self, scale: f32, grid: &mut [f32]) {
        for (out, level) in grid.iter_mut().zip(&self.table) {
            *out = (level * scale).round_ties_even().clamp(-127.0, 127.0);
        }
    }

    /// Encodes a row: the indices of levels, and the E4M3 codes of the scales of groups. Returns the scale of the row.
    #[inline(always)]
    pub(super) fn row(&self, values: &[f32], indices: &mut [u8], scales: &mut [u8]) -> f32 {
        // 1. The scale of each group that fits its levels best, and the largest of all their multiples.
        let mut of_groups = vec![0.0; scales.len()];
        let mut most = 0.0_f32;
        for ((values, indices), scale) in
            values.chunks(self.group).zip(indices.chunks_mut(self.group)).zip(&mut of_groups)
        {
            *scale = self.fitted(values, indices);
            for index in indices {
                most = most.max((self.table[usize::from(*index)] * *scale).abs());
            }
        }
        let row = (most / 127.0).max(LEAST);
        // 2. The codes of these scales, and the nearest of the levels that they give.
        let mut grid = vec![0.0; self.table.len()];
        let mut best = Chosen { indices: vec![0; self.group], ..Chosen::default() };
        let mut other = best.clone();
        let groups = values.chunks(self.group).zip(indices.chunks_mut(self.group));
        for (((values, indices), scale), stored) in groups.zip(&of_groups).zip(scales) {
            let code = self.e4m3.round((scale / row).min(MOST_E4M3)).0 as u8;
            self.choose(code, values, row, &mut grid, &mut best);
            if self.is_even() {
                for code in [code.saturating_sub(1).max(1), (code + 1).min(0x7e)] {
                    self.choose(code, values, row, &mut grid, &mut other);
                    if other.error < best.error {
                        std::mem::swap(&mut best, &mut other);
                    }
                }
            }
            *stored = best.code;
            indices.copy_from_slice(&best.indices[..indices.len()]);
        }
        row
    }

    /// Returns the scale of least squares for a group, with the index of the level of each value.
    #[inline(always)]
    fn fitted(&self, values: &[f32], indices: &mut [u8]) -> f32 {
        let amax = values.iter().fold(0.0_f32, |amax, value| amax.max(value.abs()));
        let mut scale = (if self.is_even() { amax / MOST } else { amax }).max(LEAST);
        self.assign(values, scale, indices);
        for _ in 0..2 {
            let (mut products, mut squares) = (0.0_f64, 0.0_f64);
            for (value, index) in values.iter().zip(&*indices) {
                let level = f64::from(self.table[usize::from(*index)]);
                products += f64::from(*value) * level;
                squares += level * level;
            }
            scale = (products as f32 / (squares as f32).max(LEAST)).max(LEAST);
            self.assign(values, scale, indices);
        }
        scale
    }

    #[inline(always)]
    fn assign(&self, values: &[f32], scale: f32, indices: &mut [u8]) {
        for (index, value) in indices.iter_mut().zip(values) {
            let value = value / scale;
            *index = if self.is_even() {
                (value.round_ties_even().clamp(-MOST, MOST) + MOST) as u8
            } else {
                nearest(value, &self.table)
            };
        }
    }

    /// Chooses the levels of a group for a scale, and computes the error.
    #[inline(always)]
    fn choose(&self, code: u8, values: &[f32], row: f32, grid: &mut [f32], chosen: &mut Chosen) {
        self.grid(f32::from_bits(self.e4m3.widen(code.into())), grid);
        let mut error = 0.0_f64;
        for (index, value) in chosen.indices.iter_mut().zip(values) {
            let target = value / row;
            *index = nearest(target, grid);
            let difference = f64::from(grid[usize::from(*index)] - target);
            error += difference * difference;
        }
        (chosen.code, chosen.error) = (code, error as f32);
    }
}

/// Returns the index of the nearest of sorted levels; of two that are equally near, the lower.
#[inline(always)]
fn nearest(value: f32, levels: &[f32]) -> u8 {
    let mut above = 0;
    for level in levels {
        above += usize::from(*level < value);
    }
    let (below, above) = (above.saturating_sub(1), above.min(levels.len() - 1));
    let is_above = (value - levels[above]).abs() < (value - levels[below]).abs();
    (if is_above { above } else { below }) as u8
}
