//! Loops for float64s, into counts and exact sums, and parts that all loops share.

use super::histogram::Distribution;
use crate::dtype::{FloatFormat, Specials};
use crate::measure::number::{Number, power_of_two};

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

/// Bits of a float64's mantissa.
const MANTISSA: u32 = 52;
/// Number of values of a float64's sign and exponent together.
const BINS: usize = 1 << 12;
/// First bin of negative numbers.
const NEGATIVE: usize = BINS / 2;
/// The bin of Inf and NaN.
const SPECIAL: usize = NEGATIVE - 1;
const FLOAT64: FloatFormat =
    FloatFormat { exponent_bits: 11, mantissa_bits: MANTISSA, bias: 1023, specials: Specials::Ieee };

/// Numbers of one sign and exponent: their count from this bit on, and below it the sum of their mantissas without the
/// hidden bit. A thread can add 2^38 numbers, which are 2 TiB.
const COUNT: u32 = 90;

/// Number of numbers in a block: few enough for the second-level cache.
pub(super) const BLOCK: usize = 1 << 13;

/// Number of bins for an exponent. Adjacent numbers often have the same exponent: they go to different bins in turn, so
/// that no addition waits.
const WAYS: usize = 4;

/// Number of bins that are cleared, merged and read together. A bias or a scale, of which a model has thousands, uses only
/// a few.
const GROUP: usize = 1 << 6;

/// Number of extremes that are found in parallel, as in vectors.
const LANES: usize = 8;

pub(super) struct Float64Tally {
    bins: Vec<[u128; WAYS]>,
    /// True for groups of bins in use.
    is_used: [bool; BINS / GROUP],
    min: [f64; LANES],
    max: [f64; LANES],
    figures: FloatFigures,
}

impl Default for Float64Tally {
    fn default() -> Self {
        Self {
            bins: vec![[0; WAYS]; BINS],
            is_used: [false; BINS / GROUP],
            min: [f64::INFINITY; LANES],
            max: [f64::NEG_INFINITY; LANES],
            figures: FloatFigures::default(),
        }
    }
}

impl Float64Tally {
    fn count(&mut self, block: &[u8]) {
        let bins: &mut [[u128; WAYS]; BINS] = self.bins.as_mut_slice().try_into().expect("a bin of each sort");
        let mut count = |way: usize, bytes: &[u8; 8]| {
            let number = u64::from_le_bytes(*bytes);
            let place = (number >> MANTISSA) as usize;
            bins[place][way] += (1 << COUNT) + u128::from(number & ((1 << MANTISSA) - 1));
            self.is_used[place / GROUP] = true;
        };
        let (groups, rest) = block.as_chunks::<{ 8 * WAYS }>();
        for group in groups {
            for (way, bytes) in group.as_chunks().0.iter().enumerate() {
                count(way, bytes);
            }
        }
        rest.as_chunks().0.iter().for_each(|bytes| count(0, bytes));
    }

    /// Returns the count of numbers of a sign and exponent, and the sum of their mantissas.
    fn bin(&self, place: usize) -> (u64, i128) {
        let sum = self.bins[place].iter().sum::<u128>();
        ((sum >> COUNT) as u64, (sum & ((1 << COUNT) - 1)) as i128)
    }

    /// Returns a number that changes when Inf, NaN or a float64 subnormal is counted.
    fn unusual(&self) -> i128 {
        let unusual = |sign| i128::from(self.bin(sign + SPECIAL).0).wrapping_add(self.bin(sign).1);
        unusual(0).wrapping_add(unusual(NEGATIVE))
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
}

/// Returns the places of all bins of groups in use.
fn places(is_used: &[bool; BINS / GROUP]) -> impl Iterator<Item = usize> {
    (0..).step_by(GROUP).zip(is_used).filter(|(_, is_used)| **is_used).flat_map(|(start, _)| start..start + GROUP)
}

impl Tally for Float64Tally {
    fn add(&mut self, lane: &[u8]) {
        for block in lane.chunks(8 * BLOCK) {
            let unusual = self.unusual();
            self.count(block);
            if self.unusual() == unusual {
                self.find_extremes(block);
                continue;
            }
            for number in block.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)) {
                self.figures.add_times(number, number.is_subnormal().then(|| number.abs().to_bits()), 1);
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for place in places(&other.is_used) {
            self.is_used[place / GROUP] = true;
            self.bins[place].iter_mut().zip(other.bins[place]).for_each(|(bin, other)| *bin += other);
        }
        for place in 0..LANES {
            self.min[place] = self.min[place].min(other.min[place]);
            self.max[place] = self.max[place].max(other.max[place]);
        }
        self.figures.merge(&other.figures);
    }

    fn distribution(mut self) -> Distribution {
        for (min, max) in self.min.into_iter().zip(self.max) {
            self.figures.widen(min, max);
        }
        for group in 0..NEGATIVE / GROUP {
            self.is_used[group] |= self.is_used[group + NEGATIVE / GROUP];
        }
        let (mut counts, mut terms) = (Vec::new(), Vec::new());
        for field in places(&self.is_used).take_while(|field| *field < NEGATIVE) {
            let [(plus, sum), (minus, minus_sum)] = [field, NEGATIVE + field].map(|place| self.bin(place));
            counts.push((field, plus + minus));
            let hidden = if field > 0 { (i128::from(plus) - i128::from(minus)) << MANTISSA } else { 0 };
            if field != SPECIAL {
                terms.push((FLOAT64.min_subnormal_exponent() + field.max(1) as i32 - 1, sum - minus_sum + hidden));
            }
        }
        self.figures.distribution(&FLOAT64, &counts, &terms)
    }
}

/// Figures about floats that counts of exponents and sums do not show.
pub(super) struct FloatFigures {
    min: f64,
    max: f64,
    plus_infinite: u64,
    minus_infinite: u64,
    /// Counts of subnormals, which share the exponent field of zero, by exponent, from the lowest.
    subnormals: [u64; MANTISSA as usize],
}

impl Default for FloatFigures {
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

impl FloatFigures {
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
        format: &FloatFormat,
        counts: &[(usize, u64)],
        terms: &[(i32, i128)],
    ) -> Distribution {
        let subnormals: u64 = self.subnormals.iter().sum();
        let infinite = self.plus_infinite + self.minus_infinite;
        let of = |wanted| counts.iter().filter(|(field, _)| *field == wanted).map(|(_, count)| count).sum::<u64>();
        let special = (1 << format.exponent_bits) - 1;
        let count = counts.iter().map(|(_, count)| count).sum::<u64>();
        let finite = count - of(special);
        let normal = counts.iter().filter(|(field, _)| *field > 0 && *field < special);
        let exponents = normal.map(|(field, count)| (format.min_normal_exponent() + *field as i32 - 1, *count));
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
            zeros: of(0) - subnormals,
            nan: of(special) - infinite,
            plus_infinite: self.plus_infinite,
            minus_infinite: self.minus_infinite,
            exponents: (format.min_subnormal_exponent()..).zip(self.subnormals).chain(exponents).collect(),
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
