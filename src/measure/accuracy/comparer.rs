//! Sources and results of a conversion, widened to float64 and compared.

use super::{AccuracyTally, BLOCK};
use crate::container::Form;
use crate::dtype::Dtype;
use crate::kernel::{Kernel, Loss, Rules, Storage};
use crate::measure::number::{Number, integers, is_wide_integer};

/// Widener of elements to float64, which holds all types of at most 32 bits and all floats; 64-bit integers are
/// rounded.
struct Widener {
    kernel: Kernel,
    storage: Storage,
    /// Conversion to little endian, for 64-bit integers.
    integer: Option<Kernel>,
    bytes: Vec<u8>,
    values: Vec<f64>,
}

impl Widener {
    /// Creates a widener; `None` for complex numbers and text.
    fn new(storage: Storage) -> Option<Self> {
        let widen = |to| Kernel::cast(storage, Storage::packed(to), &Rules::LOSSLESS);
        let integer = if is_wide_integer(storage.dtype) { Some(widen(storage.dtype)?) } else { None };
        Some(Self { kernel: widen(Dtype::Float64)?, storage, integer, bytes: Vec::new(), values: Vec::new() })
    }

    /// Widens `count` elements; malformed ones become NaN. Returns true if one was rounded.
    fn widen(&mut self, input: &[u8], count: usize) -> bool {
        self.bytes.resize(count * 8, 0);
        let counts = self.kernel.run(input, &mut self.bytes, count);
        let widened = self.bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        self.values.clear();
        self.values.extend(widened.map(|value| if counts.is_ok() { value } else { f64::NAN }));
        self.integer.is_some() && counts.is_ok_and(|counts| counts[Loss::Inexact] > 0)
    }

    /// Returns the elements of the last call, exactly.
    fn exact(&mut self, input: &[u8]) -> Vec<Number> {
        let Some(kernel) = &self.integer else {
            return self.values.iter().copied().map(Number::Float).collect();
        };
        kernel.run(input, &mut self.bytes, self.values.len()).expect("every integer is sound");
        integers(self.storage.dtype, &self.bytes)
    }

    fn bytes(&self, count: u64) -> u64 {
        self.storage.bytes(count).unwrap_or_default()
    }
}

/// Compares the results of a conversion with their sources.
pub(crate) struct Comparer {
    from: Widener,
    to: Widener,
}

impl Comparer {
    /// Creates a comparer; `None` if one side is text or complex.
    pub(crate) fn new(from: Form, to: Form) -> Option<Self> {
        let (Form::Numbers(from), Form::Numbers(to)) = (from, to) else { return None };
        Some(Self { from: Widener::new(from)?, to: Widener::new(to)? })
    }

    /// Tallies some elements; `start` is the index of the first.
    pub(crate) fn tally(&mut self, start: u64, source: &[u8], result: &[u8], count: usize) -> AccuracyTally {
        /// Number of elements at a time: whole blocks, which are whole bytes of every type.
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
