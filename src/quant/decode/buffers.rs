//! Buffers for the segments of a row of a quantized weight, with the scales of many segments.

use super::super::layout::{Combination, Zeros};
use super::casts::run;
use super::lanes::{self, Float32Lane, LARGEST_NVFP4};
use super::scales::GroupRange;
use super::steps::{Arithmetic, DecodeSteps};
use std::num::FpCategory;
use std::ops::Range;

/// Number of values that pass through the lanes at a time, a multiple of the units of codes and rotations.
pub(super) const SEGMENT: usize = 1024;

/// Number of groups whose scales are fetched at a time.
const FETCHED: usize = 2048;

/// Buffers for the codes and each lane of a segment.
pub(super) struct DecodeBuffers {
    /// Values of a segment.
    pub(super) columns: usize,
    pub(super) codes: Vec<u8>,
    pub(super) lane: Vec<[u8; 4]>,
    pub(super) scales: Vec<[u8; 4]>,
    /// Scales and zero points of the groups of a segment, and their range.
    pub(super) groups: Vec<[u8; 4]>,
    pub(super) zeros: Vec<[u8; 4]>,
    pub(super) fetched: Option<GroupRange>,
    /// Number of fetches so far, and true if the fetched scales are ordinary: see
    /// [`Fused::are_ordinary`](super::fused::Fused::are_ordinary).
    pub(super) fetches: u64,
    pub(super) are_ordinary: bool,
    /// True if one of these scales is 0, infinite or NaN although the stored scale is another kind of number; and the
    /// stored scales for this case.
    pub(super) is_changed: bool,
    pub(super) stored: Vec<[u8; 4]>,
    /// The global scale of their matrix.
    pub(super) global: f32,
    pub(super) values: Vec<[u8; 4]>,
    /// The offset of each value of a segment; empty if there are none.
    pub(super) offsets: Vec<[u8; 4]>,
    pub(super) wide: Vec<[u8; 8]>,
    /// Stored scales, and intermediate roundings.
    pub(super) scratch: Vec<u8>,
}

impl DecodeBuffers {
    pub(super) fn new(steps: &DecodeSteps, is_indexed: bool) -> Self {
        let columns = SEGMENT.min(steps.geometry.columns as usize);
        let beside = steps.geometry.grid[1] as usize;
        let groups = (columns + 1).max(if is_indexed { beside } else { beside.min(FETCHED) });
        let is_wide = steps.arithmetic == Arithmetic::Exact || steps.zeros.order == Zeros::Fused;
        let lane = vec![[0; 4]; columns];
        Self {
            columns,
            codes: vec![0; columns],
            scales: lane.clone(),
            values: lane.clone(),
            offsets: vec![[0; 4]; if steps.zeros.order.are_offsets() { columns } else { 0 }],
            lane,
            groups: vec![[0; 4]; groups],
            zeros: vec![[0; 4]; if steps.zeros.order == Zeros::None { 0 } else { groups }],
            fetched: None,
            fetches: 0,
            are_ordinary: false,
            is_changed: false,
            stored: vec![[0; 4]; if can_change(steps) { groups } else { 0 }],
            global: 1.0,
            wide: vec![[0; 8]; if is_wide { columns } else { 0 }],
            scratch: vec![0; 4 * groups],
        }
    }

    /// Fetches the scales and zero points of these groups of a row of groups, and of as many following groups as fit,
    /// unless they are already in the buffers. `all` is the end of the groups that will be needed.
    #[inline(always)]
    pub(super) fn fetch(
        &mut self,
        steps: &DecodeSteps,
        parts: &[&[u8]],
        [matrix, below]: [usize; 2],
        groups: &Range<usize>,
        all: usize,
    ) {
        if self.fetched.as_ref().is_some_and(|held| held.contains(matrix, below, groups)) {
            return;
        }
        let geometry = &steps.geometry;
        let end = groups.end.max(all.min(groups.start + self.groups.len()));
        let place = GroupRange { matrix, below, groups: groups.start..end };
        let scales = &mut self.groups[..place.groups.len()];
        if let (Some(slot), false) = (geometry.zero, self.zeros.is_empty()) {
            let zeros = &mut self.zeros[..place.groups.len()];
            steps.zeros.fetch(geometry, parts[slot.index], &place, zeros);
        }
        self.global = global_scale(steps, parts, [matrix, below], &mut self.scratch);
        steps.scales.fetch(geometry, &place, parts, &mut self.scratch, scales);
        if steps.zeros.order == Zeros::Scaled {
            let zeros = &mut self.zeros[..scales.len()];
            if geometry.zero.is_none() {
                zeros.fill(steps.zeros.middle(geometry).to_le_bytes());
            }
            for (zero, scale) in zeros.iter_mut().zip(&*scales) {
                *zero = (-(f32::from_le_bytes(*zero) * f32::from_le_bytes(*scale))).to_le_bytes();
            }
        }
        if steps.arithmetic == Arithmetic::Library {
            combine(steps, scales, self.global, &mut self.scratch);
        }
        self.is_changed = !self.stored.is_empty() && !are_regular(scales) && self.has_changed(steps, parts, &place);
        let scales = &self.groups[..place.groups.len()];
        self.are_ordinary = if let Some(fused) = steps.fused { fused.are_ordinary(scales) } else { false };
        self.fetched = Some(place);
        self.fetches += 1;
    }

    /// Fetches the stored scales of the fetched groups. True if a scale in use has become 0, infinite or NaN.
    #[inline(never)]
    fn has_changed(&mut self, steps: &DecodeSteps, parts: &[&[u8]], place: &GroupRange) -> bool {
        let stored = &mut self.stored[..place.groups.len()];
        steps.scales.fetch(&steps.geometry, place, parts, &mut self.scratch, stored);
        let mut pairs = self.groups.iter().zip(stored).map(|(used, stored)| [*used, *stored].map(f32::from_le_bytes));
        pairs.any(|[used, stored]| {
            let is_special = matches!(used.classify(), FpCategory::Zero | FpCategory::Infinite | FpCategory::Nan);
            is_special && used.classify() != stored.classify()
        })
    }
}

/// True if scales in use can differ from the stored scales.
fn can_change(steps: &DecodeSteps) -> bool {
    let is_combined = steps.geometry.global.is_some();
    steps.arithmetic == Arithmetic::Library && (is_combined || steps.scale_rounding.is_some())
}

/// True if no scale is 0, infinite or NaN.
#[inline(always)]
fn are_regular(scales: &Float32Lane) -> bool {
    let mut all = true;
    for scale in scales {
        let size = f32::from_le_bytes(*scale).abs();
        all &= (size > 0.0) & (size < f32::INFINITY);
    }
    all
}

/// Returns the global scale of a matrix, or of a row if each has one; 1 if there is none.
#[inline(always)]
pub(in crate::quant) fn global_scale(
    steps: &DecodeSteps,
    parts: &[&[u8]],
    [matrix, row]: [usize; 2],
    scratch: &mut [u8],
) -> f32 {
    let (Some(slot), Some(kernel)) = (steps.geometry.global, &steps.global) else { return 1.0 };
    let width = slot.dtype.bits() as usize / 8;
    let at = match steps.combination {
        Combination::Levels => matrix * steps.geometry.rows as usize + row,
        _ => matrix * steps.geometry.matrix_globals as usize,
    };
    let bytes = &parts[slot.index][at * width..][..width];
    run(kernel, bytes, &mut scratch[..4], 1);
    scratch.first_chunk().map_or(1.0, |bytes| f32::from_le_bytes(*bytes))
}

/// Combines scales with the global scale, in the library's steps.
#[inline(always)]
fn combine(steps: &DecodeSteps, scales: &mut Float32Lane, global: f32, scratch: &mut [u8]) {
    let mut global = [global.to_le_bytes()];
    let rounding = steps.scale_rounding.as_ref();
    if let Some(rounding) = rounding {
        rounding.round(scales, scratch);
        rounding.round(&mut global, scratch);
    }
    let [global] = global.map(f32::from_le_bytes);
    match steps.combination {
        Combination::Nothing | Combination::Over127 | Combination::Levels => return,
        Combination::Multiplier => lanes::multiply_all(scales, global),
        Combination::OverLargest => lanes::multiply_all(scales, global / LARGEST_NVFP4),
        Combination::Divisor => {
            for scale in &mut *scales {
                *scale = (f32::from_le_bytes(*scale) / global).to_le_bytes();
            }
        }
    }
    if let Some(rounding) = rounding {
        rounding.round(scales, scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::quant::{Decoder, Parameters, Part, Role, find};

    /// Decodes an NVFP4 weight of 3 rows.
    fn decode(codes: &[u8], scales: &[u8]) -> Vec<u8> {
        let columns = codes.len() as u64 * 2 / 3;
        let [code_shape, scale_shape] = [[3, columns / 2], [3, columns / 16]];
        let part = |role, dtype, shape| Part { role, name: "w", dtype, shape };
        let parts = [
            part(Role::Codes, Dtype::Uint8, &code_shape[..]),
            part(Role::Scale, Dtype::Float8E4M3FN, &scale_shape[..]),
            part(Role::GlobalScale, Dtype::Float32, &[]),
        ];
        let layout = find("modelopt-nvfp4").unwrap();
        let decoder =
            Decoder::new(layout, &Parameters::default(), &parts, Dtype::Bfloat16, Arithmetic::Library).unwrap();
        let mut values = vec![0; 6 * columns as usize];
        decoder.decode(0..3, &[codes, scales, &0.01_f32.to_le_bytes()], &mut values).unwrap();
        values
    }

    #[test]
    fn scales_of_long_rows_are_those_of_their_columns() {
        // Segments at the beginning, the end, and across groups that are fetched together.
        let columns = 16 * FETCHED * 2 + SEGMENT + 16;
        let codes: Vec<u8> = (0..3 * columns / 2).map(|at| ((at * 37) >> 3) as u8).collect();
        let scales: Vec<u8> = (0..3 * columns / 16).map(|at| 0x10 + ((at * 29) >> 2) as u8 % 0x60).collect();
        let all = decode(&codes, &scales);
        for start in (0..columns).step_by(SEGMENT) {
            let range = start..columns.min(start + SEGMENT);
            let cut = |bytes: &[u8], width: usize| -> Vec<u8> {
                let rows = bytes.chunks(columns * width / 32);
                rows.flat_map(|row| row[range.start * width / 32..range.end * width / 32].to_vec()).collect()
            };
            // Widths in 32nds of a byte: of codes, scales and values.
            assert!(decode(&cut(&codes, 16), &cut(&scales, 2)) == cut(&all, 64), "{range:?}");
        }
    }
}
