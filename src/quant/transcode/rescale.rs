//! Transcoding that rounds a number once: a global scale that has no exact reciprocal, so that every value changes by the
//! same factor, or the offsets that zero points become.
//!
//! NVFP4 stores the global scale as a divisor in compressed-tensors and as a multiplier in other layouts. The float32
//! nearest to the reciprocal differs from it by less than 2^-24 of itself, and codes and block scales stay the same.

use super::super::encode::EncodeTally;
use super::fit::NewScale;
use super::{SEGMENT, Transcoder};
use crate::kernel::half::nearest_bfloat16;
use crate::kernel::{Isa, Loop};

/// Number of codes in a group.
const GROUP: usize = 16;

/// The magnitude of a code of E2M1 without its sign, times 2: 0, 1, 2, 3, 4, 6, 8 or 12.
const DOUBLED: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];

/// The block scales in units of 2^-9, which are integers below 2^18: E4M3 is an excerpt of float32 with another bias.
static BLOCKS: [f64; 128] = {
    let (mut blocks, mut code) = ([0.0; 128], 0);
    while code < 128 {
        blocks[code] = f32::from_bits((code as u32) << 20) as f64 * f64::from_bits((1023 + 129) << 52);
        code += 1;
    }
    blocks
};

/// The squares of the block scales.
static SQUARES: [f64; 128] = {
    let (mut squares, mut code) = (BLOCKS, 0);
    while code < 128 {
        squares[code] *= BLOCKS[code];
        code += 1;
    }
    squares
};

/// The effect of rounding a global scale on values.
pub(super) struct Rescaling {
    /// The factor of a doubled magnitude of a code times a block scale in units of 2^-9.
    unit: f64,
    /// The change of each value, relative to the value.
    change: f64,
    /// For each block scale, a bit for each magnitude whose nearest bfloat16 changes.
    visible: [u8; 128],
    has_visible: bool,
}

impl Rescaling {
    /// Describes products whose factor changes from `before` to `after`.
    pub(super) fn new(before: f64, after: f64) -> Self {
        let mut visible = [0; 128];
        for (mask, block) in visible.iter_mut().zip(&BLOCKS) {
            for (at, doubled) in DOUBLED.iter().enumerate() {
                let number = f64::from(*doubled) * block * 2_f64.powi(-10);
                let is_visible =
                    nearest_bfloat16(number * before).to_bits() != nearest_bfloat16(number * after).to_bits();
                *mask |= u8::from(is_visible) << at;
            }
        }
        Self {
            unit: before * 2_f64.powi(-10),
            change: after / before - 1.0,
            visible,
            has_visible: visible.iter().any(|mask| *mask != 0),
        }
    }

    /// Like [`Self::count_stored`], for one code per byte: packing them takes less code than a second way to count.
    pub(super) fn count(&self, codes: &[u8], blocks: &[u8], first: u64, tally: &mut EncodeTally) {
        if tally.skips_errors {
            return;
        }
        let mut packed = [0; SEGMENT / 2];
        for (out, pair) in packed.iter_mut().zip(codes.chunks(2)) {
            *out = pair[0] & 15 | pair.get(1).unwrap_or(&0) << 4;
        }
        self.count_stored(&packed[..codes.len().div_ceil(2)], blocks, first, tally);
    }

    /// Records the errors of up to [`SEGMENT`] codes, two per byte, with the scales of their groups, unless the tally
    /// skips errors; `first` is the index of the first code in the weight.
    pub(super) fn count_stored(&self, codes: &[u8], blocks: &[u8], first: u64, tally: &mut EncodeTally) {
        if tally.skips_errors {
            return;
        }
        // Codes of 0 do not count.
        let mut groups = [[0; GROUP / 2]; SEGMENT / GROUP];
        groups.as_flattened_mut()[..codes.len()].copy_from_slice(codes);
        let sums = Isa::chosen().run(CountGroups { groups: &groups, blocks, squares: &SQUARES });
        tally.changed += sums.nonzero;
        let squares = sums.squares * self.unit * self.unit;
        tally.take_errors(squares, squares * self.change * self.change);
        let groups = groups.iter().zip(blocks);
        if self.has_visible {
            for (group, block) in groups.clone() {
                let visible = self.visible[usize::from(*block & 127)];
                if visible != 0 {
                    let is_visible = |code: &u8| visible >> (code & 7) & 1 != 0;
                    tally.changed_bfloat16 += codes_of(*group).iter().filter(|code| is_visible(code)).count() as u64;
                }
            }
        }
        // The largest error matters only if it may be larger than all errors before.
        let error = |magnitude: f64| magnitude * self.unit * self.change.abs();
        let most = BLOCKS[usize::from(sums.largest_block & 127)];
        if tally.needs_place(error(12.0 * most), first) {
            let mut largest = (0.0, 0);
            for (at, (group, block)) in groups.enumerate() {
                for (within, code) in codes_of(*group).into_iter().enumerate() {
                    let magnitude = f64::from(DOUBLED[usize::from(code & 7)]) * BLOCKS[usize::from(*block & 127)];
                    if magnitude > largest.0 {
                        largest = (magnitude, at * GROUP + within);
                    }
                }
            }
            if largest.0 > 0.0 {
                tally.take_error(error(largest.0), Some(first + largest.1 as u64));
            }
        }
    }
}

fn codes_of(group: [u8; GROUP / 2]) -> [u8; GROUP] {
    std::array::from_fn(|at| group[at / 2] >> (4 * (at % 2)) & 15)
}

/// Sums over the groups of a segment.
struct CountGroups<'a> {
    groups: &'a [[u8; GROUP / 2]; SEGMENT / GROUP],
    blocks: &'a [u8],
    squares: &'a [f64; 128],
}

#[derive(Debug, PartialEq)]
struct GroupSums {
    /// Codes other than 0.
    nonzero: u64,
    /// The sum of the squares of doubled magnitudes times the squares of block scales: integers, whose sums are all
    /// exact.
    squares: f64,
    largest_block: u8,
}

impl Loop for CountGroups<'_> {
    type Result = GroupSums;

    #[inline(always)]
    fn run(self) -> GroupSums {
        // No closures, which might not be compiled for the instruction set.
        // 1. Four codes are a lane of 16 bits.
        let mut quads = [0_u16; SEGMENT / 4];
        let mut nonzero = 0_u16;
        for (quad, bytes) in quads.iter_mut().zip(self.groups.as_flattened().as_chunks().0) {
            let codes = u16::from_le_bytes(*bytes);
            let [ones, twos, fours] = [codes & 0x1111, codes >> 1 & 0x1111, codes >> 2 & 0x1111];
            let some = ones | twos | fours;
            let pairs = (some + (some >> 4)) & 0x0303;
            nonzero += (pairs + (pairs >> 8)) & 7;
            // Doubled magnitudes are at most 12, so they do not overflow: 5 is 5 + 1, 6 is 6 + 2 and 7 is 7 + 5.
            let high = fours & twos;
            let doubled = (codes & 0x7777) + (fours & ones) + ((high + (high & ones)) << 1);
            let [a, b, c, d] = [doubled & 15, doubled >> 4 & 15, doubled >> 8 & 15, doubled >> 12];
            *quad = a * a + b * b + c * c + d * d;
        }
        // 2. Four lanes are a group.
        let mut sums = [0.0; SEGMENT / GROUP];
        for (sum, [a, b, c, d]) in sums.iter_mut().zip(quads.as_chunks().0) {
            *sum = f64::from(i32::from(*a) + i32::from(*b) + i32::from(*c) + i32::from(*d));
        }
        let mut squares = 0.0;
        let mut largest_block = 0;
        for (sum, block) in sums.iter().zip(self.blocks) {
            squares += *sum * self.squares[usize::from(*block & 127)];
            largest_block = largest_block.max(*block);
        }
        GroupSums { nonzero: nonzero.into(), squares, largest_block }
    }
}

impl Transcoder {
    /// Records the changes of the values of some columns whose offsets are rounded. `codes` are the new codes, which start
    /// at column `start`, and `first` is the index of the first of them in the weight; `scales` are the scales of the
    /// row.
    pub(super) fn count_rounded(
        &self,
        codes: &[u8],
        start: usize,
        scales: &[NewScale],
        first: u64,
        tally: &mut EncodeTally,
    ) {
        if tally.skips_errors {
            return;
        }
        let width = self.encoder.block_width();
        let (mut signal, mut noise) = (0.0, 0.0);
        for (at, code) in codes.iter().enumerate() {
            let NewScale { chosen: (_, offset), change, scale, .. } = scales[(start + at) / width];
            let after = scale * f64::from(*code) + f64::from(offset);
            let before = after - change;
            signal += before * before;
            noise += change * change;
            if change == 0.0 {
                continue;
            }
            tally.changed += 1;
            tally.changed_bfloat16 +=
                u64::from(nearest_bfloat16(before).to_bits() != nearest_bfloat16(after).to_bits());
            tally.take_error(change.abs(), Some(first + at as u64));
        }
        tally.take_errors(signal, noise);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random;

    #[test]
    fn sums_over_groups_are_those_of_single_codes_on_every_instruction_set() {
        let mut next = random(1);
        let mut random = || next() as u8;
        for round in 0..200 {
            let mut groups = [[0; GROUP / 2]; SEGMENT / GROUP];
            groups.as_flattened_mut().iter_mut().for_each(|byte| *byte = if round == 0 { 0x77 } else { random() });
            let blocks: Vec<u8> = (0..SEGMENT / GROUP).map(|_| if round == 0 { 126 } else { random() % 127 }).collect();
            let (mut nonzero, mut squares) = (0, 0_u64);
            for (group, block) in groups.iter().zip(&blocks) {
                for code in codes_of(*group) {
                    let number = u64::from(DOUBLED[usize::from(code & 7)]);
                    nonzero += u64::from(number != 0);
                    squares += number * number * SQUARES[usize::from(*block)] as u64;
                }
            }
            let largest_block = *blocks.iter().max().unwrap();
            let expected = GroupSums { nonzero, squares: squares as f64, largest_block };
            for isa in Isa::available() {
                let work = CountGroups { groups: &groups, blocks: &blocks, squares: &SQUARES };
                assert_eq!(isa.run(work), expected, "{isa:?}");
            }
        }
    }
}
