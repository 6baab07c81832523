//! Loops for float64s, into counts and exact sums, and parts that all loops share.

use super::Distribution;
use crate::measure::number::{Number, power_of_two};
use std::collections::BTreeMap;

/// Counts and sums of some numbers of a tensor.
pub(super) trait Tally: Default + Send {
    /// Adds numbers of its type.
    fn add(&mut self, lane: &[u8]);

    /// Adds another tally.
    fn merge(&mut self, other: Self);

    /// Returns the distribution, without subnormals, which only a caller that knows the type can count.
    fn distribution(self) -> Distribution;
}

/// A tally that can add a number several times.
pub(super) trait Repeat<const WIDTH: usize>: Tally {
    fn add_times(&mut self, number: [u8; WIDTH], times: u64);
}

/// The fields of a float type.
pub(super) struct FloatFields {
    /// The exponent of its smallest number.
    pub(super) lowest: i32,
    /// Bits of its mantissa.
    pub(super) mantissa: u32,
    /// The exponent field of Inf and NaN.
    pub(super) special: usize,
}

const FLOAT64: FloatFields = FloatFields { lowest: -1074, mantissa: MANTISSA, special: SPECIAL };

/// Bits of a float64's mantissa.
const MANTISSA: u32 = 52;
/// Number of values of a float64's sign and exponent together.
const BINS: usize = 1 << 12;
/// First bin of negative numbers.
const NEGATIVE: usize = BINS / 2;
/// The bin of Inf and NaN.
const SPECIAL: usize = NEGATIVE - 1;

/// Numbers of one sign and exponent: their count, and the sum of their mantissas without the hidden bit.
#[derive(Clone, Copy, Default)]
struct ExponentBin {
    count: u64,
    sum: u128,
}

impl ExponentBin {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.sum += other.sum;
    }
}

/// [`ExponentBin`] for a few numbers, with one addition for each part: the lower half of the mantissas in the second,
/// the upper half in the first, and the count from bit [`COUNT`] on.
type SmallBin = [u64; 2];

const HALF: u32 = MANTISSA / 2;
const COUNT: u32 = 44;
/// Number of numbers that a [`SmallBin`] takes.
const ROOM: usize = 1 << (COUNT - HALF);

/// Number of numbers in a block: few enough for the second-level cache.
pub(super) const BLOCK: usize = 1 << 13;

/// Number of bins for an exponent. Adjacent numbers often have the same exponent: they go to different bins in turn, so
/// that no addition waits.
const WAYS: usize = 4;

/// Number of extremes that are found in parallel, as in vectors.
const LANES: usize = 8;

pub(super) struct Float64Tally {
    small_bins: Vec<[SmallBin; WAYS]>,
    /// Number of numbers in the small bins.
    in_small_bins: usize,
    /// All other numbers, as of the last time that the small bins were emptied.
    bins: Vec<ExponentBin>,
    min: [f64; LANES],
    max: [f64; LANES],
    beside: Beside,
}

impl Default for Float64Tally {
    fn default() -> Self {
        Self {
            small_bins: vec![[[0; 2]; WAYS]; BINS],
            in_small_bins: 0,
            bins: vec![ExponentBin::default(); BINS],
            min: [f64::INFINITY; LANES],
            max: [f64::NEG_INFINITY; LANES],
            beside: Beside::default(),
        }
    }
}

impl Float64Tally {
    fn count(&mut self, block: &[u8]) {
        let bins: &mut [[SmallBin; WAYS]; BINS] =
            self.small_bins.as_mut_slice().try_into().expect("a bin of each sort");
        let mut count = |way: usize, bytes: &[u8; 8]| {
            let number = u64::from_le_bytes(*bytes);
            let mantissa = number & ((1 << MANTISSA) - 1);
            let bin = &mut bins[(number >> MANTISSA) as usize][way];
            bin[0] += (1 << COUNT) + (mantissa >> HALF);
            bin[1] += mantissa & ((1 << HALF) - 1);
        };
        let (groups, rest) = block.as_chunks::<{ 8 * WAYS }>();
        for group in groups {
            for (way, bytes) in group.as_chunks().0.iter().enumerate() {
                count(way, bytes);
            }
        }
        for bytes in rest.as_chunks().0 {
            count(0, bytes);
        }
    }

    /// Returns a number that changes when Inf, NaN or a float64 subnormal is counted.
    fn unusual(&self) -> u64 {
        let mantissas = |[high, low]: &SmallBin| (high & ((1 << COUNT) - 1)).wrapping_add(*low);
        [0, NEGATIVE].into_iter().fold(0, |seen: u64, sign| {
            let special = self.small_bins[sign + SPECIAL].iter().map(|[high, _]| high >> COUNT);
            let small = self.small_bins[sign].iter().map(mantissas);
            special.chain(small).fold(seen, u64::wrapping_add)
        })
    }

    /// Updates the extremes with numbers that are all finite.
    fn find_extremes(&mut self, block: &[u8]) {
        let (mut min, mut max) = (self.min, self.max);
        let (groups, rest) = block.as_chunks::<{ 8 * LANES }>();
        for group in groups {
            let numbers = group.as_chunks::<8>().0;
            for place in 0..LANES {
                let number = f64::from_le_bytes(numbers[place]);
                min[place] = if number < min[place] { number } else { min[place] };
                max[place] = if number > max[place] { number } else { max[place] };
            }
        }
        for number in rest.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)) {
            min[0] = min[0].min(number);
            max[0] = max[0].max(number);
        }
        (self.min, self.max) = (min, max);
    }

    /// Empties the small bins.
    fn settle(&mut self) {
        self.in_small_bins = 0;
        for (bin, ways) in self.bins.iter_mut().zip(&mut self.small_bins) {
            for [high, low] in std::mem::take(ways) {
                let sum = u128::from(high & ((1 << COUNT) - 1)) << HALF;
                bin.add(ExponentBin { count: high >> COUNT, sum: sum + u128::from(low) });
            }
        }
    }
}

impl Tally for Float64Tally {
    fn add(&mut self, lane: &[u8]) {
        for block in lane.chunks(8 * BLOCK) {
            if self.in_small_bins + BLOCK > ROOM {
                self.settle();
            }
            self.in_small_bins += block.len() / 8;
            let unusual = self.unusual();
            self.count(block);
            if self.unusual() == unusual { self.find_extremes(block) } else { self.beside.sort_out(block) }
        }
    }

    fn merge(&mut self, mut other: Self) {
        other.settle();
        for (bin, other) in self.bins.iter_mut().zip(other.bins) {
            bin.add(other);
        }
        for place in 0..LANES {
            self.min[place] = self.min[place].min(other.min[place]);
            self.max[place] = self.max[place].max(other.max[place]);
        }
        self.beside.merge(&other.beside);
    }

    fn distribution(mut self) -> Distribution {
        self.settle();
        for (min, max) in self.min.into_iter().zip(self.max) {
            self.beside.widen(min, max);
        }
        let bins = (0..NEGATIVE).map(|field| (field, [self.bins[field], self.bins[NEGATIVE + field]]));
        distribution(self.beside, bins.filter(|(_, [plus, minus])| plus.count + minus.count > 0).collect())
    }
}

/// Tally of at most [`FEW`] float64s, with only the bins in use: [`Float64Tally`] has too many to clear and scan for a
/// bias or a scale, of which a model has thousands.
#[derive(Default)]
pub(super) struct FewFloats {
    /// Bins by exponent, for numbers of either sign.
    bins: BTreeMap<usize, [ExponentBin; 2]>,
    beside: Beside,
}

/// Count of numbers up to which [`FewFloats`] is faster.
pub(super) const FEW: u64 = 1 << 10;

impl Tally for FewFloats {
    fn add(&mut self, lane: &[u8]) {
        for number in lane.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)) {
            let place = (number >> MANTISSA) as usize;
            let one = ExponentBin { count: 1, sum: u128::from(number & ((1 << MANTISSA) - 1)) };
            self.bins.entry(place % NEGATIVE).or_default()[place / NEGATIVE].add(one);
        }
        self.beside.sort_out(lane);
    }

    fn merge(&mut self, other: Self) {
        for (field, [plus, minus]) in other.bins {
            let bins = self.bins.entry(field).or_default();
            bins[0].add(plus);
            bins[1].add(minus);
        }
        self.beside.merge(&other.beside);
    }

    fn distribution(self) -> Distribution {
        distribution(self.beside, self.bins.into_iter().collect())
    }
}

/// Returns the distribution of float64s, from the numbers of either sign for each exponent field in use, ascending.
fn distribution(beside: Beside, bins: Vec<(usize, [ExponentBin; 2])>) -> Distribution {
    let counts: Vec<_> = bins.iter().map(|(field, [plus, minus])| (*field, plus.count + minus.count)).collect();
    let terms = bins.into_iter().filter(|(field, _)| *field != SPECIAL).map(|(field, bins)| {
        let hidden = |bin: ExponentBin| if field > 0 { i128::from(bin.count) << MANTISSA } else { 0 };
        let [plus, minus] = bins.map(|bin| bin.sum as i128 + hidden(bin));
        (FLOAT64.lowest + field.max(1) as i32 - 1, plus - minus)
    });
    beside.distribution(&FLOAT64, &counts, &terms.collect::<Vec<_>>())
}

/// Figures about floats that counts of exponents and sums do not show.
pub(super) struct Beside {
    min: f64,
    max: f64,
    plus_infinite: u64,
    minus_infinite: u64,
    /// Counts of subnormals, which share the exponent field of zero, by exponent, from the lowest.
    subnormals: [u64; MANTISSA as usize],
}

impl Default for Beside {
    fn default() -> Self {
        Self {
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            plus_infinite: 0,
            minus_infinite: 0,
            subnormals: [0; MANTISSA as usize],
        }
    }
}

impl Beside {
    /// Processes each float64 individually.
    fn sort_out(&mut self, block: &[u8]) {
        for number in block.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)) {
            self.add_times(number, number.is_subnormal().then(|| number.abs().to_bits()), 1);
        }
    }

    /// Adds a number, and its mantissa if it is subnormal in its own type.
    pub(super) fn add_times(&mut self, number: f64, subnormal: Option<u64>, times: u64) {
        if number.is_finite() {
            self.widen(number, number);
        }
        self.plus_infinite += if number == f64::INFINITY { times } else { 0 };
        self.minus_infinite += if number == f64::NEG_INFINITY { times } else { 0 };
        if let Some(mantissa) = subnormal {
            self.subnormals[mantissa.ilog2() as usize] += times;
        }
    }

    /// Adds the extremes of finite numbers.
    pub(super) fn widen(&mut self, min: f64, max: f64) {
        self.min = self.min.min(min);
        self.max = self.max.max(max);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.widen(other.min, other.max);
        self.plus_infinite += other.plus_infinite;
        self.minus_infinite += other.minus_infinite;
        for (count, other) in self.subnormals.iter_mut().zip(other.subnormals) {
            *count += other;
        }
    }

    /// Returns the distribution, given the counts for each exponent field and the terms of their sum, both ascending.
    pub(super) fn distribution(
        self,
        fields: &FloatFields,
        counts: &[(usize, u64)],
        terms: &[(i32, i128)],
    ) -> Distribution {
        let subnormals: u64 = self.subnormals.iter().sum();
        let infinite = self.plus_infinite + self.minus_infinite;
        let of = |wanted| counts.iter().filter(|(field, _)| *field == wanted).map(|(_, count)| count).sum::<u64>();
        let (small, special) = (of(0), of(fields.special));
        let count = counts.iter().map(|(_, count)| count).sum::<u64>();
        let finite = count - special;
        let normal = counts.iter().filter(|(field, _)| *field > 0 && *field < fields.special);
        let exponents =
            normal.map(|(field, count)| (fields.lowest + fields.mantissa as i32 + *field as i32 - 1, *count));
        // Adding 0 turns -0 into 0.
        let (min, max) = (self.min + 0.0, self.max + 0.0);
        let some = |number: f64| (finite > 0).then_some(Number::Float(number));
        Distribution {
            count,
            min: some(min),
            max: some(max),
            abs_max: some(max.max(-min)),
            // A value that was rounded up may be out of range.
            mean: (finite > 0).then(|| mean(terms, finite).clamp(min, max)),
            zeros: small - subnormals,
            nan: special - infinite,
            plus_infinite: self.plus_infinite,
            minus_infinite: self.minus_infinite,
            exponents: (fields.lowest..).zip(self.subnormals).chain(exponents).collect(),
            ..Distribution::default()
        }
    }
}

/// Computes the sum of `factor * 2^exponent` over ascending exponents, divided by `count`.
///
/// The terms are exact. The rounding error of each addition is added at the end (Neumaier), in units of the largest
/// term, so that nothing overflows on the way to a mean that does not.
fn mean(terms: &[(i32, i128)], count: u64) -> f64 {
    let terms = || terms.iter().rev().filter(|(_, factor)| *factor != 0);
    let Some(&(unit, _)) = terms().next() else { return 0.0 };
    let (mut sum, mut rest) = (0.0, 0.0);
    for &(exponent, factor) in terms() {
        let high = factor as f64;
        let low = (factor - high as i128) as f64;
        for part in [high, low].map(|part| part * power_of_two(exponent - unit)) {
            let next: f64 = sum + part;
            rest += if f64::abs(sum) >= part.abs() { (sum - next) + part } else { (part - next) + sum };
            sum = next;
        }
    }
    let half = unit / 2; // by halves: 2^-1074 is subnormal
    (sum + rest) / count as f64 * power_of_two(half) * power_of_two(unit - half)
}
