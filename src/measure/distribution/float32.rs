//! Loops for float32, and for narrower floats widened to it, from blocks to counts and exact sums.
//!
//! A block is 1024 numbers. The compiler vectorises these loops for each instruction set, and every set gives the same
//! bits:
//!
//! * **Exponents** are counted one after the other, from the largest down, by comparing all exponents of the block with
//!   each. With AVX-512, 64 are compared at a time, and the numbers of a block rarely have more than some 15.
//! * **Exponents of other blocks**, and on other processors, are counted in pairs: the exponents of two numbers are the
//!   index of one of 65,536 counters, of which a tensor's numbers need some hundreds. So there is one addition per two
//!   numbers, which no vector instructions accelerate, and no exponent is more expensive than another.
//! * **The sum** is exact in any order. Numbers of 23 adjacent exponents are multiples of the smallest one's last
//!   digit, and 128 of them add up to less than 2^53 of it, which float64 holds. Most blocks have no more exponents
//!   than that; others are passed over again for each further 23.
//! * **Extremes** are kept for each column of the block.
//!
//! A block with Inf, NaN or a float32 subnormal is processed one number at a time, as are the numbers after the last
//! whole block. Tests compare the two.
//!
//! `docs/experiments.md` lists the alternatives that were tried.

#![allow(clippy::inline_always, reason = "only what is inlined is compiled for an instruction set")]

use super::histogram::Distribution;
use super::sum::{LANES, MANTISSA, Sum};
use super::tally::{FloatFigures, Repeat, Tally};
use crate::dtype::{FloatFormat, Specials};
use crate::kernel::{Isa, Loop, hidden_one, prefetch_behind};

/// Number of numbers in a row: a row is a few vectors, and columns are processed down the rows.
const ROW: usize = 128;
const ROWS: usize = 8;
type FloatBlock = [[[u8; 4]; ROW]; ROWS];

/// Exponent fields of every two rows of a block, a pair for each column.
type Pairs = [[[u8; 2]; ROW]; ROWS / 2];

/// Number of blocks that can be counted in pairs before a counter of 32 bits overflows.
const MOST_BLOCKS: u32 = u32::MAX / (ROW * ROWS / 2) as u32;

/// Number of exponents whose numbers are summed together: 24 bits, 22 exponents apart, 2^7 times, are 53 bits.
const WINDOW: u8 = 23;

/// Maximum number of exponents that are compared: comparing them takes no longer than counting pairs.
const FEW: u8 = 24;

/// The exponent field of Inf and NaN.
const SPECIAL: u8 = 255;
const FLOAT32: FloatFormat =
    FloatFormat { exponent_bits: 8, mantissa_bits: MANTISSA, bias: 127, specials: Specials::Ieee };

pub(super) struct Float32Tally {
    /// Counts of numbers by exponent field, except numbers in pairs.
    counts: [u64; 256],
    /// Counts of two numbers with these exponent fields together, the second field in the upper 8 bits; empty until
    /// there is a block. In 32 bits, because twice as many fit in the first-level cache.
    pairs: Vec<u32>,
    /// Number of blocks in pairs.
    blocks: u32,
    /// The range of exponent fields in pairs, except 0.
    met: (u8, u8),
    sum: Sum,
    min: [f32; ROW],
    max: [f32; ROW],
    figures: FloatFigures,
}

impl Default for Float32Tally {
    fn default() -> Self {
        Self {
            counts: [0; 256],
            pairs: Vec::new(),
            blocks: 0,
            met: (u8::MAX, 0),
            sum: Sum::default(),
            min: [f32::INFINITY; ROW],
            max: [f32::NEG_INFINITY; ROW],
            figures: FloatFigures::default(),
        }
    }
}

impl Float32Tally {
    fn add_on(&mut self, isa: Isa, lane: &[u8]) {
        let numbers = lane.as_chunks().0;
        let blocks = numbers.as_chunks().0.as_chunks().0;
        isa.run(DistributionLoop { floats: self, blocks, has_wide_vectors: isa == Isa::Avx512 });
        for number in &numbers[blocks.len() * ROWS * ROW..] {
            self.add_times(*number, 1);
        }
    }

    /// Adds a block, unless a number of it needs separate treatment.
    #[inline(always)]
    fn add_block(&mut self, block: &FloatBlock, pairs: &mut Pairs, has_wide_vectors: bool) -> bool {
        // The next block, a KiB before each pass: the processor waits for no more cache lines at a time.
        let prefetch = |part: usize| {
            prefetch_behind(block[2 * part..][..2].as_flattened().as_flattened(), size_of::<FloatBlock>());
        };
        prefetch(0);
        pair_fields(block, pairs);
        prefetch(1);
        let (least, low, high) = reach(pairs.as_flattened().as_flattened());
        if high == SPECIAL || least == 0 && has_subnormal(block) {
            return false;
        }
        if high - low < WINDOW {
            self.sum.add_lanes(low, sums(block, |number| number));
        } else {
            for low in (low..=high).step_by(WINDOW.into()) {
                let [from, to] = [low, low.saturating_add(WINDOW)].map(smallest);
                let within = |number: f32| number.abs() >= from && number.abs() < to;
                self.sum.add_lanes(low, sums(block, |number| if within(number) { number } else { 0.0 }));
            }
        }
        prefetch(2);
        find_extremes(block, &mut self.min, &mut self.max);
        prefetch(3);
        if has_wide_vectors && high - low < FEW {
            self.count_each(pairs.as_flattened().as_flattened(), low, high);
        } else {
            self.met = (low.min(self.met.0), high.max(self.met.1));
            self.count(pairs);
        }
        true
    }

    /// Counts exponent fields from `low` to `high`, and 0.
    #[inline(always)]
    fn count_each(&mut self, fields: &[u8], low: u8, high: u8) {
        let mut left = fields.len() as u64;
        for field in (low..=high).rev() {
            if left == 0 {
                return;
            }
            let count = count_equal(fields, field);
            self.counts[usize::from(field)] += count;
            left -= count;
        }
        self.counts[0] += left;
    }

    #[inline(always)]
    fn count(&mut self, pairs: &Pairs) {
        if self.pairs.is_empty() {
            self.pairs = vec![0; 1 << 16];
        }
        if self.blocks == MOST_BLOCKS {
            self.settle_pairs();
        }
        self.blocks += 1;
        let counters: &mut [u32; 1 << 16] = self.pairs.as_mut_slice().try_into().expect("a counter for each pair");
        for group in pairs.as_flattened().as_chunks::<8>().0 {
            for pair in group {
                counters[usize::from(u16::from_le_bytes(*pair))] += 1;
            }
        }
    }

    /// Moves the counts of pairs to the counts of numbers.
    fn settle_pairs(&mut self) {
        // Empty rows are skipped: looking through them takes longer than a small tensor.
        let rows = (0..=u8::MAX).zip(self.pairs.as_chunks_mut::<256>().0);
        for (second, row) in rows.filter(|(second, _)| *second == 0 || (self.met.0..=self.met.1).contains(second)) {
            for (count, pairs) in self.counts.iter_mut().zip(&*row) {
                *count += u64::from(*pairs);
            }
            self.counts[usize::from(second)] += row.iter().copied().map(u64::from).sum::<u64>();
            row.fill(0);
        }
        self.blocks = 0;
    }

    /// Moves the counts of pairs to the counts of numbers, and the extremes of columns to `figures`.
    fn settle(&mut self) {
        self.settle_pairs();
        for (min, max) in self.min.into_iter().zip(self.max) {
            self.figures.widen(min.into(), max.into());
        }
    }
}

impl Tally for Float32Tally {
    fn add(&mut self, lane: &[u8]) {
        self.add_on(Isa::chosen(), lane);
    }

    fn merge(&mut self, mut other: Self) {
        other.settle();
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            *count += other;
        }
        self.sum.merge(&other.sum);
        self.figures.merge(&other.figures);
    }

    fn distribution(mut self) -> Distribution {
        self.settle();
        let counts: Vec<_> = self.counts.into_iter().enumerate().collect();
        self.figures.distribution(&FLOAT32, &counts, &self.sum.terms())
    }
}

impl Repeat<4> for Float32Tally {
    fn add_times(&mut self, number: [u8; 4], times: u64) {
        let number = f32::from_le_bytes(number);
        let bits = number.to_bits();
        let field = (bits >> MANTISSA) as u8;
        self.counts[usize::from(field)] += times;
        self.figures.add_times(number.into(), number.is_subnormal().then_some((bits & i32::MAX as u32).into()), times);
        if number.is_finite() {
            let hidden = if field > 0 { 1 << MANTISSA } else { 0 };
            let units = i128::from(bits & ((1 << MANTISSA) - 1) | hidden) * i128::from(times);
            self.sum.add(field, if number.is_sign_negative() { -units } else { units });
        }
    }
}

/// Loop over blocks with one instruction set.
struct DistributionLoop<'a> {
    floats: &'a mut Float32Tally,
    blocks: &'a [FloatBlock],
    has_wide_vectors: bool,
}

impl Loop for DistributionLoop<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let mut pairs = [[[0; 2]; ROW]; ROWS / 2];
        for block in self.blocks {
            if !self.floats.add_block(block, &mut pairs, self.has_wide_vectors) {
                for number in block.as_flattened() {
                    self.floats.add_times(*number, 1);
                }
            }
        }
    }
}

#[inline(always)]
fn pair_fields(block: &FloatBlock, pairs: &mut Pairs) {
    for (pairs, [first, second]) in pairs.iter_mut().zip(block.as_chunks().0) {
        for ((pair, first), second) in pairs.iter_mut().zip(first).zip(second) {
            let [first, second] = [first, second].map(|number| u32::from_le_bytes(*number));
            *pair = ((first >> MANTISSA & 0xff | second >> (MANTISSA - 8) & 0xff00) as u16).to_le_bytes();
        }
    }
}

#[inline(always)]
fn count_equal(fields: &[u8], field: u8) -> u64 {
    let mut lanes = [0_u8; 64]; // each counts no more than one per row
    let one = hidden_one();
    for row in fields.as_chunks::<64>().0 {
        for (lane, other) in lanes.iter_mut().zip(row) {
            *lane += if *other == field { one } else { 0 };
        }
    }
    lanes.iter().map(|count| u64::from(*count)).sum()
}

/// Returns the smallest exponent field, the smallest nonzero one (or 0 if there is none), and the largest.
#[inline(always)]
fn reach(fields: &[u8]) -> (u8, u8, u8) {
    let (mut least, mut low, mut high) = (u8::MAX, u8::MAX, 0);
    for field in fields {
        least = least.min(*field);
        low = low.min(field.wrapping_sub(1));
        high = high.max(*field);
    }
    (least, low.wrapping_add(1), high)
}

#[inline(always)]
fn has_subnormal(block: &FloatBlock) -> bool {
    let is_subnormal = |number: &[u8; 4]| f32::from_le_bytes(*number).is_subnormal();
    block.as_flattened().iter().fold(false, |any, number| any | is_subnormal(number))
}

/// Computes sums of numbers after applying `keep`.
#[inline(always)]
fn sums(block: &FloatBlock, keep: impl Fn(f32) -> f32) -> [f64; LANES] {
    let mut columns = [0.0; ROW];
    for (at, column) in columns.iter_mut().enumerate() {
        for row in block {
            *column += f64::from(keep(f32::from_le_bytes(row[at])));
        }
    }
    let mut lanes = [0.0; LANES];
    for columns in columns.as_chunks::<LANES>().0 {
        for (lane, column) in lanes.iter_mut().zip(columns) {
            *lane += column;
        }
    }
    lanes
}

/// Updates the extremes with numbers that are all finite.
#[inline(always)]
fn find_extremes(block: &FloatBlock, min: &mut [f32; ROW], max: &mut [f32; ROW]) {
    for (at, (min, max)) in min.iter_mut().zip(max).enumerate() {
        for row in block {
            let number = f32::from_le_bytes(row[at]);
            *min = if number < *min { number } else { *min };
            *max = if number > *max { number } else { *max };
        }
    }
}

/// Returns the smallest number with an exponent field; field 0 is the field of zero.
fn smallest(field: u8) -> f32 {
    f32::from_bits(u32::from(field) << MANTISSA)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random;

    /// Compares whole blocks, on every instruction set, with the same numbers processed one at a time.
    fn check(numbers: &[u32]) {
        let lane: Vec<u8> = numbers.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let mut each = Float32Tally::default();
        lane.as_chunks().0.iter().for_each(|number| each.add_times(*number, 1));
        let each = each.distribution();
        for isa in Isa::available() {
            let mut blocks = Float32Tally::default();
            blocks.add_on(isa, &lane);
            let blocks = blocks.distribution();
            assert_eq!(blocks, each, "{isa:?}");
            assert_eq!(blocks.mean.map(f64::to_bits), each.mean.map(f64::to_bits), "{isa:?}");
        }
    }

    #[test]
    fn blocks_have_the_figures_of_their_numbers_one_after_the_other() {
        const COUNT: usize = 4 * ROW * ROWS + 700;
        let mut next = random(1);
        let random: Vec<u32> = (0..COUNT).map(|_| next() as u32).collect();
        check(&random);
        // Exponents as in weights, of both signs and of one, with zeros of both.
        let field = |bits: u32| 127 - (bits >> MANTISSA).trailing_zeros().min(8);
        let weights: Vec<u32> = random.iter().map(|bits| bits & 0x807f_ffff | field(*bits) << MANTISSA).collect();
        check(&weights);
        check(&weights.iter().map(|bits| bits | 1 << 31).collect::<Vec<_>>());
        check(&weights.iter().map(|bits| if bits % 3 == 0 { bits & 1 << 31 } else { *bits }).collect::<Vec<_>>());
        // One number in one block that needs separate treatment, or another window.
        for other in [0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 1, 0x8000_0123, 0x0080_0001, 0x7f7f_ffff, 0xf000_0001] {
            let mut numbers = weights.clone();
            numbers[1500] = other;
            check(&numbers);
        }
        // All exponents except the fields of zero, subnormals, Inf and NaN.
        check(&random.iter().map(|bits| bits & 0x807f_ffff | ((bits >> 7) % 254 + 1) << MANTISSA).collect::<Vec<_>>());
        for all in [0, 1 << 31, 0x3f80_0000, 0x7f7f_ffff, 0xff7f_ffff, 0x0080_0000, 1, 0x7fc0_0000] {
            check(&vec![all; COUNT]);
        }
    }

    #[test]
    fn pairs_are_moved_before_their_counters_overflow() {
        let lane: Vec<u8> = (0..4 * ROW * ROWS).flat_map(|at| (1.0 + at as f32).to_le_bytes()).collect();
        let [mut moved, mut kept] = [(); 2].map(|()| Float32Tally::default());
        kept.add_on(Isa::Baseline, &lane);
        moved.add_on(Isa::Baseline, &lane[..lane.len() / 2]);
        moved.blocks = MOST_BLOCKS - 1;
        moved.add_on(Isa::Baseline, &lane[lane.len() / 2..]);
        assert_eq!(moved.blocks, 1);
        assert_eq!(moved.distribution(), kept.distribution());
        let mut full = Float32Tally::default();
        full.add_on(Isa::Baseline, &1.0_f32.to_le_bytes().repeat(2 * ROW * ROWS));
        full.pairs[0x7f7f] = MOST_BLOCKS * (ROW * ROWS / 2) as u32;
        full.blocks = MOST_BLOCKS;
        full.add_on(Isa::Baseline, &1.0_f32.to_le_bytes().repeat(ROW * ROWS));
        assert_eq!(full.distribution().count, 1024 * (u64::from(MOST_BLOCKS) + 1));
    }

    #[test]
    fn a_window_of_the_largest_numbers_is_added_up_exactly() {
        for spread in [u32::from(WINDOW) - 1, WINDOW.into(), 2 * u32::from(WINDOW)] {
            for sign in [0, 1 << 31] {
                // All digits of the large numbers, and the last digit of the small ones.
                let [large, small] =
                    [(100 + spread) << MANTISSA | 0x7f_ffff, 100 << MANTISSA | 1].map(|bits| bits | sign);
                let mut numbers = [large; ROW * ROWS];
                check(&numbers);
                numbers[ROW + 1] = small;
                check(&numbers);
                numbers[..ROW].fill(small);
                check(&numbers);
            }
        }
    }
}
