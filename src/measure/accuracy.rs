//! How far results are from their sources: errors, signal to noise, direction.
//!
//! Values come as float64, block by block; sums of a block are added up in lanes that are always the same, and blocks in
//! the order of the elements, so that the figures are equal to the bit whoever computes them on however many threads.
//!
//! Squares can be too large or too small for float64. A block of such values is divided by powers of two before it is
//! squared, and sums keep an exponent of their own, so that nothing overflows between a block and the figures.

use super::number::{Number, difference};
use crate::container::Form;
use crate::dtype::{Class, Dtype};
use crate::kernel::{Kernel, Loss, OutOfRange, RoundMode, Rules, Storage};
use serde::{Deserialize, Serialize};

/// Elements that are looked at together: few enough to stay in the first-level cache as float64.
pub(crate) const BLOCK: usize = 1 << 10;
/// Sums that are kept side by side, as vectors keep them.
const LANES: usize = 8;

/// The figures of one tensor. Elements of which the source or the result is infinite or no number are left out of all
/// but the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Whether every value is what it was, also of those that are infinite or no number. 0 equals -0, and NaN equals NaN.
    pub is_exact: bool,
    /// Elements that were compared.
    pub compared: u64,
    /// The largest |y - x|, x being the source and y the result.
    #[serde(with = "number")]
    pub max_abs_error: f64,
    /// The first element that has it, counted in row-major order; `None` where no element was compared.
    pub max_abs_error_at: Option<u64>,
    /// The largest |y - x| / |x| of all x that are not zero; infinite where float64 has no such number.
    #[serde(with = "number")]
    pub max_rel_error: f64,
    /// The first element that has it.
    pub max_rel_error_at: Option<u64>,
    /// The mean of y - x.
    pub mean_error: Option<f64>,
    /// The ratio of signal to noise in decibels, 10 log10(sum of x^2 / sum of (y - x)^2): infinite where there is no
    /// noise, `None` where there is no signal but noise, or nothing was compared.
    #[serde(with = "decibels")]
    pub sqnr_db: Option<f64>,
    /// The cosine of the angle between all x and all y; `None` where one of them has no length.
    pub cosine: Option<f64>,
}

/// The largest of some numbers, and the first element that has it.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    value: f64,
    at: Option<u64>,
}

impl Largest {
    /// Elements come in order.
    fn add(&mut self, other: Self) {
        if other.at.is_some() && (self.at.is_none() || other.value > self.value) {
            *self = other;
        }
    }
}

/// A sum that is `value` times 2 to the power of `exponent`; `value` is 0, or from 1 to below 2 without its sign.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Scaled {
    value: f64,
    exponent: i32,
}

impl Scaled {
    /// Of a finite value.
    fn new(value: f64, exponent: i32) -> Self {
        if value == 0.0 {
            return Self::default();
        }
        let binade = exponent_of(value);
        Self { value: times_power_of_two(value, -binade), exponent: exponent + binade }
    }

    /// As float64 would add it, were its exponents unbounded: what the smaller one loses in being aligned is far below
    /// the last bit of the sum.
    fn add(&mut self, other: Self) {
        let (large, small) = match () {
            () if self.value == 0.0 => (other, *self),
            () if other.value == 0.0 || self.exponent >= other.exponent => (*self, other),
            () => (other, *self),
        };
        let distance = if small.value == 0.0 { 0 } else { small.exponent - large.exponent };
        *self = Self::new(large.value + times_power_of_two(small.value, distance), large.exponent);
    }

    /// The square root of a sum that is not negative.
    fn sqrt(self) -> Self {
        let odd = self.exponent.rem_euclid(2);
        Self::new((self.value * f64::from(1 << odd)).sqrt(), (self.exponent - odd) / 2)
    }

    fn over(self, divisor: Self) -> f64 {
        times_power_of_two(self.value / divisor.value, self.exponent - divisor.exponent)
    }

    fn log10(self) -> f64 {
        // In the range of float64 the logarithm of the number itself has less to round.
        let number = times_power_of_two(self.value, self.exponent);
        let is_normal = number.is_normal();
        if is_normal { number.log10() } else { self.value.log10() + f64::from(self.exponent) * 2_f64.log10() }
    }
}

/// floor(log2|value|) of a finite number that is not zero.
fn exponent_of(value: f64) -> i32 {
    const MANTISSA: i32 = f64::MANTISSA_DIGITS as i32 - 1;
    let magnitude = value.abs().to_bits();
    match (magnitude >> MANTISSA) as i32 {
        0 => magnitude.ilog2() as i32 - MANTISSA + f64::MIN_EXP - 1,
        field => field - (f64::MAX_EXP - 1),
    }
}

/// In steps, as no float64 is a power of two beyond its own range.
fn times_power_of_two(value: f64, exponent: i32) -> f64 {
    const STEP: i32 = 1000;
    let power = |exponent: i32| f64::from_bits(((exponent + f64::MAX_EXP - 1) as u64) << (f64::MANTISSA_DIGITS - 1));
    let whole = (exponent / STEP).clamp(-3, 3);
    let rest = (exponent - whole * STEP).clamp(-STEP, STEP);
    (0..whole.abs()).fold(value * power(rest), |value, _| value * power(STEP * whole.signum()))
}

/// What some elements of a tensor add up to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccuracyTally {
    compared: u64,
    /// Elements whose values differ.
    changed: u64,
    error: Scaled,
    squared_error: Scaled,
    squared_source: Scaled,
    squared_result: Scaled,
    product: Scaled,
    max_abs: Largest,
    max_rel: Largest,
}

/// The sums of a lane.
#[derive(Clone, Copy, Default)]
struct Sums {
    compared: f64,
    changed: f64,
    error: f64,
    squared_error: f64,
    squared_source: f64,
    squared_result: f64,
    product: f64,
    max_abs: f64,
    max_rel: f64,
}

/// Elements of a tensor: sources, results, and how far results are from their sources.
#[derive(Clone, Copy)]
struct ComparedBlock<'a> {
    sources: &'a [f64],
    results: &'a [f64],
    errors: &'a [f64],
}

impl AccuracyTally {
    /// Takes the next elements, of which `start` is the first. `errors` are the differences of results and sources where
    /// float64 does not hold these exactly.
    ///
    /// # Panics
    /// When there are not as many results as sources.
    pub(crate) fn add(&mut self, start: u64, sources: &[f64], results: &[f64], errors: Option<&[f64]>) {
        assert_eq!(sources.len(), results.len(), "every element has a result");
        let mut room = [0.0; BLOCK];
        for first in (0..sources.len()).step_by(BLOCK) {
            let part = first..sources.len().min(first + BLOCK);
            let (sources, results) = (&sources[part.clone()], &results[part.clone()]);
            let errors = if let Some(errors) = errors {
                &errors[part]
            } else {
                for ((error, &x), &y) in room.iter_mut().zip(sources).zip(results) {
                    *error = difference(x, y);
                }
                &room[..sources.len()]
            };
            self.add_block(start + first as u64, ComparedBlock { sources, results, errors });
        }
    }

    fn add_block(&mut self, start: u64, block: ComparedBlock) {
        let sums = block.sums([0; 3]);
        // Where the largest is in the block matters only if it is the largest so far.
        let largest = |so_far: Largest, found: f64, of: fn(f64, f64) -> f64| {
            if so_far.at.is_some() && found <= so_far.value {
                return Largest::default();
            }
            let at = block.iter().position(|(x, y, error)| are_finite(x, y) && of(x, error) >= found);
            Largest { value: found, at: at.map(|at| start + at as u64) }
        };
        let mut next = Self {
            compared: sums.compared as u64,
            changed: sums.changed as u64,
            max_abs: largest(self.max_abs, sums.max_abs, |_, error| error.abs()),
            max_rel: largest(self.max_rel, sums.max_rel, relative),
            ..Self::default()
        };
        // What becomes too small when it is squared shows in the sum, unless the sum is far above it.
        let is_sound = |sum: f64| sum.is_finite() && sum >= SOUND;
        let is_plain = is_sound(sums.squared_source)
            && is_sound(sums.squared_result)
            && (is_sound(sums.squared_error) || sums.max_abs == 0.0);
        if is_plain {
            next.take(&sums, [0; 3]);
        } else {
            let exponents = block.exponents();
            next.take(&block.sums(exponents), exponents);
        }
        self.append(&next);
    }

    /// Takes the sums of a block whose sources, results and errors were divided by these powers of two.
    fn take(&mut self, sums: &Sums, [source, result, error]: [i32; 3]) {
        self.error = Scaled::new(sums.error, error);
        self.squared_error = Scaled::new(sums.squared_error, 2 * error);
        self.squared_source = Scaled::new(sums.squared_source, 2 * source);
        self.squared_result = Scaled::new(sums.squared_result, 2 * result);
        self.product = Scaled::new(sums.product, source + result);
    }

    /// Takes what elements behind these add up to.
    pub(crate) fn append(&mut self, next: &Self) {
        self.compared += next.compared;
        self.changed += next.changed;
        self.error.add(next.error);
        self.squared_error.add(next.squared_error);
        self.squared_source.add(next.squared_source);
        self.squared_result.add(next.squared_result);
        self.product.add(next.product);
        self.max_abs.add(next.max_abs);
        self.max_rel.add(next.max_rel);
    }

    /// The figures of all that was taken.
    #[must_use]
    pub(crate) fn accuracy(&self) -> Accuracy {
        let Self { squared_source: signal, squared_error: noise, .. } = *self;
        let lengths = [signal, self.squared_result].map(Scaled::sqrt);
        let has_length = lengths.iter().all(|length| length.value > 0.0);
        let lengths = Scaled::new(lengths[0].value * lengths[1].value, lengths[0].exponent + lengths[1].exponent);
        let sqnr_db = match (self.compared > 0, signal.value > 0.0, noise.value > 0.0) {
            (true, _, false) => Some(f64::INFINITY),
            (true, true, true) => {
                let ratio = Scaled::new(signal.value / noise.value, signal.exponent - noise.exponent);
                Some(10.0 * ratio.log10())
            }
            _ => None,
        };
        let compared = Scaled::new(self.compared as f64, 0);
        Accuracy {
            is_exact: self.changed == 0,
            compared: self.compared,
            max_abs_error: self.max_abs.value,
            max_abs_error_at: self.max_abs.at,
            max_rel_error: self.max_rel.value,
            max_rel_error_at: self.max_rel.at,
            mean_error: (self.compared > 0).then(|| self.error.over(compared)).filter(|mean| mean.is_finite()),
            sqnr_db,
            cosine: has_length.then(|| self.product.over(lengths).clamp(-1.0, 1.0)),
        }
    }
}

/// Sums of squares from here on have lost nothing that counts: the square of a number is right to the last bit from 2^-970
/// on, and all that are smaller are below the last bit of such a sum.
const SOUND: f64 = f64::from_bits((1023 - 900) << 52);

impl ComparedBlock<'_> {
    fn iter(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let pairs = self.sources.iter().zip(self.results).zip(self.errors);
        pairs.map(|((x, y), error)| (*x, *y, *error))
    }

    /// The sums of all elements, divided by powers of two; the largest errors are never divided.
    fn sums(&self, exponents: [i32; 3]) -> Sums {
        let mut lanes = [Sums::default(); LANES];
        let parts = self.sources.chunks(LANES).zip(self.results.chunks(LANES)).zip(self.errors.chunks(LANES));
        for ((sources, results), errors) in parts {
            let elements = lanes.iter_mut().zip(sources).zip(results).zip(errors);
            if exponents == [0; 3] {
                elements.for_each(|(((lane, x), y), error)| lane.add(*x, *y, *error, |values| values));
            } else {
                let divide = |values: [f64; 3]| {
                    let mut pairs = values.into_iter().zip(exponents);
                    [(); 3].map(|()| pairs.next().map_or(0.0, |(value, exponent)| times_power_of_two(value, -exponent)))
                };
                elements.for_each(|(((lane, x), y), error)| lane.add(*x, *y, *error, divide));
            }
        }
        let sum = |of: fn(&Sums) -> f64| {
            let lanes = lanes.each_ref().map(of);
            let pair = |at: usize| lanes[2 * at] + lanes[2 * at + 1];
            (pair(0) + pair(1)) + (pair(2) + pair(3))
        };
        let max = |of: fn(&Sums) -> f64| lanes.iter().map(of).fold(0.0, f64::max);
        Sums {
            compared: sum(|sums| sums.compared),
            changed: sum(|sums| sums.changed),
            error: sum(|sums| sums.error),
            squared_error: sum(|sums| sums.squared_error),
            squared_source: sum(|sums| sums.squared_source),
            squared_result: sum(|sums| sums.squared_result),
            product: sum(|sums| sums.product),
            max_abs: max(|sums| sums.max_abs),
            max_rel: max(|sums| sums.max_rel),
        }
    }

    /// The exponents of the largest source, result and error.
    fn exponents(&self) -> [i32; 3] {
        let finite = || self.iter().filter(|(x, y, _)| are_finite(*x, *y));
        let exponent = |of: fn((f64, f64, f64)) -> f64| {
            let largest = finite().map(of).fold(0.0, |largest: f64, value| largest.max(value.abs().min(f64::MAX)));
            if largest == 0.0 { 0 } else { exponent_of(largest) }
        };
        [exponent(|(x, ..)| x), exponent(|(_, y, _)| y), exponent(|(.., error)| error)]
    }
}

impl Sums {
    #[inline]
    fn add(&mut self, x: f64, y: f64, error: f64, divide: impl Fn([f64; 3]) -> [f64; 3]) {
        let is_counted = are_finite(x, y);
        self.compared += if is_counted { 1.0 } else { 0.0 };
        self.changed += if error == 0.0 { 0.0 } else { 1.0 };
        let (x, y, error) = if is_counted { (x, y, error) } else { (0.0, 0.0, 0.0) };
        self.max_abs = self.max_abs.max(error.abs());
        self.max_rel = self.max_rel.max(relative(x, error));
        // A difference beyond float64 is as large as one can be.
        let [x, y, error] = divide([x, y, error.clamp(f64::MIN, f64::MAX)]);
        self.error += error;
        self.squared_error += error * error;
        self.squared_source += x * x;
        self.squared_result += y * y;
        self.product += x * y;
    }
}

fn are_finite(x: f64, y: f64) -> bool {
    x.is_finite() & y.is_finite()
}

fn relative(x: f64, error: f64) -> f64 {
    if x == 0.0 { 0.0 } else { (error / x).abs() }
}

/// A number that may be infinite, which JSON lacks: the text "Infinity" then, which other languages read as a number.
mod number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) const INFINITY: &str = "Infinity";

    #[derive(Deserialize)]
    #[serde(untagged)]
    pub(super) enum Read {
        Finite(f64),
        Text(String),
    }

    impl Read {
        pub(super) fn number<E: serde::de::Error>(self) -> Result<f64, E> {
            match self {
                Self::Finite(number) => Ok(number),
                Self::Text(text) if text == INFINITY => Ok(f64::INFINITY),
                Self::Text(text) => Err(E::custom(format!("'{text}' is not a number"))),
            }
        }
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub(super) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if number.is_infinite() { INFINITY.serialize(serializer) } else { number.serialize(serializer) }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Read::deserialize(deserializer)?.number()
    }
}

/// Likewise of a number that may be missing.
mod decibels {
    use super::number::{self, Read};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option, reason = "as serde calls it")]
    pub(super) fn serialize<S: Serializer>(decibels: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match decibels {
            Some(decibels) => number::serialize(decibels, serializer),
            None => None::<f64>.serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::<Read>::deserialize(deserializer)?.map(Read::number).transpose()
    }
}

/// Widens elements to float64, which all types of at most 32 bits and all floats fit in; 64-bit integers are rounded.
struct Widener {
    kernel: Kernel,
    storage: Storage,
    /// To 64 bits, for integers that have as many; and whether they are signed.
    integer: Option<(Kernel, bool)>,
    bytes: Vec<u8>,
    values: Vec<f64>,
}

impl Widener {
    /// `None` for complex numbers and text.
    fn new(storage: Storage) -> Option<Self> {
        // None of these matters on the way to float64.
        let rules = Rules {
            saturate: false,
            infinity_saturates_fnuz: false,
            round_mode: RoundMode::Nearest,
            out_of_range: OutOfRange::Wrap,
        };
        let widen = |to| Kernel::cast(storage, Storage::packed(to), &rules);
        let integer = match storage.dtype.class() {
            Class::Int { signed } if storage.dtype.bits() == 64 => {
                Some((widen(if signed { Dtype::Int64 } else { Dtype::Uint64 })?, signed))
            }
            _ => None,
        };
        Some(Self { kernel: widen(Dtype::Float64)?, storage, integer, bytes: Vec::new(), values: Vec::new() })
    }

    /// Takes `count` elements. Malformed ones are no number. Gives whether one was rounded.
    fn widen(&mut self, input: &[u8], count: usize) -> bool {
        self.bytes.resize(count * 8, 0);
        let counts = self.kernel.run(input, &mut self.bytes, count);
        let widened = self.bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        self.values.clear();
        self.values.extend(widened.map(|value| if counts.is_ok() { value } else { f64::NAN }));
        self.integer.is_some() && counts.is_ok_and(|counts| counts[Loss::Inexact] > 0)
    }

    /// The elements that were taken last, exactly.
    fn exact(&mut self, input: &[u8]) -> Vec<Number> {
        let Some((kernel, is_signed)) = &self.integer else {
            return self.values.iter().copied().map(Number::Float).collect();
        };
        kernel.run(input, &mut self.bytes, self.values.len()).expect("every integer is sound");
        let number = |bytes: &[u8; 8]| Number::Integer(integer_of(*bytes, *is_signed));
        self.bytes.as_chunks().0.iter().map(number).collect()
    }

    /// Bytes that so many elements take.
    fn bytes(&self, count: u64) -> u64 {
        self.storage.bytes(count).unwrap_or_default()
    }
}

/// A little endian integer of 64 bits.
#[must_use]
pub(crate) fn integer_of(bytes: [u8; 8], is_signed: bool) -> i128 {
    if is_signed { i64::from_le_bytes(bytes).into() } else { u64::from_le_bytes(bytes).into() }
}

/// Looks at the elements of a conversion from one storage to another.
pub(crate) struct Comparer {
    from: Widener,
    to: Widener,
}

impl Comparer {
    /// `None` where one side is text or complex.
    #[must_use]
    pub(crate) fn new(from: Form, to: Form) -> Option<Self> {
        let (Form::Numbers(from), Form::Numbers(to)) = (from, to) else { return None };
        Some(Self { from: Widener::new(from)?, to: Widener::new(to)? })
    }

    /// What some elements add up to, of which `start` is the first.
    pub(crate) fn tally(&mut self, start: u64, source: &[u8], result: &[u8], count: usize) -> AccuracyTally {
        /// Whole blocks, which are whole bytes of every type.
        const STEP: usize = 8 * BLOCK;
        let mut tally = AccuracyTally::default();
        for first in (0..count).step_by(STEP) {
            let count = STEP.min(count - first);
            let place = |widener: &Widener| widener.bytes(first as u64) as usize;
            let (source, result) = (&source[place(&self.from)..], &result[place(&self.to)..]);
            let is_rounded = self.from.widen(source, count) | self.to.widen(result, count);
            let errors: Option<Vec<f64>> = is_rounded.then(|| {
                let (sources, results) = (self.from.exact(source), self.to.exact(result));
                sources.into_iter().zip(results).map(|(x, y)| x.to(y)).collect()
            });
            tally.add(start + first as u64, &self.from.values, &self.to.values, errors.as_deref());
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_their_definitions() {
        let sources = [1.0, -2.0, 0.0, f64::NAN, 4.0, 1.0];
        let results = [1.5, -2.0, 0.25, 1.0, 3.0, f64::INFINITY];
        let mut tally = AccuracyTally::default();
        tally.add(10, &sources, &results, None);
        let accuracy = tally.accuracy();
        assert_eq!((accuracy.compared, accuracy.max_abs_error, accuracy.max_abs_error_at), (4, 1.0, Some(14)));
        assert_eq!((accuracy.max_rel_error, accuracy.max_rel_error_at), (0.5, Some(10)));
        assert_eq!(accuracy.mean_error, Some(-0.0625));
        let (signal, noise) = (1.0 + 4.0 + 16.0, 0.25 + 0.0625 + 1.0);
        assert_eq!(accuracy.sqnr_db, Some(10.0 * f64::log10(signal / noise)));
        let (product, length) = (1.5 + 4.0 + 12.0, signal * (2.25 + 4.0 + 0.0625 + 9.0));
        assert!((accuracy.cosine.unwrap() - product / f64::sqrt(length)).abs() < 1e-15);
    }

    #[test]
    fn nothing_lost_has_no_noise() {
        let mut tally = AccuracyTally::default();
        tally.add(0, &[0.0, 3.0], &[0.0, 3.0], None);
        let accuracy = tally.accuracy();
        assert_eq!((accuracy.max_abs_error, accuracy.max_abs_error_at), (0.0, Some(0)));
        assert_eq!((accuracy.sqnr_db, accuracy.is_exact), (Some(f64::INFINITY), true));
        assert_eq!(accuracy.cosine, Some(1.0));
        assert_eq!(AccuracyTally::default().accuracy().max_abs_error_at, None);
    }

    #[test]
    fn the_first_of_equal_errors_is_named_across_blocks() {
        let sources: Vec<f64> = (0..5000).map(f64::from).collect();
        let results: Vec<f64> = (0..5000).map(|x| f64::from(x + i32::from(x % 1500 == 700))).collect();
        let mut whole = AccuracyTally::default();
        whole.add(0, &sources, &results, None);
        let mut parts = AccuracyTally::default();
        for start in (0..5000).step_by(2 * BLOCK) {
            let end = (start + 2 * BLOCK).min(5000);
            let mut part = AccuracyTally::default();
            part.add(start as u64, &sources[start..end], &results[start..end], None);
            parts.append(&part);
        }
        assert_eq!((whole.accuracy().max_abs_error_at, parts.accuracy().max_abs_error_at), (Some(700), Some(700)));
        assert_eq!(whole.accuracy().compared, 5000);
    }

    fn accuracy_of(sources: &[f64], results: &[f64]) -> Accuracy {
        let mut tally = AccuracyTally::default();
        tally.add(0, sources, results, None);
        tally.accuracy()
    }

    fn assert_near(found: Option<f64>, wanted: f64) {
        let found = found.unwrap();
        assert!((found - wanted).abs() <= 1e-12 * wanted.abs(), "{found}, not {wanted}");
    }

    #[test]
    fn squares_beyond_float64_leave_the_figures_right() {
        let accuracy = accuracy_of(&[1e160, 1e160], &[1.0, 1.0]);
        assert_near(accuracy.cosine, 1.0);
        assert_near(Some(accuracy.sqnr_db.unwrap() + 1.0), 1.0);
        assert_near(accuracy_of(&[1e-200, 3e-200], &[1.0, 1.0]).cosine, 4.0 / 20_f64.sqrt());
        // Results are right whatever the power of two, down to subnormal numbers, which are exact here.
        let (sources, results) = ([3.0, -5.0, 7.0, 1.0], [3.5, -5.0, 6.0, 1.0]);
        let plain = accuracy_of(&sources, &results);
        for exponent in (-1070..=1020).step_by(10) {
            let scaled = [sources, results].map(|values| values.map(|value| times_power_of_two(value, exponent)));
            let accuracy = accuracy_of(&scaled[0], &scaled[1]);
            assert_eq!(accuracy.cosine, plain.cosine, "2^{exponent}");
            assert_near(accuracy.sqnr_db, plain.sqnr_db.unwrap());
            assert_eq!(accuracy.mean_error, plain.mean_error.map(|mean| times_power_of_two(mean, exponent)));
        }
        // Blocks of any size are added up: the small one does not count, and does no harm.
        let mut sources = vec![1e-300; BLOCK];
        sources.extend(vec![1e300; BLOCK]);
        let results = vec![1e300; 2 * BLOCK];
        assert_near(accuracy_of(&sources, &results).cosine, 0.5_f64.sqrt());
        assert_near(accuracy_of(&[-1e308, 1e308], &[-1.5e308, 1e308]).mean_error, -0.25e308);
    }

    #[test]
    fn errors_beyond_float64_are_infinite_and_read_back() {
        let accuracy = accuracy_of(&[1e-320, 1.0], &[1.0, 1.0]);
        assert_eq!((accuracy.max_rel_error, accuracy.max_rel_error_at), (f64::INFINITY, Some(0)));
        let text = serde_json::to_string(&accuracy).unwrap();
        assert!(text.contains(r#""max_rel_error":"Infinity""#), "{text}");
        assert_eq!(serde_json::from_str::<Accuracy>(&text).unwrap(), accuracy);
        let exact = serde_json::to_string(&accuracy_of(&[1.0], &[1.0])).unwrap();
        assert!(exact.contains(r#""is_exact":true"#) && exact.contains(r#""sqnr_db":"Infinity""#), "{exact}");
        let without_signal = accuracy_of(&[0.0], &[1.0]);
        assert_eq!((without_signal.sqnr_db, without_signal.is_exact), (None, false));
        assert_eq!(accuracy_of(&[f64::NAN], &[f64::NAN]).sqnr_db, None);
    }

    #[test]
    fn only_what_did_not_change_is_exact() {
        let infinity = f64::INFINITY;
        assert!(accuracy_of(&[1.0, infinity, f64::NAN, 0.0], &[1.0, infinity, -f64::NAN, -0.0]).is_exact);
        for changed in [[1.0, 448.0], [f64::NAN, infinity]] {
            let accuracy = accuracy_of(&[1.0, infinity], &changed);
            assert!(!accuracy.is_exact && accuracy.max_abs_error == 0.0, "{changed:?}");
        }
    }

    #[test]
    fn integers_of_64_bits_are_compared_as_integers() {
        let form = |dtype| Form::Numbers(Storage::packed(dtype));
        let two_to_53 = 1_i64 << 53;
        let integers = [two_to_53 + 1, 3, -two_to_53 - 1].map(i64::to_le_bytes).concat();
        let floats = [two_to_53 as f64, 3.0, -two_to_53 as f64].map(f64::to_le_bytes).concat();
        let mut comparer = Comparer::new(form(Dtype::Int64), form(Dtype::Float64)).unwrap();
        let accuracy = comparer.tally(0, &integers, &floats, 3).accuracy();
        assert_eq!((accuracy.is_exact, accuracy.max_abs_error, accuracy.max_abs_error_at), (false, 1.0, Some(0)));
        assert_eq!(accuracy.mean_error, Some(0.0));
        let mut comparer = Comparer::new(form(Dtype::Int64), form(Dtype::Uint64)).unwrap();
        assert!(!comparer.tally(0, &integers, &integers, 3).accuracy().is_exact); // -2^53 - 1 wrapped
        assert!(comparer.tally(0, &integers, &integers, 2).accuracy().is_exact);
    }
}
