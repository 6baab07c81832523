//! How far results are from their sources: errors, signal to noise, direction.
//!
//! Values come as float64, block by block; sums of a block are added up in lanes that are always the same, and blocks in
//! the order of the elements, so that the figures are equal to the bit whoever computes them on however many threads.

use crate::dtype::Dtype;
use crate::kernel::{Form, Kernel, OutOfRange, RoundMode, Rules, Storage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Elements that are looked at together: few enough to stay in the first-level cache as float64.
pub(crate) const BLOCK: usize = 1 << 10;
/// Sums that are kept side by side, as vectors keep them.
const LANES: usize = 8;

/// The figures of one tensor. Elements of which the source or the result is infinite or no number are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Elements that were compared.
    pub compared: u64,
    /// The largest |y - x|, x being the source and y the result.
    pub max_abs_error: f64,
    /// The first element that has it, counted in row-major order; `None` where no element was compared.
    pub max_abs_error_at: Option<u64>,
    /// The largest |y - x| / |x| of all x that are not zero.
    pub max_rel_error: f64,
    /// The first element that has it.
    pub max_rel_error_at: Option<u64>,
    /// The mean of y - x.
    pub mean_error: Option<f64>,
    /// The ratio of signal to noise in decibels, 10 log10(sum of x^2 / sum of (y - x)^2); `None` where there is no noise
    /// (the largest error is 0 then), or no signal.
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

/// What some elements of a tensor add up to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    compared: u64,
    error: f64,
    squared_error: f64,
    squared_source: f64,
    squared_result: f64,
    product: f64,
    max_abs: Largest,
    max_rel: Largest,
}

/// The sums of a lane.
#[derive(Clone, Copy, Default)]
struct Sums {
    compared: f64,
    error: f64,
    squared_error: f64,
    squared_source: f64,
    squared_result: f64,
    product: f64,
    max_abs: f64,
    max_rel: f64,
}

impl Tally {
    /// Takes the next elements, of which `start` is the first.
    ///
    /// # Panics
    /// When there are not as many results as sources.
    pub(crate) fn add(&mut self, start: u64, sources: &[f64], results: &[f64]) {
        assert_eq!(sources.len(), results.len(), "every element has a result");
        let blocks = sources.chunks(BLOCK).zip(results.chunks(BLOCK));
        for (block, (sources, results)) in (0..).zip(blocks) {
            self.add_block(start + block * BLOCK as u64, sources, results);
        }
    }

    fn add_block(&mut self, start: u64, sources: &[f64], results: &[f64]) {
        let mut lanes = [Sums::default(); LANES];
        for (sources, results) in sources.chunks(LANES).zip(results.chunks(LANES)) {
            for ((lane, &x), &y) in lanes.iter_mut().zip(sources).zip(results) {
                lane.add(x, y);
            }
        }
        let sum = |of: fn(&Sums) -> f64| {
            let lanes = lanes.each_ref().map(of);
            let pair = |at: usize| lanes[2 * at] + lanes[2 * at + 1];
            (pair(0) + pair(1)) + (pair(2) + pair(3))
        };
        let max = |of: fn(&Sums) -> f64| lanes.iter().map(of).fold(0.0, f64::max);
        // Where the largest is in the block matters only if it is the largest so far.
        let largest = |so_far: Largest, found: f64, of: fn(f64, f64) -> f64| {
            if so_far.at.is_some() && found <= so_far.value {
                return Largest::default();
            }
            let mut pairs = sources.iter().zip(results);
            let at = pairs.position(|(&x, &y)| are_finite(x, y) && of(x, y) >= found);
            Largest { value: found, at: at.map(|at| start + at as u64) }
        };
        let (max_abs, max_rel) = (max(|sums| sums.max_abs), max(|sums| sums.max_rel));
        let block = Self {
            compared: sum(|sums| sums.compared) as u64,
            error: sum(|sums| sums.error),
            squared_error: sum(|sums| sums.squared_error),
            squared_source: sum(|sums| sums.squared_source),
            squared_result: sum(|sums| sums.squared_result),
            product: sum(|sums| sums.product),
            max_abs: largest(self.max_abs, max_abs, |x, y| (y - x).abs().min(f64::MAX)),
            max_rel: largest(self.max_rel, max_rel, relative),
        };
        self.append(&block);
    }

    /// Takes what elements behind these add up to.
    pub(crate) fn append(&mut self, next: &Self) {
        self.compared += next.compared;
        self.error += next.error;
        self.squared_error += next.squared_error;
        self.squared_source += next.squared_source;
        self.squared_result += next.squared_result;
        self.product += next.product;
        self.max_abs.add(next.max_abs);
        self.max_rel.add(next.max_rel);
    }

    /// The figures of all that was taken.
    #[must_use]
    pub(crate) fn figures(&self) -> Figures {
        let lengths = self.squared_source.sqrt() * self.squared_result.sqrt();
        Figures {
            compared: self.compared,
            max_abs_error: self.max_abs.value,
            max_abs_error_at: self.max_abs.at,
            max_rel_error: self.max_rel.value,
            max_rel_error_at: self.max_rel.at,
            mean_error: Some(self.error / self.compared as f64).filter(|mean| mean.is_finite()),
            sqnr_db: Some(10.0 * (self.squared_source / self.squared_error).log10()).filter(|sqnr| sqnr.is_finite()),
            cosine: Some((self.product / lengths).clamp(-1.0, 1.0)).filter(|cosine| cosine.is_finite()),
        }
    }
}

impl Sums {
    fn add(&mut self, x: f64, y: f64) {
        let is_counted = are_finite(x, y);
        let (x, y) = if is_counted { (x, y) } else { (0.0, 0.0) };
        let error = (y - x).clamp(f64::MIN, f64::MAX);
        self.compared += if is_counted { 1.0 } else { 0.0 };
        self.error += error;
        self.squared_error += error * error;
        self.squared_source += x * x;
        self.squared_result += y * y;
        self.product += x * y;
        self.max_abs = self.max_abs.max(error.abs());
        self.max_rel = self.max_rel.max(relative(x, y));
    }
}

fn are_finite(x: f64, y: f64) -> bool {
    x.is_finite() & y.is_finite()
}

fn relative(x: f64, y: f64) -> f64 {
    // JSON has no infinity.
    if x == 0.0 { 0.0 } else { ((y - x) / x).abs().min(f64::MAX) }
}

/// Widens elements to float64, which all types of at most 32 bits and all floats fit in; 64-bit integers are rounded.
pub(crate) struct Widener {
    kernel: Kernel,
    storage: Storage,
    bytes: Vec<u8>,
}

impl Widener {
    /// `None` for complex numbers and text.
    #[must_use]
    pub(crate) fn new(storage: Storage) -> Option<Self> {
        // None of these matters on the way to float64.
        let rules = Rules {
            saturate: false,
            infinity_saturates_fnuz: false,
            round_mode: RoundMode::Nearest,
            out_of_range: OutOfRange::Wrap,
        };
        let kernel = Kernel::cast(storage, Storage::packed(Dtype::Float64), &rules)?;
        Some(Self { kernel, storage, bytes: Vec::new() })
    }

    /// Adds `count` elements to `values`. Malformed ones are no number.
    pub(crate) fn widen(&mut self, input: &[u8], count: usize, values: &mut Vec<f64>) {
        self.bytes.resize(count * 8, 0);
        let is_sound = self.kernel.run(input, &mut self.bytes, count).is_ok();
        let widened = self.bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        values.extend(widened.map(|value| if is_sound { value } else { f64::NAN }));
    }

    /// Bytes that so many elements take.
    #[must_use]
    pub(crate) fn bytes(&self, count: u64) -> u64 {
        self.storage.bytes(count).unwrap_or_default()
    }
}

/// Looks at the elements of a conversion from one storage to another.
pub(crate) struct Comparer {
    from: Widener,
    to: Widener,
    sources: Vec<f64>,
    results: Vec<f64>,
}

impl Comparer {
    /// `None` where one side is text or complex.
    #[must_use]
    pub(crate) fn new(from: Form, to: Form) -> Option<Self> {
        let (Form::Numbers(from), Form::Numbers(to)) = (from, to) else { return None };
        let (from, to) = (Widener::new(from)?, Widener::new(to)?);
        Some(Self { from, to, sources: Vec::new(), results: Vec::new() })
    }

    /// What some elements add up to, of which `start` is the first.
    pub(crate) fn tally(&mut self, start: u64, source: &[u8], result: &[u8], count: usize) -> Tally {
        /// Whole blocks, which are whole bytes of every type.
        const STEP: usize = 8 * BLOCK;
        let mut tally = Tally::default();
        for first in (0..count).step_by(STEP) {
            let count = STEP.min(count - first);
            let place = |widener: &Widener| widener.bytes(first as u64) as usize;
            self.sources.clear();
            self.results.clear();
            let (source, result) = (&source[place(&self.from)..], &result[place(&self.to)..]);
            self.from.widen(source, count, &mut self.sources);
            self.to.widen(result, count, &mut self.results);
            tally.add(start + first as u64, &self.sources, &self.results);
        }
        tally
    }
}

/// What parts of a tensor add up to that come in any order, added up in the order of the elements.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    /// The element behind those that are in the sum.
    end: u64,
    sum: Tally,
    /// Parts behind one that is missing, by their first elements, with the elements behind them.
    waiting: BTreeMap<u64, (u64, Tally)>,
}

impl InOrder {
    /// Takes the part of the elements from `start` to `end`.
    pub(crate) fn add(&mut self, start: u64, end: u64, tally: Tally) {
        self.waiting.insert(start, (end, tally));
        while let Some((end, tally)) = self.waiting.remove(&self.end) {
            self.sum.append(&tally);
            self.end = end;
        }
    }

    /// The figures of all parts.
    #[must_use]
    pub(crate) fn figures(&self) -> Figures {
        self.sum.figures()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_their_definitions() {
        let sources = [1.0, -2.0, 0.0, f64::NAN, 4.0, 1.0];
        let results = [1.5, -2.0, 0.25, 1.0, 3.0, f64::INFINITY];
        let mut tally = Tally::default();
        tally.add(10, &sources, &results);
        let figures = tally.figures();
        assert_eq!((figures.compared, figures.max_abs_error, figures.max_abs_error_at), (4, 1.0, Some(14)));
        assert_eq!((figures.max_rel_error, figures.max_rel_error_at), (0.5, Some(10)));
        assert_eq!(figures.mean_error, Some(-0.0625));
        let (signal, noise) = (1.0 + 4.0 + 16.0, 0.25 + 0.0625 + 1.0);
        assert_eq!(figures.sqnr_db, Some(10.0 * f64::log10(signal / noise)));
        let (product, length) = (1.5 + 4.0 + 12.0, signal * (2.25 + 4.0 + 0.0625 + 9.0));
        assert!((figures.cosine.unwrap() - product / f64::sqrt(length)).abs() < 1e-15);
    }

    #[test]
    fn nothing_lost_has_no_noise() {
        let mut tally = Tally::default();
        tally.add(0, &[0.0, 3.0], &[0.0, 3.0]);
        let figures = tally.figures();
        assert_eq!((figures.max_abs_error, figures.max_abs_error_at, figures.sqnr_db), (0.0, Some(0), None));
        assert_eq!(figures.cosine, Some(1.0));
        assert_eq!(Tally::default().figures().max_abs_error_at, None);
    }

    #[test]
    fn the_first_of_equal_errors_is_named_across_blocks() {
        let sources: Vec<f64> = (0..5000).map(f64::from).collect();
        let results: Vec<f64> = (0..5000).map(|x| f64::from(x + i32::from(x % 1500 == 700))).collect();
        let mut whole = Tally::default();
        whole.add(0, &sources, &results);
        let mut parts = Tally::default();
        for start in (0..5000).step_by(2 * BLOCK) {
            let end = (start + 2 * BLOCK).min(5000);
            let mut part = Tally::default();
            part.add(start as u64, &sources[start..end], &results[start..end]);
            parts.append(&part);
        }
        assert_eq!((whole.figures().max_abs_error_at, parts.figures().max_abs_error_at), (Some(700), Some(700)));
        assert_eq!(whole.figures().compared, 5000);
    }
}
