//! The loops: numbers of 64 bits into counts and exact sums.

use super::{Number, Stats};
use std::collections::BTreeMap;

/// What some numbers of a tensor add up to.
pub(super) trait Tally: Default + Send {
    /// Takes numbers of 8 bytes each.
    fn add(&mut self, lane: &[u8]);

    /// Takes what another has taken.
    fn merge(&mut self, other: Self);

    /// The figures; subnormals are for those to count who know the type.
    fn stats(self) -> Stats;
}

/// Bits of a float64's mantissa.
const MANTISSA: u32 = 52;
/// The sign and the exponent of a float64 together: this many values.
const BINS: usize = 1 << 12;
/// Where the bins of negative numbers begin.
const NEGATIVE: usize = BINS / 2;
/// The bin of Inf and NaN.
const SPECIAL: usize = NEGATIVE - 1;

/// Numbers of one sign and exponent: how many, and the sum of their mantissas, without the hidden bit.
#[derive(Clone, Copy, Default)]
struct Bin {
    count: u64,
    sum: u128,
}

impl Bin {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.sum += other.sum;
    }
}

/// The same of a few numbers, one addition for each: the lower half of the mantissas in the second, the upper half in
/// the first, and from bit [`COUNT`] on how many there are.
type SmallBin = [u64; 2];

const HALF: u32 = MANTISSA / 2;
const COUNT: u32 = 44;
/// Numbers that a [`SmallBin`] takes.
const ROOM: usize = 1 << (COUNT - HALF);

/// Numbers that are looked at together: few enough to stay in the second-level cache.
pub(super) const BLOCK: usize = 1 << 13;

/// Numbers next to each other often have the same exponent: they go to different bins in turn, so that an addition
/// need not wait for the one before it.
const WAYS: usize = 4;

/// Extremes that are found side by side, as vectors find them.
const LANES: usize = 8;

/// Of float64s. Those that are not `WIDE` have zeros in the lower half of their mantissas, as all narrower floats do.
pub(super) struct Floats<const WIDE: bool> {
    small_bins: Vec<[SmallBin; WAYS]>,
    /// Numbers in the small bins.
    in_small_bins: usize,
    /// All others, as of the last time that the small bins were emptied.
    bins: Vec<Bin>,
    min: [f64; LANES],
    max: [f64; LANES],
    beside: Beside,
}

impl<const WIDE: bool> Default for Floats<WIDE> {
    fn default() -> Self {
        Self {
            small_bins: vec![[[0; 2]; WAYS]; BINS],
            in_small_bins: 0,
            bins: vec![Bin::default(); BINS],
            min: [f64::INFINITY; LANES],
            max: [f64::NEG_INFINITY; LANES],
            beside: Beside::default(),
        }
    }
}

impl<const WIDE: bool> Floats<WIDE> {
    fn count(&mut self, block: &[u8]) {
        let bins: &mut [[SmallBin; WAYS]; BINS] =
            self.small_bins.as_mut_slice().try_into().expect("a bin of each sort");
        let mut count = |way: usize, bytes: &[u8; 8]| {
            let number = u64::from_le_bytes(*bytes);
            let mantissa = number & ((1 << MANTISSA) - 1);
            let bin = &mut bins[(number >> MANTISSA) as usize][way];
            bin[0] += (1 << COUNT) + (mantissa >> HALF);
            if WIDE {
                bin[1] += mantissa & ((1 << HALF) - 1);
            }
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

    /// A number that changes when Inf, NaN or a float64 subnormal is counted.
    fn unusual(&self) -> u64 {
        let mantissas = |[high, low]: &SmallBin| (high & ((1 << COUNT) - 1)).wrapping_add(*low);
        [0, NEGATIVE].into_iter().fold(0, |seen: u64, sign| {
            let special = self.small_bins[sign + SPECIAL].iter().map(|[high, _]| high >> COUNT);
            let small = self.small_bins[sign].iter().map(mantissas);
            special.chain(small).fold(seen, u64::wrapping_add)
        })
    }

    /// Of numbers that are all finite.
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

    /// Makes room in the small bins.
    fn settle(&mut self) {
        self.in_small_bins = 0;
        for (bin, ways) in self.bins.iter_mut().zip(&mut self.small_bins) {
            for [high, low] in std::mem::take(ways) {
                let sum = u128::from(high & ((1 << COUNT) - 1)) << HALF;
                bin.add(Bin { count: high >> COUNT, sum: sum + u128::from(low) });
            }
        }
    }
}

impl<const WIDE: bool> Tally for Floats<WIDE> {
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

    fn stats(mut self) -> Stats {
        self.settle();
        self.beside.min = self.min.into_iter().fold(self.beside.min, f64::min);
        self.beside.max = self.max.into_iter().fold(self.beside.max, f64::max);
        let pairs = (0..NEGATIVE).map(|field| (field, [self.bins[field], self.bins[NEGATIVE + field]]));
        self.beside.stats(pairs.filter(|(_, [plus, minus])| plus.count + minus.count > 0))
    }
}

/// Of no more than [`FEW`] float64s, with only the bins that have any: those of [`Floats`] are too many to be cleared
/// and looked through for a bias or a scale, of which a model has thousands.
#[derive(Default)]
pub(super) struct FewFloats {
    /// By exponent; of numbers with either sign.
    bins: BTreeMap<usize, [Bin; 2]>,
    beside: Beside,
}

/// Numbers for which [`FewFloats`] are faster.
pub(super) const FEW: u64 = 1 << 10;

impl Tally for FewFloats {
    fn add(&mut self, lane: &[u8]) {
        for number in lane.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)) {
            let place = (number >> MANTISSA) as usize;
            let one = Bin { count: 1, sum: u128::from(number & ((1 << MANTISSA) - 1)) };
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

    fn stats(self) -> Stats {
        self.beside.stats(self.bins.into_iter())
    }
}

/// What bins do not tell of floats.
struct Beside {
    min: f64,
    max: f64,
    plus_infinite: u64,
    minus_infinite: u64,
    /// float64 subnormals, which share the bin of zero: how many have each exponent, from 2^-1074 up.
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
    /// Looks at each number by itself.
    fn sort_out(&mut self, block: &[u8]) {
        for number in block.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)) {
            if number.is_finite() {
                self.min = self.min.min(number);
                self.max = self.max.max(number);
            }
            self.plus_infinite += u64::from(number == f64::INFINITY);
            self.minus_infinite += u64::from(number == f64::NEG_INFINITY);
            if number.is_subnormal() {
                self.subnormals[number.abs().to_bits().ilog2() as usize] += 1;
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.plus_infinite += other.plus_infinite;
        self.minus_infinite += other.minus_infinite;
        for (count, other) in self.subnormals.iter_mut().zip(other.subnormals) {
            *count += other;
        }
    }

    /// The figures, of the bins that are not empty besides: ascending exponents, with the numbers of either sign.
    fn stats(self, bins: impl Iterator<Item = (usize, [Bin; 2])>) -> Stats {
        let subnormals: u64 = self.subnormals.iter().sum();
        let infinite = self.plus_infinite + self.minus_infinite;
        let mut exponents: Vec<(i32, u64)> = (-1074..).zip(self.subnormals).collect();
        let mut terms = Vec::new();
        let (mut special, mut small, mut finite) = (0, 0, 0);
        for (field, [plus, minus]) in bins {
            let count = plus.count + minus.count;
            if field == SPECIAL {
                special = count;
                continue;
            }
            let exponent = field.max(1) as i32 - 1023;
            if field > 0 {
                exponents.push((exponent, count));
            } else {
                small = count;
            }
            finite += count;
            let sum = |bin: Bin| bin.sum as i128 + if field > 0 { i128::from(bin.count) << MANTISSA } else { 0 };
            terms.push((exponent - MANTISSA as i32, sum(plus) - sum(minus)));
        }
        // A sum with 0 makes 0 of -0.
        let (min, max) = (self.min + 0.0, self.max + 0.0);
        let some = |number: f64| (finite > 0).then_some(Number::Float(number));
        Stats {
            count: finite + special,
            min: some(min),
            max: some(max),
            abs_max: some(max.max(-min)),
            // What was rounded up may have left the range.
            mean: (finite > 0).then(|| mean(&terms, finite).clamp(min, max)),
            zeros: small - subnormals,
            subnormals: 0,
            nan: special - infinite,
            plus_infinite: self.plus_infinite,
            minus_infinite: self.minus_infinite,
            exponents: exponents.into_iter().collect(),
        }
    }
}

/// The sum of `factor * 2^exponent` over ascending exponents, divided by `count`.
///
/// The terms are exact. What an addition rounds off is added to the end (Neumaier), in units of the largest term, so
/// that nothing overflows on the way to a mean that does not.
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
    let half = unit / 2; // by halves: 2^-1074 is no normal number
    (sum + rest) / count as f64 * power_of_two(half) * power_of_two(unit - half)
}

/// 2^exponent, of an exponent not above 1023; 0 below the normal numbers.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023).max(0) as u64) << MANTISSA)
}

/// Of integers of 64 bits.
pub(super) struct Integers<const SIGNED: bool> {
    /// Zeros, then for every exponent the numbers that have it.
    counts: [u64; 65],
    sum: i128,
    min: i128,
    max: i128,
}

impl<const SIGNED: bool> Default for Integers<SIGNED> {
    fn default() -> Self {
        Self { counts: [0; 65], sum: 0, min: i128::MAX, max: i128::MIN }
    }
}

impl<const SIGNED: bool> Tally for Integers<SIGNED> {
    fn add(&mut self, lane: &[u8]) {
        for bytes in lane.as_chunks().0 {
            let number =
                if SIGNED { i64::from_le_bytes(*bytes).into() } else { i128::from(u64::from_le_bytes(*bytes)) };
            let magnitude = number.unsigned_abs() as u64;
            self.counts[64 - magnitude.leading_zeros() as usize] += 1;
            self.sum += number;
            self.min = self.min.min(number);
            self.max = self.max.max(number);
        }
    }

    fn merge(&mut self, other: Self) {
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            *count += other;
        }
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn stats(self) -> Stats {
        let count = self.counts.iter().sum();
        let some = |number: i128| (count > 0).then_some(Number::Integer(number));
        let (min, max) = (some(self.min), some(self.max));
        let [least, largest] = [min, max].map(|number| number.map(Number::abs));
        let abs_max = if self.min.unsigned_abs() > self.max.unsigned_abs() { least } else { largest };
        Stats {
            count,
            min,
            max,
            abs_max,
            mean: (count > 0).then(|| self.sum as f64 / count as f64),
            zeros: self.counts[0],
            subnormals: 0,
            nan: 0,
            plus_infinite: 0,
            minus_infinite: 0,
            exponents: (0..).zip(self.counts[1..].iter().copied()).collect(),
        }
    }
}
